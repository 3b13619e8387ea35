"""A filter: which waits and rows are shown. filter_syntax.py parses it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from offtop.model.aggregate.row_names import process_name, thread_name
from offtop.model.aggregate.rows import Row
from offtop.model.aggregate.waker_rows import WITHOUT_WAKE, codes, object_of, waker_of
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import Reason, Rule
from offtop.model.values.catalog import Catalog, ThreadKey, thread_of
from offtop.model.values.container import names as container_names
from offtop.model.values.container import place
from offtop.model.values.stack import INLINED, Frame, functions
from offtop.model.values.table import Ints, Mask, thread_codes
from offtop.model.values.wake import NOT_GATHERED, Object, object_names, waker_names
from offtop.model.windows.breakdown import Shares, sites_of
from offtop.units import count, duration, threads

SINGLE_WORD = ""
"""Stands for the key of a single word."""
WAKER_THREAD, WAKER_PROCESS, OTHER_WAKER = "=thread", "=process", "=waker"
OBJECT = "=object"
CAUSE = "=why"
"""Keys that cannot be typed: thread that wakes, process that wakes, other waker, object waited on, and cause, each as
named in the list."""
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
    WAKER_THREAD: (WAKER_THREAD,),
    WAKER_PROCESS: (WAKER_PROCESS,),
    OTHER_WAKER: (OTHER_WAKER,),
    OBJECT: (OBJECT,),
    CAUSE: (CAUSE,),
    SINGLE_WORD: ("thread", "process", "category", "cmdline", "user", "kernel", "program", "waker", "object", "why"),
}
"""Key → what it matches of a wait."""
_OF_FUNCTIONS = frozenset({"kernel", "leaf", "program"})
_NEED_WAKERS = frozenset(
    {
        *("waker", "wakerpid", "wakertid"),
        *(WAKER_THREAD, WAKER_PROCESS, OTHER_WAKER),
    }
)
_NEED_PEERS = frozenset({"ends", "why", CAUSE})
_NEED_NAMES = frozenset({"program", "why", CAUSE})
_NEED_DETAILS = frozenset({"user", "uid", "cgroup", "place", "container", "cmdline"})
TIMES: Mapping[str, Callable[[Row], int]] = {
    "max": lambda row: row.part.max_ns,
    "now": lambda row: row.now.ns,
    "p50": lambda row: row.percentile_ns(50),
    "p99": lambda row: row.percentile_ns(99),
}
COUNTS: Mapping[str, Callable[[Row], float]] = {
    "waiting": lambda row: row.waiting,
    "evs": lambda row: row.waits_per_s,
    "threads": lambda row: 1 if isinstance(row.key, ThreadKey) else row.threads,
}
_DISPLAY: Mapping[str, Callable[[float], str]] = {"waiting": threads, "evs": count}


class Text(NamedTuple):
    """Chooses the waits for which one of the texts of `key` matches."""

    key: str
    """Empty for a single word."""
    pattern: re.Pattern[str]
    excludes: bool
    """Chooses all others instead."""

    def matches(self, text: str) -> bool:
        found = self.pattern.search(text) if self.key == SINGLE_WORD else self.pattern.match(text)
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
        return self.compares(TIMES[self.key](row) if self.key in TIMES else COUNTS[self.key](row))

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
        return duration(round(value)) if self.key in TIMES else _DISPLAY.get(self.key, "{:g}".format)(value)


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
            "thread": ("thread", lambda code: (thread_name(thread_of(code), catalog),)),
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
            WAKER_THREAD: ("wake", lambda wake: (waker_of(catalog, True)(wake).name,)),
            WAKER_PROCESS: ("wake", lambda wake: (str(waker_of(catalog, False)(wake).pid),)),
            OTHER_WAKER: ("wake", lambda wake: (key.name,) if not (key := waker_of(catalog, False)(wake)).pid else ()),
            OBJECT: ("wake", lambda wake: (object_of(catalog)(wake).label,)),
            "why": ("site", lambda site: (rule.name, rule.id) if (rule := sites().rules[site]) else ()),
            CAUSE: ("site", lambda site: (sites().reasons[site].name,)),
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
