"""Rows of a table: the largest parts of a breakdown, and the rest as one row."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from heapq import nlargest
from operator import add
from typing import Any, NamedTuple, TypeVar

from offtop.model.aggregate.account import NO_ACCOUNT, Account
from offtop.model.aggregate.baseline_rows import BaselineOnly, BaselineRow, Change, Compare, Compared, summed
from offtop.model.aggregate.folding import UNFOLDED, Folding
from offtop.model.aggregate.place_shares import PlaceShare
from offtop.model.aggregate.pool import NO_CONVOY, Convoy, Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import Reason, Rule
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.container import label, place
from offtop.model.values.snapshot import EXITED, NO_HOLDER, Holder
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
from offtop.model.windows.stuck import NO_AGE, Age
from offtop.units import average, percent

EXITED_NAME = "(exited)"
"""Stands for evicted threads."""
NOWHERE = SiteKey(0, 0, 0, 0)
NO_CGROUP = "?"
"""Stands for the cgroup of processes whose cgroup is not known yet; paths begin with `/`."""

Key = str | int | Program | ThreadKey | Pool | Place | WakerKey | Object | Reason | BaselineOnly
"""What a row is about: category id or cgroup path, pid, program, thread, pool, place, waker, object, cause, or
something that only the baseline has."""
K = TypeVar("K")
G = TypeVar("G", WakerKey, Object, Reason)


class Row(NamedTuple):
    """One row of a table, with unformatted numbers."""

    key: Key
    name: str
    """Raw if it is untrusted: escape it before it is shown."""
    span_ns: int
    part: Part = NO_PART
    whole_ns: int = 0
    """Time of all rows of the table, including elided ones; `share_pct` refers to it."""
    threads: int = 0
    """Threads of a process, program, pool or cgroup that have ever waited."""
    processes: int = 0
    """For a program: how many of its processes exist, or waited in the span; for a cgroup: how many exist."""
    rows: int = 0
    """How many rows of a table it sums up; 0: it is one of them."""
    title: str = ""
    """For a process: its title, as set by setproctitle(), `postgres: bench [local] idle`; empty: none. Raw."""
    process: str = ""
    """Raw process name, for a thread."""
    idle: bool = False
    """Whether all of it is idle."""
    pinned: bool = False
    lifetime_ns: int = 0
    """Time since the start, if requested."""
    now: Age = NO_AGE
    """Age of its oldest wait in progress."""
    account: Account = NO_ACCOUNT
    """Account of all its time, if requested."""
    convoy: Convoy = NO_CONVOY
    """For a process or pool: how many of its threads wait for the same thing now."""
    ready_ns: int = 0
    """For a waker or object: run-queue time after its waits."""
    storm: Storm = NO_STORM
    """For a waker: its bursts of wakeups."""
    top: SiteKey = NOWHERE
    """For a cgroup, program, process or thread: where it last waited longest (top_of_groups, top_of_threads)."""
    places: tuple[PlaceShare, ...] = ()
    """For a row of sleepers: what it waits for, most time first, in `places_ns`."""
    places_ns: int = 0
    """Length of the time that `places` covers: the span, or for a thread or pool the last tick in which it waited."""
    holder: Holder = NO_HOLDER
    """For a kernel lock: the holder, from the oldest wait for it."""
    rule: Rule | None = None
    """The cause rule of the wait at `top`."""
    before: BaselineRow | None = None
    """Baseline values; None: not compared."""

    @property
    def change(self) -> Change | None:
        """Change since the baseline."""
        return Change(self.waiting, self.percentile_ns(99), self.span_ns, self.before) if self.before else None

    @property
    def waiting(self) -> float:
        """Average waiting threads."""
        return average(self.part.total_ns, self.span_ns)

    @property
    def share_pct(self) -> float:
        return percent(self.part.total_ns, self.whole_ns)

    @property
    def waits_per_s(self) -> float:
        return 1e9 * self.part.waits / self.span_ns if self.span_ns else 0.0

    def percentile_ns(self, percent: float) -> int:
        """Return an upper bound for waits from the minimum up."""
        return log2.percentile_ns(self.part.histogram, percent, self.part.max_ns)

    @property
    def pid(self) -> int:
        """For a process, thread, pool or waker; otherwise 0."""
        return (
            self.key.pid
            if isinstance(self.key, ThreadKey | Pool | WakerKey)
            else self.key
            if isinstance(self.key, int)
            else 0
        )


class Ranking(NamedTuple):
    """Rows in order, and the sum of those left out."""

    rows: tuple[Row, ...] = ()
    elided: Row | None = None
    """The rest summed up."""
    whole: Part = NO_PART
    """All rows, including elided ones."""
    of_ns: int = 0
    """Time of the whole, if these are rows of a part."""
    before: BaselineRow | None = None
    """Baseline values of the whole."""


WAITING, CHANGE = "WAITING", "CHANGE"
"""Sort by time, and by the largest change since the baseline in either direction."""
SORTS = (WAITING, CHANGE, "MAX", "NOW", "TOTAL", "EV/S", "NAME", "PID", "P50", "P99")
"""Sorts of a table, in the order in which `<` and `>` step. TOTAL is the time since the start."""
ACCOUNT_SORTS = ("RUNNING", "READY", "BLOCKED", "REST", "NAME", "PID")
"""Sorts of a list that shows accounts."""
_OF_ACCOUNT = {"RUNNING": "running_ns", "READY": "ready_ns", "BLOCKED": "blocked_ns", "REST": "residue_ns"}
_FIELD = {"EV/S": 0, "WAITING": 1, "MAX": 2}
_PERCENTS = {"P50": 50, "P99": 99}
_GONE_SHARE = 4
"""At most one row in so many, or as many as are free, may be for what only the baseline has."""


class Order(NamedTuple):
    """Sort order: largest first, but names and pids ascending; `reverse` reverses that."""

    sort: str = WAITING
    reverse: bool = False
    limit: int = 500
    """Maximum number of rows, including the one that sums up the rest."""
    only_waiters: bool = False
    """Leave out rows that have an account but did not wait."""
    compare: Compare | None = None
    """Comparison with the baseline."""


BY_WAITING = Order()


def ranked(
    table: Mapping[K, PartTuple],
    order: Order,
    row_of: Callable[[K, Part], Row],
    *,
    name_of: Callable[[K], str] = str,
    pinned: Sequence[K] = (),
    lifetime: Mapping[K, PartTuple] | None = None,
    keep: K | None = None,
    now: Mapping[K, Age] | None = None,
    accounts: Mapping[K, Account] | None = None,
) -> Ranking:
    """Return the rows of `table` in `order`.

    Pinned rows come first, with any numbers, even if they are not in the table. The row of `keep` is included at the
    end if nowhere else, so that the cursor does not lose it. Rows without time (an evicted thread can have negative
    time in one window) and rows beyond the limit are summed up in `elided`. `lifetime` is the same table since the
    start, for TOTAL; `now` has the oldest waits in progress. Ties are broken by time, then by key, so that rows do not
    jump.
    """
    whole, ages = total(table.values()), now or {}
    candidates = [key for key, part in table.items() if (part[1] > 0 or part[0] > 0) and key not in pinned]
    if accounts is not None and not order.only_waiters:
        table = {**dict.fromkeys(accounts, NO_PART), **table}
        candidates = [key for key in table if key not in pinned]
    listed = [*pinned, *([keep] if keep is not None else [])]
    compared = order.compare({**dict.fromkeys(listed, NO_PART), **table}) if order.compare else None
    sort_key = _sort_key(table, order.sort, name_of, lifetime, ages, accounts or {}, compared)
    backward = (order.sort not in ("NAME", "PID")) != order.reverse
    free = order.limit - len(pinned) - len(candidates)
    gone = _gone_rows(compared, max(free, order.limit // _GONE_SHARE)) if compared else []
    room = max(0, order.limit - len(pinned) - len(gone))
    left = max(0, room - (len(candidates) > room))
    if backward and left < len(candidates) // 4:
        kept = nlargest(left, candidates, sort_key)
    else:
        kept = sorted(candidates, key=sort_key, reverse=backward)[:left]
    if keep is not None and keep not in kept and keep not in pinned:
        kept = [*(kept[:-1] if left and len(kept) == left else kept), keep]

    def row(key: K, is_pinned: bool) -> Row:
        made = row_of(key, Part(*table[key]) if key in table else NO_PART)
        lifetime_ns = lifetime.get(key, NO_PART)[1] if lifetime is not None else 0
        return made._replace(
            whole_ns=whole.total_ns,
            pinned=is_pinned,
            lifetime_ns=lifetime_ns,
            now=ages.get(key, NO_AGE),
            account=(accounts or {}).get(key, NO_ACCOUNT),
            before=compared.before.get(key) if compared else None,
        )

    others = [*(row(key, False) for key in kept), *gone]
    if order.sort == CHANGE and gone:
        others.sort(key=_size_of_change, reverse=not order.reverse)
    rows, before = (*(row(key, True) for key in pinned), *others), compared.whole if compared else None
    shown = {*pinned, *kept}
    elided_count = sum(key not in shown for key in table)
    if not elided_count:
        return Ranking(rows, None, whole, before=before)
    rest = total(part for key, part in table.items() if key not in shown)
    span_ns = row_of(next(iter(table)), NO_PART).span_ns
    oldest = max((ages[key] for key in table if key not in shown and key in ages), default=NO_AGE)
    elided = Row(ALL, f"{elided_count} more", span_ns, rest, whole.total_ns, rows=elided_count, now=oldest)
    if lifetime is not None:
        elided = elided._replace(lifetime_ns=sum(lifetime.get(key, NO_PART)[1] for key in table.keys() - shown))
    if accounts is not None:
        elided = elided._replace(
            account=_sum_of_accounts([accounts[key] for key in (table.keys() - shown) & accounts.keys()])
        )
    if compared:
        elided = elided._replace(before=summed([compared.before[key] for key in table if key not in shown]))
    return Ranking(rows, elided, whole, before=before)


def _gone_rows(compared: Compared, most: int) -> list[Row]:
    """Return rows for what only the baseline has; beyond `most`, the rest is one row."""
    shown = len(compared.gone) if len(compared.gone) <= most else max(0, most - 1)
    rows = [
        Row(key, key.name, compared.span_ns, process=key.process, before=before)
        for key, before in compared.gone[:shown]
    ]
    rest = [before for _, before in compared.gone[shown:]]
    if rest:
        name = f"{len(rest)} gone"
        rows.append(Row(BaselineOnly(name), name, compared.span_ns, rows=len(rest), before=summed(rest)))
    return rows


def _size_of_change(row: Row) -> float:
    return abs(row.change.by) if row.change else 0.0


def _sum_of_accounts(some: Sequence[Account]) -> Account:
    """Return the account of all these threads."""
    columns = [*zip(*some, strict=True)]
    return Account(*map(sum, columns))._replace(worst_ns=max(columns[-1])) if columns else NO_ACCOUNT


def _sort_key(
    table: Mapping[K, PartTuple],
    sort: str,
    name_of: Callable[[K], str],
    lifetime: Mapping[K, PartTuple] | None,
    now: Mapping[K, Age],
    accounts: Mapping[K, Account],
    compared: Compared | None,
) -> Callable[[K], Any]:
    if sort == "PID":
        return _number
    if sort == "NAME":
        return lambda key: (name_of(key), key)
    if sort == "NOW":
        return lambda key: (now.get(key, NO_AGE).ns, table[key][1], key)
    if sort == "TOTAL" and lifetime is not None:
        return lambda key: (lifetime.get(key, NO_PART)[1], table[key][1], key)
    if sort == CHANGE and compared:
        return lambda key: (abs(compared.change(key, table[key][1])), table[key][1], key)
    if sort in _PERCENTS:
        percent = _PERCENTS[sort]
        return lambda key: (log2.percentile_ns(table[key][3], percent, table[key][2]), table[key][1], key)
    if sort in _OF_ACCOUNT:
        field = Account._fields.index(_OF_ACCOUNT[sort])
        return lambda key: (accounts.get(key, NO_ACCOUNT)[field], table[key][1], key)
    field_index = _FIELD.get(sort, 1)
    return lambda key: (table[key][field_index], table[key][1], key)


def _number(key: Any) -> Any:
    """Return the sort key of PID; names if there is no pid."""
    if isinstance(key, WakerKey):
        return not key.pid, key.pid, key.tid, key.name
    if isinstance(key, Object):
        return not key.pid, key.pid, key.name
    if isinstance(key, int):
        return abs(key)  # a program by its lowest PID
    return (True, 0, key.name) if isinstance(key, Reason) else key


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


STORM_OF = "storm: "
"""Prefix of the names of storm rows."""


def wake_name(key: WakerKey | Object | Reason) -> str:
    """Raw."""
    return (key.label or "(unknown)") if isinstance(key, Object) else key.name


def kept_rows(ranking: Ranking, keeps: Callable[[Row], bool], limit: int) -> Ranking:
    """Return the pinned rows and those that pass `keeps`.

    All others are summed up in `elided`.
    """
    shown = [row for row in ranking.rows if row.pinned or keeps(row)][:limit]
    keys = {row.key for row in shown}
    others = [row for row in ranking.rows if row.key not in keys]
    others += [ranking.elided] if ranking.elided else []
    if not others:
        return ranking
    return ranking._replace(rows=tuple(shown), elided=summed_up(others, ranking.whole.total_ns))


def summed_up(others: Sequence[Row], whole_ns: int) -> Row:
    """Return the sum of these rows."""
    count, rest = sum(row.rows or 1 for row in others), total(row.part for row in others)
    oldest = max(row.now for row in others)
    made = Row(ALL, f"{count} more", others[0].span_ns, rest, whole_ns, rows=count, now=oldest)
    return made._replace(
        account=_sum_of_accounts([row.account for row in others]),
        ready_ns=sum(row.ready_ns for row in others),
        before=summed([row.before for row in others]),
        lifetime_ns=sum(row.lifetime_ns for row in others),
    )


def first_seen(count: int, cursor: int, lines: int, line: int | None) -> int:
    """Return the first of `count` rows on the screen.

    The row under the cursor is on that line (None: the middle one), if enough rows are above and below it.
    """
    at = lines // 2 if line is None else min(line, lines - 1)
    return min(max(0, cursor - max(0, at)), max(0, count - lines))


class Visible(NamedTuple):
    """Rows of a table on the screen."""

    first: int
    end: int
    below: Row | None
    """Sum of the rows below; None: there are none."""


def visible(ranking: Ranking, cursor: int, room: int, line: int | None = None) -> Visible:
    """Return which rows are on the screen, among them the one under the cursor.

    `room` is the number of rows, including the sum of those below. `line`: see first_seen().
    """
    count, least_below = len(ranking.rows), ranking.elided is not None
    at = (room - 1) // 2 if line is None else min(line, room - 2)
    first = first_seen(count, cursor, max(1, room - least_below), at)
    end = first + max(1, room - (least_below or first + room < count))
    below = [row for row in ranking.rows[end:] if row.storm == NO_STORM]  # its waits are in other rows
    below += [ranking.elided] if ranking.elided else []
    return Visible(first, end, summed_up(below, ranking.whole.total_ns) if below else None)


def place_rows(
    table: Mapping[tuple[int, ...], PartTuple], span_ns: int, limit: int, compare: Compare | None = None
) -> Ranking:
    """Return a row for each place of `table`, most time first.

    Names are read from the stacks when drawn.
    """
    return ranked(table, Order(limit=limit, compare=compare), lambda key, part: Row(Place(*key), "", span_ns, part))


def process_name(pid: int, catalog: Catalog) -> str:
    """Raw. Threads that exited no longer belong to a process."""
    return EXITED_NAME if pid == EXITED.pid else catalog.process(pid)


def cgroup_of(pid: int, catalog: Catalog) -> str:
    """Return the path of a process's container, unit or other cgroup.

    It is NO_CGROUP if it is not known yet.
    """
    return place(catalog.detail(pid).cgroup) or NO_CGROUP


def cgroup_name(path: str) -> str:
    """Return the usual name of a cgroup, or its path. Raw."""
    return "(unknown)" if path == NO_CGROUP else label(path) or path


def thread_name(thread: ThreadKey, catalog: Catalog) -> str:
    """Raw."""
    return EXITED_NAME if thread == EXITED else catalog.comm(thread)
