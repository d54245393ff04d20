# shellcheck shell=bash
# What scripts say to their user. Sourced.

# line_is_open is true while a line of standard output lacks its end.
line_is_open=false

end_line() {
    if [[ ${line_is_open} == true ]]; then
        echo
        line_is_open=false
    fi
}

# note TEXT... prints a line of its own.
note() {
    end_line
    echo "$*"
}

# fail TEXT... ends the script with a message.
fail() {
    end_line
    echo "error: $*" >&2
    exit 1
}
