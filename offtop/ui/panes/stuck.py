"""Waits in progress, oldest first, and the one under the cursor in full."""

from collections.abc import Sequence

from rich.cells import cell_len

from offtop.model.aggregate import location
from offtop.model.aggregate.row_names import process_name, thread_name
from offtop.model.values import calls
from offtop.model.values.catalog import Catalog
from offtop.model.values.container import label
from offtop.model.values.snapshot import Bound, Waiting
from offtop.model.values.stack import NO_STACK, PLACELESS, Names
from offtop.model.values.state import WORDS
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.stuck_list import StuckPicture
from offtop.model.viewmodel.view import STUCK
from offtop.model.windows.stuck import LEAST_AGE_NS
from offtop.printable import printable
from offtop.ui.kit.layout import STUCK_FRAME, stuck_lines
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule, width_of
from offtop.ui.panes.head import clock, selection
from offtop.units import duration

_GUESSED = "~"
"""Mark of user stacks with guessed callers."""
_PROCESS_WIDTH, _CGROUP_WIDTH = 110, 140
"""Least widths for the process and for the cgroup."""
_STANDING = "   standing: normal while there is no work, this old, and nobody waits behind it, so it counts as idle"


def stuck(listed: StuckPicture, common: Common, pen: Pen) -> list[Line]:
    if common.view.stuck.opened:
        return _in_full(listed, common, pen)
    shown, view = listed.shown, common.view
    lines = [rule(_title(listed, common, pen), pen)]
    if not shown.waits:
        return [*lines, plain(fit(_nothing(listed, common), pen.width, pen.glyphs), "dim")]
    lines.append(plain(_heads(pen), "head"))
    room = stuck_lines(pen.height)
    first = listed.first
    for row in range(first, min(len(shown.waits), first + room)):
        chosen = row == listed.cursor
        base = ("cursor" if view.focus == STUCK else "cursor-away") if chosen else "text"
        lines.append(Line(tuple(_row(listed, common.catalog, row, chosen, pen)), base))
    below = pen.height - STUCK_FRAME - room
    if below > 1:
        lines += [Line()] * (STUCK_FRAME + room - len(lines))
        lines += details(listed, common, listed.cursor, pen)[:below]
    return lines


def _title(listed: StuckPicture, common: Common, pen: Pen) -> str:
    threads, hidden, alike = listed.threads, listed.hidden, listed.opened
    selected = selection(common, pen.glyphs)
    of = f" in {selected}" if selected != "all" else ""
    if alike is not None:
        of += printable(f" of {alike.threads or alike.program} at {alike.place}", pen.glyphs.is_ascii)
    standing = f", {hidden.standing} of them standing" if hidden.standing else ""
    idle = f", and {len(hidden.waits)} idle hidden{standing} (i)" if hidden.waits else ""
    many = f"{threads} threads wait" if threads != 1 else "1 thread waits"
    return f"stuck now{of}: {many} for {duration(LEAST_AGE_NS)} or longer{idle}"


def _nothing(listed: StuckPicture, common: Common) -> str:
    hidden, view = listed.hidden, common.view.stuck
    if view.alike is not None:
        if listed.hides(view.cursor):
            return " These waits count as idle now (press i to see them; Esc goes back)."
        return " These waits have ended, or a filter hides them (Esc goes back)."
    if hidden.waits:
        oldest = hidden.age(0).text
        many = f"{len(hidden.waits)} threads are" if len(hidden.waits) != 1 else "1 thread is"
        return f" Nothing is stuck. {many} idle, the longest for {oldest} (press i to see them)."
    passes = " that passes the filter" if common.view.filter.text or common.view.user else ""
    return f" Nothing{passes} waits for {duration(LEAST_AGE_NS)} or longer."


def _heads(pen: Pen) -> str:
    return " " + "".join(
        f" {title:>{width}}" if right else f" {title:<{width}}" for title, width, right in _columns(pen)
    )


def _columns(pen: Pen) -> list[tuple[str, int, bool]]:
    """Return (title, width, aligned to the right) of each column."""
    columns = [("AGE", 7, True), ("TID", 7, True), ("THREAD", 15 if pen.width >= 64 else 8, False)]
    if pen.width >= _PROCESS_WIDTH:
        columns.append(("PROCESS", 15, False))
    columns += [("S", 1, False), ("CATEGORY", 13 if pen.width >= 50 else 6, False)]
    if pen.width >= 70:
        columns.append(("SYSCALL", 30 if pen.width >= _CGROUP_WIDTH else 12, False))
    if pen.width >= _CGROUP_WIDTH:
        columns.append(("CGROUP", 24, False))
    left = pen.width - 2 - sum(width + 1 for _, width, _ in columns)
    return [*columns, ("STACK", left, False)] if left >= 6 else columns


