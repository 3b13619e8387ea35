"""Test unwinding step by step, over made-up code and stacks.

It goes by rules, and by inspecting code that has none.
"""

import struct
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.binary import unwind_rules
from offtop.kernel.binary.unwind_rules import AARCH64, CFA, NO_RULE, UNDEFINED, X86_64, Machine, Rule, Value
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import (
    END_BAD_PC,
    END_CFA_UNSUPPORTED,
    END_COMPLETE,
    END_MEMORY,
    END_NO_UNWIND_INFO,
    END_TRUNCATED,
    FRAMES,
    MAX_FRAME_BYTES,
)
from offtop.kernel.unwind import step
from offtop.kernel.unwind.step import State, UnwindResult, called
from offtop.model.values.stack import Frame

SP, BP, RBX = X86_64.sp, X86_64.bp, 3
STACK, CODE, LIBRARY = 0x7000_0000, 0x40_0000, 0x7F00_0000
CALLED, SAME = Value(CFA, -8, True), Value(BP)
KEPT = tuple(map(Value, X86_64.callee_saved))
FIRST = Rule(Value(SP, 8), Value(UNDEFINED), SAME, KEPT)


def pushed(size_bytes: int) -> Rule:
    """Return the rule of code with so many bytes on the stack, return address included."""
    return Rule(Value(SP, size_bytes), CALLED, SAME, KEPT)


class Made:
    """A program of made-up functions of 0x1000 bytes, and its stack."""

    def __init__(self, words: Sequence[int] = (), by_function: Mapping[int, Rule] = {}) -> None:
        self.stack = struct.pack(f"<{len(words)}Q", *words)
        self.rules = by_function
        self.code: dict[int, bytes] = {}
        self.machine: Machine = X86_64

    def put(self, address: int, code: bytes) -> int:
        """Write some code, and return the address after it."""
        self.code[address] = code
        return address + len(code)

    def call(self, at: int, target: int) -> int:
        """Write a call, and return its return address."""
        return self.put(at, b"\x90\x90\xe8" + struct.pack("<i", target - (at + 7)))

    def read(self, address: int, size: int) -> bytes:
        start = address - STACK
        return self.stack[start : start + size] if start >= 0 else b""

    def read_code(self, address: int, size: int) -> bytes:
        found = bytearray(b"\x90" * size)
        for start, code in self.code.items():
            for n, byte in enumerate(code):
                if 0 <= start + n - address < size:
                    found[start + n - address] = byte
        return bytes(found)

    def frame(self, address: int) -> Frame | None:
        if CODE <= address < CODE + 0x10_0000:
            return Frame("program", address - CODE)
        return Frame("library", address - LIBRARY) if LIBRARY <= address < LIBRARY + 0x10_0000 else None

    def rule(self, frame: Frame) -> Rule:
        return self.rules.get(frame.offset >> 12, NO_RULE) if frame.file == "program" else NO_RULE

    def walk(self, state: State, guess: bool = False, depth: int = 0) -> UnwindResult:
        return step.unwind(state, self.frame, self.rule, self.read, self.read_code, self.machine, guess, depth)


def state(pc: int, sp: int = STACK, bp: int = 0, callee_saved: tuple[int | None, ...] = (0,) * 5) -> State:
    return State(pc, sp, bp, callee_saved)


def offsets(walk: UnwindResult) -> list[int]:
    return [frame.offset for frame in walk.frames]


def steps(walk: UnwindResult) -> list[tuple[int, tuple[int, ...]]]:
    return [(at - CODE, layout.RULE.unpack(rule)) for at, rule in walk.steps]


def test_three_callers_up_to_one_without_a_caller() -> None:
    made = Made([7, CODE + 0x1010, CODE + 0x2020], {0: pushed(16), 1: pushed(8), 2: FIRST})
    walk = made.walk(state(CODE + 0x10))
    assert (offsets(walk), walk.end, walk.unsure) == ([0x10, 0x100F, 0x201F], END_COMPLETE, False)
    assert steps(walk) == [
        (0x10, (16, 0, layout.CFA_SP, 0, 0)),
        (0x100F, (8, 0, layout.CFA_SP, 0, 0)),
        (0x201F, (0, 0, layout.CFA_END + END_COMPLETE, 0, 0)),
    ]


def test_a_return_address_of_0_is_the_end_too() -> None:
    walk = Made([0], {0: pushed(8)}).walk(state(CODE + 0x10))
    assert (offsets(walk), walk.end) == ([0x10], END_COMPLETE)


