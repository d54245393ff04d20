#!/usr/bin/env bash
# Fails when a page of the documentation cannot be reached from docs/README.md by
# links, when a relative link or its anchor leads nowhere, when a link such as
# [`Decide`](…/decide.go) leads to a file that does not define that name, when a page
# names a path, a target of the Makefile or something of a file that does not exist, when the comment of a
# package does not say what it knows nothing of and where to begin reading, or names
# nothing that it has, when a package is not on the map of the code, when a benchmark
# or one of its keys is not on the page of the benchmarks, when a result does not
# say when, on what, of which commit and how it was measured, and when a script or a
# folder of hack/ is not in its README.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C.UTF-8

start=docs/README.md
map=docs/development/README.md
benchmarks=docs/benchmarks.md
mapfile -t pages < <(git ls-files --cached --others --exclude-standard -- '*.md')
declare -A reached=() anchors=()
failed=0

complain() {
    echo "$*" >&2
    failed=1
}

# prose PAGE prints the page without its fenced code blocks.
prose() {
    awk '/^ *```/ {fenced = !fenced; next} !fenced' "$1"
}

# anchors_of PAGE sets anchors for the headings of the page, named as GitHub does.
anchors_of() {
    local heading anchor number
    while IFS= read -r heading; do
        anchor=$(sed -E 's/^#+ +//; s/\[([^]]*)\]\([^)]*\)/\1/g; s/[^[:alnum:] _-]//g; s/ /-/g' <<<"${heading}")
        anchor=${anchor,,} number=0
        while [[ -n "${anchors["$1#${anchor}$([[ ${number} == 0 ]] || echo "-${number}")"]:-}" ]]; do
            number=$((number + 1))
        done
        ((number == 0)) || anchor+="-${number}"
        anchors["$1#${anchor}"]=1
    done < <(prose "$1" | grep -E '^#+ ' || true)
}

# links_of PAGE prints the relative links of a page as "TEXT<tab>PATH<tab>ANCHOR",
# where PATH is that from the root.
links_of() {
    local text target path
    while IFS=$'\t' read -r text target; do
        [[ "${target}" =~ ^[a-z]+: ]] && continue
        path=${target%%#*}
        if [[ -z "${path}" ]]; then
            path=$1
        else
            path=$(realpath --no-symlinks --canonicalize-missing --relative-to=. "$(dirname "$1")/${path}")
        fi
        [[ "${target}" == *#* ]] && target=${target#*#} || target=
        printf '%s\t%s\t%s\n' "${text}" "${path}" "${target}"
    done < <(prose "$1" | tr '\n' ' ' | grep -oE '\[[^][]*\]\([^() ]+\)' | sed -E 's/^\[(.*)\]\((.*)\)$/\1\t\2/')
}

# defines FILE NAME: does the Go file define a function, a type, a constant or a variable?
# Those in parentheses behind const, var or type count.
defines() {
    awk -v name="$2" '
        /^\)/ {in_block = 0}
        /^(const|var|type) \(/ {in_block = 1; next}
        in_block && $0 ~ "^\t" name "[^A-Za-z0-9_]" || $0 ~ "^(func (\\([^)]*\\) )?|type |const |var )" name "[^A-Za-z0-9_]" {found = 1}
        END {exit !found}
    ' "$1"
}

check_links() {
    local page=$1 text path anchor
    while IFS=$'\t' read -r text path anchor; do
        if [[ ! -e "${path}" ]]; then
            complain "${page} links to ${path}, which does not exist"
        elif [[ -n "${anchor}" && "${path}" == *.md && -z "${anchors["${path}#${anchor}"]:-}" ]]; then
            complain "${page} links to ${path}#${anchor}, but no heading has that anchor"
        elif [[ "${path}" == *.go && "${text}" =~ ^\`([A-Za-z_]+)\`$ ]] && ! defines "${path}" "${BASH_REMATCH[1]}"; then
            complain "${page} says that ${path} has ${BASH_REMATCH[1]}, which it does not define"
        fi
    done < <(links_of "${page}")
}

# check_names checks what stands in backticks: paths from the root, without a
# placeholder, names that a file is said to have, as in "`Decide` of `pkg/….go`", and
# targets of the Makefile.
check_names() {
    local page=$1 name file
    while read -r name; do
        compgen -G "${name}" >/dev/null || complain "${page} names ${name}, which does not exist"
    done < <(prose "${page}" | grep -oE '`(pkg|cmd|hack|test|docs|artifacts)/[A-Za-z0-9_./*-]+`' | tr -d '`' | sort -u)
    while IFS=$'\t' read -r name file; do
        [[ ! -e "${file}" ]] || defines "${file}" "${name}" ||
            complain "${page} says that ${file} has ${name}, which it does not define"
    done < <(prose "${page}" | tr '\n' ' ' | grep -oE '`[A-Za-z]+` (of|in) +`(pkg|cmd|hack|test)/[a-z0-9_/]+\.go`' | sed -E 's/^`([A-Za-z]+)` (of|in) +`([^`]*)`$/\1\t\3/')
    while read -r name; do
        grep -q "^${name}:" Makefile || complain "${page} names \"make ${name}\", which is no target of the Makefile"
    done < <(grep -oE '(`|^[$ ]*)make [a-z][a-z0-9-]*( [a-z][a-z0-9-]*)*' "${page}" | sed -E 's/.*make //' | tr ' ' '\n' | sort -u)
}

# check_words PAGE checks that names of Go in backticks, those of several words, occur in
# Go files that are not generated and no tests.
check_words() {
    local name
    while read -r name; do
        git grep -qwF --untracked -e "${name}" -- 'pkg/*.go' 'cmd/*.go' ':!pkg/generated' ':!*_test.go' ||
            complain "$1 names ${name}, which is in no Go file"
    done < <(prose "$1" | grep -oE '`[A-Za-z]*[a-z][A-Z][A-Za-z]*(\(\))?`' | tr -d '`()' | sort -u)
}

visit() {
    local _ path
    reached["$1"]=1
    while IFS=$'\t' read -r _ path _; do
        [[ "${path}" != *.md || ! -e "${path}" || -n "${reached["${path}"]:-}" ]] || visit "${path}"
    done < <(links_of "$1")
}

# check_package FOLDER FILE… checks what the comment of a package or of a command says
# that it does not know, and where to begin: with a file, or with a type or a function.
check_package() {
    local comment name files=("${@:2}")
    comment=$(awk '/^\/\/ (Package|Command) / {in_comment = 1} in_comment && !/^\/\// {exit} in_comment {printf "%s ", substr($0, 4)}' "${files[@]}")
    grep -qE '\b(knows ([^.]* )?(no|nothing|neither|alone|only)|(does|must) not know)\b' <<<"${comment}" ||
        complain "the comment of package $1 does not say what it must not know: add \"It knows nothing of …\""
    name=$(grep -oE '[Bb]egin with [A-Za-z0-9_]+(\.go)?' <<<"${comment}" | head -n 1 | sed 's/.* //' || true)
    if [[ -z "${name}" ]]; then
        complain "the comment of package $1 does not say where to begin reading: add \"Begin with …\""
    elif [[ "${name}" == *.go && ! -e "$1/${name}" ]] ||
        [[ "${name}" != *.go ]] && ! grep -qE "^(type|func) ${name}\b" "${files[@]}"; then
        complain "the comment of package $1 says to begin with ${name}, which it does not have"
    fi
}

# packages prints the folders of all packages but of what is generated.
packages() {
    git ls-files --cached --others --exclude-standard -- '*.go' | grep -v '^pkg/generated/' | xargs -n 1 dirname | sort -u
}

for page in "${pages[@]}"; do
    anchors_of "${page}"
done
visit "${start}"
for folder in $(packages); do
    grep -qF "\`${folder}\`" "${map}" || complain "${folder} is not on the map of the code, ${map}"
done
for page in "${pages[@]}"; do
    check_links "${page}"
    check_names "${page}"
    [[ -n "${reached["${page}"]:-}" ]] || complain "${page} cannot be reached from ${start} by links"
done
for page in "${map}" CONTRIBUTING.md; do
    check_words "${page}"
done
while read -r name; do
    grep -qF "\`${name}\`" "${benchmarks}" || complain "the benchmark or key ${name} is not on ${benchmarks}"
done < <(git ls-files -- 'test/bench/*.go' | grep -v '_test\.go$' | xargs sed -nE 's/.*(\{name: |\.set\()"([a-z0-9_]+)", .*/\2/p')
while read -r file; do
    grep -qE "\`([a-z-]+/)*$(basename "${file}")[ \`]" hack/README.md || complain "${file} is not in hack/README.md"
done < <(git ls-files --cached --others --exclude-standard -- 'hack/*.sh' 'hack/*.txt' 'hack/*.list')
while read -r folder; do
    grep -qF "\`${folder#hack/}/\`" hack/README.md || complain "the folder ${folder} is not in hack/README.md"
done < <(git ls-files --cached --others --exclude-standard -- 'hack/*/*' | xargs -n 1 dirname | sort -u)
for result in docs/results/[0-9]*.md; do
    for row in date machine commit command; do
        grep -q "^| ${row} | ." "${result}" || complain "${result} has no row \"${row}\", see docs/results/README.md"
    done
done
for folder in $(packages); do
    mapfile -t files < <(compgen -G "${folder}/*.go")
    check_package "${folder}" "${files[@]}"
done
exit "${failed}"