def _row(listed: StuckPicture, catalog: Catalog, row: int, chosen: bool, pen: Pen) -> list[tuple[str, str]]:
    shown = listed.shown
    one, leaf, alike = shown.waits[row], shown.leaf(row), listed.alike(row)
    texts = {
        "AGE": (shown.age(row).text, "waiting"),
        "TID": (f"x{listed.count(row)}" if alike else str(one.site.tid), "value"),
        "THREAD": (alike.threads if alike else thread_name(one.site.thread, catalog), "name"),
        "PROCESS": (alike.program if alike else process_name(one.site.pid, catalog), "name"),
        "S": (one.letter, "value"),
        "CATEGORY": (f"~{leaf.category}" if leaf.idle else leaf.category, f"cat-{leaf.category}"),
        "SYSCALL": (catalog.call(alike.call) if alike and alike.call >= 0 else call_of(one, catalog), "where"),
        "CGROUP": (label(catalog.detail(one.site.pid).cgroup), "name"),
        "STACK": (_for_what(listed, catalog, row, pen.names), "where"),
    }
    spans: list[tuple[str, str]] = [(">" if chosen else " ", "text")]
    for title, width, right in _columns(pen):
        text, token = texts[title]
        spans.append((f" {text:>{width}}" if right else f" {fit(text, width, pen.glyphs)}", token))
    return spans


def call_of(one: Waiting, catalog: Catalog) -> str:
    """Return its system call, as `futex(0x7f12…, WAIT)`, unescaped; empty if in none."""
    return calls.call_text(catalog.call(one.call), one.arguments) if one.call >= 0 else ""


def text_of(listed: StuckPicture, catalog: Catalog, row: int, names: Names) -> str:
    """Return the text that a search looks at."""
    one = listed.shown.waits[row]
    subject = f"{thread_name(one.site.thread, catalog)} {process_name(one.site.pid, catalog)}"
    for_what = _for_what(listed, catalog, row, names)
    return f"{subject} {listed.shown.leaf(row).category} {call_of(one, catalog)} {for_what}"


def _for_what(listed: StuckPicture, catalog: Catalog, row: int, names: Names) -> str:
    """Return the cause, if a rule names one, and the stack in short."""
    one = listed.shown.waits[row]
    return location.with_rule(catalog, one.place, listed.rule(row), _stack_in_short(one, catalog, names))


def _stack_in_short(one: Waiting, catalog: Catalog, names: Names) -> str:
    if one.site.kernel in PLACELESS:
        return "(too short for a stack)"
    if one.site.kernel == NO_STACK:
        return "(not read yet)"
    return location.in_short(catalog, one.site.kernel, one.user, names, one.site.wake)


def details(listed: StuckPicture, common: Common, row: int, pen: Pen) -> list[Line]:
    """Return a summary of a wait, then all its frames, as many per line as fit."""
    one, count = listed.shown.waits[row], listed.count(row)
    oldest = f" The oldest of {count} waits that look alike (Enter lists them):"
    alike = [plain(fit(oldest, pen.width, pen.glyphs), "dim")] if count > 1 else []
    return [
        *alike,
        *_summary_lines(listed, common, row, pen),
        *packed_frames(_stacks_of(one, common.catalog, pen.names), pen),
    ]


NamedStacks = Sequence[tuple[str, str, Sequence[str]]]
"""(mark, token, functions leaf first) of the kernel stack and of the user stack."""


def packed_frames(both: NamedStacks, pen: Pen) -> list[Line]:
    """Return all frames, as many per line as fit."""
    lines: list[Line] = []
    spans: list[tuple[str, str]] = [("   ", "text")]
    for mark, token, frames in both:
        for number, frame in enumerate(frames):
            name = f"{'' if number else mark}{printable(frame, pen.glyphs.is_ascii)}"
            text = f" < {name}" if len(spans) > 1 else name
            if width_of(spans) + cell_len(text) > pen.width and len(spans) > 1:
                lines.append(Line(tuple(spans)))
                spans = [("   ", "text")]
                text = f"< {name}"
            spans.append((fit(text, min(cell_len(text), pen.width - 3), pen.glyphs), token))
    return [*lines, Line(tuple(spans))]


