"""Convert a tick to the JSON object that `--json` prints; objects.py describes it."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypedDict

from msgspec import UNSET, UnsetType

from offtop import __version__
from offtop.model.aggregate import location
from offtop.model.aggregate.baseline_rows import Compared
from offtop.model.aggregate.filter import NOTHING
from offtop.model.aggregate.place_shares import PlaceNames, sites_of_rows
from offtop.model.aggregate.program import program_name
from offtop.model.aggregate.rows import Row, process_name
from offtop.model.aggregate.stack_ends import Endings, endings
from offtop.model.aggregate.stack_problems import Problem, Problems
from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Rule
from offtop.model.classify.left_out import estimated_ns, left_out_in
from offtop.model.classify.suspect import NOTHING_FOUND, Found, Hop, Suspect, SuspectName, gone
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from offtop.model.values.outlier import LongWait, Outlier
from offtop.model.values.snapshot import (
    EXITED,
    Bound,
    Cost,
    Filters,
    Sampling,
    SiteTotals,
    Thinned,
    ThreadTotals,
    Waiting,
)
from offtop.model.values.stack import NO_STACK, QUEUED, Names
from offtop.model.values.state import letter
from offtop.model.values.wake import CHAIN, NO_OBJECT, NO_WAKE, Waker
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import (
    ALL,
    NO_PART,
    RUN_QUEUE,
    THROTTLE,
    Leaf,
    Part,
    PartTuple,
    Scope,
    by_category,
    by_site,
    by_thread,
    leaf_of_sites,
)
from offtop.model.windows.stuck import Age
from offtop.model.windows.window import Window
from offtop.printable import printable
from offtop.reports import objects
from offtop.reports.disk_table import disk_object
from offtop.reports.file_table import file_object
from offtop.reports.stack_objects import StackFields, printable_names, stack_fields
from offtop.reports.tick import Tick, now_of, passing_sites, sites


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
) -> objects.Tick:
    """Return a tick as the JSON object that `offtop schema` describes.

    Strings in it are printable. `moved`: time of earlier ticks that is at other sites now. `problems`: finds what user
    stacks lack. `comparison`: with a baseline. `notices`: what the source lacks on this machine. `listed`:
    one of disks.LIST_MODES, or empty, as it was requested; None: not known, because it was recorded.
    """
    unfiltered = tick.unfiltered
    window, catalog, machine = unfiltered.window, unfiltered.window.catalog, unfiltered.window.machine
    leaves, leaf_of = tick.breakdown.categories, leaf_of_sites(window, unfiltered.idle)
    listed_sites = sites(tick)
    earlier_ns = {key: totals.total_ns for key, totals in sites(moved)} if moved else {}
    if moved:
        leaf_of = {**leaf_of_sites(moved.unfiltered.window, unfiltered.idle), **leaf_of}
        listed_sites += [(key, SiteTotals()) for key in earlier_ns.keys() - {key for key, _ in listed_sites}]
    wakers = _Wakers(catalog, names)
    fields = cache(partial(stack_fields, catalog=catalog, names=names))  # thousands of threads share a few stacks
    table, left_out = by_site(tick.shares, Scope(ALL)), left_out_in([unfiltered])
    estimated = estimated_ns(table, table, left_out) if left_out else {}
    causes = _Causes(listed_sites, leaf_of, cause_finder, catalog, estimated)
    texts = SuspectTexts(catalog, names, cause_finder)
    stacks = (problems or Problems(names)).of(table, catalog)
    changes = _Changes(tick, listed_sites, names, comparison, suspects) if comparison else None
    return objects.Tick(
        version=__version__,
        taken_ns=window.taken_ns,
        span_ns=window.span_ns,
        mode=_mode(window) if listed is None else listed or window.mode,
        probe=window.probe,
        door=window.probe,
        notices=printable_names(notices),
        filters=filters_object(window.filters),
        sampling=sampling_object(window.sampling, window.span_ns),
        within=_calls_object(window) if window.filters.within else None,
        filter=printable(tick.filter.text) or None,
        left_out_ns=tick.left_out_ns,
        lost=dict(window.lost),
        cost=_cost_object(window.cost),
        detail=_detail_object(window.cost.thinned, window.filters.min_ns),
        stack_memos=objects.StackMemos(**window.cost.memos._asdict()),
        kernel_stack_memos=_kernel_memos_object(window.cost),
        categories=[
            objects.Category(
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
        ],
        programs=_programs(tick, cause_finder),
        threads=[
            objects.Thread(
                *_who(key, catalog),
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
            for key, t in _threads(tick)
        ],
        sites=[
            objects.Site(
                *_who(key.thread, catalog)[:3],
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
            _blocked_object(one, age, tick.stuck.leaf(row), fields(one.site.kernel, one.user), catalog, cause_finder)
            for row, (one, age) in enumerate(zip(tick.stuck.waits, tick.stuck.ages, strict=True))
        ],
        storms=[
            objects.Storm(
                waker=wakers.waker(catalog.wake(wake).waker),
                storms=storm.storms,
                woken=storm.woken,
                again=storm.slept_again,
                largest=storm.largest,
                wasted_switches=storm.wasted_switches,
            )
            for wake, storm in sorted(window.storms.items(), key=lambda item: (-item[1].woken, item[0]))
        ],
        outliers=[_outlier_object(one, names, cause_finder) for one in outliers],
        suspects=[
            _suspect_object(one, texts, catalog, names, changes.suspect(one) if changes else UNSET)
            for one in suspects.suspects
        ],
        standing=suspects.standing,
        user_stacks=_callers_object(endings([window])),
        user_stack_problems=[_problem_object(one) for one in stacks.problems],
        machine=objects.Machine(
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


def _programs(tick: Tick, cause_finder: CauseFinder) -> list[objects.Program]:
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
        objects.Program(
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
                objects.Place(name=printable(one.name), total_ns=one.total_ns)
                for one in names.shares(sites.get(row_of[name], []), catalog)
            ],
        )
        for name, part in sorted(parts.items(), key=lambda item: (-item[1].total_ns, item[0]))
    ]


def _cost_object(cost: Cost) -> objects.Cost:
    return objects.Cost(
        bpf_ns_per_switch=round(cost.bpf_ns_per_switch, 1) if cost.bpf_ns_per_switch >= 0 else None,
        switches=cost.switches if cost.switches >= 0 else None,
        cpu_pct=round(cost.cpu_pct, 2) if cost.cpu_pct >= 0 else None,
        bpf_pct=round(cost.bpf_pct, 2) if cost.bpf_pct >= 0 else None,
        rss_bytes=cost.rss_bytes if cost.rss_bytes >= 0 else None,
        walk_ns=cost.scan_ns if cost.scan_ns >= 0 else None,
        walk_every=cost.scan_every,
    )


def _kernel_memos_object(cost: Cost) -> objects.KernelStackMemos | None:
    if not cost.kernel_check_every:
        return None
    return objects.KernelStackMemos(**cost.kernel_memos._asdict(), check_every=cost.kernel_check_every)


def _detail_object(thinned: Thinned, min_ns: int) -> objects.Detail:
    return objects.Detail(
        level=thinned.level,
        stacks_from_ns=thinned.stacks_from_ns or min_ns,
        cpus=thinned.cpus,
        thinned_waits=thinned.waits,
        thinned_ns=thinned.waits_ns,
        over_budget=thinned.is_over,
    )


def suspect_names(one: SuspectName) -> dict[str, Any]:
    """Return the keys by which a suspect is recognized at another time."""
    return {
        "kind": one.kind,
        "waiters": printable(one.waiters),
        "category": one.category,
        "end": printable(one.end),
        "what": printable(one.what) or None,
    }


def suspect_objects(found: Found, catalog: Catalog, names: Names, cause_finder: CauseFinder) -> list[objects.Suspect]:
    """Return the suspects of a tick as `--json` prints them, without a baseline."""
    texts = SuspectTexts(catalog, names, cause_finder)
    return [_suspect_object(one, texts, catalog, names, UNSET) for one in found.suspects]


def _suspect_object(
    one: Suspect, texts: SuspectTexts, catalog: Catalog, names: Names, change: objects.SuspectChange | UnsetType
) -> objects.Suspect:
    return objects.Suspect(
        kind=one.kind,
        text=printable(texts.sentence(one).in_full),
        harm=round(one.harm, 3),
        waiting=round(one.waiting, 3),
        age_ns=one.age_ns,
        likely=one.is_likely,
        hops=[_hop_object(hop, texts, catalog, names) for hop in one.hops],
        baseline=change,
    )


def _hop_object(hop: Hop, texts: SuspectTexts, catalog: Catalog, names: Names) -> objects.Hop:
    rule, (kernel, user) = texts.rule(hop), (hop.site.kernel, hop.site.user) if hop.site else (NO_STACK, NO_STACK)
    return objects.Hop(
        pid=hop.key.pid,
        tid=hop.key.tid,
        comm=printable(catalog.comm(hop.key)),
        process=printable(hop.program),
        title=printable(hop.title) or None,
        threads=hop.threads,
        unread=hop.unread,
        processes=hop.pids,
        others=hop.others,
        state=hop.state,
        diagnosis=rule.id if rule else None,
        age_ns=hop.age_ns,
        kernel=printable_names(location.kernel_names(catalog, kernel, names)),
        user=printable_names(location.user_names(catalog, user, names)),
        via=hop.via or None,
        exact=hop.is_exact,
        what=printable(hop.what) or None,
    )


def _outlier_object(one: Outlier, names: Names, cause_finder: CauseFinder) -> objects.Outlier:
    return objects.Outlier(
        rule=printable(one.rule),
        metric=one.metric,
        category=printable(one.category),
        process=printable(one.program),
        value=round(float(one.value), 3),
        mark=round(float(one.threshold), 3),
        usual_ns=one.usual_ns or None,
        taken_ns=one.taken_ns,
        more=one.more,
        was_told=one.was_reported,
        wait=_wait_object(one, one.wait, names, cause_finder) if one.wait else None,
        mode=one.io.mode if one.io else None,
        what=printable(one.io.what) if one.io else None,
    )


def _wait_object(one: Outlier, wait: LongWait, names: Names, cause_finder: CauseFinder) -> objects.LongWait:
    site, catalog = wait.site, one.catalog
    rule = cause_finder.copy().rule_of(site, catalog)
    return objects.LongWait(
        *_who(site.thread, catalog),
        began_ns=one.taken_ns - (one.at_ns - wait.began_ns),
        length_ns=one.length_ns,
        runqueue_ns=wait.runqueue_ns,
        going_on=one.is_going_on,
        exact=wait.is_exact,
        cpu=wait.cpu if wait.cpu >= 0 else None,
        state=letter(wait.state),
        after=printable(one.after) or None,
        **stack_fields(site.kernel, site.user, catalog, names),
        diagnosis=rule.id if rule else None,
        **_Wakers(catalog, names).wake(site, chained=True),
    )


class _Changes:
    """Compares a tick with a baseline."""

    def __init__(
        self,
        tick: Tick,
        those: Sequence[tuple[SiteKey, SiteTotals]],
        names: Names,
        comparison: Comparison,
        suspects: Found,
    ) -> None:
        comparison.select(View(idle_shown=True, filter=tick.filter), NOTHING, now_of(tick))
        self._span_ns = tick.unfiltered.span_ns
        self._categories = by_category(tick.breakdown, filtered_shown=False)
        self._threads: Mapping[tuple[int, ...], PartTuple] = by_thread(tick.shares, Scope())
        self._sites = {key: (t.waits, t.total_ns, t.max_ns, t.histogram) for key, t in those}
        self._of_categories = comparison.categories()(self._categories)
        self._of_threads = comparison.threads()(self._threads)
        self._of_sites = comparison.sites(names)(self._sites)
        baseline = comparison.baseline
        self.baseline = objects.Baseline(
            file=printable(baseline.file),
            taken_ns=baseline.taken_ns,
            span_ns=baseline.span_ns,
            sampling=sampling_object(baseline.sampling, baseline.span_ns),
            gone_categories=[
                objects.GoneCategory(name=key.name, waiting=round(before.waiting, 6))
                for key, before in self._of_categories.gone
            ],
            gone_threads=[
                objects.GoneThread(
                    process=printable(key.process), comm=printable(key.name), waiting=round(before.waiting, 6)
                )
                for key, before in self._of_threads.gone
            ],
            gone_suspects=[
                objects.GoneSuspect(**suspect_names(name), waiting=round(waiting, 6))
                for name, waiting in gone(suspects, baseline.suspects or {})
            ],
        )
        self._suspects = baseline.suspects

    def suspect(self, one: Suspect) -> objects.SuspectChange | UnsetType:
        if self._suspects is None:
            return UNSET
        before = self._suspects.get(one.name, 0.0)
        return objects.SuspectChange(
            waiting=round(before, 6), change=round(one.waiting - before, 6), new=not before, since_ns=one.since_ns
        )

    def category(self, name: str) -> objects.Change | None:
        return self._change(self._of_categories, name, self._categories.get(name, NO_PART))

    def thread(self, key: ThreadKey) -> objects.Change | None:
        return self._change(self._of_threads, key, self._threads.get(key, NO_PART))

    def site(self, key: SiteKey) -> objects.Change | None:
        return self._change(self._of_sites, key, self._sites[key])

    def _change(self, compared: Compared, key: Hashable, part: PartTuple) -> objects.Change | None:
        before = compared.before.get(key)
        if before is None:
            return None
        waits, total_ns, max_ns, histogram = part
        change = Row("", "", self._span_ns, Part(waits, total_ns, max_ns, histogram), before=before).change
        spread = before.spread(self._span_ns)
        return objects.Change(
            waiting=round(before.waiting, 6),
            change=round(change.by, 6) if change else 0.0,
            spread=None if spread is None else round(spread, 6),
            p99_ns=before.p99_ns,
            new=bool(change and change.is_new),
            sure=bool(change and change.is_sure),
        )


def filters_object(filters: Filters) -> objects.Filters:
    return objects.Filters(
        pids=tuple(filters.pids),
        tids=tuple(filters.tids),
        who=filters.who,
        states=filters.states,
        min_ns=filters.min_ns,
        max_ns=filters.max_ns or None,
        cgroup=printable(filters.cgroup) or None,
        within=printable(filters.within) or None,
    )


def sampling_object(sampling: Sampling | None, span_ns: int) -> objects.Sampling | None:
    if sampling is None:
        return None
    return objects.Sampling(
        rate_hz=round(sampling.rate_hz(span_ns), 1),
        apart_ns=sampling.apart_ns(span_ns),
        guessed_ns=sampling.guessed_ns,
        own_only=sampling.own_only,
        lost_known=sampling.lost_known,
        container_only=sampling.container_only,
    )


def _calls_object(window: Window) -> objects.Calls:
    calls = window.calls
    return objects.Calls(
        function=printable(window.filters.within),
        calls=calls.returned,
        left=calls.left,
        total_ns=calls.total_ns,
        running_ns=calls.running_ns,
        offcpu_ns=calls.offcpu_ns,
        blocked_ns=calls.blocked_ns,
        runqueue_ns=calls.runqueue_ns,
        max_ns=calls.max_ns,
        histogram=log2.slots(calls.histogram),
        now=calls.now,
        oldest_ns=calls.oldest_ns,
    )


def _callers_object(some: Endings) -> objects.UserStacks:
    return objects.UserStacks(
        total_ns=some.total_ns,
        whole_ns=some.whole_ns,
        others=[
            objects.StackEndTime(end=one.end, unsure=one.is_unsure, file=printable(one.file), total_ns=ns)
            for one, ns in some.others
        ],
    )


def _problem_object(one: Problem) -> objects.StackProblem:
    return objects.StackProblem(
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


_AGE_IS = {Bound.EXACT: "exact", Bound.AT_MOST: "at_most", Bound.AT_LEAST: "at_least"}


def _blocked_object(
    one: Waiting, age: Age, leaf: Leaf, fields: StackFields, catalog: Catalog, cause_finder: CauseFinder
) -> objects.Blocked:
    rule, holder = cause_finder.rule_of(one.place, catalog), one.holder
    return objects.Blocked(
        *_who(one.site.thread, catalog),
        age_ns=age.ns,
        age_is=_AGE_IS[age.bound],
        state=one.letter,
        category=leaf.category,
        idle=leaf.is_idle_kind,
        standing=leaf.standing,
        diagnosis=rule.id if rule else None,
        syscall=printable(catalog.call(one.call)) if one.call >= 0 else None,
        arguments=tuple(one.arguments),
        **fields,
        object=_waited_on(one.site, catalog),
        held_by=objects.Holder(pid=holder.pid, tid=holder.tid, comm=printable(holder.comm)) if holder.tid else None,
    )


def _threads(tick: Tick) -> list[tuple[ThreadKey, ThreadTotals]]:
    """Return all totals of the threads with time that passes the filter, most time first."""
    every = sorted(tick.unfiltered.window.each_thread(), key=lambda item: (-item[1].offcpu_ns, item[0]))
    if not tick.filter.chooses_waits:
        return every
    those = {key.thread for key in passing_sites(tick)}
    return [item for item in every if item[0] in those]


class _Causes:
    """The causes of a tick's waits, as ids of cause rules."""

    def __init__(
        self,
        those: Sequence[tuple[SiteKey, SiteTotals]],
        leaf_of: Mapping[SiteKey, Leaf],
        cause_finder: CauseFinder,
        catalog: Catalog,
        estimated: Mapping[tuple[int, ...], int],
    ) -> None:
        """`estimated`: see left_out.estimated_ns."""
        self._rules = {key: cause_finder.rule_of(key, catalog) for key, _ in those}
        self._ns: dict[str, Counter[str]] = {}
        self._of_threads: dict[ThreadKey, Counter[str]] = {}
        self.all: list[objects.Cause] = []
        """Most time first."""
        whole: dict[Rule, int] = {}
        for key, totals in those:
            (queued,) = cause_finder.rules_at([(QUEUED, NO_STACK, NO_WAKE, key.pid)], catalog)
            of_cpu_ns = 0 if leaf_of[key].category == THROTTLE else totals.runqueue_ns
            parts = (
                (self._rules[key], leaf_of[key].category, totals.total_ns - of_cpu_ns),
                (queued, RUN_QUEUE, of_cpu_ns),
            )
            for rule, category, ns in parts:
                if rule and (ns or category != RUN_QUEUE):
                    whole[rule] = whole.get(rule, 0) + ns
                    self._ns.setdefault(category, Counter())[rule.id] += ns
                    self._of_threads.setdefault(key.thread, Counter())[rule.id] += ns
        more = Counter[Rule | None]()
        for rule, ns in zip(cause_finder.rules_at(estimated, catalog), estimated.values(), strict=True):
            more[rule] += ns
        for rule, ns in sorted(whole.items(), key=lambda item: -item[1]):
            texts = {"id": rule.id, "name": rule.name, "says": rule.says}
            self.all.append(
                objects.Cause(**texts, next=rule.next or None, idle=rule.idle, total_ns=ns, estimated_ns=more[rule])
            )

    def of_site(self, key: SiteKey) -> str | None:
        rule = self._rules[key]
        return rule.id if rule else None

    def of_thread(self, key: ThreadKey) -> str | None:
        return _most(self._of_threads.get(key))

    def of_category(self, name: str) -> str | None:
        return _most(self._ns.get(name))


