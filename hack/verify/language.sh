#!/usr/bin/env bash
# Fails when a file, or its name, uses a word of the project's former dialect instead of
# that of the field. Words count in the given sense only, which the pattern has to
# tell; what stays all the same is listed with its reason. In Go files and scripts the
# words of camelCase and snake_case identifiers count too.
#
# Not looked for are words of the dialect that the field has in another sense, which no
# pattern tells apart. WORD, a tab, the sense in which it stays:
#
# sleep	the state of a target that is scaled to zero, a word of the API
# asleep	such a target; in the names of files it is looked for
# gone, goes	what is no object: client_gone and ServiceGone are public values, requests go somewhere
# listening	sockets
# confirm	that a target is idle, right before it is scaled
# turn	wakes, namespaces, SETTINGS and the ends of a test take turns
# want	what a test expects
# overlay	kustomize
# settle	an observed state that has stopped changing
# words	what a text consists of, such as this table
# shared	ports, targets and watches that several use
# directory	files
# scrape	metrics
# guard	the connections of triggers, the identity of a store, the fields of a status, and Go's "guarded by mu"
# saying	a write that failed without saying whether it was carried out
# faults	what fails of this machine
# encodings	the encodings of transfers, of objects in a store
# age	the time since an object was created
# memory	the bytes that a process has
# direct	what goes to a pod or a server without a proxy
# convergence time	the public names --convergence-time and spec.proxy.convergenceSeconds
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C.UTF-8

# PATTERN, a tab, what the field says. Case does not matter.
words="
looks? (at|for|after|again)|(looked|looking) (at|for|again)|an? look|look interval|(last|next|first|each|every|two) looks?|(func|var|const) (\([^)]*\) )?look(ed)?	sync, evaluate, inspect, check
descents?|descend(s|ed|ing)?	scale-down; drain, pause, scale
cover(s|ed|ing)?|uncover(s|ed|ing)?	ensure; managed; resolvers are in the path
memories	state
views?|outcomes?	observed state, result
rivals?|winners?|losers?	conflicting, owning ElastiService
judges?|judged|judging|judge?ments?|verdicts?	compute…Condition; condition
pulse|feels?|living	liveness, watch, alive
blind(ly)?	unreachable until
newcomers?|calm|let ?pass	new, quiet period, admit
lanes?	priority queue
former(ly)?|(wake|restore) ?for ?good	previous, previousTarget, restoreTarget
patience|patient|patiently	timeout; retrying
leaving ?time|converge ?time|cooling ?time	terminating grace, propagation delay, reuse cooldown
call(s|ed)? off	cancel
(is|are|was|were|be|been|has|have) gone|gone from	deleted
(elasti ?service|namespace|object|endpoint|slice|claim|secret|node|deployment)s? (gone|goes|went)	deleted, is deleted
ours?|us	managed by the controller; the product
ask(s|ed|ing)?	query, probe, request
fights?|disturbed sleep	scaling conflict
told|tells? whether|tells? (who|which|what|how|why|of|us)|is ?news|is no news|take ?in|(takes?|taking|took|taken) in	last reported, changed, record; reports whether
un(asked|answered)	unsolicited; without a response
answer(s|ed|ing)?	respond; response, local reply
questions?	query
refus(e|es|ed|ing|als?)|instead (:=|=|==|!=|\*)	reject, local reply
nudges?	keep-awake request
attendants?|summons?	on-demand worker, ensureRunning
farewells?|retir(e|es|ed|ing)|retirees?	drain, draining
settle[sd]? (a|the) waiters?	resolve, complete
settle ?delay|settle\(\)	batch delay
unconfirmed	unprobed, unknown
(traffic|sleeping) turned	changed
led ?by|cooled|ports? that cools?	referenced by, cooling down
looked up again|been looked up yet	polled, observed
go(es)? with the (elasti ?)?(service|target|namespace|object)	be removed with
guards? (those|them|parts?|finalizers?)|needs? (a|no) guard|(permissions?|account|name) (is|are) (still )?guarded	add the finalizer to
undecoded|as ?encoded	skip-decode path
foreign	other
heads?	headers
believe[sd]?|doubt(s|ed)?	trust, outcome unknown
confirming|written ?keys	read-your-writes tracker
folding ?recorder	event aggregator
circles?	full-cycle tests
are known	caches are synced
who(m|ever)?|nobody|somebody|anybody|everybody|everyone|someone|anyone	a component: the caller, no replica, another client
"

