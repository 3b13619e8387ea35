"""The stacks of file operations and of requests to disks: as a tree, and one after the other."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TypeVar

from offtop.model.aggregate.disk_rows import DiskRow
from offtop.model.aggregate.file_rows import FileRow
from offtop.model.aggregate.rows import Row
from offtop.model.values.io_stacks import Stacks
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.tree_picture import TreePicture
from offtop.printable import printable
from offtop.ui.kit.columns import Column, heads, line_of, that_fit
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule
from offtop.ui.panes import stacks
from offtop.ui.panes.tables import SHARE
from offtop.units import NS_PER_S, count, duration, percent, span

Key = TypeVar("Key")
CALLS, REQUESTS = "calls", "requests"
_RATES = {CALLS: "CALLS/S", REQUESTS: "REQ/S"}
_LEAST_SHARE = 0.5
_LONGEST = Column("MAX", 6, lambda row: duration(row.part.max_ns), least_width=60)


def subject(row: FileRow | DiskRow | None, every: str, pen: Pen) -> str:
    """Return what the stack tree or the heat map is about: one row, or `every` row."""
    return printable(f"{row.what} {row.who}", pen.glyphs.is_ascii) if row else every


def tree(shown: TreePicture, title: str, of_ended: str, span_ns: int, common: Common, pen: Pen) -> list[Line]:
    """Return the lines of the tree. `of_ended`: CALLS or REQUESTS."""
    lines = [rule(f"stack tree: {title}{stacks.shape_text(common.view.tree.shape)}", pen)]
    if not shown.branches:
        return [*lines, *_wrapped(no_stack(of_ended, common), "dim", pen)]
    time = Column("TIME", 6, lambda row: duration(row.part.total_ns), "waiting", stays=True)
    rate = Column(_RATES[of_ended], 7, lambda row: count(row.part.waits * NS_PER_S / span_ns), least_width=70)
    numbers = that_fit([time, SHARE, _LONGEST, rate], pen.width, common.view, "", 1)
    heading = heads(numbers, "", 1)
    lines.append(heading._replace(spans=(*heading.spans, ("   STACK  ([k] kernel)", "head"))))
    for index in range(shown.first, min(len(shown.branches), shown.first + pen.height - len(lines))):
        branch, at_cursor = shown.branches[index], index == shown.cursor
        row = Row("", "", span_ns, branch.part, shown.root.total_ns)
        line = line_of(numbers, row, ">" if at_cursor else " ", "cursor" if at_cursor else "text", pen)
        lines.append(stacks.with_names(line, branch, pen))
    lines += stacks.in_full(shown, pen, pen.height - len(lines))
    note = _without_stack(shown, of_ended)
    if not note:
        return lines
    filled = [*lines, *([Line()] * pen.height)][: pen.height - 1]
    return [*filled, plain(fit(note, pen.width, pen.glyphs), "dim")]


def _without_stack(shown: TreePicture, of_ended: str) -> str:
    """Return how much of the time is not in the tree; empty if it is less than half a percent."""
    without = shown.without_stack
    share = percent(without.total_ns, without.total_ns + shown.root.total_ns)
    if share < _LEAST_SHARE:
        return ""
    some = f"{without.calls:,} {of_ended if without.calls != 1 else of_ended[:-1]}" if without.calls else "in progress"
    return f" {share:.0f}% of the time has no stack and is not in this tree: {some}"


def every_stack(some: Stacks[Key], of_ended: str, total: tuple[int, int], common: Common, pen: Pen) -> list[Line]:
    """Return the frames of each stack, most time first.

    `of_ended`: CALLS or REQUESTS. `total`: how many of these ended, and their time in ns.
    """
    ended, total_ns = total
    with_stack = sum(totals.calls for _, totals in some)
    missing = f", and {ended - with_stack:,} {of_ended} without a stack" if ended > with_stack else ""
    many = f"{len(some):,} stack{'s' * (len(some) != 1)}{missing}" if some else no_stack(of_ended, common)
    lines = [Line(), *_wrapped(many, "title", pen)]
    for ordinal, (stack, totals) in enumerate(some, 1):
        numbers = [
            f"#{ordinal}",
            f"{totals.calls:,} {of_ended if totals.calls != 1 else of_ended[:-1]}",
            f"{duration(totals.total_ns) or '0'} in all",
            f"{100 * totals.total_ns / total_ns:.0f}%" if 0 < totals.total_ns <= total_ns else "",
            f"max {duration(totals.max_ns) or '0'}",
        ]
        lines += [Line(), plain(fit(f" {'  '.join(filter(None, numbers))}", pen.width, pen.glyphs), "title")]
        lines += stacks.frame_lines(stacks.frames_of(common.catalog, stack.kernel, stack.user, pen.names), pen)
    return lines


def no_stack(of_ended: str, common: Common) -> str:
    """Return the sentence that says which calls or requests have a stack."""
    header = common.newest.header
    if raised_ns := header.cost.thinned.stacks_from_ns:
        return (
            f"No stack: to keep the CPU budget, few {of_ended} below {span(raised_ns)} have one (--exact-stacks: all)."
        )
    least = f"{of_ended} of {span(header.filters.min_ns)} (m) or longer" if header.filters.min_ns else of_ended
    some = f"only {least} have one" if of_ended == CALLS else f"only some {least} have one"
    return f"No stack: {some}, once they have ended."


def _wrapped(text: str, token: str, pen: Pen) -> list[Line]:
    return [plain(f" {line}", token) for line in wrap(text, max(1, pen.width - 1))]


def scrolled(title: str, lines: Sequence[Line], by: int, pen: Pen) -> list[Line]:
    """Return a pane with `lines`, of which the first `by` are above the screen."""
    top = max(0, min(by, len(lines) - pen.height + 1))
    return [rule(title, pen), *lines[top : top + pen.height - 1]]
