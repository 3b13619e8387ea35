"""CausesPicture: what the selection waits for, by cause rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offtop.model.classify.cause_finder import CauseFinder, CauseShare
from offtop.model.classify.left_out import left_out_in, likely_idle
from offtop.model.values.wake import Object
from offtop.model.viewmodel.scene import Scene
from offtop.model.windows.breakdown import PartTuple, Scope, by_site
from offtop.model.windows.rolling import Sums


@dataclass(frozen=True, slots=True)
class CausesPicture:
    sites: Mapping[tuple[int, ...], PartTuple]
    """The selection by sites (breakdown.by_site)."""
    shares: Sequence[CauseShare]
    """Causes of the selection, most time first."""
    unanswered: Mapping[Object, int]
    """Objects for which a rule would name the peer if it were known → a process that waits on each."""
    likely_idle: str = ""
    """See left_out.likely_idle."""


def causes_picture(
    scene: Scene, sums: Sums, sites: Mapping[tuple[int, ...], PartTuple], cause_finder: CauseFinder
) -> CausesPicture:
    """`sites` are those of selected_sites."""
    left_out = left_out_in(scene.ticks)
    with_idle = _sites(scene, sums, "sites with idle", scene.view.scope._replace(idle=True)) if left_out else None
    shares = cause_finder.rules_of(sites, scene.catalog, with_idle, left_out)
    idle = likely_idle(sites, with_idle, left_out, scene.span_ns) if left_out and with_idle else ""
    return CausesPicture(sites, shares, cause_finder.unanswered, idle)


def selected_sites(scene: Scene, sums: Sums) -> Mapping[tuple[int, ...], PartTuple]:
    """Return the time of the selection by site (breakdown.by_site)."""
    return _sites(scene, sums, "sites", scene.view.scope)


def _sites(scene: Scene, sums: Sums, what: str, scope: Scope) -> Mapping[tuple[int, ...], PartTuple]:
    return sums.of(what, scene.filter_cache, scope, lambda shares: by_site(shares, scope), scene.ticks, scene.moved)
