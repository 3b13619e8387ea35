"""Symbols and debug information of one binary, read by libdw through ctypes.

libdw (elfutils; Debian's libdw1) looks for separate debug files by build ID and by .gnu_debuglink, and reads
the compressed symbols that Fedora and RHEL keep in .gnu_debugdata. If no symbol covers an address, libdw returns the
nearest one before it, so symbol sizes are checked here: a wrong name is worse than none.
"""

import ctypes as ct
import os
import struct
import zlib
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from offtop.errors import KernelError
from offtop.kernel.binary import cpython_layout, elf, go_symbols, inlines
from offtop.kernel.bpf.distribution import install_command

_Pointer = ct.c_void_p
_SEGMENT_LOAD = 1
_SEGMENT_EH_FRAME = 0x6474E550
"""PT_GNU_EH_FRAME."""
_EXECUTABLE = 1
_CODE_TYPES = (0, 2, 10)
"""Symbol types that can be code: no type (as in assembly), function, indirect function."""


_INSTALLED = "/usr/lib/debug"
_debug_directories = ct.c_char_p(f":.debug:{_INSTALLED}".encode())
"""Where to look for separate debug files, like libdw's default: next to the binary, and by build ID."""
_READ_BYTES = 1 << 20


class Symbol(NamedTuple):
    name: str
    """As in the symbol table: mangled, and untrusted."""
    start: int
    """ELF virtual address."""
    size_bytes: int


_FIND_ARGUMENTS = (
    *(_Pointer, _Pointer, ct.c_char_p, ct.c_uint64, ct.c_char_p, ct.c_char_p, ct.c_uint32),
    ct.POINTER(_Pointer),
)
"""Argument types of find_debuginfo in `struct Dwfl_Callbacks` (elfutils/libdwfl.h)."""


class _Callbacks(ct.Structure):
    _fields_ = (
        ("find_elf", _Pointer),
        ("find_debuginfo", _Pointer),
        ("section_address", _Pointer),
        ("debuginfo_path", _Pointer),
    )


class _Sym(ct.Structure):
    """ELF's `Elf64_Sym`, which libelf uses for 32-bit files, too."""

    _fields_ = (
        ("name", ct.c_uint32),
        ("info", ct.c_uint8),
        ("other", ct.c_uint8),
        ("section", ct.c_uint16),
        ("value", ct.c_uint64),
        ("size", ct.c_uint64),
    )
    info: int
    size: int


class _Segment(NamedTuple):
    offset: int
    address: int
    size_bytes: int


@cache
def library() -> ct.CDLL:
    """Load libdw. Raises KernelError if it is not installed."""
    # With this variable libdw would ask debuginfod servers over the network, and wait for them.
    os.environ.pop("DEBUGINFOD_URLS", None)
    try:
        dw = ct.CDLL("libdw.so.1")
    except OSError as error:
        raise KernelError(
            f"The library libdw is missing. Install it: {install_command('libdw1', 'elfutils-libs')}"
        ) from error
    dw.dwfl_begin.restype = _Pointer
    dw.dwfl_begin.argtypes = [ct.POINTER(_Callbacks)]
    dw.dwfl_report_elf.restype = _Pointer
    dw.dwfl_report_elf.argtypes = [_Pointer, ct.c_char_p, ct.c_char_p, ct.c_int, ct.c_uint64, ct.c_bool]
    dw.dwfl_report_end.argtypes = [_Pointer, _Pointer, _Pointer]
    dw.dwfl_end.restype = None
    dw.dwfl_end.argtypes = [_Pointer]
    dw.dwfl_module_addrinfo.restype = ct.c_char_p
    dw.dwfl_module_addrinfo.argtypes = [_Pointer, ct.c_uint64, ct.POINTER(ct.c_uint64), ct.POINTER(_Sym)] + [
        _Pointer
    ] * 3
    dw.dwfl_module_getsymtab.argtypes = [_Pointer]
    dw.dwfl_module_build_id.argtypes = [_Pointer, ct.POINTER(ct.POINTER(ct.c_ubyte)), ct.POINTER(ct.c_uint64)]
    dw.dwfl_module_getelf.restype = _Pointer
    dw.dwfl_module_getelf.argtypes = [_Pointer, ct.POINTER(ct.c_uint64)]
    dw.dwelf_elf_gnu_debuglink.restype = ct.c_char_p
    dw.dwelf_elf_gnu_debuglink.argtypes = [_Pointer, ct.POINTER(ct.c_uint32)]
    dw.dwfl_standard_find_debuginfo.argtypes = _FIND_ARGUMENTS
    dw.dwfl_module_info.restype = ct.c_char_p
    dw.dwfl_module_info.argtypes = [_Pointer] * 7 + [ct.POINTER(ct.c_char_p)]
    inlines.declare(dw)
    return dw


