"""offtop on a pseudo-terminal, whose screen is read and whose keys are pressed."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

from tests import command
from tests.command import OFFTOP

_ESCAPES = re.compile(rb"\x1b\[[0-9;?>$]*[a-zA-Z]|\x1b\][^\x07]*\x07")


class Screen:
    """offtop on a pseudo-terminal of 160x40."""

    def __init__(self, arguments: tuple[str, ...], cwd: Path) -> None:
        self._terminal, slave = pty.openpty()
        ioctl(slave, TIOCSWINSZ, pack("HHHH", 40, 160, 0, 0))
        self._seen = b""
        self.process = subprocess.Popen(
            [str(OFFTOP), *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=cwd, start_new_session=True
        )
        os.close(slave)

    def wait_for(self, text: str) -> None:
        """Wait until `text` was drawn since the last call."""
        deadline = time.monotonic() + command.TIMEOUT_S
        while text not in (seen := _ESCAPES.sub(b"", self._seen).decode(errors="replace")):
            assert time.monotonic() < deadline, seen[-3000:]
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._seen += os.read(self._terminal, 1 << 16)
        self._seen = b""

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def quit(self) -> int:
        """Press q and return the exit status."""
        self.press(b"q")
        deadline = time.monotonic() + command.TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if select.select([self._terminal], [], [], 0.1)[0]:
                    os.read(self._terminal, 1 << 16)
            except OSError:
                break  # the last process that had the terminal open has exited
        return self.process.wait(command.TIMEOUT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@contextmanager
def screen(*arguments: str, cwd: Path) -> Generator[Screen]:
    """Run offtop; the block starts when it shows its first numbers."""
    made = Screen(arguments, cwd)
    try:
        made.wait_for("processes")
        yield made
    finally:
        made.close()
