# shellcheck shell=bash
# containerd, kubelet and kube-proxy of the node in use (see use_node), and
# CoreDNS. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

start_containerd() {
    start_process "containerd${node_suffix}" "${node_entry[@]}" /usr/bin/containerd --config "${node_state}/config/containerd.toml"
}

containerd_is_ready() {
    ctr --address "${node_state}/containerd.sock" --timeout 2s version
}

# load_own_images builds the images of the pause container and of CoreDNS, and
# loads them into the node's containerd.
load_own_images() {
    local images=${repository}/_output/tools/images
    if [[ ! -x ${pause_binary} || ${cluster_scripts}/pause/main.go -nt ${pause_binary} ]]; then
        mkdir -p "${images}"
        (cd "${cluster_scripts}/pause" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w" -o "${pause_binary}" . 9>&-)
    fi
    image_archive "${pause_image}" "${pause_binary}" "${images}/pause.tar"
    image_archive "${coredns_image}" "${tools_bin}/coredns" "${images}/coredns.tar"
    wait_for "containerd${node_suffix}" 30 "containerd responds" containerd_is_ready
    import_images "${node_state}/containerd.sock" "${images}/pause.tar" "${images}/coredns.tar" >>"${state}/logs/set-up.log"
}

start_kubelet() {
    start_process "kubelet${node_suffix}" "${node_entry[@]}" "${tools_bin}/kubelet" \
        --config="${node_state}/config/kubelet.yaml" \
        --kubeconfig="${state}/kubelet${node_suffix}.kubeconfig" \
        --root-dir="${node_state}/kubelet" \
        --cert-dir="${node_state}/kubelet/pki" \
        --hostname-override="${node_name}" \
        --node-ip="${node_address}"
}

node_is_ready() {
    [[ $(cluster_kubectl get node "${node_name}" \
        --output=jsonpath='{.status.conditions[?(@.type=="Ready")].status}') == True ]]
}

start_kube_proxy() {
    start_process "kube-proxy${node_suffix}" "${node_entry[@]}" "${tools_bin}/kube-proxy" --config="${node_state}/config/kube-proxy.yaml"
}

apply_coredns() {
    cluster_kubectl apply --filename="${state}/config/coredns.yaml" >>"${state}/logs/set-up.log"
}

# dns_responds queries the service's address from the node, so it needs CoreDNS to be ready
# and kube-proxy to have set up the way to it. Only a response with the
# address of the Kubernetes API counts: a connection alone may be accepted by
# another server.
dns_responds() {
    local octets address
    IFS=. read -ra octets <<<"${kubernetes_service_address}"
    # A name, type and class that are referred to, a time to live, and 4 bytes.
    printf -v address ' 00 01 00 01 .. .. .. .. 00 04 %02x %02x %02x %02x' "${octets[@]}"
    # shellcheck disable=SC2016 # Bash is to expand it.
    "${node_entry[@]}" timeout 1 bash -c '
    exec 3<>"/dev/tcp/$0/53"
    # The length, a header with one question, and kubernetes.default.svc.cluster.local, type A, class IN.
    printf "\0\66\22\64\1\0\0\1\0\0\0\0\0\0\12kubernetes\7default\3svc\7cluster\5local\0\0\1\0\1" >&3
    read -r high low < <(head -c 2 <&3 | od -An -tu1)
    head -c $((high * 256 + low)) <&3 | od -An -v -tx1 | tr -d "\n"' "${dns_address}" | grep -q "${address}"
}
