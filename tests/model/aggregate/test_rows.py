"""Rows are in order, and those beyond the limit are summed up in a row."""

from dataclasses import replace
from itertools import product

from offtop.model.aggregate.account import NO_ACCOUNT, Account
from offtop.model.aggregate.breakdown_rows import category_rows, cgroup_rows, place_rows, process_rows, thread_rows
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.aggregate.row_names import NO_CGROUP
from offtop.model.aggregate.rows import ACCOUNT_SORTS, SORTS, Order, Ranking, first_seen, kept_rows, visible
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, Details, ThreadKey
from offtop.model.values.snapshot import EXITED
from offtop.model.windows.breakdown import Breakdown, Leaf, Part, Scope
from offtop.model.windows.stuck import Age

SECOND = 10**9
BOOK = Catalog(
    comms={ThreadKey(1, 1): "main", ThreadKey(2, 7): "worker", ThreadKey(2, 8): "acceptor"},
    processes={1: "init", 2: "java"},
)
CUT = Breakdown(
    SECOND,
    {Leaf("lock"): Part(3, 5 * SECOND, 80, log2.of(80)), Leaf("poll", True): Part(0, 9 * SECOND)},
    {
        Leaf("lock"): {1: Part(1, 2 * SECOND, 80), 2: Part(2, 3 * SECOND, 7)},
        Leaf("poll", True): {1: Part(0, 9 * SECOND)},
    },
)
THREADS = {(1, 1): (1, 2 * SECOND, 80, 0), (2, 7): (9, SECOND, 7, 0), (2, 8): (2, 2 * SECOND, 9, 0)}


def keys(ranking: Ranking) -> list[object]:
    return [row.key for row in ranking.rows]


def test_category_shows_its_threads_share_and_rate() -> None:
    ranking = category_rows(CUT)
    assert keys(ranking) == ["poll", "lock"]
    lock = ranking.rows[1]
    assert (lock.waiting, round(lock.share_pct), lock.waits_per_s, lock.percentile_ns(50)) == (5.0, 36, 3.0, 80)
    assert [row.idle for row in ranking.rows] == [True, False]


def test_hiding_idle_time_changes_the_shares_of_the_others() -> None:
    ranking = category_rows(CUT, idle_shown=False)
    assert keys(ranking) == ["lock"]
    assert ranking.rows[0].share_pct == 100
    assert ranking.whole.total_ns == 5 * SECOND


def test_category_without_waits_has_no_row_and_is_not_summed_up() -> None:
    waited_before = replace(CUT, categories={**CUT.categories, Leaf("pipe"): Part()})
    assert category_rows(waited_before) == category_rows(CUT)
    assert keys(category_rows(waited_before, keep="pipe")) == ["poll", "lock", "pipe"]


def test_processes_of_a_category() -> None:
    ranking = process_rows(CUT, Scope("lock"), BOOK, threads={1: 4})
    assert [(row.key, row.name, row.threads, row.waiting) for row in ranking.rows] == [
        (2, "java", 0, 3.0),
        (1, "init", 4, 2.0),
    ]


def test_each_sort_and_its_reverse() -> None:
    lifetime = {(1, 1): (0, 1, 0, 0), (2, 7): (0, 9, 0, 0)}
    expected = {
        "WAITING": [8, 1, 7],
        "CHANGE": [8, 1, 7],  # compared with nothing
        "MAX": [1, 8, 7],
        "NOW": [7, 8, 1],
        "TOTAL": [7, 1, 8],
        "EV/S": [7, 8, 1],
        "NAME": [8, 1, 7],
        "PID": [1, 7, 8],
        "P50": [8, 1, 7],
        "P99": [8, 1, 7],
    }
    assert set(expected) == set(SORTS)
    now = {ThreadKey(2, 7): Age(3), ThreadKey(2, 8): Age(2)}
    for sort, tids in expected.items():
        ranking = thread_rows(THREADS, SECOND, BOOK, Order(sort), lifetime=lifetime, now=now)
        assert [row.key.tid for row in ranking.rows if isinstance(row.key, ThreadKey)] == tids
        rest = thread_rows(THREADS, SECOND, BOOK, Order(sort, limit=2), lifetime=lifetime, now=now)
        assert rest.elided and rest.rows[0].lifetime_ns + rest.elided.lifetime_ns == 10
        back = thread_rows(THREADS, SECOND, BOOK, Order(sort, reverse=True), lifetime=lifetime, now=now)
        assert keys(back) == keys(ranking)[::-1]


