"""A user's first start is the one without a file in their state directory; it creates that file."""

import os
import pwd
import stat
from pathlib import Path

import pytest

from offtop.person import Person, person
from offtop.settings.first_start import is_first_start


def test_only_the_first_start_is_one(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert [is_first_start(person({}), environ) for _ in range(3)] == [True, False, False]
    assert stat.S_IMODE((tmp_path / "offtop" / "started").stat().st_mode) == 0o600


@pytest.mark.parametrize("environ", [{}, {"XDG_STATE_HOME": "relative"}])
def test_without_a_valid_state_home_the_file_is_below_home(tmp_path: Path, environ: dict[str, str]) -> None:
    user = Person(os.geteuid(), os.getegid(), tmp_path, "ann")
    assert is_first_start(user, environ)
    assert (tmp_path / ".local/state/offtop/started").read_text().startswith("offtop has shown")


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_under_sudo_the_file_belongs_to_the_user_and_no_link_is_followed(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(directory.stat().st_mode | 0o011)
    user = Person(nobody.pw_uid, nobody.pw_gid, home, "nobody")
    assert is_first_start(user, {})
    mark = home / ".local/state/offtop/started"
    assert mark.stat().st_uid == nobody.pw_uid
    mark.unlink()
    mark.symlink_to(tmp_path / "elsewhere")
    assert not is_first_start(user, {})
    assert not (tmp_path / "elsewhere").exists()


def test_where_nothing_can_be_written_nobody_is_greeted(tmp_path: Path) -> None:
    (tmp_path / "offtop").touch()
    assert not is_first_start(person({}), {"XDG_STATE_HOME": str(tmp_path)})
