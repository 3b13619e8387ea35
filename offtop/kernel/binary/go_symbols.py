"""Names of Go functions in a binary without symbols: Go's own tracebacks need them, so that they are never stripped.

They are in the section .gopclntab, whose form is that of Go 1.18, or of 1.20, which differs by its first number
(src/debug/gosym/pclntab.go). The file is a stranger's: nothing in it is believed to lie within it.
"""

import os
import struct
from bisect import bisect_right
from typing import NamedTuple

from offtop.kernel.binary.elf import sections

_FORMS = (0xFFFFFFF0, 0xFFFFFFF1)
_TABLES = (b".gopclntab", b".data.rel.ro.gopclntab")
_HEADER = struct.Struct("<IHBB8Q")
"""Its form, padding, the least length of an instruction, bytes of a pointer; then how many functions and files, the
address of the first function, and where there are names, units, files, lines and functions."""
_LONGEST_NAME = 4_000


class Function(NamedTuple):
    name: str
    start: int
    """ELF's virtual address."""
    size_bytes: int


class Functions:
    """Of one open binary, read where and when they are asked for. Close it."""

    def __init__(self, fd: int) -> None:
        """`fd` stays the caller's. Raises ValueError for a binary that is not Go's, or not of 64 bits."""
        self._fd = fd
        try:
            entry, found = sections(fd)
            self._table = next(found[name] for name in _TABLES if name in found)
            form, _, _, pointer_bytes, count, _, text, names, _, _, _, functions = _HEADER.unpack(
                self._read(0, _HEADER.size)
            )
            if form not in _FORMS or pointer_bytes != 8 or functions + 8 * count > self._table.size_bytes:
                raise ValueError("not a table of functions")
            self._count, self._names, self._functions = count, names, functions
            self._text: int = text or found[b".text"].address
            # Without the address of the first function it is that of .text, if Go's linker has made the file: a C
            # linker puts functions of its own before.
            started = self.at(entry)
            if not text and not (started and started.name.startswith("_rt0_")):
                raise ValueError("nothing tells where the functions are")
        except (struct.error, KeyError, StopIteration) as error:
            raise ValueError(f"not a Go binary: {error}") from error
        self._fd = os.dup(fd)

    def close(self) -> None:
        os.close(self._fd)

    def at(self, address: int) -> Function | None:
        """The function whose bytes hold `address`. Raises ValueError for a broken table."""
        at = bisect_right(range(self._count), address - self._text, key=lambda number: self._entry(number)[0]) - 1
        if at < 0:
            return None
        (start, where), (end, _) = self._entry(at), self._entry(at + 1)
        if not start <= address - self._text < end:
            return None
        (name,) = struct.unpack("<i", self._read(self._functions + where + 4, 4))
        text = self._read(self._names + name, _LONGEST_NAME).partition(b"\0")[0].decode(errors="surrogateescape")
        return Function(text, self._text + start, end - start) if text else None

    def _entry(self, number: int) -> tuple[int, int]:
        """Where a function begins, and where it is described; behind the last one, where that ends."""
        start, where = struct.unpack("<II", self._read(self._functions + 8 * number, 8))
        return start, where

    def _read(self, at: int, size_bytes: int) -> bytes:
        """Of the table; zeros where it ends."""
        if not 0 <= at < self._table.size_bytes:
            raise ValueError("beyond the table of functions")
        found = os.pread(self._fd, min(size_bytes, self._table.size_bytes - at), self._table.offset + at)
        return found.ljust(size_bytes, b"\0")
