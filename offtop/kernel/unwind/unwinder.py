"""Unwinds user stacks: maps addresses to files, requests rules, and loads the rules into BPF."""

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import Files
from offtop.kernel.binary.unwind_rules import AARCH64, NO_RULE, X86_64, Rule
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ScannedStack
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.bpf.scan_rows import Rows, chosen
from offtop.kernel.procfs.memory import Memory
from offtop.kernel.procfs.stack_memory import read_stacks
from offtop.kernel.symbols.mappings import NOT_PERMITTED, NOT_READ, Image, Processes, is_closed
from offtop.kernel.unwind import frame_pointers, step
from offtop.kernel.unwind.cpython_frames import NO_CPYTHON_FRAMES, CPythonFrames, code_objects
from offtop.kernel.unwind.known_paths import KnownPaths, Stacks
from offtop.kernel.unwind.rule_cache import RuleCache
from offtop.kernel.unwind.stack_copies import Copy
from offtop.kernel.unwind.stack_memos import RuleGenerations
from offtop.kernel.unwind.step import Read, State, UnwindResult
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.stack import ANONYMOUS, JIT, SIGNAL, Frame
from offtop.model.values.table import Ints, distinct_codes

_ANSWER_S = 10.0
"""A large library takes seconds on a slow or busy machine. A file that takes longer than this is skipped for
minutes."""
_NICE = 5
"""Niceness of the reader. It yields to the workload, but less than the reader of names: a stack waits for every
reply."""
_MOST_COMPARED = 1_024
"""How many stacks are compared with known paths at once: they take up to 4 KB each, several times."""
_CHECK_AGAIN_S = 10.0
_CHECK_INTERVAL_S = 0.05
"""Minimum interval between checks of processes, each of which takes 0.3 ms and more."""
_MACHINE = platform.machine()
_NATIVE = AARCH64 if _MACHINE == "aarch64" else X86_64


def _mark_forbidden(found: "UnwoundStack") -> "UnwoundStack":
    """Append a frame that says so to a stack that is truncated because its memory may not be read."""
    if found.frames[-1:] == NOT_PERMITTED or found.end not in (layout.END_MEMORY, layout.END_LINKED):
        return found
    return found._replace(frames=(*found.frames, *NOT_PERMITTED))


def _never() -> bool:
    return False


class UnwoundStack(NamedTuple):
    """An unwound stack."""

    frames: tuple[Frame, ...]
    """Leaf first."""
    end: int
    """layout.END_*"""
    unsure: bool = False
    """Whether some steps were made without a rule of the binary."""


UNREAD = UnwoundStack(NOT_READ, layout.END_BAD_PC)
"""Result for a process that was not read in time."""


class RuleMaps(NamedTuple):
    """BPF maps that hold unwind rules and processes' address spaces."""

    rules: Map
    spaces: Map
    generations: RuleGenerations

    @classmethod
    def of(cls, maps: Mapping[str, Map]) -> "RuleMaps":
        return cls(maps["rules"], maps["spaces"], RuleGenerations(maps["rule_generations"]))

    def load_rules(self, space: int, rules: Iterable[tuple[int, bytes]]) -> None:
        """Load the rules of some addresses. Raises OSError if there is no room at the moment."""
        packed = {layout.RULE_KEY.pack(address, space, 0): rule for address, rule in rules}
        others = [key for key, rule in packed.items() if (self.rules.lookup(key) or b"")[: layout.RULE.size] != rule]
        if others:
            with self.generations.changing(space):
                for key in others:
                    self.rules.update(key, packed[key])

    def load_space(self, pid: int, space: int) -> None:
        """Say which address space a process has. Raises OSError."""
        key, packed = pid.to_bytes(4, "little"), layout.SPACE.pack(space)
        before = (self.spaces.lookup(key) or b"")[: layout.SPACE.size]
        if before != packed:
            with self.generations.changing(*layout.SPACE.unpack(before)) if before else nullcontext():
                self.spaces.update(key, packed)


