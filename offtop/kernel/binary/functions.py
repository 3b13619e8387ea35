"""Finds one function of a binary: the file offsets at which it is entered and left.

A function can be given by its demangled or its linker name. Copies that the compiler specialized (.constprop, .isra)
are watched together with it, and so is one that a linker renamed (.llvm). Parts of it (.cold, .part) are never mistaken
for the function itself.

No uretprobe is used (bpf/within.c explains why), so every instruction that may leave the function must be found: its
returns, and the returns of functions that it tail-calls. A jump into another file, or through a pointer, counts as the
end of the function.

The binary is untrusted, so a child process reads it as the user nobody. The child reads only that binary, so a crafted
one can give wrong addresses for its own functions at most.
"""

import difflib
import functools
import importlib.util
import json
import lzma
import os
import re
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from offtop.errors import UsageError
from offtop.kernel.binary import elf
from offtop.kernel.binary.confinement import (
    NOT_NOBODY,
    RefusedError,
    confine_and_report,
    report_of,
    send,
    set_name,
)
from offtop.kernel.binary.demangle import demangled
from offtop.kernel.sandbox import Sandbox
from offtop.printable import printable

_DEBUG = Path("/usr/lib/debug/.build-id")
_OBJECT, _FUNCTION, _IFUNC = 1, 2, 10
_NO_CODE = frozenset({0, _OBJECT, 5, 6})
_X86_64 = 62  # EM_X86_64
_GO = frozenset({b".gopclntab", b".data.rel.ro.gopclntab", b".go.buildinfo"})
_MOST_FOLLOWED, _MOST_ENDS = 64, 200
"""How many jumps to functions are followed, and how many instructions may leave the function."""
_MOST_BYTES = 1 << 22
"""Size limit of one function."""
_MOST_NAMED, _MOST_NEAR, _MOST_COMPARED = 10, 4, 4000
_LONGEST_SHOWN = 120
_LONGEST_WHY = 2000
_SUFFIXES = re.compile(rb"(?:\.(?:llvm|lto_priv|localalias|__uniq|constprop|isra|cold|part)(?:\.\d+)?)+\Z")
"""Suffixes that compilers and linkers append to a name."""
_COPY, _COLD, _PIECE = re.compile(rb"\.(constprop|isra)\b"), re.compile(rb"\.cold\b"), re.compile(rb"\.(cold|part)\b")
"""Kinds of suffixes. _COPY: a specialized copy, in addition to the function or instead of it. _COLD: code that the
function jumps to and that is never called. _PIECE: _COLD, or a part of the function whose rest was inlined into its
callers. With any other suffix it is the function itself."""
_ROW = struct.Struct("<ii")
_BEGIN_S, _ANSWER_S = 15.0, 60.0
"""Deadlines for starting the child, on a busy machine, and for its answer."""


class Function(NamedTuple):
    """A function in one file. Its addresses are file offsets."""

    fd: int
    file: str
    """Printable path."""
    name: str
    """The functions that match the requested name: copies are included."""
    begins: tuple[int, ...]
    """Where it is entered: several offsets if there are copies of it."""
    ends: tuple[int, ...]
    """Instructions that may leave it."""
    elsewhere: int
    """How many jumps lead to code that is not followed, including conditional jumps, which are not in `ends`."""
    lacking: tuple[str, ...] = ()
    """The measures that failed to confine the process that read the file."""


class NoSuchFunctionError(UsageError):
    """The file has no such function, but another file may have it."""


def find(fd: int, path: str, name: str) -> Function:
    """Find the function called `name` in an open file.

    Raises NoSuchFunctionError if there is none, and UsageError with the reason if it cannot be watched.
    """
    capstone = importlib.util.find_spec("capstone")
    assert capstone and capstone.origin, "a dependency"
    packages = [str(Path(capstone.origin).parents[1])]  # only the child loads it (10 MB)
    try:
        child = Sandbox("binary.functions", [str(fd), path, name], fds=[fd], packages=packages)
        try:
            lacking = report_of(child, _BEGIN_S)
            (answer,) = child.receive(_ANSWER_S)
        finally:
            child.end()
        reply = json.loads(answer)
        if reply["why"]:
            why = printable(str(reply["why"])[:_LONGEST_WHY])
            raise UsageError(why) if reply["is_there"] else NoSuchFunctionError(why)
        size_bytes = os.fstat(fd).st_size
        begins, ends = (tuple(int(offset) for offset in reply[key]) for key in ("begins", "ends"))
        if not all(0 <= offset < size_bytes for offset in (*begins, *ends)) or len(begins + ends) > _MOST_ENDS:
            raise ValueError("beyond the file")
        name, elsewhere = short(str(reply["name"])), int(reply["elsewhere"])
        return Function(fd, short(path), name, begins, ends, elsewhere, tuple(lacking))
    except RefusedError as refused:
        raise UsageError(f"--within: {short(path)} was not read: {NOT_NOBODY.format(refused)}") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"--within: {short(path)} could not be read completely. Name another file") from None


