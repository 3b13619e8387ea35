"""Unwinds one user stack, by rules of the binary or by heuristics on its code.

Heuristics are used where the binary has no rule. The input is a set of registers and functions that read memory, either
of a blocked thread or of a copy of its stack. No library unwinds here: libdw only reads rules, in another process. So
one stack costs 50 µs, and no untrusted file is parsed by a privileged process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from offtop.kernel.binary import unwind_rules
from offtop.kernel.binary.unwind_rules import CFA, NO_RULE, UNDEFINED, WORD_BYTES, Machine, Rule, Value
from offtop.kernel.bpf import layout
from offtop.kernel.procfs.memory import code_addresses
from offtop.model.values.stack import ANONYMOUS, JIT, SIGNAL, Frame

Read = Callable[[int, int], bytes]
"""(address, size in bytes) → the bytes there, or fewer if not all can be read."""
_SCANNED_BYTES = 2048
"""How much of a stack is searched for a return address if there is no rule."""
_LARGEST_FUNCTION = 1 << 16
_FARTHEST_LINK = 1 << 20
_CALL_BYTES = 7
_CALL_NEAR = 0xE8
_CALL_BY = 0xFF
_JUMP_NEAR = 0xE9
_JUMP_BY = b"\xff\x25"
_ENDBR = b"\xf3\x0f\x1e\xfa"
_BND = b"\xf2"
_CLEAR_BP = b"\x31\xed"
_RETURN = 0xC3
_POP, _POP_BP, _POP_NEW = 0x58, 0x5D, 0x41
"""Pop any register; pop the frame pointer; the prefix for r8 to r15."""
_ADD_SP_SHORT, _ADD_SP = b"\x83\xc4", b"\x81\xc4"
_ENTRY_BYTES = 16
_AHEAD_BYTES = 256
_NEAR_BYTES = 48
_LOWEST = 4096


FrameOf = Callable[[int], Frame | None]
"""Address → the frame there, or None if there is no code."""
RuleOf = Callable[[Frame], Rule]


@dataclass(slots=True)
class State:
    """Registers of the current frame while unwinding."""

    pc: int
    sp: int
    bp: int
    callee_saved: tuple[int | None, ...] = ()
    """Values of the registers of Machine.callee_saved; None if unknown."""
    di: int | None = None
    """Value of Machine.di in the leaf; otherwise None."""
    is_exact: bool = True
    """Whether the program was interrupted at `pc`; otherwise `pc` is a return address."""
    is_sp_unsure: bool = False
    """Whether `sp` is only a lower bound, as on arm64 after a step by frame pointers."""


@dataclass(slots=True)
class UnwindResult:
    """Result of unwinding a stack."""

    frames: list[Frame] = field(default_factory=list[Frame])
    """Leaf first."""
    end: int = layout.END_COMPLETE
    """layout.END_*"""
    unsure: bool = False
    """Whether some steps were made without a rule of the binary."""
    steps: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """(address, packed `struct rule`) of each step: what BPF needs to unwind the same stack."""
    by_rule: list[tuple[int, Rule]] = field(default_factory=list[tuple[int, Rule]])
    """Program counter and rule of each step that was made by a rule of the binary."""


def unwind(
    state: State,
    frame_of: FrameOf,
    rule_of: RuleOf,
    read: Read,
    code: Read,
    machine: Machine,
    guess: bool,
    depth: int = 0,
) -> UnwindResult:
    """Unwind from `state` to the thread's first function; `depth` frames are known already.

    `read` reads the stack, `code` the program. `guess`: if the binary has no rule, continue by frame pointers and by
    whatever looks like a return address.
    """
    found = UnwindResult()
    while depth + len(found.frames) < layout.FRAMES:
        at = state.pc if state.is_exact else state.pc - 1
        frame = frame_of(at)
        if frame is None:
            found.end = layout.END_BAD_PC
            found.steps.append((at, unwind_rules.pack_end(layout.END_BAD_PC)))
            return found
        rule = rule_of(frame)
        # A signal handler returns to the first byte of the trampoline, which was not called.
        restorer = frame_of(state.pc) if rule.is_signal and not state.is_exact else None
        found.frames.append(restorer._replace(name=SIGNAL) if restorer else frame)
        packed = None if rule == NO_RULE else unwind_rules.pack(rule, machine)
        if state.is_sp_unsure and rule.is_signal:
            found.end = layout.END_BAD_PC
        elif packed is not None and (not state.is_sp_unsure or rule.ip.base == UNDEFINED):
            found.by_rule.append((state.pc, rule))
            found.end = _step(state, rule, read, machine)
        elif machine.link is not None and (guess or state.is_sp_unsure):
            found.unsure, found.end = True, _step_by_frame_pointer(state, read)
            packed = packed or unwind_rules.pack_guess(2 * WORD_BYTES, True, -2 * WORD_BYTES)
        elif guess:
            packed, found.end = _guess(state, frame, frame_of, read, code, machine)
            found.unsure = found.unsure or found.end in (0, layout.END_COMPLETE)
        else:
            packed, found.end = unwind_rules.pack_end(layout.END_NO_UNWIND_INFO), layout.END_NO_UNWIND_INFO
        if packed is not None:
            found.steps.append((at, packed))
        if found.end:
            return found
    found.end = layout.END_TRUNCATED
    return found


def _step(state: State, rule: Rule, read: Read, machine: Machine) -> int:
    """Step to the caller by a rule. Return 0, or how the stack ends here (layout.END_*)."""
    if rule.ip.base == UNDEFINED:
        return layout.END_COMPLETE
    known = {
        machine.sp: state.sp,
        machine.bp: state.bp,
        **dict(zip(machine.callee_saved, state.callee_saved, strict=False)),
    }
    if machine.di is not None:
        known[machine.di] = state.di
    word, mask = WORD_BYTES, (1 << 8 * WORD_BYTES) - 1

    def value(one: Value) -> int | None:
        base = known.get(one.base)
        if base is None:
            return None
        if not one.is_at:
            return base + one.offset & mask
        raw = read(base + one.offset & mask, word)
        return int.from_bytes(raw, "little") if len(raw) == word else -1

    cfa = value(rule.cfa)
    if cfa is None:
        return layout.END_CFA_UNSUPPORTED
    known[CFA] = cfa
    pc, sp, bp = value(rule.ip), value(rule.sp), value(rule.bp)
    if cfa < 0 or pc is None or sp is None or pc < 0 or sp < 0:
        return layout.END_MEMORY
    least = word if rule.ip.is_at else 0
    if not rule.is_signal and not least <= sp - state.sp <= layout.MAX_FRAME_BYTES:
        return layout.END_BAD_PC
    state.callee_saved = tuple(None if one is None or one < 0 else one for one in map(value, rule.callee_saved))
    if machine.link is not None:
        pc &= code_addresses()
        if not rule.is_signal:  # the link register's value in the caller is unknown
            state.callee_saved = (*state.callee_saved[:-1], None)
    state.pc, state.sp, state.is_exact, state.di = pc, sp, rule.is_signal, None
    if bp is not None:
        if bp < 0:
            return layout.END_MEMORY
        state.bp = bp
    return 0 if pc else layout.END_COMPLETE


def _step_by_frame_pointer(state: State, read: Read) -> int:
    """Step to the caller by arm64's frame pointer, if the binary has no rule.

    Returns 0, or how the stack ends here. The frame record is at the lower end of a frame, wherever the function put
    it, so it is unknown where the caller's frame begins.
    """
    if not state.bp:
        return layout.END_COMPLETE
    if state.bp % 16 or not 0 <= state.bp - state.sp < layout.MAX_FRAME_BYTES:
        return layout.END_BAD_PC
    raw = read(state.bp, 16)
    if len(raw) < 16:
        return layout.END_MEMORY
    state.sp = state.bp + 16
    state.bp, state.pc = _word(raw, 0, 8), _word(raw, 8, 8) & code_addresses()
    state.callee_saved, state.is_exact, state.is_sp_unsure = (None,) * len(state.callee_saved), False, True
    return 0 if state.pc else layout.END_COMPLETE


def _guess(
    state: State, here: Frame, frame_of: FrameOf, read: Read, code: Read, machine: Machine
) -> tuple[bytes | None, int]:
    """Step to the caller without a rule.

    Returns the step as a packed rule for BPF, or None, and how the stack ends, or 0 if it continues.

    The first of these that is found is taken as the return address:

    - The nearest word on the stack that follows a call of this very function. This finds the callers of leaves without
      a frame, and of code with frame pointers, too.
    - The one that the code ahead leaves on top of the stack when it returns.
    - The one that the frame pointer leads to. In JIT code it need not follow a call: functions of Java's interpreter
      return to places where nothing was called.
    - The nearest one after a call whose target is not evident.

    If the frame pointer is cleared, as for code without a caller (x86-64's psABI, 3.4.1), the stack ends instead of
    using the last of these.
    """
    word, is_made = WORD_BYTES, here.file in (ANONYMOUS, JIT)

    def target(address: int) -> int | None:
        return called(address, code, word) if address >= _LOWEST and frame_of(address - 1) else None

    def is_begun(start: int, most_before: int = 0) -> bool:
        """Whether the current function may begin at `start`."""
        there = frame_of(start) if -most_before <= state.pc - start < _LARGEST_FUNCTION else None
        return there is not None and there.file == here.file

    linked = _link(state, read, word)
    is_first = not state.bp or (linked is not None and not linked[1])
    if linked and target(linked[2]) is None and not (is_made and linked[0] < linked[1] and frame_of(linked[2] - 1)):
        linked = None
    size = linked[0] + 2 * word - state.sp if linked else _SCANNED_BYTES
    stack = read(state.sp, min(size, _SCANNED_BYTES))
    slot = likely = -1
    for at in range(0, len(stack) - word + 1, word):
        callee = target(_word(stack, at, word))
        if callee and (is_begun(callee) or any(is_begun(to, _LARGEST_FUNCTION) for to in _jumps(callee, code, word))):
            slot = at
            break
        if callee == 0 and likely < 0:
            likely = at
    popped = {size: bp for size, bp in _popped(state, code, word) if target(_word(stack, size, word)) is not None}
    if slot < 0 and popped:
        slot = next(iter(popped))
    elif slot < 0 and linked:
        slot = linked[0] + word - state.sp
    elif slot < 0 and (is_first or _is_outermost(state, code)):
        return unwind_rules.pack_end(layout.END_COMPLETE, unsure=True), layout.END_COMPLETE
    slot = likely if slot < 0 else slot
    if slot < 0:
        is_cut = len(stack) < min(size, _SCANNED_BYTES)
        return (
            (None, layout.END_MEMORY)
            if is_cut
            else (unwind_rules.pack_end(layout.END_NO_UNWIND_INFO), layout.END_NO_UNWIND_INFO)
        )
    state.callee_saved, state.di, state.is_exact = (None,) * len(state.callee_saved), None, False
    if linked is not None and state.sp + slot == linked[0] + word:
        state.sp, state.bp, state.pc = linked[0] + 2 * word, linked[1], linked[2]
        return unwind_rules.pack_guess(2 * word, True, -2 * word), 0
    bp = popped.get(slot)
    if bp is not None:
        state.bp = _word(stack, bp, word)
    state.sp, state.pc = state.sp + slot + word, _word(stack, slot, word)
    return unwind_rules.pack_guess(slot + word, False, None if bp is None else bp - slot - word), 0


def _word(stack: bytes, at: int, word: int) -> int:
    """Return a word of the stack; 0 after its end."""
    return int.from_bytes(stack[at : at + word], "little") if at + word <= len(stack) else 0


def _popped(state: State, code: Read, word: int) -> Iterator[tuple[int, int | None]]:
    """Yield (bytes popped, frame pointer's offset in them) for each return in the code ahead."""
    ahead = code(state.pc, _AHEAD_BYTES)
    for end, byte in enumerate(ahead):
        if byte != _RETURN:
            continue
        at, pops = end, list[int]()
        while at and ahead[at - 1] & 0xF8 == _POP:
            is_new = at > 1 and ahead[at - 2] == _POP_NEW
            pops.append(-1 if is_new else ahead[at - 1])
            at -= 1 + is_new
        size = 0
        if ahead[max(0, at - 3) : at - 1] == _ADD_SP_SHORT:
            size = int.from_bytes(ahead[at - 1 : at], "little", signed=True)
        elif ahead[max(0, at - 6) : max(0, at - 4)] == _ADD_SP:
            size = int.from_bytes(ahead[at - 4 : at], "little", signed=True)
        pops.reverse()
        bp = size + word * pops.index(_POP_BP) if _POP_BP in pops else None
        size += word * len(pops)
        if 0 <= size < _SCANNED_BYTES and (state.is_exact or size % 16 == 16 - word):  # the stack is aligned at calls
            yield size, bp


def _is_outermost(state: State, code: Read) -> bool:
    """Whether the frame pointer is cleared right before the call, as in _start and clone."""
    return not state.is_exact and _CLEAR_BP in code(state.pc - _NEAR_BYTES, _NEAR_BYTES)


def _link(state: State, read: Read, word: int) -> tuple[int, int, int] | None:
    """Return (frame pointer, the caller's frame pointer, return address); None if they are implausible."""
    if state.bp % word or not 0 <= state.bp - state.sp < _FARTHEST_LINK:
        return None
    raw = read(state.bp, 2 * word)
    if len(raw) < 2 * word:
        return None
    return state.bp, int.from_bytes(raw[:word], "little"), int.from_bytes(raw[word:], "little")


def called(address: int, code: Read, word: int = 8) -> int | None:
    """Return the target of the call right before `address`.

    0 if the target is not evident, None if there is no call.
    """
    before = code(address - _CALL_BYTES, _CALL_BYTES)
    if len(before) < _CALL_BYTES:
        return None
    if before[2] == _CALL_NEAR:
        return _follow_plt(_jumped(address, before[3:]), code, word)
    for size in (2, 3, 4, 6, 7):  # call by register or memory: ff /2, with what follows its ModR/M byte
        at = _CALL_BYTES - size
        if before[at] == _CALL_BY and before[at + 1] >> 3 & 7 == 2 and _call_size(before[at + 1 :]) == size - 1:
            return 0
    return None


def _jumped(address: int, offset: bytes) -> int:
    return address + int.from_bytes(offset, "little", signed=True) & (1 << 64) - 1


def _follow_plt(target: int, code: Read, word: int) -> int:
    """Return where a call of `target` ends up, because that may be a PLT entry.

    0 if it is not evident.
    """
    there = code(target, _ENTRY_BYTES)
    at = 4 if there.startswith(_ENDBR) else 0
    at += there[at : at + 1] == _BND
    if there[at : at + 2] != _JUMP_BY:
        return target
    if word != 8:  # the jump's address is not relative to the code
        return 0
    at += 6
    return int.from_bytes(code(_jumped(target + at, there[at - 4 : at]), word), "little")


def _jumps(target: int, code: Read, word: int) -> Iterator[int]:
    """Yield the targets of possible tail calls in the function at `target`."""
    start = code(target, _NEAR_BYTES)
    for at in range(len(start) - 4):
        if start[at] == _JUMP_NEAR:
            yield _follow_plt(_jumped(target + at + 5, start[at + 1 : at + 5]), code, word)


def _call_size(rest: Sequence[int]) -> int:
    """Return the size of ModR/M and what follows it (Intel's manual, volume 2, 2.1.5)."""
    mode, base = rest[0] >> 6, rest[0] & 7
    if mode == 3:
        return 1
    has_sib = base == 4
    size = 2 if has_sib else 1
    if mode == 1:
        return size + 1
    if mode == 2 or base == 5 or (has_sib and len(rest) > 1 and rest[1] & 7 == 5):
        return size + 4
    return size
