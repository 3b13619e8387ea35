"""Profiles over HTTP: whole ticks from the request on, a limited number at a time, or what came since the last one."""

import gzip
import threading
import time

import pytest

from offtop.agent import agent as agents
from offtop.agent.profiles import SHORTEST_TICK_NS, Profiles
from offtop.agent.server import Request
from offtop.units import NS_PER_S
from tests.agent.serving import demo_agent, get, serving

NO_TICK = b"There is no tick yet. Try again in some seconds\n"
CLOSED = b"The connection was closed for sending before the profile was complete. Keep it open\n"


def test_delta_has_what_came_since_the_last_one() -> None:
    with demo_agent() as agent, serving(agent.pages) as server:
        assert get(server, "/debug/pprof/delta").status == 503
        agent.run()
        first = get(server, "/debug/pprof/delta")
        assert (first.status, first.headers["Content-Type"]) == (200, "application/octet-stream")
        assert "Content-Encoding" not in first.headers  # the profile itself is compressed
        content = gzip.decompress(first.body)
        assert b"off_cpu" in content and b"postgres" in content and b"XLogFlush" in content
        again = get(server, "/debug/pprof/delta")
        assert again.status == 503
        assert again.body == NO_TICK


def test_profile_is_made_of_the_ticks_after_the_request() -> None:
    with demo_agent(speed=20.0) as agent, serving(agent.pages, seconds=10.0) as server:
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        got = get(server, "/debug/pprof/off_cpu?seconds=10")  # half a second of the replay
        agent.pace.stop()
        thread.join(10)
    assert got.status == 200
    assert got.headers["Content-Disposition"] == 'attachment; filename="off_cpu-10s.pb.gz"'
    assert b"off_cpu" in gzip.decompress(got.body)


def test_wrong_lengths_are_refused() -> None:
    with demo_agent() as agent, serving(agent.pages) as server:
        for text in ("0", "-1", "301", "x", "1.5", "", "9" * 5000):
            got = get(server, f"/debug/pprof/off_cpu?seconds={text}&x=1")
            assert (got.status, got.text) == (400, "seconds is not a whole number from 1 to 300\n")


def test_ticks_are_closer_while_a_profile_is_made_and_a_client_that_leaves_ends_it() -> None:
    delays: list[int] = []
    with demo_agent() as agent:
        profiles = Profiles(agent.pace._source, delays.append, 5 * NS_PER_S)  # pyright: ignore[reportPrivateUsage]
        assert profiles.of_next(10 * NS_PER_S, lambda: False) is None
        assert profiles.of_next(2 * NS_PER_S, lambda: False) is None
        assert profiles.of_next(300 * NS_PER_S, lambda: False) is None
    assert delays == [2 * NS_PER_S, 5 * NS_PER_S, SHORTEST_TICK_NS, 5 * NS_PER_S, 5 * NS_PER_S, 5 * NS_PER_S]


def test_only_four_profiles_are_made_at_a_time() -> None:
    with demo_agent() as agent:
        connected = threading.Event()
        connected.set()
        request = Request({"seconds": "300"}, connected.is_set)
        page = agent.pages["/debug/pprof/off_cpu"]
        waiting = [threading.Thread(target=page, args=(request,), daemon=True) for _ in range(4)]
        for one in waiting:
            one.start()
        deadline = time.monotonic() + 10
        while (answer := page(Request({"seconds": "300"}, lambda: False))).body == CLOSED:
            assert time.monotonic() < deadline
        assert (answer.status, answer.body) == (503, b"4 profiles are being made. Try again later\n")
        connected.clear()
        for one in waiting:
            one.join(10)
        assert page(Request({"seconds": "1"}, connected.is_set)).status == 503


def test_agent_without_ticks_for_long_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    with demo_agent() as agent, serving(agent.pages) as server:
        agent.run()
        assert (get(server, "/healthz").status, get(server, "/healthz").text) == (200, "ok\n")
        monkeypatch.setattr(agents, "_LATE_NS", -10 * NS_PER_S)
        late = get(server, "/healthz")
        assert late.status == 503
        assert "systemctl restart offtop-agent" in late.text
