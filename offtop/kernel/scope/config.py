"""What the BPF programs record: filters, mode, thresholds, and which processes are offtop's own."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from offtop.errors import UsageError
from offtop.kernel.bpf import layout, pid_namespace
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.procfs import cgroup_selector, syscalls
from offtop.kernel.procfs.cgroup_selector import Cgroup
from offtop.kernel.symbols.kallsyms import HiddenSymbols, KernelSymbols
from offtop.model.classify import wakers
from offtop.model.values.outlier import NEVER_NS
from offtop.model.values.snapshot import Filters

_ALL_ONES = (1 << 64) - 1
_ZERO = bytes(4)
_SIGNED_BITS = 0xFFFF << 48 if platform.machine() == "aarch64" else 0
"""Bits of a kernel return address that arm64 may have signed (CONFIG_ARM64_PTR_AUTH_KERNEL). Unsigned they are all
ones."""
_FILE_CALLS = (
    "read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 recvfrom recvmsg recvmmsg sendto sendmsg "
    "sendmmsg accept accept4 connect flock fsync fdatasync sync_file_range syncfs ioctl fcntl vmsplice "
    "fallocate ftruncate getdents64 lseek"
)
_OBJECT_OF_CALL = {
    **dict.fromkeys(_FILE_CALLS.split(), layout.OBJECT_FILE),
    **dict.fromkeys(("epoll_wait", "epoll_pwait", "epoll_pwait2"), layout.OBJECT_EPOLL),
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6", "restart_syscall"), layout.OBJECT_POLL),
    "futex": layout.OBJECT_FUTEX,
    "futex_wait": layout.OBJECT_FUTEX_WAIT,
    "wait4": layout.OBJECT_CHILD,
    "waitid": layout.OBJECT_ID,
    "io_uring_enter": layout.OBJECT_RING,
}
"""System call → how its arguments name what it waits on.

Calls with two descriptors (splice, tee, sendfile, copy_file_range) are left out, because they may wait on either.
restart_syscall continues an interrupted poll.
"""


class Settings(NamedTuple):
    """Settings of the BPF programs."""

    filters: Filters = Filters()
    helper_pids: tuple[int, int, int] = (0, 0, 0)
    """offtop's child processes, which are not counted."""
    depth: int = 0
    """Number of wakers to record."""
    lowest_threshold_ns: int = NEVER_NS
    min_ns: int = 0
    """The minimum in effect, which the CPU budget may have raised above that of the filters."""
    stacks_ns: int = _ALL_ONES
    """Time that a CPU may spend on stacks per second."""


class Change(NamedTuple):
    """What a change of settings requires of the next tick."""

    thread_filter: bool = False
    """The thread filter has changed."""
    must_prime: bool = False
    """Waits in progress must be scanned again, because they lack data that is recorded from now on."""