@cache
def _callbacks() -> _Callbacks:
    dw = library()
    address = [
        ct.cast(function, _Pointer).value
        for function in (dw.dwfl_build_id_find_elf, _find_debug_file, dw.dwfl_offline_section_address)
    ]
    return _Callbacks(*address, ct.addressof(_debug_directories))


_debug_files: dict[int, int] = {}
"""libdwfl module → descriptor of the debug file next to the binary."""


@ct.CFUNCTYPE(ct.c_int, *_FIND_ARGUMENTS)
def _find_debug_file(
    module: int,
    user_data: int,
    module_name: bytes,
    base: int,
    file_name: bytes,
    link: bytes | None,
    checksum: int,
    found_name: Any,
) -> int:
    """Return a descriptor of the debug file that libdw finds, or of the one that the parent sent; -1 if there is none.

    The parent opens only the file next to the binary, not one that this file refers to in turn (as with dwz).
    """
    fd: int = library().dwfl_standard_find_debuginfo(
        module, user_data, module_name, base, file_name, link, checksum, found_name
    )
    if fd >= 0 or link is None or module not in _debug_files or _checksum(_debug_files[module]) != checksum:
        return fd
    found_name[0] = _libc().strdup(link)
    return os.dup(_debug_files[module])


def _checksum(fd: int) -> int:
    """Return the CRC-32 of a whole file, as in .gnu_debuglink."""
    found, at = 0, 0
    while part := os.pread(fd, _READ_BYTES, at):
        found, at = zlib.crc32(part, found), at + len(part)
    return found


@cache
def _libc() -> ct.CDLL:
    libc = ct.CDLL(None)
    libc.strdup.restype = _Pointer
    libc.strdup.argtypes = [ct.c_char_p]
    return libc


def add_debug_directory(directory: str) -> None:
    """Also search `.build-id` in this directory for separate debug files. Does nothing if it is empty."""
    if directory:
        _debug_directories.value = os.fsencode(f":.debug:{_INSTALLED}:{directory}")


def debug_directories() -> list[str]:
    """Return the directories that are searched for separate debug files, except the binary's own."""
    return [directory for directory in os.fsdecode(_debug_directories.value or b"").split(":") if "/" in directory]


