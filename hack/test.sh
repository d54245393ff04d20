#!/usr/bin/env bash
# Runs the tests of the named kinds. Each kind does its own set-up.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# timeout bounds a run of go test on a machine that has nothing cached: it includes
# compiling with the race detector.
readonly timeout=30m
readonly kinds="unit integration storage durability properties fuzz e2e more autoscalers soak restarts cycles uninstall nodes install"

usage() {
    cat <<TEXT
usage: hack/test.sh KIND...

The kinds are ${kinds}.
"make help" lists the targets that run them and what each is about.
TEXT
}

# race_test runs go test with the race detector, which needs cgo.
race_test() { CGO_ENABLED=1 go test -race "$@"; }

unit() {
    # shellcheck disable=SC2046
    race_test -timeout "${timeout}" $(go list ./... | grep -v "/test/\(integration\|durability\|properties\|e2e\|uninstall\)")
}

# Most of the time of these tests is waiting, so the halves of the largest package
# run beside each other, each with a control plane of its own.
integration() {
    hack/tools/build.sh etcd kube-apiserver kube-controller-manager kubectl
    hack/tools/debian.sh prometheus
    # shellcheck disable=SC2046
    race_test -timeout "${timeout}" $(go list ./test/integration/... | grep -v '/test/integration$')
    local binary tests half running=() failed=0
    binary="$(mktemp -d)/integration.test"
    race_test -c -o "${binary}" ./test/integration
    mapfile -t tests < <(sed -nE 's/^func (Test[A-Za-z0-9_]+)\(t .*/\1/p' test/integration/*_test.go)
    for half in 0 1; do
        one_half "${half}" "${tests[@]}" >"${binary}.${half}" 2>&1 &
        running+=("$!")
    done
    for half in 0 1; do
        wait "${running[half]}" || failed=1
        cat "${binary}.${half}"
    done
    rm -rf "$(dirname "${binary}")"
    return "${failed}"
}

# one_half HALF TEST... runs every second one of the tests, from the first (0) or
# the second (1) on.
one_half() {
    local half="$1" chosen=() number
    shift
    for ((number = half + 1; number <= $#; number += 2)); do
        chosen+=("${!number}")
    done
    cd test/integration
    "${binary}" -test.timeout "${timeout}" -test.run "^($(
        IFS='|'
        echo "${chosen[*]}"
    ))\$"
}

# storage runs the tests of the API with ElastiServices stored in the host
# cluster, save for those that are about the embedded store itself.
storage() {
    hack/tools/build.sh etcd kube-apiserver kube-controller-manager kubectl
    ELASTI_TEST_STORAGE=cluster race_test -timeout "${timeout}" \
        -skip '^(TestWatchersOfAReplacedStoreMustListAgain|TestServerListensOnItsSecurePortOnly|TestDataDirectoryInUseEndsTheServer|TestServicesStayAsTheyAreWhenTheirStorageMoves|TestNoRequestFailsWhileTheStorageMoves)$' ./test/integration
}

# durability kills the server KILLS times for each storage, and restarts kube-apiserver
# RESTARTS times.
durability() {
    hack/tools/build.sh etcd kine kube-apiserver kube-controller-manager kubectl
    # The tests end by themselves: they bound each wait.
    go test -v -timeout 0 -count=1 ./test/durability -kills="${KILLS:-50}" -restarts="${RESTARTS:-10}"
}

# properties drives the random sequence of SEED for FOR.
properties() {
    hack/tools/build.sh etcd kube-apiserver kube-controller-manager kubectl
    # The test ends by itself: it bounds each wait.
    go test -v -timeout 0 -count=1 ./test/properties -seed="${SEED:-1}" -for="${FOR:-60s}"
}

# Each target gets FUZZTIME_EACH, or else an equal share of FUZZTIME. A target is
# compiled without the race detector: it searches for inputs, the unit tests for
# races.
fuzz() {
    local targets=() file target
    while IFS=: read -r file target; do
        targets+=("./$(dirname "${file}") ${target}")
    done < <(git grep --untracked -oE '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go' | sed 's/:func /:/')
    ((${#targets[@]} > 0)) || {
        echo "there is no fuzz target" >&2
        return 1
    }
    local seconds="${FUZZTIME:-60s}"
    seconds="${seconds%s}"
    local each="${FUZZTIME_EACH:-$(((seconds + ${#targets[@]} - 1) / ${#targets[@]}))s}"
    for target in "${targets[@]}"; do
        fuzz_target "${target% *}" "${target#* }" "${each}" || return
    done
}

# fuzz_target PACKAGE NAME TIME fuzzes one target. The go command sometimes takes
# the end of the time itself for a failure, without an input that fails: then the
# target has its time once more.
fuzz_target() {
    local output attempt
    output="$(mktemp)"
    for attempt in first last; do
        if go test -run '^$' -fuzz "^$2\$" -fuzztime "$3" -fuzzminimizetime 10x "$1" 2>&1 | tee "${output}"; then
            rm "${output}"
            return
        fi
        if ! grep -qx '    context deadline exceeded' "${output}" || grep -qE 'Failing input|seed corpus entry|panic' "${output}"; then
            break
        fi
        echo "the ${attempt} attempt at $2 ended with its time"
    done
    rm "${output}"
    return 1
}

e2e() {
    command -v h2load >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends nghttp2-client >/dev/null
    hack/cluster/up.sh
    hack/images/build.sh
    hack/deploy.sh
    go test -timeout "${timeout}" -count=1 ./test/e2e/...
}

# tagged_tests prints a pattern of all end-to-end tests with a build tag, so that none is
# left out.
tagged_tests() {
    local files
    files=$(grep -lwE "^//go:build .*$1" test/e2e/*_test.go)
    # shellcheck disable=SC2086 # one file name a word
    grep -hoE '^func Test[A-Za-z0-9_]+' ${files} | sed 's/^func \(.*\)/^\1$/' | paste -sd '|'
}

# more runs the end-to-end tests that download databases and a browser, and
# those that give the product other flags for a while.
more() {
    hack/cluster/up.sh
    hack/images/build.sh
    hack/images/databases.sh
    command -v chromium >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium >/dev/null
    hack/deploy.sh
    go test -tags=more -timeout "${timeout}" -count=1 -run "$(tagged_tests more)" ./test/e2e
}

# autoscalers runs the end-to-end tests with controllers of other projects. To
# build those takes many minutes, so it is not part of e2e.
autoscalers() {
    hack/cluster/up.sh
    hack/tools/build.sh argo-rollouts keda
    hack/images/build.sh
    hack/deploy.sh
    go test -v -tags autoscalers -timeout "${timeout}" -count=1 -run "$(tagged_tests autoscalers)" ./test/e2e
}

# soak switches under traffic a hundred times each way.
soak() {
    hack/cluster/up.sh
    hack/images/build.sh
    hack/deploy.sh
    hack/result-header.sh "make soak${SOAK_FOR:+ SOAK_FOR=${SOAK_FOR}}"
    go test -v -timeout "${timeout}" -count=1 -run '^TestSwitchesUnderTraffic' ./test/e2e -switch-rounds=20
    restarts
}

# restarts ends Prometheus, KEDA, resolvers and the API server at random for
# SOAK_FOR, beside applications with and without traffic.
restarts() {
    hack/cluster/up.sh
    hack/images/build.sh
    hack/deploy.sh
    hack/tools/build.sh keda
    hack/tools/debian.sh prometheus
    go run ./test/soak -for "${SOAK_FOR:-10m}"
}

# uninstall takes the product out of the cluster, in several orders, and deploys
# it again each time.
uninstall() {
    hack/cluster/up.sh
    hack/images/build.sh
    hack/deploy.sh
    go test -v -timeout "${timeout}" -count=1 ./test/uninstall
}

# install installs the product in each way, upgrades, rolls back and uninstalls it. The
# tests are a module of their own, because of what Helm depends on.
install() {
    hack/cluster/up.sh
    hack/images/build.sh
    hack/cluster/load-image.sh _output/images/elasti-apiserver.tar _output/images/elasti-resolver.tar >/dev/null
    (cd test/install && go test -v -timeout "${timeout}" -count=1 ./...)
}

# cycles puts applications to sleep by each type of trigger, wakes them, and
# kills what decides or carries traffic in between. It takes a few minutes, so
# it is not part of e2e.
cycles() {
    hack/cluster/up.sh
    hack/images/build.sh
    hack/deploy.sh
    hack/tools/build.sh metrics-server
    hack/tools/debian.sh prometheus
    go test -v -tags cycles -parallel 4 -timeout "${timeout}" -count=1 -run "$(tagged_tests cycles)" ./test/e2e
}

# nodes kills the second node of the cluster, and starts it again.
nodes() {
    NODES=2 hack/cluster/up.sh
    hack/images/build.sh
    hack/deploy.sh
    go test -v -tags nodes -timeout "${timeout}" -count=1 -run "$(tagged_tests nodes)" ./test/e2e
}

if (($# == 0)) || [[ "$1" == -h || "$1" == --help ]]; then
    usage
    (($# > 0)) && exit 0 || exit 2
fi
for kind in "$@"; do
    [[ " ${kinds} " == *" ${kind} "* ]] || {
        echo "hack/test.sh: there is no kind ${kind} of tests" >&2
        usage >&2
        exit 2
    }
done
for kind in "$@"; do
    started=${SECONDS}
    echo "test ${kind}"
    "${kind}"
    echo "test ${kind}: ok ($((SECONDS - started)) s)"
done
