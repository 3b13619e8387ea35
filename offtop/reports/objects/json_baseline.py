"""The baseline, how a tick differs from it, and what only the baseline has."""

from typing import Annotated

from msgspec import Struct, UnsetType

from offtop.model.classify.suspect import KINDS as SUSPECT_KINDS
from offtop.reports.objects.json_header import Sampling
from offtop.reports.objects.shared_fields import Count, Ns, about, meaning


class Change(Struct, frozen=True, kw_only=True):
    """The same category, thread or site in the baseline, whatever its pid was, and how it differs."""

    waiting: float
    """Average waiting threads in the baseline; 0: it is new."""
    change: float
    """Average waiting threads in this tick, minus the baseline."""
    spread: float | None
    """Difference between the smallest and the largest average of a tick of this length in the baseline; null: the
    baseline is too short to tell."""
    p99_ns: Count
    """Upper bound of the 99th percentile in the baseline; 0: no wait ended."""
    new: bool
    """It is not in the baseline."""
    sure: bool
    """The change is larger than the spread."""


IoChangeIfCompared = Annotated[
    Change | UnsetType,
    about("Only with --baseline, if it has such rows. waiting, change, spread: how many are in progress, on average."),
]
ChangeIfCompared = Annotated[
    Change | UnsetType | None, about("Only with --baseline; null: there is nothing to compare.")
]


class GoneCategory(Struct, frozen=True, kw_only=True):
    """A category that only the baseline has."""

    name: str
    waiting: float
    """Average waiting threads in the baseline."""


class GoneThread(Struct, frozen=True, kw_only=True):
    """Threads of one name that only the baseline has."""

    process: str
    comm: str
    waiting: float
    """Average waiting threads in the baseline."""


class GoneIo(Struct, frozen=True, kw_only=True):
    """A file operation or a request to a disk that only the baseline has, by names."""

    process: str
    """In mode disk, the name of the thread, or in brackets what a kernel worker did."""
    what: str
    """The operation, and the file or disk."""
    waiting: float
    """How many were in progress in the baseline, on average."""


class GoneSuspect(Struct, frozen=True, kw_only=True):
    """A suspect that only the baseline has, by names."""

    kind: Annotated[str, meaning(SUSPECT_KINDS)]
    waiters: str
    """Program of those who waited."""
    category: str
    """Of their wait."""
    end: str
    """Program that had to act."""
    what: str | None
    """Name of what that held; null: none, or unknown."""
    waiting: float
    """Average threads that waited for it in the baseline."""


class SuspectChange(Struct, frozen=True, kw_only=True):
    """The same suspect in the baseline, by names, whatever its PIDs were. All with these names count as one."""

    waiting: float
    """Average threads that waited for it; 0: it is new."""
    change: float
    """Threads that wait for it in this tick, minus that."""
    new: bool
    since_ns: int
    """CLOCK_REALTIME of the first tick since which it has been a suspect."""


class Baseline(Struct, frozen=True, kw_only=True):
    """The baseline, and what is no longer there."""

    file: str
    """Only with --baseline: the file's name."""
    taken_ns: int
    """CLOCK_REALTIME of the baseline's end."""
    span_ns: Ns
    sampling: Sampling | None
    """null: every wait was seen."""
    gone_categories: list[GoneCategory]
    """Categories of the baseline without time in this tick, most waiting first."""
    gone_threads: list[GoneThread]
    """The same for threads; threads of one name count as one."""
    gone_suspects: list[GoneSuspect]
    """Suspects of the baseline that no thread waits for in this tick."""
