"""Test what threads wait on, without wakers.

23 waits on an object of each kind are 23 waits on that object.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from subprocess import PIPE

import pytest

from offtop.kernel.bpf import layout, map_sizes
from offtop.kernel.bpf.map_sizes import Sizes
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import NO_OBJECT, NOT_GATHERED, OFFCPU, OFFWAKE, STILL_WAITING, SYN_SENT, WAKEUP, Object
from offtop.model.windows.window import Window, merge
from tests.kernel import wakings, watch
from tests.kernel.programs import Program
from tests.kernel.watch import MS, Watch

pytestmark = pytest.mark.kernel

TIMES = 23
ROOMY = 8192


@pytest.fixture(scope="module")
def live() -> Generator[Watch]:
    with watch.watching() as live:
        yield live


CONNECTS = f"""
import select, socket
listener = socket.create_server(("127.0.0.1", 0), backlog=0)
several = [socket.socket() for _ in range(4)]
for one in several:
    one.setblocking(False)
    one.connect_ex(listener.getsockname())
poll = select.poll()
poll.register(several[-1], select.POLLOUT)
print("full", flush=True)
input()
for _ in range({TIMES}):
    poll.poll(20)
print("polled", flush=True)
poll.poll(60_000)
"""
"""A client that a server with a full backlog lets wait."""


def asked(live: Watch, child: Program, mode: str = OFFCPU, min_ns: int = MS) -> Watch:
    """Select only the child from here on."""
    live.source.set_filters(Filters(min_ns=min_ns, pids=(child.pid,)))
    live.source.set_mode(mode)
    live.tick()
    return live


def waits_on(window: Window, tid: int) -> Counter[Object]:
    """Count the ended waits of a thread by their object."""
    found = Counter[Object]()
    for key, totals in watch.sites_of(window, tid).items():
        found[window.catalog.wake(key.wake).object] += totals.waits
    return +found


def check_unknown(window: Window, tid: int) -> None:
    """Check that the thread waited TIMES on nothing known, besides the waits in which it was preempted."""
    most_preempted = watch.thread(window, tid).involuntary
    assert 0 <= waits_on(window, tid)[NO_OBJECT] - TIMES <= most_preempted


def object_waited_on(live: Watch, pid: int, tid: int) -> Object:
    """Return the object that a thread waits on now."""
    return live.last.catalog.wake(live.last.waiting[ThreadKey(pid, tid)].site.wake).object


def descriptors(pid: int) -> set[str]:
    return {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}


KINDS = {
    "futex": "futex",
    "pipe": "pipe",
    "unix": "unix",
    "eventfd": "eventfd",
    "tcp": "tcp",
    "timerfd": "timerfd",
}


@pytest.mark.parametrize("kind", KINDS)
def test_23_waits_on_an_object_are_23_waits_on_it_without_a_waker(live: Watch, kind: str) -> None:
    with wakings.running(kind) as child:
        asked(live, child)
        tid = child.at.get("sleeper", child.pid)
        before = object_waited_on(live, child.pid, tid)
        child.go()
        window = live.tick()
        found = waits_on(window, tid)
        (what,) = {one for one in found if one.kind == KINDS[kind]}
        assert found[what] == TIMES
        assert (what == before) is (kind != "timerfd"), "a timerfd is waited on only after the go"
        assert what.pid == (child.pid if kind in ("futex", "eventfd", "timerfd") else 0)
        if not what.pid:
            assert what.name in descriptors(child.pid)
        wakers = {window.catalog.wake(key.wake).waker for key in watch.sites_of(window, tid)}
        assert wakers <= {NOT_GATHERED, STILL_WAITING}
        assert window.lost == {}
        if kind == "unix":
            assert what.peer == f"wakings({child.pid})"
        if kind == "tcp":
            assert what[3:] == (f"127.0.0.1:{child.at['port']}", what.peer, "established")
            assert what.label == f"tcp {what.peer} via :{child.at['port']}"


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *(("tcp", way) for way in ("poll", "ppoll", "select", "pselect", "turns")),
        *(pytest.param("eventfd", way, marks=pytest.mark.variant) for way in ("ppoll", "select", "turns")),
        *(("eventfd", way) for way in ("poll", "pselect")),
    ],
)
def test_polling_one_object_waits_on_it_like_reading_it(live: Watch, kind: str, way: str) -> None:
    with wakings.running(f"{way}:{kind}") as child:
        asked(live, child)
        sleeper = child.at["sleeper"]
        before = object_waited_on(live, child.pid, sleeper)
        child.go()
        window = live.tick()
        found = waits_on(window, sleeper)
        (what,) = (one for one in found if one.kind == kind)
        short = watch.thread(window, sleeper).short_waits  # those that got no CPU until just before the wakeup
        assert what == before
        assert TIMES - short <= found[what] <= TIMES, found
        if kind == "tcp":
            assert what.label == f"tcp {what.peer} via :{child.at['port']}"


def test_polling_two_objects_by_turns_waits_on_each(live: Watch) -> None:
    with wakings.running("turns:two-tcp") as child:
        asked(live, child)
        child.go()
        found = waits_on(live.tick(), child.at["sleeper"])
        assert sorted(waits for one, waits in found.items() if one.kind == "tcp") == [TIMES // 2, TIMES // 2 + 1]


@pytest.mark.parametrize(("way", "many"), [("2", "2"), ("5", "5"), ("9", "9"), ("10", "9 or more")])
def test_polling_several_objects_shows_how_many(live: Watch, way: str, many: str) -> None:
    with wakings.running(f"{way}:pipe") as child:
        asked(live, child)
        sleeper = child.at["sleeper"]
        before = object_waited_on(live, child.pid, sleeper)
        child.go()
        found = waits_on(live.tick(), sleeper)
        assert found[Object("poll", f"poll of {many} descriptors", child.pid)] == TIMES
        assert before in found


@pytest.mark.parametrize("way", ["poll", "select"])
def test_waking_a_poller_of_one_object_ends_a_wait_on_it(live: Watch, way: str) -> None:
    with wakings.running(f"{way}:pipe") as child:
        asked(live, child, mode=OFFWAKE)
        child.go()
        window = live.tick()
        ended = Counter[tuple[str, int]]()
        for key, totals in watch.sites_of(window, child.at["sleeper"]).items():
            wake = window.catalog.wake(key.wake)
            ended[wake.object.name, wake.waker.tid] += totals.waits
        (name,) = {name for name, by in ended if by == child.at["waker"]} - {""}
        assert ended[name, child.at["waker"]] >= TIMES - 1
        assert name in descriptors(child.pid)


def test_a_poll_of_nothing_waits_on_nothing(live: Watch) -> None:
    with wakings.running("nap") as child:
        asked(live, child)
        child.go()
        check_unknown(live.tick(), child.pid)


def test_an_object_that_no_system_call_names_is_unknown(live: Watch) -> None:
    for kind in ("splice", "signal"):
        with wakings.running(kind) as child:
            asked(live, child)
            child.go()
            check_unknown(live.tick(), child.at.get("sleeper", child.pid))


def test_accept_waits_on_the_listening_socket(live: Watch) -> None:
    with wakings.running("accept") as child:
        asked(live, child)
        child.go()
        found = {one: waits for one, waits in waits_on(live.tick(), child.pid).items() if one.kind == "tcp"}
        ((what, waits),) = found.items()
        assert waits == TIMES
        assert (what.local, what.peer, what.state) == (f"127.0.0.1:{child.at['port']}", "", "listen")
        assert what.label == f"tcp 127.0.0.1:{child.at['port']} (listening)"


@pytest.mark.parametrize("mode", [OFFCPU, WAKEUP])
def test_polling_a_socket_that_is_being_connected_is_a_wait_for_a_connection(live: Watch, mode: str) -> None:
    with subprocess.Popen([sys.executable, "-c", CONNECTS], stdin=PIPE, stdout=PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        try:
            assert child.stdout.readline() == "full\n"
            live.source.set_filters(Filters(min_ns=MS, pids=(child.pid,)))
            live.source.set_mode(mode)
            live.tick()
            print(file=child.stdin, flush=True)
            assert child.stdout.readline() == "polled\n"
            time.sleep(0.1)
            window = live.tick()
            ended = Counter[tuple[str, str]]()
            for key, totals in watch.sites_of(window, child.pid).items():
                if totals.waits and (category := window.catalog.stack(key.kernel).category) in ("connect", "poll"):
                    ended[category, window.catalog.wake(key.wake).object.state] += totals.waits
            (waiting,) = live.last.waiting.values()
            # One poll in some 1,500 has a table that is not found, among those that earlier ones left on the stack.
            assert ended.total() == TIMES
            assert ended.pop(("poll", ""), 0) <= 1
            assert ended.keys() == {("connect", SYN_SENT)}
            assert live.last.catalog.stack(waiting.site.kernel).category == "connect"
        finally:
            child.kill()


RING = """
import ctypes, struct, sys
call, setup = ctypes.CDLL(None).syscall, ctypes.create_string_buffer(120)
ring = call(425, 4, setup)  # io_uring_setup
if {is_registered}:
    update = struct.pack("=IIQ", 0, 0, ring)
    assert call(427, ring, 20, update, 1) == 1  # io_uring_register: IORING_REGISTER_RING_FDS, as number 0
