#!/usr/bin/env bash
# Fails when the reference of metrics is not what the code of both binaries registers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go run ./hack/metricsreference --check docs/metrics.md
