"""Build and run bench/waits.c, stacks.c and operations.c, which wait in known ways and report what they did."""

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
    """What a thread reports about itself at its end."""

    tid: int
    lived_ns: int
    offcpu_ns: int
    """Lifetime minus the CPU time of its clock."""


def build(into: Path) -> Path:
    """Build waits.c, and return the program. Raises UnanswerableError if there is no compiler."""
    program = into / "waits"
    _compile("waits.c", program, "-fno-omit-frame-pointer")
    return program


def build_stacks(into: Path) -> tuple[Path, Path]:
    """Build stacks.c without and with frame pointers.

    Raises UnanswerableError if there is no compiler.
    """
    plain, linked = into / "stacks", into / "stacks-linked"
    _compile("stacks.c", plain, "-fomit-frame-pointer")
    _compile("stacks.c", linked, "-fno-omit-frame-pointer", "-DLINKED")
    return plain, linked


def build_operations(into: Path) -> Path:
    """Build operations.c, and return the program. Raises UnanswerableError if there is no compiler."""
    program = into / "operations"
    _compile("operations.c", program)
    return program


def _compile(source: str, program: Path, *flags: str) -> None:
    flags = ("-O2", "-fno-optimize-sibling-calls", "-pthread", *flags)
    subprocess.run([need("gcc", "gcc"), *flags, "-o", str(program), str(_HERE / source)], check=True, timeout=60)


class Threads:
    """A process of waits.c, which creates its threads on request."""

    def __init__(self, waits: Path) -> None:
        self._process = subprocess.Popen(
            [str(waits)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=waits.parent
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, workload: str, threads: int, wait_us: int, seconds: float) -> None:
        """Start threads; see waits.c for the arguments."""
        assert self._process.stdin
        self._process.stdin.write(f"{workload} {threads} {wait_us} {seconds}\n")
        self._process.stdin.flush()

    def ended(self) -> list[Lived]:
        """Wait for all threads, and return their reports.

        Raises UnanswerableError if creating them failed.
        """
        assert self._process.stdout
        lived: list[Lived] = []
        for line in self._process.stdout:
            if line == ".\n":
                return lived
            lived.append(Lived(*map(int, line.split())))
        raise UnanswerableError("the workload failed to run, see above")

    def live(self, workload: str, threads: int, wait_us: int, seconds: float) -> list[Lived]:
        """Start threads, wait for them, and return their reports."""
        self.start(workload, threads, wait_us, seconds)
        return self.ended()

    def __enter__(self) -> "Threads":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate(timeout=_GRACE_SECONDS)


class Stacks:
    """A process of stacks.c, whose threads wait at a chosen depth of functions."""

    def __init__(self, program: Path, kind: str, threads: int, functions: int, wait_us: int) -> None:
        """See stacks.c for the arguments."""
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
        """Number of finished waits. Raises UnanswerableError if the process has exited."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UnanswerableError("the threads could not be created, see above")
        return int(line)

    def hold(self) -> None:
        """Stop all its threads until `go`."""
        self._process.send_signal(signal.SIGSTOP)

    def go(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> "Stacks":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate(timeout=_GRACE_SECONDS)


class Made(NamedTuple):
    """How long a number of calls took."""

    wall_ns: int
    cpu_ns: int


class Operations:
    """A process of operations.c, which makes calls on a file or block device."""

    def __init__(self, program: Path, path: Path, is_direct: bool) -> None:
        command = [str(program), str(path), *(["direct"] if is_direct else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def make(self, call: str, times: int, size_bytes: int = 0) -> Made:
        """Make calls; see operations.c. Raises UnanswerableError if one fails."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{call} {times} {size_bytes}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise UnanswerableError(f"{call} failed, see above")
        return Made(*map(int, line.split()))

    def __enter__(self) -> "Operations":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate(timeout=_GRACE_SECONDS)
