"""Tables of a breakdown: a row for each category, process, thread, cgroup, waker or place."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import add
from typing import Any, TypeVar

from offtop.model.aggregate.account import NO_ACCOUNT, Account
from offtop.model.aggregate.baseline_rows import BaselineOnly, Compare, Compared
from offtop.model.aggregate.folding import UNFOLDED, Folding
from offtop.model.aggregate.pool import Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import cgroup_name, cgroup_of, process_name, thread_name, wake_name
from offtop.model.aggregate.rows import BY_WAITING, Order, Ranking, Row, ranked, summed_up
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import Reason
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.wake import NO_STORM, Object, Storm
from offtop.model.windows.breakdown import (
    ALL,
    NO_PART,
    Breakdown,
    Part,
    PartTuple,
    Place,
    Scope,
    by_category,
    by_process,
    total,
)
from offtop.model.windows.stuck import Age

G = TypeVar("G", WakerKey, Object, Reason)
STORM_OF = "storm: "
"""Prefix of the names of storm rows."""


def category_rows(
    one: Breakdown,
    order: Order = BY_WAITING,
    *,
    idle_shown: bool = True,
    lifetime: Breakdown | None = None,
    keep: str = ALL,
    now: Mapping[str, Age] | None = None,
) -> Ranking:
    """Return a row for each category with time, without its idle part unless `idle_shown`.

    Filtered time is no row; the header shows it.
    """
    found = by_category(one, idle_shown, filtered_shown=False)
    table = {category: part for category, part in found.items() if any(part)}
    all_idle = {leaf.category for leaf in one.categories} - {leaf.category for leaf in one.categories if not leaf.idle}
    made = ranked(
        table,
        order,
        lambda category, part: Row(category, category, one.span_ns, part, idle=category in all_idle),
        lifetime=None if lifetime is None else by_category(lifetime, idle_shown, filtered_shown=False),
        keep=keep or None,
        now=now,
    )
    # A category that only the baseline has can be selected like any other.
    rows = (
        row._replace(key=row.name) if isinstance(row.key, BaselineOnly) and not row.rows else row for row in made.rows
    )
    return made._replace(rows=tuple(rows))


def process_rows(
    one: Breakdown,
    scope: Scope,
    catalog: Catalog,
    order: Order = BY_WAITING,
    *,
    threads: Mapping[int, int] | None = None,
    titles: Mapping[int, str] | None = None,
    pinned: Sequence[int] = (),
    lifetime: Breakdown | None = None,
    keep: int | None = None,
    now: Mapping[int, Age] | None = None,
    accounts: Mapping[int, Account] | None = None,
    folding: Folding[int, Program] = UNFOLDED,
) -> Ranking:
    """Return a row for each process with time in `scope`, or for each program that `folding` has.

    `threads`: pid → how many it has; `titles`: pid → its title. `pinned` and `keep` are keys in a
    folded table.
    """
    counts, said = folding.merged(threads or {}, add), titles or {}

    def row_of(key: int, part: Part) -> Row:
        program = folding.groups.get(key)
        if program is not None:
            processes = folding.sizes[program]
            return Row(program, program.name, one.span_ns, part, threads=counts.get(key, 0), processes=processes)
        name = process_name(key, catalog)
        return Row(key, name, one.span_ns, part, threads=counts.get(key, 0), title=said.get(key, ""))

    def name_of(key: int) -> str:
        program = folding.groups.get(key)
        return program.name if program is not None else said.get(key) or process_name(key, catalog)

    return ranked(
        folding.folded(by_process(one, scope)),
        order,
        row_of,
        name_of=name_of,
        pinned=pinned,
        lifetime=None if lifetime is None else folding.folded(by_process(lifetime, scope)),
        keep=keep,
        now=None if now is None else folding.oldest(now),
        accounts=None if accounts is None else folding.merged(accounts, Account.plus),
    )


def cgroup_rows(
    one: Breakdown,
    scope: Scope,
    catalog: Catalog,
    order: Order = BY_WAITING,
    *,
    threads: Mapping[int, int] | None = None,
    pinned: Sequence[str] = (),
    lifetime: Breakdown | None = None,
    keep: str | None = None,
    now: Mapping[str, Age] | None = None,
    accounts: Mapping[int, Account] | None = None,
) -> Ranking:
    """Return a row for each container, unit or other cgroup with time in `scope`.

    `threads`: pid → how many it has; `accounts` are by pid.
    """
    processes, in_all = Counter[str](), Counter[str]()
    for pid, count in (threads or {}).items():
        path = cgroup_of(pid, catalog)
        processes[path] += 1
        in_all[path] += count

    def row_of(path: str, part: Part) -> Row:
        return Row(path, cgroup_name(path), one.span_ns, part, threads=in_all[path], processes=processes[path])

    def table_of(some: Breakdown) -> dict[str, Part]:
        table: dict[str, Part] = {}
        for pid, part in by_process(some, scope).items():
            path = cgroup_of(pid, catalog)
            table[path] = table.get(path, NO_PART).plus(part)
        return table

    def added(some: Mapping[int, Account]) -> dict[str, Account]:
        sums: dict[str, Account] = {}
        for pid, account in some.items():
            path = cgroup_of(pid, catalog)
            sums[path] = sums.get(path, NO_ACCOUNT).plus(account)
        return sums

    return ranked(
        table_of(one),
        order,
        row_of,
        name_of=cgroup_name,
        pinned=pinned,
        lifetime=None if lifetime is None else table_of(lifetime),
        keep=keep,
        now=now,
        accounts=None if accounts is None else added(accounts),
    )


def thread_rows(
    table: Mapping[tuple[int, ...], PartTuple],
    span_ns: int,
    catalog: Catalog,
    order: Order = BY_WAITING,
    *,
    pinned: Sequence[ThreadKey] = (),
    lifetime: Mapping[tuple[int, ...], PartTuple] | None = None,
    keep: ThreadKey | Pool | None = None,
    now: Mapping[ThreadKey, Age] | None = None,
    accounts: Mapping[tuple[int, ...], Account] | None = None,
    folding: Folding[tuple[int, ...], Pool] = UNFOLDED,
) -> Ranking:
    """Return a row for each thread or pool of `table` (breakdown.by_thread, or a sum of several)."""
    pools = folding.groups

    def row_of(key: tuple[int, ...], part: Part) -> Row:
        pool = pools.get(key)
        if pool is not None:
            process = process_name(pool.pid, catalog)
            return Row(pool, pool.family, span_ns, part, threads=folding.sizes[pool], process=process)
        thread = ThreadKey(*key)
        return Row(thread, thread_name(thread, catalog), span_ns, part, process=process_name(thread.pid, catalog))

    return ranked(
        folding.folded(table) if pools else table,
        order,
        row_of,
        name_of=lambda key: pools[key].family if key in pools else thread_name(ThreadKey(*key), catalog),
        pinned=pinned,
        lifetime=folding.folded(lifetime) if pools and lifetime is not None else lifetime,
        keep=folding.code(keep) if isinstance(keep, Pool) else keep and folding.code_of.get(keep, keep),
        now=folding.oldest(now) if now is not None else None,
        accounts=accounts,
    )


def wake_rows(
    table: Mapping[G, PartTuple],
    span_ns: int,
    order: Order = BY_WAITING,
    *,
    pinned: Sequence[G] = (),
    ready: Mapping[G, PartTuple] | None = None,
    lifetime: Mapping[G, PartTuple] | None = None,
    keep: G | None = None,
    now: Mapping[G, Age] | None = None,
    last: Collection[G] = (),
) -> Ranking:
    """Return a row for each waker, object or cause.

    `ready` is the run-queue time that followed. Keys in `last` come after all others, whatever their time, since they
    stand for none.
    """

    def row_of(key: G, part: Part) -> Row:
        ready_ns = ready[key][1] if ready and key in ready else 0
        return Row(key, wake_name(key), span_ns, part, ready_ns=ready_ns)

    compared = order.compare(table) if order.compare else None

    def some(is_last: bool) -> Ranking:
        of_these = compared._replace(gone=()) if compared and is_last else compared
        return ranked(
            {key: part for key, part in table.items() if (key in last) == is_last},
            order._replace(compare=partial(_as_compared, of_these) if of_these else None),
            row_of,
            name_of=wake_name,
            pinned=[] if is_last else pinned,
            lifetime=lifetime,
            keep=keep if keep is not None and (keep in last) == is_last else None,
            now=now,
        )

    listed, whole = [some(False), some(True)], total(table.values())
    rows = tuple(row._replace(whole_ns=whole.total_ns) for ranking in listed for row in ranking.rows)
    unseen_ns = sum(ready[key][1] for key in table.keys() & ready.keys()) if ready else 0
    unseen_ns -= sum(row.ready_ns for row in rows)
    left_out = [ranking.elided for ranking in listed if ranking.elided]
    elided = summed_up(left_out, whole.total_ns)._replace(ready_ns=unseen_ns) if left_out else None
    return Ranking(rows, elided, whole, before=compared.whole if compared else None)


def _as_compared(compared: Compared, _: Mapping[Any, PartTuple]) -> Compared:
    """Return the comparison of the whole table, for a part of it."""
    return compared


def storm_rows(storms: Mapping[WakerKey, Storm], span_ns: int) -> list[Row]:
    """Return a row for each waker that causes thundering herds, worst first.

    It has no time: the waits that it ended are in the waker's row.
    """
    worst = sorted(storms.items(), key=lambda item: (-item[1].slept_again, item[0]))
    return [
        Row(
            key._replace(name=f"{STORM_OF}{key.name}"), f"{STORM_OF}{key.name}", span_ns, Part(storm.woken), storm=storm
        )
        for key, storm in worst
        if storm.is_herd
    ]


def storms_of_rows(
    storms: Mapping[int, Storm], ranking: Ranking, key_of: Callable[[int], WakerKey]
) -> dict[WakerKey, Storm]:
    """Return the storms of the wakers in `ranking`; `storms` is by wake id."""
    listed = {row.key for row in ranking.rows}
    found: dict[WakerKey, Storm] = {}
    for wake, storm in storms.items():
        if (key := key_of(wake)) in listed:
            found[key] = found.get(key, NO_STORM).plus(storm)
    return found


def place_rows(
    table: Mapping[tuple[int, ...], PartTuple], span_ns: int, limit: int, compare: Compare | None = None
) -> Ranking:
    """Return a row for each place of `table`, most time first.

    Names are read from the stacks when drawn.
    """
    return ranked(table, Order(limit=limit, compare=compare), lambda key, part: Row(Place(*key), "", span_ns, part))
