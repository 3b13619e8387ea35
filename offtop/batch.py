"""Batch mode: each tick as text tables, as `top -b` prints them, or as one JSON object.

What is printed is pure functions of a tick; names, and who processes are where a filter asks for that, are waited
for, because nobody can look again later.
"""

import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from offtop import __version__
from offtop.model import histogram as log2
from offtop.model import where
from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.categories import Categories, is_periodic
from offtop.model.cut import (
    ALL,
    FILTERED,
    RUN_QUEUE,
    Cut,
    Leaf,
    Scope,
    Shares,
    by_category,
    by_thread,
    cut_of,
    leaf_of_sites,
    top_of_processes,
    top_of_threads,
    total,
)
from offtop.model.filter import NOTHING, Filter, Text
from offtop.model.history import History, Kept
from offtop.model.printable import printable
from offtop.model.rows import (
    NOWHERE,
    Key,
    Order,
    Ranking,
    Row,
    category_rows,
    kept_rows,
    process_rows,
    thread_rows,
)
from offtop.model.snapshot import EXITED, SiteTotals, ThreadTotals
from offtop.model.stack import Frame, Names
from offtop.model.table import SITES
from offtop.model.window import Window
from offtop.pace import Pace, Recorder
from offtop.source import Source
from offtop.units import count, duration, threads

_NAMES_SECONDS = 10.0
"""A first look into a large binary without separate symbols takes this long at most."""
_DETAILS_SECONDS = 2.0
"""For who processes are, at most; and so long for one more of them: those that have ended are never told."""
_NO_MORE_DETAILS_SECONDS = 0.5
_HISTORY_BYTES = 1 << 20
_ALL_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of each tick is printed."""

    filter: Filter = NOTHING
    """Its row terms are for the list of processes or threads."""
    idle_shown: bool = False
    """In tables; JSON tells all and marks it."""
    threads: bool = False
    """Whether the list is of threads."""
    sort: str = "WAITING"
    """One of rows.SORTS: of tables."""
    reverse: bool = False
    most_rows: int = _ALL_ROWS

    @property
    def order(self) -> Order:
        return Order(self.sort, self.reverse, self.most_rows)


class Tick(NamedTuple):
    """What of a tick passes the filter."""

    kept: Kept
    """All of it."""
    filter: Filter
    shares: Shares
    cut: Cut
    left_out_ns: int = 0
    """Time that does not pass."""


def run(
    source: Source,
    categories: Categories,
    delay_ns: int,
    iterations: int | None,
    wanted: Wanted,
    *,
    as_json: bool,
    width: int,
    out: TextIO,
    recorder: Recorder | None = None,
) -> None:
    """Print `iterations` ticks (None: until the source ends). Errors of the source and of `out` are passed on."""
    history = History(categories.idle, is_periodic, max_bytes=_HISTORY_BYTES)
    pace = Pace(source, history, delay_ns, first_tick_ns=delay_ns)
    pace.recorder = recorder
    looked_up = set[int]()
    for kept in itertools.islice(pace.ticks(), iterations):
        if wanted.filter.needs_details:
            looked_up = _look_up(source, kept, looked_up)
        if _asks_for_names(wanted.filter):
            source.wait_for_names(_unnamed(kept.window, _user_stacks(kept.window)), _NAMES_SECONDS)
        tick = passing(kept, wanted.filter, source.names)
        if as_json:
            source.wait_for_names(_unnamed(kept.window, {key.user for key, _ in _sites(tick)}), _NAMES_SECONDS)
            json.dump(tick_object(tick, source.names), out, separators=(",", ":"))
            out.write("\n")
        else:
            ever = history.since_start() if wanted.sort == "TOTAL" else None
            lifetime = passing(ever, wanted.filter, source.names) if ever else None
            listed = waiters(tick, wanted, lifetime)
            source.wait_for_names(_unnamed(kept.window, {row.top.user for row in listed.rows}), _NAMES_SECONDS)
            out.write(tick_text(tick, listed, source.names, width, wanted, lifetime))
        out.flush()


def passing(kept: Kept, chosen: Filter, names: Names) -> Tick:
    """What of a tick passes: who is not known yet, or has no name yet, does not match."""
    every = kept.shares
    if not chosen.chooses_waits:
        return Tick(kept, chosen, every, kept.cut)
    some = every.of(chosen.mask(every, kept.window.book, names))
    left_out_ns = int(every.total_ns.sum()) - int(some.total_ns.sum())
    return Tick(kept, chosen, some, cut_of(some, kept.span_ns), left_out_ns)


def _asks_for_names(chosen: Filter) -> bool:
    """Whether it looks at the program's functions, whose names come late: `stack=`, and a word alone."""
    return any(isinstance(one, Text) and one.key in ("stack", "") for one in chosen.waits)


