"""Lines of text with style tokens, and the Panel widget that shows them.

A panel redraws only the cells that changed.
"""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._compositor import ChopsUpdate
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

from offtop.model.values.stack import Names
from offtop.printable import printable
from offtop.ui.kit import theme
from offtop.ui.kit.glyphs import Glyphs


class Line(NamedTuple):
    spans: tuple[tuple[str, str], ...] = ()
    """(text, token) from left to right; the text is already escaped."""
    base: str = "text"
    """Token of the whole line, below those of its spans."""


class Pen(NamedTuple):
    """What a pane needs to draw itself: its size in cells, the glyphs, and function names."""

    width: int
    height: int
    glyphs: Glyphs
    names: Names


NO_LINE = Line()
WHOLE_LINE = frozenset({"cursor", "cursor-away", "menu-chosen"})
"""Tokens that override those of the spans if they are the base of a line."""


def plain(text: str, token: str = "text") -> Line:
    return Line(((text, token),))


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    """Return `text`, escaped, in exactly `width` cells: cut with an ellipsis, or padded."""
    shown = printable(text, glyphs.is_ascii)
    if cell_len(shown) <= width:
        return shown + " " * (width - cell_len(shown))
    return set_cell_size(shown, max(0, width - 1)) + glyphs.ellipsis if width > 0 else ""


def whole_sentences(text: str, width: int) -> str:
    """Return as many sentences of `text` as fit into `width`, but at least the first."""
    kept, *sentences = re.split(r"(?<=\.) ", text)
    for sentence in sentences:
        if cell_len(f"{kept} {sentence}") > width:
            break
        kept = f"{kept} {sentence}"
    return kept


def width_of(spans: Sequence[tuple[str, str]]) -> int:
    return sum(cell_len(text) for text, _ in spans)


def cut_spans(spans: Sequence[tuple[str, str]], width: int) -> tuple[tuple[str, str], ...]:
    """Return the first `width` cells of `spans`."""
    kept: list[tuple[str, str]] = []
    for text, token in spans:
        cells = cell_len(text)
        if cells >= width:
            kept.append((set_cell_size(text, max(0, width)), token))
            break
        kept.append((text, token))
        width -= cells
    return tuple(kept)


def fit_spans(spans: Sequence[tuple[str, str]], width: int, glyphs: Glyphs) -> tuple[tuple[str, str], ...]:
    """Return `spans`, cut with an ellipsis if their text has more than `width` cells."""
    if cell_len("".join(text for text, _ in spans).rstrip()) <= width:
        return cut_spans(spans, width)
    return (*cut_spans(spans, width - 1), (glyphs.ellipsis, "text")) if width > 0 else ()


def spread(left: Sequence[tuple[str, str]], right: Sequence[tuple[str, str]], width: int) -> Line:
    """Place `left` at the left edge and `right` at the right one, cutting `left` to fit."""
    room = width - width_of(right)
    if room <= 0:
        return Line(cut_spans(right, width))
    left = cut_spans(left, room - 1 if right else room)
    return Line((*left, (" " * (room - width_of(left)), "text"), *right))


def rule(title: str, pen: Pen) -> Line:
    """Return the title of a pane in a horizontal line. A title that is too long ends in an ellipsis."""
    room = pen.width - 3
    shown = f" {title} " if cell_len(title) <= room else f" {fit(title, room, pen.glyphs)}"
    spans = (
        (pen.glyphs.rule * 2, "rule"),
        (shown, "title"),
        (pen.glyphs.rule * max(0, pen.width - 2 - cell_len(shown)), "rule"),
    )
    return Line(cut_spans(spans, pen.width))


def marked(line: Line, search: str) -> Line:
    """Return the line with each match of `search` highlighted, ignoring case.

    A match must lie within one span.
    """
    if not search or line.base in WHOLE_LINE:
        return line
    spans: list[tuple[str, str]] = []
    for text, token in line.spans:
        for part in re.split(f"({re.escape(search)})", text, flags=re.IGNORECASE):
            spans.append((part, "match" if part.casefold() == search.casefold() else token))
    return line._replace(spans=tuple(span for span in spans if span[0]))


def changes(was: Line | None, now: Line | None, width: int) -> list[tuple[int, int]]:
    """Return the cells in which `now` differs from `was`, as (first cell, number of cells).

    `width` is that of the whole line.
    """
    if was is None or now is None or was.base != now.base:
        return [(0, width)]
    found: list[tuple[int, int]] = []
    x = 0
    for old, new in zip_longest(was.spans, now.spans, fillvalue=("", "")):
        cells = cell_len(new[0])
        if cells != cell_len(old[0]):
            found.append((x, max(1, width - x)))  # everything after it has moved
            break
        if old != new:
            found.append((x, cells))
        x += cells
    return found


