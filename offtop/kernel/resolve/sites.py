"""Resolves raw site keys, of pid, tid, stacks and wake, to those of the catalog."""

import numpy as np
from numpy.typing import NDArray

from offtop.kernel.bpf import layout
from offtop.kernel.resolve.quotas import ProcessQuotas
from offtop.kernel.resolve.stacks import Stacks
from offtop.kernel.resolve.wakes import Wakes
from offtop.kernel.symbols.kallsyms import HIDDEN
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.table import Ints, Mask, distinct, distinct_codes
from offtop.model.values.waits import KERNEL, WAKE

FOR_SOMETHING_ELSE = frozenset({"stopped", "page-fault", "swap", "reclaim", "throttle", "kernel-lock", "run-queue"})
"""Categories of waits that any system call may run into, whatever it waits for otherwise."""


class Sites:
    """Sites by raw key."""

    def __init__(self, stacks: Stacks, wakes: Wakes, catalog: Catalog, quotas: ProcessQuotas) -> None:
        self._stacks, self._wakes, self._catalog, self._quotas = stacks, wakes, catalog, quotas

    def site(self, pid: int, tid: int, kernel: int, user: int, wake: int) -> SiteKey:
        site = self._stacks.site(pid, tid, kernel, user)
        if (ready := self._stacks.ready(site.kernel)) != site.kernel and not self._quotas.has_quota(pid):
            site = site._replace(kernel=ready)
        return self._with_wake(site, wake) if wake else site

    def every(self, raw: NDArray[np.uint64]) -> Ints:
        """Resolve many raw keys at once: rows of pid, tid, kernel stack, user stack and wake."""
        sites = self._stacks.sites(raw)
        sites[:, KERNEL] = self.with_quotas(sites[:, 0], sites[:, KERNEL])
        at = np.flatnonzero(raw[:, WAKE])
        if not len(at):
            return sites
        wakes, of_wakes = np.unique(raw[at, WAKE], return_inverse=True)
        # What a thread waits on depends on its process only; who woke it may be part of a loop that it closes.
        is_of_process = (raw[at, WAKE] < layout.FIRST_ID) | (raw[at, WAKE] >= layout.OBJECT_ID_BIT)
        rows = np.empty((len(at), 4), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 3] = of_wakes, sites[at, 0], self.are_on_object(sites[at, KERNEL])
        rows[:, 2] = np.where(is_of_process, sites[at, 0], sites[at, 1])
        kinds, which = distinct(rows)
        found = [self._wakes.id_of(int(wakes[one]), pid, tid, bool(is_on)) for one, pid, tid, is_on in kinds.tolist()]
        sites[at, WAKE] = np.array(found, np.int64)[which]
        sites[at, KERNEL] = self.with_connects(sites[at, KERNEL], sites[at, WAKE])
        return sites

    def with_quotas(self, pids: Ints, kernels: Ints) -> Ints:
        """Return the kernel stacks of waits; one for a CPU quota has that of one for a CPU if its process has none."""
        of_throttled = [one for one in distinct_codes(kernels).tolist() if self._stacks.ready(one) != one]
        at = np.flatnonzero(np.isin(kernels, of_throttled))
        at = at[[not self._quotas.has_quota(pid) for pid in pids[at].tolist()]]
        found = kernels.copy()
        found[at] = [self._stacks.ready(one) for one in kernels[at].tolist()]
        return found

    def with_connects(self, kernels: Ints, wakes: Ints) -> Ints:
        """Return the kernel stacks of waits; a poll of a socket that is being connected has that of a connect."""
        if not self._wakes.connecting:
            return kernels
        is_connecting, found = np.isin(wakes, [*self._wakes.connecting]), kernels.copy()
        found[is_connecting] = [self._stacks.connecting(one) for one in kernels[is_connecting].tolist()]
        return found

    def are_on_object(self, kernels: Ints) -> Mask:
        """Return which waits at these stacks (catalog ids) are on what their system call names."""
        distinct_ones, which = np.unique(kernels, return_inverse=True)
        return np.array([self.is_on_object(one) for one in distinct_ones.tolist()], np.bool_)[which]

    def is_on_object(self, kernel: int) -> bool:
        """Return whether a wait at this stack (catalog id) is on what its system call names."""
        stack = self._catalog.stack(kernel)
        return stack.category not in FOR_SOMETHING_ELSE and HIDDEN not in stack.frames[:1]

    def _with_wake(self, site: SiteKey, raw: int) -> SiteKey:
        pid, tid, kernel, user, _ = site
        wake = self._wakes.id_of(raw, pid, tid, self.is_on_object(kernel))
        kernel = self._stacks.connecting(kernel) if wake in self._wakes.connecting else kernel
        return SiteKey(pid, tid, kernel, user, wake)
