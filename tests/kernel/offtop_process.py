"""Runs the command, and finds its processes and BPF programs."""

import ctypes
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from offtop.kernel.bpf import libbpf
from tests import command
from tests.kernel.watch import MS

Tick = dict[str, Any]
GONE_S = 10.0
"""The kernel frees a program a moment after its last user, and the machine may be busy."""
_MARK = "OFFTOP_TEST_RUN"
_numbers = itertools.count()


class Traces:
    """Processes and BPF programs of an offtop that is about to start.

    Its processes are found by a mark in their environment, because their parent may change.
    """

    def __init__(self) -> None:
        self.environment = {_MARK: f"{os.getpid()}.{next(_numbers)}"}
        self._others = loaded()

    def processes(self) -> list[int]:
        """Return the PIDs of its running processes."""
        mark = f"{_MARK}={self.environment[_MARK]}".encode()
        return [pid for pid in pids() if mark in read(f"/proc/{pid}/environ").split(b"\0")]

    def programs(self) -> set[int]:
        """Return the BPF programs loaded since its start that belong to no other process."""
        new = loaded() - self._others
        if new:
            ours = self.processes()
            new -= {one for pid in pids() if pid not in ours for one in programs_of(pid)}
        return new

    def assert_none(self) -> None:
        wait_for(lambda: not self.processes() and not self.programs(), GONE_S)


class Run(Traces):
    """A running offtop."""

    def __init__(self, *arguments: str, before: Sequence[str] = (), **environment: str) -> None:
        super().__init__()
        self.process = command.start(*arguments, before=before, env={**self.environment, **environment})
        assert self.process.stdout
        assert self.process.stderr
        self._out, self._err = self.process.stdout, self.process.stderr

    def line(self) -> bytes:
        """Return the next line of output."""
        return self._out.readline()

    def tick(self) -> Tick:
        """Return the next tick from its JSON."""
        return json.loads(self.line())

    def stop_reading(self) -> None:
        self._out.close()

    def ended(self) -> command.Ended:
        """Return how it ended, with the output not read yet."""
        out = b"" if self._out.closed else self._out.read()
        err = self._err.read()
        status = self.process.wait(command.TIMEOUT_S)
        return command.Ended(status if status >= 0 else 128 - status, out.decode(), err.decode())

    def compiler(self) -> int:
        """Return the PID of the compiling process, or 0 if there is none."""
        return next((pid for pid in self.processes() if b"compile.py" in read(f"/proc/{pid}/cmdline")), 0)

    def stopped_compiler(self) -> int:
        """Stop the compiling process once it has started, and return its PID."""
        self.wait_for(lambda: cpu_ms(self.compiler()) > 50 or programs_of(self.process.pid))
        compiler = self.compiler()
        assert compiler, "it compiles for much longer than this takes to notice"
        os.kill(compiler, signal.SIGSTOP)
        return compiler

    def cpu_ms(self) -> float:
        """Return the CPU time used so far by it and its compiler."""
        return sum(cpu_ms(pid) for pid in command.family(self.process.pid))

    def wait_for(self, what: Callable[[], object]) -> None:
        wait_for(lambda: what() or self.process.poll() is not None)

    def kill(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(command.TIMEOUT_S)
        self._out.close()
        self._err.close()


@contextmanager
def started(*arguments: str, before: Sequence[str] = (), **environment: str) -> Generator[Run]:
    run = Run(*arguments, before=before, **environment)
    try:
        yield run
    finally:
        run.kill()


def wait_for(what: Callable[[], object], seconds: float = command.TIMEOUT_S) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def loaded() -> set[int]:
    """Return the IDs of all BPF programs in the kernel."""
    ids, last = set[int](), ctypes.c_uint32()
    while not libbpf.library().bpf_prog_get_next_id(last.value, ctypes.byref(last)):
        ids.add(last.value)
    return ids


def programs_of(pid: int) -> set[int]:
    """Return the IDs of BPF programs that a process has open, directly or by a link."""
    try:
        open_files = [*Path(f"/proc/{pid}/fdinfo").iterdir()]
    except OSError:
        return set()
    found = [re.findall(rb"^prog_id:\s*(\d+)$", read(file), re.MULTILINE) for file in open_files]
    return {int(number) for numbers in found for number in numbers}


def cpu_ms(pid: int) -> float:
    """Return the CPU time used by the main thread of a process."""
    return int((read(f"/proc/{pid}/schedstat").split() or [0])[0]) / MS


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def read(path: str | Path) -> bytes:
    """Read a file of /proc; return nothing if its process has exited."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