def test_unreadable_memory_ends_the_stack_and_the_rule_is_reported() -> None:
    walk = Made([1], {0: pushed(100_000)}).walk(state(CODE + 0x10))
    assert (offsets(walk), walk.end) == ([0x10], END_MEMORY)
    assert steps(walk) == [(0x10, (100_000, 0, layout.CFA_SP, 0, 0))]
    assert Made([], {0: pushed(8)}).walk(state(CODE + 0x10)).end == END_MEMORY


@pytest.mark.parametrize("size", [0, -8, MAX_FRAME_BYTES + 8])
def test_a_callers_stack_pointer_is_above_but_not_far_above(size: int) -> None:
    made = Made([CODE + 0x10] * 4, {0: pushed(size)})
    made.stack = b"\0" * 16 + made.stack
    found = step.unwind(
        *(state(CODE + 0x10, STACK + 16), made.frame, made.rule),
        lambda address, length: struct.pack("<Q", CODE + 0x10)[:length],
        *(made.read_code, X86_64, False),
    )
    assert (offsets(found), found.end) == ([0x10], END_BAD_PC)


def test_endless_recursion_ends_after_127_frames() -> None:
    made = Made([CODE + 0x10] * 300, {0: pushed(8)})
    walk = made.walk(state(CODE + 0x10))
    assert (len(walk.frames), walk.end) == (FRAMES, END_TRUNCATED)
    assert len(made.walk(state(CODE + 0x10), depth=100).frames) == FRAMES - 100


def test_a_return_address_outside_code_is_a_bad_pc_and_is_reported() -> None:
    walk = Made([0x1234], {0: pushed(8)}).walk(state(CODE + 0x10))
    assert (offsets(walk), walk.end) == ([0x10], END_BAD_PC)
    assert walk.steps[-1] == (0x1233, unwind_rules.pack_end(END_BAD_PC))


def test_an_interrupted_frame_is_at_its_exact_instruction_on_any_stack() -> None:
    signal = Rule(Value(SP, 0, True), Value(SP, 8, True), Value(SP, 16, True), KEPT, Value(SP, 0, True), True)
    made = Made(
        [0, 0, CODE + 0x3030, CODE + 0x1001, STACK, CODE + 0x2000, 0xBEEF],
        {0: pushed(8), 2: pushed(24), 1: signal, 3: FIRST},
    )
    walk = made.walk(state(CODE + 0x10, STACK + 24))
    assert (offsets(walk), walk.end) == ([0x10, 0x1001, 0x2000, 0x302F], END_COMPLETE)
    assert [how for _, (_, _, how, _, _) in steps(walk)][1] == layout.CFA_UNSUPPORTED


def test_a_signal_frame_at_the_very_end_of_the_code_does_no_harm() -> None:
    signal = Rule(Value(SP, 8), CALLED, SAME, KEPT, is_signal=True)
    walk = Made([CODE + 0x1010], {0xFF: signal, 1: FIRST}).walk(State(CODE + 0x10_0000, STACK, 0, is_exact=False))
    assert (offsets(walk), walk.end) == ([0xF_FFFF, 0x1010], END_COMPLETE)


def test_a_frame_pointer_is_restored_from_where_it_was_saved() -> None:
    saves = Rule(Value(SP, 24), CALLED, Value(CFA, -16, True), KEPT)
    by_bp = Rule(Value(BP, 16), CALLED, Value(CFA, -16, True), KEPT)
    made = Made([1, STACK + 40, CODE + 0x1010, 2, 3, 0, CODE + 0x2020], {0: saves, 1: by_bp, 2: FIRST})
    walk = made.walk(state(CODE + 0x10, bp=99))
    assert (offsets(walk), walk.end) == ([0x10, 0x100F, 0x201F], END_COMPLETE)


def test_an_unknown_register_ends_the_stack() -> None:
    by_rbx = Rule(Value(RBX, 16), CALLED, SAME, KEPT)
    made = Made([1, CODE + 0x1010], {0: by_rbx, 1: FIRST})
    assert offsets(made.walk(state(CODE + 0x10, callee_saved=(STACK, 0, 0, 0, 0)))) == [0x10, 0x100F]
    assert made.walk(state(CODE + 0x10, callee_saved=(None,) * 5)).end == END_CFA_UNSUPPORTED


