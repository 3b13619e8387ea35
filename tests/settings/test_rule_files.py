"""Cause rules: the user's own file comes first, is reloaded when it changes, and its errors are reported."""

import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from offtop import paths
from offtop.errors import OfftopError
from offtop.model.classify import categories
from offtop.person import person
from offtop.settings import rule_files
from offtop.settings.rule_files import RuleFiles
from tests import command

CATEGORIES = categories.parse(paths.categories().read_text()).ids
OWN = '[[rule]]\nid = "mine"\nname = "my queue"\nsays = "It is mine."\nprogram = ["web"]\n'
DEMO = str(paths.demo())


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rule_files, "EVERYBODYS", tmp_path / "etc" / "config.toml")
    monkeypatch.setattr(rule_files, "_POLL_SECONDS", 0.01)
    (tmp_path / "etc").mkdir()
    return tmp_path / "rules.toml"


@pytest.fixture
def watched(own: Path) -> Generator[RuleFiles]:
    own.write_text(OWN)
    with closing(RuleFiles(own, person(), CATEGORIES)) as files:
        files.watch()
        yield files


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def ids(files: RuleFiles) -> list[str]:
    return [rule.id for rule in files.rules.rules]


def test_packaged_rules_apply_without_a_file(own: Path) -> None:
    files = RuleFiles(own, person(), CATEGORIES)
    assert "gil" in ids(files)
    assert (files.error, files.files) == ("", (own, own.parent / "etc" / "rules.toml"))


def test_user_rules_come_before_system_wide_and_packaged_ones(own: Path) -> None:
    own.write_text(OWN)
    (own.parent / "etc" / "rules.toml").write_text(OWN.replace("mine", "all", 1) + OWN.replace('"web"', '"x"'))
    files = RuleFiles(own, person(), CATEGORIES)
    assert ids(files)[:3] == ["mine", "all", "postgres-row-lock"]
    assert files.rules.rules[0].origin == f"{own}, rule 1 (line 1)"


def replace(path: Path, text: str) -> None:
    """Replace a file atomically, so that it is never read empty."""
    temporary = path.with_name("beside")
    temporary.write_text(text)
    temporary.replace(path)


def test_changed_file_is_reloaded(watched: RuleFiles) -> None:
    (own, _), before = watched.files, watched.rules
    own.write_text(OWN.replace("mine", "yours"))
    wait_until(lambda: ids(watched)[0] == "yours")
    assert watched.rules is not before
    own.unlink()
    wait_until(lambda: ids(watched)[0] == "postgres-row-lock")
    assert watched.error == ""


def test_error_in_a_changed_file_is_reported_and_its_old_rules_stay(watched: RuleFiles) -> None:
    own, _ = watched.files
    before = watched.rules
    replace(own, "[[rule]]\nid = 7\n")
    wait_until(lambda: watched.error != "")
    assert watched.error.startswith(f"{own}, rule 1 (line 1): it has none of the conditions ")
    assert str(paths.rules()) in watched.error
    assert watched.rules is before
    replace(own, OWN)
    wait_until(lambda: not watched.error)
    assert ids(watched)[0] == "mine"


def test_invalid_file_is_refused_at_startup(own: Path) -> None:
    own.write_bytes(b"\xff[[rule]]")
    with pytest.raises(OfftopError, match=r"rules\.toml is not valid TOML"):
        RuleFiles(own, person(), CATEGORIES)
    own.unlink()
    os.mkfifo(own)
    with pytest.raises(OfftopError, match="is not a regular file"):
        RuleFiles(own, person(), CATEGORIES)


def test_command_checks_the_files_next_to_the_settings(tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text("")
    (tmp_path / "rules.toml").write_text(OWN)
    done = command.call("rules", "--check", "--config", str(settings))
    assert (done.status, done.err) == (0, "")
    first, *others = done.out.splitlines()
    assert first == f"1 rule of {tmp_path / 'rules.toml'}"
    assert any(line.endswith(" rules of rules.toml") for line in others)
    (tmp_path / "rules.toml").write_text(OWN.replace("program", "programme"))
    done = command.call("rules", "--check", "--config", str(settings))
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"offtop: {tmp_path / 'rules.toml'}, rule 1 (line 1): `programme` is unknown here")


def test_command_lists_what_each_rule_matches_in_a_recording(tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text("")
    (tmp_path / "rules.toml").write_text(OWN.replace('"web"', '"nginx"'))
    done = command.call("rules", DEMO, "--config", str(settings))
    assert (done.status, done.err) == (0, "")
    lines = [(line, line.split()) for line in done.out.splitlines()]
    found = {words[2]: line for line, words in lines if len(words) > 4 and words[1].endswith("%")}
    assert {"postgres-row-lock", "postgres-wal", "gil", "mine"} <= found.keys()
    assert "a row or table lock" in found["postgres-row-lock"]
    assert "nginx(" in found["mine"]
    assert "event-loop" not in found, "the user's own rule comes first"
    assert " rules matched nothing." in done.out.splitlines()[-1]


def test_rules_in_the_manual_are_valid(own: Path) -> None:
    page = (paths.rules().parents[1] / "docs" / "causes.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    own.write_text(text)
    files = RuleFiles(own, person(), CATEGORIES)
    assert ids(files)[0] == "billing-queue"
    assert files.rules.services[8443] == "the billing gateway"
