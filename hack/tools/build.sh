#!/usr/bin/env bash
# Builds the named tools into _output/tools/bin. A tool is built only when it
# is missing, or when the versions or flags that it is built from have changed.
# Safe to run several times at once: one call builds, the others wait for it.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tools=${root}/hack/tools
output=${root}/_output/tools
bin=${output}/bin

readonly kubernetes_tools=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
readonly all_tools=("${kubernetes_tools[@]}" etcd kine coredns golangci-lint metrics-server keda argo-rollouts)

usage() {
    cat <<EOF
usage: hack/tools/build.sh NAME...

Builds tools into _output/tools/bin, from the versions pinned in hack/tools.
Names: ${all_tools[*]}
EOF
}

# Each module has a go.mod of its own where its dependencies would otherwise
# move the versions that Kubernetes is released with.
module_directory() {
    case $1 in
    coredns) echo "${tools}/coredns" ;;
    golangci-lint) echo "${tools}/lint" ;;
    kine | metrics-server | keda | argo-rollouts) echo "${tools}/$1" ;;
    *) echo "${tools}" ;;
    esac
}

is_kubernetes_tool() {
    [[ " ${kubernetes_tools[*]} " == *" $1 "* ]]
}

# The linker flags give the Kubernetes binaries the version of their module;
# without them a node reports v0.0.0-master.
linker_flags() {
    if ! is_kubernetes_tool "$1"; then
        echo "-s -w"
        return
    fi
    local version
    version=$(awk '$1 == "k8s.io/kubernetes" { print $2 } $1 == "require" && $2 == "k8s.io/kubernetes" { print $3 }' "${tools}/go.mod")
    if [[ ! ${version} =~ ^v([0-9]+)\.([0-9]+)\.[0-9]+$ ]]; then
        echo "hack/tools/build.sh: no released version of k8s.io/kubernetes found in ${tools}/go.mod (found \"${version}\")" >&2
        return 1
    fi
    local flags="-s -w" package
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X ${package}.gitVersion=${version} -X ${package}.gitMajor=${BASH_REMATCH[1]} -X ${package}.gitMinor=${BASH_REMATCH[2]}"
    done
    echo "${flags}"
}

# fingerprint prints what a tool is built from, as one hash.
fingerprint() {
    local directory flags
    directory=$(module_directory "$1")
    flags=$(linker_flags "$1")
    {
        cat "${directory}/go.mod" "${directory}/go.sum"
        if [[ -f ${directory}/main.go ]]; then cat "${directory}/main.go"; fi
        echo "${go_version} ${flags}"
    } | sha256sum | cut -d' ' -f1
}

is_current() {
    [[ -x ${bin}/$1 && -f ${output}/stamps/$1 && $(<"${output}/stamps/$1") == "$(fingerprint "$1")" ]]
}

# build_group TOOL... builds tools of one module in one go build, so that the
# packages which they share are loaded and compiled once.
build_group() {
    local staging directory started tool packages=() destination flags
    started=${SECONDS}
    staging=$(mktemp -d "${output}/build.XXXXXX")
    directory=$(module_directory "$1")
    flags=$(linker_flags "$1")
    destination=${staging}/
    case $1 in
    etcd) packages=(go.etcd.io/etcd/server/v3) destination=${staging}/etcd ;;
    kine) packages=(github.com/k3s-io/kine) ;;
    coredns) packages=(.) destination=${staging}/coredns ;;
    golangci-lint) packages=(github.com/golangci/golangci-lint/v2/cmd/golangci-lint) ;;
    metrics-server) packages=(sigs.k8s.io/metrics-server/cmd/metrics-server) ;;
    keda) packages=(github.com/kedacore/keda/v2/cmd/operator) destination=${staging}/keda ;;
    argo-rollouts) packages=(github.com/argoproj/argo-rollouts/cmd/rollouts-controller) destination=${staging}/argo-rollouts ;;
    *) packages=("${@/#/k8s.io/kubernetes/cmd/}") ;;
    esac

    echo "building $* (a first build compiles everything and takes minutes)"
    # The lock's file descriptor stays out of the compiler, whose helpers may
    # outlive an interrupted build.
    if ! (cd "${directory}" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false \
        -ldflags "${flags}" -o "${destination}" "${packages[@]}" 9>&-); then
        rm -rf "${staging}"
        echo "hack/tools/build.sh: building $* failed, see the compiler's messages above" >&2
        return 1
    fi

    for tool in "$@"; do
        mv -f "${staging}/${tool}" "${bin}/${tool}"
        fingerprint "${tool}" >"${output}/stamps/${tool}"
    done
    rmdir "${staging}"
    echo "built $* in $((SECONDS - started)) s"
}

if (($# == 0)); then
    usage >&2
    exit 2
fi
for tool in "$@"; do
    if [[ ${tool} == -h || ${tool} == --help ]]; then
        usage
        exit 0
    fi
    if [[ " ${all_tools[*]} " != *" ${tool} "* ]]; then
        echo "hack/tools/build.sh: unknown tool \"${tool}\", known are: ${all_tools[*]}" >&2
        exit 2
    fi
done
if ! command -v go >/dev/null; then
    echo "hack/tools/build.sh: no go command found: install Go 1.26 or newer and put it on PATH" >&2
    exit 1
fi
go_version=$(go version)

# find_stale TOOL... sorts the tools that have to be built into two lists.
find_stale() {
    local tool
    kubernetes=()
    others=()
    for tool in "$@"; do
        if is_current "${tool}"; then
            continue
        fi
        if is_kubernetes_tool "${tool}"; then
            kubernetes+=("${tool}")
        else
            others+=("${tool}")
        fi
    done
}

mkdir -p "${bin}" "${output}/stamps"
find_stale "$@"
if ((${#kubernetes[@]} + ${#others[@]} == 0)); then
    exit 0
fi
exec 9>"${output}/lock"
if ! flock --nonblock 9; then
    echo "waiting for another build of the tools to end"
    flock 9
    find_stale "$@"
fi
rm -rf "${output}"/build.*
if ((${#kubernetes[@]} > 0)); then
    build_group "${kubernetes[@]}"
fi
for tool in ${others[@]+"${others[@]}"}; do
    build_group "${tool}"
done
