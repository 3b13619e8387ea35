"""A stack is where a thread waited: frames, leaf first, with those counted off that say nothing of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from offtop.model.printable import printable

KERNEL = "[kernel]"
"""`Frame.file` of the core kernel; a module's frames carry its name, as `[ext4]`."""
GONE = "[gone]"
"""`Frame.file` of a user frame whose process ended before its mappings were read."""
CLOSED = "[not permitted]"
"""`Frame.file` of one whose process offtop may not look into: it is another user's, and CAP_SYS_PTRACE is missing."""
ANONYMOUS = "[anon]"
"""`Frame.file` of code without a file that no perf map names: a JIT's."""
JIT = "[jit]"
"""`Frame.file` of such code that a perf map names."""

SIGNAL = "(signal)"
"""`Frame.name` of the code that a signal's handler returns to: below it stands what was interrupted."""

NO_STACK = 0
"""Id of the empty stack: a kernel thread's user stack, or a wait in progress not walked yet."""
STACK_LOST = 1
"""Id of the stack that could not be kept: its time is here, its frames are not."""
SHORT = 2
"""Stands for the kernel stack of a wait below the minimum. Never a site of a Window."""
FILTERED = -1
"""Stands for the kernel stack of a wait that --state or --max leaves out. Never a site of a Window."""
PLACELESS = frozenset({SHORT, FILTERED})
QUEUED = -2
"""Stands for the kernel stack of time in the run queue, in tables by site: whatever it had waited for, it waits for a
CPU then. Never a site of a Window."""
FIRST_STACK = 3
"""Ids from here on are real stacks."""


WHOLE, LINKED, DEEP, NOT_COPIED, NOT_FOLLOWED, NOT_IN_MEMORY, ASTRAY, NO_WAY, ENDED = (
    *("whole", "frame-pointers", "too-deep", "not-copied", "not-followed", "not-in-memory", "astray", "no-unwind-info"),
    "process-ended",
)
NOT_PERMITTED = "not-permitted"
ENDS: Mapping[str, str] = {
    WHOLE: "whole: it ends where its thread began",
    LINKED: "along frame pointers, which nobody has checked",
    DEEP: "more than 127 frames",
    NOT_COPIED: "more of the stack is needed than was copied",
    NOT_FOLLOWED: "a register is needed that is not known",
    NOT_IN_MEMORY: "the stack is not in memory",
    ASTRAY: "what should be the caller is no code",
    NO_WAY: "no unwind information",
    ENDED: "the program had ended before it was read",
    NOT_PERMITTED: "offtop may not look into its process",
}
"""How a user stack may end, by what `Stack.end` and JSON call it."""


class Frame(NamedTuple):
    """One return address, in a form that means the same after the process is gone."""

    file: str
    """Path of the binary, or of a Python function's source; or a word in brackets: `[kernel]`, `[ext4]`, `[vdso]`,
    `[anon]`, `[python]`, `[gone]`, `[not permitted]`."""
    offset: int
    """User frames: byte offset in the file (an address where there is no file); Python's functions: the line where they
    begin. Kernel frames: 0."""
    name: str = ""
    """Symbol, where it is known at once (kernel, JIT, Python); else empty, and `Names.of` tells it later."""


class Stack(NamedTuple):
    """One half (kernel or user) of where a thread waited."""

    frames: tuple[Frame, ...]
    """Leaf first, the scheduler's tail included."""
    tail: int = 0
    """How many frames at the leaf are the scheduler's own (`__schedule`, `schedule`, …)."""
    category: str = "other"
    """Kernel stacks: id of the category whose rule matched."""
    entry: int = 0
    """How many frames at the root are only the kernel's own entry (`do_syscall_64`, `ret_from_fork`, …)."""
    end: str = WHOLE
    """User stacks: how it ends, one of ENDS."""
    is_unsure: bool = False
    """User stacks: some callers were found without the binary's word for it."""
    guessed_in: str = ""
    """User stacks: file of the innermost frame whose caller was found so; empty: not known."""

    @property
    def missing(self) -> str:
        """User stacks: why callers are missing, and behind which binary's frame; empty where none are."""
        if self.end in (WHOLE, LINKED, ENDED, NOT_PERMITTED) or not self.frames:
            return ""
        return f"{ENDS[self.end]}: {self.frames[-1].file.rpartition('/')[2]}"

    @property
    def is_guessed(self) -> bool:
        """User stacks: callers may be missing, or be others."""
        return self.is_unsure or self.end == LINKED

    @property
    def trimmed(self) -> tuple[Frame, ...]:
        """The frames without the scheduler's tail: what JSON, exports and rules see."""
        return self.frames[self.tail :]

    @property
    def told(self) -> tuple[Frame, ...]:
        """The frames without the scheduler's tail and the kernel's entry: what screens show."""
        return self.frames[self.tail : len(self.frames) - self.entry]


LOST = Stack((Frame(KERNEL, 0, "[stack lost]"),))
EMPTY = Stack(())
RESERVED: Mapping[int, Stack] = {NO_STACK: EMPTY, STACK_LOST: LOST}
"""The stacks that every Snapshot has."""


class Names(Protocol):
    """What a frame is called, as far as is known by now."""

    @property
    def version(self) -> int:
        """Another one whenever a frame is called otherwise than before."""
        ...

    def of(self, frame: Frame) -> str:
        """Symbol of `frame`, or `libfoo.so+0x1234` while (or because) it has none. Where the compiler put functions
        into others all of them, as `one_name` writes them; `functions` parts them again.

        Returns at once and never raises. The text is a stranger's: escape it before it is shown.
        """
        ...


INLINED = " (inlined)"
"""Marks a function that has no frame of its own, as in perf."""


def one_name(functions: Sequence[str]) -> str:
    """Of a frame with these functions, innermost first: `inner (inlined) < middle (inlined) < outer`."""
    return f"{INLINED} < ".join(functions)


def functions(name: str) -> list[str]:
    """Of a frame with that name, innermost first; all but the last are marked as inlined."""
    *inlined, holder = name.split(f"{INLINED} < ")
    return [*(f"{one}{INLINED}" for one in inlined), holder]


def nameless(frame: Frame) -> str:
    """`libfoo.so+0x1234`; of a frame that lies nowhere, its word in brackets."""
    file = printable(frame.file.rpartition("/")[2])
    return f"{file}+0x{frame.offset:x}" if frame.offset else file
