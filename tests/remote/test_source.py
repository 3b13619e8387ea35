"""A host as a source: what arrives, what happens when the connection is lost, and what a hostile host can do."""

import base64
import json
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from offtop.errors import OfftopError
from offtop.feed.pace import Pace
from offtop.model.classify.categories import is_periodic
from offtop.model.outliers.trigger import parse
from offtop.model.values.snapshot import UNMEASURED, Filters
from offtop.model.windows.history import History
from offtop.recording import stream, stream_writer, tick_rows
from offtop.recording.stream import Splitter
from offtop.remote import source as remote_source
from offtop.remote.outliers import ReportedOutliers
from offtop.remote.source import RemoteSource
from offtop.remote.ssh import Target
from offtop.units import NS_PER_S
from tests.recording.test_recording import in_json
from tests.recording.test_stream import later, written
from tests.recording.woken import WokenSource
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import CATEGORIES

FAKE = Path(__file__).with_name("fake_ssh.py")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_writer, "_MOST_QUEUED", 64)
    monkeypatch.setattr(remote_source, "_PAUSES_S", (0.05, 0.1))
    monkeypatch.setattr(remote_source, "_LEAST_APART_NS", 0)


class Stage:
    """What the host does each time it is connected to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target = Target("ann@db7", ["--output=-"], (sys.executable, str(FAKE), str(path)))

    def act(self, number: int, sends: Sequence[bytes] = (), **how: object) -> None:
        sent = [base64.b64encode(one).decode() for one in sends]
        (self.path / f"{number}.json").write_text(json.dumps({"sends": sent, **how}))

    @property
    def started(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.path / "started").read_text().splitlines()]

    @property
    def requests(self) -> list[dict[str, object]]:
        lines = (self.path / "requests").read_bytes().splitlines()
        return [json.loads(line) for line in lines if line.strip()]

    def open(self, **options: object) -> RemoteSource:
        return RemoteSource(self.target, NS_PER_S, CATEGORIES.ids, **options)  # pyright: ignore[reportArgumentType]

    def refusal(self) -> str:
        with pytest.raises(OfftopError) as refused:
            self.open().close()
        assert "\n" not in str(refused.value)
        assert "\x1b" not in str(refused.value)
        return str(refused.value)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def ticks(path: Path, seconds: Sequence[int], later_s: int = 0, boot: str = "one", ends: bool = False) -> bytes:
    """Return a stream of SHOP with wakers."""
    source = WokenSource(ticks=20)
    raw = written(path / "stream", source, [later(source.after(one), later_s) for one in seconds], boot)
    if ends:
        return raw
    return raw.removesuffix(ticks_end())


def ticks_end() -> bytes:
    return stream.encode(stream.END, b"")


def until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_a_host_prints_what_it_would_print_there(stage: Stage) -> None:
    stage.act(1, [b"Welcome!\n", ticks(stage.path, range(6), ends=True)])
    with closing(stage.open()) as source:
        assert source.host == "db7"
        assert in_json(source) == in_json(WokenSource(ticks=5, ends=True))
    options = stage.started[0]
    assert options[-2:] == ["ann@db7", stage.target.remote_command]


def test_a_message_may_arrive_byte_by_byte(stage: Stage) -> None:
    raw = ticks(stage.path, range(2), ends=True)
    stage.act(1, [raw[at : at + 700] for at in range(0, len(raw), 700)], pause_s=0.001)
    with closing(stage.open()) as source:
        assert len(in_json(source)) == 1


def test_what_a_host_sends_counts_even_if_it_takes_no_more_requests(stage: Stage) -> None:
    raw = ticks(stage.path, range(6), ends=True)
    stage.act(1, [raw[:-1000], raw[-1000:]], pause_s=0.2, listens=False)
    with closing(stage.open()) as source:
        assert len(in_json(source)) == 5
    assert len(stage.started) == 1


def test_a_lost_connection_is_reported_and_made_again(stage: Stage) -> None:
    said: list[str] = []
    stage.act(1, [ticks(stage.path, range(3))], status=255, says="Connection reset by peer\n", stays_s=0.3)
    stage.act(2, status=255, says="ssh: connect to host db7 port 22: Connection refused\n")
    stage.act(3, [ticks(stage.path, range(3), later_s=30, ends=True)])
    with closing(stage.open(report=said.append)) as source:
        made = in_json(source)
        assert source.interruption == ""
    assert [tick["lost"] for tick in made] == [{}, {}, {UNMEASURED: 28}, {}]
    assert [tick["span_ns"] for tick in made] == [NS_PER_S] * 4
    assert said == [
        "no connection to ann@db7 (Connection reset by peer); trying again",
        "the connection to ann@db7 is back; the time without it was not measured",
    ]
    first, *others = stage.started
    assert "BatchMode=yes" not in first
    assert all("BatchMode=yes" in one for one in others)


def test_a_lost_connection_is_shown_until_it_is_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_source, "_PAUSES_S", (0.01, 30))
    stage.act(1, [ticks(stage.path, range(2))], stays_s=0.2)
    stage.act(2, status=255, says="ssh: connect to host db7 port 22: Connection refused\n")
    with closing(stage.open()) as source:
        assert [source.read() is not None for _ in range(2)] == [True, True]
        assert source.interruption == ""
        until(lambda: "refuses" in source.interruption)
        assert source.interruption.startswith("no connection to ann@db7 for 0")
        assert ": trying again in 30s (ann@db7 refuses connections by ssh. Start sshd there" in source.interruption
        began = time.monotonic()
    assert time.monotonic() - began < 5


def test_a_silent_connection_is_shown_and_then_closed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_source, "_LATE_NS", -NS_PER_S + NS_PER_S // 5)
    monkeypatch.setattr(remote_source, "_SILENT_NS", -NS_PER_S + NS_PER_S)
    monkeypatch.setattr(remote_source, "_POLL_S", 0.05)
    stage.act(1, [ticks(stage.path, range(2))], stays_s=60)
    stage.act(2, [ticks(stage.path, range(2), later_s=9, ends=True)])
    with closing(stage.open()) as source:
        assert [source.read() is not None for _ in range(2)] == [True, True]
        until(lambda: source.interruption.startswith("nothing has arrived from ann@db7 for "))
        until(lambda: len(stage.started) == 2)
        snapshot = source.read()
        assert snapshot
        assert snapshot.lost == {UNMEASURED: 8}


def test_a_host_that_restarted_begins_anew(stage: Stage) -> None:
    stage.act(1, [ticks(stage.path, range(5, 8))])
    stage.act(2, [ticks(stage.path, range(2), boot="two", ends=True)])
    with closing(stage.open()) as source:
        history = History(CATEGORIES.idle, is_periodic)
        every = [*Pace(source, history, NS_PER_S).ticks()]
        assert [tick.number for tick in every] == [1, 2, 3]
        assert history.reach_ns == NS_PER_S
        assert every[-1].header.lost == {}
        assert source.since_ns == every[-1].at_ns - every[-1].span_ns


def test_requests_reach_the_host_and_are_repeated_to_the_next(stage: Stage) -> None:
    answers = [{"id": 1, "error": ""}, {"id": 2, "error": "no \x1b[31mmode"}, {"id": 3, "details": [["name", "shop"]]}]
    sent = [stream.encode_object(stream.ANSWER, one) for one in answers]
    # Each answer comes some time after its request was sent.
    stage.act(1, [ticks(stage.path, range(2)), *sent], pause_s=0.4)
    stage.act(2, [ticks(stage.path, range(2), later_s=9)], stays_s=60)
    with closing(stage.open()) as source:
        source.set_filters(Filters(pids=(4242,), min_ns=5))
        with pytest.raises(OfftopError, match=r"^no \\x1b\[31mmode$"):
            source.set_mode("wakeup", 4)
        assert source.process_details(7) == [("name", "shop")]
        ReportedOutliers(source).set_triggers([parse("lock.max > 2s", CATEGORIES.ids, CATEGORIES.groups), None])
        until(lambda: len(stage.started) == 2)
        until(lambda: len(stage.requests) >= 6)
        seen = stage.requests
    assert [one["do"] for one in seen[:4]] == ["filters", "mode", "details", "triggers"]
    assert seen[0]["filters"] == [[4242], [], "all", 0, 5, 0]
    assert seen[3]["triggers"] == ["lock.max > 2s", "auto"]
    again = [{**one, "id": 0} for one in seen[4:]]
    assert again == [{**seen[at], "id": 0} for at in (0, 3)]  # the mode was refused


def answered(number: int, error: str = "") -> bytes:
    return stream.encode_object(stream.ANSWER, {"id": number, "error": error})


def test_after_a_refused_request_the_one_before_is_repeated(stage: Stage) -> None:
    stage.act(1, [ticks(stage.path, range(2)), answered(1), answered(2, "No process 7")], pause_s=0.4)
    stage.act(2, [ticks(stage.path, range(2), later_s=9)], stays_s=60)
    wanted = Filters(pids=(4242,))
    with closing(stage.open()) as source:
        source.set_filters(wanted)
        with pytest.raises(OfftopError, match="No process 7"):
            source.set_filters(Filters(pids=(7,)))
        until(lambda: len(stage.requests) >= 3)
        assert [tick_rows.decode_filters(one) for one in stage.requests[2:]] == [wanted]


def test_ticks_without_the_filter_are_not_shown_when_the_connection_is_back(stage: Stage) -> None:
    said: list[str] = []
    stage.act(1, [ticks(stage.path, range(2)), answered(1)], pause_s=0.4)
    stage.act(2, [ticks(stage.path, range(1), later_s=9), answered(2, "No process 4242")], stays_s=60)
    stage.act(3, [ticks(stage.path, range(2), later_s=30), answered(3), ticks_end()])
    with closing(stage.open(report=said.append)) as source:
        source.set_filters(Filters(pids=(4242,)))
        assert [tick["lost"] for tick in in_json(source)] == [{}, {UNMEASURED: 29}]
    assert said[2] == "no connection to ann@db7 (No process 4242); trying again"


def test_pauses_get_longer_though_each_connection_begins(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_source, "_PAUSES_S", (0.01, 30))
    stage.act(1, [ticks(stage.path, range(2))])
    with closing(stage.open()) as source:
        until(lambda: ": trying again in 30s (" in source.interruption)
        assert len(stage.started) == 2


def test_a_full_queue_does_not_silence_this_side(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_source, "_MOST_QUEUED", 1)
    monkeypatch.setattr(remote_source, "_ALIVE_NS", NS_PER_S // 20)
    stage.act(1, [ticks(stage.path, range(6))], stays_s=60)
    with closing(stage.open()) as source:
        until(lambda: len(source._ticks) == 1)  # pyright: ignore[reportPrivateUsage]
        until(lambda: len((stage.path / "requests").read_bytes()) >= 5)
        assert [source.read() is not None for _ in range(6)] == [True] * 6


def padded(message: stream.Message) -> bytes:
    """Return a tick that is a megabyte longer when it is unpacked."""
    length = int.from_bytes(message.body[:4], "little")
    fields = zlib.decompress(message.body[4 : 4 + length])
    packed = zlib.compress(b'{"pad":"%s",%s' % (b"x" * 1_000_000, fields[1:]))
    return stream.encode(message.kind, len(packed).to_bytes(4, "little") + packed + message.body[4 + length :])


def test_ticks_that_wait_count_as_large_as_they_are_unpacked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_source, "_MOST_QUEUED_BYTES", 2_500_000)
    hello, *every = Splitter().feed(ticks(stage.path, range(6)))
    sent = [stream.first_line(), stream.encode(*hello), *(padded(one) for one in every if one.kind == stream.TICK)]
    stage.act(1, [b"".join(sent)], stays_s=60)
    assert len(b"".join(sent)) < 100_000
    with closing(stage.open()) as source:
        until(lambda: len(source._ticks) == 3)  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.3)
        assert len(source._ticks) == 3  # pyright: ignore[reportPrivateUsage]
        assert [source.read() is not None for _ in range(6)] == [True] * 6


def test_answers_arrive_though_nobody_reads_the_ticks(stage: Stage) -> None:
    source = WokenSource(ticks=30)
    raw = written(stage.path / "stream", source, [source.after(second) for second in range(20)])
    answer = stream.encode_object(stream.ANSWER, {"id": 1, "error": ""})
    stage.act(1, [raw.removesuffix(ticks_end()), answer], pause_s=0.3, stays_s=60)
    with closing(stage.open()) as remote:
        began = time.monotonic()
        remote.set_mode("wakeup", 4)
        assert time.monotonic() - began < 10


def test_a_host_that_does_not_answer_does_not_hang_the_screen(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_source, "_SCREEN_ANSWER_S", 0.1)
    stage.act(1, [ticks(stage.path, range(2))], stays_s=60)
    with closing(stage.open()) as source, pytest.raises(OfftopError, match="ann@db7 has not answered yet"):
        source.set_filters(Filters())


def test_closing_ends_ssh_and_a_read_that_waits(stage: Stage) -> None:
    stage.act(1, [ticks(stage.path, range(1))], stays_s=60)
    source = stage.open()
    assert source.read()
    results: list[object] = []
    reading = threading.Thread(target=lambda: results.append(source.read()))
    reading.start()
    began = time.monotonic()
    source.close()
    reading.join(5)
    assert results == [None]
    assert time.monotonic() - began < 4
    assert not list(ssh_processes(stage))


def ssh_processes(stage: Stage) -> Generator[int]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(stage.path).encode() in path.read_bytes():
                yield int(path.parent.name)
        except OSError:
            continue


# What else may be at the other end


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ({"sends": [b"\x1b[31mhi\nthere\n"]}, "ann@db7 does not send what offtop sends, but '\\x1b[31mhi'. See which"),
        ({"repeats": b"y\n" * 4096}, "ann@db7 does not send what offtop sends, but 'y'. See"),
        ({"sends": [b"offtop-stream 2\n"]}, "offtop on ann@db7 sends version 2 of the stream, which this one does not"),
        (
            {"sends": [stream.first_line() + b"T" + bytes(4)]},
            "ann@db7 sent what offtop does not (the stream has no beg",
        ),
        (
            {"sends": [stream.first_line() + b"H\xff\xff\xff\xff"]},
            "ann@db7 sent what offtop does not (a message is dam",
        ),
        (
            {"sends": [stream.first_line() + stream.encode(b"H", b'{"offtop": 7}')]},
            "ann@db7 sent what offtop does not (not a string)",
        ),
        ({"says": "x" * 100_000 + "\nmotd\n", "status": 255}, "ssh to ann@db7 ended (motd)"),
        ({}, "ssh to ann@db7 ended. Try: "),
    ],
)
def test_what_does_not_stream_is_one_sentence(stage: Stage, act: dict[str, object], said: str) -> None:
    if isinstance(repeated := act.pop("repeats", None), bytes):
        act["repeats"] = base64.b64encode(repeated).decode()
    stage.act(1, **act)  # pyright: ignore[reportArgumentType]
    assert stage.refusal().startswith(said)


def test_a_missing_ssh_is_one_sentence(stage: Stage) -> None:
    stage.target = replace(stage.target, ssh=("/none/ssh",))
    assert stage.refusal() == (
        "/none/ssh cannot be run (No such file or directory). Install OpenSSH's client, or name another: --ssh-command"
    )


def test_an_invalid_tick_ends_the_connection(stage: Stage) -> None:
    raw = ticks(stage.path, range(3))
    *_, last = Splitter().feed(raw)
    broken = raw[: -len(last.body)] + bytes(len(last.body))
    said: list[str] = []
    stage.act(1, [broken], stays_s=60)
    stage.act(2, [ticks(stage.path, range(2), later_s=9, ends=True)])
    with closing(stage.open(report=said.append)) as source:
        made = in_json(source)
    assert [tick["lost"] for tick in made] == [{}, {UNMEASURED: 8}]
    assert said[0].startswith("no connection to ann@db7 (it sent what offtop does not: ")


def test_a_flood_of_ticks_is_not_read_faster_than_it_can_be_shown(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_source, "_LEAST_APART_NS", NS_PER_S // 20)
    monkeypatch.setattr(remote_source, "_MOST_QUEUED", 8)
    source = ScriptedSource(SHOP, ticks=400)
    stage.act(1, [written(stage.path / "stream", source, [source.after(second) for second in range(60)])])
    tracemalloc.start()
    try:
        with closing(stage.open()) as remote:
            began = time.monotonic()
            for _ in range(20):
                assert remote.read()
            assert time.monotonic() - began >= 19 / 20
            waiting = len(remote._ticks)  # pyright: ignore[reportPrivateUsage]
        assert waiting <= 8
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
