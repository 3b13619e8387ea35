"""Paths: the functions of a stack as the tree has them, from the sleeper's to those of the waker."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.model.aggregate import steps as module
from offtop.model.aggregate.steps import (
    LAST_WAIT,
    NO_FRAMES,
    STILL,
    WOKEN_BY,
    Path,
    Shape,
    Step,
    Steps,
    begins_line,
    is_function,
    passes,
    places,
    steps_of,
)
from offtop.model.aggregate.tree import MORE, Nameless, all_paths, flatten, nameless, tree_of
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import DEEP, KERNEL, LINKED, NO_STACK, NO_WAY, STACK_LOST, Frame, Stack
from offtop.model.values.table import SITES, integers
from offtop.model.values.wake import (
    BRIEF,
    CHAIN,
    DEPTH,
    IRQ,
    LOOP,
    LOST,
    MODES,
    NO_WAKE,
    OFFCPU,
    OFFWAKE,
    SOFTIRQ,
    THREAD,
    UNSEEN,
    WAKE_CPU,
    WAKE_LOST,
    WAKE_SHORT,
    WAKE_UNSEEN,
    WAKEUP,
    WHOLE,
    Link,
    Wake,
    Waker,
)
from tests.model.aggregate.test_tree import FROM_THE_ROOT, FixedNames, measured, path_of, shown, written

PLACE = (3, 4, NO_WAKE)
BOOK = Catalog(processes={7: "shop", 8: "bank"})
BOOK.stacks[3] = Stack(
    tuple(Frame(KERNEL, 0, name) for name in ("__schedule", "futex_wait", "sys_futex", "do_syscall_64")), 1, "lock", 1
)
BOOK.stacks[4] = Stack((Frame("/lib/libc.so.6", 8, "pthread_cond_wait"), Frame("/bin/it", 9, "main")))


def path_text(place: tuple[int, ...], shape: Shape = FROM_THE_ROOT, catalog: Catalog = BOOK) -> str:
    return written(steps_of(catalog, FixedNames(), shape)(place))


# ---- of those that wait


@pytest.mark.parametrize(
    ("shape", "path"),
    [
        (Shape(), "main pthread_cond_wait [k]sys_futex [k]futex_wait"),
        (Shape(inverted=True), "[k]futex_wait [k]sys_futex pthread_cond_wait main"),
        (Shape(frames="kernel"), "[k]sys_futex [k]futex_wait"),
        (Shape(frames="user"), "main pthread_cond_wait"),
        (Shape(True, "user"), "pthread_cond_wait main"),
        (Shape(True, "kernel", True), "[k]__schedule [k]futex_wait [k]sys_futex [k]do_syscall_64"),
    ],
)
def test_path_begins_at_the_root_or_at_the_leaf(shape: Shape, path: str) -> None:
    assert path_text(PLACE, shape) == path


def test_wait_in_progress_has_kernel_frames_and_is_marked() -> None:
    assert path_text((3, NO_STACK, NO_WAKE)) == "(still waiting) [k]sys_futex [k]futex_wait"
    assert path_text((3, NO_STACK, NO_WAKE), Shape(frames="kernel")) == "[k]sys_futex [k]futex_wait"


def test_kernel_thread_has_only_kernel_frames() -> None:
    frames = tuple(Frame(KERNEL, 0, name) for name in ("schedule", "worker_thread", "kthread", "ret_from_fork"))
    catalog = Catalog({3: Stack(frames, tail=1, entry=1)})
    assert path_text((3, NO_STACK, NO_WAKE), catalog=catalog) == "[k]kthread [k]worker_thread"


def test_lost_stack_is_marked() -> None:
    assert path_text((3, STACK_LOST, NO_WAKE), Shape(frames="user")) == "[stack lost]"


def test_time_without_any_frame_is_kept() -> None:
    root = tree_of(
        {PLACE: (1, 30, 30, 0), (3, NO_STACK, NO_WAKE): (0, 70, 0, 0)}, BOOK, FixedNames(), Shape(frames="user")
    )
    assert shown(flatten(root, (), 0)) == ["  (no frames) 70", "  main › pthread_cond_wait 30"]
    assert path_text((3, NO_STACK, NO_WAKE), Shape(frames="user")) == ""
    assert passes((), (NO_FRAMES,))
    assert not passes((), path_of("main"))


class Renamed(FixedNames):
    """Has other names in another version."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.version = 0

    def of(self, frame: Frame) -> str:
        return self.names.get(frame.name, super().of(frame))


