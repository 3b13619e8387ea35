"""From changes alone all snapshots can be made again, from any of them on: the same windows are between them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from offtop.model.book import ThreadKey
from offtop.model.change import NOTHING, Replayed, change
from offtop.model.history import History
from offtop.model.snapshot import Snapshot, ThreadTotals
from offtop.model.window import Window, between
from tests.model.world import BOOK, Step, snapshots, stretches
from tests.ui.scripted import SHOP, ScriptedSource


def replayed(taken: list[Snapshot]) -> list[Snapshot]:
    made = Replayed(BOOK)
    return [made.add(change(before, now)) for before, now in pairwise([NOTHING, *taken])]


def told(window: Window) -> dict[str, object]:
    """All of a window, to compare."""
    return {
        "span": (window.taken_ns, window.at_ns, window.span_ns),
        "threads": dict(window.threads),
        "sites": dict(window.sites),
        "still": {*window.still},
        "rest": (window.lost, window.cost, window.door, window.filters),
    }


def totals(snapshot: Snapshot) -> dict[ThreadKey, ThreadTotals]:
    """Those above 0, without the maxima, which are of the last tick alone."""
    return {key: one._replace(max_ns=0) for key, one in snapshot.threads.items() if any(one)}


@given(stretches, st.data())
def test_windows_between_replayed_snapshots_are_those_between_the_originals(
    given_stretches: list[list[Step]], data: st.DataObject
) -> None:
    taken = snapshots(given_stretches)
    first = data.draw(st.integers(0, len(taken) - 1))
    again = replayed(taken[first:])
    assert [told(between(a, b)) for a, b in pairwise(again)] == [
        told(between(a, b)) for a, b in pairwise(taken[first:])
    ]
    assert totals(again[-1]) == totals(taken[-1])
    assert again[-1].waiting == taken[-1].waiting


def test_a_second_of_the_shop_holds_only_what_waited_in_it() -> None:
    source = ScriptedSource(SHOP, ticks=3)
    first, second = source.after(1), source.after(2)
    one = change(first, second)
    assert len(one.sites.ids) == 10
    assert one.sites.numbers[0].tolist() == [2, 400_000_000, 0, 200_000_000]
    assert len(one.waiting) == len(one.ended) == len(one.sites.gone) == 0
    assert len(change(NOTHING, second).waiting) == 1


def test_nothing_changes_where_nothing_happens() -> None:
    one = change(Snapshot(1, 1), Snapshot(2, 2))
    assert (len(one.sites.ids), len(one.threads.ids), len(one.waiting)) == (0, 0, 0)
    made = Replayed(BOOK)
    assert dict(made.add(change(NOTHING, Snapshot(1, 1))).threads) == {}
    assert made.add(one).at_ns == 2


def test_another_epoch_begins_a_history_anew() -> None:
    source = ScriptedSource(SHOP, ticks=3)
    history = History((), lambda lanes: lanes[:, 0] > 0)
    made = Replayed(BOOK)
    assert history.add(made.add(change(NOTHING, source.after(5)), epoch=1)) is None
    kept = history.add(made.add(change(source.after(5), source.after(6)), epoch=1))
    assert kept and kept.number == 1
    assert history.add(Replayed(BOOK).add(change(NOTHING, source.after(2)), epoch=2)) is None
    assert (history.newest, history.since_start(), history.bytes_held) == (None, None, 0)
    later = history.add(source.after(3))
    assert later is None
