#!/bin/bash
# Installs what is missing of the system packages for the purposes given (`run`, `dist`, `test`, `bench`, `incident`,
# `consumer`, `exits`, `fleet`, `guest`, `package`). packages.txt lists them. If all are installed, it needs neither the
# network nor root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)

say() { printf 'offtop: %s\n' "$*" >&2; }

# Column 2 (Debian) or 3 (Fedora) of the lines for purpose $1.
wanted() { awk -v purpose="$1" -v column="$2" '$1 == purpose && $column != "-" { print $column }' "$here/packages.txt"; }

has_deb() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# A command that was installed in another way (rustup) counts as installed.
missing_debs() {
    local choice name pick
    for choice in $(wanted "$1" 2); do
        pick=
        for name in ${choice//|/ }; do
            if has_deb "$name" || command -v "$name" >/dev/null; then
                continue 2
            fi
            if [ -z "$pick" ] && apt-cache show "$name" >/dev/null 2>&1; then
                pick=$name
            fi
        done
        echo "${pick:-${choice%%|*}}"
    done
}

apt_get() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

install_debs() {
    local names
    mapfile -t names < <(missing_debs "$1")
    if [ ${#names[@]} = 0 ]; then
        return
    fi
    say "installing for $1: ${names[*]}"
    if ! apt_get install -y --no-install-recommends --no-upgrade "${names[@]}"; then
        say "that failed; once more with new package lists"
        apt_get update
        mapfile -t names < <(missing_debs "$1")
        apt_get install -y --no-install-recommends --no-upgrade "${names[@]}"
    fi
}

# If the system's own Python is too old (Ubuntu 22.04, RHEL 9, Amazon Linux 2023), the release may have a newer one.
install_newer_python() {
    local version
    for version in 3.13 3.12 3.11; do
        if command -v apt-get >/dev/null; then
            if apt-cache show "python$version-venv" >/dev/null 2>&1; then
                apt_get install -y --no-install-recommends "python$version-venv"
                return
            fi
        elif "${as_root[@]}" dnf install -y "python$version" </dev/null; then
            return
        fi
    done
}

install_rpms() {
    local name names=()
    for name in $(wanted "$1" 3); do
        rpm -q "$name" >/dev/null 2>&1 || names+=("$name")
    done
    if [ ${#names[@]} -gt 0 ]; then
        say "installing for $1: ${names[*]}"
        "${as_root[@]}" dnf install -y "${names[@]}" </dev/null
    fi
}

for purpose in "$@"; do
    if command -v apt-get >/dev/null; then
        install_debs "$purpose"
    elif command -v dnf >/dev/null; then
        install_rpms "$purpose"
    else
        say "no apt-get and no dnf here. Install what packaging/packages.txt lists for '$purpose' by hand" \
            "(on Fedora it is: $(wanted "$purpose" 3 | xargs)), then run make SYSTEM=ready ..."
        exit 1
    fi
done
if ! "$here/python.sh" >/dev/null 2>&1; then
    install_newer_python
fi
