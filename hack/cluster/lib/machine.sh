# shellcheck shell=bash
# What the cluster needs of the machine. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

# Commands that the node needs, and the Debian packages they come from.
declare -A package_of=(
    ["/usr/bin/containerd"]=containerd
    ["/usr/sbin/runc"]=runc
    ["/usr/sbin/nft"]=nftables
    ["/usr/lib/cni/ptp"]=containernetworking-plugins
    ["/usr/bin/openssl"]=openssl
    ["/usr/bin/ss"]=iproute2
    ["/usr/sbin/sysctl"]=procps
    ["/usr/bin/nsenter"]=util-linux
    ["/usr/bin/curl"]=curl
)

# require_machine ends the script on a machine that cannot be a node.
require_machine() {
    local alternative="any other cluster does as well: point KUBECONFIG to it, load the images there and deploy"
    if [[ $(uname -s) != Linux ]]; then
        fail "the local cluster needs Linux; ${alternative}"
    fi
    if ((EUID != 0)); then
        fail "the local cluster needs root (it runs a kubelet and containerd); ${alternative}"
    fi
    if ((${#state} > state_length_limit)); then
        fail "the path ${state} is too long for the sockets in it (limit: ${state_length_limit} characters); set ELASTI_CLUSTER_STATE to a shorter one"
    fi
}

install_packages() {
    local file missing=()
    for file in "${!package_of[@]}"; do
        if [[ ! -x ${file} ]]; then
            missing+=("${package_of[${file}]}")
        fi
    done
    if ((${#missing[@]} == 0)); then
        return
    fi
    if ! command -v apt-get >/dev/null; then
        fail "these packages are missing, and there is no apt-get to install them: ${missing[*]}"
    fi
    note "installing ${missing[*]}"
    step "packages" apt_install "${missing[@]}"
}

apt_install() {
    local log
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$@"; } \
        >"${log}" 2>&1 </dev/null 9>&-; then
        end_line
        tail -n 15 "${log}" >&2
        fail "apt-get could not install $*; the whole output is in ${log}"
    fi
    rm -f "${log}"
}

# check_nothing_is_in_the_way reports everything of others that holds what the
# cluster needs for itself.
check_nothing_is_in_the_way() {
    local port listeners found=false
    for port in "${api_port}" "${etcd_client_port}" "${etcd_peer_port}" "${controller_manager_port}" "${scheduler_port}" \
        "${kubelet_port}" "${kubelet_health_port}" "${kube_proxy_health_port}" "${kube_proxy_metrics_port}"; do
        listeners=$(ss --no-header --listening --numeric --tcp --processes "sport = :${port}" |
            awk '{ print $4, $6 }' | sed -E 's/users:\(\("([^"]+)",pid=([0-9]+).*/held by \1, process \2/')
        if [[ -n ${listeners} ]]; then
            echo "error: port ${port} is taken: ${listeners}" >&2
            found=true
        fi
    done
    if nft list table ip kube-proxy >/dev/null 2>&1; then
        echo "error: there is an nftables table \"ip kube-proxy\" that this cluster did not make; if no other cluster runs here, delete it: nft delete table ip kube-proxy" >&2
        found=true
    fi
    local range routes
    for range in "${pod_range}" "${service_range}" "${api_address}/32"; do
        routes=$(
            ip -4 route show root "${range}" table all
            ip -4 route show match "${range}" table all | grep -v '^default' || true
        )
        if [[ -n ${routes} ]]; then
            echo "error: the address range ${range} is in use on this machine: ${routes}" >&2
            found=true
        fi
    done
    if [[ ${found} == true ]]; then
        fail "free what is listed above, then run this again"
    fi
}

prepare_machine() {
    save_kernel_settings
    sysctl --quiet --write net.ipv4.ip_forward=1
    ip address add "${api_address}/32" dev lo label "${api_address_label}"
    # With this route the machine itself reaches service addresses, also where it
    # has no default route, and one without a service goes nowhere.
    ip route add "${service_range}" dev lo src "${api_address}"
    keep_pod_range_here
    drop_unserved_services
    check_ranges_stay_here
    allow_forwarding
    make_control_groups
}

# keep_pod_range_here makes every pod address without a pod unreachable. Host
# routes, which are more specific, exist only while their pods live. Without
# this route a packet to a deleted pod leaves by the machine's default route,
# and another server may respond in place of the application.
keep_pod_range_here() {
    ip -4 route replace unreachable "${pod_range}" metric "${unreachable_metric}"
}

# drop_unserved_services drops a packet to a service address that kube-proxy has not
# translated, as it does not know the Service yet. Otherwise the packet is let out to lo,
# where it is lost, and the kernel remembers that its connection is not translated: all
# that the client sends again, for two minutes, is lost as well. A packet that is dropped
# here is not remembered, and the next attempt, a second later, reaches a pod.
drop_unserved_services() {
    if "${node_entry[@]}" nft list table ip "${network_name}" >/dev/null 2>&1; then
        return
    fi
    # The translation comes before this priority.
    "${node_entry[@]}" nft -f - <<TEXT
table ip ${network_name} {
    chain output {
        type filter hook output priority 10; policy accept;
        ip daddr ${service_range} drop
    }
    chain forward {
        type filter hook forward priority 10; policy accept;
        ip daddr ${service_range} drop
    }
}
TEXT
}

# check_ranges_stay_here ends the script when a packet from the node in use to an unused
# address of the cluster's ranges would leave the machine.
check_ranges_stay_here() {
    local range address way leaving=()
    for range in "${pod_range}" "${service_range}"; do
        for address in $(sample_addresses "${range}"); do
            way=$(way_to "${address}")
            if [[ ${way} != unreachable && ${way} != lo && ${way} != "${node_way}" ]]; then
                leaving+=("${address}, of the range ${range}: ${way}")
            fi
        done
    done
    if ((${#leaving[@]} > 0)); then
        printf 'error: packets to this address leave the machine: %s\n' "${leaving[@]}" >&2
        fail "an address of the cluster that is not in use must lead nowhere, or other servers respond for pods: see \"ip rule\" and \"ip route show table all\""
    fi
}

# sample_addresses RANGE prints addresses of a range of 16 bits, such as
# 10.244.0.0/16, at its ends and between. Pods and services get theirs from the
# beginning of a range.
sample_addresses() {
    local prefix=${1%.0.0/16}
    printf '%s\n' "${prefix}".{127.1,128.254,200.77,255.254,255.255}
}

# way_to ADDRESS prints the device that a packet to the address leaves the node in use by,
# or unreachable.
way_to() {
    local route
    if route=$("${node_entry[@]}" ip -4 -oneline route get "$1" 2>&1); then
        sed -nE 's/.* dev ([^ ]+) .*/\1/p' <<<"${route}"
    elif [[ ${route} == *"No route to host"* || ${route} == *"Network is unreachable"* ]]; then
        echo unreachable
    else
        echo "${route:-no output of ip}"
    fi
}

# allow_forwarding lets pods talk to each other where the machine forwards
# nothing by default, as Docker sets it.
allow_forwarding() {
    if command -v iptables >/dev/null && iptables -S FORWARD 2>/dev/null | grep -q '^-P FORWARD DROP'; then
        iptables -I FORWARD -s "${pod_range}" -m comment --comment "${network_name}" -j ACCEPT
        iptables -I FORWARD -d "${pod_range}" -m comment --comment "${network_name}" -j ACCEPT
    fi
}

# make_control_groups makes the group of all pods, which the kubelet expects
# to exist, in each hierarchy of cgroup v1 or in the only one of v2.
make_control_groups() {
    local hierarchy controller
    if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
        for controller in $(</sys/fs/cgroup/cgroup.controllers); do
            echo "+${controller}" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
        done
        mkdir -p "/sys/fs/cgroup${cgroup}"
        echo "${cgroup_weight}" >"/sys/fs/cgroup${cgroup}/cpu.weight" 2>/dev/null || true
        return
    fi
    for hierarchy in /sys/fs/cgroup/*/; do
        if [[ -f ${hierarchy}/cgroup.procs ]]; then
            mkdir -p "${hierarchy%/}${cgroup}"
        fi
        if [[ -f ${hierarchy%/}${cgroup}/cpu.shares ]]; then
            echo "${cgroup_shares}" >"${hierarchy%/}${cgroup}/cpu.shares"
        fi
    done
}
