#!/usr/bin/env bash
# Fails when a kustomization does not render, for example because a manifest has
# a key twice, or refers to a file that does not exist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
hack/tools/build.sh kubectl

overlay=$(mktemp -d)
trap 'rm -rf "${overlay}"' EXIT
failed=0
render() {
    local errors
    if ! errors=$(_output/tools/bin/kubectl kustomize "$1" 2>&1 >/dev/null); then
        echo "$2 does not render: ${errors}" >&2
        failed=1
    fi
}

while read -r file; do
    directory=$(dirname "${file}")
    if grep -q '^kind: Component$' "${file}"; then
        # A component is rendered as part of an overlay.
        printf 'resources: [%s]\ncomponents: [%s]\n' \
            "$(realpath --relative-to="${overlay}" artifacts/deploy)" \
            "$(realpath --relative-to="${overlay}" "${directory}")" >"${overlay}/kustomization.yaml"
        render "${overlay}" "${directory}"
    else
        render "${directory}" "${directory}"
    fi
done < <(git ls-files --cached --others --exclude-standard '*/kustomization.yaml')
exit "${failed}"
