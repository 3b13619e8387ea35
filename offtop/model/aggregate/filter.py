"""Filter: which waits and rows are shown, as typed: `comm=mysql* max>10ms cat!=poll`.

Words are separated by blanks, and all of them must hold. `key=value` and `key!=value` choose waits by thread and
location. Values are shell patterns, separated by commas, that must match the whole text, ignoring case. `max>10ms`
chooses rows of a list by their numbers. `file=`, `op=`, `bytes>` and `dev=` are about file operations (file_rows.py)
and requests to disks (disk_rows.py). A single word is searched for in all names; `!word` excludes matches.

Quotes keep blanks, commas and operators together; patterns still work inside them. A backslash makes the next character
literal, except in single quotes. So `comm="G1 *"` matches the threads of that family, and `"a>b"` is a single word. A
pattern with a bracket also matches its own text: `stack=[gone]`.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, partial
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from offtop.errors import UsageError
from offtop.model.aggregate.pool import Pool, parts
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.rows import Row, process_name, thread_name
from offtop.model.aggregate.waker_rows import WITHOUT_WAKE, WakerKey, codes, object_of, waker_of
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Reason, Rule
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.container import names as container_names
from offtop.model.values.container import place
from offtop.model.values.stack import INLINED, Frame, functions
from offtop.model.values.table import Ints, Mask, thread_codes
from offtop.model.values.wake import NOT_GATHERED, Object, object_names, waker_names
from offtop.model.windows.breakdown import FILTERED, RUN_QUEUE, SHORT, Shares, sites_of
from offtop.printable import printable
from offtop.units import count, duration, parse_duration, threads

_LONGEST = 500
_MOST_WORDS = 32
_LONGEST_SHOWN = 40
"""Of a word that an error quotes."""
_QUOTE_IT = "; to search for the word, put it in quotes"
_AND = f"is not needed: all words must match anyway{_QUOTE_IT}"
_OR = f"is not known: use commas, comm=fio,dd{_QUOTE_IT}"
_OPERATORS = {"and": _AND, "&&": _AND, "or": _OR, "||": _OR, "not": f"is not known: use !=, comm!=fio{_QUOTE_IT}"}
"""What is wrong with words that other languages use as operators."""
_LAST_ID = (1 << 31) - 1
_NS_PER_MS = 1_000_000
_LOW = (1 << 32) - 1

_SINGLE_WORD = ""
"""Stands for the key of a single word."""
_WAKER_THREAD, _WAKER_PROCESS, _OTHER_WAKER = "=thread", "=process", "=waker"
_OBJECT = "=object"
_CAUSE = "=why"
"""Keys that cannot be typed: thread that wakes, process that wakes, other waker, object waited on, and cause, each as
named in the list."""
_IDS = {"pid": 0, "tid": 1}
"""Key → column of a site's ids."""
_MATCHED_TEXTS = {
    "comm": ("thread", "process"),
    "thread": ("thread",),
    "proc": ("process",),
    "user": ("user", "uid"),
    "cat": ("category",),
    "stack": ("kernel", "program"),
    "leaf": ("leaf",),
    "cgroup": ("cgroup", "place"),
    "container": ("container",),
    "cmd": ("cmdline",),
    "waker": ("waker",),
    "wakerpid": ("wakerpid",),
    "wakertid": ("wakertid",),
    "object": ("object", "ends"),
    "why": ("why",),
    "file": ("file",),
    _WAKER_THREAD: (_WAKER_THREAD,),
    _WAKER_PROCESS: (_WAKER_PROCESS,),
    _OTHER_WAKER: (_OTHER_WAKER,),
    _OBJECT: (_OBJECT,),
    _CAUSE: (_CAUSE,),
    _SINGLE_WORD: ("thread", "process", "category", "cmdline", "user", "kernel", "program", "waker", "object", "why"),
}
"""Key → what it matches of a wait."""
_OF_FUNCTIONS = frozenset({"kernel", "leaf", "program"})
_NEED_WAKERS = frozenset(
    {
        *("waker", "wakerpid", "wakertid"),
        *(_WAKER_THREAD, _WAKER_PROCESS, _OTHER_WAKER),
    }
)
_NEED_PEERS = frozenset({"ends", "why", _CAUSE})
_NEED_NAMES = frozenset({"program", "why", _CAUSE})
_NEED_DETAILS = frozenset({"user", "uid", "cgroup", "place", "container", "cmdline"})
_TIMES: Mapping[str, Callable[[Row], int]] = {
    "max": lambda row: row.part.max_ns,
    "now": lambda row: row.now.ns,
    "p50": lambda row: row.percentile_ns(50),
    "p99": lambda row: row.percentile_ns(99),
}
_COUNTS: Mapping[str, Callable[[Row], float]] = {
    "waiting": lambda row: row.waiting,
    "evs": lambda row: row.waits_per_s,
    "threads": lambda row: 1 if isinstance(row.key, ThreadKey) else row.threads,
}
_OF_LISTS = ("op", "bytes", "dev")
"""Keys that only choose file operations (file_rows.py) or requests to disks (disk_rows.py)."""
_DISPLAY: Mapping[str, Callable[[float], str]] = {"waiting": threads, "evs": count}
_EXAMPLES = {
    "comm": "mysql*",
    "thread": "worker*",
    "proc": "mysqld",
    "pid": "4242",
    "tid": "4242",
    "user": "postgres",
    "cat": "lock",
    "stack": "*fsync*",
    "leaf": "futex*",
    "cgroup": "*.service",
    "container": "docker*",
    "cmd": "*8080*",
    "waker": "mysqld",
    "wakerpid": "4242",
    "wakertid": "4242",
    "object": "pipe*",
    "why": "*lock",
    "file": "*.ibd",
    "op": "fsync",
    "dev": "sd*",
    "max": "10ms",
    "now": "5s",
    "p50": "1ms",
    "p99": "10ms",
    "waiting": "0.5",
    "evs": "1k",
    "threads": "10",
    "bytes": "1M",
}
"""Every key, with an example."""
_NEAR_ENOUGH = 0.75
"""How similar a key is to what was typed instead (difflib's ratio): `thread` and `thraed` are."""

