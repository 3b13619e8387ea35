"""Task states as one letter: as in ps, from the kernel's bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.values.catalog import SiteKey
from offtop.model.values.snapshot import Waiting
from offtop.model.values.state import MASKS, RUNNING, WORDS, letter

INTERRUPTIBLE, UNINTERRUPTIBLE, STOPPED, TRACED, PARKED = 0x1, 0x2, 0x4, 0x8, 0x40
WAKEKILL, NOLOAD, FREEZABLE, RTLOCK, FROZEN = 0x100, 0x400, 0x2000, 0x1000, 0x8000
"""As include/linux/sched.h has them."""


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (INTERRUPTIBLE, "S"),
        (INTERRUPTIBLE | FREEZABLE, "S"),
        (UNINTERRUPTIBLE, "D"),
        (UNINTERRUPTIBLE | FREEZABLE, "D"),
        (UNINTERRUPTIBLE | WAKEKILL, "K"),
        (UNINTERRUPTIBLE | WAKEKILL | FREEZABLE, "K"),  # a parent in vfork
        (STOPPED, "T"),
        (STOPPED | WAKEKILL, "T"),  # TASK_STOPPED
        (TRACED, "t"),
        (TRACED | WAKEKILL, "t"),  # TASK_TRACED
        (PARKED, "P"),
        (UNINTERRUPTIBLE | NOLOAD, "I"),  # TASK_IDLE
        (NOLOAD, "I"),  # as the BPF programs encode it
        (RUNNING, "R"),
        (RUNNING | INTERRUPTIBLE, "R"),  # preempted on its way to sleep
        (RUNNING | UNINTERRUPTIBLE | NOLOAD, "R"),
        (RTLOCK, "?"),
        (FROZEN, "?"),
        (0, "?"),
    ],
)
def test_state_has_the_letter_that_ps_shows(state: int, said: str) -> None:
    assert letter(state) == said


@given(st.integers(0, (1 << 32) - 1))
def test_every_state_has_one_letter_and_known_ones_have_a_text(state: int) -> None:
    assert letter(state) == "?" or letter(state) in WORDS
    assert (letter(state) == "R") == bool(state & RUNNING)


def test_each_letter_of_the_option_has_a_text_and_a_bit() -> None:
    assert MASKS.keys() == WORDS.keys()
    assert {one: letter(bit) for one, bit in MASKS.items() if one != "K"} == {one: one for one in MASKS if one != "K"}
    assert letter(MASKS["K"] | MASKS["D"]) == "K"


def test_woken_or_preempted_thread_is_runnable_whatever_its_state_was() -> None:
    asleep = Waiting(SiteKey(7, 8, 3, 0), 100, 100, state=UNINTERRUPTIBLE)
    assert asleep.letter == "D"
    assert asleep._replace(runqueue_ns=1).letter == "R"
    assert asleep._replace(preempted=True).letter == "R"
