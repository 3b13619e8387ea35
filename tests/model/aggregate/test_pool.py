"""Pools: a process with worker-1 to worker-5, of which 4 wait for one futex, and a main thread."""

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from offtop.model.aggregate.filter import Text
from offtop.model.aggregate.filter_syntax import of_pool
from offtop.model.aggregate.folding import UNFOLDED, Folding
from offtop.model.aggregate.pool import Convoy, Pool, convoys, family, folding, parts, pools
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, Waiting
from offtop.model.values.stack import KERNEL, Frame, Stack
from offtop.model.values.table import Ints
from offtop.model.windows.stuck import Age

FUTEX_STACK, PIPE_STACK = 10, 11
CALL = 202
MAIN = ThreadKey(7, 7)
WORKERS = [ThreadKey(7, 100 + n) for n in range(1, 6)]
POOL = Pool(7, "worker-*")


def catalog() -> Catalog:
    made = Catalog()
    made.comms = {MAIN: "server", **{key: f"worker-{key.tid - 100}" for key in WORKERS}}
    made.stacks[FUTEX_STACK] = Stack((Frame(KERNEL, 0, "futex_do_wait"),), category="lock")
    made.stacks[PIPE_STACK] = Stack((Frame(KERNEL, 0, "anon_pipe_read"),), category="pipe")
    made.calls = _Growing({CALL: "futex"})
    return made


class _Growing(dict[int, str]):
    """Another thread adds to it at any time, so iterating over it may fail."""

    def __iter__(self) -> NoReturn:
        raise RuntimeError("dictionary changed size during iteration")

    items = keys = values = __iter__  # pyright: ignore[reportAssignmentType]


def waits_at(key: ThreadKey, stack: int = FUTEX_STACK, address: int = 0) -> Waiting:
    site = SiteKey(*key, stack, 0)
    if not address:
        return Waiting(site, 1, 1)
    return Waiting(site, 1, 1, call=CALL, arguments=(address, 0, 0, 0, 0, 0))


def each(
    key_of: Callable[[ThreadKey], Pool | int | None],
) -> Callable[[Ints], tuple[Sequence[Pool | int | None], Ints]]:
    def keys_of(ids: Ints) -> tuple[Sequence[Pool | int | None], Ints]:
        keys = [key_of(ThreadKey(pid, tid)) for pid, tid in ids.tolist()]
        once = [*dict.fromkeys(keys)]
        return once, np.array([once.index(key) for key in keys], np.int64)

    return keys_of


def test_family_is_the_name_without_its_numbers() -> None:
    assert family("worker-12") == "worker-*"
    assert family("kworker/0:1") == "kworker/*:*"
    assert family("42") == "42"
    assert family("main") == "main"
    assert family("") == ""
    assert family("worker-*7") == r"worker-\**"
    assert [parts(family(name)) for name in ("worker-*7", "a\\7b", "mill", "x\\*")] == [
        ["worker-*", ""],
        ["a\\", "b"],
        ["mill"],
        ["x\\*"],
    ]
    assert family("a\\7") == r"a\\*"


def test_four_threads_of_a_family_are_a_pool_and_three_are_not() -> None:
    names = catalog()
    assert pools([MAIN, *WORKERS, EXITED], names) == {POOL: WORKERS}
    assert pools([MAIN, *WORKERS[:4]], names) == {POOL: WORKERS[:4]}
    assert pools([MAIN, *WORKERS[:3]], names) == {}


def test_thread_with_the_name_of_a_pool_is_not_in_it() -> None:
    names = catalog()
    names.comms[MAIN] = "worker-*"
    assert pools([MAIN, *WORKERS], names) == {POOL: WORKERS}
    _, name = of_pool(POOL).waits
    assert isinstance(name, Text)
    assert [name.matches(names.comm(key)) for key in (MAIN, *WORKERS)] == [False, *[True] * 5]
    assert all(POOL.holds(key, names) for key in WORKERS) and not POOL.holds(MAIN, names)


def test_same_names_in_two_processes_are_two_pools() -> None:
    names = catalog()
    others = [ThreadKey(8, 200 + n) for n in range(4)]
    names.comms |= {key: f"worker-{n}" for n, key in enumerate(others)}
    assert set(pools([*WORKERS, *others], names)) == {POOL, Pool(8, "worker-*")}


def test_table_by_thread_has_one_row_for_a_pool() -> None:
    made = folding([MAIN, *WORKERS], catalog())
    table: dict[tuple[int, ...], tuple[int, int, int, int]] = {MAIN: (1, 5, 5, 0)}
    table |= {key: (2, 10, n, 1) for n, key in enumerate(WORKERS)}
    assert made.folded(table) == {MAIN: (1, 5, 5, 0), (7, -1): (10, 50, 4, 5)}
    assert made.groups[7, -1] == POOL and made.sizes[POOL] == 5
    assert made.code(POOL) == (7, -1) and made.code(Pool(9, "x*")) is None
    assert made.group_of(WORKERS[0]) == POOL and made.group_of(MAIN) is None
    assert made.oldest({MAIN: Age(3), WORKERS[0]: Age(5), WORKERS[1]: Age(9)}) == {MAIN: Age(3), (7, -1): Age(9)}


def test_unfolded_changes_nothing() -> None:
    table: dict[tuple[int, ...], tuple[int, int, int, int]] = dict.fromkeys(WORKERS, (1, 2, 3, 4))
    assert UNFOLDED.folded(table) == table
    assert Folding[int, str]({}, {}).folded({}) == {}


def test_four_of_five_that_wait_for_one_futex_are_a_convoy() -> None:
    waits = [waits_at(key, address=0x1000) for key in WORKERS[:4]] + [waits_at(WORKERS[4], address=0x2000)]
    found = convoys(waits, each(lambda key: POOL if key in WORKERS else None), {POOL: 5}, catalog())
    assert found == {POOL: Convoy(4, 5, 0x1000, SiteKey(*WORKERS[0], FUTEX_STACK, 0))}


def test_convoy_without_a_futex_has_the_kernel_function_in_common() -> None:
    waits = [waits_at(key, PIPE_STACK) for key in WORKERS[:3]] + [waits_at(key) for key in WORKERS[3:]]
    found = convoys(waits, each(lambda _: 7), {7: 6}, catalog())
    assert (found[7].waiting, found[7].of, found[7].futex, found[7].site.kernel) == (3, 6, 0, PIPE_STACK)


def test_two_threads_are_no_convoy_and_preempted_threads_do_not_count() -> None:
    names = catalog()
    assert convoys([waits_at(key) for key in WORKERS[:2]], each(lambda _: 7), {7: 5}, names) == {}
    aside = [waits_at(key)._replace(preempted=True) for key in WORKERS]
    assert convoys(aside, each(lambda _: 7), {7: 5}, names) == {}
    assert convoys([waits_at(key) for key in WORKERS], each(lambda _: None), {7: 5}, names) == {}
    assert convoys([], each(lambda _: 7), {}, names) == {}


def test_stacks_that_end_in_the_same_function_are_one_convoy_of_the_first_thread() -> None:
    names = catalog()
    names.stacks[12] = Stack((Frame(KERNEL, 0, "anon_pipe_read"), Frame(KERNEL, 0, "vfs_read")), category="pipe")
    waits = [waits_at(WORKERS[0], 12), waits_at(WORKERS[1], PIPE_STACK), waits_at(WORKERS[2], PIPE_STACK)]
    assert convoys(waits, each(lambda _: 7), {7: 3}, names) == {7: Convoy(3, 3, 0, SiteKey(*WORKERS[0], 12, 0))}
