"""CauseFinder: applies cause rules to sites.

Each kind of wait is matched once, and again when its functions get names.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from offtop.model.classify.causes import (
    BELOW_REASON,
    NO_REASON,
    NO_RULES,
    PeerName,
    Reason,
    Rule,
    RuleSource,
    Subject,
    first_match,
    subject_of,
)
from offtop.model.classify.left_out import LeftOut, estimated_ns
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.peers import may_have_peers
from offtop.model.values.snapshot import EXITED, PSEUDO_PIDS
from offtop.model.values.stack import NO_STACK, PLACELESS, QUEUED, Frame, Names, nameless
from offtop.model.values.table import Ints, distinct_rows
from offtop.model.values.wake import NO_OBJECT, Object
from offtop.model.windows.breakdown import RUN_QUEUE, PartTuple
from offtop.model.windows.idle_by_rule import (
    IDLE,
    NOT_IDLE,
    NOTHING_BY_RULE,
    SLEEPS,
    UNDECIDED,
    WHERE,
    IdleByRule,
    Where,
)
from offtop.printable import printable

K = TypeVar("K")
_MOST_KNOWN = 50_000
_MOST_DECIDED = 4
"""How many decisions about locations are cached, as a multiple of the number of locations."""
_MOST_UNANSWERED = 256
_MOST_MATCHED = 500_000
_LEAST_SHARE, _LEAST_THREADS = 0.1, 0.01
_KEY_OF_WAKERS = "key 2"
"""How `next` in the rules names the key that shows wakers."""
_KEY = re.compile(r" \(key (\w)\)|\bkey (\w)\b")
_PID = re.compile(r"(?<=/proc/)PID\b|(?<![\w/,])(?<!-o )(?<!-eo )PID(?![\w/,])")
"""Not a column, as in `ps -o PID,comm`, nor a part of a path."""
_OPTIONS = {"2": "--mode wakeup", "5": "--stuck", "7": "--mode file", "8": "--mode disk"}
"""Key → the option of batch mode that shows the same."""
_WITHOUT_OPTION = frozenset("ACGY")
"""Keys in hints for which there is none."""


class CauseShare(NamedTuple):
    """What rules say about a part of the waits."""

    rule: Rule | None
    total_ns: int
    share: float
    """Share of all waits in the query; 0 to 1."""
    pid: int
    """Process with most of the time, of the program with most of it."""
    is_estimated: bool = False
    """Whether a part of it is an estimate: see left_out.py."""
    is_mixed: bool = False
    """Whether that program has less than half of it."""

    def in_short(self, catalog: Catalog, with_process: bool) -> str:
        """Return `88% wait for Python's GIL (gunicorn)`, or `30% wait for work (kworker and others)`."""
        process = printable(catalog.process(self.pid)) if with_process else ""
        process += " and others" if process and self.is_mixed else ""
        what = f"wait for {self.rule.name}" if self.rule else "match no cause rule"
        about = "about " if self.is_estimated else ""
        return f"{about}{100 * self.share:.0f}% {what}{f' ({process})' if process else ''}"

    def in_full(self, catalog: Catalog, with_process: bool, with_keys: bool = True) -> str:
        """Return the same with an explanation and what to look at next.

        `with_keys`: if there is a screen.
        """
        says, hint = (self.rule.says, advice(self.rule, catalog, self.pid)) if self.rule else ("", "")
        hint = hint if with_keys else without_keys(hint)
        text = f"{self.in_short(catalog, with_process)}: {says}" if says else self.in_short(catalog, with_process)
        return f"{text} Next: {hint}." if hint else text


def advice(rule: Rule, catalog: Catalog, pid: int) -> str:
    """Return what to look at next, marked if it is not available; empty for nothing. `pid`: a process that waits."""
    lacks = not catalog.has_programs and _KEY_OF_WAKERS in rule.next
    hint = with_pid(rule.next, pid)
    return f"{hint} (needs BPF)" if lacks else hint


def with_pid(hint: str, pid: int) -> str:
    """Return what to look at next with the process in place of `PID`, if it is one that can be looked at."""
    return hint if pid == EXITED.pid or pid in PSEUDO_PIDS else _PID.sub(str(pid), hint)


def without_keys(hint: str) -> str:
    """Return what to look at next where there is no screen: with the option in place of the key, if there is one."""

    def option(found: re.Match[str]) -> str:
        in_brackets, key = found.groups()
        if in_brackets in _OPTIONS:
            return f" ({_OPTIONS[in_brackets]})"
        if in_brackets:
            return "" if in_brackets in _WITHOUT_OPTION else found[0]
        return _OPTIONS.get(key, found[0])

    return _KEY.sub(option, hint)


def most(parts: Sequence[CauseShare], span_ns: int) -> CauseShare | None:
    """Return the largest part with a cause; None if none is large enough.

    An idle process waits for a CPU for some microseconds, which may be all of its waits.
    """
    large = (one for one in parts if one.share >= _LEAST_SHARE and one.total_ns >= _LEAST_THREADS * span_ns)
    return next((one for one in large if one.rule), None)


class _WaitKind(NamedTuple):
    """Everything that the cause of a wait depends on."""

    kernel: int
    user: int
    program: str
    what: Object
    peer: PeerName | None
    """Peer of the object; None if it is unknown."""


class CauseFinder:
    """Applies cause rules to sites. Not thread-safe."""

    def __init__(self, names: Names, rules: RuleSource) -> None:
        self.names = names
        self._source = rules
        self._newest, self._changes = rules.rules, 0
        self._rules = NO_RULES
        self._candidates: dict[tuple[str, str], tuple[Rule, ...]] = {}
        """(category, program) → rules that may match."""
        self.unanswered: dict[Object, int] = {}
        """Objects of the last `rules_of` for which a rule would name the peer if it were known → a process that waits
        on it."""
        self._rules_with_peer: dict[tuple[str, PeerName], Rule] = {}
        """Rules with the name of the peer filled in."""
        self._rule_by_kind: dict[_WaitKind, Rule | None] = {}
        self._rule_by_row: dict[tuple[int, ...], tuple[str, Rule | None]] = {}
        """The same by rows of tables, with the program at that time."""
        self._unnamed: dict[Frame, set[_WaitKind]] = {}
        """Frames without a name → the kinds of waits that they are in."""
        self._checked: tuple[object, ...] = ()
        self._idle_at: dict[Where, int] = {}
        """As IdleByRule, without UNDECIDED."""
        self._program_at: dict[Where, str] = {}
        """Location → the program at that time."""
        self._by_rule = NOTHING_BY_RULE
        self._matched: dict[Hashable, dict[int, bool]] = {}
        self._matched_by = names.version

    def copy(self) -> "CauseFinder":
        """Return an independent one for sites of another catalog.

        What is cached about sites is dropped with their catalog.
        """
        return CauseFinder(self.names, self._source)

    def rule_of(self, site: SiteKey, catalog: Catalog) -> Rule | None:
        """Return the rule that matches; None if none does, or if the location is unknown."""
        if site.kernel in PLACELESS:
            return None
        self._drop_outdated(catalog)
        return self._of_row((site.kernel, site.user, site.wake, site.pid), catalog)

    def rules_of(
        self,
        table: Mapping[tuple[int, ...], PartTuple],
        catalog: Catalog,
        with_idle: Mapping[tuple[int, ...], PartTuple] | None = None,
        left_out: LeftOut | None = None,
        apart: bool = False,
    ) -> list[CauseShare]:
        """Apply the rules to a table by site (breakdown.by_site); most time first.

        `left_out`: which waits have no stack because of the CPU budget; their causes are estimated from `with_idle`,
        the same table with idle waits. `apart`: keep rules apart that lead to the same cause.
        """
        self._drop_outdated(catalog)
        unanswered: dict[Object, int] = {}
        sums: dict[str, int] = {}
        by_pid: dict[str, dict[int, int]] = {}
        rules: dict[str, dict[Rule | None, int]] = {}
        estimated = estimated_ns(table, with_idle or table, left_out) if left_out else {}
        guessed: set[str] = set()
        for row, (_, total_ns, _, _) in table.items():
            kernel, _, wake, pid = row
            if kernel in PLACELESS or total_ns <= 0:
                continue
            rule = self._of_row(row, catalog)
            if rule and (rule.service or rule.client) and may_have_peers(what := catalog.wake(wake).object):
                unanswered[what] = pid
            name = (rule.id if apart else rule.name) if rule else ""  # two rules may lead to the same cause
            if row in estimated:
                total_ns += estimated[row]
                guessed.add(name)
            of_name = rules.setdefault(name, {})
            of_name[rule] = of_name.get(rule, 0) + total_ns
            sums[name] = sums.get(name, 0) + total_ns
            of_rule = by_pid.setdefault(name, {})
            of_rule[pid] = of_rule.get(pid, 0) + total_ns
        self.unanswered = dict(islice(unanswered.items(), _MOST_UNANSWERED))
        whole_ns = sum(max(0, part[1]) for part in table.values())  # time moves when the stacks of waits are read
        parts: list[CauseShare] = []
        for name, ns in sums.items():
            pid, of_program_ns = _largest_of_program(by_pid[name], catalog)
            share = ns / whole_ns if whole_ns else 0.0
            is_mixed = 2 * of_program_ns < ns
            parts.append(CauseShare(_largest(rules[name]), ns, share, pid, name in guessed, is_mixed))
        return sorted(parts, key=lambda one: -one.total_ns)

    def rules_at(self, sites: Iterable[tuple[int, ...]], catalog: Catalog) -> list[Rule | None]:
        """Return the rule for each of breakdown.sites_of; None also if the location is unknown."""
        self._drop_outdated(catalog)
        every = [*sites]  # many waits are at the same one
        of_site = {site: None if site[0] in PLACELESS else self._of_row(site, catalog) for site in dict.fromkeys(every)}
        return [of_site[site] for site in every]

    def reasons_at(self, sites: Sequence[tuple[int, ...]], catalog: Catalog) -> list[Reason]:
        """Return the cause of each, as the key of a list's row."""
        return [
            Reason(rule.name) if rule else BELOW_REASON if site[0] in PLACELESS else NO_REASON
            for site, rule in zip(sites, self.rules_at(sites, catalog), strict=True)
        ]

    def is_unknown(self, site: tuple[int, ...], catalog: Catalog) -> bool:
        """Return whether no rule matches that row, although its location is known."""
        return site[0] not in PLACELESS and self._of_row(site, catalog) is None

    def matched(self, what: Hashable) -> dict[int, bool]:
        """Return a cache for `what`: stack → whether its functions match; the caller fills it.

        It is shared by all ticks, since functions have the same names in all of them.
        """
        many = sum(map(len, self._matched.values())) > _MOST_MATCHED
        if many or self._matched_by != self.names.version:
            self._matched, self._matched_by = {}, self.names.version
        return self._matched.setdefault(what, {})

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever results may differ."""
        if self._source.rules is not self._newest:
            self._newest = self._source.rules
            self._changes += 1
        return self.names.version, self._changes

    def idle_by_rule(self, ids: Iterable[Ints], catalog: Catalog) -> IdleByRule:
        """Return which waits are idle by rule, as known by now, including those at these sites."""
        self._drop_outdated(catalog)
        found, _ = distinct_rows(np.concatenate([some[:, WHERE] for some in ids]))
        new = [where for where in map(_where, found) if self._program_at.get(where) != catalog.process(where[0])]
        if not new:
            return self._by_rule
        before = dict(self._idle_at)
        if len(self._program_at) > _MOST_DECIDED * len(found):
            present = {*map(_where, found)}
            self._program_at = {where: program for where, program in self._program_at.items() if where in present}
            self._idle_at = {where: idle for where, idle in self._idle_at.items() if where in present}
        for where in new:
            pid, kernel, user = where
            self._program_at[where] = catalog.process(pid)
            self._idle_at.pop(where, None)
            if kernel in PLACELESS or pid == EXITED.pid:
                continue
            candidates = self._candidates_for(catalog.stack(kernel).category, self._program_at[where])
            if not any(map(_verdict, candidates)):
                continue
            rule = self._rule(pid, kernel, user, NO_OBJECT, catalog)
            if rule and (verdict := _verdict(rule)):
                self._idle_at[where] = verdict
        if self._idle_at != before:
            self._by_rule = IdleByRule({**self._in_progress(), **self._idle_at})
        return self._by_rule

    def _in_progress(self) -> dict[Where, int]:
        """Return which waits in progress are idle by rule; they have no user stack at first.

        They are idle if all that ended there are; they may be sleeps if some of these were.
        """
        every: dict[tuple[int, int], set[int]] = {}
        for pid, kernel, user in self._program_at:
            if user != NO_STACK:
                every.setdefault((pid, kernel), set()).add(self._idle_at.get((pid, kernel, user), UNDECIDED))
        return {
            (pid, kernel, NO_STACK): SLEEPS if SLEEPS in verdicts else IDLE
            for (pid, kernel), verdicts in every.items()
            if verdicts <= {IDLE, SLEEPS}
        }

    def _of_row(self, row: tuple[int, ...], catalog: Catalog) -> Rule | None:
        kernel, user, wake, pid = row
        program = catalog.process(pid)
        known = self._rule_by_row.get(row)
        if known is not None and known[0] == program:
            return known[1]
        if len(self._rule_by_row) >= _MOST_KNOWN:
            self._rule_by_row.clear()
        found = self._rule(pid, kernel, user, catalog.wake(wake).object, catalog)
        self._rule_by_row[row] = program, found
        return found

    def _rule(self, pid: int, kernel: int, user: int, what: Object, catalog: Catalog) -> Rule | None:
        peer = self._peer(kernel, what, catalog)
        kind = _WaitKind(kernel, user, catalog.process(pid), what, peer)
        if kind in self._rule_by_kind:
            return self._rule_by_kind[kind]
        if len(self._rule_by_kind) >= _MOST_KNOWN:
            self._rule_by_kind.clear()
            self._unnamed.clear()
            self._rules_with_peer.clear()
        subject = Subject(RUN_QUEUE, program=kind.program) if kernel == QUEUED else self._subject(kind, catalog)
        found = first_match(self._candidates_for(subject.category, kind.program), subject)
        if found and peer:
            found = self._rules_with_peer.setdefault((found.id, peer), found.at(peer))
        self._rule_by_kind[kind] = found
        return found

    def _candidates_for(self, category: str, program: str) -> tuple[Rule, ...]:
        """Return the rules that may match."""
        found = self._candidates.get((category, program))
        if found is None:
            if len(self._candidates) >= _MOST_KNOWN:
                self._candidates.clear()
            found = self._candidates[category, program] = self._rules.among(category, program)
        return found

    def _subject(self, kind: _WaitKind, catalog: Catalog) -> Subject:
        of_kernel, of_user = catalog.stack(kind.kernel), catalog.stack(kind.user)
        for frame in of_user.frames:
            if self.names.of(frame) == nameless(frame):
                self._unnamed.setdefault(frame, set()).add(kind)
        return subject_of(of_kernel, of_user, self.names, kind.program, kind.what)

    def _peer(self, kernel: int, what: Object, catalog: Catalog) -> PeerName | None:
        """Return the peer: a local process, the service of the port, or an unknown client."""
        peers = catalog.peers_of(what)
        name = printable(peers.name(catalog.stack(kernel)))
        if name or peers.is_client:
            return PeerName(name, _slug(name) if name else "", peers.is_client)
        return self._rules.service(what)

    def _drop_outdated(self, catalog: Catalog) -> None:
        """Drop what may have changed."""
        self._rules = self._source.rules  # the reference keeps another object from getting the same id
        current = (id(catalog), id(self._rules), self.names.version, catalog.peers_version)
        if current == self._checked:
            return
        if current[:2] != self._checked[:2]:
            for known in (
                self._candidates,
                self._rules_with_peer,
                self._rule_by_kind,
                self._unnamed,
                self._idle_at,
                self._program_at,
                self._rule_by_row,
            ):
                known.clear()
            self._by_rule = NOTHING_BY_RULE
        else:
            self._drop_newly_named()
        if current[3:] != self._checked[3:]:
            self._rule_by_row.clear()
        self._checked = current

    def _drop_newly_named(self) -> None:
        named = [frame for frame in self._unnamed if self.names.of(frame) != nameless(frame)]
        kinds = {kind for frame in named for kind in self._unnamed.pop(frame)}
        if not kinds:
            return
        for kind in kinds:
            self._rule_by_kind.pop(kind, None)
        self._rule_by_row.clear()
        stacks = {kind[:2] for kind in kinds}
        self._program_at = {where: program for where, program in self._program_at.items() if where[1:] not in stacks}


def _verdict(rule: Rule) -> int:
    """Return what a rule says about whether a wait is idle."""
    if rule.is_sleep:
        return SLEEPS
    return UNDECIDED if rule.idle is None else IDLE if rule.idle else NOT_IDLE


def _slug(name: str) -> str:
    """Return a word for scripts, in the form of rule ids."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "process"


def _where(ids: Sequence[int]) -> Where:
    pid, kernel, user = ids
    return pid, kernel, user


def _largest_of_program(by_pid: Mapping[int, int], catalog: Catalog) -> tuple[int, int]:
    """Return the largest process of the program with the largest sum, and that sum."""
    programs = Counter[str]()
    for pid, ns in by_pid.items():
        programs[catalog.process(pid)] += ns
    ((most, sum_ns),) = programs.most_common(1)
    return _largest({pid: ns for pid, ns in by_pid.items() if catalog.process(pid) == most}), sum_ns


def _largest(parts: Mapping[K, int]) -> K:
    return max(parts, key=parts.__getitem__)
