"""Memory layout of CPython's threads, frames, code objects and strings (3.9 to 3.14).

From 3.13 on an interpreter publishes its offsets (_Py_DebugOffsets, meant for out-of-process tools). For older ones the
offsets are listed here, from the 64-bit headers of CPython 3.9.18, 3.10.13, 3.11.2, 3.11.7 and 3.12.1
(Include/internal/pycore_runtime.h, pycore_interp.h, pycore_frame.h, Include/cpython/pystate.h, code.h,
unicodeobject.h). Within one minor version these structs do not change. Free-threaded builds have other object layouts
and are not supported.
"""

import platform
import re
import struct
from typing import NamedTuple

from offtop.kernel.binary import elf
from offtop.kernel.bpf import layout

_RUNTIME, _EVAL, _VERSION, _CODE_TYPE = b"_PyRuntime", b"_PyEval_EvalFrameDefault", b"Py_Version", b"PyCode_Type"
_OF_NAME = re.compile(r"python(3)\.(\d{1,2})")
_COOKIE = b"xdebugpy"
_OFFSETS = struct.Struct("=8s47Q")
"""_Py_DebugOffsets, up to the last field that is needed."""
_LARGEST_OFFSET = 1 << 24
_PAST_RUNTIME = 1 << 40
_NO_TAGS = (1 << 64) - 1


class Layout(NamedTuple):
    """Offsets in bytes. The first twelve are in the order of struct python in bpf/offcpu.h."""

    interpreters: int
    """In _PyRuntime: the pointer to the first interpreter."""
    code_mask: int
    next_interpreter: int
    threads: int
    next_thread: int
    thread_id: int
    frame: int
    frame_holder: int
    code: int
    caller: int
    call_byte: int
    """In a frame: a byte that shows whether a call of the interpreter began with it."""
    call_kind: int
    """layout.PYTHON_CALL_*"""
    file_name: int
    """In a code object, like the next two: a string."""
    name: int
    """A string; the qualified name from 3.11 on."""
    line: int
    """First line of the function, 32 bits."""
    ascii_bytes: int
    """Where the characters of an ASCII string begin."""
    compact_bytes: int
    """Where the characters of any other compact string begin."""
    gil_locked: int = 0
    """In an interpreter: whether its GIL is held, 32 bits. Known from 3.13 on, like the next two."""
    gil_holder: int = 0
    """In an interpreter: the thread that holds its lock, or held it last."""
    native_id: int = 0
    """In a thread: its tid."""


_NO_HOLDER = layout.PYTHON_NO_HOLDER
_FROM_3_9 = Layout(
    *(32, _NO_TAGS, 0, 8, 8, 176, 24, _NO_HOLDER, 32, 24, 0, layout.PYTHON_CALL_ALWAYS), *(104, 112, 40, 48, 72)
)
LAYOUTS = {
    (3, 9): _FROM_3_9,
    (3, 10): _FROM_3_9,
    (3, 11): Layout(
        *(40, _NO_TAGS, 0, 16, 8, 152, 8, 56, 32, 48, 68, layout.PYTHON_CALL_FLAG), *(112, 128, 72, 48, 72)
    ),
    (3, 12): Layout(*(40, _NO_TAGS, 0, 72, 8, 136, 0, 56, 0, 8, 70, layout.PYTHON_CALL_SHIM), *(112, 128, 68, 40, 56)),
}
_PUBLISHED = {
    (3, 13): (_NO_TAGS, (5, 8, 9, 21, 24, 23, 30, 29, 33, 35, 37, 39), (17, 18, 25)),
    (3, 14): (_NO_TAGS & ~3, (5, 8, 9, 24, 27, 26, 33, 32, 36, 40, 42, 44), (18, 19, 28)),
}
"""Version → which bits of the word in a frame are the code object's address, and at which words of _Py_DebugOffsets
these offsets are: interpreters_head; next, threads_head of an interpreter; next, thread_id, current_frame of a thread;
executable, previous, owner of a frame; filename, qualname, firstlineno of a code object. Then gil_runtime_state_locked
and gil_runtime_state_holder of an interpreter; native_thread_id of a thread."""
_HAS_FS_BASE = platform.machine() == "x86_64"
_WITHOUT_NATIVE_ID = (3, 9), (3, 10)
"""Versions without native_thread_id, which is the result of gettid(). It follows thread_id directly since 3.11
(Include/cpython/pystate.h), and identifies a thread on machines other than x86-64."""
STATE_OFFSET, LENGTH_OFFSET, TYPE_OFFSET = 32, 16, 8
"""Offsets of a string's state and of its length in characters; of any object's type."""