def main() -> None:
    """Run as the child: send a function as JSON.

    The last four arguments are a descriptor, its path, the name of the function, and the socket's descriptor.
    """
    from offtop.kernel.binary import x86

    fd, path, name, parent = int(sys.argv[-4]), *sys.argv[-3:-1], socket.socket(fileno=int(sys.argv[-1]))
    # Load the libraries that these two need before the child confines itself.
    demangled("_Z1fv")
    x86.exits(b"\xc3", 0)
    reply: dict[str, Any] = {"why": "", "is_there": True}
    confine_and_report(parent, most_file_bytes=elf.MOST_BYTES, readable=[str(_DEBUG)])
    set_name("offtop-reader")
    try:
        found = _Binary(fd, path).function(name)
        reply |= {"name": short(found.name), "begins": found.begins, "ends": found.ends, "elsewhere": found.elsewhere}
    except UsageError as error:
        reply |= {"why": str(error)[:_LONGEST_WHY], "is_there": not isinstance(error, NoSuchFunctionError)}
    send(parent, json.dumps(reply))


class _Binary:
    """One open file."""

    def __init__(self, fd: int, path: str) -> None:
        """Raises UsageError if its functions cannot be watched."""
        self.fd, self.shown = fd, short(path)
        try:
            self.sections = elf.sections(fd)[1]
            machine = struct.unpack("<H", os.pread(fd, 2, 18))[0]
        except (ValueError, struct.error, OSError):
            raise UsageError(
                f"--within: {self.shown} is no 64-bit program or library (ELF). A script's functions run in its "
                "interpreter: use -p and --filter stack="
            ) from None
        if machine != _X86_64:
            raise UsageError(f"--within: {self.shown} is not for x86-64. Name another file")
        if _GO & self.sections.keys():
            raise UsageError(
                f"--within: {self.shown} is a Go program: goroutines move between threads and stacks, so calls cannot "
                "be followed. Use -p and --filter stack="
            )

    @functools.cached_property
    def symbols(self) -> Sequence[elf.SymbolEntry]:
        """All symbols, including those of its debug file."""
        found = _symbols_of(self.fd)
        if small := self._small_table():
            fd = os.memfd_create("symbols")
            try:
                os.write(fd, small)
                found += _symbols_of(fd)
            finally:
                os.close(fd)
        with suppress(OSError):
            fd = os.open(self._debug_file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found += _symbols_of(fd)
            finally:
                os.close(fd)
        return found

    def _small_table(self) -> bytes:
        """Return the compressed symbol table of Fedora's stripped files (.gnu_debugdata)."""
        section = self.sections.get(b".gnu_debugdata")
        with suppress(lzma.LZMAError, OSError):
            if section:
                packed = os.pread(self.fd, min(section.size_bytes, elf.MOST_BYTES), section.offset)
                return lzma.LZMADecompressor().decompress(packed, elf.MOST_BYTES)
        return b""

    @property
    def _debug_file(self) -> Path:
        """Path of its debug file, which exists only if it is installed."""
        note = self.sections.get(b".note.gnu.build-id")
        build_id = os.pread(self.fd, min(note.size_bytes, 64), note.offset)[16:].hex() if note else ""
        return _DEBUG / build_id[:2] / f"{build_id[2:]}.debug"

    def function_at(self, address: int) -> tuple[int, int] | None:
        """Return begin and end of the function at this address, from .eh_frame or a symbol.

        None if that is unknown, and for a PLT stub, which leads to another file.
        """
        for name, section in self.sections.items():
            if name.startswith(b".plt") and section.address <= address < section.address + section.size_bytes:
                return None
        if found := self._unwound(address):
            return found
        for one in self.symbols:
            if one.kind == _FUNCTION and one.is_defined and one.address <= address < one.address + one.size_bytes:
                return one.address, one.address + one.size_bytes
        return None

    def _unwound(self, address: int) -> tuple[int, int] | None:
        """Look up the function in the sorted table of .eh_frame_hdr (LSB 5, 10.6.2)."""
        section, table = self.sections.get(b".eh_frame_hdr"), self._table
        if section is None or table[:4] != b"\x01\x1b\x03\x3b":
            return None
        low, high = 0, min(int.from_bytes(table[8:12], "little"), (len(table) - 12) // _ROW.size)
        while low < high:
            middle = (low + high) // 2
            is_before = section.address + _ROW.unpack_from(table, 12 + middle * _ROW.size)[0] <= address
            low, high = (middle + 1, high) if is_before else (low, middle)
        if not low:
            return None
        begins, entry = (at + section.address for at in _ROW.unpack_from(table, 12 + (low - 1) * _ROW.size))
        with suppress(struct.error, ValueError, OSError):
            relative, size_bytes = struct.unpack("<iI", elf.read_at(self.fd, entry + 8, 8))
            if entry + 8 + relative == begins and begins <= address < begins + size_bytes:
                return begins, begins + size_bytes
        return None

    @functools.cached_property
    def _table(self) -> bytes:
        section = self.sections[b".eh_frame_hdr"]
        return os.pread(self.fd, min(section.size_bytes, elf.MOST_BYTES), section.offset)

    def function(self, name: str) -> Function:
        """Find the function called `name`.

        Raises NoSuchFunctionError if there is none, and UsageError if there is more than one or it cannot be watched.
        """
        at: dict[int, elf.SymbolEntry] = {}
        for one in _symbols_called(name, [one for one in self.symbols if one.is_defined]):
            at.setdefault(one.address, one)
        found = sorted(at.values(), key=_is_copy)
        if not found:
            raise self._no_such_function(name)
        if any(one.kind == _IFUNC for one in found):
            raise UsageError(
                f"--within: {short(name)} of {self.shown} was bound to an implementation at program start (IFUNC). "
                "Name that, as __memcpy_avx_unaligned_erms"
            )
        if len({_stem(one) for one in found}) > 1 or sum(not _is_copy(one) for one in found) > 1:
            raise self._ambiguous(name, found)
        if found[0].kind in _NO_CODE:
            raise UsageError(f"--within: {short(name)} of {self.shown} is data, not a function. Name a function")
        if _COLD.search(_suffix(found[0])):
            raise UsageError(
                f"--within: {short(name)} of {self.shown} is code that a function jumps to, not a function. Name "
                f"{short(demangled(os.fsdecode(_stem(found[0]))))}"
            )
        begins, ends, elsewhere = self._find_entries_and_exits(found, name)
        return Function(self.fd, self.shown, ", ".join(map(_demangled_name, found)), begins, ends, elsewhere)

    def _find_entries_and_exits(
        self, ones: Sequence[elf.SymbolEntry], name: str
    ) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Return begins, ends and elsewhere (see Function) of a function and its copies.

        Raises UsageError.
        """
        from offtop.kernel.binary import x86

        own: set[tuple[int, int]] = set()
        for one in ones:
            extent = (one.address, one.address + one.size_bytes) if one.size_bytes else self.function_at(one.address)
            if extent is None or extent[1] - extent[0] > _MOST_BYTES:
                raise UsageError(
                    f"--within: {short(name)} of {self.shown} has no known end (it may be assembly code). Name "
                    "what calls it"
                )
            own.add(extent)
        first = {begins for begins, _ in own}
        ends: set[int] = set()
        elsewhere: set[int] = set()
        unwatched = 0
        """Conditional jumps out of it: a probe on one cannot tell whether it is taken, and one on its target would also
        fire for other callers."""
        starts: set[int] = set()
        targets: set[int] = set()
        followed, left = {*own}, [*own]
        while left:
            begins, behind = function = left.pop()
            try:
                found = x86.exits(elf.read_at(self.fd, begins, behind - begins), begins)
            except (ValueError, struct.error):
                raise self._unreadable(name) from None
            starts |= found.starts
            targets.update(jump.to for jump in found.jumps if jump.to is not None)
            ends.update(found.returns)
            if (found.jumps_to_start and function in own) or any(jump.to in first for jump in found.jumps):
                raise UsageError(
                    f"--within: {short(name)} of {self.shown} jumps back to where it begins, so its calls cannot "
                    "be told apart. Name what calls it"
                )
            for jump in found.jumps:
                to = None if jump.to is None else self.function_at(jump.to)
                if to in followed:
                    continue
                if to is not None and len(followed) < _MOST_FOLLOWED and self._is_piece(to[0], ones):
                    followed.add(to)
                    left.append(to)
                elif jump.always:
                    elsewhere.add(jump.at)
                else:
                    unwatched += 1
        if any(begins <= to < behind and to not in starts for to in targets for begins, behind in followed):
            raise self._unreadable(name)  # a jump from one part to another leads into the middle of an instruction
        if first & (ends | elsewhere):
            raise UsageError(
                f"--within: {short(name)} of {self.shown} is a single instruction, a return or a jump. Name what "
                "calls it, or what it jumps to"
            )
        at = {address: elf.offset_of(self.fd, address) for address in (*first, *ends, *elsewhere)}
        if len(at) > _MOST_ENDS:
            raise UsageError(
                f"--within: {short(name)} of {self.shown} has {len(at):,} entries and exits. Name what calls it"
            )
        begins_at = [offset for address in first if (offset := at.pop(address)) is not None]
        if len(begins_at) < len(first):
            raise UsageError(f"--within: the code of {short(name)} is not in {self.shown}. Name another function")
        ends_at = sorted(offset for offset in at.values() if offset is not None)
        return tuple(sorted(begins_at)), tuple(ends_at), len(elsewhere) + unwatched

    def _unreadable(self, name: str) -> UsageError:
        return UsageError(
            f"--within: {short(name)} of {self.shown} has instructions that offtop cannot read, so its exits "
            "are unknown. Name what calls it"
        )

    def _is_piece(self, address: int, ones: Sequence[elf.SymbolEntry]) -> bool:
        """Whether a part (.cold, .part) of one of these functions is at this address."""
        whole = [one.name.split(b".cold")[0].split(b".part.")[0] for one in ones]
        parts = tuple(name + word for name in whole for word in (b".cold", b".part."))
        return any(one.address == address and one.name.startswith(parts) for one in self.symbols)

    def _no_such_function(self, name: str) -> NoSuchFunctionError:
        elsewhere = any(one.name == os.fsencode(name) for one in self.symbols if not one.is_defined)
        if elsewhere:
            return NoSuchFunctionError(
                f"--within: {self.shown} imports {short(name)} from a library. Name that, as libc.so.6:{short(name)}"
            )
        functions = [one for one in self.symbols if one.kind == _FUNCTION and one.is_defined]
        if pieces := _symbols_called(name, functions, are_pieces=True):
            parts = sorted({short(_demangled_name(one)) for one in pieces if not _COLD.search(_suffix(one))})
            left = f", except {', '.join(parts[:_MOST_NAMED])}. Name that, or" if parts else ". Name"
            return NoSuchFunctionError(
                f"--within: {self.shown} has no separate {short(name)}: the compiler inlined it into the functions "
                f"that call it{left} one of those"
            )
        near = _near(name, [one for one in functions if not _COLD.search(_suffix(one))])
        remedy = f" Is it {' or '.join(near)}?" if near else ""
        if b".symtab" not in self.sections and not self._debug_file.exists():
            remedy += " It is stripped: for more, install its debug symbols (a -dbgsym, -dbg or -debuginfo package)"
        elif not near:
            remedy += f" List them with: nm -C {self.shown}"
        return NoSuchFunctionError(f"--within: {self.shown} has no function {short(name)}.{remedy}")

    def _ambiguous(self, name: str, found: Sequence[elf.SymbolEntry]) -> UsageError:
        each = {one.address: one for one in found}
        listed = [f"{short(_demangled_name(one))} ({one.address:#x})" for one in [*each.values()][:_MOST_NAMED]]
        more = f" and {len(each) - _MOST_NAMED} more" if len(each) > _MOST_NAMED else ""
        return UsageError(
            f"--within: {self.shown} has {len(each)} functions {short(name)}: {', '.join(listed)}{more}. "
            "Give the full name or the address of one"
        )


def _symbols_called(name: str, symbols: Sequence[elf.SymbolEntry], are_pieces: bool = False) -> list[elf.SymbolEntry]:
    """Return the symbols that `name` refers to.

    These are tried in order until one matches: the address, or the linker name with its suffix; the linker name
    without suffixes, or the full demangled name; the demangled name without arguments; that name without namespaces and
    template arguments. `are_pieces`: return only parts (.cold, .part) of such a function. Otherwise parts are returned
    only if `name` has their suffix.
    """
    raw = os.fsencode(name)
    if not are_pieces:
        exact = [one for one in symbols if one.name == raw and _suffix(one)]
        if re.fullmatch("0x[0-9a-fA-F]{1,16}", name):
            exact = [one for one in symbols if one.address == int(name, 16) and one.kind == _FUNCTION][:1]
        if exact:
            return exact
    last = re.search(r"(\w+)$", _plain(name))
    levels: tuple[list[elf.SymbolEntry], list[elf.SymbolEntry], list[elf.SymbolEntry]] = ([], [], [])
    for one in symbols:
        if one.name == raw:
            levels[0].append(one)
            continue
        if one.kind not in (_FUNCTION, _IFUNC) or (last and last[1].encode(errors="replace") not in one.name):
            continue
        if are_pieces != bool(_PIECE.search(_suffix(one))):
            continue
        demangled_name = demangled(os.fsdecode(_stem(one)))
        bare = _bare(demangled_name)
        if name in (os.fsdecode(_stem(one)), demangled_name):
            levels[0].append(one)
        elif bare == name:
            levels[1].append(one)
        elif f"::{_plain(bare)}".endswith(f"::{name}"):
            levels[2].append(one)
    return next((level for level in levels if level), levels[0])


def _suffix(one: elf.SymbolEntry) -> bytes:
    """Return what a compiler or linker appended to the name; empty if nothing."""
    found = _SUFFIXES.search(one.name)
    return found[0] if found else b""


def _stem(one: elf.SymbolEntry) -> bytes:
    """Return the name without that suffix."""
    return one.name.removesuffix(_suffix(one))


def _is_copy(one: elf.SymbolEntry) -> bool:
    return bool(_COPY.search(_suffix(one)))


def _demangled_name(one: elf.SymbolEntry) -> str:
    return demangled(os.fsdecode(one.name))


def _bare(called: str) -> str:
    """Strip the arguments and all that follows them, and a template's return type."""
    depth = 0
    called = re.sub(r"( const| volatile| &&?| \[.*\]| noexcept)+$", "", called)
    for at in reversed(range(len(called))) if called.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(called[at], 0)
        if not depth:
            called = called[:at]
            break
    depth = 0
    for at in reversed(range(len(called))):
        depth += {">": 1, ")": 1, "<": -1, "(": -1}.get(called[at], 0)
        if called[at] == " " and not depth and "operator" not in called:
            return called[at + 1 :]
    return called


def _plain(called: str) -> str:
    """Strip template arguments at the end, too."""
    bare = _bare(called)
    return re.sub(r"<.*>$", "", bare) if "operator" not in bare else bare


def _near(name: str, functions: Sequence[elf.SymbolEntry]) -> list[str]:
    """Return similar names."""
    words = [word[:3].lower().encode() for word in re.findall(r"[A-Za-z][a-z0-9]{2,}|[A-Z]{3,}", name)]
    some = [one for one in functions if any(word in one.name.lower() for word in words)][:_MOST_COMPARED]
    known = {_bare(_demangled_name(one)) for one in some}
    return [short(one) for one in difflib.get_close_matches(name, known, _MOST_NEAR)]


def _symbols_of(fd: int) -> list[elf.SymbolEntry]:
    try:
        return [*elf.symbol_entries(fd)]
    except (ValueError, struct.error, OSError):
        return []


def short(text: str) -> str:
    """Make a text printable, and shorten it to 120 characters."""
    shown = printable(text)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[: _LONGEST_SHOWN - 1]}…"
