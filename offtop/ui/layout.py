"""Who gets how many lines: every size of terminal has a layout, and none is refused."""

from typing import NamedTuple

from offtop.model.picture import Room
from offtop.units import NS_PER_S


class Layout(NamedTuple):
    """Lines of each panel; 0: not shown."""

    width: int
    height: int
    head: int
    categories: int
    rows: int
    places: int
    alert: int
    keys: int
    cost: bool = True
    """Whether the head tells what offtop costs."""
    timeline: bool = True
    crumb: bool = True
    spark_cells: int = 20

    @property
    def timeline_cells(self) -> int:
        """A cell for each 5 s: 5 minutes, or 10 where there is room."""
        return 120 if self.width >= 140 else min(60, max(0, self.width - 18))

    @property
    def room(self) -> Room:
        return Room(
            categories=max(1, self.categories - 2),
            rows=max(1, self.rows - 2),
            places=max(0, self.places - 1) // (1 if self.width >= WIDE else 2),
            spark_cells=self.spark_cells,
            spark_cell_ns=60 * NS_PER_S // self.spark_cells,
            timeline_cells=self.timeline_cells if self.timeline else 1,
        )


TINY_WIDTH, TINY_HEIGHT = 40, 8
"""Below these, one line has to do."""
LEAST_LIST = 4
"""Lines of a list that is of use: its title, its head and two rows."""
WIDE = 120
"""From here on a place fits on one line."""


def arrange(width: int, height: int, in_thread: bool = False) -> Layout:
    """The layout of a terminal; `in_thread`: a thread was drilled into, so that its places stand for the list."""
    if width < TINY_WIDTH or height < TINY_HEIGHT:
        return Layout(width, height, min(1, height), 0, 0, 0, 0, 0, cost=False, timeline=False, crumb=False)
    timeline, cost = height >= 24, height >= 20
    crumb, keys, alert = height >= 14, int(height >= 12), 1
    head = 2 + cost + timeline + crumb
    left = height - head - keys - alert
    categories = min(6, max(3, (left + 1) // 2)) if height < 24 else min(18, max(9, height // 3))
    if left - categories < LEAST_LIST:
        categories = left
    left -= categories
    places = left if in_thread else max(8, left // 3) if height >= 35 else 0
    spark_cells = 30 if width >= WIDE else 20 if width >= 80 else 10
    return Layout(
        width, height, head, categories, left - places, places, alert, keys, cost, timeline, crumb, spark_cells
    )