class Interpreter(NamedTuple):
    """Where CPython is in a binary."""

    version: tuple[int, int]
    runtime: int
    """_PyRuntime, less the difference between address and file offset of the code. Add where the code is mapped, and
    subtract the file offset of that mapping, to get its address in a process."""
    code_type: int
    """PyCode_Type, relative like `runtime`."""
    eval_start: int
    """File offset of _PyEval_EvalFrameDefault, the function that runs Python code."""
    eval_end: int
    """File offset of its end."""
    layout: Layout

    def pack(self, runtime: int, generation: int) -> bytes:
        """Pack layout.PYTHON_LAYOUT for a process whose _PyRuntime is at address `runtime`."""
        first, *rest = self.layout[:12]
        return layout.PYTHON_LAYOUT.pack(runtime + first, *rest, generation & 0xFFFF, 0, 0, 0)


def may_be_python(label: str) -> bool:
    """Whether a binary may contain CPython, judging by its path."""
    name = label.rpartition("/")[2]
    return "python" in name and ".cpython-" not in name  # extension modules have .cpython- in their names


def interpreter(fd: int, path: str) -> Interpreter | None:
    """Find CPython in an ELF file; None if it has none, or an unknown version.

    Raises ValueError or struct.error if the file is broken.
    """
    found = elf.symbols(fd, (_RUNTIME, _EVAL, _VERSION, _CODE_TYPE))
    if not found.keys() >= {_RUNTIME, _EVAL, _CODE_TYPE}:
        return None
    version = (0, 0)
    if _VERSION in found:
        number = int.from_bytes(elf.read_at(fd, found[_VERSION].address, 4), "little")
        version = number >> 24, number >> 16 & 0xFF
    elif match := _OF_NAME.search(path.rpartition("/")[2]):
        version = int(match[1]), int(match[2])
    runtime = found[_RUNTIME].address
    known = LAYOUTS.get(version) or _published(version, elf.read_at(fd, runtime, _OFFSETS.size))
    if known and not _HAS_FS_BASE:
        known = known._replace(thread_id=known.thread_id + 8) if version not in _WITHOUT_NATIVE_ID else None
    start = elf.offset_of(fd, found[_EVAL].address)
    if known is None or start is None:
        return None
    bias = found[_EVAL].address - start
    return Interpreter(
        *(version, runtime - bias, found[_CODE_TYPE].address - bias, start, start + found[_EVAL].size_bytes), known
    )


def serialize(found: Interpreter | None) -> str:
    """Serialize an Interpreter for the parent; an empty string for None."""
    return "" if found is None else " ".join(map(str, (*found.version, *found[1:5], *found.layout)))


def parse(text: str) -> Interpreter | None:
    """Parse the result of `serialize`, which is untrusted; None if it is invalid."""
    try:
        major, minor, *numbers = (int(word) for word in text.split())
        where, offsets = numbers[:4], numbers[4:]
        found = Interpreter._make(((major, minor), *where, Layout._make(offsets)))
    except (ValueError, TypeError):
        return None
    plain = found.layout._replace(code_mask=0, frame_holder=0)
    is_sane = all(0 <= number < _LARGEST_OFFSET for number in plain) and 0 <= found.layout.code_mask <= _NO_TAGS
    is_sane = is_sane and 0 <= found.layout.frame_holder <= _NO_HOLDER
    return found if is_sane and all(abs(number) < _PAST_RUNTIME for number in where) else None


def _published(version: tuple[int, int], raw: bytes) -> Layout | None:
    if version not in _PUBLISHED or len(raw) < _OFFSETS.size:
        return None
    cookie, *words = _OFFSETS.unpack(raw)
    is_free_threaded = words[1]
    if cookie != _COOKIE or is_free_threaded or (words[0] >> 24, words[0] >> 16 & 0xFF) != version:
        return None
    mask, where, of_gil = _PUBLISHED[version]
    head, next_interp, threads, next_thread, id_, frame, code, caller, owner, file_name, name, line = (
        words[at - 1] for at in where
    )
    return Layout(
        *(head, mask, next_interp, threads, next_thread, id_, frame, _NO_HOLDER, code, caller, owner),
        *(layout.PYTHON_CALL_SHIM, file_name, name, line, *LAYOUTS[3, 12][15:17]),
        *(words[at - 1] for at in of_gil),
    )