def test_rules_with_too_few_or_too_many_registers_do_no_harm() -> None:
    for callee_saved in ((), (Value(99),) * 20):
        walk = Made([CODE + 0x1010], {0: pushed(8)._replace(callee_saved=callee_saved), 1: FIRST}).walk(
            state(CODE + 0x10)
        )
        assert (offsets(walk), walk.end) == ([0x10, 0x100F], END_COMPLETE)


@given(
    st.lists(st.integers(0, (1 << 64) - 1) | st.integers(CODE, CODE + 0x3FFF), max_size=40),
    st.lists(st.builds(pushed, st.integers(-64, 512)), min_size=4, max_size=4),
    st.booleans(),
)
def test_unwinding_ends_whatever_is_on_the_stack(words: list[int], made_of: list[Rule], guess: bool) -> None:
    made = Made(words, dict(enumerate(made_of[:2])))
    walk = made.walk(state(CODE + 0x10, bp=STACK + 64), guess)
    assert 1 <= len(walk.frames) <= FRAMES
    assert walk.end
    assert all(len(rule) == layout.RULE.size for _, rule in walk.steps)


def test_without_a_rule_unwinding_ends_unless_guessing_is_allowed() -> None:
    walk = Made([CODE + 0x1010]).walk(state(CODE + 0x10))
    assert (offsets(walk), walk.end, walk.unsure) == ([0x10], END_NO_UNWIND_INFO, False)
    assert walk.steps == [(CODE + 0x10, unwind_rules.pack_end(END_NO_UNWIND_INFO))]


def guessed(made: Made, pc: int = CODE + 0x10, bp: int = 1) -> tuple[UnwindResult, list[int]]:
    walk = made.walk(state(pc, bp=bp), guess=True)
    return walk, offsets(walk)


def test_a_guessed_caller_must_call_this_very_function() -> None:
    made = Made([0, 0, 0, 0], {1: FIRST, 2: FIRST})
    wrong, right = made.call(CODE + 0x2000, LIBRARY), made.call(CODE + 0x1000, CODE)
    made.stack = struct.pack("<4Q", 5, wrong, right, wrong)
    walk, found = guessed(made)
    assert (found, walk.end, walk.unsure) == ([0x10, right - CODE - 1], END_COMPLETE, True)
    assert steps(walk)[0] == (0x10, (24, 0, layout.CFA_SP, layout.SAVED_NOT, 1))


def test_a_call_through_the_plt_or_a_jump_counts_as_a_call_of_this_function() -> None:
    for entry in (
        b"\xff\x25\x0a\0\0\0",
        b"\xf3\x0f\x1e\xfa\xff\x25\x06\0\0\0",
        b"\xf3\x0f\x1e\xfa\xf2\xff\x25\x05\0\0\0",
    ):
        made = Made([0, 0], {1: FIRST})
        made.put(CODE + 0x9000, entry.ljust(16, b"\x90") + struct.pack("<Q", LIBRARY))
        made.stack = struct.pack("<2Q", 5, made.call(CODE + 0x1000, CODE + 0x9000))
        assert guessed(made, LIBRARY + 0x10)[1] == [0x10, 0x1006]
    made = Made([0, 0], {1: FIRST})
    made.put(LIBRARY + 0x9_0000, b"\x31\xc0\xe9" + struct.pack("<i", -0x9_0007))
    made.stack = struct.pack("<2Q", 5, made.call(CODE + 0x1000, LIBRARY + 0x9_0000))
    assert guessed(made, LIBRARY + 0x10)[1] == [0x10, 0x1006]


def test_a_nearby_function_of_another_file_is_not_this_one() -> None:
    made = Made()
    behind = made.call(CODE + 0x1000, CODE + 0xF_FFF0)
    made.stack = struct.pack("<300Q", behind, *299 * [0])

    def frame(address: int) -> Frame | None:
        return Frame("other", 1) if CODE + 0x10_0000 <= address < CODE + 0x11_0000 else made.frame(address)

    pc = CODE + 0x10_0000
    near = step.unwind(state(pc, bp=1), frame, made.rule, made.read, made.read_code, X86_64, True)
    assert (len(near.frames), near.end) == (1, END_NO_UNWIND_INFO)


