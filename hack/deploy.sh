#!/usr/bin/env bash
# Deploys elasti-apiserver and elasti-resolver, and waits until they serve.

# shellcheck source-path=SCRIPTDIR
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
state=${ELASTI_CLUSTER_STATE:-${root}/_output/cluster}
local_kubeconfig=${state}/kubeconfig
images=${root}/_output/images
overlay=${root}/_output/deploy
PATH=${root}/_output/tools/bin:${PATH}
# shellcheck source=lib/output.sh
source "${root}/hack/lib/output.sh"

usage() {
    cat <<TEXT
usage: [KUBECONFIG=${local_kubeconfig}] [REGISTRY=registry/path] [TAG=latest] [ACCESS_LOG=true] hack/deploy.sh

With the local test cluster (the default) the images of _output/images are
imported first. With any other cluster, they are REGISTRY/elasti-apiserver:TAG
and REGISTRY/elasti-resolver:TAG, or without REGISTRY what its nodes have
already (for kind: kind load image-archive _output/images/elasti-apiserver.tar).
With ACCESS_LOG=true resolvers write a line for each request, as they do on the
local test cluster.
TEXT
}

# write_local_overlay pins the images that were just built.
write_local_overlay() {
    local name
    for name in elasti-apiserver elasti-resolver; do
        [[ -f ${images}/${name}.tar ]] || fail "there is no ${images}/${name}.tar: run \"make images\" first"
    done
    "${root}/hack/cluster/load-image.sh" "${images}/elasti-apiserver.tar" "${images}/elasti-resolver.tar" >/dev/null
    cat >"${overlay}/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../artifacts/deploy/overlays/local
images:
  - name: elasti-apiserver
    newTag: "$(content_tag elasti-apiserver)"
  - name: elasti-resolver
    newTag: "$(content_tag elasti-resolver)"
YAML
}

write_overlay() {
    local prefix=${REGISTRY:+${REGISTRY}/}
    cat >"${overlay}/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../artifacts/deploy
images:
  - name: elasti-apiserver
    newName: ${prefix}elasti-apiserver
    newTag: "${TAG:-latest}"
  - name: elasti-resolver
    newName: ${prefix}elasti-resolver
    newTag: "${TAG:-latest}"
YAML
    if [[ ${ACCESS_LOG:-} == true ]]; then
        printf 'components:\n  - ../../artifacts/deploy/components/access-log\n' >>"${overlay}/kustomization.yaml"
    fi
}

# content_tag NAME prints the tag that names the content of a built image.
content_tag() {
    local name
    name=$(<"${images}/$1.name")
    echo "${name##*:}"
}

# wait_for_rollout DEPLOYMENT waits until every replica is new and ready.
wait_for_rollout() {
    if ! kubectl --namespace elasti-system rollout status "deployment/$1" --timeout=180s >/dev/null; then
        kubectl --namespace elasti-system get pods --selector "app.kubernetes.io/name=$1" >&2 || true
        kubectl --namespace elasti-system logs "deployment/$1" --tail=20 >&2 || true
        fail "$1 is not ready, its pods and the end of its log are above"
    fi
}

if (($# > 0)); then
    usage
    [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2
fi
export KUBECONFIG=${KUBECONFIG:-${local_kubeconfig}}
if [[ ! -e ${KUBECONFIG%%:*} ]]; then
    fail "there is no ${KUBECONFIG}: run \"make cluster-up\" first, or set KUBECONFIG to use another cluster"
fi
command -v kubectl >/dev/null || fail "no kubectl found: put it on PATH"

started=${SECONDS}
mkdir -p "${overlay}"
if [[ ${KUBECONFIG} -ef ${local_kubeconfig} ]]; then
    write_local_overlay
else
    write_overlay
fi
kubectl apply -k "${overlay}" >/dev/null
wait_for_rollout elasti-apiserver
wait_for_rollout elasti-resolver
if ! kubectl wait --for=condition=Available apiservice/v1alpha1.elasti.truefoundry.com --timeout=60s >/dev/null; then
    kubectl get apiservice/v1alpha1.elasti.truefoundry.com --output=jsonpath='{.status.conditions[*].message}{"\n"}' >&2
    fail "the cluster does not reach elasti-apiserver, its reason is above"
fi
echo "elasti-apiserver and elasti-resolver are deployed in the namespace elasti-system, after $((SECONDS - started)) s"
