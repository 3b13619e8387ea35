"""Starts the child processes that read untrusted data, or that may hang.

Two children are no Sandbox: the compiler (bpf/compile.py), because it needs the environment and the packages of root,
and the user's commands, because they are the user's (feed/outlier_actions.py).
"""

import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

START = (
    "import sys; n = int(sys.argv[1]); sys.path += sys.argv[2 : 2 + n]; del sys.argv[1 : 2 + n]; "
    "import {0} as child; child.main()"
)
_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_MESSAGE = 1 << 18
"""Bytes; more than the kernel lets a child send as one message."""
_END_S = 1.0


class Sandbox:
    """A child process, and the socket by which it answers.

    It is a separate Python with only the standard library and offtop, an empty environment, and no descriptors but the
    socket and those that it is given. All but the read child (procfs/read_child.py), which is for what only root may
    read, confine themselves first (binary/confinement.py). What a child sends is not trusted: each message has a size
    limit and a deadline, and the caller checks its content.
    """

    def __init__(
        self, module: str, arguments: Sequence[str] = (), fds: Sequence[int] = (), packages: Sequence[str] = ()
    ) -> None:
        """Run `main()` of a module of offtop.kernel, with `arguments` in sys.argv, and the socket's descriptor last.

        `packages`: directories of packages that it imports besides the standard library. Raises OSError.
        """
        self.socket, child_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
        """Every message in it is complete. It is closed when either process ends."""
        path, number = [str(_ROOT), *packages], child_end.fileno()
        start = START.format(f"offtop.kernel.{module}")
        with child_end:
            self._process = subprocess.Popen(
                # -I and -S: no code from the current directory, and no .pth files.
                [sys.executable, "-I", "-S", "-c", start, str(len(path)), *path, *arguments, str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[*fds, number],
                cwd="/",
                env={},  # also removes DEBUGINFOD_URLS: libdw would ask those servers
                start_new_session=True,  # only the parent handles a ctrl-C on the terminal
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def receive(self, seconds: float) -> list[str]:
        """Wait for a message (confinement.send), and return its parts.

        Raises TimeoutError, and ConnectionError if the child has ended.
        """
        self.socket.settimeout(seconds)
        message = self.socket.recv(_LONGEST_MESSAGE).decode(errors="replace")
        if not message:
            raise ConnectionError("the child process has ended")
        return message.split("\0")[1:]

    def kill(self) -> None:
        """Kill the child; whoever waits for its message gets a ConnectionError. Thread-safe."""
        with suppress(OSError):
            self._process.kill()

    def end(self, wait_s: float = _END_S) -> None:
        """Kill the child. One that hangs in a file system dies later; this waits no longer than `wait_s`."""
        self.kill()
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