_OPERATOR = re.compile(r"!=|>=|<=|==?|[<>]")
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([kKmM]?)")
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}
_NEEDS_NO_QUOTES = re.compile(r"[\w./:@%+-]+")
_NO_GROUPS: Mapping[str, Sequence[str]] = MappingProxyType({})


class FilterError(UsageError):
    """A filter that cannot be parsed."""


class Text(NamedTuple):
    """Chooses the waits for which one of the texts of `key` matches."""

    key: str
    """Empty for a single word."""
    pattern: re.Pattern[str]
    excludes: bool
    """Chooses all others instead."""

    def matches(self, text: str) -> bool:
        found = self.pattern.search(text) if self.key == _SINGLE_WORD else self.pattern.match(text)
        return found is not None


class Ids(NamedTuple):
    """Chooses the waits of some processes or threads."""

    column: int
    """Of a site's ids."""
    ids: tuple[int, ...]
    excludes: bool


class Bound(NamedTuple):
    """Chooses rows by one number."""

    key: str
    operator: str
    """`=` holds if both are displayed the same: a screen shows at most three digits."""
    limit: float
    """In ns for times."""

    def holds(self, row: Row) -> bool:
        return self.compares(_TIMES[self.key](row) if self.key in _TIMES else _COUNTS[self.key](row))

    def compares(self, value: float) -> bool:
        match self.operator:
            case ">":
                return value > self.limit
            case ">=":
                return value >= self.limit
            case "<":
                return value < self.limit
            case "<=":
                return value <= self.limit
            case _:
                return self._displayed(value) == self._displayed(self.limit)

    def _displayed(self, value: float) -> str:
        return duration(round(value)) if self.key in _TIMES else _DISPLAY.get(self.key, "{:g}".format)(value)


