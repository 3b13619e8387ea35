"""Lines are cut where it shows."""

import pytest

from offtop.ui.kit.glyphs import UNICODE
from offtop.ui.kit.lines import Pen, rule
from tests.ui.scripted import ScriptedSource


@pytest.mark.parametrize(
    ("width", "shown"),
    [(14, "── stuck now ─"), (13, "── stuck now "), (12, "── stuck now"), (11, "── stuck n…"), (4, "── …")],
)
def test_title_that_is_too_long_ends_in_an_ellipsis(width: int, shown: str) -> None:
    assert "".join(text for text, _ in rule("stuck now", Pen(width, 1, UNICODE, ScriptedSource())).spans) == shown
