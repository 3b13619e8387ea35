"""Unwinds many user stacks at once, if they have the same callers as a stack that was unwound before.

Most threads of a pool wait at the same instruction. Once one of their stacks has been unwound by rules, its *path* is
known: the rule and return address of each step. This module makes the steps of step.py for all other stacks at once,
in columns, and compares each return address with that of the path. So a stack that takes a known path is read and
unwound like any other, and only the look-up of code and rules is saved. A stack that takes none is unwound by itself.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.binary.unwind_rules import CFA, NO_RULE, UNDEFINED, WORD_BYTES, Machine, Rule, Value
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.scan_rows import Rows, chosen, joined
from offtop.kernel.procfs.memory import code_addresses
from offtop.model.values.stack import ANONYMOUS, JIT, Frame
from offtop.model.values.table import Ints, Mask, rows_at

Words = NDArray[np.uint64]

_MOST_BYTES = 4096
"""A path that needs more of the stack is not kept."""
_MOST_LEAVES = 2_048
_MOST_PATHS = 8
"""How many leaves are kept, and how many paths of each. The least recently used ones are dropped."""


class Path(NamedTuple):
    """How a stack was unwound to its thread's first function, by rules alone."""

    steps: tuple[tuple[int, Rule], ...]
    """Program counter and rule of each frame, leaf first."""
    span_bytes: int
    """How much of the stack is needed, from the stack pointer on."""
    frames: tuple[Frame, ...]


class Stacks(NamedTuple):
    """The stacks of some threads that wait at one instruction."""

    registers: Rows
    """Of REGISTERS_ROW."""
    words: Words
    """(n, words): the contents of each stack, from its stack pointer on."""

    @classmethod
    def all(cls, parts: Sequence["Stacks"]) -> "Stacks":
        """Join `parts`, which have equally many words of each stack."""
        return cls(joined([one.registers for one in parts]), np.concatenate([one.words for one in parts]))

    def of(self, which: Mask) -> "Stacks":
        return Stacks(chosen(self.registers, which), rows_at(self.words, which))


class KnownPaths:
    """The paths of each leaf: a program counter in an address space (Image.space)."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._paths: dict[tuple[int, int], list[Path]] = {}
        self.learned = 0
        """How many paths were new when they were added, of leaves with room for more."""

    def add(self, space: int, steps: Sequence[tuple[int, Rule]], span_bytes: int, frames: Sequence[Frame]) -> None:
        """Keep the path of a stack; the arguments are as in Path."""
        is_fixed = all(frame.file not in (ANONYMOUS, JIT) for frame in frames)
        if not (steps and is_fixed and 0 < span_bytes <= _MOST_BYTES and span_bytes % WORD_BYTES == 0):
            return
        leaf, path = (space, steps[0][0]), Path(tuple(steps), span_bytes, tuple(frames))
        known = self._paths.pop(leaf, [])
        others = [one for one in known if one.steps != path.steps]
        self.learned += len(others) == len(known) < _MOST_PATHS
        self._paths[leaf] = [path, *others][:_MOST_PATHS]
        if len(self._paths) > _MOST_LEAVES:
            del self._paths[next(iter(self._paths))]

    def of(self, space: int, ip: int) -> Sequence[Path]:
        """Return the paths of a leaf, the most recently used one first."""
        return self._paths.get((space, ip), ())

    def follow(self, space: int, ip: int, stacks: Stacks) -> Iterable[tuple[Path, Ints]]:
        """Yield each path of a leaf that some of the stacks take, and the positions of those stacks."""
        known = self._paths.get((space, ip), [])
        left, taken = np.arange(len(stacks.words)), list[Path]()
        for path in [*known]:
            if not len(left):
                break
            fits = _follows(path, stacks, self._machine)
            if fits.any():
                taken.append(path)
                yield path, left[fits]
                left, stacks = left[~fits], stacks.of(~fits)
        known.sort(key=lambda path: path not in taken)


class _Column(NamedTuple):
    """A register of each thread."""

    values: Words
    is_known: Mask


def _follows(path: Path, stacks: Stacks, machine: Machine) -> Mask:
    """Return which stacks take this path, by the same steps as step._step."""
    registers, words = stacks
    every = np.ones(len(words), np.bool_)
    first_sp = registers["sp"]
    known = {
        machine.sp: _Column(first_sp, every),
        machine.bp: _Column(registers["bp"], every),
        **{
            register: _Column(registers["callee_saved"][:, number], every)
            for number, register in enumerate(machine.callee_saved)
        },
    }
    if machine.di is not None:
        known[machine.di] = _Column(registers["arguments"][:, 0], every)
    unknown, rows = _Column(np.zeros(len(words), np.uint64), ~every), np.arange(len(words))
    fits = every.copy()

    def value(one: Value) -> _Column:
        base = known.get(one.base, unknown)
        values = base.values + np.uint64(one.offset & (1 << 64) - 1)
        if not one.is_at:
            return _Column(values, base.is_known)
        at = values - first_sp
        is_there = base.is_known & (at % WORD_BYTES == 0) & (at < words.shape[1] * WORD_BYTES)
        fits[base.is_known & ~is_there] = False
        return _Column(words[rows, np.where(is_there, at // WORD_BYTES, 0).astype(np.int64)], is_there)

    for (_, rule), (caller, _) in zip(path.steps, [*path.steps[1:], (0, NO_RULE)], strict=True):
        if rule.ip.base == UNDEFINED:
            break
        known.pop(CFA, None)
        cfa = known[CFA] = value(rule.cfa)
        pc, sp, bp, saved = value(rule.ip), value(rule.sp), value(rule.bp), [*map(value, rule.callee_saved)]
        fits &= cfa.is_known & pc.is_known & sp.is_known
        if not rule.is_signal:
            grown = (sp.values - known[machine.sp].values).view(np.int64)
            fits &= (grown >= (WORD_BYTES if rule.ip.is_at else 0)) & (grown <= layout.MAX_FRAME_BYTES)
        callers = pc.values
        if machine.link is not None:
            callers = callers & np.uint64(code_addresses())
            saved = saved if rule.is_signal else [*saved[:-1], unknown]
        fits &= callers == np.uint64(caller)
        old_bp = known[machine.bp]
        known = {
            machine.sp: sp,
            machine.bp: _Column(np.where(bp.is_known, bp.values, old_bp.values), every),
            **dict(zip(machine.callee_saved, saved, strict=False)),
        }
    return fits
