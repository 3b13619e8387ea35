#!/bin/bash
# Installs the Debian package in small Debian systems, bookworm, trixie and sid by default, and has the offtop in it
# compile with that system's bcc, count known waits and show its screen (installed_check.py). Then it upgrades the package
# and removes it: nothing may be left but /var/cache. It does the same with the RPM package, without an upgrade, on the
# same system, because no other can be made here, and with a container image that has the system as its base. At last
# systemd boots there in a container, for recorder and agent (services_check.sh). As root; needs what packages.txt lists for
# `package`, and a network.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
place=$(mktemp -d "${TMPDIR:-/var/tmp}/offtop-packages.XXXXXX")
trap 'rm -rf --one-file-system "$place"' EXIT

in_root() { # runs a script in root $1, in a mount namespace of its own, so that nothing stays mounted
    unshare --mount bash -euc '
        for one in proc sys dev; do mount --rbind "/$one" "$0/$one"; done
        exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
            XDG_STATE_HOME=/packages/state bash -euo pipefail -c "$1"
    ' "$1" "$2"
}

# Defines files(), which lists what a package might leave.
files='
    files() { find / -xdev -path /packages -prune -o -path /run -prune -o -path /var/cache -prune -o \
        -path /var/log -prune -o -path /var/lib/dpkg -prune -o -path /var/lib/apt -prune -o -print | sort; }
'

check_deb() {
    mkdir "$1/packages"
    cp "$place"/*.deb "$here"/{installed_check.py,services_check.sh} "$1/packages"
    cp -L /etc/resolv.conf "$1/etc/resolv.conf"
    in_root "$1" "$files"'
        cd /packages
        get() { apt-get -qq -o Acquire::Check-Valid-Until=false -o Dpkg::Use-Pty=0 "$@" >/dev/null; }
        get update
        get satisfy --no-install-recommends "$(dpkg-deb -f offtop_*-1_*.deb Depends)"
        files >before
        began=$(date +%s%N)
        get install --no-install-recommends ./offtop_*-1_*.deb
        echo "installed in $((($(date +%s%N) - began) / 1000000)) ms"
        dpkg --verify offtop | diff /dev/null - # its status is always 0
        systemd-analyze verify --man=no --recursive-errors=no /usr/lib/systemd/system/offtop-*.service
        python3 -I installed_check.py /usr/bin/offtop
        get install --no-install-recommends ./offtop_*-2_*.deb
        [[ $(dpkg-query -W -f "\${Version}" offtop) = *-2 ]]
        offtop --version
        get remove offtop
        files | diff before - || { echo "offtop: the files above are left after removal" >&2; exit 1; }
        get purge offtop
        ! [ -e /var/cache/offtop ]
    '
}

check_rpm() {
    local rpm=(rpm --root "$1" --dbpath /packages/rpm)
    mkdir -p "$1/usr/share/licenses" # belongs to the base of Fedora
    in_root "$1" "$files"'files >/packages/before'
    "${rpm[@]}" --force-debian -i --nodeps "$place"/*.rpm
    "${rpm[@]}" -V --nodeps offtop
    in_root "$1" 'python3 -I /packages/installed_check.py /usr/bin/offtop'
    "${rpm[@]}" --force-debian -e offtop
    in_root "$1" "$files"'
        files | diff /packages/before - || { echo "offtop: the files above are left after removal" >&2; exit 1; }
        rm -r /var/cache/offtop
    '
}

check_image() { # runs the image as docs/containers.md has it; it must work without a writable file system
    local podman="podman --root $place/storage --runroot $place/run --runtime $(command -v runc)"
    # runc may not raise limits where this machine has no CAP_SYS_RESOURCE.
    local limits=(--ulimit nofile=1024:4096 --ulimit nproc=4096:4096)
    local like_manual=(--pid=host --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE --cap-add SYSLOG
        --security-opt apparmor=unconfined --security-opt seccomp=unconfined)
    tar -C "$1" -c . | $podman import -q - localhost/base >/dev/null
    local image
    image=$(TOOL=$podman "$here/image.sh" "$place"/*-1_*.deb -q --network host --build-arg BASE=localhost/base)
    $podman run --rm --read-only --read-only-tmpfs=false --network none "${limits[@]}" "${like_manual[@]}" \
        -v "$here/installed_check.py:/check.py:ro" "$image" python3 -I /check.py /usr/bin/offtop
    $podman rmi -af >/dev/null
    ! mountpoint -q "$place/storage/overlay" || umount "$place/storage/overlay"
}

check_services() { # runs services_check.sh in root $1, as a service of its own, which switches the system off when it ends
    cat >"$1/etc/systemd/system/check.service" <<'EOF'
[Unit]
After=multi-user.target
FailureAction=exit
SuccessAction=exit
[Service]
Type=oneshot
WorkingDirectory=/packages
Environment=HOME=/root LC_ALL=C.UTF-8
StandardOutput=file:/packages/checked
StandardError=inherit
ExecStart=/packages/services_check.sh
[Install]
WantedBy=default.target
EOF
    ln -s ../check.service "$1/etc/systemd/system/multi-user.target.wants/check.service"
    # systemd 258 and later boot with cgroup v2 only, whatever this machine has.
    SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout 300 systemd-nspawn -q -D "$1" --boot --register=no --keep-unit \
        --private-network --capability=all \
        --system-call-filter='bpf perf_event_open' </dev/null >"$1/packages/console" 2>&1 || {
        tail -n 20 "$1/packages/console"
        cat "$1/packages/checked"
        exit 1
    }
    cat "$1/packages/checked"
}

PYTHONPATH=$here/.. "$here/../.venv/bin/python" "$here/dist.py" "$place" deb rpm
dpkg-deb -R "$place"/*-1_*.deb "$place/next"
sed -i '/^Version:/s/-1$/-2/' "$place/next/DEBIAN/control"
dpkg-deb --root-owner-group -Znone -b "$place/next" "$place" >/dev/null
rm -r "$place/next"
lintian --allow-root --fail-on error "$place"/*-1_*.deb
rpmlint -c "$here/rpm/rpmlint.toml" "$place"/*.rpm | tail -n 1

check_suite() { # in a system of suite $1
    mmdebstrap -q --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=systemd,systemd-sysv,dbus,procps,ca-certificates "$1" "$place/$1"
    check_image "$place/$1"
    check_deb "$place/$1"
    check_rpm "$place/$1"
    check_services "$place/$1"
}

failed=()
for suite in ${@:-bookworm trixie sid}; do
    echo "== $suite"
    check_suite "$suite" & # in the background, because bash ignores -e in what it tests
    wait $! || failed+=("$suite")
    rm -rf --one-file-system "${place:?}/$suite"
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}" >&2
    exit 1
fi
