"""offtop in one file: the archive, and how it unpacks itself."""

import os
import stat
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import onefile_start
import pytest
from onefile import archive
from onefile_start import copy_of

_MEMBERS = {"offtop/__init__.py": b"", "offtop/start.py": b"def main() -> None:\n    print('it runs')\n"}
_MACHINE = os.uname().machine


@pytest.fixture
def one_file(tmp_path: Path) -> Path:
    path = tmp_path / "offtop.pyz"
    path.write_bytes(archive(_MEMBERS, _MACHINE, 1_700_000_000))
    path.chmod(0o755)
    return path


def test_same_members_and_time_give_the_same_bytes() -> None:
    in_reverse = dict(reversed(_MEMBERS.items()))
    assert archive(_MEMBERS, _MACHINE, 1_700_000_000) == archive(in_reverse, _MACHINE, 1_700_000_000)
    assert archive(_MEMBERS, _MACHINE, 1_700_000_000) != archive({**_MEMBERS, "more": b""}, _MACHINE, 1_700_000_000)


def test_the_file_is_a_script_and_an_archive(one_file: Path) -> None:
    assert one_file.read_bytes().startswith(b"#!/bin/sh\n")
    with zipfile.ZipFile(one_file) as members:
        assert members.testzip() is None
        assert {*_MEMBERS, "__main__.py", "BUILD"} == {*members.namelist()}


def test_it_unpacks_once_where_only_its_user_can_write(one_file: Path, tmp_path: Path) -> None:
    parent = tmp_path / "cache" / "onefile"
    copy = copy_of(str(one_file), parent)
    assert (copy / "offtop" / "start.py").read_bytes() == _MEMBERS["offtop/start.py"]
    assert stat.S_IMODE(parent.stat().st_mode) == stat.S_IMODE(copy.stat().st_mode) == 0o700
    marker = copy / "marker"
    marker.touch()
    assert copy_of(str(one_file), parent) == copy
    assert marker.exists(), "it was not unpacked again"


def test_a_new_build_removes_old_copies_that_are_not_in_use(one_file: Path, tmp_path: Path) -> None:
    parent = tmp_path / "onefile"
    hold = """if True:
        import sys, onefile_start, pathlib
        print(onefile_start.copy_of(sys.argv[1], pathlib.Path(sys.argv[2])), flush=True)
        input()
    """
    command = [sys.executable, "-c", hold, str(one_file), str(parent)]
    environment = {"PYTHONPATH": str(Path(onefile_start.__file__).parent)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runs:
        assert runs.stdin and runs.stdout
        old = Path(runs.stdout.readline().strip())
        (parent / ".new-killed").mkdir()
        (parent / "link").symlink_to(tmp_path)
        one_file.write_bytes(archive({**_MEMBERS, "more": b""}, _MACHINE, 1_700_000_000))
        new = copy_of(str(one_file), parent)
        assert {*parent.iterdir()} == {old, new, parent / "link"}
        runs.stdin.write("\n")
    one_file.write_bytes(archive({**_MEMBERS, "more": b"!"}, _MACHINE, 1_700_000_000))
    newest = copy_of(str(one_file), parent)
    assert {*parent.iterdir()} == {new, newest, parent / "link"}, "this process still uses the one before"


def test_a_user_without_a_home_directory_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 987_654)
    with pytest.raises(OSError, match="there is no such user: 'the home directory of user 987654'"):
        onefile_start.parent()


def test_it_refuses_a_directory_that_others_can_write_to(one_file: Path, tmp_path: Path) -> None:
    parent = tmp_path / "onefile"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(PermissionError, match="another user can write there"):
        copy_of(str(one_file), parent)


def test_it_refuses_a_directory_that_others_can_replace(one_file: Path, tmp_path: Path) -> None:
    above = tmp_path / "cache"
    above.mkdir()
    above.chmod(0o777)
    with pytest.raises(PermissionError, match=f"another user can write there: remove it: '{above}'"):
        copy_of(str(one_file), above / "onefile")


def test_where_nothing_may_be_executed_it_unpacks_nothing(
    one_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statvfs(path: Path) -> SimpleNamespace:
        return SimpleNamespace(f_flag=os.ST_NOEXEC if path == tmp_path / "onefile" else 0)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.raises(PermissionError, match="mounted noexec"):
        copy_of(str(one_file), tmp_path / "onefile")
    assert not [*(tmp_path / "onefile").iterdir()]


def test_a_file_for_another_machine_is_not_unpacked(one_file: Path, tmp_path: Path) -> None:
    one_file.write_bytes(archive(_MEMBERS, "s390x", 1_700_000_000))
    with pytest.raises(onefile_start.WrongMachineError, match="s390x"):
        copy_of(str(one_file), tmp_path / "onefile")
    assert not (tmp_path / "onefile").exists()
    ended = subprocess.run([one_file, "--version"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr == f"offtop: {one_file} is for s390x. Copy the file for {_MACHINE}\n"


def test_it_refuses_a_copy_that_is_a_symlink(one_file: Path, tmp_path: Path) -> None:
    parent = tmp_path / "onefile"
    copy = copy_of(str(one_file), parent)
    copy.rename(tmp_path / "elsewhere")
    copy.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="another user can write there"):
        copy_of(str(one_file), parent)


def test_a_damaged_file_leaves_nothing_behind(one_file: Path, tmp_path: Path) -> None:
    content = bytearray(one_file.read_bytes())
    at = content.index(b"offtop/start.py") + len(b"offtop/start.py")
    content[at : at + 20] = bytes(20)
    one_file.write_bytes(content)
    with pytest.raises((zipfile.BadZipFile, zlib.error)):
        copy_of(str(one_file), tmp_path / "onefile")
    assert [*(tmp_path / "onefile").iterdir()] == []


def test_a_file_that_was_copied_in_part_is_an_error_with_a_remedy(one_file: Path) -> None:
    one_file.write_bytes(one_file.read_bytes()[:-100])
    ended = subprocess.run([one_file, "--version"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr == f"offtop: {one_file} is damaged (its end is missing). Copy it again\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="a user's copy would be in the real home directory")
def test_it_runs_as_a_command(one_file: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /var/cache && exec "$@"', "sh", str(one_file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("it runs\n", "", 0)


def test_an_old_python_gets_a_sentence(one_file: Path) -> None:
    code = (
        "import sys; sys.version_info = (3, 9, 2); import runpy; sys.argv = [sys.argv[1]]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(one_file)], capture_output=True, text=True, timeout=60)
    assert ran.stderr == "offtop: this is Python 3.9, and it needs 3.11 to 3.14\n"
    assert ran.returncode == 4
