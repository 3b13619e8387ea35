"""Checks of offtop's environment: its compiler and libraries, the running programs, and the terminal."""

import ctypes as ct
import locale
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from offtop.errors import KernelError, OfftopError
from offtop.kernel.binary import dwfl
from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.confinement import NOT_NOBODY
from offtop.kernel.bpf import cache, program
from offtop.kernel.bpf import pid_namespace as namespace
from offtop.kernel.bpf.distribution import confinement_remedy, install_command
from offtop.kernel.bpf.program import DEFAULT_UNWIND
from offtop.kernel.doctor.check import Check, features_found, kernel_types, unknown
from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.printable import printable

_SECURE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH that sudo is assumed to use if it does not report its own (only root may ask it)."""
_MOST_NAMED = 12
_ANSWER_S = 10.0
_OPEN_S = 0.5
"""A file system that takes longer to open a program counts as hung."""


def bcc() -> Check:
    """Import bcc in a child process, as offtop itself does, because the compiler takes 100 MB."""
    program = "import runpy, sys; b = runpy.run_path(sys.argv[1])['import_bcc'](); print(b.__version__, b.__file__)"
    # -I: the current directory may contain another bcc
    command = [sys.executable, "-I", "-c", program, str(Path(__file__).parents[1] / "bpf/compile.py")]
    try:
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return Check("bcc", "FAIL", "importing it took more than 20 s", "try again when the machine is less busy")
    if child.returncode == 0:
        return Check("bcc", "ok", child.stdout.strip())
    error = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
    return Check(
        "bcc",
        "FAIL",
        error,
        f"{install_command('python3-bpfcc', 'python3-bcc')} (from the distribution: PyPI's bcc is another project)",
        "all BPF data: it compiles and attaches the BPF programs",
    )


def kept_programs() -> Check:
    """Whether compiled programs are cached, so that the next start needs no compiler."""
    name, where = "kept programs", cache.cache_directory()
    if where is None:
        value = os.environ.get(cache.VARIABLE)
        if not value:
            cause = (
                f"by {cache.VARIABLE}" if value == "" else f"without root, unless {cache.VARIABLE} names a directory"
            )
            return Check(name, "ok", f"none {cause}", state="unneeded")
        where, cause = Path(value), "its path is not absolute"
    else:
        cause = cache.why_unusable(where)
    shown = printable(str(where))
    if not cause:
        return Check(name, "ok", f"in {shown}")
    return Check(
        name,
        "warn",
        f"none, in {shown}: {cause}",
        f"set {cache.VARIABLE} to a directory that only this user can write to",
        "half of the startup time: the BPF programs are compiled at each start",
    )


def libdw() -> Check:
    try:
        ct.CDLL("libdw.so.1")
    except OSError:
        return Check(
            "libdw",
            "FAIL",
            "libdw.so.1 is missing",
            install_command("libdw1", "elfutils-libs"),
            "user stacks and their names",
        )
    return Check("libdw", "ok", "user stacks by .eh_frame, and names with size checks")


def sandbox() -> Check:
    """Start a child that reads programs' files, and check how it is confined."""
    if (needed := libdw()).verdict == "FAIL":  # a child that lacks it ends at once
        return Check("sandbox", "warn", "unknown without libdw", needed.remedy, state="unknown")
    name, loses = "sandbox", "names of functions in programs, and callers by .eh_frame: no file is read"
    binaries = Binaries(_ANSWER_S)
    try:
        lacking = binaries.begin()
    except OSError as error:
        return Check(name, "warn", f"no child could be started: {error.strerror or error}", "see ulimit -u", loses)
    finally:
        binaries.end()
    if binaries.refused:
        what, remedy = NOT_NOBODY.format(binaries.refused).split(". ", 1)
        return Check(name, "warn", what, remedy, loses)
    how = "as nobody" if os.geteuid() == 0 else "without capabilities"
    if lacking:
        return Check(
            name,
            "warn",
            f"files of programs are read {how}, but not confined by {', '.join(lacking)}",
            confinement_remedy(),
            "a second layer of isolation for the process that reads untrusted files",
        )
    return Check(name, "ok", f"files of programs are read {how}, confined by seccomp and Landlock")


def user_stacks() -> Check:
    """Check how user stacks of running programs are unwound, by the tables in their binaries."""
    found = features_found()
    if found is None:
        return unknown("user stacks")
    if not DEFAULT_UNWIND.uses_rules(found):
        return Check(
            "user stacks",
            "warn",
            f"by frame pointers, on {platform.machine()}",
            "build programs with -fno-omit-frame-pointer to see their whole user stacks; kernel stacks are complete",
            "the callers in user stacks of programs without frame pointers",
        )
    ruled, others, hung = programs_by_unwind_information()
    what = f".eh_frame in {len(ruled)} of {len(ruled) + len(others)} running programs: {_some(ruled)}"
    if hung:
        what += f"; not read, because their file system hangs: {_some(hung)}"
    if not others:
        return Check("user stacks", "ok", what)
    return Check(
        "user stacks",
        "warn",
        what,
        "gcc and clang generate .eh_frame with -fasynchronous-unwind-tables",
        f"certainty about callers (~: by frame pointers, or guessed) in {_some(others)}",
    )


