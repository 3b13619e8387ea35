"""A filter chooses what it says; one that cannot be parsed reports what to write."""

import gc
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.errors import UsageError
from offtop.model.aggregate.filter import NOTHING, Text
from offtop.model.aggregate.filter_syntax import FilterError, exactly, parse, quoted
from offtop.model.aggregate.rows import Row
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, Details, ThreadKey
from offtop.model.values.snapshot import EXITED
from offtop.model.values.stack import FILTERED, KERNEL, NO_STACK, SHORT, Frame, Stack
from offtop.model.values.table import integers
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.breakdown import Idle, Leaf, Part, Shares, shares
from offtop.model.windows.window import Window, between, merge
from offtop.printable import printable
from tests.model.world import Step, snapshots, stretches

MS = 1_000_000
SECOND = 1_000 * MS
GROUPS: Mapping[str, Sequence[str]] = {"disk": ("disk-read", "fsync")}
KEYS = (
    "comm, thread, proc, pid, tid, user, cat, stack, leaf, cgroup, container, cmd, "
    "waker, wakerpid, wakertid, object, why, file, op, dev, max, now, p50, p99, waiting, evs, threads, bytes"
)
IDS = ("lock", "fsync", "disk-read", "poll", "run-queue", "short", "other")


def stack(*names: str, tail: int = 0, file: str = KERNEL) -> Stack:
    return Stack(tuple(Frame(file, 0, name) for name in names), tail)


MYSQLD = Details("mysql", "/usr/sbin/mysqld --port 3306", "/system.slice/mysql.service/io", 27)
JAVA = Details("1000", "java -jar shop.jar", "/", 1000)
BOOK = Catalog(
    comms={
        ThreadKey(1, 11): "connection",
        ThreadKey(1, 12): "ib_log_writer",
        ThreadKey(2, 21): "G1 Young",
        ThreadKey(3, 3): "nginx",
    },
    processes={1: "mysqld", 2: "java", 3: "nginx"},
    details={1: MYSQLD, 2: JAVA},
)
BOOK.stacks |= {
    3: stack("schedule", "futex_do_wait", "__x64_sys_futex", tail=1),
    4: stack("schedule", "jbd2_log_wait_commit", "ext4_fsync", tail=1),
    5: stack("schedule", "do_epoll_wait", tail=1),
    6: stack("buf_page_get_gen", "JOIN::exec(int[3])", "main", file="/usr/sbin/mysqld"),
    7: stack("[gone]", file="[gone]"),
}
ROWS = (
    ("lock", 1, 11, 3, 6),  # 0
    ("fsync", 1, 12, 4, 7),  # 1
    ("lock", 2, 21, 3, NO_STACK),  # 2
    ("poll", 3, 3, 5, NO_STACK),  # 3
    ("short", 1, 11, SHORT, NO_STACK),  # 4
    ("filtered", 2, 21, FILTERED, NO_STACK),  # 5
    ("lock", EXITED.pid, EXITED.tid, 3, NO_STACK),  # 6
)
EVERY = range(len(ROWS))


class Named:
    """Names of made-up frames."""

    version = 0

    def of(self, frame: Frame) -> str:
        return frame.name


NAMES = Named()
JUDGE = CauseFinder(NAMES, WITHOUT_RULES)


def waits(rows: Sequence[tuple[str, int, int, int, int]] = ROWS) -> Shares:
    """Of `rows`: category, pid, tid, kernel stack, user stack."""
    leaves = [Leaf(category) for category in dict.fromkeys(row[0] for row in rows)]
    leaf = np.array([leaves.index(Leaf(row[0])) for row in rows], np.int64)
    ones = np.ones(len(rows), np.int64)
    return Shares(leaves, leaf, integers([(*row[1:], NO_WAKE) for row in rows], 5), ones, ones, ones, integers([], 3))


