#!/usr/bin/env bash
# Shows a whole cycle: deploys everything and an example application that is
# asleep, sends it one request, and prints what happened until it sleeps again.
# Without an argument it does so on the local test cluster, which it brings up.
# Safe to run again; the cluster stays up.

# shellcheck source-path=SCRIPTDIR
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
state=${ELASTI_CLUSTER_STATE:-${root}/_output/cluster}
output=${root}/_output/demo
namespace=elasti-example
path=/apis/elasti.truefoundry.com/v1alpha1/namespaces/${namespace}/elastiservices/example
PATH=${root}/_output/tools/bin:${PATH}
# shellcheck source=../lib/output.sh
source "${root}/hack/lib/output.sh"

usage() {
    cat <<TEXT
usage: [REGISTRY=registry/path] [TAG=latest] hack/demo/demo.sh [KUBECONFIG]

Without KUBECONFIG: on the local test cluster (Linux, root), which is brought up
first.

With it, on the current context of that file, such as a cluster of kind, k3s or a
cloud. It needs

- the permissions of an administrator: the demo installs an APIService, ClusterRoles
  and the namespaces elasti-system and ${namespace}. What is deployed in elasti-system
  already is used as it is.
- kubectl and Go on this machine.
- the images elasti-apiserver, elasti-resolver and elasti-example where the nodes
  find them: as REGISTRY/NAME:TAG, or without REGISTRY on the nodes. "make images"
  builds them as archives in _output/images, for the architecture GOARCH:
    kind:  kind load image-archive _output/images/NAME.tar    (each of the three)
    k3s:   k3s ctr images import _output/images/NAME.tar      (on each node)
    cloud: docker load, docker tag and docker push to a registry that the nodes read

It needs no LoadBalancer, ingress, metrics or route from this machine to Services:
the client is a pod of the cluster.
TEXT
}

# heading TEXT... begins a part of the output.
heading() {
    note $'\n'"== $*"
}

in_namespace() {
    kubectl --namespace "${namespace}" "$@"
}

# write_example_overlay IMAGE:TAG has the example run that image.
write_example_overlay() {
    cat >"${output}/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../artifacts/example/application
images:
  - name: elasti-example
    newName: ${1%:*}
    newTag: "${1##*:}"
YAML
}

# wait_until_asleep waits until the traffic of the example is sent to the
# resolvers and its pods are deleted.
wait_until_asleep() {
    if ! in_namespace wait elastiservice/example --for=jsonpath='{.status.mode}'=proxy --timeout=60s >/dev/null ||
        ! in_namespace wait pods --selector=app=example --for=delete --timeout=60s >/dev/null; then
        in_namespace get elastiservices,pods >&2 || true
        fail "the example is not asleep after a minute; what there is is above, and \"kubectl describe elastiservice/example --namespace ${namespace}\" says more"
    fi
}

# build_timeline builds the program that prints what happened. The first time it
# compiles Kubernetes' client.
build_timeline() {
    heading "the program that prints the timeline"
    (cd "${root}" && go build -o "${output}/timeline" ./hack/demo/timeline)
}

# wait_until_reachable COMMAND... waits until a health check reaches a resolver:
# kube-proxy may take a second to learn of a new Service, whose address leads
# nowhere until then. The command sends the health check, which does not wake the
# example, and prints the local reply, whose reason is Asleep.
wait_until_reachable() {
    local deadline=$((SECONDS + 60))
    until [[ $("$@" 2>/dev/null || true) == *Asleep* ]]; do
        if ((SECONDS >= deadline)); then
            fail "no resolver responds at service/example of the namespace ${namespace}: check kube-proxy on the node of the client, and \"kubectl get endpointslices --namespace ${namespace}\""
        fi
    done
}

print_next_steps() {
    cat <<TEXT

The cluster stays as it is. To see more:

  export KUBECONFIG=${KUBECONFIG} PATH=${root}/_output/tools/bin:\$PATH
  kubectl get elastiservices --all-namespaces
  kubectl explain elastiservice.spec
  kubectl get --raw ${path}
  kubectl get endpointslices --namespace ${namespace}
  kubectl get events --namespace ${namespace}

Wake the example by hand instead of by a request, and put it to sleep without
waiting for the cooldown:

  echo '{"spec": {"reason": "by hand"}}' | kubectl create --raw ${path}/wake -f -
  kubectl scale elastiservice/example --replicas=0 --namespace ${namespace}

$1
TEXT
}

