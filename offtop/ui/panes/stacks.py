"""The stack tree, and the whole stacks of one of its branches, one frame per line."""

import textwrap
from collections.abc import Callable, Sequence

from rich.cells import cell_len

from offtop.model.aggregate import location
from offtop.model.aggregate.rows import Place, Ranking, Row
from offtop.model.aggregate.steps import LAST_WAIT, TURNS, WOKEN_BY, Shape, Step, begins_line
from offtop.model.aggregate.tree import MORE, Branch
from offtop.model.classify.cause_finder import advice, most
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import ENDS, LINKED, Names, Stack
from offtop.model.values.wake import CHAIN, CHAIN_ENDS, NOBODY, OFFCPU, WAKEUP, WHOLE, Waker
from offtop.model.viewmodel.cause_picture import CausesPicture
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.seconds import AccountPicture
from offtop.model.viewmodel.tree_picture import TreePicture
from offtop.model.viewmodel.view import TREE
from offtop.model.windows.stuck import NO_AGE
from offtop.printable import printable
from offtop.ui.kit.columns import Column, heads, line_of, that_fit
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule, width_of
from offtop.ui.panes import account
from offtop.ui.panes.head import selection
from offtop.ui.panes.tables import NOW, NUMBERS, SHARE, WAITING, changes_of, not_gathered, nothing, with_changes
from offtop.units import count, duration, percent, threads

_MUCH_PCT = 10
_LEAST_NAME = 8
_LEAST_LABEL = 24
"""Least cells for the names of a line, however deep it is indented."""
Spans = list[tuple[str, str]]
Frames = list[tuple[str, str, str]]
"""(name, mark, token) of each line."""


def tree(
    shown: TreePicture | None, of_selection: AccountPicture | None, causes: CausesPicture, common: Common, pen: Pen
) -> list[Line]:
    """Return the lines of the tree around its cursor, with the main cause, and the account of a thread if it fits."""
    shape = common.view.tree.shape
    cause = _cause_heading(causes, common)
    about = f"stack tree: {selection(common, pen.glyphs)}{shape_text(shape)}"
    lines = [rule(f"{about}: {cause}" if cause else about, pen)]
    if shown and shown.account_lines:
        lines += account.lines(of_selection, common, pen)
    if shown is None or not shown.branches:
        return [
            *lines,
            plain(fit(no_stack(common), pen.width, pen.glyphs), "dim"),
        ]
    numbers = _tree_numbers(common, pen)
    heading = heads(numbers, "WAITING", 1)
    lines.append(heading._replace(spans=(*heading.spans, ("   STACK  ([k] kernel)", "head"))))
    for index in range(shown.first, min(len(shown.branches), shown.first + pen.height - len(lines))):
        lines.append(_branch(shown, common, index, numbers, pen))
    below = in_full(shown, pen, pen.height - len(lines))
    note = _nameless_note(shown)
    if not note:
        return [*lines, *below]
    filled = [*lines, *below, *([Line()] * pen.height)][: pen.height - 1]
    return [*filled, plain(fit(note, pen.width, pen.glyphs), "dim")]


def no_stack(common: Common) -> str:
    """Return why there is no stack."""
    if not common.gathered:
        return not_gathered(common)
    if not common.selected.total_ns:
        return nothing(common)
    return " No stack here: waits below the minimum (m) have none."


def _nameless_note(shown: TreePicture) -> str:
    """Return what is missing if many of the program's frames have no names."""
    share = percent(shown.nameless.nameless_ns, shown.nameless.all_ns)
    if share < _MUCH_PCT:
        return ""
    if shown.nameless.in_no_file_ns * 2 > shown.nameless.nameless_ns:
        return f" {share:.0f}% of the program's frames have no names: run-time code without a /tmp/perf-PID.map"
    return f" {share:.0f}% of the program's frames (file+0x1234) have no names here; debug symbols have them"


