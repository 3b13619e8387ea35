"""Checks of what is around offtop: its compiler and libraries, the programs that run, and where it was called."""

import ctypes as ct
import locale
import os
import platform
import re
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
from offtop.kernel.bpf.distribution import install
from offtop.kernel.bpf.program import AUTO
from offtop.kernel.doctor.check import Check, features_found, kernel_types, unknown
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.printable import printable

_SECURE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What sudo looks through, where it does not tell (only root may ask it)."""
_MOST_NAMED = 12
_ANSWER_S = 10.0
_OPEN_S = 0.5
"""A file system that takes longer to open a program hangs, or might as well."""


def bcc() -> Check:
    """Imported by a child, as offtop itself does: the compiler takes 100 MB."""
    program = "import runpy, sys; b = runpy.run_path(sys.argv[1])['import_bcc'](); print(b.__version__, b.__file__)"
    # -I: the directory that offtop is called from may hold another bcc
    command = [sys.executable, "-I", "-c", program, str(Path(__file__).parents[1] / "bpf/compile.py")]
    try:
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return Check("bcc", "FAIL", "importing it took more than 20 s", "try again when the machine is less busy")
    if child.returncode == 0:
        return Check("bcc", "ok", child.stdout.strip())
    said = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
    return Check(
        "bcc",
        "FAIL",
        said,
        f"{install('python3-bpfcc', 'python3-bcc')} (it comes from the distribution: PyPI's bcc is another project)",
        "everything: it compiles and attaches the BPF programs",
    )


def kept_programs() -> Check:
    """Whether the next start can do without the compiler."""
    name, where = "kept programs", cache.directory()
    if where is None:
        said = os.environ.get(cache.VARIABLE)
        if not said:
            why = f"by {cache.VARIABLE}" if said == "" else f"without root, unless {cache.VARIABLE} names a directory"
            return Check(name, "ok", f"none {why}", state="unneeded")
        where, why = Path(said), "its path is not absolute"
    else:
        why = cache.trouble(where)
    shown = printable(str(where))
    if not why:
        return Check(name, "ok", f"in {shown}")
    return Check(
        name,
        "warn",
        f"none, in {shown}: {why}",
        f"let {cache.VARIABLE} name a directory that only this user can write to",
        "half of the time that a start takes: the BPF programs are compiled each time",
    )


def libdw() -> Check:
    try:
        ct.CDLL("libdw.so.1")
    except OSError:
        return Check(
            "libdw", "FAIL", "libdw.so.1 is missing", install("libdw1", "elfutils-libs"), "user stacks and their names"
        )
    return Check("libdw", "ok", "user stacks by .eh_frame, and names with size checks")


def sandbox() -> Check:
    """What the children that read programs' files have given up. One of them says it."""
    name, loses = "sandbox", "names of functions in programs, and callers by .eh_frame: no file is read"
    binaries = Binaries(_ANSWER_S)
    try:
        lacking = binaries.begin()
    except OSError as error:
        return Check(name, "warn", f"no child could be started: {error.strerror}", "see ulimit -u", loses)
    finally:
        binaries.end()
    if binaries.refused:
        what, remedy = NOT_NOBODY.format(binaries.refused).split(". ", 1)
        return Check(name, "warn", what, remedy, loses)
    who = "as nobody" if os.geteuid() == 0 else "without capabilities"
    if lacking:
        return Check(
            name,
            "warn",
            f"files of programs are read {who}, but not confined by {', '.join(lacking)}",
            f"{install('libseccomp2', 'libseccomp')}; a kernel with seccomp filters, and landlock in its option lsm=",
            "a second wall around the process that reads untrusted files",
        )
    return Check(name, "ok", f"files of programs are read {who}, confined by seccomp and Landlock")


