"""Outliers in order of time: joined when they end, grouped for the list, and limited in number."""

from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.outlier import APART_NS, AUTO, LongWait, Outlier, Outliers, groups, joined
from offtop.model.viewmodel.outlier_list import OutlierList, which
from offtop.units import NS_PER_S

S = NS_PER_S


def outlier(
    at_s: int, length_s: float = 1.0, tid: int = 1, rule: str = AUTO, going: bool = False, more: int = 0
) -> Outlier:
    at_ns, length_ns = at_s * S, round(length_s * S)
    wait = LongWait(SiteKey(1, tid, 20, 21), at_ns - length_ns, 0 if going else at_ns)
    return Outlier(at_ns, at_ns + 5 * S, rule, "max", "lock", "shop", length_ns, 0, 0, wait, more=more)


def ended(was: Outlier, at_s: int) -> Outlier:
    assert was.wait
    wait = was.wait._replace(ended_ns=at_s * S)
    length_ns = float(wait.length_ns(at_s * S))
    return was._replace(at_ns=at_s * S, wait=wait, value=length_ns, was_reported=True)


def test_list_may_be_empty() -> None:
    assert groups([]) == joined([]) == []
    assert Outliers().every == ()


def test_length_of_a_wait() -> None:
    going = outlier(10, 3, going=True)
    assert going.is_going_on
    assert going.length_ns == 3 * S
    assert ended(going, 12).length_ns == 5 * S
    assert Outlier(0, 0, AUTO, "p99", "lock", "shop", 1, 0).length_ns == 0


def test_ended_outlier_replaces_itself() -> None:
    first, other = outlier(10, 3, going=True), outlier(11, 1, tid=2)
    found = joined([first, other, ended(first, 12)])
    assert [one.at_ns // S for one in found] == [10, 11]
    assert [one.length_ns // S for one in found] == [5, 1]
    assert not found[0].was_reported
    again = outlier(20, 3, going=True)  # another wait of the same thread
    assert len(joined([first, ended(first, 12), again])) == 2


def test_outliers_of_one_kind_are_one_line_for_a_while() -> None:
    apart_s = APART_NS // S
    every = [
        outlier(10, 1),
        outlier(11, 3, tid=2, more=4),
        outlier(11, 1, rule="lock.max > 1s"),
        outlier(10 + apart_s - 1, 2),
        outlier(10 + apart_s, 2),
    ]
    found = groups(every)
    assert [(one.first.at_ns // S, one.many, one.worst.length_ns // S) for one in found] == [
        (10, 7, 3),
        (11, 1, 1),
        (10 + apart_s, 1, 2),
    ]
    assert found[0].last.at_ns // S == 10 + apart_s - 1


def test_oldest_are_dropped_and_counted() -> None:
    kept = Outliers(most=3)
    kept.add([outlier(at) for at in (1, 2)])
    version = kept.version
    kept.add([])
    assert kept.version == version
    kept.add([outlier(at) for at in (3, 4)])
    assert [one.at_ns // S for one in kept.every] == [2, 3, 4]
    assert (kept.dropped, kept.version > version) == (1, True)


def test_list_is_newest_first_and_marks_threads_of_the_last_minute() -> None:
    kept = Outliers()
    kept.add([outlier(10), outlier(100, tid=2), outlier(200, tid=3)])
    listed = OutlierList(kept)
    assert [one.first.at_ns // S for one in listed.of(None, 5, None).groups] == [200, 100, 10]
    assert listed.marked(130 * S) == {1, ThreadKey(1, 2)}
    assert listed.marked(160 * S) == frozenset()
    middle = which(listed.every[1])
    assert [listed.of(middle, 2, line).first for line in (None, 0, 1)] == [0, 1, 0]
    at = listed.of(which(listed.every[0]), 1, None)
    assert (at.cursor, at.first) == (2, 2)
    assert listed.of((5, "", "", ""), 1, None).cursor == 0
