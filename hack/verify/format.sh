#!/usr/bin/env bash
# Fails when gofmt would change a file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unformatted="$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l)"
if [[ -n "${unformatted}" ]]; then
    echo "not formatted, run 'make format':" >&2
    echo "${unformatted}" >&2
    exit 1
fi