def in_full(shown: TreePicture, pen: Pen, room: int) -> list[Line]:
    """Return all functions from the root to the cursor, for the room below the tree."""
    path, category = shown.branches[shown.cursor].path, shown.branches[shown.cursor].category
    if path[-1] == MORE or room < 3:
        return []
    lines: list[list[tuple[str, str]]] = [[("   ", "text")]]
    left = pen.width - 3
    for number, step in enumerate(path):
        text = ("[k]" if step.kernel else "") + printable(step.name, pen.glyphs.is_ascii)
        text = f" {pen.glyphs.fold} {text}" if number else text
        if cell_len(text) > left and left < pen.width - 3:
            lines.append([("  ", "text")])
            left = pen.width - 2
        text = fit(text, left, pen.glyphs) if cell_len(text) > left else text
        lines[-1].append((text, _token(step, category)))
        left -= cell_len(text)
    return [Line(), *(Line(tuple(spans)) for spans in lines)][:room]


def shape_text(shape: Shape) -> str:
    words = [
        *(["leaf first (v)"] if shape.inverted else []),
        *([f"{shape.frames} only ({shape.frames[0].upper()})"] if shape.frames != "both" else []),
        *(["all frames (.)"] if shape.machinery else []),
        *(["by object (J)"] if shape.objects else []),
    ]
    return f"  {', '.join(words)}" if words else ""


def _tree_numbers(common: Common, pen: Pen) -> list[Column]:
    events, _, _, longest = NUMBERS
    wide = [longest, events] if pen.width >= 90 else [longest] if pen.width >= 70 else []
    numbers = [WAITING, SHARE, *wide, NOW]
    return that_fit(
        numbers if common.uncompared else with_changes(common.view, numbers),
        pen.width,
        common.view,
        "",
        1,
    )


def _branch(shown: TreePicture, common: Common, index: int, numbers: Sequence[Column], pen: Pen) -> Line:
    branch = shown.branches[index]
    at_cursor = index == shown.cursor and common.view.focus == TREE
    now = shown.now.get(branch.path, NO_AGE)
    before = shown.before.get(branch.path)
    row = Row("", "", common.span_ns, branch.part, shown.root.total_ns, now=now, before=before)
    line = line_of(numbers, row, ">" if at_cursor else " ", "cursor" if at_cursor else "text", pen)
    return with_names(line, branch, pen)


def with_names(line: Line, branch: Branch, pen: Pen) -> Line:
    """Return the line of a branch, which has its numbers already, with its functions."""
    room = pen.width - width_of(line.spans) - 1
    indent = min(branch.depth * (2 if pen.width >= 80 else 1), max(0, room - _LEAST_LABEL))
    arrow = (pen.glyphs.opened if branch.opened else pen.glyphs.closed) if branch.openable else " "
    label: Spans = [(f" {' ' * indent}{arrow} ", "fold")]
    if branch.more:
        label.append((f"{pen.glyphs.ellipsis} {branch.more} more", "dim"))
    else:
        label += _names(branch, room - indent - 2, pen)
    return line._replace(spans=(*line.spans, *label))


def _names(branch: Branch, room: int, pen: Pen) -> Spans:
    """Return the functions of a line: the first one, and as many at its leaf as fit.

    In a line about a waker, it is the waker's name and as many of its functions as fit.
    """
    steps: list[Step | None] = [*branch.path[branch.first :]]
    if steps[0] == WOKEN_BY and _cells(steps, pen) > room:
        steps = _waker_first(branch.path[branch.first :], room, pen)
    elif len(steps) > 2 and _cells(steps, pen) > room:
        first, *rest = steps
        steps = [first, None, rest.pop()]
        while rest and _cells([*steps, rest[-1]], pen) <= room:
            steps.insert(2, rest.pop())
    shortened = max(_LEAST_NAME, room - _cells(steps[1:], pen) - 3) if len(steps) > 1 else room
    if steps[0] in TURNS:
        shortened = room
    spans: Spans = []
    in_kernel: bool | None = branch.path[branch.first - 1].kernel if branch.first else None
    for number, step in enumerate(steps):
        if number:
            spans.append((f" {pen.glyphs.fold} ", "fold"))
        if step is None:
            spans.append((pen.glyphs.ellipsis, "fold"))
            continue
        turn = ("[k]" if step.kernel else "[u]" if in_kernel else "") if step.kernel != in_kernel else ""
        if begins_line(step) or step.is_waker:
            turn = ""
        in_kernel = None if step.is_waker or step.is_object else step.kernel
        text = turn + printable(step.name, pen.glyphs.is_ascii)
        left = min(room - width_of(spans), room if number else shortened)
        if cell_len(text) > left:
            text = fit(text, max(0, left), pen.glyphs)
        spans.append((text, _token(step, branch.category)))
    return spans