class Unwinder:
    """Unwinds user stacks. For use by one thread."""

    def __init__(
        self, files: Files, method: str, rule_maps: RuleMaps | None, cpython_frames: CPythonFrames = NO_CPYTHON_FRAMES
    ) -> None:
        """`method`: `fp`, `dwarf` or `auto`. `rule_maps`: None if BPF does not use rules."""
        self._files, self._method, self._rule_maps, self._cpython_frames = files, method, rule_maps, cpython_frames
        self._processes = Processes(files)
        self._binaries = Binaries(_ANSWER_S, _NICE, reads=files.reads)
        self._rule_cache = RuleCache(self._binaries)
        self._known_paths = KnownPaths(_NATIVE)
        self._checked: dict[int, tuple[float, int]] = {}
        """Process → when its code was last checked, and its space; oldest first."""
        self._next_check_s = 0.0

    def clone(self) -> "Unwinder":
        """Return a new one with the same settings, for another thread."""
        return Unwinder(self._files, self._method, self._rule_maps, self._cpython_frames)

    @property
    def reader_pid(self) -> int:
        return self._binaries.pid

    @property
    def learned_paths(self) -> int:
        """How many paths it has learned that other stacks may take. Thread-safe."""
        return self._known_paths.learned

    @property
    def used_s(self) -> float:
        """CPU time of the calling thread and of the reader process."""
        return time.thread_time() + self._binaries.cpu_s

    @property
    def failures(self) -> int:
        """How often the reader died, or was killed because it was too slow."""
        return self._binaries.failures

    @property
    def unwind_summaries(self) -> list[tuple[str, str]]:
        """How the most recently seen binaries are unwound: (label, description)."""
        return [(label, counts.summary) for label, counts in reversed([*self._rule_cache.counts.items()])]

    def has_rule(self, frame: Frame) -> bool:
        """Whether the frame's binary has a rule for it, as far as that is known. Thread-safe."""
        file = self._files.get(frame.file)
        if file is None or frame.name == SIGNAL:
            return frame.file not in (ANONYMOUS, JIT)
        return self._rule_cache.may_have_rule(file, frame.offset)

    def start(self) -> None:
        """Start the reader, so that the first stack does not wait for it."""
        if self._rule_maps is not None:
            with suppress(OSError):  # the first request will fail, too
                self._binaries.start()

    def end(self) -> None:
        """End the reader, and close the files that the read child has open for this unwinder."""
        self._binaries.end()
        self._binaries.close_reads()
        self._processes.close_reads()

    def rest(self) -> None:
        """Close binaries that have not been needed for long."""
        self._binaries.close_unused()

    def forget(self, pid: int) -> None:
        """Forget a process that has exited."""
        self._processes.forget(pid)
        self._checked.pop(pid, None)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the reader, which has its own deadline. Thread-safe."""
        return self._binaries.is_asking or self._processes.is_waiting

    @property
    def due_pid(self) -> int:
        """PID of a process to check, or 0 if none is due.

        A process is due if BPF may use outdated rules for it, because other code may be at its addresses by now; or
        if it is not known yet whether it runs Python.
        """
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return 0
        pid = next(iter(self._checked), 0)
        return pid if pid and now_s - self._checked[pid][0] > _CHECK_AGAIN_S else self._cpython_frames.due_pid

    def check_process(self, pid: int) -> None:
        """Update a process's address space in BPF if its code has changed, and check whether it runs Python."""
        self._next_check_s = time.monotonic() + _CHECK_INTERVAL_S
        known = self._checked.get(pid)
        try:
            self._processes.check(pid)
            if known is None or time.monotonic() - known[0] <= _CHECK_AGAIN_S:
                if image := self._processes.image(pid):
                    self._find_python(pid, image)
                self._cpython_frames.check_names(pid)
                return
            image = self._processes.reread_image(pid) if Path(f"/proc/{pid}").exists() else None
        except TimeoutError:
            self._cpython_frames.postpone(pid)
            if known is not None:
                self._checked[pid] = time.monotonic(), *self._checked.pop(pid)[1:]
            return
        _, space = self._checked.pop(pid)
        if image is None or self._rule_maps is None:
            return
        if image.space != space:
            # As far as is known, BPF has the other one for this process.
            with suppress(OSError), self._rule_maps.generations.changing(space):
                self._rule_maps.load_space(pid, image.space)
        self._checked[pid] = time.monotonic(), image.space

    def unwind_thread(
        self, key: ThreadKey, stack: ScannedStack, is_32_bit_program: bool, has_run: Callable[[], bool]
    ) -> UnwoundStack | None:
        """Unwind the stack of a blocked thread; None if it has exited or run meanwhile."""
        try:
            self._processes.check(key.pid)
            return self._unwind_thread(key, stack, is_32_bit_program, has_run)
        except TimeoutError:
            return UNREAD

    def _unwind_thread(
        self, key: ThreadKey, stack: ScannedStack, is_32_bit_program: bool, has_run: Callable[[], bool]
    ) -> UnwoundStack | None:
        with Memory(key.tid) as memory:
            if self._rule_maps is None or is_32_bit_program:
                addresses = frame_pointers.unwind(memory, stack.ip, stack.bp, "i386" if is_32_bit_program else _MACHINE)
                found = UnwoundStack(self._processes.frames(key.pid, addresses), layout.END_LINKED)
                found = _mark_forbidden(found) if memory.is_forbidden else found
                python_frames = self._python_frames_of_thread(key.pid, stack, memory)
                return None if has_run() else self._with_python(key.pid, found, python_frames, memory)
            python_frames = self._python_frames_of_thread(key.pid, stack, memory)
            callee_saved = stack.callee_saved[: len(_NATIVE.callee_saved)]
            state = State(stack.ip, stack.sp, stack.bp, callee_saved, stack.arguments[0])
            found = self._unwind(key.pid, state, memory.stack, memory, has_run, is_kept=not python_frames)
            found = _mark_forbidden(found) if found and memory.is_forbidden else found
            return found and self._with_python(key.pid, found, python_frames, memory)

    def follow_known_paths(
        self, ids: Ints, registers: Rows, note_read: Callable[[int], None]
    ) -> Iterator[tuple[UnwoundStack, Ints]]:
        """Unwind the stacks of blocked threads (pid, tid) that take a known path.

        Yields each stack and the positions of its threads. Calls `note_read` with each pid before its memory is read,
        and with 0 afterwards. Threads of CPython are left out, because their stack has more than what the path says.
        The caller must check afterwards which threads have run meanwhile.
        """
        of_leaves: defaultdict[tuple[int, int], list[tuple[Ints, Stacks]]] = defaultdict(list)
        for pid in distinct_codes(ids[:, 0]).tolist():
            at = np.flatnonzero(ids[:, 0] == pid)
            note_read(pid)
            space = self._space_without_python(pid)
            for ip in np.unique(registers["ip"][at]).tolist() if space else ():
                paths = self._known_paths.of(space, ip)
                rows = at[registers["ip"][at] == ip]
                size_bytes = max((path.span_bytes for path in paths), default=0)
                for part in np.array_split(rows, -(-len(rows) // _MOST_COMPARED)) if paths else ():
                    words, is_read = read_stacks(int(ids[part[0], 1]), registers["sp"][part], size_bytes)
                    read = part[is_read], Stacks(chosen(registers, part[is_read]), words[is_read])
                    if len(part) == len(rows):  # most likely there are more in other processes
                        of_leaves[space, ip].append(read)
                    else:
                        yield from self._followed(space, ip, [read])
                    if sum(len(some) for some, _ in of_leaves[space, ip]) >= _MOST_COMPARED:
                        yield from self._followed(space, ip, of_leaves.pop((space, ip)))
            note_read(0)
        for (space, ip), parts in of_leaves.items():
            if parts:
                yield from self._followed(space, ip, parts)

    def _followed(
        self, space: int, ip: int, parts: Sequence[tuple[Ints, Stacks]]
    ) -> Iterator[tuple[UnwoundStack, Ints]]:
        """Yield the stacks of a leaf that take a known path, and the positions that `parts` gives their threads."""
        positions = np.concatenate([rows for rows, _ in parts])
        for path, which in self._known_paths.follow(space, ip, Stacks.all([stacks for _, stacks in parts])):
            yield UnwoundStack(path.frames, layout.END_COMPLETE), positions[which]

    def _space_without_python(self, pid: int) -> int:
        """Return the address space layout of a process (Image.space); 0 if unknown, or if the process runs CPython."""
        if self._rule_maps is None:
            return 0
        try:
            self._processes.check(pid)
            image = self._processes.image(pid)
        except TimeoutError:
            return 0
        frames = self._cpython_frames
        return 0 if image is None or frames.load(pid, image) or frames.unexamined_binary(image) else image.space

    def frames(self, pid: int, addresses: Sequence[int]) -> tuple[Frame, ...]:
        """Return the frames of addresses from BPF."""
        return self._processes.frames(pid, addresses)

    def unwind_copy(self, copy: Copy) -> UnwoundStack | None:
        """Unwind the stack of a copy.

        None if its process has exited or runs another program by now, or the register layout of its program is unknown.
        """
        try:
            self._processes.check(copy.pid)
            with Memory(copy.pid) as memory:  # to read its code, which is still there if the thread has exited
                before = self.frames(copy.pid, copy.unwound)
                found = self._unwind(copy.pid, copy.state, copy.read, memory, _never, before)
                found = found and self._with_python(copy.pid, found, copy.python_frames, memory)
        except TimeoutError:
            return UNREAD
        if found is None or not found.frames:  # there is no longer any code at its leaf
            return None
        end = layout.END_NOT_COPIED if found.end == layout.END_MEMORY else found.end
        return found._replace(end=end, unsure=found.unsure or copy.unsure)

    def _unwind(
        self,
        pid: int,
        state: State,
        read: Read,
        memory: Memory,
        has_run: Callable[[], bool],
        before: tuple[Frame, ...] = (),
        *,
        is_kept: bool = False,
    ) -> UnwoundStack | None:
        """Unwind from `state`; `is_kept`: other stacks may take the same path."""
        image = self._processes.image(pid)
        if image is None:
            return UnwoundStack(NOT_PERMITTED, layout.END_BAD_PC) if is_closed(pid) else None

        def frame_of(address: int) -> Frame | None:
            return self._processes.frame_at(pid, image, address)

        self._find_python(pid, image)
        guess = self._method == "auto"
        self._rule_cache.begin_stack()
        self._processes.missed_code = False
        sp, tops = state.sp, [state.sp]

        def noted_read(address: int, size_bytes: int) -> bytes:
            tops.append(address + size_bytes)
            return read(address, size_bytes)

        result = step.unwind(state, frame_of, self._rule, noted_read, memory.code, _NATIVE, guess, len(before))
        if has_run():
            return None
        is_doubted = self._rule_cache.is_uncertain or (result.end == layout.END_BAD_PC and self._processes.missed_code)
        if result.frames and not is_doubted:
            self._load_rules(pid, image.space, result)
            if is_kept and result.end == layout.END_COMPLETE and len(result.by_rule) == len(result.frames):
                self._known_paths.add(image.space, result.by_rule, max(tops) - sp, result.frames)
        return UnwoundStack((*before, *result.frames), result.end, result.unsure)

    def read_python_names(self, pid: int, addresses: Collection[int]) -> None:
        """Read the names of Python functions, given the addresses of their code objects."""
        with suppress(TimeoutError):
            self._processes.check(pid)
            with Memory(pid) as memory:
                self._cpython_frames.read(pid, addresses, memory)

    def hangs(self, pid: int) -> bool:
        """Whether reads of the process hang. Thread-safe."""
        return self._processes.hangs(pid)

    def _find_python(self, pid: int, image: Image) -> None:
        """Have BPF read Python frames if the process runs Python."""
        while not self._cpython_frames.load(pid, image) and (label := self._cpython_frames.unexamined_binary(image)):
            file = self._files.get(label)
            self._cpython_frames.add_interpreter(label, self._binaries.python(file) if file else None)

    def _python_frames_of_thread(self, pid: int, stack: ScannedStack, memory: Memory) -> tuple[int, ...]:
        image = self._processes.image(pid)
        if image is None:
            return ()
        self._find_python(pid, image)
        return self._cpython_frames.frames_of_thread(pid, stack.thread, memory)

    def _with_python(self, pid: int, found: UnwoundStack, python_frames: Sequence[int], memory: Memory) -> UnwoundStack:
        if not python_frames:
            return found
        self._cpython_frames.read(pid, code_objects(python_frames), memory)
        frames, end, unsure = found
        if len(frames) + len(python_frames) > layout.FRAMES:  # BPF truncates it in the same way
            frames, end = frames[: layout.FRAMES - len(python_frames)], layout.END_TRUNCATED
        mixed = self._cpython_frames.merge(pid, frames, python_frames, end == layout.END_COMPLETE)
        return UnwoundStack(mixed.frames, end, unsure or mixed.unsure)

    def _rule(self, frame: Frame) -> Rule:
        file = None if frame.name else self._files.get(frame.file)
        return NO_RULE if file is None else self._rule_cache.rule_at(file, frame.offset)

    def _load_rules(self, pid: int, space: int, result: UnwindResult) -> None:
        """Load the rules of a stack into BPF, so that BPF can unwind it the next time.

        All rules of the stack are loaded, because BPF may have evicted some that were loaded before.
        """
        if self._rule_maps is None:
            return
        checked_s = self._checked[pid][0] if pid in self._checked else time.monotonic()
        self._checked[pid] = checked_s, space
        with suppress(OSError):  # full at the moment: BPF will send another copy
            self._rule_maps.load_rules(space, result.steps)
            self._rule_maps.load_space(pid, space)
