"""Python frames: their names, and their position in the native stack.

When BPF unwinds a thread's stack, it also reads the thread's Python frames (bpf/python.c), as addresses of code
objects. Their names are read from the process when they are first seen, and checked every 10 s, because another code
object may be at the same address by then. In the native stack, each call of the interpreter
(`_PyEval_EvalFrameDefault`) is replaced by the Python functions that ran in it. All other frames stay, including those
of C code between two Python functions.
"""

import itertools
import struct
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple

from offtop.kernel.binary import cpython_layout
from offtop.kernel.binary.cpython_layout import Interpreter, Layout
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.procfs.memory import Memory
from offtop.kernel.symbols.mappings import Image
from offtop.kernel.unwind.stack_memos import RuleGenerations
from offtop.model.values.stack import Frame
from offtop.printable import printable

_CHECK_AGAIN_S = 10.0
_MOST_PROCESSES = 4096
_MOST_SPACES = 16_384
_MOST_NAMES = 16_384
"""Limit for one process."""
_LONGEST_NAME, _LONGEST_PATH = 200, 400
"""Limits in characters."""
_MOST_THREADS = 1024
"""How many of an interpreter's threads are searched for one."""
_WORD, _LINE = struct.Struct("=Q"), struct.Struct("=i")
_KINDS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
"""Bytes per character → encoding."""
_NAMELESS = Frame("[python]", 0)
"""Stands for a function whose name could not be read."""
_MORE = Frame("[python]", 0, "(more functions of Python)")
"""Stands for the outermost functions if there are too many, or their memory could not be read."""
_STATE_SHIFTS = (2, 16, 8)
"""Candidates for the bit offset of `kind` in a string's state: up to 3.13, from 3.14 on, and another possible one."""


class MergedStack(NamedTuple):
    """A native stack with Python frames inserted."""

    frames: tuple[Frame, ...]
    unsure: bool = False
    """Whether the Python frames, although in order, may not be between the right C frames."""
    unnamed: tuple[int, ...] = ()
    """Addresses of code objects whose names have not been read yet; their frames are left out."""


class _Code(NamedTuple):
    """A code object whose name has been read."""

    identity: tuple[int, ...]
    frame: Frame


class _Process(NamedTuple):
    """A process that runs CPython."""

    identity: tuple[bytes, ...]
    """Identity of the program (see mappings.Image)."""
    space: int
    label: str
    """Label of the binary that contains CPython."""
    interpreter: Interpreter
    base: int
    """Added to the relative addresses in Interpreter to get those in the process."""
    codes: dict[int, _Code]
    generation: int = 0
    """Incremented when names have changed."""


