#!/usr/bin/env bash
# Puts the named programs into _output/tools/bin, each from the Debian package of
# its name, but for promtool, which is in that of prometheus. Nothing is installed
# outside of _output. Does nothing for those that are there.
set -euo pipefail

bin="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/_output/tools/bin"
mkdir -p "${bin}"
unpacked="$(mktemp -d)"
trap 'rm -rf "${unpacked}"' EXIT
# The download runs as a user of its own.
chmod 777 "${unpacked}"
cd "${unpacked}"

if (($# == 0)) || [[ "$1" == -* ]]; then
    echo "usage: hack/tools/debian.sh NAME..." >&2
    exit 2
fi
for program in "$@"; do
    [[ ! -x "${bin}/${program}" ]] || continue
    package="${program}"
    [[ "${program}" != promtool ]] || package=prometheus
    # A fresh machine has no list of packages yet.
    apt-get -q download "${package}" || { apt-get -q update && apt-get -q download "${package}"; } || {
        echo "hack/tools/debian.sh: Debian's package ${package} cannot be downloaded: put the program ${program} into ${bin}" >&2
        exit 1
    }
    dpkg-deb --extract "${package}"_*.deb .
    cp "usr/bin/${program}" "${bin}/.${program}.$$"
    # The last step, so that what is there is whole.
    mv "${bin}/.${program}.$$" "${bin}/${program}"
done
