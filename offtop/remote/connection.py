"""One connection: an ssh process, its output, and its errors."""

import contextlib
import os
import select
import subprocess
from collections.abc import Sequence
from threading import Lock
from time import monotonic_ns

from offtop.errors import OfftopError
from offtop.printable import printable
from offtop.recording.stream import HELLO, Hello, Message, NotAStreamError, Splitter, VersionError, decode_hello
from offtop.remote.ssh import UNATTENDED_ENVIRONMENT, Target, explained

_CHUNK = 1 << 20
_MOST_ERRORS = 16 << 10
"""How much of the end of stderr is kept."""
_END_S = 2.0
"""How long ssh has to end before it is killed."""
_LONGEST_TEXT = 80


class DisconnectedError(Exception):
    """The connection has ended. The text is the reason, for people."""


class Connection:
    """Not thread-safe, but for send()."""

    def __init__(self, target: Target, may_ask: bool) -> None:
        """Start ssh; `may_ask`: it may ask for a password or a host key on the terminal. Raises OfftopError."""
        self._target = target
        self._splitter = Splitter()
        self._errors = b""
        command = target.command(may_ask)
        try:
            self._ssh = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=None if may_ask else {**os.environ, **UNATTENDED_ENVIRONMENT},
                start_new_session=not may_ask,  # without a terminal, ssh cannot ask over the screen
            )
        except OSError as error:
            raise OfftopError(
                f"{printable(command[0])} cannot be run ({error.strerror}). Install OpenSSH's client, or name another: "
                "--ssh-command"
            ) from None
        assert self._ssh.stdin and self._ssh.stdout and self._ssh.stderr
        self._stdin, self._out, self._err = (
            one.fileno() for one in (self._ssh.stdin, self._ssh.stdout, self._ssh.stderr)
        )
        for fd in (self._stdin, self._out, self._err):
            os.set_blocking(fd, False)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._poll.register(self._err, select.POLLIN)
        self._sending = Lock()
        self._is_closed = False
        self._arrived_ns = monotonic_ns()
        """CLOCK_MONOTONIC when something arrived."""

    def hello(self, deadline_ns: int | None) -> tuple[Hello, list[Message]]:
        """Wait for the stream to begin; return what it begins with, and the messages that came with that.

        Raises OfftopError if it does not, or not by `deadline_ns` (CLOCK_MONOTONIC; None: a person may have to answer
        questions first).
        """
        name = self._target.name
        try:
            while True:
                first, *rest = self.receive(1.0) or [None]
                if first is not None:
                    if first.kind != HELLO:
                        raise ValueError("the stream has no beginning")
                    return decode_hello(first.body), [one for one in rest if one is not None]
                if deadline_ns is not None and monotonic_ns() > deadline_ns:
                    raise OfftopError(f"{name} does not answer")
        except DisconnectedError:
            raise self._explained() from None
        except NotAStreamError as error:
            raise OfftopError(self._strange(error.sent)) from None
        except VersionError as error:
            raise OfftopError(
                f"offtop on {name} sends version {error.version} of the stream, which this one does not know. Install "
                "the same offtop on both machines"
            ) from None
        except ValueError as error:
            text = printable(str(error))[:_LONGEST_TEXT]
            raise OfftopError(f"{name} sent what offtop does not ({text}). Install the same offtop there") from None

    def receive(self, seconds: float) -> list[Message]:
        """Return the messages that arrive next; none if nothing arrives for so long.

        Raises DisconnectedError, or what Splitter.feed raises.
        """
        found: list[Message] = []
        for fd, _ in self._poll.poll(round(seconds * 1000)):
            raw = self._read(fd)
            if raw is None:
                continue
            if fd == self._err:
                self._errors = (self._errors + raw)[-_MOST_ERRORS:]
                if not raw:
                    self._poll.unregister(self._err)
                continue
            if not raw:
                raise DisconnectedError(self._why_ended())
            self._arrived_ns = monotonic_ns()
            found += self._splitter.feed(raw)
        return found

    def send(self, raw: bytes) -> None:
        """Send a line to the host. Raises DisconnectedError. Thread-safe."""
        with self._sending:
            if self._is_closed:
                raise DisconnectedError("it is closed")
            try:
                if os.write(self._stdin, raw) != len(raw):
                    raise DisconnectedError("it takes no more")
            except OSError as error:
                raise DisconnectedError(error.strerror or "it takes no more") from None

    def end(self) -> None:
        """Terminate ssh; receive() then raises DisconnectedError. Thread-safe."""
        self._ssh.terminate()

    def close(self) -> None:
        """End ssh and wait for it. May be called twice."""
        with self._sending:
            self._is_closed = True
        if self._ssh.poll() is None:
            self._ssh.terminate()
            try:
                self._ssh.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._ssh.kill()
                self._ssh.wait()
        for pipe in (self._ssh.stdin, self._ssh.stdout, self._ssh.stderr):
            if pipe:
                pipe.close()

    @property
    def silent_ns(self) -> int:
        """Time since something arrived."""
        return monotonic_ns() - self._arrived_ns

    def _read(self, fd: int) -> bytes | None:
        """Return what there is; empty at the end, None if there is nothing now."""
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _status(self) -> int:
        """Return the exit status of ssh, which has closed its output, and read the rest of its errors."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._ssh.wait(_END_S)
        while raw := self._read(self._err):  # a ControlPersist process may keep it open: so not up to its end
            self._errors = (self._errors + raw)[-_MOST_ERRORS:]
        return self._ssh.poll() or 0

    def _explained(self) -> OfftopError:
        status = self._status()
        before = self._splitter.before
        if not status and before.strip():
            return OfftopError(self._strange(before))
        return explained(self._target, status, self._errors.decode(errors="replace"))

    def _why_ended(self) -> str:
        """Return why the connection has ended, in few words."""
        status = self._status()
        lines: Sequence[str] = self._errors.decode(errors="replace").strip().split("\n")
        if status > 0 and lines[-1]:
            return printable(lines[-1].strip())[:_LONGEST_TEXT].rstrip(".")
        return "ssh ended" if status else "offtop there ended"

    def _strange(self, sent: bytes) -> str:
        line = printable(sent.strip()[:_LONGEST_TEXT].decode(errors="replace").split("\n")[0])
        return (
            f"{self._target.name} does not send what offtop sends, but '{line}'. See which command is run there: "
            "ssh_config's RemoteCommand, sshd's ForceCommand, --remote-offtop"
        )