class CPythonFrames:
    """The processes that run CPython, and the names of their code objects.

    Thread-safe. Only `read`, `check_names` and `frames_of_thread` read a process's memory.
    """

    def __init__(self, table: Map | None, generations: RuleGenerations | None = None) -> None:
        """`table`: the BPF map `python_processes`, or None if BPF cannot read Python frames.

        `generations`: None if BPF does not use unwind rules.
        """
        self._table, self._generations = table, generations
        self._known: dict[str, Interpreter | None] = {}
        """Label of a binary → where CPython is in it."""
        self._processes: dict[int, _Process] = {}
        self._checked_s: dict[int, float] = {}
        """Process → when its names were last checked against its memory, oldest first."""
        self._without_python: set[int] = set()
        """Address spaces (mappings.Image.space) without CPython."""
        self._to_examine: dict[int, None] = {}
        """Processes that may run CPython and are to be examined."""
        self._lock = threading.Lock()

    def unexamined_binary(self, image: Image) -> str:
        """Return the label of a binary that may contain CPython and has not been examined.

        Empty if there is none.
        """
        if self._table is None or image.space in self._without_python:
            return ""
        return next((one for one in image.labels if one not in self._known and cpython_layout.may_be_python(one)), "")

    def add_interpreter(self, label: str, found: Interpreter | None) -> None:
        """Store where CPython is in a binary; None if it is not there."""
        self._known[label] = found

    def load(self, pid: int, image: Image) -> bool:
        """Have BPF read a process's Python frames if it runs a known CPython. Return whether it does."""
        if self._table is None or image.space in self._without_python:
            return False
        with self._lock:
            known = self._processes.get(pid)
            if known and known.identity == image.identity and known.space == image.space:
                return True
            for label, start, offset in zip(image.labels, image.starts, image.offsets, strict=True):
                found = self._known.get(label)
                if found is None:
                    continue
                same = known is not None and known.identity == image.identity
                codes, generation = (known.codes, known.generation) if known and same else ({}, 0)
                process = _Process(image.identity, image.space, label, found, start - offset, codes, generation)
                self._forget(pid)
                while len(self._processes) >= _MOST_PROCESSES:
                    self._forget(next(iter(self._processes)))
                self._processes[pid] = process
                self._checked_s[pid] = time.monotonic()
                self._load(pid)
                return True
            if not any(one not in self._known and cpython_layout.may_be_python(one) for one in image.labels):
                if len(self._without_python) >= _MOST_SPACES:
                    self._without_python.clear()
                self._without_python.add(image.space)
        return False

    def request_examination(self, pid: int, frames: Iterable[Frame]) -> None:
        """Queue a process for examination if these frames suggest that it runs CPython."""
        if self._table is None or pid in self._processes or pid in self._to_examine:
            return
        if any(
            cpython_layout.may_be_python(frame.file) and self._known.get(frame.file, _UNEXAMINED) is not None
            for frame in frames
        ):
            self._to_examine[pid] = None

    @property
    def due_pid(self) -> int:
        """PID of the next process to examine or check, or 0 if none is due."""
        if self._to_examine:
            return next(iter(self._to_examine))
        with self._lock:
            pid = next(iter(self._checked_s), 0)
            return pid if pid and time.monotonic() - self._checked_s[pid] > _CHECK_AGAIN_S else 0

    def check_names(self, pid: int) -> None:
        """Check whether a process's code objects still have the names that were read."""
        self._to_examine.pop(pid, None)
        with self._lock:
            process = self._processes.get(pid)
            if process is None or self._checked_s.pop(pid, None) is None:
                return
            self._checked_s[pid] = time.monotonic()
            codes = [*process.codes.items()]
        with Memory(pid) as memory:
            changed = [at for at, code in codes if _identity(memory, process, at) != code.identity]
        if changed:
            for at in changed:
                process.codes.pop(at, None)
            self.change_generation(pid)

    def postpone(self, pid: int) -> None:
        """Postpone a process that could not be examined."""
        self._to_examine.pop(pid, None)
        with self._lock:
            if self._checked_s.pop(pid, None) is not None:
                self._checked_s[pid] = time.monotonic()

    def change_generation(self, pid: int) -> None:
        """Make BPF assign new IDs to the process's stacks from now on, although their addresses are the same.

        This is because names have changed. Stacks that were read before keep their names.
        """
        with self._lock:
            process = self._processes.get(pid)
            if process is not None:
                self._processes[pid] = process._replace(generation=process.generation + 1)
                self._load(pid)

    def forget(self, pid: int) -> None:
        """Forget a process that has exited or called exec."""
        self._to_examine.pop(pid, None)
        with self._lock:
            self._forget(pid)

    def read(self, pid: int, addresses: Collection[int], memory: Memory) -> None:
        """Read the names of the code objects at these addresses."""
        process = self._processes.get(pid)
        if process is None:
            return
        if len(process.codes) > _MOST_NAMES:
            process.codes.clear()
        for at in addresses:
            if at not in process.codes:
                identity = _identity(memory, process, at)
                process.codes[at] = _Code(identity, _frame(memory, process.interpreter.layout, identity))

    def frames_of_thread(self, pid: int, thread: int, memory: Memory) -> tuple[int, ...]:
        """Read the Python frames of a blocked thread, in the format of BPF.

        `thread`: Python's identifier of the thread (ScannedStack.thread).
        """
        process = self._processes.get(pid)
        if process is None or not thread:
            return ()
        return tuple(_frames_of(memory, process.interpreter.layout, process.base + process.interpreter.runtime, thread))

    @property
    def gil_pids(self) -> list[int]:
        """Processes for which `gil_layout` is known."""
        with self._lock:
            return [pid for pid, process in self._processes.items() if process.interpreter.layout.gil_holder]

    def gil_layout(self, pid: int) -> tuple[int, Layout] | None:
        """Return the address of _PyRuntime in a process, and the layout that leads to the holder of its GIL.

        None if the process runs no CPython that publishes that, or has not been examined.
        """
        process = self._processes.get(pid)
        if process is None or not process.interpreter.layout.gil_holder:
            return None
        return process.base + process.interpreter.runtime, process.interpreter.layout

    def merge(self, pid: int, frames: tuple[Frame, ...], python_frames: Sequence[int], is_whole: bool) -> MergedStack:
        """Insert Python frames, in the format of BPF, into the native stack `frames`.

        `is_whole`: the stack reaches to the thread's first function.
        """
        process = self._processes.get(pid)
        if process is None or not python_frames:
            return MergedStack(frames)
        calls, is_cut = _calls(python_frames)
        named_calls: list[list[Frame]] = []
        unnamed: list[int] = []
        for call in calls:
            named = [process.codes.get(at) for at in call]
            unnamed += [at for at, code in zip(call, named, strict=True) if code is None]
            named_calls.append([code.frame for code in named if code])
        if is_cut and named_calls:
            named_calls[-1].append(_MORE)
        return _insert_calls(frames, named_calls, process, is_whole, is_cut)._replace(unnamed=tuple(unnamed))

    def _load(self, pid: int) -> None:
        process = self._processes[pid]
        found = process.interpreter
        with suppress(OSError, struct.error):
            if self._table is not None:
                packed = found.pack(process.base + found.runtime, process.generation)
                # Until now, its stacks were found without Python frames.
                with self._generations.changing(process.space) if self._generations else nullcontext():
                    self._table.update(pid.to_bytes(4, "little"), packed)

    def _forget(self, pid: int) -> None:
        self._processes.pop(pid, None)
        self._checked_s.pop(pid, None)


