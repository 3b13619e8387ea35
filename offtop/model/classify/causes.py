"""Cause rules: the program's functions above the kernel's leaf say what a wait is for.

They are in `offtop/rules.toml`, which explains their syntax; the user's own rules come before those. This module parses
texts; it reads no files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from offtop.model.classify.categories import bare
from offtop.model.classify.rule_file import NamePatterns, RuleFile
from offtop.model.values.stack import INLINED, WHOLE, Frame, Names, Stack, functions, nameless
from offtop.model.values.wake import Object, object_names
from offtop.printable import printable

_STOPPED = "stopped"
"""The category of stopped threads."""
NEAR = 4
"""How many functions the condition `near` covers."""
_LIBC = re.compile(r"(libc|libpthread|libm|ld-linux[^/]*|ld-musl[^/]*)([-.].*)?\Z|\[vdso\]\Z")
_CALLED_BY = " < "
PYTHON_FUNCTION = re.compile(r".+ \(.+:\d+\)")
"""Name of a Python function: `handle (app.py:12)`."""
_CXX_LIBRARIES = ("libstdc++.", "libc++.")
_COMPILER_SUFFIX = re.compile(r"\.(isra|constprop|cold|part|llvm)\b.*\Z")
_MOST_OWN = 1_000
"""Maximum number of rules in the user's file."""
_LONGEST_TEXT = 200
_LAST_PORT = 65_535
_TEXTS = ("id", "name", "says", "next", "service", "client")
_DEEPEST = 127


class Subject(NamedTuple):
    """What rules see of a wait.

    Functions are leaf first, without the suffixes that compilers add.
    """

    category: str
    kernel: tuple[str, ...] = ()
    libc: tuple[str, ...] = ()
    """Functions of the C library that led into the kernel."""
    own: tuple[str, ...] = ()
    """Functions of the program outside of it that have names."""
    depth: int = 0
    """How many functions there are outside the C and C++ libraries; 0: unknown, since callers are missing."""
    modules: tuple[str, ...] = ()
    """File names of the binaries that the functions are in, without directories."""
    program: str = ""
    object: tuple[str, ...] = ()

    def seen(self, where: str) -> Sequence[str]:
        match where:
            case "category":
                return (self.category,)
            case "kernel":
                return self.kernel
            case "leaf":
                return self.kernel[:1]
            case "libc":
                return self.libc
            case "own":
                return self.own[:1]
            case "near":
                return self.own[:NEAR]
            case "python":
                return [*filter(PYTHON_FUNCTION.fullmatch, self.own)]
            case "user" | "not":
                return (*self.libc, *self.own)
            case "module":
                return self.modules
            case "program":
                return (self.program,)
            case _:
                return self.object


CONDITIONS = (
    *("category", "program", "object", "leaf", "kernel", "module"),
    *("libc", "own", "near", "python", "user", "not"),
)
"""Conditions that a rule may have."""


class Condition(NamedTuple):
    """Holds if one of its patterns matches one of the names it covers.

    `not` holds if none does.
    """

    where: str
    patterns: tuple[str, ...]
    matcher: NamePatterns
    chains: tuple[tuple[NamePatterns, ...], ...] = ()
    """For `python`: what each pattern says about the innermost function, its caller, and so on."""

    @classmethod
    def of(cls, where: str, patterns: tuple[str, ...]) -> "Condition":
        chains = [pattern.split(_CALLED_BY) for pattern in patterns] if where == "python" else []
        each = tuple(tuple(NamePatterns((one,)) for one in chain) for chain in chains)
        return cls(where, patterns, NamePatterns(() if chains else patterns), each)

    def holds(self, subject: Subject) -> bool:
        names = subject.seen(self.where)
        if self.chains:
            return any(
                len(chain) <= len(names) and all(one.match(name) for one, name in zip(chain, names, strict=False))
                for chain in self.chains
            )
        return self.matcher.match_any(names) != (self.where == "not")


