"""Rows of file operations: order, filter words, and what is left out."""

import pytest

from offtop.model.aggregate.file_rows import FILE_SORTS, FileRow, FileRows, file_rows
from offtop.model.aggregate.filter import NOTHING
from offtop.model.aggregate.filter_syntax import FilterError, parse
from offtop.model.aggregate.rows import SORTS
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import Catalog, Details
from offtop.model.values.files import NO_CALLS, FileActivity, FileId, FileKey, FileTotals

S, MS = 1_000_000_000, 1_000_000
LOG, TABLE, TMP = FileId(1, 1, 0), FileId(1, 2, 0), FileId(1, 3, 0)
ACTIVITY = FileActivity(
    {
        FileKey(42, "fsync", LOG): FileTotals(4, 0, 80 * MS, 76 * MS, 30 * MS, log2.of(*[20 * MS] * 4), 5 * MS),
        FileKey(42, "pread", TABLE): FileTotals(1000, 8_000_000, 9 * MS, 0, MS, log2.of(*[9_000] * 1000)),
        FileKey(7, "write", TMP): FileTotals(50, 1000, MS, 0, 100_000, log2.of(*[20_000] * 50)),
    },
    {LOG: "/var/lib/db/redo.log", TABLE: "/var/lib/db/t.ibd"},
    {42: "db", 7: "sh"},
    FileTotals(3, 5, 7, 1, 7),
    2,
    1,
)
CATALOG = Catalog(
    processes={42: "mysqld"}, details={42: Details("mysql", "/usr/sbin/mysqld -f", "/system.slice/mysql.service", 27)}
)


def listed(text: str = "", sort: str = "TIME", reverse: bool = False) -> FileRows:
    return file_rows(ACTIVITY, 2 * S, CATALOG, [parse(text) if text else NOTHING], sort, reverse)


def operations(text: str = "", sort: str = "TIME", reverse: bool = False) -> list[str]:
    return [row.key.operation for row in listed(text, sort, reverse).rows]


def test_rates_shares_and_names() -> None:
    fsync, pread, write = listed().rows
    assert (fsync.name, fsync.who, round(fsync.off_cpu_pct)) == ("/var/lib/db/redo.log", "mysqld(42)", 95)
    assert (pread.calls_per_s, pread.bytes_per_s) == (500, 4_000_000)
    assert (write.name, write.who) == ("[inode 3 on 0:1]", "sh(7)")
    assert (pread.totals.percentile_ns(50), fsync.totals.percentile_ns(99)) == (16_384, 30 * MS)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("TIME", "fsync pread write"),
        ("CALLS/S", "pread write fsync"),
        ("MB/S", "pread write fsync"),
        ("MAX", "fsync pread write"),
        ("NOW", "fsync pread write"),
        ("OP", "fsync pread write"),
        ("FILE", "fsync pread write"),
        ("WHO", "fsync pread write"),
    ],
)
def test_every_column_sorts_both_ways(sort: str, order: str) -> None:
    assert operations(sort=sort) == order.split()
    if sort in ("CALLS/S", "OP", "FILE"):
        assert operations(sort=sort, reverse=True) == order.split()[::-1]


def test_each_sort_of_other_tables_has_a_column_here() -> None:
    column_for = FILE_SORTS.column_for
    assert {column_for(sort) for sort in SORTS} <= {*FILE_SORTS.columns}
    assert [column_for(sort) for sort in ("WAITING", "EV/S", "MAX", "p99")] == ["TIME", "CALLS/S", "MAX", "P99"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("file=*.ibd", "pread"),
        ("file=/var/lib/*", "fsync pread"),
        ("file!=/var/lib/*", "write"),
        ("op=fsync,write", "fsync write"),
        ("op=p*", "pread"),
        ("bytes>1k", "pread"),
        ("bytes>=1k", "pread write"),
        ("max>10ms", "fsync"),
        ("now>1ms", "fsync"),
        ("evs>100", "pread"),
        ("pid=7", "write"),
        ("proc=mysqld", "fsync pread"),
        ("comm=sh", "write"),
        ("user=mysql", "fsync pread"),
        ("user=27", "fsync pread"),
        ("cgroup=/system.slice*", "fsync pread"),
        ("cmd=*mysqld*", "fsync pread"),
        ("redo", "fsync"),
        ("!redo", "pread write"),
        ("op=fsync file=*.ibd", ""),
    ],
)
def test_filter_words_choose_rows(text: str, found: str) -> None:
    assert operations(text) == found.split()


def test_words_about_waits_are_ignored_and_named() -> None:
    made = listed("cat=lock op=fsync tid=9 waiting>1")
    assert [row.key.operation for row in made.rows] == ["fsync"]
    assert made.unsuited == ["cat", "tid", "waiting"]


def test_elided_rows_count_only_without_a_filter() -> None:
    assert (listed().elided_rows, listed().total.calls, listed().lost) == (2, 1057, 1)
    assert (listed("op=fsync").elided_rows, listed("op=fsync").total) == (0, FileTotals(4, 0, 80 * MS, 76 * MS))


def test_no_operations_are_no_rows() -> None:
    made = file_rows(FileActivity(), S, CATALOG, [NOTHING])
    assert (made.rows, made.total) == ([], NO_CALLS)
    assert FileRow(FileKey(1, "read", LOG), NO_CALLS, "", "", 0).calls_per_s == 0


def test_filter_words_for_files_are_checked_like_others() -> None:
    with pytest.raises(FilterError, match="bytes takes > >= < <= and ="):
        parse("bytes!=1")
    with pytest.raises(FilterError, match="is not a number"):
        parse("bytes>many")
    with pytest.raises(FilterError, match=r"has no value: try op=fsync"):
        parse("op=")
