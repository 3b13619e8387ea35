"""Test that each wait over its threshold arrives from BPF once and complete."""

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from offtop.kernel.accounting.outlier_events import OutlierEvents
from offtop.kernel.bpf import layout, libbpf
from offtop.kernel.bpf.libbpf import Map, RingBuffer
from offtop.kernel.resolve.stacks import Stacks
from offtop.model.aggregate import location
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.outlier import NEVER_NS, LongWait
from offtop.model.values.snapshot import Filters
from offtop.model.values.stack import NO_STACK, Frame
from tests.command import QUICK, run
from tests.kernel import programs, waits, watch
from tests.kernel.test_switch_in_probes import most_unseen

pytestmark = pytest.mark.kernel

MS = 1_000_000
_PING_PONG = (
    "import os, sys\na, b = os.pipe(), os.pipe()\n"
    "if os.fork():\n"
    "    os.close(a[0]); os.close(b[1]); print('ready', flush=True)\n"
    "    while os.write(a[1], b'x') and os.read(b[0], 1): pass\n"
    "os.close(a[1]); os.close(b[0])\n"
    "while os.read(a[0], 1) and os.write(b[1], b'x'): pass\n"
)


class Fixed:
    """One threshold for one category, another for the rest."""

    def __init__(self, category: str, mark_ns: int, others_ns: int = NEVER_NS) -> None:
        self.category, self.of_it_ns, self.others_ns = category, mark_ns, others_ns
        self.version = 0
        self.asked: set[tuple[str, str]] = set()

    @property
    def lowest_ns(self) -> int:
        return min(self.of_it_ns, self.others_ns)

    def thresholds_ns(self, program: str, kernel: int, catalog: Catalog) -> tuple[int, int]:
        category = catalog.stack(kernel).category
        self.asked.add((program, category))
        return self.of_it_ns if category == self.category else self.others_ns, NEVER_NS


class Every(Fixed):
    """The same thresholds, for ready threads too."""

    def thresholds_ns(self, program: str, kernel: int, catalog: Catalog) -> tuple[int, int]:
        mark_ns, _ = super().thresholds_ns(program, kernel, catalog)
        return mark_ns, mark_ns


def caught_of(live: watch.Watch, tid: int) -> list[LongWait]:
    return [one for one in live.last.long_waits if one.site.tid == tid]


@pytest.mark.parametrize("probe", ["exit", pytest.param("switch", marks=pytest.mark.variant)])
def test_each_wait_over_its_threshold_arrives_once_and_complete(probe: str) -> None:
    with waits.running("sleep", times=23, each_ms=20) as child, watch.watching(probe=probe) as live:
        live.source.set_thresholds(Fixed("sleep", 15 * MS))
        live.tick()
        child.go()
        child.finish()
        window = live.tick()
        catalog = window.catalog
        asleep = [one for one in caught_of(live, child.tid) if catalog.stack(one.site.kernel).category == "sleep"]
        long_waits = sorted(asleep, key=lambda one: one.began_ns)
        # On a busy machine it may be preempted on its way to sleep, and wait for a CPU until the time is up.
        unseen = most_unseen(probe, 23) + watch.thread(window, child.tid).involuntary
        assert 23 - unseen <= len(long_waits) <= 23
        users = {one.site.user for one in long_waits}
        live.source.wait_for_names({frame for user in users for frame in catalog.stack(user).frames}, 30)
        for user in users:  # the first of them may have been unwound by frame pointers
            names = location.user_names(catalog, user, live.source.names)
            assert (names[0], "main" in names) == (child.user[0], True)
        for one in long_waits:
            assert one.length_ns(one.ended_ns) >= 15 * MS  # the sleep begins before the thread is switched out
            assert 0 <= one.runqueue_ns <= one.length_ns(one.ended_ns)
            assert (one.site.pid, one.program, one.state & 1) == (child.pid, catalog.process(child.pid), 1)
            assert one.cpu in os.sched_getaffinity(0)
        assert all(a.ended_ns < b.began_ns for a, b in pairwise(long_waits))
        sites = watch.sites_of(window, child.tid)
        at_those = [sites[site] for site in {one.site for one in long_waits}]
        preempted = sum(one.waits for one in at_those) - len(long_waits)  # on its way to sleep, for less than 15 ms
        assert 0 <= preempted <= watch.thread(window, child.tid).involuntary
        rest_ns = sum(one.total_ns for one in at_those) - sum(one.ended_ns - one.began_ns for one in long_waits)
        assert 0 <= rest_ns <= preempted * 15 * MS


