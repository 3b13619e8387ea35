"""Outliers, newest first, and the one under the cursor in full."""

from collections.abc import Sequence
from datetime import datetime

from offtop.model.aggregate import location
from offtop.model.outliers.text import location_text, thread_text, threshold_text, value_and_bound
from offtop.model.outliers.trigger import value_text
from offtop.model.values.catalog import Catalog
from offtop.model.values.outlier import AUTO, Group, Outlier
from offtop.model.values.stack import Names
from offtop.model.values.state import WORDS, letter
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.outlier_list import OutliersPicture
from offtop.model.viewmodel.view import OUTLIERS, View
from offtop.printable import printable
from offtop.ui.kit.layout import STUCK_FRAME, stuck_lines
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule
from offtop.ui.panes.stuck import frame_lines, named_stacks, packed_frames
from offtop.units import NS_PER_S, duration

_RULE_WIDTH = 120
"""Least width for the process and for the threshold (AGAINST)."""


def outliers(shown: OutliersPicture, common: Common, pen: Pen) -> list[Line]:
    view = common.view
    if view.outliers.opened and shown.groups:
        lines = in_full(shown, pen)
        top = max(0, min(view.outliers.scrolled, len(lines) - pen.height + 1))
        title = "an outlier (Enter: all panes as they were then, Esc goes back)"
        return [rule(title, pen), *lines[top : top + pen.height - 1]]
    lines = [rule(_title(shown, common), pen)]
    if not shown.groups:
        return [*lines, *(plain(fit(f" {text}", pen.width, pen.glyphs), "dim") for text in _nothing(view))]
    lines.append(
        plain(
            " "
            + "".join(f" {title:>{width}}" if right else f" {title:<{width}}" for title, width, right in _columns(pen)),
            "head",
        )
    )
    room = stuck_lines(pen.height)
    for row in range(shown.first, min(len(shown.groups), shown.first + room)):
        chosen = row == shown.cursor
        base = ("cursor" if view.focus == OUTLIERS else "cursor-away") if chosen else "text"
        lines.append(Line(tuple(_row(shown.groups[row], chosen, pen)), base))
    below = pen.height - STUCK_FRAME - room
    if below > 1:
        lines += [Line()] * (STUCK_FRAME + room - len(lines))
        lines += _details(shown.groups[shown.cursor].worst, pen)[:below]
    return lines


def _title(shown: OutliersPicture, common: Common) -> str:
    many = f"{len(shown.groups)}, newest first" if shown.groups else "none"
    lost = common.newest.header.lost.get("outliers", 0)
    gone = "".join(
        f", {n:,} {what}" for n, what in ((shown.dropped, "older ones dropped"), (lost, "lost in this tick")) if n
    )
    triggers = common.view.triggers
    chosen = f"; triggers: {printable('; '.join(triggers))} (!)" if triggers else ""
    return f"outliers: {many}{gone}{chosen}"


def _nothing(view: View) -> Sequence[str]:
    if not view.triggers:
        return ("This recording has no outliers.",)
    if view.triggers == ("off",):
        return ("Outliers are off: ! chooses what counts as one, such as auto, or lock.max > 500ms.",)
    return (
        "No outliers yet.",
        "auto: waits 20 times longer than 99.9 % of those of that program and category in the last minutes;",
        "it needs 10 s to learn. ! adds triggers such as lock.max > 500ms, or comm:mysqld disk.p99 > 50ms for 3s.",
    )


def _columns(pen: Pen) -> list[tuple[str, int, bool]]:
    """Return (title, width, aligned to the right) of each column."""
    columns = [("WHEN", 8, False), ("LENGTH", 7, True), ("", 5, False), ("TID", 7, True)]
    columns += [("THREAD", 15 if pen.width >= 64 else 8, False)]
    if pen.width >= _RULE_WIDTH:
        columns.append(("PROCESS", 15, False))
    columns.append(("CATEGORY", 13 if pen.width >= 50 else 6, False))
    if pen.width >= _RULE_WIDTH:
        columns.append(("AGAINST", 20, False))
    left = pen.width - 2 - sum(width + 1 for _, width, _ in columns)
    return [*columns, ("WHERE", left, False)] if left >= 6 else columns


def _row(group: Group, chosen: bool, pen: Pen) -> list[tuple[str, str]]:
    one = group.worst
    texts = {
        "WHEN": (clock(group.first.taken_ns), "value"),
        "LENGTH": (value_and_bound(one), "waiting"),
        "": (f"x{group.many}" if group.many > 1 else "", "dim"),
        "TID": (str(one.wait.site.tid) if one.wait else "", "value"),
        "THREAD": (one.comm, "name"),
        "PROCESS": (one.program, "name"),
        "CATEGORY": (one.category or "all", _colour(one)),
        "AGAINST": (threshold_text(one), "dim"),
        "WHERE": (location_text(one, pen.names), "where"),
    }
    spans: list[tuple[str, str]] = [(">" if chosen else " ", "text")]
    for title, width, right in _columns(pen):
        text, token = texts[title]
        shown = fit(text, width, pen.glyphs)
        spans.append((f" {shown.rstrip():>{width}}" if right else f" {shown}", token))
    return spans