print("waits", flush=True)
call(426, 0 if {is_registered} else ring, 0, 1, 1 | {is_registered} << 4, 0, 0)  # io_uring_enter, which never returns
"""


@pytest.mark.parametrize("is_registered", [False, True])
def test_a_registered_ring_is_not_taken_for_a_descriptor(live: Watch, is_registered: bool) -> None:
    if Path("/proc/sys/kernel/io_uring_disabled").read_text().strip() != "0":
        pytest.skip("io_uring is disabled here (kernel.io_uring_disabled)")
    code = RING.format(is_registered=is_registered)
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True) as child:
        assert child.stdout
        try:
            assert child.stdout.readline() == "waits\n"
            live.source.set_filters(Filters(min_ns=MS, pids=(child.pid,)))
            time.sleep(0.1)
            live.tick()
            live.tick()
            found = object_waited_on(live, child.pid, child.pid)
            assert found == NO_OBJECT if is_registered else found.kind == "io_uring"
        finally:
            child.kill()


def test_two_sockets_of_one_thread_are_two_objects(live: Watch) -> None:
    with wakings.running("two-tcp") as child:
        asked(live, child)
        child.go()
        found = waits_on(live.tick(), child.at["sleeper"])
        assert sorted(waits for one, waits in found.items() if one.kind == "tcp") == [TIMES // 2, TIMES // 2 + 1]
        assert len({one.label for one in found}) == len(found)


def test_each_awaited_child_is_one_object(live: Watch) -> None:
    with wakings.running("exit") as child:
        asked(live, child)
        child.go()
        found = {one: waits for one, waits in waits_on(live.tick(), child.pid).items() if one.kind == "child"}
        assert (len(found), {*found.values()}, {one.pid for one in found}) == (TIMES, {1}, {0})


def test_of_2000_objects_of_a_thread_64_are_shown_per_tick_and_no_wait_is_lost(live: Watch) -> None:
    with wakings.running("timerfds", 2000, 1) as child:
        asked(live, child, min_ns=MS // 2)
        child.go()
        window = live.tick()
        found = waits_on(window, child.pid)
        named = {one: waits for one, waits in found.items() if one.kind}
        assert (len(named), {*named.values()}) == (layout.MAX_OBJECTS, {1})
        assert found[NO_OBJECT] == pytest.approx(2000 - layout.MAX_OBJECTS + 1, abs=40)
        assert sum(found.values()) == pytest.approx(2001, abs=40)
        assert window.lost == {}


def test_with_few_sites_half_are_for_objects_and_no_wait_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(map_sizes, "for_machine", lambda: Sizes(ROOMY, 32, ROOMY, ROOMY, ROOMY))
    with wakings.running("timerfds", 100, 2) as child, watch.watching(Filters(min_ns=MS, pids=(child.pid,))) as live:
        for _ in range(2):
            live.tick()
        child.go()
        window = live.tick()
        found = waits_on(window, child.pid)
        assert sum(one.kind == "timerfd" or one.kind == "file" for one in found) == pytest.approx(16, abs=1)
        assert sum(found.values()) == pytest.approx(101, abs=2)
        assert window.lost == {}


def test_objects_without_room_are_unknown_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    watch.resize_maps(monkeypatch, dict.fromkeys(("wakers", "wakes", "objects"), 8))
    with wakings.running("timerfds", 60, 2) as child, watch.watching(Filters(min_ns=MS, pids=(child.pid,))) as live:
        live.tick()
        child.go()
        window = live.tick()
        found = waits_on(window, child.pid)
        assert found[NO_OBJECT] >= 60 - 8
        assert sum(found.values()) == pytest.approx(61, abs=2)
        assert {window.catalog.wake(key.wake).waker for key in watch.sites_of(window, child.pid)} <= {
            *(NOT_GATHERED, STILL_WAITING),
        }


def test_a_wait_in_progress_is_on_its_final_object(live: Watch) -> None:
    with wakings.running("pipe", 3, 200) as child:
        asked(live, child)
        child.go_on_alone()
        sleeper = child.at["sleeper"]
        live.tick(0.05)
        windows = [live.tick(0.05) for _ in range(14)]
        (what,) = {*waits_on(merge(windows), sleeper)}
        assert what.kind == "pipe"
        for window in windows:
            moved = [one for one in window.moves if one.was.tid == sleeper]
            assert all(one.was.wake == one.now.wake for one in moved), "though its user stack may arrive later"
            on = Counter[str]()
            for key, totals in watch.sites_of(window, sleeper).items():
                on[window.catalog.wake(key.wake).object.kind] += totals.total_ns
            assert on["pipe"] >= 0.9 * window.span_ns - 10 * MS or "futex" in on


def test_with_wakers_a_wait_moves_from_its_object_to_its_waker(live: Watch) -> None:
    with wakings.running("pipe", 2, 200) as child:
        asked(live, child, OFFWAKE)
        child.go_on_alone()
        sleeper = child.at["sleeper"]
        live.tick(0.1)
        wake = live.last.catalog.wake(live.last.waiting[ThreadKey(child.pid, sleeper)].site.wake)
        assert (wake.waker, wake.object.kind, wake.has_waker) == (STILL_WAITING, "pipe", False)
        windows = [live.tick(0.1) for _ in range(5)]
        ended = {
            window.catalog.wake(key.wake)
            for window in windows
            for key, totals in watch.sites_of(window, sleeper).items()
            if totals.waits
        }
        assert {(one.object, one.waker.tid) for one in ended} == {(wake.object, child.at["waker"])}