class PeerName(NamedTuple):
    """The other end of what a thread waits on."""

    name: str
    """Name of a local process, or the service of a port; empty for a client of which neither is known."""
    word: str
    """What tells it from others in an id: the port, or the name in the form of ids; empty without a name."""
    is_client: bool = False
    """Whether the thread's process accepted the connection."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    id: str
    """One word, for scripts."""
    name: str
    """What is waited for, short enough for a column: `Python's GIL`."""
    says: str
    """An explanation for users who know neither the kernel nor the program."""
    next: str
    """What to look at next."""
    conditions: tuple[Condition, ...]
    depth: int = 0
    """Only complete stacks with at most so many functions of the program match; 0: all."""
    idle: bool | None = None
    """Whether the wait is idle, whatever its category; None: the category decides."""
    is_sleep: bool = False
    """Whether the thread sleeps, whatever its category: the wait is idle if one of category `sleep` were."""
    service: str = ""
    """The name to use if the peer is known, with `{}` for the peer."""
    client: str = ""
    """The same if the peer is a client: `client nginx`, or `a client` if its name is unknown."""
    origin: str = ""
    """The file that it is from, and where in it."""
    without_peer: "Rule | None" = None
    """If it has the peer's name: the rule without it."""

    @property
    def general(self) -> "Rule":
        """The rule without the peer's name."""
        return self.without_peer or self

    def at(self, peer: PeerName) -> "Rule":
        """Return the rule with the peer's name; the same rule if it has no name for such a peer."""
        template, name, word = self.service, peer.name, peer.word
        if peer.is_client and self.client:
            template, name, word = self.client, f"client {name}" if name else "a client", f"client-{word}".strip("-")
        if not template or not name:
            return self
        return replace(
            self,
            id=f"{self.id}-{word}",
            name=template.replace("{}", name),
            service="",
            client="",
            without_peer=self,
        )

    def matches(self, subject: Subject) -> bool:
        return all(condition.holds(subject) for condition in self.conditions) and (
            not self.depth or 0 < subject.depth <= self.depth
        )


class Reason(NamedTuple):
    """The cause of a wait; several rules may lead to the same one."""

    name: str
    """As Rule.name, from the user's rules or ours."""


NO_REASON = Reason("(no cause rule matches)")
BELOW_REASON = Reason("(waits below the minimum)")


@dataclass(frozen=True, slots=True)
class Rules:
    rules: tuple[Rule, ...] = ()
    """The first that matches applies."""
    services: Mapping[int, str] = field(default_factory=dict[int, str])
    """Port → usual service."""

    def among(self, category: str, program: str) -> tuple[Rule, ...]:
        """Return the rules that may match a wait of that category and program.

        The stack of a stopped thread only says where it was stopped, so rules must name that category.
        """
        subject, must_name = Subject(category, program=program), category == _STOPPED
        return tuple(
            rule
            for rule in self.rules
            if all(one.holds(subject) for one in rule.conditions if one.where in ("category", "program"))
            and (not must_name or any(one.where == "category" for one in rule.conditions))
        )

    def service(self, what: Object) -> PeerName | None:
        """Return the usual service of the peer, by its port.

        None if it is unknown or if the peer is the client: clients have the higher port.
        """
        port, own = what.peer.rpartition(":")[2], what.local.rpartition(":")[2]
        is_asked = port.isdecimal() and not (own.isdecimal() and int(own) < int(port))
        name = self.services.get(int(port)) if is_asked else None
        return PeerName(name, port) if name else None

    def before(self, others: "Rules") -> "Rules":
        """Return these rules, followed by those of `others` whose ids are not used here."""
        own = {rule.id for rule in self.rules}
        rest = tuple(rule for rule in others.rules if rule.id not in own)
        return Rules((*self.rules, *rest), MappingProxyType({**others.services, **self.services}))


NO_RULES = Rules()


def first_match(candidates: Iterable[Rule], subject: Subject) -> Rule | None:
    """Return the rule that applies. `candidates`: see Rules.among."""
    return next((rule for rule in candidates if rule.matches(subject)), None)


class RuleSource(Protocol):
    """Source of rules, which may change at any time."""

    @property
    def rules(self) -> Rules:
        """Current rules; another object whenever they change."""
        ...

    @property
    def error(self) -> str:
        """What is wrong with the source; empty if nothing is."""
        ...


class Fixed(NamedTuple):
    """Rules that never change."""

    rules: Rules = NO_RULES
    error: str = ""


WITHOUT_RULES = Fixed()


def subject_of(kernel: Stack, user: Stack, names: Names, program: str = "", what: Object | None = None) -> Subject:
    """Return what rules see of a wait at these stacks."""
    libc: list[str] = []
    own: list[str] = []
    depth = 0
    for frame in user.frames:
        found = _functions(frame, names)
        if not (is_libc(frame) or base_name(frame).startswith(_CXX_LIBRARIES)):
            depth += max(1, len(found))
        if not own and is_libc(frame):
            libc += found
        else:
            own += found
    return Subject(
        kernel.category,
        tuple(bare(frame.name) for frame in kernel.trimmed),
        tuple(libc),
        tuple(own),
        depth if user.end == WHOLE and not user.is_unsure else 0,
        tuple(dict.fromkeys(base_name(frame) for frame in user.frames)),
        program,
        object_names(what) if what else (),
    )


def is_libc(frame: Frame) -> bool:
    """Return whether it belongs to the C library, including the loader, or to the vDSO."""
    return bool(_LIBC.match(base_name(frame)))


