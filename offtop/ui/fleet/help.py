"""Help of `offtop fleet`: its keys, and what its numbers are."""

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from offtop.ui.fleet import keys
from offtop.ui.kit.lines import NO_LINE, Line, fit, plain
from offtop.ui.kit.overlay import TextOverlay

ABOUT = """\
WAITING is the average number of waiting threads over the range, without idle ones; the other numbers are its parts by \
category.
A host stands out if it waits far more in a category than the other hosts of its job: at least five deviations above \
their median (by the median absolute deviation), twice the median, and half a thread.
The lines on top say what threads of several hosts wait for.
TREND is WAITING in parts of the range, or the category that the hosts are sorted by.
""".splitlines()
_KEYS_WIDTH = 22


class Help(TextOverlay):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,f10,h,question_mark,f1,ctrl+c,ctrl+q", "dismiss", show=False, priority=True)
    ]

    def page(self, width: int) -> tuple[str, Sequence[Line]]:
        lines = [
            plain(fit(f" {line}", width, self._glyphs)) for text in ABOUT for line in wrap(text, max(10, width - 2))
        ]
        lines.append(NO_LINE)
        for pressed, says in keys.rows():
            first, *others = wrap(says, max(10, width - _KEYS_WIDTH - 2)) or [""]
            lines.append(Line(((fit(f" {pressed}", _KEYS_WIDTH, self._glyphs), "key"), (first, "text"))))
            lines += [Line(((" " * _KEYS_WIDTH, "text"), (other, "text"))) for other in others]
        return "offtop fleet", lines
