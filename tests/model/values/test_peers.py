"""Peers as text: a pipe's writers for its reader, and three names of many."""

import pytest

from offtop.model.aggregate import location
from offtop.model.aggregate.filter_syntax import parse
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import WITHOUT_RULES
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.peers import (
    HOLDER,
    LISTENER,
    NO_PEERS,
    PEER,
    READER,
    WRITER,
    Peers,
    PeerSide,
    Process,
    may_have_peers,
    waited_on,
)
from offtop.model.values.snapshot import SiteTotals
from offtop.model.values.stack import KERNEL, Frame, Stack
from offtop.model.values.wake import NO_OBJECT, STILL_WAITING, THREAD, Object, Wake, Waker
from offtop.model.windows.breakdown import Idle, shares
from offtop.model.windows.window import Window
from tests.model.classify.test_causes import FixedNames

PIPE, TCP, EPOLL = (
    Object("pipe", "pipe:[7]"),
    Object("tcp", "socket:[8]", 0, "[::1]:9", "[::1]:80"),
    Object("epoll", ""),
)
GZIP, LESS = Process(4242, "gzip"), Process(77, "less")
OF_PIPE = Peers((PeerSide(READER, (LESS,), 1), PeerSide(WRITER, (GZIP,), 1)))


def stack(*functions: str) -> Stack:
    return Stack(tuple(Frame(KERNEL, 0, name) for name in functions))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("anon_pipe_read", "writer: gzip(4242)"),
        ("pipe_read", "writer: gzip(4242)"),
        ("ipipe_prep", "writer: gzip(4242)"),
        ("anon_pipe_write", "reader: less(77)"),
        ("wait_for_space", "reader: less(77)"),
        ("opipe_prep", "reader: less(77)"),
        ("do_poll", "reader: less(77); writer: gzip(4242)"),
    ],
)
def test_wait_on_a_pipe_shows_its_other_end(function: str, expected: str) -> None:
    assert OF_PIPE.text(stack("schedule", function, "vfs_it")) == expected


def test_holder_of_a_file_lock_is_shown_only_for_waits_for_the_lock() -> None:
    peers = Peers((PeerSide(HOLDER, (Process(77, "apt"),), 1),))
    for lock in ("flock_lock_inode_wait", "locks_lock_inode_wait", "fcntl_setlk64", "do_lock_file_wait"):
        assert peers.text(stack("schedule", lock, "do_it")) == "holder: apt(77)"
    assert peers.text(stack("schedule", "io_schedule", "read_it")) == ""


def test_three_of_many_peers_are_shown_with_the_number_of_others() -> None:
    some = tuple(Process(n, "web") for n in range(1, 9))
    assert Peers((PeerSide(PEER, some[:3], 3),)).text(stack()) == "peer: web(1), web(2), web(3)"
    assert Peers((PeerSide(PEER, some, 50),)).text(stack()) == "peer: web(1), web(2), web(3), +47"


def test_epoll_shows_what_it_watches_by_kind() -> None:
    assert Peers(members=(("socket", 57), ("eventfd", 1))).text(stack()) == "57 sockets, 1 eventfd"
    assert Peers(members=tuple((kind, 2) for kind in "abcde")).text(stack()) == "2 as, 2 bs, 2 cs, 4 more"
    assert NO_PEERS.text(stack()) == ""


def test_common_name_is_used_if_all_peers_have_it() -> None:
    read, asked = stack("pipe_read"), stack("tcp_recvmsg")
    assert (OF_PIPE.name(read), OF_PIPE.name(asked), NO_PEERS.name(read)) == ("gzip", "", "")
    assert Peers((PeerSide(LISTENER, (Process(1, "web"), Process(2, "web")), 2),)).name(asked) == "web"
    assert Peers((PeerSide(LISTENER, (Process(1, "web"), Process(2, "web")), 9),)).name(asked) == ""


def test_only_objects_with_possible_peers_are_looked_up() -> None:
    file = Object("file", "/x")
    asked = [PIPE, TCP, EPOLL, file, Object("unix", "socket:[1]"), Object("udp", "socket:[2]", 0, "*:1", "[::1]:2")]
    not_asked = [NO_OBJECT, Object("tcp", "socket:[3]", 0, "*:80"), Object("futex", "0x1", 7)]
    assert [one for one in [*asked, *not_asked] if may_have_peers(one)] == asked
    wakes = {10: Wake(object=PIPE), 11: Wake(object=TCP), 12: Wake(object=Object("futex", "0x1", 7))}
    assert waited_on([(7, 10), (7, 12), (8, 99), [9, 11]], wakes) == {PIPE: 7, TCP: 9}
    assert waited_on([], wakes) == {}


def catalog() -> Catalog:
    """Wake 10 is on the pipe and in progress, 11 was ended by cat, 12 is on an object without known peers."""
    cat = Waker(THREAD, "", 5, 5, "cat")
    return Catalog(
        stacks={3: stack("pipe_read"), 4: Stack((Frame("/opt/it", 1, "ask"),))},
        wakes={10: Wake(STILL_WAITING, PIPE), 11: Wake(cat, PIPE), 12: Wake(STILL_WAITING, Object("pipe", "pipe:[9]"))},
        peers={PIPE: OF_PIPE},
    )


def test_place_shows_the_peers_unless_the_waker_is_known() -> None:
    expected = [location.of_sleeper(catalog(), SiteKey(1, 1, 3, 4, wake), FixedNames()) for wake in (10, 11, 12)]
    assert expected == ["pipe_read (writer: gzip(4242)) < ask", "pipe_read < ask <- cat", "pipe_read < ask"]
    expected = [location.of_object(catalog(), SiteKey(1, 1, 3, 4, wake), FixedNames()) for wake in (10, 11, 12)]
    assert expected == [
        "writer: gzip(4242); pipe_read < ask",
        "writer: gzip(4242); pipe_read < ask <- cat",
        "pipe_read < ask",
    ]


def test_object_filter_matches_peers_and_a_single_word_does_not() -> None:
    one = catalog()
    sites = {SiteKey(1, tid, 3, 4, wake): SiteTotals(1, 5, 0, 5, 1) for tid, wake in ((71, 10), (72, 11), (73, 12))}
    every = shares(Window(0, 0, 1, sites=sites, catalog=one), Idle())

    def left(text: str) -> list[int]:
        return sorted(every.ids[parse(text).mask(every, one, CauseFinder(FixedNames(), WITHOUT_RULES)), 1].tolist())

    assert (left("object=gzip"), left("object=gzip(4242)"), left("object=pipe*")) == ([71, 72], [71, 72], [71, 72, 73])
    assert (left("gzip"), left("object!=gzip")) == ([], [73])
    assert (parse("object=gzip").needs_peers, parse("gzip comm=x").needs_peers, parse("").needs_peers) == (
        True,
        True,
        False,
    )
