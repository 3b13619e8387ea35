"""A frame may contain several functions: each is a step of the tree, a name of the stack, and found by filters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate import location
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.steps import Path, Shape, steps_of
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import Frame, Stack, functions, one_name
from offtop.model.values.wake import NO_WAKE
from tests.model.aggregate.test_filter import waits

NAMED = {
    0: "nanosleep",
    1: one_name(["nap", "rest", "serve"]),
    2: "operator<",
    3: "main",
}
BOOK = Catalog()
BOOK.stacks[3] = Stack(tuple(Frame("/bin/it", offset) for offset in NAMED))
BOOK.stacks[4] = Stack((Frame("[kernel]", 0, "do_nanosleep"),), category="sleep")
WHOLE = ["nanosleep", "nap (inlined)", "rest (inlined)", "serve", "operator<", "main"]


class Late:
    version = 0

    def of(self, frame: Frame) -> str:
        return frame.name or NAMED[frame.offset]


def test_frame_of_one_function_has_its_name() -> None:
    assert (one_name(["main"]), functions("main"), functions("")) == ("main", ["main"], [""])
    assert functions("operator<") == ["operator<"]


def test_all_but_the_last_function_are_marked_as_inlined() -> None:
    assert one_name(["nap", "rest", "serve"]) == "nap (inlined) < rest (inlined) < serve"
    assert functions("nap (inlined) < rest (inlined) < serve") == ["nap (inlined)", "rest (inlined)", "serve"]


@given(st.lists(st.sampled_from(["f", "operator<", "operator< <int>", "a < b", "g()"]), min_size=1, max_size=5))
def test_name_splits_into_its_functions(made_of: list[str]) -> None:
    parted = functions(one_name(made_of))
    assert [name.removesuffix(" (inlined)") for name in parted] == made_of
    assert one_name(made_of) == " < ".join(parted)


def names_of(path: Path) -> list[str]:
    return [step.name for step in path]


def test_each_function_is_a_step_of_the_tree_from_either_end() -> None:
    assert names_of(steps_of(BOOK, Late(), Shape())((4, 3, NO_WAKE))) == [*WHOLE[::-1], "do_nanosleep"]
    assert names_of(steps_of(BOOK, Late(), Shape(inverted=True))((4, 3, NO_WAKE))) == ["do_nanosleep", *WHOLE]


def test_each_function_is_a_name_of_the_stack() -> None:
    assert location.user_names(BOOK, 3, Late()) == WHOLE
    assert location.in_short(BOOK, 4, 3, Late()) == " < ".join(["do_nanosleep", *WHOLE])


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("stack=nap", True),
        ('stack="nap (inlined)"', True),
        ("stack=serve", True),
        ("stack!=rest", False),
        ("stack=n*p", True),
        ("stack=nap*serve", False),
        ("rest", True),
        ("!rest", False),
    ],
)
def test_each_function_is_found_by_filters(text: str, chosen: bool) -> None:
    assert parse(text).mask(waits([("sleep", 1, 1, 4, 3)]), BOOK, CauseFinder(Late(), WITHOUT_RULES)).tolist() == [
        chosen
    ]
