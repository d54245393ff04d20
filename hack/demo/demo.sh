#!/usr/bin/env bash
# Shows the whole circle: brings up the local test cluster, deploys everything
# and an example application that is asleep, sends it one request, and prints
# what happened until it sleeps again. Safe to run again; the cluster stays up.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
state=${ELASTI_CLUSTER_STATE:-$root/_output/cluster}
output=$root/_output/demo
namespace=elasti-example
export KUBECONFIG=$state/kubeconfig
PATH=$root/_output/tools/bin:$PATH

note() {
    printf '\n== %s\n' "$*"
}

in_namespace() {
    kubectl --namespace "$namespace" "$@"
}

# write_example_overlay pins the image of the example that was just built.
write_example_overlay() {
    local image
    image=$(<"$root/_output/images/elasti-example.name")
    cat >"$output/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../artifacts/example/application
images:
  - name: elasti-example
    newTag: "${image##*:}"
YAML
}

# wait_until_asleep waits until the traffic of the example goes to the
# resolvers and its pods are gone.
wait_until_asleep() {
    in_namespace wait elastiservice/example --for=jsonpath='{.status.mode}'=proxy --timeout=60s >/dev/null
    in_namespace wait pods --selector=app=example --for=delete --timeout=60s >/dev/null
}

# wait_until_reachable waits until kube-proxy leads to the resolvers: it may take
# a second to hear of a new Service, whose address does not answer until then. A
# health check does not wake the example, and a resolver says in a header that it
# is the one that answers.
wait_until_reachable() {
    local address=$1 deadline=$((SECONDS + 60)) answer
    until answer=$(curl --silent --max-time 1 --user-agent kube-probe/demo --output /dev/null \
        --write-out '%header{x-elasti-answer}' "http://$address/") && [[ $answer == Asleep ]]; do
        if ((SECONDS >= deadline)); then
            echo "no resolver answers at the address $address of service/example: see $state/logs/kube-proxy.log" >&2
            return 1
        fi
    done
}

print_next_steps() {
    local path=/apis/elasti.truefoundry.com/v1alpha1/namespaces/$namespace/elastiservices/example
    cat <<TEXT

The cluster stays up. To look around:

  export KUBECONFIG=$KUBECONFIG PATH=$root/_output/tools/bin:\$PATH
  kubectl get elastiservices --all-namespaces
  kubectl explain elastiservice.spec
  kubectl get --raw $path
  kubectl get endpointslices --namespace $namespace
  kubectl get events --namespace $namespace

Wake the example by hand instead of by a request, and put it to sleep without
waiting for the cooldown:

  echo '{"spec": {"reason": "by hand"}}' | kubectl create --raw $path/wake -f -
  kubectl scale elastiservice/example --replicas=0 --namespace $namespace

Stop the cluster: make cluster-down
TEXT
}

note "the local test cluster"
"$root/hack/cluster/up.sh"

note "images, and the program that prints the timeline"
"$root/hack/images/build.sh"
mkdir -p "$output"
(cd "$root" && go build -o "$output/timeline" ./hack/demo/timeline)

note "deployment"
"$root/hack/deploy.sh"

note "the example application, asleep"
"$root/hack/cluster/load-image.sh" "$root/_output/images/elasti-example.tar" >/dev/null
write_example_overlay
kubectl apply -k "$output" >/dev/null
wait_until_asleep
in_namespace get elastiservice/example deployment/example service/example

note "one request, and the cooldown of 10 s without another"
address=$(in_namespace get service/example --output=jsonpath='{.spec.clusterIP}')
wait_until_reachable "$address"
"$output/timeline" --namespace "$namespace" --elastiservice example --until-asleep --audit-log "$state/logs/audit.log" \
    --expect "hello from example-" -- \
    curl --silent --show-error --max-time 120 "http://$address/hello"
print_next_steps
