#!/usr/bin/env bash
# Fails when the PrometheusRule or the dashboard is not what hack/monitoring makes, when
# Prometheus does not accept the rules, or when an alert fires or is silent against its tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go run ./hack/monitoring --check artifacts
hack/tools/debian.sh promtool
_output/tools/bin/promtool check rules artifacts/alerts/elasti.rules.yaml >/dev/null
_output/tools/bin/promtool test rules artifacts/alerts/elasti.rules.test.yaml >/dev/null
