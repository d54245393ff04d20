#!/usr/bin/env bash
# Stops the cluster on this machine, whichever checkout started it, and removes
# everything it made but its logs. Safe to run again, and after a kill.

# shellcheck source-path=SCRIPTDIR
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/settings.sh
source "${here}/lib/settings.sh"
# shellcheck source=lib/output.sh
source "${here}/lib/output.sh"
# shellcheck source=lib/process.sh
source "${here}/lib/process.sh"
# shellcheck source=lib/remains.sh
source "${here}/lib/remains.sh"
# shellcheck source=lib/machine.sh
source "${here}/lib/machine.sh"

require_machine
mkdir -p "${record}"
exec 9>"${record}/lock"
if ! flock --nonblock 9; then
    note "waiting for another up.sh or down.sh to end"
    flock 9
fi

if [[ ! -f ${record}/state-directory ]]; then
    note "no cluster is up on this machine"
    exit 0
fi
owner=$(<"${record}/state-directory")
step "stopping the cluster in ${owner}" remove_cluster "${owner}"
rm -f "${record}/state-directory"
note "its logs are kept in ${owner}/logs"
