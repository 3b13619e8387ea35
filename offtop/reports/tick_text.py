"""Convert a tick to text tables, like those of `top -b`."""

import time
from collections.abc import Callable, Iterable, Sequence

from offtop.model.aggregate import location
from offtop.model.aggregate.account import accounts
from offtop.model.aggregate.breakdown_rows import category_rows
from offtop.model.aggregate.budget import Rate, budget
from offtop.model.aggregate.rows import NOWHERE, Ranking, Row
from offtop.model.aggregate.scope_text import LOST_UNKNOWN, how_sampled, how_sure, inexact_words
from offtop.model.aggregate.stack_problems import Problems
from offtop.model.aggregate.suspect_text import SuspectTexts, change_text, gone_texts
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.cause_finder import CauseFinder, most
from offtop.model.classify.left_out import left_out_in, likely_idle
from offtop.model.classify.suspect import NOTHING_FOUND, Found
from offtop.model.outliers.text import one_line
from offtop.model.values import calls
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.files import FILE
from offtop.model.values.outlier import Outlier, groups
from offtop.model.values.stack import Names
from offtop.model.values.wake import NO_STORM, WAKEUP, gathers
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.windows import stuck
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import FILTERED, NO_PART, RUN_QUEUE, by_category, by_site, total
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.stuck import Stuck
from offtop.model.windows.window import Window
from offtop.printable import printable
from offtop.reports import disk_table, file_table
from offtop.reports.tick import Tick, pids_of
from offtop.reports.tick_rows import places_of
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S, count, duration, percent, threads

_MOST_OUTLIERS = 10
_LEAST_PROBLEM = 0.1
"""Share of the time with a user stack from which on a stack problem is printed."""
_COMM_WIDTH, _WAKER_WIDTH = 16, 26
"""A waker that is not a thread has a short sentence as its name."""
_ONLY_IDLE = "only idle waits: -i shows them"
NOT_GATHERED = "wakers were not recorded; --mode offcpu shows where these threads waited"


def tick_text(
    tick: Tick,
    listed: Ranking,
    names: Names,
    width: int,
    wanted: Wanted,
    cause_finder: CauseFinder,
    problems: Problems,
    lifetime: Tick | None = None,
    outliers: Sequence[Outlier] = (),
    comparison: Comparison | None = None,
    suspects: Found = NOTHING_FOUND,
) -> str:
    """Return a tick as tables and a blank line. `width`: longest line (0: no limit)."""
    catalog = tick.unfiltered.window.catalog
    if wanted.listed:
        head = f"{_head(tick.unfiltered, wanted.idle_shown)}{_filtered(tick, wanted)}"
        of_list = (
            file_table.lines(tick, wanted.sort, wanted.reverse)
            if wanted.listed == FILE
            else disk_table.lines(tick, wanted.sort, wanted.reverse, wanted.threads)
        )
        return _cut([head, *of_list, ""], width)
    shown = tick.stuck.in_scope(wanted.scope)
    in_full = _stuck_table(tick, shown, names, cause_finder) if wanted.stuck else ()
    categories = category_rows(
        tick.breakdown,
        wanted.order._replace(compare=comparison.categories() if comparison else None),
        idle_shown=wanted.idle_shown,
        lifetime=lifetime.breakdown if lifetime else None,
        now=stuck.by_category(shown),
    )

    places = {} if wanted.mode == WAKEUP else places_of(tick, listed, wanted, cause_finder)

    def where_of(row: Row) -> str:
        if row.key in places:
            return printable(places[row.key])
        if row.storm != NO_STORM:
            return location.of_storm(row.storm, row.span_ns)
        of = location.of_waker if wanted.mode == WAKEUP else location.of_sleeper
        rule = cause_finder.rule_of(row.top, catalog) if wanted.mode != WAKEUP and row.top != NOWHERE else None
        return (
            ""
            if row.top == NOWHERE
            else printable(location.with_rule(catalog, row.top, rule, of(catalog, row.top, names)))
        )

    who, width_of = ("WAKER", _WAKER_WIDTH) if wanted.mode == WAKEUP else ("COMMAND", _COMM_WIDTH)

    def name_of(row: Row) -> str:
        tid = str(row.key.tid) if isinstance(row.key, ThreadKey | WakerKey) and row.key.tid else ""
        pid = str(row.pid) if row.pid else f"x{row.processes}" if row.processes else ""
        return f"{pid:>7} {tid:>7} {printable(row.name)[:width_of]:<{width_of}}"

    lines = [
        f"{_head(tick.unfiltered, wanted.idle_shown)}{_filtered(tick, wanted)}",
        *([_calls(tick.unfiltered.window)] if tick.unfiltered.window.filters.within else []),
        *([_compared(comparison)] if comparison else []),
        *suspect_lines(suspects, catalog, names, cause_finder, wanted.baseline),
        *_diagnosis(tick, wanted, cause_finder),
        *_stack_problem(tick, wanted, problems),
        *_outlier_lines(outliers, names),
        *_table(categories, f"{'WAIT CATEGORY':<15}", _category_name),
        "",
        *_table(listed, f"{'PID':>7} {'TID' if wanted.threads else '':>7} {who:<{width_of}}", name_of, where_of),
        *(
            [_ONLY_IDLE]
            if not (listed.rows or listed.elided) and any(leaf.idle for leaf in tick.breakdown.categories)
            else []
        ),
        *([] if gathers(tick.unfiltered.header.mode, wanted.mode) else [NOT_GATHERED]),
        "",
        *in_full,
        *(_budgets(tick, wanted.rate) if wanted.rate else ()),
    ]
    return _cut(lines, width)


