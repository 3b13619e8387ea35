#!/bin/bash
# Copies offtop into an environment of its own, $PREFIX/lib/offtop, with $PREFIX/bin/offtop leading there,
# so that `sudo offtop` finds it and the checkout may go away. The man page and the completions of bash, zsh and
# fish go into $PREFIX/share. $DESTDIR goes before every path written to.
set -euo pipefail
umask 022 # root's may hide what is installed from other users
root=$(cd "$(dirname "$0")/.." && pwd)
prefix=${PREFIX:-/usr/local}
home=$prefix/lib/offtop
staged=${DESTDIR:-}$home

if [ -e "$staged" ] && ! [ -e "$staged/pyvenv.cfg" ]; then
    echo "offtop: $staged is there and is no installation of offtop: move it away, or choose another PREFIX" >&2
    exit 1
fi
python=$("$root/packaging/python.sh")
"$python" -m venv --clear "$staged"
"$staged/bin/python" -m pip install -q --disable-pip-version-check --no-compile "$root[agent,fleet]" </dev/null
"$staged/bin/python" -m compileall -q -s "${DESTDIR:-}" "$staged/lib" || true
# -I: root must not import what lies in the directory it happens to be in, nor what PYTHONPATH names.
sed -i "1s|.*|#!$home/bin/python -I|" "$staged/bin/offtop"
mkdir -p "${DESTDIR:-}$prefix/bin"
ln -sfn ../lib/offtop/bin/offtop "${DESTDIR:-}$prefix/bin/offtop"
# Man page and completions are generated from the installed offtop, by tools that are not installed with it.
share=${DESTDIR:-}$prefix/share
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$root/packaging/group.sh" generate >"$made/requirements.txt"
"$staged/bin/python" -m pip install -q --disable-pip-version-check --target "$made/tools" \
    --requirement "$made/requirements.txt" </dev/null
completions=$made/completions
export PYTHONPATH=$made/tools PYTHONDONTWRITEBYTECODE=1
"$staged/bin/python" "$root/packaging/completions.py" "$completions"
"$staged/bin/python" "$root/packaging/manpage.py" >"$made/offtop.8"
gzip -9nc "$made/offtop.8" | install -Dm 644 /dev/stdin "$share/man/man8/offtop.8.gz"
install -Dm 644 "$completions/offtop.bash" "$share/bash-completion/completions/offtop"
install -Dm 644 "$completions/_offtop" "$share/zsh/site-functions/_offtop"
install -Dm 644 "$completions/offtop.fish" "$share/fish/vendor_completions.d/offtop.fish"
echo "offtop: installed as ${DESTDIR:-}$prefix/bin/offtop"
