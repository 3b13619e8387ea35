"""Requests of the other machine are served or refused, and its silence ends the stream."""

import contextlib
import io
import json
import os
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from offtop.commands import streaming
from offtop.commands.streaming import Requests
from offtop.errors import OfftopError
from offtop.feed.outlier_actions import Alarm, OutlierActions
from offtop.feed.pace import Pace
from offtop.model.classify.categories import is_periodic
from offtop.model.values.snapshot import Filters
from offtop.model.windows.history import History
from offtop.person import person
from offtop.recording import stream, tick_rows
from offtop.recording.stream_writer import StreamWriter
from offtop.units import NS_PER_S
from tests.recording.test_outliers import outlier
from tests.recording.test_stream import Streamed
from tests.ui.scripted import SHOP, ScriptedSource
from tests.ui.shown import CATEGORIES


class Served:
    """Serves requests about SHOP, and keeps the answers."""

    def __init__(self) -> None:
        self.source = ScriptedSource(SHOP)
        self.pace = Pace(self.source, History(CATEGORIES.idle, is_periodic), NS_PER_S)
        self.actions = OutlierActions(("auto",), CATEGORIES, 0, "--trigger", Alarm("", person()))
        self.answers: list[Mapping[str, object]] = []
        self.writer = SimpleNamespace(answer=self.answers.append, has_reader=True)
        self.requests = Requests(self.source, self.pace, self.actions, cast(StreamWriter, self.writer))

    def serve(self, *requests: object) -> list[Mapping[str, object]]:
        lines = b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in requests)
        self.requests.serve(cast(Any, io.BytesIO(lines)))
        return self.answers


def test_requests_change_what_is_measured() -> None:
    served = Served()
    filters = Filters(pids=(7,), min_ns=5, cgroup="/a", within="a:b")
    answers = served.serve(
        {"id": 1, "do": "filters", **tick_rows.encode_filters(filters)},
        {"id": 2, "do": "mode", "mode": "chain", "depth": 6},
        {"id": 3, "do": "files", "wanted": True},
        {"id": 4, "do": "disks", "wanted": True},
        {"id": 5, "do": "triggers", "triggers": ["lock.max > 2s"]},
        {"id": 6, "do": "details", "pid": 100},
        b"\n",
    )
    assert [(one["id"], one["error"]) for one in answers] == [(number, "") for number in range(1, 7)]
    source = served.source
    assert source.filters == filters
    assert (source.mode, source.depth) == ("chain", 6)
    assert (source.files_requested, source.disks_requested) == ([True], [True])
    assert answers[-1]["details"] == source.process_details(100)


@pytest.mark.parametrize("delay_ns", [0, -5, 1 << 61])
def test_a_delay_stays_within_limits(delay_ns: int) -> None:
    served = Served()
    served.serve({"id": 1, "do": "delay", "delay_ns": delay_ns})
    assert NS_PER_S // 10 <= served.pace._delay_ns <= 60 * NS_PER_S  # pyright: ignore[reportPrivateUsage]


ODD: list[Any] = [
    *(b"\n", b"[]\n", b"x\n", b"[" * 9_000 + b"\n", b"\xff\n"),
    *({"id": 1}, {"id": 1, "do": "format"}, {"id": -1, "do": "files"}, {"do": "files"}),
    *({"id": 1, "do": "mode", "mode": "all", "depth": 4}, {"id": 1, "do": "mode", "mode": [], "depth": 4}),
    *({"id": 1, "do": "filters"}, {"id": 1, "do": "filters", "filters": [[], [], 0, 0, 0, 0]}),
    *({"id": 1, "do": "triggers", "triggers": [7]}, {"id": 1, "do": "triggers", "triggers": ["lock >"]}),
    *({"id": 1, "do": "details", "pid": "1"}, {"id": 1, "do": "delay"}),
]


@pytest.mark.parametrize("request_", ODD)
def test_an_odd_request_is_refused_and_the_next_one_served(request_: object) -> None:
    served = Served()
    *refused, last = served.serve(request_, {"id": 9, "do": "mode", "mode": "wakeup", "depth": 4})
    assert all(one["error"] for one in refused)
    assert (len(refused), last) == (0 if request_ == b"\n" else 1, {"id": 9, "error": ""})
    assert served.source.mode == "wakeup"


def test_what_the_source_refuses_is_answered() -> None:
    served = Served()
    served.source.refuses = OfftopError("No process 7")
    assert served.serve({"id": 1, "do": "filters", **tick_rows.encode_filters(Filters())})[0]["error"] == "No process 7"


def test_an_endless_line_ends_the_requests() -> None:
    served = Served()
    assert served.serve(b"x" * 100_000, {"id": 9, "do": "mode", "mode": "wakeup", "depth": 4}) == []


@pytest.mark.parametrize(("requests", "ends"), [([], False), ([b"\n"], True)])
def test_the_end_of_requests_ends_the_stream_if_there_were_some(requests: list[bytes], ends: bool) -> None:
    served = Served()
    served.serve(*requests)
    assert served.writer.has_reader != ends
    assert served.pace._stopped == ends  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_silence_ends_the_stream_but_no_requests_at_all_do_not(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_SILENT_S", 0.6)
    served = Served()
    with contextlib.ExitStack() as opened:
        lines = opened.enter_context(open(pipe[0], "rb", closefd=False))
        opened.callback(os.close, pipe[1])  # first: a file that another thread reads cannot be closed
        threads = [
            threading.Thread(target=served.requests.serve, args=(lines,), daemon=True),
            threading.Thread(target=served.requests.end_when_silent, daemon=True),
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.9)
        assert served.writer.has_reader  # nothing was ever heard: by hand, or in a test
        for _ in range(16):
            os.write(pipe[1], b"\n")
            time.sleep(0.05)
        assert served.writer.has_reader
        threads[1].join(5)
        assert not served.writer.has_reader
        assert served.pace._stopped  # pyright: ignore[reportPrivateUsage]


def test_a_slow_connection_gets_sums(pipe: tuple[int, int]) -> None:
    """The pipe is full at first."""
    os.set_blocking(pipe[1], True)
    source = ScriptedSource(SHOP, ticks=20)
    writer = StreamWriter(source, pipe[1], Filters(), "one")
    filler = os.dup(pipe[1])
    os.set_blocking(filler, False)
    assert os.read(pipe[0], 1 << 20)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(filler, b"\n" * 4096)
    os.set_blocking(filler, True)
    os.close(filler)
    for second in range(10):
        writer.add(replace(source.after(second), outliers=[outlier()] if second == 9 else []))
        time.sleep(0.02)
    skipped = writer._encoder.skipped  # pyright: ignore[reportPrivateUsage]
    assert skipped >= 6
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.extend(iter(lambda: os.read(pipe[0], 1 << 16), b"")))
    reading.start()
    time.sleep(0.3)
    writer.add(source.after(10))
    writer.close()
    reading.join(10)
    last = Streamed(stream.first_line() + b"".join(found).lstrip(b"\n")).every[-1]
    assert last.lost == {"unrecorded": skipped}
    assert {**last.sites} == {**source.after(10).sites}
    assert [one.comm for one in last.outliers] == [outlier().comm]


def test_a_reader_that_goes_is_noticed_between_ticks(pipe: tuple[int, int], tmp_path: Path) -> None:
    gone = threading.Event()
    source = ScriptedSource(SHOP)
    writer = StreamWriter(source, pipe[1], Filters(), "one")
    writer.watch_reader(gone.set)
    assert not gone.wait(0.2)
    os.close(pipe[0])
    assert gone.wait(3)
    assert not writer.has_reader
    writer.close()
