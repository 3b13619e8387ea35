"""The symbol reader: a child process that reads strangers' binaries for offtop, as nobody, and may die of them.

libdw maps files, so that one which is truncated meanwhile kills the process that reads it, and whoever writes a
binary may mean to take that process over. This one holds no secrets and no descriptors but those of such binaries,
and may do no more than anybody. It answers one request after another, and ends when the socket does.
"""

import ctypes as ct
import os
import resource
import signal
import socket
import struct
import sys
from contextlib import suppress

from offtop.kernel import dwfl, rules
from offtop.kernel.cfi import Unwinding
from offtop.kernel.demangle import demangled
from offtop.model.stack import one_name

HEAD = struct.Struct("=cI")
"""What is asked, and which file it is about, by a number that the parent chose. More follows:"""
OPEN = b"o"
"""The path, and the descriptor beside it. Answered by YES or nothing."""
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
_MOST_MEMORY = 4 << 30
"""Of addresses: a small file may unpack to a large one."""
NICE = 10
"""Whoever works comes first; low enough not to be in the way, and not so low that names never come."""
_NOBODY = 65534
_NO_NETWORK = 0x48000000
"""Of unshare(2): CLONE_NEWNET and CLONE_NEWIPC."""
_CAPABILITY_VERSION_3 = 0x20080522
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_NAME, _SET_NO_NEW_PRIVILEGES = 1, 4, 15, 38
"""Of prctl: PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_NO_NEW_PRIVS (linux/prctl.h)."""


def main() -> None:
    """Serve the socket whose descriptor is the last argument but one; before it stands how nice to be, behind it where
    debug files may be, too."""
    with socket.socket(fileno=int(sys.argv[-2])) as parent:
        dwfl.library()
        dwfl.look_in(sys.argv[-1])
        ct.CDLL(None).unshare(_NO_NETWORK)  # not allowed to all
        os.nice(int(sys.argv[-3]))
        parent.send(f"\0{YES}".encode())  # it has begun
        give_up_privileges("offtop-reader", most_file_bytes=0)
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
        return [YES]
    if kind == CLOSE:
        binaries.pop(number)[0].close()
        return []
    binary, unwinding = binaries[number]
    if kind == WANTED:
        return [binary.wanted()]
    if kind == SYMBOLS:
        return [{True: YES, False: NO, None: ""}[binary.has_symbols()]]
    if kind == PYTHON:
        return [binary.python()]
    offsets = [offset for (offset,) in struct.iter_unpack("=Q", rest)]
    if kind == RULES:
        return [rules.written(unwinding.rule(offset)) for offset in offsets]
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


def give_up_privileges(name: str, most_file_bytes: int) -> None:
    """As many as it can; what the process needs is loaded by now, and nobody might not be let at it."""
    libc = ct.CDLL(None)
    limits = ((resource.RLIMIT_AS, _MOST_MEMORY), (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_FSIZE, most_file_bytes))
    for what, most in limits:
        resource.setrlimit(what, (most, most))
    with suppress(OSError):  # a binary can be made to fill the memory: then let the kernel end this process first
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"1000")
        os.close(fd)
    if os.geteuid() == 0:
        with suppress(OSError):  # a container may forbid it
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))  # those that another user than root may have
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # ctrl-Z is for offtop, which may be let go on alone
    settings = (
        (_SET_NO_NEW_PRIVILEGES, 1),
        (_SET_DUMPABLE, 0),  # no core dump, and no other nobody may look in
        (_SET_DEATH_SIGNAL, signal.SIGKILL),  # last, because the kernel forgets it with every change of user
    )
    for setting, value in settings:
        libc.prctl(setting, *(ct.c_ulong(word) for word in (value, 0, 0, 0)))
    libc.prctl(_SET_NAME, name.encode())  # from here on it can be told by
