"""Convert a tick to the JSON object that `--json` prints; the package `objects` describes it."""

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial

from msgspec import UNSET

from offtop import __version__
from offtop.model.aggregate.place_shares import PlaceNames, sites_of_rows
from offtop.model.aggregate.program import program_name
from offtop.model.aggregate.row_names import process_name
from offtop.model.aggregate.stack_ends import Endings, endings
from offtop.model.aggregate.stack_problems import Problem, Problems
from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.left_out import estimated_ns, left_out_in
from offtop.model.classify.suspect import NOTHING_FOUND, Found
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from offtop.model.values.outlier import Outlier
from offtop.model.values.snapshot import (
    EXITED,
    SiteTotals,
    ThreadTotals,
)
from offtop.model.values.stack import Names
from offtop.model.values.wake import CHAIN
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.windows.breakdown import (
    ALL,
    NO_PART,
    Part,
    Scope,
    by_category,
    by_site,
    leaf_of_sites,
)
from offtop.model.windows.window import Window
from offtop.printable import printable
from offtop.reports.cause_objects import Causes
from offtop.reports.disk_table import disk_object
from offtop.reports.file_table import file_object
from offtop.reports.header_objects import (
    calls_object,
    cost_object,
    detail_object,
    filters_object,
    kernel_memos_object,
    sampling_object,
)
from offtop.reports.objects import json_breakdowns, json_header, json_stacks, json_tick, json_wakers
from offtop.reports.stack_objects import printable_names, stack_fields
from offtop.reports.suspect_objects import suspect_object
from offtop.reports.tick import Tick, passing_sites, sites
from offtop.reports.tick_changes import Changes
from offtop.reports.wait_objects import Wakers, blocked_object, outlier_object, who


