"""Convert a tick to the JSON object that `--json` prints; offtop/reports/schema.py describes it."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from offtop import __version__
from offtop.model.aggregate import location
from offtop.model.aggregate.baseline_rows import Compared
from offtop.model.aggregate.filter import NOTHING
from offtop.model.aggregate.rows import Row
from offtop.model.aggregate.stack_ends import Endings, endings
from offtop.model.aggregate.stack_problems import Problem, Problems
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Rule
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.outlier import Outlier
from offtop.model.values.snapshot import EXITED, Bound, Filters, Holder, Sampling, SiteTotals, ThreadTotals
from offtop.model.values.stack import NO_STACK, QUEUED, Names, Stack
from offtop.model.values.state import letter
from offtop.model.values.table import SITES
from offtop.model.values.wake import CHAIN, NO_OBJECT, NO_WAKE, Waker
from offtop.model.viewmodel.comparison import Comparison, Now
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import (
    ALL,
    NO_PART,
    RUN_QUEUE,
    THROTTLE,
    Added,
    Leaf,
    Part,
    Scope,
    by_category,
    by_site,
    by_thread,
    leaf_of_sites,
)
from offtop.model.windows.stuck import Stuck
from offtop.model.windows.window import Window
from offtop.printable import printable
from offtop.reports.tick import Tick


def tick_object(
    tick: Tick,
    names: Names,
    diagnoser: CauseFinder,
    moved: Tick | None = None,
    problems: Problems | None = None,
    outliers: Sequence[Outlier] = (),
    comparison: Comparison | None = None,
    notices: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a tick as the JSON object that `offtop schema` describes.

    Times are integers of ns, strings printable. `moved`: time of earlier ticks that is at other sites now. `problems`:
    finds what user stacks lack. `comparison`: with a baseline. `notices`: what the source lacks on this machine.
    """
    kept = tick.kept
    window, catalog = kept.window, kept.window.catalog
    cost, filters = window.cost, window.filters
    leaves, leaf_of = tick.cut.categories, leaf_of_sites(window, kept.idle)
    listed_sites = sites(tick)
    earlier_ns = {key: totals.total_ns for key, totals in sites(moved)} if moved else {}
    if moved:
        leaf_of = {**leaf_of_sites(moved.kept.window, kept.idle), **leaf_of}
        listed_sites += [(key, SiteTotals()) for key in earlier_ns.keys() - {key for key, _ in listed_sites}]
    wakers = _Wakers(catalog, names)
    causes = _Causes(listed_sites, leaf_of, diagnoser, catalog)
    stacks = (problems or Problems(names)).of(by_site(tick.shares, Scope(ALL)), catalog)
    comparison_keys = _WithBaseline(tick, listed_sites, names, comparison) if comparison else _NoBaseline()
    return {
        "version": __version__,
        "taken_ns": window.taken_ns,
        "span_ns": window.span_ns,
        "mode": window.mode,
        "probe": window.probe,
        "door": window.probe,
        "notices": [printable(one) for one in notices],
        "filters": filters_object(filters),
        "sampling": sampling_object(window.sampling, window.span_ns),
        "within": _calls_object(window) if filters.within else None,
        "filter": printable(tick.filter.text) or None,
        "left_out_ns": tick.left_out_ns,
        "lost": dict(window.lost),
        "cost": {
            "bpf_ns_per_switch": round(cost.bpf_ns_per_switch, 1) if cost.bpf_ns_per_switch >= 0 else None,
            "switches": cost.switches if cost.switches >= 0 else None,
            "cpu_pct": round(cost.cpu_pct, 2) if cost.cpu_pct >= 0 else None,
            "bpf_pct": round(cost.bpf_pct, 2) if cost.bpf_pct >= 0 else None,
            "rss_bytes": cost.rss_bytes if cost.rss_bytes >= 0 else None,
            "walk_ns": cost.walk_ns if cost.walk_ns >= 0 else None,
            "walk_every": cost.walk_every,
        },
        "categories": [
            {
                "name": name,
                "idle": all(leaf.idle for leaf in leaves if leaf.category == name),
                "idle_ns": sum(p.total_ns for leaf, p in leaves.items() if leaf.category == name and leaf.idle),
                "waits": part.waits,
                "total_ns": part.total_ns,
                "max_ns": part.max_ns,
                "histogram": log2.slots(part.histogram),
                "diagnosis": causes.of_category(name),
                **comparison_keys.category(name),
            }
            for name, part in sorted(by_category(tick.cut).items(), key=lambda item: (-item[1].total_ns, item[0]))
        ],
        "threads": [
            {
                **_who(key, catalog),
                "waits": t.waits,
                "offcpu_ns": t.offcpu_ns,
                "blocked_ns": t.blocked_ns,
                "runqueue_ns": t.runqueue_ns,
                "preempted_ns": t.preempted_ns,
                "running_ns": t.running_ns if window.machine.cpus else None,
                "residue_ns": _residue_ns(tick, key),
                "voluntary": t.voluntary,
                "involuntary": t.involuntary,
                "max_ns": t.max_ns,
                "short_waits": t.short_waits,
                "short_ns": t.short_ns,
                "filtered_ns": t.filtered_ns,
                "histogram": log2.slots(t.histogram),
                "diagnosis": causes.of_thread(key),
                **comparison_keys.thread(key),
            }
            for key, t in _threads(tick)
        ],
        "sites": [
            {
                **_site_object(key, totals, leaf_of[key], catalog, names),
                "earlier_ns": earlier_ns.get(key, 0),
                "diagnosis": causes.of_site(key),
                **comparison_keys.site(key),
                **wakers.wake(key, chained=window.mode == CHAIN),
            }
            for key, totals in listed_sites
        ],
        "diagnoses": causes.all,
        "still_blocked": [
            _blocked_object(tick.stuck, row, catalog, names, diagnoser) for row in range(len(tick.stuck.waits))
        ],
        "storms": [
            {
                "waker": wakers.waker(catalog.wake(wake).waker),
                "storms": storm.storms,
                "woken": storm.woken,
                "again": storm.again,
                "largest": storm.largest,
                "wasted_switches": storm.wasted_switches,
            }
            for wake, storm in sorted(window.storms.items(), key=lambda item: (-item[1].woken, item[0]))
        ],
        "outliers": [outlier_object(one, names, diagnoser) for one in outliers],
        "user_stacks": _callers_object(endings([window])),
        "user_stack_problems": [_problem_object(one) for one in stacks.problems],
        "machine": {
            "cpus": window.machine.cpus or None,
            "steal_ns": window.machine.steal_ns if window.machine.cpus else None,
            "interrupt_ns": window.machine.interrupt_ns if window.machine.cpus else None,
        },
        **comparison_keys.whole,
    }