def chosen(text: str) -> list[int]:
    """Which of ROWS."""
    return np.flatnonzero(parse(text, GROUPS, IDS).mask(waits(), BOOK, JUDGE)).tolist()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", EVERY),
        ("   ", EVERY),
        ("comm=mysqld", [0, 1, 4]),  # the process's name
        ("comm=ib_log_writer", [1]),  # the thread's own
        ("comm!=mysql*", [2, 3, 5, 6]),
        ("comm=MYSQL?", [0, 1, 4]),
        ("comm==[jm]*", [0, 1, 2, 4, 5]),
        ("thread=mysqld", []),
        ("thread=*log*,G*", [1, 2, 5]),
        ('thread="G1 Young"', [2, 5]),
        ("thread='G1 *'", [2, 5]),
        (r"thread=G1\ Y*", [2, 5]),
        (r"thread='G1\ Young'", []),
        (r'thread="G1 \*"', []),
        ("proc=java,nginx", [2, 3, 5]),
        ("proc=*exited*", [6]),
        ("pid=1,3", [0, 1, 3, 4]),
        ("pid!=1", [2, 3, 5, 6]),
        ("tid=12", [1]),
        ("user=mysql", [0, 1, 4]),
        ("user=27,1000", [0, 1, 2, 4, 5]),
        ("user!=mysql", [2, 3, 5, 6]),
        ('user=""', [3, 6]),  # not known
        ("user=-1", []),
        ("cmd=*--port*", [0, 1, 4]),
        ('cmd="*-jar shop*"', [2, 5]),
        ("cgroup=*/mysql.service", [0, 1, 4]),
        ("cgroup=mysql", []),  # a value must match the whole text
        ("cgroup=/system.slice/mysql.service", [0, 1, 4]),  # of the unit
        ("cgroup=/system.slice/mysql.service/io", [0, 1, 4]),  # its own
        ("cgroup=/system.slice/mysql.service/i", []),
        ('cgroup=""', [3, 6]),  # not known
        ("container=mysql.service", [0, 1, 4]),
        ("container=unit,docker", [0, 1, 4]),
        ("container=mysql", []),
        ("container=*", [0, 1, 4]),  # any
        ("container!=*", [2, 3, 5, 6]),  # none
        ("cat=lock", [0, 2, 6]),
        ("cat!=lock,poll", [1, 4, 5]),
        ("cat=disk", [1]),
        ("cat=f*", [1, 5]),
        ("cat=Short", [4]),
        ("cat=filtered", [5]),
        ("leaf=futex*", [0, 2, 6]),
        ("leaf=ext4_fsync", []),
        ("leaf=schedule", []),  # the scheduler's own
        ("leaf!=futex*", [1, 3, 4, 5]),
        ("stack=ext4_fsync", [1]),
        ("stack=schedule", []),
        ("stack=main,do_epoll_wait", [0, 3]),
        ("stack=*", [0, 1, 2, 3, 6]),
        ("stack!=*", [4, 5]),  # short and filtered waits have none
        ("stack=[gone]", [1]),
        ("stack=*int*3*", [0]),
        ("stack=JOIN::exec(int[3])", [0]),
        ("stack=JOIN::exec(int[3]", []),
        ("mysql", [0, 1, 4]),
        ("YOUNG", [2, 5]),
        ("!nginx", [0, 1, 2, 4, 5, 6]),
        ("shop.jar", [2, 5]),
        ("1000", [2, 5]),  # the owner's name
        ("epoll", [3]),
        ("lo*", []),  # a word is no pattern
        ('"exec(int[3])"', [0]),
        ("short", [4]),
        ("exited", [6]),
        ("lock !mysql", [2, 6]),
        ("comm=mysql* cat!=short max>10ms", [0, 1]),
        ("max>10ms", EVERY),  # about rows of a list
        ("COMM=java CAT=LOCK", [2]),
    ],
)
def test_each_filter_chooses_these_rows(text: str, rows: Sequence[int]) -> None:
    assert chosen(text) == [*rows]


def test_empty_filter_chooses_everything_and_empty_input_gives_nothing() -> None:
    assert parse("") == NOTHING
    assert not NOTHING.chooses_waits
    assert not NOTHING.chooses_rows
    assert NOTHING.keeps(Row("lock", "lock", 0))
    for text in ("", "mysql", "!mysql", "cat=lock stack!=main pid=1 user=root"):
        assert parse(text).mask(waits(()), BOOK, JUDGE).tolist() == []
        assert parse(text).mask(shares(Window(0, 0, 0), Idle()), Catalog(), JUDGE).tolist() == []


