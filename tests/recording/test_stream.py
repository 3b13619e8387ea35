"""A stream holds what a recording holds; one that follows another continues it; a forged one is refused."""

import json
import os
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.feed.source import LiveFeed, Source
from offtop.model.aggregate.stack_problems import NOT_KNOWN, STRIPPED
from offtop.model.classify.categories import is_periodic
from offtop.model.values.files import FileActivity, FileId, FileKey, FileTotals
from offtop.model.values.io_stacks import IoStack, StackTotals
from offtop.model.values.snapshot import UNMEASURED, Filters, Snapshot
from offtop.model.values.stack import EMPTY, FIRST_STACK, Frame, Stack
from offtop.model.windows.history import History
from offtop.person import person
from offtop.recording import checked, stream, stream_writer, streamed
from offtop.recording.replay import RecordedSource
from offtop.recording.stream import NotAStreamError, Splitter, StreamReader, VersionError
from offtop.recording.stream_writer import StreamWriter
from offtop.recording.streamed import StreamedNames, StreamedTicks
from offtop.recording.writer import Recorder
from offtop.units import NS_PER_S
from tests.recording.test_recording import in_json
from tests.recording.woken import WokenSource
from tests.ui.scripted import SHOP, STUCK, WHO, ScriptedSource
from tests.ui.shown import CATEGORIES

HEADER = struct.Struct("<cI")


def written(path: Path, source: Source, snapshots: Iterable[Snapshot], boot: str = "one") -> bytes:
    """Return the stream of some snapshots."""
    writer = StreamWriter(source, os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), Filters(min_ns=7), boot)
    for one in snapshots:
        writer.add(one)
    writer.close()
    return path.read_bytes()


@pytest.fixture(autouse=True)
def no_tick_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_writer, "_MOST_QUEUED", 64)


class Streamed(LiveFeed):
    """Plays streams one after the other; it is no more than what a RemoteSource does with what arrives."""

    host = "db7"

    def __init__(self, *streams: bytes, same_boot: bool = True) -> None:
        self.names = StreamedNames()
        self.ticks = StreamedTicks(self.names, CATEGORIES.ids)
        self._snapshots = [snapshot for one in streams for snapshot in self._played(one, same_boot)]
        self.every = [*self._snapshots]

    def _played(self, raw: bytes, same_boot: bool) -> list[Snapshot]:
        reader, found = StreamReader(), list[Snapshot]()
        self.ticks.begin_stream(same_boot)
        for kind, body in Splitter().feed(raw):
            if kind == stream.TICK:
                tick, names = reader.tick(body)
                self.names.add(names)
                found.append(self.ticks.add(tick))
            elif kind == stream.NAMES:
                self.names.add(reader.names(body))
        return found

    def read(self) -> Snapshot | None:
        return self._snapshots.pop(0) if self._snapshots else None

    def why_nameless(self, frame: Frame) -> str:
        return self.names.why_nameless(frame)

    def set_filters(self, filters: Filters) -> None: ...
    def set_mode(self, mode: str, depth: int) -> None: ...
    def set_counted(self, mode: str, wanted: bool) -> None: ...
    def set_thresholds(self, thresholds: object) -> None: ...
    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        return True

    def describe(self, pids: object) -> None: ...
    def find_peers(self, waited_on: object) -> None: ...
    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        return ()

    def about(self) -> list[tuple[str, str]]:
        return []

    def close(self) -> None: ...