class BpfConfig:
    """The maps of the BPF programs that hold their configuration. For the polling thread, except find_cgroup."""

    def __init__(self, maps: Mapping[str, Map], features: Features, symbols: KernelSymbols | HiddenSymbols) -> None:
        self.settings = Settings()
        """What is in effect."""
        self._maps, self._features = maps, features
        self._cgroups: dict[str, Cgroup] = {}
        """The requested cgroups by their names in Filters."""
        self._counted_cgroup: Cgroup | None = None
        self._filter_version, self._filter_changed_ns = 0, time.monotonic_ns()
        """Number and time of the last change of the thread filter."""
        interrupts = symbols.ranges(wakers.INTERRUPTS, wakers.is_interrupt)
        returns = symbols.ranges(wakers.RETURNS, wakers.is_return)
        begin, end = (symbols.address_of(f"__sched_text_{name}") or 0 for name in ("start", "end"))
        self._symbol_ranges = [
            *chain.from_iterable([*interrupts, *[(0, 0)] * layout.INTERRUPTS][: layout.INTERRUPTS]),
            *chain.from_iterable([*returns, *[(0, 0)] * layout.RETURNS][: layout.RETURNS]),
            *(begin, max(0, end - begin), _SIGNED_BITS),
        ]
        for name, kind in _OBJECT_OF_CALL.items():
            number = syscalls.number_of(name)
            if 0 <= number < layout.CALLS:
                maps["calls"].update(number.to_bytes(4, "little"), kind.to_bytes(4, "little"))

    def find_cgroup(self, cgroup: str) -> None:
        """Find a cgroup by its name in Filters. Raises UsageError if it does not exist."""
        if cgroup:
            self._cgroups[cgroup] = find_cgroup(cgroup, self._features)

    def apply(self, settings: Settings) -> Change:
        """Apply new settings; return what that requires of the next tick."""
        before, filters, old = self.settings, settings.filters, self.settings.filters
        is_replaced = self._is_cgroup_replaced(filters.cgroup)
        if settings == before and not is_replaced:
            return Change()
        thread_filter = is_replaced or _thread_filters(filters) != _thread_filters(old)
        if thread_filter:
            self._filter_version += 1
            self._filter_changed_ns = time.monotonic_ns()
        self.write(settings)
        # A wait that was filtered out has no stack yet, and one without wakers no waker.
        waits_changed = (filters.states, filters.max_ns) != (old.states, old.max_ns)
        return Change(thread_filter, thread_filter or waits_changed or bool(settings.depth) != bool(before.depth))

    def write(self, settings: Settings) -> None:
        """Write the settings.

        New ids are added before old ones are deleted, so that no wait is missed in between.
        """
        maps, filters, before = self._maps, settings.filters, self.settings.filters
        ids = (("only_pids", filters.pids, before.pids), ("only_tids", filters.tids, before.tids))
        for name, wanted, _ in ids:
            for one in wanted:
                maps[name].update(one.to_bytes(4, "little"), b"\1\0\0\0")
        select = {"user": layout.ONLY_USER, "kernel": layout.ONLY_KERNEL}.get(filters.who, 0)
        select |= (layout.ONLY_PIDS if filters.pids else 0) | (layout.ONLY_TIDS if filters.tids else 0)
        cgroup = self._counted_cgroup = self._cgroups.get(filters.cgroup)
        of_cgroup = (0, 0, 0)
        if cgroup:
            select |= layout.ONLY_CGROUP | (layout.CGROUP_V1 if cgroup.hierarchy else 0)
            of_cgroup = cgroup.id, cgroup.level, self._features.hierarchies[cgroup.hierarchy]
            if not cgroup.hierarchy:
                self._write_cgroup(cgroup)
        maps["config"].update(
            _ZERO,
            layout.CONFIG.pack(
                *(
                    max(settings.min_ns, filters.min_ns),
                    filters.max_ns or _ALL_ONES,
                    filters.states or 0xFFFFFFFF,
                    select,
                ),
                *(os.getpid(), *settings.helper_pids),
                *(self._filter_version & 0xFFFFFFFF, settings.depth, *of_cgroup),
                *(_ALL_ONES if settings.depth else 0, settings.lowest_threshold_ns, self._filter_changed_ns),
                *(filters.min_ns, settings.stacks_ns),
                *self._symbol_ranges,
            ),
        )
        for name, wanted, old in ids:
            for one in set(old).difference(wanted):
                maps[name].delete(one.to_bytes(4, "little"))
        self.settings = settings

    def _write_cgroup(self, cgroup: Cgroup) -> None:
        only = self._maps["only_cgroup"]
        try:
            with cgroup.opened() as fd:
                only.update(_ZERO, fd.to_bytes(4, "little"))
        except OSError:  # it has just been removed, so it is empty
            only.delete(_ZERO)

    def _is_cgroup_replaced(self, cgroup: str) -> bool:
        """Return whether another cgroup has this name now: a restarted service gets a new one."""
        found = self._cgroups.get(cgroup)
        if found is None:
            return False
        self._cgroups[cgroup] = found.current()
        return self._cgroups[cgroup] != self._counted_cgroup


def find_cgroup(cgroup: str, features: Features) -> Cgroup:
    """Find a cgroup. Raises UsageError if it does not exist, or this kernel cannot tell whose threads are in it."""
    found = cgroup_selector.find(cgroup)
    if found.hierarchy not in features.hierarchies:
        raise UsageError("--cgroup: this kernel's types do not say how to find a thread's cgroup. Use -p instead")
    return found


def check_alive(pids: Sequence[int], tids: Sequence[int]) -> None:
    """Raise UsageError for a process or thread that does not exist."""
    for pid in pids:
        if not pid_namespace.exists(pid):
            raise UsageError(f"No process {pid}. Look it up with: pgrep NAME")
    for tid in tids:
        if not Path(f"/proc/{tid}").exists():
            raise UsageError(f"No thread {tid}. List a process's threads with: ps -L -p PID")


def is_any_alive(filters: Filters) -> bool:
    """Return whether a process or thread of -p and -t still exists; True without these options."""
    ids = (*filters.pids, *filters.tids)
    return not ids or any(map(pid_namespace.exists, ids))


def _thread_filters(filters: Filters) -> tuple[Sequence[int], Sequence[int], str, str]:
    return filters.pids, filters.tids, filters.who, filters.cgroup
