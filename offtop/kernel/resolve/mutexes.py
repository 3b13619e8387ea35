"""Finds the threads that own the glibc mutexes that other threads wait for.

A mutex contains the tid of its owner (`__owner`, struct __pthread_mutex_s), which offtop reads from the process's
memory. The process can write anything there. So the owner is accepted only if the waiter is in pthread_mutex_lock() or
a similar function, the mutex is locked and has waiters, a second read finds the same, and the owner is a living thread
of that process. The waiter itself may be the owner, if it has got the mutex meanwhile: blockers.py handles that. If
processes share a mutex, each writes its tid in its own pid namespace; in the waiter's, that tid can be another thread.
So that owner is only likely, and in a container none is reported. The kernel knows the owner of a mutex with priority
inheritance: its word is the owner's tid.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.thread_ids import is_in_namespace, tid_of
from offtop.kernel.resolve.blocked import AWAITED, FUTEX, OPERATION, PI_WAITS, WAITERS, WAITS, Blocked, Found
from offtop.model.values.blockers import MUTEX, Blocker
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.stack import NO_STACK, Names, functions

_MUTEX = struct.Struct("=IIiII")
"""Word, count, owner, number of users, kind: the same on x86-64 and arm64 (sysdeps/nptl/bits/struct_mutex.h)."""
_OWNER_DIED, _TID = 1 << 30, (1 << 30) - 1
"""Like WAITERS, bits of the word of robust mutexes and of those with priority inheritance (FUTEX_*,
include/uapi/linux/futex.h)."""
_MOST_KINDS = 1 << 10
_SHARED = 1 << 7
"""Bit in the kind of a mutex that processes can share, which all robust ones have (PTHREAD_MUTEX_PSHARED_BIT,
nptl/pthreadP.h)."""
_LOCKING = frozenset(
    f"{prefix}pthread_mutex_{name}"
    for prefix in ("", "__", "___")
    for name in ("lock", "timedlock", "clocklock", "lock_full", "cond_lock")
)
_DEEPEST = 4
"""Maximum number of frames below pthread_mutex_lock(), which calls __lll_lock_wait(), which waits."""
_OTHERS = ("pthread_cond", "__pthread_cond", "sem_", "__new_sem", "pthread_rwlock", "__pthread_rwlock")
"""Functions that wait for a futex of another kind, without an owner."""
_MOST_MUTEXES = 64


class _Mutex(NamedTuple):
    word: int
    owner: int
    """Tid in the process's own pid namespace; 0 if this is no locked mutex with waiters."""
    is_shared: bool = False
    """Whether processes can share it."""


class Mutexes:
    """Finds the owners of mutexes. For one thread."""

    def __init__(self, reads: Channel, catalog: Catalog, names: Names) -> None:
        self._reads, self._catalog, self._names = reads, catalog, names
        self.unread = 0
        """How many mutexes were not read, because too many had waiters at once."""

    def find(self, waits: Sequence[Blocked]) -> dict[ThreadKey, Found]:
        """Return the owner of the mutex that each of these threads waits for, if it is known."""
        mutexes: dict[tuple[int, int, bool], list[Blocked]] = {}
        unknown: list[Blocked] = []
        for one in waits:
            if one.call == FUTEX and (is_pi := self._is_pi(one)) is not None:
                mutexes.setdefault((one.key.pid, one.arguments[0], is_pi), []).append(one)
            elif one.call == FUTEX and one.user == NO_STACK and _may_be_mutex(one):
                unknown.append(one)
        for one in unknown:  # its stack has not been read, but it waits where others wait for a mutex
            if others := mutexes.get((one.key.pid, one.arguments[0], False)):
                others.append(one)
        found: dict[ThreadKey, Found] = {}
        for (_, address, is_pi), waiters in [*mutexes.items()][:_MOST_MUTEXES]:
            with suppress(OSError):  # TimeoutError is one
                if owner := self._owner(waiters[0].key, address, _pi_mutex if is_pi else _mutex):
                    found |= {one.key: Found(one.switched_out_ns, (owner,)) for one in waiters}
        self.unread += max(0, len(mutexes) - _MOST_MUTEXES)
        return found

    def _is_pi(self, wait: Blocked) -> bool | None:
        """Return whether the mutex that a thread waits for has priority inheritance; None if it waits for no mutex."""
        if wait.arguments[1] & OPERATION in PI_WAITS:
            return True
        return False if _may_be_mutex(wait) and self._locks_mutex(wait.user) else None

    def _locks_mutex(self, user: int) -> bool:
        if user == NO_STACK:
            return False
        for frame in self._catalog.stack(user).frames[:_DEEPEST]:
            for name in map(_plain, functions(self._names.of(frame))):
                if name in _LOCKING or name.startswith(_OTHERS):
                    return name in _LOCKING
        return False

    def _owner(self, key: ThreadKey, address: int, parse: Callable[[bytes], _Mutex]) -> Blocker | None:
        """Return the owner; None if it is unknown. Raises OSError."""
        before = self._read(key, address, parse)
        if before.is_shared and is_in_namespace(self._reads, key):
            return None
        tid = tid_of(self._reads, key, before.owner)
        is_owner = tid and self._read(key, address, parse) == before
        return Blocker(key.pid, tid, MUTEX, not before.is_shared) if is_owner else None

    def _read(self, key: ThreadKey, address: int, parse: Callable[[bytes], _Mutex]) -> _Mutex:
        path = f"/proc/{key.pid}/task/{key.tid}/mem"
        raw = self._reads.ask(key.pid, "piece", path, _MUTEX.size, address)
        return parse(raw)


def _may_be_mutex(wait: Blocked) -> bool:
    """Return whether a wait for a futex has the arguments of one for a mutex."""
    operation, value = wait.arguments[1] & OPERATION, wait.arguments[2] & 0xFFFFFFFF
    return operation in WAITS and bool(value == AWAITED or value & WAITERS)


def _plain(name: str) -> str:
    """Return a function's name without version and ` (inlined)`."""
    return name.partition("@")[0].partition(" ")[0]


def _mutex(raw: bytes) -> _Mutex:
    if len(raw) < _MUTEX.size:
        return _Mutex(0, 0)
    word, _, owner, users, kind = _MUTEX.unpack(raw)
    is_robust = word & (WAITERS | _OWNER_DIED) == WAITERS and word & _TID == owner
    is_locked = (word == AWAITED or is_robust) and users > 0 and kind < _MOST_KINDS
    return _Mutex(word, owner if is_locked and owner > 0 else 0, kind & _SHARED != 0)


def _pi_mutex(raw: bytes) -> _Mutex:
    """Read the owner in the word, the only part that is the same in every futex with priority inheritance."""
    word = int.from_bytes(raw[:4], "little")
    return _Mutex(word, word & _TID if word & (WAITERS | _OWNER_DIED) == WAITERS else 0)
