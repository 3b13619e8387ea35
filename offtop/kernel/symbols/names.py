"""The worker that names user frames: it has binaries opened and read, so that no tick and no key ever waits.

Symbols of a big binary take seconds. So a name that is asked for is queued and answered by `postgres+0x1a2b3c`
until it is there. Work is taken in small parts, file by file in turn: one giant does not hold up the rest.
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
from offtop.kernel.symbols.mappings import is_made_at_run_time
from offtop.model.aggregate.stack_problems import NO_MAP, NO_SYMBOL, NOT_KNOWN, OVERWRITTEN, STRIPPED
from offtop.model.values.stack import Frame, nameless
from offtop.printable import printable

_PART = 32
"""Names looked up before another file has its turn, and before those that wait are told."""
_MOST_QUEUED = 20_000
_MOST_NAMES = 100_000
"""Of all files together; about 15 MB."""
_ANSWER_S = 60.0
"""For one part, with the symbols of a big binary before it."""
_IDLE_S = 10.0
"""After this long without work all binaries are closed."""
_BEGIN_S = 2.0
"""How long to wait until the reader has said whether it could be confined, which it does in a tenth of that."""
_CLOSE_S = 2.0
"""A binary on a file system that hangs may never answer: then the thread is left behind."""


class NameWorker:
    """`Names` of the running machine. `of` and `wait` are for any thread."""

    def __init__(self, files: Files, debug_files: DebugFiles | None = None) -> None:
        """`debug_files`: where to ask for those that are not here. Raises KernelError where libdw is not installed."""
        dwfl.library()
        self._files, self._debug_files = files, debug_files
        self._asked: dict[File, dict[int, bool]] = {}
        """Offsets to be named, those asked for first coming first; True: anew."""
        self._queued = 0
        self._known = 0
        """How many names have been added; reset when names are forgotten."""
        self.version = 0
        self._closing = False
        self._changed = threading.Condition()
        debug_directory = str(debug_files.directory) if debug_files else ""
        self._binaries = Binaries(_ANSWER_S, debug_directory=debug_directory, reads=files.reads)
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offtop-names", daemon=True)
        self._thread.start()

    def of(self, frame: Frame) -> str:
        """Symbol of `frame`, or `libfoo.so+0x1234` while (or because) it has none. Returns at once."""
        if frame.name:
            return printable(frame.name)
        file = self._files.get(frame.file)
        if file is None:
            return nameless(frame)
        name = file.names.get(frame.offset)
        if name is None:
            self._ask(file, frame.offset)
        return name or nameless(frame)

    def why_nameless(self, frame: Frame) -> str:
        """As Source has it. Returns at once."""
        file = self._files.get(frame.file)
        if frame.name or file is None:
            return "" if frame.name else NOT_KNOWN
        if file.names.get(frame.offset) != "":
            return ""
        if file.retired:
            return OVERWRITTEN
        if file.unreadable:
            return NO_MAP if is_made_at_run_time(file.path) else file.unreadable
        return {reader.YES: NO_SYMBOL, reader.NO: STRIPPED}.get(file.symbols, NOT_KNOWN)

    def wait(self, frames: Iterable[Frame], seconds: float) -> bool:
        """Whether, after `seconds` at most, each of `frames` has the best name it will get."""
        deadline = time.monotonic() + seconds
        pending = set(frames)
        with self._changed:
            while True:
                pending = {frame for frame in pending if self._is_pending(frame)}
                left_s = deadline - time.monotonic()
                if not pending or self._closing or left_s <= 0:
                    return not pending
                for frame in pending:
                    self.of(frame)
                self._changed.wait(left_s)

    def close(self) -> None:
        """End the thread. May be called twice; `of` goes on with what is known."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)

    def _is_pending(self, frame: Frame) -> bool:
        file = None if frame.name else self._files.get(frame.file)
        return file is not None and frame.offset not in file.names

    def _ask(self, file: File, offset: int) -> None:
        with self._changed:
            if self._queued < _MOST_QUEUED and not self._closing and offset not in self._asked.get(file, ()):
                self._asked.setdefault(file, {})[offset] = False
                self._queued += 1
                self._changed.notify_all()

    @property
    def reader_pid(self) -> int:
        """Of its child; 0 where there is none."""
        return self._binaries.pid

    @property
    def refused(self) -> str:
        """Why no file is read: what RefusedError says; empty: they are. Waits for a reader that is just starting."""
        self._begun.wait(_BEGIN_S)
        return self._binaries.refused

    def _run(self) -> None:
        binaries = self._binaries
        with suppress(OSError):  # then the first question says so
            binaries.begin()
        self._begun.set()
        while part := self._next_part(binaries):
            file, offsets = part
            names = dict(zip(offsets, binaries.names(file, offsets), strict=True))
            if not file.symbols and not all(names.values()):
                file.symbols = binaries.symbols(file)
            with self._changed:
                # What is called anew may be gone meanwhile: then the name that it had is the best.
                file.names.update(
                    (offset, name) for offset, name in names.items() if name or not file.names.get(offset)
                )
                self._known += len(names)
                # What stays without a name is called as before: whoever keeps what follows from names need not look.
                self.version += any(names.values())
                if self._known > _MOST_NAMES:
                    self.version += 1
                    self._files.forget_names(_MOST_NAMES // 2)
                    self._known = _MOST_NAMES // 2
                self._changed.notify_all()
            if self._debug_files and not file.searched:
                file.searched = True
                self._debug_files.want(binaries.wanted(file), partial(self._ask_anew, file))
        binaries.end()

    def _ask_anew(self, file: File) -> None:
        """Its debug file has come."""
        with self._changed:
            file.explained, file.symbols = True, ""
            known = dict.fromkeys(file.names, True)
            waiting = self._asked.get(file, {})
            self._asked[file] = waiting | known
            self._queued += len(self._asked[file]) - len(waiting)
            self._changed.notify_all()

    def _next_part(self, binaries: Binaries) -> tuple[File, list[int]] | None:
        """Some offsets of the file whose turn it is; waits for them. None: there will be no more."""
        with self._changed:
            while not self._closing and ((rest_s := binaries.rest_s) or not self._asked):
                if not self._changed.wait(rest_s or (_IDLE_S if len(binaries) else None)):
                    binaries.close()
            if self._closing:
                return None
            file = next(iter(self._asked))
            offsets = self._asked.pop(file)
            part = dict(islice(offsets.items(), _PART))
            for offset in part:
                del offsets[offset]
            self._queued -= len(part)
            if offsets:
                self._asked[file] = offsets  # at the end: the others come first
            return file, [offset for offset, anew in part.items() if anew or offset not in file.names]
