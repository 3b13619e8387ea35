"""Parse a filter as it is typed: `comm=mysql* max>10ms cat!=poll`.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from types import MappingProxyType
from typing import NamedTuple

from offtop.errors import UsageError
from offtop.model.aggregate.filter import (
    CAUSE,
    COUNTS,
    OBJECT,
    OTHER_WAKER,
    SINGLE_WORD,
    TIMES,
    WAKER_PROCESS,
    WAKER_THREAD,
    Bound,
    Filter,
    Ids,
    Text,
)
from offtop.model.aggregate.pool import Pool, parts
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import Reason
from offtop.model.values.wake import Object
from offtop.model.windows.breakdown import FILTERED, RUN_QUEUE, SHORT
from offtop.printable import printable
from offtop.units import parse_duration

_LONGEST = 500
_MOST_WORDS = 32
_LONGEST_SHOWN = 40
"""Of a word that an error quotes."""
_AND, _OR, _NOT = "is not needed", "needs commas, in one key: comm=fio,dd", "is written as comm!=fio"
_OPERATORS = {
    "and": f"{_AND}: all words must match",
    "&&": _AND,
    "&": _AND,
    "or": _OR,
    "||": _OR,
    "|": _OR,
    "not": _NOT,
}
"""What is wrong with words that other languages use as operators."""
_JOINED = re.compile(r"(&&?|\|\|?)!?(\w+)[=!<>]")
"""One of them between two words with keys."""
_LAST_ID = (1 << 31) - 1
_NS_PER_MS = 1_000_000
_IDS = {"pid": 0, "tid": 1}
"""Key → column of a site's ids."""
_OF_LISTS = ("op", "bytes", "dev")
"""Keys that only choose file operations (file_rows.py) or requests to disks (disk_rows.py)."""
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
_WITH_COLON = re.compile(r"(\w+):([^:/\s].*)")
"""As in --trigger, where `comm:postgres` chooses a program. `thread::run` and `file:///tmp` are searched for."""
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([kKmM]?)")
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}
_NEEDS_NO_QUOTES = re.compile(r"[\w./:@%+-]+")
_NO_GROUPS: Mapping[str, Sequence[str]] = MappingProxyType({})


class FilterError(UsageError):
    """A filter that cannot be parsed."""


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
        terms = {"wakerpid": str(key.pid), "wakertid": str(key.tid), WAKER_THREAD: key.name}
    else:
        terms = {WAKER_PROCESS: str(key.pid)} if key.pid else {OTHER_WAKER: key.name}
    return Filter(f"woken by {key.name}", tuple(Text(name, _exactly(text), False) for name, text in terms.items()))


def of_object(what: Object) -> Filter:
    """Return a filter for the waits on one object."""
    return Filter(f"on {what.label}", (Text(OBJECT, _exactly(what.label), False),))


def of_reason(reason: Reason) -> Filter:
    """Return a filter for the waits with one cause."""
    return Filter(f"for {reason.name}", (Text(CAUSE, _exactly(reason.name), False),))


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
            raise word.wrong(f'{_OPERATORS[word.typed.lower()]}. To search for it: "{word.typed}"')
        if (found := _WITH_COLON.fullmatch(word.typed)) and found[1] in _EXAMPLES:
            raise word.wrong(f'is not valid: try {found[1]}={found[2]}. To search for it: "{word.typed}"')
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
    return key in TIMES or key in COUNTS or key == "bytes"


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
    if (joined := _JOINED.search(bare[found.end() :])) and joined[2].lower() in _EXAMPLES:
        instead = "commas, in one key: comm=fio,dd" if "|" in joined[1] else "a space: all words must match"
        raise word.wrong(f"joins two words by {joined[1]}. Use {instead}")
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
    return Text(SINGLE_WORD, re.compile(re.escape(text), re.IGNORECASE), excludes)


def _limit(word: _Word, key: str, text: str) -> float:
    if key in TIMES:
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
