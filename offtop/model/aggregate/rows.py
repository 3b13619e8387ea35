"""Rows of a table: the largest parts of a breakdown, and the rest as one row."""

from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from typing import Any, NamedTuple, TypeVar

from offtop.model.aggregate.account import NO_ACCOUNT, Account
from offtop.model.aggregate.baseline_rows import BaselineOnly, BaselineRow, Change, Compare, Compared, summed
from offtop.model.aggregate.place_shares import PlaceShare
from offtop.model.aggregate.pool import NO_CONVOY, Convoy, Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import Reason, Rule
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import NO_HOLDER, Holder
from offtop.model.values.wake import NO_STORM, Object, Storm
from offtop.model.windows.breakdown import ALL, NO_PART, Part, PartTuple, Place, total
from offtop.model.windows.stuck import NO_AGE, Age
from offtop.units import average, percent

NOWHERE = SiteKey(0, 0, 0, 0)

Key = str | int | Program | ThreadKey | Pool | Place | WakerKey | Object | Reason | BaselineOnly
"""What a row is about: category id or cgroup path, pid, program, thread, pool, place, waker, object, cause, or
something that only the baseline has."""
K = TypeVar("K")


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
