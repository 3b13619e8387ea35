"""Rules that say what a wait is really for: the functions of the program above the kernel's leaf name the culprit.

They stand in `offtop/rules.toml`, whose head tells their language, and before those come a person's own. Nothing here
reads a file: texts come in, and values go out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from offtop.model.categories import bare
from offtop.model.printable import printable
from offtop.model.rulefile import RuleFile, compiled
from offtop.model.stack import INLINED, WHOLE, Frame, Names, Stack, functions, nameless
from offtop.model.wake import Object, object_names

NEAR = 4
"""How many functions the condition `near` looks at."""
_LIBC = re.compile(r"(libc|libpthread|libm|ld-linux[^/]*|ld-musl[^/]*)([-.].*)?\Z|\[vdso\]\Z")
_CALLED_BY = " < "
_OF_PYTHON = re.compile(r".+ \(.+:\d+\)")
_OF_CXX = ("libstdc++.", "libc++.")
_MARK = re.compile(r"\.(isra|constprop|cold|part|llvm)\b.*\Z")
_MOST_OWN = 1_000
"""Rules in a person's file."""
_LONGEST_TEXT = 200
_LAST_PORT = 65_535
_DEEPEST = 127


class Subject(NamedTuple):
    """What rules see of a wait. Functions are told leaf first, without what compilers add to a name."""

    category: str
    kernel: tuple[str, ...] = ()
    libc: tuple[str, ...] = ()
    """The functions of the C library that led into the kernel."""
    own: tuple[str, ...] = ()
    """Those of the program outside of it that have names."""
    depth: int = 0
    """How many functions outside of it and of C++'s there are; 0: nobody knows, as callers are missing."""
    modules: tuple[str, ...] = ()
    """Names of the files, without directories, that the functions are in."""
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
                return [*filter(_OF_PYTHON.fullmatch, self.own)]
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
"""Those that a rule may have."""


class Condition(NamedTuple):
    """Holds when one of its patterns matches one of the names it looks at (`not`: when none does)."""

    where: str
    patterns: tuple[str, ...]
    compiled: re.Pattern[str]
    chains: tuple[tuple[re.Pattern[str], ...], ...] = ()
    """Of `python`: what each pattern says of the innermost function, of who called that, and so on."""

    @classmethod
    def of(cls, where: str, patterns: tuple[str, ...]) -> "Condition":
        chains = [pattern.split(_CALLED_BY) for pattern in patterns] if where == "python" else []
        each = tuple(tuple(compiled((one,)) for one in chain) for chain in chains)
        return cls(where, patterns, compiled(patterns), each)

    def holds(self, subject: Subject) -> bool:
        names = subject.seen(self.where)
        if self.chains:
            return any(
                len(chain) <= len(names) and all(one.match(name) for one, name in zip(chain, names, strict=False))
                for chain in self.chains
            )
        return any(map(self.compiled.match, names)) != (self.where == "not")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    id: str
    """A word, for scripts."""
    name: str
    """What is waited for, in so few words that a column has room: `Python's GIL`."""
    says: str
    """What that is, for somebody who knows neither kernel nor program."""
    next: str
    """What to look at next."""
    conditions: tuple[Condition, ...]
    depth: int = 0
    """Only stacks that are whole and have at most so many functions of the program match; 0: all."""
    idle: bool | None = None
    """Whether it looks like waiting for work, whatever its category says; None: as that says."""
    service: str = ""
    """The name where it is known who is at the other end, with `{}` for that."""
    origin: str = ""
    """The file it is from, and where in it."""

    def at(self, service: str, word: str) -> "Rule":
        """The same of who is there; `word`: the port, or what else is told from other ones by it."""
        return replace(self, id=f"{self.id}-{word}", name=self.service.replace("{}", service), service="")

    def matches(self, subject: Subject) -> bool:
        return all(condition.holds(subject) for condition in self.conditions) and (
            not self.depth or 0 < subject.depth <= self.depth
        )


class Reason(NamedTuple):
    """What is waited for, as rules name it; several may lead to one."""

    name: str
    """As Rule.name, which is the person's own text or ours."""


NO_REASON = Reason("(what no rule knows)")
BELOW_REASON = Reason("(waits below the minimum)")


@dataclass(frozen=True, slots=True)
class Rules:
    rules: tuple[Rule, ...] = ()
    """The first that matches says what it is."""
    services: Mapping[int, str] = field(default_factory=dict[int, str])
    """Port → who is usually there."""

    def of(self, subject: Subject) -> Rule | None:
        return next((rule for rule in self.rules if rule.matches(subject)), None)

    def among(self, category: str, program: str) -> tuple[Rule, ...]:
        """Those that may match a wait of that category and program."""
        subject = Subject(category, program=program)
        return tuple(
            rule
            for rule in self.rules
            if all(one.holds(subject) for one in rule.conditions if one.where in ("category", "program"))
        )

    def service(self, what: Object) -> tuple[str, str] | None:
        """Who is usually at the other end, and at which port; None: not known, or it came to us: who connects has the
        higher port."""
        port, own = what.peer.rpartition(":")[2], what.local.rpartition(":")[2]
        is_asked = port.isdecimal() and not (own.isdecimal() and int(own) < int(port))
        name = self.services.get(int(port)) if is_asked else None
        return (name, port) if name else None

    def before(self, others: "Rules") -> "Rules":
        """These, and behind them those of `others` whose ids are not used here."""
        own = {rule.id for rule in self.rules}
        rest = tuple(rule for rule in others.rules if rule.id not in own)
        return Rules((*self.rules, *rest), MappingProxyType({**others.services, **self.services}))


