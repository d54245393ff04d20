#!/usr/bin/env bash
# Fails when a file uses a word of the project's former dialect instead of
# that of the field. Words count in the given sense only, which the pattern has to
# tell; what stays all the same is listed with its reason. In Go files the words of
# camelCase identifiers count too.
#
# Not looked for are words of the dialect that are the field's in another sense:
# put to sleep (sleep is a word of ours), gone and goes of anything but objects,
# listening and confirm (of sockets, of idleness), turn (wakes are in turn), want and
# overlay (of tests, of kustomize), settle, words, shared and directory (of ports, of
# files), scrape and guard (of metrics, of connections of triggers), saying, asleep,
# faults (of this machine), encodings (of transfers) and age.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C.UTF-8

# PATTERN, a tab, what the field says. Case does not matter.
words="
looks? (at|for|after|again)|(looked|looking) (at|for|again)|an? look|look interval|(last|next|first|each|every) looks?	sync, evaluate, inspect, check
descents?|descend(s|ed|ing)?	scale-down; drain, pause, scale
cover(s|ed|ing)?|uncover(s|ed|ing)?	ensure; managed; resolvers are in the path
memories	state
views?|outcomes?	observed state, result
rivals?|winners?	conflicting, owning ElastiService
judges?|judged|judging|judge?ments?|verdicts?	compute…Condition; condition
pulse|feels?|living	liveness, watch, alive
blind(ly)?	unreachable until
newcomers?|calm|let ?pass	initial status batch, quiet period, admit
lanes?	priority queue
former ?target|wake ?for ?good	previousTarget, restoreTarget
patience|patient|patiently	timeout; retrying
leaving ?time|converge ?time|cooling ?time	terminating grace, propagation delay, reuse cooldown
call(s|ed)? off	cancel
(is|are|was|were|be|been|has|have) gone|gone from	deleted
ours?|us	managed by the controller; the product
ask(s|ed|ing)?	query, probe, request
fights?|disturbed sleep	scaling conflict
told|tells? whether|tells? (who|which|what|how|why|of|us)|is ?news|take ?in	last reported, changed, record; reports whether
answer(s|ed|ing)?	respond; response, local reply
questions?	query
refuses?|refusals?|instead (:=|=|==|!=|\*)	reject, local reply
nudges?	keep-awake request
attendants?|summons?	on-demand worker, ensureRunning
farewells?|retir(e|es|ed|ing)|retirees?	drain, draining
settle[sd]? (a|the) waiters?	resolve, complete
foreign	other
heads?	headers
believe[sd]?|doubt(s|ed)?	trust, outcome unknown
undecoded|as ?encoded	skip-decode path
confirming|written ?keys	read-your-writes tracker
folding ?recorder	event aggregator
direct ?client	in-process client
circles?	full-cycle tests
are known	caches are synced
who(m|ever)?|nobody|somebody|anybody|everybody|everyone	a component: the caller, no replica, another client
"

# PATH (a glob), a tab, PATTERN of what stays in a line, a tab, why it stays.
exceptions="
*	HEAD|/head	the method of HTTP, the commit of git
*	told to	an instruction, not a report
*	(users?|people|person|author|[Tt]hose|bob,)( of the trigger)? [Ww]ho	a person
*	[Xx]-[Ee]lasti-[Aa]nswer	the public name of a header
*	ENHANCE_YOUR_CALM|Enhance Your Calm	an error of RFC 9113
*	[Oo]utcome.* ?[Uu]nknown|[Uu]nknown ?[Oo]utcome	what the field says of a write
docs/results/*	BENCH=descent|2026-11-28-descent	the name of a benchmark
docs/sleep.md	\"somebody else\"	quotes an Event, whose text is public
docs/guarantees.md	refuses HTTP/2 streams	REFUSED_STREAM, of RFC 9113
docs/protocols.md	a pod refuses the connection	ECONNREFUSED
docs/README.md	question \|	the question of a reader
docs/compatibility.md	Common questions	those of readers
docs/observability.md	answered|outcome	the names of a label and of its values, which are public
pkg/resolver/dial/*	[Rr]efus	ECONNREFUSED
docs/guarantees.md	ask for protobuf	content negotiation
pkg/*	(Reason )?Sleep Called Off	the public name of a reason
pkg/*	(Reason )?Triggers Answer	the public name of a reason
pkg/resolver/*	[Oo]utcome	the name of a label and of a key of the access log, which are public
pkg/resolver/accesslog/*	\"(wake A|a)nswered	a key of the access log and a value of a label, which are public
pkg/resolver/proberesponse/*	question mark	the character
pkg/storage/embedded/*	database\.View	a function of bbolt
pkg/*	Method Head	the method of HTTP
pkg/controller/*	\"somebody else\"	the client of an Event, whose text is public
pkg/*	apierrors.Is Gone	the status of HTTP
pkg/apis/*/zz_generated*	are covering	generated
hack/*	head -	the program
hack/cluster/lib/node.sh	one question	of DNS
artifacts/deploy/base/*	view	a role of Kubernetes
charts/elasti/*	view	a role of Kubernetes
test/chart/*	view	a role of Kubernetes
hack/chartreadme/*	Head Comment	the name of a field of a library
hack/verify/language.sh	.	this table
test/*	benchmark descent|-?\"?descents?\"?	the name of a benchmark and of its flag
test/*	Method Head	the method of HTTP
test/bench/forward.go	\(us\|ms	microseconds
test/integration/*	Sleep Called Off|Reason Triggers Answer	a reason, which is public
test/integration/trust_test.go	\"view\"	a role of Kubernetes
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

# without_exceptions FILE LINE sets rest to the line without what is listed as an
# exception, and notes these in used.
declare -A used=()
without_exceptions() {
    local glob pattern _
    rest=$2
    while IFS=$'\t' read -r glob pattern _; do
        # shellcheck disable=SC2053
        if [[ -n "${glob}" && $1 == ${glob} ]] && grep -qE "${pattern}" <<<"${rest}"; then
            used["${glob} ${pattern}"]=1
            rest=$(sed -E $'s\a'"${pattern}"$'\a-\ag' <<<"${rest}")
        fi
    done <<<"${exceptions}"
}

pattern=$(cut -f 1 <<<"${words}" | grep . | paste -sd '|')
failed=0
while IFS= read -r file; do
    while IFS=: read -r number line; do
        without_exceptions "${file}" "${line}"
        found=$(grep -oiwE "${pattern}" <<<"${rest}" | head -n 1 || true)
        [[ -n "${found}" ]] || continue
        better=$(while IFS=$'\t' read -r word field; do
            [[ -n "${word}" ]] && grep -qixE "${word}" <<<"${found}" && echo "${field}" && break
        done <<<"${words}")
        echo "${file}:${number}: \"${found}\": say ${better}" >&2
        failed=1
    done < <(words_of "${file}" | grep -niwE "${pattern}" || true)
done < <(git ls-files --cached --others --exclude-standard | grep -vE '^(LICENSE|pkg/generated/.*|hack/api-violations\.list|hack/boilerplate.*|.*go\.(mod|sum)|.*\.html)$')
while IFS=$'\t' read -r glob pattern reason; do
    [[ -n "${glob}" ]] || continue
    if [[ -z "${reason}" ]]; then
        echo "the exception \"${pattern}\" for ${glob} has no reason" >&2
        failed=1
    elif [[ -z "${used["${glob} ${pattern}"]:-}" ]]; then
        echo "the exception \"${pattern}\" for ${glob} is not needed: no such line is left" >&2
        failed=1
    fi
done <<<"${exceptions}"
exit "${failed}"
