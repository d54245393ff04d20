#!/usr/bin/env bash
# Fails when a package imports against the direction of the architecture, which is
# the list of rules below. Each rule names a package tree and what of this module it
# may import besides itself. The rule of the smallest tree that a package is in
# counts. hack/ and test/ need no rule, and the imports of tests are free.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

module=github.com/truefoundry/elasti-apiserver
declare -A allowed=(
    ["pkg/activity"]=""
    ["pkg/expression"]=""
    ["pkg/apis"]="pkg/activity pkg/expression pkg/schedule pkg/triggers"
    ["pkg/schedule"]=""
    ["pkg/triggers"]=""
    ["pkg/generated"]="pkg/apis"
    ["pkg/storage"]="pkg/apis"
    ["pkg/scaling"]="pkg/apis/elasti/v1alpha1"
    ["pkg/portcheck"]=""
    ["pkg/sharedport"]=""
    ["pkg/compatibility"]="pkg/apis pkg/scaling"
    ["pkg/installcheck"]="pkg/apis/elasti/v1alpha1 pkg/generated"
    ["pkg/preflight"]="pkg/apis pkg/compatibility pkg/scaling"
    ["pkg/registry"]="pkg/activity pkg/apis pkg/scaling pkg/triggers"
    ["pkg/registry/elasti/elastiservice/consistency"]=""
    ["pkg/controller"]="pkg/activity pkg/apis pkg/compatibility pkg/expression pkg/generated pkg/portcheck pkg/scaling pkg/sharedport pkg/schedule pkg/triggers"
    ["pkg/controller/elastiservice"]="pkg/activity pkg/apis/elasti/v1alpha1 pkg/compatibility pkg/controller/fairqueue pkg/controller/informers pkg/controller/proxyports pkg/controller/resolvers pkg/controller/resources pkg/controller/signature pkg/controller/startup pkg/controller/statuswriter pkg/controller/target pkg/generated pkg/portcheck pkg/scaling pkg/sharedport pkg/triggers"
    ["pkg/controller/informers"]=""
    ["pkg/controller/fairqueue"]=""
    ["pkg/controller/proxyports"]="pkg/apis/elasti/v1alpha1"
    ["pkg/controller/resolvers"]="pkg/controller/resources pkg/portcheck pkg/sharedport"
    ["pkg/controller/resources"]="pkg/apis/elasti/v1alpha1"
    ["pkg/controller/signature"]="pkg/apis/elasti/v1alpha1"
    ["pkg/controller/startup"]="pkg/apis/elasti/v1alpha1 pkg/controller/fairqueue pkg/scaling"
    ["pkg/controller/statuswriter"]="pkg/apis/elasti/v1alpha1 pkg/controller/fairqueue pkg/controller/resources"
    ["pkg/controller/target"]="pkg/apis/elasti/v1alpha1 pkg/compatibility pkg/controller/informers pkg/controller/resources pkg/controller/startup pkg/scaling"
    ["pkg/apiserver"]="pkg/apis pkg/generated pkg/preflight pkg/registry pkg/storage pkg/scaling pkg/controller pkg/triggers"
    ["pkg/resolver"]="pkg/activity pkg/apis/elasti/v1alpha1 pkg/expression pkg/generated pkg/portcheck pkg/sharedport pkg/triggers"
    ["cmd/elasti-apiserver"]="pkg/apiserver pkg/generated pkg/installcheck pkg/storage/embedded"
    ["cmd/elasti-resolver"]="pkg/resolver"
)

within() { # within IMPORT TREE: is the import in the tree?
    [[ "$1" == "$2" || "$1" == "$2"/* ]]
}

failed=0
while read -r package imported; do
    package="${package#"${module}/"}" imported="${imported#"${module}/"}"
    tree=""
    for candidate in "${!allowed[@]}"; do
        within "${package}" "${candidate}" && ((${#candidate} > ${#tree})) && tree="${candidate}"
    done
    if [[ -z "${tree}" ]]; then
        [[ "${package}" == hack/* || "${package}" == test/* ]] && continue
        echo "${package} is in no tree that hack/verify/imports.sh knows" >&2
        failed=1
        continue
    fi
    within "${imported}" "${tree}" && continue
    ok=0
    for target in ${allowed[${tree}]}; do
        within "${imported}" "${target}" && ok=1
    done
    if ((!ok)); then
        echo "${package} may not import ${imported}" >&2
        failed=1
    fi
done < <(go list -f '{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}' ./... | grep " ${module}/" | sort -u)
exit "${failed}"