NAMES = ("a", "b", "it+0x9", "[anon]+0x1")


@given(
    st.lists(
        st.tuples(st.sampled_from(["main", "pthread_cond_wait", "futex_wait", "serve"]), st.sampled_from(NAMES)),
        max_size=6,
    ),
    st.sampled_from(
        [Shape(), Shape(inverted=True), Shape(frames="user"), Shape(machinery=True), *(Shape(mode=m) for m in MODES)]
    ),
)
def test_cached_paths_and_counts_are_the_same_as_new_ones_after_renames(
    changes: list[tuple[str, str]], shape: Shape
) -> None:
    names = Renamed()
    some = [(7, 0, 10)] if shape.mode == WAKEUP else [PLACE, (3, NO_STACK, NO_WAKE), (NO_STACK, 4, NO_WAKE), (3, 4, 10)]
    kept = Steps(BOOK, names, shape)
    for name, other in changes:
        names.names[name] = other
        names.version += 1
        kept.refresh_names()
        new = Steps(BOOK, names, shape)
        assert [kept.of(place) for place in some] == [new.of(place) for place in some]
        assert [kept.nameless(place) for place in some] == [new.nameless(place) for place in some]


def test_path_to_a_woken_process_has_its_new_name_at_once() -> None:
    catalog = Catalog(BOOK.stacks, wakes=dict(BOOK.wakes), processes={7: "shop"})
    kept = Steps(catalog, FixedNames(), Shape(mode=WAKEUP))
    assert kept.of((7, 0, 10))[-1].name == "-> shop"
    catalog.processes[7] = "mall"
    assert kept.of((7, 0, 10))[-1].name == "-> mall"


def test_time_of_functions_without_names_is_summed() -> None:
    names = Renamed()
    names.names |= {"main": "it+0x9", "pthread_cond_wait": "[anon]+0x8"}
    steps = Steps(BOOK, names, Shape())
    both, one = (1, 10, 10, 0), (1, 5, 5, 0)
    assert nameless({PLACE: both, (NO_STACK, 4, NO_WAKE): one}, steps.nameless) == Nameless(30, 30, 15)


def test_number_of_cached_paths_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CACHED", 2)
    kept = Steps(BOOK, FixedNames(), FROM_THE_ROOT)
    first = kept.of(PLACE)
    assert len(kept._cached_paths) == 2  # pyright: ignore[reportPrivateUsage]
    kept.refresh_names()
    assert not kept._cached_paths  # pyright: ignore[reportPrivateUsage]
    assert kept.of(PLACE) == first


def path_with(**of_user: Any) -> str:
    """The steps of a place with that user stack."""
    catalog, places = measured([("row_search lock_wait [k]futex_wait", 1, 5)])
    (place,) = places
    catalog.stacks[place[1]] = catalog.stacks[place[1]]._replace(**of_user)
    return written(steps_of(catalog, FixedNames(), FROM_THE_ROOT)(place), " › ")


def test_missing_callers_are_marked_with_reason_and_binary() -> None:
    rest = "row_search › lock_wait › [k]futex_wait"
    assert path_with() == rest
    assert path_with(end=NO_WAY) == f"(no unwind information: it) › {rest}"
    assert path_with(end=DEEP, is_unsure=True) == f"(more than 127 frames: it) › {rest}"
    assert path_with(end=LINKED) == path_with(is_unsure=True) == f"~ › {rest}"


# ---- of those that wake


def kernel(*names: str, tail: int = 0) -> Stack:
    return Stack(tuple(Frame(KERNEL, 0, name) for name in names), tail)


