"""One live source for all tests of a file that only watch. What nobody reads for long fills up, so none outlives it."""

from collections.abc import Generator

import pytest

from tests.kernel import watch


@pytest.fixture(scope="module")
def live() -> Generator[watch.Watch]:
    """Watches everything, with the filters that offtop begins with. Sums are held in every tick."""
    with watch.watching() as watched:
        yield watched


@pytest.fixture(scope="module")
def no_settings() -> Generator[None]:
    """Whoever runs these tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("OFFTOP_CONFIG", ""), ("XDG_CONFIG_HOME", "/nonexistent"), ("SUDO_UID", "")):
            patch.setenv(name, value)
        yield
