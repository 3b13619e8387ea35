"""A View is what the person chose to look at; each key makes the next one from it."""

from dataclasses import dataclass, replace

from offtop.model.book import ThreadKey
from offtop.model.cut import ALL, Scope
from offtop.model.rows import SORTS, Key
from offtop.model.snapshot import Filters
from offtop.units import NS_PER_S

SINCE_START = 0
SPANS_NS = (NS_PER_S, 10 * NS_PER_S, 60 * NS_PER_S, SINCE_START)
"""What the numbers are over; `w` steps through them."""
SHORTEST_DELAY_NS, LONGEST_DELAY_NS = NS_PER_S // 10, 60 * NS_PER_S


@dataclass(frozen=True, slots=True)
class View:
    filters: Filters = Filters()  # frozen, as all values are
    """What the kernel was asked to count, but for narrowing to the pin."""
    delay_ns: int = NS_PER_S
    mode: str = "offcpu"
    span_ns: int = 10 * NS_PER_S
    """One of SPANS_NS."""
    category: str = ALL
    """The one under the cursor of the categories: the list below is about it."""
    pid: int | None = None
    """Drilled into."""
    thread: ThreadKey | None = None
    """Drilled into."""
    in_list: bool = False
    """Whether the keys move in the list, not in the categories."""
    cursor: Key | None = None
    """The row of the list that the keys are on; None: the first."""
    threads: bool = False
    """Whether the list shows threads even where no process was drilled into."""
    sort: str = "WAITING"
    """One of rows.SORTS."""
    reverse: bool = False
    idle_shown: bool = False
    pin: int | ThreadKey | None = None
    """A pid or a thread that stays on top."""
    narrowed: bool = False
    """Whether the kernel counts only the pin."""
    paused_at_ns: int | None = None
    """CLOCK_MONOTONIC of the last tick that is shown; None while live."""

    @property
    def scope(self) -> Scope:
        """Which waits the list is about."""
        if self.thread is not None:
            return Scope(self.category, self.thread.pid, self.thread.tid, self.idle_shown)
        return Scope(self.category, self.pid, None, self.idle_shown)

    @property
    def lists_threads(self) -> bool:
        return self.threads or self.pid is not None

    @property
    def asked(self) -> Filters:
        """What the kernel is to count."""
        if not self.narrowed or self.pin is None:
            return self.filters
        if isinstance(self.pin, ThreadKey):
            return replace(self.filters, tids=(self.pin.tid,))
        return replace(self.filters, pids=(self.pin,))


def at_category(view: View, category: str) -> View:
    """The cursor of the categories moved."""
    return replace(view, category=category, cursor=None) if category != view.category else view


def at_row(view: View, key: Key) -> View:
    """The cursor of the list moved."""
    return replace(view, cursor=key)


def entered(view: View, key: Key | None) -> View:
    """One level down, at the list's row `key`: from the categories to the list, to a process, to a thread."""
    if not view.in_list:
        return replace(view, in_list=True)
    if isinstance(key, ThreadKey):
        return replace(view, thread=key, cursor=key)
    if isinstance(key, int) and view.pid is None:
        return replace(view, pid=key, cursor=None)
    return view


def left(view: View) -> View:
    """One level up; the cursor stands where it stood. At the top nothing changes."""
    if view.thread is not None:
        return replace(view, thread=None, cursor=view.thread)
    if view.pid is not None:
        return replace(view, pid=None, cursor=ThreadKey(view.pid, view.pid) if view.threads else view.pid)
    if view.in_list:
        return replace(view, in_list=False)
    return at_category(view, ALL)


def other_pane(view: View) -> View:
    return replace(view, in_list=not view.in_list)


def threads_or_processes(view: View) -> View:
    return replace(view, threads=not view.lists_threads, pid=None, thread=None, cursor=None)


def next_span(view: View) -> View:
    return replace(view, span_ns=SPANS_NS[(SPANS_NS.index(view.span_ns) + 1) % len(SPANS_NS)])


def sorted_by(view: View, sort: str) -> View:
    """Sorted by `sort`, largest first (names and pids upward), and back at the first row."""
    return replace(view, sort=sort, reverse=False, cursor=None)


def next_sort(view: View, step: int) -> View:
    return sorted_by(view, SORTS[(SORTS.index(view.sort) + step) % len(SORTS)])


def reversed_order(view: View) -> View:
    return replace(view, reverse=not view.reverse)


def idle_or_not(view: View) -> View:
    return replace(view, idle_shown=not view.idle_shown)


def pinned(view: View, key: int | ThreadKey) -> View:
    """`key` pinned; what is pinned already is let go, and what the kernel counts is widened again."""
    return replace(view, pin=None if view.pin == key else key, narrowed=False)


def narrowed_or_widened(view: View) -> View:
    """The kernel counts only the pin, or everything again."""
    return replace(view, narrowed=not view.narrowed and view.pin is not None)


def paused(view: View, at_ns: int) -> View:
    """The picture of `at_ns` stays; from a paused view, live again."""
    return replace(view, paused_at_ns=at_ns if view.paused_at_ns is None else None)


def with_delay(view: View, delay_ns: int) -> View:
    """Raises ValueError outside 0.1 to 60 s."""
    if not SHORTEST_DELAY_NS <= delay_ns <= LONGEST_DELAY_NS:
        raise ValueError(delay_ns)
    return replace(view, delay_ns=delay_ns)


def with_minimum(view: View, min_ns: int) -> View:
    return replace(view, filters=replace(view.filters, min_ns=min_ns))
