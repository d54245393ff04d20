#!/usr/bin/env bash
# Kills and rolls out resolvers of the local test cluster under load: CHAOS_RATE
# requests a second (1000) for CHAOS_DURATION (60s). Fails when a request fails
# that was not with a killed resolver.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
export KUBECONFIG=${KUBECONFIG:-${root}/_output/cluster/kubeconfig}
cd "${root}"
if [[ ${KUBECONFIG} == "${root}/_output/cluster/kubeconfig" ]]; then
    hack/cluster/up.sh
    hack/images/build.sh
    hack/deploy.sh
fi
# It notes where a connection to a Service went.
command -v nft >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends nftables >/dev/null
mkdir -p "${root}/_output/bin"
go build -o "${root}/_output/bin/chaos" ./test/chaos
hack/result-header.sh "make chaos${CHAOS_RATE:+ CHAOS_RATE=${CHAOS_RATE}}${CHAOS_DURATION:+ CHAOS_DURATION=${CHAOS_DURATION}}"
exec "${root}/_output/bin/chaos" -rate "${CHAOS_RATE:-1000}" -duration "${CHAOS_DURATION:-60s}"
