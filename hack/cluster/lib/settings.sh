# shellcheck shell=bash
# Names, addresses and places of the cluster and its nodes. Sourced; sets variables only.
# shellcheck disable=SC2034

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd -P)
cluster_scripts=${repository}/hack/cluster
tools_bin=${repository}/_output/tools/bin

# Everything that the cluster writes. Its sockets live here as well, and the
# path of a socket is limited to 107 bytes: in a deep checkout _output/cluster
# becomes a link to a place with a shorter path.
state_length_limit=64
state_link=${repository}/_output/cluster
state=${ELASTI_CLUSTER_STATE:-${state_link}}
if ((${#state} > state_length_limit)) && [[ ${state} == "${state_link}" ]]; then
    state=/var/tmp/elasti-cluster-$(sha256sum <<<"${state_link}" | cut -c1-12)
fi

# What runs on this machine, whichever checkout started it: the state directory
# it uses and a record of each of its processes.
record=/run/elasti-cluster

# The address of the control plane and of the first node sits on the loopback
# interface: the cluster's traffic stays on this machine, and no other machine
# reaches the cluster.
api_address=10.95.0.1
api_address_label=lo:elasti
# Of the pods of all nodes; each node has its own part.
pod_range=10.244.0.0/16
service_range=10.96.0.0/16
# Any other route to a pod address comes before the one that makes it unreachable.
unreachable_metric=4096
kubernetes_service_address=10.96.0.1
dns_address=10.96.0.10

network_name=elasti-cluster
cgroup=/elasti-cluster
# All pods together weigh as much as this many threads of the control plane,
# which runs beside them in no group. By default they weigh as much as one, so
# that a pod with a request to handle waits for everything else on a busy machine; on
# a real node most of the processor is the pods'.
cgroup_threads=8
cgroup_shares=$((1024 * cgroup_threads))
cgroup_weight=$((100 * cgroup_threads))

api_port=6443
etcd_client_port=12379
etcd_peer_port=12380
controller_manager_port=10257
scheduler_port=10259
kubelet_port=10250
kubelet_health_port=10248
kube_proxy_health_port=10256
kube_proxy_metrics_port=10249

# Those of the control plane and of the first node, in the order in which they are started.
components=(etcd containerd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy)
# Those of the second node. The first of them keeps its namespaces.
second_node_components=(node-2 containerd-2 kubelet-2 kube-proxy-2)

# What each node has of its own in config/.
node_configuration=(containerd.toml cni.conflist kubelet.yaml kube-proxy.yaml)

pause_binary=${repository}/_output/tools/images/pause
pause_image=elasti-cluster.local/pause:1
coredns_image=elasti-cluster.local/coredns:$(awk '$2 == "github.com/coredns/coredns" { print $3 }' "${repository}/hack/tools/coredns/go.mod")

admin_kubeconfig=${state}/kubeconfig

# use_node NUMBER sets the names, addresses and places of a node. The first node is this
# machine, the second one has namespaces of its own.
use_node() {
    node_number=$1
    case ${node_number} in
    1)
        node_suffix=
        node_name=elasti-node
        node_address=${api_address}
        node_pod_range=10.244.0.0/17
        node_state=${state}
        node_cgroup=${cgroup}
        ;;
    2)
        node_suffix=-2
        node_name=elasti-node-2
        node_address=10.95.0.2
        node_pod_range=10.244.128.0/17
        node_state=${state}/node-2
        # Below that of the first node, so that the group of the cluster has all of it.
        node_cgroup=${cgroup}/node-2
        ;;
    esac
    # What starts a command in the namespaces of the node, and the device that leads from
    # there to the other node: those of this machine, until enter_second_node sets them.
    node_entry=()
    node_way=elasti-node-2
}
use_node 1

# Settings of the kernel that the node's components change; down.sh puts them back.
kernel_settings=(
    net.ipv4.ip_forward
    vm.overcommit_memory
    vm.panic_on_oom
    kernel.panic
    kernel.panic_on_oops
    kernel.keys.root_maxkeys
    kernel.keys.root_maxbytes
)
