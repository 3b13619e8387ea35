"""Measures this machine and prints a line of JSON per tick; run as `python -m tests.soak.watched SECONDS`.

Each line has the counts of the storm's threads and what offtop itself uses.
"""

import ctypes as ct
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from offtop.kernel.bpf.libbpf import Map, library
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.live import LiveSource
from offtop.model.aggregate.filter import NOTHING
from offtop.model.classify.categories import is_periodic
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.snapshot import Filters
from offtop.model.windows.history import History, HistoryTick
from offtop.reports.tick import passing
from offtop.reports.tick_json import tick_object
from offtop.units import NS_PER_S
from tests import command
from tests.kernel import watch

KEEP_NS = 20 * NS_PER_S
"""How long exited threads are kept; the default is a quarter of an hour."""
_HISTORY_BYTES = 4 << 20
_DELAY_S = 0.5
_COUNTED = 20
"""Number of ticks after which the entries of all BPF maps are counted again."""
_SLEEPERS = ("soak-child", "soak-worker")


def main() -> None:
    ends_s = time.monotonic() + float(sys.argv[1])
    source = LiveSource(watch.rules(), Filters(min_ns=NS_PER_S // 1000), unwind=Unwind(), keep_ns=KEEP_NS)
    cause_finder = CauseFinder(source.names, WITHOUT_RULES)
    history = History(watch.rules().idle, is_periodic, KEEP_NS, _HISTORY_BYTES, idle_by_rule=cause_finder.idle_by_rule)
    ticks = count()
    try:
        while time.monotonic() < ends_s:
            began_s = time.monotonic()
            snapshot = source.read()
            assert snapshot is not None
            took_s = time.monotonic() - began_s
            if kept := history.add(snapshot):
                tick = tick_object(passing(kept, NOTHING, cause_finder), source.names, cause_finder)
                line = {**counted(kept), **held(source, took_s), "sites": len(tick.sites)}
                line["entries"] = entries(source) if next(ticks) % _COUNTED == 0 else None
                print(json.dumps(line), flush=True)
            time.sleep(max(0.0, began_s + _DELAY_S - time.monotonic()))
    finally:
        source.close()


def counted(kept: HistoryTick) -> dict[str, object]:
    """Return the counts of this tick.

    These are sleeps and preemptions of short-lived threads by name, waits of the two switching threads by tid, and
    losses.
    """
    window, sleeps, preempts, by_tid = kept.window, Counter[str](), Counter[str](), dict[int, int]()
    for site, totals in window.each_site():
        if (comm := window.catalog.comm(site.thread)) in _SLEEPERS and window.catalog.stack(
            site.kernel
        ).category == "sleep":
            sleeps[comm] += totals.waits
    for key, totals in window.each_thread():
        comm = window.catalog.comm(key)
        if comm in _SLEEPERS:
            preempts[comm] += totals.involuntary
        elif comm == "soak-pipe":
            by_tid[key.tid] = totals.waits
    return {
        "sleeps": sleeps,
        "aside": preempts,
        "by_tid": by_tid,
        "lost": dict(window.lost),
        "span_ns": window.span_ns,
    }


def held(source: LiveSource, took_s: float) -> dict[str, object]:
    return {
        "rss_bytes": sum(map(_rss_bytes, command.family(os.getpid()))),
        "fds": len([*Path("/proc/self/fd").iterdir()]),
        "fill": max(source._parts.stacks.fill),  # pyright: ignore[reportPrivateUsage]
        "took_ms": 1000 * took_s,
    }


def entries(source: LiveSource) -> dict[str, int]:
    """Return the number of entries of each BPF map; for an array, its length."""
    maps = source._program.maps  # pyright: ignore[reportPrivateUsage]
    return {name: sum(1 for _ in _keys(one)) for name, one in maps.items()}


def _keys(one: Map) -> Iterator[None]:
    """Yield once per entry, but not more often than the map has room for.

    During writes, entries may be returned twice.
    """
    at, key = None, ct.create_string_buffer(one.key_bytes)
    for _ in range(one.entries):
        if library().bpf_map_get_next_key(one.fd, at, key):
            return
        yield
        at = key


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


if __name__ == "__main__":
    main()
