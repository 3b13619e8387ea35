"""A saved clip is written with the user's rights, to a new file, and only where it is reported to be."""

import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from offtop import paths
from offtop.commands import clip_file
from offtop.errors import OfftopError, UsageError
from offtop.person import Person, person
from offtop.recording.writer import Recorder
from tests import command
from tests.ui.scripted import SHOP, START_NS, ScriptedSource

NAME = "offtop-db7-20261121T020000"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A stand-in for /var/tmp; the working directory is one that only its owner can write to."""
    root = Path(tempfile.mkdtemp(prefix="offtop-places-"))  # pytest's own directory is closed to other users
    root.chmod(0o755)
    here, place = root / "here", root / "var-tmp"
    for directory, mode in ((here, 0o755 if os.geteuid() == 0 else 0o555), (place, 0o1777)):
        directory.mkdir()
        directory.chmod(mode)
    monkeypatch.chdir(here)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(clip_file, "_FALLBACK", place)
    yield place
    shutil.rmtree(root)


def begun(user: Person, directory: Path | None = None, what: str = "") -> Path:
    source = ScriptedSource(SHOP)
    recorder = clip_file.new_clip(source, user, directory, what, START_NS)
    assert isinstance(recorder, Recorder)
    recorder.add(source.after(0))
    recorder.close()
    return recorder.path


def test_snapshot_is_in_the_working_directory_and_owned_by_the_user(
    ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(ann.home)
    path = begun(ann, what="lock-my\x1b[2Jsql d/../x")
    assert path == Path(f"{NAME}-lock-my-2Jsql-d-..-x.offtop")
    found = path.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ann.uid, 0o600)
    assert len(begun(ann, what="x" * 300).name) < 100


def test_snapshot_goes_to_a_private_directory_if_the_working_directory_is_not_writable(
    ann: Person, elsewhere: Path
) -> None:
    path = begun(ann)
    own = elsewhere / f"offtop-{ann.uid}"
    assert path == own / f"{NAME}-all.offtop"
    assert (own.stat().st_uid, stat.S_IMODE(own.stat().st_mode)) == (ann.uid, 0o700)
    assert begun(ann) == own / f"{NAME}-all-2.offtop"
    assert [*Path().iterdir()] == []


@pytest.mark.parametrize("kind", ["link", "file", "open to others", "another's"])
def test_directory_that_is_not_private_is_refused(ann: Person, elsewhere: Path, tmp_path: Path, kind: str) -> None:
    own, target = elsewhere / f"offtop-{ann.uid}", tmp_path / "target"
    target.mkdir()
    if kind == "link":
        own.symlink_to(target)
    elif kind == "file":
        own.write_text("")
    else:
        own.mkdir(mode=0o700)
        own.chmod(0o770 if kind == "open to others" else 0o700)
    if os.geteuid() == 0 and kind != "another's":
        os.chown(own, ann.uid, ann.gid, follow_symlinks=False)
    elif kind == "another's" and os.geteuid() != 0:
        pytest.skip("only root can create another user's directory")
    with pytest.raises(OfftopError, match="is not private to ann"):
        begun(ann)
    assert [*target.iterdir()] == []


def test_named_directory_has_no_fallback(ann: Person, elsewhere: Path) -> None:
    (ann.home / "slow").mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(ann.home / "slow", ann.uid, ann.gid)
    named = clip_file.clip_directory("~/slow", ann)
    assert named == ann.home / "slow"
    assert begun(ann, named).parent == named
    assert named
    named.chmod(0o500)
    with pytest.raises(OfftopError, match="cannot be written by ann"):
        begun(ann, named)
    assert [*elsewhere.iterdir()] == []


def test_unwritable_directory_is_an_error_before_anything_starts(ann: Person, tmp_path: Path) -> None:
    assert clip_file.clip_directory("", ann) is None
    for wrong in (tmp_path / "nosuch", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=f"snapshot directory {wrong}: .* cannot write there"):
            clip_file.clip_directory(str(wrong), person())
    ended = command.run_on_terminal("replay", str(paths.demo()), "--snapshot-dir", str(tmp_path / "nosuch"))
    assert b"cannot write there (No such file or directory)" in ended.screen + ended.err.encode()
    assert ended.status == 2