def _waker_first(steps: Sequence[Step], room: int, pen: Pen) -> list[Step | None]:
    """Choose the steps of a line about a waker: its name, and as many functions as fit."""
    waker = max((number for number, step in enumerate(steps) if step.is_waker), default=len(steps) - 1)
    shown, room = 1, room - (4 if waker + 1 < len(steps) else 0)  # room for a cut rest
    while shown < waker and _cells([*steps[: shown + 1], None, steps[waker]], pen) <= room:
        shown += 1
    return [*steps[:shown], *([None] if shown < waker else []), *steps[max(shown, waker) :]]


def _token(step: Step, category: str) -> str:
    """Return the colour of a step: for the kernel's functions that of the category, if it is the only one."""
    if step in TURNS:
        return "dim"
    if step.is_waker or step.is_object:
        return "title"
    return "user" if not step.kernel else f"cat-{category}" if category else "kernel"


def _cells(steps: Sequence[Step | None], pen: Pen) -> int:
    return sum(3 + (cell_len(printable(step.name, pen.glyphs.is_ascii)) if step else 1) for step in steps)


def site(places: Ranking, common: Common, rule_of: Callable[[Sequence[str], str], str], pen: Pen) -> list[Line]:
    """Return the lines of the pane, scrolled by `view.scrolled`.

    `rule_of` describes the rule that chose the category of a kernel stack.
    """
    if not common.gathered:
        title = rule(f"site: {selection(common, pen.glyphs)}", pen)
        return [title, plain(fit(not_gathered(common), pen.width, pen.glyphs), "dim")]
    path = common.view.path
    name = printable(path[-1].name, pen.glyphs.is_ascii) if path else ""
    part = common.selected
    lines: list[Line] = []
    row = Row("", "", common.span_ns, part, places.of_ns, before=places.before)
    shown = [WAITING, SHARE, *NUMBERS]
    numbers = that_fit(
        shown if common.uncompared else with_changes(common.view, shown),
        pen.width,
        common.view,
        "",
        1,
    )
    lines += [heads(numbers, "", 1), line_of(numbers, row, " ", "text", pen)]
    for ordinal, place in enumerate(places.rows, 1):
        if isinstance(place.key, Place):
            lines += _whole_stack(common, ordinal, place, place.key, rule_of, pen)
    if places.elided:
        more = places.elided
        lines.append(plain(f" {more.name}: {threads(more.waiting)} waiting", "dim"))
    top = max(0, min(common.view.scrolled, len(lines) - pen.height + 1))
    return [rule(f"site: {name}  in {selection(common, pen.glyphs)}", pen), *lines[top : top + pen.height - 1]]


def site_length(places: Ranking, common: Common, pen: Pen) -> int:
    """Return the number of lines below the title."""
    keys = [row.key for row in places.rows if isinstance(row.key, Place)]
    frames = sum(len(_frames(common, place, pen.names)) for place in keys)
    causes = sum(len(_why(common, row, pen)) for row in places.rows)
    return 2 + 3 * len(keys) + causes + frames + (places.elided is not None)


def _whole_stack(
    common: Common, ordinal: int, row: Row, place: Place, rule_of: Callable[[Sequence[str], str], str], pen: Pen
) -> list[Line]:
    catalog = common.catalog
    waits = f"  {count(row.waits_per_s)}/s" if row.part.waits else ""
    longest = f"  max {duration(row.part.max_ns)}" if row.part.max_ns else ""
    waiting = "  ".join(filter(None, (f"{threads(row.waiting)} waiting", changes_of(row))))
    numbers = f" #{ordinal}  {waiting}  {row.share_pct:.0f}%{waits}{longest}"
    if common.view.tree.shape.mode == WAKEUP:
        what = f"wakes {printable(catalog.process(place.kernel), pen.glyphs.is_ascii)}({place.kernel})"
    else:
        category = catalog.stack(place.kernel).category
        what = f"{category}: {rule_of(location.kernel_names(catalog, place.kernel, pen.names), category)}"
    lines = [
        Line(),
        plain(fit(numbers, pen.width, pen.glyphs), "title"),
        plain(fit(f"   {what}", pen.width, pen.glyphs), "dim"),
    ]
    lines += [plain(fit(f"   {text}", pen.width, pen.glyphs)) for text in _why(common, row, pen)]
    return lines + frame_lines(_frames(common, place, pen.names), pen)


