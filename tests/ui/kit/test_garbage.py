"""What the screen leaves behind."""

import gc
import weakref

from rich.console import Console
from rich.segment import Segment
from textual._compositor import ChopsUpdate
from textual.strip import Strip

from offtop.ui.kit.lines import exact


class _Strip(Strip):
    __slots__ = ("__weakref__",)


def test_a_strip_that_was_drawn_is_freed_without_a_garbage_collection() -> None:
    strip = _Strip([Segment("offtop")])
    strip.divide([strip.cell_length])
    held = weakref.ref(strip)
    update = exact(ChopsUpdate([{0: strip}], [(0, 2, 5)], [[6]]))
    assert isinstance(update, ChopsUpdate)
    gc.disable()
    try:
        assert update.render_segments(Console()).endswith("fto")
        del strip, update
        assert held() is None
    finally:
        gc.enable()
