"""Debug files from debuginfod servers, fetched if the user asks for them.

Nothing else in offtop uses the network. A thread has a child (fetch.py) fetch them one by one, into a temporary
directory that is removed at exit, where libdw finds them by build ID. The child that reads untrusted binaries has no
network, and the child that has the network reads no binaries.
"""

import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from offtop.errors import OfftopError, UsageError
from offtop.kernel.binary.confinement import RefusedError, report_of
from offtop.kernel.sandbox import Sandbox
from offtop.worker import Worker

FOUND, FAILED, UNKNOWN = "found", "failed", "unknown"
"""Answers of the child: it fetched the file; a server did not answer; no server has the file."""
AUTO = "auto"
"""Stands for the servers that are configured on this machine."""
_CONFIGURED = Path("/etc/debuginfod")
"""Where distributions put their servers' addresses, one per file (elfutils' profile.d reads them, too)."""
_ADDRESS = re.compile(r"https?://[!-+\--~]+")
_BUILD_ID = re.compile("[0-9a-f]{6,128}")
_MOST_BYTES = 2 << 30
"""Limit for all files together."""
_BEGIN_S, _FETCH_S = 15.0, 600.0
_CLOSE_S = 2.0
_MOST_QUEUED = 10_000


def servers(addresses: str, environ: Mapping[str, str], directory: Path = _CONFIGURED) -> list[str]:
    """Return the servers' addresses.

    Raises UsageError if AUTO is given and this machine has none configured.
    """
    if addresses != AUTO:
        return _split(addresses)
    texts = [environ.get("DEBUGINFOD_URLS", "")]
    if not texts[0].strip():
        for file in sorted(directory.glob("*.urls")):
            with suppress(OSError):
                texts.append(file.read_text(errors="replace"))
    found = [one for one in _split(" ".join(texts)) if _ADDRESS.fullmatch(one)]
    if not found:
        raise UsageError(
            "--debuginfod: neither DEBUGINFOD_URLS (which sudo drops) nor /etc/debuginfod names a server. "
            "Name one, as: --debuginfod https://debuginfod.elfutils.org"
        )
    return found


def _split(text: str) -> list[str]:
    return [one for one in re.split(r"[\s,]+", text) if one]


class _Wanted(NamedTuple):
    build_id: str
    arrived: Callable[[], None]


class DebugFiles:
    """Fetches debug files, each once. `want` is thread-safe."""

    def __init__(self, servers: Sequence[str]) -> None:
        """Raises OfftopError if no temporary directory can be created."""
        self._servers = servers
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="offtop-debug-"))
            """Contains `.build-id`, like /usr/lib/debug."""
        except OSError as error:
            raise OfftopError(
                f"--debuginfod: no directory for debug files can be made ({error.strerror}). Name one: TMPDIR=DIRECTORY"
            ) from error
        self.directory.chmod(0o755)  # the child that reads them runs as nobody
        self._queue: deque[_Wanted] = deque()
        self._outcomes: dict[str, int] = dict.fromkeys((FOUND, FAILED, UNKNOWN), 0)
        self._left_bytes = _MOST_BYTES
        self._child: Sandbox | None = None
        self._lacking: list[str] = []
        """Measures that failed to confine the child."""
        self._worker = Worker("offtop-debug", self._run)

    @property
    def summary(self) -> str:
        """Counts of the outcomes so far, and the servers, for people."""
        counts = zip(("fetched", "failed", "not found"), self._outcomes.values(), strict=True)
        unconfined = f"; fetched without {', '.join(self._lacking)}" if self._lacking else ""
        return f"{', '.join(f'{count} {what}' for what, count in counts)}; {' '.join(self._servers)}{unconfined}"

    def want(self, build_id: str, arrived: Callable[[], None]) -> None:
        """Fetch the debug file of `build_id`.

        `arrived` is called from another thread when the file is there, and never if no server has it.
        """
        if not _BUILD_ID.fullmatch(build_id):  # it comes from an untrusted binary
            return
        with self._worker.changed:
            if len(self._queue) < _MOST_QUEUED:
                self._queue.append(_Wanted(build_id, arrived))
                self._worker.wake()

    def close(self) -> None:
        """Stop, and remove the fetched files. Idempotent."""
        with self._worker.changed:
            self._worker.close()
            if self._child:
                self._child.kill()
        self._worker.close(_CLOSE_S)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, worker: Worker) -> None:
        tried = set[str]()
        for wanted in worker.queued(self._queue):
            path = self.directory / ".build-id" / wanted.build_id[:2] / f"{wanted.build_id[2:]}.debug"
            if wanted.build_id not in tried:
                tried.add(wanted.build_id)
                try:
                    outcome = self._fetch(wanted.build_id, path)
                except (OSError, RefusedError):
                    outcome = FAILED
                self._outcomes[outcome] += 1
            if path.exists() and not worker.is_closing:
                wanted.arrived()

    def _fetch(self, build_id: str, path: Path) -> str:
        """Fetch one file and return the outcome.

        Raises OSError if it cannot be written, or the child not started or it has failed, and RefusedError.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        for directory in (path.parent, path.parent.parent):
            directory.chmod(0o755)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            fd = file.fileno()
            os.fchmod(fd, 0o644)
            with self._worker.changed:
                if self._worker.is_closing:
                    return FAILED
                arguments = [str(fd), str(self._left_bytes), build_id, *self._servers]
                self._child = Sandbox("binary.fetch", arguments, fds=[fd])
            outcome = FAILED
            try:
                self._lacking = report_of(self._child, _BEGIN_S)
                (outcome,) = self._child.receive(_FETCH_S)
            finally:
                self._child.end()
                if outcome != FOUND:
                    part.unlink()
            if outcome == FOUND:
                self._left_bytes -= os.fstat(fd).st_size
                part.rename(path)
        return outcome if outcome in self._outcomes else FAILED
