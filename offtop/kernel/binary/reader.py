"""The symbol reader: a child process that reads untrusted binaries, as the user nobody.

libdw maps files, so truncating a file kills the process that reads it, and a crafted binary may take that process over.
Therefore the reader has no secrets and no descriptors but those of such binaries, and is confined (confinement.py). It
answers one request at a time, and exits when the socket is closed.
"""

import ctypes as ct
import os
import socket
import struct
import sys

from offtop.heap import trim_heap
from offtop.kernel.binary import cfi, dwfl, unwind_rules
from offtop.kernel.binary.cfi import Unwinding
from offtop.kernel.binary.confinement import confine_and_report, send, set_name
from offtop.kernel.binary.demangle import demangled
from offtop.model.values.stack import one_name

HEAD = struct.Struct("=cI")
"""Kind of the request, and the number that the parent chose for the file. The payload follows, depending on the
kind:"""
OPEN = b"o"
"""Open a file. Payload: its path, with the descriptor attached. Reply: empty if it cannot be read; otherwise YES,
followed by a space and the name of the file with its symbols, if it names one (.gnu_debuglink)."""
DEBUG_FILE = b"b"
"""Pass the file with that name, which is next to the binary, as a descriptor. No reply."""
CLOSE = b"c"
"""Close a file. No payload, no reply."""
BUILD_ID = b"w"
"""No payload. Reply: the build ID, in hex, if the file has no debug information but could have some elsewhere."""
NAMES = b"n"
"""Payload: 8-byte offsets. Replies: a name for each (model.stack.one_name), or an empty string."""
RULES = b"r"
"""Payload: 8-byte offsets. Replies: the unwind rule of each (unwind_rules.serialize)."""
SYMBOLS = b"s"
"""No payload. Reply: YES if there is a complete symbol table, NO if there is none, empty if that is unknown."""
PYTHON = b"p"
"""No payload. Reply: where CPython is in the file (cpython_layout.serialize), or empty if it has none."""
YES, NO = "yes", "no"

_LONGEST_REQUEST = 1 << 16
_LONGEST_NAME = 4_000
"""Limit in bytes. All replies to one request must fit into one message, which can have 200 KB."""
NICE = 10
"""Niceness: the workload comes first, but names must still arrive on a busy machine."""
_NO_NETWORK = 0x48000000
"""CLONE_NEWNET | CLONE_NEWIPC, for unshare(2)."""


def main() -> None:
    """Serve requests until the socket is closed.

    The last three arguments are the niceness, a directory of debug files or an empty string, and the socket's
    descriptor.
    """
    with socket.socket(fileno=int(sys.argv[-1])) as parent:
        # Load everything that needs files or executable memory before the process is confined.
        dwfl.library()
        cfi.library()
        demangled("_Z1fv")
        dwfl.add_debug_directory(sys.argv[-2])
        ct.CDLL(None).unshare(_NO_NETWORK)  # fails without CAP_SYS_ADMIN
        os.nice(int(sys.argv[-3]))
        confine_and_report(parent, most_file_bytes=0, readable=dwfl.debug_directories())
        set_name("offtop-reader")
        binaries: dict[int, tuple[dwfl.Binary, Unwinding]] = {}
        while True:
            request, fds, _, _ = socket.recv_fds(parent, _LONGEST_REQUEST, 1)
            if not request:
                return
            if answers := _answers(binaries, request, fds):
                send(parent, *answers)


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
        trim_heap()
        return []
    binary, unwinding = binaries[number]
    if kind == DEBUG_FILE:
        binary.take_debug_file(fds[0])
        return []
    if kind == BUILD_ID:
        return [binary.build_id_to_fetch()]
    if kind == SYMBOLS:
        return [{True: YES, False: NO, None: ""}[binary.has_symbols()]]
    if kind == PYTHON:
        return [binary.python()]
    offsets = [offset for (offset,) in struct.iter_unpack("=Q", rest)]
    if kind == RULES:
        return [unwind_rules.serialize(unwinding.rule(offset)) for offset in offsets]
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