NO_CPYTHON_FRAMES = CPythonFrames(None)
"""Used if Python frames are not read."""


def code_objects(python_frames: Iterable[int]) -> set[int]:
    """Return the addresses of code objects in frames from BPF."""
    return {word & layout.PYTHON_ADDRESS for word in python_frames} - {0}


_UNEXAMINED = Interpreter((0, 0), 0, 0, 0, 0, Layout(*[0] * 17))
"""Stands for a binary that has not been examined."""


def _calls(python_frames: Sequence[int]) -> tuple[list[list[int]], bool]:
    """Group code objects by calls of the interpreter, leaf first. Also return whether outer ones are missing."""
    calls: list[list[int]] = [[]]
    is_cut = False
    for word in python_frames:
        code = word & layout.PYTHON_ADDRESS
        if code:
            calls[-1].append(code)
        if word & layout.PYTHON_ENTRY:
            calls.append([])
        elif not code:
            is_cut = True
    while calls and not calls[-1]:  # 3.14 has a frame without a function at the start of a thread
        calls.pop()
    return calls, is_cut


def _insert_calls(
    frames: tuple[Frame, ...], calls: Sequence[Sequence[Frame]], process: _Process, is_whole: bool, is_cut: bool
) -> MergedStack:
    """Replace the interpreter's native frames by calls, starting at the leaf.

    Calls without a native frame are added to the last one: in order, but C functions may be between the wrong ones.
    """
    start, end = process.interpreter.eval_start, process.interpreter.eval_end
    is_own = [frame.file == process.label for frame in frames]
    eval_frames = [n for n, frame in enumerate(frames) if is_own[n] and start <= frame.offset < end]
    rest = tuple(itertools.chain.from_iterable(calls[len(eval_frames) :]))
    replaced = {n: tuple(call) or (frames[n],) for n, call in zip(eval_frames, calls, strict=False)}
    if rest and not is_whole:
        replaced[len(frames)] = rest
    elif rest and eval_frames:
        replaced[eval_frames[-1]] += rest
    elif rest:  # this interpreter runs Python code in other functions
        n = next((n for n, own in enumerate(is_own) if own), len(frames))
        replaced[n] = (*rest, *frames[n : n + 1])
    whole = [replaced.get(n, frames[n : n + 1]) for n in range(len(frames) + 1)]
    is_sure = len(eval_frames) == len(calls) or (is_cut if len(eval_frames) > len(calls) else not is_whole)
    return MergedStack(tuple(itertools.chain.from_iterable(whole)), not is_sure)


