#!/bin/bash
# Runs tests with the pytest command line that is given, and then those that failed once more, one after the other.
# The tests wait most of the time, so that several run at once. What fails in such company is flaky or broken: it must
# pass alone. The summary of that second run lists the flaky tests as PASSED, just above pytest's closing line.
# Any other end is final: a run that was broken off, and a law of accounting that did not hold (tests/conftest.py).
set -uo pipefail
cache=$(mktemp -d --tmpdir offtop-tests.XXXXXX) || exit
trap 'rm -rf "$cache"' EXIT

"$@" -o cache_dir="$cache"
status=$?
[ "$status" = 1 ] || exit "$status"
echo '== what failed in company, alone: below, PASSED means flaky'
"$@" -o cache_dir="$cache" -n 0 --last-failed --last-failed-no-failures none -rfEsp