def _in_full(listed: StuckPicture, common: Common, pen: Pen) -> list[Line]:
    title, lines = rule("a wait in progress (Esc goes back)", pen), in_full(listed, common, pen)
    if not lines:
        hides = listed.hides(common.view.stuck.cursor)
        why = "counts as idle now (press i to see it)" if hides else "has ended, or a filter hides it"
        return [title, plain(fit(f" This wait {why}.", pen.width, pen.glyphs), "dim")]
    top = max(0, min(common.view.stuck.scrolled, len(lines) - pen.height + 1))
    return [title, *lines[top : top + pen.height - 1]]


def in_full(listed: StuckPicture, common: Common, pen: Pen) -> list[Line]:
    """Return a summary of the wait, then one frame per line; nothing if the opened wait has ended."""
    waits, view = listed.shown.waits, common.view.stuck
    if not waits or (view.opened and waits[listed.cursor].site.thread != view.cursor):
        return []
    lines = [*_summary_lines(listed, common, listed.cursor, pen), Line()]
    one = listed.shown.waits[listed.cursor]
    lines += frame_lines(_stacks_of(one, common.catalog, pen.names), pen)
    if one.user == NO_STACK and one.site.kernel not in PLACELESS and one.call >= 0:
        why = "not read yet" if common.catalog.has_programs else "needs BPF"
        lines.append(plain(fit(f"   (user stack {why})", pen.width, pen.glyphs), "dim"))
    return lines


def frame_lines(both: NamedStacks, pen: Pen) -> list[Line]:
    """Return one line per frame."""
    return [
        Line(((f"   {mark or '   '} ", "fold"), (fit(frame, pen.width - 7, pen.glyphs).rstrip(), token)))
        for mark, token, frames in both
        for frame in frames
    ]


def _stacks_of(one: Waiting, catalog: Catalog, names: Names) -> NamedStacks:
    return named_stacks(one.site.kernel, one.user, catalog, names)


def named_stacks(kernel_id: int, user_id: int, catalog: Catalog, names: Names) -> NamedStacks:
    kernel = () if kernel_id in PLACELESS else catalog.stack(kernel_id).displayed
    user = catalog.stack(user_id)
    named = location.names_of(user.frames, names)
    return (
        ("[k]", "kernel", location.names_of(kernel, names)),
        (_GUESSED if user.is_guessed else "", "user", [*named, *([f"({user.missing})"] if user.missing else [])]),
    )


def _summary_lines(listed: StuckPicture, common: Common, row: int, pen: Pen) -> list[Line]:
    shown, catalog = listed.shown, common.catalog
    one, age = shown.waits[row], shown.age(row)
    thread, process = thread_name(one.site.thread, catalog), process_name(one.site.pid, catalog)
    subject = f"{thread}({one.site.tid}) of {process}({one.site.pid})"
    since = clock(common.newest, shown.at_ns - age.ns)
    unseen = "between two samples" if common.sampling else "before offtop started"
    began = {
        Bound.EXACT: f"since {since}",
        Bound.AT_MOST: f"last had a CPU at {since}, {unseen}",
        Bound.AT_LEAST: f"seen since {since}, may be older",
    }[age.bound]
    state = one.letter
    ready = f", woken {duration(one.runqueue_ns)} ago" if state == "R" and not one.is_ready else ""
    details = catalog.detail(one.site.pid)
    lines = [
        plain(fit(f" {age.text} {subject}  {began}", pen.width, pen.glyphs), "title"),
        Line(
            (
                (f"   {shown.leaf(row).category}", f"cat-{shown.leaf(row).category}"),
                (
                    fit(
                        f"  {state}: {WORDS.get(state, 'unknown state')}{ready}  {call_of(one, catalog)}",
                        max(0, pen.width - 3 - len(shown.leaf(row).category)),
                        pen.glyphs,
                    ),
                    "text",
                ),
            )
        ),
    ]
    if shown.leaf(row).standing:
        lines.append(plain(fit(_STANDING, pen.width, pen.glyphs), "idle"))
    what = catalog.wake(one.site.wake).object
    if what.kind:
        held = f", held by {one.holder.label}" if one.holder.tid else ""
        on = [f"on {what.label}{held}", location.peers_text(catalog, one.site.kernel, one.site.wake)]
        lines.append(plain(fit(f"   {'  '.join(filter(None, on))}", pen.width, pen.glyphs), "text"))
    process = "  ".join(filter(None, (label(details.cgroup), details.user, details.cmdline)))
    if process:
        lines.append(plain(fit(f"   {process}", pen.width, pen.glyphs), "dim"))
    return lines
