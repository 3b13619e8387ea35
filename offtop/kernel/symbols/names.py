"""The worker that names user frames, so that no tick and no key press waits for symbols.

Reading the symbols of a big binary takes seconds. So a lookup is queued, and until it is done the frame is shown as
`postgres+0x1a2b3c`. Files take turns in small batches, so that one giant file does not delay the others.
"""

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import islice

from offtop.kernel.binary import dwfl, reader
from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.debuginfod import DebugFiles
from offtop.kernel.binary.files import File, Files
from offtop.kernel.symbols.mappings import may_be_jit
from offtop.model.aggregate.stack_problems import NO_MAP, NO_SYMBOL, NOT_KNOWN, OVERWRITTEN, STRIPPED
from offtop.model.values.stack import Frame, nameless
from offtop.printable import printable
from offtop.worker import Rest, Worker

_BATCH = 32
"""Batch size: names that are looked up before the next file has its turn and waiting threads are notified."""
_MOST_QUEUED = 20_000
_MOST_NAMES = 100_000
"""Limit for all files together; about 15 MB."""
_ANSWER_S = 60.0
"""Deadline for one batch, which may have to read the symbols of a big binary first."""
_BEGIN_S = 2.0
"""How long to wait for the reader to report whether it could be confined. It takes a tenth of that."""
_CLOSE_S = 2.0
"""How long to wait for the thread. A read on a hung file system may never return; the thread is abandoned then."""


class NameWorker:
    """`Names` of the running machine. `of` and `wait` are thread-safe."""

    def __init__(self, files: Files, debug_files: DebugFiles | None = None) -> None:
        """`debug_files`: where to request missing debug files.

        Raises KernelError if libdw is not installed.
        """
        dwfl.library()
        self._files, self._debug_files = files, debug_files
        self._queue: dict[File, dict[int, bool]] = {}
        """File → queued offsets, oldest first. True: look up a second time, although the name is known."""
        self._queued = 0
        self._known = 0
        """How many names have been added since names were last dropped, plus those kept then."""
        self.version = 0
        debug_directory = str(debug_files.directory) if debug_files else ""
        self._binaries = Binaries(_ANSWER_S, debug_directory=debug_directory, reads=files.reads)
        self._begun = threading.Event()
        self._worker = Worker("offtop-names", self._run)
        self._worker.wake()

    def of(self, frame: Frame) -> str:
        """Return the symbol of `frame`, or `libfoo.so+0x1234` if it is unknown so far or has none.

        Does not block.
        """
        if frame.name:
            return printable(frame.name)
        file = self._files.get(frame.file)
        if file is None:
            return nameless(frame)
        name = file.names.get(frame.offset)
        if name is None:
            self._enqueue(file, frame.offset)
        return name or nameless(frame)

    def why_nameless(self, frame: Frame) -> str:
        """See Source.why_nameless. Does not block."""
        file = self._files.get(frame.file)
        if frame.name or file is None:
            return "" if frame.name else NOT_KNOWN
        if file.names.get(frame.offset) != "":
            return ""
        if file.is_overwritten:
            return OVERWRITTEN
        if file.unreadable:
            return NO_MAP if may_be_jit(file.path) else file.unreadable
        return {reader.YES: NO_SYMBOL, reader.NO: STRIPPED}.get(file.symbols, NOT_KNOWN)

    def wait(self, frames: Iterable[Frame], seconds: float) -> bool:
        """Wait up to `seconds` for all lookups of `frames`; return whether they are done."""
        deadline = time.monotonic() + seconds
        pending = set(frames)
        with self._worker.changed:
            while True:
                pending = {frame for frame in pending if self._is_pending(frame)}
                left_s = deadline - time.monotonic()
                if not pending or self._worker.is_closing or left_s <= 0:
                    return not pending
                for frame in pending:
                    self.of(frame)
                self._worker.changed.wait(left_s)

    def close(self) -> None:
        """End the thread. Idempotent; `of` still returns the known names."""
        self._worker.close(_CLOSE_S)

    def _is_pending(self, frame: Frame) -> bool:
        file = None if frame.name else self._files.get(frame.file)
        return file is not None and frame.offset not in file.names

    def _enqueue(self, file: File, offset: int) -> None:
        with self._worker.changed:
            if self._queued < _MOST_QUEUED and offset not in self._queue.get(file, ()):
                self._queue.setdefault(file, {})[offset] = False
                self._queued += 1
                self._worker.wake()

    @property
    def reader_pid(self) -> int:
        """PID of the reader process, or 0 if it is not running."""
        return self._binaries.pid

    @property
    def refused(self) -> str:
        """Why no file is read: the text of the RefusedError, or empty.

        Waits for a reader that is just starting.
        """
        self._begun.wait(_BEGIN_S)
        return self._binaries.refused

    def _run(self, worker: Worker) -> None:
        binaries = self._binaries
        with suppress(OSError):  # the first request will fail, too
            binaries.begin()
        self._begun.set()
        for file, offsets in worker.requests(self._next_batch):
            names = dict(zip(offsets, binaries.names(file, offsets), strict=True))
            if not file.symbols and not all(names.values()):
                file.symbols = binaries.symbols(file)
            with worker.changed:
                # If a second lookup fails because the file is gone by now, keep the previous name.
                file.names.update(
                    (offset, name) for offset, name in names.items() if name or not file.names.get(offset)
                )
                self._known += len(names)
                # If no name was found, nothing changes, and caches that depend on names stay valid.
                self.version += any(names.values())
                if self._known > _MOST_NAMES:
                    self.version += 1
                    self._files.forget_names(_MOST_NAMES // 2)
                    self._known = _MOST_NAMES // 2
            if self._debug_files and not file.debug_file_requested:
                file.debug_file_requested = True
                self._debug_files.want(binaries.build_id_to_fetch(file), partial(self._look_up_again, file))
        binaries.end()

    def _look_up_again(self, file: File) -> None:
        """Look up all names of a file again, because its debug file has arrived."""
        with self._worker.changed:
            file.has_new_debug_file, file.symbols = True, ""
            known = dict.fromkeys(file.names, True)
            waiting = self._queue.get(file, {})
            self._queue[file] = waiting | known
            self._queued += len(self._queue[file]) - len(waiting)
            self._worker.wake()

    def _next_batch(self) -> tuple[File, list[int]] | Rest:
        """Return a batch of offsets of the file whose turn it is."""
        if rest_s := self._binaries.rest_s:
            return Rest(rest_s)
        if not self._queue:
            return Rest(self._binaries.close_unused())
        file = next(iter(self._queue))
        offsets = self._queue.pop(file)
        batch = dict(islice(offsets.items(), _BATCH))
        for offset in batch:
            del offsets[offset]
        self._queued -= len(batch)
        if offsets:
            self._queue[file] = offsets  # at the end, so other files come first
        return file, [offset for offset, is_repeat in batch.items() if is_repeat or offset not in file.names]
