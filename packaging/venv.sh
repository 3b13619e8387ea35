#!/bin/bash
# Makes .venv with .venv/bin/offtop, which runs this checkout; with `dev`, also what the tests need.
# It keeps a copy of pyproject.toml, and does nothing until that file changes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
made_from=$venv/made-from-pyproject${1:+-$1}.toml

if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    python=$("$root/packaging/python.sh")
    "$python" -m venv --clear "$venv"
fi
if cmp -s "$root/pyproject.toml" "$made_from" && [ -x "$venv/bin/offtop" ]; then
    exit 0
fi
extra=()
if [ "${1:-}" = dev ]; then
    mapfile -t extra < <("$root/packaging/group.sh" dev; "$root/packaging/group.sh" generate)
fi
"$venv/bin/python" -m pip install -q --disable-pip-version-check --editable "$root[agent,fleet]" "${extra[@]}" </dev/null
cp "$root/pyproject.toml" "$made_from"
