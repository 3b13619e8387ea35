"""What a live source counts about a child, and what the kernel itself counts.

The source's counts are by thread, by category and by user stack.

with watch.watching() as live:
    live.tick()  # from here on
    ...the child waits...
    window = live.tick()  # what passed, after checking the sums of accounting
    watch.thread(window, child.tid).waits
"""

import functools
import math
import os
import time
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from offtop import paths
from offtop.kernel.bpf import cache, features, libbpf, program
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.live import LiveSource
from offtop.kernel.unwind import user_stacks
from offtop.model.classify import categories
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import EXITED, Filters, SiteTotals, Snapshot, ThreadTotals
from offtop.model.values.stack import FILTERED, SHORT
from offtop.model.values.wake import DEFAULT_DEPTH, OFFCPU
from offtop.model.windows.breakdown import NO_PART, Idle, Leaf, Part, break_down, shares
from offtop.model.windows.window import Window, between

MS = 1_000_000
S = 1_000_000_000
_NAMES_S = 30.0
_PATIENCE_S = 0.2
"""How long a tick waits for user stacks to be unwound, where 20 ms are usual."""
_UNWIND = Unwind(cpu_pct=200)
"""CPU limit for unwinding.

With ticks of a few ms the default would be used up, and stacks would be late.
"""


class LawError(AssertionError):
    """A law of accounting does not hold.

    Any occurrence fails the test run (tests/conftest.py).
    """


class Watch:
    """A LiveSource, and the end of its last tick."""

    def __init__(self, source: LiveSource) -> None:
        self.source = source
        self._left_out = 0
        self.last = self._read()

    def tick(self, after_s: float = 0) -> Window:
        """Return what passed since the last tick.

        Raises LawError if a law of accounting does not hold in it.
        """
        time.sleep(after_s)
        earlier, self.last = self.last, self._read()
        window = between(earlier, self.last)
        check_sums(window)
        return window

    def begin(self) -> None:
        """Begin the next tick here, for example if something else has read the source."""
        self.last = self._read()

    def leave_out_next_scan(self) -> None:
        """Have the next tick not scan the waits in progress."""
        self._left_out = 1

    def _read(self) -> Snapshot:
        # Otherwise the waits in progress are scanned less often after a tick of a few ms, or on a slow machine.
        self.source._stages.scan_cadence._left, self._left_out = self._left_out, 0  # pyright: ignore[reportPrivateUsage]
        snapshot = self.source.read()
        assert snapshot is not None, "the watched process has exited"
        return snapshot

    @contextmanager
    def only(self, *pids: int) -> Generator[None]:
        """Watch only these processes, and then all again.

        Only so many stacks are copied a second. On a busy machine, other processes would use them up.
        """
        self.source.set_filters(Filters(pids=pids))
        stacks = self.source._parts.user_stacks  # pyright: ignore[reportPrivateUsage]
        deadline = time.monotonic() + _NAMES_S
        self.tick()
        while stacks._queue or len(stacks._requested.ids):  # pyright: ignore[reportPrivateUsage]
            assert time.monotonic() < deadline, "stacks of other processes are still being unwound"
            self.tick(0.02)
        try:
            yield
        finally:
            self.source.set_filters(Filters())

    def load_unwind_rules(self, tid: int, *names: str) -> None:
        """Tick until a stack of a thread that waits again and again has these frames, leaf first.

        Before offtop has read the unwind rules of the thread's files, stacks follow frame pointers, which miss callers.
        """
        deadline = time.monotonic() + _NAMES_S
        while not any(stack[: len(names)] == names for stack in self.user_stacks(self.tick(0.05), tid)):
            assert time.monotonic() < deadline, f"no stack of thread {tid} begins with {names}"

    def user_stacks(self, window: Window, tid: int, category: str = "") -> dict[tuple[str, ...], SiteTotals]:
        """Return one thread's totals in `window` by user frame names, leaf first.

        Only waits of `category` count, if it is given.
        """
        sites = {
            key: totals
            for key, totals in sites_of(window, tid).items()
            if category in ("", window.catalog.stack(key.kernel).category)
        }
        frames = {key.user: window.catalog.stack(key.user).trimmed for key in sites}
        self.source.wait_for_names({frame for stack in frames.values() for frame in stack}, _NAMES_S)
        table: dict[tuple[str, ...], SiteTotals] = {}
        for key, totals in sites.items():
            names = tuple(self.source.names.of(frame) for frame in frames[key.user])
            table[names] = table.get(names, SiteTotals()).plus(totals)
        return table


@contextmanager
def watching(
    filters: Filters = Filters(),
    probe: str = "auto",
    keep_ns: int = 900 * S,
    unwind: Unwind = _UNWIND,
    mode: str = OFFCPU,
    depth: int = DEFAULT_DEPTH,
    budget_pct: float = math.inf,
    counted: Collection[str] = (),
) -> Generator[Watch]:
    """Run a live source; close it at the end.

    A tick waits for user stacks to be unwound, which takes longer on a busy machine.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_stacks, "_PATIENCE_S", _PATIENCE_S)
        source = LiveSource(
            *(rules(), filters, probe, unwind, keep_ns),
            mode=mode,
            depth=depth,
            budget_pct=budget_pct,
            counted=counted,
        )
        try:
            yield Watch(source)
        finally:
            source.close()


watching_kernel_stacks = partial(watching, unwind=Unwind("off"))
"""The same without user stacks, for tests that do not need them.