SOURCES: dict[str, Callable[[], ScriptedSource]] = {
    "a shop": lambda: ScriptedSource(SHOP, ticks=5, who=WHO, ends=True),
    "waits in progress": lambda: ScriptedSource(STUCK, ticks=5, ends=True),
    "wakers": lambda: WokenSource(ticks=5, ends=True),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_stream_prints_the_same_json_as_the_live_source(tmp_path: Path, name: str) -> None:
    source = SOURCES[name]()
    raw = written(tmp_path / "stream", source, (source.after(second) for second in range(6)))
    played = in_json(Streamed(raw))
    assert played == in_json(SOURCES[name]())
    assert len(played) == 5


def test_a_stream_begins_with_what_it_is(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP)
    raw = b"Welcome to db7!\n" + written(tmp_path / "stream", source, [source.after(0)])
    first = Splitter().feed(raw)[0]
    hello = stream.decode_hello(first.body)
    assert (hello.host, hello.boot, hello.filters) == ("db7", "one", Filters(min_ns=7))


def later(snapshot: Snapshot, seconds: int) -> Snapshot:
    """Return the snapshot as of a source that was attached so much later."""
    by = seconds * NS_PER_S
    waiting = {
        key: one._replace(
            switched_out_ns=one.switched_out_ns + by,
            from_ns=one.from_ns + by,
            since_ns=one.since_ns and one.since_ns + by,
        )
        for key, one in snapshot.waiting.items()
    }
    outliers = ()
    return replace(
        snapshot, at_ns=snapshot.at_ns + by, taken_ns=snapshot.taken_ns + by, waiting=waiting, outliers=outliers
    )


def broken_after(tmp_path: Path, names: tuple[str, str], *, same_boot: bool = True) -> Streamed:
    """Play three seconds of a source, and two of another one that is attached 20 s later."""
    first, second = (SOURCES[name]() for name in names)
    streams = [
        written(tmp_path / "first", first, [first.after(one) for one in range(4)]),
        written(tmp_path / "second", second, [later(second.after(one), 3 + 20) for one in range(3)]),
    ]
    return Streamed(*streams, same_boot=same_boot)


PAIRS = [("a shop", "waits in progress"), ("waits in progress", "wakers"), ("wakers", "a shop"), ("wakers", "wakers")]
"""Their stacks and wakes have the same ids, but mostly are others."""


@pytest.mark.parametrize("names", PAIRS)
def test_a_later_stream_continues_the_one_before_without_the_time_between(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    played = in_json(broken_after(tmp_path, names))
    assert [tick["span_ns"] for tick in played] == [NS_PER_S] * 5
    assert [tick["lost"] for tick in played] == [{}, {}, {}, {UNMEASURED: 20}, {}]
    for name, ticks in zip(names, (played[:3], played[3:]), strict=True):
        for was, now in zip(in_json(SOURCES[name]()), ticks, strict=False):
            for key in ("categories", "programs", "threads", "sites", "storms"):
                assert now[key] == was[key]


@pytest.mark.parametrize("names", PAIRS)
def test_sums_since_the_start_leave_out_what_was_not_measured(tmp_path: Path, names: tuple[str, str]) -> None:
    source = broken_after(tmp_path, names)
    history = History(CATEGORIES.idle, is_periodic)
    ticks = [tick for one in source.every if (tick := history.add(one))]
    assert [tick.number for tick in ticks] == [1, 2, 3, 4, 5]
    ever = history.since_start()
    assert ever
    assert ever.span_ns == 5 * NS_PER_S
    total = sum(part.total_ns for part in ever.leaves.values())
    assert total == sum(part.total_ns for tick in ticks for part in tick.leaves.values())
    assert total > 0


def test_file_operations_keep_their_own_stacks_across_a_lost_connection(tmp_path: Path) -> None:
    streams = list[bytes]()
    for name, apart_s in ("first", 0), ("second", 23):
        source = ScriptedSource(SHOP)
        own = FIRST_STACK + 1000
        stack = Stack((Frame("/bin/db", 16, name),))
        key = FileKey(42, "fsync", FileId(1, 2, 3))
        files = FileActivity({key: FileTotals(1)}, stacks={IoStack(key, 0, own): StackTotals(1, 0, 5, 5)})
        snapshots = [later(source.after(second), apart_s) for second in range(2)]
        snapshots[1].catalog.stacks[own] = stack
        snapshots[1] = replace(snapshots[1], files=files)
        streams.append(written(tmp_path / name, source, snapshots))
    played = Streamed(*streams)
    for name, snapshot in zip(("first", "second"), (one for one in played.every if one.files), strict=True):
        assert snapshot.files
        ((_, kernel, user),) = snapshot.files.stacks
        assert kernel == 0
        assert [frame.name for frame in played.ticks.catalog.stack(user).frames] == [name]


def test_a_recording_across_a_lost_connection_replays_the_same(tmp_path: Path) -> None:
    source = broken_after(tmp_path, ("wakers", "waits in progress"))
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0, whole_ns=4 * NS_PER_S)
    for one in source.every:
        recorder.add(one)
    assert recorder.close().startswith("recorded 6 ticks, ")
    with closing(RecordedSource(tmp_path / "it.offtop", categories=CATEGORIES.ids)) as recorded:
        assert in_json(recorded) == in_json(source)


def test_after_a_reboot_everything_begins_anew(tmp_path: Path) -> None:
    source = broken_after(tmp_path, ("a shop", "a shop"), same_boot=False)
    history = History(CATEGORIES.idle, is_periodic)
    recorder = Recorder(tmp_path / "it.offtop", source, person(), leave_bytes=0)
    for one in source.every:
        history.add(one)
        recorder.add(one)
    assert history.reach_ns == 2 * NS_PER_S
    assert UNMEASURED not in source.every[-1].lost
    assert recorder.close().startswith("recording stopped, because its source began to count from 0: ")


def test_what_the_sender_forgets_the_reader_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = WokenSource(ticks=5)
    monkeypatch.setattr(stream_writer, "TickEncoder", forgetful)
    raw = written(tmp_path / "stream", source, (source.after(second) for second in range(12)))
    reader, sent, dropped = StreamReader(), 0, 0
    for kind, body in Splitter().feed(raw):
        if kind == stream.TICK:
            tick, _ = reader.tick(body)
            sent, dropped = sent + len(tick.stacks), dropped + len(tick.dropped)
    held = reader._stacks, reader._frames  # pyright: ignore[reportPrivateUsage]
    assert dropped > 0
    assert len(held[0]) == sent - dropped
    assert reader._references == sum(held[0].values())  # pyright: ignore[reportPrivateUsage]
    assert reader._text == sum(len(one.file) + len(one.name) for one in held[1].values())  # pyright: ignore[reportPrivateUsage]


def forgetful(source: Source, *, cmdlines: bool) -> object:
    from offtop.recording.tick_encoder import TickEncoder

    return TickEncoder(source, cmdlines=cmdlines, whole_ns=2 * NS_PER_S)


def test_names_that_are_found_late_arrive_between_ticks(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=3)
    early = source.after(1)
    frame = next(frame for stack in early.catalog.stacks.values() for frame in stack.frames)
    bare = frame._replace(name="", file="/usr/bin/shop", offset=0x40)
    stacks = {number: stack._replace(frames=(bare,)) for number, stack in early.catalog.stacks.items() if number > 2}
    named: dict[Frame, str] = {}

    class Found(ScriptedSource):
        def of(self, frame: Frame) -> str:
            return named.get(frame, "shop+0x40")

    late = Found(SHOP, ticks=3)
    writer = StreamWriter(late, os.open(tmp_path / "stream", os.O_CREAT | os.O_WRONLY), Filters(), "one")
    writer.add(replace(early, catalog=replace(early.catalog, stacks={**early.catalog.stacks, **stacks})))
    named[bare], late.version = "serve", 7
    writer.close()
    names, reader = StreamedNames(), StreamReader()
    for kind, body in Splitter().feed((tmp_path / "stream").read_bytes()):
        if kind == stream.TICK:
            names.add(reader.tick(body)[1])
            assert (names.of(bare), names.is_final(bare)) == ("shop+0x40", False)
        elif kind == stream.NAMES:
            names.add(reader.names(body))
    assert (names.of(bare), names.is_final(bare)) == ("serve", True)
    assert names.version == 1


# Untrusted input


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = WokenSource(ticks=5)
    path = tmp_path_factory.mktemp("whole") / "stream"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_writer, "_MOST_QUEUED", 64)
        return written(path, source, (source.after(second) for second in range(6)))


