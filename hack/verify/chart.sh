#!/usr/bin/env bash
# Fails when the README of the Helm chart is not what its values.yaml says, when the
# chart and the kustomizations do not say the same, or when a role grants more than is
# listed. The tests are a module of their own, because of what Helm depends on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go run ./hack/chartreadme --check charts/elasti
cd test/chart
go mod tidy -diff || {
    echo "go.mod or go.sum of test/chart is not tidy, run 'go mod tidy' there" >&2
    exit 1
}
go vet ./...
go test ./...
