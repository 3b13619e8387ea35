"""Find the causes of a tick's waits, as ids of cause rules."""

from collections import Counter
from collections.abc import Mapping, Sequence

from offtop.model.classify.cause_finder import CauseFinder, with_pid, without_keys
from offtop.model.classify.causes import Rule
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.snapshot import (
    SiteTotals,
)
from offtop.model.values.stack import NO_STACK, QUEUED
from offtop.model.values.wake import NO_WAKE
from offtop.model.windows.breakdown import (
    RUN_QUEUE,
    THROTTLE,
    Leaf,
)
from offtop.reports.objects import json_breakdowns


class Causes:
    """The causes of a tick's waits, as ids of cause rules."""

    def __init__(
        self,
        those: Sequence[tuple[SiteKey, SiteTotals]],
        leaf_of: Mapping[SiteKey, Leaf],
        cause_finder: CauseFinder,
        catalog: Catalog,
        estimated: Mapping[tuple[int, ...], int],
    ) -> None:
        """`estimated`: see left_out.estimated_ns."""
        self._rules = {key: cause_finder.rule_of(key, catalog) for key, _ in those}
        self._ns: dict[str, Counter[str]] = {}
        self._of_threads: dict[ThreadKey, Counter[str]] = {}
        self.all: list[json_breakdowns.Cause] = []
        """Most time first."""
        whole: dict[Rule, Counter[int]] = {}  # by process
        for key, totals in those:
            (queued,) = cause_finder.rules_at([(QUEUED, NO_STACK, NO_WAKE, key.pid)], catalog)
            of_cpu_ns = 0 if leaf_of[key].category == THROTTLE else totals.runqueue_ns
            parts = (
                (self._rules[key], leaf_of[key].category, totals.total_ns - of_cpu_ns),
                (queued, RUN_QUEUE, of_cpu_ns),
            )
            for rule, category, ns in parts:
                if rule and (ns or category != RUN_QUEUE):
                    whole.setdefault(rule, Counter())[key.pid] += ns
                    self._ns.setdefault(category, Counter())[rule.id] += ns
                    self._of_threads.setdefault(key.thread, Counter())[rule.id] += ns
        more = Counter[Rule | None]()
        for rule, ns in zip(cause_finder.rules_at(estimated, catalog), estimated.values(), strict=True):
            more[rule] += ns
        for rule, of_pids in sorted(whole.items(), key=lambda item: -item[1].total()):
            ((most_pid, _),) = of_pids.most_common(1)
            self.all.append(
                json_breakdowns.Cause(
                    id=rule.id,
                    name=rule.name,
                    says=rule.says,
                    next=without_keys(with_pid(rule.next, most_pid)) or None,
                    idle=rule.idle,
                    total_ns=of_pids.total(),
                    estimated_ns=more[rule],
                )
            )

    def of_site(self, key: SiteKey) -> str | None:
        rule = self._rules[key]
        return rule.id if rule else None

    def of_thread(self, key: ThreadKey) -> str | None:
        return _most(self._of_threads.get(key))

    def of_category(self, name: str) -> str | None:
        return _most(self._ns.get(name))


def _most(of: Counter[str] | None) -> str | None:
    return of.most_common(1)[0][0] if of else None
