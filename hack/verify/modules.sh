#!/usr/bin/env bash
# Fails when go.mod or go.sum, of the product or of the tests that install it, is not what
# `go mod tidy` writes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for module in . test/install; do
    if ! (cd "${module}" && go mod tidy -diff); then
        echo "go.mod or go.sum in ${module} is not tidy, run 'go mod tidy' there" >&2
        exit 1
    fi
done
