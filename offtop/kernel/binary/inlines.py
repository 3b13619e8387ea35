"""Functions that the compiler put into others, as .debug_info tells: which of them an address lies in.

libdw's own `dwarf_getscopes` finds nothing within namespaces, and of functions within functions only the innermost.
So the units of a file are listed by the addresses they hold, and of a unit that is asked about its functions.
"""

import ctypes as ct
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

_Pointer = ct.c_void_p
_FUNCTION = 0x2E
_INLINED = 0x1D
_WITHIN_FUNCTIONS = frozenset({_INLINED, 0x0B, 0x25, 0x32})
"""Tags of what a function is parted into: inlined functions, blocks, those that catch and those that try."""
_AROUND_FUNCTIONS = frozenset({0x39, 0x13, 0x02, 0x17, 0x1E, 0x0B, _FUNCTION})
"""Tags of what functions stand in: namespace, struct, class, union, module, block, and a function, as lambdas do."""
_NAMES = (0x6E, 0x2007, 0x03)
"""Attributes that name a function, the best first: its linkage name, that of old compilers, its own name."""
_MOST_ENTRIES = 3_000_000
"""Looked at in one file, in 10 s at most; what lies beyond has no inlined functions."""
_DEEPEST = 32
"""Of functions in functions; those further in are left out."""


class _Die(ct.Structure):
    """An entry of .debug_info."""

    _fields_ = (("address", _Pointer), ("unit", _Pointer), ("kind", _Pointer), ("padding", ct.c_long))


class _Attribute(ct.Structure):
    _fields_ = (("code", ct.c_uint), ("form", ct.c_uint), ("value", _Pointer), ("unit", _Pointer))


class _Stretch(NamedTuple):
    """Addresses that an entry holds; sorted by where they begin."""

    start: int
    end: int
    entry: int
    """Where it lies in .debug_info."""


class Inlined:
    """Of one open binary. For use by one thread, while it is open."""

    def __init__(self, dw: ct.CDLL, module: int) -> None:
        """`module`: libdwfl's, of a library whose functions `declare` has described."""
        self._dw = dw
        bias = ct.c_uint64()
        self._dwarf: int | None = dw.dwfl_module_getdwarf(module, ct.byref(bias))
        self._bias = bias.value
        self._left = _MOST_ENTRIES
        self._functions: dict[int, list[_Stretch]] = {}
        """By the entry of their unit."""
        self._units = sorted(self._each_unit())

    def names(self, address: int) -> list[str]:
        """The inlined functions that hold `address`, innermost first, as the linker would know them."""
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

    def _each_unit(self) -> Iterator[_Stretch]:
        at, after, header_bytes = 0, ct.c_uint64(), ct.c_size_t()
        while (
            self._dwarf
            and self._left > 0
            and not self._dw.dwarf_nextcu(self._dwarf, at, ct.byref(after), ct.byref(header_bytes), None, None, None)
        ):
            self._left -= 1
            if unit := self._entry(at + header_bytes.value):
                yield from self._stretches(unit)
            at = after.value

    def _each_function(self, unit: _Die | None) -> Iterator[_Stretch]:
        pending = [unit] if unit else []
        while pending:
            for child in self._children(pending.pop()):
                tag: int = self._dw.dwarf_tag(ct.byref(child))
                if tag == _FUNCTION:
                    yield from self._stretches(child)
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
        """One and the same structure, filled anew each time."""
        child = _Die()
        end: int = self._dw.dwarf_child(ct.byref(parent), ct.byref(child))
        while not end and self._left > 0:
            self._left -= 1
            yield child
            end = self._dw.dwarf_siblingof(ct.byref(child), ct.byref(child))

    def _stretches(self, entry: _Die) -> Iterator[_Stretch]:
        """But those that begin at 0: there linkers leave what they have dropped."""
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
                yield _Stretch(start.value, end.value, where)

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
    """Tell ctypes what libdw's functions take and give."""
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


def _holding(stretches: list[_Stretch], address: int) -> _Stretch | None:
    """Of those that begin last before it."""
    at = bisect_right(stretches, address, key=lambda one: one.start) - 1
    return stretches[at] if at >= 0 and address < stretches[at].end else None
