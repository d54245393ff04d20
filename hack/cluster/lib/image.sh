# shellcheck shell=bash
# Images for the cluster's own use, each made of one static binary. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

# image_archive NAME BINARY ARCHIVE writes an image, whose only file and
# entrypoint is the binary, as an archive that "ctr images import" takes. An
# archive newer than its binary is kept.
image_archive() {
    local name=$1 binary=$2 archive=$3 entry work layer
    if [[ ${archive} -nt ${binary} ]]; then
        return
    fi
    entry=$(basename "${binary}")
    work=$(mktemp -d)
    tar --create --file="${work}/layer.tar" --owner=0 --group=0 --numeric-owner --mode=0755 --mtime=@0 \
        --directory="$(dirname "${binary}")" "${entry}"
    layer=$(sha256sum "${work}/layer.tar" | cut -d' ' -f1)
    cat >"${work}/config.json" <<EOF
{"architecture":"$(go env GOARCH)","os":"linux","config":{"Entrypoint":["/${entry}"]},"rootfs":{"type":"layers","diff_ids":["sha256:${layer}"]}}
EOF
    cat >"${work}/manifest.json" <<EOF
[{"Config":"config.json","RepoTags":["${name}"],"Layers":["layer.tar"]}]
EOF
    mkdir -p "$(dirname "${archive}")"
    tar --create --file="${archive}.new" --directory="${work}" manifest.json config.json layer.tar
    mv "${archive}.new" "${archive}"
    rm -rf "${work}"
}

# import_images SOCKET ARCHIVE... loads archives into the containerd of a node.
import_images() {
    local socket=$1 archive
    shift
    for archive in "$@"; do
        ctr --address "${socket}" --namespace k8s.io images import "${archive}"
    done
}
