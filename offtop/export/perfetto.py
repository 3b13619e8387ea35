"""The ui.perfetto.dev format: single waits on a timeline, one track per thread, an arrow from the waker.

Source: https://github.com/google/perfetto/tree/main/protos/perfetto/trace (trace_packet.proto,
track_event/track_event.proto and what they import).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from offtop.export.protobuf import fixed, message, number, text
from offtop.model.aggregate import location
from offtop.model.values.outlier import Outlier
from offtop.model.values.stack import Names
from offtop.model.values.wake import THREAD
from offtop.printable import printable

_PACKET = 1
_CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _CLOCK, _TRACK = 6, 8, 10, 11, 58, 60
"""Field numbers of TracePacket."""
_REALTIME, _MONOTONIC = 1, 3
_BEGIN, _END, _INSTANT = 1, 2, 3
_ARGUMENT, _TYPE, _ON, _CATEGORY, _NAME, _FLOW, _FLOW_ENDS = 4, 9, 11, 22, 23, 47, 48
"""Field numbers of TrackEvent."""
_NUMBER, _TEXT, _CALLED, _ONE_OF = 3, 6, 10, 12
"""Field numbers of DebugAnnotation."""
_OURS = 1
"""Id of the only packet sequence."""


class TraceThread(NamedTuple):
    """A thread. Names are untrusted and unescaped."""

    pid: int
    tid: int
    comm: str
    process: str = ""
    """Empty if unknown."""


class OutlierWait(NamedTuple):
    thread: TraceThread
    category: str
    start_ns: int
    """CLOCK_MONOTONIC."""
    end_ns: int = 0
    """When the thread was switched in; 0: still in progress."""
    runqueue_ns: int = 0
    """Run-queue time, at the end of the wait."""
    kernel: Sequence[str] = ()
    """Functions, leaf first."""
    user: Sequence[str] = ()
    waker: TraceThread | None = None
    """None if not a thread, or unknown."""


def waits_of(outliers: Iterable[Outlier], names: Names) -> Iterator[OutlierWait]:
    """Return the outliers that are single waits."""
    for one in outliers:
        if one.wait is None:
            continue
        site, catalog = one.wait.site, one.catalog
        waker = catalog.wake(site.wake).waker
        by = TraceThread(waker.pid, waker.tid, waker.comm, waker.name) if waker.kind == THREAD and waker.tid else None
        yield OutlierWait(
            TraceThread(site.pid, site.tid, one.comm, one.program),
            one.category,
            one.wait.began_ns,
            one.wait.ended_ns,
            one.wait.runqueue_ns,
            location.kernel_names(catalog, site.kernel, names),
            location.user_names(catalog, site.user, names),
            by,
        )


def packed(waits: Iterable[OutlierWait], at_ns: int, taken_ns: int) -> bytes:
    """Encode a trace.

    `at_ns` and `taken_ns`: one moment on CLOCK_MONOTONIC and on CLOCK_REALTIME, so that the time of day is shown.
    """
    some = sorted(waits, key=lambda one: (one.start_ns, one.thread))
    threads = {thread.tid: thread for one in some for thread in (one.waker, one.thread) if thread}
    clocks = [message(1, number(1, clock), number(2, ns)) for clock, ns in ((_MONOTONIC, at_ns), (_REALTIME, taken_ns))]
    head = message(_CLOCKS, *clocks, number(2, _MONOTONIC))
    packets = [head, *_tracks(threads.values())]
    for flow, one in enumerate(some, 1):
        packets += _wait(one, flow)
    return b"".join(message(_PACKET, one, number(_SEQUENCE, _OURS)) for one in packets)


def _tracks(threads: Iterable[TraceThread]) -> Iterator[bytes]:
    processes: dict[int, str] = {}
    for thread in threads:
        processes[thread.pid] = processes.get(thread.pid) or printable(thread.process)
    for pid, name in processes.items():
        process = message(3, number(1, pid), *([text(6, name)] if name else []))
        yield message(_TRACK, number(1, _track(pid)), process)
    for thread in threads:
        about = message(4, number(1, thread.pid), number(2, thread.tid), text(5, printable(thread.comm)))
        yield message(_TRACK, number(1, _track(thread.pid, thread.tid)), number(5, _track(thread.pid)), about)


def _track(pid: int, tid: int = 0) -> int:
    return pid << 32 | tid


def _wait(one: OutlierWait, flow: int) -> Iterator[bytes]:
    """Encode a slice, its run-queue part as a nested slice, and the end of the waker's arrow."""
    runs_ns = one.end_ns - one.runqueue_ns
    waker = f"{one.waker.comm}({one.waker.tid})" if one.waker else ""
    labels = (("process", one.thread.process), ("woken by", waker))
    arguments = [
        *(message(_ARGUMENT, text(_CALLED, name), text(_TEXT, printable(label))) for name, label in labels if label),
        *([message(_ARGUMENT, text(_CALLED, "run queue ns"), number(_NUMBER, one.runqueue_ns))] if one.end_ns else ()),
        *(_functions(name, stack) for name, stack in (("kernel", one.kernel), ("user", one.user)) if stack),
    ]
    yield _event(one.start_ns, _BEGIN, one.thread, one.category, *arguments)
    if not one.end_ns:
        return
    if one.runqueue_ns:
        yield _event(runs_ns, _BEGIN, one.thread, "run queue")
        yield _event(one.end_ns, _END, one.thread)
    yield _event(one.end_ns, _END, one.thread)
    if one.waker:
        yield _event(runs_ns, _INSTANT, one.waker, f"wakes {one.thread.comm}({one.thread.tid})", fixed(_FLOW, flow))
        yield _event(one.end_ns, _INSTANT, one.thread, "runs again", fixed(_FLOW_ENDS, flow))


def _event(at_ns: int, kind: int, thread: TraceThread, name: str = "", *more: bytes) -> bytes:
    named = [text(_NAME, printable(name)), text(_CATEGORY, "wait")] if name else []
    event = message(_EVENT, number(_TYPE, kind), number(_ON, _track(thread.pid, thread.tid)), *named, *more)
    return number(_TIMESTAMP, at_ns) + number(_CLOCK, _MONOTONIC) + event


def _functions(name: str, stack: Sequence[str]) -> bytes:
    every = (message(_ONE_OF, text(_TEXT, printable(one))) for one in stack)
    return message(_ARGUMENT, text(_CALLED, name), *every)
