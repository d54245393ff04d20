#!/usr/bin/env bash
# Builds the images of elasti-apiserver, elasti-resolver and the example
# application, without Docker and without a network. What has not changed is
# not built again.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
output=${root}/_output/images
architecture=${GOARCH:-$(go env GOARCH)}
tag=${TAG:-latest}

usage() {
    cat <<TEXT
usage: [TAG=latest] [GOARCH=${architecture}] hack/images/build.sh

Writes _output/images/NAME.tar for elasti-apiserver, elasti-resolver and
elasti-example, which "docker load", "ctr images import" and "kind load
image-archive" take. Each image is named NAME:\$TAG and, by its content,
NAME:DIGEST, which is written to _output/images/NAME.name.
TEXT
}

# The directory of the main package of each image.
declare -A package_of=(
    ["elasti-apiserver"]=./cmd/elasti-apiserver
    ["elasti-resolver"]=./cmd/elasti-resolver
    ["elasti-example"]=./test/application
)

# linker_flags prints the flags that give the binaries their version.
linker_flags() {
    local version commit state=clean flags="-s -w" package
    commit=$(git -C "${root}" rev-parse HEAD)
    if [[ -n $(git -C "${root}" status --porcelain --untracked-files=no) ]]; then
        state=dirty
    fi
    # The version has to be a semantic one, before the first release as well.
    version=$(git -C "${root}" describe --tags --match 'v[0-9]*' 2>/dev/null || echo "v0.0.0-g${commit:0:12}")
    if [[ ${state} == dirty ]]; then
        version+=-dirty
    fi
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X ${package}.gitVersion=${version} -X ${package}.gitCommit=${commit} -X ${package}.gitTreeState=${state}"
    done
    echo "${flags}"
}

build_image() {
    local name=$1 binary=${output}/bin/$1 stamp=${output}/$1.stamp fingerprint
    (cd "${root}" && CGO_ENABLED=0 GOOS=linux GOARCH=${architecture} go build -trimpath -buildvcs=false \
        -ldflags "${flags}" -o "${binary}" "${package_of[${name}]}")
    fingerprint="${tag} ${architecture} $(cat "${binary}" "${root}"/hack/images/archive/*.go | sha256sum)"
    if [[ -f ${output}/${name}.tar && -f ${stamp} && $(<"${stamp}") == "${fingerprint}" ]]; then
        echo "${name} is up to date"
        return
    fi
    (cd "${root}" && go run ./hack/images/archive --binary "${binary}" --architecture "${architecture}" \
        --name "docker.io/library/${name}" --tag "${tag}" \
        --label "org.opencontainers.image.title=${name}" \
        --label "org.opencontainers.image.source=https://github.com/truefoundry/elasti-apiserver" \
        --label "org.opencontainers.image.licenses=Apache-2.0" \
        --output "${output}/${name}.tar") >"${output}/${name}.name"
    echo "${fingerprint}" >"${stamp}"
    echo "${name} is built: $(<"${output}/${name}.name")"
}

if (($# > 0)); then
    usage
    [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2
fi
mkdir -p "${output}/bin"
# Two calls at once would write the same files.
exec 9>"${output}/lock"
flock 9
flags=$(linker_flags)
for name in elasti-apiserver elasti-resolver elasti-example; do
    build_image "${name}"
done
