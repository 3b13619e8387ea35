"""What the catalog of a recording or a stream keeps, and what it forgets."""

from dataclasses import replace

import pytest

from offtop.model.values.catalog import Details
from offtop.model.values.peers import PEER, Peers, PeerSide, Process
from offtop.model.values.stack import EMPTY
from offtop.model.values.wake import Object
from offtop.model.windows.change import NOTHING, Change, Replayed, change
from offtop.recording import catalog_keeper
from offtop.recording.catalog_keeper import CatalogKeeper
from offtop.recording.tick_rows import Entry
from offtop.units import NS_PER_S
from tests.recording.woken import WokenSource

PEERS = Peers((PeerSide(PEER, (Process(7, "x"),), 3),))


def pipe(number: int) -> Object:
    return Object("pipe", f"pipe:[{number}]")


def peers_after(*minutes: int) -> set[Object]:
    """Return whose peers are kept after ticks at these minutes, the first of which brings some of four pipes."""
    keeper, first = CatalogKeeper(lambda _: EMPTY), change(NOTHING, WokenSource().after(1))
    replayed = Replayed(keeper.catalog)
    for number, minute in enumerate(minutes):
        one: Change = replace(first, at_ns=minute * 60 * NS_PER_S)
        peers = {} if number else {pipe(number): PEERS for number in range(4)}
        keeper.add(Entry(one, peers=peers), replayed.add(one))
    return {*keeper.catalog.peers}


def test_peers_stay_when_no_wait_is_for_their_object_any_more() -> None:
    assert peers_after(6, 12, 60) == {*map(pipe, range(4))}


def test_the_newest_peers_stay_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_keeper, "_SPARE_PEERS", 3)
    assert peers_after(6, 7) == {*map(pipe, range(4))}
    assert peers_after(6, 12) == {*map(pipe, range(1, 4))}


def test_no_peers_stay_in_a_full_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_keeper, "_MOST_WAKES", 3)
    assert peers_after(6, 7) == set()


def test_text_is_bounded_though_any_number_of_long_names_may_be_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_keeper, "_MOST_TEXT", 1_000)
    keeper, first = CatalogKeeper(lambda _: EMPTY), change(NOTHING, WokenSource().after(1))
    replayed = Replayed(keeper.catalog)
    for pid, details in (
        (1, Details("me", "x" * 600, "/", 7)),
        (2, Details("me", "x" * 600, "/", 7)),
        (3, Details("me", "", "/" * 600, 7)),
    ):
        one: Change = replace(first, at_ns=pid * NS_PER_S)
        keeper.add(Entry(one, details={pid: details}), replayed.add(one))
    assert {pid: len(one.cmdline) for pid, one in keeper.catalog.details.items()} == {1: 600, 2: 0}
    long = Object("pipe", "x" * 600)
    one = replace(first, at_ns=4 * NS_PER_S)
    keeper.add(Entry(one, peers={long: Peers(), pipe(1): PEERS}), replayed.add(one))
    assert not keeper.catalog.peers
