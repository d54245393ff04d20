#!/usr/bin/env bash
# Fails when the subject of one of the last fifty commits is not "package: imperative
# verb and what", such as "resolver/http2: forward frames". Several packages are
# separated by commas. A verb in -s is not imperative, but for one in -ss such as "pass",
# and an article or "last" is no verb.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

failed=0
while read -r commit subject; do
    if ! grep -qE '^[a-z0-9_./, -]+: [a-z]' <<<"${subject}" ||
        grep -qE '^[^:]+: ([a-z]*[^s]s|the|a|an|last)\b' <<<"${subject}"; then
        echo "commit ${commit} has the subject \"${subject}\": say \"package: imperative verb and what\"" >&2
        failed=1
    fi
done < <(git log --no-merges --max-count=50 --format='%h %s')
exit "${failed}"