class _Exact(ChopsUpdate):
    """A screen update of exactly the changed cells; Textual's starts at the left of the line."""

    def render_segments(self, console: Console) -> str:
        drawn: list[str] = []
        for y, first, end in self.spans:
            for strip_end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                start, stop = max(x, first), min(strip_end, end)
                if strip is not None and start < stop:
                    move = Control.move_to(start, y).segment.text
                    # Of a copy: a strip caches 16 of its parts with what was written for each, 2 MB for a screen.
                    part = Strip(strip, strip.cell_length).crop(start - x, stop - x)
                    drawn += (move, part.render(console))
        self._free_strips()
        return "".join(drawn)

    def _free_strips(self) -> None:
        """Remove the reference to itself that Strip.divide gives a strip which it leaves whole.

        With it, a strip stays until a garbage collection, which comes after minutes: up to 20 MB.
        """
        for y, *_ in self.spans:
            for strip in self.chops[y].values():
                if strip is not None:
                    strip._divide_cache.clear()  # pyright: ignore[reportPrivateUsage]


def exact(update: RenderableType | None) -> RenderableType | None:
    """Reduce what Textual is about to draw to the changed cells."""
    return _Exact(update.chops, update.spans, update.chop_ends) if isinstance(update, ChopsUpdate) else update


class Clicked(Message):
    """A click, or a wheel movement, on a panel."""

    def __init__(self, panel: str, x: int, y: int, turns: int = 0, *, follows_at_once: bool = False) -> None:
        super().__init__()
        self.panel = panel
        self.x = x
        self.y = y
        self.turns = turns
        """Wheel steps down, negative for up; 0 for a click."""
        self.follows_at_once = follows_at_once
        """Whether it is the second or a later click of a double click."""


class Panel(Widget):
    """A widget that shows the lines passed to `show`."""

    def __init__(self, id: str, classes: str = "") -> None:  # noqa: A002  # Textual's word
        super().__init__(id=id, classes=classes)
        self._lines: Sequence[Line] = ()
        self._strips: dict[int, Strip] = {}
        self._style_cache: dict[str, Style] = {}
        """Styles by token. Textual would match all component classes again whenever a style changes."""
        self._drawn_for = (0, "")
        """Width and theme that `_strips` and `_style_cache` are for."""

    def show(self, lines: Sequence[Line]) -> None:
        """Draw `lines` from the top, as many as fit."""
        was, self._lines = self._lines, tuple(lines)
        for y, (old, new) in enumerate(zip_longest(was, self._lines)):
            if old != new:
                self._strips.pop(y, None)
                width = self.size.width
                self.refresh(*(Region(x, y, cells, 1) for x, cells in changes(old, new, width)))

    def on_click(self, event: events.Click) -> None:
        self.post_message(Clicked(str(self.id), event.x, event.y, follows_at_once=event.chain > 1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.post_message(Clicked(str(self.id), event.x, event.y, turns=1))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.post_message(Clicked(str(self.id), event.x, event.y, turns=-1))

    @property
    def lines(self) -> Sequence[Line]:
        return self._lines

    def render_line(self, y: int) -> Strip:
        if self._drawn_for != (self.size.width, self._theme.name):
            self._drawn_for = (self.size.width, self._theme.name)
            self._strips.clear()
            self._style_cache.clear()
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self._strip(self._lines[y] if y < len(self._lines) else NO_LINE)
        return strip

    def _strip(self, line: Line) -> Strip:
        """Render a line. With a WHOLE_LINE base it has one style from edge to edge."""
        base = self._style_of(line.base)
        own = line.base in WHOLE_LINE
        segments = [Segment(text, base if own else self._style_of(token)) for text, token in line.spans if text]
        # Join neighbours with the same style: each style change costs 20 bytes of output.
        return Strip(segments).adjust_cell_length(self.size.width, base).simplify()

    def _style_of(self, token: str) -> Style:
        style = self._style_cache.get(token)
        if style is None:
            style = self._style_cache[token] = theme.style_of(self._theme, token)
        return style

    @property
    def _theme(self) -> Theme:
        return self.app.current_theme  # pyright: ignore[reportUnknownMemberType]  # the app's type parameter is unknown here
