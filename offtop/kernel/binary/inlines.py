"""Finds the inlined functions at an address, from .debug_info.

libdw's `dwarf_getscopes` finds nothing within namespaces, and only the innermost of nested functions. So the units of a
file are indexed by address, and the functions of a unit when it is first needed.
"""

import ctypes as ct
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

_Pointer = ct.c_void_p
_FUNCTION = 0x2E
_INLINED = 0x1D
_WITHIN_FUNCTIONS = frozenset({_INLINED, 0x0B, 0x25, 0x32})
"""Tags of the scopes within a function: inlined functions, lexical blocks, catch blocks and try blocks."""
_AROUND_FUNCTIONS = frozenset({0x39, 0x13, 0x02, 0x17, 0x1E, 0x0B, _FUNCTION})
"""Tags of scopes that contain functions: namespace, struct, class, union, module, block, and function (lambdas)."""
_NAMES = (0x6E, 0x2007, 0x03)
"""Attributes that name a function, best first: linkage name, old compilers' linkage name, plain name."""
_MOST_ENTRIES = 3_000_000
"""How many entries of one file are read, which takes at most 10 s. Inlined functions after them are not found."""
_DEEPEST = 32
"""Nesting of inlined functions; deeper ones are left out."""


class _Die(ct.Structure):
    """An entry of .debug_info."""

    _fields_ = (("address", _Pointer), ("unit", _Pointer), ("kind", _Pointer), ("padding", ct.c_long))


class _Attribute(ct.Structure):
    _fields_ = (("code", ct.c_uint), ("form", ct.c_uint), ("value", _Pointer), ("unit", _Pointer))


class _Range(NamedTuple):
    """An address range of an entry. Ranges sort by start address."""

    start: int
    end: int
    entry: int
    """Offset in .debug_info."""


class Inlined:
    """The inlined functions of one open binary. For use by one thread, while it is open."""

    def __init__(self, dw: ct.CDLL, module: int) -> None:
        """`dw`: libdw, prepared by `declare`. `module`: the libdwfl module of the binary."""
        self._dw = dw
        bias = ct.c_uint64()
        self._dwarf: int | None = dw.dwfl_module_getdwarf(module, ct.byref(bias))
        self._bias = bias.value
        self._left = _MOST_ENTRIES
        self._functions: dict[int, list[_Range]] = {}
        """Unit's offset in .debug_info → its functions."""
        self._units = sorted(self._each_unit())

    def names(self, address: int) -> list[str]:
        """Return the linkage names of the functions inlined at `address`, innermost first."""
        at = address - self._bias
        unit = _holding(self._units, at)
        if unit is None:
            return []
        if unit.entry not in self._functions:
            self._functions[unit.entry] = sorted(self._each_function(self._entry(unit.entry)))
        function = _holding(self._functions[unit.entry], at)
        if function is None:
            return []
        found: list[str] = []
        within = self._entry(function.entry)
        while within and len(found) < _DEEPEST:
            within = self._part_with(at, within)
            if within and self._dw.dwarf_tag(ct.byref(within)) == _INLINED and (name := self._name(within)):
                found.append(name)
        return found[::-1]

    def _each_unit(self) -> Iterator[_Range]:
        at, after, header_bytes = 0, ct.c_uint64(), ct.c_size_t()
        while (
            self._dwarf
            and self._left > 0
            and not self._dw.dwarf_nextcu(self._dwarf, at, ct.byref(after), ct.byref(header_bytes), None, None, None)
        ):
            self._left -= 1
            if unit := self._entry(at + header_bytes.value):
                yield from self._ranges(unit)
            at = after.value

    def _each_function(self, unit: _Die | None) -> Iterator[_Range]:
        pending = [unit] if unit else []
        while pending:
            for child in self._children(pending.pop()):
                tag: int = self._dw.dwarf_tag(ct.byref(child))
                if tag == _FUNCTION:
                    yield from self._ranges(child)
                if tag in _AROUND_FUNCTIONS:
                    pending.append(_Die.from_buffer_copy(child))

    def _part_with(self, address: int, within: _Die) -> _Die | None:
        for child in self._children(within):
            if (
                self._dw.dwarf_tag(ct.byref(child)) in _WITHIN_FUNCTIONS
                and self._dw.dwarf_haspc(ct.byref(child), address) == 1
            ):
                return child
        return None

    def _children(self, parent: _Die) -> Iterator[_Die]:
        """Iterate over the children. Each iteration reuses the same structure."""
        child = _Die()
        end: int = self._dw.dwarf_child(ct.byref(parent), ct.byref(child))
        while not end and self._left > 0:
            self._left -= 1
            yield child
            end = self._dw.dwarf_siblingof(ct.byref(child), ct.byref(child))

    def _ranges(self, entry: _Die) -> Iterator[_Range]:
        """Iterate over an entry's address ranges.

        Those that start at 0 are left out: linkers put discarded code there.
        """
        base, start, end = ct.c_uint64(), ct.c_uint64(), ct.c_uint64()
        where: int = self._dw.dwarf_dieoffset(ct.byref(entry))
        following = 0
        while self._left > 0:
            self._left -= 1
            following = self._dw.dwarf_ranges(
                ct.byref(entry), following, ct.byref(base), ct.byref(start), ct.byref(end)
            )
            if following <= 0:
                return
            if start.value:
                yield _Range(start.value, end.value, where)

    def _entry(self, where: int) -> _Die | None:
        found = _Die()
        return found if self._dw.dwarf_offdie(self._dwarf, where, ct.byref(found)) else None

    def _name(self, entry: _Die) -> str:
        attribute = _Attribute()
        for code in _NAMES:
            if self._dw.dwarf_attr_integrate(ct.byref(entry), code, ct.byref(attribute)):
                name: bytes | None = self._dw.dwarf_formstring(ct.byref(attribute))
                if name:
                    return name.decode(errors="surrogateescape")
        return ""


