"""Finds the functions that --within PROGRAM:FUNCTION means, and attaches probes.

PROGRAM is a path, or the name of a process, a library or a command. If a process's program lacks the function, its
libraries are searched. functions.py finds the function in a file.
"""

import difflib
import errno
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from offtop.errors import KernelError, UsageError
from offtop.kernel.binary.files import File, Mapping
from offtop.kernel.binary.functions import Function, NoSuchFunctionError, find, short
from offtop.kernel.bpf import libbpf
from offtop.kernel.bpf.distribution import confinement_remedy
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.program import Program
from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.model.values.snapshot import Filters

_MOST_NAMED, _MOST_NEAR = 10, 4
_MOST_IDS = 1024
"""Size of the BPF map only_pids (bpf/offcpu.c)."""
_PART_BYTES = 1 << 22
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def why_unavailable(features: Features, machine: str = platform.machine()) -> str:
    """Return why --within does not work on this machine; empty if it does."""
    if machine != "x86_64":
        return f"it needs x86-64, and this machine is {machine}"
    if not libbpf.UPROBES.exists():
        return "this kernel has no uprobes (CONFIG_UPROBE_EVENTS)"
    if "REG_SP" not in features.registers:
        return "this kernel cannot read a program's registers (bpf_task_pt_regs)"
    return ""


class WatchedFunctions:
    """The functions that --within refers to. It must be closed."""

    def __init__(self, spec: str, pids: Collection[int], reads: Channel) -> None:
        """Find the functions.

        `pids`: limit to these processes, unless empty. `reads`: used to read them and their files. Raises UsageError if
        something does not exist or cannot be watched.
        """
        self._spec = spec
        program, name = split_spec(spec)
        with ExitStack() as opened:
            files = _Files(name, opened, reads)
            candidates = _candidates(program, pids, reads)
            self.functions = _functions(files, candidates, name)
            own = {one.file for one in self.functions if _base(one.file) == program}
            is_shared = not pids and len(own) < len(self.functions)
            self._pids = tuple(sorted(pid for pid, _ in candidates if pid)) if is_shared else ()
            """The processes called PROGRAM, if other processes may run that code, too; otherwise empty."""
            if len(self._pids) > _MOST_IDS:
                raise UsageError(
                    f"--within: {len(self._pids):,} processes are called {short(program)}. Choose some with -p"
                )
            self._opened = opened.pop_all()

    def attach(self, program: Program) -> None:
        """Attach the probes. Raises KernelError if the kernel refuses."""
        try:
            for one in self.functions:
                program.attach_to_function(f"/proc/self/fd/{one.fd}", one.begins, one.ends)
        except OSError as error:
            raise KernelError(
                f"--within: the kernel refuses to watch {short(self._spec)} ({error.strerror}). "
                f"{'Raise the limit: ulimit -n 4096' if error.errno == errno.EMFILE else 'See: offtop doctor'}"
            ) from error

    def narrowed(self, filters: Filters) -> Filters:
        """Limit `filters` to the matching processes, unless it has processes already."""
        return filters if filters.pids else replace(filters, pids=self._pids)

    @property
    def notice(self) -> str:
        """What the process that read the files lacked to be fully confined; "" if nothing."""
        lacking = ", ".join(dict.fromkeys(measure for one in self.functions for measure in one.lacking))
        return f"--within read programs without {lacking}. To confine it: {confinement_remedy()}." if lacking else ""

    @property
    def summary(self) -> str:
        """What is watched, as a text for people."""
        ends, elsewhere = sum(len(one.ends) for one in self.functions), sum(one.elsewhere for one in self.functions)
        unfollowed = f", {elsewhere} of them to code that does not count as inside" if elsewhere else ""
        files = ", ".join(dict.fromkeys(one.file for one in self.functions))
        return f"{self.functions[0].name} in {files}; {ends} exits{unfollowed}"

    def close(self) -> None:
        """Idempotent."""
        self._opened.close()


