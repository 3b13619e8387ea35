"""What keys that apply to the whole screen change in a View, and what the keys of all panes have in common.

Each function returns the changed View.
"""

from collections.abc import Iterable
from dataclasses import replace

from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.filter_syntax import exactly
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import NO_CGROUP
from offtop.model.aggregate.rows import CHANGE
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.wake import WAKEUP
from offtop.model.viewmodel.view import (
    CATEGORIES,
    HEATMAP,
    HISTOGRAM,
    LATENCY,
    LIST,
    LONGEST_DELAY_NS,
    NAMES,
    OFF,
    SHORTEST_DELAY_NS,
    SITE,
    SPANS_NS,
    TREE,
    WHOLE_SCREEN,
    Cell,
    FlameView,
    TreeView,
    View,
)
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import ALL


def about(view: View, **changes: object) -> View:
    """Change the selection; what was opened and chosen in the old one is dropped."""
    return replace(
        view,
        **{  # pyright: ignore[reportArgumentType]  # fields of View, as the callers below give them
            "tree": TreeView(view.tree.shape),
            "flame": FlameView(),
            "cell": None,
            "path": (),
            "scrolled": 0,
            "focus": TREE if view.focus == SITE else view.focus,
            **changes,
        },
    )


def into(view: View, what: str, **changes: object) -> View:
    """Go one level down, into `what` of View.way."""
    return about(view, way=(*way_without(view, what), what), **changes)


def out_of(view: View, what: str, **changes: object) -> View:
    """Go one level up, out of `what` of View.way."""
    return about(view, way=way_without(view, what), **changes)


def way_without(view: View, what: str) -> tuple[str, ...]:
    """Return View.way without `what`."""
    return tuple(name for name in view.way if name != what)


def out_of_waker(view: View) -> View:
    """Go from a thread to the wakers of its process, and from these to all wakers."""
    if view.mode != WAKEUP:
        return out_of(view, "wakers", wakers=(), focus=LIST)
    above = view.wakers[:-1]
    way = view.way if above else way_without(view, "wakers")
    return about(view, wakers=above, cursor=view.waker, focus=LIST, way=way)


def next_pane(view: View, panes: Iterable[str], step: int) -> View:
    """Focus the next of `panes`, the visible ones."""
    every = [*panes]
    index = every.index(view.focus) if view.focus in every else -1
    if every == [view.focus]:
        return replace(in_pane(view, CATEGORIES), zoomed=False)
    return in_pane(view, every[(index + step) % len(every)]) if every else view


def in_pane(view: View, pane: str) -> View:
    """Focus `pane`."""
    zoomed = view.zoomed and pane not in WHOLE_SCREEN
    if pane == SITE or view.focus != SITE:
        return replace(view, focus=pane, zoomed=zoomed)
    return replace(view, focus=pane, path=(), zoomed=zoomed)


def next_span(view: View) -> View:
    return replace(view, span_ns=SPANS_NS[(SPANS_NS.index(view.span_ns) + 1) % len(SPANS_NS)])


def sorted_by(view: View, sort: str) -> View:
    """Sort by `sort`, largest first (names and pids ascending), and go to the first row.

    If the list has no such column, only the categories are sorted.
    """
    if sort not in view.sorts:
        return view if sort == CHANGE else replace(view, sort=sort)
    if view.lists_account:
        return replace(view, account_sort=sort, reverse=False, cursor=None)
    return replace(view, sort=sort, reverse=False, cursor=None)


def next_sort(view: View, step: int) -> View:
    return sorted_by(view, view.sorts[(view.sorts.index(view.list_sort) + step) % len(view.sorts)])


def reversed_order(view: View) -> View:
    return replace(view, reverse=not view.reverse)


def idle_or_not(view: View) -> View:
    return replace(view, idle_shown=not view.idle_shown)


def marked(view: View, baseline: Baseline) -> View:
    """Mark the baseline."""
    return replace(view, baseline=baseline)


def compared_or_not(view: View) -> View:
    """Switch comparison with the baseline on or off."""
    return replace(view, diff=not view.diff)


def pinned(view: View, key: str | int | Program | ThreadKey) -> View:
    """Pin `key`, or unpin it; the kernel counts everything again."""
    return replace(view, pin=None if view.pin == key else key, narrowed=False)


def narrowed_or_widened(view: View) -> View:
    """Count only the pin in the kernel, or everything again."""
    return replace(view, narrowed=not view.narrowed and view.pin is not None)


def live(view: View) -> View:
    return replace(view, paused_at_ns=None)


def paused_at(view: View, at_ns: int) -> View:
    """Show the tick at `at_ns`."""
    return replace(view, paused_at_ns=at_ns)


def with_delay(view: View, delay_ns: int) -> View:
    """Set the delay. Raises ValueError outside 0.1 to 60 s."""
    if not SHORTEST_DELAY_NS <= delay_ns <= LONGEST_DELAY_NS:
        raise ValueError(delay_ns)
    return replace(view, delay_ns=delay_ns)


def with_minimum(view: View, min_ns: int) -> View:
    return replace(view, filters=replace(view.filters, min_ns=min_ns))


def next_names(view: View) -> View:
    return replace(view, names=NAMES[(NAMES.index(view.names) + 1) % len(NAMES)])


def next_latency(view: View, shown: str) -> View:
    """Switch to what follows `shown`, which AUTO resolved to: histogram, heat map, off."""
    after = {HISTOGRAM: HEATMAP, HEATMAP: OFF, OFF: HISTOGRAM}[shown]
    focus = LATENCY if after == HEATMAP else CATEGORIES if view.focus == LATENCY else view.focus
    return in_pane(replace(view, latency=after, cell=None), focus)


def with_latency(view: View, latency: str) -> View:
    return replace(view, latency=latency, focus=CATEGORIES if view.focus == LATENCY else view.focus, cell=None)


def at_cell(view: View, cell: Cell | None) -> View:
    """Move the cursor of the heat map."""
    return in_pane(replace(view, cell=cell), LATENCY)


def searched(view: View, text: str) -> View:
    return replace(view, search=text)


def filtered(view: View, chosen: Filter, found: str = "") -> View:
    """Set the filter; `found` is the search that it came from."""
    return about(view, filter=chosen, found=found, search="", cursor=None, group=None)


def in_cgroup(path: str) -> Filter:
    """Return the filter for what is in a cgroup of the list."""
    return exactly("cgroup", "" if path == NO_CGROUP else path)


def of_user(view: View, user: str) -> View:
    return about(view, user=user, cursor=None)


def muted_or_not(view: View, what: Filter) -> View:
    """Mute `what`, or unmute it if it is muted."""
    if any(one.text == what.text for one in view.muted):
        return replace(view, muted=tuple(one for one in view.muted if one.text != what.text))
    category = ALL if view.focus == CATEGORIES else view.category
    return about(view, muted=(*view.muted, what), category=category, cursor=None)


def shown_or_hidden(view: View, title: str) -> View:
    """Hide or show a column or pane."""
    return replace(view, hidden=view.hidden ^ {title})
