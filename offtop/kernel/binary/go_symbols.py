"""Names of Go functions in a binary without symbols.

Go's tracebacks need these names, so stripping keeps them. They are in the section .gopclntab, in the format of Go 1.18
or of 1.20, which differs only in its first number (src/debug/gosym/pclntab.go). The file is untrusted: none of its
offsets is assumed to lie within the file.
"""

import os
import struct
from bisect import bisect_right
from typing import NamedTuple

from offtop.kernel.binary.elf import sections

_FORMS = (0xFFFFFFF0, 0xFFFFFFF1)
_TABLES = (b".gopclntab", b".data.rel.ro.gopclntab")
_HEADER = struct.Struct("<IHBB8Q")
"""Format, padding, minimum instruction length, pointer size; then the numbers of functions and of files, the address of
the first function, and the offsets of names, units, files, lines and functions."""
_LONGEST_NAME = 4_000


class Function(NamedTuple):
    name: str
    start: int
    """ELF virtual address."""
    size_bytes: int


class Functions:
    """The functions of one open binary, read on demand. It must be closed."""

    def __init__(self, fd: int) -> None:
        """Duplicate `fd`. Raises ValueError if the binary is not Go's, or not 64-bit."""
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
            # If the address of the first function is missing, it is that of .text, but only if Go's linker made the
            # file: a C linker places functions of its own before Go's.
            started = self.at(entry)
            if not text and not (started and started.name.startswith("_rt0_")):
                raise ValueError("nothing tells where the functions are")
        except (struct.error, KeyError, StopIteration) as error:
            raise ValueError(f"not a Go binary: {error}") from error
        self._fd = os.dup(fd)

    def close(self) -> None:
        os.close(self._fd)

    def at(self, address: int) -> Function | None:
        """Return the function whose bytes include `address`.

        Raises ValueError if the table is broken.
        """
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
        """Return where a function begins, and the offset of its description.

        The entry after the last one is where that one ends.
        """
        start, where = struct.unpack("<II", self._read(self._functions + 8 * number, 8))
        return start, where

    def _read(self, at: int, size_bytes: int) -> bytes:
        """Read bytes of the table, padded with zeros at its end. Raises ValueError outside of it."""
        if not 0 <= at < self._table.size_bytes:
            raise ValueError("beyond the table of functions")
        found = os.pread(self._fd, min(size_bytes, self._table.size_bytes - at), self._table.offset + at)
        return found.ljust(size_bytes, b"\0")