def test_filter_knows_what_it_needs() -> None:
    waits_and_rows = parse("comm=a max>1")
    assert (waits_and_rows.chooses_waits, waits_and_rows.chooses_rows, waits_and_rows.text) == (
        True,
        True,
        "comm=a max>1",
    )
    assert not parse("max>1").chooses_waits
    asks = {"user=a": True, "cgroup!=a": True, "container=a": True, "cmd=a": True, "a": True, "!a": True}
    asks |= dict.fromkeys(
        ("comm=a", "thread=a", "proc=a", "pid=1", "tid=1", "cat=a", "stack=a", "leaf=a", "max>1"), False
    )
    assert {text: parse(text).needs_details for text in asks} == asks


@given(st.text())
def test_exact_filter_is_the_same_as_its_text(value: str) -> None:
    made = exactly("cgroup", value)
    assert [one.matches(value) for one in made.waits if isinstance(one, Text)] == [True]
    if len(made.text) <= 500:
        (again,) = parse(made.text).waits
        assert isinstance(again, Text)
        assert again.matches(value)
        assert not again.matches(f"{value}x")


PROCESS = Row(
    1, "mysqld", 2 * SECOND, Part(20, 3 * SECOND, 30 * MS + 1, 19 * log2.of(MS) + log2.of(30 * MS + 1)), threads=12
)
"""In two seconds 20 waits, which took three seconds: 10 a second, 1.5 threads on average."""


@pytest.mark.parametrize(
    "text",
    [
        "max>10ms", "max>30", "max>=30ms", "max<31", "max<=0.04s", "max=30ms", "p50<=2ms", "p50>=1ms", "p99>20ms",
        "waiting>1.4", "waiting<=1.5", "waiting=1.50", "evs=10", "evs<1k", "evs>.5", "threads>11", "threads=12",
        "threads<0.1M", "max>1 threads>1", "comm=other",
    ],
)  # fmt: skip
def test_row_is_kept_by_its_numbers(text: str) -> None:
    assert parse(text).keeps(PROCESS)


@pytest.mark.parametrize(
    "text",
    [
        "max>30.1ms", "max<30", "max=31ms", "p50>2ms", "p99<20ms", "waiting>1.5", "waiting<1.5", "evs>10", "evs>1K",
        "threads>12", "threads=11", "max>1 threads>12",
    ],
)  # fmt: skip
def test_row_is_dropped_by_its_numbers(text: str) -> None:
    assert not parse(text).keeps(PROCESS)


def test_thread_counts_as_one_and_a_row_without_waits_has_no_numbers() -> None:
    thread = Row(ThreadKey(1, 11), "connection", SECOND)
    assert parse("threads=1 max<1us p99=0 waiting=0 evs=0").keeps(thread)
    assert not parse("max>0").keeps(thread)