BOOK.stacks |= {
    10: kernel("try_to_wake_up", "wake_up_q", "futex_wake", tail=2),
    11: Stack((Frame("/bin/it", 1, "unlock"), Frame("/bin/it", 2, "serve"))),
    12: kernel("pipe_read"),
    13: Stack((Frame("/bin/it", 3, "ask"), Frame("/bin/it", 4, "serve"))),
    14: kernel("pipe_write"),
    15: Stack((Frame("/bin/it", 5, "pay"),)),
    16: kernel("blk_mq_end_request", "nvme_irq"),
}
CLERK = Waker(THREAD, "", 7, 71, "clerk", "", 10, 11)
TELLER = Waker(THREAD, "", 8, 81, "teller", "", 14, 15)
DISK = Waker(IRQ, "nvme_irq", kernel=16)
ASKED = Link(12, 13, TELLER)
"""Clerk had waited for teller."""
READ = Link(3, 4, DISK)
"""Teller had waited for the disk."""
WAKES = {
    10: Wake(CLERK),
    11: Wake(CLERK, links=(ASKED, READ), end=WHOLE),
    12: Wake(CLERK, links=(ASKED,), end=DEPTH),
    13: Wake(CLERK, links=(ASKED, Link(3, 4, CLERK)), end=LOOP),
    14: Wake(CLERK, end=BRIEF),
    15: Wake(CLERK, end=UNSEEN),
    16: Wake(CLERK, end=LOST),
    17: Wake(DISK, end=WHOLE),
    18: Wake(Waker(SOFTIRQ, "net_rx", kernel=STACK_LOST)),
    19: Wake(CLERK._replace(user=NO_STACK)),
}
BOOK.wakes |= WAKES
OWN = "main pthread_cond_wait [k]sys_futex [k]futex_wait"
BY_CLERK = "-- woken by -- [k]futex_wake unlock serve clerk"
BY_TELLER = "-- its last wait -- serve ask [k]pipe_read -- woken by -- [k]pipe_write pay teller"
BY_DISK = f"-- its last wait -- {OWN} -- woken by -- [k]blk_mq_end_request [k]nvme_irq irq (nvme_irq)"


def test_wakeup_path_is_the_waker_from_its_outermost_function_and_the_woken_process() -> None:
    shape = Shape(mode=WAKEUP)
    assert path_text((7, 0, 10), shape) == "clerk serve unlock [k]futex_wake -> shop"
    assert path_text((8, 0, 17), shape) == "irq (nvme_irq) [k]nvme_irq [k]blk_mq_end_request -> bank"
    assert path_text((8, 0, 18), shape) == "softirq (net_rx) [k][stack lost] -> bank"
    assert path_text((8, 0, 19), shape) == "clerk [k]futex_wake -> bank"  # the stack could not be unwound
    assert path_text((9, 0, 10), shape) == "clerk serve unlock [k]futex_wake -> ?"
    assert path_text((0, 0, 10), shape).endswith("-> (exited)")


def test_wakeup_path_ignores_the_chain() -> None:
    assert {path_text((7, 0, wake), Shape(mode=WAKEUP)) for wake in range(11, 17)} == {
        "clerk serve unlock [k]futex_wake -> shop"
    }


def test_off_wake_path_joins_both_stacks_in_the_middle() -> None:
    assert path_text((3, 4, 10), Shape(mode=OFFWAKE)) == f"{OWN} {BY_CLERK}"
    assert path_text((3, 4, 11), Shape(mode=OFFWAKE)) == f"{OWN} {BY_CLERK}"
    assert path_text((3, NO_STACK, 10), Shape(mode=OFFWAKE)) == f"(still waiting) [k]sys_futex [k]futex_wait {BY_CLERK}"


