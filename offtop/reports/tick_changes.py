"""Compare a tick with a baseline, for its JSON object."""

from collections.abc import Hashable, Mapping, Sequence

from msgspec import UNSET, UnsetType

from offtop.model.aggregate.baseline_rows import Change, Compared
from offtop.model.aggregate.filter import NOTHING
from offtop.model.classify.suspect import Found, Suspect, gone
from offtop.model.values import histogram as log2
from offtop.model.values.catalog import SiteKey, ThreadKey
from offtop.model.values.snapshot import (
    SiteTotals,
)
from offtop.model.values.stack import Names
from offtop.model.viewmodel.comparison import Comparison
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import (
    NO_PART,
    PartTuple,
    Scope,
    by_category,
    by_thread,
)
from offtop.printable import printable
from offtop.reports.header_objects import sampling_object
from offtop.reports.io_changes import change_object
from offtop.reports.objects import json_baseline
from offtop.reports.suspect_objects import suspect_names
from offtop.reports.tick import Tick, now_of
from offtop.units import average


class Changes:
    """Compares a tick with a baseline."""

    def __init__(
        self,
        tick: Tick,
        those: Sequence[tuple[SiteKey, SiteTotals]],
        names: Names,
        comparison: Comparison,
        suspects: Found,
    ) -> None:
        comparison.select(View(idle_shown=True, filter=tick.filter), NOTHING, now_of(tick))
        self._span_ns = tick.unfiltered.span_ns
        self._categories = by_category(tick.breakdown, filtered_shown=False)
        self._threads: Mapping[tuple[int, ...], PartTuple] = by_thread(tick.shares, Scope())
        self._sites = {key: (t.waits, t.total_ns, t.max_ns, t.histogram) for key, t in those}
        self._of_categories = comparison.categories()(self._categories)
        self._of_threads = comparison.threads()(self._threads)
        self._of_sites = comparison.sites(names)(self._sites)
        baseline = comparison.baseline
        self.baseline = json_baseline.Baseline(
            file=printable(baseline.file),
            taken_ns=baseline.taken_ns,
            span_ns=baseline.span_ns,
            sampling=sampling_object(baseline.sampling, baseline.span_ns),
            gone_categories=[
                json_baseline.GoneCategory(name=key.name, waiting=round(before.waiting, 6))
                for key, before in self._of_categories.gone
            ],
            gone_threads=[
                json_baseline.GoneThread(
                    process=printable(key.process), comm=printable(key.name), waiting=round(before.waiting, 6)
                )
                for key, before in self._of_threads.gone
            ],
            gone_suspects=[
                json_baseline.GoneSuspect(**suspect_names(name), waiting=round(waiting, 6))
                for name, waiting in gone(suspects, baseline.suspects or {})
            ],
        )
        self._found, self._suspects = suspects, baseline.suspects

    def suspect(self, one: Suspect) -> json_baseline.SuspectChange | UnsetType:
        if self._suspects is None:
            return UNSET
        before = self._suspects.get(one.name, 0.0)
        change = self._found.waiting_like(one) - before
        return json_baseline.SuspectChange(
            waiting=round(before, 6), change=round(change, 6), new=not before, since_ns=one.since_ns
        )

    def category(self, name: str) -> json_baseline.Change | None:
        return self._change(self._of_categories, name, self._categories.get(name, NO_PART))

    def thread(self, key: ThreadKey) -> json_baseline.Change | None:
        return self._change(self._of_threads, key, self._threads.get(key, NO_PART))

    def site(self, key: SiteKey) -> json_baseline.Change | None:
        return self._change(self._of_sites, key, self._sites[key])

    def _change(self, compared: Compared, key: Hashable, part: PartTuple) -> json_baseline.Change | None:
        before = compared.before.get(key)
        if before is None:
            return None
        _, total_ns, max_ns, histogram = part
        p99_ns = log2.percentile_ns(histogram, 99, max_ns)
        return change_object(Change(average(total_ns, self._span_ns), p99_ns, self._span_ns, before))
