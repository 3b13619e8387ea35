"""Running offtop in a guest, and counting the checks that fail."""

import ctypes as ct
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offtop.faults import TRACEBACK_VARIABLE
from offtop.kernel.bpf import libbpf

MS = 1_000_000
TICKS = 17
OFFTOP_S = 300
OPTIONS = ("--trigger", "off", "--cpu-budget", "1000")
"""At ten times the cost, the default CPU budget would leave no time for stacks."""
_GONE_S = 10
_ATTACHED_S = 10
"""Once a tool has loaded no program for so long, it has attached all."""

Tick = Mapping[str, Any]
Row = Mapping[str, Any]


class Findings:
    """Counts and prints failed checks."""

    def __init__(self) -> None:
        self.count = 0
        self.about = ""

    def check(self, holds: object, what: str, *details: object) -> None:
        if not holds:
            self.count += 1
            print(f"FAIL {self.about}: {what}", *details, flush=True)

    @contextmanager
    def checking(self, about: str) -> Generator[None]:
        """Name the checks in the block, and print whether all of them passed and how long they took."""
        self.about, began_s, before = about, time.monotonic(), self.count
        yield
        verdict = "ok" if self.count == before else "FAILED"
        print(f"{verdict} {about}: {time.monotonic() - began_s:.0f} s", flush=True)


def watched(happen: Mapping[int, Callable[[], None]], found: Findings, *options: str, ticks: int = TICKS) -> list[Tick]:
    """Run offtop and return its ticks; `happen`: number of ticks → what is called after them."""
    command = [sys.executable, "-m", "offtop", "-b", "--json", "-n", str(ticks), "-d", "1", *options]
    read: list[Tick] = []
    before = loaded()
    pipe, environment = subprocess.PIPE, {**os.environ, TRACEBACK_VARIABLE: "1"}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment) as offtop:
        assert offtop.stdout and offtop.stderr
        over_s = 0.0
        for line in offtop.stdout:
            read.append(json.loads(line))
            if len(read) in happen:
                happen[len(read)]()
                over_s = time.time()
        output = offtop.stderr.read().decode()
        status = offtop.wait(OFFTOP_S)
    found.check(status == 0 and not output, f"offtop ended with {status}:", output[-4000:])
    found.check(len(read) == ticks, f"{len(read)} ticks")
    if read:
        found.check(read[-1]["taken_ns"] > over_s * 1e9, "the last tick came too early")
    deadline_s = time.monotonic() + _GONE_S
    while (left := loaded() - before) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    found.check(not left, f"{len(left)} programs are still loaded")
    return read


def loaded() -> set[int]:
    """Return the ids of all BPF programs in the kernel."""
    lib, ids, number = libbpf.library(), set[int](), ct.c_uint32(0)
    while not lib.bpf_prog_get_next_id(number, ct.byref(number)):
        ids.add(number.value)
    return ids


class BccTool:
    """One of bcc's tools. It writes to files: a full pipe would stop it."""

    def __init__(self, name: str, *options: str) -> None:
        """Start it, and return once its programs are attached."""
        before = loaded()
        self._printed = Path(f"/run/{name}.out"), Path(f"/run/{name}.err")
        command = ["/usr/bin/python3", f"/usr/sbin/{name}-bpfcc", *options]
        with self._printed[0].open("wb") as out, self._printed[1].open("wb") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        seen, unchanged_s = before, 0
        for _ in range(OFFTOP_S):
            time.sleep(1)
            now = loaded()
            unchanged_s = unchanged_s + 1 if now == seen and now - before else 0
            seen = now
            if unchanged_s >= _ATTACHED_S or self._process.poll() is not None:
                break

    def finish(self) -> tuple[str, str]:
        """Interrupt it, and return what it has printed, and its errors."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(OFFTOP_S)
        output, errors = (file.read_text(errors="replace") for file in self._printed)
        return output, errors

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
