# shellcheck shell=bash
# The configuration of the cluster's components. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

# write_configuration FILE... writes these files of config/, and the way to the pods, for
# the node in use.
write_configuration() {
    local file text
    mkdir -p "${node_state}/config" "${node_state}/cni/net.d"
    for file in "$@"; do
        text=$(<"${cluster_scripts}/config/${file}")
        text=${text//@STATE@/"${state}"}
        text=${text//@NODE_STATE@/"${node_state}"}
        text=${text//@NODE_SUFFIX@/"${node_suffix}"}
        text=${text//@NODE_NAME@/"${node_name}"}
        text=${text//@NODE_ADDRESS@/"${node_address}"}
        text=${text//@DNS_ADDRESS@/"${dns_address}"}
        text=${text//@POD_RANGE@/"${pod_range}"}
        text=${text//@NODE_POD_RANGE@/"${node_pod_range}"}
        text=${text//@NETWORK_NAME@/"${network_name}"}
        text=${text//@NODE_CGROUP@/"${node_cgroup}"}
        text=${text//@KUBELET_PORT@/"${kubelet_port}"}
        text=${text//@KUBELET_HEALTH_PORT@/"${kubelet_health_port}"}
        text=${text//@KUBE_PROXY_HEALTH_PORT@/"${kube_proxy_health_port}"}
        text=${text//@KUBE_PROXY_METRICS_PORT@/"${kube_proxy_metrics_port}"}
        text=${text//@PAUSE_IMAGE@/"${pause_image}"}
        text=${text//@COREDNS_IMAGE@/"${coredns_image}"}
        echo "${text}" >"${node_state}/config/${file}"
    done
    cp "${node_state}/config/cni.conflist" "${node_state}/cni/net.d/10-${network_name}.conflist"
}
