"""A suspect in one sentence: who waits for what, held by whom, who does what; and what to look at next.

The texts are raw: escape them before they are shown.
"""

import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from offtop.model.aggregate import location
from offtop.model.classify.activity import RUNS
from offtop.model.classify.categories import CONNECT
from offtop.model.classify.cause_finder import CauseFinder, with_pid, without_keys
from offtop.model.classify.causes import Rule
from offtop.model.classify.suspect import CPU, DEADLOCK, LOOP, QUOTA, Found, Hop, Suspect, gone
from offtop.model.classify.wait_graph import AWAY, IDLE, IS_DISK, LOCKS, UNMEASURED
from offtop.model.values.blockers import (
    ANSWER,
    BACKLOG,
    CHILD,
    DISK,
    DISK_USER,
    FILE_LOCK,
    GIL,
    LOOKUP,
    MUTEX,
    STOPPED_BY,
    TITLE,
    UPSTREAM,
    WAKER,
)
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import Names, nameless
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import RUN_QUEUE, SHORT, SLEEP, STOPPED, THROTTLE
from offtop.units import NS_PER_S, duration, size, threads, times

_IN_TRANSACTION = "idle in transaction"
_DOES: Mapping[str, str] = {
    RUNS: "runs",
    IDLE: "looks idle",
    UNMEASURED: "is not measured",
    AWAY: "is on another machine or in a container",
    IS_DISK: "is a disk",
    RUN_QUEUE: "wants a CPU",
    THROTTLE: "waits for the CPU quota",
    STOPPED: "is stopped",
    SHORT: "is in a wait without a stack",
    "tty": "waits for its terminal",
    "child": "waits for a child process",
    "signal": "waits for a signal",
}
_WAITS: Mapping[str, str] = {
    "lock": "a lock",
    "kernel-lock": "a lock inside the kernel",
    "net-recv": "an answer",
    "net-send": "room in the send buffer",
    CONNECT: "a connection",
    "pipe": "a process on this machine",
    "poll": "an event",
    "child": "a child process",
    "other": "something that no rule names",
    "disk-read": "the disk to read",
    "disk-write": "the disk to write",
    "fsync": "data to be durable",
    "page-fault": "a mapped file",
    "swap": "swap",
    "reclaim": "free memory",
    RUN_QUEUE: "a CPU",
    THROTTLE: "the CPU quota",
}
_HOLDS: Mapping[str, str] = {GIL: "Python's GIL", MUTEX: "a mutex", FILE_LOCK: "a file lock"}
_HELD = LOCKS | {WAKER, LOOKUP}
_BEFORE_DISK: Mapping[str, str] = {DISK: "on", DISK_USER: "behind"}
_IS_FULL = ("pipe-full", "unix-full")
"""Ids of cause rules of threads that wait for room to send."""
_POLLS = ("poll", "event-loop")
"""Ids of cause rules that do not say what of several things a thread waits for."""
_STOPPED: Mapping[str, str] = {
    "debugger": "is stopped by a debugger",
    "stop-signal": "is stopped by a signal",
    "frozen-cgroup": "is frozen",
}
"""Ids of cause rules of stopped threads, and what these do."""
_STOPPED_NEXT: Mapping[str, str] = {
    "debugger": "its debugger: grep TracerPid /proc/{pid}/status",
    "stop-signal": "what stopped it; to continue it: kill -CONT {pid}",
    "frozen-cgroup": "what froze it: cgroup.freeze or freezer.state of the cgroups in /proc/{pid}/cgroup and above",
}
_V1_FILES = ("freezer.state", "memory.limit_in_bytes")
_V1_MOUNT, _V2_MOUNT = re.compile(r"/sys/fs/cgroup/[^/]+(?=/)"), re.compile(r"/sys/fs/cgroup(/unified)?(?=/)")
"""Where cgroup hierarchies are usually mounted."""
_LONGEST_PATH = 40
_OWN_LOCKS = "in which order they take their locks; end one of them to free the others"


class Sentence(NamedTuple):
    """All texts are raw."""

    says: str
    next: str
    """What to look at next; empty for nothing."""
    brief: str = ""
    """Who waits, and what must act, without the hops in between; empty if there are none."""

    @property
    def in_batch(self) -> str:
        """With options in place of keys."""
        return f"{self.says}. Next: {without_keys(self.next)}." if self.next else f"{self.says}."


_LEAST_SEEN_NS, _LEAST_TIMES = 5 * NS_PER_S, 3
"""A suspect that was seen for so long, and so many times as long as its waits, has waits that repeat."""
_ALIKE = 0.8, 1.25
"""A multiple of the baseline between these is no change."""


