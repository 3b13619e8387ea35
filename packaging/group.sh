#!/bin/bash
# Prints the requirements of a dependency group of pyproject.toml, one a line: `group.sh dev`. (pip itself reads groups
# from 25.1 on; Debian 12 has 23.0.)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$("$root/packaging/python.sh")" -c '
import sys, tomllib
print(*tomllib.load(sys.stdin.buffer)["dependency-groups"][sys.argv[1]], sep="\n")' "$1" <"$root/pyproject.toml"
