#!/usr/bin/env bash
# Loads image archives, as made by "make images" or "docker save", into each node of
# the local cluster that is up.

# shellcheck source-path=SCRIPTDIR
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/settings.sh
source "${here}/lib/settings.sh"
# shellcheck source=lib/output.sh
source "${here}/lib/output.sh"
# shellcheck source=lib/image.sh
source "${here}/lib/image.sh"

if (($# == 0)) || [[ $1 == -h || $1 == --help ]]; then
    echo "usage: hack/cluster/load-image.sh ARCHIVE..." >&2
    (($# > 0)) && exit 0 || exit 2
fi
if [[ ! -S ${state}/containerd.sock ]]; then
    fail "the cluster is not up (there is no ${state}/containerd.sock): run hack/cluster/up.sh first"
fi
for socket in "${state}"/containerd.sock "${state}"/node-2/containerd.sock; do
    if [[ -S ${socket} ]]; then
        import_images "${socket}" "$@"
    fi
done
