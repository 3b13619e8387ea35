"""A path is a stack as the tree has it: the functions that led from where a program began to where it waits, and on
to who ended the wait.

What it holds depends on the mode. Of off-CPU time, the sleeper's stack. Of wakeups, the waker's, and whom it woke. Of
both (off-wake), the sleeper's stack, and from where that ends the waker's the other way round, so that the two meet in
the middle; in a chain, the waker's own last wait follows, who ended that, and so on.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from offtop.model.book import Book
from offtop.model.rows import process_name
from offtop.model.stack import ENDS, NO_STACK, Frame, Names, Stack, functions
from offtop.model.table import Ints
from offtop.model.wake import CHAIN, CHAIN_ENDS, NOBODY, OFFCPU, STILL_WAITING, WAKEUP, WHOLE, Wake, Waker


class Step(NamedTuple):
    """One function of a path."""

    name: str
    """Raw: escape it before it is shown."""
    kernel: bool
    is_waker: bool = False
    """It says who woke, and is no function."""
    is_object: bool = False
    """It says what was waited on, and is no function."""


Path = tuple[Step, ...]
NO_THING = Step("(not known on what)", False, is_object=True)
NO_FRAMES = Step("(no frames)", False)
"""Stands for a stack of which the shape leaves nothing."""
STILL = Step("(still waiting)", False)
"""Stands for the program's part of a wait in progress, which only its end tells."""
GUESSED = Step("~", False)
"""Stands before a stack of which no binary says that its callers are these: frame pointers do, or what looks so."""
WOKEN_BY = Step("-- woken by --", False)
"""Stands between where somebody waits and who ended that; from here on, callers follow those whom they called."""
WHO_WAITED = Step("-- who had waited --", False)
"""Stands between a waker and its own last wait."""
TURNS = frozenset({WOKEN_BY, WHO_WAITED})
_MARKS = frozenset({NO_FRAMES, STILL, GUESSED, WOKEN_BY, WHO_WAITED})
WOKE = "-> "
"""What the name of a step begins with that says whose process was woken."""
_MOST_HALVES = 20_000
"""Stacks that are remembered; each is some 1 KB."""
_REASONS = tuple(f"({means}: " for means in ENDS.values())


class Shape(NamedTuple):
    """What of a stack is in the tree, and which end is its root."""

    inverted: bool = False
    """The leaf first: who waits in this function?"""
    frames: str = "both"
    """`both`, `kernel` or `user`."""
    machinery: bool = False
    """Whether the scheduler's tail, that of waking and the kernel's entry are in it."""
    mode: str = OFFCPU
    """Whose stacks there are: one of wake.MODES."""
    objects: bool = False
    """Whether what was waited on stands before each path."""

    def places(self, ids: Ints) -> Ints:
        """As the function of that name."""
        return places(ids, self.mode, self.objects)


def begins_line(step: Step) -> bool:
    """Whether it stands on a line of its own in the tree, or before all others."""
    return step in TURNS or step.is_object or step.name.startswith(WOKE)


def woken_name(step: Step) -> str:
    """The name of who was woken, where the step stands for that; else nothing."""
    return "" if step.kernel or not step.name.startswith(WOKE) else step.name.removeprefix(WOKE)


def is_function(step: Step) -> bool:
    """Whether it stands for one of a program's functions, and for nothing else."""
    return (
        not step.kernel
        and not step.is_waker
        and not step.is_object
        and step not in _MARKS
        and not step.name.startswith((*_REASONS, WOKE, "("))
    )


def places(ids: Ints, mode: str, objects: bool = False) -> Ints:
    """(n, 3): of sites' ids, what their paths are made of: kernel stack, user stack and wake (off CPU alone needs it
    for `objects`); of wakeups the pid of who was woken, 0 and the wake."""
    none = np.zeros(len(ids), np.int64)
    if mode == OFFCPU and not objects:
        return np.stack((ids[:, 2], ids[:, 3], none), axis=1)
    if mode == WAKEUP:
        return np.stack((ids[:, 0], none, ids[:, 4]), axis=1)
    return ids[:, 2:5]


def steps_of(book: Book, names: Names, shape: Shape) -> Callable[[tuple[int, ...]], Path]:
    """Place → its path: from the program's outermost to the kernel's leaf and on, or the other way round. Empty where
    the shape leaves none. It remembers what it has named."""
    return Steps(book, names, shape).of


def passes(place_steps: Path, path: Path) -> bool:
    """Whether a stack with these steps goes through the branch of `path`; through one that ends in MORE, none does."""
    return (place_steps or (NO_FRAMES,))[: len(path)] == path


