"""Who diagnoses: what rules say of sites, each kind of wait looked at once, and again when its functions have names."""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from offtop.model.book import Book, SiteKey
from offtop.model.cut import RUN_QUEUE, Added
from offtop.model.diagnosis import BELOW_REASON, NO_REASON, NO_RULES, Reason, Rule, RuleSource, Subject, subject_of
from offtop.model.ends import may_have_ends
from offtop.model.printable import printable
from offtop.model.snapshot import EXITED
from offtop.model.stack import NO_STACK, PLACELESS, QUEUED, Frame, Names, nameless
from offtop.model.table import Ints, distinct_rows
from offtop.model.verdicts import NO_VERDICTS, WHERE, Verdicts, Where
from offtop.model.wake import NO_OBJECT, Object

K = TypeVar("K")
_MOST_KNOWN = 50_000
_MOST_JUDGED = 4
"""So many times as many places as there are may be remembered."""
_MOST_UNANSWERED = 256
_MOST_MATCHED = 500_000
_LEAST_SHARE = 0.1
_KEY_OF_WAKERS = "key 2"
"""As rules say it."""
_OPTION_OF_WAKERS = "--mode wakeup"


class Told(NamedTuple):
    """What is said of a part of the waits."""

    rule: Rule | None
    total_ns: int
    share: float
    """Of all that it was asked of; 0 to 1."""
    pid: int
    """Of the process with most of it."""

    def in_short(self, book: Book, with_process: bool) -> str:
        """`88% wait for Python's GIL (gunicorn)`"""
        process = printable(book.process(self.pid)) if with_process else ""
        name = self.rule.name if self.rule else "what no rule knows"
        return f"{100 * self.share:.0f}% wait for {name}{f' ({process})' if process else ''}"

    def in_full(self, book: Book, with_process: bool, with_keys: bool = True) -> str:
        """The same with what that is, and what to look at next. `with_keys`: where there is a screen."""
        says, hint = (self.rule.says, advice(self.rule, book)) if self.rule else ("", "")
        hint = hint if with_keys else hint.replace(_KEY_OF_WAKERS, _OPTION_OF_WAKERS)
        text = f"{self.in_short(book, with_process)}: {says}" if says else self.in_short(book, with_process)
        return f"{text} Next: {hint}." if hint else text


def advice(rule: Rule, book: Book) -> str:
    """What to look at next, and where that cannot be had, that it cannot; empty: nothing."""
    lacks = not book.has_programs and _KEY_OF_WAKERS in rule.next
    return f"{rule.next} (needs BPF)" if lacks else rule.next


def most(told: Sequence[Told]) -> Told | None:
    """What most of it is for; None where no rule knows enough of it."""
    return next((one for one in told if one.rule and one.share >= _LEAST_SHARE), None)


class _Kind(NamedTuple):
    """All that decides what is said of a wait."""

    kernel: int
    user: int
    program: str
    what: Object
    there: tuple[str, str] | None
    """Who is at the other end of that, as Rule.at has it."""