def outlier_object(one: Outlier, names: Names, diagnoser: CauseFinder) -> dict[str, Any]:
    wait, catalog = one.wait, one.catalog
    found: dict[str, Any] = {
        "rule": printable(one.rule),
        "metric": one.metric,
        "category": one.category,
        "process": printable(one.program),
        "value": round(float(one.value), 3),
        "mark": round(float(one.mark), 3),
        "usual_ns": one.usual_ns or None,
        "taken_ns": one.taken_ns,
        "more": one.more,
        "was_told": one.was_told,
        "wait": None,
    }
    if wait is None:
        return found
    rule, site = diagnoser.apart().rule_of(wait.site, catalog), wait.site
    found["wait"] = {
        **_who(site.thread, catalog),
        "began_ns": one.taken_ns - (one.at_ns - wait.began_ns),
        "length_ns": one.length_ns,
        "runqueue_ns": wait.runqueue_ns,
        "going_on": one.is_going_on,
        "exact": wait.is_exact,
        "cpu": wait.cpu if wait.cpu >= 0 else None,
        "state": letter(wait.state),
        "after": one.after or None,
        "kernel": _printable(location.kernel_names(catalog, site.kernel, names)),
        "user": _printable(location.user_names(catalog, site.user, names)),
        "user_end": _end_of(catalog.stack(site.user)),
        "user_unsure": catalog.stack(site.user).is_guessed,
        "diagnosis": rule.id if rule else None,
        **_Wakers(catalog, names).wake(site, chained=True),
    }
    return found


def now_of(tick: Tick) -> Now:
    """Return what a comparison needs of a tick."""
    window = tick.kept.window
    threads = {key for key, _ in window.each_thread()}
    return Now(window.span_ns, window.catalog, threads, {key.pid for key in threads}, window.filters, window.sampling)


class _NoBaseline:
    """The `baseline` keys without a baseline: none."""

    whole: Mapping[str, Any] = MappingProxyType({})

    def category(self, name: str) -> Mapping[str, Any]:
        return self.whole

    def thread(self, key: ThreadKey) -> Mapping[str, Any]:
        return self.whole

    def site(self, key: SiteKey) -> Mapping[str, Any]:
        return self.whole


