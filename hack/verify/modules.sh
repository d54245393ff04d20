#!/usr/bin/env bash
# Fails when go.mod or go.sum is not what `go mod tidy` writes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! go mod tidy -diff; then
    echo "go.mod or go.sum is not tidy, run 'go mod tidy'" >&2
    exit 1
fi