def _frames_of(memory: Memory, known: Layout, runtime: int, thread: int) -> Iterable[int]:
    """Find a thread's Python frames, like read_python_frames() in bpf/python.c."""
    interpreter, state, frame = _word(memory, runtime + known.interpreters), 0, 0
    for _ in range(_MOST_THREADS):
        if frame or not interpreter:
            break
        if not state:
            state = _word(memory, interpreter + known.threads)
        if state and _word(memory, state + known.thread_id) == thread:
            holder = (
                state if known.frame_holder == layout.PYTHON_NO_HOLDER else _word(memory, state + known.frame_holder)
            )
            frame = _word(memory, holder + known.frame) if holder else 0
        if state and not frame:
            state = _word(memory, state + known.next_thread)
        if not state:
            interpreter = _word(memory, interpreter + known.next_interpreter)
    for left in reversed(range(layout.PYTHON_FRAMES)):
        if not frame:
            return
        call_byte = memory.code(frame + known.call_byte, 1)
        if not call_byte:
            yield layout.PYTHON
            return
        caller = _word(memory, frame + known.caller)
        if caller and not left:
            yield layout.PYTHON
            return
        code = _word(memory, frame + known.code) & known.code_mask & layout.PYTHON_ADDRESS
        if known.call_kind == layout.PYTHON_CALL_SHIM:
            yield layout.PYTHON | (layout.PYTHON_ENTRY if call_byte[0] >= layout.PYTHON_SHIM_OWNER else code)
        else:
            is_entry = known.call_kind == layout.PYTHON_CALL_ALWAYS or call_byte[0]
            yield layout.PYTHON | code | (layout.PYTHON_ENTRY if is_entry else 0)
        frame = caller


def _identity(memory: Memory, process: _Process, at: int) -> tuple[int, ...]:
    """Return what distinguishes a code object from a later one at its address.

    Empty if there is no code object.
    """
    known = process.interpreter.layout
    if _word(memory, at + cpython_layout.TYPE_OFFSET) != process.base + process.interpreter.code_type:
        return ()
    line = memory.code(at + known.line, _LINE.size)
    if len(line) < _LINE.size:
        return ()
    return _word(memory, at + known.file_name), _word(memory, at + known.name), *_LINE.unpack(line)


def _frame(memory: Memory, known: Layout, identity: tuple[int, ...]) -> Frame:
    """Return the frame of a code object's function."""
    if not identity:
        return _NAMELESS
    file_at, name_at, line = identity
    file, name = _string(memory, known, file_at, _LONGEST_PATH), _string(memory, known, name_at, _LONGEST_NAME)
    if not name:
        return _NAMELESS
    source = file.rpartition("/")[2]
    shown_name = f"{name} ({source}:{line})" if source else name
    return Frame(printable(file) or _NAMELESS.file, max(0, line), printable(shown_name))


def _string(memory: Memory, known: Layout, at: int, most: int) -> str:
    """Read up to `most` characters of a string, from a path the last ones.

    Empty if it cannot be read.
    """
    length = _word(memory, at + cpython_layout.LENGTH_OFFSET)
    state = int.from_bytes(memory.code(at + cpython_layout.STATE_OFFSET, 4), "little")
    for shift in _STATE_SHIFTS:
        bits = state >> shift
        kind, is_compact, is_ascii = bits & 7, bits >> 3 & 1, bits >> 4 & 1
        if kind in _KINDS and is_compact:
            begin = known.ascii_bytes if is_ascii else known.compact_bytes
            size = min(length, most)
            raw = memory.code(at + begin + (length - size) * kind * (most == _LONGEST_PATH), size * kind)
            return raw.decode(_KINDS[kind], errors="replace")
    return ""


def _word(memory: Memory, address: int) -> int:
    """Read a word; 0 if that fails."""
    raw = memory.code(address, _WORD.size)
    return int(_WORD.unpack(raw)[0]) if len(raw) == _WORD.size else 0
