"""Sections and symbols of a 64-bit ELF file.

The file is untrusted: none of its offsets is assumed to lie within the file.
"""

import os
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_TABLES = ((b".dynsym", b".dynstr"), (b".symtab", b".strtab"))
MOST_BYTES = 1 << 26
"""Size limit of a symbol table; larger ones are not read."""
_LONGEST_NAME = 1 << 16
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD = 1


class Section(NamedTuple):
    address: int
    offset: int
    size_bytes: int


class Symbol(NamedTuple):
    """Value of a symbol that was looked up by name."""

    address: int
    """ELF virtual address."""
    size_bytes: int


class SymbolEntry(NamedTuple):
    """An entry of a symbol table, with its name."""

    name: bytes
    kind: int
    """STT_FUNC, STT_GNU_IFUNC and so on."""
    address: int
    """ELF virtual address."""
    size_bytes: int
    is_defined: bool
    """Whether this file defines it; otherwise it is imported."""


def sections(fd: int) -> tuple[int, dict[bytes, Section]]:
    """Return the entry address and the sections by name. Raises ValueError or struct.error."""
    head = os.pread(fd, 64, 0)
    if head[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an ELF file of 64 bits")
    (entry,), (at,) = struct.unpack_from("<Q", head, 24), struct.unpack_from("<Q", head, 40)
    each_bytes, count, names_at = struct.unpack_from("<HHH", head, 58)
    if each_bytes != _HEADER.size or at >= 1 << 62:
        raise ValueError("sections of another size")
    rows = list(_HEADER.iter_unpack(os.pread(fd, each_bytes * count, at)))
    if names_at >= len(rows):
        raise ValueError("sections without names")
    found: dict[bytes, Section] = {}
    for name_at, _, _, address, offset, size_bytes, *_ in rows:
        name = os.pread(fd, 64, min(rows[names_at][4] + name_at, 1 << 62)).partition(b"\0")[0]
        found[name] = Section(address, min(offset, 1 << 62), min(size_bytes, 1 << 32))
    return entry, found


def symbols(fd: int, names: Collection[bytes]) -> dict[bytes, Symbol]:
    """Return those of the symbols `names` that the file defines.

    Raises ValueError or struct.error.
    """
    _, every = sections(fd)
    found: dict[bytes, Symbol] = {}
    for table, text in _TABLES:
        if table not in every or text not in every or found.keys() >= {*names}:
            continue
        strings, rows = _content(fd, every[text]), _content(fd, every[table])
        wanted = {strings.find(b"\0%b\0" % name) + 1 or strings.find(b"%b\0" % name): name for name in names}
        rows = rows[: len(rows) // _SYMBOL.size * _SYMBOL.size]
        for name_at, _, _, section, address, size_bytes in _SYMBOL.iter_unpack(rows):
            if section and name_at in wanted and name_at:
                found.setdefault(wanted[name_at], Symbol(address, size_bytes))
    return found


def symbol_entries(fd: int) -> Iterator[SymbolEntry]:
    """Iterate over all symbols that have a name. Raises ValueError or struct.error."""
    _, every = sections(fd)
    for table, text in _TABLES:
        if table not in every or text not in every:
            continue
        strings, rows = _content(fd, every[text]), _content(fd, every[table])
        rows = rows[: len(rows) // _SYMBOL.size * _SYMBOL.size]
        for name_at, info, _, section, address, size_bytes in _SYMBOL.iter_unpack(rows):
            # The search is bounded: without a terminator each symbol's name would be the whole rest of the table.
            if name_at and (end := strings.find(b"\0", name_at, name_at + _LONGEST_NAME)) > name_at:
                yield SymbolEntry(strings[name_at:end], info & 0xF, address, size_bytes, bool(section))


def offset_of(fd: int, address: int) -> int | None:
    """Return the file offset of a virtual address, or None if it is not in the file.

    Raises ValueError or struct.error.
    """
    for _, _, offset, start, _, in_file, _, _ in _load_segments(fd):
        if start <= address < start + in_file:
            return min(offset + address - start, 1 << 62)
    return None


def read_at(fd: int, address: int, size_bytes: int) -> bytes:
    """Read the file at a virtual address; empty if it is not in the file.

    Raises ValueError or struct.error.
    """
    offset = offset_of(fd, address)
    return b"" if offset is None else os.pread(fd, size_bytes, offset)


def _load_segments(fd: int) -> list[tuple[int, ...]]:
    head = os.pread(fd, 64, 0)
    (where,), (each_bytes, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    if each_bytes != _SEGMENT.size or where >= 1 << 62:
        raise ValueError("segments of another size")
    rows = _SEGMENT.iter_unpack(os.pread(fd, each_bytes * count, where))
    return [row for row in rows if row[0] == _LOAD]


def _content(fd: int, section: Section) -> bytes:
    if section.size_bytes > MOST_BYTES:
        raise ValueError("too large a table")
    return os.pread(fd, section.size_bytes, section.offset)