class Steps:
    """Place → its path, as steps_of has it; kept, it names most of the next ones without looking."""

    def __init__(self, book: Book, names: Names, shape: Shape) -> None:
        self._book, self._names, self._shape = book, names, shape
        self._steps: dict[bool, dict[Frame, Path]] = {True: {}, False: {}}
        self._halves: dict[tuple[int, bool], Path] = {}
        self._through: dict[Frame, set[tuple[int, bool]]] = {}
        """Which halves each frame is in."""
        self._after: dict[int, Path] = {}
        self._version = names.version
        self._of_place = {OFFCPU: self.sleeper, WAKEUP: self.wakeup}.get(shape.mode, self.both)
        """The outermost function first."""

    def of(self, place: tuple[int, ...]) -> Path:
        path = self._of_place(place)
        path = path[::-1] if self._shape.inverted else path
        return (self._object(place[2]), *path) if self._shape.objects else path

    def _object(self, wake_id: int) -> Step:
        found = self._book.wake(wake_id).object
        return Step(found.label, False, is_object=True) if found.kind else NO_THING

    def sleeper(self, place: tuple[int, ...]) -> Path:
        kernel_id, user_id, _ = place
        user = self._half(user_id, False)
        if user_id == NO_STACK and self._shape.frames == "both" and kernel_id != NO_STACK:
            is_lacking = self._book.has_programs and not _is_of_kernel(self._book.stack(kernel_id))
            user = (STILL,) if is_lacking else ()
        return (self._half(kernel_id, True) + user)[::-1]

    def wakeup(self, place: tuple[int, ...]) -> Path:
        pid, _, wake_id = place
        waker = self._book.wake(wake_id).waker
        woken = Step(f"{WOKE}{process_name(pid, self._book) or '?'}", False)
        return (_label(waker), *self._of_waker(waker)[::-1], woken)

    def both(self, place: tuple[int, ...]) -> Path:
        own, wake_id = self.sleeper(place), place[2]
        if STILL in own and self._book.wake(wake_id).waker == STILL_WAITING:  # once is enough
            return own
        after = self._after.get(wake_id)
        if after is None:
            after = self._after[wake_id] = self._woken(self._book.wake(wake_id))
        return own + after

    def _woken(self, wake: Wake) -> Path:
        """From the waker's leaf on."""
        if wake.waker.kind == NOBODY:
            return (_label(wake.waker),)
        path = [WOKEN_BY, *self._of_waker(wake.waker), _label(wake.waker)]
        if self._shape.mode != CHAIN:
            return tuple(path)
        for link in wake.links:
            path += [WHO_WAITED, *self.sleeper((link.kernel, link.user, 0))]
            path += [WOKEN_BY, *self._of_waker(link.waker), _label(link.waker)]
        if wake.end != WHOLE:
            path.append(Step(f"({CHAIN_ENDS[wake.end]})", False))
        return tuple(path)

    def _of_waker(self, waker: Waker) -> Path:
        """The leaf first."""
        return self._half(waker.kernel, True) + self._half(waker.user, False)

    def _half(self, stack_id: int, kernel: bool) -> Path:
        """The leaf first."""
        if self._shape.frames == ("user" if kernel else "kernel"):
            return ()
        known = self._halves.get((stack_id, kernel))
        if known is None:
            stack, named = self._book.stack(stack_id), self._steps[kernel]
            path: list[Step] = []
            for frame in stack.frames if self._shape.machinery else stack.told:
                found = named.get(frame)
                if found is None:
                    found = named[frame] = self._named(frame, kernel)
                self._through.setdefault(frame, set()).add((stack_id, kernel))
                path += found
            if not kernel and path:
                path += _before(stack)
            known = self._halves[stack_id, kernel] = tuple(path)
        return known

    def _named(self, frame: Frame, kernel: bool) -> Path:
        return tuple(Step(name, kernel) for name in functions(self._names.of(frame)))

    def look_again(self) -> None:
        """Forget what has another name by now."""
        if self._names.version == self._version and len(self._halves) < _MOST_HALVES:
            return
        self._version = self._names.version
        self._after.clear()
        if len(self._halves) >= _MOST_HALVES:
            for known in (*self._steps.values(), self._halves, self._through):
                known.clear()
        for kernel, named in self._steps.items():
            for frame in [frame for frame, path in named.items() if self._named(frame, kernel) != path]:
                del named[frame]
                for half in self._through.pop(frame, ()):
                    self._halves.pop(half, None)


def _label(waker: Waker) -> Step:
    return Step(waker.label, False, True)


def _before(stack: Stack) -> tuple[Step, ...]:
    """What stands for callers that are not known, or not for sure."""
    if stack.missing:
        return (Step(f"({stack.missing})", False),)
    return (GUESSED,) if stack.is_guessed else ()


def _is_of_kernel(stack: Stack) -> bool:
    """Whether it began in the kernel: a kernel thread's, or one that was lost."""
    outermost = stack.frames[-1].name if stack.frames else ""
    return outermost.startswith(("ret_from_fork", "kthread", "["))
