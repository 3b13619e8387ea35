"""Old recordings of a directory are deleted, and `latest` names the one that was written to last."""

import os
import time
from pathlib import Path

import pytest

from offtop.commands import options, record, recordings
from offtop.errors import OfftopError
from offtop.person import person
from offtop.units import NS_PER_S

_HOUR_NS = 3600 * NS_PER_S


def recording(directory: Path, hours: float, size: int = 100, what: str = "") -> Path:
    """Make a file that was written to `hours` ago."""
    written_ns = time.time_ns() - int(hours * _HOUR_NS)
    at = time.strftime("%Y%m%dT%H%M%S", time.gmtime(written_ns // NS_PER_S))
    path = directory / f"offtop-db7-{at}{what}.offtop"
    path.write_bytes(bytes(size))
    os.utime(path, ns=(written_ns, written_ns))
    return path


def left(directory: Path) -> set[Path]:
    return {*directory.iterdir()}


def test_recordings_older_than_keep_are_deleted_with_what_is_beside_them(tmp_path: Path) -> None:
    old, young, used = (recording(tmp_path, hours) for hours in (49, 47, 0))
    (tmp_path / f"{old.name}-wal").touch()
    os.utime(tmp_path / f"{old.name}-wal", ns=(0, 0))
    recordings.delete_oldest(tmp_path, 48 * _HOUR_NS, 1000, person(), used)
    assert left(tmp_path) == {young, used}


def test_the_oldest_are_deleted_until_all_fit(tmp_path: Path) -> None:
    _, _, young, used = (recording(tmp_path, hours) for hours in (4, 3, 2, 0))
    recordings.delete_oldest(tmp_path, 48 * _HOUR_NS, 250, person(), used)
    assert left(tmp_path) == {young, used}


def test_the_recording_in_progress_stays_even_if_it_alone_is_too_large(tmp_path: Path) -> None:
    recording(tmp_path, 1)
    used = recording(tmp_path, 0, size=900)
    recordings.delete_oldest(tmp_path, _HOUR_NS, 500, person(), used)
    assert left(tmp_path) == {used}


def test_clips_other_files_links_and_recordings_in_use_are_not_deleted(tmp_path: Path) -> None:
    clip = recording(tmp_path, 99, what="-lock-mysqld")
    used, other = recording(tmp_path, 0), recording(tmp_path, 110 / 3600)
    link = tmp_path / "offtop-db7-20201121T021055.offtop"
    link.symlink_to(clip)
    (tmp_path / "night.offtop").touch()
    os.utime(tmp_path / "night.offtop", ns=(0, 0))
    recordings.delete_oldest(tmp_path, _HOUR_NS, 10, person(), used)
    assert left(tmp_path) == {clip, used, other, link, tmp_path / "night.offtop"}


def test_latest_is_the_one_written_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service, here = tmp_path / "service", tmp_path / "here"
    service.mkdir()
    here.mkdir()
    monkeypatch.setattr(recordings, "SERVICE_DIRECTORIES", (service,))
    monkeypatch.chdir(here)
    recording(service, 3)
    newest = recording(here, 2)
    assert recordings.named("latest") == newest
    assert capsys.readouterr().err == f"offtop: the latest recording is {newest}\n"
    in_progress = recording(service, 5)
    (service / f"{in_progress.name}-wal").touch()
    assert recordings.named("latest") == in_progress
    assert recordings.named("latest.offtop") == Path("latest.offtop")


def test_of_those_in_progress_the_latest_is_here_then_the_recorder_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, recorder, here = (tmp_path / name for name in ("agent", "recorder", "here"))
    for directory in (agent, recorder, here):
        directory.mkdir()
    monkeypatch.setattr(recordings, "SERVICE_DIRECTORIES", (agent, recorder))
    monkeypatch.chdir(here)
    recording(agent, 0)
    recording(recorder, 20 / 3600)
    after_restart = recording(recorder, 10 / 3600)
    assert recordings.named("latest") == after_restart
    ended = recording(here, 30 / 3600)
    assert recordings.named("latest") == ended
    os.utime(ended, ns=(0, 0))
    assert recordings.named("latest") == after_restart


def test_no_recording_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "SERVICE_DIRECTORIES", (tmp_path / "none",))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "night.offtop").touch()
    named = r"There is no recording in .* that is named offtop-HOST-TIME\.offtop\. Make one with sudo offtop record"
    with pytest.raises(OfftopError, match=named):
        recordings.named("latest")


def test_a_service_directory_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(recordings, "SERVICE_DIRECTORIES", (tmp_path / "file",))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OfftopError, match=r"cannot be read \(Not a directory\). Try sudo"):
        recordings.named("latest")


def test_recordings_of_others_are_neither_deleted_nor_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    monkeypatch.setattr(recordings, "SERVICE_DIRECTORIES", (tmp_path / "service",))
    monkeypatch.chdir(tmp_path)
    own, used, forged = (recording(tmp_path, hours) for hours in (99, 1, 0))
    old = recording(tmp_path, 98)
    for path in (forged, old):
        os.chown(path, 12345, -1)
    assert recordings.named("latest") == used
    recordings.delete_oldest(tmp_path, _HOUR_NS, 1, person(), used)
    assert left(tmp_path) == {used, forged, old}
    assert not own.exists()


def test_recording_of_the_agent_is_the_latest_although_its_owner_is_not_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    (tmp_path / "private").mkdir()
    os.chown(tmp_path / "private", 12345, -1)
    (tmp_path / "agent").symlink_to("private")  # as systemd makes it
    monkeypatch.setattr(recordings, "SERVICE_DIRECTORIES", (tmp_path / "none", tmp_path / "agent"))
    monkeypatch.chdir(tmp_path)
    recording(tmp_path, 2)
    found = recording(tmp_path / "agent", 1)
    os.chown(found, 12345, -1)
    os.chown(recording(tmp_path / "agent", 0), 54321, -1)
    assert recordings.named("latest") == found


def test_recordings_from_before_the_clock_was_set_back_are_deleted_too(tmp_path: Path) -> None:
    recording(tmp_path, -24)
    used = recording(tmp_path, 0)
    recordings.delete_oldest(tmp_path, 48 * _HOUR_NS, 150, person(), used)
    assert left(tmp_path) == {used}


def test_expired_recordings_make_room_before_a_new_one_begins(tmp_path: Path) -> None:
    recording(tmp_path, 49)
    young = recording(tmp_path, 47)
    recordings.delete_oldest(tmp_path, 48 * _HOUR_NS, 1000, person())
    assert left(tmp_path) == {young}


def test_record_refuses_a_missing_directory_before_it_measures(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(OfftopError) as raised:
        record.record(options.record().parse_args(["--directory", str(missing)]))
    remedy = f"Make it, or name a directory that {person().name} can write to"
    assert str(raised.value) == f"--directory: {missing}: No such file or directory. {remedy}"


def test_latest_in_a_directory_that_was_removed_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "SERVICE_DIRECTORIES", (tmp_path / "none",))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(OfftopError, match="There is no recording in"):
        recordings.named("latest")
