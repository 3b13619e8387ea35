"""Suspects: a sentence each below the header, and an overlay with their chains, hop by hop."""

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from offtop.model.aggregate import location
from offtop.model.aggregate.suspect_text import SuspectTexts, change_text, of_several
from offtop.model.classify.cause_finder import CauseFinder, most
from offtop.model.classify.suspect import Found, Hop
from offtop.model.values.blockers import ELSEWHERE, VIA
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.stack import Names
from offtop.model.viewmodel.cause_picture import CausesPicture
from offtop.model.viewmodel.common import Common
from offtop.model.windows.baseline import Baseline
from offtop.printable import printable
from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.keys import KEYS
from offtop.ui.kit.lines import Clicked, Line, fit, plain
from offtop.ui.kit.overlay import Overlay
from offtop.units import average, duration, threads

_MARK, _INDENT, _KEY, _KEY_OF_MORE = "! ", "  ", " (6)", " +{} (6)"
NOTHING = "nothing stands out"
NOT_KEPT = "what held others up at that time is no longer kept"


class HopText(NamedTuple):
    """One hop of a chain. All texts are raw."""

    key: ThreadKey
    name: str
    does: str
    """What the hop waits for, or what the last hop does."""
    place: str
    """Its stack, in short; empty if unknown."""
    age_ns: int
    via: str
    """How it is known that the next hop must act, one of blockers.VIA; empty for the last."""
    is_exact: bool


class SuspectText(NamedTuple):
    """One suspect. All texts are raw."""

    says: str
    next: str
    waiting: float
    hops: Sequence[HopText]
    change: str = ""
    """How it differs from the baseline; empty if it is not compared."""
    brief: str = ""
    """See Sentence.brief."""

    @property
    def in_short(self) -> str:
        return f"{self.change}: {self.says}" if self.change else self.says

    @property
    def in_brief(self) -> str:
        """What is shown if the whole chain has no room: its ends."""
        return self._replace(says=self.brief or self.says).in_short

    @property
    def in_full(self) -> str:
        return f"{self.in_short}. Next: {self.next}." if self.next else f"{self.in_short}."


def described(
    found: Found, catalog: Catalog, names: Names, causes: CauseFinder, baseline: Baseline | None = None
) -> list[SuspectText]:
    """Describe the suspects, with the names of functions that are known by now, compared with `baseline`."""
    texts = SuspectTexts(catalog, names, causes)
    made: list[SuspectText] = []
    for one in found.suspects:
        sentence, hops = texts.sentence(one), [_hop_text(hop, texts, catalog, names) for hop in one.hops]
        change = change_text(one, found, baseline)
        made.append(SuspectText(sentence.says, sentence.next, one.waiting, hops, change, sentence.brief))
    return made


def _hop_text(hop: Hop, texts: SuspectTexts, catalog: Catalog, names: Names) -> HopText:
    does = f"waits for {texts.what(hop)}" if hop.via else texts.does(hop)
    place = location.of_sleeper(catalog, hop.site, names) if hop.site else ""
    does = does if texts.is_one(hop) else of_several(does)
    return HopText(hop.key, texts.name_of(hop), does, place, hop.age_ns, hop.via, hop.is_exact)


def without_suspects(causes: CausesPicture, common: Common) -> str:
    """Return the line in place of suspects: what most threads wait for, if on average one thread or more does."""
    cause = most(causes.shares, common.span_ns)
    if cause is None or average(cause.total_ns, common.span_ns) < 1:
        return f"{NOTHING}; {causes.likely_idle}" if causes.likely_idle else NOTHING
    return f"nobody is known to hold up many; {cause.in_short(common.catalog, common.view.pid is None)}"


def as_in_baseline(found: Found, texts: SuspectTexts) -> str:
    """Return the line in place of suspects that are usual by the baseline: the one with most harm."""
    worst = max(found.as_usual, key=lambda one: one.plain_harm)
    return f"usual by the baseline (B): {texts.sentence(worst).says}"


def lines(found: Sequence[SuspectText], width: int, room: int, glyphs: Glyphs, without: str = NOTHING) -> list[Line]:
    """Return at most `room` lines: the sentences, most harm first.

    The first one is whole, with what to do next, if it fits into the room alone; otherwise at least the ends of its
    chain are, if these fit. Hops in between give way to the end of the chain. The number of suspects that then have no
    line stands before the key. `without`: the line if there are none.
    """
    if not room:
        return []
    if not found:
        return [plain(fit(without, width, glyphs), "dim")]
    key_width = len(_KEY) if len(found) == 1 else len(_KEY_OF_MORE.format(1))
    cells = max(10, width - len(_MARK) - key_width)
    first_lines = [len(_wrapped(text, cells, glyphs)) for text in (found[0].in_full, found[0].in_brief)]
    shown = found[: room + 1 - next((some for some in first_lines if some <= room), 1)]
    spare = room - len(shown)
    more = len(found) - len(shown)
    key = _KEY_OF_MORE.format(more) if more else _KEY
    made: list[Line] = []
    for one in shown:
        whole = [_wrapped(text, cells, glyphs) for text in (one.in_full, one.in_short, one.in_brief)]
        parts = next((parts for parts in whole if len(parts) <= spare + 1), None)
        if parts is None:
            parts = whole[-1][: spare + 1]
            parts[-1] += glyphs.ellipsis
        spare -= len(parts) - 1
        for at, part in enumerate(parts):
            mark = _INDENT if at else _MARK
            cell = f"{'' if made else key:>{key_width}}"
            made.append(Line(((mark, "alert"), (fit(part, cells, glyphs), "text"), (cell, "key"))))
    return made


