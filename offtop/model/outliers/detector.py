"""OutlierDetector: decides which waits and ticks are outliers, by triggers and by what is usual.

The BPF programs report waits that reach a threshold. They know neither programs nor categories, so each kernel stack
and program gets its own threshold (`OutlierDetector.thresholds_ns`). A wait in progress is judged when it crosses its
threshold. The detector runs in the thread that reads ticks.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtop.model.classify.suspect import NOTHING_FOUND, Found, Suspect
from offtop.model.outliers.io_triggers import Measured, measured_io
from offtop.model.outliers.trigger import EVENTS, HARM, MAX, NOW, SUSPECT, WAITING, Trigger
from offtop.model.outliers.usual import ENOUGH_SHORT, Usual
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.outlier import AUTO, NEVER_NS, LongWait, Outlier, Outliers
from offtop.model.values.snapshot import Bound, Snapshot, ThreadTotals, Waiting
from offtop.model.values.stack import FIRST_STACK, PLACELESS
from offtop.model.values.table import SITES, distinct, integers
from offtop.model.values.waits import KERNEL, WaitList, changed
from offtop.model.values.wake import FIRST_WAKE
from offtop.model.values.wake import RESERVED as RESERVED_WAKES
from offtop.model.windows.breakdown import FILTERED, RUN_QUEUE, SHORT, SLEEP, THROTTLE, Idle, Part, total
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.idle_by_rule import IDLE, NOT_IDLE, SLEEPS
from offtop.units import NS_PER_S

LEAST_AUTO_NS = 10_000_000
_NEVER_UNUSUAL = frozenset({SLEEP, "child", "signal", "tty"})
"""Categories of waits that last as long as the program, its child or a user wants: never unusual."""
TIMES_USUAL = 20
_MOST_OF_KIND, _MOST_IN_TICK = 50, 500
"""Most outliers stored per kind and per tick; further ones are only counted."""
_MOST_DUE = 4
"""Most entries of `_due` per wait in progress; beyond that, most belong to waits that have ended."""
_Identity = tuple[int, int, int]


class _Match(NamedTuple):
    """Why a wait is an outlier; fields of Outlier."""

    rule: str
    metric: str
    category: str
    threshold: float


class OutlierDetector:
    """Finds outliers and stores them in `outliers`."""

    def __init__(self, triggers: Collection[Trigger | None]) -> None:
        """`triggers`: None among them stands for `auto`."""
        self.outliers = Outliers()
        self._usual = Usual()
        self._triggers: Sequence[Trigger] = ()
        self._auto = False
        self.version = 0
        self._thresholds_ns: dict[tuple[str, str], int] = {}
        self._due: list[tuple[int, int, int, int]] = []
        """(due_ns, pid, tid, switched_out_ns) of waits in progress that may reach their threshold, earliest first."""
        self._waiting: Mapping[ThreadKey, Waiting] = {}
        self._reported: dict[_Identity, Outlier] = {}
        """Waits reported while in progress."""
        self._counted: set[_Identity] = set()
        """Waits in progress that were only counted."""
        self._suspects: set[tuple[str, ...]] = set()
        """Keys of the suspects of the last tick."""
        self._true_since: dict[tuple[str, str], int] = {}
        """(trigger text, program) → since when the trigger's condition holds."""
        self._next_triggers = deque[Collection[Trigger | None]]()
        self._use_triggers(triggers)

    def set_triggers(self, triggers: Collection[Trigger | None]) -> None:
        """Use these triggers from the next tick on. Thread-safe."""
        self._next_triggers.append(triggers)

    def _use_triggers(self, triggers: Collection[Trigger | None]) -> None:
        self._auto = None in triggers
        self._triggers = tuple(one for one in triggers if one)
        self._true_since.clear()
        self._clear_thresholds()

    @property
    def lowest_ns(self) -> int:
        of_waits = [int(one.value) for one in self._triggers if one.is_of_waits]
        return min([NEVER_NS, *of_waits, *([LEAST_AUTO_NS] if self._auto else [])])

    def thresholds_ns(self, program: str, kernel: int, catalog: Catalog) -> tuple[int, int]:
        category = catalog.stack(kernel).category
        own_ns = self._threshold_ns(program, category)
        return own_ns, own_ns if category == THROTTLE else self._threshold_ns(program, RUN_QUEUE)

    def tick(
        self,
        snapshot: Snapshot,
        tick: HistoryTick,
        suspects: Found = NOTHING_FOUND,
        sentence: Callable[[Suspect], str] = lambda _: "",
    ) -> Sequence[Outlier]:
        """Return the outliers of a tick; `suspects` are those of the same tick, and `sentence` describes one. Raw.

        Those reported while in progress are reported again when they end.
        """
        while self._next_triggers:
            self._use_triggers(self._next_triggers.popleft())
            self._waiting = {}
        found = self._outliers_among([*snapshot.long_waits, *self._crossed(snapshot)], snapshot, tick)
        found += self._ended(snapshot, tick, {one.wait.identity for one in found if one.wait})
        found += (one for trigger in self._triggers for one in self._of_tick(trigger, snapshot, tick))
        found += self._new_suspects(suspects, tick, sentence)
        for one in found:
            if one.is_going_on and one.wait:
                self._reported[one.wait.identity] = one
            elif one.wait:
                self._reported.pop(one.wait.identity, None)
        self.outliers.add(found)
        min_ns = max(snapshot.filters.min_ns, snapshot.cost.thinned.stacks_from_ns)
        if self._usual.learn(tick.breakdown, snapshot.catalog.processes, min_ns, tick.at_ns):
            self._clear_thresholds()
            self._waiting = {}
        return found

    def _clear_thresholds(self) -> None:
        self._thresholds_ns.clear()
        self.version += 1

    def _threshold_ns(self, program: str, category: str) -> int:
        """Return the length from which on a wait that is not idle may be an outlier."""
        of = program, category
        known = self._thresholds_ns.get(of)
        if known is None:
            known = self._thresholds_ns[of] = min(self._every_threshold_ns(program, category))
        return known

    def _every_threshold_ns(self, program: str, category: str) -> list[int]:
        thresholds_ns = [self._auto_ns(program, category)]
        thresholds_ns += (
            int(one.value) for one in self._triggers if one.is_of_waits and one.is_about(program, category)
        )
        return thresholds_ns

    def _auto_ns(self, program: str, category: str) -> int:
        usual_ns = self._usual.of(program, category) if self._auto and category not in _NEVER_UNUSUAL else 0
        return min(NEVER_NS, max(LEAST_AUTO_NS, TIMES_USUAL * usual_ns)) if usual_ns else NEVER_NS

    def _outliers_among(self, some: Sequence[LongWait], snapshot: Snapshot, tick: HistoryTick) -> list[Outlier]:
        """Return those that are too long, longest first.

        If there are many of one kind, only the longest are returned in full.
        """
        some = sorted(some, key=lambda one: -one.length_ns(tick.at_ns))
        categories = [snapshot.catalog.stack(one.site.kernel).category for one in some]
        found: list[Outlier] = []
        of_kind: dict[tuple[str, str, str], list[int]] = {}
        for one, category, is_idle in zip(some, categories, _idle(some, categories, tick.idle), strict=True):
            if one.identity in self._counted:
                continue
            known = self._reported.get(one.identity)
            match = _Match(known.rule, known.metric, known.category, known.threshold) if known else None
            match = match or self._match(one, category, is_idle, snapshot.threads, tick)
            if match is None:
                continue
            numbers = of_kind.setdefault((match.rule, one.program, match.category), [])
            if known is None and numbers and (len(numbers) >= _MOST_OF_KIND or len(found) >= _MOST_IN_TICK):
                found[numbers[0]] = found[numbers[0]]._replace(more=found[numbers[0]].more + 1)
                if not one.ended_ns:
                    self._counted.add(one.identity)
                continue
            if known is None:
                numbers.append(len(found))
            found.append(self._outlier(one, match, known, snapshot, tick))
        return found

    def _match(
        self, one: LongWait, category: str, is_idle: bool, threads: Mapping[ThreadKey, ThreadTotals], tick: HistoryTick
    ) -> _Match | None:
        """Judge the blocked and the run-queue part of a wait; return None if neither is too long."""
        ready_ns = 0 if category == THROTTLE else one.runqueue_ns
        parts = (category, one.length_ns(tick.at_ns) - ready_ns, is_idle), (RUN_QUEUE, ready_ns, False)
        for trigger in self._triggers:
            if trigger.metric != MAX and (trigger.metric != NOW or one.ended_ns):
                continue
            for name, ns, idle in parts:
                if ns > trigger.value and trigger.is_about(one.program, name) and (trigger.with_idle or not idle):
                    return _Match(trigger.text, trigger.metric, name, trigger.value)
        for name, ns, idle in parts:
            threshold_ns = self._auto_ns(one.program, name)
            if one.began_ns < self._usual.since_ns or (not one.ended_ns and ns - threshold_ns > 2 * tick.span_ns):
                continue  # it was that long before the usual length was known
            if ns < threshold_ns or idle:
                continue
            of_thread = threads.get(one.site.thread, ThreadTotals())
            if not self._usual.is_by_short(one.program, name) or of_thread.short_waits >= ENOUGH_SHORT:
                return _Match(AUTO, MAX, name, threshold_ns)
        return None

    def _outlier(
        self, one: LongWait, match: _Match, known: Outlier | None, snapshot: Snapshot, tick: HistoryTick
    ) -> Outlier:
        value = _value_ns(one, match.category, tick.at_ns)
        usual_ns = known.usual_ns if known else self._usual.of(one.program, match.category)
        times = tick.at_ns, tick.taken_ns
        what = match.rule, match.metric, match.category, one.program, value, match.threshold
        return Outlier(
            *times,
            *what,
            usual_ns,
            one,
            _after(snapshot, one),
            bool(known),
            catalog=excerpt(snapshot.catalog, one.site),
        )

    def _crossed(self, snapshot: Snapshot) -> list[LongWait]:
        """Return the waits in progress that have reached their threshold."""
        before, self._waiting = self._waiting, snapshot.waiting
        catalog, at_ns = snapshot.catalog, snapshot.at_ns
        if not before:
            self._due.clear()
        for one, threshold_ns in self._watched(WaitList.of(changed(snapshot.waiting, before)), catalog):
            self._schedule(one, threshold_ns)
        reported = {one.identity for one in snapshot.long_waits}
        found: dict[_Identity, LongWait] = {}
        while self._due and self._due[0][0] <= at_ns:
            _, pid, tid, switched_out_ns = heapq.heappop(self._due)
            one = snapshot.waiting.get(ThreadKey(pid, tid))
            if one is None or one.switched_out_ns != switched_out_ns or one.site.kernel < FIRST_STACK:
                continue
            began_ns = _began_ns(one)
            later = [
                ns
                for ns in self._every_threshold_ns(
                    catalog.process(pid), _category_of(one.site.kernel, one.is_ready, catalog)
                )
                if ns >= at_ns - began_ns
            ]
            self._schedule(one, min(later, default=NEVER_NS))
            ready_ns = at_ns - began_ns if one.is_ready else one.runqueue_ns
            site = one.site._replace(user=one.site.user or one.user)
            program, is_exact = catalog.process(pid), one.bound is Bound.EXACT
            wait = LongWait(
                site, began_ns, 0, ready_ns, one.state, -1, program, is_exact=is_exact, began_earlier=not is_exact
            )
            if wait.identity not in self._reported and wait.identity not in reported:
                found[wait.identity] = wait
        if len(self._due) > _MOST_DUE * len(snapshot.waiting) + _MOST_IN_TICK:
            self._waiting = {}
        return [*found.values()]

    def _watched(self, waits: WaitList, catalog: Catalog) -> Iterator[tuple[Waiting, int]]:
        """Return the waits that may become outliers, each with its threshold. Most are of a kind that never is one."""
        waits = waits.of_rows(waits.rows[:, KERNEL] >= FIRST_STACK)
        kinds, which = distinct(np.column_stack((waits.rows[:, [0, KERNEL]], waits.is_ready.astype(np.int64))))
        thresholds_ns = [
            self._threshold_ns(catalog.process(pid), _category_of(kernel, is_ready != 0, catalog))
            for pid, kernel, is_ready in kinds.tolist()
        ]
        some = np.flatnonzero(np.array([ns != NEVER_NS for ns in thresholds_ns], np.bool_)[which])
        yield from zip(waits.of_rows(some), map(thresholds_ns.__getitem__, which[some].tolist()), strict=True)

    def _schedule(self, one: Waiting, threshold_ns: int) -> None:
        """Check a wait when it becomes longer than `threshold_ns`; NEVER_NS: it need not be checked."""
        if threshold_ns != NEVER_NS:
            heapq.heappush(
                self._due, (_began_ns(one) + threshold_ns + 1, one.site.pid, one.site.tid, one.switched_out_ns)
            )

    def _ended(self, snapshot: Snapshot, tick: HistoryTick, reported: Collection[_Identity]) -> list[Outlier]:
        """Return waits that were reported while in progress and have ended without another report."""
        found: list[Outlier] = []
        for pid, tid, began_ns in list(self._counted):
            now = snapshot.waiting.get(ThreadKey(pid, tid))
            if now is None or _began_ns(now) != began_ns:
                self._counted.discard((pid, tid, began_ns))
        for identity, was in self._reported.items():
            now = snapshot.waiting.get(was.wait.site.thread) if was.wait else None
            if identity not in reported and was.wait and (now is None or _began_ns(now) != was.wait.began_ns):
                wait = was.wait._replace(ended_ns=snapshot.at_ns, is_exact=False)
                at = {
                    "at_ns": tick.at_ns,
                    "taken_ns": tick.taken_ns,
                    "value": _value_ns(wait, was.category, tick.at_ns),
                }
                found.append(was._replace(wait=wait, was_reported=True, more=0, **at))
        return found

    def _new_suspects(self, suspects: Found, tick: HistoryTick, sentence: Callable[[Suspect], str]) -> list[Outlier]:
        """Return the suspects that were not there in the tick before, if a trigger wants them."""
        before, self._suspects = self._suspects, {one.key for one in suspects.suspects}
        if not any(one.metric == HARM for one in self._triggers):
            return []
        times = tick.at_ns, tick.taken_ns
        return [
            Outlier(*times, SUSPECT, HARM, one.hops[0].state, one.end.program, one.harm, 0.0, says=sentence(one))
            for one in suspects.suspects
            if one.key not in before
        ]

    def _of_tick(self, trigger: Trigger, snapshot: Snapshot, tick: HistoryTick) -> list[Outlier]:
        """Apply a trigger for ticks: to each program that it names, or to all together."""
        if trigger.is_of_waits or trigger.metric == HARM:
            return []
        found: list[Outlier] = []
        measured = measured_io(trigger, tick) if trigger.io else _measured_waits(trigger, snapshot.catalog, tick)
        for program, (value, what, io) in measured.items():
            of = trigger.text, program
            if value <= trigger.value:
                self._true_since.pop(of, None)
                continue
            since_ns = self._true_since.setdefault(of, tick.at_ns - tick.span_ns)
            lasted_ns, before_ns = tick.at_ns - since_ns, tick.at_ns - tick.span_ns - since_ns
            is_new = before_ns < trigger.for_ns or not before_ns
            if trigger.judges_each:  # a call in progress is judged again in each tick, but reported once
                is_new = is_new or trigger.metric == MAX or value - tick.span_ns <= trigger.value
            if lasted_ns >= trigger.for_ns and is_new:
                rule = trigger.text, trigger.metric, what, program, value, trigger.value
                found.append(Outlier(tick.at_ns, tick.taken_ns, *rule, io=io))
        for of in [of for of in self._true_since if of[0] == trigger.text and of[1] not in measured]:
            del self._true_since[of]
        return found


