#!/usr/bin/env bash
# Fails on what golangci-lint finds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
hack/tools/build.sh golangci-lint
_output/tools/bin/golangci-lint run ./...
# Tests that are modules of their own.
for module in test/chart test/install; do
    (cd "${module}" && ../../_output/tools/bin/golangci-lint run --config ../../.golangci.yml ./...)
done
