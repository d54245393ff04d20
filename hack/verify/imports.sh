#!/usr/bin/env bash
# Fails when a package imports against the direction of the architecture, which is
# the list of rules below, and when no rule is about a package. Each rule names a
# package tree and what of this module it may import besides itself: trees, or with
# "=" a single package. The rule of the smallest tree that a package is in counts.
# hack/ and test/ need no rule, and the imports of tests are free.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

module=github.com/truefoundry/elasti-apiserver
declare -A allowed=(
    ["pkg/activity"]=""
    ["pkg/buildinfo"]=""
    ["pkg/expression"]=""
    ["pkg/apis"]="pkg/activity pkg/expression pkg/schedule pkg/triggers"
    ["pkg/schedule"]=""
    ["pkg/triggers"]=""
    ["pkg/generated"]="pkg/apis"
    ["pkg/storage"]=""
    ["pkg/scaling"]="pkg/apis/elasti/v1alpha1"
    ["pkg/portcheck"]=""
    ["pkg/sharedport"]=""
    ["pkg/compatibility"]="pkg/apis pkg/scaling"
    ["pkg/installcheck"]="pkg/apis/elasti/v1alpha1 pkg/generated"
    ["pkg/installcheck/registration"]="pkg/apis/elasti/v1alpha1"
    ["pkg/plugin"]="pkg/apis/elasti/v1alpha1 pkg/generated pkg/installcheck"
    ["pkg/preflight"]="pkg/apis pkg/compatibility pkg/scaling"
    ["pkg/registry"]="pkg/activity pkg/apis pkg/scaling pkg/triggers"
    ["pkg/registry/elasti/elastiservice/consistency"]=""
    ["pkg/controller"]="pkg/activity pkg/apis pkg/compatibility pkg/expression pkg/generated pkg/portcheck pkg/scaling pkg/sharedport pkg/schedule pkg/triggers"
    ["pkg/controller/elastiservice"]="pkg/activity pkg/apis/elasti/v1alpha1 pkg/compatibility pkg/controller/fairqueue pkg/controller/informers pkg/controller/proxyports pkg/controller/resolvers pkg/controller/resources pkg/controller/signature pkg/controller/startup pkg/controller/statuswriter pkg/controller/target pkg/generated pkg/portcheck pkg/scaling pkg/triggers"
    ["pkg/controller/informers"]=""
    ["pkg/controller/leader"]=""
    ["pkg/controller/fairqueue"]=""
    ["pkg/controller/proxyports"]="pkg/apis/elasti/v1alpha1"
    ["pkg/controller/resolvers"]="pkg/controller/resources pkg/portcheck pkg/sharedport"
    ["pkg/controller/resources"]="pkg/apis/elasti/v1alpha1"
    ["pkg/controller/signature"]="pkg/apis/elasti/v1alpha1"
    ["pkg/controller/sleep"]="pkg/apis/elasti/v1alpha1 pkg/compatibility pkg/controller/fairqueue pkg/controller/resources pkg/generated pkg/schedule pkg/triggers"
    ["pkg/controller/sleep/credentials"]="pkg/triggers"
    ["pkg/controller/sleep/egress"]=""
    ["pkg/controller/sleep/evaluators"]="pkg/apis/elasti/v1alpha1 pkg/controller/sleep/credentials pkg/controller/sleep/egress pkg/controller/sleep/promql pkg/controller/sleep/queries pkg/controller/sleep/reports pkg/scaling pkg/triggers"
    ["pkg/controller/sleep/promql"]="pkg/expression"
    ["pkg/controller/sleep/queries"]=""
    ["pkg/controller/sleep/reports"]="pkg/activity pkg/apis/elasti/v1alpha1"
    ["pkg/controller/startup"]="pkg/apis/elasti/v1alpha1 pkg/controller/fairqueue pkg/scaling"
    ["pkg/controller/statuswriter"]="pkg/apis/elasti/v1alpha1 pkg/controller/fairqueue pkg/controller/resources"
    ["pkg/controller/target"]="pkg/apis/elasti/v1alpha1 pkg/compatibility pkg/controller/informers pkg/controller/resources pkg/controller/startup pkg/scaling"
    ["pkg/controller/uninstall"]=""
    ["pkg/apiserver"]="pkg/apis pkg/registry pkg/storage/guard"
    ["pkg/apiserver/app"]="pkg/apis pkg/apiserver pkg/buildinfo pkg/controller pkg/generated pkg/installcheck/registration pkg/preflight pkg/registry pkg/scaling pkg/storage pkg/triggers"
    ["pkg/apiserver/authorization"]=""
    ["pkg/apiserver/patchcheck"]=""
    ["pkg/apiserver/servingcert"]="pkg/installcheck/registration"
    ["pkg/apiserver/options"]="=pkg/apis/elasti =pkg/apis/elasti/v1alpha1 =pkg/apiserver =pkg/controller/elastiservice =pkg/controller/sleep =pkg/controller/sleep/egress =pkg/controller/sleep/evaluators =pkg/storage/cluster"
    ["pkg/resolver"]="pkg/activity pkg/apis/elasti/v1alpha1 pkg/buildinfo pkg/expression pkg/generated pkg/portcheck pkg/sharedport pkg/triggers"
    ["pkg/resolver/accesslog"]=""
    ["pkg/resolver/adminserver"]=""
    ["pkg/resolver/endpoint"]=""
    ["pkg/resolver/hold"]="pkg/resolver/dial pkg/resolver/endpoint pkg/resolver/memory pkg/resolver/task"
    ["pkg/resolver/localfault"]=""
    ["pkg/resolver/memory"]=""
    ["pkg/resolver/metricsauth"]=""
    ["pkg/resolver/options"]="=pkg/resolver/passive"
    ["pkg/resolver/sniff"]=""
    ["pkg/resolver/socket"]=""
    ["pkg/resolver/task"]=""
    ["pkg/resolver/wake"]="pkg/apis/elasti/v1alpha1 pkg/resolver/task"
    ["cmd/elasti-apiserver"]="pkg/apiserver pkg/generated pkg/installcheck pkg/storage/embedded"
    ["cmd/elasti-resolver"]="pkg/resolver"
    ["cmd/kubectl-elasti"]="pkg/plugin"
)

within() { # within IMPORT TREE: is the import in the tree?
    [[ "$1" == "$2" || "$1" == "$2"/* ]]
}

# may_import TREE IMPORT: does the rule of the tree allow the import?
may_import() {
    local target
    within "$2" "$1" && return 0
    for target in ${allowed["$1"]}; do
        if [[ "${target}" == =* ]]; then
            [[ "$2" == "${target#=}" ]] && return 0
        elif within "$2" "${target}"; then
            return 0
        fi
    done
    return 1
}

failed=0
packages=$(go list -f '{{.ImportPath}} {{join .Imports " "}}' ./...)
while read -r package imports; do
    package="${package#"${module}/"}"
    [[ "${package}" == hack/* || "${package}" == test/* ]] && continue
    tree=""
    for candidate in "${!allowed[@]}"; do
        within "${package}" "${candidate}" && ((${#candidate} > ${#tree})) && tree="${candidate}"
    done
    if [[ -z "${tree}" ]]; then
        echo "${package} is in no tree that hack/verify/imports.sh has a rule about: add one" >&2
        failed=1
        continue
    fi
    for imported in ${imports}; do
        [[ "${imported}" == "${module}"/* ]] || continue
        if ! may_import "${tree}" "${imported#"${module}/"}"; then
            echo "${package} may not import ${imported#"${module}/"}" >&2
            failed=1
        fi
    done
done <<<"${packages}"
exit "${failed}"
