"""Unwind rules: how to get from an address in a program to its caller.

A rule contains where .eh_frame places the registers and the return address. The symbol reader (cfi.py) extracts rules
from binaries, the user-space unwinder (step.py) follows them, and a compact form is loaded into BPF for the unwinder
there.
"""

from typing import NamedTuple

from offtop.kernel.bpf import layout

CFA = 100
"""Base of a Value: the canonical frame address, which is the caller's stack pointer (DWARF 5, 6.4)."""
UNDEFINED = 101
WORD_BYTES = 8
"""32-bit programs are unwound by frame pointers only."""


class Machine(NamedTuple):
    """A machine's DWARF register numbers (from its psABI)."""

    sp: int
    bp: int
    callee_saved: tuple[int, ...]
    """Callee-saved registers, except sp and bp."""
    ip: int
    di: int | None = None
    """A register that is not callee-saved. It holds the return address during vfork(2)."""
    link: int | None = None
    """Link register, which receives the return address; a function that calls others saves it on the stack. It is
    the last of `callee_saved`. None on machines where calls push the return address."""


X86_64 = Machine(7, 6, (3, 12, 13, 14, 15), 16, 5)
AARCH64 = Machine(31, 29, (*range(19, 29), 30), 32, link=30)


class Value(NamedTuple):
    """How to compute a register's value in the caller."""

    base: int
    """Number of a register in the callee, or CFA, or UNDEFINED."""
    offset: int = 0
    is_at: bool = False
    """Whether the value is the word at base + offset, instead of that address."""


class Rule(NamedTuple):
    """The unwind rule of one address."""

    cfa: Value
    ip: Value
    """The return address; UNDEFINED in the outermost function."""
    bp: Value
    callee_saved: tuple[Value, ...]
    """The registers of Machine.callee_saved."""
    sp: Value = Value(CFA)
    is_signal: bool = False
    """Whether this is a signal frame: the caller was interrupted and made no call."""

    @property
    def is_linked(self) -> bool:
        """Whether the function keeps a frame pointer.

        On x86-64 the CFA is then right above the frame record; on arm64 the frame pointer is saved below the return
        address.
        """
        is_arm = self.cfa.base in (AARCH64.sp, AARCH64.bp)
        return self.bp.is_at and (is_arm or self.cfa == Value(X86_64.bp, 2 * WORD_BYTES))


NO_RULE = Rule(Value(UNDEFINED), Value(UNDEFINED), Value(UNDEFINED), ())
"""The binary has no rule for that address."""


def serialize(rule: Rule) -> str:
    """Serialize a rule for the reader's reply."""
    values = (rule.cfa, rule.ip, rule.bp, rule.sp, *rule.callee_saved)
    return f"{rule.is_signal:d} " + " ".join(f"{one.base},{one.offset},{one.is_at:d}" for one in values)


def parse(text: str) -> Rule:
    """Parse the result of `serialize`; NO_RULE if it is invalid.

    It is untrusted, so it consists of numbers only.
    """
    try:
        signal, *words = text.split(" ")
        values = [_value(word) for word in words]
        cfa, ip, bp, sp, *callee_saved = values
    except ValueError:
        return NO_RULE
    return Rule(cfa, ip, bp, tuple(callee_saved), sp, signal == "1")


def _value(word: str) -> Value:
    base, offset, is_at = (int(number) for number in word.split(","))
    if not -(1 << 31) <= offset < 1 << 31:
        raise ValueError(word)
    return Value(base, offset, bool(is_at))