def tick_object(
    tick: Tick,
    names: Names,
    cause_finder: CauseFinder,
    moved: Tick | None = None,
    problems: Problems | None = None,
    outliers: Sequence[Outlier] = (),
    comparison: Comparison | None = None,
    notices: Sequence[str] = (),
    suspects: Found = NOTHING_FOUND,
    listed: str | None = None,
) -> json_tick.Tick:
    """Return a tick as the JSON object that `offtop schema` describes.

    Strings in it are printable. `moved`: time of earlier ticks that is at other sites now. `problems`: finds what user
    stacks lack. `comparison`: with a baseline. `notices`: what the source lacks on this machine. `listed`:
    one of disks.LIST_MODES, or empty, as it was requested; None: not known, because it was recorded.
    """
    unfiltered = tick.unfiltered
    window, catalog, machine = unfiltered.window, unfiltered.window.catalog, unfiltered.window.machine
    leaf_of = leaf_of_sites(window, unfiltered.idle)
    listed_sites = sites(tick)
    earlier_ns = {key: totals.total_ns for key, totals in sites(moved)} if moved else {}
    if moved:
        leaf_of = {**leaf_of_sites(moved.unfiltered.window, unfiltered.idle), **leaf_of}
        listed_sites += [(key, SiteTotals()) for key in earlier_ns.keys() - {key for key, _ in listed_sites}]
    wakers = Wakers(catalog, names)
    fields = cache(partial(stack_fields, catalog=catalog, names=names))  # thousands of threads share a few stacks
    table, left_out = by_site(tick.shares, Scope(ALL)), left_out_in([unfiltered])
    estimated = estimated_ns(table, table, left_out) if left_out else {}
    causes = Causes(listed_sites, leaf_of, cause_finder, catalog, estimated)
    texts = SuspectTexts(catalog, names, cause_finder)
    stacks = (problems or Problems(names)).of(table, catalog)
    changes = Changes(tick, listed_sites, names, comparison, suspects) if comparison else None
    return json_tick.Tick(
        version=__version__,
        taken_ns=window.taken_ns,
        span_ns=window.span_ns,
        mode=_mode(window) if listed is None else listed or window.mode,
        probe=window.probe,
        door=window.probe,
        notices=printable_names(notices),
        filters=filters_object(window.filters),
        sampling=sampling_object(window.sampling, window.span_ns),
        within=calls_object(window) if window.filters.within else None,
        filter=printable(tick.filter.text) or None,
        left_out_ns=tick.left_out_ns,
        lost=dict(window.lost),
        cost=cost_object(window.cost),
        detail=detail_object(window.cost.thinned, window.filters.min_ns),
        stack_memos=json_header.StackMemos(**window.cost.memos._asdict()),
        kernel_stack_memos=kernel_memos_object(window.cost),
        categories=_categories(tick, causes, changes),
        programs=_programs(tick, cause_finder),
        threads=_threads(tick, causes, changes),
        sites=[
            json_breakdowns.Site(
                *who(key.thread, catalog)[:3],
                category=leaf_of[key].category,
                idle=leaf_of[key].is_idle_kind,
                standing=leaf_of[key].standing,
                waits=totals.waits,
                total_ns=totals.total_ns,
                blocked_ns=totals.blocked_ns,
                runqueue_ns=totals.runqueue_ns,
                max_ns=totals.max_ns,
                **fields(key.kernel, key.user),
                histogram=log2.slots(totals.histogram),
                earlier_ns=earlier_ns.get(key, 0),
                diagnosis=causes.of_site(key),
                baseline=changes.site(key) if changes else UNSET,
                **wakers.wake(key, chained=window.mode == CHAIN),
            )
            for key, totals in listed_sites
        ],
        diagnoses=causes.all,
        still_blocked=[
            blocked_object(one, age, tick.stuck.leaf(row), fields(one.site.kernel, one.user), catalog, cause_finder)
            for row, (one, age) in enumerate(zip(tick.stuck.waits, tick.stuck.ages, strict=True))
        ],
        storms=_storms(window, wakers),
        outliers=[outlier_object(one, names, cause_finder) for one in outliers],
        suspects=[
            suspect_object(one, texts, catalog, names, changes.suspect(one) if changes else UNSET)
            for one in suspects.suspects
        ],
        standing=suspects.standing,
        user_stacks=_callers_object(endings([window])),
        user_stack_problems=[_problem_object(one) for one in stacks.problems],
        machine=json_header.Machine(
            cpus=machine.cpus or None,
            steal_ns=machine.steal_ns if machine.cpus else None,
            interrupt_ns=machine.interrupt_ns if machine.cpus else None,
        ),
        files=file_object(tick, names, comparison) or UNSET,
        disks=disk_object(tick, names, comparison) or UNSET,
        baseline=changes.baseline if changes else UNSET,
    )


def _mode(window: Window) -> str:
    """Return the mode of a recording by what it counted."""
    return FILE if window.files is not None else DISK if window.disks is not None else window.mode


def _categories(tick: Tick, causes: Causes, changes: Changes | None) -> list[json_breakdowns.Category]:
    leaves = tick.breakdown.categories
    return [
        json_breakdowns.Category(
            name=name,
            idle=all(leaf.is_idle_kind for leaf in leaves if leaf.category == name),
            idle_ns=sum(p.total_ns for leaf, p in leaves.items() if leaf.category == name and leaf.is_idle_kind),
            standing_ns=sum(p.total_ns for leaf, p in leaves.items() if leaf.category == name and leaf.standing),
            waits=part.waits,
            total_ns=part.total_ns,
            max_ns=part.max_ns,
            histogram=log2.slots(part.histogram),
            diagnosis=causes.of_category(name),
            baseline=changes.category(name) if changes else UNSET,
        )
        for name, part in sorted(by_category(tick.breakdown).items(), key=lambda item: (-item[1].total_ns, item[0]))
    ]


def _threads(tick: Tick, causes: Causes, changes: Changes | None) -> list[json_breakdowns.Thread]:
    catalog, machine = tick.unfiltered.window.catalog, tick.unfiltered.window.machine
    return [
        json_breakdowns.Thread(
            *who(key, catalog),
            waits=t.waits,
            offcpu_ns=t.offcpu_ns,
            blocked_ns=t.blocked_ns,
            runqueue_ns=t.runqueue_ns,
            preempted_ns=t.preempted_ns,
            running_ns=t.running_ns if machine.cpus else None,
            residue_ns=_residue_ns(tick, key),
            voluntary=t.voluntary,
            involuntary=t.involuntary,
            max_ns=t.max_ns,
            short_waits=t.short_waits,
            short_ns=t.short_ns,
            filtered_ns=t.filtered_ns,
            histogram=log2.slots(t.histogram),
            diagnosis=causes.of_thread(key),
            baseline=changes.thread(key) if changes else UNSET,
        )
        for key, t in _totals(tick)
    ]


