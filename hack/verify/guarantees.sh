#!/usr/bin/env bash
# Fails when docs/guarantees.md names a test that does not exist, or has a row
# without a test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

page=docs/guarantees.md
failed=0
tests=$(git grep --untracked -hoE '^func Test[A-Za-z0-9_]+' -- '*_test.go' | sed 's/^func //' | sort -u)
named=$(grep -oE '`Test[A-Za-z0-9_]+`' "${page}" | tr -d '`' | sort -u)
while read -r missing; do
    echo "${page} names ${missing}, which does not exist" >&2
    failed=1
done < <(comm -13 <(echo "${tests}") <(echo "${named}") | grep . || true)
while read -r row; do
    echo "${page} has a row without a test: ${row}" >&2
    failed=1
done < <(grep -E '^\|' "${page}" | grep -vE '^\| (---|Situation)' | grep -vE '`Test[A-Za-z0-9_]+` *(\|$|,)' || true)
[[ -n "${named}" ]] || {
    echo "${page} names no test" >&2
    failed=1
}
exit "${failed}"
