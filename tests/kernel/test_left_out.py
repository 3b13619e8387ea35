"""What the CPU budget leaves without stacks has a cause all the same: by estimate, from the waits that have one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel import programs

pytestmark = pytest.mark.kernel

SLEEPERS = """
import os, threading, time
def beat(ms):
    while True:
        time.sleep(ms / 1000)
[threading.Thread(target=beat, args=(ms,), daemon=True).start() for ms in (3, 4, 5, 6) * 10]
print("ready", flush=True)
time.sleep(60)
"""


def test_most_time_without_stacks_is_estimated_to_be_where_it_was() -> None:
    offtop = Path(sys.executable).with_name("offtop")
    with programs.running([sys.executable, "-c", SLEEPERS]) as program:
        command = [offtop, "--json", "-n", "4", "-p", str(program.pid), "--cpu-budget", "1"]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    *_, tick = map(json.loads, ended.stdout.splitlines())
    short_ns = sum(thread["short_ns"] for thread in tick["threads"])
    estimated_ns = {cause["id"]: cause["estimated_ns"] for cause in tick["diagnoses"] if cause["estimated_ns"]}
    assert tick["detail"]["stacks_from_ns"] > 6_000_000
    assert short_ns > 20 * tick["span_ns"]  # of 40 threads
    assert [*estimated_ns] == ["sleep"]
    assert 0.9 < estimated_ns["sleep"] / short_ns <= 1.0
