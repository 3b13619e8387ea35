"""The end of a user stack is recorded; stacks of the first recordings are from frame pointers."""

import pytest

from offtop.model.values.stack import ENDS, KERNEL, LINKED, WHOLE, Frame, Stack
from offtop.recording import stack_rows

USER = (Frame("/usr/lib/libc.so.6", 0x1234), Frame("/bin/app", 0x5678))
UNREAD_PYTHON = (Frame("[python]", 0), Frame("[python]", 0))
"""The names of these functions could not be read, and no C code is among them."""
OF_KERNEL = (Frame(KERNEL, 0, "futex_wait"), Frame(KERNEL, 0, "do_syscall_64"))


@pytest.mark.parametrize("frames", [USER, UNREAD_PYTHON], ids=["c", "unread python"])
@pytest.mark.parametrize("unsure", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_end_of_a_user_stack_is_replayed(end: str, unsure: bool, frames: tuple[Frame, ...]) -> None:
    stack = Stack(frames, end=end, is_unsure=unsure)
    word = stack_rows.category_of(stack)
    assert len(word) <= 32
    assert stack_rows.stack_of(frames, 0, 0, word) == stack


def test_kernel_stack_has_its_category_and_is_complete() -> None:
    stack = Stack(OF_KERNEL, 0, "lock", 1)
    assert stack_rows.category_of(stack) == "lock"
    assert stack_rows.stack_of(OF_KERNEL, 0, 1, "lock") == stack


def test_stacks_of_the_first_recordings_are_from_frame_pointers() -> None:
    assert stack_rows.stack_of(USER, 0, 0, "other").end == LINKED
    assert stack_rows.stack_of(OF_KERNEL, 0, 0, "other").end == WHOLE


@pytest.mark.parametrize("word", ["end-", "end-elsewhere", "end-whole-unsure-unsure", "end--unsure"])
def test_unknown_stack_end_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="has an unknown end"):
        stack_rows.stack_of(USER, 0, 0, word)
