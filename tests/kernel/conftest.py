"""Shared fixtures: one live source per file for the tests that only watch.

It lives no longer than that because its maps fill up when nothing reads them.
"""

from collections.abc import Generator

import pytest

from tests.kernel import watch


@pytest.fixture(scope="module")
def live() -> Generator[watch.Watch]:
    """Watch everything, with the default filters. Every tick checks the sums."""
    with watch.watching() as watched:
        yield watched


@pytest.fixture(scope="module")
def no_settings() -> Generator[None]:
    """Ignore the settings of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("OFFTOP_CONFIG", ""), ("XDG_CONFIG_HOME", "/nonexistent"), ("SUDO_UID", "")):
            patch.setenv(name, value)
        yield