class _WithBaseline(_NoBaseline):
    """The `baseline` keys of a tick that is compared with a baseline."""

    def __init__(
        self, tick: Tick, those: Sequence[tuple[SiteKey, SiteTotals]], names: Names, comparison: Comparison
    ) -> None:
        comparison.look_at(View(idle_shown=True, filter=tick.filter), NOTHING, now_of(tick))
        self._span_ns = tick.kept.span_ns
        self._categories = by_category(tick.cut, filtered_shown=False)
        self._threads: Mapping[tuple[int, ...], Added] = by_thread(tick.shares, Scope())
        self._sites = {key: (t.waits, t.total_ns, t.max_ns, t.histogram) for key, t in those}
        self._of_categories = comparison.categories()(self._categories)
        self._of_threads = comparison.threads()(self._threads)
        self._of_sites = comparison.sites(names)(self._sites)
        baseline = comparison.baseline
        self.whole = {
            "baseline": {
                "file": printable(baseline.file),
                "taken_ns": baseline.taken_ns,
                "span_ns": baseline.span_ns,
                "sampling": sampling_object(baseline.sampling, baseline.span_ns),
                "gone_categories": [
                    {"name": key.name, "waiting": round(before.waiting, 6)} for key, before in self._of_categories.gone
                ],
                "gone_threads": [
                    {
                        "process": printable(key.process),
                        "comm": printable(key.name),
                        "waiting": round(before.waiting, 6),
                    }
                    for key, before in self._of_threads.gone
                ],
            }
        }

    def category(self, name: str) -> Mapping[str, Any]:
        return self._compared(self._of_categories, name, self._categories.get(name, NO_PART))

    def thread(self, key: ThreadKey) -> Mapping[str, Any]:
        return self._compared(self._of_threads, key, self._threads.get(key, NO_PART))

    def site(self, key: SiteKey) -> Mapping[str, Any]:
        return self._compared(self._of_sites, key, self._sites[key])

    def _compared(self, compared: Compared, key: Hashable, part: Added) -> Mapping[str, Any]:
        before = compared.before.get(key)
        if before is None:
            return {"baseline": None}
        waits, total_ns, max_ns, histogram = part
        change = Row("", "", self._span_ns, Part(waits, total_ns, max_ns, histogram), before=before).change
        spread = before.spread(self._span_ns)
        return {
            "baseline": {
                "waiting": round(before.waiting, 6),
                "change": round(change.by, 6) if change else 0.0,
                "spread": None if spread is None else round(spread, 6),
                "p99_ns": before.p99_ns,
                "new": bool(change and change.is_new),
                "sure": bool(change and change.is_sure),
            }
        }


def stacks_of(tick: Tick) -> set[int]:
    """The ids of all stacks of which the object has the functions of the program."""
    catalog, those = tick.kept.window.catalog, [key for key, _ in sites(tick)]
    wakes = {key.wake for key in those}.union(tick.kept.window.storms)
    found = {key.user for key in those}.union(one.user for one in tick.stuck.waits)
    return found.union(*(catalog.wake(wake).stacks for wake in wakes))


def filters_object(filters: Filters) -> dict[str, Any]:
    return {
        "pids": list(filters.pids),
        "tids": list(filters.tids),
        "who": filters.who,
        "states": filters.states,
        "min_ns": filters.min_ns,
        "max_ns": filters.max_ns or None,
        "cgroup": printable(filters.cgroup) or None,
        "within": printable(filters.within) or None,
    }


def sampling_object(sampling: Sampling | None, span_ns: int) -> dict[str, Any] | None:
    if sampling is None:
        return None
    return {
        "rate_hz": round(sampling.rate_hz(span_ns), 1),
        "apart_ns": sampling.apart_ns(span_ns),
        "guessed_ns": sampling.guessed_ns,
        "own_only": sampling.own_only,
        "lost_known": sampling.lost_known,
        "container_only": sampling.container_only,
    }


def _calls_object(window: Window) -> dict[str, Any]:
    calls = window.calls
    return {
        "function": printable(window.filters.within),
        "calls": calls.returned,
        "left": calls.left,
        "total_ns": calls.total_ns,
        "running_ns": calls.running_ns,
        "offcpu_ns": calls.offcpu_ns,
        "blocked_ns": calls.blocked_ns,
        "runqueue_ns": calls.runqueue_ns,
        "max_ns": calls.max_ns,
        "histogram": log2.slots(calls.histogram),
        "now": calls.now,
        "oldest_ns": calls.oldest_ns,
    }