def change_text(one: Suspect, found: Found, baseline: Baseline | None) -> str:
    """Return how a suspect differs from the baseline: `new since 02:01:00`, `x3 of the baseline`; empty without one.

    `found`: all suspects of the tick.
    """
    if baseline is None or baseline.suspects is None:
        return ""
    before = baseline.suspects.get(one.name, 0.0)
    if not before:
        return f"new since {datetime.fromtimestamp(one.since_ns // NS_PER_S):%H:%M:%S}"
    factor, (least, most) = found.waiting_like(one) / before, _ALIKE
    return "as in the baseline" if least <= factor <= most else f"{times(factor)} of the baseline"


def gone_texts(found: Found, baseline: Baseline | None) -> list[str]:
    """Return a line for each suspect of the baseline that no thread waits for now."""
    if baseline is None or baseline.suspects is None:
        return []
    return [
        f"gone: {name.text}, {threads(waiting)} in the baseline" for name, waiting in gone(found, baseline.suspects)
    ]


def of_several(does: str) -> str:
    """Return `wait for their terminal` for `waits for its terminal`."""
    verb, _, rest = does.partition(" ")
    rest = f" {rest} ".replace(" its ", " their ").strip()
    return " ".join(filter(None, ("are" if verb == "is" else verb.removesuffix("s"), rest)))


def cgroup_of_file(file: str) -> str:
    """Return the path of the cgroup that has a file, in its hierarchy if that is mounted at the usual place."""
    group, _, name = file.rpartition("/")
    mount = _V1_MOUNT if name in _V1_FILES else _V2_MOUNT
    return short_path(group.removeprefix(found[0]) if (found := mount.match(group)) else group)


def short_path(cgroup: str) -> str:
    """Return the path of a cgroup, without its parents if it is long, as those of containers are."""
    return cgroup if len(cgroup) <= _LONGEST_PATH else f".../{cgroup.rpartition('/')[2]}"


