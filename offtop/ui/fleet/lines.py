"""What the screen of `offtop fleet` shows, as lines: pure functions of the newest answer and the view."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple, TypeVar

from rich.cells import cell_len

from offtop.fleet import texts
from offtop.fleet.hosts import HOST, STANDS_OUT, WAITING, Fleet, Host, HostId, in_order, ordered, ranked_categories
from offtop.fleet.reader import Answer, Trend
from offtop.fleet.survey import Program
from offtop.printable import printable
from offtop.ui.fleet.keys import KEYS
from offtop.ui.kit.glyphs import Glyphs, sparkline
from offtop.ui.kit.lines import NO_LINE, Line, cut_spans, fit, plain, spread, width_of
from offtop.ui.kit.theme import CATEGORY_TOKENS
from offtop.units import threads

_MARK_WIDTH, _WAITING_WIDTH, _LEAST_CELL = 2, 8, 7
_LEAST_NAME, _MOST_NAME = 10, 32
_LEAST_TREND_WIDTH, _WIDE = 70, 120
_TREND_CELLS, _WIDE_TREND_CELLS = 10, 20
_OUTLIER_WIDTH = 34
"""Cells for the text about an outlier, on a wide screen."""
_MOST_SUSPECTS, _LOW = 5, 30
_LAST_LINES = 2
"""Lines below the page: messages, and keys."""
_CAUSE_LINES = 8
"""Lines for the causes of the selected program; on a low screen fewer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class View:
    """What the person chose, but for what the question has."""

    filter_text: str = ""
    sort: str = STANDS_OUT
    is_reversed: bool = False
    host: HostId | None = None
    """The host under the cursor; None: the first."""
    inside: HostId | None = None
    """The host whose programs are shown; None: all hosts."""
    program: str | None = None
    """The program under the cursor."""


class Look(NamedTuple):
    """The screen, and names that come with offtop."""

    width: int
    height: int
    glyphs: Glyphs
    order: Sequence[str]
    """All categories, as their columns are ordered."""
    causes: Mapping[str, str]
    """Names of cause rules by id."""


class Grid(NamedTuple):
    """Which columns there is room for."""

    name_width: int
    trend_cells: int
    categories: Sequence[str]
    has_outliers: bool


class Page(NamedTuple):
    lines: Sequence[Line]
    first_y: int = 0
    """Where the first visible row is."""
    top: int = 0
    """Number of the first visible row."""
    room: int = 0
    """How many rows there is room for."""
    row_count: int = 0
    """How many rows there are."""


def sorts(answer: Answer, look: Look) -> list[str]:
    """Return what can be sorted by, as the columns are ordered."""
    if answer.fleet is None:
        return [STANDS_OUT]
    return [HOST, WAITING, *grid(answer.fleet, look).categories, STANDS_OUT]


def hosts_of(answer: Answer, view: View) -> list[Host]:
    return ordered(answer.fleet.hosts, view.sort, view.is_reversed) if answer.fleet else []


def selected_host(answer: Answer, view: View) -> Host | None:
    hosts = hosts_of(answer, view)
    return next((one for one in hosts if one.id == view.host), hosts[0] if hosts else None)


def programs_of(answer: Answer, view: View) -> Sequence[Program]:
    """Return the programs of the host that the person looks at; nothing while they are asked for."""
    found = answer.programs
    return found.programs if found and found.host == view.inside else ()


def selected_program(answer: Answer, view: View) -> Program | None:
    programs = programs_of(answer, view)
    return next((one for one in programs if one.name == view.program), programs[0] if programs else None)


