"""Common: what all panes of a picture have in common, such as the view, the span and its ticks."""

from collections.abc import Sequence
from dataclasses import dataclass

from offtop.model.values.catalog import Catalog
from offtop.model.values.snapshot import Sampling
from offtop.model.values.within import Calls
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.totals import Totals, parts_in, totals_of
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import Part, total
from offtop.model.windows.history import HistoryTick
from offtop.model.windows.window import calls_over


@dataclass(frozen=True, slots=True)
class Common:
    view: View
    """With the branches that opened by themselves."""
    newest: HistoryTick
    """The latest tick shown."""
    ticks: Sequence[HistoryTick]
    """Ticks of the span."""
    span_ns: int
    """Measured length of the span that the numbers cover."""
    sampling: Sampling | None
    """How waits were sampled in the span; None: every wait was recorded."""
    gathered: bool
    """Whether the newest tick has what the mode shows; if not, there is no list, tree or icicle."""
    calls: Calls
    """Calls of the --within function in the span."""
    totals: Totals
    selected: Part
    """Time of the selection; without run-queue time if wakers are shown, as in list, tree and icicle."""
    uncompared: str
    """Why list and tree are not compared; empty if they are."""

    @property
    def catalog(self) -> Catalog:
        return self.newest.header.catalog


def common_of(scene: Scene, view: View) -> Common:
    """`view` is that of the scene, with the branches that opened by themselves."""
    return Common(
        view=view,
        newest=scene.newest,
        ticks=scene.ticks,
        span_ns=scene.span_ns,
        sampling=scene.sampling,
        gathered=scene.gathered,
        calls=calls_over(tick.header for tick in scene.ticks),
        totals=totals_of(scene),
        selected=total(parts_in(scene.chosen, view.category, view.idle_shown, view.scope.blocked)),
        uncompared=scene.comparison.why_uncompared if scene.comparison else "",
    )
