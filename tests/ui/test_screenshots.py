"""The files in screenshots/ match what the app draws of the demo; `python screenshots/make.py` makes them."""

import asyncio
import os
import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from screenshots.make import SHOTS, Shot, take

_DIRECTORY = Path(__file__).parents[2] / "screenshots"
_ROOT = Path(__file__).parents[2]
_QUICKLY = ("first-dark", "small", "suspects", "tree", "stuck", "files", "help")
"""The others are drawn in `make variants`."""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "shot",
    [pytest.param(shot, id=shot.name, marks=[] if shot.name in _QUICKLY else [pytest.mark.variant]) for shot in SHOTS],
)
def test_screenshot_is_identical(shot: Shot) -> None:
    drawn = asyncio.run(take(shot))
    assert drawn == (_DIRECTORY / f"{shot.name}.svg").read_text(encoding="utf-8")
    text = re.sub("<[^>]*>", "", drawn)
    assert "RECORDED" in text


def test_no_screenshot_is_left_over_and_documents_show_nearly_all() -> None:
    names = {shot.name for shot in SHOTS}
    assert {path.stem for path in _DIRECTORY.glob("*.svg")} == names
    documents = [_ROOT / "README.md", *(_ROOT / "docs").glob("*.md")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in documents)
    shown = re.findall(r"\((?:\.\./)?screenshots/([\w-]+)\.svg\)", text)
    assert names - {*shown} <= {"help", "small", "site"} and {*shown} <= names
    assert os.environ["TZ"] == "UTC"
