#!/usr/bin/env bash
# Fails on what go vet finds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go vet ./...
