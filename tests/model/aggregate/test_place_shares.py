"""Shares of a row's places: merged by cause or function, with all time, largest first."""

import numpy as np
import pytest

from offtop import paths
from offtop.model.aggregate.place_shares import SEPARATORS, PlaceNames, PlaceShare, in_words, sites_of_rows
from offtop.model.classify import categories, causes
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Fixed
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import KERNEL, NO_STACK, QUEUED, SHORT, Frame, Names, Stack
from offtop.model.values.table import integers
from offtop.model.windows.breakdown import RUN_QUEUE, Leaf, Shares
from offtop.units import NS_PER_S, few

LOCK, PIPE, NAMELESS = 10, 11, 12
TAKE, COUNT = 20, 21
RULES = causes.parse(
    '[[rule]]\nid = "a"\nname = "a row lock"\nsays = "x"\ncategory = ["lock"]\nprogram = ["postgres"]\n',
    "rules.toml",
    "Mend it",
    categories.parse(paths.categories().read_text()).ids,
)


class ChangingNames(Names):
    def __init__(self) -> None:
        self.now: dict[str, str] = {}
        self.changes = 0

    @property
    def version(self) -> int:
        return self.changes

    def of(self, frame: Frame) -> str:
        return self.now.get(frame.name, frame.name)


def catalog() -> Catalog:
    made = Catalog()
    made.processes = {7: "postgres", 8: "postgres", 9: "bank"}
    made.stacks[LOCK] = Stack((Frame(KERNEL, 0, "schedule"), Frame(KERNEL, 0, "futex_do_wait")), 1, "lock")
    made.stacks[PIPE] = Stack((Frame(KERNEL, 0, "pipe_read"),), category="pipe")
    made.stacks[NAMELESS] = Stack((), category="other")
    made.stacks[TAKE] = Stack((Frame("/lib/libc.so.6", 1, "wait"), Frame("/bin/bank", 2, "take")))
    made.stacks[COUNT] = Stack((Frame("/bin/bank", 3, "count"), Frame("/bin/bank", 2, "take")))
    return made


def names(of: Names | None = None) -> PlaceNames:
    return PlaceNames(CauseFinder(of or ChangingNames(), Fixed(RULES)))


def test_sites_with_one_cause_are_one_place() -> None:
    sites = [((LOCK, TAKE, 0, 7), 30), ((LOCK, COUNT, 0, 8), 20), ((PIPE, TAKE, 0, 7), 40)]
    assert names().shares(sites, catalog()) == (PlaceShare("a row lock", 50), PlaceShare("pipe_read < take", 40))


def test_sites_without_a_cause_are_one_place_by_kernel_and_own_function() -> None:
    sites = [((LOCK, TAKE, 0, 9), 3), ((LOCK, COUNT, 0, 9), 5), ((LOCK, TAKE, 1, 9), 4), ((LOCK, NO_STACK, 0, 9), 1)]
    assert names().shares(sites, catalog()) == (
        PlaceShare("futex_do_wait < take", 7),
        PlaceShare("futex_do_wait < count", 5),
        PlaceShare("futex_do_wait", 1),
    )


def test_time_without_a_stack_is_a_place_too() -> None:
    sites = [((SHORT, NO_STACK, 0, 9), 3), ((QUEUED, NO_STACK, 0, 9), 5), ((NAMELESS, NO_STACK, 0, 9), 2)]
    assert names().shares(sites, catalog()) == (
        PlaceShare("a CPU", 5),
        PlaceShare("short waits", 3),
        PlaceShare("other", 2),
    )
    assert names().shares([((LOCK, TAKE, 0, 9), 0), ((PIPE, TAKE, 0, 9), -4)], catalog()) == ()


def test_place_has_the_new_name_of_its_function() -> None:
    said, of = ChangingNames(), catalog()
    made = names(said)
    site = [((PIPE, TAKE, 0, 9), 3)]
    assert made.shares(site, of)[0].name == "pipe_read < take"
    said.now["take"] = "take_order"
    assert made.shares(site, of)[0].name == "pipe_read < take"
    said.changes += 1
    assert made.shares(site, of)[0].name == "pipe_read < take_order"


def test_rows_get_their_own_sites_and_others_are_left_out() -> None:
    ids = np.array(
        [[7, 7, LOCK, TAKE, 0], [7, 8, LOCK, TAKE, 0], [8, 9, PIPE, 0, 0], [9, 9, PIPE, 0, 0], [7, 7, PIPE, 0, 0]]
    )
    ns, none = np.array([1, 2, 4, 8, 16]), np.zeros(5, np.int64)
    leaf = np.array([0, 0, 0, 0, 1])
    some = Shares([Leaf("lock"), Leaf(RUN_QUEUE)], leaf, ids, none, ns, none, integers([], 3))
    found = sites_of_rows(some, ids[:, 0], {9: 1, 8: 0, 7: 0, 5: 2})
    assert {row: sorted(sites) for row, sites in found.items()} == {
        0: [((QUEUED, NO_STACK, 0, 7), 16), ((LOCK, TAKE, 0, 7), 3), ((PIPE, 0, 0, 8), 4)],
        1: [((PIPE, 0, 0, 9), 8)],
    }
    assert sites_of_rows(some, ids[:, 0], {5: 0}) == sites_of_rows(some, ids[:, 0], {}) == {}


def test_largest_places_are_named_with_their_average_waiting_threads() -> None:
    some = [PlaceShare("the WAL flush", 110), PlaceShare("a row lock", 50), PlaceShare("its client", 20)]
    some = [one._replace(total_ns=one.total_ns * NS_PER_S) for one in some]
    assert in_words(some, 10 * NS_PER_S, SEPARATORS[0]) == "11 the WAL flush · 5 a row lock · 2 its client"
    assert in_words(some, 1000 * NS_PER_S, SEPARATORS[1]) == "0.11 the WAL flush, 0.05 a row lock, 0.02 its client"


def test_row_with_one_large_place_has_no_shares() -> None:
    large = PlaceShare("a row lock", 96 * NS_PER_S)
    assert in_words([], NS_PER_S, " · ") == in_words([large], NS_PER_S, " · ") == ""
    assert in_words([large, PlaceShare("a CPU", 4 * NS_PER_S)], NS_PER_S, " · ") == ""
    assert in_words([large, PlaceShare("a CPU", 96 * NS_PER_S)], NS_PER_S, " · ") == "96 a row lock · 96 a CPU"
    assert in_words([large, large], 96 * 300 * NS_PER_S, " · ") == "", "each is 0.003 threads"


def test_place_that_has_not_even_half_of_a_row_does_not_stand_for_it() -> None:
    small = [PlaceShare(f"place {number}", 9 * NS_PER_S) for number in range(9)]
    assert in_words([PlaceShare("a row lock", 19 * NS_PER_S), *small], NS_PER_S, " · ") == "19 a row lock"
    assert in_words([*small, *small], NS_PER_S, " · ") == "9 place 0"
    assert in_words([PlaceShare("a row lock", 82 * NS_PER_S), *small], NS_PER_S, " · ") == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.2, "0.20"),
        (0.994, "0.99"),
        (0.995, "1"),
        (5, "5"),
        (5.04, "5"),
        (5.25, "5.2"),
        (9.94, "9.9"),
        (9.96, "10"),
        (11.4, "11"),
        (2100, "2.1k"),
    ],
)
def test_few_threads_take_at_most_four_cells(value: float, text: str) -> None:
    assert few(value) == text