def _cut(lines: Iterable[str], width: int) -> str:
    return "".join(f"{line[:width].rstrip() if width else line.rstrip()}\n" for line in lines)


def _calls(window: Window) -> str:
    """Return the line about the function given with --within."""
    calls = window.calls
    parts = ["none has returned"]
    if calls.returned:
        parts = [f"{count(calls.returned * NS_PER_S / window.span_ns)}/s"]
        p50, p99, longest = (duration(ns) for ns in (calls.percentile_ns(50), calls.percentile_ns(99), calls.max_ns))
        times = (("blocked", calls.blocked_ns), ("run queue", calls.runqueue_ns), ("running", calls.running_ns))
        parts.append(f"p50<={p50} p99<={p99} max {longest}")
        parts.append(" + ".join(f"{percent(ns, calls.total_ns):.0f}% {what}" for what, ns in times))
    if calls.now:
        parts.append(f"{calls.now} now, oldest {duration(calls.oldest_ns) or '0'}")
    if calls.left:
        parts.append(f"{calls.left} did not return")
    return f"within {printable(window.filters.within)}: calls {'  '.join(parts)}"


def _compared(comparison: Comparison) -> str:
    baseline = comparison.baseline
    waiting = threads(comparison.waiting)
    text = f"baseline {waiting} waiting in {duration(baseline.span_ns)} of {printable(baseline.file)}"
    return "; ".join(filter(None, (text, comparison.why_uncompared, comparison.caveat)))


def suspect_lines(
    found: Found, catalog: Catalog, names: Names, cause_finder: CauseFinder, baseline: Baseline | None
) -> Iterable[str]:
    """Yield a sentence for each suspect, and for each that only the baseline has."""
    texts = SuspectTexts(catalog, names, cause_finder)
    for one in found.suspects:
        change = change_text(one, found, baseline)
        yield f"suspect{f' {change}' if change else ''}: {printable(texts.sentence(one).in_batch)}"
    for text in gone_texts(found, baseline):
        yield f"suspect {printable(text)}"


def stacks_of_suspects(found: Found) -> set[int]:
    """Return the ids of the stacks that their chains show."""
    sites = (hop.site for one in found.suspects for hop in one.hops if hop.site)
    return {stack for site in sites for stack in (site.kernel, site.user)}


def _diagnosis(tick: Tick, wanted: Wanted, cause_finder: CauseFinder) -> Iterable[str]:
    catalog = tick.unfiltered.window.catalog
    left_out = left_out_in([tick.unfiltered])
    with_idle = by_site(tick.shares, wanted.scope._replace(idle=True)) if left_out else None
    sites, span_ns = by_site(tick.shares, wanted.scope), tick.unfiltered.span_ns
    causes = cause_finder.rules_of(sites, catalog, with_idle, left_out)
    diagnosis = most(causes, span_ns)
    if diagnosis:
        yield diagnosis.in_full(catalog, with_process=True, with_keys=False)
    if left_out and with_idle and (idle := likely_idle(sites, with_idle, left_out, span_ns)):
        yield f"{idle} (they count as short; a larger --cpu-budget takes more stacks)"