def programs_by_unwind_information() -> tuple[list[str], list[str], list[str]]:
    """Names of the binaries of running processes, by unwind information.

    They are those with a table of .eh_frame, those without, and those that could not be opened in time.
    """
    names: dict[bool, set[str]] = {True: set(), False: set()}
    hung: set[str] = set()
    seen: set[tuple[int, int]] = set()
    reads = GuardedReads()
    opens = reads.channel(_OPEN_S)
    for process in [Path(f"/proc/{pid}/exe") for pid in every_pid()]:
        try:
            (device, inode, _, _), fd = opens.open(process, str(process))
        except TimeoutError:
            with suppress(OSError):
                hung.add(printable(process.readlink().name))
            continue
        except OSError:  # a kernel thread, a process that has exited, or another user's process
            continue
        try:
            if (device, inode) not in seen:
                seen.add((device, inode))
                names[dwfl.has_unwind_table(fd)].add(printable(process.readlink().name))
        except OSError:
            continue
        finally:
            os.close(fd)
    reads.close()
    return sorted(names[True]), sorted(names[False]), sorted(hung)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def pid_namespace() -> Check:
    types = kernel_types()
    try:
        if not namespace.own_inode():
            return Check("pid namespace", "ok", namespace.describe_ids({}))
        if types is None:
            return unknown("pid namespace")
        found = namespace.defines(types)
    except KernelError as error:
        what, remedy = str(error).split(". ", 1)
        return Check("pid namespace", "FAIL", what, remedy, "all BPF data: names and ids would not match")
    if found.keys() >= namespace.FUNCTIONS.keys():
        return Check("pid namespace", "ok", namespace.describe_ids(found))
    remedy = "run it on the host, or: docker run --privileged --pid=host"
    return Check("pid namespace", "warn", namespace.describe_ids(found), remedy, "the host's other threads")


def sudo_path() -> Check:
    """Check whether `sudo offtop` finds the program.

    sudo has its own PATH, without ~/.local/bin and virtual environments.
    """
    if shutil.which("sudo") is None:
        return Check("sudo", "ok", "no sudo here", state="unneeded")
    output = subprocess.run(["sudo", "-n", "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    path = re.search(r"override user's \$PATH with: (\S+)", output)
    if found := shutil.which("offtop", path=path[1] if path else _SECURE_PATH):
        return Check("sudo", "ok", f"finds {found}")
    remedy = 'sudo "$(command -v offtop)", or make install'
    if sys.argv[0].endswith(".pyz"):  # offtop in one file is in no PATH
        remedy = f"sudo {shlex.quote(str(Path(sys.argv[0]).absolute()))}"
    return Check("sudo", "warn", "sudo does not find offtop", remedy, "the short command")


def character_set() -> Check:
    encoding = locale.getpreferredencoding(False)
    if encoding.upper().replace("-", "") == "UTF8":
        return Check("character set", "ok", encoding)
    return Check("character set", "warn", encoding, "LC_ALL=C.UTF-8 offtop", "bars and lines: ASCII is used instead")


def terminal() -> Check:
    kind = os.environ.get("TERM", "")
    if kind and kind != "dumb":
        return Check("terminal", "ok", f"TERM={kind}")
    return Check("terminal", "warn", f"TERM={kind or '(not set)'}", "TERM=xterm-256color offtop", "the screen: only -b")


def attaching(so_far: Sequence[Check]) -> Check:
    """Compile offtop's own program, attach it, and detach it again.

    Without a compiler, use a cached one.
    """
    known, types = features_found(), kernel_types()
    failed = {check.name for check in so_far if check.verdict == "FAIL"}
    not_tried = Check("attaching", "warn", "not tried", "fix what failed above", state="unknown")
    if known is None or types is None or failed - {"bcc"}:
        return not_tried
    try:
        attached = program.attach(known, defines=namespace.defines(types), recompile=not failed)
    except OfftopError as error:
        if failed:
            return not_tried
        return Check(
            "attaching", "FAIL", str(error), "see that message; if it does not help, report it", "all BPF data"
        )
    attached.close()
    made = "cached by an earlier start" if failed else f"compiled by bcc {attached.bcc_version}"
    what = f"{made}, attached with the switch-in probe '{attached.probe}', which is called"
    if not attached.notices:
        return Check("attaching", "ok", what)
    return Check(
        "attaching", "warn", what, "see above; if there is nothing about it, report it", " ".join(attached.notices)
    )
