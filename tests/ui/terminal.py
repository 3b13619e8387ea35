"""Runs offtop on a pseudo-terminal of any size, which can also misbehave, and captures what it draws.

with terminal(show(), width=160, height=50) as shown:
    shown.read_until(b"CATEGORY")
    shown.press(b"q")
    assert shown.status() == 0
"""

import multiprocessing
import os
import pty
import re
import select
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from signal import SIGKILL, SIGTERM
from struct import pack
from typing import Protocol

SHOW = Path(__file__).with_name("show.py")
ALTERNATE_ON, ALTERNATE_OFF = b"\x1b[?1049h", b"\x1b[?1049l"
_END_SECONDS = 10.0
_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][0-9A-Za-z]|[ -~])")
_MODES = re.compile(rb"\x1b\[\?(\d+)([hl])")
_AS_IT_WAS = {b"7": b"h", b"25": b"h"}
"""Modes that are on in a new terminal: lines wrap, and the cursor is visible. All others are off."""
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["tests.ui.show"])


def show(*words: str) -> list[str]:
    """Return the command that shows made-up waits; see show.py for its arguments."""
    return [sys.executable, str(SHOW), *words]


class Process(Protocol):
    """What a Terminal needs of subprocess.Popen."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def send_signal(self, number: int, /) -> None: ...


class _Forked:
    """show.py in a fork of a process that has imported it, which saves most of the CPU time of a start."""

    _lock = threading.Lock()
    """Starting a process polls all others, and two polls of one that has just ended would read its status twice."""

    def __init__(self, terminal: str, words: Sequence[str], environment: dict[str, str]) -> None:
        self._process = _FORKING.Process(target=_show_on, args=(terminal, words, environment))
        with self._lock:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid
        return self._process.pid

    def poll(self) -> int | None:
        with self._lock:
            return self._process.exitcode

    def send_signal(self, number: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _show_on(terminal: str, words: Sequence[str], environment: dict[str, str]) -> None:
    """Run show.py in this process, as if it had been started on `terminal`."""
    from tests.ui import show  # here, because the test process does without Textual

    os.setsid()
    opened = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    for stream in range(3):
        os.dup2(opened, stream)
    os.close(opened)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # multiprocessing has closed the one that Textual uses
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(SHOW), *words]
    sys.exit(show.main())


class Terminal:
    """A program on a terminal that reads only when a method is called."""

    def __init__(self, start: Callable[[int], Process], width: int, height: int) -> None:
        """`start` starts the program on the terminal with the given file descriptor."""
        self.master, slave = pty.openpty()
        self.drawn = b""
        """Everything that was drawn."""
        self._seen_from = 0
        self._resize(width, height)
        self._attributes = termios.tcgetattr(self.master)
        self.began = time.monotonic()
        self.process = start(slave)
        os.close(slave)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def seen(self) -> bytes:
        """What was drawn since the last forget()."""
        return self.drawn[self._seen_from :]

    @property
    def text(self) -> str:
        """`seen` without escape sequences."""
        return _ESCAPES.sub(b"", self.seen).decode(errors="replace")

    # The terminal

    def read(self, seconds: float) -> bool:
        """Read one piece of output within `seconds`; return whether there was any."""
        if self.master < 0 or not select.select([self.master], [], [], max(0.0, seconds))[0]:
            return False
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # the program has closed the terminal, and everything was read
            time.sleep(min(0.05, max(0.0, seconds)))
            return False
        self.drawn += piece
        return True

    def look_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)

    def stall(self, seconds: float) -> None:
        """Read nothing for `seconds`."""
        time.sleep(seconds)

    def wait_for(self, picture: re.Pattern[str], seconds: float) -> bool:
        """Read until `picture` is in the drawn text; return whether it was within `seconds`."""
        end = time.monotonic() + seconds
        while not picture.search(self.text):
            if (left := end - time.monotonic()) <= 0:
                return False
            self.read(left)
        return True

    def read_until(self, what: bytes, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while what not in self.seen:
            assert time.monotonic() < end, f"no {what!r} in {self.text[-2000:]}"
            self.read(0.05)

    def read_rest(self) -> None:
        """Read everything that was written until now; a terminal returns 4 KB at a time."""
        while self.read(0.3):
            pass

    def forget(self) -> None:
        """Clear `seen`."""
        self._seen_from = len(self.drawn)

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, width: int, height: int, signal: int | None = None) -> None:
        """Resize the terminal; the kernel sends SIGWINCH, and `signal` is sent in addition."""
        self._resize(width, height)
        if signal is not None:
            self.process.send_signal(signal)

    def _resize(self, width: int, height: int) -> None:
        ioctl(self.master, termios.TIOCSWINSZ, pack("HHHH", height, width, 0, 0))

    def hang_up(self) -> None:
        os.close(self.master)
        self.master = -1

    # The program

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def status(self, seconds: float = 30) -> int:
        """Wait for the process and return its exit status."""
        end = time.monotonic() + seconds
        while (status := self.process.poll()) is None:
            assert time.monotonic() < end, f"the process does not exit: {self.text[-500:]}"
            if self.master < 0:
                time.sleep(0.05)
            self.read(0.05)
        self.read_rest()
        return status

    def end(self) -> None:
        """Terminate the process, and kill it if it does not exit."""
        end = time.monotonic() + _END_SECONDS
        if self.process.poll() is None:
            self.process.send_signal(SIGTERM)
        while self.process.poll() is None and time.monotonic() < end:
            self.look_on(0.05)  # a full terminal would block it
        self.process.send_signal(SIGKILL)
        while self.process.poll() is None:
            time.sleep(0.01)
        if self.master >= 0:
            self.hang_up()

    def wait_until_stopped(self) -> None:
        """Read until the process is suspended, as by Ctrl-Z."""
        end = time.monotonic() + _END_SECONDS
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < end, "the process was not suspended"
            self.read(0.05)

    def assert_sane(self) -> None:
        """Check that everything drawn leaves the terminal as it was."""
        last = dict(_MODES.findall(self.drawn))
        assert last.get(b"1049", b"l") == b"l", "the screen is still the alternate one"
        left = {mode for mode, state in last.items() if state != _AS_IT_WAS.get(mode, b"l")}
        assert not left, f"modes {left} are not as they were"
        # kitty's keyboard protocol is pushed and popped equally often
        assert self.drawn.count(b"\x1b[<u") == len(re.findall(rb"\x1b\[>\d+u", self.drawn))
        assert termios.tcgetattr(self.master) == self._attributes


@contextmanager
def terminal(command: Sequence[str], width: int = 80, height: int = 24, **environment: str) -> Generator[Terminal]:
    """Run `command` on a terminal; it is ended at the end of the block if it still runs."""

    def start(slave: int) -> Process:
        return subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=_environment(environment),
            start_new_session=True,
        )

    yield from _ended(Terminal(start, width, height))


@contextmanager
def forked(words: Sequence[str] = (), width: int = 80, height: int = 24) -> Generator[Terminal]:
    """Run show.py like terminal(show(*words)), but without a new Python that imports everything once more."""
    yield from _ended(Terminal(lambda slave: _Forked(os.ttyname(slave), words, _environment({})), width, height))


def _environment(changes: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1", **changes}


def _ended(made: Terminal) -> Generator[Terminal]:
    try:
        yield made
    finally:
        made.end()