def _outlier_lines(outliers: Sequence[Outlier], names: Names) -> Iterable[str]:
    """Yield a line per kind of outlier: new ones, then those reported earlier that ended."""
    for word, ended in (("outlier", False), ("outlier ended", True)):
        for group in groups([one for one in outliers if one.was_reported is ended])[:_MOST_OUTLIERS]:
            many = f" x{group.many}" if group.many > 1 else ""
            yield f"{word}{many}: {printable(one_line(group.worst, names))}"


def _stack_problem(tick: Tick, wanted: Wanted, problems: Problems) -> Iterable[str]:
    """Yield why callers are missing, if that affects much of the time."""
    stacks = problems.of(by_site(tick.shares, wanted.scope), tick.unfiltered.window.catalog)
    worst = next((one for one in stacks.problems if one.is_of_callers and one.share >= _LEAST_PROBLEM), None)
    if worst:
        yield worst.in_full


def _stuck_table(tick: Tick, shown: Stuck, names: Names, cause_finder: CauseFinder) -> Iterable[str]:
    """Yield a table of the waits in progress, oldest first, with syscalls and stacks."""
    every = tick.stuck.of_age(tick.filter.keeps_age)
    shown = shown.of_age(tick.filter.keeps_age)
    yield f"stuck now: {stuck_threads(every, shown)}{' (-i)' if len(shown.waits) < len(every.waits) else ''}"
    yield STUCK_HEAD
    for row in range(len(shown.waits)):
        yield stuck_line(shown, row, tick.unfiltered.window.catalog, names, cause_finder)
    yield ""


def stuck_threads(every: Stuck, shown: Stuck) -> str:
    hidden = len(every.waits) - len(shown.waits)
    standing = every.standing - shown.standing
    idle = f"; {hidden} idle hidden{f', {standing} of them standing' if standing else ''}" if hidden else ""
    return f"{len(shown.waits)} {'threads' if len(shown.waits) != 1 else 'thread'}{idle}"


STUCK_HEAD = f"{'AGE':>8} {'PID':>7} {'TID':>7} {'COMMAND':<16} S {'CATEGORY':<15} {'SYSCALL':<24}  STACK"


def stuck_line(shown: Stuck, row: int, catalog: Catalog, names: Names, cause_finder: CauseFinder) -> str:
    """Format one wait in progress; STUCK_HEAD is the heading."""
    one, leaf, age = shown.waits[row], shown.leaf(row), shown.age(row).text
    who = printable(catalog.comm(one.site.thread))[:16]
    category = f"{'~' if leaf.idle else ''}{leaf.category}"
    call = printable(calls.call_text(catalog.call(one.call), one.arguments)) if one.call >= 0 else ""
    place = location.in_short(catalog, one.site.kernel, one.user, names, one.site.wake)
    place = printable(location.with_rule(catalog, one.place, cause_finder.rule_of(one.place, catalog), place))
    return f"{age:>8} {one.site.pid:>7} {one.site.tid:>7} {who:<16} {one.letter} {category:<15} {call:<24}  {place}"


def _budgets(tick: Tick, rate: Rate) -> Iterable[str]:
    window = tick.unfiltered.window
    every = accounts([window])
    for pid in window.filters.pids:
        idle_ns = sum(
            by.get(pid, NO_PART).total_ns for leaf, by in tick.unfiltered.breakdown.processes.items() if leaf.idle
        )
        checked = budget(every.of(pid), idle_ns, window.span_ns, rate)
        text = "; ".join(checked.lines) if checked else "the process has exited"
        yield f"budget of {printable(window.catalog.process(pid))}({pid}): {text}"
    yield ""


