#!/usr/bin/env bash
# Puts a Prometheus server into _output/tools/bin, from Debian's package of it.
# Nothing is installed outside of _output. Does nothing when it is there.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$root/_output/tools/bin
[[ ! -x $bin/prometheus ]] || exit 0

unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
# The download runs as a user of its own.
chmod 777 "$unpacked"
cd "$unpacked"
# A fresh machine has no list of packages yet.
apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; } || {
  echo "hack/tools/prometheus.sh: Debian's package prometheus cannot be downloaded: put a prometheus binary into $bin" >&2
  exit 1
}
dpkg-deb --extract prometheus_*.deb .
mkdir -p "$bin"
cp usr/bin/prometheus "$bin/.prometheus.$$"
# The last step, so that what is there is whole.
mv "$bin/.prometheus.$$" "$bin/prometheus"