@dataclass(frozen=True, slots=True)
class Filter:
    text: str
    """As typed: escape it before it is shown."""
    waits: tuple[Text | Ids, ...] = ()
    rows: tuple[Bound, ...] = ()
    lists: tuple[Text | Bound, ...] = ()
    """Words that only choose file operations (file_rows.py) or requests to disks (disk_rows.py)."""

    @property
    def chooses_waits(self) -> bool:
        return bool(self.waits)

    @property
    def chooses_rows(self) -> bool:
        return bool(self.rows)

    @property
    def needs_details(self) -> bool:
        """Whether it needs `Catalog.details`."""
        return any(
            isinstance(one, Text) and not _NEED_DETAILS.isdisjoint(_MATCHED_TEXTS[one.key]) for one in self.waits
        )

    @property
    def needs_peers(self) -> bool:
        """Whether it needs `Catalog.peers`, or causes that depend on them."""
        return any(isinstance(one, Text) and not _NEED_PEERS.isdisjoint(_MATCHED_TEXTS[one.key]) for one in self.waits)

    @property
    def needs_wakers(self) -> bool:
        """Whether it needs wakers, which not every mode gathers; a single word does not need them."""
        return any(isinstance(one, Text) and one.key in _NEED_WAKERS for one in self.waits)

    @property
    def needs_names(self) -> bool:
        """Whether it needs user function names, or causes that depend on them.

        Those are resolved later than the rest.
        """
        return any(isinstance(one, Text) and not _NEED_NAMES.isdisjoint(_MATCHED_TEXTS[one.key]) for one in self.waits)

    def mask(self, shares: Shares, catalog: Catalog, cause_finder: CauseFinder) -> Mask:
        """Return which rows of `shares` are of waits that it chooses.

        Unknown texts, like a user not looked up yet, are empty; waits below the minimum and filtered ones have no
        frames.
        """
        matcher = _Matcher(shares, catalog, cause_finder)
        chosen = np.ones(len(shares.leaf), np.bool_)
        for one in self.waits:
            chosen &= matcher.matching(one) != one.excludes
        return chosen

    def keeps(self, row: Row) -> bool:
        """Return whether it chooses a row of a list, by its numbers.

        A thread counts as one thread.
        """
        return all(bound.holds(row) for bound in self.rows)

    def keeps_age(self, age_ns: int) -> bool:
        """Return whether it chooses a wait in progress of that age."""
        return all(bound.compares(age_ns) for bound in self.rows if bound.key == "now")


NOTHING = Filter("")
"""Chooses everything."""


def of_program(program: Program) -> Filter:
    """Return a filter for the processes of one program; its text can be parsed."""
    name = program.kind or program.name
    pattern = re.compile(f"{re.escape(name)}.") if program.kind else _exactly(name)
    text = f"proc={quoted(name)}*" if program.kind else f"proc={quoted(name)}"
    return Filter(text, (Text("proc", pattern, False),))


def of_pool(pool: Pool) -> Filter:
    """Return a filter for the threads of one pool."""
    name = "[0-9]+".join(map(re.escape, parts(pool.family)))
    return Filter(f"pool {pool.family}", (Ids(0, (pool.pid,), False), Text("thread", re.compile(rf"{name}\Z"), False)))


def of_waker(key: WakerKey) -> Filter:
    """Return a filter for the waits that one waker ended, or all threads of its process."""
    if key.tid:
        terms = {"wakerpid": str(key.pid), "wakertid": str(key.tid), _WAKER_THREAD: key.name}
    else:
        terms = {_WAKER_PROCESS: str(key.pid)} if key.pid else {_OTHER_WAKER: key.name}
    return Filter(f"woken by {key.name}", tuple(Text(name, _exactly(text), False) for name, text in terms.items()))


