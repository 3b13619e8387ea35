"""Account of thread time, as a bar and as numbers.

Its parts are running, run queue, blocked by category, and the rest.
"""

from collections.abc import Sequence

from offtop.model.aggregate.account import Account
from offtop.model.aggregate.rows import Row
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.seconds import AccountPicture
from offtop.model.windows.breakdown import RUN_QUEUE
from offtop.ui.kit.columns import Column
from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.lines import Line, Pen, fit, fit_spans, plain
from offtop.units import average, count, percent, threads

BAR_CELLS = 16
_BEFORE_REST = 2
"""The rest comes after this many numbers, running and run queue: what follows it may be cut off."""
Spans = list[tuple[str, str]]


def lines(shown: AccountPicture | None, common: Common, pen: Pen) -> list[Line]:
    """Lines about what the user drilled into; none if there is no such selection."""
    if shown is None:
        return []
    if not shown.is_known:
        within = common.newest.header.filters.within
        why = "with --within only a part of it is counted" if within else "this recording does not contain it"
        return [plain(fit(f" Run time unknown: {why}.", pen.width, pen.glyphs), "dim")]
    whole_ns = max(1, shown.account.sum_ns)
    name = f" {threads(average(shown.account.sum_ns, common.span_ns))} "
    segments = _segments(shown)
    drawn = bar([(ns, token, fill) for _, ns, token, fill in segments], pen.width - len(name) - 1, pen.glyphs)
    figures: Spans = [(" ", "text")]
    for number, (text, ns, token, _) in enumerate(segments):
        if number == _BEFORE_REST:
            figures += _rest(shown, whole_ns)
        if number < _BEFORE_REST or ns * 2000 >= whole_ns:
            figures.append((f"{text} {_share(ns, whole_ns)}  ", token))
    if len(segments) <= _BEFORE_REST:
        figures += _rest(shown, whole_ns)
    return [
        Line(((name, "waiting"), *drawn)),
        Line(fit_spans(figures, pen.width, pen.glyphs)),
        *(plain(fit(f" {text}", pen.width, pen.glyphs)) for text in (shown.budget.lines if shown.budget else [])),
    ]


def _segments(shown: AccountPicture) -> list[tuple[str, int, str, str]]:
    """Return (name, ns, token, fill) of each part except the rest, in the order of the bar."""
    account = shown.account
    blocked = [(leaf, ns) for leaf, ns in shown.parts if leaf.category != RUN_QUEUE]
    ready_ns = sum(ns for leaf, ns in shown.parts if leaf.category == RUN_QUEUE)
    missing_ns = account.ready_ns + account.blocked_ns - ready_ns - sum(ns for _, ns in blocked)
    segments = [("running", account.running_ns, "title", "run")]
    # Throttled threads are ready, too, but not part of this.
    segments.append(("run queue", ready_ns, "cat-run-queue", "ready"))
    for leaf, ns in blocked:
        token = "idle" if leaf.idle else f"cat-{leaf.category}"
        segments.append(
            (f"~{leaf.category}" if leaf.idle else leaf.category, ns, token, "idle" if leaf.idle else "wait")
        )
    if missing_ns > account.sum_ns // 1000:
        segments.append(("left out", missing_ns, "dim", "idle"))
    return [one for one in segments if one[1] > 0 or one[0] in ("running", "run queue")]


def _rest(shown: AccountPicture, whole_ns: int) -> Spans:
    residue_ns = _without_noise(shown.account.residue_ns, whole_ns)
    if not shown.account.through:
        return [("rest unknown: it started or exited meanwhile  ", "dim")]
    why = [
        f"{word} {_share(ns, whole_ns)}"
        for word, ns in (("steal", shown.left.steal_ns), ("irq", shown.left.interrupt_ns))
        if ns * 1000 > whole_ns
    ]
    named = f" ({' '.join(why)}, estimated)" if why else ""
    return [(f"rest {_share(residue_ns, whole_ns)}{named}  ", "alert" if abs(residue_ns) * 50 > whole_ns else "dim")]


def _without_noise(residue_ns: int, whole_ns: int) -> int:
    """Return the residue, or 0 if it is negative but less than 0.5 % of the whole.

    It is negative if the kernel's counters and offtop both counted some time, as they do at each switch.
    """
    return residue_ns if residue_ns >= 0 or residue_ns * -200 > whole_ns else 0


def _share(ns: int, whole_ns: int) -> str:
    share = percent(ns, whole_ns)
    return f"{share:.1f}%" if share < 9.95 else f"{share:.0f}%"


def bar(parts: Sequence[tuple[int, str, str]], cells: int, glyphs: Glyphs) -> Spans:
    """Draw `parts`, each (ns, token, fill), as a bar of `cells`."""
    whole_ns = sum(max(0, ns) for ns, _, _ in parts)
    fills = {"run": glyphs.bar[-1], "ready": glyphs.shades[2], "wait": glyphs.shades[1], "idle": glyphs.shades[0]}
    spans: Spans = []
    used = 0
    passed_ns = 0
    for ns, token, fill in parts:
        passed_ns += max(0, ns)
        end = round(cells * passed_ns / whole_ns) if whole_ns else 0
        if end > used:
            spans.append((fills[fill] * (end - used), token))
            used = end
    return [*spans, (" " * max(0, cells - used), "text")]


def _part(ns: int, row: Row) -> str:
    return threads(average(ns, row.span_ns)) if row.account.threads else ""


def _rest_of(row: Row) -> str:
    return _part(_without_noise(row.account.residue_ns, row.span_ns), row) if row.account.through else ""


def _mean(row: Row) -> str:
    many = row.account.threads
    return _part(row.account.blocked_ns // many, row) if many > 1 else ""


def _worst(row: Row) -> str:
    return _part(row.account.worst_ns, row) if row.account.threads > 1 else ""


def _per_s(row: Row, n: int) -> str:
    return count(1e9 * n / row.span_ns) if n and row.span_ns else ""


COLUMNS = (
    Column("RUNNING", 7, lambda row: _part(row.account.running_ns, row), sort="RUNNING", stays=True),
    Column("READY", 6, lambda row: _part(row.account.ready_ns, row), sort="READY", least_width=44),
    Column("BLOCKED", 7, lambda row: _part(row.account.blocked_ns, row), sort="BLOCKED"),
    Column("REST", 6, _rest_of, sort="REST", least_width=60),
    Column("VOL/S", 5, lambda row: _per_s(row, row.account.voluntary), least_width=76),
    Column("INV/S", 5, lambda row: _per_s(row, row.account.involuntary), least_width=70),
    Column("AVG", 5, _mean, least_width=100),
    Column("WORST", 5, _worst, least_width=100),
)
"""Columns of the list with accounts (`A`)."""


def row_bar(account: Account, cells: int, glyphs: Glyphs) -> str:
    parts = [
        (account.running_ns, "", "run"),
        (account.ready_ns, "", "ready"),
        (account.blocked_ns, "", "wait"),
        (max(0, account.residue_ns), "", "idle"),
    ]
    return "".join(text for text, _ in bar(parts, cells, glyphs)) if account.threads else ""