class Binary:
    """One open ELF file, which must be closed. For use by one thread at a time."""

    def __init__(self, fd: int, path: str) -> None:
        """Take over `fd`. `path` is only used to find a debug file next to it.

        Raises OSError if it is not an ELF file that libdw can read, KernelError if libdw is not installed.
        """
        self._dwfl, self._fd, self._path = None, fd, path
        self.module = 0
        self._go: go_symbols.Functions | None = None
        try:
            self._dw = library()
            self._code, self.machine = _headers(fd)
            with suppress(ValueError):
                self._go = go_symbols.Functions(fd)
            self._dwfl = self._dw.dwfl_begin(ct.byref(_callbacks()))
            name = os.fsencode(path.replace("\0", ""))
            self.module = self._dw.dwfl_report_elf(self._dwfl, b"", name, fd, 0, True)
            if not self.module:
                raise OSError(f"libdw cannot read {path!r}")
        except BaseException:
            os.close(fd)
            self.close()
            raise
        self._dw.dwfl_report_end(self._dwfl, None, None)
        self._inlined: inlines.Inlined | None = None

    @property
    def debug_link(self) -> str:
        """The name in .gnu_debuglink of the file with symbols and debug information.

        Empty if there is none.
        """
        bias, checksum = ct.c_uint64(), ct.c_uint32()
        elf_file = self._dw.dwfl_module_getelf(self.module, ct.byref(bias))
        return os.fsdecode(self._dw.dwelf_elf_gnu_debuglink(elf_file, ct.byref(checksum)) or b"")

    def take_debug_file(self, fd: int) -> None:
        """Take over the debug file next to the binary, and use it if its checksum matches."""
        self._close_debug_file()
        _debug_files[self.module] = fd

    def _close_debug_file(self) -> None:
        if self.module in _debug_files:
            os.close(_debug_files.pop(self.module))

    def close(self) -> None:
        """Idempotent."""
        if self._go:
            self._go.close()
            self._go = None
        if self._dwfl:
            self._close_debug_file()
            self._dw.dwfl_end(self._dwfl)
            self._dwfl = None

    def address(self, offset: int) -> int | None:
        """Return the ELF virtual address of the code at a file offset; None if there is no code."""
        for segment in self._code:
            if segment.offset <= offset < segment.offset + segment.size_bytes:
                return segment.address + offset - segment.offset
        return None

    def symbol(self, address: int) -> Symbol | None:
        """Return the function whose bytes include `address`, or None if no symbol covers it."""
        into, sym = ct.c_uint64(), _Sym()
        name: bytes | None = self._dw.dwfl_module_addrinfo(
            self.module, address, ct.byref(into), ct.byref(sym), None, None, None
        )
        if not name or into.value >= sym.size or sym.info & 15 not in _CODE_TYPES:
            return self._go_function(address)
        return Symbol(name.decode(errors="surrogateescape"), address - into.value, sym.size)

    def _go_function(self, address: int) -> Symbol | None:
        try:
            found = self._go.at(address) if self._go else None
        except ValueError:
            return None
        return Symbol(*found) if found else None

    def inlined(self, address: int) -> list[str]:
        """Return the functions inlined into `symbol(address)` at `address`, innermost first."""
        if self._inlined is None:
            self._inlined = inlines.Inlined(self._dw, self.module)
        return self._inlined.names(address)

    def build_id_to_fetch(self) -> str:
        """Return the build ID, in hex, for fetching a debug file.

        Empty if there is debug information already.
        """
        bits, address = ct.POINTER(ct.c_ubyte)(), ct.c_uint64()
        if self._dw.dwfl_module_getdwarf(self.module, ct.byref(address)):
            return ""
        length: int = self._dw.dwfl_module_build_id(self.module, ct.byref(bits), ct.byref(address))
        return bytes(bits[:length]).hex() if length > 0 else ""

    def has_symbols(self) -> bool | None:
        """Whether the binary or its debug file has a complete symbol table.

        None if that is unknown. Without one, there are only the functions that it exports.
        """
        self._dw.dwfl_module_getsymtab(self.module)  # looks for a debug file
        debug_file = ct.c_char_p()
        self._dw.dwfl_module_info(self.module, *[None] * 6, ct.byref(debug_file))
        if debug_file.value or self._go:
            return True
        with suppress(ValueError, struct.error):
            _, sections = elf.sections(self._fd)
            return b".symtab" in sections or b".gnu_debugdata" in sections
        return None

    def python(self) -> str:
        """Return cpython_layout.serialize for the binary."""
        with suppress(ValueError, struct.error):
            return cpython_layout.serialize(cpython_layout.interpreter(self._fd, self._path))
        return ""

    def code(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes of the file; fewer at its end."""
        return os.pread(self._fd, size_bytes, offset)


def has_unwind_table(fd: int) -> bool:
    """Whether an ELF file loads .eh_frame and its search table.

    Raises OSError if it is not ELF.
    """
    return any(kind == _SEGMENT_EH_FRAME for kind, *_ in _program_headers(fd)[0])


def _headers(fd: int) -> tuple[list[_Segment], int]:
    """Return the segments of code that the file loads, and e_machine.

    Raises OSError if it is not ELF.
    """
    headers, machine = _program_headers(fd)
    code = [
        _Segment(offset, address, size_bytes)
        for kind, flags, offset, address, size_bytes in headers
        if kind == _SEGMENT_LOAD and flags & _EXECUTABLE
    ]
    return code, machine


def _program_headers(fd: int) -> tuple[list[tuple[int, int, int, int, int]], int]:
    """Return (type, flags, offset, address, bytes) of each segment, and e_machine.

    Raises OSError if it is not ELF.
    """
    head = os.pread(fd, 64, 0)
    try:
        if head[:4] != b"\x7fELF":
            raise OSError("not an ELF file")
        order = {1: "<", 2: ">"}.get(head[5], "<")
        machine: int = struct.unpack_from(order + "H", head, 18)[0]
        if head[4] == 2:
            at, size, count = *struct.unpack_from(order + "Q", head, 32), *struct.unpack_from(order + "HH", head, 54)
            form, picked = order + "IIQQQQQQ", (0, 1, 2, 3, 5)
        else:
            at, size, count = *struct.unpack_from(order + "I", head, 28), *struct.unpack_from(order + "HH", head, 42)
            form, picked = order + "IIIIIIII", (0, 6, 1, 2, 4)
        if size != struct.calcsize(form):
            raise OSError("not an ELF file: its program headers have a strange size")
        table = os.pread(fd, size * count, at)
        found: list[tuple[int, int, int, int, int]] = []
        for n in range(count):
            fields = struct.unpack_from(form, table, n * size)
            kind, flags, offset, address, size_bytes = (int(fields[i]) for i in picked)
            found.append((kind, flags, offset, address, size_bytes))
    except (struct.error, IndexError, OverflowError) as error:
        raise OSError(f"a broken ELF header: {error}") from error
    return found, machine
