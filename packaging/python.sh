#!/bin/bash
# Prints the Python for offtop's environments: $PYTHON if set; otherwise the system's own if it is 3.11 or later (root
# can trust it, and the distribution updates it); otherwise the newest on the PATH.
set -euo pipefail

fits() { "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

candidates=(/usr/bin/python3 {/usr/bin/,}python3.{14,13,12,11} python3)
for python in "${PYTHON:-${candidates[@]}}"; do
    if fits "$python"; then
        command -v "$python"
        exit 0
    fi
done
echo "offtop: no Python 3.11 or later with venv (tried ${PYTHON:-/usr/bin/python3, python3.11 to 3.14, python3})." \
    "Install python3.11 (on Debian and Ubuntu python3.11-venv, too), or set PYTHON=/path/to/python" >&2
exit 1