def user_stacks() -> Check:
    """How those of the programs that run now will be walked, by what their binaries have."""
    found = features_found()
    if found is None:
        return unknown("user stacks")
    if not AUTO.is_ruled(found):
        return Check(
            "user stacks",
            "warn",
            f"along frame pointers, on {platform.machine()}",
            "build what you want to see whole with -fno-omit-frame-pointer; kernel stacks are whole anyway",
            "the callers in user stacks of programs without frame pointers",
        )
    ruled, others, hung = programs_by_unwind_information()
    what = f".eh_frame in {len(ruled)} of {len(ruled) + len(others)} programs that run: {_some(ruled)}"
    if hung:
        what += f"; not read, for their file system hangs: {_some(hung)}"
    if not others:
        return Check("user stacks", "ok", what)
    return Check(
        "user stacks",
        "warn",
        what,
        "gcc and clang make .eh_frame with -fasynchronous-unwind-tables",
        f"certainty about callers (~: by frame pointers, or guessed) in {_some(others)}",
    )


def programs_by_unwind_information() -> tuple[list[str], list[str], list[str]]:
    """Names of the binaries of running processes: those with .eh_frame's table, those without, and those that could not
    be opened in time."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    hung: set[str] = set()
    seen: set[tuple[int, int]] = set()
    reads = GuardedReads()
    opens = reads.channel(_OPEN_S)
    for process in [one / "exe" for one in Path("/proc").iterdir() if one.name.isdecimal()]:
        try:
            (device, inode, _, _), fd = opens.open(process, str(process))
        except TimeoutError:
            with suppress(OSError):
                hung.add(printable(process.readlink().name))
            continue
        except OSError:  # a kernel thread, one that has ended, or another user's
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
        if not namespace.own():
            return Check("pid namespace", "ok", namespace.told({}))
        if types is None:
            return unknown("pid namespace")
        found = namespace.defines(types)
    except KernelError as error:
        what, remedy = str(error).split(". ", 1)
        return Check("pid namespace", "FAIL", what, remedy, "everything: names and ids would not be of one process")
    if found.keys() >= namespace.FUNCTIONS.keys():
        return Check("pid namespace", "ok", namespace.told(found))
    remedy = "run it on the host, or: docker run --privileged --pid=host"
    return Check("pid namespace", "warn", namespace.told(found), remedy, "the machine's other threads")


def sudo_path() -> Check:
    """Whether `sudo offtop` finds it: sudo has a PATH of its own, without ~/.local/bin and environments."""
    if shutil.which("sudo") is None:
        return Check("sudo", "ok", "no sudo here", state="unneeded")
    told = subprocess.run(["sudo", "-n", "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    path = re.search(r"override user's \$PATH with: (\S+)", told)
    if found := shutil.which("offtop", path=path[1] if path else _SECURE_PATH):
        return Check("sudo", "ok", f"finds {found}")
    return Check(
        "sudo", "warn", "sudo finds no offtop", 'sudo "$(command -v offtop)", or make install', "the short command"
    )


def character_set() -> Check:
    encoding = locale.getpreferredencoding(False)
    if encoding.upper().replace("-", "") == "UTF8":
        return Check("character set", "ok", encoding)
    return Check("character set", "warn", encoding, "LC_ALL=C.UTF-8 offtop", "bars and lines: they are drawn in ASCII")


def terminal() -> Check:
    kind = os.environ.get("TERM", "")
    if kind and kind != "dumb":
        return Check("terminal", "ok", f"TERM={kind}")
    return Check("terminal", "warn", f"TERM={kind or '(not set)'}", "TERM=xterm-256color offtop", "the screen: only -b")


def attaching(so_far: Sequence[Check]) -> Check:
    """Compiles offtop's own program, attaches it, and takes it away again. Without a compiler: one that was kept."""
    known, types = features_found(), kernel_types()
    failed = {check.name for check in so_far if check.verdict == "FAIL"}
    not_tried = Check("attaching", "warn", "not tried", "mend what failed above", state="unknown")
    if known is None or types is None or failed - {"bcc"}:
        return not_tried
    try:
        attached = program.attach(known, defines=namespace.defines(types), recompile=not failed)
    except OfftopError as error:
        if failed:
            return not_tried
        return Check("attaching", "FAIL", str(error), "the sentence says it; if not, report it", "all that BPF tells")
    attached.close()
    made = "kept from an earlier start" if failed else f"compiled by bcc {attached.bcc_version}"
    what = f"{made}, attached with the switch-in probe '{attached.door}', which is called"
    if not attached.notices:
        return Check("attaching", "ok", what)
    return Check(
        "attaching", "warn", what, "see above; if nothing is said there, report it", " ".join(attached.notices)
    )