# show_example IMAGE:TAG deploys the example and waits until it is asleep.
show_example() {
    heading "the example application, asleep"
    write_example_overlay "$1"
    kubectl apply -k "${output}" >/dev/null
    wait_until_asleep
    in_namespace get elastiservice/example deployment/example service/example
}

# print_timeline FLAG... -- COMMAND... has the command send one request.
print_timeline() {
    heading "one request, and the cooldown of 10 s without another"
    "${output}/timeline" --namespace "${namespace}" --elastiservice example --until-asleep \
        --expect "hello from example-" "$@"
}

on_local_cluster() {
    export KUBECONFIG=${state}/kubeconfig
    heading "the local test cluster"
    "${root}/hack/cluster/up.sh"
    build_timeline

    heading "images"
    "${root}/hack/images/build.sh"

    heading "deployment"
    "${root}/hack/deploy.sh"
    "${root}/hack/cluster/load-image.sh" "${root}/_output/images/elasti-example.tar" >/dev/null

    show_example "$(<"${root}/_output/images/elasti-example.name")"
    local address
    address=$(in_namespace get service/example --output=jsonpath='{.spec.clusterIP}')
    wait_until_reachable curl --silent --max-time 1 --user-agent kube-probe/demo --include "http://${address}/"
    print_timeline --audit-log "${state}/logs/audit.log" -- \
        curl --silent --show-error --max-time 120 "http://${address}/hello"
    print_next_steps "Stop the cluster: make cluster-down"
}

# run_client IMAGE:TAG starts a pod of the example's image that sends requests.
run_client() {
    kubectl apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: client
  namespace: ${namespace}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  securityContext:
    runAsNonRoot: true
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: client
      image: $1
      imagePullPolicy: IfNotPresent
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
YAML
    if ! in_namespace wait pod/client --for=condition=Ready --timeout=120s >/dev/null; then
        in_namespace get pod/client --output=jsonpath='{.status.containerStatuses[*].state.waiting}{"\n"}' >&2
        fail "the pod of the client does not start. Its image is $1: see \"hack/demo/demo.sh --help\" for how the nodes get it"
    fi
}

is_deployed() {
    kubectl get apiservice/v1alpha1.elasti.truefoundry.com >/dev/null 2>&1
}

on_cluster_of_the_user() {
    export KUBECONFIG=$1
    local image=${REGISTRY:+${REGISTRY}/}elasti-example:${TAG:-latest} access_logs=false removal
    removal="Remove what the demo deployed:

  kubectl delete -k ${output}"
    command -v kubectl >/dev/null || fail "no kubectl found: put it on PATH"
    kubectl version >/dev/null || fail "the cluster of ${KUBECONFIG} does not respond, its error is above"
    build_timeline

    heading "deployment to the context $(kubectl config current-context)"
    if is_deployed; then
        echo "elasti-apiserver is deployed already, and is used as it is"
    else
        ACCESS_LOG=true "${root}/hack/deploy.sh"
        removal="${removal}
  kubectl delete -k ${root}/artifacts/deploy/base
  kubectl annotate -f ${root}/artifacts/deploy/storage/customresourcedefinitions.yaml storage.elasti.truefoundry.com/allow-deletion=true
  kubectl delete -k ${root}/artifacts/deploy/storage"
    fi
    if kubectl get deployments --namespace elasti-system elasti-resolver --output=jsonpath='{.spec.template.spec.containers[*].args}' | grep -q -e --access-log; then
        access_logs=true
    fi

    show_example "${image}"
    run_client "${image}"
    local get=(kubectl --namespace "${namespace}" exec client -- /elasti-example)
    wait_until_reachable "${get[@]}" -user-agent=kube-probe/demo -get=http://example/
    print_timeline --access-logs="${access_logs}" -- "${get[@]}" -get=http://example/hello
    print_next_steps "${removal}"
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    usage
    exit
elif (($# > 1)); then
    usage >&2
    exit 2
fi
[[ -z ${1:-} || -e ${1%%:*} ]] || fail "there is no kubeconfig $1"
command -v go >/dev/null || fail "no Go found: install Go 1.26 or later and put it on PATH, see https://go.dev/doc/install"
mkdir -p "${output}"
if (($# == 0)) || [[ $1 -ef ${state}/kubeconfig ]]; then
    on_local_cluster
else
    on_cluster_of_the_user "$1"
fi