def test_another_version_is_named() -> None:
    with pytest.raises(VersionError) as refused:
        Splitter().feed(b"offtop-stream 2\n")
    assert refused.value.version == 2


def test_what_is_no_stream_is_refused_after_a_while() -> None:
    splitter = Splitter()
    assert splitter.feed(b"y\n" * 10_000) == []
    assert splitter.before.startswith(b"y\ny\n")
    with pytest.raises(NotAStreamError):
        splitter.feed(b"y\n" * 30_000)


@pytest.mark.parametrize(
    "header", [HEADER.pack(b"T", 33 << 20), HEADER.pack(b"T", (1 << 32) - 1), HEADER.pack(b"X", 1)]
)
def test_impossible_message_is_refused_before_it_is_stored(header: bytes) -> None:
    with pytest.raises(ValueError, match="a message is damaged, or far too large"):
        Splitter().feed(stream.first_line() + header)


def body_of(fields: dict[str, object], *blobs: bytes) -> bytes:
    packed = zlib.compress(json.dumps({"sizes": [len(one) for one in blobs], **fields}).encode())
    return struct.pack("<I", len(packed)) + packed + b"".join(blobs)


FRAME = [1, "/bin/a", "", "main", 64]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "a tick is cut off"),
        (struct.pack("<I", 1 << 30), "a tick is cut off"),
        (body_of({}), "a tick is cut off"),
        (body_of({"sizes": [4]}, b"abc"), "a tick is cut off"),
        (body_of({"sizes": [-3, 6]}, b"abc"), "a number is out of range"),
        (body_of({"files": 1}, b"abc"), "too few parts"),
        (body_of({"files": 1, "disks": 7}, b"a", b"b"), "too few parts"),
        (body_of({"stacks": [[9, [1], 0, 0, "lock", ""]]}, b"abc"), "a frame is missing"),
        (body_of({"frames": [FRAME], "stacks": [[1, [1], 0, 0, "lock", ""]]}, b"abc"), "a reserved number"),
        (body_of({"frames": [FRAME], "stacks": [[9, [1], 2, 0, "lock", ""]]}, b"abc"), "hides more frames"),
        (body_of({"frames": [[1, "/bin/a", "", "main", -1]]}, b"abc"), "not an offset"),
        (body_of({"frames": [[1, "a" * 9000, "", "main", 1]]}, b"abc"), "a name is too long"),
        (body_of({"frames": [["1", "a", "", "main", 1]]}, b"abc"), "not a number"),
        (body_of({"reasons": [["a", []]]}, b"abc"), "not a string"),
        (struct.pack("<I", 12) + zlib.compress(b"[" * 70_000_000)[:12], "is cut off, or far too large"),
    ],
)
def test_forged_tick_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        StreamReader().tick(body)


