"""The kernel's symbols, from /proc/kallsyms: maps an address to a function and its module.

The list has 120,000 lines and more, of which a run needs a few thousand. So it is kept in the kernel's format, as one
block of bytes and two arrays of integers (4 MB), and a name becomes a Python string when it is looked up.
"""

import re
import sys
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path

import numpy as np

from offtop.errors import KernelError, OfftopError, PrivilegeError
from offtop.model.values.stack import KERNEL, Frame
from offtop.printable import printable

_TEXT = b"tTwW"
"""Symbol types of functions."""
_DATA = b"dDbB"
"""Symbol types of variables, which most kernels list. The name of a symbol of any other type is not kept: the symbol
only marks the end of the previous one."""
_OF_DATA = b"="
"""Prefix of variables' names in KernelSymbols._names."""
_MOST_BYTES = 256 * 1024
"""No function, and no variable that contains a lock, is longer. A larger distance is a gap between modules."""
_REREAD_NS = 10_000_000_000
"""Minimum interval between reads for newly loaded modules and BPF programs, because a read takes 0.1 s."""
_MOST_FRAMES = 65_536
_PART_BYTES = 256 * 1024
_KERNEL_HALF = 1 << 63
HIDDEN = Frame(KERNEL, 0, "(hidden)")
"""Stands for a whole kernel stack if the kernel hides its symbols."""


class KernelSymbols:
    """Resolves kernel addresses. For use by one thread."""

    def __init__(self, path: str, modules: str) -> None:
        self._path, self._modules_path = path, modules
        self._modules, self._checked_ns = self._loaded_modules(), time.monotonic_ns()
        self._addresses = array("Q")
        self._lines = array("I")
        self._names = b"\n"
        self._frames: dict[int, Frame] = {}
        self._functions: dict[int, Frame] = {}
        self._not_listed: set[int] = set()
        """Addresses that a fresh list does not cover either, so it is not read again for them."""
        self._read_ns = 0
        self.refresh()
        self._core = (self.address_of("_stext") or 0, self.address_of("_etext") or 0)

    @classmethod
    def read(cls, path: str = "/proc/kallsyms", modules: str = "/proc/modules") -> "KernelSymbols":
        """Read the symbols.

        Raises KernelError if there is no list, PrivilegeError if the kernel hides the addresses.
        """
        return cls(path, modules)

    def refresh(self) -> None:
        """Read the list again, because modules and BPF programs come and go.

        Raises as `read` does.
        """
        addresses, lines, names = array("Q"), array("I"), bytearray(b"\n")
        try:
            with Path(self._path).open("rb") as listing:
                # In parts: the 20 MB of 120,000 Python objects at once would never be returned to the system.
                while part := listing.readlines(_PART_BYTES):
                    addresses.extend(_addresses(part, self._path))
                    part_names = [
                        line[19:] if line[17] in _TEXT else _OF_DATA + line[19:] if line[17] in _DATA else b"\n"
                        for line in part
                    ]
                    lines.extend(islice(accumulate(map(len, part_names), initial=len(names)), len(part)))
                    names += b"".join(part_names)
        except OSError as error:
            raise KernelError(
                f"Cannot read the kernel's symbols ({self._path}: {error.strerror}). "
                "offtop needs a kernel with CONFIG_KALLSYMS, and /proc mounted."
            ) from error
        if not any(addresses):
            raise PrivilegeError(_hidden()) if addresses else KernelError(f"{self._path} is empty.")
        order = np.argsort(np.frombuffer(addresses, np.uint64), kind="stable")  # modules follow the kernel, unsorted
        addresses = array("Q", np.frombuffer(addresses, np.uint64)[order].tobytes())
        lines = array("I", np.frombuffer(lines, np.uint32)[order].tobytes())
        self._addresses, self._lines, self._names = addresses, lines, bytes(names + b"\n")
        self._frames.clear()
        self._functions.clear()
        self._read_ns = time.monotonic_ns()

    def lookup(self, address: int) -> Frame:
        """Return the function that contains `address`.

        If there is none, that is a frame at the address without a name. For a return address, look up `address - 1`,
        because it belongs to the call before it.
        """
        frame = self._frames.get(address)
        if frame is None:
            frame = self._find(address)
            if not frame.name and self._may_be_new(address):
                if time.monotonic_ns() - self._read_ns < _REREAD_NS:
                    return frame
                self._not_listed.add(address)
                with suppress(OfftopError):  # the previous list is still right about the rest
                    self.refresh()
                frame = self._find(address)
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
                self._not_listed.clear()
            self._frames[address] = frame
        return frame

    def modules_changed(self) -> bool:
        """Whether the loaded modules have changed, so addresses may belong to other functions now.

        If so, the list has been read again. Checks at most once in 10 s.
        """
        now_ns = time.monotonic_ns()
        if now_ns - self._checked_ns < _REREAD_NS:
            return False
        self._checked_ns = now_ns
        modules = self._loaded_modules()
        if modules == self._modules:
            return False
        self._not_listed.clear()
        try:
            self.refresh()
        except OfftopError:
            return False
        self._modules = modules
        return True

    def variable(self, address: int) -> str:
        """Return the variable that contains `address`, as `rtnl_mutex` or `init_net+0x18`.

        Empty if it is unknown.
        """
        at = bisect_right(self._addresses, address) - 1
        if at < 0 or address - self._addresses[at] >= _MOST_BYTES:
            return ""
        start = self._addresses[at]
        name, space, module = self._name(at, of_data=True).partition(" ")
        return name and f"{name}{f'+{address - start:#x}' if address > start else ''}{space}{module}"

    def address_of(self, name: str) -> int | None:
        """Return the address of the core kernel's function or marker called `name`."""
        at = self._names.find(b"\n" + name.encode() + b"\n") if name else -1
        return None if at < 0 else self._addresses[self._lines.index(at + 1)]

    def ranges(self, prefixes: Sequence[str], wanted: Callable[[str], bool]) -> list[tuple[int, int]]:
        """Return contiguous ranges of `wanted` functions in the core kernel.

        They are (address, bytes), largest first. `prefixes`: only functions whose names start with one of these are
        considered.
        """
        begins = "|".join(map(re.escape, prefixes)).encode()
        lines = [found.start() + 1 for found in re.finditer(rb"\n(?:" + begins + rb")", self._names)]
        names = {at: self._names[at : self._names.index(b"\n", at)] for at in lines}
        of_core = [at for at, name in names.items() if b"\t" not in name and wanted(name.decode(errors="replace"))]
        rows = np.flatnonzero(np.isin(np.frombuffer(self._lines, np.uint32), of_core))
        found = {self._addresses[row] for row in rows.tolist()}
        joined: list[tuple[int, int]] = []
        for start, end in sorted((start, self._addresses[bisect_right(self._addresses, start)]) for start in found):
            if joined and joined[-1][1] == start:
                joined[-1] = joined[-1][0], end
            else:
                joined.append((start, end))
        return sorted(((start, end - start) for start, end in joined), key=lambda one: -one[1])

    def _loaded_modules(self) -> set[tuple[bytes, ...]]:
        """Return name, size and address of each module (proc(5)); empty if the kernel has none."""
        try:
            lines = Path(self._modules_path).read_bytes().splitlines()
        except OSError:
            return set()
        return {(fields[0], fields[1], fields[5]) for line in lines if len(fields := line.split()) > 5}

    def _find(self, address: int) -> Frame:
        at = bisect_right(self._addresses, address) - 1
        if at < 0 or address - self._addresses[at] >= _MOST_BYTES:
            return Frame(KERNEL, address)
        frame = self._functions.get(at)
        if frame is None:
            frame = self._function(at)
            self._functions[at] = frame
        return frame if frame.name else Frame(KERNEL, address)

    def _function(self, at: int) -> Frame:
        """Return the frame of a symbol.

        Of several at one address, the first function counts, as in the kernel.
        """
        start = self._addresses[at]
        symbol, _, module = self._name(at).partition(" ")
        if symbol in ("_etext", "_einittext"):
            return Frame(KERNEL, start)
        return Frame(module or KERNEL, 0, symbol)

    def _name(self, at: int, of_data: bool = False) -> str:
        start, name = self._addresses[at], b""
        while at >= 0 and self._addresses[at] == start:
            line = self._lines[at]
            found = self._names[line : self._names.find(b"\n", line)]
            if found.startswith(_OF_DATA) == of_data:
                name = found.removeprefix(_OF_DATA) or name
            at -= 1
        return printable(name.decode(errors="surrogateescape").replace("\t", " "))

    def _may_be_new(self, address: int) -> bool:
        """Whether `address` may belong to something that was loaded since the last read."""
        first, end = self._core
        return address >= _KERNEL_HALF and not first <= address < end and address not in self._not_listed


