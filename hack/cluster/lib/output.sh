# shellcheck shell=bash
# What the scripts print: one line for each step, with its duration, and on
# failure the end of the log of the component that failed. Sourced.
# shellcheck disable=SC2154 # settings.sh sets the variables

# shellcheck source=hack/lib/output.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib/output.sh"

# step TITLE COMMAND... runs a command and prints how long it took.
step() {
    local title=$1 started=${EPOCHREALTIME/[.,]/} taken
    shift
    printf '%-58s' "${title}"
    line_is_open=true
    "$@"
    taken=$(((${EPOCHREALTIME/[.,]/} - started) / 1000))
    if [[ ${line_is_open} == true ]]; then
        printf '%3d.%03d s\n' $((taken / 1000)) $((taken % 1000))
        line_is_open=false
    fi
}

# fail_with_log COMPONENT TEXT... ends the script with a message and the last
# lines that the component logged.
fail_with_log() {
    local component=$1 log=${state}/logs/$1.log
    shift
    end_line
    {
        echo "error: $*"
        if [[ -s ${log} ]]; then
            echo "the last lines of ${log}:"
            tail -n 15 "${log}" | cut -c1-400 | sed 's/^/  /'
        fi
        echo "logs of all components are in ${state}/logs"
    } >&2
    exit 1
}

# wait_for COMPONENT SECONDS TEXT COMMAND... repeats the command until it succeeds.
# It gives up after the given time, or at once when the component has ended.
wait_for() {
    local component=$1 seconds=$2 text=$3 deadline
    shift 3
    deadline=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        if ! process_is_running "${component}"; then
            fail_with_log "${component}" "${component} ended while waiting for this: ${text}"
        fi
        if ((SECONDS >= deadline)); then
            fail_with_log "${component}" "not so after ${seconds} s: ${text}"
        fi
        sleep 0.1
    done
}