def _most(of: Counter[str] | None) -> str | None:
    return of.most_common(1)[0][0] if of else None


def _waited_on(site: SiteKey, catalog: Catalog) -> objects.WaitedOn | None:
    """Return the object waited on at a site, or None if it is unknown."""
    what = catalog.wake(site.wake).object
    if what == NO_OBJECT:
        return None
    peers = catalog.peers_of(what)
    sides = peers.sides_of_wait(catalog.stack(site.kernel))
    ends = [
        objects.Peer(role=side.role, pid=one.pid, comm=printable(one.comm)) for side in sides for one in side.processes
    ]
    return objects.WaitedOn(
        kind=printable(what.kind),
        name=printable(what.name),
        pid=what.pid,
        local=printable(what.local),
        peer=printable(what.peer),
        state=printable(what.state),
        ends=ends or None,
        ends_more=sum(side.total for side in sides) - len(ends),
        members={printable(kind): count for kind, count in peers.members} or None,
    )


class _Woken(TypedDict):
    """The keys about what ended the waits of a site, and about what they were on."""

    waker: objects.Waker | None
    object: objects.WaitedOn | None
    chain: list[list[str]] | None
    chain_wakers: list[objects.Waker] | None
    chain_end: str | None


class _Wakers:
    """Builds the JSON objects of wakers, and reuses them for sites that share a waker."""

    def __init__(self, catalog: Catalog, names: Names) -> None:
        self._catalog, self._names = catalog, names
        self._wakers: dict[Waker, objects.Waker] = {}
        self._functions: dict[tuple[int, int], list[str]] = {}

    def wake(self, site: SiteKey, chained: bool) -> _Woken:
        """The waker is None if wakers are not recorded, the waits go on, or they were for a CPU only."""
        found, on = self._catalog.wake(site.wake), _waited_on(site, self._catalog)
        waker = self.waker(found.waker) if found.has_waker else None
        if waker is None or not chained:
            return _Woken(waker=waker, object=on, chain=None, chain_wakers=None, chain_end=None)
        return _Woken(
            waker=waker,
            object=on,
            chain=[self._functions_of(link.kernel, link.user) for link in found.links],
            chain_wakers=[self.waker(link.waker) for link in found.links],
            chain_end=found.end,
        )

    def waker(self, waker: Waker) -> objects.Waker:
        found = self._wakers.get(waker)
        if found is None:
            found = self._wakers[waker] = objects.Waker(
                kind=waker.kind,
                name=printable(waker.name),
                pid=waker.pid,
                tid=waker.tid,
                comm=printable(waker.comm),
                via=waker.via,
                kernel=printable_names(location.kernel_names(self._catalog, waker.kernel, self._names)),
                user=printable_names(location.user_names(self._catalog, waker.user, self._names)),
            )
        return found

    def _functions_of(self, kernel: int, user: int) -> list[str]:
        """Return the functions of both stacks, leaf first."""
        found = self._functions.get((kernel, user))
        if found is None:
            names = location.kernel_names(self._catalog, kernel, self._names)
            names += location.user_names(self._catalog, user, self._names)
            found = self._functions[kernel, user] = printable_names(names)
        return found


def _who(key: ThreadKey, catalog: Catalog) -> tuple[int, int, str, str]:
    """Return the PID, the TID, and the names of the thread and its process."""
    if key == EXITED:
        return 0, 0, "(exited)", "(exited)"
    return key.pid, key.tid, printable(catalog.comm(key)), printable(catalog.process(key.pid))