def _callers_object(some: Endings) -> dict[str, Any]:
    return {
        "total_ns": some.total_ns,
        "whole_ns": some.whole_ns,
        "others": [
            {"end": one.end, "unsure": one.is_unsure, "file": printable(one.file), "total_ns": ns}
            for one, ns in some.others
        ],
    }


def _problem_object(one: Problem) -> dict[str, Any]:
    return {
        "binary": printable(one.binary) or None,
        "process": printable(one.process) or None,
        "reason": one.reason,
        "total_ns": one.total_ns,
        "share": round(one.share, 4),
        "remedy": one.remedy or None,
    }


def _residue_ns(tick: Tick, key: ThreadKey) -> int | None:
    """Return a thread's residue; None if it did not live through the span, or is unknown."""
    account = tick.accounts.get(key)
    return account.residue_ns if account and account.through and tick.kept.window.machine.cpus else None


_AGE_IS = {Bound.EXACT: "exact", Bound.AT_MOST: "at_most", Bound.AT_LEAST: "at_least"}


def _blocked_object(some: Stuck, row: int, catalog: Catalog, names: Names, diagnoser: CauseFinder) -> dict[str, Any]:
    one, age, leaf = some.waits[row], some.age(row), some.leaf(row)
    rule = diagnoser.rule_of(one.place, catalog)
    return {
        **_who(one.site.thread, catalog),
        "age_ns": age.ns,
        "age_is": _AGE_IS[age.bound],
        "state": one.letter,
        "category": leaf.category,
        "idle": leaf.idle,
        "diagnosis": rule.id if rule else None,
        "syscall": printable(catalog.call(one.call)) if one.call >= 0 else None,
        "arguments": list(one.arguments),
        "kernel": _printable(location.kernel_names(catalog, one.site.kernel, names)),
        "user": _printable(location.user_names(catalog, one.user, names)),
        "user_end": _end_of(catalog.stack(one.user)),
        "user_unsure": catalog.stack(one.user).is_guessed,
        "object": _named(one.site, catalog),
        "held_by": _holder_object(one.holder),
    }


def _holder_object(one: Holder) -> dict[str, Any] | None:
    return {"pid": one.pid, "tid": one.tid, "comm": printable(one.comm)} if one.tid else None


def _threads(tick: Tick) -> list[tuple[ThreadKey, ThreadTotals]]:
    """Return all totals of the threads with time that passes the filter, most time first."""
    every = sorted(tick.kept.window.each_thread(), key=lambda item: (-item[1].offcpu_ns, item[0]))
    if not tick.filter.chooses_waits:
        return every
    those = {key.thread for key in _keys(tick)}
    return [item for item in every if item[0] in those]


def sites(tick: Tick) -> list[tuple[SiteKey, SiteTotals]]:
    """Return all totals of the sites with time that passes the filter, most time first."""
    every = sorted(tick.kept.window.each_site(), key=lambda item: (-item[1].total_ns, item[0]))
    if not tick.filter.chooses_waits:
        return every
    those = _keys(tick)
    return [item for item in every if item[0] in those]


def _keys(tick: Tick) -> set[SiteKey]:
    """Return the sites with time that passes. A thread's short waits are one site."""
    return {*map(SITES.key, tick.shares.ids.tolist())}


def _site_object(key: SiteKey, totals: SiteTotals, leaf: Leaf, catalog: Catalog, names: Names) -> dict[str, Any]:
    who = _who(key.thread, catalog)
    del who["process"]
    return {
        **who,
        "category": leaf.category,
        "idle": leaf.idle,
        "waits": totals.waits,
        "total_ns": totals.total_ns,
        "blocked_ns": totals.blocked_ns,
        "runqueue_ns": totals.runqueue_ns,
        "max_ns": totals.max_ns,
        "kernel": _printable(location.kernel_names(catalog, key.kernel, names)),
        "user": _printable(location.user_names(catalog, key.user, names)),
        "user_end": _end_of(catalog.stack(key.user)),
        "user_unsure": catalog.stack(key.user).is_guessed,
        "histogram": log2.slots(totals.histogram),
    }