def split_spec(spec: str) -> tuple[str, str]:
    """Split PROGRAM:FUNCTION. Raises UsageError if there is no function."""
    program, colon, name = spec.partition(":")
    if not colon or not name or "\0" in spec:
        raise UsageError(
            f"--within: '{short(spec)}' names no function. Give PROGRAM:FUNCTION, as mysqld:dispatch_command, "
            "libpq.so.5:PQexec, /path/of/it:function or, with -p, :function"
        )
    return program, name


class _Files:
    """Looks a function up in files, and reads each file once.

    They stay open until `opened` is closed.
    """

    def __init__(self, name: str, opened: ExitStack, reads: Channel) -> None:
        self._name, self._opened, self.reads = name, opened, reads
        self._known: dict[tuple[int, int], Function | UsageError] = {}

    def function(self, path: str, fd: int | None, only_if_named: bool) -> Function:
        """Find the function in a file. Takes over `fd`. Raises UsageError.

        `only_if_named`: read the file only if the name occurs in it.
        """
        if fd is None:
            raise NoSuchFunctionError(f"--within: {short(path)} cannot be read. Name an existing file, as root")
        self._opened.callback(os.close, fd)
        status = os.fstat(fd)
        identity = status.st_dev, status.st_ino
        if identity not in self._known:
            try:
                if only_if_named and not _contains_word(fd, self._name):
                    raise NoSuchFunctionError(
                        f"--within: {short(path)} has no function {short(self._name)}. Name another"
                    )
                self._known[identity] = find(fd, path, self._name)
            except UsageError as error:
                self._known[identity] = error
        known = self._known[identity]
        if isinstance(known, UsageError):
            raise known
        return known


def _contains_word(fd: int, name: str) -> bool:
    """Whether the last word of `name` occurs anywhere in a file."""
    words = re.findall(rb"\w+", os.fsencode(name.partition("(")[0]))
    at, before = 0, b""
    while words and (part := os.pread(fd, _PART_BYTES, at)):
        if words[-1] in before + part:
            return True
        at, before = at + len(part), part[-len(words[-1]) :]
    return not words


_Candidate = Callable[[_Files, bool], Function]
"""Looks for the function in one file."""


def _functions(files: _Files, candidates: Sequence[tuple[int, Sequence[_Candidate]]], name: str) -> Sequence[Function]:
    """Return the functions in all matching files, at least one. Raises UsageError."""
    found: dict[int, Function] = {}
    problem: UsageError | None = None
    for _, (first, *libraries) in candidates:
        try:
            one = first(files, False)
            found[one.fd] = one
            continue
        except NoSuchFunctionError as error:
            problem = problem or error
        except UsageError as error:  # any user's program can have that name, so go on with the others
            problem = error
            continue
        in_libraries: dict[int, Function] = {}
        for library in libraries:
            with suppress(UsageError):
                one = library(files, True)
                in_libraries[one.fd] = one
        if len(in_libraries) > 1:
            paths = ", ".join(one.file for one in [*in_libraries.values()][:_MOST_NAMED])
            raise UsageError(f"--within: several libraries have a function {short(name)}: {paths}. Name one of them")
        found |= in_libraries
    if not found:
        assert problem
        raise problem
    return [*found.values()]


