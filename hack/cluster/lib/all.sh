# shellcheck shell=bash
# Everything in this folder, in the order of its dependencies. Sourced.

cluster_library=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=hack/cluster/lib/settings.sh
source "${cluster_library}/settings.sh"
# shellcheck source=hack/cluster/lib/output.sh
source "${cluster_library}/output.sh"
# shellcheck source=hack/cluster/lib/process.sh
source "${cluster_library}/process.sh"
# shellcheck source=hack/cluster/lib/remains.sh
source "${cluster_library}/remains.sh"
# shellcheck source=hack/cluster/lib/machine.sh
source "${cluster_library}/machine.sh"
# shellcheck source=hack/cluster/lib/pki.sh
source "${cluster_library}/pki.sh"
# shellcheck source=hack/cluster/lib/image.sh
source "${cluster_library}/image.sh"
# shellcheck source=hack/cluster/lib/configuration.sh
source "${cluster_library}/configuration.sh"
# shellcheck source=hack/cluster/lib/control-plane.sh
source "${cluster_library}/control-plane.sh"
# shellcheck source=hack/cluster/lib/node.sh
source "${cluster_library}/node.sh"
# shellcheck source=hack/cluster/lib/second-node.sh
source "${cluster_library}/second-node.sh"