class _Causes:
    """The causes of a tick's waits, as ids of cause rules."""

    def __init__(
        self,
        those: Sequence[tuple[SiteKey, SiteTotals]],
        leaf_of: Mapping[SiteKey, Leaf],
        diagnoser: CauseFinder,
        catalog: Catalog,
    ) -> None:
        self._rules = {key: diagnoser.rule_of(key, catalog) for key, _ in those}
        self._ns: dict[str, Counter[str]] = {}
        self._of_threads: dict[ThreadKey, Counter[str]] = {}
        self.all: list[dict[str, Any]] = []
        """The schema's `diagnoses`, most time first."""
        whole: dict[Rule, int] = {}
        for key, totals in those:
            (queued,) = diagnoser.rules_at([(QUEUED, NO_STACK, NO_WAKE, key.pid)], catalog)
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
        for rule, ns in sorted(whole.items(), key=lambda item: -item[1]):
            texts = {"id": rule.id, "name": rule.name, "says": rule.says, "next": rule.next or None}
            self.all.append({**texts, "idle": rule.idle, "total_ns": ns})

    def of_site(self, key: SiteKey) -> str | None:
        rule = self._rules[key]
        return rule.id if rule else None

    def of_thread(self, key: ThreadKey) -> str | None:
        return _most(self._of_threads.get(key))

    def of_category(self, name: str) -> str | None:
        return _most(self._ns.get(name))


def _most(of: Counter[str] | None) -> str | None:
    return of.most_common(1)[0][0] if of else None


def _named(site: SiteKey, catalog: Catalog) -> dict[str, Any] | None:
    """Return the object waited on at a site, or None if it is unknown."""
    what = catalog.wake(site.wake).object
    if what == NO_OBJECT:
        return None
    ends = catalog.ends_of(what)
    sides = ends.for_who_waits(catalog.stack(site.kernel))
    shown = [(side.role, one) for side in sides for one in side.processes]
    return {
        "kind": printable(what.kind),
        "name": printable(what.name),
        "pid": what.pid,
        "local": printable(what.local),
        "peer": printable(what.peer),
        "state": printable(what.state),
        "ends": [{"role": role, "pid": one.pid, "comm": printable(one.comm)} for role, one in shown] or None,
        "ends_more": sum(side.total for side in sides) - len(shown),
        "members": {printable(kind): count for kind, count in ends.members} or None,
    }


class _Wakers:
    """Builds the JSON objects of wakers, and reuses them for sites that share a waker."""

    def __init__(self, catalog: Catalog, names: Names) -> None:
        self._catalog, self._names = catalog, names
        self._wakers: dict[Waker, dict[str, Any]] = {}
        self._functions: dict[tuple[int, int], list[str]] = {}

    def wake(self, site: SiteKey, chained: bool) -> dict[str, Any]:
        """Return the keys about what ended the waits of a site, and about what they were on.

        The waker is null if wakers are not recorded, the waits go on, or they were for a CPU only.
        """
        found = self._catalog.wake(site.wake)
        waker, _, links, end = found
        on = _named(site, self._catalog)
        if not found.has_waker:
            return {"waker": None, "object": on, **dict.fromkeys(("chain", "chain_wakers", "chain_end"))}
        return {
            "waker": self.waker(waker),
            "object": on,
            "chain": [self._functions_of(link.kernel, link.user) for link in links] if chained else None,
            "chain_wakers": [self.waker(link.waker) for link in links] if chained else None,
            "chain_end": end if chained else None,
        }

    def waker(self, waker: Waker) -> dict[str, Any]:
        found = self._wakers.get(waker)
        if found is None:
            found = self._wakers[waker] = {
                "kind": waker.kind,
                "name": printable(waker.name),
                "pid": waker.pid,
                "tid": waker.tid,
                "comm": printable(waker.comm),
                "via": waker.via,
                "kernel": _printable(location.kernel_names(self._catalog, waker.kernel, self._names)),
                "user": _printable(location.user_names(self._catalog, waker.user, self._names)),
            }
        return found

    def _functions_of(self, kernel: int, user: int) -> list[str]:
        """Return the functions of both stacks, leaf first."""
        found = self._functions.get((kernel, user))
        if found is None:
            names = location.kernel_names(self._catalog, kernel, self._names)
            names += location.user_names(self._catalog, user, self._names)
            found = self._functions[kernel, user] = _printable(names)
        return found


def _end_of(stack: Stack) -> str | None:
    return stack.end if stack.frames else None


def _printable(names: Sequence[str]) -> list[str]:
    return [printable(name) for name in names]


def _who(key: ThreadKey, catalog: Catalog) -> dict[str, Any]:
    if key == EXITED:
        return {"pid": 0, "tid": 0, "comm": "(exited)", "process": "(exited)"}
    comm = printable(catalog.comm(key))
    return {"pid": key.pid, "tid": key.tid, "comm": comm, "process": printable(catalog.process(key.pid))}