def _wrapped(text: str, width: int, glyphs: Glyphs) -> list[str]:
    return wrap(printable(text, glyphs.is_ascii), max(10, width), break_on_hyphens=False) or [""]


_HINTED = ("wakeup", "stuck", "files", "disks", "objects", "account", "cgroups", "facts")
"""Actions whose keys the rules' hints name."""


class _Row(NamedTuple):
    line: Line
    hop: HopText | None = None
    """The hop that the line is about."""


class Suspects(Overlay):
    """The overlay. It calls `suspects` whenever it is drawn, and `go_to` with the hop that was chosen.

    The cursor starts at the thread that must act.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,6,f10,ctrl+c,ctrl+q", "dismiss", show=False, priority=True),
        Binding("enter", "choose", show=False),
        *(Binding(row.keys, f"leave_for('{row.id}')", show=False, id=row.id) for row in KEYS if row.id in _HINTED),
    ]
    CSS = "Suspects { align: center middle; background: $background 0%; }"

    def __init__(
        self,
        suspects: Callable[[], Sequence[SuspectText]],
        go_to: Callable[[ThreadKey], None],
        glyphs: Glyphs,
        without: Callable[[], str],
        gone: Callable[[], Sequence[str]],
    ) -> None:
        """`without` returns the line if there are none, `gone` one for each suspect that only the baseline has."""
        super().__init__()
        self._without = without
        self._suspects, self._go_to, self._glyphs, self._gone = suspects, go_to, glyphs, gone
        first = suspects()[:1]
        self._cursor, self._top = len(first[0].hops) - 1 if first else 0, 0

    def draw(self) -> None:
        panel, width = self.panel, self.size.width
        hops = self._hops()
        self._cursor = max(0, min(self._cursor, len(hops) - 1))
        rows = self._rows(width)
        height = max(3, min(self.size.height, len(rows) + 2))
        room = height - 2
        at = [number for number, row in enumerate(rows) if row.hop is not None and row.hop is hops[self._cursor]]
        first, last = (at[0], at[-1]) if at else (0, 0)
        self._top = max(0, min(max(self._top, last - room + 1), first, len(rows) - room if first else 0))
        panel.styles.width, panel.styles.height = width, height
        heading = "suspects: what others wait for (threads on average; age of the oldest wait)"
        shown = [Line(((fit(f" {heading}", width, self._glyphs), "title"),), "menu")]
        shown += [row.line for row in rows[self._top : self._top + room]]
        goes = " ENTER show that thread " if hops and hops[self._cursor].key.pid != ELSEWHERE else ""
        hint = f"{goes} arrows move  ESC close" if hops else " ESC close"
        panel.show([*shown, plain(fit(hint, width, self._glyphs), "dim")])

    def action_move(self, step: int) -> None:
        self._cursor = max(0, min(len(self._hops()) - 1, self._cursor + step))
        self.draw()

    def action_choose(self) -> None:
        hops = self._hops()
        if hops and hops[self._cursor].key.pid != ELSEWHERE:
            self.dismiss()
            self._go_to(hops[self._cursor].key)

    async def action_leave_for(self, action: str) -> None:
        """Close, and do what a key that a hint names is for."""
        self.dismiss()
        await self.app.run_action(f"perform('{action}')")  # pyright: ignore[reportUnknownMemberType]

    def on_clicked(self, event: Clicked) -> None:
        if event.turns:
            self.action_move(event.turns)

    def _hops(self) -> list[HopText]:
        return [hop for one in self._suspects() for hop in one.hops]

    def _rows(self, width: int) -> list[_Row]:
        rows: list[_Row] = []
        chosen, number = self._cursor, 0
        for one in self._suspects():
            text = f"{threads(one.waiting)} waiting: {one.in_full}"
            rows += [_Row(self._line(f" {part}", width, "name")) for part in _wrapped(text, width - 2, self._glyphs)]
            # The last hop only leads to another one if they wait in a circle.
            at_end = "the first one" if len(one.hops) > 1 else "it"
            for hop, holder in zip(one.hops, [*["the next one"] * (len(one.hops) - 1), at_end], strict=True):
                rows += [
                    _Row(self._line(text, width, token, number == chosen), hop)
                    for text, token in self._hop_lines(hop, holder, number == chosen)
                ]
                number += 1
        others = [] if rows else [self._without()]
        for text in (*others, *self._gone()):
            rows += [_Row(self._line(f" {part}", width, "dim")) for part in _wrapped(text, width - 2, self._glyphs)]
        return rows

    @staticmethod
    def _hop_lines(hop: HopText, holder: str, is_chosen: bool) -> list[tuple[str, str]]:
        age = duration(hop.age_ns)
        found = [(f" {'>' if is_chosen else ' '} {age:>6} {hop.name}: {hop.does}", "text")]
        if hop.place:
            found.append((f"          at {hop.place}", "dim"))
        if hop.via:
            likely = "likely" if not hop.is_exact else "exact"
            found.append((f"          {likely}: {holder} {VIA[hop.via]}", "dim"))
        return found

    def _line(self, text: str, width: int, token: str, is_chosen: bool = False) -> Line:
        base = "menu-chosen" if is_chosen else "menu"
        return Line(((fit(text, width, self._glyphs), base if is_chosen else token),), base)