def _filtered(tick: Tick, wanted: Wanted) -> str:
    """Return the end of the head line: the filter, and how much waiting passes it."""
    chosen, unfiltered = tick.filter, tick.unfiltered
    if not chosen.text:
        return ""
    shown_ns = total(by_category(tick.breakdown, wanted.idle_shown, filtered_shown=False).values()).total_ns
    unknown = len(pids_of(unfiltered).difference(unfiltered.window.catalog.details)) if chosen.needs_details else 0
    doubt = f" ({unknown} processes unknown)" if unknown else ""
    return f'  filter "{printable(chosen.text)}" passes {threads(shown_ns / unfiltered.span_ns)}{doubt}'


def _head(tick: HistoryTick, idle_shown: bool) -> str:
    window = tick.window
    span_ns = window.span_ns
    filtered_ns = sum(part.total_ns for leaf, part in tick.breakdown.categories.items() if leaf.category == FILTERED)
    every = total(tick.breakdown.categories.values()).total_ns - filtered_ns
    idle_ns = sum(part.total_ns for leaf, part in tick.breakdown.categories.items() if leaf.idle)
    standing_ns = sum(part.total_ns for leaf, part in tick.breakdown.categories.items() if leaf.standing)
    standing = f" ({threads(standing_ns / span_ns)} standing)" if standing_ns else ""
    shown_ns = every if idle_shown else every - idle_ns
    ready_ns = sum(part.total_ns for leaf, part in tick.breakdown.categories.items() if leaf.category == RUN_QUEUE)
    clock = time.strftime("%H:%M:%S", time.localtime(window.taken_ns // 1_000_000_000))
    lost = ", ".join(f"{n} {kind}" for kind, n in window.lost.items())
    is_lost_known = window.sampling is None or window.sampling.lost_known
    lost = f"lost {lost or 0}" if lost or is_lost_known else LOST_UNKNOWN
    filtered = f"filtered {threads(filtered_ns / span_ns)}  " if filtered_ns else ""
    cost = window.cost
    some = window.sampling
    sampled = f"SAMPLED {how_sampled(some, span_ns)}  " if some else ""
    sure = f"  {', '.join(how_sure(some, span_ns))}" if some else ""
    fewer = "".join(f"  {word}" for word in inexact_words(cost, window.machine, cost.thinned.waits_ns, every))
    own = f"  cost {cost.bpf_ns_per_switch:.0f}ns/switch" if cost.bpf_ns_per_switch >= 0 else ""
    return (
        f"offtop - {clock} span {duration(span_ns)}  {sampled}"
        f"WAITING {threads(shown_ns / span_ns)} = "
        f"blocked {threads((shown_ns - ready_ns) / span_ns)} + run queue {threads(ready_ns / span_ns)}  "
        f"{'of it ' if idle_shown else ''}idle {threads(idle_ns / span_ns)}{standing}  {filtered}{lost}  "
        f"min {duration(window.filters.min_ns) or '0'}{fewer}{own}{sure}"
    )


def _table(
    ranking: Ranking, head: str, name: Callable[[Row], str], where_of: Callable[[Row], str] | None = None
) -> Iterable[str]:
    last = "  WHERE" if where_of else ""
    changes = f" {'CHANGE':>8} {'p99 x':>5}" if ranking.before else ""
    yield f"{head} {'WAITING':>8}{changes} {'%':>4} {'EV/S':>6} {'p50<=':>6} {'p99<=':>6} {'MAX':>6} {'NOW':>7}{last}"
    for row in (*ranking.rows, *([ranking.elided] if ranking.elided else [])):
        yield f"{name(row)} {_numbers(row)}{f'  {where_of(row)}' if where_of else ''}"


def _numbers(row: Row) -> str:
    p50, p99 = duration(row.percentile_ns(50)), duration(row.percentile_ns(99))
    events = count(row.waits_per_s) if row.part.waits else ""
    longest = duration(row.part.max_ns)
    now = row.now.text
    change = f" {row.change.text:>8} {row.change.p99_text:>5}" if row.change else ""
    return (
        f"{threads(row.waiting):>8}{change} {row.share_pct:>3.0f}% {events:>6} {p50:>6} {p99:>6} {longest:>6} {now:>7}"
    )


def _category_name(row: Row) -> str:
    return f"{('~' if row.idle else '') + row.name:<15}"
