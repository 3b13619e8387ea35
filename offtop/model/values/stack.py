"""Stack: the frames of a wait, leaf first.

The frames of the scheduler and of the entry code are counted apart.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from offtop.printable import printable

KERNEL = "[kernel]"
"""`Frame.file` of the core kernel; frames of a module have its name, as `[ext4]`."""
GONE = "[gone]"
"""`Frame.file` of a user frame whose process exited before its mappings were read."""
CLOSED = "[not permitted]"
"""`Frame.file` if the process belongs to another user and CAP_SYS_PTRACE is missing."""
UNREAD = "[not read]"
"""`Frame.file` if the mappings of the process were not read in time, because its mmap_lock is held."""
DROPPED = "[dropped]"
"""`Frame.file` of the only frame of a user stack that was used longest ago when there were too many."""
ANONYMOUS = "[anon]"
"""`Frame.file` of code without a file that no perf map names: JIT code."""
JIT = "[jit]"
"""`Frame.file` of such code that a perf map names."""

MISPLACED_PYTHON = "[misplaced]"
"""`Stack.guessed_in` if C functions may be between the wrong Python functions, which are in order."""

SIGNAL = "(signal)"
"""`Frame.name` of the code that a signal handler returns to; the frames below it were interrupted."""

NO_STACK = 0
"""Id of the empty stack: the user stack of a kernel thread, or of a wait in progress that is not unwound yet."""
STACK_LOST = 1
"""Id for stacks that could not be stored: their time is counted, their frames are lost."""
SHORT = 2
"""Stands for the kernel stack of a wait below the minimum. Never a site of a Window."""
FILTERED = -1
"""Stands for the kernel stack of a wait excluded by --state or --max. Never a site of a Window."""
PLACELESS = frozenset({SHORT, FILTERED})
QUEUED = -2
"""Stands for the kernel stack of run-queue time, in tables by site: the thread now waits for a CPU, whatever it waited
for before. Never a site of a Window."""
FIRST_STACK = 3
"""Ids from here on are real stacks."""


WHOLE, LINKED, DEEP, NOT_COPIED, NOT_FOLLOWED, NOT_IN_MEMORY, BAD_PC, NO_WAY, ENDED = (
    *("whole", "frame-pointers", "too-deep", "not-copied", "not-followed", "not-in-memory", "astray", "no-unwind-info"),
    "process-ended",
)
NOT_PERMITTED, NOT_READ, NOT_KEPT = "not-permitted", "not-read", "not-kept"
ENDS: Mapping[str, str] = {
    WHOLE: "whole: ends where the thread began",
    LINKED: "frame pointers, not checked",
    DEEP: "more than 127 frames",
    NOT_COPIED: "too little of the stack was copied",
    NOT_FOLLOWED: "a needed register is unknown",
    NOT_IN_MEMORY: "the stack is not in memory",
    BAD_PC: "the caller's address is not code",
    NO_WAY: "no unwind information",
    ENDED: "the process exited before it was read",
    NOT_PERMITTED: "offtop may not read the process",
    NOT_READ: "the process was not read in time",
    NOT_KEPT: "there were too many newer stacks",
}
"""How a user stack may end, by its name in `Stack.end` and JSON."""


class Frame(NamedTuple):
    """One return address, in a form that stays valid after the process has exited."""

    file: str
    """Path of the binary, or of a Python function's source; or a word in brackets: `[kernel]`, `[ext4]`, `[vdso]`,
    `[anon]`, `[python]`, `[gone]`, `[not permitted]`, `[not read]`, `[dropped]`."""
    offset: int
    """User frames: byte offset in the file, or the address if there is no file. Python functions: their first line.
    Kernel frames: 0."""
    name: str = ""
    """Symbol, if it is known at once (kernel, JIT, Python); otherwise empty, and `Names.of` returns it later."""


class Stack(NamedTuple):
    """The kernel or the user part of where a thread waited."""

    frames: tuple[Frame, ...]
    """Leaf first, including the scheduler's frames."""
    tail: int = 0
    """How many frames at the leaf are the scheduler's own (`__schedule`, `schedule`, …)."""
    category: str = "other"
    """Kernel stacks: id of the category whose rule matched."""
    entry: int = 0
    """How many frames at the root are only the kernel's entry code (`do_syscall_64`, `ret_from_fork`, …)."""
    end: str = WHOLE
    """User stacks: how it ends, one of ENDS."""
    is_unsure: bool = False
    """User stacks: some callers were found without unwind information."""
    guessed_in: str = ""
    """User stacks: file of the innermost frame whose caller was found that way, or MISPLACED_PYTHON; empty: unknown."""

    @property
    def missing(self) -> str:
        """User stacks: why callers are missing, and after the frame of which binary.

        It is empty if none are.
        """
        if self.end in (WHOLE, LINKED, ENDED, NOT_PERMITTED, NOT_READ, NOT_KEPT) or not self.frames:
            return ""
        return f"{ENDS[self.end]}: {self.frames[-1].file.rpartition('/')[2]}"

    @property
    def is_guessed(self) -> bool:
        """User stacks: callers may be missing or wrong."""
        return self.is_unsure or self.end == LINKED

    @property
    def trimmed(self) -> tuple[Frame, ...]:
        """The frames without the scheduler's: for JSON, exports and rules."""
        return self.frames[self.tail :]

    @property
    def displayed(self) -> tuple[Frame, ...]:
        """The frames without the scheduler's and the kernel's entry code: for screens."""
        return self.frames[self.tail : len(self.frames) - self.entry]


LOST = Stack((Frame(KERNEL, 0, "[stack lost]"),))
DROPPED_STACK = Stack((Frame(DROPPED, 0),), end=NOT_KEPT)
EMPTY = Stack(())
RESERVED: Mapping[int, Stack] = {NO_STACK: EMPTY, STACK_LOST: LOST}
"""The stacks that every Snapshot has."""


class Names(Protocol):
    """Symbols of frames, as far as they are known by now."""

    @property
    def version(self) -> int:
        """Changes whenever a frame gets another name."""
        ...

    def of(self, frame: Frame) -> str:
        """Return the symbol of `frame`, or `libfoo.so+0x1234` if there is none (yet).

        Inlined functions are included as `one_name` writes them; `functions` splits them again. Returns at once and
        never raises. The text is untrusted: escape it before it is shown.
        """
        ...


INLINED = " (inlined)"
"""Marks a function that has no frame of its own, as in perf."""


def one_name(functions: Sequence[str]) -> str:
    """Join the functions of a frame, innermost first: `inner (inlined) < outer`."""
    return f"{INLINED} < ".join(functions)


def functions(name: str) -> list[str]:
    """Split the name of a frame into its functions, innermost first.

    All but the last are marked as inlined.
    """
    *inlined, holder = name.split(f"{INLINED} < ")
    return [*(f"{one}{INLINED}" for one in inlined), holder]


def nameless(frame: Frame) -> str:
    """Return `libfoo.so+0x1234`, or the word in brackets of a frame without a file."""
    file = printable(frame.file.rpartition("/")[2])
    return f"{file}+0x{frame.offset:x}" if frame.offset else file
