"""A real terminal, 160 columns by 50 lines, with a program on it: a pty, and what the program drew."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

COLUMNS, LINES = 160, 50
_END_SECONDS = 10.0
_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][0-9A-Za-z]|[ -~])")


class Terminal:
    """Runs a program until left; `began` is when it was told to run."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.began = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", LINES, COLUMNS, 0, 0))
                environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
                os.execve(arguments[0], list(arguments), environment)
            finally:
                os._exit(127)

    def wait_for(self, picture: re.Pattern[bytes], seconds: float) -> bool:
        """Return when `picture` has been drawn, escapes left out; whether it was within `seconds`."""
        drawn = b""
        for part in self._parts(seconds):
            drawn += part
            if picture.search(_ESCAPES.sub(b"", drawn)):
                return True
        return False

    def look_on(self, seconds: float) -> None:
        """Let it draw."""
        for _ in self._parts(seconds):
            pass

    def _parts(self, seconds: float) -> Iterator[bytes]:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([self._fd], [], [], left)[0]:
            try:
                yield os.read(self._fd, 1 << 16)
            except OSError:  # EIO: the program has closed its terminal
                return

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        end = time.monotonic() + _END_SECONDS
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            self.look_on(0.1)  # a full terminal would keep it from ending
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
        os.close(self._fd)