def _idle(some: Sequence[LongWait], categories: Sequence[str], idle: Idle) -> list[bool]:
    """Return whether each is idle, as in Shares."""
    ids = integers([one.site for one in some], SITES.width)
    is_idle = np.array([category in idle.categories for category in categories], np.bool_)
    by_rule = idle.by_rule.of(ids)
    asleep = np.flatnonzero(np.array([category == SLEEP for category in categories], np.bool_) | (by_rule == SLEEPS))
    if len(asleep):
        is_idle[asleep] |= idle.is_periodic(ids[asleep])
    is_idle[by_rule == IDLE], is_idle[by_rule == NOT_IDLE] = True, False
    return is_idle.tolist()


def excerpt(catalog: Catalog, site: SiteKey) -> Catalog:
    """Return what a catalog has about one wait."""
    wake = catalog.wake(site.wake)
    stacks = {site.kernel, site.user, *wake.stacks}
    threads = {site.thread, *(ThreadKey(one.pid, one.tid) for one in (wake.waker,) if one.tid)}
    pids = {key.pid for key in threads}
    return Catalog(
        stacks={one: catalog.stack(one) for one in stacks},
        wakes={**RESERVED_WAKES, **({site.wake: wake} if site.wake >= FIRST_WAKE else {})},
        comms={key: comm for key in threads if (comm := catalog.comms.get(key))},
        processes={pid: name for pid in pids if (name := catalog.processes.get(pid))},
        details={pid: reported for pid in pids if (reported := catalog.details.get(pid))},
        peers={wake.object: peers} if (peers := catalog.peers.get(wake.object)) else {},
    )


