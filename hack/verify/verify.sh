#!/usr/bin/env bash
# Runs every check of this folder, says how long each took, and names those that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

failed=()
for check in format scripts modules vet imports guarantees docs language commits manifests chart metrics alerts lint codegen; do
    started=${SECONDS}
    if "hack/verify/${check}.sh"; then
        echo "verify ${check}: ok ($((SECONDS - started)) s)"
    else
        echo "verify ${check}: FAILED ($((SECONDS - started)) s)"
        failed+=("${check}")
    fi
done
if ((${#failed[@]} > 0)); then
    echo "verify: failed: ${failed[*]}" >&2
    exit 1
fi
