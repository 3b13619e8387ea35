#!/bin/sh
# RHEL 9's python3 is 3.9. Later versions have names of their own there.
for python in "$(readlink -f /usr/bin/python3)" /usr/bin/python3.14 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11; do
    case $python in
    */python3.1[1-4])
        # -I: root must not import what lies in the current directory, nor what PYTHONPATH names.
        [ -x "$python" ] && exec "$python" -I /usr/lib/offtop/system_start.py "$@"
        ;;
    esac
done
echo 'offtop: no Python 3.11 to 3.14 in /usr/bin. Try: dnf install python3.11' >&2
exit 4