It starts in a third of the time.
"""


def without(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """Make sources from here on find that the kernel lacks this member of Features."""
    find = features.detect

    def found(types: libbpf.KernelTypes) -> Features:
        return replace(find(types), **{feature: None})

    monkeypatch.setattr(features, "detect", found)


def resize_maps(monkeypatch: pytest.MonkeyPatch, entries: Mapping[str, int]) -> None:
    """Give maps another number of entries in sources from here on.

    The programs stay the same: they are loaded from the cache, so other sizes need no compiler.
    """
    attach, make_map = program._load_or_compile, cache._create_map  # pyright: ignore[reportPrivateUsage]

    def attach_resized(request: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        file = cache.cache_file(request)
        assert file, "resize_maps needs the cache"
        if not file.exists():
            for fd in attach(request, *rest, **options)[1]:
                os.close(fd)
            deadline = time.monotonic() + _NAMES_S
            while not file.exists():  # it is written in the background
                assert time.monotonic() < deadline
                time.sleep(0.01)
        with monkeypatch.context() as loading:
            loading.setattr(cache, "_create_map", make_resized)
            loading.setattr(program, "_compile", refuse)
            return attach(request, *rest, **options)

    def make_resized(name: str, stored: Any, maps: Mapping[str, int]) -> int:
        usual = stored["entries"]  # 0 for task storage, which has no limit
        return make_map(name, {**stored, "entries": usual and entries.get(name, usual)}, maps)

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("the maps would have the usual sizes")

    monkeypatch.setattr(program, "_load_or_compile", attach_resized)


@functools.cache
def rules() -> categories.Categories:
    return categories.parse(paths.categories().read_text())


def check_sums(window: Window) -> None:
    """Check the laws of accounting exactly.

    Also check that neither idle threads nor offtop's own appear.
    """
    of_sites: dict[ThreadKey, int] = {}
    broken: list[object] = []
    for site, totals in window.each_site():
        of_sites[site.thread] = of_sites.get(site.thread, 0) + totals.total_ns
        if not (totals.total_ns >= totals.runqueue_ns >= 0 <= totals.waits):
            broken.append((site, totals._replace(histogram=0)))
    all_ns = filtered_ns = 0
    for key, t in window.each_thread():
        all_ns, filtered_ns = all_ns + t.offcpu_ns, filtered_ns + t.filtered_ns
        sites_ns = of_sites.pop(key, 0)
        whole = t.offcpu_ns == sites_ns + t.short_ns + t.filtered_ns
        inside = t.offcpu_ns >= t.runqueue_ns >= t.preempted_ns >= 0
        inside = inside and t.short_ns >= t.short_runqueue_ns >= 0 and t.filtered_ns >= t.filtered_runqueue_ns >= 0
        is_own = key != EXITED and (key.tid == 0 or key.pid == os.getpid())
        if not whole or not inside or is_own or t.waits != log2.count(t.histogram):
            where = [(site[2:], one[:-1]) for site, one in window.each_site() if site.thread == key]
            broken.append(
                (window.catalog.comm(key), key, t._replace(histogram=log2.count(t.histogram)), sites_ns, where)
            )
    broken += [(key, rest_ns) for key, rest_ns in of_sites.items() if rest_ns]
    if broken:
        raise LawError(f"{len(broken)}, as {broken[:3]}")
    parts = break_down(window, Idle()).categories
    of_categories_ns = sum(part.total_ns for part in parts.values())
    if of_categories_ns != all_ns:
        raise LawError(f"categories have {of_categories_ns:,} ns of {all_ns:,}")
    in_category_ns = parts.get(Leaf("filtered"), NO_PART).total_ns
    if in_category_ns != filtered_ns:
        raise LawError(f"the category of filtered waits has {in_category_ns:,} ns of {filtered_ns:,}")


def thread(window: Window, tid: int) -> ThreadTotals:
    """Return a thread's totals, all zero if it did not wait."""
    return next((totals for key, totals in window.each_thread() if key.tid == tid), ThreadTotals())


def sites_of(window: Window, tid: int) -> dict[SiteKey, SiteTotals]:
    return {key: totals for key, totals in window.each_site() if key.tid == tid}


def by_category(window: Window, tid: int) -> dict[str, Part]:
    """Return one thread's waits from the minimum up, by category."""
    every = shares(window, Idle())
    mine = every.of((every.ids[:, 1] == tid) & (every.ids[:, 2] != SHORT) & (every.ids[:, 2] != FILTERED))
    return {every.leaves[leaf].category: Part(*part) for leaf, part in mine.by(mine.leaf)}


def check_sleeps(windows: Iterable[Window], tid: int, times: int, missed: int = 0) -> None:
    """Check that a thread that slept so often has as many waits in `sleep`, but for `missed` of them.

    A thread that is preempted before it has left the kernel's sleep function waits once more there, for a CPU.
    """
    slept = involuntary = 0
    for window in windows:
        part = by_category(window, tid).get("sleep")
        slept += part.waits if part else 0
        involuntary += thread(window, tid).involuntary
    assert times - missed <= slept <= times + involuntary


def switches(tid: int) -> tuple[int, int]:
    """Return the kernel's count of a thread's switches: all, and involuntary ones."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/{tid}/status").read_text().splitlines())
    involuntary = int(fields["nonvoluntary_ctxt_switches"])
    return int(fields["voluntary_ctxt_switches"]) + involuntary, involuntary


def running_ns(pid: int, tid: int) -> int:
    """Return the kernel's count of a thread's run time (sum_exec_runtime).

    It is exact while the thread does not run.
    """
    return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0])
