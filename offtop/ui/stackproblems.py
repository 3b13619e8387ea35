"""What the user stacks of the selection lack, why, and what to do about it: over the screen, and live."""

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from offtop.model.stackproblems import REASONS, Problem, Told
from offtop.ui.glyphs import Glyphs
from offtop.ui.lines import Line, fit, width_of
from offtop.ui.over import Read
from offtop.units import average, percent, threads

_LABEL = 22
_WELL = "Each is whole, and all of its functions have names."
_NONE = "No wait that is shown here has a user stack: kernel threads and short waits have none."


class StackProblems(Read):
    """Asks `told` whenever it is drawn, for what is said of the selection, and the span that this is of."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,V,f10,ctrl+c,ctrl+q", "dismiss", show=False, priority=True),
    ]
    CSS = "StackProblems { align: center middle; background: $background 0%; }"

    def __init__(self, told: Callable[[], tuple[Told, int]], glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._told = told

    def page(self, width: int) -> tuple[str, Sequence[Line]]:
        told, span_ns = self._told()
        if not told.total_ns:
            return "user stacks", self._wrapped(_NONE, width, 1)
        whole, named = (percent(ns, told.total_ns) for ns in (told.whole_ns, told.named_ns))
        waiting = threads(average(told.total_ns, span_ns))
        heading = f"user stacks of {waiting} waiting: {whole:.0f}% whole, {named:.0f}% with all names"
        lines = [line for one in told.problems for line in self._lines(one, span_ns, width)]
        return heading, lines or self._wrapped(_WELL, width, 1)

    def _lines(self, one: Problem, span_ns: int, width: int) -> list[Line]:
        head = f" {100 * one.share:>3.0f}% {threads(average(one.total_ns, span_ns)):>7}  "
        label = fit(one.label, _LABEL, self._glyphs)
        left = len(head) + _LABEL + 2
        reason, *more = wrap(REASONS[one.reason], max(10, width - left - 1))
        return [
            self._line(((head, "text"), (f"{label}  ", "name"), (reason, "text")), width),
            *(self._line(((" " * left, "text"), (part, "text")), width) for part in more),
            *self._wrapped(one.remedy, width, len(head)),
        ]

    def _wrapped(self, text: str, width: int, indent: int) -> list[Line]:
        parts = wrap(text, max(10, width - indent - 1))
        return [self._line(((" " * indent, "text"), (part, "dim")), width) for part in parts]

    def _line(self, spans: Sequence[tuple[str, str]], width: int) -> Line:
        *before, (text, token) = spans
        return Line((*before, (fit(text, max(0, width - width_of(before)), self._glyphs), token)), "menu")
