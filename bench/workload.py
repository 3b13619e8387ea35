"""Threads that wait in known ways, and tell what they lived: bench/waits.c and bench/stacks.c, built and asked."""

import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bench.answer import UnanswerableError
from bench.machine import need

_HERE = Path(__file__).parent
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
    _compile("waits.c", program, "-fno-omit-frame-pointer")
    return program


def build_stacks(into: Path) -> tuple[Path, Path]:
    """The program without and with frame pointers. Raises UnanswerableError where there is no compiler."""
    plain, linked = into / "stacks", into / "stacks-linked"
    _compile("stacks.c", plain, "-fomit-frame-pointer")
    _compile("stacks.c", linked, "-fno-omit-frame-pointer", "-DLINKED")
    return plain, linked


def _compile(source: str, program: Path, *flags: str) -> None:
    flags = ("-O2", "-fno-optimize-sibling-calls", "-pthread", *flags)
    subprocess.run([need("gcc", "gcc"), *flags, "-o", str(program), str(_HERE / source)], check=True, timeout=60)


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


class Stacks:
    """A process whose threads wait through as many functions as is asked for."""

    def __init__(self, program: Path, kind: str, threads: int, functions: int, wait_us: int) -> None:
        """See stacks.c for the words."""
        self._process = subprocess.Popen(
            [str(program), kind, str(threads), str(functions), str(wait_us)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def waits(self) -> int:
        """How many have ended. Raises UnanswerableError where the process has."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UnanswerableError("the threads could not be made, see above")
        return int(line)

    def hold(self) -> None:
        """Let none of its threads run, until they may `go`."""
        self._process.send_signal(signal.SIGSTOP)

    def go(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> "Stacks":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate(timeout=_GRACE_SECONDS)
