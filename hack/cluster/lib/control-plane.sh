# shellcheck shell=bash
# etcd, kube-apiserver, kube-controller-manager and kube-scheduler. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

start_etcd() {
    mkdir -m 0700 "${state}/etcd"
    # The loss of this cluster's data does no harm after a crash of the machine, so etcd
    # need not wait for the disk.
    start_process etcd "${tools_bin}/etcd" \
        --name=default \
        --data-dir="${state}/etcd" \
        --unsafe-no-fsync \
        --listen-client-urls="https://127.0.0.1:${etcd_client_port}" \
        --advertise-client-urls="https://127.0.0.1:${etcd_client_port}" \
        --listen-peer-urls="https://127.0.0.1:${etcd_peer_port}" \
        --initial-advertise-peer-urls="https://127.0.0.1:${etcd_peer_port}" \
        --initial-cluster="default=https://127.0.0.1:${etcd_peer_port}" \
        --client-cert-auth \
        --trusted-ca-file="${state}/pki/etcd-ca.crt" \
        --cert-file="${state}/pki/etcd-server.crt" \
        --key-file="${state}/pki/etcd-server.key" \
        --peer-client-cert-auth \
        --peer-trusted-ca-file="${state}/pki/etcd-ca.crt" \
        --peer-cert-file="${state}/pki/etcd-server.crt" \
        --peer-key-file="${state}/pki/etcd-server.key"
}

etcd_is_ready() {
    curl --silent --fail --max-time 2 --cacert "${state}/pki/etcd-ca.crt" \
        --cert "${state}/pki/etcd-client.crt" --key "${state}/pki/etcd-client.key" \
        "https://127.0.0.1:${etcd_client_port}/readyz"
}

start_api_server() {
    start_process kube-apiserver "${tools_bin}/kube-apiserver" \
        --etcd-servers="https://127.0.0.1:${etcd_client_port}" \
        --etcd-cafile="${state}/pki/etcd-ca.crt" \
        --etcd-certfile="${state}/pki/etcd-client.crt" \
        --etcd-keyfile="${state}/pki/etcd-client.key" \
        --bind-address="${api_address}" \
        --advertise-address="${api_address}" \
        --secure-port="${api_port}" \
        --service-cluster-ip-range="${service_range}" \
        --client-ca-file="${state}/pki/ca.crt" \
        --tls-cert-file="${state}/pki/kube-apiserver.crt" \
        --tls-private-key-file="${state}/pki/kube-apiserver.key" \
        --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction \
        --allow-privileged \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --service-account-key-file="${state}/pki/service-account.pub" \
        --service-account-signing-key-file="${state}/pki/service-account.key" \
        --kubelet-certificate-authority="${state}/pki/ca.crt" \
        --kubelet-client-certificate="${state}/pki/kubelet-client.crt" \
        --kubelet-client-key="${state}/pki/kubelet-client.key" \
        --kubelet-preferred-address-types=InternalIP \
        --requestheader-client-ca-file="${state}/pki/front-proxy-ca.crt" \
        --requestheader-allowed-names=front-proxy-client \
        --requestheader-extra-headers-prefix=X-Remote-Extra- \
        --requestheader-group-headers=X-Remote-Group \
        --requestheader-username-headers=X-Remote-User \
        --proxy-client-cert-file="${state}/pki/front-proxy-client.crt" \
        --proxy-client-key-file="${state}/pki/front-proxy-client.key" \
        --enable-aggregator-routing=true \
        --max-requests-inflight=800 \
        --max-mutating-requests-inflight=400 \
        --audit-policy-file="${state}/config/audit-policy.yaml" \
        --audit-log-path="${state}/logs/audit.log"
}

api_is_ready() {
    curl --silent --fail --max-time 2 --cacert "${state}/pki/ca.crt" "https://${api_address}:${api_port}/readyz"
}

start_controller_manager() {
    start_process kube-controller-manager "${tools_bin}/kube-controller-manager" \
        --kubeconfig="${state}/kube-controller-manager.kubeconfig" \
        --authentication-kubeconfig="${state}/kube-controller-manager.kubeconfig" \
        --authorization-kubeconfig="${state}/kube-controller-manager.kubeconfig" \
        --bind-address=127.0.0.1 \
        --secure-port="${controller_manager_port}" \
        --leader-elect=false \
        --use-service-account-credentials \
        --kube-api-qps=200 \
        --kube-api-burst=400 \
        --node-monitor-period=2s \
        --root-ca-file="${state}/pki/ca.crt" \
        --service-account-private-key-file="${state}/pki/service-account.key" \
        --cluster-signing-cert-file="${state}/pki/ca.crt" \
        --cluster-signing-key-file="${state}/pki/ca.key"
}

start_scheduler() {
    start_process kube-scheduler "${tools_bin}/kube-scheduler" \
        --kubeconfig="${state}/kube-scheduler.kubeconfig" \
        --authentication-kubeconfig="${state}/kube-scheduler.kubeconfig" \
        --authorization-kubeconfig="${state}/kube-scheduler.kubeconfig" \
        --bind-address=127.0.0.1 \
        --secure-port="${scheduler_port}" \
        --leader-elect=false
}

# cluster_kubectl ARGUMENT... runs the cluster's own kubectl as administrator.
cluster_kubectl() {
    "${tools_bin}/kubectl" --kubeconfig="${admin_kubeconfig}" --request-timeout=5s "$@"
}

service_account_exists() {
    cluster_kubectl --namespace=default get serviceaccount default
}