# What counts in the names of files alone, as above.
names="
asleep	fallback
"

# PATH (a glob), a tab, PATTERN of what stays in a line, a tab, why it stays.
exceptions="
.golangci.yml	locale: US	the United States
*	HEAD|/head	the method of HTTP, the commit of git
*.html	<head>	an element of HTML
*	told to	an instruction, not a report
*	(users?|people|person|author|[Tt]hose|bob,)( of the trigger)? [Ww]ho	a person
*	[Xx]-[Ee]lasti-[Aa]nswer	the public name of a header
*	ENHANCE.YOUR.CALM|Enhance Your Calm	an error of RFC 9113
*	[Oo]utcome.* ?[Uu]nknown|[Uu]nknown ?[Oo]utcome	what the field says of a write
docs/results/*	BENCH=descent|[0-9]-descent	the name of a benchmark, by whose keys budgets are given
docs/sleep.md	\"somebody else\"	quotes an Event, whose text is public
*	[Cc]onnection [Rr]efused|[Rr]efused [Cc]onnection	ECONNREFUSED
*	REFUSED STREAM|Refused Stream	an error of RFC 9113
*	Server Refused	the public name of a reason
docs/benchmarks.md	reset, refused or closed	ECONNREFUSED
docs/compatibility.md	are refused until	ECONNREFUSED
docs/protocols.md	a pod refuses the connection	ECONNREFUSED
pkg/compatibility/target.go	are refused until	ECONNREFUSED
artifacts/alerts/*	outcome	the name of a label, which is public
artifacts/dashboards/*	outcome	the name of a label, which is public
docs/README.md	question \|	the question of a reader
docs/compatibility.md	Common questions	those of readers
docs/metrics.md	answered|outcome	the names of a label and of its values, which are public
docs/observability.md	answered|outcome	the names of a label and of its values, which are public
pkg/controller/resolvers/portcheck_test.go	connections to it are refused	ECONNREFUSED
pkg/resolver/dial/*	[Rr]efus	ECONNREFUSED
pkg/resolver/endpoint/*	refused	ECONNREFUSED
pkg/resolver/hold/*	(pod|connection is) refused	ECONNREFUSED
pkg/resolver/http1/hold.go	refused	ECONNREFUSED
pkg/resolver/metrics/*	refused	the previous name of a metric, which is served until 0.2.0
pkg/resolver/probe/*	refused a connection	ECONNREFUSED
pkg/resolver/stream/connect.go	connection was refused	ECONNREFUSED
test/chaos/*	refused	ECONNREFUSED
pkg/*	(Reason )?Sleep Called Off	the public name of a reason
pkg/*	(Reason )?Triggers Answer	the public name of a reason
pkg/resolver/accesslog/*	[Oo]utcome	the name of a key of the access log, which is public
pkg/resolver/metrics/*	[Oo]utcome	the name of a label, which is public
pkg/resolver/localreply/reason.go	[Oo]utcome	the values of a label, which are public
pkg/resolver/*	\.Outcome|Outcome: +accesslog|[(\".]outcome|outcome(, reason| accesslog)|(finish.*,|=) outcome|outcome is %|an outcome	the key of the access log
pkg/resolver/accesslog/*	\"(wake A|a)nswered	a key of the access log and a value of a label, which are public
pkg/resolver/proberesponse/*	question mark	the character
pkg/storage/embedded/*	database\.View	a function of bbolt
pkg/*	Method Head	the method of HTTP
pkg/apis/elasti/v1alpha1/wakerecord.go	\"somebody else\"	the client of an Event, whose text is public
pkg/*	apierrors.Is Gone	the status of HTTP
pkg/apis/*/zz_generated*	are covering	generated
docs/guarantees.md	The former .*, the latter	the first of two
hack/*	head -	the program
pkg/resolver/hold/silent_test.go	taken in the end	in the end, not taken in
hack/cluster/lib/node.sh	one question	of DNS
artifacts/deploy/base/*	view	a role of Kubernetes
charts/elasti/*	view	a role of Kubernetes
test/chart/*	view	a role of Kubernetes
hack/monitoring/dashboard.go	outcome	the name of a label, which is public
hack/chartreadme/*	Head Comment	the name of a field of a library
hack/verify/language.sh	.	this table
test/*	benchmark descent	the name of a benchmark, by whose keys budgets are given
test/bench/main.go	\"descent\"|-descents	the name of a benchmark, by whose keys budgets are given, and of its flag
test/bench/scaledown.go	\"descents\"|\"descent (total|failed)	the flag and the keys of a benchmark, by which budgets are given
test/*	Method Head	the method of HTTP
test/bench/forward.go	\(us\|ms	microseconds
test/integration/*	Sleep Called Off|Reason Triggers Answer	a reason, which is public
test/integration/trust_test.go	\"view\"	a role of Kubernetes
test/integration/sleep_test.go	\"somebody else\"	quotes an Event, whose text is public
"

# lines_with PATTERN EDIT FILE... prints the name, the number and the text of each line of the
# files, edited first, that has a word of the pattern: in three lines.
lines_with() {
    local pattern="$1" edit="$2"
    shift 2
    sed -sEn "${edit}"$'\n\\\a(^|[^[:alnum:]_])('"${pattern}"$')([^[:alnum:]_]|$)\aI { F; =; p; }' "$@"
}

# without_exceptions FILE LINE sets rest to the line without what is listed as an
# exception, and notes these in used.
declare -A used=()
globs=() patterns=()
while IFS=$'\t' read -r glob pattern _; do
    [[ -n "${glob}" ]] || continue
    globs+=("${glob}") patterns+=("${pattern}")
done <<<"${exceptions}"
without_exceptions() {
    local at
    rest=$2
    for at in "${!globs[@]}"; do
        # shellcheck disable=SC2053
        if [[ $1 == ${globs[at]} && ${rest} =~ ${patterns[at]} ]]; then
            used["${globs[at]} ${patterns[at]}"]=1
            rest=$(sed -E $'s\a'"${patterns[at]}"$'\a-\ag' <<<"${rest}")
        fi
    done
}

# check FILE WHERE LINE WORDS PATTERN complains about the first of the words, of which there
# is one pattern, that a line has.
failed=0
check() {
    local found better word field
    without_exceptions "$1" "$3"
    shopt -s nocasematch
    [[ ${rest} =~ (^|[^[:alnum:]_])($5)([^[:alnum:]_]|$) ]] && found=${BASH_REMATCH[2]} || found=""
    shopt -u nocasematch
    [[ -n "${found}" ]] || return 0
    better=$(while IFS=$'\t' read -r word field; do
        [[ -n "${word}" ]] && grep -qixE "${word}" <<<"${found}" && echo "${field}" && break
    done <<<"$4")
    echo "$2: \"${found}\": say ${better}" >&2
    failed=1
}

# pattern_of WORDS prints one pattern of a list of words.
pattern_of() {
    cut -f 1 <<<"$1" | grep . | paste -sd '|'
}

files=$(git ls-files --cached --others --exclude-standard | grep -vE '^(LICENSE|pkg/generated/.*|hack/api-violations\.list|hack/boilerplate.*|.*go\.(mod|sum))$')
names+=${words}
pattern_of_names=$(pattern_of "${names}")
while IFS= read -r file; do
    check "${file}" "the name of ${file}" "${file//_/ }" "${names}" "${pattern_of_names}"
done < <(paste <(echo "${files}") <(tr '_' ' ' <<<"${files}") | grep -iwE "${pattern_of_names}" | cut -f 1)
pattern_of_words=$(pattern_of "${words}")
mapfile -t code < <(grep -E '\.(go|sh)$' <<<"${files}")
mapfile -t pages < <(grep -E '\.md$' <<<"${files}")
mapfile -t others < <(grep -vE '\.(go|sh|md)$' <<<"${files}")
while IFS= read -r file && IFS= read -r number && IFS= read -r line; do
    check "${file}" "${file}:${number}" "${line}" "${words}" "${pattern_of_words}"
done < <(
    # The words of identifiers are apart.
    lines_with "${pattern_of_words}" 's/([a-z0-9])([A-Z])/\1 \2/g; s/_/ /g' "${code[@]}"
    # What stands in backticks, and what a link refers to, is not prose.
    lines_with "${pattern_of_words}" 's/`[^`]*`//g; s/\]\([^)]*\)/]/g' "${pages[@]}"
    lines_with "${pattern_of_words}" '' "${others[@]}"
)
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