ACCOUNTS = {
    (1, 1): Account(1, 1, 5, 70, 20, 5, 1, 0, 20),
    (2, 7): Account(1, 1, 50, 7, 40, 3, 2, 0, 40),
    (2, 8): Account(1, 1, 10, 8, 1, 81, 3, 1, 1),
}


def test_each_sort_of_a_list_of_accounts() -> None:
    expected = {
        "RUNNING": [7, 8, 1],
        "READY": [1, 8, 7],
        "BLOCKED": [7, 1, 8],
        "REST": [8, 1, 7],
        "NAME": [8, 1, 7],
        "PID": [1, 7, 8],
    }
    assert [*expected] == [*ACCOUNT_SORTS]
    for sort, tids in expected.items():
        for reverse in (False, True):
            ranking = thread_rows(THREADS, SECOND, BOOK, Order(sort, reverse), accounts=ACCOUNTS)
            listed = [row.key.tid for row in ranking.rows if isinstance(row.key, ThreadKey)]
            assert listed == (tids[::-1] if reverse else tids)
    nobody = thread_rows(THREADS, SECOND, BOOK, Order("RUNNING"))
    assert keys(nobody) == keys(thread_rows(THREADS, SECOND, BOOK)), "by time, where no account is asked for"


def test_row_of_the_rest_has_the_account_of_the_rest() -> None:
    of_two = Account(2, 2, 60, 15, 41, 84, 5, 1, 40)
    ranking = thread_rows(THREADS, SECOND, BOOK, Order("READY", limit=2), accounts=ACCOUNTS)
    assert (keys(ranking), ranking.elided and ranking.elided.account) == ([(1, 1)], of_two)
    every = thread_rows(THREADS, SECOND, BOOK, Order("READY"), accounts=ACCOUNTS)
    kept = kept_rows(every, lambda row: row.key == (1, 1), 9)
    assert (keys(kept), kept.elided and kept.elided.account) == ([(1, 1)], of_two)
    none = kept_rows(ranking, lambda row: False, 9)
    assert none.elided and none.elided.account == ACCOUNTS[1, 1].plus(of_two)
    plain = thread_rows(THREADS, SECOND, BOOK, Order(limit=2))
    assert plain.elided and plain.elided.account == NO_ACCOUNT


def test_rows_beyond_the_limit_are_summed_up_in_one_row() -> None:
    ranking = thread_rows(THREADS, SECOND, BOOK, Order(limit=2))
    assert keys(ranking) == [(2, 8)]
    assert ranking.elided is not None
    assert ranking.elided.name == "2 more"
    assert ranking.elided.part == (10, 3 * SECOND, 80, 0)
    assert ranking.whole == (12, 5 * SECOND, 80, 0)


def test_rows_within_the_limit_need_no_row_for_the_rest() -> None:
    ranking = thread_rows(THREADS, SECOND, BOOK, Order(limit=3))
    assert (len(ranking.rows), ranking.elided) == (3, None)


def test_largest_of_thousands_come_first() -> None:
    table = {(1, n): (1, n, n, 0) for n in range(1, 5_001)}
    ranking = thread_rows(table, SECOND, BOOK, Order(limit=3))
    assert keys(ranking) == [(1, 5_000), (1, 4_999)]
    assert ranking.elided is not None
    assert (ranking.elided.name, ranking.elided.part.total_ns) == ("4998 more", sum(range(4_999)))


def test_pinned_row_is_first_even_without_numbers() -> None:
    ranking = thread_rows(THREADS, SECOND, BOOK, pinned=[ThreadKey(2, 7)])
    assert keys(ranking) == [(2, 7), (2, 8), (1, 1)]
    assert [row.pinned for row in ranking.rows] == [True, False, False]
    gone = thread_rows(THREADS, SECOND, BOOK, pinned=[ThreadKey(3, 3)])
    assert keys(gone)[0] == (3, 3)
    assert gone.rows[0].part == Part()


def test_row_under_the_cursor_is_kept_at_the_end() -> None:
    ranking = thread_rows(THREADS, SECOND, BOOK, Order(limit=2), keep=ThreadKey(2, 7))
    assert keys(ranking) == [(2, 7)]
    gone = thread_rows(THREADS, SECOND, BOOK, keep=ThreadKey(3, 3))
    assert keys(gone)[-1] == (3, 3)
    assert keys(thread_rows(THREADS, SECOND, BOOK, keep=ThreadKey(2, 8))) == keys(thread_rows(THREADS, SECOND, BOOK))