def _candidates(program: str, pids: Collection[int], reads: Channel) -> Sequence[tuple[int, Sequence[_Candidate]]]:
    """Return (pid, [program, libraries…]) of each process or file that `program` refers to.

    The pid is 0 for a file. There is at least one, otherwise this raises UsageError.
    """
    if not program:
        if not pids:
            raise UsageError("--within: :FUNCTION is looked for in the processes of -p. Give -p, or PROGRAM:FUNCTION")
        return [(pid, _of_process(pid, reads)) for pid in pids]
    if "/" in program:
        return [(0, [_of_path(program)])]
    every = every_pid()
    named = [pid for pid in every if program in _names(pid)]
    running = [pid for pid in named if not pids or pid in pids]
    if running:
        return [(pid, _of_process(pid, reads)) for pid in running]
    if named:
        raise UsageError(f"--within: no process of -p is called {short(program)}. These processes are: {_some(named)}")
    if ".so" in program:
        mapped = [found for pid in pids or every for found in _mapped(pid, reads) if _is_library(found.path, program)]
        distinct = {(found.device, found.inode): found for found in mapped}
        known = [] if mapped else [path for path in _libraries() if _base(path) == program]
        if mapped or known:
            return [(0, [one]) for one in (*map(_of_file, distinct.values()), *map(_of_path, known[:1]))]
    elif not pids and (command := shutil.which(program) or shutil.which(program, path=_SYSTEM_PATH)):
        return [(0, [_of_path(command)])]
    similar = difflib.get_close_matches(program, {name for pid in every for name in _names(pid)}, _MOST_NEAR)
    hint = f"Is it {' or '.join(map(short, similar))}?" if similar else "Give its path, or start it first"
    raise UsageError(f"--within: there is no process, library or command {short(program)}. {hint}")


def _of_process(pid: int, reads: Channel) -> Sequence[_Candidate]:
    """Return the program of a process, and the other files that it has mapped as code."""

    def of_program(files: _Files, only_if_named: bool) -> Function:
        path, fd = f"/proc/{pid}/exe", None
        with suppress(OSError):
            path = str(Path(f"/proc/{pid}/exe").readlink())
            fd = files.reads.open(("exe", pid), f"/proc/{pid}/exe")[1]
        return files.function(path, fd, only_if_named)

    return [of_program, *map(_of_file, _mapped(pid, reads)[1:])]


def _of_file(file: File) -> _Candidate:
    def of_file(files: _Files, only_if_named: bool) -> Function:
        fd = None
        with suppress(TimeoutError):
            if found := file.open(files.reads):
                found.release(files.reads)
                fd = found.fd
        return files.function(file.path, fd, only_if_named)

    return of_file


def _of_path(path: str) -> _Candidate:
    def of_path(files: _Files, only_if_named: bool) -> Function:
        fd = None
        with suppress(OSError):
            fd = files.reads.open(path, str(Path.cwd() / path))[1]
        return files.function(os.path.realpath(path) if fd else path, fd, only_if_named)

    return of_path


def _is_library(path: str, name: str) -> bool:
    """Whether a path is that library: `libpq.so.5` is also /usr/lib/libpq.so.5.15."""
    base = _base(path.removesuffix(" (deleted)"))
    return base == name or base.startswith(f"{name}.")


def _names(pid: int) -> set[str]:
    """Return the name of a process, and that of its program."""
    found: set[str] = set()
    with suppress(OSError):
        found.add(os.fsdecode(Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")))
        found.add(_base(str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")))
    return found


def _mapped(pid: int, reads: Channel) -> list[File]:
    """Return the files that a process has mapped as code, each once."""
    found: dict[tuple[str, int], File] = {}
    with suppress(OSError):
        for line in os.fsdecode(reads.ask(pid, "code_of", pid)).split("\n"):
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and "x" in fields[1] and fields[4] != "0":
                start, end = (int(address, 16) for address in fields[0].split("-"))
                path, device, inode = fields[5], fields[3], int(fields[4])
                found.setdefault((device, inode), File(path, path, device, inode, Mapping(pid, start, end)))
    return [*found.values()]


def _libraries() -> Iterator[str]:
    """Iterate over the paths of the libraries in the dynamic linker's cache."""
    with suppress(OSError, subprocess.SubprocessError):
        command = shutil.which("ldconfig", path=_SYSTEM_PATH) or "ldconfig"
        listing = subprocess.run([command, "-p"], capture_output=True, timeout=10, check=True, env={}).stdout
        for line in os.fsdecode(listing).split("\n"):
            name, arrow, path = line.rpartition(" => ")
            if arrow and "x86-64" in name:
                yield path


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _some(pids: Sequence[int]) -> str:
    listed = sorted(pids)
    return ", ".join(map(str, listed[:_MOST_NAMED])) + (", …" if len(listed) > _MOST_NAMED else "")
