#!/usr/bin/env bash
# Fails when a file uses a word of the project's former dialect instead of
# that of the field. Words count in the given sense only, which the pattern has to
# tell; what stays all the same is listed with its reason. In Go files the words of
# camelCase identifiers count too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C.UTF-8

# PATTERN, a tab, what the field says. Case does not matter.
words="
looks? (at|for|after|again)|(looked|looking) (at|for|again)|an? look|look interval|(last|next|first|each|every) looks?	sync, evaluate, inspect, check
descents?|descend(s|ed|ing)?	scale-down; drain, pause, scale
cover(s|ed|ing)?|uncover(s|ed|ing)?	ensure; managed; resolvers are in the path
memories	state
rivals?|winners?	conflicting, owning ElastiService
judges?|judged|judging|judge?ments?|verdicts?	compute…Condition; condition
pulse|feels?	liveness, watch
newcomers?|let ?pass	initial status batch, admit
former ?target|wake ?for ?good	previousTarget, restoreTarget
patience|patient|patiently	timeout; retrying
leaving ?time|converge ?time|cooling ?time	terminating grace, propagation delay, reuse cooldown
call(s|ed)? off	cancel
(is|are|was|were|be|been|has|have) gone|gone from	deleted
ours|us	managed by the controller; the product
ask(s|ed|ing)?	query, probe, request
fights?|disturbed sleep	scaling conflict
told|tells? whether|tells? (who|which|what|how|why|of|us)|is ?news|take ?in	last reported, changed, record; reports whether
(an?|the|its|their|no|each|whose|this|that|such an|own) answers?|answers (of|to) (the|a)	response, local reply
resolvers? answers?	local reply
refuses?|refusals?	reject, local reply
nudges?	keep-awake request
attendants?|summons?	on-demand worker, ensureRunning
farewells?|retirees?	drain, draining
settle[sd]? (a|the) waiters?	resolve, complete
foreign	other
heads?	headers
believe[sd]?|doubt(s|ed)?	trust, outcome unknown
undecoded|as ?encoded	skip-decode path
folding ?recorder	event aggregator
circles?	full-cycle tests
are known	caches are synced
who(m|ever)|nobody|somebody|anybody|everybody|everyone	a component: the caller, no replica, another client
"

# PATH (a glob), a tab, PATTERN of the line, a tab, why it stays.
exceptions="
*	HEAD	the method of HTTP, the commit of git
*	told to	an instruction, not a report
docs/design.md	Tried and dropped	a heading
docs/results/*	BENCH=descent|2026-11-28-descent	the name of a benchmark
docs/sleep.md	\"somebody else\"	quotes an Event, whose text is public
docs/benchmarks.md	Test[A-Za-z]*	the name of a test
docs/guarantees.md	refuses HTTP/2 streams	REFUSED_STREAM, of RFC 9113
docs/protocols.md	a pod refuses the connection	ECONNREFUSED
docs/*	looked up	a lookup
pkg/controller/resolvers/resolverstest/*	refuse	ECONNREFUSED
pkg/resolver/dial/*	[Rr]efus	ECONNREFUSED
docs/guarantees.md	ask for protobuf	content negotiation
pkg/*	Reason Sleep Called Off	the public name of a reason
pkg/*	Method Head	the method of HTTP
pkg/controller/*	\"somebody else\"	the client of an Event, whose text is public
pkg/*	apierrors.Is Gone	the status of HTTP
pkg/apis/*/zz_generated*	are covering	generated
hack/*	head -	the program
hack/verify/language.sh	.	this table
test/*	benchmark descent|\"descents?\"	the name of a benchmark
test/*	Method Head	the method of HTTP
test/bench/forward.go	\(us\|ms	microseconds
test/integration/*	Sleep Called Off	a reason, which is public
test/integration/sleep_test.go	\"somebody else\"	quotes an Event, whose text is public
"

# words_of FILE prints the lines of a file, with the words of identifiers apart
# where it is a Go file, and without what stands in backticks where it is a page.
words_of() {
    case "$1" in
    *.go) sed -E 's/([a-z0-9])([A-Z])/\1 \2/g' "$1" ;;
    *.md) sed -E 's/`[^`]*`//g; s/\]\([^)]*\)/]/g' "$1" ;;
    *) cat "$1" ;;
    esac
}

# stays FILE LINE: is the line listed as an exception?
stays() {
    local glob pattern _
    while IFS=$'\t' read -r glob pattern _; do
        # shellcheck disable=SC2053
        [[ -n "${glob}" && $1 == ${glob} ]] && grep -qE "${pattern}" <<<"$2" && return
    done <<<"${exceptions}"
    return 1
}

pattern=$(cut -f 1 <<<"${words}" | grep . | paste -sd '|')
failed=0
while IFS= read -r file; do
    while IFS=: read -r number line; do
        stays "${file}" "${line}" && continue
        found=$(grep -oiwE "${pattern}" <<<"${line}" | head -n 1)
        better=$(while IFS=$'\t' read -r word field; do
            [[ -n "${word}" ]] && grep -qixE "${word}" <<<"${found}" && echo "${field}" && break
        done <<<"${words}")
        echo "${file}:${number}: \"${found}\": say ${better}" >&2
        failed=1
    done < <(words_of "${file}" | grep -niwE "${pattern}" || true)
done < <(git ls-files --cached --others --exclude-standard | grep -vE '^(LICENSE|pkg/generated/.*|hack/api-violations\.list|hack/boilerplate.*|.*go\.(mod|sum)|.*\.html)$')
exit "${failed}"
