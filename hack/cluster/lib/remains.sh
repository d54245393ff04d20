# shellcheck shell=bash
# Removes everything that a cluster has made outside of its files: processes,
# containers, mounts, control groups, packet filter tables and addresses, of
# both nodes.
# It works for a running cluster as well as for one that was killed, and for
# one that another checkout started. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

# remove_cluster STATE removes the recorded cluster, whose state directory is
# given. Its logs stay.
remove_cluster() {
    local cluster_state=$1
    end_second_node
    stop_processes
    end_container_supervisors "${cluster_state}"
    end_containers
    remove_mounts "${cluster_state}"
    remove_control_groups "${cgroup}"
    remove_packet_filter
    remove_addresses
    remove_files "${cluster_state}"
    restore_kernel_settings
    rm -rf "${record}/processes" "${record}/kernel-settings"
}

# end_container_supervisors STATE ends the containerd shims, which outlive
# containerd. They name the socket of the containerd that started them.
end_container_supervisors() {
    local cluster_state=$1 file arguments number
    for file in /proc/[0-9]*/cmdline; do
        { mapfile -d '' -t arguments <"${file}"; } 2>/dev/null || continue
        [[ ${arguments[0]:-} == *containerd-shim-runc-v2 ]] || continue
        if [[ " ${arguments[*]} " == *" -address ${cluster_state}/containerd.sock "* ]]; then
            number=${file#/proc/}
            kill -s KILL "${number%/cmdline}" 2>/dev/null || true
        fi
    done
}

# control_groups GROUP prints the directories of a group in every cgroup hierarchy,
# inner ones first.
control_groups() {
    local group=$1 top
    for top in "/sys/fs/cgroup${group}" /sys/fs/cgroup/*"${group}"; do
        if [[ -d ${top} ]]; then
            find "${top}" -depth -type d 2>/dev/null || true
        fi
    done
}

container_processes() {
    control_groups "${cgroup}" | sed 's|$|/cgroup.procs|' | { xargs --no-run-if-empty cat 2>/dev/null || true; } | sort -un
}

end_containers() {
    local numbers deadline=$((SECONDS + 10))
    while true; do
        mapfile -t numbers < <(container_processes)
        if ((${#numbers[@]} == 0)); then
            return
        fi
        kill -s KILL "${numbers[@]}" 2>/dev/null || true
        if ((SECONDS >= deadline)); then
            fail "these processes of the cluster's containers do not end: ${numbers[*]}"
        fi
        sleep 0.05
    done
}

# mounts_below DIRECTORY [PROCESS] prints the mount points at or below a directory, the
# latest first: those of this script, or of another process.
mounts_below() {
    local directory=$1 process=${2:-self} point
    # The fifth field is the mount point, with spaces written as \040.
    awk '{ print $5 }' "/proc/${process}/mountinfo" | tac | while read -r point; do
        printf -v point '%b' "${point}"
        if [[ ${point} == "${directory}" || ${point} == "${directory}"/* ]]; then
            echo "${point}"
        fi
    done
}

remove_mounts() {
    local point
    mounts_below "$1" | while read -r point; do
        umount "${point}" 2>/dev/null || umount --lazy "${point}" 2>/dev/null || true
    done
    if [[ -n $(mounts_below "$1") ]]; then
        fail "still mounted below $1: $(mounts_below "$1" | head -3 | tr '\n' ' ')"
    fi
}

remove_control_groups() {
    local top=$1 deadline=$((SECONDS + 5))
    while true; do
        control_groups "${top}" | { xargs --no-run-if-empty rmdir 2>/dev/null || true; }
        if [[ -z $(control_groups "${top}") ]]; then
            return
        fi
        # A group can be removed a moment after its last process ended.
        if ((SECONDS >= deadline)); then
            fail "these control groups cannot be removed: $(control_groups "${top}" | head -3 | tr '\n' ' ')"
        fi
        sleep 0.05
    done
}

remove_packet_filter() {
    local family
    for family in ip ip6; do
        if nft list table "${family}" kube-proxy >/dev/null 2>&1; then
            nft delete table "${family}" kube-proxy
        fi
    done
    if nft list table ip "${network_name}" >/dev/null 2>&1; then
        nft delete table ip "${network_name}"
    fi
    if command -v iptables >/dev/null && iptables -S FORWARD 2>/dev/null | grep -q "${network_name}"; then
        iptables -D FORWARD -s "${pod_range}" -m comment --comment "${network_name}" -j ACCEPT
        iptables -D FORWARD -d "${pod_range}" -m comment --comment "${network_name}" -j ACCEPT
    fi
}

# remove_addresses removes the devices of the pods too: they would go with the networks of
# the pods, which can take the kernel half a minute.
remove_addresses() {
    local device
    ip link delete elasti-node-2 2>/dev/null || true
    ip -4 route show root "${pod_range}" | sed -nE 's/.* dev (veth[^ ]+).*/\1/p' | while read -r device; do
        ip link delete "${device}" 2>/dev/null || true
    done
    ip -4 route del unreachable "${pod_range}" metric "${unreachable_metric}" 2>/dev/null || true
    ip route del "${service_range}" dev lo 2>/dev/null || true
    ip address del "${api_address}/32" dev lo 2>/dev/null || true
}

# remove_files STATE removes the cluster's files, also those which its node's
# components write to fixed places; its logs stay.
remove_files() {
    local cluster_state=$1 container link
    for container in "${cluster_state}"/containerd/state/io.containerd.runtime.v2.task/k8s.io/*; do
        # The socket of a container's shim is named by a hash, found in this file.
        if [[ -f ${container}/address ]]; then
            rm -f "$(sed 's|^unix://||' "${container}/address")"
        fi
        rm -f /var/lib/cni/results/*-"${container##*/}"-*
    done
    for link in /var/log/containers/*; do
        if [[ -L ${link} && $(readlink "${link}") == "${cluster_state}"/* ]]; then
            rm -f "${link}"
        fi
    done
    # The kubelet keeps this socket in a fixed place; another kubelet's is in use.
    local plugins=/var/lib/kubelet/device-plugins
    if [[ -z $(ss --no-header --listening --unix "src ${plugins}/kubelet.sock") ]]; then
        rm -f "${plugins}/kubelet.sock" "${plugins}/kubelet_internal_checkpoint"
    fi
    rmdir /run/containerd/s /run/containerd "${plugins}" /var/lib/kubelet /var/log/containers /var/lib/cni/results /var/lib/cni \
        2>/dev/null || true
    if [[ -f ${cluster_state}/.elasti-cluster ]]; then
        find "${cluster_state}" -mindepth 1 -maxdepth 1 ! -name logs -exec rm -rf --one-file-system {} +
    fi
}

save_kernel_settings() {
    local setting
    for setting in "${kernel_settings[@]}"; do
        sysctl "${setting}" 2>/dev/null || true
    done >"${record}/kernel-settings"
}

restore_kernel_settings() {
    if [[ -s ${record}/kernel-settings ]]; then
        sysctl --quiet --load="${record}/kernel-settings" 2>/dev/null || true
    fi
}
