"""A Profile holds each stack of each thread with its time; all export formats are made from one.

Frames are outermost first and leave out the scheduler's own; otherwise every leaf would be `__schedule`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.aggregate import steps
from offtop.model.aggregate.io_paths import IoRow, paths
from offtop.model.aggregate.row_names import process_name, thread_name
from offtop.model.aggregate.scope_text import sampled
from offtop.model.aggregate.steps import Path, Shape, Step
from offtop.model.values import stack
from offtop.model.values.catalog import Catalog, thread_of
from offtop.model.values.io_stacks import ids_of
from offtop.model.values.snapshot import Sampling
from offtop.model.values.stack import Frame, Names
from offtop.model.values.table import distinct_rows
from offtop.model.values.wake import OFFCPU
from offtop.model.windows.breakdown import ALL, Scope, Shares
from offtop.model.windows.window import Window

BELOW = Step("(waits below the minimum)", False)
"""Stands for the stack of short waits, which have none."""
WITHOUT = Step("(without a stack)", False)
"""The same for calls and requests that were too short, or are in progress."""
_LOW = (1 << 32) - 1


class Sample(NamedTuple):
    """The waits of one thread at one stack in one category. Names are untrusted and unescaped.

    In modes file and disk: the calls or requests of one row at one stack.
    """

    category: str
    """In modes file and disk: the operation."""
    pid: int
    """0: threads that have exited."""
    process: str
    tid: int
    thread: str
    path: Path
    """Outermost function first; entries that are not functions are in brackets."""
    waits: int
    """Number of finished waits of at least the minimum."""
    total_ns: int
    max_ns: int
    bytes: int = 0
    """In modes file and disk."""

    @property
    def has_stack(self) -> bool:
        return self.path[:1] not in ((BELOW,), (WITHOUT,))


class Profile(NamedTuple):
    samples: Sequence[Sample]
    """Sorted by time, largest first."""
    mode: str
    """One of wake.MODES, or of disks.LIST_MODES."""
    began_ns: int
    """CLOCK_REALTIME."""
    span_ns: int
    """Measured length (CLOCK_MONOTONIC)."""
    host: str
    lost: Mapping[str, int]
    """Losses by kind."""
    sampling: Sampling | None = None
    """None: not sampled; every wait was counted."""

    @property
    def caveats(self) -> list[str]:
        """Reasons why the numbers are not exact; empty if nothing was sampled or lost."""
        losses = [f"{kind} {many:,}" for kind, many in self.lost.items() if many]
        lost = f"lost: {', '.join(losses)}" if losses else ""
        return [*filter(None, (sampled(self.sampling, self.span_ns), lost))]


def profile_of(
    window: Window, shares: Shares, names: Names, host: str, mode: str = OFFCPU, idle: bool = False
) -> Profile:
    """Build the profile of `shares`, a part of `window`.

    `idle`: include idle waits. In waking modes run-queue time is left out.
    """
    catalog = window.catalog
    some = shares.in_scope(Scope(ALL, idle=idle, blocked=mode != OFFCPU))
    path_of = steps.steps_of(catalog, names, Shape(mode=mode))
    samples: list[Sample] = []
    if len(some.ids):
        places, which = distinct_rows(steps.places(some.ids, mode))
        rows = np.stack((some.ids[:, 0] << 32 | some.ids[:, 1] & _LOW, which, some.leaf), axis=1)
        distinct, codes = np.unique(rows, axis=0, return_inverse=True)
        placeless = np.isin(some.ids[:, 2], [*stack.PLACELESS])
        bare = {int(code) for code in np.unique(codes.reshape(-1)[placeless])}
        for code, (waits, total_ns, max_ns, _) in some.by(codes.reshape(-1)):
            row: list[int] = distinct[code].tolist()
            thread, place, leaf = row
            key = thread_of(thread)
            path = (BELOW,) if code in bare else path_of(places[place]) or (steps.NO_FRAMES,)
            category, process = some.leaves[leaf].category, process_name(key.pid, catalog)
            samples.append(
                Sample(category, key.pid, process, key.tid, thread_name(key, catalog), path, waits, total_ns, max_ns)
            )
    samples = sorted((one for one in samples if one.total_ns > 0), key=lambda one: (-one.total_ns, one[1:6]))
    began_ns, span_ns = window.taken_ns - window.span_ns, window.span_ns
    return Profile(samples, mode, began_ns, span_ns, host, dict(window.lost), window.sampling)


def profile_of_rows(
    rows: Iterable[IoRow],
    mode: str,
    catalog: Catalog,
    names: Names,
    host: str,
    ended_ns: int,
    span_ns: int,
    lost: Mapping[str, int],
) -> Profile:
    """Build the profile of file operations or requests to disks.

    `mode`: one of disks.LIST_MODES. `ended_ns`: CLOCK_REALTIME. `lost`: losses by kind.
    """
    rows = [*rows]
    every = [(one.row, one.path, one.totals) for one in paths(rows, catalog, names, Shape())]
    every += [(row, (WITHOUT, row.step), row.without_stack) for row in rows]
    samples = [
        Sample(
            *(row.operation, row.pid, row.process, row.tid, row.thread, path),
            *(totals.calls, totals.total_ns, totals.max_ns, totals.bytes),
        )
        for row, path, totals in every
        if totals.total_ns > 0
    ]
    samples.sort(key=lambda one: (-one.total_ns, one[1:6]))
    return Profile(samples, mode, ended_ns - span_ns, span_ns, host, lost)


def unnamed_frames(window: Window) -> set[Frame]:
    """Return the frames whose names have to be looked up: of waits, wakers, file operations and requests."""
    catalog = window.catalog
    sites = {(site.user, site.wake) for site, _ in window.each_site()}
    stacks = {user for user, _ in sites}.union(*(catalog.wake(wake).stacks for _, wake in sites if wake))
    return {
        frame for stack_id in stacks | io_stacks(window) for frame in catalog.stack(stack_id).frames if not frame.name
    }


def io_stacks(window: Window) -> set[int]:
    """Return the ids of all stacks of file operations and requests to disks."""
    return ids_of([*(window.files.stacks if window.files else ()), *(window.disks.stacks if window.disks else ())])