def test_a_wait_from_before_offtop_is_marked_at_its_end(tmp_path: Path) -> None:
    program = programs.build(tmp_path / "waits", "int main(void) { next(); next(); return 0; }")
    with programs.running([program]) as child:
        time.sleep(0.3)
        with watch.watching_kernel_stacks() as live:
            live.source.set_thresholds(Fixed("pipe", 100 * MS))
            live.tick(0.2)
            (before,) = [one for one in live.last.waiting.values() if one.site.tid == child.pid]
            child.go()
            live.tick()
            (ended,) = caught_of(live, child.pid)
            assert (ended.began_ns, ended.is_exact, ended.began_earlier) == (before.switched_out_ns, False, True)


def test_without_thresholds_no_outlier_arrives() -> None:
    with waits.running("sleep", times=5, each_ms=20) as child, watch.watching_kernel_stacks() as live:
        live.source.set_thresholds(Fixed("sleep", NEVER_NS))
        live.tick()
        child.go()
        child.finish()
        live.tick()
        assert live.last.long_waits == []


def test_bpf_gets_the_threshold_of_each_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_out: list[int] = []
    """TIDs of the waits that BPF has reported."""

    def ring(fd: int, add: Callable[[bytes], None]) -> RingBuffer:
        def noted(raw: bytes) -> None:
            handed_out.append(layout.OUTLIER.unpack(raw)[7])
            add(raw)

        return RingBuffer(fd, noted)

    monkeypatch.setattr(libbpf, "RingBuffer", ring)
    marks = Fixed("lock", 15 * MS, 10_000 * MS)
    with waits.running("sleep", times=1000, each_ms=20) as child, watch.watching_kernel_stacks() as live:
        live.source.set_thresholds(marks)
        live.tick()
        child.go()
        live.tick(0.3)
        assert child.tid in handed_out
        assert (live.last.catalog.process(child.pid), "sleep") in marks.asked
        assert caught_of(live, child.tid) == []  # they have not reached their threshold
        for _ in range(20):  # waits that ended during loading; repeated if others trace switches
            handed_out.clear()
            live.tick(0.2)
            assert caught_of(live, child.tid) == []
            if child.tid not in handed_out:
                break
        assert child.tid not in handed_out
        marks.others_ns, marks.version = 15 * MS, 1
        live.tick()
        live.tick(0.2)
        assert len(caught_of(live, child.tid)) >= 2


def test_outliers_without_room_are_counted() -> None:
    with (
        programs.running([sys.executable, "-c", _PING_PONG]) as child,
        watch.watching_kernel_stacks(Filters(pids=(child.pid,), min_ns=0)) as live,
    ):
        live.source.set_thresholds(Every("pipe", 1, 1))
        live.tick()
        for seconds in (1, 2, 4, 8):
            live.tick(seconds)
            if live.last.lost:
                break
        assert live.last.lost["outliers"] > 0
        assert len(live.last.long_waits) > 1000


def without_suspects(output: str) -> list[dict[str, Any]]:
    """Leave out the suspects of other programs: they are judged by what was before the recording, too."""
    ticks: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    return [{key: value for key, value in tick.items() if key not in ("suspects", "standing")} for tick in ticks]


