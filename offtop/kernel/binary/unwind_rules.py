"""A rule says how to step from an address of a program to its caller: where .eh_frame has registers and return address.

The reader (cfi.py) makes them of binaries, a walk from outside (unwind.py) follows them, and the kernel side is told
them in the short form that its own walk needs.
"""

from typing import NamedTuple

from offtop.kernel.bpf import layout

CFA = 100
"""In a Value: the stack pointer in the caller (DWARF 5, 6.4: canonical frame address)."""
UNDEFINED = 101
WORD_BYTES = 8
"""Programs of 32 bits are walked along frame pointers only."""


class Machine(NamedTuple):
    """How a machine's registers are numbered (its psABI, DWARF register number mapping)."""

    sp: int
    bp: int
    kept: tuple[int, ...]
    """What calls keep, but for sp and bp."""
    ip: int
    di: int | None = None
    """One that calls do not keep: in vfork(2) the return address is there."""
    link: int | None = None
    """The last of `kept`, where calls leave the return address in a register: who calls on keeps that on the stack."""


X86_64 = Machine(7, 6, (3, 12, 13, 14, 15), 16, 5)
AARCH64 = Machine(31, 29, (*range(19, 29), 30), 32, link=30)


class Value(NamedTuple):
    """What a register is in the caller."""

    base: int
    """A register's number here, or CFA, or UNDEFINED."""
    offset: int = 0
    is_at: bool = False
    """It is the word there."""


class Rule(NamedTuple):
    """Of one address."""

    cfa: Value
    ip: Value
    """The return address; undefined where nobody called."""
    bp: Value
    kept: tuple[Value, ...]
    """Of the registers of Machine.kept."""
    sp: Value = Value(CFA)
    is_signal: bool = False
    """The caller did not call, but was interrupted."""

    @property
    def is_linked(self) -> bool:
        """Whether it is that of a function which keeps a frame pointer: the CFA right above what that points to; on
        arm64 it stands below the return address."""
        is_arm = self.cfa.base in (AARCH64.sp, AARCH64.bp)
        return self.bp.is_at and (is_arm or self.cfa == Value(X86_64.bp, 2 * WORD_BYTES))


NO_RULE = Rule(Value(UNDEFINED), Value(UNDEFINED), Value(UNDEFINED), ())
"""Nothing is said of that address."""


def written(rule: Rule) -> str:
    """As the reader sends it."""
    values = (rule.cfa, rule.ip, rule.bp, rule.sp, *rule.kept)
    return f"{rule.is_signal:d} " + " ".join(f"{one.base},{one.offset},{one.is_at:d}" for one in values)


def read(text: str) -> Rule:
    """The same back; NO_RULE for anything else. What the reader says is a stranger's word, so no more than numbers."""
    try:
        signal, *words = text.split(" ")
        values = [_value(word) for word in words]
        cfa, ip, bp, sp, *kept = values
    except ValueError:
        return NO_RULE
    return Rule(cfa, ip, bp, tuple(kept), sp, signal == "1")


def _value(word: str) -> Value:
    base, offset, is_at = (int(number) for number in word.split(","))
    if not -(1 << 31) <= offset < 1 << 31:
        raise ValueError(word)
    return Value(base, offset, bool(is_at))


def packed(rule: Rule, machine: Machine) -> bytes:
    """The `struct rule` of bpf/offcpu.h: HOW_ODD where that cannot say it."""
    cfa = rule.cfa
    if rule.ip.base == UNDEFINED:
        return ended(layout.END_WHOLE)
    if rule.is_signal:
        is_usual = (cfa, rule.ip, rule.bp) == _SIGNALS.get(machine)
        return layout.RULE.pack(0, 0, layout.HOW_SIGNAL if is_usual else layout.HOW_ODD, 0, 0)
    how = {
        (machine.sp, False): layout.HOW_SP,
        (machine.bp, False): layout.HOW_BP,
        (machine.bp, True): layout.HOW_AT_BP,
    }.get((cfa.base, cfa.is_at), layout.HOW_ODD)
    if machine.link is not None:
        saved, at = _linked(rule, machine.link, machine.bp)
    else:
        saved, at = _called(rule, machine)
    if saved is None or rule.sp != Value(CFA) or not -(1 << 15) <= at < 1 << 15:
        how, saved, at = layout.HOW_ODD, 0, 0
    return layout.RULE.pack(cfa.offset, at, how, saved, 0)


def _called(rule: Rule, machine: Machine) -> tuple[int | None, int]:
    """`saved` and `bp` of struct rule, where a call leaves the return address on the stack."""
    bp = rule.bp
    if rule.ip != Value(CFA, -WORD_BYTES, True):
        return None, 0
    if not bp.is_at:
        return (layout.SAVED_NOT if bp in (Value(machine.bp), Value(UNDEFINED)) else None), 0
    if (bp.base, bp.offset) == (CFA, -2 * WORD_BYTES):
        return layout.SAVED_BELOW, 0
    return {CFA: layout.SAVED_AT, machine.bp: layout.SAVED_AT_BP}.get(bp.base), bp.offset


def _linked(rule: Rule, link: int, frame_pointer: int) -> tuple[int | None, int]:
    """The same where it is in a register: kept right above the frame pointer's word, if that is kept, too."""
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
"""rt_sigframe, from the restorer on: struct ucontext's stack pointer, instruction pointer and frame pointer."""


def ended(end: int, unsure: bool = False) -> bytes:
    """The `struct rule` of an address behind which the stack ends, and how (layout.END_*). `unsure`: .eh_frame says
    nothing of that."""
    return layout.RULE.pack(0, 0, layout.HOW_END + end, 0, unsure)


def guessed(cfa: int, is_linked: bool, bp: int | None) -> bytes:
    """The `struct rule` of a step that .eh_frame says nothing of: `cfa` from the frame pointer if `is_linked`, else
    from the stack pointer. `bp`: where the caller's frame pointer is, from the CFA; None: it is not saved."""
    how = layout.HOW_LINK if is_linked else layout.HOW_SP
    if bp is None:
        return layout.RULE.pack(cfa, 0, how, layout.SAVED_NOT, 1)
    saved = layout.SAVED_BELOW if bp == -2 * WORD_BYTES else layout.SAVED_AT
    return layout.RULE.pack(cfa, 0 if saved == layout.SAVED_BELOW else bp, how, saved, 1)
