"""What a live source counts around a child: by thread, by category and by user stack, beside the kernel's own counts.

with watch.watching() as live:
    live.tick()  # from here on
    ...the child waits...
    window = live.tick()  # what passed, with the sums of accounting held in it
    watch.thread(window, child.tid).waits
"""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from offtop import paths
from offtop.kernel.bpf import features, libbpf
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.live import LiveSource
from offtop.model.classify import categories
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, Filters, SiteTotals, Snapshot, ThreadTotals
from offtop.model.values.stack import FILTERED, SHORT
from offtop.model.values.wake import DEFAULT_DEPTH, OFFCPU
from offtop.model.windows.breakdown import Idle, Part, cut, shares
from offtop.model.windows.window import Window, between

MS = 1_000_000
S = 1_000_000_000
_NAMES_S = 30.0
_UNWIND = Unwind(cpu_pct=200)
"""Ticks of a few ms take all of what offtop allows itself: stacks would come late."""


class LawError(AssertionError):
    """A law of accounting does not hold. No run of tests is green in which that was so once (tests/conftest.py)."""


class Watch:
    """A LiveSource, and where its last tick ended."""

    def __init__(self, source: LiveSource) -> None:
        self.source = source
        self.last = self._read()

    def tick(self, after_s: float = 0) -> Window:
        """What passed since the last tick. Raises LawError where a law of accounting does not hold in it."""
        time.sleep(after_s)
        earlier, self.last = self.last, self._read()
        window = between(earlier, self.last)
        check_sums(window)
        return window

    def see_each_tick(self) -> None:
        """Return when the walk of the waits in progress is made at each tick: behind a very short one it is not."""
        for _ in range(50):
            self.tick(0.1)
            if self.last.cost.walk_every == 1:
                return
        raise AssertionError(f"The walk takes {self.last.cost.walk_ns:,} ns")

    def _read(self) -> Snapshot:
        snapshot = self.source.read()
        assert snapshot is not None, "what was watched has ended"
        return snapshot

    def user_stacks(self, window: Window, tid: int, category: str = "") -> dict[tuple[str, ...], SiteTotals]:
        """What one thread did in `window`, by the names of its user frames, leaf first; of one category of waits."""
        sites = {
            key: totals
            for key, totals in sites_of(window, tid).items()
            if category in ("", window.book.stack(key.kernel).category)
        }
        frames = {key.user: window.book.stack(key.user).trimmed for key in sites}
        self.source.wait_for_names({frame for stack in frames.values() for frame in stack}, _NAMES_S)
        table: dict[tuple[str, ...], SiteTotals] = {}
        for key, totals in sites.items():
            names = tuple(self.source.names.of(frame) for frame in frames[key.user])
            table[names] = table.get(names, SiteTotals()).plus(totals)
        return table


@contextmanager
def watching(
    filters: Filters = Filters(),
    door: str = "auto",
    waking: bool = False,
    keep_ns: int = 900 * S,
    unwind: Unwind = _UNWIND,
    mode: str = OFFCPU,
    depth: int = DEFAULT_DEPTH,
) -> Generator[Watch]:
    """A live source; closed with the block."""
    source = LiveSource(
        rules(), filters, door=door, waking=waking, unwind=unwind, keep_ns=keep_ns, mode=mode, depth=depth
    )
    try:
        yield Watch(source)
    finally:
        source.close()


watching_kernel_stacks = partial(watching, unwind=Unwind("off"))
"""The same without user stacks, for what they say nothing of: it begins in a third of the time."""


def without(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """Sources from here on find that the kernel lacks this member of Features."""
    find = features.find

    def found(types: libbpf.KernelTypes) -> Features:
        return replace(find(types), **{feature: False})

    monkeypatch.setattr(features, "find", found)


@cache
def rules() -> categories.Categories:
    return categories.parse(paths.categories().read_text())


def check_sums(window: Window) -> None:
    """The laws of accounting, exactly; and that neither idle threads nor offtop's own are threads here."""
    of_sites: dict[ThreadKey, int] = {}
    broken: list[object] = []
    for site, totals in window.each_site():
        of_sites[site.thread] = of_sites.get(site.thread, 0) + totals.total_ns
        if not (totals.total_ns >= totals.runqueue_ns >= 0 <= totals.waits):
            broken.append((site, totals._replace(histogram=0)))
    all_ns = 0
    for key, t in window.each_thread():
        all_ns += t.offcpu_ns
        sites_ns = of_sites.pop(key, 0)
        whole = t.offcpu_ns == sites_ns + t.short_ns + t.filtered_ns
        inside = t.offcpu_ns >= t.runqueue_ns >= t.preempted_ns >= 0
        inside = inside and t.short_ns >= t.short_runqueue_ns >= 0 and t.filtered_ns >= t.filtered_runqueue_ns >= 0
        ours = key != EXITED and (key.tid == 0 or key.pid == os.getpid())
        if not whole or not inside or ours or t.waits != log2.count(t.histogram):
            where = [(site[2:], one[:-1]) for site, one in window.each_site() if site.thread == key]
            broken.append((window.book.comm(key), key, t._replace(histogram=log2.count(t.histogram)), sites_ns, where))
    broken += [(key, rest_ns) for key, rest_ns in of_sites.items() if rest_ns]
    if broken:
        raise LawError(f"{len(broken)}, as {broken[:3]}")
    of_categories_ns = sum(part.total_ns for part in cut(window, Idle()).categories.values())
    if of_categories_ns != all_ns:
        raise LawError(f"categories have {of_categories_ns:,} ns of {all_ns:,}")


def thread(window: Window, tid: int) -> ThreadTotals:
    """All zeros for a thread that did not wait."""
    return next((totals for key, totals in window.each_thread() if key.tid == tid), ThreadTotals())


def sites_of(window: Window, tid: int) -> dict[SiteKey, SiteTotals]:
    return {key: totals for key, totals in window.each_site() if key.tid == tid}


def by_category(window: Window, tid: int) -> dict[str, Part]:
    """What one thread's waits from the minimum up were for."""
    every = shares(window, Idle())
    mine = every.of((every.ids[:, 1] == tid) & (every.ids[:, 2] != SHORT) & (every.ids[:, 2] != FILTERED))
    return {every.leaves[leaf].category: Part(*part) for leaf, part in mine.by(mine.leaf)}


def switches(tid: int) -> tuple[int, int]:
    """How often the kernel says that a thread left the CPU, and how often of these involuntarily."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/{tid}/status").read_text().splitlines())
    involuntary = int(fields["nonvoluntary_ctxt_switches"])
    return int(fields["voluntary_ctxt_switches"]) + involuntary, involuntary


def running_ns(pid: int, tid: int) -> int:
    """How long the kernel says that a thread has run (its sum_exec_runtime); exact while it does not run."""
    return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0])
