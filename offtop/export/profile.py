"""A Profile is what all formats to take away are made of: each stack of each thread, with its time.

Frames stand outermost first, without the scheduler's own, so that no reader says that all of it is `__schedule`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model import stack, steps
from offtop.model.book import ThreadKey
from offtop.model.counted import sampled
from offtop.model.cut import ALL, Scope, Shares
from offtop.model.rows import process_name, thread_name
from offtop.model.snapshot import Sampling
from offtop.model.stack import Names
from offtop.model.steps import Path, Shape, Step
from offtop.model.table import distinct_rows
from offtop.model.wake import OFFCPU
from offtop.model.window import Window

BELOW = Step("(waits below the minimum)", False)
"""Stands for the stack of those that have none."""
_LOW = (1 << 32) - 1


class Sample(NamedTuple):
    """What one thread waited at one place, of one category. Names are raw."""

    category: str
    pid: int
    """0: of threads that are no more."""
    process: str
    tid: int
    thread: str
    path: Path
    """The outermost function first; what is no function stands in brackets."""
    waits: int
    """That ended, from the minimum up."""
    total_ns: int
    max_ns: int

    @property
    def has_stack(self) -> bool:
        return self.path != (BELOW,)


class Profile(NamedTuple):
    samples: Sequence[Sample]
    """Most time first."""
    mode: str
    """One of wake.MODES."""
    began_ns: int
    """The machine's clock, in ns since 1970."""
    span_ns: int
    """Measured."""
    host: str
    lost: Mapping[str, int]
    """By kind."""
    sampling: Sampling | None = None
    """None: every wait was seen."""

    @property
    def total_ns(self) -> int:
        return sum(one.total_ns for one in self.samples)

    @property
    def doubts(self) -> list[str]:
        """Why not all of it is sure; none where every wait was seen, and nothing lost."""
        told = [f"{kind} {many:,}" for kind, many in self.lost.items() if many]
        lost = f"lost while it was measured: {', '.join(told)}" if told else ""
        return [*filter(None, (sampled(self.sampling, self.span_ns), lost))]


def profile_of(
    window: Window, shares: Shares, names: Names, host: str, mode: str = OFFCPU, idle: bool = False
) -> Profile:
    """`shares`: what of the window is in it; `idle`: with what of that looks idle. With wakers, the run queue is left
    out."""
    book = window.book
    some = shares.in_scope(Scope(ALL, idle=idle, blocked=mode != OFFCPU))
    path_of = steps.steps_of(book, names, Shape(mode=mode))
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
            key = ThreadKey(thread >> 32, thread & _LOW)
            path = (BELOW,) if code in bare else path_of(places[place]) or (steps.NO_FRAMES,)
            category, process = some.leaves[leaf].category, process_name(key.pid, book)
            samples.append(
                Sample(category, key.pid, process, key.tid, thread_name(key, book), path, waits, total_ns, max_ns)
            )
    samples = sorted((one for one in samples if one.total_ns > 0), key=lambda one: (-one.total_ns, one[1:6]))
    began_ns, span_ns = window.taken_ns - window.span_ns, window.span_ns
    return Profile(samples, mode, began_ns, span_ns, host, dict(window.lost), window.sampling)
