#!/usr/bin/env bash
# Runs the benchmarks on the local test cluster: all of them, or the named one.
# Prints a table and writes the key figures to _output/bench.json.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
output=${root}/_output/bench.json

usage() {
    cat <<TEXT
usage: hack/bench.sh [NAME|all]

Brings up the local test cluster and deploys to it first, unless KUBECONFIG is
another cluster's.
TEXT
}

if (($# > 1)) || [[ ${1:-} == -h || ${1:-} == --help ]]; then
    usage
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0 || exit 2
fi
export KUBECONFIG=${KUBECONFIG:-${root}/_output/cluster/kubeconfig}
cd "${root}"
if [[ ${1:-all} =~ ^(api|storm|scale10k|all)$ ]]; then
    hack/tools/build.sh etcd kube-apiserver kube-controller-manager kubectl
fi
if [[ ! ${1:-all} =~ ^(api|storm|scale10k)$ && ${KUBECONFIG} == "${root}/_output/cluster/kubeconfig" ]]; then
    hack/cluster/up.sh
    hack/images/build.sh
    hack/deploy.sh
fi
# The peers that the product is measured against, and the source of the load.
missing=()
for program in nginx haproxy wrk h2load:nghttp2-client nghttpx:nghttp2-proxy; do
    command -v "${program%%:*}" >/dev/null || missing+=("${program##*:}")
done
if ((${#missing[@]} > 0)); then
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}" >/dev/null
fi
mkdir -p "${root}/_output/bin"
go build -o "${root}/_output/bin/bench" ./test/bench
hack/result-header.sh "${GOGC:+GOGC=${GOGC} }make bench${1:+ BENCH=$1}"
exec "${root}/_output/bin/bench" -output "${output}" -benchmark "${1:-all}"
