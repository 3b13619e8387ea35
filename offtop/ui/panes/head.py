"""The head: host, time, waiting threads, cost, lost records, timeline and selection."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby, product
from operator import itemgetter

from rich.cells import cell_len

from offtop.feed.source import Recorded
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import cgroup_name
from offtop.model.aggregate.scope_text import LOST_UNKNOWN, counted, how_sure, inexact_words, rate, visible_processes
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.wake import CHAIN, OFFCPU, OFFWAKE, WAKEUP
from offtop.model.viewmodel import view as views
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.head_picture import HeadPicture
from offtop.model.viewmodel.timeline import Timeline
from offtop.model.viewmodel.view import DISKS, FILES, OUTLIERS, SINCE_START, STUCK
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import ALL
from offtop.model.windows.history import HistoryTick
from offtop.printable import printable
from offtop.ui.kit.glyphs import Glyphs, sparkline
from offtop.ui.kit.layout import Layout
from offtop.ui.kit.lines import Line, fit, spread, width_of
from offtop.units import NS_PER_S, average, count, duration, percent, size, span, threads, three

MODES = (
    *(("1", "off-CPU", OFFCPU), ("2", "wakeup", WAKEUP), ("3", "off-wake", OFFWAKE), ("4", "chain", CHAIN)),
    ("5", "stuck", STUCK),
)
"""(key, word, id) of each mode."""
_ENDED = "ENDED", "paused"
_LISTS = {FILES: ("7", "files"), DISKS: ("8", "disks")}
"""(key, word) of each list that is not about waits."""
_OF_ALL = (OUTLIERS, *_LISTS)
"""Lists of all processes, whichever is selected."""

Spans = list[tuple[str, str]]
_TIMELINE_X = 5
_MUCH_UNEXPLAINED_PCT = 2.0
"""Least share of unexplained CPU time that is reported."""
_LEAST_BOTH = 60
"""Least screen columns to show the window beside the sampling rate."""
_LEAST_TYPED = 20
"""Least cells for a filter, beside the selection and the pin."""
_LEAST_NAME = 24
"""Least cells for the name of the --within function."""


def head(
    shown: HeadPicture,
    common: Common,
    host: str,
    layout: Layout,
    glyphs: Glyphs,
    recorded: Recorded | None = None,
    written_bytes: int | None = None,
    is_over: bool = False,
    is_held: bool = False,
) -> list[Line]:
    """Return the lines of the head.

    `written_bytes` is the size of the recording in progress. `is_over` means that there will be no more ticks,
    `is_held` that none come at present.
    """
    state = _ENDED if is_over else ("DISCONNECTED", "alert") if is_held else None
    lines = [_who(shown, common, host, layout, recorded, written_bytes, state), _waiting(shown, common, layout)]
    if layout.calls:
        lines.append(_calls(common, layout, glyphs))
    if layout.cost:
        lines.append(_cost(shown, common, layout))
    if layout.timeline:
        lines.append(_timeline(shown, common, layout, glyphs, recorded is not None))
    if layout.crumb:
        lines.append(_crumb(common, layout, glyphs))
    return lines


def one_line(shown: HeadPicture, common: Common, layout: Layout, recorded: bool, is_held: bool = False) -> list[Line]:
    """Return the only line of a tiny terminal."""
    view = common.view
    name = ("RECORDED ", "paused") if recorded else ("offtop ", "dim")
    sampled: Spans = [("SAMPLED ", "alert")] if common.sampling else []
    spans: Spans = [name, *sampled, (three(average(common.totals.shown.total_ns, common.span_ns)), "waiting")]
    spans.append((" waiting", "text"))
    if view.paused_at_ns is not None:
        spans.append((" PAUSED", "paused"))
    elif is_held:
        spans.append((" DISCONNECTED", "alert"))
    if shown.lost:
        spans.append((f" lost {count(sum(shown.lost.values()))}", "lost"))
    if top := shown.top_category:
        longest = duration(top.part.max_ns)
        text = f", {top.name} {three(top.waiting)}{f' max {longest}' if longest else ''}"
        spans += [(text, "text")] if width_of(spans) + len(text) <= layout.width else []
    return [spread(spans, [], layout.width)]


def _who(
    shown: HeadPicture,
    common: Common,
    host: str,
    layout: Layout,
    recorded: Recorded | None,
    written_bytes: int | None,
    state: tuple[str, str] | None,
) -> Line:
    """Return the first line. `state`: why there are no new ticks, if there are none."""
    view, at = common.view, clock(common.newest, common.newest.at_ns)
    mode = view.focus if view.focus in (STUCK, *_LISTS) else view.mode
    every = (*MODES, (*_LISTS[mode], mode)) if mode in _LISTS else MODES
    modes = [one for one in every if common.sampling is None or one[-1] in (OFFCPU, STUCK, mode)]
    tabs: Spans = [
        (f"|{key} {word}|" if of == mode else f" {key} {word} ", "tab" if of == mode else "dim")
        for key, word, of in modes
    ]
    short: Spans = [
        (f"|{key} {word}|" if of == mode else f" {key} ", "tab" if of == mode else "dim") for key, word, of in modes
    ]
    alone: Spans = [] if mode == OFFCPU else [one for one in tabs if one[1] == "tab"]
    right: Spans = [(f"{_window(common)}  ", "text")]
    if common.sampling:
        right = right if layout.width >= _LEAST_BOTH else []
        right.append((f"SAMPLED {rate(common.sampling, common.span_ns)}  ", "alert"))
    if view.paused_at_ns is not None and any(one.worst.at_ns == common.newest.at_ns for one in shown.outliers):
        right.append(("outlier  ", "alert"))
    if recorded:
        day = datetime.fromtimestamp(common.newest.taken_ns // 10**9).strftime("%Y-%m-%d")
        where = f" on {printable(host)}"
        lefts: list[Spans] = [
            [("offtop - ", "title"), ("RECORDED", "paused"), (f"{where} {day} {at}  ", "text"), *tabs],
            [("offtop - ", "title"), ("RECORDED", "paused"), (f"{where} {day} {at}  ", "text"), *short],
            [("offtop - ", "title"), ("RECORDED", "paused"), (f"{where} {day} {at}  ", "text"), *alone],
            [("RECORDED", "paused"), (f"{where} {day} {at}  ", "text"), *alone],
            [("RECORDED", "paused"), (f" {at} ", "text"), *alone],
            [("RECORDED", "paused")],
        ]
        is_at_end = common.newest.taken_ns == recorded.ended_ns
        playing = state or (_ENDED if is_at_end else ("PLAYING", "live"))
        right.append(playing if view.paused_at_ns is None else ("PAUSED", "paused"))
        return _fitting(lefts, right, layout.width)
    name: Spans = [("offtop", "title")]
    left: Spans = [*name, (f" - {printable(host)}  {at}  ", "text")]
    if written_bytes is not None:
        right.append((f"REC {size(written_bytes)}  ", "live"))
    if view.paused_at_ns is None and state:
        right.append(state)
    elif view.paused_at_ns is None:
        right.append((f"LIVE {span(view.delay_ns)}", "live"))
    else:
        right.append((f"PAUSED -{span(shown.behind_ns // 10**9 * 10**9)}", "paused"))
    lefts = [[*left, *tabs], [*left, *short], [*left, *alone], [*name, (" ", "text"), *alone], name]
    return _fitting(lefts, right, layout.width)


def clock(tick: HistoryTick, at_ns: int) -> str:
    """Return the local time at CLOCK_MONOTONIC `at_ns`; `tick` is any tick."""
    taken_ns = tick.taken_ns + at_ns - tick.at_ns
    return datetime.fromtimestamp(taken_ns // 10**9).astimezone().strftime("%H:%M:%S")


def _fitting(lefts: Sequence[Spans], right: Spans, width: int) -> Line:
    """Return a line with the first of `lefts` that fits beside `right`."""
    return _first_fit([(left, right) for left in lefts], width)


def _first_fit(pairs: Sequence[tuple[Spans, Spans]], width: int) -> Line:
    """Return a line with the first pair of a left and a right part that fits, or with the last one."""
    left, right = next((pair for pair in pairs if sum(map(width_of, pair)) < width), pairs[-1])
    return spread(left, right, width)


def _window(common: Common) -> str:
    asked_ns, measured_ns = common.view.span_ns, common.span_ns
    if asked_ns == SINCE_START:
        return f"since start {span(round(measured_ns, -9))}"
    if measured_ns < asked_ns * 0.9:
        return f"window {span(round(measured_ns, -8))} of {span(asked_ns)}"
    return f"window {span(max(asked_ns, round(measured_ns, -8)))}"


def _waiting(shown: HeadPicture, common: Common, layout: Layout) -> Line:
    totals, span_ns, shown_ns = common.totals, common.span_ns, common.totals.shown.total_ns
    ready = threads(average(totals.ready_ns, span_ns))
    blocked = threads(average(shown_ns - totals.ready_ns, span_ns))
    idle = threads(average(totals.hidden_ns, span_ns))
    whole: Spans = [("Waiting ", "text"), (threads(average(shown_ns, span_ns)), "waiting")]
    hidden: Spans = [("   idle shown (i)" if common.view.idle_shown else "", "dim")]
    hidden_in_full = hidden_in_short = hidden
    if totals.hidden_ns:
        standing = f", {threads(average(totals.standing_ns, span_ns))} of it standing" if totals.standing_ns else ""
        hidden_in_full = [(f"   +{idle} idle hidden{standing} (i)", "dim")]
        hidden, hidden_in_short = [(f"   +{idle} idle hidden (i)", "dim")], [(f" +{idle} idle (i)", "dim")]
    if common.view.muted:
        muted = [(f" +{threads(average(totals.muted_ns, span_ns))} muted (f)", "muted")]
        hidden_in_full, hidden, hidden_in_short = ([*one, *muted] for one in (hidden_in_full, hidden, hidden_in_short))
    right: Spans = []
    if number := len(shown.outliers):
        right.append((f" {number} outlier{'s' * (number != 1)} (O)", "alert"))
    words = counted(common.newest.header.filters)
    right += [(f" {words}", "pin")] if words else []
    if totals.filtered_ns:
        right.append((f" filtered {threads(average(totals.filtered_ns, span_ns))}", "pin"))
    right.append((f" other {percent(totals.other_ns, shown_ns):.0f}%", "dim"))
    lefts: list[Spans] = [
        [*whole, (f" = {blocked} blocked + {ready} run queue", "text"), *hidden_in_full],
        [*whole, (f" = {blocked} blocked + {ready} run queue", "text"), *hidden],
        [*whole, (f" = {blocked} + {ready} run queue", "text"), *hidden_in_short],
        [*whole, *hidden_in_short],
        whole,
    ]
    if layout.cost:
        rights = [right[:count] for count in range(len(right) - 1, -1, -1)]
        return _first_fit([*product(lefts, [right]), *product([whole], rights)], layout.width)
    wrong = _wrong(shown, common)
    trust: Spans = [("  ", "text"), *_trust(shown, common, wrong, 1)]
    costs = _costs(shown, common) or [[]]
    in_full = [[*right, *trust, *cost] for cost in costs] + [[*right[:-1], *trust, *cost] for cost in costs[-1:]]
    pairs = [*product(lefts[:3], in_full), *product(lefts, [[*right[:-1], *trust]]), *product(lefts, [trust])]
    pairs += [(whole, [("  ", "text"), *_least_trust(shown, common, wrong)]), (whole, [])]
    return _first_fit(pairs, layout.width)


def needs_cost_line(shown: HeadPicture, common: Common) -> bool:
    """Return whether numbers are lost, left out or sampled, which has a line of its own."""
    return bool(shown.lost or common.sampling or _wrong(shown, common))


def _calls(common: Common, layout: Layout, glyphs: Glyphs) -> Line:
    """Return the line about the --within function: rate, duration, its parts, open calls."""
    calls = common.calls
    name = fit(common.newest.header.filters.within, 1000, glyphs).rstrip()
    most = max(_LEAST_NAME, layout.width // 3)
    within: Spans = [("Within ", "text"), (name if len(name) <= most else fit(name, most, glyphs), "pin")]
    now = [(f"  {calls.now} now, oldest {duration(calls.oldest_ns) or '0'}", "text")] if calls.now else []
    left = [(f"  {count(calls.left)} did not return", "lost")] if calls.left else []
    if not calls.returned:
        none = "" if calls.now or calls.left else ": calls that began before offtop are unknown"
        lefts = [[*within, (f"  no call has returned{text}", "text"), *now, *left] for text in (none, "")]
        return _fitting([*lefts, within], [], layout.width)
    rate = f"  {three(calls.returned * NS_PER_S / common.span_ns)}/s"
    p50, p99 = (f" p{p}<={duration(calls.percentile_ns(p))}" for p in (50, 99))
    longest = f" max {duration(calls.max_ns)}"
    blocked, ready, running = (
        f"{percent(part_ns, calls.total_ns):.0f}%"
        for part_ns in (calls.blocked_ns, calls.runqueue_ns, calls.running_ns)
    )
    whole = f"  = {blocked} blocked + {ready} run queue + {running} running"
    short = f"  {blocked} blocked {ready} ready"
    texts = [
        f"{rate} {p50}{p99}{longest}{whole}",
        f"{rate} {p50}{p99}{longest}{short}",
        f"{rate} {p99}{longest}{short}",
        f"{rate} {p99}{longest}",
        rate,
    ]
    lefts = [[*within, (text, "text"), *end] for text in texts for end in ([*now, *left], now)]
    return _fitting([*lefts, [*within, (rate, "text")], within], [], layout.width)


def _cost(shown: HeadPicture, common: Common, layout: Layout) -> Line:
    """Return the line about what is not exact: problems first, then offtop's own cost.

    A part that does not fit is dropped, because half of a number would read as another one.
    """
    wrong = _wrong(shown, common)
    lefts: list[Spans] = [[*_trust(shown, common, wrong, len(wrong)), *cost] for cost in _costs(shown, common)]
    lefts += [_trust(shown, common, wrong, most) for most in range(len(wrong), -1, -1)]
    lefts.append(_least_trust(shown, common, wrong))
    right: Spans = [(f"min {span(common.newest.header.filters.min_ns)}", "text")]
    if common.sampling:
        parts = [*filter(None, [visible_processes(common.sampling)]), *how_sure(common.sampling, common.span_ns)]
        while parts[1:] and width_of(_trust(shown, common, wrong, 0)) + len(", ".join(parts)) >= layout.width:
            parts.pop()
        right = [(", ".join(parts), "alert")]
    return _fitting(lefts, right, layout.width)


def _wrong(shown: HeadPicture, common: Common) -> list[str]:
    """Return what else is not exact: CPU time that is unexplained, and what the BPF programs leave out or verify."""
    wrong: list[str] = []
    if shown.unexplained_pct >= _MUCH_UNEXPLAINED_PCT:
        wrong.append(f"{shown.unexplained_pct:.0f}% of cpu time unexplained")
    header, totals = common.newest.header, common.totals
    all_ns = totals.shown.total_ns + totals.hidden_ns + totals.filtered_ns
    return [*wrong, *inexact_words(header.cost, header.machine, shown.thinned_ns, all_ns)]


def _costs(shown: HeadPicture, common: Common) -> list[Spans]:
    """Return what offtop costs, the longest text first."""
    cost = common.newest.header.cost
    bpf = f" bpf {cost.bpf_pct:.1f}%" if cost.bpf_pct >= 0 else ""
    each = f" {cost.bpf_ns_per_switch:.0f}ns/switch" if cost.bpf_ns_per_switch >= 0 else ""
    own = f" ui {cost.cpu_pct:.1f}% of 1 cpu" if cost.cpu_pct >= 0 else ""
    switches = f"  {count(shown.switches_per_s)} switches/s" if shown.switches_per_s >= 0 else ""
    texts = [f"{bpf}{each}{own}{switches}", f"{bpf}{each}{own}", f"{bpf}{own}", bpf]
    return [[(f"  Cost{text}", "text")] for text in texts if text]


def _trust(shown: HeadPicture, common: Common, wrong: Sequence[str], most: int) -> Spans:
    """Return how far the numbers can be trusted: `exact`, or what is lost and the first `most` things in `wrong`."""
    sampling = common.sampling
    if shown.lost:
        first = _lost(shown)
    elif sampling is None and not wrong:
        first = [("exact", "text")]
    else:
        first = [("lost 0" if sampling is None or sampling.lost_known else LOST_UNKNOWN, "text")]
    return [*first, *((f", {word}", "lost") for word in wrong[:most])]


def _least_trust(shown: HeadPicture, common: Common, wrong: Sequence[str]) -> Spans:
    """Return the most important word of `_trust`, for a narrow terminal."""
    if shown.lost:
        return [(f"lost {count(sum(shown.lost.values()))}", "lost")]
    if common.sampling and not common.sampling.lost_known:
        return [(LOST_UNKNOWN, "text")]
    return [(word, "lost") for word in wrong[:1]]


def _lost(shown: HeadPicture) -> Spans:
    """Return the counts of lost records, by kind."""
    kinds = " ".join(f"{count(n)} {kind}" for kind, n in sorted(shown.lost.items()))
    return [(f"lost {kinds}", "lost")]


def _timeline(shown: HeadPicture, common: Common, layout: Layout, glyphs: Glyphs, recorded: bool) -> Line:
    minutes, cell_ns = picture_minutes(layout), layout.room.timeline_cell_ns
    drawn = sparkline(shown.timeline.cells, glyphs)
    cells = [(cell, "spark") for cell in drawn]

    def put(at_ns: int, glyph: str, token: str) -> None:
        at = len(drawn) - 1 - ((shown.timeline.end_ns - 1) // cell_ns - (at_ns - 1) // cell_ns)
        if at < len(drawn):
            cells[max(0, at)] = glyph, token

    begin_ns = shown.timeline.end_ns - len(drawn) * cell_ns
    for group in shown.outliers:
        if group.worst.at_ns > begin_ns:
            put(group.worst.at_ns, glyphs.mark, "alert")
    if common.view.paused_at_ns is not None:
        put(common.newest.at_ns, "^", "paused")
    drawn_spans = (("".join(cell for cell, _ in some), token) for token, some in groupby(cells, itemgetter(1)))
    spans: Spans = [(f"{minutes:>4} ", "dim"), *drawn_spans]
    is_now = not recorded and common.view.paused_at_ns is None
    spans.append((" now" if is_now else "    ", "dim"))
    values = [value for value in shown.timeline.cells if value is not None]
    right: Spans = [(f"max {three(max(values))}", "dim")] if values else []
    return spread(spans, right, layout.width)


def moment_at(timeline: Timeline, newest: HistoryTick, layout: Layout, x: int, y: int) -> int | None:
    """Return the end (CLOCK_REALTIME) of the timeline's cell at `x`, `y` of the head.

    It is None if the timeline has no cell there.
    """
    room, cell = layout.room, x - _TIMELINE_X
    if not layout.timeline or y != 2 + layout.calls + layout.cost or not 0 <= cell < room.timeline_cells:
        return None
    end_ns = timeline.end_ns
    begun = (end_ns - 1) // room.timeline_cell_ns - (room.timeline_cells - 1 - cell)
    return newest.taken_ns - newest.at_ns + min(end_ns, (begun + 1) * room.timeline_cell_ns)


def picture_minutes(layout: Layout) -> str:
    """Return how far back the timeline goes, as in `-5m`."""
    return f"-{span(layout.timeline_cells * layout.room.timeline_cell_ns)}"


def _crumb(common: Common, layout: Layout, glyphs: Glyphs) -> Line:
    view = common.view
    words = ["All", *(_chosen(common, glyphs) if view.focus not in _OF_ALL else _of_all(common, glyphs))]
    if view.path:
        words.append(printable(view.path[-1].name, glyphs.is_ascii))
    left: Spans = [(" > ".join(words), "crumb")]
    right: Spans = []
    chosen = view.group[1] if view.group else view.filter  # a selected cgroup is named at the left already
    typed = [("filter", chosen.text), ("user", view.user), ("search", view.search)]
    texts = [printable(f"{word} {text}", glyphs.is_ascii) for word, text in typed if text]
    if (view.filter.chooses_waits or view.user) and not view.selects_by_filter:  # it would be the selection's time
        right.append((f"{threads(average(common.totals.passing_ns, common.span_ns))} pass  ", "filter"))
    if view.zoomed:
        right.append(("zoomed (x)  ", "filter"))
    if view.compared:
        right.append((f"vs {normal(view.compared, glyphs)} (D)  ", "filter"))
    pin = name_of(common.catalog, view.pin, glyphs) if view.pin is not None else "-"
    match view.focus:
        case views.FILES:
            sort, is_reversed = view.files.sort, view.files.reverse
        case views.DISKS:
            sort, is_reversed = view.disks.sort, view.disks.reverse
        case _:
            sort, is_reversed = view.list_sort, view.reverse
    right += [
        (f"pin {pin}{' only' if view.narrowed else ''}", "pin" if view.pin is not None else "dim"),
        (f"  sort {sort}{' reversed' if is_reversed else ''}", "dim"),
    ]
    room = layout.width - 1 - width_of(left) - width_of(right) - sum(cell_len(text) + 2 for text in texts)
    if room < 0:
        room += width_of(right[-1:])
        right = right[:-1]
    for at, text in enumerate(texts):
        width = cell_len(text)
        cells = max(min(width, _LEAST_TYPED), width + min(0, room))
        texts[at] = fit(text, cells, glyphs)
        room += width - cells
    return spread(left, [*((f"{text}  ", "filter") for text in texts), *right], layout.width)


def normal(baseline: Baseline, glyphs: Glyphs) -> str:
    """Return the end of the baseline, `14:02:10`, or the name of its recording."""
    if baseline.file:
        return printable(baseline.file, glyphs.is_ascii)
    return datetime.fromtimestamp(baseline.taken_ns // 10**9).strftime("%H:%M:%S")


def _of_all(common: Common, glyphs: Glyphs) -> list[str]:
    """Return what of the selection applies to a list of all processes: only a cgroup, as a filter."""
    view = common.view
    return [name_of(common.catalog, view.group[0], glyphs)] if view.group and view.focus != OUTLIERS else []


def _chosen(common: Common, glyphs: Glyphs) -> list[str]:
    view = common.view
    words = [view.category] if view.category != ALL else []
    if view.group is not None:
        words.append(name_of(common.catalog, view.group[0], glyphs))
    if view.program is not None:
        words.append(name_of(common.catalog, view.program, glyphs))
    pid, _ = view.subject_ids
    if pid is not None:
        words.append(name_of(common.catalog, pid, glyphs))
    if view.pool is not None:
        words.append(f"{printable(view.pool.family, glyphs.is_ascii)}")
    if view.thread is not None:
        words.append(name_of(common.catalog, view.thread, glyphs))
    if view.object is not None:
        words.append(f"on {printable(view.object.label, glyphs.is_ascii)}")
    if view.reason is not None:
        words.append(f"for {printable(view.reason.name, glyphs.is_ascii)}")
    if view.waker is not None:
        number = view.waker.tid or view.waker.pid
        words.append(f"woken by {printable(view.waker.name, glyphs.is_ascii)}{f'({number})' if number else ''}")
    return words


def selection(common: Common, glyphs: Glyphs) -> str:
    """Return the selection as text: `lock > mysqld(4242)`."""
    return " > ".join(_chosen(common, glyphs)) or "all"


def name_of(catalog: Catalog, key: str | int | Program | ThreadKey, glyphs: Glyphs) -> str:
    """Return `mysqld(4242)`, `mysqld` for a program, `connection(4268)` or `mysql.service`, escaped."""
    if isinstance(key, str | Program):
        return printable(key.name if isinstance(key, Program) else cgroup_name(key), glyphs.is_ascii)
    name = catalog.comm(key) if isinstance(key, ThreadKey) else catalog.process(key)
    number = key.tid if isinstance(key, ThreadKey) else key
    return f"{printable(name, glyphs.is_ascii) or '?'}({number})"