def declare(dw: ct.CDLL) -> None:
    """Declare the argument and return types of libdw's functions."""
    entry, number = ct.POINTER(_Die), ct.POINTER(ct.c_uint64)
    dw.dwfl_module_getdwarf.restype = _Pointer
    dw.dwfl_module_getdwarf.argtypes = [_Pointer, number]
    dw.dwarf_nextcu.argtypes = [_Pointer, ct.c_uint64, number, ct.POINTER(ct.c_size_t), _Pointer, _Pointer, _Pointer]
    dw.dwarf_offdie.restype = _Pointer
    dw.dwarf_offdie.argtypes = [_Pointer, ct.c_uint64, entry]
    dw.dwarf_dieoffset.restype = ct.c_uint64
    dw.dwarf_dieoffset.argtypes = [entry]
    dw.dwarf_tag.argtypes = [entry]
    dw.dwarf_child.argtypes = [entry, entry]
    dw.dwarf_siblingof.argtypes = [entry, entry]
    dw.dwarf_haspc.argtypes = [entry, ct.c_uint64]
    dw.dwarf_ranges.restype = ct.c_ssize_t
    dw.dwarf_ranges.argtypes = [entry, ct.c_ssize_t, number, number, number]
    dw.dwarf_attr_integrate.restype = _Pointer
    dw.dwarf_attr_integrate.argtypes = [entry, ct.c_uint, ct.POINTER(_Attribute)]
    dw.dwarf_formstring.restype = ct.c_char_p
    dw.dwarf_formstring.argtypes = [ct.POINTER(_Attribute)]


def _holding(ranges: list[_Range], address: int) -> _Range | None:
    """Return the last range that starts at or before `address`, if it contains the address."""
    at = bisect_right(ranges, address, key=lambda one: one.start) - 1
    return ranges[at] if at >= 0 and address < ranges[at].end else None
