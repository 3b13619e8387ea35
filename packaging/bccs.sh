#!/bin/bash
# Installs offtop in small Debian systems, bookworm, trixie and sid by default, and has each one's own bcc and Python
# compile it on the kernel that runs here and count known waits (installed_check.py). As root; needs mmdebstrap and a network.
# If a suite cannot be installed, that is reported; it is a failure only if the suite was named on the command line.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
place=$(mktemp -d "${TMPDIR:-/var/tmp}/offtop-bccs.XXXXXX")
trap 'rm -rf --one-file-system "$place"' EXIT

make_root() { # of suite $1 in directory $2; the Release file of an archive snapshot has expired
    mmdebstrap -q --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=python3-venv,python3-bpfcc,libbpf1,libdw1,libseccomp2,ca-certificates "$1" "$2"
}

check_root() { # in its own mount namespace, so that nothing stays mounted
    cp -L /etc/resolv.conf "$1/etc/resolv.conf"
    cp -L /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt" # the same certificate authorities as here
    mkdir "$1/build"
    cp -r "$here"/../{offtop,bpf,themes,packaging,pyproject.toml,README.md,LICENSE} "$1/build"
    unshare --mount bash -euc '
        for one in proc sys dev; do mount --rbind "/$one" "$0/$one"; done
        chroot "$0" /build/packaging/install.sh
        chroot "$0" /usr/local/lib/offtop/bin/python -I /build/packaging/installed_check.py /usr/local/bin/offtop
    ' "$1"
}

failed=()
for suite in "${@:-bookworm trixie sid}"; do
    for one in $suite; do
        echo "== $one"
        if ! make_root "$one" "$place/$one"; then
            echo "offtop: $one cannot be installed here" >&2
            [ $# = 0 ] || failed+=("$one")
        elif ! check_root "$place/$one"; then
            failed+=("$one")
        fi
        rm -rf --one-file-system "${place:?}/$one"
    done
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
