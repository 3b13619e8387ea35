"""Walks the user stacks of one thread of ours: knows what lies where, asks for rules, and teaches the kernel side."""

import platform
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import Files
from offtop.kernel.binary.unwind_rules import AARCH64, NO_RULE, X86_64, Rule
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import WalkedStack
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.procfs.memory import Memory
from offtop.kernel.symbols.mappings import NOT_PERMITTED, NOT_READ, Image, Processes, is_closed
from offtop.kernel.unwind import frame_pointers, step
from offtop.kernel.unwind.cpython_frames import NO_PYTHONS, Pythons, code_objects
from offtop.kernel.unwind.rule_cache import Rulebook
from offtop.kernel.unwind.stack_copies import Copy
from offtop.kernel.unwind.step import Read, State, Walk
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.stack import ANONYMOUS, JIT, SIGNAL, Frame

_ANSWER_S = 10.0
"""On a slow or busy machine a large library takes seconds. What takes longer is left alone for minutes."""
_IDLE_S = 10.0
"""After so long without work all binaries are closed: their file systems may be unmounted, their disk space be free."""
_NICE = 5
"""It gives way to whoever works, but not as much as the reader of names does: a stack waits for each answer in turn."""
_OLD_S = 10.0
_LOOK_S = 0.05
"""So many seconds for each process at least: a look takes 0.3 ms and more."""
_MACHINE = platform.machine()
_NATIVE = AARCH64 if _MACHINE == "aarch64" else X86_64


def _closed(found: "Found") -> "Found":
    """A walk that ended for want of memory that we may not read: how it ends is known by its last frame."""
    if found.frames[-1:] == NOT_PERMITTED or found.end not in (layout.END_MEMORY, layout.END_LINKED):
        return found
    return found._replace(frames=(*found.frames, *NOT_PERMITTED))


def _never() -> bool:
    return False


class Found(NamedTuple):
    """What a walk found."""

    frames: tuple[Frame, ...]
    """Leaf first."""
    end: int
    """layout.END_*"""
    unsure: bool = False
    """Some of its steps were made without a rule of the binary."""


UNREAD = Found(NOT_READ, layout.END_ASTRAY)
"""Of a process that did not let itself be read in time."""


class Taught(NamedTuple):
    """The kernel side's maps of what it was taught."""

    rules: Map
    spaces: Map


