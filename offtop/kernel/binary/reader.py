"""The symbol reader: a child process that reads untrusted binaries for offtop, as nobody, and may die of them.

libdw maps files, so that one which is truncated meanwhile kills the process that reads it, and whoever writes a
binary may mean to take that process over. This one holds no secrets and no descriptors but those of such binaries,
and is confined (confinement.py). It answers one request after another, and ends when the socket does. Its first
message says whether it could be confined: YES and what is lacking, or NO and why.
"""

import ctypes as ct
import os
import socket
import struct
import sys

from offtop.kernel.binary import cfi, dwfl, unwind_rules
from offtop.kernel.binary.cfi import Unwinding
from offtop.kernel.binary.confinement import RefusedError, confine, set_name
from offtop.kernel.binary.demangle import demangled
from offtop.model.values.stack import one_name

HEAD = struct.Struct("=cI")
"""What is asked, and which file it is about, by a number that the parent chose. More follows:"""
OPEN = b"o"
"""The path, and the descriptor beside it. Answered by YES or nothing; behind YES and a space the name of the file that
has its symbols, if there is such a link (.gnu_debuglink)."""
BESIDE = b"b"
"""The descriptor of the file of that name, which lies beside the binary. Not answered."""
CLOSE = b"c"
"""Nothing more, and no answer."""
WANTED = b"w"
"""Nothing more. Answered by the build id, in hex, if the file could have debug information elsewhere and has none."""
NAMES = b"n"
"""Offsets of 8 bytes. Answered by the names (model.stack.one_name), with nothing for those that have none."""
RULES = b"r"
"""Offsets of 8 bytes. Answered by the rules there (rules.written)."""
SYMBOLS = b"s"
"""Nothing more. Answered by YES if a table of all of its functions is here, NO if there is none, else by nothing."""
PYTHON = b"p"
"""Nothing more. Answered by where CPython is in the file (cpython.written), if it is."""
YES, NO = "yes", "no"

_LONGEST_REQUEST = 1 << 16
_LONGEST_NAME = 4_000
"""Bytes. What one request asks for must go into one message, of 200 KB at most."""
NICE = 10
"""Whoever works comes first; low enough not to be in the way, and not so low that names never come."""
_NO_NETWORK = 0x48000000
"""Of unshare(2): CLONE_NEWNET and CLONE_NEWIPC."""


def main() -> None:
    """Serve the socket whose descriptor is the last argument but one; before it stands how nice to be, behind it where
    debug files may be, too."""
    with socket.socket(fileno=int(sys.argv[-2])) as parent:
        # What needs files or executable memory is loaded before it is confined.
        dwfl.library()
        cfi.library()
        demangled("_Z1fv")
        dwfl.look_in(sys.argv[-1])
        ct.CDLL(None).unshare(_NO_NETWORK)  # not allowed to all
        os.nice(int(sys.argv[-3]))
        try:
            lacking = confine(most_file_bytes=0, readable=dwfl.debug_directories())
        except RefusedError as refused:
            parent.send(f"\0{NO}\0{refused}".encode())
            return
        parent.send("\0".join(("", YES, *lacking)).encode())
        set_name("offtop-reader")
        binaries: dict[int, tuple[dwfl.Binary, Unwinding]] = {}
        while True:
            request, fds, _, _ = socket.recv_fds(parent, _LONGEST_REQUEST, 1)
            if not request:
                return
            # Each answer follows a zero byte: then none is an empty message, which would look like the end.
            if answer := "".join(f"\0{one}" for one in _answers(binaries, request, fds)):
                parent.send(answer.encode(errors="backslashreplace"))


def _answers(binaries: dict[int, tuple[dwfl.Binary, Unwinding]], request: bytes, fds: list[int]) -> list[str]:
    kind, number = HEAD.unpack_from(request)
    rest = request[HEAD.size :]
    if kind == OPEN:
        try:
            binary = dwfl.Binary(fds[0], os.fsdecode(rest))
            binaries[number] = binary, Unwinding(binary)
        except OSError:
            return [""]
        return [f"{YES} {binary.debug_link}".rstrip()]
    if kind == CLOSE:
        binaries.pop(number)[0].close()
        return []
    binary, unwinding = binaries[number]
    if kind == BESIDE:
        binary.take_debug_file(fds[0])
        return []
    if kind == WANTED:
        return [binary.wanted()]
    if kind == SYMBOLS:
        return [{True: YES, False: NO, None: ""}[binary.has_symbols()]]
    if kind == PYTHON:
        return [binary.python()]
    offsets = [offset for (offset,) in struct.iter_unpack("=Q", rest)]
    if kind == RULES:
        return [unwind_rules.written(unwinding.rule(offset)) for offset in offsets]
    return [_name(binary, offset) for offset in offsets]


def _name(binary: dwfl.Binary, offset: int) -> str:
    address = binary.address(offset)
    symbol = None if address is None else binary.symbol(address)
    if address is None or symbol is None:
        return ""
    names = [demangled(name) for name in (*binary.inlined(address), symbol.name)]
    return one_name([_cut(name, _LONGEST_NAME // len(names)) for name in names])


def _cut(name: str, most_bytes: int) -> str:
    raw = name.encode(errors="backslashreplace")
    return name if len(raw) <= most_bytes else f"{raw[: most_bytes - 3].decode(errors='ignore')}…"