def test_a_sender_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("_MOST_FRAMES", 100), ("_MOST_STACKS", 100), ("_MOST_REFERENCES", 1000)):
        monkeypatch.setattr(stream, name, most)
    frames, more = ([[number, "/bin/a", "", "main", number] for number in some] for some in (range(60), range(60, 120)))
    reader = StreamReader()
    reader.tick(body_of({"frames": frames}, b"abc"))
    with pytest.raises(ValueError, match="too many frames"):
        reader.tick(body_of({"frames": more}, b"abc"))
    for sent in ([[number, [1], 0, 0, "lock", ""] for number in range(3, 200)], [[3, [1] * 1001, 0, 0, "lock", ""]]):
        reader = StreamReader()
        with pytest.raises(ValueError, match="too many stacks"):
            reader.tick(body_of({"frames": frames, "stacks": sent}, b"abc"))


def test_names_beyond_the_limit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "_MOST_NAMES", 2)
    monkeypatch.setattr(streamed, "_MOST_TEXT", 22)
    frames = [Frame("/bin/a", number, "") for number in range(3)]
    names = StreamedNames()
    names.add(stream.NewNames(dict(zip(frames, ("12345", "12345", "1"), strict=True))))
    assert [names.of(frame) for frame in frames] == ["12345", "12345", "a+0x2"]
    names.keep(frames[1:])
    names.add(stream.NewNames({frames[2]: "now"}))
    assert [names.of(frame) for frame in frames] == ["a", "12345", "now"]


def test_frames_and_reasons_count_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "_MOST_TEXT", 40)
    frames = [Frame(f"/bin/{number}", number, "12345") for number in range(3)]
    names = StreamedNames()
    names.add(stream.NewNames(dict.fromkeys(frames, "12345")))  # 16 characters each
    assert [frame in names._names for frame in frames] == [True, True, False]  # pyright: ignore[reportPrivateUsage]
    for _ in range(2):  # the second time, /bin/7 is known
        names.add(stream.NewNames({}, {"/bin/7": STRIPPED, "/bin/8": STRIPPED}))
        names.add(stream.NewNames({}, {"/bin/7": NOT_KNOWN}))
    nameless = [Frame(file, 1, "") for file in ("/bin/7", "/bin/8")]
    assert [names.why_nameless(one) for one in nameless] == [NOT_KNOWN, ""]
    names.keep([frames[0], nameless[0]])
    names.add(stream.NewNames({frames[2]: "1234"}, {"/bin/8": STRIPPED}))
    assert frames[2] in names._names  # pyright: ignore[reportPrivateUsage]
    assert [names.why_nameless(one) for one in nameless] == [NOT_KNOWN, ""]


