#!/usr/bin/env bash
# Kills the second node of the local cluster, or starts it again.

# shellcheck source-path=SCRIPTDIR
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/all.sh
source "${here}/lib/all.sh"

usage() {
    cat <<TEXT
usage: hack/cluster/node.sh stop|start 2

stop ends all processes of the second node at once, its pods included, and takes
its network down, so that it responds to nothing, as a machine without power. The
control plane misses it after about 50 s. start has it run again; images that were
loaded into the cluster meanwhile have to be loaded again.

The cluster is that of "NODES=2 hack/cluster/up.sh". Its first node is this
machine, and cannot be stopped.
TEXT
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    usage
    exit 0
fi
if [[ $# != 2 || ! ${1:-} =~ ^(stop|start)$ || ${2:-} != 2 ]]; then
    usage >&2
    exit 2
fi
require_machine
mkdir -p "${record}"
exec 9>"${record}/lock"
flock 9
if [[ ! -f ${record}/state-directory || $(<"${record}/state-directory") != "${state}" ]]; then
    fail "the cluster of this checkout is not up: run NODES=2 hack/cluster/up.sh first"
fi
if [[ ! -e ${state}/node-2/network ]]; then
    fail "the cluster has no second node: run NODES=2 hack/cluster/up.sh first"
fi
if [[ $1 == start ]]; then
    if second_node_is_healthy; then
        note "the second node is up already"
        exit 0
    fi
    restart_second_node
elif process_is_running node-2; then
    stop_second_node
else
    note "the second node is stopped already"
fi
