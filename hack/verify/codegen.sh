#!/usr/bin/env bash
# Fails when the generated code is not what hack/update-codegen.sh makes of
# pkg/apis. It works on a copy of the tree and leaves the tree alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

copy="$(mktemp -d)"
trap 'rm -rf "${copy}"' EXIT
git ls-files -co --exclude-standard -z -- go.mod go.sum pkg hack ':!hack/tools' ':!hack/cluster' |
    while IFS= read -r -d '' file; do
        [[ ! -e "${file}" ]] || printf '%s\0' "${file}"
    done |
    xargs -0 cp --parents -t "${copy}"
(cd "${copy}" && git init -q . && git add -A && hack/update-codegen.sh >"${copy}/codegen.log" 2>&1) || {
    cat "${copy}/codegen.log" >&2
    exit 1
}
stale=0
for folder in pkg/generated pkg/apis hack/api-violations.list; do
    diff -ruN "${folder}" "${copy}/${folder}" || stale=1
done
if ((stale)); then
    echo "generated code is stale, run 'make generate'" >&2
    exit 1
fi