def test_chain_path_continues_with_the_waker_s_wait_and_says_how_it_ends() -> None:
    shape = Shape(mode=CHAIN)
    assert path_text((3, 4, 11), shape) == f"{OWN} {BY_CLERK} {BY_TELLER} {BY_DISK}"
    assert path_text((3, 4, 12), shape) == f"{OWN} {BY_CLERK} {BY_TELLER} (deeper than --depth)"
    round_again = f"-- its last wait -- {OWN} {BY_CLERK}"
    assert path_text((3, 4, 13), shape) == (
        f"{OWN} {BY_CLERK} {BY_TELLER} {round_again} (the last waker is already in the chain)"
    )
    ends = {
        14: "(the last waker's own wait was below the minimum)",
        15: "(the last waker's own wait was not seen)",
        16: "(the rest was lost)",
    }
    assert {wake: path_text((3, 4, wake), shape).removeprefix(f"{OWN} {BY_CLERK} ") for wake in ends} == ends
    assert path_text((3, 4, 17), shape) == f"{OWN} {BY_DISK.removeprefix(f'-- its last wait -- {OWN} ')}"


@pytest.mark.parametrize("mode", [OFFWAKE, CHAIN])
@pytest.mark.parametrize(
    ("wake", "said"),
    [
        (WAKE_LOST, "(waker lost)"),
        (WAKE_SHORT, "(woken before the minimum)"),
        (WAKE_UNSEEN, "(wakeup not recorded)"),
        (WAKE_CPU, "(waited only for a CPU)"),
        (NO_WAKE, "(still waiting)"),
        (99, "(waker lost)"),  # dropped
    ],
)
def test_unknown_waker_is_marked_after_the_sleeper_s_stack(mode: str, wake: int, said: str) -> None:
    assert path_text((3, 4, wake), Shape(mode=mode)) == f"{OWN} {said}"


def test_wait_in_progress_is_marked_once() -> None:
    for mode in (OFFCPU, OFFWAKE, CHAIN):
        assert path_text((3, NO_STACK, NO_WAKE), Shape(mode=mode)) == "(still waiting) [k]sys_futex [k]futex_wait"
    assert path_text((7, 0, NO_WAKE), Shape(mode=WAKEUP)) == "(still waiting) -> shop"
    kernel_only = Shape(mode=OFFWAKE, frames="kernel")
    assert path_text((3, NO_STACK, NO_WAKE), kernel_only) == "[k]sys_futex [k]futex_wait (still waiting)"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("frames", ["both", "kernel", "user"])
@pytest.mark.parametrize("machinery", [False, True])
def test_inverted_path_is_the_same_in_reverse(mode: str, frames: str, machinery: bool) -> None:
    shape = Shape(False, frames, machinery, mode)
    for place in ((3, 4, 13), (3, 4, WAKE_LOST), (7, 0, 11), (3, NO_STACK, NO_WAKE)):
        of_place, turned = (steps_of(BOOK, FixedNames(), shape._replace(inverted=yes)) for yes in (False, True))
        assert turned(place) == of_place(place)[::-1]


def test_frames_can_be_only_kernel_or_only_user_with_or_without_machinery() -> None:
    user, of_kernel, all_of_it = (
        Shape(False, *what, OFFWAKE) for what in (("user", False), ("kernel", False), ("both", True))
    )
    assert path_text((3, 4, 10), user) == "main pthread_cond_wait -- woken by -- unlock serve clerk"
    assert path_text((3, 4, 10), of_kernel) == "[k]sys_futex [k]futex_wait -- woken by -- [k]futex_wake clerk"
    own = "main pthread_cond_wait [k]do_syscall_64 [k]sys_futex [k]futex_wait [k]__schedule"
    waking = "-- woken by -- [k]try_to_wake_up [k]wake_up_q [k]futex_wake unlock serve clerk"
    assert path_text((3, 4, 10), all_of_it) == f"{own} {waking}"


def test_waker_is_shown_even_without_frames() -> None:
    assert path_text((3, NO_STACK, 17), Shape(frames="user", mode=OFFWAKE)) == "-- woken by -- irq (nvme_irq)"
    assert path_text((8, 0, 17), Shape(frames="user", mode=WAKEUP)) == "irq (nvme_irq) -> bank"


# ---- what paths are made of


def test_places_are_stacks_and_wake_or_woken_process_and_wake() -> None:
    ids = integers([(7, 71, 3, 4, 10), (8, 81, 3, NO_STACK, NO_WAKE)], SITES.width)
    assert places(ids, OFFCPU).tolist() == [[3, 4, NO_WAKE], [3, NO_STACK, NO_WAKE]]
    assert places(ids, WAKEUP).tolist() == [[7, 0, 10], [8, 0, NO_WAKE]]
    for mode in (OFFWAKE, CHAIN):
        assert places(ids, mode).tolist() == [[3, 4, 10], [3, NO_STACK, NO_WAKE]]
    for mode in MODES:
        assert places(np.zeros((0, SITES.width), np.int64), mode).shape == (0, 3)


