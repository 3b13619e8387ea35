#!/bin/bash
# The kernel tests, with pytest as it is given: they wait most of the time, so that two files are run at once, each of
# which may share a live source. What fails in such company is told, and must pass alone. Any other end is final: a run
# that was broken off, and a law of accounting that did not hold (tests/conftest.py).
set -uo pipefail
cache=$(mktemp -d --tmpdir offtop-kernel-tests.XXXXXX) || exit
trap 'rm -rf "$cache"' EXIT

"$@" -o cache_dir="$cache" -n 2 --dist loadfile
status=$?
[ "$status" = 1 ] || exit "$status"
"$@" -o cache_dir="$cache" --last-failed --last-failed-no-failures none