def _unnamed(window: Window, stacks: Iterable[int]) -> set[Frame]:
    return {frame for stack in stacks for frame in window.book.stack(stack).frames if not frame.name}


def _user_stacks(window: Window) -> set[int]:
    return {key.user for key, _ in window.each_site()}


def _look_up(source: Source, kept: Kept, looked_up: Collection[int]) -> set[int]:
    """Have the book tell of the processes of a tick, and wait for those not `looked_up` before; all of them."""
    pids, told = _pids(kept), kept.window.book.details
    source.describe(pids)
    unknown = {pid for pid in pids.difference(looked_up) if pid not in told}
    now_s = time.monotonic()
    end_s, idle_s = now_s + _DETAILS_SECONDS, now_s + _NO_MORE_DETAILS_SECONDS
    while unknown and now_s < min(end_s, idle_s):
        time.sleep(0.01)
        now_s = time.monotonic()
        left = {pid for pid in unknown if pid not in told}
        if len(left) < len(unknown):
            idle_s = now_s + _NO_MORE_DETAILS_SECONDS
        unknown = left
    return pids


def _pids(kept: Kept) -> set[int]:
    """Of the processes that a tick has time of; those that have been given back have none."""
    return {pid for by_pid in kept.cut.processes.values() for pid in by_pid if pid != EXITED.pid}


def tick_object(tick: Tick, names: Names) -> dict[str, Any]:
    """One tick as JSON has it: `offtop schema` describes it. Times are integers of ns, strings printable."""
    kept = tick.kept
    window, book = kept.window, kept.window.book
    cost, filters = window.cost, window.filters
    leaves, leaf_of = tick.cut.categories, leaf_of_sites(window, kept.idle)
    return {
        "version": __version__,
        "taken_ns": window.taken_ns,
        "span_ns": window.span_ns,
        "mode": window.mode,
        "door": window.door,
        "filters": {
            "pids": list(filters.pids),
            "tids": list(filters.tids),
            "who": filters.who,
            "states": filters.states,
            "min_ns": filters.min_ns,
            "max_ns": filters.max_ns or None,
        },
        "filter": printable(tick.filter.text) or None,
        "left_out_ns": tick.left_out_ns,
        "lost": dict(window.lost),
        "cost": {
            "bpf_ns_per_switch": round(cost.bpf_ns_per_switch, 1) if cost.bpf_ns_per_switch >= 0 else None,
            "switches": cost.switches if cost.switches >= 0 else None,
            "cpu_pct": round(cost.cpu_pct, 2) if cost.cpu_pct >= 0 else None,
            "bpf_pct": round(cost.bpf_pct, 2) if cost.bpf_pct >= 0 else None,
            "rss_bytes": cost.rss_bytes if cost.rss_bytes >= 0 else None,
        },
        "categories": [
            {
                "name": name,
                "idle": all(leaf.idle for leaf in leaves if leaf.category == name),
                "idle_ns": sum(p.total_ns for leaf, p in leaves.items() if leaf.category == name and leaf.idle),
                "waits": part.waits,
                "total_ns": part.total_ns,
                "max_ns": part.max_ns,
                "histogram": log2.slots(part.histogram),
            }
            for name, part in sorted(by_category(tick.cut).items(), key=lambda item: (-item[1].total_ns, item[0]))
        ],
        "threads": [
            {
                **_who(key, book),
                "waits": t.waits,
                "offcpu_ns": t.offcpu_ns,
                "blocked_ns": t.blocked_ns,
                "runqueue_ns": t.runqueue_ns,
                "preempted_ns": t.preempted_ns,
                "involuntary": t.involuntary,
                "max_ns": t.max_ns,
                "short_waits": t.short_waits,
                "short_ns": t.short_ns,
                "filtered_ns": t.filtered_ns,
                "histogram": log2.slots(t.histogram),
            }
            for key, t in _threads(tick)
        ],
        "sites": [_site_object(key, totals, leaf_of[key], book, names) for key, totals in _sites(tick)],
    }


