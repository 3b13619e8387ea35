"""What user stacks lack, callers or names: where, how often, why, and the remedy.

A stack may lack several things and counts under each, so shares do not add up. C library frames below a program's first
function are left out: their names would not say where it waited.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from offtop.model.classify.cause_finder import with_pid
from offtop.model.classify.causes import is_libc
from offtop.model.values.catalog import Catalog
from offtop.model.values.snapshot import EXITED
from offtop.model.values.stack import (
    ANONYMOUS,
    BAD_PC,
    CLOSED,
    DEEP,
    DROPPED,
    ENDED,
    FIRST_STACK,
    GONE,
    JIT,
    LINKED,
    MISPLACED_PYTHON,
    NO_WAY,
    NOT_COPIED,
    NOT_FOLLOWED,
    NOT_IN_MEMORY,
    NOT_KEPT,
    NOT_PERMITTED,
    NOT_READ,
    SIGNAL,
    UNREAD,
    WHOLE,
    Frame,
    Names,
    Stack,
    nameless,
)
from offtop.model.windows.breakdown import PartTuple
from offtop.printable import printable

GUESSED, GUESSED_BAD_PC, UNSURE, MISPLACED = "guessed", "guessed-astray", "unsure", "misplaced"
STRIPPED, NO_SYMBOL, NO_MAP, NO_ELF = "stripped", "no-symbol", "no-perf-map", "no-elf-file"
OVERWRITTEN, FILE_GONE, UNREADABLE, TOO_SLOW, NOT_CONFINED, NOT_KNOWN = (
    *("overwritten", "file-gone", "unreadable", "too-slow", "not-confined"),
    "not-known",
)
REASONS: Mapping[str, str] = {
    NO_WAY: "callers missing: no unwind information",
    GUESSED_BAD_PC: "callers missing: no unwind information, and a guess failed",
    GUESSED: "callers guessed: no unwind information",
    UNSURE: "callers guessed: the binary without unwind information is unknown",
    MISPLACED: "callers unsure: C functions may be between the wrong Python functions",
    LINKED: "callers unchecked: frame pointers",
    NOT_COPIED: "callers missing: too little of the stack was copied",
    NOT_FOLLOWED: "callers missing: a needed register is unknown",
    NOT_IN_MEMORY: "callers missing: the stack is not in memory",
    BAD_PC: "callers missing: the caller's address is not code",
    DEEP: "callers missing: more than 127 frames",
    ENDED: "all missing: the process exited before it was read",
    NOT_PERMITTED: "all missing: offtop may not read the process",
    NOT_READ: "all missing: the process was not read in time",
    NOT_KEPT: "all missing: there were too many newer stacks",
    STRIPPED: "names missing: stripped of its symbols",
    NO_SYMBOL: "names missing: no symbol for that code",
    NO_MAP: "names missing: JIT code, not in a perf map",
    OVERWRITTEN: "names missing: the file was overwritten",
    NO_ELF: "names missing: not an ELF file",
    FILE_GONE: "names missing: file and process were gone before the file was read",
    UNREADABLE: "names missing: the file cannot be opened",
    TOO_SLOW: "names missing: reading it failed, or took too long",
    NOT_CONFINED: "names missing: no file is read as root",
    NOT_KNOWN: "names missing: unknown reason",
}
"""Why a stack is incomplete or not fully named, by the name in JSON."""
_NAME_REASONS = frozenset(
    {
        *(ENDED, NOT_PERMITTED, NOT_READ, NOT_KEPT, STRIPPED, NO_SYMBOL, NO_MAP, NO_ELF),
        *(OVERWRITTEN, FILE_GONE, UNREADABLE, TOO_SLOW, NOT_CONFINED, NOT_KNOWN),
    }
)
_CALLER_REASONS = frozenset({ENDED, NOT_PERMITTED, NOT_READ, NOT_KEPT, *REASONS.keys() - _NAME_REASONS})
_BUILD_UNWINDABLE = "build it with -fasynchronous-unwind-tables and keep .eh_frame, or with -fno-omit-frame-pointer"
_REMEDIES: Mapping[str, str] = {
    NO_WAY: _BUILD_UNWINDABLE,
    GUESSED_BAD_PC: _BUILD_UNWINDABLE,
    GUESSED: _BUILD_UNWINDABLE,
    MISPLACED: "trust the Python functions: they are in order",
    LINKED: "use a larger --cpu-budget, and not --unwind fp",
    NOT_COPIED: "copy more of each stack with --unwind-bytes 64K",
    NOT_FOLLOWED: "build it with -fno-omit-frame-pointer",
    NOT_IN_MEMORY: "add memory, so that stacks are not swapped out",
    BAD_PC: "its unwind information is wrong there; assembly code needs .cfi directives",
    NOT_PERMITTED: "run it with sudo, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
    NOT_READ: "find what blocks it: its threads in D state are in mode 1; its stacks return when it goes on",
    STRIPPED: "install its debug symbols (a -dbgsym, -dbg or -debuginfo package), or try --debuginfod; leave your own "
    "unstripped",
    NO_SYMBOL: "install its debug symbols, or try --debuginfod; assembly needs .type and .size",
    NO_MAP: "have its runtime write /tmp/perf-PID.map",
    OVERWRITTEN: "restart the program: its file has been replaced",
    UNREADABLE: "run offtop as root, on a file system that lets root in (FUSE: allow_root)",
    TOO_SLOW: "wait: offtop tries again after five minutes",
    NOT_CONFINED: "give offtop CAP_SETUID and CAP_SETGID, so that its readers can become nobody",
}
"""Reasons that are missing here have no remedy."""
_RUNTIME = re.compile(
    r"(?P<java>libjvm\.so|java$)|(?P<node>libnode\.so|node(?:js)?$)|(?P<dotnet>libcoreclr\.so|dotnet$)|"
    r"(?P<ruby>libruby|ruby[\d.]*$)|(?P<erlang>beam\.smp$)"
)
"""Names of binaries or processes of runtimes with a JIT compiler."""
_MAPS: Mapping[str, str] = {
    "java": "write a perf map now, and once in a while: jcmd PID Compiler.perfmap (JDK 17 or later)",
    "node": "start it with: node --perf-basic-prof",
    "dotnet": "start it with DOTNET_PerfMapEnabled=1 in its environment",
    "ruby": "start it with: ruby --yjit-perf",
    "erlang": "start it with: erl +JPperf true",
}
_FRAME_POINTER_REMEDIES: Mapping[str, str] = {
    "java": "start it with -XX:+PreserveFramePointer, which makes them most likely right"
}
"""The same for callers."""
_KEEPS_FRAME_POINTERS: Mapping[str, str] = {"node": "V8", "dotnet": ".NET"}
"""Runtimes whose code keeps frame pointers, and the name of the compiler."""

_MOST_KNOWN = 100_000
"""Stacks; cleared beyond that, since stacks no longer waited at are not dropped otherwise."""

Why = Callable[[Frame], str]
"""Returns why a frame has no name: one of REASONS; empty while that is being looked up."""


def unknown_reason(frame: Frame) -> str:
    """A Why that knows nothing."""
    return NOT_KNOWN


class Problem(NamedTuple):
    """What some stacks lack, for one reason."""

    binary: str
    """As Frame.file: of the outermost known frame if callers are missing, of the frame without a name; empty if
    unknown."""
    process: str
    """Raw process name if the code is in no file; otherwise empty."""
    reason: str
    """One of REASONS."""
    total_ns: int
    share: float
    """Share of the time with a user stack; 0 to 1."""
    remedy: str
    """What to do about it; empty if there is nothing."""

    @property
    def label(self) -> str:
        """The binary without directories, and the process if that says more. Printable."""
        file = printable(self.binary.rpartition("/")[2])
        return f"{file or '?'} of {printable(self.process)}" if self.process else file or "(any)"

    @property
    def is_of_callers(self) -> bool:
        return self.reason in _CALLER_REASONS

    @property
    def in_full(self) -> str:
        text = f"{100 * self.share:.0f}% of the time with a user stack: {self.label}: {REASONS[self.reason]}."
        return f"{text} Next: {self.remedy}." if self.remedy else text


class ProblemSummary(NamedTuple):
    """What user stacks lack, of some waits."""

    total_ns: int = 0
    """Time of waits with a user stack."""
    whole_ns: int = 0
    """Time of stacks with all callers for certain."""
    named_ns: int = 0
    """Time of stacks whose functions all have names."""
    problems: tuple[Problem, ...] = ()
    """Most time first."""


class _Flaw(NamedTuple):
    binary: str
    reason: str


class _Findings(NamedTuple):
    """What is known about one stack."""

    flaws: tuple[_Flaw, ...]
    runtime: str
    """A key of _MAPS, or empty."""


class Problems:
    """Examines each stack once, and again when functions get other names. Not thread-safe."""

    def __init__(self, names: Names, why: Why = unknown_reason) -> None:
        self._names, self._why = names, why
        self._known: dict[int, _Findings] = {}
        self._unnamed: dict[Frame, tuple[str, set[int]]] = {}
        """Frames without a name → why, and which stacks they are in."""
        self._checked: tuple[Catalog | None, int] = None, 0

    def of(self, table: Mapping[tuple[int, ...], PartTuple], catalog: Catalog) -> ProblemSummary:
        """Return the problems of a table by site (breakdown.by_site)."""
        self._drop_outdated(catalog)
        waits_ns: dict[tuple[int, int], int] = {}
        for (_, user, _, pid), (_, total_ns, _, _) in table.items():
            if user >= FIRST_STACK and total_ns > 0 and catalog.stack(user).frames:
                waits_ns[user, pid] = waits_ns.get((user, pid), 0) + total_ns
        total_ns = whole_ns = named_ns = 0
        sums: dict[tuple[_Flaw, str], dict[int, int]] = {}
        runtimes: dict[int, str] = {}
        for (user, pid), ns in waits_ns.items():
            flaws, runtime = self._of_stack(user, catalog)
            total_ns += ns
            reasons = {flaw.reason for flaw in flaws}
            whole_ns += ns if reasons.isdisjoint(_CALLER_REASONS) else 0
            named_ns += ns if reasons.isdisjoint(_NAME_REASONS) else 0
            if runtime:
                runtimes[pid] = runtime
            for flaw in flaws:
                of_pids = sums.setdefault((flaw, _process(pid, catalog) if flaw.binary[:1] == "[" else ""), {})
                of_pids[pid] = of_pids.get(pid, 0) + ns
        problems: list[Problem] = []
        for (flaw, process), of_pids in sums.items():
            pid, ns = max(of_pids, key=of_pids.__getitem__), sum(of_pids.values())
            runtime = runtimes.get(pid) or _runtime(process)
            remedy = with_pid(_remedy(flaw, "" if pid == EXITED.pid else runtime), pid)
            problems.append(Problem(flaw.binary, process, flaw.reason, ns, ns / total_ns, remedy))
        problems.sort(key=lambda one: (-one.total_ns, one[:3]))
        return ProblemSummary(total_ns, whole_ns, named_ns, tuple(problems))

    def _drop_outdated(self, catalog: Catalog) -> None:
        """Drop what may have changed."""
        asked = catalog, self._names.version
        if asked[0] is not self._checked[0] or len(self._known) >= _MOST_KNOWN:
            self._known.clear()
            self._unnamed.clear()
        else:
            renamed = asked[1] != self._checked[1]
            for frame, (reason, users) in [*self._unnamed.items()]:
                if (renamed or not reason) and self._reason(frame) != reason:
                    del self._unnamed[frame]
                    for user in users:
                        self._known.pop(user, None)
        self._checked = asked

    def _of_stack(self, user: int, catalog: Catalog) -> _Findings:
        known = self._known.get(user)
        if known is None:
            stack = catalog.stack(user)
            flaws = tuple(dict.fromkeys((*_of_callers(stack), *self._of_names(stack, user))))
            runtimes = (_runtime(frame.file.rpartition("/")[2]) for frame in stack.frames)
            runtime = next((one for one in runtimes if one), "")
            known = self._known[user] = _Findings(flaws, runtime)
        return known

    def _of_names(self, stack: Stack, user: int) -> Iterator[_Flaw]:
        for frame in _examined(stack):
            reason = self._reason(frame)
            if reason is not None:
                self._unnamed.setdefault(frame, (reason, set()))[1].add(user)
                if reason:
                    yield _Flaw(frame.file, reason)

    def _reason(self, frame: Frame) -> str | None:
        """Return why it has no name, empty while that is being looked up.

        None if it has one or stands for code.
        """
        if frame.file == ANONYMOUS:
            return NO_MAP
        if frame.name or frame.file[:1] == "[" or self._names.of(frame) != nameless(frame):
            return None
        return self._why(frame)


def _of_callers(stack: Stack) -> Iterator[_Flaw]:
    if stack.end == ENDED:
        yield _Flaw(GONE, ENDED)
    elif stack.end == NOT_PERMITTED:
        yield _Flaw(CLOSED, NOT_PERMITTED)
    elif stack.end == NOT_READ:
        yield _Flaw(UNREAD, NOT_READ)
    elif stack.end == NOT_KEPT:
        yield _Flaw(DROPPED, NOT_KEPT)
    elif stack.end == LINKED:
        yield _Flaw("", LINKED)
    elif stack.end == BAD_PC and stack.is_unsure and stack.guessed_in not in ("", MISPLACED_PYTHON):
        yield _Flaw(stack.guessed_in, GUESSED_BAD_PC)
        return
    elif stack.end != WHOLE:
        file = _outermost(stack.frames).file
        yield _Flaw(file, stack.end)
        if stack.end == NO_WAY and stack.guessed_in == file:
            return
    if stack.is_unsure:
        if stack.guessed_in == MISPLACED_PYTHON:
            yield _Flaw("", MISPLACED)
        else:
            yield _Flaw(stack.guessed_in, GUESSED if stack.guessed_in else UNSURE)


def _outermost(frames: Sequence[Frame]) -> Frame:
    """Return the outermost frame of a binary; Python functions are between them."""
    return next((one for one in reversed(frames) if _is_code(one)), frames[-1])


def _is_code(frame: Frame) -> bool:
    if frame.file[:1] == "[":
        return frame.file in (ANONYMOUS, JIT)
    return not frame.name or frame.name == SIGNAL


def _examined(stack: Stack) -> tuple[Frame, ...]:
    """Return the frames without the one where the thread began and the C library's next to it."""
    frames = stack.frames
    if stack.end == WHOLE and len(frames) > 1:
        end = len(frames) - 1
        while end > 1 and is_libc(frames[end - 1]):
            end -= 1
        frames = frames[:end]
    return frames


def _runtime(name: str) -> str:
    found = _RUNTIME.match(name)
    return (found.lastgroup or "") if found else ""


def _process(pid: int, catalog: Catalog) -> str:
    return "(exited)" if pid == EXITED.pid else catalog.process(pid)


def _remedy(flaw: _Flaw, runtime: str) -> str:
    if flaw.reason == NO_MAP:
        return _MAPS.get(runtime, _REMEDIES[NO_MAP])
    if flaw.reason in (GUESSED, GUESSED_BAD_PC, NO_WAY):
        is_made = flaw.binary[:1] == "["
        maker = _KEEPS_FRAME_POINTERS.get(runtime if is_made else _runtime(flaw.binary.rpartition("/")[2]))
        if maker and flaw.reason == GUESSED:
            return f"trust them: {maker}'s code keeps frame pointers"
        if is_made:
            return _FRAME_POINTER_REMEDIES.get(runtime, "have its runtime keep frame pointers")
    return _REMEDIES.get(flaw.reason, "")
