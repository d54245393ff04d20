#!/usr/bin/env bash
# Fails when generated code is stale.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
hack/verify-codegen.sh
