"""Tables of rows: fixed columns, so that numbers stand still, and fewer of them on a narrow terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from offtop.model import where
from offtop.model.book import ThreadKey
from offtop.model.cut import ALL
from offtop.model.picture import Picture
from offtop.model.printable import printable
from offtop.model.rows import NOWHERE, Place, Row
from offtop.model.snapshot import EXITED
from offtop.model.stack import Names
from offtop.ui.glyphs import Glyphs, sparkline
from offtop.ui.head import who
from offtop.ui.layout import WIDE, Layout
from offtop.ui.lines import Line, fit, plain
from offtop.units import count, duration, threads


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int
    """In cells, without the blank that parts it from the one before."""
    text_of: Callable[[Row], str]
    token: str = "value"
    left: bool = False
    """Numbers stand at the right, words at the left."""
    sort: str = ""
    """The sort that this column shows."""
    least_width: int = 0
    """Below this width of the terminal it is left out."""


def _percent(row: Row) -> str:
    return f"{row.share_pct:.0f}%" if row.part.total_ns > 0 else ""


NUMBERS = (
    Column("EV/S", 5, lambda row: count(row.waits_per_s) if row.part.waits else "", sort="EV/S", least_width=61),
    Column("p50<=", 6, lambda row: duration(row.percentile_ns(50)), least_width=68),
    Column("p99<=", 6, lambda row: duration(row.percentile_ns(99)), least_width=44),
    Column("MAX", 6, lambda row: duration(row.part.max_ns), sort="MAX"),
)
WAITING = Column(
    "WAITING", 8, lambda row: threads(row.waiting) if row.part.total_ns > 0 else "", "waiting", sort="WAITING"
)
SHARE = Column("%", 4, _percent, least_width=44)


def _line(columns: Sequence[Column], row: Row, mark: str, base: str, glyphs: Glyphs) -> Line:
    spans: list[tuple[str, str]] = [(mark, "pin" if "*" in mark else "text")]
    for column in columns:
        text = column.text_of(row)
        shown = fit(text, column.width, glyphs) if column.left else f"{text:>{column.width}}"
        spans.append((f" {shown}", column.token))
    return Line(tuple(spans), base)


def _heads(columns: Sequence[Column], sort: str, mark_width: int) -> Line:
    spans: list[tuple[str, str]] = [(" " * mark_width, "head")]
    for column in columns:
        text = f"{column.title:<{column.width}}" if column.left else f"{column.title:>{column.width}}"
        blank = len(text) - len(text.lstrip())
        spans += [
            (" " + text[:blank], "head"),
            (text[blank:].rstrip(), "sorted" if sort and column.sort == sort else "head"),
        ]
        spans.append((" " * (column.width - len(text.rstrip())), "head"))
    return Line(tuple(spans))


def _that_fit(columns: Sequence[Column], width: int) -> list[Column]:
    return [column for column in columns if width >= column.least_width]


def categories(picture: Picture, layout: Layout, glyphs: Glyphs) -> list[Line]:
    """The table of categories, all of them together as its first row."""
    spark_width = layout.spark_cells
    columns = _that_fit(
        [
            Column("CATEGORY", 13, lambda row: row.name, "name", left=True, sort="NAME"),
            WAITING,
            SHARE,
            Column(
                "last 60s",
                spark_width,
                lambda row: sparkline(picture.sparks.get(str(row.key), ()), glyphs) if not row.threads else "",
                "spark",
                left=True,
                least_width=55,
            ),
            *NUMBERS,
        ],
        layout.width,
    )
    view, ranking = picture.view, picture.categories
    everything = Row(ALL, "all", picture.span_ns, ranking.whole, ranking.whole.total_ns)
    lines = [_heads(columns, view.sort, 1)]
    for row in (everything, *ranking.rows):
        chosen = row.key == view.category
        base = ("cursor-away" if view.in_list else "cursor") if chosen else "text"
        shown = row._replace(name=f"~{row.name}") if row.idle else row
        lines.append(_line(columns, shown, ">" if chosen else " ", base, glyphs))
    if ranking.elided:
        lines.append(_line(columns, ranking.elided, " ", "text", glyphs))
    return lines


def rows(picture: Picture, names: Names, layout: Layout, glyphs: Glyphs) -> list[Line]:
    """The list of processes or threads, with its title."""
    view, ranking = picture.view, picture.rows
    what = "threads" if view.lists_threads else "processes"
    of = f" of {who(picture, view.pid, glyphs)}" if view.pid is not None else ""
    title = f"{what}{of} waiting on: {view.category if view.category != ALL else 'anything'}"
    lines = [rule(title, layout, glyphs)]
    if not ranking.rows:
        lines.append(plain(_nothing(picture), "dim"))
        return lines
    columns = _list_columns(picture, names, layout)
    lines.append(_heads(columns, view.sort, 2))
    room = layout.rows - len(lines)
    last = picture.first_row + room
    for index, row in enumerate(ranking.rows[picture.first_row : last], picture.first_row):
        at_cursor = view.in_list and index == picture.cursor_row
        mark = (">" if at_cursor else " ") + ("*" if row.pinned else " ")
        lines.append(_line(columns, row, mark, "cursor" if at_cursor else "text", glyphs))
    if ranking.elided and len(lines) < layout.rows:
        lines.append(_line(columns, ranking.elided, "  ", "text", glyphs))
    return lines


def _nothing(picture: Picture) -> str:
    if picture.hidden_ns:
        idle = threads(picture.hidden_ns / picture.span_ns) if picture.span_ns else "0"
        return f" Nothing waits here but {idle} idle-looking threads (press i to see them)."
    return " Nothing waits here."


def _list_columns(picture: Picture, names: Names, layout: Layout) -> list[Column]:
    view, width = picture.view, layout.width
    name_width = 15 if width >= 56 else 10
    if view.lists_threads:
        columns = [
            Column("TID", 7, _tid, sort="PID"),
            Column("THREAD", name_width, lambda row: row.name, "name", left=True, sort="NAME"),
        ]
        if view.pid is None:
            columns.append(Column("PROCESS", 10, lambda row: row.process, "name", left=True, least_width=90))
    else:
        columns = [
            Column("PID", 7, _tid, sort="PID"),
            Column("COMMAND", name_width, lambda row: row.name, "name", left=True, sort="NAME"),
            Column("THR", 4, lambda row: count(row.threads) if row.threads and row.pid else "", least_width=64),
        ]
    numbers = [column for column in NUMBERS if width >= 100 or column.title != "p50<="]
    columns += [WAITING, *([SHARE] if width >= 90 else []), *numbers]
    columns = _that_fit(columns, width)
    left = width - 2 - sum(1 + column.width for column in columns) - 2
    if left >= 8:

        def where_of(row: Row) -> str:
            return "" if row.top == NOWHERE else where.in_short(picture.book, row.top.kernel, row.top.user, names)

        columns.append(Column(" WHERE", left + 1, lambda row: " " + where_of(row), "where", left=True))
    return columns


def _tid(row: Row) -> str:
    if isinstance(row.key, ThreadKey):
        return str(row.key.tid) if row.key != EXITED else ""
    return str(row.key) if isinstance(row.key, int) and row.key else ""


def places(picture: Picture, names: Names, layout: Layout, glyphs: Glyphs) -> list[Line]:
    """Where the chosen thread, process or category waits: a kernel and a user stack each, leaf first."""
    whose = picture.places_of
    subject = who(picture, whose, glyphs) if isinstance(whose, int | ThreadKey) else "they"
    category = picture.view.category
    verb = "wait" if subject == "they" else "waits"
    lines = [rule(f"where {subject} {verb}{f' on {category}' if category != ALL else ''}", layout, glyphs)]
    numbers = _that_fit([WAITING, SHARE, *NUMBERS], layout.width)
    beside = layout.width - 1 - sum(1 + column.width for column in numbers)
    lines.append(_heads(numbers, "", 1))
    if not picture.places.rows:
        lines.append(plain(" No stack here: waits below the minimum (m) have none.", "dim"))
    stacks = [_Stack(picture, row.key, names) for row in picture.places.rows if isinstance(row.key, Place)]
    in_short = [stack.in_short(beside, layout.width, glyphs) for stack in stacks]
    room = layout.places - len(lines) - sum(map(len, in_short)) - bool(picture.places.elided)
    for row, stack, short in zip(picture.places.rows, stacks, in_short, strict=True):
        whole = stack.whole(beside, layout.width, glyphs)
        shown = whole if len(whole) - len(short) <= room else short
        room -= len(shown) - len(short)
        line = _line(numbers, row, " ", "text", glyphs)
        lines.append(line._replace(spans=(*line.spans, *shown[0])))
        lines += [Line(spans) for spans in shown[1:]]
    if picture.places.elided:
        more = _line(numbers, picture.places.elided, " ", "text", glyphs)
        lines.append(more._replace(spans=(*more.spans, (f"  {picture.places.elided.name}", "dim"))))
    return lines


_Spans = tuple[tuple[str, str], ...]


class _Stack:
    """The frames of a place, leaf first: the kernel's, then the program's."""

    def __init__(self, picture: Picture, place: Place, names: Names) -> None:
        self._kernel = where.kernel_names(picture.book, place.kernel, names)
        self._user = where.user_names(picture.book, place.user, names)

    def in_short(self, beside: int, width: int, glyphs: Glyphs) -> list[_Spans]:
        """One line beside the numbers; where that is narrow, the program's frames are on another."""
        kernel, user = " < ".join(self._kernel), " < ".join(self._user)
        if width >= WIDE:
            return [(("  ", "text"), *_both(kernel, user, beside - 2, glyphs))]
        first = ((" " + fit(kernel, beside - 1, glyphs), "where"),)
        return [first, (("   " + fit("< " + user, width - 3, glyphs), "name"),)] if user else [first]

    def whole(self, beside: int, width: int, glyphs: Glyphs) -> list[_Spans]:
        """All frames, on as many lines as they need; the first is beside the numbers."""
        frames = [(name, "where") for name in self._kernel] + [(name, "name") for name in self._user]
        blank = "  " if width >= WIDE else " "
        lines: list[list[tuple[str, str]]] = [[(blank, "text")]]
        left = beside - len(blank)
        for number, (name, token) in enumerate(frames):
            text = f"{' < ' if number else ''}{printable(name, glyphs.is_ascii)}"
            if cell_len(text) > left and number:
                lines.append([("  ", "text")])
                left = width - 2
            text = fit(text, left, glyphs) if cell_len(text) > left else text
            lines[-1].append((text, token))
            left -= cell_len(text)
        return [tuple(spans) for spans in lines]


def _both(kernel: str, user: str, width: int, glyphs: Glyphs) -> list[tuple[str, str]]:
    """The kernel's frames and the program's in one line; where both do not fit, neither takes more than it must."""
    if not user:
        return [(fit(kernel, width, glyphs), "where")]
    wanted = cell_len(printable(kernel, glyphs.is_ascii))
    kernel_width = min(wanted, max(width // 2, width - 3 - cell_len(printable(user, glyphs.is_ascii))))
    return [(fit(kernel, kernel_width, glyphs), "where"), (" < " + fit(user, width - kernel_width - 3, glyphs), "name")]


def rule(title: str, layout: Layout, glyphs: Glyphs) -> Line:
    shown = f" {title} "
    return Line(
        (
            (glyphs.rule * 2, "rule"),
            (shown, "title"),
            (glyphs.rule * max(0, layout.width - 2 - len(shown)), "rule"),
        )
    )
