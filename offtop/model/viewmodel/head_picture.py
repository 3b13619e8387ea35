"""HeadPicture: what only the head shows, which is the quality and the cost of the numbers, and the timeline."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from offtop.model.aggregate.rows import Row
from offtop.model.values.outlier import Group
from offtop.model.values.wake import OFFCPU
from offtop.model.viewmodel.scene import Scene, last_alike
from offtop.model.viewmodel.seconds import Seconds
from offtop.model.viewmodel.timeline import Timeline
from offtop.model.windows.history import History, HistoryTick
from offtop.units import NS_PER_S

_RECENT_NS = 10 * NS_PER_S


@dataclass(frozen=True, slots=True)
class HeadPicture:
    behind_ns: int
    """Time between the latest tick shown and the latest snapshot; 0 unless paused."""
    lost: Mapping[str, int]
    """Records lost in the span, by kind."""
    thinned_ns: int
    """Off-CPU time without a stack, to keep to the CPU budget."""
    switches_per_s: float
    """Context switches per second of the machine, in the span or, if that is everything since the start, in the last
    10 s; negative: unknown."""
    unexplained_pct: float
    """CPU time of the newest tick that neither threads nor interrupts nor steal account for."""
    timeline: Timeline
    outliers: Sequence[Group]
    """All that are stored: the head has their number, and marks them in the timeline."""
    top_category: Row | None
    """First row of the categories, for a screen that has only one line."""


def head_picture(
    scene: Scene,
    history: History,
    seconds: Seconds,
    timeline: Timeline,
    outliers: Sequence[Group],
    top_category: Row | None,
) -> HeadPicture:
    ticks, newest, latest = scene.ticks, scene.newest, history.latest
    # context switches are not summed since the start
    recent = last_alike(scene.minute, _RECENT_NS, OFFCPU) if ticks[0] is scene.ever else ticks
    return HeadPicture(
        behind_ns=latest.at_ns - newest.at_ns if latest else 0,
        lost=_added(tick.header.lost for tick in ticks),
        thinned_ns=sum(tick.header.cost.thinned.waits_ns for tick in ticks),
        switches_per_s=_per_second([tick for tick in recent if tick.header.cost.switches >= 0]),
        unexplained_pct=seconds.unexplained_pct(newest),
        timeline=timeline,
        outliers=outliers,
        top_category=top_category,
    )


def _per_second(ticks: Sequence[HistoryTick]) -> float:
    span_ns = sum(tick.span_ns for tick in ticks)
    return sum(tick.header.cost.switches for tick in ticks) * NS_PER_S / span_ns if span_ns else -1.0


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum up by kind."""
    sums: Counter[str] = Counter()
    for some in counts:
        sums.update(some)
    return dict(sums)