def base_name(frame: Frame) -> str:
    return frame.file.rpartition("/")[2]


def _functions(frame: Frame, names: Names) -> list[str]:
    """Return the source names of the functions, innermost first.

    There are none if the frame has no name.
    """
    name = names.of(frame)
    if name == nameless(frame):
        return []
    return [_without_parameters(one.removesuffix(INLINED)) for one in functions(name)]


@cache
def _without_parameters(name: str) -> str:
    """Remove C++ parameters and compiler suffixes: `lock_wait(que_thr_t*)` → `lock_wait`.

    Parentheses after a blank are kept: Python functions are `handle (app.py:12)`.
    """
    name = _COMPILER_SUFFIX.sub("", name)
    if not name.endswith((")", ") const")):
        return name
    depth = 0
    for at in range(len(name) - 1, 0, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if name[at] == "(" and not depth:
            return name if name[at - 1] == " " else name[:at]
    return name


def parse(text: str, name: str, remedy: str, known_categories: Iterable[str]) -> Rules:
    """Parse the text of a file of rules, which may have none. `name` is for errors.

    Raises OfftopError, naming the line, for invalid TOML, unknown keys and values, and duplicate ids.
    """
    return _Reader(text, name, remedy).read(frozenset(known_categories))


class _Reader(RuleFile):
    def read(self, known: frozenset[str]) -> Rules:
        self.known_keys(self.file, {"names", "services", "rule"}, "the file")
        rules: dict[str, Rule] = {}
        tables = self.rules() if "rule" in self.file else []
        if len(tables) > _MOST_OWN:
            raise self.wrong("the file", f"it has {len(tables):,} rules; the limit is {_MOST_OWN:,}")
        for number, table in enumerate(tables, start=1):
            rule = self._rule(number, table, known)
            if rule.id in rules:
                raise self.wrong(self.rule_place(number), f"the id `{rule.id}` is used twice")
            rules[rule.id] = rule
        return Rules(tuple(rules.values()), MappingProxyType(dict(self._services())))

    def _services(self) -> Iterable[tuple[int, str]]:
        if "services" not in self.file:
            return
        for port, name in self.table(self.file, "services", "the file").items():
            if not port.isascii() or not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
                raise self.wrong("[services]", f'`{port[:20]!r}` is not a port: write 5432 = "PostgreSQL"')
            yield int(port), self._text({port: name}, port, "[services]", "the service at that port")

    def _rule(self, number: int, table: dict[str, Any], known: frozenset[str]) -> Rule:
        where = self.rule_place(number)
        self.known_keys(table, {*_TEXTS, "idle", "sleep", "depth", *CONDITIONS}, where)
        depth = table.get("depth", 0)
        if "depth" in table and (type(depth) is not int or not 0 < depth <= _DEEPEST):
            raise self.wrong(where, f"`depth` is not a number of functions: write 1 to {_DEEPEST}")
        conditions: list[Condition] = []
        for key in CONDITIONS:
            if key in table:
                patterns = self.named_patterns(table, key, where)
                conditions.append(Condition.of(key, patterns))
                if key == "category" and (unknown := [one for one in patterns if one not in known]):
                    raise self.wrong(where, f"there is no category `{printable(unknown[0][:40])}`")
        if not any(condition.where != "not" for condition in conditions):
            raise self.wrong(
                where, f"it has none of the conditions {', '.join(one for one in CONDITIONS if one != 'not')}"
            )
        for key in ("idle", "sleep"):
            if key in table and "object" in table:
                raise self.wrong(where, f"`{key}` depends on the stack, so it cannot be combined with `object`")
        if "idle" in table and "sleep" in table:
            raise self.wrong(where, "`idle` and `sleep` both decide whether it is idle: remove one of them")
        word = self._text(table, "id", where, "a word for scripts")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", word):
            raise self.wrong(where, "`id` may only have a to z, 0 to 9 and -")
        return Rule(
            word,
            self._text(table, "name", where, "what is waited for, in a few words"),
            self._text(table, "says", where, "what that is, in a sentence"),
            self._text(table, "next", where, "what to look at next") if "next" in table else "",
            tuple(conditions),
            depth,
            self.flag(table, "idle", where) if "idle" in table else None,
            self.flag(table, "sleep", where) if "sleep" in table else False,
            self._text(table, "service", where, "the name if the peer is known") if "service" in table else "",
            self._text(table, "client", where, "the name if the peer is a client") if "client" in table else "",
            f"{self.name}, {where}",
        )

    def _text(self, table: Mapping[str, Any], key: str, where: str, what: str) -> str:
        text = printable(self.words(table, key, where, what))
        if len(text) > _LONGEST_TEXT:
            raise self.wrong(where, f"`{key[:20]}` has more than {_LONGEST_TEXT} characters")
        return text