@pytest.mark.parametrize("text", ["proc=mysqld", "why=*lock", "leaf=futex*", "mysqld max>1ms"])
def test_a_filter_frees_what_it_was_used_on_without_a_garbage_collection(text: str) -> None:
    some = waits()
    gc.disable()
    try:
        before = sys.getrefcount(some.ids)
        parse(text, GROUPS, IDS).mask(some, BOOK, JUDGE)
        after = sys.getrefcount(some.ids)
    finally:
        gc.enable()
    assert after == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max>fast", "'max>fast' is not a duration: try max>10ms"),
        ("p50<", "'p50<' is not a duration: try p50>1ms"),
        ("evs>many", "'evs>many' is not a number: try evs>1k"),
        ("waiting>-1", "'waiting>-1' is not a number: try waiting>0.5"),
        ("max!=3ms", "'max!=3ms' is not valid: max takes > >= < <= and ="),
        ("comm>a", "'comm>a' is not valid: comm takes = and !="),
        ("!comm=a", "'!comm=a' is not valid: to exclude matches, try comm!="),
        ("a colour=red b", f"'colour' is not a filter key. Use one of {KEYS}"),
        ("comm=fio and cat=lock", "'and' is not needed: all words must match. To search for it: \"and\""),
        ("a && b", "'&&' is not needed. To search for it: \"&&\""),
        ("& x", "'&' is not needed. To search for it: \"&\""),
        ("comm=fio & ", "'&' is not needed."),
        ("comm=fio | dd", "'|' needs commas, in one key: comm=fio,dd."),
        ("comm=fio || comm=dd", "'||' needs commas, in one key: comm=fio,dd."),
        ("comm=a*|comm=b", "'comm=a*|comm=b' joins two words by |. Use commas, in one key: comm=fio,dd"),
        ("comm=a&&!cat=x", "'comm=a&&!cat=x' joins two words by &&. Use a space: all words must match"),
        ("NOT comm=dd", "'NOT' is written as comm!=fio."),
        ("comm:postgres", "'comm:postgres' is not valid: try comm=postgres. To search for it: \"comm:postgres\""),
        ("category=lock", "'category' is not a filter key: try cat=lock"),
        ("process=mysqld", "'process' is not a filter key: try proc=mysqld"),
        ("thraed=x", "'thraed' is not a filter key: try thread=worker*"),
        ("event>9", "'event' is not a filter key. Use one of comm,"),
        ("maximum>1s", "'maximum' is not a filter key: try max>10ms"),
        ("std::vector<int>", "'std::vector<int>' contains <: put it in quotes to search for the text, or try comm="),
        ("=x", "'=x' contains =: put it in quotes to search for the text, or try comm=mysql*"),
        ("pid=x", "'pid=x' is not a process id: try pid=4242"),
        ("pid=", "'pid=' has no value: try pid=4242"),
        ("pid=²", "'pid=²' is not a process id: try pid=4242"),
        ("tid=1,-2", "'tid=1,-2' is not a thread id: try tid=4242"),
        ("tid=99999999999999999999", "'tid=99999999999999999999' is not a thread id: try tid=4242"),
        ("cat=lok", "'cat=lok' is not a category: try lock, poll or disk"),
        ("cat=net*", "'cat=net*' is not a category: try "),
        ("comm=,", "'comm=,' has no value: try comm=mysql*"),
        ("!", "'!' is empty: write a word such as nginx, or !nginx to exclude it"),
        ('""', "'\"\"' is empty: "),
        ('comm="G1 Young', "'comm=\"G1 Young' has an open quote: add a \" at the end"),
        ("it's", "'it's' has an open quote: add a ' at the end"),
        ("pid=\x1b[2J\u202e", r"'pid=\x1b[2J\u202e' is not a process id"),
        ("pid=" + 90 * "x", f"'pid={35 * 'x'}…' is not a process id"),
        (501 * "x", "A filter of 501 characters is too long: use patterns; the limit is 500"),
        (33 * "x ", "A filter of 33 words is too long: use commas; the limit is 32"),
    ],
)  # fmt: skip
def test_invalid_filter_is_reported_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(FilterError, match="^" + re.escape(said)) as raised:
        parse(text, GROUPS, IDS)
    assert isinstance(raised.value, UsageError)
    assert str(raised.value).isprintable()


def test_words_about_file_operations_and_disks_choose_neither_waits_nor_other_rows() -> None:
    chosen = parse("op=pwrite op!=read bytes>1M dev=sd* comm=fio max>1s")
    assert (len(chosen.waits), len(chosen.rows), len(chosen.lists)) == (1, 1, 4)
    assert not parse("op=pwrite bytes>1M dev=sda").chooses_waits


def test_any_category_is_accepted_if_they_are_unknown() -> None:
    assert parse("cat=anything").chooses_waits


words = st.text(max_size=20)
shell = st.text("abc*?[]!-\\\"', =<>{}()|.+^$", max_size=40)
parsed_or_not = st.one_of(shell, words, st.lists(shell, max_size=40).map(" ".join))


@given(parsed_or_not, st.sampled_from(("", "comm=", "cat=", "pid=", "max>", "stack!=", "!")))
def test_any_text_is_a_filter_or_a_printable_error(text: str, before: str) -> None:
    try:
        made = parse(before + text, GROUPS, IDS)
    except FilterError as error:
        assert str(error) == printable(str(error))
    else:
        assert len(made.mask(waits(), BOOK, JUDGE)) == len(ROWS)
        assert made.keeps(PROCESS) in (True, False)


