"""The Perfetto timeline shows each wait on its track with its times and waker, and escapes every name."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offtop.export import perfetto
from offtop.export.perfetto import OutlierWait, TraceThread
from offtop.model.values.outlier import LongWait, Outlier
from offtop.model.values.wake import CHAIN
from offtop.person import person
from offtop.recording.writer import Recorder
from tests import command
from tests.ui.scripted import WAKERS, ScriptedSource

CLERK, WORKER = TraceThread(70, 71, "clerk", "shop"), TraceThread(70, 72, "worker", "shop")
BANK = TraceThread(80, 80, "teller")
MS = 1_000_000
WAITS = (
    OutlierWait(BANK, "disk-read", 5_000 * MS, 0, kernel=("io_schedule",)),
    OutlierWait(
        WORKER, "lock", 1_000 * MS, 2_500 * MS, 100 * MS, ("futex_wait", "do_syscall_64"), ("take", "main"), CLERK
    ),
)
AT_NS, TAKEN_NS = 6_000 * MS, 1_795_226_400 * 10**9


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return number

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            length = 8 if key & 7 == 1 else varint()
            at += length
            yield key >> 3, data[at - length : at]


def packets(data: bytes) -> list[dict[int, Any]]:
    every = [one for _, one in fields(data) if isinstance(one, bytes)]
    assert all(field == 1 for field, _ in fields(data))
    return [dict(fields(one)) for one in every]


def events(data: bytes) -> list[tuple[int, int, int, str]]:
    """Return (timestamp, track, event type, name) of each track event."""
    found: list[tuple[int, int, int, str]] = []
    for one in packets(data):
        if 11 in one:
            event = dict(fields(one[11]))
            found.append((one[8], int(event[11]), int(event[9]), bytes(event.get(23, b"")).decode()))
    return found


def test_wait_is_a_slice_with_nested_run_queue_time_and_a_flow_from_its_waker() -> None:
    worker, clerk, bank = 70 << 32 | 72, 70 << 32 | 71, 80 << 32 | 80
    made = perfetto.packed(WAITS, AT_NS, TAKEN_NS)
    assert events(made) == [
        (1_000 * MS, worker, 1, "lock"),
        (2_400 * MS, worker, 1, "run queue"),
        (2_500 * MS, worker, 2, ""),
        (2_500 * MS, worker, 2, ""),
        (2_400 * MS, clerk, 3, "wakes worker(72)"),
        (2_500 * MS, worker, 3, "runs again"),
        (5_000 * MS, bank, 1, "disk-read"),
    ]
    flows = [dict(fields(one[11])) for one in packets(made) if 11 in one]
    (begins,) = [one[47] for one in flows if 47 in one]
    (ends,) = [one[48] for one in flows if 48 in one]
    assert begins == ends == (1).to_bytes(8, "little")


def test_threads_and_processes_have_one_track_each_and_clocks_map_to_wall_time() -> None:
    every = packets(perfetto.packed(WAITS * 3, AT_NS, TAKEN_NS))
    tracks = [dict(fields(one[60])) for one in every if 60 in one]
    assert sorted(int(one[1]) for one in tracks) == sorted(
        {70 << 32, 80 << 32, 70 << 32 | 71, 70 << 32 | 72, 80 << 32 | 80}
    )
    names = {bytes(dict(fields(bytes(one[4])))[5]).decode() for one in tracks if 4 in one}
    assert names == {"clerk", "worker", "teller"}
    clocks = [dict(fields(one)) for field, one in fields(every[0][6]) if field == 1 and isinstance(one, bytes)]
    assert clocks == [{1: 3, 2: AT_NS}, {1: 1, 2: TAKEN_NS}]
    assert {one.get(10) for one in every} == {1}


def test_empty_trace_is_valid_and_names_are_escaped() -> None:
    assert len(packets(perfetto.packed((), 0, 0))) == 1
    hostile = TraceThread(1, 1, "a\x1b[31m", "b\u202e")
    made = perfetto.packed([OutlierWait(hostile, "lock", 1, 2, 0, ("k\x1b",), ("u\x07",), hostile)], 3, 4)
    assert not [raw for raw in (b"a\x1b", b"k\x1b", b"u\x07", "b\u202e".encode()) if raw in made]


def recorded(path: Path) -> Sequence[Outlier]:
    """Record four seconds, each with an outlier of worker-1 and one of the whole tick.

    clerk wakes worker-1.
    """
    source = ScriptedSource(WAKERS)
    source.set_mode(CHAIN, 2)
    recorder = Recorder(path, source, person(), leave_bytes=0)
    recorder.add(source.after(0))
    every: list[Outlier] = []
    for second in range(1, 5):
        one = source.after(second)
        site = next(site for site in one.sites if site.tid == 101)
        wait = LongWait(site, one.at_ns - 800 * MS, one.at_ns - 300 * MS, 20 * MS, program="shop")
        fields_of_outlier = one.at_ns, one.taken_ns, "any.max > 400ms", "max", "lock", "shop", 5e8, 4e8
        found = [Outlier(*fields_of_outlier, wait=wait, catalog=one.catalog), Outlier(*fields_of_outlier)]
        recorder.add(replace(one, outliers=found))
        every += found
    recorder.close()
    return every


def test_outliers_of_a_recording_are_on_the_timeline(tmp_path: Path) -> None:
    every = recorded(tmp_path / "it.offtop")
    for more, seconds in (((), 4), (("--begin", "+3s"), 2), (("--begin", "+2s", "--end", "+3s"), 2)):
        out = tmp_path / f"{len(more)}.pftrace"
        ended = command.call("export", "perfetto", str(tmp_path / "it.offtop"), "-o", str(out), *more)
        assert (ended.status, ended.out, ended.err) == (0, "", "")
        found = events(out.read_bytes())
        assert [name for _, _, _, name in found].count("lock") == seconds
    first = every[0].wait
    assert first
    found = events((tmp_path / "0.pftrace").read_bytes())
    assert found[0] == (first.began_ns, 100 << 32 | 101, 1, "lock")
    assert found[4] == (first.ended_ns - 20 * MS, 100 << 32 | 103, 3, "wakes worker-1(101)")
    assert b"take_order" in (tmp_path / "0.pftrace").read_bytes()


def test_recording_without_outliers_is_reported(tmp_path: Path) -> None:
    source = ScriptedSource(WAKERS)
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0)
    for second in range(3):
        recorder.add(source.after(second))
    recorder.close()
    ended = command.call("export", "perfetto", str(tmp_path / "it.offtop"), "-o", str(tmp_path / "x"))
    says = "there are no outliers, so the timeline is empty. Record with a --trigger that long waits meet"
    assert (ended.status, ended.err) == (0, f"offtop: {says}\n")
    assert len(packets((tmp_path / "x").read_bytes())) == 1
