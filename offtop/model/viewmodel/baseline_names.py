"""Names by which rows of now are found in a baseline, when ids are not valid there."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from offtop.model.aggregate import location
from offtop.model.aggregate.baseline_rows import BaselineOnly
from offtop.model.aggregate.pool import Pool, family
from offtop.model.aggregate.program import Program, program_name
from offtop.model.aggregate.row_names import cgroup_name, process_name, wake_name
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.stack import Names
from offtop.model.values.wake import UNIX, Object


def site_names(catalog: Catalog, names: Names) -> Callable[[tuple[int, ...]], Hashable]:
    """Identify sites by process, thread and function names."""
    known: dict[tuple[int, int], Hashable] = {}

    def name_of(key: tuple[int, ...]) -> Hashable:
        pid, tid, kernel, user, _ = key
        place = known.get((kernel, user))
        if place is None:
            functions = (*location.kernel_names(catalog, kernel, names), "", *location.user_names(catalog, user, names))
            place = known[kernel, user] = functions
        return process_name(pid, catalog), catalog.comm(ThreadKey(pid, tid)), place

    return name_of


def plain_name(key: WakerKey | Any) -> BaselineOnly:
    return BaselineOnly(key.name)


def cgroup_row_name(path: str) -> BaselineOnly:
    return BaselineOnly(cgroup_name(path))


def object_name(what: Object) -> BaselineOnly:
    """Name an object so that it matches next time: the local port of a connection changes."""
    if what.local and what.peer:
        return BaselineOnly(f"{what.kind} {what.peer}")
    if what.kind == UNIX and what.peer:
        return BaselineOnly(f"{UNIX} to {what.peer.rpartition('(')[0] or what.peer}")
    return BaselineOnly(wake_name(what))


def thread_names(catalog: Catalog) -> Callable[[tuple[int, ...]], BaselineOnly]:
    def name_of(key: tuple[int, ...]) -> BaselineOnly:
        thread = ThreadKey(*key)
        return BaselineOnly(catalog.comm(thread), process_name(thread.pid, catalog))

    return name_of


def process_names(catalog: Catalog) -> Callable[[int], BaselineOnly]:
    return lambda pid: BaselineOnly(process_name(pid, catalog))


def program_groups(catalog: Catalog) -> Callable[[int], Sequence[tuple[Hashable, Hashable]]]:
    """Return the program that a process may be in, with its name."""

    def groups(pid: int) -> Sequence[tuple[Hashable, Hashable]]:
        program = Program(program_name(catalog.process(pid)))
        return ((program, program_row_name(program)),)

    return groups


def program_row_name(program: Program) -> Hashable:
    return "program", program.name


def pool_groups(catalog: Catalog) -> Callable[[tuple[int, ...]], Sequence[tuple[Hashable, Hashable]]]:
    """Return the pool that a thread may be in, with its name."""

    def groups(key: tuple[int, ...]) -> Sequence[tuple[Hashable, Hashable]]:
        thread = ThreadKey(*key)
        pool = Pool(thread.pid, family(catalog.comm(thread)))
        return ((pool, _pool_name(pool, catalog)),)

    return groups


def thread_or_pool_names(
    catalog: Catalog, pools: Mapping[tuple[int, ...], Pool]
) -> Callable[[tuple[int, ...]], Hashable]:
    of_thread = thread_names(catalog)
    return lambda key: _pool_name(pools[key], catalog) if key in pools else of_thread(key)


def _pool_name(pool: Pool, catalog: Catalog) -> Hashable:
    return "pool", pool.family, process_name(pool.pid, catalog)