def grid(fleet: Fleet, look: Look) -> Grid:
    longest = max((cell_len(printable(host.name, look.glyphs.is_ascii)) for host in fleet.hosts), default=0)
    most = min(_MOST_NAME, look.width // 4)
    name_width = max(min(longest, most), min(_LEAST_NAME, most))
    cells = 0 if look.width < _LEAST_TREND_WIDTH else _TREND_CELLS if look.width < _WIDE else _WIDE_TREND_CELLS
    has_outliers = look.width >= _WIDE
    room = look.width - _MARK_WIDTH - name_width - 1 - _WAITING_WIDTH - (cells + 1 if cells else 0)
    room -= _OUTLIER_WIDTH + 1 if has_outliers else 0
    return Grid(name_width, cells, _fitting(ranked_categories(fleet), room, look), has_outliers)


def _fitting(ranked: Sequence[str], room: int, look: Look) -> list[str]:
    """Return as many of the categories as fit, in the usual order."""
    shown: list[str] = []
    for category in ranked:
        room -= _cell_width(category, look) + 1
        if room < 0:
            break
        shown.append(category)
    return in_order(shown, look.order)


def page(answer: Answer, view: View, look: Look, top: int, is_late: str) -> Page:
    """Return the screen but for its last two lines.

    `top`: the first visible row so far. `is_late`: how old the picture is, if that is too old.
    """
    fleet = answer.fleet
    if fleet is None:
        said = answer.failure or "asking for the hosts for the first time"
        token = "alert" if answer.failure else "dim"
        return Page([plain(one, token) for one in _wrapped(f"offtop fleet: {said}", look)])
    columns_now = grid(fleet, look)
    if view.inside:
        return _programs_page(answer, fleet, view, look, columns_now, top, is_late)
    heads = [*_head(answer, fleet, view, look, is_late), *_suspect_lines(fleet, look), _titles(columns_now, view, look)]
    hosts = hosts_of(answer, view)
    trends: Mapping[HostId, Trend] = answer.trends if answer.trend_category == trend_category(view) else {}
    chosen = selected_host(answer, view)
    return _page(
        heads,
        hosts,
        lambda one: _host_line(one, columns_now, trends, look),
        hosts.index(chosen) if chosen else 0,
        top,
        look,
    )


def _page(
    heads: Sequence[Line],
    rows: Sequence[T],
    line_of: Callable[[T], Line],
    selected: int,
    top: int,
    look: Look,
    below: Sequence[Line] = (),
) -> Page:
    """Put rows below the heads, so that the selected one is visible."""
    room = max(1, look.height - _LAST_LINES - len(heads) - len(below))
    heads = heads[: max(0, look.height - _LAST_LINES - room)]
    top = max(min(top, selected, max(0, len(rows) - room)), selected - room + 1, 0)
    shown = [line_of(row) for row in rows[top : top + room]]
    if shown:
        shown[selected - top] = shown[selected - top]._replace(base="cursor")
    return Page([*heads, *shown, *[NO_LINE] * (room - len(shown)), *below], len(heads), top, room, len(rows))


def trend_category(view: View) -> str:
    """Return what the trends are of: the category that the hosts are sorted by, or all (empty)."""
    return "" if view.sort in (STANDS_OUT, WAITING, HOST) else view.sort


def _head(answer: Answer, fleet: Fleet, view: View, look: Look, is_late: str) -> list[Line]:
    question = answer.question
    state = ("PAST", "paused") if question.at_ns is not None else ("live", "live")
    clock = texts.clock(fleet.at_ns, fleet.at_ns if question.at_ns is None else 0)
    right = [(f" {is_late} ", "lost"), (" ", "text")] if is_late else []
    right += [(f" {state[0]} ", state[1]), (f" {clock}", "title")]
    left = [("offtop fleet", "title"), (f" - {texts.counted(fleet)}, averages over ", "text")]
    left += [(texts.range_of(fleet.range_ns), "value"), (" from rules" if fleet.from_rules else "", "dim")]
    lines = [spread(left, right, look.width)]
    if view.filter_text:
        lines.append(plain(fit(f"filter {view.filter_text}   ESC clears", look.width, look.glyphs), "filter"))
    return lines


def _suspect_lines(fleet: Fleet, look: Look) -> list[Line]:
    most = _MOST_SUSPECTS if look.height >= _LOW else 3 if look.height >= 15 else 0
    count = len(fleet.hosts)
    return [
        plain(fit(f"! {texts.suspect(one, count, fleet.at_ns)}", look.width, look.glyphs), "alert")
        for one in fleet.suspects[:most]
    ]


def _titles(columns_now: Grid, view: View, look: Look) -> Line:
    def title(text: str, width: int, sort: str, left: bool = False) -> list[tuple[str, str]]:
        shown = text[:width]
        token = "sorted" if view.sort == sort else "head"
        gap = (" " * (width - len(shown)), "head")
        return [(shown, token), gap] if left else [gap, (shown, token)]

    spans = [(" " * _MARK_WIDTH, "head"), *title("HOST", columns_now.name_width, HOST, left=True), (" ", "head")]
    spans += title("WAITING", _WAITING_WIDTH, WAITING)
    if columns_now.trend_cells:
        spans += [(" ", "head"), *title("TREND", columns_now.trend_cells, "", left=True)]
    for category in columns_now.categories:
        spans += [(" ", "head"), *title(printable(category), _cell_width(category, look), category)]
    if columns_now.has_outliers:
        spans += [(" ", "head"), *title("OUTLIER", _OUTLIER_WIDTH, STANDS_OUT, left=True)]
    return Line(cut_spans(spans, look.width))


def _host_line(host: Host, columns_now: Grid, trends: Mapping[HostId, Trend], look: Look) -> Line:
    glyphs = look.glyphs
    marked = {one.category for one in host.outliers}
    spans = [(f"{glyphs.mark if marked else ' '} ", "alert")]
    spans += [(fit(host.name, columns_now.name_width, glyphs), "name"), (" ", "text")]
    if host.silent_ns:
        return Line((*spans, (f" {texts.silent_for(host.silent_ns)}", "lost")))
    spans.append((f"{threads(host.total):>{_WAITING_WIDTH}}", "waiting"))
    if columns_now.trend_cells:
        trend = sparkline(trends.get(host.id, ()), glyphs)
        spans.append((f" {trend:{columns_now.trend_cells}}", "spark"))
    for category in columns_now.categories:
        width, value = _cell_width(category, look), host.waiting.get(category)
        text = "" if value is None else threads(value)
        token = "grew" if category in marked else _token(category)
        mark = glyphs.mark if category in marked else ""
        spans.append((f" {mark + text:>{width}}", token))
    if columns_now.has_outliers and host.outliers:
        spans.append((" " + fit(texts.outlier(host.outliers[0]), _OUTLIER_WIDTH, glyphs), "alert"))
    return Line(tuple(spans))


def _programs_page(
    answer: Answer, fleet: Fleet, view: View, look: Look, columns_now: Grid, top: int, is_late: str
) -> Page:
    host = next((one for one in fleet.hosts if one.id == view.inside), None)
    found = answer.programs if answer.programs and answer.programs.host == view.inside else None
    name = host.name if host else view.inside.instance if view.inside else ""
    waits = f"{threads(host.total)} threads wait" if host and not host.silent_ns else "no numbers"
    job = view.inside.job if view.inside else ""
    heads = _head(answer, fleet, view, look, is_late)[:1]
    heads.append(plain(fit(f"{name} (job {job}): {waits}", look.width, look.glyphs), "title"))
    if host:
        heads += [
            plain(fit(f"{look.glyphs.mark} {texts.outlier(one)}", look.width, look.glyphs), "alert")
            for one in host.outliers[:2]
        ]
    if found is None:
        return Page([*heads, plain("asking for its programs", "dim")])
    room = 4 if look.height >= _LOW else 2
    heads += [
        plain(fit(f"! {texts.held_suspect(one)}", look.width, look.glyphs), "alert") for one in found.suspects[:room]
    ]
    own = _host_grid(found.programs, look, columns_now)
    spans = [(" " * _MARK_WIDTH, "head"), (fit("PROGRAM", own.name_width, look.glyphs), "head"), (" ", "head")]
    spans.append((f"{'WAITING':>{_WAITING_WIDTH}}", "sorted"))
    spans += [(f" {printable(one):>{_cell_width(one, look)}}", "head") for one in own.categories]
    heads.append(Line(cut_spans(spans, look.width)))
    if not found.programs:
        heads.append(plain("nothing but idle threads waits here", "dim"))
    chosen = selected_program(answer, view)
    selected = found.programs.index(chosen) if chosen else 0
    below = _cause_lines(chosen, look) if chosen else []
    return _page(heads, found.programs, lambda one: _program_line(one, own, look), selected, top, look, below)


def _host_grid(programs: Sequence[Program], look: Look, columns_now: Grid) -> Grid:
    """Return the categories that matter on one host, in the order of the columns."""
    sums: dict[str, float] = {}
    for program in programs:
        for category, value in program.waiting.items():
            sums[category] = sums.get(category, 0.0) + value
    width = max(columns_now.name_width, min(24, look.width // 4))
    room = look.width - _MARK_WIDTH - width - 1 - _WAITING_WIDTH
    return Grid(width, 0, _fitting(sorted(sums, key=lambda one: -sums[one]), room, look), False)


def _program_line(program: Program, own: Grid, look: Look) -> Line:
    spans = [("  ", "text"), (fit(program.name or "[none]", own.name_width, look.glyphs), "name"), (" ", "text")]
    spans.append((f"{threads(program.total):>{_WAITING_WIDTH}}", "waiting"))
    for category in own.categories:
        value = program.waiting.get(category)
        text = "" if value is None else threads(value)
        spans.append((f" {text:>{_cell_width(category, look)}}", _token(category)))
    return Line(tuple(spans))


def _cause_lines(program: Program, look: Look) -> list[Line]:
    most = _CAUSE_LINES if look.height >= _LOW else 4 if look.height >= 18 else 0
    title = f" causes of {printable(program.name, look.glyphs.is_ascii)} "
    rule = look.glyphs.rule
    lines = [Line(cut_spans([(rule * 2, "rule"), (title, "title"), (rule * look.width, "rule")], look.width))]
    for why, value in list(program.causes.items())[: most - 1]:
        text = f"{threads(value):>10}  {look.causes.get(why, why)}"
        lines.append(plain(fit(text, look.width, look.glyphs), "value"))
    if not program.causes:
        lines.append(plain(fit("no cause rule explains its waits", look.width, look.glyphs), "dim"))
    return lines[:most]


def key_bar(width: int) -> Line:
    """Return the keys that fit; those for help and to quit come first."""
    spans = {row.id: _key_spans(row.bar) for row in KEYS if row.bar}
    fits: set[str] = set()
    for name in sorted(spans, key=lambda name: name not in ("help", "quit")):
        width -= width_of(spans[name])
        if width < -1:
            break
        fits.add(name)
    return Line(tuple(span for name, parts in spans.items() if name in fits for span in parts))


def _key_spans(bar: str) -> tuple[tuple[str, str], ...]:
    key, word = bar.rsplit(" ", 1)
    return (key, "key"), (f" {word} ", "dim")


def _cell_width(category: str, look: Look) -> int:
    return max(_LEAST_CELL, min(len(printable(category)), look.width // 6))


def _token(category: str) -> str:
    token = f"cat-{category}"
    return token if token in CATEGORY_TOKENS else "value"


def _wrapped(text: str, look: Look) -> list[str]:
    return wrap(printable(text, look.glyphs.is_ascii), max(1, look.width)) or [""]