def test_the_code_ahead_shows_how_much_it_pops() -> None:
    made = Made([], {1: FIRST, 2: FIRST})
    stale, right = made.put(CODE + 0x2000, b"\xff\xd0"), made.put(CODE + 0x1000, b"\xff\xd0")
    made.put(CODE + 0x10, b"\x48\x83\xc4\x20\x5b\x5d\x41\x5c\xc3")  # add $32, rsp; pop rbx, rbp, r12; ret
    made.stack = struct.pack("<8Q", stale, 0, 0, 0, 3, 0xB9, 12, right)
    with_call = made.walk(State(CODE + 0x10, STACK, 1, is_exact=False), guess=True)
    assert offsets(with_call) == [0xF, 0x1001]
    assert steps(with_call)[0] == (0xF, (64, -24, layout.CFA_SP, layout.SAVED_AT, 1))


def test_a_frame_pointer_is_followed_if_it_leads_to_a_return_address() -> None:
    made = Made([], {1: FIRST})
    right = made.put(CODE + 0x1000, b"\xff\xd0")
    made.stack = struct.pack("<6Q", 0, 0, 0, 0xB9, right, 0)
    walk, found = guessed(made, bp=STACK + 24)
    assert found == [0x10, 0x1001]
    assert steps(walk)[0] == (0x10, (16, 0, layout.CFA_LINK, layout.SAVED_BELOW, 1))


def test_what_looks_like_an_indirect_call_is_the_last_choice() -> None:
    made = Made([], {1: FIRST})
    right = made.put(CODE + 0x1000, b"\xff\xd0")
    made.stack = struct.pack("<3Q", 0, right, 0)
    assert guessed(made)[1] == [0x10, 0x1001]


def test_a_cleared_frame_pointer_without_a_caller_is_the_end() -> None:
    for bp, words in ((0, [0] * 300), (STACK + 8, [0] * 300)):
        walk, found = guessed(Made(words), bp=bp)
        assert (found, walk.end, walk.unsure) == ([0x10], END_COMPLETE, True)
    made = Made([0] * 300)
    made.put(CODE, b"\x48\x31\xed")  # xor rbp, rbp
    walk = made.walk(State(CODE + 0x20, STACK, 1, is_exact=False), guess=True)
    assert (offsets(walk), walk.end) == ([0x1F], END_COMPLETE)


def test_without_a_plausible_caller_unwinding_ends() -> None:
    walk, found = guessed(Made([0] * 300))
    assert (found, walk.end, walk.unsure) == ([0x10], END_NO_UNWIND_INFO, False)


def test_nothing_is_loaded_into_bpf_from_an_incomplete_stack() -> None:
    walk, found = guessed(Made([0] * 3))
    assert (found, walk.end, walk.steps) == ([0x10], END_MEMORY, [])


def code(before: bytes) -> Callable[[int, int], bytes]:
    return lambda address, size: before.rjust(size, b"\x90") if address == 0x1000 - size else b"\x90" * size


@pytest.mark.parametrize(
    ("before", "target"),
    [
        (b"\xe8\x00\x01\x00\x00", 0x1100),
        (b"\xe8\x00\xff\xff\xff", 0xF00),
        *((bytes.fromhex(one), 0) for one in ("ffd0", "41ffd4", "ff10", "ff5018", "ff9000010000", "ff1500010000")),
        *(
            (bytes.fromhex(one), 0)
            for one in ("ff1424", "ff54c108", "ff94c100010000", "ff14c500010000", "ff1510000000")
        ),
        *((bytes.fromhex(one), None) for one in ("", "ffe0", "ff20", "ffd000", "e8", "c3", "ff30", "0fffd000")),
    ],
)
def test_the_instruction_before_a_return_address_is_a_call(before: bytes, target: int | None) -> None:
    assert called(0x1000, code(before)) == target


def test_unreadable_code_is_no_call() -> None:
    assert called(0x1000, lambda address, size: b"") is None
    assert called(3, lambda address, size: b"\xff\xd0") is None


# ---- arm64, where calls leave the return address in x30

ARM_KEPT = tuple(map(Value, AARCH64.callee_saved))
LEAF = Rule(Value(31), Value(30), Value(29), ARM_KEPT)


def framed(size_bytes: int) -> Rule:
    """Return the rule of code with so many bytes on the stack.

    x29 and x30 are at the lower end.
    """
    saved = Value(CFA, -size_bytes, True), Value(CFA, 8 - size_bytes, True)
    return Rule(Value(31, size_bytes), saved[1], saved[0], (*ARM_KEPT[:-1], saved[1]))


