#!/usr/bin/env bash
# Fails on what golangci-lint finds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
hack/tools/build.sh golangci-lint
_output/tools/bin/golangci-lint run ./...
# The module of the chart's tests.
(cd test/chart && ../../_output/tools/bin/golangci-lint run --config ../../.golangci.yml ./...)
