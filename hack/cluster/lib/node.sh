# shellcheck shell=bash
# containerd, kubelet, kube-proxy and CoreDNS. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

start_containerd() {
  start_process containerd /usr/bin/containerd --config "$state/config/containerd.toml"
}

containerd_is_ready() {
  ctr --address "$state/containerd.sock" --timeout 2s version
}

# load_own_images builds the images of the pause container and of CoreDNS, and
# loads them into containerd.
load_own_images() {
  local images=$repository/_output/tools/images
  local pause=$images/pause
  if [[ ! -x $pause || $cluster_scripts/pause/main.go -nt $pause ]]; then
    mkdir -p "$images"
    (cd "$cluster_scripts/pause" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$pause" . 9>&-)
  fi
  image_archive "$pause_image" "$pause" "$images/pause.tar"
  image_archive "$coredns_image" "$tools_bin/coredns" "$images/coredns.tar"
  wait_for containerd 30 "containerd answers" containerd_is_ready
  import_images "$images/pause.tar" "$images/coredns.tar" >>"$state/logs/set-up.log"
}

start_kubelet() {
  start_process kubelet "$tools_bin/kubelet" \
    --config="$state/config/kubelet.yaml" \
    --kubeconfig="$state/kubelet.kubeconfig" \
    --root-dir="$state/kubelet" \
    --cert-dir="$state/kubelet/pki" \
    --hostname-override="$node_name" \
    --node-ip="$node_address"
}

node_is_ready() {
  [[ $(cluster_kubectl get node "$node_name" \
    --output=jsonpath='{.status.conditions[?(@.type=="Ready")].status}') == True ]]
}

start_kube_proxy() {
  start_process kube-proxy "$tools_bin/kube-proxy" --config="$state/config/kube-proxy.yaml"
}

apply_coredns() {
  cluster_kubectl apply --filename="$state/config/coredns.yaml" >>"$state/logs/set-up.log"
}

# dns_answers asks by the service's address, so it needs CoreDNS to be ready
# and kube-proxy to have set up the way to it.
dns_answers() {
  timeout 1 bash -c ": </dev/tcp/$dns_address/53"
}
