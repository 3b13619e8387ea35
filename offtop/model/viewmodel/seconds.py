"""Accounts for the screen: of the selection, the rows of the list, and the machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from offtop.model.aggregate.account import (
    NO_LEFT,
    Account,
    Accounts,
    Residue,
    accounts,
    blocked,
    explained,
    unexplained_pct,
)
from offtop.model.aggregate.budget import Budget, budget
from offtop.model.aggregate.filter_syntax import of_pool, of_program
from offtop.model.aggregate.pool import Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import cgroup_of
from offtop.model.aggregate.selection import FilterCache, Parts
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.catalog import Catalog
from offtop.model.values.snapshot import Filters, Machine
from offtop.model.viewmodel.scene import Scene, sums_of
from offtop.model.viewmodel.view import View
from offtop.model.windows.breakdown import Leaf
from offtop.model.windows.history import History, HistoryTick
from offtop.model.windows.window import machine_over


@dataclass(frozen=True, slots=True)
class AccountPicture:
    """Where the time of the selection went: a program, a process, a pool or a thread."""

    account: Account
    parts: Sequence[tuple[Leaf, int]]
    """Blocked and runnable ns of each leaf, longest first, without any filter or mute."""
    left: Residue
    """What explains the residue."""
    is_known: bool
    """Whether running time is known: old recordings have none."""
    budget: Budget | None
    """Of a process or pool."""

    @property
    def lines(self) -> int:
        """Lines on the screen: a bar, its figures, and the budget."""
        return 2 + len(self.budget.lines if self.budget else []) if self.is_known else 1


class Seconds:
    """Accounts of the spans on the screen; caches the last of each."""

    def __init__(self, history: History, cause_finder: CauseFinder) -> None:
        self._history, self._cause_finder = history, cause_finder
        self._known: dict[str, tuple[object, Accounts]] = {}
        self._unfiltered: FilterCache | None = None

    def of_all(self, ticks: Sequence[HistoryTick], what: str = "ticks", whole: bool = True) -> Accounts:
        key = (ticks[0].number, ticks[0].span_ns, ticks[-1].number, ticks[-1].at_ns)
        known = self._known.get(what)
        if known is None or known[0] != key:
            known = self._known[what] = key, accounts([tick.window for tick in ticks], whole)
        return known[1]

    def of_selection(self, scene: Scene) -> AccountPicture | None:
        """Return the account of the selection; None if nothing is selected."""
        view, ticks = scene.view, scene.ticks
        (pid, tid), program = view.subject_ids, view.program
        if pid is None and program is None:
            return None
        every, catalog = self.of_all(ticks), ticks[-1].header.catalog
        pool = view.pool if tid is None else None
        if pid is None and program is not None:
            account = _of_program(every, program, catalog).of(None)
        else:
            account = _of_pool(every, pool, catalog) if pool else every.of(pid, tid)
        machine, filters = machine_over([tick.header for tick in ticks]), ticks[-1].header.filters
        left = explained(account.residue_ns, every.of(None).residue_ns, machine) if _is_all(filters) else NO_LEFT
        times = blocked(self._all_of_selection(scene))
        idle_ns = sum(ns for leaf, ns in times if leaf.idle)
        is_known = machine.cpus > 0 or ticks[-1].header.sampling is not None
        is_checked = is_known and tid is None
        check = budget(account, idle_ns, every.span_ns, view.rate_of(pid)) if is_checked and pid is not None else None
        return AccountPicture(account, times, left, is_known, check)

    def _all_of_selection(self, scene: Scene) -> Parts:
        """Return the time of the selected program, process or thread by leaf, without filters and mutes."""
        view, of_view = scene.view, scene.filter_cache.selection
        own = (of_pool(view.pool),) if view.pool else (of_program(view.program),) if view.program else ()
        selection = of_view._replace(filters=own, muted=(), path=())
        if selection == of_view:
            return scene.chosen
        if self._unfiltered is None or self._unfiltered.selection != selection:
            self._unfiltered = FilterCache(selection, self._cause_finder)
        self._unfiltered.forget(self._history.oldest, scene.ticks[0])
        return sums_of(self._unfiltered.chosen(tick) for tick in scene.added)

    def of_list(self, view: View, ticks: Sequence[HistoryTick]) -> Accounts | None:
        """Return the accounts of what the list may contain, if it shows them."""
        if not view.lists_account:
            return None
        every, catalog = self.of_all(ticks), ticks[-1].header.catalog
        pid, group, pool = view.scope.pid, view.group, view.pool
        if pool is not None:
            return every.only(lambda key: pool.holds(key, catalog))
        if pid is not None:
            return every.of_process(pid)
        if view.program is not None:
            every = _of_program(every, view.program, catalog)
        return every if group is None else every.only(lambda key: cgroup_of(key.pid, catalog) == group[0])

    def unexplained_pct(self, newest: HistoryTick) -> float:
        """Return the CPU time of a tick that neither threads nor interrupts nor steal account for.

        It is 0 if that is unknown.
        """
        machine: Machine = newest.header.machine
        if not machine.cpus or not _is_all(newest.header.filters):
            return 0.0
        return unexplained_pct(self.of_all([newest], "newest", whole=False), machine)


def _of_program(every: Accounts, program: Program, catalog: Catalog) -> Accounts:
    return every.of_processes(lambda pid: program.holds(pid, catalog))


def _of_pool(every: Accounts, pool: Pool, catalog: Catalog) -> Account:
    return every.only(lambda key: pool.holds(key, catalog)).of(None)


def _is_all(filters: Filters) -> bool:
    """Return whether every thread is counted.

    If not, the steal of the counted ones is unknown.
    """
    return not (filters.pids or filters.tids or filters.cgroup or filters.who != "all")
