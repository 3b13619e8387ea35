"""Paths: stacks as the tree shows them, from a program's start to the waker.

The contents depend on the mode. In off-CPU mode it is the sleeper's stack, in wakeup mode the waker's stack and the
woken process. In off-wake mode it is both: the sleeper's stack, then the waker's in reverse, so that they meet in the
middle. In chain mode the waker's own last wait follows, what ended that, and so on.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from offtop.model.aggregate.row_names import process_name
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import ENDS, NO_STACK, Frame, Names, Stack, functions
from offtop.model.values.table import Ints
from offtop.model.values.wake import CHAIN, CHAIN_ENDS, NOBODY, OFFCPU, STILL_WAITING, WAKEUP, WHOLE, Wake, Waker


class Step(NamedTuple):
    """One function of a path."""

    name: str
    """Raw: escape it before it is shown."""
    kernel: bool
    is_waker: bool = False
    """It names the waker and is no function."""
    is_object: bool = False
    """It names the object waited on and is no function."""


Path = tuple[Step, ...]
NO_THING = Step("(unknown object)", False, is_object=True)
NO_FRAMES = Step("(no frames)", False)
"""Stands for a stack of which the shape leaves nothing."""
STILL = Step("(still waiting)", False)
"""Stands for the user stack of a wait in progress, which is read when the wait ends."""
GUESSED = Step("~", False)
"""Marks a stack whose callers were found by frame pointers or guesses, not by unwind information."""
WOKEN_BY = Step("-- woken by --", False)
"""Separates where a thread waits from what ended the wait; from here on, callers follow their callees."""
LAST_WAIT = Step("-- its last wait --", False)
"""Separates a waker from its own last wait."""
TURNS = frozenset({WOKEN_BY, LAST_WAIT})
_MARKS = frozenset({NO_FRAMES, STILL, GUESSED, WOKEN_BY, LAST_WAIT})
WOKE = "-> "
"""Prefix of the step that names the woken process."""
_MOST_CACHED = 20_000
"""Cached stacks; each is about 1 KB."""
_REASONS = tuple(f"({means}: " for means in ENDS.values())


class Shape(NamedTuple):
    """What the tree contains of a stack, and which end is its root."""

    inverted: bool = False
    """Begin with the leaf: which callers wait in this function?"""
    frames: str = "both"
    """`both`, `kernel` or `user`."""
    machinery: bool = False
    """Include the frames of the scheduler, of waking and of the kernel's entry."""
    mode: str = OFFCPU
    """Whose stacks: one of wake.MODES."""
    objects: bool = False
    """Begin each path with the object waited on."""

    def places(self, ids: Ints) -> Ints:
        """Call `places` for this shape."""
        return places(ids, self.mode, self.objects)


class NamelessCounts(NamedTuple):
    """How many user functions a path has."""

    functions: int = 0
    nameless: int = 0
    in_no_file: int = 0
    """Of the nameless ones, those compiled at run time."""


def begins_line(step: Step) -> bool:
    """Return whether the step has a line of its own in the tree, or comes first."""
    return step in TURNS or step.is_object or step.name.startswith(WOKE)


def woken_name(step: Step) -> str:
    """Return the name of the woken process if the step has one, or an empty string."""
    return "" if step.kernel or not step.name.startswith(WOKE) else step.name.removeprefix(WOKE)


def is_function(step: Step) -> bool:
    """Return whether the step is a user function."""
    return (
        not step.kernel
        and not step.is_waker
        and not step.is_object
        and step not in _MARKS
        and not step.name.startswith((*_REASONS, WOKE, "("))
    )


def places(ids: Ints, mode: str, objects: bool = False) -> Ints:
    """Return what the paths of sites' ids are made of: kernel stack, user stack and wake.

    The shape is (n, 3). In off-CPU mode the wake is only needed for `objects`. In wakeup mode it is the pid of the
    woken process, 0 and the wake.
    """
    none = np.zeros(len(ids), np.int64)
    if mode == OFFCPU and not objects:
        return np.stack((ids[:, 2], ids[:, 3], none), axis=1)
    if mode == WAKEUP:
        return np.stack((ids[:, 0], none, ids[:, 4]), axis=1)
    return ids[:, 2:5]


