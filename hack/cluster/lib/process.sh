# shellcheck shell=bash
# Starts, finds and ends the cluster's own processes. Sourced.
#
# A process is known by its number together with the time it started and the
# boot it belongs to: a number alone may have been given to something else.
# shellcheck disable=SC2154 # settings.sh sets the variables

boot_id() {
    cat /proc/sys/kernel/random/boot_id
}

# start_time PID prints when a process started, in clock ticks since boot. It
# fails when there is no such process, or one that only waits to be collected.
start_time() {
    local line fields
    { line=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
    # The name in parentheses may hold spaces; the state is the first field after it.
    read -ra fields <<<"${line##*) }"
    [[ ${fields[0]} != Z && ${fields[0]} != X ]] || return 1
    echo "${fields[19]}"
}

# process_is_running COMPONENT
process_is_running() {
    [[ -n $(process_number "$1") ]]
}

# process_number COMPONENT prints the number of a recorded process if it runs.
process_number() {
    local number started boot executable
    [[ -f ${record}/processes/$1 ]] || return 0
    read -r number started boot executable <"${record}/processes/$1" || return 0
    if [[ ${boot} == "$(boot_id)" && $(start_time "${number}") == "${started}" ]]; then
        echo "${number}"
    fi
}

# start_process COMPONENT EXECUTABLE ARGUMENT... starts a process which
# outlives the script and holds none of its files open. The process records
# itself before it becomes the component, so an interrupted script leaves
# nothing unrecorded.
start_process() {
    local component=$1 executable=$2
    shift 2
    (
        trap - EXIT
        for descriptor in /proc/self/fd/*; do
            descriptor=${descriptor##*/}
            if ((descriptor > 2)); then
                eval "exec ${descriptor}>&-"
            fi
        done
        # Pods have the limit of containerd, and resolvers bound their connections by it.
        ulimit -n "$(ulimit -Hn)"
        cd /
        number=${BASHPID}
        echo "${number} $(start_time "${number}") $(boot_id) ${executable}" >"${record}/processes/${component}.new"
        mv "${record}/processes/${component}.new" "${record}/processes/${component}"
        exec env -i PATH="${PATH}" HOME=/root setsid "${executable}" "$@"
    ) </dev/null >>"${state}/logs/${component}.log" 2>&1 &
    wait_for_record "${component}" $!
}

wait_for_record() {
    local component=$1 number=$2
    until [[ -f ${record}/processes/${component} ]]; do
        if ! start_time "${number}" >/dev/null; then
            fail_with_log "${component}" "${component} could not be started"
        fi
        sleep 0.02
    done
}

# recorded_components prints the components that have a record, whether they run or not.
recorded_components() {
    find "${record}/processes" -mindepth 1 -maxdepth 1 ! -name '*.new' -printf '%f\n' 2>/dev/null | sort || true
}

# stop_processes ends every recorded process. Nothing that they hold is kept,
# so they get no time to put it in order.
stop_processes() {
    local recorded
    mapfile -t recorded < <(recorded_components)
    stop_components "${recorded[@]}"
}

# end_second_node ends all that runs on the second node at once: each process of its
# namespaces ends with the first one, the only child of the recorded process, and that
# ends after all of them.
end_second_node() {
    local first deadline=$((SECONDS + 10))
    while process_is_running node-2; do
        if ((SECONDS >= deadline)); then
            fail "the processes of the second node do not end"
        fi
        first=$(first_process_of_second_node)
        if [[ -n ${first} ]]; then
            kill -s KILL "${first}" 2>/dev/null || true
        fi
        sleep 0.02
    done
}

# first_process_of_second_node prints its number, as this machine counts.
first_process_of_second_node() {
    local number
    number=$(process_number node-2)
    if [[ -n ${number} ]]; then
        ps --no-headers -o pid= --ppid "${number}" | tr -d ' ' || true
    fi
}

# stop_components COMPONENT... ends the recorded processes of these components.
stop_components() {
    local component number deadline=$((SECONDS + 10))
    for component in "$@"; do
        number=$(process_number "${component}")
        if [[ -n ${number} ]]; then
            kill -s KILL "${number}" 2>/dev/null || true
        fi
    done
    for component in "$@"; do
        while process_is_running "${component}"; do
            if ((SECONDS >= deadline)); then
                fail "process $(process_number "${component}") (${component}) does not end"
            fi
            sleep 0.02
        done
        rm -f "${record}/processes/${component}"
    done
}

# uptime_of COMPONENT prints when its process started.
uptime_of() {
    ps --no-headers -o lstart= --pid "$(process_number "$1")"
}
