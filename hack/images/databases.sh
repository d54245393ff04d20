#!/usr/bin/env bash
# Packs PostgreSQL and Redis, from Debian's packages, into one image for the
# end-to-end tests. Nothing is installed: the packages are unpacked below
# _output/images, where their clients can be run from too. Does nothing when
# the image is there.

# shellcheck source-path=SCRIPTDIR
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
output=${root}/_output/images
name=docker.io/library/elasti-databases:latest
# shellcheck source=../lib/output.sh
source "${root}/hack/lib/output.sh"

mkdir -p "${output}"
# Two calls at once would write the same files.
exec 9>"${output}/databases.lock"
flock 9
[[ ! -f ${output}/elasti-databases.tar ]] || exit 0

# packages_of SERVER prints the packages that the databases need to run: no
# Perl, which only administers them, and no compiler of queries.
packages_of() {
    apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
        "$1" redis-server | grep -E '^(lib|postgresql-[0-9]|postgresql-client-[0-9]|redis|tzdata|zlib1g)' |
        grep -vE 'perl|llvm|libz3|debconf|libdebian-installer|libnewt|libslang' | sort -u
    echo dash
}

# The version of PostgreSQL that this Debian has.
server=$(apt-cache depends postgresql 2>/dev/null | awk '/Depends: postgresql-[0-9]/ { print $2; exit }')
if [[ -z ${server} ]]; then
    # A fresh machine has no list of packages yet.
    apt-get -q update >/dev/null
    server=$(apt-cache depends postgresql | awk '/Depends: postgresql-[0-9]/ { print $2; exit }')
fi
[[ -n ${server} ]] || fail "there is no Debian package of PostgreSQL to be had"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The download runs as a user of its own.
chmod 755 "${work}"
mkdir --mode=777 "${work}/packages"
mapfile -t packages < <(packages_of "${server}")
download() {
    (cd "${work}/packages" && apt-get -q download "${packages[@]}") >"${work}/log" 2>&1
}
# The list of packages may be older than the archive is.
download || { apt-get -q update >/dev/null && download; } || {
    cat "${work}/log" >&2
    fail "the packages cannot be downloaded"
}

files=${work}/files
# The directories that Debian has made one before it unpacks anything.
mkdir -p "${files}"/usr/{bin,sbin,lib,lib64} "${files}"/{etc,data,tmp,proc}
chmod 1777 "${files}/data" "${files}/tmp"
for directory in bin sbin lib lib64; do
    ln -s "usr/${directory}" "${files}/${directory}"
done
for package in "${work}"/packages/*.deb; do
    # A link to a directory stays when a package has the directory.
    dpkg-deb --fsys-tarfile "${package}" | tar --extract --keep-directory-symlink --no-same-owner --directory "${files}"
done
[[ -e ${files}/bin/sh ]] || ln -s dash "${files}/usr/bin/sh"
# One path for whatever version it is.
ln -s "lib/postgresql/${server#postgresql-}/bin" "${files}/usr/postgresql"
rm -rf "${files}"/usr/share/{doc,man,locale} "${files:?}"/var "${files}"/etc/init.d
cat >"${files}/etc/passwd" <<'PASSWD'
root:x:0:0:root:/:/bin/sh
nonroot:x:65532:65532:nonroot:/data:/bin/sh
PASSWD
printf 'root:x:0:\nnonroot:x:65532:\n' >"${files}/etc/group"
chroot "${files}" /usr/postgresql/postgres --version >/dev/null || fail "PostgreSQL does not run out of its packages"
chroot "${files}" /usr/bin/redis-server --version >/dev/null || fail "Redis does not run out of its packages"

tar --create --file="${work}/layer.tar" --owner=0 --group=0 --numeric-owner --mtime=@0 --sort=name --directory="${files}" .
layer=$(sha256sum "${work}/layer.tar" | cut -d' ' -f1)
cat >"${work}/config.json" <<JSON
{"architecture":"$(go env GOARCH)","os":"linux","config":{"User":"65532:65532","Env":["PATH=/usr/postgresql:/usr/bin"],"WorkingDir":"/data"},"rootfs":{"type":"layers","diff_ids":["sha256:${layer}"]}}
JSON
cat >"${work}/manifest.json" <<JSON
[{"Config":"config.json","RepoTags":["${name}"],"Layers":["layer.tar"]}]
JSON
tar --create --file="${output}/.elasti-databases.tar" --directory="${work}" manifest.json config.json layer.tar
rm -rf "${output}/databases"
mv "${files}" "${output}/databases"
echo "${name}" >"${output}/elasti-databases.name"
# The last step, so that what is there is whole.
mv "${output}/.elasti-databases.tar" "${output}/elasti-databases.tar"
echo "elasti-databases is built: $(du -h "${output}/elasti-databases.tar" | cut -f1)"
