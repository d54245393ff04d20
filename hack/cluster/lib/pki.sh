# shellcheck shell=bash
# The cluster's certificates and kubeconfigs. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

# authority NAME makes a certificate authority.
authority() {
    openssl req -config "${state}/pki/openssl.cnf" -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc \
        -keyout "${state}/pki/$1.key" -out "${state}/pki/$1.crt" -days 3650 -subj "/CN=elasti-cluster-$1" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,digitalSignature 2>/dev/null
}

# certificate AUTHORITY NAME SUBJECT USAGE [ALTERNATIVE-NAMES] makes a key and
# its certificate. USAGE is clientAuth, serverAuth or both, with a comma.
certificate() {
    local authority=$1 name=$2 subject=$3 usage=$4 alternatives=${5:-}
    local extensions=(
        -addext "basicConstraints=critical,CA:FALSE"
        -addext "keyUsage=critical,digitalSignature"
        -addext "extendedKeyUsage=${usage}"
    )
    if [[ -n ${alternatives} ]]; then
        extensions+=(-addext "subjectAltName=${alternatives}")
    fi
    openssl req -config "${state}/pki/openssl.cnf" -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc \
        -CA "${state}/pki/${authority}.crt" -CAkey "${state}/pki/${authority}.key" -days 3650 -subj "${subject}" \
        -keyout "${state}/pki/${name}.key" -out "${state}/pki/${name}.crt" "${extensions[@]}" 2>/dev/null
}

# kubeconfig NAME FILE writes a kubeconfig for the client certificate NAME. It
# holds the certificates themselves, so that it can be copied elsewhere.
kubeconfig() {
    local name=$1 file=$2
    cat >"${file}" <<EOF
apiVersion: v1
kind: Config
clusters:
  - name: elasti-cluster
    cluster:
      server: https://${api_address}:${api_port}
      certificate-authority-data: $(base64 -w0 "${state}/pki/ca.crt")
users:
  - name: ${name}
    user:
      client-certificate-data: $(base64 -w0 "${state}/pki/${name}.crt")
      client-key-data: $(base64 -w0 "${state}/pki/${name}.key")
contexts:
  - name: elasti-cluster
    context:
      cluster: elasti-cluster
      user: ${name}
current-context: elasti-cluster
EOF
}

make_credentials() {
    local mask
    mask=$(umask)
    umask 077
    mkdir -p "${state}/pki"
    # The default configuration would make every certificate an authority.
    printf '[req]\ndistinguished_name = subject\n[subject]\n' >"${state}/pki/openssl.cnf"

    authority ca
    # Only the API server may talk to etcd, so etcd trusts an authority of its own.
    authority etcd-ca
    # Requests signed by this one name their user in headers, so it must sign nothing else.
    authority front-proxy-ca

    certificate etcd-ca etcd-server /CN=etcd serverAuth,clientAuth IP:127.0.0.1
    certificate etcd-ca etcd-client /CN=kube-apiserver clientAuth
    certificate front-proxy-ca front-proxy-client /CN=front-proxy-client clientAuth
    certificate ca kube-apiserver /CN=kube-apiserver serverAuth \
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:${api_address},IP:${kubernetes_service_address}"
    certificate ca kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
    certificate ca kube-controller-manager /CN=system:kube-controller-manager clientAuth
    certificate ca kube-scheduler /CN=system:kube-scheduler clientAuth
    certificate ca kube-proxy /CN=system:kube-proxy clientAuth
    certificate ca admin /O=system:masters/CN=admin clientAuth
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "${state}/pki/service-account.key" 2>/dev/null
    openssl pkey -in "${state}/pki/service-account.key" -pubout -out "${state}/pki/service-account.pub"

    local component
    for component in kube-controller-manager kube-scheduler kube-proxy; do
        kubeconfig "${component}" "${state}/${component}.kubeconfig"
    done
    kubeconfig admin "${admin_kubeconfig}"
    make_node_credentials
    umask "${mask}"
}

# make_node_credentials makes those of the kubelet of the node in use.
make_node_credentials() {
    local mask
    mask=$(umask)
    umask 077
    certificate ca "kubelet-server${node_suffix}" "/CN=${node_name}" serverAuth "DNS:${node_name},IP:${node_address}"
    certificate ca "kubelet${node_suffix}" "/O=system:nodes/CN=system:node:${node_name}" clientAuth
    kubeconfig "kubelet${node_suffix}" "${state}/kubelet${node_suffix}.kubeconfig"
    umask "${mask}"
}