def test_an_outlier_is_in_text_json_recording_and_replay(tmp_path: Path) -> None:
    file = tmp_path / "it.offtop"
    ran = tmp_path / "ran"
    with waits.running("sleep", times=2000, each_ms=20) as child:
        child.go()
        rule = f"comm:{Path(f'/proc/{child.pid}/comm').read_text().strip()} sleep.max > 15ms"
        options = ("--json", "-n", "3", "-d", "0.5", "--trigger", rule, "--record", str(file), "--mode", "wakeup")
        live = run(*options, "--fail-on-trigger", "--on-trigger", f"echo $OFFTOP_PID >>{ran}")
        text = run("-b", "-n", "1", "-d", "0.5", "--trigger", rule, *QUICK)
    assert live.status == 5
    assert "(--fail-on-trigger)" in live.err
    ticks = [json.loads(line) for line in live.out.splitlines()]
    outliers = [one for tick in ticks for one in tick["outliers"]]
    assert {one["rule"] for one in outliers} == {rule}
    assert {one["wait"]["pid"] for one in outliers} == {child.pid}
    assert len(outliers) >= 30
    ended = [one for one in outliers if not one["wait"]["going_on"]]
    woken = [one for one in ended if one["wait"]["waker"]["kind"] != "unknown"]  # a wakeup inside another is not seen
    assert len(woken) >= 0.9 * len(ended)
    one = woken[0]
    assert one["wait"]["user"][0] == child.user[0]
    assert "main" in one["wait"]["user"]
    assert one["wait"]["waker"]["kind"] == "timeout"
    assert one["value"] + one["wait"]["runqueue_ns"] == one["wait"]["length_ns"] >= 20 * MS
    assert ran.read_text() == f"{child.pid}\n"
    again = run("replay", str(file), "--json")
    assert (again.status, without_suspects(again.out)) == (0, without_suspects(live.out))
    held = run("replay", str(file), "--json", "-n", "1", "--at", "outlier")
    assert json.loads(held.out)["outliers"]
    assert text.status == 0
    assert "outlier x" in text.out
    assert f"{rule}: " in text.out


def test_a_recording_without_outliers_says_so(tmp_path: Path) -> None:
    file = tmp_path / "it.offtop"
    assert run("--record", str(file), "--json", "-n", "1", "-d", "0.5", "--trigger", "off", *QUICK).status == 0
    none = run("replay", str(file), "--json", "--at", "outlier")
    assert (none.status, none.out) == (1, "")
    assert "has no outliers" in none.err


def test_thresholds_follow_a_stack_whose_functions_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, frames = ["nfs_wait", "dlm_wait"], (1, 0, 0xFFFF_FFFF_C000_1010, *[0] * layout.FRAMES)
    of = layout.THRESHOLD_KEY.pack(20, b"x")
    raw = layout.OUTLIER.pack(0, 5 * MS, 0, 20, NO_STACK, 0, 7, 7, 1, 0, of)
    loaded = dict[bytes, bytes]()
    ring = SimpleNamespace(close=lambda: None)

    class Marked(Fixed):
        def thresholds_ns(self, program: str, kernel: int, catalog: Catalog) -> tuple[int, int]:
            return MS if catalog.stack(kernel).frames[0].name == "dlm_wait" else 100 * MS, NEVER_NS

    def ring_of(_fd: int, add: Callable[[bytes], None]) -> SimpleNamespace:
        ring.consume = lambda: add(raw)
        return ring

    def lookup(_: bytes) -> bytes:
        return layout.STACK.pack(*frames)

    def frame(_: int) -> Frame:
        return Frame("[module]", 0, names[0])

    monkeypatch.setattr(libbpf, "RingBuffer", ring_of)
    kept = cast(Map, SimpleNamespace(entries=100, value_bytes=layout.STACK.size, lookup=lookup))
    catalog = Catalog()
    symbols = cast(Any, SimpleNamespace(lookup=frame, address_of=dict[str, int]().get))
    stacks = Stacks({"kernel_stacks": kept, "user_stacks": kept}, catalog, watch.rules(), symbols, cast(Any, None))
    marked = cast(Map, SimpleNamespace(entries=16, update=loaded.__setitem__, delete=loaded.pop))

    def site(pid: int, tid: int, kernel: int, user: int, _wake: int) -> SiteKey:
        return stacks.site(pid, tid, kernel, user)

    catcher = OutlierEvents(cast(Map, SimpleNamespace(fd=0)), marked, catalog, site, stacks.kernel)
    marks = Marked("", MS)
    assert catcher.take(marks) == []
    assert loaded == {of: layout.THRESHOLD.pack(100 * MS, NEVER_NS)}
    del names[0]
    stacks.forget_kernel_names()
    catcher.forget()
    assert loaded == {}
    assert [one.ended_ns for one in catcher.take(marks)] == [5 * MS]
    assert loaded == {of: layout.THRESHOLD.pack(MS, NEVER_NS)}