class HiddenSymbols:
    """Replaces KernelSymbols if the kernel hides its symbols."""

    def lookup(self, _address: int) -> Frame:
        return HIDDEN

    def modules_changed(self) -> bool:
        return False

    def variable(self, _address: int) -> str:
        return ""

    def address_of(self, _name: str) -> int | None:
        return None

    def ranges(self, _prefixes: Sequence[str], _wanted: Callable[[str], bool]) -> list[tuple[int, int]]:
        return []


def _addresses(lines: list[bytes], path: str) -> "array[int]":
    """Parse the 16 hex digits at the start of each line.

    Raises KernelError if they are not that.
    """
    try:
        addresses = array("Q", bytes.fromhex(b"".join([line[:16] for line in lines]).decode()))
    except ValueError:
        addresses = array("Q")
    if len(addresses) != len(lines) or min(map(len, lines)) < 20:
        raise KernelError(f"{path} is not a list of 64-bit kernel symbols, the only kind that offtop can read.")
    if sys.byteorder == "little":
        addresses.byteswap()
    return addresses


def _hidden() -> str:
    try:
        restricted = Path("/proc/sys/kernel/kptr_restrict").read_text().strip() == "2"
    except OSError:
        restricted = False
    if restricted:
        return "The kernel hides its addresses (sudo sysctl kernel.kptr_restrict=1)."
    return "Missing CAP_SYSLOG (sudo offtop): the kernel hides its addresses."
