"""The tests of the command line read no settings of the user who runs them."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty settings file, which offtop reads in these tests no matter who runs them."""
    file = tmp_path / "config.toml"
    file.touch()
    monkeypatch.setenv("OFFTOP_CONFIG", str(file))
    for name in ("SUDO_UID", "XDG_CONFIG_HOME", "NO_COLOR"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TERM", "xterm-256color")
    return file