NO_RULES = Rules()


class RuleSource(Protocol):
    """Where rules come from, which may change at any time."""

    @property
    def rules(self) -> Rules:
        """Those that hold now; another object whenever they are others."""
        ...

    @property
    def error(self) -> str:
        """What is wrong with what they are read from; empty while all is well."""
        ...


class Fixed(NamedTuple):
    """Rules that stay as they are."""

    rules: Rules = NO_RULES
    error: str = ""


WITHOUT_RULES = Fixed()


def subject_of(kernel: Stack, user: Stack, names: Names, program: str = "", what: Object | None = None) -> Subject:
    """What rules see of a wait at these stacks."""
    libc: list[str] = []
    own: list[str] = []
    depth = 0
    for frame in user.frames:
        found = _functions(frame, names)
        if not (is_libc(frame) or base_name(frame).startswith(_OF_CXX)):
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
    """Whether it is of the C library, with all that belongs to it, or of the kernel's page in each process."""
    return bool(_LIBC.match(base_name(frame)))


def base_name(frame: Frame) -> str:
    return frame.file.rpartition("/")[2]


def _functions(frame: Frame, names: Names) -> list[str]:
    """Innermost first, as a person wrote them; none where it has no name."""
    name = names.of(frame)
    if name == nameless(frame):
        return []
    return [_plain(one.removesuffix(INLINED)) for one in functions(name)]


@cache
def _plain(name: str) -> str:
    """Without C++'s parameters and what compilers add: `lock_wait(que_thr_t*)` is `lock_wait`. What stands behind a
    blank are none: Python's functions are `handle (app.py:12)`."""
    name = _MARK.sub("", name)
    if not name.endswith((")", ") const")):
        return name
    depth = 0
    for at in range(len(name) - 1, 0, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if name[at] == "(" and not depth:
            return name if name[at - 1] == " " else name[:at]
    return name


def parse(text: str, name: str, remedy: str, known_categories: Iterable[str]) -> Rules:
    """The rules that a file's text describes; one without any is none. `name`: what errors call it.

    Raises OfftopError, which names the line, for text that is no TOML, for what the language does not know, and
    for an id that stands there twice.
    """
    return _Reader(text, name, remedy).read(frozenset(known_categories))


class _Reader(RuleFile):
    def read(self, known: frozenset[str]) -> Rules:
        self.known_keys(self.file, {"names", "services", "rule"}, "the file")
        rules: dict[str, Rule] = {}
        tables = self.rules() if "rule" in self.file else []
        if len(tables) > _MOST_OWN:
            raise self.wrong("the file", f"it has {len(tables):,} rules; {_MOST_OWN:,} are the most")
        for number, table in enumerate(tables, start=1):
            rule = self._rule(number, table, known)
            if rule.id in rules:
                raise self.wrong(self.rule_place(number), f"the id `{rule.id}` stands there twice")
            rules[rule.id] = rule
        return Rules(tuple(rules.values()), MappingProxyType(dict(self._services())))

    def _services(self) -> Iterable[tuple[int, str]]:
        if "services" not in self.file:
            return
        for port, name in self.table(self.file, "services", "the file").items():
            if not port.isascii() or not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
                raise self.wrong("[services]", f'`{port[:20]!r}` is no port: write 5432 = "PostgreSQL"')
            yield int(port), self._text({port: name}, port, "[services]", "who is there")

    def _rule(self, number: int, table: dict[str, Any], known: frozenset[str]) -> Rule:
        where = self.rule_place(number)
        self.known_keys(table, {"id", "name", "says", "next", "idle", "service", "depth", *CONDITIONS}, where)
        depth = table.get("depth", 0)
        if "depth" in table and (type(depth) is not int or not 0 < depth <= _DEEPEST):
            raise self.wrong(where, f"`depth` is no number of functions: write 1 to {_DEEPEST}")
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
        if "idle" in table and "object" in table:
            raise self.wrong(where, "`idle` goes by where a wait is, so it cannot stand beside `object`")
        word = self._text(table, "id", where, "a word for scripts")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", word):
            raise self.wrong(where, "`id` is no word of a to z, 0 to 9 and -")
        return Rule(
            word,
            self._text(table, "name", where, "what is waited for, in a few words"),
            self._text(table, "says", where, "what that is, in a sentence"),
            self._text(table, "next", where, "what to look at next") if "next" in table else "",
            tuple(conditions),
            depth,
            self.flag(table, "idle", where) if "idle" in table else None,
            self._text(table, "service", where, "the name where it is known who is there")
            if "service" in table
            else "",
            f"{self.name}, {where}",
        )

    def _text(self, table: Mapping[str, Any], key: str, where: str, what: str) -> str:
        text = printable(self.words(table, key, where, what))
        if len(text) > _LONGEST_TEXT:
            raise self.wrong(where, f"`{key[:20]}` has more than {_LONGEST_TEXT} characters")
        return text
