"""Answer: the result of one benchmark, as text lines, limits that hold or not, and figures for JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


class UnanswerableError(Exception):
    """The benchmark cannot run on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit, and the measured value."""

    promise: str
    measured: float
    most: float
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.measured <= self.most

    def __str__(self) -> str:
        verdict = "holds " if self.holds else "MISSED"
        return f"{verdict} {self.promise}: {self.measured:.3g}{self.unit} (at most {self.most:.3g}{self.unit})"


@dataclass(frozen=True, slots=True)
class Answer:
    title: str
    lines: Sequence[str]
    bars: Sequence[Bar] = ()
    figures: dict[str, object] = field(default_factory=dict[str, object])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows in columns; the first column is left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]


def middle(values: Sequence[float], digits: int = 0) -> str:
    """Format the median, minimum and maximum of the rounds."""
    if not values:
        return "-"
    least, middle_value, most = (f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))
    return f"{middle_value} ({least}-{most})"