def of_object(what: Object) -> Filter:
    """Return a filter for the waits on one object."""
    return Filter(f"on {what.label}", (Text(_OBJECT, _exactly(what.label), False),))


def of_reason(reason: Reason) -> Filter:
    """Return a filter for the waits with one cause."""
    return Filter(f"for {reason.name}", (Text(_CAUSE, _exactly(reason.name), False),))


class _Matcher:
    """Rows of a Shares; each thread, process, stack and category is matched once.

    None of its functions refers to the matcher: a reference cycle would keep the Shares until a garbage collection,
    which comes after minutes.
    """

    def __init__(self, shares: Shares, catalog: Catalog, cause_finder: CauseFinder) -> None:
        name: Callable[[Frame], str] = cache(cause_finder.names.of)
        called: Callable[[str], set[str]] = cache(_function_names)
        sites: Callable[[], _Sites] = cache(partial(_sites, shares, catalog, cause_finder))
        self._cause_finder, self._sites = cause_finder, sites
        self._ids = shares.ids
        self._columns = {
            "thread": thread_codes(shares.ids),
            "pid": shares.ids[:, 0],
            "kernel": shares.ids[:, 2],
            "user": shares.ids[:, 3],
            "wake": codes(shares.ids),
            "leaf": shares.leaf,
        }
        self._distinct: dict[str, tuple[list[int], Ints]] = {}
        """Column → its distinct values, and the index of the value of each row."""
        self._texts: Mapping[str, tuple[str, Callable[[int], Iterable[str]]]] = {
            "thread": ("thread", lambda code: (thread_name(ThreadKey(code >> 32, code & _LOW), catalog),)),
            "process": ("pid", lambda pid: (process_name(pid, catalog),)),
            "user": ("pid", lambda pid: (catalog.detail(pid).user,)),
            "uid": ("pid", lambda pid: (str(catalog.detail(pid).uid),) if catalog.detail(pid).uid >= 0 else ()),
            "cgroup": ("pid", lambda pid: (catalog.detail(pid).cgroup,)),
            "place": ("pid", lambda pid: (place(catalog.detail(pid).cgroup),)),
            "container": ("pid", lambda pid: container_names(catalog.detail(pid).cgroup)),
            "cmdline": ("pid", lambda pid: (catalog.detail(pid).cmdline,)),
            "category": ("leaf", lambda leaf: (shares.leaves[leaf].category,)),
            "kernel": ("kernel", lambda kernel: map(name, catalog.stack(kernel).trimmed)),
            "leaf": ("kernel", lambda kernel: map(name, catalog.stack(kernel).trimmed[:1])),
            "waker": ("wake", lambda wake: _waker_names(catalog, wake)),
            "wakerpid": ("wake", lambda wake: _numbers(catalog, wake)[:1]),
            "wakertid": ("wake", lambda wake: _numbers(catalog, wake)[1:]),
            "object": ("wake", lambda wake: () if wake in WITHOUT_WAKE else object_names(catalog.wake(wake).object)),
            "file": ("wake", lambda wake: _file_names(catalog, wake)),
            "ends": (
                "wake",
                lambda wake: () if wake in WITHOUT_WAKE else catalog.peers_of(catalog.wake(wake).object).names,
            ),
            _WAKER_THREAD: ("wake", lambda wake: (waker_of(catalog, True)(wake).name,)),
            _WAKER_PROCESS: ("wake", lambda wake: (str(waker_of(catalog, False)(wake).pid),)),
            _OTHER_WAKER: ("wake", lambda wake: (key.name,) if not (key := waker_of(catalog, False)(wake)).pid else ()),
            _OBJECT: ("wake", lambda wake: (object_of(catalog)(wake).label,)),
            "why": ("site", lambda site: (rule.name, rule.id) if (rule := sites().rules[site]) else ()),
            _CAUSE: ("site", lambda site: (sites().reasons[site].name,)),
            "program": (
                "user",
                lambda user: chain.from_iterable(called(name(frame)) for frame in catalog.stack(user).frames),
            ),
        }
        """What of a wait → its column, and the texts of a value there."""

    def matching(self, one: Text | Ids) -> Mask:
        if isinstance(one, Ids):
            return np.isin(self._ids[:, one.column], one.ids)
        matches: Callable[[str], bool] = cache(one.matches)
        found = np.zeros(len(self._ids), np.bool_)
        for what in _MATCHED_TEXTS[one.key]:
            column, texts = self._texts[what]
            if column not in self._distinct:
                whole = self._sites().which if column == "site" else self._columns[column]
                values, which = np.unique(whole, return_inverse=True)
                self._distinct[column] = values.tolist(), which
            values, which = self._distinct[column]
            known = self._cause_finder.matched((one, what)) if what in _OF_FUNCTIONS else {}
            for value in values:
                if value not in known:
                    known[value] = any(map(matches, texts(value)))
            found |= np.array([known[value] for value in values], np.bool_)[which]
        return found