def _storms(window: Window, wakers: Wakers) -> list[json_wakers.Storm]:
    return [
        json_wakers.Storm(
            waker=wakers.waker(window.catalog.wake(wake).waker),
            storms=storm.storms,
            woken=storm.woken,
            again=storm.slept_again,
            largest=storm.largest,
            wasted_switches=storm.wasted_switches,
        )
        for wake, storm in sorted(window.storms.items(), key=lambda item: (-item[1].woken, item[0]))
    ]


def _programs(tick: Tick, cause_finder: CauseFinder) -> list[json_breakdowns.Program]:
    """Return the programs with time that passes the filter, most time first."""
    catalog = tick.unfiltered.window.catalog
    threads = Counter(key.pid for key in {ThreadKey(*key) for key in tick.shares.ids[:, :2].tolist()} if key != EXITED)
    parts: dict[str, Part] = {}
    idle_ns, standing_ns = Counter[str](), Counter[str]()
    members: dict[str, set[int]] = {}
    for leaf, by_pid in tick.breakdown.processes.items():
        for pid, part in by_pid.items():
            name = program_name(process_name(pid, catalog))
            parts[name] = parts.get(name, NO_PART).plus(part)
            idle_ns[name] += part.total_ns if leaf.is_idle_kind else 0
            standing_ns[name] += part.total_ns if leaf.standing else 0
            members.setdefault(name, set()).add(pid)
    names, row_of = PlaceNames(cause_finder), {name: number for number, name in enumerate(parts)}
    rows = {pid: row_of[name] for name, some in members.items() for pid in some}
    sites = sites_of_rows(tick.shares, tick.shares.ids[:, 0], rows)
    return [
        json_breakdowns.Program(
            name=printable(name),
            processes=len(members[name] - {EXITED.pid}),
            threads=sum(threads[pid] for pid in members[name]),
            waits=part.waits,
            total_ns=part.total_ns,
            idle_ns=idle_ns[name],
            standing_ns=standing_ns[name],
            max_ns=part.max_ns,
            histogram=log2.slots(part.histogram),
            places=[
                json_breakdowns.Place(name=printable(one.name), total_ns=one.total_ns)
                for one in names.shares(sites.get(row_of[name], []), catalog)
            ],
        )
        for name, part in sorted(parts.items(), key=lambda item: (-item[1].total_ns, item[0]))
    ]


def _callers_object(some: Endings) -> json_stacks.UserStacks:
    return json_stacks.UserStacks(
        total_ns=some.total_ns,
        whole_ns=some.whole_ns,
        others=[
            json_stacks.StackEndTime(end=one.end, unsure=one.is_unsure, file=printable(one.file), total_ns=ns)
            for one, ns in some.others
        ],
    )


def _problem_object(one: Problem) -> json_stacks.StackProblem:
    return json_stacks.StackProblem(
        binary=printable(one.binary) or None,
        process=printable(one.process) or None,
        reason=one.reason,
        total_ns=one.total_ns,
        share=round(one.share, 4),
        remedy=one.remedy or None,
    )


def _residue_ns(tick: Tick, key: ThreadKey) -> int | None:
    """Return a thread's residue; None if it did not live through the span, or is unknown."""
    account = tick.accounts.get(key)
    return account.residue_ns if account and account.through and tick.unfiltered.window.machine.cpus else None


def _totals(tick: Tick) -> list[tuple[ThreadKey, ThreadTotals]]:
    """Return all totals of the threads with time that passes the filter, most time first."""
    every = sorted(tick.unfiltered.window.each_thread(), key=lambda item: (-item[1].offcpu_ns, item[0]))
    if not tick.filter.chooses_waits:
        return every
    those = {key.thread for key in passing_sites(tick)}
    return [item for item in every if item[0] in those]
