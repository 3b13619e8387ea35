"""Files of the user behind sudo are opened with that user's rights, and written completely or not at all."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from offtop import person as people
from offtop.errors import OfftopError, PrivilegeError
from offtop.person import Person, as_person, is_roots, person, read_theirs, write_theirs, writing_theirs
from tests.conftest import ANN

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
_BOB = 54322


def made(path: Path, text: str = "x", owner: int = ANN, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, owner, owner)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# Identity


@needs_root
def test_sudo_uid_names_the_user() -> None:
    nobody = pwd.getpwnam("nobody")
    environment = {"SUDO_USER": "../../etc", "SUDO_UID": str(nobody.pw_uid), "SUDO_GID": "0", "HOME": "/root"}
    assert person(environment) == Person(nobody.pw_uid, nobody.pw_gid, Path(nobody.pw_dir), "nobody")


@needs_root
@pytest.mark.parametrize("uid", ["", "-1", "+1", " 1", "1\n", "0x1", "١", "abc", "4294967295", "99999999999", "54329"])
def test_invalid_sudo_uid_is_ignored(uid: str) -> None:
    assert person({"SUDO_UID": uid, "SUDO_GID": "1", "SUDO_USER": "nobody"}) == person({})
    assert person({}).uid == 0


def test_sudo_uid_is_ignored_unless_root(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(os, "geteuid", lambda: nobody.pw_uid)
    assert person({"SUDO_UID": "0", "SUDO_GID": "0"}).uid == nobody.pw_uid


def test_uid_without_an_account_gets_its_home_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54329)
    assert person({"HOME": "/home/app"}).home == Path("/home/app")
    assert person({}).home == Path("/")


# Rights


@needs_root
def test_rights_change_only_in_this_thread_and_are_restored(ann: Person) -> None:
    secret = made(ann.home / "secret", "of root", owner=0)
    read: list[str] = []
    taken = threading.Event()

    def look() -> None:
        taken.wait(10)
        read.append(secret.read_text())

    other = threading.Thread(target=look)
    other.start()
    with as_person(ann):
        with pytest.raises(PermissionError):
            secret.read_text()
        taken.set()
        other.join()
    assert read == ["of root"]
    assert secret.read_text() == "of root"


@needs_root
def test_rights_are_restored_after_exceptions_and_nested_blocks(ann: Person) -> None:
    secret = made(ann.home / "secret", "of root", owner=0)
    groups = os.getgroups()
    with pytest.raises(ZeroDivisionError), as_person(ann), as_person(ann):
        raise ZeroDivisionError
    assert secret.read_text() == "of root"
    assert os.getgroups() == groups


@needs_root
def test_groups_are_those_of_the_user_not_of_root(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    of_root = made(ann.home / "a", owner=0, mode=0o640)
    of_staff = made(ann.home / "b", owner=0, mode=0o640)
    os.chown(of_staff, 0, 4242)

    def groups(_name: str, gid: int) -> list[int]:
        return [gid, 4242]

    monkeypatch.setattr(os, "getgrouplist", groups)
    before = os.getgroups()
    os.setgroups([0])
    try:
        with as_person(ann):
            assert os.getgroups() == [4242, ANN]
            assert of_staff.read_text() == "x"
            with pytest.raises(PermissionError):
                of_root.read_text()
        assert os.getgroups() == [0]
    finally:
        os.setgroups(before)


@needs_root
def test_nothing_is_opened_if_groups_cannot_be_dropped(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "_SETGROUPS", {})
    before = os.getgroups()
    os.setgroups([0])
    try:
        with pytest.raises(PrivilegeError, match="CAP_SETGID"), as_person(ann):
            raise AssertionError
        assert made(ann.home / "secret", owner=0).read_text() == "x"
    finally:
        os.setgroups(before)


@needs_root
def test_root_without_capabilities_is_told_which_are_missing() -> None:
    script = (
        "from pathlib import Path; from offtop.person import *\n"
        f"try:\n with as_person(Person({ANN}, {ANN}, Path('/'), 'a\\x1bnn')): print('in')\n"
        "except OfftopError as error: print(error.status, error)"
    )
    answer = subprocess.run(
        ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert answer.stdout.startswith(r"3 Opening files as a\x1bnn, who typed sudo")
    assert "CAP_SETUID" in answer.stdout


# Reading


def test_own_file_is_read_and_missing_file_is_none(ann: Person) -> None:
    assert read_theirs(made(ann.home / "a", "hello"), ann) == b"hello"
    assert read_theirs(made(ann.home / "empty", ""), ann) == b""
    assert read_theirs(ann.home / "nosuch", ann) is None
    assert read_theirs(ann.home / "a" / "below", ann) is None


def test_own_link_is_followed(ann: Person) -> None:
    made(ann.home / "dotfile", "hello")
    (ann.home / "link").symlink_to("dotfile")
    (ann.home / "dangling").symlink_to("nosuch")
    assert read_theirs(ann.home / "link", ann) == b"hello"
    assert read_theirs(ann.home / "dangling", ann) is None


@needs_root
def test_link_to_a_root_only_file_is_refused(ann: Person) -> None:
    (ann.home / "shadow").symlink_to("/etc/shadow")
    with pytest.raises(OfftopError, match=r"shadow cannot be read by ann \(Permission denied\)\. Fix that"):
        read_theirs(ann.home / "shadow", ann)


@needs_root
def test_file_in_an_inaccessible_directory_is_none(ann: Person, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    made(tmp_path / "a", owner=0)
    assert read_theirs(tmp_path / "a", ann) is None
    assert read_theirs(tmp_path / "b", ann) is None


@needs_root
def test_file_of_a_third_user_is_refused_but_not_of_root(ann: Person) -> None:
    with pytest.raises(OfftopError, match="belongs to neither ann nor root, so its owner could change it"):
        read_theirs(made(ann.home / "bobs", owner=_BOB, mode=0o644), ann)
    assert read_theirs(made(ann.home / "roots", owner=0, mode=0o644), ann) == b"x"


def test_non_regular_file_is_refused_without_blocking(ann: Person) -> None:
    os.mkfifo(ann.home / "fifo", 0o666)
    if os.geteuid() == 0:
        os.chown(ann.home / "fifo", ANN, ANN)
    for path in (ann.home / "fifo", ann.home, Path("/dev/zero")):
        with pytest.raises(OfftopError, match=r"is not a regular file\. Name another file"):
            read_theirs(path, ann)


def test_file_above_the_size_limit_is_refused(ann: Person) -> None:
    assert read_theirs(made(ann.home / "most", "x" * 65536), ann) == b"x" * 65536
    with pytest.raises(OfftopError, match=r"is larger than 64KB, so it is not read\. Make it smaller"):
        read_theirs(made(ann.home / "large", "x" * 65537), ann)
    with pytest.raises(OfftopError, match="is larger than 10B"):
        read_theirs(ann.home / "most", ann, 10)


def test_path_with_escape_codes_is_shown_escaped(ann: Person) -> None:
    (ann.home / "\x1b[31m").mkdir()
    with pytest.raises(OfftopError, match=r"/\\x1b\[31m is not"):
        read_theirs(ann.home / "\x1b[31m", ann)


# Writing


def test_written_file_and_created_directories_are_private(ann: Person) -> None:
    write_theirs(ann.home / ".config" / "offtop" / "a", ann, "héllo")
    for path, mode in ((".config", 0o40700), (".config/offtop", 0o40700), (".config/offtop/a", 0o100600)):
        found = (ann.home / path).stat()
        assert (found.st_mode, found.st_uid, found.st_gid) == (mode, ann.uid, ann.gid)
    assert (ann.home / ".config/offtop/a").read_text(encoding="utf-8") == "héllo"
    assert names(ann.home / ".config/offtop") == ["a"]


def test_existing_file_is_replaced_and_becomes_private(ann: Person) -> None:
    path = made(ann.home / "a", "old and longer", mode=0o644)
    write_theirs(path, ann, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode == 0o100600
    write_theirs(path, ann, "")
    assert path.read_text() == ""


@pytest.mark.parametrize("target", ["dotfile", "nosuch", "/etc/shadow"])
def test_nothing_is_written_through_a_link(ann: Person, target: str) -> None:
    made(ann.home / "dotfile", "old")
    (ann.home / "link").symlink_to(target)
    with pytest.raises(OfftopError, match=r"/link is a link, which offtop does not write through\. Remove it"):
        write_theirs(ann.home / "link", ann, "new")
    assert names(ann.home) == ["dotfile", "link"]
    assert (ann.home / "dotfile").read_text() == "old"
    assert (ann.home / "link").readlink() == Path(target)


def test_non_regular_file_is_not_replaced(ann: Person) -> None:
    os.mkfifo(ann.home / "fifo")
    (ann.home / "directory").mkdir()
    for name in ("fifo", "directory"):
        with pytest.raises(OfftopError, match=f"/{name} is not a regular file"):
            write_theirs(ann.home / name, ann, "new")
    assert names(ann.home) == ["directory", "fifo"]


@needs_root
def test_nothing_is_written_where_only_root_can_write(ann: Person, tmp_path: Path) -> None:
    roots = Path(tempfile.mkdtemp())
    roots.chmod(0o755)
    made(roots / "a", "of root", owner=0, mode=0o644)
    (ann.home / "swapped").symlink_to(roots)
    for path in (roots / "a", ann.home / "swapped" / "a", ann.home / "swapped" / "new" / "a"):
        with pytest.raises(OfftopError, match=r"cannot be written by ann \(Permission denied\)"):
            write_theirs(path, ann, "new")
    assert names(roots) == ["a"]
    assert (roots / "a").read_text() == "of root"
    shutil.rmtree(roots)


def test_file_is_written_to_the_directory_that_was_opened(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    own, others = ann.home / "theirs", ann.home / "others"
    for directory in (own, others):
        directory.mkdir()
        if os.geteuid() == 0:
            os.chown(directory, ann.uid, ann.gid)
    fsync = os.fsync

    def swapped(fd: int) -> None:
        own.rename(ann.home / "moved")
        own.symlink_to(others)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", swapped)
    write_theirs(own / "a", ann, "new")
    assert names(ann.home / "moved") == ["a"]
    assert names(others) == []


def test_signal_right_after_a_file_was_made_leaves_nothing(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def interrupted(path: str | Path, flags: int, **options: Any) -> int:
        fd = opened(path, flags, **options)
        if flags & os.O_CREAT:
            os.close(fd)
            raise KeyboardInterrupt
        return fd

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_theirs(ann.home / "it", ann, "x")
    assert not [*ann.home.glob(".offtop-*")] and not (ann.home / "it").exists()


@pytest.mark.parametrize("step", ["replace", "fsync"])
@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (OSError(28, "No space left on device"), r"/a cannot be written by ann \(No space left on device\)\. Fix"),
        (KeyboardInterrupt("ctrl-C"), "ctrl-C"),
    ],
)
def test_interrupted_write_leaves_the_old_file_and_nothing_else(
    ann: Person, monkeypatch: pytest.MonkeyPatch, step: str, raised: BaseException, error: str
) -> None:
    path = made(ann.home / "a", "old")

    def broken(*_arguments: object, **_named: object) -> NoReturn:
        raise raised

    monkeypatch.setattr(os, step, broken)
    with pytest.raises((OfftopError, KeyboardInterrupt), match=error):
        write_theirs(path, ann, "new")
    assert path.read_text() == "old"
    assert names(ann.home) == ["a"]


# Files of root


@needs_root
def test_file_is_roots_only_if_nobody_else_could_have_placed_it(ann: Person) -> None:
    roots = Path(tempfile.mkdtemp(dir="/run"))
    try:
        path = made(roots / "a", owner=0)
        assert is_roots(path)
        assert not is_roots(roots / "nosuch")
        assert not is_roots(made(ann.home / "a", owner=0)), "the directory is not root's"
        (roots / "link").symlink_to(path)
        assert not is_roots(roots / "link")
        (ann.home / "link").symlink_to(roots)
        assert not is_roots(ann.home / "link" / "a")
        assert not is_roots(roots / ".." / ".." / ann.home.relative_to("/") / "a")
        path.chmod(0o620)
        assert not is_roots(path)
        path.chmod(0o600)
        roots.chmod(0o1777)
        assert not is_roots(path), "others can create files there"
    finally:
        shutil.rmtree(roots)


def test_streamed_file_appears_whole_or_not_at_all(ann: Person) -> None:
    path = ann.home / "new" / "it.jsonl"
    with writing_theirs(path, ann) as file:
        file.write(b"one\n")
        assert not path.exists()
        file.write(b"two\n")
    assert path.read_text() == "one\ntwo\n"
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (ann.uid, 0o600)
    with pytest.raises(KeyboardInterrupt), writing_theirs(path, ann) as file:
        file.write(b"three\n")
        raise KeyboardInterrupt
    assert path.read_text() == "one\ntwo\n"
    assert [*path.parent.iterdir()] == [path]
