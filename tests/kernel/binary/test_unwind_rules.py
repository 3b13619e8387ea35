"""Test unwind rules as text, as the reader sends them, and in the packed form for BPF."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.kernel.binary import unwind_rules
from offtop.kernel.binary.unwind_rules import AARCH64, CFA, NO_RULE, UNDEFINED, X86_64, Machine, Rule, Value
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import (
    CFA_AT_BP,
    CFA_BP,
    CFA_END,
    CFA_LINK,
    CFA_SIGNAL,
    CFA_SP,
    CFA_UNSUPPORTED,
    END_BAD_PC,
    END_COMPLETE,
    SAVED_AT,
    SAVED_AT_BP,
    SAVED_BELOW,
    SAVED_LINK,
    SAVED_NOT,
)

SP, BP, RBX = X86_64.sp, X86_64.bp, 3
CALLED = Value(CFA, -8, True)
SAME = Value(BP)
ODD = (0, 0, CFA_UNSUPPORTED, 0, 0)

VALUES = st.builds(Value, st.integers(0, 102), st.integers(-(1 << 31), (1 << 31) - 1), st.booleans())
RULES = st.builds(Rule, VALUES, VALUES, VALUES, st.lists(VALUES, max_size=6).map(tuple), VALUES, st.booleans())


@given(RULES)
def test_a_rule_survives_a_round_trip(rule: Rule) -> None:
    assert unwind_rules.parse(unwind_rules.serialize(rule)) == rule


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1", "x", "0 1,2,3", "0 1,2,3 1,2,3 1,2,3", "0 a,b,c 1,2,0 1,2,0 1,2,0", "0 1,2 1,2,0 1,2,0 1,2,0"),
        *("0 7,8,0 100,-8,1 6,0,0 100,0,0,0", f"0 7,{1 << 31},0 100,-8,1 6,0,0 100,0,0", "0\x007,8,0"),
        f"0 7,{'9' * 5000},0 100,-8,1 6,0,0 100,0,0",
    ],
)
def test_invalid_text_is_no_rule(text: str) -> None:
    assert unwind_rules.parse(text) == NO_RULE


@given(st.text(max_size=60))
def test_any_untrusted_text_parses_to_a_rule_that_packs(text: str) -> None:
    for machine in (X86_64, AARCH64):
        assert len(unwind_rules.pack(unwind_rules.parse(text), machine)) == layout.RULE.size


@given(RULES, st.sampled_from([X86_64, AARCH64]))
def test_any_rule_packs(rule: Rule, machine: Machine) -> None:
    *_, how, saved, unsure = layout.RULE.unpack(unwind_rules.pack(rule, machine))
    assert how in (CFA_SP, CFA_BP, CFA_AT_BP, CFA_SIGNAL, CFA_UNSUPPORTED, CFA_END + END_COMPLETE)
    assert (saved <= SAVED_LINK, unsure) == (True, 0)


@pytest.mark.parametrize(
    ("rule", "packed"),
    [
        (Rule(Value(SP, 8), CALLED, SAME, ()), (8, 0, CFA_SP, SAVED_NOT, 0)),
        (Rule(Value(SP, 8), CALLED, Value(UNDEFINED), ()), (8, 0, CFA_SP, SAVED_NOT, 0)),
        (Rule(Value(BP, 16), CALLED, Value(CFA, -16, True), ()), (16, 0, CFA_BP, SAVED_BELOW, 0)),
        (Rule(Value(SP, 100_000), CALLED, Value(CFA, -48, True), ()), (100_000, -48, CFA_SP, SAVED_AT, 0)),
        (Rule(Value(BP, -8, True), CALLED, Value(BP, 0, True), ()), (-8, 0, CFA_AT_BP, SAVED_AT_BP, 0)),
        (Rule(Value(SP, 8), Value(UNDEFINED), SAME, ()), (0, 0, CFA_END + END_COMPLETE, 0, 0)),
    ],
)
def test_usual_sp_and_bp_rules_pack_for_bpf(rule: Rule, packed: tuple[int, ...]) -> None:
    assert layout.RULE.unpack(unwind_rules.pack(rule, X86_64)) == packed


@pytest.mark.parametrize(
    "rule",
    [
        Rule(Value(RBX, 16), CALLED, SAME, ()),
        Rule(Value(SP, 8, True), CALLED, SAME, ()),
        Rule(Value(SP, 8), Value(CFA, -16, True), SAME, ()),
        Rule(Value(SP, 8), CALLED, SAME, (), Value(SP)),
        Rule(Value(SP, 8), CALLED, Value(RBX), ()),
        Rule(Value(SP, 8), CALLED, Value(SP, 0, True), ()),
        Rule(Value(SP, 8), CALLED, Value(CFA, -40_000, True), ()),
    ],
)
def test_other_rules_go_to_user_space(rule: Rule) -> None:
    *_, how, saved, _ = layout.RULE.unpack(unwind_rules.pack(rule, X86_64))
    assert (how, saved) == (CFA_UNSUPPORTED, 0)


@pytest.mark.parametrize(
    ("rule", "packed"),
    [
        (Rule(Value(31, 32), Value(CFA, -24, True), Value(CFA, -32, True), ()), (32, -32, CFA_SP, SAVED_AT, 0)),
        (Rule(Value(29, 48), Value(CFA, -40, True), Value(CFA, -48, True), ()), (48, -48, CFA_BP, SAVED_AT, 0)),
        (Rule(Value(31, 16), Value(CFA, -16, True), Value(29), ()), (16, -24, CFA_SP, SAVED_LINK, 0)),
        (Rule(Value(31), Value(30), Value(29), ()), (0, 0, CFA_SP, SAVED_NOT, 0)),
        (Rule(Value(31), Value(UNDEFINED), Value(29), ()), (0, 0, CFA_END + END_COMPLETE, 0, 0)),
    ],
)
def test_arm64_return_addresses_are_in_lr_or_above_the_frame_pointer(rule: Rule, packed: tuple[int, ...]) -> None:
    assert layout.RULE.unpack(unwind_rules.pack(rule, AARCH64)) == packed


@pytest.mark.parametrize(
    "rule",
    [
        Rule(Value(31, 32), Value(CFA, -8, True), Value(CFA, -32, True), ()),
        Rule(Value(31, 32), Value(CFA, -24, True), Value(19), ()),
        Rule(Value(31, 32), Value(30), Value(CFA, -32, True), ()),
        Rule(Value(31, 32), Value(19), Value(29), ()),
        Rule(Value(29, 0, True), Value(30), Value(29), ()),
        Rule(Value(19, 16), Value(30), Value(29), ()),
        Rule(Value(31, 40_000), Value(CFA, -39_992, True), Value(CFA, -40_000, True), ()),
    ],
)
def test_other_arm64_rules_go_to_user_space(rule: Rule) -> None:
    *_, how, saved, _ = layout.RULE.unpack(unwind_rules.pack(rule, AARCH64))
    assert (how, saved) == (CFA_UNSUPPORTED, 0)


def test_an_arm64_signal_frame_is_where_the_kernel_puts_it() -> None:
    usual = Rule(Value(31, 560, True), Value(31, 568, True), Value(31, 544, True), (), is_signal=True)
    assert layout.RULE.unpack(unwind_rules.pack(usual, AARCH64)) == (0, 0, CFA_SIGNAL, 0, 0)
    assert layout.RULE.unpack(unwind_rules.pack(usual, X86_64)) == ODD


def test_an_x86_64_signal_frame_is_recognized_only_at_its_usual_offsets() -> None:
    usual = Rule(Value(SP, 160, True), Value(SP, 168, True), Value(SP, 120, True), (), is_signal=True)
    assert layout.RULE.unpack(unwind_rules.pack(usual, X86_64)) == (0, 0, CFA_SIGNAL, 0, 0)
    assert layout.RULE.unpack(unwind_rules.pack(usual, AARCH64)) == ODD
    assert layout.RULE.unpack(unwind_rules.pack(usual._replace(ip=Value(SP, 176, True)), X86_64)) == ODD


def test_stack_ends_and_guesses_are_rules_too() -> None:
    assert layout.RULE.unpack(unwind_rules.pack_end(END_BAD_PC)) == (0, 0, CFA_END + END_BAD_PC, 0, 0)
    assert layout.RULE.unpack(unwind_rules.pack_end(END_COMPLETE, unsure=True)) == (0, 0, CFA_END + END_COMPLETE, 0, 1)
    assert layout.RULE.unpack(unwind_rules.pack_guess(16, True, -16)) == (16, 0, CFA_LINK, SAVED_BELOW, 1)
    assert layout.RULE.unpack(unwind_rules.pack_guess(48, False, -24)) == (48, -24, CFA_SP, SAVED_AT, 1)
    assert layout.RULE.unpack(unwind_rules.pack_guess(8, False, None)) == (8, 0, CFA_SP, SAVED_NOT, 1)