def _threads(tick: Tick) -> list[tuple[ThreadKey, ThreadTotals]]:
    """Each that has time that passes, whole; most time first."""
    every = sorted(tick.kept.window.each_thread(), key=lambda item: (-item[1].offcpu_ns, item[0]))
    if not tick.filter.chooses_waits:
        return every
    those = {key.thread for key in _keys(tick)}
    return [item for item in every if item[0] in those]


def _sites(tick: Tick) -> list[tuple[SiteKey, SiteTotals]]:
    """Each that has time that passes, whole; most time first."""
    every = sorted(tick.kept.window.each_site(), key=lambda item: (-item[1].total_ns, item[0]))
    if not tick.filter.chooses_waits:
        return every
    those = _keys(tick)
    return [item for item in every if item[0] in those]


def _keys(tick: Tick) -> set[SiteKey]:
    """Whose time passes, and where; a thread's short waits have a place of their own."""
    return {*map(SITES.key, tick.shares.ids.tolist())}


def _site_object(key: SiteKey, totals: SiteTotals, leaf: Leaf, book: Book, names: Names) -> dict[str, Any]:
    who = _who(key.thread, book)
    del who["process"]
    return {
        **who,
        "category": leaf.category,
        "idle": leaf.idle,
        "waits": totals.waits,
        "total_ns": totals.total_ns,
        "blocked_ns": totals.blocked_ns,
        "runqueue_ns": totals.runqueue_ns,
        "max_ns": totals.max_ns,
        "kernel": [printable(names.of(frame)) for frame in book.stack(key.kernel).trimmed],
        "user": [printable(names.of(frame)) for frame in book.stack(key.user).trimmed],
        "histogram": log2.slots(totals.histogram),
    }


def _who(key: ThreadKey, book: Book) -> dict[str, Any]:
    if key == EXITED:
        return {"pid": 0, "tid": 0, "comm": "(exited)", "process": "(exited)"}
    comm = printable(book.comm(key))
    return {"pid": key.pid, "tid": key.tid, "comm": comm, "process": printable(book.process(key.pid))}


def waiters(tick: Tick, wanted: Wanted, lifetime: Tick | None = None) -> Ranking:
    """The processes or threads of a tick, and where each spent most time. `lifetime`: since the start, for TOTAL."""
    kept, book = tick.kept, tick.kept.window.book
    scope = Scope(ALL, idle=wanted.idle_shown)
    if wanted.threads:
        ever = by_thread(lifetime.shares, scope) if lifetime else None
        every = thread_rows(by_thread(tick.shares, scope), kept.span_ns, book, wanted.order, lifetime=ever)
    else:
        every = process_rows(tick.cut, scope, book, wanted.order, lifetime=lifetime.cut if lifetime else None)
    keeps_all = not wanted.filter.chooses_rows or not every.rows
    listed = every if keeps_all else kept_rows(every, wanted.filter.keeps, _ALL_ROWS)
    if wanted.threads:
        whom = {row.key for row in listed.rows if isinstance(row.key, ThreadKey)}
        tops: Mapping[Key, SiteKey] = {**top_of_threads(tick.shares, scope, whom)}
    else:
        tops = {**top_of_processes(tick.cut, scope, {row.pid for row in listed.rows})}
    return listed._replace(rows=tuple(row._replace(top=tops.get(row.key, NOWHERE)) for row in listed.rows))