def test_only_functions_count_among_the_program_s_frames() -> None:
    path: Path = steps_of(BOOK, FixedNames(), Shape(mode=CHAIN))((3, 4, 12))
    assert [step.name for step in path if is_function(step)] == [
        *("main", "pthread_cond_wait", "unlock", "serve", "serve", "ask", "pay")
    ]
    assert not any(map(is_function, (NO_FRAMES, STILL, WOKEN_BY, LAST_WAIT, Step("-> shop", False))))
    assert is_function(Step("clerk", False))
    assert not is_function(Step("clerk", False, True))
    steps = Steps(BOOK, FixedNames(), Shape(mode=OFFWAKE))
    assert nameless({(3, 4, 10): (1, 10, 10, 0)}, steps.nameless).all_ns == 40  # main, pthread_cond_wait, unlock, serve


def test_waker_named_like_a_function_is_another_branch() -> None:
    catalog = Catalog(stacks={**BOOK.stacks, 20: Stack((Frame("/bin/it", 1, "clerk"),))})
    catalog.wakes |= {20: Wake(Waker(THREAD, "", 7, 71, "clerk")), 21: Wake(Waker(IRQ, "x", user=20))}
    root = tree_of({(3, 4, 20): (1, 5, 5, 0), (3, 4, 21): (1, 7, 7, 0)}, catalog, FixedNames(), Shape(mode=OFFWAKE))
    lines = shown(flatten(root, all_paths(root), 0))
    assert lines[1:] == ["  - -- woken by -- 12", "      clerk › irq (x) 7", "      clerk 5"]


# ---- lines of the tree


def lines_of(shape: Shape, table: dict[tuple[int, ...], tuple[int, int, int, int]]) -> list[str]:
    root = tree_of(table, BOOK, FixedNames(), shape)
    return shown(flatten(root, all_paths(root), 0))


def test_line_begins_where_the_path_turns_to_the_waker_or_to_its_wait() -> None:
    assert lines_of(Shape(mode=CHAIN), {(3, 4, 12): (1, 10, 10, 0)}) == [
        "- main › pthread_cond_wait › [k]sys_futex › [k]futex_wait 10",
        "  - -- woken by -- › [k]futex_wake › unlock › serve › clerk 10",
        "    - -- its last wait -- › serve › ask › [k]pipe_read 10",
        "        -- woken by -- › [k]pipe_write › pay › teller › (deeper than --depth) 10",
    ]
    assert lines_of(Shape(mode=WAKEUP), {(7, 0, 10): (1, 10, 10, 0), (8, 0, 10): (2, 30, 20, 0)}) == [
        "- clerk › serve › unlock › [k]futex_wake 40",
        "    -> bank 30",
        "    -> shop 10",
    ]
    assert [begins_line(step) for step in (WOKEN_BY, LAST_WAIT, Step("-> shop", False), NO_FRAMES, MORE)] == [
        *(True, True, True, False, False)
    ]


def test_waits_of_one_place_merge_and_split_at_their_wakers() -> None:
    table = {(3, 4, 10): (2, 60, 50, 0), (3, 4, 17): (1, 30, 30, 0), (3, 4, WAKE_SHORT): (1, 5, 5, 0)}
    assert lines_of(Shape(mode=OFFWAKE), table) == [
        "- main › pthread_cond_wait › [k]sys_futex › [k]futex_wait 95",
        "  - -- woken by -- 90",
        "      [k]futex_wake › unlock › serve › clerk 60",
        "      [k]blk_mq_end_request › [k]nvme_irq › irq (nvme_irq) 30",
        "    (woken before the minimum) 5",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_no_waits_have_no_lines_in_any_mode(mode: str) -> None:
    assert lines_of(Shape(mode=mode), {}) == []
