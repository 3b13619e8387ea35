"""Threads that wait in known ways, and tell what they lived: bench/waits.c, built and asked."""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bench.answer import UnanswerableError
from bench.machine import need

_SOURCE = Path(__file__).with_name("waits.c")
_GRACE_SECONDS = 20.0


class Lived(NamedTuple):
    """What one thread says of itself at its end."""

    tid: int
    lived_ns: int
    offcpu_ns: int
    """What it lived, less what its CPU clock says that it ran."""


def build(into: Path) -> Path:
    """The program. Raises UnanswerableError where there is no compiler."""
    program = into / "waits"
    flags = ("-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread")
    subprocess.run([need("gcc", "gcc"), *flags, "-o", str(program), str(_SOURCE)], check=True, timeout=60)
    return program


class Threads:
    """A process that is there, and makes its threads when it is asked to."""

    def __init__(self, waits: Path) -> None:
        self._process = subprocess.Popen(
            [str(waits)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=waits.parent
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, workload: str, threads: int, wait_us: int, seconds: float) -> None:
        """Begin; see waits.c for the words."""
        assert self._process.stdin
        self._process.stdin.write(f"{workload} {threads} {wait_us} {seconds}\n")
        self._process.stdin.flush()

    def ended(self) -> list[Lived]:
        """When all threads have ended: what they say. Raises UnanswerableError if they could not be made."""
        assert self._process.stdout
        lived: list[Lived] = []
        for line in self._process.stdout:
            if line == ".\n":
                return lived
            lived.append(Lived(*map(int, line.split())))
        raise UnanswerableError("the workload could not be run, see above")

    def live(self, workload: str, threads: int, wait_us: int, seconds: float) -> list[Lived]:
        """From the beginning to the end."""
        self.start(workload, threads, wait_us, seconds)
        return self.ended()

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate(timeout=_GRACE_SECONDS)