def frame_lines(frames: Frames, pen: Pen) -> list[Line]:
    """Return a line for each of `frames`."""
    return [
        Line((("   " + mark + " ", "fold"), (fit(name, pen.width - 7, pen.glyphs).rstrip(), token)))
        for name, mark, token in frames
    ]


def _why(common: Common, row: Row, pen: Pen) -> list[str]:
    """Return the cause, what to look at next, and the main object, as far as known."""
    texts: list[str] = []
    if row.rule:
        texts.append(f"for {row.rule.name}: {row.rule.says}")
        texts += [f"next: {hint}"] if (hint := advice(row.rule, common.catalog, row.top.pid)) else []
    what = common.catalog.wake(row.top.wake).object
    texts += [f"mostly on {printable(what.label, pen.glyphs.is_ascii)}"] if what.kind else []
    return [line for text in texts for line in textwrap.wrap(text, max(20, pen.width - 4))]


def _frames(common: Common, place: Place, names: Names) -> Frames:
    """Return the frames of the sleeper, leaf first, below those of its wakers, root first.

    The two leaves meet in the middle. In the wakeup mode, only the waker's frames are returned.
    """
    catalog, mode = common.catalog, common.view.tree.shape.mode
    wake = catalog.wake(place.wake)
    if mode == WAKEUP:
        return [*frames_of(catalog, wake.waker.kernel, wake.waker.user, names), (wake.waker.label, "   ", "title")]
    own = frames_of(catalog, place.kernel, place.user, names)
    if mode == OFFCPU:
        return own
    if wake.waker.kind == NOBODY:
        return [(wake.waker.label, "   ", "dim"), *own]
    above = [*_waker(catalog, wake.waker, names), *own]
    for link in wake.links if mode == CHAIN else ():
        waited = frames_of(catalog, link.kernel, link.user, names)
        above = [*_waker(catalog, link.waker, names), *waited, (LAST_WAIT.name, "   ", "dim"), *above]
    if mode == CHAIN and wake.end != WHOLE:
        above.insert(0, (f"({CHAIN_ENDS[wake.end]})", "   ", "dim"))
    return above


def _waker(catalog: Catalog, waker: Waker, names: Names) -> Frames:
    """Return the waker's frames, root first."""
    frames = frames_of(catalog, waker.kernel, waker.user, names)[::-1]
    return [(waker.label, "   ", "title"), *frames, (WOKEN_BY.name, "   ", "dim")]


def frames_of(catalog: Catalog, kernel: int, user: int, names: Names) -> Frames:
    """Return the frames, leaf first, and a note on guessed or missing callers."""
    return [
        *((name, "[k]", "kernel") for name in location.kernel_names(catalog, kernel, names)),
        *((name, "   ", "user") for name in location.user_names(catalog, user, names)),
        *((note, "   ", "user") for note in _caller_notes(catalog.stack(user))),
    ]


def _caller_notes(stack: Stack) -> list[str]:
    """Return a note below the program's frames if they may be wrong or incomplete."""
    if stack.missing:
        return [f"({stack.missing})"]
    return [f"(~ {ENDS[LINKED] if stack.end == LINKED else 'some callers are guessed from values in the stack'})"] * (
        stack.is_guessed
    )


def cause_line(causes: CausesPicture, common: Common) -> str:
    """Return the main cause of the selection and a hint; empty if too little is known."""
    cause = most(causes.shares, common.span_ns)
    return cause.in_full(common.catalog, common.view.pid is None) if cause else ""


def _cause_heading(causes: CausesPicture, common: Common) -> str:
    cause = most(causes.shares, common.span_ns)
    return cause.in_short(common.catalog, with_process=False) if cause else ""
