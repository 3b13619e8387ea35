#!/bin/sh
# offtop in one file. From here on it is a shell script that looks for a Python; behind it is a ZIP archive for that.
for python in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
    # -I: root must not import what lies in the current directory, nor what PYTHONPATH names. Status 9: the archive lacks
    # its end, because a copy was interrupted. Python would take this script for its own.
    "$python" -I -c 'import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    sys.exit(1)
file = open(sys.argv[1], "rb")
file.seek(-22, 2)
sys.exit(0 if file.read(4) == b"PK\5\6" else 9)' "$0" 2>/dev/null
    case $? in
    0) exec "$python" -I "$0" "$@" ;;
    9) echo "offtop: $0 is damaged (its end is missing). Copy it again" >&2 && exit 4 ;;
    esac
done
echo 'offtop: no Python 3.11 to 3.14 on this machine. Debian 12 and later, Ubuntu 24.04: apt install python3. Ubuntu 22.04:
apt install python3.11. Fedora: dnf install python3. RHEL 9, Amazon Linux 2023: dnf install python3.11.' >&2
exit 4
