"""What ended waits: wakers, chains of wakers, and wakers of many threads at once."""

from typing import Annotated

from msgspec import Struct

from offtop.model.values.wake import CHAIN_ENDS, KINDS, SOFTIRQ
from offtop.reports.objects.shared_fields import Count, Frames, about, meaning, one_of


class Waker(Struct, frozen=True, kw_only=True):
    """What ended a wait."""

    kind: Annotated[str, meaning(KINDS)]
    """What ended the wait."""
    name: str
    """Handler of an interrupt, function of a softirq or timer, or why the waker is unknown; otherwise empty."""
    pid: Count
    """0: the waker is not a thread."""
    tid: Count
    """0: the waker is not a thread."""
    comm: str
    """The thread's name at that time; empty: the waker is not a thread."""
    via: Annotated[str, one_of("", SOFTIRQ)]
    """softirq: a softirq that ran within the thread's system call did the wakeup."""
    kernel: Frames
    """Kernel stack of the wakeup, leaf first; for an interrupt only the interrupt's own frames."""
    user: Frames


_NO_WAKER = "wakers are not recorded, or the wait goes on, or it was for a CPU only"
WakerOrNull = Annotated[Waker | None, about(f"What ended these waits; null: {_NO_WAKER}.")]
Chain = Annotated[
    list[Frames] | None,
    about(
        "In mode chain: the waker's most recent wait, that of the thread which ended it, and so on; kernel and "
        f"program functions, leaf first; null: another mode, or {_NO_WAKER}."
    ),
]
ChainWakers = Annotated[list[Waker] | None, about("What ended each of these waits; null: as for chain.")]
ChainEnd = Annotated[str | None, meaning(CHAIN_ENDS, null="as for chain")]


class Storm(Struct, frozen=True, kw_only=True):
    """A waker that woke many threads at once."""

    waker: Waker
    storms: Count
    """Storms that began in this tick."""
    woken: Count
    """Threads woken in all storms."""
    again: Count
    """Woken threads that switched out again within a millisecond."""
    largest: Count
    """Threads woken in the largest storm."""
    wasted_switches: Count
    """2 * again."""