def steps_of(catalog: Catalog, names: Names, shape: Shape) -> Callable[[tuple[int, ...]], Path]:
    """Return a cached function from place to path.

    A path goes from the outermost function to the kernel's leaf, or is inverted. The path is empty if the shape leaves
    nothing.
    """
    return Steps(catalog, names, shape).of


def passes(place_steps: Path, path: Path) -> bool:
    """Return whether a stack with these steps goes through the branch of `path`.

    None does if that ends in MORE.
    """
    return (place_steps or (NO_FRAMES,))[: len(path)] == path


class Steps:
    """Maps places to paths, as steps_of does, and caches the names."""

    def __init__(self, catalog: Catalog, names: Names, shape: Shape) -> None:
        self._catalog, self._names, self._shape = catalog, names, shape
        self._steps: dict[bool, dict[Frame, Path]] = {True: {}, False: {}}
        self._cached_paths: dict[tuple[int, bool], Path] = {}
        self._stacks_with: dict[Frame, set[tuple[int, bool]]] = {}
        """Frame → the halves that it is in."""
        self._wake_paths: dict[int, Path] = {}
        self._place_paths: dict[tuple[int, ...], Path] = {}
        """Not in wakeup mode, where a path ends in a process's name, which may change at any time."""
        self._counts: dict[tuple[int, ...], NamelessCounts] = {}
        self._places_with: dict[tuple[int, bool], set[tuple[int, ...]]] = {}
        """Half of a stack → the places in `_place_paths` that it is in."""
        self._version = names.version
        self._of_place = {OFFCPU: self.sleeper, WAKEUP: self.wakeup}.get(shape.mode, self.both)
        """Outermost function first."""

    def of(self, place: tuple[int, ...]) -> Path:
        path = self._place_paths.get(place)
        if path is None:
            path = self._path(place)
            if self._shape.mode != WAKEUP:
                self._place_paths[place] = path
                for half in (place[0], True), (place[1], False):
                    self._places_with.setdefault(half, set()).add(place)
        return path

    def nameless(self, place: tuple[int, ...]) -> NamelessCounts:
        """Return how many functions the place's path has, and how many of them have no name."""
        counts = self._counts.get(place)
        if counts is None:
            functions = [step.name for step in self.of(place) if is_function(step)]
            lacking = [name for name in functions if name.startswith("[") or "+0x" in name]
            in_no_file = sum(name.startswith("[anon") for name in lacking)
            counts = self._counts[place] = NamelessCounts(len(functions), len(lacking), in_no_file)
        return counts

    def _path(self, place: tuple[int, ...]) -> Path:
        path = self._of_place(place)
        path = path[::-1] if self._shape.inverted else path
        return (self._object(place[2]), *path) if self._shape.objects else path

    def _object(self, wake_id: int) -> Step:
        found = self._catalog.wake(wake_id).object
        return Step(found.label, False, is_object=True) if found.kind else NO_THING

    def sleeper(self, place: tuple[int, ...]) -> Path:
        kernel_id, user_id, _ = place
        user = self._stack_path(user_id, False)
        if user_id == NO_STACK and self._shape.frames == "both" and kernel_id != NO_STACK:
            is_lacking = self._catalog.has_programs and not _is_of_kernel(self._catalog.stack(kernel_id))
            user = (STILL,) if is_lacking else ()
        return (self._stack_path(kernel_id, True) + user)[::-1]

    def around(self, middle: Step, kernel_id: int, user_id: int) -> Path:
        """Return the path of a system call or a request: the program's functions, `middle`, and the kernel's."""
        path = (*self._stack_path(user_id, False)[::-1], middle, *self._stack_path(kernel_id, True)[::-1])
        return path[::-1] if self._shape.inverted else path

    def wakeup(self, place: tuple[int, ...]) -> Path:
        pid, _, wake_id = place
        waker = self._catalog.wake(wake_id).waker
        woken = Step(f"{WOKE}{process_name(pid, self._catalog) or '?'}", False)
        return (_label(waker), *self._of_waker(waker)[::-1], woken)

    def both(self, place: tuple[int, ...]) -> Path:
        own, wake_id = self.sleeper(place), place[2]
        if STILL in own and self._catalog.wake(wake_id).waker == STILL_WAITING:  # once is enough
            return own
        after = self._wake_paths.get(wake_id)
        if after is None:
            after = self._wake_paths[wake_id] = self._wake_path(self._catalog.wake(wake_id))
        return own + after

    def _wake_path(self, wake: Wake) -> Path:
        """Return the path from the waker's leaf on."""
        if wake.waker.kind == NOBODY:
            return (_label(wake.waker),)
        path = [WOKEN_BY, *self._of_waker(wake.waker), _label(wake.waker)]
        if self._shape.mode != CHAIN:
            return tuple(path)
        for link in wake.links:
            path += [LAST_WAIT, *self.sleeper((link.kernel, link.user, 0))]
            path += [WOKEN_BY, *self._of_waker(link.waker), _label(link.waker)]
        if wake.end != WHOLE:
            path.append(Step(f"({CHAIN_ENDS[wake.end]})", False))
        return tuple(path)

    def _of_waker(self, waker: Waker) -> Path:
        """Leaf first."""
        return self._stack_path(waker.kernel, True) + self._stack_path(waker.user, False)

    def _stack_path(self, stack_id: int, kernel: bool) -> Path:
        """Leaf first."""
        if self._shape.frames == ("user" if kernel else "kernel"):
            return ()
        known = self._cached_paths.get((stack_id, kernel))
        if known is None:
            stack, named = self._catalog.stack(stack_id), self._steps[kernel]
            path: list[Step] = []
            for frame in stack.frames if self._shape.machinery else stack.displayed:
                found = named.get(frame)
                if found is None:
                    found = named[frame] = self._named(frame, kernel)
                self._stacks_with.setdefault(frame, set()).add((stack_id, kernel))
                path += found
            if not kernel and path:
                path += _end_marks(stack)
            known = self._cached_paths[stack_id, kernel] = tuple(path)
        return known

    def _named(self, frame: Frame, kernel: bool) -> Path:
        return tuple(Step(name, kernel) for name in functions(self._names.of(frame)))

    def refresh_names(self) -> None:
        """Drop what has another name by now."""
        if self._names.version == self._version and len(self._cached_paths) < _MOST_CACHED:
            return
        self._version = self._names.version
        self._wake_paths.clear()
        for known in (self._place_paths, self._counts):
            for place in [place for place in known if place[2]]:
                del known[place]
        if len(self._cached_paths) >= _MOST_CACHED:
            for known in (*self._steps.values(), self._cached_paths, self._stacks_with, self._places_with):
                known.clear()
            self._place_paths.clear()
            self._counts.clear()
        for kernel, named in self._steps.items():
            for frame in [frame for frame, path in named.items() if self._named(frame, kernel) != path]:
                del named[frame]
                for half in self._stacks_with.pop(frame, ()):
                    self._cached_paths.pop(half, None)
                    for place in self._places_with.pop(half, ()):
                        self._place_paths.pop(place, None)
                        self._counts.pop(place, None)


def _label(waker: Waker) -> Step:
    return Step(waker.label, False, True)


def _end_marks(stack: Stack) -> tuple[Step, ...]:
    """Return what stands for callers that are missing or uncertain."""
    if stack.missing:
        return (Step(f"({stack.missing})", False),)
    return (GUESSED,) if stack.is_guessed else ()


def _is_of_kernel(stack: Stack) -> bool:
    """Return whether it began in the kernel: a kernel thread's, or a lost one."""
    outermost = stack.frames[-1].name if stack.frames else ""
    return outermost.startswith(("ret_from_fork", "kthread", "["))