def _colour(one: Outlier) -> str:
    return f"cat-{one.category}" if one.wait else "text"


def text_of(group: Group, names: Names) -> str:
    """Return the text that a search looks at."""
    one = group.worst
    return f"{thread_text(one)} {one.category} {threshold_text(one)} {location_text(one, names)}"


def _details(one: Outlier, pen: Pen) -> list[Line]:
    """Return a summary of the outlier, then all frames, as many per line as fit."""
    lines = _summary_lines(one, pen)
    if one.wait:
        lines += packed_frames(named_stacks(one.wait.site.kernel, one.wait.site.user, one.catalog, pen.names), pen)
    return lines


def in_full(shown: OutliersPicture, pen: Pen) -> list[Line]:
    """Return a summary, then one frame per line, then the waker's; nothing if there is no outlier."""
    if not shown.groups:
        return []
    one = shown.groups[shown.cursor].worst
    lines = _summary_lines(one, pen)
    if one.wait is None:
        return lines
    lines += [Line(), *frame_lines(named_stacks(one.wait.site.kernel, one.wait.site.user, one.catalog, pen.names), pen)]
    waker = one.catalog.wake(one.wait.site.wake).waker
    if waker.kernel or waker.user:
        lines += [Line(), plain(fit(f"   woken by {waker.label}:", pen.width, pen.glyphs), "title")]
        lines += frame_lines(named_stacks(waker.kernel, waker.user, one.catalog, pen.names), pen)
    return lines


def _summary_lines(one: Outlier, pen: Pen) -> list[Line]:
    def line(text: str, token: str = "text") -> Line:
        return plain(fit(text, pen.width, pen.glyphs), token)

    wait = one.wait
    if wait is None:
        over = f" of {one.program}" if one.program else ""
        return [
            line(f" {value_and_bound(one)} {one.metric} {one.category or 'of everything not idle'}{over}", "title"),
            *([line(f"   {one.what}")] if one.what else []),
            line(f"   in the tick until {clock(one.taken_ns)}; trigger {one.rule}"),
        ]
    began_ns = one.taken_ns - (one.at_ns - wait.began_ns)
    ended = (
        f"to {'' if wait.is_exact else 'about '}{clock(began_ns + one.length_ns, 3)}"
        if wait.ended_ns
        else "(in progress)"
    )
    since = "from before" if wait.began_earlier else "from"
    lines = [line(f" {value_and_bound(one)} {thread_text(one)}  {since} {clock(began_ns, 3)} {ended}", "title")]
    state = letter(wait.state)
    facts = [f"{state}: {WORDS.get(state, 'unknown state')}"]
    if wait.runqueue_ns:
        facts.append(f"{duration(wait.runqueue_ns)} of it in the run queue")
    if wait.cpu >= 0:
        facts.append(f"resumed on cpu {wait.cpu}")
    if one.after:
        facts.append(f"at the end of the tick {one.after}")
    lines.append(
        Line(
            (
                (f"   {one.category}", _colour(one)),
                (fit(f"  {', '.join(facts)}", max(0, pen.width - 3 - len(one.category)), pen.glyphs), "text"),
            )
        )
    )
    usual = f"99.9 % take <={duration(one.usual_ns)}" if one.usual_ns else "unknown"
    trigger = f"{AUTO}, from {value_text(one.metric, one.threshold)}" if one.rule == AUTO else one.rule
    lines.append(line(f"   trigger {trigger}; usual: {usual} ({one.program}, {one.category})"))
    wake = one.catalog.wake(wait.site.wake)
    on = [f"on {wake.object.label}"] if wake.object.kind else []
    on += filter(None, [location.peers_text(one.catalog, wait.site.kernel, wait.site.wake)])
    on.append(f"woken by {wake.waker.label}" if wake.has_waker else "" if one.is_going_on else _no_waker(one.catalog))
    lines.append(line(f"   {'; '.join(filter(None, on))}"))
    return lines


def _no_waker(catalog: Catalog) -> str:
    keys = "modes 2, 3 and 4 record it" if catalog.has_programs else "it needs BPF"
    return f"waker not recorded ({keys})"


def clock(taken_ns: int, digits: int = 0) -> str:
    """Return `02:10:55`, with `digits` decimals of the seconds."""
    seconds = datetime.fromtimestamp(taken_ns // NS_PER_S).strftime("%H:%M:%S")
    return f"{seconds}.{taken_ns % NS_PER_S:09}"[: 9 + digits] if digits else seconds
