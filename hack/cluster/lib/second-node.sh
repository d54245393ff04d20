# shellcheck shell=bash
# The second node: a network, mounts and processes of its own on this machine. All of
# it ends with one process, as a machine does with its power. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

# Fixed places that a kubelet and a containerd take for their own.
places_of_a_node=(/run/containerd /var/lib/cni /var/lib/kubelet /var/log/containers)

# start_second_node starts the second node beside a cluster that is up, and waits until it
# is ready.
start_second_node() {
    local since
    use_node 2
    step "network of ${node_name}" connect_second_node
    step "namespaces and control groups of ${node_name}" isolate_second_node
    step "configuration of ${node_name}" configure_second_node
    start_containerd
    step "images of ${node_name}" load_own_images
    since=$(date --utc +%Y-%m-%dT%H:%M:%SZ)
    start_kubelet
    start_kube_proxy
    step "kubelet of ${node_name}" wait_for kubelet-2 60 "node ${node_name} is ready" node_is_ready_since "${since}"
    step "kube-proxy of ${node_name}" wait_for kube-proxy-2 60 "the cluster's DNS responds at ${dns_address} to ${node_name}" dns_responds
    use_node 1
}

# restart_second_node removes what is left of the second node first. Its images stay.
restart_second_node() {
    if [[ -d ${state}/node-2 ]]; then
        step "removing what an earlier second node left" remove_second_node
    fi
    start_second_node
}

second_node_is_healthy() {
    local component status=0
    for component in "${second_node_components[@]}"; do
        process_is_running "${component}" || return 1
    done
    use_node 2
    node_is_ready || status=1
    use_node 1
    return "${status}"
}

# node_is_ready_since TIME reports whether the kubelet has reported since then that the
# node is ready. Until the control plane misses a node, it has the last report of before.
node_is_ready_since() {
    local reported
    reported=$(cluster_kubectl get node "${node_name}" \
        --output=jsonpath='{.status.conditions[?(@.type=="Ready")].lastHeartbeatTime}')
    [[ -n ${reported} && ! ${reported} < $1 ]] && node_is_ready
}

# in_network COMMAND... runs a command in the second node's network, which is there
# before its processes, and after them.
in_network() {
    nsenter --net="${node_state}/network" "$@"
}

# connect_second_node makes the network of the second node. One pair of devices leads from
# there to this machine, and no route to anywhere else.
connect_second_node() {
    mkdir -p "${node_state}"
    touch "${node_state}/network"
    unshare --net="${node_state}/network" true
    ip link add "${node_name}" type veth peer name eth0 netns "${node_state}/network"
    in_network sysctl --quiet --write net.ipv4.ip_forward=1
    in_network ip link set lo up
    in_network ip address add "${node_address}/32" dev eth0
    in_network ip link set eth0 up
    in_network ip route add "${api_address}/32" dev eth0 src "${node_address}"
    in_network ip route add "${pod_range}" via "${api_address}" dev eth0 src "${node_address}"
    in_network ip route add unreachable "${node_pod_range}"
    in_network ip route add "${service_range}" dev lo src "${node_address}"

    # kube-proxy has connections from this machine come from the device's address.
    ip address add "${api_address}/32" dev "${node_name}"
    ip link set "${node_name}" up
    # As with a node behind a router, what is sent to it after its death is lost, and no
    # neighbor is reported as missing.
    ip neighbor replace "${node_address}" lladdr "$(hardware_address_of_second_node)" \
        dev "${node_name}" nud permanent
    ip route add "${node_address}/32" dev "${node_name}" src "${api_address}"
    ip route add "${node_pod_range}" via "${node_address}" dev "${node_name}" src "${api_address}"
    check_ranges_stay_here
}

# hardware_address_of_second_node prints that of its device. The files of /sys are those of
# another network.
hardware_address_of_second_node() {
    in_network ip -oneline link show eth0 | sed -nE 's|.* link/ether ([^ ]+) .*|\1|p'
}

# isolate_second_node starts the first process of the second node, with mounts and process
# numbers of its own, and makes its control group.
isolate_second_node() {
    start_process node-2 /usr/bin/nsenter --net="${node_state}/network" \
        /usr/bin/unshare --mount --pid --fork --kill-child --mount-proc "${pause_binary}"
    wait_for node-2 10 "the first process of ${node_name} runs" second_node_has_namespaces
    enter_second_node
    separate_mounts
    make_second_control_group
    drop_unserved_services
    check_ranges_stay_here
}

# enter_second_node has what follows run in the namespaces of the second node.
enter_second_node() {
    node_entry=(/usr/bin/nsenter --target "$(first_process_of_second_node)" --net --mount --pid)
    # shellcheck disable=SC2034 # machine.sh uses it
    node_way=eth0
}

# second_node_has_namespaces reports whether the first process has become what it stays,
# which is after its mounts are its own.
second_node_has_namespaces() {
    local first
    first=$(first_process_of_second_node)
    [[ -n ${first} && /proc/${first}/exe -ef ${pause_binary} ]]
}

# separate_mounts takes the mounts of the first node out of the second node, where they would
# keep networks of deleted pods, and gives it fixed places of its own.
separate_mounts() {
    local place
    mounts_below "${state}" "$(first_process_of_second_node)" |
        { "${node_entry[@]}" xargs --no-run-if-empty --delimiter='\n' umount --lazy 2>/dev/null || true; }
    for place in "${places_of_a_node[@]}"; do
        mkdir -p "${place}"
        "${node_entry[@]}" mount -t tmpfs -o mode=0755 "${node_name}" "${place}"
    done
}

# make_second_control_group makes the group of the second node's pods. It weighs as much
# as that of the first node's, to which its kubelet gives shares by the processors.
make_second_control_group() {
    local hierarchy controller
    if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
        for controller in $(<"/sys/fs/cgroup${cgroup}/cgroup.controllers"); do
            echo "+${controller}" >"/sys/fs/cgroup${cgroup}/cgroup.subtree_control" 2>/dev/null || true
        done
        mkdir -p "/sys/fs/cgroup${node_cgroup}"
        return
    fi
    for hierarchy in /sys/fs/cgroup/*/; do
        if [[ -f ${hierarchy}/cgroup.procs ]]; then
            mkdir -p "${hierarchy%/}${node_cgroup}"
        fi
        if [[ -f ${hierarchy%/}${node_cgroup}/cpu.shares ]]; then
            echo $((1024 * $(nproc))) >"${hierarchy%/}${node_cgroup}/cpu.shares"
        fi
    done
}

configure_second_node() {
    if [[ ! -f ${state}/kubelet-2.kubeconfig ]]; then
        make_node_credentials
    fi
    write_configuration "${node_configuration[@]}"
}

# stop_second_node kills the second node: its device goes down first, so that nothing that
# dies there closes a connection. What is sent to it from then on is lost.
stop_second_node() {
    use_node 2
    in_network ip link set eth0 down
    end_second_node
    forget_second_node_processes
    use_node 1
}

# forget_second_node_processes removes what the processes of a second node that has ended
# leave, as a machine does when it starts. Images, logs and the pods' volumes stay.
forget_second_node_processes() {
    stop_components "${second_node_components[@]}"
    remove_control_groups "${node_cgroup}"
    rm -rf "${node_state}/containerd/state" "${node_state}/containerd/runc" "${node_state}"/containerd.sock*
}

# remove_second_node removes all of the second node but its files, however much of it there
# is.
remove_second_node() {
    use_node 2
    end_second_node
    forget_second_node_processes
    ip link delete "${node_name}" 2>/dev/null || true
    remove_mounts "${node_state}"
    use_node 1
}