class Walker:
    """For use by one thread."""

    def __init__(self, files: Files, way: str, taught: Taught | None, pythons: Pythons = NO_PYTHONS) -> None:
        """`way`: `fp`, `dwarf` or `auto`. `taught`: None where the kernel side follows no rules."""
        self._files, self._way, self._taught, self._pythons = files, way, taught, pythons
        self._processes = Processes(files)
        self._binaries = Binaries(_ANSWER_S, _NICE, reads=files.reads)
        self._rulebook = Rulebook(self._binaries)
        self._looked: dict[int, tuple[float, int]] = {}
        """Process → when its code was looked at, and its space; in that order."""
        self._next_look_s = 0.0

    def another(self) -> "Walker":
        """One more of its kind, for another thread."""
        return Walker(self._files, self._way, self._taught, self._pythons)

    @property
    def reader_pid(self) -> int:
        return self._binaries.pid

    @property
    def used_s(self) -> float:
        """CPU time of the calling thread, and of its readers."""
        return time.thread_time() + self._binaries.cpu_s

    @property
    def failures(self) -> int:
        """How often its reader died, or was too slow and had to be ended."""
        return self._binaries.failures

    @property
    def ways(self) -> list[tuple[str, str]]:
        """How the binaries met last are walked: label, and what is to be said of it."""
        return [(label, ways.told) for label, ways in reversed([*self._rulebook.ways.items()])]

    def has_rule(self, frame: Frame) -> bool:
        """Whether its binary says who called it, as far as that was asked. For any thread."""
        file = self._files.get(frame.file)
        if file is None or frame.name == SIGNAL:
            return frame.file not in (ANONYMOUS, JIT)
        return self._rulebook.has(file, frame.offset)

    def start(self) -> None:
        """Begin, so that the first stack waits for less."""
        if self._taught is not None:
            with suppress(OSError):  # then the first question says so
                self._binaries.start()

    def end(self) -> None:
        self._binaries.end()

    def rest(self, idle_s: float) -> None:
        """There has been no work for so long."""
        if idle_s > _IDLE_S and len(self._binaries):
            self._binaries.close()

    def forget(self, pid: int) -> None:
        """The process has ended."""
        self._processes.forget(pid)
        self._looked.pop(pid, None)

    @property
    def is_asking(self) -> bool:
        """Whether it waits for its reader, which has its own limit. For any thread."""
        return self._binaries.is_asking

    @property
    def due(self) -> int:
        """A process of which the kernel side may follow rules that are out of date: other code may lie there by now,
        and no unknown address need show it; or of which it is to be seen what Python it runs. 0 where there is none for
        now."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return 0
        pid = next(iter(self._looked), 0)
        return pid if pid and now_s - self._looked[pid][0] > _OLD_S else self._pythons.due

    def look(self, pid: int) -> None:
        """Have the kernel side begin anew with a process that has other code by now."""
        self._next_look_s = time.monotonic() + _LOOK_S
        known = self._looked.get(pid)
        try:
            self._processes.check(pid)
            if known is None or time.monotonic() - known[0] <= _OLD_S:
                if image := self._processes.image(pid):
                    self._find_python(pid, image)
                self._pythons.look(pid)
                return
            image = self._processes.look(pid) if Path(f"/proc/{pid}").exists() else None
        except TimeoutError:
            self._pythons.put_off(pid)
            if known is not None:
                self._looked[pid] = time.monotonic(), *self._looked.pop(pid)[1:]
            return
        _, space = self._looked.pop(pid)
        if image is None or self._taught is None:
            return
        if image.space != space:
            with suppress(OSError):
                self._taught.spaces.update(pid.to_bytes(4, "little"), layout.SPACE.pack(image.space))
        self._looked[pid] = time.monotonic(), image.space

    def of_thread(
        self, key: ThreadKey, stack: WalkedStack, is_narrow: bool, has_run: Callable[[], bool]
    ) -> Found | None:
        """The stack of a thread that is blocked; None where it is gone, or has run meanwhile."""
        try:
            self._processes.check(key.pid)
            return self._of_thread(key, stack, is_narrow, has_run)
        except TimeoutError:
            return UNREAD

    def _of_thread(
        self, key: ThreadKey, stack: WalkedStack, is_narrow: bool, has_run: Callable[[], bool]
    ) -> Found | None:
        with Memory(key.tid) as memory:
            if self._taught is None or is_narrow:
                addresses = frame_pointers.walk(memory, stack.ip, stack.bp, "i386" if is_narrow else _MACHINE)
                found = Found(self._processes.frames(key.pid, addresses), layout.END_LINKED)
                found = _closed(found) if memory.is_closed else found
                of_python = self._python_of_thread(key.pid, stack, memory)
                return None if has_run() else self._with_python(key.pid, found, of_python, memory)
            of_python = self._python_of_thread(key.pid, stack, memory)
            kept = stack.others[: len(_NATIVE.kept)]
            state = State(stack.ip, stack.sp, stack.bp, kept, stack.arguments[0])
            found = self._walked(key.pid, state, memory.stack, memory, has_run)
            found = _closed(found) if found and memory.is_closed else found
            return found and self._with_python(key.pid, found, of_python, memory)

    def frames(self, pid: int, addresses: Sequence[int]) -> tuple[Frame, ...]:
        """Of addresses that the kernel side has found."""
        return self._processes.frames(pid, addresses)

    def of_copy(self, copy: Copy) -> Found | None:
        """The stack that a copy was made of; None where its process is gone, or runs another program by now, or where
        nobody knows how such programs keep their registers."""
        try:
            self._processes.check(copy.pid)
            with Memory(copy.pid) as memory:  # for the code alone, which outlives the thread
                before = self.frames(copy.pid, copy.walked)
                found = self._walked(copy.pid, copy.state, copy.read, memory, _never, before)
                found = found and self._with_python(copy.pid, found, copy.of_python, memory)
        except TimeoutError:
            return UNREAD
        if found is None or not found.frames:  # where its leaf was there is no code any more
            return None
        end = layout.END_NOT_COPIED if found.end == layout.END_MEMORY else found.end
        return found._replace(end=end, unsure=found.unsure or copy.unsure)

    def _walked(
        self,
        pid: int,
        state: State,
        read: Read,
        memory: Memory,
        has_run: Callable[[], bool],
        before: tuple[Frame, ...] = (),
    ) -> Found | None:
        image = self._processes.image(pid)
        if image is None:
            return Found(NOT_PERMITTED, layout.END_ASTRAY) if is_closed(pid) else None

        def frame_of(address: int) -> Frame | None:
            return self._processes.at(pid, image, address)

        self._find_python(pid, image)
        guess = self._way == "auto"
        self._rulebook.begin()
        self._processes.doubts = False
        walk = step.walk(state, frame_of, self._rule, read, memory.code, _NATIVE, guess, len(before))
        if has_run():
            return None
        is_doubted = self._rulebook.doubts or (walk.end == layout.END_ASTRAY and self._processes.doubts)
        if walk.frames and not is_doubted:
            self._teach(pid, image.space, walk)
        return Found((*before, *walk.frames), walk.end, walk.unsure)

    def name(self, pid: int, addresses: Collection[int]) -> None:
        """Read what Python's functions are called, by their code objects."""
        with suppress(TimeoutError):
            self._processes.check(pid)
            with Memory(pid) as memory:
                self._pythons.read(pid, addresses, memory)

    def hangs(self, pid: int) -> bool:
        """Whether the process does not let itself be read. For any thread."""
        return self._processes.hangs(pid)

    def _find_python(self, pid: int, image: Image) -> None:
        """Have the kernel side read Python's frames, if the process runs Python."""
        while not self._pythons.meet(pid, image) and (label := self._pythons.unknown(image)):
            file = self._files.get(label)
            self._pythons.learn(label, self._binaries.python(file) if file else None)

    def _python_of_thread(self, pid: int, stack: WalkedStack, memory: Memory) -> tuple[int, ...]:
        image = self._processes.image(pid)
        if image is None:
            return ()
        self._find_python(pid, image)
        return self._pythons.of_thread(pid, stack.thread, memory)

    def _with_python(self, pid: int, found: Found, of_python: Sequence[int], memory: Memory) -> Found:
        if not of_python:
            return found
        self._pythons.read(pid, code_objects(of_python), memory)
        frames, end, unsure = found
        if len(frames) + len(of_python) > layout.FRAMES:  # as the kernel side keeps it
            frames, end = frames[: layout.FRAMES - len(of_python)], layout.END_DEEP
        mixed = self._pythons.mixed(pid, frames, of_python, end == layout.END_WHOLE)
        return Found(mixed.frames, end, unsure or mixed.unsure)

    def _rule(self, frame: Frame) -> Rule:
        file = None if frame.name else self._files.get(frame.file)
        return NO_RULE if file is None else self._rulebook.of(file, frame.offset)

    def _teach(self, pid: int, space: int, walk: Walk) -> None:
        """So that the kernel side can make the same walk on its own. What it knows already is told once more: it may
        have forgotten it, for it keeps what it uses."""
        if self._taught is None:
            return
        looked_s = self._looked[pid][0] if pid in self._looked else time.monotonic()
        self._looked[pid] = looked_s, space
        with suppress(OSError):  # full for a moment: then it asks again
            for address, rule in walk.steps:
                self._taught.rules.update(layout.RULE_KEY.pack(address, space, 0), rule)
            self._taught.spaces.update(pid.to_bytes(4, "little"), layout.SPACE.pack(space))
