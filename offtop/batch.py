"""Batch mode: each tick as text tables, as `top -b` prints them, or as one JSON object.

What is printed is pure functions of a tick; names are waited for, because nobody can look again later.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

from offtop import __version__
from offtop.model import histogram as log2
from offtop.model import where
from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.categories import Categories, is_periodic
from offtop.model.cut import (
    ALL,
    FILTERED,
    RUN_QUEUE,
    Leaf,
    Scope,
    by_category,
    by_thread,
    leaf_of_sites,
    top_of_processes,
    top_of_threads,
    total,
)
from offtop.model.history import History, Kept
from offtop.model.printable import printable
from offtop.model.rows import NOWHERE, Key, Order, Ranking, Row, category_rows, process_rows, thread_rows
from offtop.model.snapshot import EXITED, SiteTotals
from offtop.model.stack import Frame, Names
from offtop.model.window import Window
from offtop.pace import Pace
from offtop.source import Source
from offtop.units import count, duration, threads

_NAMES_SECONDS = 10.0
"""A first look into a large binary without separate symbols takes this long at most."""
_HISTORY_BYTES = 1 << 20
_ALL_ROWS = Order(limit=1_000_000)


def run(
    source: Source,
    categories: Categories,
    delay_ns: int,
    iterations: int | None,
    *,
    as_json: bool,
    width: int,
    idle_shown: bool,
    threads_listed: bool,
    out: TextIO,
) -> None:
    """Print `iterations` ticks (None: until the source ends). Errors of the source and of `out` are passed on."""
    history = History(categories.idle, is_periodic, max_bytes=_HISTORY_BYTES)
    pace = Pace(source, history, delay_ns, first_tick_ns=delay_ns)
    for kept in itertools.islice(pace.ticks(), iterations):
        if as_json:
            source.wait_for_names(
                _unnamed(kept.window, {key.user for key, _ in kept.window.each_site()}), _NAMES_SECONDS
            )
            json.dump(tick_object(kept, source.names), out, separators=(",", ":"))
            out.write("\n")
        else:
            listed = waiters(kept, idle_shown=idle_shown, threads_listed=threads_listed)
            source.wait_for_names(_unnamed(kept.window, {row.top.user for row in listed.rows}), _NAMES_SECONDS)
            out.write(tick_text(kept, listed, source.names, width, idle_shown=idle_shown))
        out.flush()


def _unnamed(window: Window, stacks: Iterable[int]) -> set[Frame]:
    return {frame for stack in stacks for frame in window.book.stack(stack).frames if not frame.name}


def tick_object(kept: Kept, names: Names) -> dict[str, Any]:
    """One tick as JSON has it: `offtop schema` describes it. Times are integers of ns, strings printable."""
    window, book = kept.window, kept.window.book
    cost, filters = window.cost, window.filters
    leaves, leaf_of = kept.cut.categories, leaf_of_sites(window, kept.idle)
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
            for name, part in sorted(by_category(kept.cut).items(), key=lambda item: -item[1].total_ns)
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
            for key, t in sorted(window.each_thread(), key=lambda item: -item[1].offcpu_ns)
        ],
        "sites": [
            _site_object(key, totals, leaf_of[key], book, names)
            for key, totals in sorted(window.each_site(), key=lambda item: -item[1].total_ns)
        ],
    }


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


def waiters(kept: Kept, *, idle_shown: bool, threads_listed: bool) -> Ranking:
    """The processes or threads of a tick, and where each spent most time."""
    window, book = kept.window, kept.window.book
    scope = Scope(ALL, idle=idle_shown)
    if threads_listed:
        listed = thread_rows(by_thread(window, scope, kept.idle), window.span_ns, book, _ALL_ROWS)
        whom = {row.key for row in listed.rows if isinstance(row.key, ThreadKey)}
        tops: Mapping[Key, SiteKey] = {**top_of_threads(window, scope, kept.idle, whom)}
    else:
        listed = process_rows(kept.cut, scope, book, _ALL_ROWS)
        tops = {**top_of_processes(kept.cut, scope, {row.pid for row in listed.rows})}
    return listed._replace(rows=tuple(row._replace(top=tops.get(row.key, NOWHERE)) for row in listed.rows))


def tick_text(kept: Kept, listed: Ranking, names: Names, width: int, *, idle_shown: bool) -> str:
    """One tick as tables, a blank line behind it. No line is wider than `width` (0: as wide as it needs)."""
    book = kept.window.book
    threads_listed = any(isinstance(row.key, ThreadKey) for row in listed.rows)

    def where_of(row: Row) -> str:
        return "" if row.top == NOWHERE else printable(where.in_short(book, row.top.kernel, row.top.user, names))

    lines = [
        _head(kept),
        *_table(category_rows(kept.cut, _ALL_ROWS, idle_shown=idle_shown), f"{'WAIT CATEGORY':<15}", _category_name),
        "",
        *_table(listed, f"{'PID':>7} {'TID' if threads_listed else '':>7} {'COMMAND':<16}", _waiter_name, where_of),
        "",
    ]
    return "".join(f"{line[:width].rstrip() if width else line.rstrip()}\n" for line in lines)


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
