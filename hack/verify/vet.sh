#!/usr/bin/env bash
# Fails on what go vet finds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go vet ./...
# What the tests outside of the gate are made of.
go vet -tags=more,cycles,autoscalers,nodes ./test/e2e/...
# A module of its own.
(cd test/install && go vet ./...)
