"""Folded stacks, as bcc's tools print with -f and flamegraph.pl reads: one line per stack, outermost function first,
then its time in us.

By mode: off-CPU `comm;functions us`, as offcputime; off-wake `target;functions;--;waker functions leaf first;waker us`,
as offwaketime; chain the same, repeated for each further waker; wakeup `waker;functions;target us`, as wakeuptime.
Modes file and disk: `comm;functions;operation and file;kernel functions us`.
Options add `-` between user and kernel functions, as those tools' -d, and the category and `comm-tid` in front.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from offtop.export.profile import Profile
from offtop.model.aggregate import steps
from offtop.model.aggregate.row_names import thread_name
from offtop.model.aggregate.steps import NO_FRAMES, Path, Shape, Step
from offtop.model.values import stack
from offtop.model.values.catalog import Catalog, thread_of
from offtop.model.values.stack import Names
from offtop.model.values.table import distinct_rows, thread_codes
from offtop.model.values.wake import OFFCPU, WAKEUP
from offtop.model.windows.breakdown import RUN_QUEUE, Shares
from offtop.printable import printable

_DELIMITER = Step("-", False)


class Style(NamedTuple):
    """Format of a line."""

    delimiter: bool = False
    """Put `-` between user and kernel functions."""
    per: frozenset[str] = frozenset()
    """What lines are split by, besides the thread name: "thread", "category"."""

    def line(self, mode: str, category: str, comm: str, tid: int, path: Path) -> str:
        """`comm` and `tid` are those of the waiting thread."""
        front = [Step(category, False)] if "category" in self.per else []
        if "thread" in self.per:
            front.append(Step(f"{comm}-{tid}", False))
        elif mode != WAKEUP:
            front.append(Step(comm, False))
        return one_line((*front, *(_with_delimiters(path) if self.delimiter else path)))


AS_BCC = Style()


def _with_delimiters(path: Path) -> Iterator[Step]:
    before: Step | None = None
    for step in path:
        if (
            before
            and before.kernel != step.kernel
            and all(one.kernel or steps.is_function(one) for one in (before, step))
        ):
            yield _DELIMITER
        yield step
        before = step


def folded(shares: Shares, catalog: Catalog, names: Names, mode: str, style: Style = AS_BCC) -> dict[str, int]:
    """Return line -> ns. Leaves out waits without a stack, and in waking modes run-queue time."""
    is_counted = (shares.ids[:, 2] != stack.SHORT) & (shares.ids[:, 2] != stack.FILTERED)
    if mode != OFFCPU:
        is_counted &= np.array([leaf.category != RUN_QUEUE for leaf in shares.leaves], np.bool_)[shares.leaf]
    some = shares.of(is_counted)
    distinct, which = distinct_rows(steps.places(some.ids, mode))
    threads, thread_index = np.unique(thread_codes(some.ids), return_inverse=True)
    path_of = steps.steps_of(catalog, names, Shape(mode=mode))
    comms = [thread_name(thread_of(code), catalog) for code in threads.tolist()]
    sums: dict[str, int] = {}
    leaf = some.leaf if "category" in style.per else np.zeros_like(which)
    rows, codes = np.unique(np.stack((which, thread_index, leaf), axis=1), axis=0, return_inverse=True)
    for code, (_, total_ns, _, _) in some.by(codes.reshape(-1)):
        row: list[int] = rows[code].tolist()
        place, thread, of = row
        path = path_of(distinct[place]) or (NO_FRAMES,)
        category = some.leaves[of].category if some.leaves else ""
        line = style.line(mode, category, comms[thread], thread_of(int(threads[thread])).tid, path)
        sums[line] = sums.get(line, 0) + total_ns
    return sums


def lines(sums: Mapping[str, int]) -> Iterable[str]:
    """Yield the lines, most time first, without those below 1 us."""
    for line, ns in sorted(sums.items(), key=lambda item: (-item[1], item[0])):
        if ns >= 1000:
            yield f"{line} {ns // 1000}"


def one_line(path: Iterable[Step]) -> str:
    """Join a path, outermost first; `;` and newlines in names are replaced."""
    names = ("--" if step in steps.TURNS else steps.woken_name(step) or step.name for step in path)
    return ";".join(printable(name).replace(";", ":").replace("\n", " ") for name in names)


def text(profile: Profile, baseline: Profile | None = None, style: Style = AS_BCC) -> str:
    """Write the lines of a profile.

    With a baseline: `stack before now`, as FlameGraph's difffolded.pl prints, with `before` scaled to the same length.
    """
    now = of_profile(profile, style)
    if baseline is None:
        return "".join(f"{line}\n" for line in lines(now))
    scale = profile.span_ns / baseline.span_ns if baseline.span_ns else 1.0
    before = {line: round(ns * scale) for line, ns in of_profile(baseline, style).items()}
    every = sorted({*now, *before}, key=lambda line: (-now.get(line, 0), -before.get(line, 0), line))
    pairs = ((line, before.get(line, 0) // 1000, now.get(line, 0) // 1000) for line in every)
    return "".join(f"{line} {was} {us}\n" for line, was, us in pairs if was or us)


def of_profile(profile: Profile, style: Style) -> dict[str, int]:
    """Return line -> ns. Leaves out what has no stack."""
    sums: dict[str, int] = {}
    for one in profile.samples:
        if one.has_stack:
            line = style.line(profile.mode, one.category, one.thread, one.tid, one.path)
            sums[line] = sums.get(line, 0) + one.total_ns
    return sums