class Diagnoser:
    """Says of sites what rules say of them. For one thread at a time."""

    def __init__(self, names: Names, rules: RuleSource) -> None:
        self.names = names
        self._source = rules
        self._newest, self._changes = rules.rules, 0
        self._rules = NO_RULES
        self._candidates: dict[tuple[str, str], tuple[Rule, ...]] = {}
        """By category and program: those that may match."""
        self.unanswered: dict[Object, int] = {}
        """Of what `rules_of` was asked of last, that of which a rule would tell who is there, if it were known; and a
        process that waits on each."""
        self._at: dict[tuple[str, tuple[str, str]], Rule] = {}
        """Rules of which it is known who is at the other end."""
        self._known: dict[_Kind, Rule | None] = {}
        self._of_rows: dict[tuple[int, ...], tuple[str, Rule | None]] = {}
        """The same by rows of tables, and which program that was."""
        self._unnamed: dict[Frame, set[_Kind]] = {}
        """Frames without a name, and where they stand."""
        self._asked: tuple[object, ...] = ()
        self._said: dict[Where, bool] = {}
        self._judged: dict[Where, str] = {}
        """And which program that was."""
        self._verdicts = NO_VERDICTS
        self._matched: dict[Hashable, dict[int, bool]] = {}
        self._matched_by = names.version

    def apart(self) -> "Diagnoser":
        """Another one, for sites of another book: of each, what is known is forgotten with its book."""
        return Diagnoser(self.names, self._source)

    def rule_of(self, site: SiteKey, book: Book) -> Rule | None:
        """None where no rule matches, or nothing is known of where it was."""
        if site.kernel in PLACELESS:
            return None
        self._look_around(book)
        return self._of_row((site.kernel, site.user, site.wake, site.pid), book)

    def rules_of(self, table: Mapping[tuple[int, ...], Added], book: Book, apart: bool = False) -> list[Told]:
        """Of a table by sites (cut.by_site): what rules say, most time first. `apart`: also rules that lead to one
        thing."""
        self._look_around(book)
        unanswered: dict[Object, int] = {}
        sums: dict[str, int] = {}
        by_pid: dict[str, dict[int, int]] = {}
        rules: dict[str, dict[Rule | None, int]] = {}
        for row, (_, total_ns, _, _) in table.items():
            kernel, _, wake, pid = row
            if kernel in PLACELESS or total_ns <= 0:
                continue
            rule = self._of_row(row, book)
            if rule and rule.service and may_have_ends(what := book.wake(wake).object):
                unanswered[what] = pid
            name = (rule.id if apart else rule.name) if rule else ""  # two rules may lead to one thing
            of_name = rules.setdefault(name, {})
            of_name[rule] = of_name.get(rule, 0) + total_ns
            sums[name] = sums.get(name, 0) + total_ns
            of_rule = by_pid.setdefault(name, {})
            of_rule[pid] = of_rule.get(pid, 0) + total_ns
        self.unanswered = dict(islice(unanswered.items(), _MOST_UNANSWERED))
        whole_ns = sum(part[1] for part in table.values())
        told = [
            Told(_largest(rules[name]), ns, ns / whole_ns if whole_ns else 0.0, _largest(by_pid[name]))
            for name, ns in sums.items()
        ]
        return sorted(told, key=lambda one: -one.total_ns)

    def rules_at(self, sites: Iterable[tuple[int, ...]], book: Book) -> list[Rule | None]:
        """Of each of cut.sites_of what rules say; None also where nothing is known of where it was."""
        self._look_around(book)
        return [None if site[0] in PLACELESS else self._of_row(site, book) for site in sites]

    def reasons_at(self, sites: Sequence[tuple[int, ...]], book: Book) -> list[Reason]:
        """The same as what a list has rows of."""
        return [
            Reason(rule.name) if rule else BELOW_REASON if site[0] in PLACELESS else NO_REASON
            for site, rule in zip(sites, self.rules_at(sites, book), strict=True)
        ]

    def is_unknown(self, site: tuple[int, ...], book: Book) -> bool:
        """Whether no rule knows what that row of a table by sites is for, though it is known where it was."""
        return site[0] not in PLACELESS and self._of_row(site, book) is None

    def matched(self, what: Hashable) -> dict[int, bool]:
        """By stack, whether its functions are `what`, as far as somebody looked: to be filled by who asks. Functions
        are called the same in all ticks."""
        many = sum(map(len, self._matched.values())) > _MOST_MATCHED
        if many or self._matched_by != self.names.version:
            self._matched, self._matched_by = {}, self.names.version
        return self._matched.setdefault(what, {})

    @property
    def version(self) -> tuple[int, int]:
        """Another one whenever something else may be said than before."""
        if self._source.rules is not self._newest:
            self._newest = self._source.rules
            self._changes += 1
        return self.names.version, self._changes

    def verdicts(self, ids: Iterable[Ints], book: Book) -> Verdicts:
        """What is known by now, these sites included."""
        self._look_around(book)
        found, _ = distinct_rows(np.concatenate([some[:, WHERE] for some in ids]))
        new = [where for where in map(_where, found) if self._judged.get(where) != book.process(where[0])]
        if not new:
            return self._verdicts
        before = dict(self._said)
        if len(self._judged) > _MOST_JUDGED * len(found):
            there = {*map(_where, found)}
            self._judged = {where: program for where, program in self._judged.items() if where in there}
            self._said = {where: idle for where, idle in self._said.items() if where in there}
        for where in new:
            pid, kernel, user = where
            self._judged[where] = book.process(pid)
            self._said.pop(where, None)
            if kernel in PLACELESS or pid == EXITED.pid:
                continue
            candidates = self._among(book.stack(kernel).category, self._judged[where])
            if all(rule.idle is None for rule in candidates):
                continue
            rule = self._rule(pid, kernel, user, NO_OBJECT, book)
            if rule and rule.idle is not None:
                self._said[where] = rule.idle
        if self._said != before:
            self._verdicts = Verdicts({**self._in_progress(), **self._said})
        return self._verdicts

    def _in_progress(self) -> dict[Where, bool]:
        """A wait in progress has no user stack at first: where all that ended there look idle, so does it."""
        every: dict[tuple[int, int], set[bool]] = {}
        for pid, kernel, user in self._judged:
            if user != NO_STACK:
                every.setdefault((pid, kernel), set()).add(self._said.get((pid, kernel, user), False))
        return {(pid, kernel, NO_STACK): True for (pid, kernel), said in every.items() if said == {True}}

    def _of_row(self, row: tuple[int, ...], book: Book) -> Rule | None:
        kernel, user, wake, pid = row
        program = book.process(pid)
        known = self._of_rows.get(row)
        if known is not None and known[0] == program:
            return known[1]
        if len(self._of_rows) >= _MOST_KNOWN:
            self._of_rows.clear()
        found = self._rule(pid, kernel, user, book.wake(wake).object, book)
        self._of_rows[row] = program, found
        return found

    def _rule(self, pid: int, kernel: int, user: int, what: Object, book: Book) -> Rule | None:
        there = self._there(kernel, what, book)
        kind = _Kind(kernel, user, book.process(pid), what, there)
        if kind in self._known:
            return self._known[kind]
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
            self._unnamed.clear()
            self._at.clear()
        subject = Subject(RUN_QUEUE, program=kind.program) if kernel == QUEUED else self._subject(kind, book)
        candidates = self._among(subject.category, kind.program)
        found = next((rule for rule in candidates if rule.matches(subject)), None)
        if found and found.service and there:
            found = self._at.setdefault((found.id, there), found.at(*there))
        self._known[kind] = found
        return found

    def _among(self, category: str, program: str) -> tuple[Rule, ...]:
        """Those that may match."""
        found = self._candidates.get((category, program))
        if found is None:
            if len(self._candidates) >= _MOST_KNOWN:
                self._candidates.clear()
            found = self._candidates[category, program] = self._rules.among(category, program)
        return found

    def _subject(self, kind: _Kind, book: Book) -> Subject:
        of_kernel, of_user = book.stack(kind.kernel), book.stack(kind.user)
        for frame in of_user.frames:
            if self.names.of(frame) == nameless(frame):
                self._unnamed.setdefault(frame, set()).add(kind)
        return subject_of(of_kernel, of_user, self.names, kind.program, kind.what)

    def _there(self, kernel: int, what: Object, book: Book) -> tuple[str, str] | None:
        """Who is at the other end: by its port, or else by name, where that is a process of this machine."""
        name = printable(book.ends_of(what).name(book.stack(kernel)))
        return (name, _word(name)) if name else self._rules.service(what)

    def _look_around(self, book: Book) -> None:
        """Forget what may be otherwise now."""
        self._rules = self._source.rules  # held, so that another one cannot have its id
        asked = (id(book), id(self._rules), self.names.version, book.ends_version)
        if asked == self._asked:
            return
        if asked[:2] != self._asked[:2]:
            for known in (
                self._candidates,
                self._at,
                self._known,
                self._unnamed,
                self._said,
                self._judged,
                self._of_rows,
            ):
                known.clear()
            self._verdicts = NO_VERDICTS
        else:
            self._forget_those_with_names()
        if asked[3:] != self._asked[3:]:
            self._of_rows.clear()
        self._asked = asked

    def _forget_those_with_names(self) -> None:
        named = [frame for frame in self._unnamed if self.names.of(frame) != nameless(frame)]
        kinds = {kind for frame in named for kind in self._unnamed.pop(frame)}
        if not kinds:
            return
        for kind in kinds:
            self._known.pop(kind, None)
        self._of_rows.clear()
        stacks = {kind[:2] for kind in kinds}
        self._judged = {where: program for where, program in self._judged.items() if where[1:] not in stacks}


def _word(name: str) -> str:
    """For scripts, as ids of rules are."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "process"


def _where(ids: Sequence[int]) -> Where:
    pid, kernel, user = ids
    return pid, kernel, user


def _largest(parts: Mapping[K, int]) -> K:
    return max(parts, key=parts.__getitem__)
