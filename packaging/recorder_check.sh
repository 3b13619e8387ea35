#!/bin/bash
# Checks the recorder of offtop's Debian package in a system that systemd has booted: it is off until it is enabled, it
# records, `offtop replay latest` finds that, an upgrade restarts it, and removing the package stops it and leaves only
# recordings; purging it leaves none. In the directory of both versions of the package.
set -euo pipefail
state() { systemctl show -P ActiveState offtop-record; }
fail() {
    echo "offtop: $*" >&2
    journalctl -u offtop-record --no-pager >&2
    exit 1
}
recorded() { # waits until recording number $1 has two ticks
    for _ in {1..60}; do
        found=(/var/lib/offtop/*.offtop)
        if [ ${#found[@]} = "$1" ] && [ "$(offtop replay latest --json -n 2 2>/dev/null | wc -l)" = 2 ]; then
            return
        fi
        sleep 1
    done
    fail "no recording number $1 after a minute"
}

dpkg -i offtop_*-1_*.deb >/dev/null
[ "$(state)" = inactive ] || fail "the recorder runs although nobody has enabled it"
systemctl -q enable --now offtop-record
recorded 1
modes=$(stat -c '%a %U' /var/lib/offtop "${found[0]}" | xargs)
[ "$modes" = "700 root 600 root" ] || fail "recordings and their directory have modes and owners $modes"
before=$(systemctl show -P MainPID offtop-record)
dpkg -i offtop_*-2_*.deb >/dev/null
[ "$(systemctl show -P MainPID offtop-record)" != "$before" ] || fail "an upgrade does not restart the recorder"
recorded 2
log=$(journalctl -u offtop-record --no-pager)
[ "$(grep -c 'recording to' <<<"$log")" = 2 ] || fail "the journal does not have two starts"
! grep -i -e cannot -e lack -e permi <<<"$log" || fail "the recorder lacks something"
dpkg -r offtop >/dev/null
! pgrep -f 'offtop record' || fail "the recorder runs although the package is removed"
left=$(find / -xdev -path /packages -prune -o -path /var/lib/dpkg -prune -o -path /var/cache -prune -o -name '*offtop*' -print | sort)
[ "$left" = "$(printf '%s\n' /var/lib/offtop /var/lib/offtop/* | sort)" ] || fail "left: $left"
used=$(du -sh /var/lib/offtop | cut -f1)
dpkg -P offtop >/dev/null
! [ -e /var/lib/offtop ] || fail "recordings are left although the package is purged"
echo "recorder: enabled, upgraded, removed and purged; it used $used for two recordings"