def test_negative_time_has_no_row_but_stays_in_the_sum() -> None:
    table = {(1, 1): (0, -5, 0, 0), (0, 0): (1, 12, 7, 0)}
    ranking = thread_rows(table, SECOND, BOOK)
    assert [(row.key, row.name) for row in ranking.rows] == [(EXITED, "(exited)")]
    assert ranking.elided is not None
    assert ranking.elided.part.total_ns == -5
    assert ranking.whole.total_ns == 7


SERVICE, ID = "/system.slice/mysql.service", "1a2b3c4d5e6f" + 52 * "0"
IN_CGROUPS = Catalog(
    processes={1: "init", 2: "mysqld", 3: "java"},
    details={
        1: Details(cgroup="/"),
        2: Details(cgroup=f"{SERVICE}/io"),
        3: Details(cgroup=SERVICE),
        4: Details(cgroup=f"/docker/{ID}"),
    },
)
OF_FIVE = Breakdown(
    SECOND,
    {Leaf("lock"): Part(15, 15 * SECOND, 50)},
    {Leaf("lock"): {pid: Part(pid, pid * SECOND, 10 * pid, log2.of(10 * pid)) for pid in range(1, 6)}},
)
"""Five processes, the last of which has no details."""


def test_cgroups_are_containers_and_units_with_everything_in_them() -> None:
    ranking = cgroup_rows(OF_FIVE, Scope("lock"), IN_CGROUPS, threads={1: 1, 2: 3, 3: 5, 4: 1, 9: 1, 10: 1})
    assert [(row.key, row.name, row.processes, row.threads, row.waiting, row.part.max_ns) for row in ranking.rows] == [
        (NO_CGROUP, "(unknown)", 2, 2, 5.0, 50),
        (SERVICE, "mysql.service", 2, 8, 5.0, 30),
        (f"/docker/{ID}", "docker 1a2b3c4d5e6f", 1, 1, 4.0, 40),
        ("/", "/", 1, 1, 1.0, 10),
    ]
    assert ranking.whole == process_rows(OF_FIVE, Scope("lock"), IN_CGROUPS).whole
    assert [row.key for row in ranking.rows if parse("threads>2").keeps(row)] == [SERVICE]
    assert log2.count(ranking.rows[1].part.histogram) == 2
    assert {row.pid for row in ranking.rows} == {0}


def test_cgroups_are_sorted_limited_and_pinned_like_processes() -> None:
    now = {"/": Age(9), SERVICE: Age(3)}

    def those(order: Order, **more: str) -> list[object]:
        pinned = [more["pin"]] if "pin" in more else []
        return keys(
            cgroup_rows(
                OF_FIVE, Scope(), IN_CGROUPS, order, pinned=pinned, keep=more.get("keep"), now=now, lifetime=CUT
            )
        )

    docker = f"/docker/{ID}"
    assert those(Order("NAME")) == [NO_CGROUP, "/", docker, SERVICE]
    assert those(Order("NOW")) == ["/", SERVICE, NO_CGROUP, docker]
    assert those(Order("MAX", reverse=True)) == ["/", SERVICE, docker, NO_CGROUP]
    assert those(Order("TOTAL")) == ["/", SERVICE, NO_CGROUP, docker]  # 11 s, 3 s, 0 s, 0 s
    assert those(Order(limit=2)) == [NO_CGROUP]
    assert those(Order(limit=2), keep="/") == ["/"]
    assert those(Order(), pin="/gone") == ["/gone", NO_CGROUP, SERVICE, docker, "/"]


def test_empty_table_has_no_rows() -> None:
    empty = Ranking((), None, Part())
    assert cgroup_rows(Breakdown(), Scope(), BOOK) == empty
    assert category_rows(Breakdown()) == empty
    assert process_rows(Breakdown(), Scope(), BOOK) == empty
    assert thread_rows({}, SECOND, BOOK) == empty
    assert place_rows({}, SECOND, 5) == empty


def test_row_under_the_cursor_is_on_the_screen_and_no_line_is_left_empty() -> None:
    rows = process_rows(CUT, Scope(), BOOK).rows
    for count, lines in product(range(1, 12), range(1, 8)):
        for cursor, line in product(range(count), (None, *range(9))):
            first = first_seen(count, cursor, lines, line)
            assert 0 <= first <= cursor < first + lines
            assert first + lines <= max(count, lines)
            many = Ranking(rows=rows[:1] * count)
            for ranking in (many, many._replace(elided=rows[1])):
                seen = visible(ranking, cursor, lines, line)
                assert 0 <= seen.first <= cursor < seen.end
                assert seen.below or seen.end >= count
    assert [first_seen(9, 6, 5, line) for line in (None, 0, 3, 4)] == [4, 4, 3, 2]