def _value_ns(one: LongWait, category: str, at_ns: int) -> int:
    """Return the part of a wait that belongs to a category."""
    if category == RUN_QUEUE:
        return one.runqueue_ns
    return one.length_ns(at_ns) - (one.runqueue_ns if category != THROTTLE else 0)


def _category_of(kernel: int, is_ready: bool, catalog: Catalog) -> str:
    """Return the category of a wait in progress; `is_ready`: as Waiting.is_ready."""
    category = catalog.stack(kernel).category
    return RUN_QUEUE if is_ready and category != THROTTLE else category


def _began_ns(one: Waiting) -> int:
    """Return since when the wait is known to last."""
    return one.since_ns if one.since_ns and one.bound is Bound.EXACT else one.switched_out_ns


def _after(snapshot: Snapshot, wait: LongWait) -> str:
    """Return what the thread does at the end of the tick, as Outlier.after."""
    now = snapshot.waiting.get(wait.site.thread)
    if now is None:
        return "running" if wait.site.thread in snapshot.threads else "ended"
    if not wait.ended_ns:
        return ""
    category = SHORT if now.site.kernel in PLACELESS else snapshot.catalog.stack(now.site.kernel).category
    return f"{now.letter} {category}"


def _measured_waits(trigger: Trigger, catalog: Catalog, tick: HistoryTick) -> dict[str, Measured]:
    what = ", ".join(sorted(trigger.categories)) if trigger.categories else ""
    parts = _parts(trigger, catalog, tick)
    return {program: (_measured(trigger, part, tick.span_ns), what, None) for program, part in parts.items()}


def _parts(trigger: Trigger, catalog: Catalog, tick: HistoryTick) -> dict[str, Part]:
    """Return what a trigger for ticks covers, by program.

    Everything is under the empty name if the trigger names no program.
    """
    parts: dict[str, list[Part]] = {}
    for leaf, by_pid in tick.breakdown.processes.items():
        if leaf.category == FILTERED or (leaf.idle and not trigger.with_idle):
            continue
        for pid, part in by_pid.items():
            program = catalog.process(pid)
            if trigger.is_about(program, leaf.category):
                parts.setdefault(program if trigger.program else "", []).append(part)
    return {program: total(some) for program, some in parts.items()}


def _measured(trigger: Trigger, part: Part, span_ns: int) -> float:
    if trigger.metric == WAITING:
        return part.total_ns / span_ns
    if trigger.metric == EVENTS:
        return part.waits * NS_PER_S / span_ns
    return log2.percentile_ns(part.histogram, trigger.percent, part.max_ns)