class _Sites(NamedTuple):
    which: Ints
    """Index of the site, for each row."""
    rules: Sequence[Rule | None]
    reasons: Sequence[Reason]


def _sites(shares: Shares, catalog: Catalog, cause_finder: CauseFinder) -> _Sites:
    """Return the sites of the rows. Costs more than the other columns."""
    sites, which = sites_of(shares)
    return _Sites(which, cause_finder.rules_at(sites, catalog), cause_finder.reasons_at(sites, catalog))


def _waker_names(catalog: Catalog, wake: int) -> tuple[str, ...]:
    """Return the names of a waker, including its process."""
    if wake in WITHOUT_WAKE:
        return (waker_of(catalog, True)(wake).name,)
    waker = catalog.wake(wake).waker
    if waker == NOT_GATHERED:
        return ()
    return (*waker_names(waker), *([catalog.process(waker.pid)] if waker.pid else []))


def _file_names(catalog: Catalog, wake: int) -> tuple[str, ...]:
    """Return the path of the file waited on, and its last part; nothing if it is something else."""
    what = Object() if wake in WITHOUT_WAKE else catalog.wake(wake).object
    return (what.name, what.name.rpartition("/")[2]) if what.kind == "file" else ()


def _numbers(catalog: Catalog, wake: int) -> tuple[str, ...]:
    """Return pid and tid of the waker, if it is a thread."""
    waker = catalog.wake(wake).waker
    return (str(waker.pid), str(waker.tid)) if wake not in WITHOUT_WAKE and waker.tid else ()


def _function_names(name: str) -> set[str]:
    """Return the functions of a frame; inlined ones with and without their mark."""
    return {text for function in functions(name) for text in (function, function.removesuffix(INLINED))}


_PLAIN, _QUOTED, _ESCAPED = range(3)
"""How a character was typed: plain, in quotes, after a backslash."""
_Letters = Sequence[tuple[str, int]]
"""Characters, and how each was typed; an opening quote is an empty one."""


class _Word(NamedTuple):
    typed: str
    letters: _Letters

    def wrong(self, what: str) -> FilterError:
        typed = printable(self.typed)
        shown = typed if len(typed) <= _LONGEST_SHOWN else f"{typed[: _LONGEST_SHOWN - 1]}…"
        return FilterError(f"'{shown}' {what}")


