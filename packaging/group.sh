#!/bin/bash
# Prints the requirements of dependency groups of pyproject.toml, one a line: `group.sh dev`. (pip itself reads groups
# from 25.1 on; Debian 12 has 23.0.)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$("$root/packaging/python.sh")
"$python" -c '
import sys, tomllib
groups = tomllib.load(sys.stdin.buffer)["dependency-groups"]
print(*(one for name in sys.argv[1:] for one in groups[name]), sep="\n")' "$@" <"$root/pyproject.toml"
