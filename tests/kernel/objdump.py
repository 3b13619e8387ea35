"""Functions and instructions of x86-64 programs by binutils, to compare with x86.exits."""

import os
import re
import subprocess
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from offtop.kernel.binary import elf, x86

_FUNCTION = 2
_UNWOUND = re.compile(r" FDE .* pc=([0-9a-f]+)\.\.([0-9a-f]+)$")
_LINE = re.compile(r" *([0-9a-f]+):\t(?:[0-9a-f ]+\t)?(.*)$")
_RETURN = re.compile(r"\bretq?\b")


class Comparison(NamedTuple):
    """How x86.exits and objdump agree about some functions."""

    functions: int
    refused: int
    exits: int
    mismatches: tuple[str, ...]
    """An exit inside an instruction, or a return that is not among the exits; in hexadecimal."""

    def __str__(self) -> str:
        share = self.refused / max(1, self.functions)
        return (
            f"{self.functions:,} functions, {self.refused:,} refused ({share:.2%}), {self.exits:,} exits, "
            f"{len(self.mismatches)} mismatches"
        )


def functions(path: Path) -> Mapping[int, int]:
    """Return the end of each function by its start, from unwind tables or else symbols."""
    found: dict[int, int] = {}
    fd = os.open(path, os.O_RDONLY)
    try:
        for one in elf.symbol_entries(fd):
            if one.kind == _FUNCTION and one.is_defined and one.size_bytes:
                found[one.address] = one.address + one.size_bytes
    finally:
        os.close(fd)
    for line in _said("objdump", "-WF", path):
        if unwound := _UNWOUND.search(line):
            begins, behind = (int(address, 16) for address in unwound.groups())
            if behind > begins:
                found[begins] = behind
    return dict(sorted(found.items()))


def instructions(*options: str | Path) -> Iterator[tuple[int, str]]:
    """Yield address and text of each instruction that objdump lists."""
    for line in _said("objdump", "-w", "--no-show-raw-insn", *options):
        if found := _LINE.match(line):
            yield int(found[1], 16), found[2]


def compare(path: Path, some: Iterable[tuple[int, int]]) -> Comparison:
    """Compare x86.exits of functions, given by start and end, with objdump's listing."""
    starts: set[int] = set()
    returns: list[int] = []
    for at, text in instructions("-d", path):
        starts.add(at)
        if _RETURN.search(text):
            returns.append(at)
    count = refused = exits = 0
    mismatches: list[str] = []
    fd = os.open(path, os.O_RDONLY)
    try:
        for begins, behind in some:
            count += 1
            try:
                found = x86.exits(elf.read_at(fd, begins, behind - begins), begins)
            except ValueError:
                refused += 1
                continue
            decoded = {*found.returns, *(jump.at for jump in found.jumps)}
            listed = {*returns[bisect_left(returns, begins) : bisect_left(returns, behind)]}
            exits += len(decoded)
            mismatches += (f"{at:#x}" for at in (decoded - starts) | (listed ^ {*found.returns}))
    finally:
        os.close(fd)
    return Comparison(count, refused, exits, tuple(mismatches))


def _said(*command: str | Path) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout
        yield from child.stdout
    assert not child.returncode, command