def parse(text: str, groups: Mapping[str, Sequence[str]] = _NO_GROUPS, ids: Collection[str] = ()) -> Filter:
    """Parse a filter; an empty text chooses everything.

    `groups` are names for several categories. `ids` are the known categories (none: any name is accepted). Raises
    FilterError, which quotes the word that is wrong and suggests another.
    """
    if len(text) > _LONGEST:
        raise FilterError(f"A filter of {len(text)} characters is too long: use patterns; the limit is {_LONGEST}")
    words = [*_words(text)]
    if len(words) > _MOST_WORDS:
        raise FilterError(f"A filter of {len(words)} words is too long: use commas; the limit is {_MOST_WORDS}")
    waits: list[Text | Ids] = []
    rows: list[Bound] = []
    lists: list[Text | Bound] = []
    for word in words:
        if len(words) > 1 and word.typed.lower() in _OPERATORS:
            raise word.wrong(_OPERATORS[word.typed.lower()])
        term = _term(word, groups, ids)
        if not isinstance(term, Ids) and term.key in _OF_LISTS:
            lists.append(term)
        elif isinstance(term, Bound):
            rows.append(term)
        else:
            waits.append(term)
    return Filter(text, tuple(waits), tuple(rows), tuple(lists))


def exactly(key: str, value: str) -> Filter:
    """Return the filter `key=value` for exactly that value, of any length."""
    return Filter(f"{key}={quoted(value)}", (Text(key, _compiled([_literally(value)]), False),))


def quoted(word: str) -> str:
    """Quote `word` so that a filter matches it literally."""
    if _NEEDS_NO_QUOTES.fullmatch(word):
        return word
    return '"' + re.sub(r'(["\\*?\[])', r"\\\1", word) + '"'


def _words(text: str) -> Iterator[_Word]:
    at = 0
    while at < len(text):
        start, quote = at, ""
        letters: list[tuple[str, int]] = []
        while at < len(text) and (quote or not text[at].isspace()):
            character = text[at]
            if character == "\\" and quote != "'" and at + 1 < len(text):
                at += 1
                letters.append((text[at], _ESCAPED))
            elif quote and character == quote:
                quote = ""
            elif not quote and character in "\"'":
                quote = character
                letters.append(("", _QUOTED))
            else:
                letters.append((character, _QUOTED if quote else _PLAIN))
            at += 1
        word = _Word(text[start:at], letters)
        if quote:
            raise word.wrong(f"has an open quote: add a {quote} at the end")
        if letters:
            yield word
        at += 1


def begins_with_key(text: str) -> bool:
    """Return whether a text begins as `comm=mysql*` does: with a key and an operator."""
    found = _OPERATOR.search(text)
    return found is not None and text[: found.start()].lower() in _EXAMPLES


def _is_number(key: str) -> bool:
    """Whether values of a key are compared, not matched."""
    return key in _TIMES or key in _COUNTS or key == "bytes"


def _term(word: _Word, groups: Mapping[str, Sequence[str]], ids: Collection[str]) -> Text | Ids | Bound:
    bare = "".join(character if typed == _PLAIN else "\0" for character, typed in word.letters)
    found = _OPERATOR.search(bare)
    if not found:
        return _single_word(word)
    key, operator = bare[: found.start()].lower(), found[0].replace("==", "=")
    value = word.letters[found.end() :]
    if key not in _EXAMPLES:
        if key.startswith("!") and key[1:] in _EXAMPLES:
            raise word.wrong(f"is not valid: to exclude matches, try {key[1:]}!=")
        if key.isalnum():
            near = [one for one in _EXAMPLES if key.startswith(one) or one.startswith(key)][:1]
            near = near or difflib.get_close_matches(key, _EXAMPLES, 1, _NEAR_ENOUGH)
            tries = [f"try {one}{'>' if _is_number(one) else '='}{_EXAMPLES[one]}" for one in near]
            hint = f": {', '.join(tries)}" if tries else f". Use one of {', '.join(_EXAMPLES)}"
            raise word._replace(typed=key).wrong(f"is not a filter key{hint}")
        raise word.wrong(f"contains {operator}: put it in quotes to search for the text, or try comm=mysql*")
    compares = _is_number(key)
    if operator not in (("=", ">", ">=", "<", "<=") if compares else ("=", "!=")):
        takes = "> >= < <= and =" if compares else "= and !="
        raise word.wrong(f"is not valid: {key} takes {takes}")
    if compares:
        return Bound(key, operator, _limit(word, key, _text(value)))
    choices = [*_alternatives(value)]
    if not choices:
        raise word.wrong(f"has no value: try {key}{operator}{_EXAMPLES[key]}")
    excludes = operator == "!="
    if key in _IDS:
        return Ids(_IDS[key], tuple(_id(word, key, choice) for choice in choices), excludes)
    if key == "cat":
        patterns = [pattern for choice in choices for pattern in _categories(word, choice, groups, ids)]
    elif key in ("wakerpid", "wakertid"):
        patterns = [str(_id(word, key, choice)) for choice in choices]
    else:
        patterns = [pattern for choice in choices for pattern in _patterns(choice)]
    return Text(key, _compiled(patterns), excludes)


