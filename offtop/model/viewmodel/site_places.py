"""The complete stacks through the chosen branch, which the site pane shows."""

from collections.abc import Mapping

from offtop.model.aggregate.breakdown_rows import place_rows
from offtop.model.aggregate.rows import Ranking, Row
from offtop.model.aggregate.steps import passes
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.catalog import SiteKey
from offtop.model.values.stack import NO_STACK, QUEUED
from offtop.model.values.wake import NO_WAKE, WAKEUP
from offtop.model.viewmodel.scene import Scene
from offtop.model.viewmodel.stack_table import StackTable
from offtop.model.windows.breakdown import NO_PART, RUN_QUEUE, Leaf, PartTuple, Place, by_place
from offtop.model.windows.rolling import Sums


class SitePlaces:
    def __init__(self, sums: Sums, cause_finder: CauseFinder) -> None:
        self._sums, self._cause_finder = sums, cause_finder

    def of(self, scene: Scene, table: StackTable, sites: Mapping[tuple[int, ...], PartTuple], limit: int) -> Ranking:
        """Return at most `limit` places. `sites` is the selection by site."""
        path = scene.view.path
        through = {place: part for place, part in table.parts.items() if passes(table.steps.of(place), path)}
        whole_ns = sum(part[1] for part in table.parts.values())
        compare = scene.comparison.places(table.steps.of) if scene.comparison else None
        rows = place_rows(through, scene.span_ns, limit, compare)
        return self._with_sites(rows, scene, sites)._replace(of_ns=whole_ns)

    def _with_sites(self, places: Ranking, scene: Scene, sites: Mapping[tuple[int, ...], PartTuple]) -> Ranking:
        """Add to each place the process and object with most of its time, and the rule for that."""
        if scene.view.tree.shape.mode == WAKEUP:
            return places
        queued = self._queued(scene)
        most: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        for site, (_, ns, _, _) in sites.items():
            most[site[0], site[1]] = max(most.get((site[0], site[1]), (0, ())), (ns, site))

        def with_site(row: Row) -> Row:
            if not isinstance(row.key, Place):
                return row
            _, site = most.get((row.key.kernel, row.key.user), (0, ()))
            if 2 * queued.get(row.key, NO_PART)[1] > row.part.total_ns:
                site = QUEUED, NO_STACK, NO_WAKE, site[-1] if site else 0
            if not site:
                return row
            kernel, user, wake, pid = site
            (rule,) = self._cause_finder.rules_at([site], scene.catalog)
            return row._replace(rule=rule, top=SiteKey(pid, 0, kernel, user, wake))

        return places._replace(rows=tuple(map(with_site, places.rows)))

    def _queued(self, scene: Scene) -> Mapping[tuple[int, ...], PartTuple]:
        """Return the run-queue time of each place."""
        scope, shape = scene.view.scope, scene.view.tree.shape
        if not scope.holds(Leaf(RUN_QUEUE)):
            return {}
        only = scope._replace(category=RUN_QUEUE)
        return self._sums.of(
            "queued",
            scene.filter_cache,
            (only, shape.mode, shape.objects),
            lambda shares: by_place(shares, only, shape.places),
            scene.ticks,
            scene.moved,
        )