def test_ids_of_a_sender_cannot_grow_without_end(whole: bytes) -> None:
    played = Streamed(whole)
    played.ticks._next_stack = (1 << 30) + 1  # pyright: ignore[reportPrivateUsage]
    epoch = played.every[-1].epoch
    played.ticks.begin_stream(True)
    assert Streamed(whole).every[0].epoch == epoch
    assert played.ticks._next_stack < 1 << 30  # pyright: ignore[reportPrivateUsage]
    assert played.ticks._epoch == epoch + 1  # pyright: ignore[reportPrivateUsage]


def test_totals_of_a_sender_cannot_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = WokenSource(ticks=5)
    raw = written(tmp_path / "stream", source, [source.after(second) for second in range(3)])
    played = Streamed(raw)
    size = played.ticks._replayed.size  # pyright: ignore[reportPrivateUsage]
    last = played.every[-1]
    assert size == sum(map(len, (last.threads, last.sites, last.waiting, last.blockers, last.titles))) > 0
    monkeypatch.setattr(streamed, "MOST_TOTALS", size - 1)
    with pytest.raises(ValueError, match="too many threads and stacks"):
        Streamed(raw)


@pytest.mark.parametrize(("most", "epochs"), [(1, [0, 0, 1, 1]), (1_000_000, [0, 0, 0, 0])])
def test_totals_of_earlier_streams_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, epochs: list[int]
) -> None:
    source = ScriptedSource(SHOP)
    first, second = ([later(source.after(one), seconds) for one in range(2)] for seconds in (0, 20))
    raw = [written(tmp_path / "stream", source, some) for some in (first, second)]
    full = Streamed(raw[0]).ticks._replayed.size  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(streamed, "MOST_TOTALS", most * full)
    assert [one.epoch for one in Streamed(*raw).every] == epochs


def test_ticks_out_of_order_are_refused(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP)
    snapshots = [source.after(1), source.after(2), source.after(2)]
    with pytest.raises(ValueError, match="ticks are out of order"):
        Streamed(written(tmp_path / "stream", source, snapshots))
    first = written(tmp_path / "first", source, snapshots[:2])
    with pytest.raises(ValueError, match="ticks are out of order"):
        Streamed(first, first)


def test_unknown_category_and_missing_stack_are_shown_as_such(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP)
    some = source.after(1)
    stacks = {number: stack._replace(category="of-tomorrow") for number, stack in some.catalog.stacks.items()}
    played = Streamed(written(tmp_path / "it", source, [replace(some, catalog=replace(some.catalog, stacks=stacks))]))
    catalog = played.every[0].catalog
    assert {stack.category for number, stack in catalog.stacks.items() if number > 2} == {"other"}
    assert catalog.stack(4711) == EMPTY


@given(st.randoms(use_true_random=False))
def test_damaged_stream_is_played_or_refused(whole: bytes, rng: random.Random) -> None:
    raw = bytearray(whole)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(raw))
        raw[at : at + rng.choice((0, 1, 1, 4))] = rng.randbytes(rng.choice((0, 1, 1, 4)))
    try:
        played = Streamed(bytes(raw))
    except (ValueError, NotAStreamError):
        return
    assert "\x1b" not in json.dumps(in_json(played))


@given(st.randoms(use_true_random=False))
def test_forged_fields_of_a_tick_are_played_or_refused(whole: bytes, rng: random.Random) -> None:
    messages = Splitter().feed(whole)
    forged = stream.first_line()
    for kind, body in messages:
        if kind == stream.TICK:
            end = 4 + struct.unpack_from("<I", body)[0]
            fields = checked.json_object(zlib.decompress(body[4:end]))
            forge(fields, rng)
            packed = zlib.compress(json.dumps(fields).encode())
            body = struct.pack("<I", len(packed)) + packed + body[end:]
        forged += stream.encode(kind, body)
    try:
        played = Streamed(forged)
    except ValueError:
        return
    assert "\x1b" not in json.dumps(in_json(played))


ODD: list[Any] = [None, True, -1, 0, 3, 1 << 31, 1 << 62, 1e300, "", "\x1b[31m", "\udc80" * 9, [], {}]


def forge(value: Any, rng: random.Random) -> None:
    """Replace something in a JSON value."""
    for _ in range(8):
        places: list[Any] = [*(cast(dict[str, Any], value) if isinstance(value, dict) else range(len(value)))]
        if not places:
            return
        place = rng.choice(places)
        if isinstance(value[place], dict | list) and rng.random() < 0.8:
            value = cast(Any, value[place])
            continue
        value[place] = rng.choice(ODD)
        return
