#!/usr/bin/env bash
# Prints the table that a result in docs/results begins with: date, machine, commit and
# the command that is given.
set -euo pipefail

if (($# != 1)) || [[ $1 == -h || $1 == --help ]]; then
    echo "usage: hack/result-header.sh COMMAND"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=$(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)
commit=$(git rev-parse --short HEAD)
[[ -z $(git status --porcelain) ]] || commit+=-dirty
cat <<TEXT
| | |
| --- | --- |
| date | $(date --utc +%F) |
| machine | $(uname -s), $(go env GOARCH), $(nproc) processors (${model:-the model is not known}) |
| commit | \`${commit}\` |
| command | \`$1\` |
TEXT
