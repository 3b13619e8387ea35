"""Small C or C++ programs that print the addresses of their functions."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

STAND = r"""
#include <stdio.h>
#include <unistd.h>
static void tell(const char *name, const void *address) { printf("%s %lx\n", name, (unsigned long)address); }
static char next(void) { char c = 0; puts("ready"); fflush(stdout); return read(0, &c, 1) == 1 ? c : 0; }
"""
"""Source at the start of each program: `tell` prints an address, `next` waits."""

PYTHONS = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]
"""Versions of CPython whose frames offtop reads."""
_SECONDS = 30.0


class Program:
    """A running program, and the addresses that it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes], input_: IO[bytes]) -> None:
        self.pid = process.pid
        self.at: dict[str, int] = {}
        self.took_ns = 0
        """Time from its last `go` to its next stop, in ns.

        This is an upper bound for any wait of its threads in between.
        """
        self._output, self._input = output, input_
        self.listen()

    def go(self) -> None:
        """Let it go on to its next stop."""
        started_ns = time.monotonic_ns()
        self.go_on_alone()
        self.listen()
        self.took_ns = time.monotonic_ns() - started_ns

    def go_on_alone(self) -> None:
        """Let it go on to code that does not stop for us."""
        self.write(b"g")

    def write(self, text: bytes) -> None:
        """Write to its standard input."""
        self._input.write(text)
        self._input.flush()

    def listen(self) -> None:
        """Read its output until it is ready."""
        while (line := self._output.readline().decode()) != "ready\n":
            assert line, f"program {self.pid} ended too early"
            name, address = line.split()
            self.at[name] = int(address, 16)


def build(program: Path, source: str, *options: str, language: str = "c") -> Path:
    """Compile `program`. A program of that name that already runs is not affected."""
    program.unlink(missing_ok=True)
    compiler = {"c": "gcc", "c++": "g++"}[language]
    command = [compiler, "-O1", *options, "-o", str(program), "-x", language, "-"]
    subprocess.run(command, input=(STAND + source).encode(), check=True, timeout=60)
    return program


def make_readable_by_all(path: Path) -> None:
    """Open the test directories above `path` to everyone.

    The reader opens debug files by path, as nobody.
    """
    for directory in path.parents:
        if directory.is_relative_to(tempfile.gettempdir()) and not directory.stat().st_mode & 1:
            directory.chmod(0o755)


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < end_s, "timed out"
        time.sleep(0.005)


@contextmanager
def running(command: Sequence[str | Path]) -> Generator[Program]:
    """Run the program to its first stop; kill it at the end."""
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    try:
        yield Program(process, process.stdout, process.stdin)
    finally:
        process.kill()
        process.wait(10)
        process.stdin.close()
        process.stdout.close()


def interpreters() -> dict[str, Path]:
    """Return the installed CPythons by version; the tests' own is always among them."""
    places = [Path("/usr/bin"), Path("/usr/local/bin"), *Path.home().glob(".pyenv/versions/*/bin")]
    found = {v: place / f"python{v}" for v in PYTHONS for place in reversed(places) if (place / f"python{v}").exists()}
    return {version: path.resolve() for version, path in found.items()}
