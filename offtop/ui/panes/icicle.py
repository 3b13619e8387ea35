"""The icicle: the stack tree as boxes whose width is the time waited below them."""

from zlib import crc32

from offtop.model.aggregate import icicle
from offtop.model.aggregate.icicle import Box, Direction, Icicle
from offtop.model.aggregate.rows import Row
from offtop.model.aggregate.steps import Path
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.flame_picture import FlamePicture
from offtop.printable import printable
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule
from offtop.ui.panes.head import selection
from offtop.ui.panes.stacks import no_stack
from offtop.ui.panes.tables import changes_of
from offtop.units import average, count, duration, percent, threads

_HUES = 3
TITLE_LINES = 1
"""Lines above the boxes."""


def chosen(shown: FlamePicture | None, cursor: Path) -> Path:
    """Return the box of the cursor, or the nearest one if that is gone."""
    box = icicle.box_of(shown.icicle, cursor) if shown else None
    return box.path if box else ()


def neighbour(shown: FlamePicture | None, cursor: Path, direction: Direction) -> Path:
    """Return the box next to the cursor in `direction`."""
    box = icicle.neighbour(shown.icicle, chosen(shown, cursor), direction) if shown else None
    return box.path if box else ()


def at(shown: FlamePicture | None, x: int, y: int) -> Path:
    """Return the box at a cell of the pane."""
    box = icicle.at(shown.icicle, x, y - TITLE_LINES) if shown else None
    return box.path if box else ()


def flame(shown: FlamePicture | None, common: Common, pen: Pen) -> list[Line]:
    title = f"icicle: {selection(common, pen.glyphs)}  width = time waiting"
    if shown and shown.before:
        title += ", colour = change"
    if shown is None or not shown.icicle.boxes:
        return [
            rule(title, pen),
            plain(fit(no_stack(common), pen.width, pen.glyphs), "dim"),
        ]
    cursor, boxes = chosen(shown, common.view.flame.cursor), shown.icicle.boxes
    rows: list[list[Box]] = [[] for _ in range(shown.icicle.rows)]
    for box in boxes:
        rows[box.depth].append(box)
    lines = [rule(f"{title} ({threads(average(shown.icicle.whole_ns, shown.span_ns))} threads)", pen)]
    lines += [_line(row, cursor, shown, common.view.search, pen) for row in rows]
    lines += [Line()] * (pen.height - len(lines) - 2)
    at_cursor = next((box for box in boxes if box.path == cursor), boxes[0])
    return [
        *lines,
        plain(fit(_box_text(at_cursor, shown), pen.width, pen.glyphs), "bar-mark"),
        _hint(shown.icicle, pen),
    ]


def _line(boxes: list[Box], cursor: Path, shown: FlamePicture, search: str, pen: Pen) -> Line:
    spans: list[tuple[str, str]] = []
    end = 0
    for box in boxes:
        if box.x > end:
            spans.append((" " * (box.x - end), "text"))
        name = ("[k]" if box.kernel else "") + box.name
        spans.append((pen.glyphs.edge + fit(name, box.width - 1, pen.glyphs), _token(box, cursor, shown, search)))
        end = box.x + box.width
    return Line(tuple(spans))


def _token(box: Box, cursor: Path, shown: FlamePicture, search: str) -> str:
    if box.path == cursor:
        return "flame-cursor"
    if search and search.casefold() in box.name.casefold():
        return "flame-match"
    change = _row(box, shown).change
    if change:
        return "flame-same" if not change.is_sure else "flame-grew" if change.by > 0 else "flame-shrank"
    hue = crc32(box.name.encode("utf-8", "replace")) % _HUES + 1
    return f"flame-{'kernel' if box.kernel else 'user'}-{hue}"


def _row(box: Box, shown: FlamePicture) -> Row:
    """Return the box as a table row, to compute its numbers and change."""
    return Row("", "", shown.span_ns, box.part, before=shown.before.get(box.path))


def _box_text(box: Box, shown: FlamePicture) -> str:
    part = box.part
    waits = f"  {count(part.waits)} waits" if part.waits else ""
    longest = f"  max {duration(part.max_ns)}" if part.max_ns else ""
    share = percent(part.total_ns, shown.icicle.whole_ns)
    row = _row(box, shown)
    waiting = "  ".join(filter(None, (f"{threads(row.waiting)} waiting", changes_of(row))))
    return f" {printable(box.name)}  {waiting} ({share:.1f}%){waits}{longest}"


def _hint(shown: Icicle, pen: Pen) -> Line:
    words = ["arrows move", "ENTER zoom", "ESC out", "v invert", "/ search", "g close"]
    if shown.dropped:
        share = percent(shown.dropped_ns, shown.whole_ns)
        words.insert(0, f"{shown.dropped} boxes too narrow ({share:.1f}%)")
    if shown.dropped_deep:
        words.insert(0, f"{shown.dropped_deep} below the screen")
    return plain(fit(" " + "   ".join(words), pen.width, pen.glyphs), "dim")
