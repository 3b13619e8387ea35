#!/bin/bash
# Checks the recorder and the agent of offtop's Debian package in a system that systemd has booted: they are off until they
# are enabled, they record, `offtop replay latest` finds that, the agent answers, an upgrade restarts them, and removing the
# package stops them and leaves only recordings; purging it leaves none. In the directory of both versions of the package.
set -euo pipefail
services=(offtop-record offtop-agent)
states() { systemctl show -P ActiveState "${services[@]}" | xargs; }
pids() { systemctl show -P MainPID "${services[@]}" | xargs; }
fail() {
    echo "offtop: $*" >&2
    journalctl -u offtop-record -u offtop-agent --no-pager >&2
    exit 1
}
answers() { # waits until the agent has counted a tick, and has kept its compiled programs
    for _ in {1..60}; do
        if python3 -c 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:9877/metrics").read().decode())' \
            2>/dev/null | grep -q '^offtop_wait_seconds_total{'; then
            [ "$(echo /var/cache/offtop-agent/*.json)" != '/var/cache/offtop-agent/*.json' ] || fail "the agent's cache is empty"
            return
        fi
        sleep 1
    done
    fail "no metrics after a minute"
}
recorded() { # waits until recording number $1 has two ticks
    for _ in {1..60}; do
        found=(/var/lib/offtop/*.offtop)
        if [ ${#found[@]} = "$1" ] && [ -e "${found[0]}" ] && [ "$(offtop replay latest --json -n 2 2>/dev/null | wc -l)" = 2 ]; then
            return
        fi
        sleep 1
    done
    fail "no recording number $1 after a minute"
}

dpkg -i offtop_*-1_*.deb >/dev/null
[ "$(states)" = 'inactive inactive' ] || fail "a service runs although nobody has enabled it"
systemctl -q enable --now offtop-agent
answers
latest=$(offtop replay latest --json -n 1 2>&1 >/dev/null)
[[ $latest = *' /var/lib/offtop-agent/'* ]] || fail "the agent's recording is not the latest: $latest"
systemctl -q enable --now offtop-record
recorded 1
modes=$(stat -c '%a %U' /var/lib/offtop "${found[0]}" | xargs)
[ "$modes" = "700 root 600 root" ] || fail "recordings and their directory have modes and owners $modes"
before=$(pids)
dpkg -i offtop_*-2_*.deb >/dev/null
for pid in $(pids); do
    [[ " $before 0 " != *" $pid "* ]] || fail "an upgrade does not restart both services"
done
recorded 2
answers
log=$(journalctl -u offtop-record -u offtop-agent --no-pager)
[ "$(grep -c 'recording to' <<<"$log")" = 2 ] || fail "the journal does not have two starts"
# A newer systemd writes this when it stops a service and cgroup v2 has no pids controller, as beside a v1 hierarchy.
log=$(grep -v 'systemd\[1\]: .*: Failed to read pids.max for control group .*, ignoring: No data available$' <<<"$log")
! grep -i -e cannot -e lack -e permi -e failed <<<"$log" || fail "a service lacks something"
dpkg -r offtop >/dev/null
! pgrep -f 'offtop (record|agent)' || fail "a service runs although the package is removed"
left() {
    find / -xdev \( -path /proc -o -path /packages -o -path /var/lib/dpkg -o -path /var/cache \) -prune -o \
        -name '*offtop*' ! -path '*.offtop*' -print | sort | xargs
}
kept='/var/lib/offtop /var/lib/offtop-agent /var/lib/private/offtop-agent'
[ "$(left)" = "$kept" ] || fail "left: $(left)"
used=$(du -sh /var/lib/offtop | cut -f1)
dpkg -P offtop >/dev/null
[ -z "$(left)$(ls -d /var/cache/offtop* /var/cache/private/offtop* 2>/dev/null)" ] || fail "left after purging: $(left)"
echo "recorder and agent: enabled, upgraded, removed and purged; two recordings of the recorder took $used"
