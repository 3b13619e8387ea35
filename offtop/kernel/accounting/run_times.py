"""How long threads ran, by the kernel's own account of all that each has run: what of it is new in a tick."""

from collections.abc import Set

from offtop.kernel.accounting.tick_records import Ran
from offtop.kernel.bpf import layout
from offtop.kernel.bpf.layout import ThreadRecord
from offtop.model.values.catalog import ThreadKey
from offtop.units import NS_PER_S

_LATE_NS = NS_PER_S // 10
"""The kernel adds to a thread's running time while it runs only now and then: at its own ticks."""
_WALK_NS = NS_PER_S // 10
"""No walk lasts longer: who began in one is heard of in the next."""
_MOST_TICKS = 2
"""Who was not heard of in one tick is in the next."""
_ENDED = -1


class Runs:
    def __init__(self, at_ns: int) -> None:
        """Nothing is known before `at_ns`."""
        self._began_ns = at_ns
        self._last: dict[ThreadKey, tuple[int, int | None]] = {}
        """When each began, and how long it has run in all, as last told; _ENDED: it has ended; None: since then it
        was not asked for."""

    def new_ns(self, ran: Ran, record: ThreadRecord | None, before_ns: int, at_ns: int) -> int:
        """What a thread has run since it was last told of, in a tick from `before_ns` to `at_ns`; 0, too, where that
        is not known. `record`: what it did in the tick."""
        start_ns, was_ns = self._last.get(ran.key, (-1, None))
        if start_ns > ran.start_ns:  # of who had its id before nothing is known any more
            return 0
        if start_ns != ran.start_ns:  # one that began earlier had not been asked for
            was_ns = 0 if ran.start_ns > max(self._began_ns, before_ns - _WALK_NS) else None
        elif was_ns == _ENDED:  # one that called exec took over its main thread's id: what it ran was told of another
            was_ns = None
        exec_ns = ran.exec_ns
        if ran.at_ns:  # since then it has run, but for what it was off CPU
            # Its first wait, as a new thread, was over before it ran at all; a record may come to have it later.
            first_ns = record.first_off_ns if record and record.first_kind & layout.KIND_NEW else 0
            exec_ns += at_ns - ran.at_ns - (_off_ns(record, at_ns) - max(ran.off_ns, first_ns))
        ran_ns = 0 if was_ns is None else exec_ns - was_ns
        if was_ns is not None and -_LATE_NS < ran_ns <= 0:
            ran_ns = 0  # of one on a CPU a little too much was told: the rest is less
            exec_ns = was_ns
        self._last[ran.key] = ran.start_ns, _ENDED if ran.ended else exec_ns
        # What cannot be is another thread's account, or was not asked for until now.
        return ran_ns if 0 < ran_ns <= _MOST_TICKS * (at_ns - before_ns) + _LATE_NS else 0

    def is_last(self, ran: Ran) -> bool:
        """Whether of its id nobody was told of who began later."""
        return self._last[ran.key][0] == ran.start_ns

    def asked_only(self, keys: Set[ThreadKey]) -> None:
        """What others have run until they are told of again is not known: nobody asked for them."""
        for key in self._last.keys() - keys:
            self._last[key] = self._last[key][0], None

    def forget(self, key: ThreadKey) -> None:
        self._last.pop(key, None)


def _off_ns(record: ThreadRecord | None, at_ns: int) -> int:
    """What a record has of off-CPU time by the end of the tick."""
    if record is None:
        return 0
    return record.offcpu_ns + (max(0, at_ns - record.left_ns) if record.left_ns else 0)
