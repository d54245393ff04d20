#!/usr/bin/env bash
# Fails on what shellcheck finds in a script, and on one that shfmt would format
# in another way.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
hack/tools/debian.sh shellcheck shfmt
mapfile -t scripts < <(git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run)
_output/tools/bin/shellcheck --external-sources "${scripts[@]}"
_output/tools/bin/shfmt -d -i 4 "${scripts[@]}"
