"""The threads of a baseline that a selected process, program, pool or thread is compared with.

They are looked up by pid if pids of the baseline are still valid, otherwise by name.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import NamedTuple, TypeVar

from offtop.model.aggregate.pool import Pool, family
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import process_name
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.snapshot import Filters, Sampling
from offtop.model.viewmodel.baseline_names import thread_names
from offtop.model.windows.baseline import Baseline

K = TypeVar("K", bound=Hashable)


class Now(NamedTuple):
    """What is compared with the baseline."""

    span_ns: int
    catalog: Catalog
    threads: Collection[ThreadKey]
    """All threads that exist."""
    pids: Collection[int]
    """Processes with time in the list."""
    filters: Filters = Filters()
    """What is counted."""
    sampling: Sampling | None = None
    """None: every wait is recorded."""

    @property
    def every_pid(self) -> Collection[int]:
        return {key.pid for key in self.threads}


class Matching(NamedTuple):
    """The threads of the baseline that the selection is compared with."""

    threads: frozenset[ThreadKey] | None = None
    """None: all threads."""
    share: float = 1.0
    """Fraction of their time, if several threads of now share it."""


class Counterparts:
    """Finds the counterparts of a selection in one baseline."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline, self._catalog = baseline, baseline.catalog
        self._are_pids_valid = not baseline.file

    def of_process(self, pid: int, now: Now) -> Matching:
        was = {key.pid: process_name(key.pid, self._catalog) for key in self._baseline.threads}
        pids, share = self._counterparts(pid, was, lambda one: process_name(one, now.catalog), now.pids, now.every_pid)
        return Matching(frozenset(key for key in self._baseline.threads if key.pid in pids), share)

    def of_program(self, program: Program) -> Matching:
        those = (key for key in self._baseline.threads if program.holds(key.pid, self._catalog))
        return Matching(frozenset(those))

    def of_pool(self, pool: Pool, now: Now) -> Matching:
        threads, share = self.of_process(pool.pid, now)
        those = (key for key in threads or () if family(self._catalog.comm(key)) == pool.family)
        return Matching(frozenset(those), share)

    def of_thread(self, thread: ThreadKey, now: Now) -> Matching:
        name_of = thread_names(self._catalog)
        was = {key: name_of(key) for key in self._baseline.threads}
        keys, share = self._counterparts(thread, was, thread_names(now.catalog), now.threads, now.threads)
        return Matching(frozenset(keys), share)

    def _counterparts(
        self,
        key: K,
        was: Mapping[K, Hashable],
        name_of: Callable[[K], Hashable],
        listed: Collection[K],
        there: Collection[K],
    ) -> tuple[set[K], float]:
        """Return which keys of the baseline `key` is compared with, and their share.

        The rules are those of BaselineTable.compared.
        """
        name = name_of(key)
        if self._are_pids_valid and was.get(key) == name:
            return {key}, 1.0
        sharing = [
            one for one in listed if name_of(one) == name and not (self._are_pids_valid and was.get(one) == name)
        ]
        left = {one for one, of in was.items() if of == name and not (self._are_pids_valid and one in there)}
        return left, 1 / max(1, len(sharing))
