"""The alert line: an alert, or what there is to know without one."""

from offtop.model.values.snapshot import UNMEASURED
from offtop.model.viewmodel.picture import Picture
from offtop.model.windows.breakdown import ALL
from offtop.printable import printable
from offtop.ui.actions.display import Display
from offtop.ui.actions.session import Session
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Line, fit, plain, whole_sentences
from offtop.ui.panes import stacks
from offtop.units import count

_LOST_HINT = "a longer minimum (m) or fewer threads (p, F) help; all other totals are exact"
_LOST_HINTS = {
    "unread": "user stacks that could not be read. Help (?) names the processes and devices that hang",
    UNMEASURED: "not measured, because the connection was lost. Averages leave this time out",
}
"""The same, if only this kind was lost."""
_LOST_HINT_SAMPLED = (
    "a larger --cpu-budget or fewer threads (p, F) help; these threads started and exited between two samples"
)
"""The same, when /proc is sampled."""
_FIRST_KEYS = "Enter shows what is inside a row, 6 what others wait for, ? all keys."
_ALL_HINT = "WAITING: average number of waiting threads; 1.00 is one that waits all the time."


class AlertLine:
    def __init__(self, display: Display, session: Session, is_first_start: bool) -> None:
        self._display, self._session = display, session
        self._shows_first_keys = is_first_start
        """Whether to name the keys to begin with, until one is pressed."""
        self.alert = ""

    def clear(self) -> None:
        """Clear the line because a key was pressed."""
        self.alert, self._shows_first_keys = "", False

    def lines(self, picture: Picture, layout: Layout) -> list[Line]:
        alert = self.alert or printable(self._session.source.interruption)
        text, token = (alert, "alert") if alert else (self._text_without_alert(picture, layout.width), "dim")
        return [plain(fit(text, layout.width, self._display.glyphs), token)]

    def _text_without_alert(self, picture: Picture, width: int) -> str:
        """Return a problem if there is one, otherwise the main cause, otherwise the meaning of the category."""
        category, pin = self._display.view.category, self._display.view.pin
        if picture.head.lost:
            kinds = ", ".join(f"{count(n)} {kind}" for kind, n in sorted(picture.head.lost.items()))
            hint = _LOST_HINT_SAMPLED if picture.common.sampling else _LOST_HINT
            for kind, of_kind in _LOST_HINTS.items():
                hint = of_kind if {*picture.head.lost} == {kind} else hint
            return f"lost {kinds}: {hint}"
        if self._shows_first_keys:
            return whole_sentences(_FIRST_KEYS, width)
        recorded = self._session.source.recorded
        if recorded and picture.common.newest.taken_ns == recorded.ended_ns:
            return "this is the end of the recording: [ and { go back, b goes anywhere"
        if isinstance(pin, int) and not picture.listed.threads_of.get(pin):
            return f"pinned process {pin} has exited; p unpins it"
        if self._session.rules.error:
            return self._session.rules.error
        if self._session.suspects is None and (cause := stacks.cause_line(picture.causes, picture.common)):
            return whole_sentences(cause, width)
        meaning = f"{category}: {self._session.categories.plain.get(category, '')}" if category != ALL else _ALL_HINT
        return whole_sentences(" ".join(meaning.split()), width)