def pack(rule: Rule, machine: Machine) -> bytes:
    """Pack a rule as `struct rule` of bpf/offcpu.h, or as CFA_UNSUPPORTED if that cannot represent it."""
    cfa = rule.cfa
    if rule.ip.base == UNDEFINED:
        return pack_end(layout.END_COMPLETE)
    if rule.is_signal:
        is_usual = (cfa, rule.ip, rule.bp) == _SIGNALS.get(machine)
        return layout.RULE.pack(0, 0, layout.CFA_SIGNAL if is_usual else layout.CFA_UNSUPPORTED, 0, 0)
    how = {
        (machine.sp, False): layout.CFA_SP,
        (machine.bp, False): layout.CFA_BP,
        (machine.bp, True): layout.CFA_AT_BP,
    }.get((cfa.base, cfa.is_at), layout.CFA_UNSUPPORTED)
    if machine.link is not None:
        saved, at = _pack_link_register(rule, machine.link, machine.bp)
    else:
        saved, at = _pack_pushed_return(rule, machine)
    if saved is None or rule.sp != Value(CFA) or not -(1 << 15) <= at < 1 << 15:
        how, saved, at = layout.CFA_UNSUPPORTED, 0, 0
    return layout.RULE.pack(cfa.offset, at, how, saved, 0)


def _pack_pushed_return(rule: Rule, machine: Machine) -> tuple[int | None, int]:
    """Return `saved` and `bp` of struct rule if calls push the return address.

    `saved` is None if struct rule cannot represent it.
    """
    bp = rule.bp
    if rule.ip != Value(CFA, -WORD_BYTES, True):
        return None, 0
    if not bp.is_at:
        return (layout.SAVED_NOT if bp in (Value(machine.bp), Value(UNDEFINED)) else None), 0
    if (bp.base, bp.offset) == (CFA, -2 * WORD_BYTES):
        return layout.SAVED_BELOW, 0
    return {CFA: layout.SAVED_AT, machine.bp: layout.SAVED_AT_BP}.get(bp.base), bp.offset


def _pack_link_register(rule: Rule, link: int, frame_pointer: int) -> tuple[int | None, int]:
    """Return the same for a machine with a link register.

    If both are saved, it is right above the frame pointer.
    """
    ip, bp = rule.ip, rule.bp
    if rule.cfa.is_at:
        return None, 0
    is_same = bp in (Value(frame_pointer), Value(UNDEFINED))
    if ip == Value(link):
        return (layout.SAVED_NOT if is_same else None), 0
    if not ip.is_at or ip.base != CFA:
        return None, 0
    if is_same:
        return layout.SAVED_LINK, ip.offset - 8
    return (layout.SAVED_AT if bp == Value(CFA, ip.offset - 8, True) else None), ip.offset - 8


_SIGNALS = {
    X86_64: (Value(X86_64.sp, 160, True), Value(X86_64.sp, 168, True), Value(X86_64.sp, 120, True)),
    AARCH64: (Value(AARCH64.sp, 560, True), Value(AARCH64.sp, 568, True), Value(AARCH64.sp, 544, True)),
}
"""Stack pointer, instruction pointer and frame pointer in rt_sigframe's struct ucontext, relative to sp in the
restorer."""


def pack_end(end: int, unsure: bool = False) -> bytes:
    """Pack a `struct rule` that ends the stack at an address; `end` says how (layout.END_*).

    `unsure`: this was guessed and is not from .eh_frame.
    """
    return layout.RULE.pack(0, 0, layout.CFA_END + end, 0, unsure)


def pack_guess(cfa: int, is_linked: bool, bp: int | None) -> bytes:
    """Pack a `struct rule` for a step that was guessed because .eh_frame has no rule.

    `cfa`: offset from the frame pointer if `is_linked`, otherwise from the stack pointer. `bp`: where the caller's
    frame pointer is saved, relative to the CFA; None if it is not saved.
    """
    how = layout.CFA_LINK if is_linked else layout.CFA_SP
    if bp is None:
        return layout.RULE.pack(cfa, 0, how, layout.SAVED_NOT, 1)
    saved = layout.SAVED_BELOW if bp == -2 * WORD_BYTES else layout.SAVED_AT
    return layout.RULE.pack(cfa, 0 if saved == layout.SAVED_BELOW else bp, how, saved, 1)