def _single_word(word: _Word) -> Text:
    excludes = word.letters[0] == ("!", _PLAIN)
    text = _text(word.letters[excludes:])
    if not text:
        raise word.wrong("is empty: write a word such as nginx, or !nginx to exclude it")
    return Text(_SINGLE_WORD, re.compile(re.escape(text), re.IGNORECASE), excludes)


def _limit(word: _Word, key: str, text: str) -> float:
    if key in _TIMES:
        try:
            return parse_duration(text, _NS_PER_MS)
        except ValueError:
            raise word.wrong(f"is not a duration: try {key}>{_EXAMPLES[key]}") from None
    number = _NUMBER.fullmatch(text)
    if not number:
        raise word.wrong(f"is not a number: try {key}>{_EXAMPLES[key]}")
    return float(number[1]) * _FACTORS[number[2].lower()]


def _id(word: _Word, key: str, choice: _Letters) -> int:
    text = _text(choice)
    if not text.isascii() or not text.isdecimal() or int(text) > _LAST_ID:
        raise word.wrong(f"is not a {'process' if key.endswith('pid') else 'thread'} id: try {key}={_EXAMPLES[key]}")
    return int(text)


def _categories(
    word: _Word, choice: _Letters, groups: Mapping[str, Sequence[str]], ids: Collection[str]
) -> Iterator[str]:
    """Return patterns as regular expressions."""
    patterns, name = [*_patterns(choice)], _text(choice).lower()
    members = groups.get(name, ())
    known = (*ids, RUN_QUEUE, SHORT, FILTERED)
    if ids and not members and not any(map(_compiled(patterns).match, known)):
        first, *others = difflib.get_close_matches(name, [*ids, *groups], 3, 0)
        raise word.wrong(f"is not a category: try {' or '.join([', '.join([first, *others[:-1]]), *others[-1:]])}")
    yield from patterns
    for member in members:
        yield _literally(member)


def _alternatives(letters: _Letters) -> Iterator[_Letters]:
    """Split at commas."""
    start = 0
    for at, letter in enumerate([*letters, (",", _PLAIN)]):
        if letter == (",", _PLAIN):
            if at > start:
                yield letters[start:at]
            start = at + 1


def _patterns(letters: _Letters) -> Iterator[str]:
    """Return regular expressions, none of which can take long.

    fnmatch's translation of * does not backtrack.
    """
    glob = "".join(
        f"[{character}]" if typed == _ESCAPED and character in "*?[" else character for character, typed in letters
    )
    yield translate(glob)
    if ("[", _PLAIN) in letters or ("[", _QUOTED) in letters:
        yield _literally(_text(letters))


def _exactly(text: str) -> re.Pattern[str]:
    """Match exactly, including case."""
    return re.compile(_literally(text))


def _literally(text: str) -> str:
    return re.escape(text) + r"\Z"


def _compiled(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


def _text(letters: _Letters) -> str:
    return "".join(character for character, _ in letters)