def tick_text(
    tick: Tick, listed: Ranking, names: Names, width: int, wanted: Wanted, lifetime: Tick | None = None
) -> str:
    """One tick as tables, a blank line behind it. No line is wider than `width` (0: as wide as it needs)."""
    book = tick.kept.window.book
    categories = category_rows(
        tick.cut, wanted.order, idle_shown=wanted.idle_shown, lifetime=lifetime.cut if lifetime else None
    )

    def where_of(row: Row) -> str:
        return "" if row.top == NOWHERE else printable(where.in_short(book, row.top.kernel, row.top.user, names))

    lines = [
        f"{_head(tick.kept)}{_filtered(tick, wanted)}",
        *_table(categories, f"{'WAIT CATEGORY':<15}", _category_name),
        "",
        *_table(listed, f"{'PID':>7} {'TID' if wanted.threads else '':>7} {'COMMAND':<16}", _waiter_name, where_of),
        "",
    ]
    return "".join(f"{line[:width].rstrip() if width else line.rstrip()}\n" for line in lines)


def _filtered(tick: Tick, wanted: Wanted) -> str:
    """The end of the head line that tells of the filter, and of how much of the waiting it lets pass."""
    chosen, kept = tick.filter, tick.kept
    if not chosen.text:
        return ""
    shown_ns = total(by_category(tick.cut, wanted.idle_shown, filtered_shown=False).values()).total_ns
    unknown = len(_pids(kept).difference(kept.window.book.details)) if chosen.needs_details else 0
    doubt = f" ({unknown} processes unknown)" if unknown else ""
    return f'  filter "{printable(chosen.text)}" passes {threads(shown_ns / kept.span_ns)}{doubt}'


def _head(kept: Kept) -> str:
    window = kept.window
    span_ns = window.span_ns
    filtered_ns = sum(part.total_ns for leaf, part in kept.cut.categories.items() if leaf.category == FILTERED)
    every = total(kept.cut.categories.values()).total_ns - filtered_ns
    idle_ns = sum(part.total_ns for leaf, part in kept.cut.categories.items() if leaf.idle)
    ready_ns = sum(part.total_ns for leaf, part in kept.cut.categories.items() if leaf.category == RUN_QUEUE)
    clock = time.strftime("%H:%M:%S", time.localtime(window.taken_ns // 1_000_000_000))
    lost = ", ".join(f"{n} {kind}" for kind, n in window.lost.items()) or "0"
    left_out = f"filtered {threads(filtered_ns / span_ns)}  " if filtered_ns else ""
    cost = window.cost
    own = f"  cost {cost.bpf_ns_per_switch:.0f}ns/switch" if cost.bpf_ns_per_switch >= 0 else ""
    return (
        f"offtop - {clock} span {duration(span_ns)}  "
        f"WAITING {threads((every - idle_ns) / span_ns)} = "
        f"blocked {threads((every - idle_ns - ready_ns) / span_ns)} + run queue {threads(ready_ns / span_ns)}  "
        f"idle-looking {threads(idle_ns / span_ns)}  {left_out}lost {lost}  "
        f"min {duration(window.filters.min_ns) or '0'}{own}"
    )


def _table(
    ranking: Ranking, head: str, name: Callable[[Row], str], where_of: Callable[[Row], str] | None = None
) -> Iterable[str]:
    last = "  WHERE" if where_of else ""
    yield f"{head} {'WAITING':>8} {'%':>4} {'EV/S':>6} {'p50<=':>6} {'p99<=':>6} {'MAX':>6}{last}"
    for row in (*ranking.rows, *([ranking.elided] if ranking.elided else [])):
        yield f"{name(row)} {_numbers(row)}{f'  {where_of(row)}' if where_of else ''}"


def _numbers(row: Row) -> str:
    p50, p99 = duration(row.percentile_ns(50)), duration(row.percentile_ns(99))
    events = count(row.waits_per_s) if row.part.waits else ""
    longest = duration(row.part.max_ns)
    return f"{threads(row.waiting):>8} {row.share_pct:>3.0f}% {events:>6} {p50:>6} {p99:>6} {longest:>6}"


def _category_name(row: Row) -> str:
    return f"{('~' if row.idle else '') + row.name:<15}"


def _waiter_name(row: Row) -> str:
    tid = str(row.key.tid) if isinstance(row.key, ThreadKey) else ""
    pid = str(row.pid) if row.pid else ""
    return f"{pid:>7} {tid:>7} {printable(row.name)[:16]:<16}"