class SuspectTexts:
    """Describes suspects of one source, with the names of functions that are known by now."""

    def __init__(self, catalog: Catalog, names: Names, causes: CauseFinder) -> None:
        self._catalog, self._names, self._causes = catalog, names, causes

    def sentence(self, one: Suspect) -> Sentence:
        if one.kind in (DEADLOCK, LOOP):
            return self._circle(one)
        if one.kind == QUOTA:
            return self._quota(one)
        first = self._first(one)
        waiter = one.hops[first]
        others = f" and {waiter.others} other program{'s' * (waiter.others > 1)}" if waiter.others else ""
        verb = "wait" if others or waiter.threads > 1 else "waits"
        brief, waits = "", f"{self.name_of(waiter)}{others} {verb} for {self.what(waiter)}{self._extent(one, first)}"
        says = waits
        for hop, after in zip(one.hops[first:], one.hops[first + 1 :], strict=False):
            says += self._link(hop, after, one.kind)
            if after is not one.end and after.via != STOPPED_BY:  # else the link says what it does
                says += f", which wait{'s' * self.is_one(after)} for {self.what(after)}"
        ends = ""
        if first < len(one.hops) - 1 and one.end.state != IS_DISK:
            does = self.does(one.end)
            ends = f", {does}" if _title(one.end) else f", which {does if self.is_one(one.end) else of_several(does)}"
        if first < len(one.hops) - 2:
            likely = "" if all(hop.is_exact for hop in one.hops[first:-1]) else "likely "
            brief = f"{waits}, {likely}in the end for {self.name_of(one.end)}{ends}"
        says += ends
        return Sentence(says, self._next(one, waiter), brief)

    def is_one(self, hop: Hop) -> bool:
        """Return whether `name_of` is in the singular: a thread, or a process that is stopped."""
        return hop.threads == 1 or (hop.state == STOPPED and hop.pids == 1)

    def name_of(self, hop: Hop) -> str:
        """Return `12 postgres`, or `postgres(30499)` for a single thread, by its own name and TID if it has one.

        `at least 12 postgres`: others may wait for the same, but their stacks are not read yet.
        """
        if hop.state in (AWAY, IS_DISK):
            return hop.program
        if hop.threads > 1 and self.is_one(hop):
            return f"{hop.program}({hop.key.pid})"
        if hop.threads > 1:
            many = f"{'at least ' if hop.unread else ''}{hop.threads}"
            return f"{many} {hop.program}" if hop.pids > 1 else f"{many} threads of {hop.program}"
        tid = hop.key.tid or hop.key.pid
        name = hop.program if tid == hop.key.pid else self._catalog.comm(hop.key) or hop.program
        return f"{name}({tid})"

    def what(self, hop: Hop) -> str:
        """Return what a hop waits for."""
        if hop.via == FILE_LOCK and hop.what:
            return hop.what
        rule = self.rule(hop)
        polls = rule is None or rule.general.id in _POLLS
        if hop.via == UPSTREAM or (hop.via in (ANSWER, BACKLOG) and hop.state == "poll" and polls):
            return "an answer"
        if rule and hop.via:  # the next hop is named anyway
            rule = rule.general
        if hop.state == CONNECT and hop.what:
            return f"{rule.name} at {hop.what}" if rule and rule.id != CONNECT else f"{_WAITS[CONNECT]} to {hop.what}"
        if hop.limited_by:
            limit = hop.limited_by.rpartition("/")[2]
            return f"memory of {cgroup_of_file(hop.limited_by)}, at {limit} of {size(hop.limit_bytes)}"
        return rule.name if rule else _HOLDS.get(hop.via) or _WAITS.get(hop.state, hop.state)

    def waited_for(self, one: Suspect) -> str:
        """Return what the sentence says that threads wait for: `the WAL flush`."""
        if one.kind in (DEADLOCK, LOOP):
            return "each other" if len(one.hops) > 1 else self.what(one.end)
        return _WAITS[THROTTLE] if one.kind == QUOTA else self.what(one.hops[self._first(one)])

    def does(self, hop: Hop) -> str:
        """Return what the last of a chain does, so that others must wait."""
        if title := _title(hop):
            return f"{title} and stopped" if hop.state == STOPPED else title
        if hop.state == SLEEP:
            place = self._function(hop)
            return f"sleeps in {place}" if place else "sleeps"
        if hop.state == IDLE and hop.site and not self._is_named(hop.site.user):
            return "waits in unknown functions"  # they may show that it is not for work
        if hop.state in _DOES:
            return self._stopped(hop) if hop.state == STOPPED else _DOES[hop.state] + self._of_quota(hop)
        if (rule := self.rule(hop)) and rule.is_sleep:
            return "sleeps"
        return f"waits for {self.what(hop)}"

    def _stopped(self, hop: Hop) -> str:
        if hop.frozen_by:
            return f"is frozen by its cgroup {cgroup_of_file(hop.frozen_by)}"
        rule = self.rule(hop)
        return _STOPPED.get(rule.id if rule else "", _DOES[STOPPED])

    def _is_named(self, user: int) -> bool:
        """Return whether a function of a user stack has a name."""
        return any(self._names.of(one) != nameless(one) for one in self._catalog.stack(user).frames)

    def rule(self, hop: Hop) -> Rule | None:
        """Return the cause rule of its wait."""
        return self._causes.rule_of(hop.site, self._catalog) if hop.site else None

    def _first(self, one: Suspect) -> int:
        """Return the hop with which the sentence begins: who waits for a lock itself, else who waits longest."""
        last = len(one.hops) - 2
        return last if last > 0 and one.hops[last].via in _HELD else 0

    def _extent(self, one: Suspect, first: int) -> str:
        """Return how long, and how many others are behind."""
        age_ns = one.hops[first].age_ns
        is_repeated = one.lasted_ns >= max(_LEAST_SEEN_NS, _LEAST_TIMES * age_ns)
        seen = f"seen for {duration(one.lasted_ns)}" if is_repeated else ""
        programs = {hop.program for hop in one.hops[:first]}
        who = programs.pop() if len(programs) == 1 else "threads"
        more = f"{sum(hop.threads for hop in one.hops[:first])} {who} behind" if first else ""
        if one.kind == CPU:
            seen, more = "", f"{threads(one.waiting)} threads on average"
        text = ", ".join(filter(None, (duration(age_ns), seen, more)))
        return f" ({text})" if text else ""

    def _link(self, hop: Hop, after: Hop, kind: str) -> str:
        likely = "" if hop.is_exact else "likely "
        if kind == CPU:
            return f", {likely}taken by {self.name_of(after)}"
        if hop.via in _HELD:
            return f", {likely}held by {self.name_of(after)}"
        if hop.via in _BEFORE_DISK:
            return f", {likely}{_BEFORE_DISK[hop.via]} {self.name_of(after)}"
        if hop.via == CHILD:  # it waits for the process, not for something from it
            return f", {likely}{self.name_of(after)}"
        if hop.via == STOPPED_BY:
            return f", {likely}stopped by {self.name_of(after)}"
        rule = self.rule(hop)
        preposition = "to" if rule and rule.general.id in _IS_FULL else "from"
        return f", likely {preposition} {self.name_of(after)}" if likely else f" {preposition} {self.name_of(after)}"

    def _circle(self, one: Suspect) -> Sentence:
        some = [self.name_of(hop) for hop in one.hops]
        if len(some) == 1:
            others = round(one.waiting) - 1
            extent = duration(one.end.age_ns) + (f", {others} threads behind" if others > 0 else "")
            waits = f"{some[0]} waits for {self.what(one.end)} ({extent}), which it holds itself"
            return Sentence(waits, f"where it takes that lock twice: offtop -p {one.end.key.pid}, and its stack")
        locks = [hop.what for hop in one.hops if hop.what]
        age = duration(min(hop.age_ns for hop in one.hops))
        what = f" (locks {', '.join(locks)})" if locks else ""
        word = f"a deadlock for {age}{what}" if one.kind == DEADLOCK else f"each other ({age})"
        joined = f"{', '.join(some[:-1])} and {some[-1]}"
        return Sentence(f"{joined} wait for each other: {word}", _OWN_LOCKS)

    def _quota(self, one: Suspect) -> Sentence:
        share = f"{100 * one.waiting / max(1, one.end.threads):.0f}% of the time"
        if one.waiting > one.end.threads:  # these are processes
            share = f"{one.waiting:.1f} threads on average"
        likely = "" if one.end.is_exact else "likely "
        waits = f"{self.name_of(one.end)} {likely}wait{'s' * (one.end.threads == 1)}"
        quota = f"the CPU quota{self._of_quota(one.end)}"
        return Sentence(f"{waits} for {quota}, {share}", "the quota, and how many threads share it")

    def _of_quota(self, hop: Hop) -> str:
        """Return ` of /app (20% of a CPU)`; empty if it does not wait for a quota, or none is known."""
        if hop.state != THROTTLE:
            return ""
        cgroup = hop.what or self._catalog.detail(hop.key.pid).cgroup
        of = f" of {short_path(cgroup)}" if cgroup else ""
        cpus = f"{100 * hop.quota_cpus:.3g}% of a CPU" if hop.quota_cpus < 1 else f"{hop.quota_cpus:.3g} CPUs"
        return f"{of} ({'1 CPU' if hop.quota_cpus == 1 else cpus})" if hop.quota_cpus else of

    def _next(self, one: Suspect, waiter: Hop) -> str:
        if one.kind == CPU:
            pid, program = one.end.key.pid, one.end.program
            if realtime := self._catalog.detail(pid).realtime:
                first = f"the real-time priority of {program} ({realtime}), which runs before all normal programs"
                return f"{first}: chrt -p {pid}"
            of = f"{program}({pid}), which runs most" if one.end.threads > 1 else program
            return f"the priority (nice) of {of}, or a CPU quota for it"
        end, rule = one.end, self.rule(one.end)
        if len(one.hops) > 1 and (waiter.via != TITLE or end.state == STOPPED):
            if one.hops[-2].via in LOCKS and end.state == SLEEP and end.key.pid != waiter.key.pid:
                return f"who started it: ps -o pid,ppid,lstart,args -p {end.key.pid}"
            if one.hops[-2].via == STOPPED_BY:
                return f"continue it in {self.name_of(end)}, or detach"
            own = with_pid(rule.next, end.key.pid) if rule and end.state != IDLE and end.state not in _DOES else ""
            if end.state == STOPPED:
                return self._next_of_stopped(end)
            if end.state == IS_DISK:
                cause = self.rule(waiter)
                return with_pid(cause.next, waiter.key.pid) if cause else ""
            if end.state == UNMEASURED:
                return f"ps -o stat,wchan:20,args -p {end.key.pid}: a filter such as -p leaves it out, or it has exited"
            if end.state == AWAY:
                return f"offtop where {end.program.rpartition(':')[0]} is"
            return own or f"offtop -p {end.key.pid}, which shows where {end.program} waits and runs"
        if waiter.limited_by:
            return f"what uses that memory (memory.stat), or the limit: {shlex.quote(waiter.limited_by)}"
        rule = self.rule(waiter)
        return with_pid(rule.next, waiter.key.pid) if rule else ""

    def _next_of_stopped(self, end: Hop) -> str:
        pid, rule, file = end.key.pid, self.rule(end), end.frozen_by
        if file:
            word = "0" if file.endswith("/cgroup.freeze") else "THAWED"
            return f"what froze it; to thaw it: echo {word} > {shlex.quote(file)}"
        if rule and rule.id in _STOPPED_NEXT:
            return _STOPPED_NEXT[rule.id].format(pid=pid)
        return f"what stopped it: a frozen cgroup, a signal (kill -CONT {pid}), a debugger (its TracerPid)"

    def _function(self, hop: Hop) -> str:
        """Return the innermost function of the program in its stack; empty if it is unknown."""
        if hop.site is None:
            return ""
        return location.own_function(self._catalog, hop.site.user, self._names)


def _title(hop: Hop) -> str:
    """Return what a session says that it does, if that is why others wait."""
    at = hop.title.find(_IN_TRANSACTION)
    return hop.title[at:] if at >= 0 else ""
