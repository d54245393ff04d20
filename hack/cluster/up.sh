#!/usr/bin/env bash
# Brings up a real Kubernetes cluster on this machine: of one node, or with NODES=2
# of two. Safe to run again at any time: a cluster that is up stays as it is, and
# what a killed or interrupted one left behind is removed first. With NODES=2 a
# cluster of one node gets its second one.

# shellcheck source-path=SCRIPTDIR
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/all.sh
source "${here}/lib/all.sh"

# print_environment prints the one line that a shell needs to use the cluster.
print_environment() {
    note "export KUBECONFIG=${admin_kubeconfig} PATH=${tools_bin}:\$PATH"
}

cluster_is_recorded() {
    [[ -f ${record}/state-directory ]]
}

all_processes_run() {
    local component
    for component in "${components[@]}"; do
        process_is_running "${component}" || return 1
    done
}

cluster_is_healthy() {
    all_processes_run && api_is_ready >/dev/null && node_is_ready && dns_responds
}

# handle_earlier_cluster ends the script where the recorded cluster is up, and
# otherwise removes it.
handle_earlier_cluster() {
    local owner
    owner=$(<"${record}/state-directory")
    if [[ ${owner} == "${state}" ]]; then
        if cluster_is_healthy; then
            keep_pod_range_here
            drop_unserved_services
            check_ranges_stay_here
            note "the cluster is up already, since $(uptime_of kube-apiserver)"
            if ((nodes == 2)) && ! second_node_is_healthy; then
                restart_second_node
            fi
            print_environment
            exit 0
        fi
    elif [[ -d ${owner} ]] && all_processes_run; then
        fail "a cluster that another checkout started is running on this machine, with its state in ${owner}: use that one, or stop it with hack/cluster/down.sh"
    fi
    step "removing what an earlier cluster left in ${owner}" remove_cluster "${owner}"
}

prepare_state_directory() {
    mkdir -p "${state}" "${repository}/_output"
    if [[ ${state} == /var/tmp/elasti-cluster-* ]]; then
        ln -sfn "${state}" "${state_link}"
    fi
    touch "${state}/.elasti-cluster"
    if [[ -d ${state}/logs ]]; then
        rm -rf "${state}/logs.previous"
        mv "${state}/logs" "${state}/logs.previous"
    fi
    find "${state}" -mindepth 1 -maxdepth 1 ! -name '.elasti-cluster' ! -name 'logs.previous' \
        -exec rm -rf --one-file-system {} +
    mkdir -p "${state}/logs" "${state}/config"
}

# on_exit says how to go on after a failure. It may run inside a command whose
# output is discarded, and so writes to the script's own error output.
on_exit() {
    local status=$?
    exec 2>&8
    end_line
    if ((status != 0)); then
        if [[ -x ${tools_bin}/kubectl && -f ${admin_kubeconfig} ]] && api_is_ready >/dev/null; then
            echo "the cluster's latest warnings:" >&2
            cluster_kubectl get events --all-namespaces --field-selector=type=Warning --no-headers 2>/dev/null | tail -n 5 >&2
        fi
        echo "the cluster is not up; running this again starts afresh, hack/cluster/down.sh removes what there is" >&2
    fi
}

started=${SECONDS}
nodes=${NODES:-1}
if [[ ${nodes} != [12] ]]; then
    fail "the local cluster has one or two nodes, not NODES=${nodes}"
fi
require_machine
mkdir -p "${record}"
exec 9>"${record}/lock"
if ! flock --nonblock 9; then
    note "waiting for another up.sh or down.sh to end"
    flock 9
fi
if cluster_is_recorded; then
    handle_earlier_cluster
fi
exec 8>&2
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

install_packages
"${repository}/hack/tools/build.sh" kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl etcd coredns 9>&-

check_nothing_is_in_the_way
step "state directory ${state}" prepare_state_directory
echo "${state}" >"${record}/state-directory"
mkdir -p "${record}/processes"

step "network addresses and control groups" prepare_machine
step "certificates and kubeconfigs" make_credentials
step "configuration" write_configuration audit-policy.yaml coredns.yaml "${node_configuration[@]}"
start_etcd
start_containerd
start_api_server
step "images of CoreDNS and the pause container" load_own_images
step "etcd" wait_for etcd 30 "etcd responds" etcd_is_ready
step "kube-apiserver" wait_for kube-apiserver 60 "https://${api_address}:${api_port}/readyz says ok" api_is_ready
start_controller_manager
start_scheduler
start_kubelet
start_kube_proxy
step "CoreDNS's manifests" apply_coredns
step "kube-controller-manager" wait_for kube-controller-manager 30 "the namespace default has its service account" service_account_exists
step "kubelet" wait_for kubelet 60 "node ${node_name} is ready" node_is_ready
step "CoreDNS, by way of kube-proxy" wait_for kubelet 60 "the cluster's DNS responds at ${dns_address}" dns_responds
for component in kube-scheduler kube-proxy; do
    process_is_running "${component}" || fail_with_log "${component}" "${component} has ended"
done
if ((nodes == 2)); then
    start_second_node
fi
note "the cluster is up, after $((SECONDS - started)) s; to use it:"
print_environment
