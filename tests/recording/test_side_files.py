"""The journal, -wal and -shm beside a recording are read if they belong to it, and never written."""

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from offtop.errors import OfftopError
from offtop.person import person
from offtop.recording.reader import Recording
from offtop.recording.replay import RecordedSource
from offtop.recording.writer import Recorder
from offtop.units import NS_PER_S
from tests.command import call
from tests.recording.test_recording import in_json
from tests.ui.scripted import SHOP, ScriptedSource

TICKS = 9
ALL = in_json(ScriptedSource(SHOP, ticks=TICKS, ends=True))


@pytest.fixture
def unfinished(tmp_path: Path) -> Generator[Path]:
    """A recording that is being written: most of it is only in the -wal."""
    source, path = ScriptedSource(SHOP, ticks=TICKS + 5), tmp_path / "live" / "it"
    path.parent.mkdir()
    recorder = Recorder(path, source, person(), leave_bytes=0, whole_ns=1_000 * NS_PER_S)
    for second in range(TICKS + 1):
        recorder.add(source.after(second))
    while len(written := ticks_in(path)) <= TICKS:
        assert not recorder.failure, written
    yield path
    recorder.close()


def ticks_in(path: Path) -> list[tuple[int]]:
    with sqlite3.connect(path) as database:
        found = database.execute("SELECT number FROM ticks").fetchall()
    database.close()
    return found


@pytest.fixture
def killed(unfinished: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies an unfinished recording with some of its side files."""

    def kept(*ends: str) -> Path:
        place = tmp_path / "killed"
        place.mkdir()
        for end in ("", *ends):
            shutil.copy(f"{unfinished}{end}", place / f"it{end}")
        return place / "it"

    return kept


Files = dict[str, tuple[bytes, int, int, int]]


def files_in(place: Path) -> Files:
    """Return content, mode, owner and time of change of each file in a directory."""
    return {
        one.name: (one.read_bytes(), one.stat().st_mode, one.stat().st_uid, one.stat().st_mtime_ns)
        for one in place.iterdir()
    }


@pytest.mark.parametrize("ends", [("-wal",), ("-wal", "-shm")])
def test_recording_of_a_killed_offtop_is_read_completely_and_not_changed(
    killed: Callable[..., Path], ends: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = killed(*ends)
    before = files_in(path.parent)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    source = RecordedSource(path)
    assert [*(tmp_path / "copies").iterdir()] == []
    assert in_json(source) == ALL
    source.close()
    assert files_in(path.parent) == before
    assert {*before} == {"it", *(f"it{end}" for end in ends)}


def test_missing_room_for_a_copy_is_reported(
    killed: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = killed("-wal")
    os.truncate(path, 1 << 43)
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    with pytest.raises(
        OfftopError, match=r"cannot be copied to .*copies \(No space left on device\).*TMPDIR=DIRECTORY"
    ):
        RecordedSource(path)
    assert [*(tmp_path / "copies").iterdir()] == []


def test_outdated_shm_is_ignored(killed: Callable[..., Path]) -> None:
    path = killed("-wal", "-shm")
    for left in (os.urandom(32 << 10), b""):
        Path(f"{path}-shm").write_bytes(left)
        assert in_json(RecordedSource(path)) == ALL


def test_missing_wal_is_reported_and_no_file_is_created(killed: Callable[..., Path]) -> None:
    path = killed()
    with pytest.raises(OfftopError, match=r"has no tick in it\. Record longer, or put its .*it-wal beside it"):
        RecordedSource(path)
    assert [*files_in(path.parent)] == ["it"]


def test_reading_a_complete_recording_creates_no_file(tmp_path: Path) -> None:
    source = ScriptedSource(SHOP, ticks=TICKS)
    recorder = Recorder(tmp_path / "it", source, person(), leave_bytes=0)
    for second in range(TICKS + 1):
        recorder.add(source.after(second))
    recorder.close()
    before = files_in(tmp_path)
    assert in_json(RecordedSource(tmp_path / "it")) == ALL
    assert files_in(tmp_path) == before
    assert [*before] == ["it"]


def test_unfinished_recording_is_read_up_to_its_end_and_then_what_is_added(tmp_path: Path) -> None:
    source, path = ScriptedSource(SHOP, ticks=30), tmp_path / "it"
    recorder = Recorder(
        path, source, person(), leave_bytes=0, whole_ns=4 * NS_PER_S
    )  # each full tick checkpoints the -wal
    reading: Recording | None = None
    for second in range(30):
        recorder.add(source.after(second))
        while recorder._queue or len(ticks_in(path)) <= second:  # pyright: ignore[reportPrivateUsage]
            assert not recorder.failure
        reading = reading or Recording(path)
        assert reading.after(second) == second + 1
        assert reading.after(second + 1) is None
        again = Recording(path)
        assert again.last == second + 1
        again.close()
    assert reading
    reading.close()
    assert recorder.close().startswith("recorded 29 ticks")


def link_to_passwd(name: str) -> None:
    Path(name).symlink_to("/etc/passwd")


@pytest.mark.parametrize("end", ["-journal", "-wal", "-shm"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, link_to_passwd])
def test_side_file_that_is_not_regular_is_refused_and_not_opened(
    killed: Callable[..., Path], end: str, make: Callable[[str], None]
) -> None:
    path = killed("-wal")
    name = f"{path}{end}"
    Path(name).unlink(missing_ok=True)
    make(name)
    before = stat.S_IFMT(os.lstat(name).st_mode)
    for command in (["report", str(path)], ["replay", str(path), "-b"]):
        done = call(*command)
        assert (done.status, done.sentence) == (1, f"{name} is not a regular file. Remove it")
    assert stat.S_IFMT(os.lstat(name).st_mode) == before


def test_side_files_of_a_link_are_those_of_its_target(killed: Callable[..., Path], tmp_path: Path) -> None:
    path = killed("-wal")
    (tmp_path / "link").symlink_to(path)
    assert in_json(RecordedSource(tmp_path / "link")) == ALL
    os.mkfifo(f"{path}-journal")
    done = call("report", str(tmp_path / "link"))
    assert (done.status, done.sentence) == (1, f"{path}-journal is not a regular file. Remove it")