def on_arm(
    words: Sequence[int], by_function: Mapping[int, Rule], link: int | None, guess: bool = False, bp: int = 0
) -> UnwindResult:
    made = Made(words, by_function)
    made.machine = AARCH64
    return made.walk(State(CODE + 0x10, STACK, bp, (*[0] * 10, link)), guess)


def test_an_arm64_leaf_returns_by_register_and_its_callers_by_the_stack() -> None:
    words = [STACK + 16, CODE + 0x2020, 7, 8, 0, CODE + 0x3030]
    walk = on_arm(words, {0: LEAF, 1: framed(32), 2: framed(16), 3: FIRST}, CODE + 0x1010)
    assert (offsets(walk), walk.end, walk.unsure) == ([0x10, 0x100F, 0x201F, 0x302F], END_COMPLETE, False)
    assert [step for _, step in steps(walk)] == [
        (0, 0, layout.CFA_SP, layout.SAVED_NOT, 0),
        (32, -32, layout.CFA_SP, layout.SAVED_AT, 0),
        (16, -16, layout.CFA_SP, layout.SAVED_AT, 0),
        (0, 0, layout.CFA_END + END_COMPLETE, 0, 0),
    ]


def test_only_the_leafs_link_register_is_known() -> None:
    assert on_arm([], {0: LEAF}, None).end == END_MEMORY
    walk = on_arm([0, CODE + 0x1010], {0: framed(16), 1: LEAF}, CODE + 0x2020)
    assert (offsets(walk), walk.end) == ([0x10, 0x100F], END_MEMORY)


def test_signatures_of_return_addresses_are_stripped() -> None:
    signed = 0x2A << 48
    walk = on_arm([0, signed | CODE + 0x2020], {0: LEAF, 1: framed(16), 2: FIRST}, signed | CODE + 0x1010)
    assert (offsets(walk), walk.end) == ([0x10, 0x100F, 0x201F], END_COMPLETE)


def test_a_signal_in_a_leaf_preserves_its_return_address() -> None:
    at = {register: 312 + 8 * register for register in (*AARCH64.callee_saved, 29)} | {31: 560, 32: 568}
    frame = [0] * 80
    for register, value in {30: CODE + 0x2010, 31: STACK + 8 * 80, 32: CODE + 0x1010}.items():
        frame[at[register] // 8] = value
    restored = (
        *(Value(31, at[31], True), Value(31, at[32], True), Value(31, at[29], True)),
        tuple(Value(31, at[register], True) for register in AARCH64.callee_saved),
    )
    handled = Rule(*restored, Value(31, at[31], True), True)
    walk = on_arm([*frame, 0, 0], {0: handled, 1: LEAF, 2: framed(16)}, 0)
    assert (offsets(walk), walk.end) == ([0x10, 0x1010, 0x200F], END_COMPLETE)
    assert steps(walk)[0] == (0x10, (0, 0, layout.CFA_SIGNAL, 0, 0))


def test_without_a_rule_only_frame_pointers_are_followed() -> None:
    """The second frame is where its frame pointer says.

    The end of the first one's frame is unknown.
    """
    words = [1, 2, STACK + 40, CODE + 0x1010, 0, 0, CODE + 0x2020]
    by_function = {1: framed(16), 2: FIRST}
    walk = on_arm(words, by_function, None, guess=True, bp=STACK + 16)
    assert (offsets(walk), walk.end, walk.unsure) == ([0x10, 0x100F], END_BAD_PC, True)  # a misaligned frame
    words.insert(4, 5)
    words[2] = STACK + 48
    walk = on_arm(words, by_function, None, guess=True, bp=STACK + 16)
    assert (offsets(walk), walk.end, walk.unsure) == ([0x10, 0x100F, 0x201F], END_COMPLETE, True)
    assert steps(walk) == [
        (0x10, (16, 0, layout.CFA_LINK, layout.SAVED_BELOW, 1)),
        (0x100F, (16, -16, layout.CFA_SP, layout.SAVED_AT, 0)),
        (0x201F, (0, 0, layout.CFA_END + END_COMPLETE, 0, 0)),
    ]
    assert on_arm(words, by_function, None, guess=False, bp=STACK + 16).end == END_NO_UNWIND_INFO
    assert on_arm(words, by_function, None, guess=True, bp=0).end == END_COMPLETE
    assert on_arm(words[:3], by_function, None, guess=True, bp=STACK + 16).end == END_MEMORY
