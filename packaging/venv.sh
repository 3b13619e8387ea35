#!/bin/bash
# Makes .venv with .venv/bin/offtop, which runs this checkout; with `dist`, also what builds packages; with `dev`, also what
# the tests need. It keeps a copy of pyproject.toml, and does nothing until that file changes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
made_from=$venv/made-from-pyproject
groups=()
case ${1:-} in
dist) groups=(dist generate) ;;
dev) groups=(dist generate dev) ;;
esac

if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    python=$("$root/packaging/python.sh")
    "$python" -m venv --clear "$venv"
fi
for copy in "$made_from${1:+-$1}.toml" "$made_from-dev.toml"; do # `dev` has everything
    if cmp -s "$root/pyproject.toml" "$copy" && [ -x "$venv/bin/offtop" ]; then
        exit 0
    fi
done
extra=()
if [ ${#groups[@]} -gt 0 ]; then
    requirements=$("$root/packaging/group.sh" "${groups[@]}") # not with <(...), which would ignore a failure
    mapfile -t extra <<<"$requirements"
fi
"$venv/bin/python" -m pip install -q --disable-pip-version-check --editable "$root[agent,fleet]" "${extra[@]}" </dev/null
cp "$root/pyproject.toml" "$made_from${1:+-$1}.toml"