terms = st.sampled_from(
    (
        "mysql", "!mysql", "comm=*o*", "comm!=*o*", "cat=lock,short", "cat!=poll", "pid=1", "tid!=21", "user=mysql",
        "user!=mysql", "stack=*w*", "stack!=*w*", "leaf=f*", "cmd=*a*", "cgroup=/", 'thread="G1 Young"', "max>3ms",
    )
)  # fmt: skip
rows = st.lists(
    st.tuples(
        st.sampled_from(IDS),
        st.integers(0, 3),
        st.sampled_from((0, 3, 11, 12, 21)),
        st.sampled_from((3, 4, 5, SHORT, FILTERED, NO_STACK)),
        st.sampled_from((6, 7, NO_STACK)),
    ),
    max_size=12,
)


@given(rows, terms, terms)
def test_two_words_choose_what_each_of_them_chooses(rows: list[tuple[str, int, int, int, int]], a: str, b: str) -> None:
    every = waits(rows)
    masks = [parse(text, GROUPS, IDS).mask(every, BOOK, JUDGE) for text in (a, b, f"{a} {b}")]
    assert masks[2].tolist() == (masks[0] & masks[1]).tolist()


@given(
    rows,
    st.sampled_from(("comm", "thread", "proc", "user", "cat", "stack", "leaf", "cgroup", "container", "pid", "tid")),
)
def test_unequal_chooses_exactly_what_equal_does_not(rows: list[tuple[str, int, int, int, int]], key: str) -> None:
    every = waits(rows)
    value = {"pid": "1,3", "tid": "11,21", "cat": "lock"}.get(key, "*o*,mysql")
    equal, unequal = (parse(f"{key}{operator}{value}").mask(every, BOOK, JUDGE) for operator in ("=", "!="))
    assert (equal ^ unequal).all()


@given(rows, st.sampled_from(("mysql", "lock", "o", "main")))
def test_excluded_word_chooses_exactly_what_the_word_does_not(
    rows: list[tuple[str, int, int, int, int]], word: str
) -> None:
    every = waits(rows)
    assert (parse(word).mask(every, BOOK, JUDGE) ^ parse(f"!{word}").mask(every, BOOK, JUDGE)).all()


@given(stretches, st.sampled_from(("lock", "poll", "short", "run-queue", "s*")))
def test_category_and_all_others_make_up_a_window(stretches: list[list[Step]], category: str) -> None:
    taken = snapshots(stretches)
    window = merge([between(a, b) for a, b in pairwise(taken)])
    every = shares(window, Idle())
    parts = [every.of(parse(f"cat{op}{category}").mask(every, window.catalog, JUDGE)) for op in ("=", "!=")]
    assert sum(int(part.total_ns.sum()) for part in parts) == sum(t.offcpu_ns for _, t in window.each_thread())


@given(words | shell, words | shell)
def test_quoted_word_matches_only_that_word(word: str, other: str) -> None:
    catalog = Catalog(comms={ThreadKey(1, 1): word, ThreadKey(1, 2): other})
    two = waits([("lock", 1, 1, 3, 0), ("lock", 1, 2, 3, 0)])
    is_same = word.casefold() == other.casefold() or word.lower() == other.lower()
    expected = [True, is_same]
    assert parse(f"thread={quoted(word)}").mask(two, catalog, JUDGE).tolist() == expected
    assert parse(f"thread!={quoted(word)}").mask(two, catalog, JUDGE).tolist() == [False, not is_same]
    if word:
        alone = parse(quoted(word)).waits
        assert len(alone) == 1
        assert parse(quoted(word)).mask(two, catalog, JUDGE).tolist()[0]


def test_patterns_do_not_take_long() -> None:
    """With backtracking, each of these would take ages."""
    catalog = Catalog(comms={ThreadKey(1, 1): 256 * "a"}, details={1: Details("", 4096 * "a")})
    one = waits([("lock", 1, 1, 3, 0)])
    for pattern in (120 * "*a" + "*b", 200 * "*" + "b", 100 * "*?" + "b", 60 * "*[a-z]a" + "c", 490 * "a" + "b"):
        for key in ("thread", "cmd"):
            assert not parse(f"{key}={pattern}").mask(one, catalog, JUDGE).any()
    assert parse("thread=" + 120 * "*a").mask(one, catalog, JUDGE).all()


@pytest.mark.parametrize(
    "text", ["and", "or", "!and x", '"and" x', "comm=and x", "thread::run", "file:///tmp", '"comm:x"', "web:80"]
)
def test_words_that_are_operators_elsewhere_can_be_searched_for(text: str) -> None:
    assert parse(text).waits
