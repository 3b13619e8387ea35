"""Overlay with the problems of the selection's user stacks, updated live."""

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from offtop.model.aggregate.stack_problems import REASONS, Problem, ProblemSummary
from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.lines import Line, fit
from offtop.ui.kit.overlay import TextOverlay
from offtop.units import average, percent, threads

_WELL = "All of them are complete, and all functions have names."
_NONE = "No wait that is shown here has a user stack: kernel threads and short waits have none."
_SAMPLED = (
    "/proc is sampled, and shows no user stacks: they need BPF (sudo offtop; offtop doctor says what is missing)."
)


class StackProblems(TextOverlay):
    """The overlay. It calls `problems` whenever it is drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,V,f10,ctrl+c,ctrl+q", "dismiss", show=False, priority=True),
    ]
    CSS = "StackProblems { align: center middle; background: $background 0%; }"

    def __init__(
        self, problems: Callable[[], tuple[ProblemSummary, int]], glyphs: Glyphs, sampled: bool = False
    ) -> None:
        """`problems` returns the problems and the ns that they were measured over.

        `sampled` means that /proc is sampled, so there are no user stacks at all.
        """
        super().__init__(glyphs)
        self._problems, self._empty_text = problems, _SAMPLED if sampled else _NONE

    def page(self, width: int) -> tuple[str, Sequence[Line]]:
        found, span_ns = self._problems()
        if not found.total_ns:
            return "user stacks", self._wrapped(self._empty_text, width, 1, "dim")
        whole, named = (percent(ns, found.total_ns) for ns in (found.whole_ns, found.named_ns))
        waiting = threads(average(found.total_ns, span_ns))
        heading = f"user stacks of {waiting} waiting: {whole:.0f}% whole, {named:.0f}% with all names"
        groups: dict[tuple[str, str], list[Problem]] = {}
        for one in found.problems:
            groups.setdefault((one.reason, one.remedy), []).append(one)
        lines = [line for some in groups.values() for line in self._lines(some, span_ns, width)]
        return heading, lines or self._wrapped(_WELL, width, 1, "dim")

    def _lines(self, some: Sequence[Problem], span_ns: int, width: int) -> list[Line]:
        """Return the lines of problems that share one reason and one fix."""
        lines = self._wrapped(REASONS[some[0].reason], width, 1, "name")
        lines += self._wrapped(some[0].remedy, width, 3, "dim")
        for one in some:
            number = f"{100 * one.share:>7.0f}% {threads(average(one.total_ns, span_ns)):>7}  "
            lines.append(Line(((fit(f"{number}{one.label}", width, self._glyphs), "text"),), "menu"))
        return lines

    def _wrapped(self, text: str, width: int, indent: int, token: str) -> list[Line]:
        parts = wrap(text, max(10, width - indent - 1), break_on_hyphens=False)
        return [Line(((fit(f"{' ' * indent}{part}", width, self._glyphs), token),), "menu") for part in parts]
