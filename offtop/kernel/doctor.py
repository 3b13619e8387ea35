"""`offtop doctor`: what works on this machine, what does not, and the command that mends it.

Each check asks for the feature itself and never goes by the kernel's version. It changes nothing, and
needs no privilege: what cannot be seen without one is said to be unknown.
"""

import ctypes as ct
import errno
import json
import locale
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from offtop.errors import KernelError, OfftopError
from offtop.kernel import dwfl, features, namespace, program, within
from offtop.kernel.features import Features
from offtop.kernel.libbpf import KernelTypes, enable_statistics, library
from offtop.kernel.program import AUTO
from offtop.model.printable import printable

Verdict = Literal["ok", "warn", "FAIL"]

CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SYSLOG": 34, "CAP_PERFMON": 38, "CAP_BPF": 39}
"""Bits in `CapEff` (include/uapi/linux/capability.h)."""

_SECURE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What sudo looks through, where it does not tell (only root may ask it)."""
_ARRAY_MAP = 2  # BPF_MAP_TYPE_ARRAY
_BIG_MAP_BYTES = 16 << 20
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that offtop needs, or is better with."""

    name: str
    verdict: Verdict
    """`ok`; `warn`: offtop runs, and does without; `FAIL`: it cannot run."""
    what: str
    """What was found."""
    remedy: str = ""
    """The command, or the sentence, that mends it; empty when ok."""
    loses: str = ""
    """What offtop cannot do without it; empty when ok or unknown."""


def checks() -> list[Check]:
    """All of them, the most fundamental first; the last attaches offtop's program for a moment."""
    found = conditions()
    return [*found, attaching(found)]


def conditions() -> list[Check]:
    """What this machine is like, whatever offtop's own program makes of it."""
    held = capabilities()
    return [
        privileges(held),
        kernel(),
        lockdown(),
        libbpf(),
        bpf(held),
        memlock(held),
        btf(),
        task_struct(),
        door(),
        tracefs(),
        task_storage(),
        task_iterator(),
        run_delay(),
        wakers(),
        uprobes(),
        statistics(held),
        kernel_symbols(held),
        perf_event_paranoid(held),
        bcc(),
        libdw(),
        user_stacks(),
        pid_namespace(),
        sudo_path(),
        character_set(),
        terminal(),
    ]


def status(found: Sequence[Check]) -> int:
    """The exit status: 3 for a missing privilege, else 4 for a kernel or a bcc that cannot, else 0."""
    failed = {check.name for check in found if check.verdict == "FAIL"}
    if "privileges" in failed:
        return 3
    return 4 if failed else 0


def render(found: Sequence[Check]) -> str:
    """A line per check; under one that is not ok, what is lost and how to mend it. A verdict closes it."""
    lines: list[str] = []
    for check in found:
        lines.append(f"{check.verdict:<5} {check.name:<20} {check.what}")
        if check.loses:
            lines.append(f"{'':<26} without it: {check.loses}")
        if check.remedy:
            lines.append(f"{'':<26} -> {check.remedy}")
    failed = [check.name for check in found if check.verdict == "FAIL"]
    warned = [check.name for check in found if check.verdict == "warn"]
    if failed:
        lines.append(f"offtop cannot run here: {', '.join(failed)}")
    elif warned:
        lines.append(f"offtop runs here; it would be better with: {', '.join(warned)}")
    else:
        lines.append("offtop runs here, and lacks nothing")
    return "\n".join(lines)


def as_json(found: Sequence[Check]) -> str:
    """An array of objects with the members of a Check."""
    return json.dumps([asdict(check) for check in found], indent=2)


def capabilities(status_file: str = "/proc/self/status") -> frozenset[str]:
    """Which of CAPABILITIES this process holds. CAP_SYS_ADMIN brings CAP_BPF and CAP_PERFMON (bpf_capable())."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path(status_file).read_text(), re.MULTILINE)
    mask = int(found[1], 16) if found else 0
    held = {name for name, bit in CAPABILITIES.items() if mask >> bit & 1}
    if "CAP_SYS_ADMIN" in held:
        held |= {"CAP_BPF", "CAP_PERFMON"}
    return frozenset(held)


def privileges(held: frozenset[str]) -> Check:
    missing = [name for name in ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_SYSLOG") if name not in held]
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    if not missing:
        return Check("privileges", "ok", who)
    what = f"{who}, without {', '.join(missing)}"
    if "CAP_BPF" in missing or "CAP_PERFMON" in missing:
        return Check("privileges", "FAIL", what, "sudo offtop", "everything: the kernel lets nobody else watch it")
    lost = {"CAP_SYS_PTRACE": "the names in other users' stacks", "CAP_SYSLOG": "kernel symbols, and so categories"}
    return Check("privileges", "warn", what, "sudo offtop", "; ".join(lost[name] for name in missing))


def kernel() -> Check:
    return Check("kernel", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")


def lockdown(file: str = "/sys/kernel/security/lockdown") -> Check:
    """`confidentiality` forbids BPF to read kernel memory; `integrity` does not (security/lockdown)."""
    try:
        found = re.search(r"\[(\w+)\]", Path(file).read_text())
    except OSError:
        return Check("lockdown", "ok", "off, or not shown here")
    level = found[1] if found else "none"
    if level != "confidentiality":
        return Check("lockdown", "ok", level)
    return Check(
        "lockdown",
        "FAIL",
        "confidentiality: BPF may not read kernel memory",
        "boot without lockdown=confidentiality (it can only be changed at boot)",
        "everything: stacks and states are kernel memory",
    )


def libbpf() -> Check:
    try:
        return Check("libbpf", "ok", str(getattr(library(), "_name", "")))
    except KernelError:
        return Check(
            "libbpf", "FAIL", "libbpf.so.1 is missing", _install("libbpf1", "libbpf"), "the kernel's types and maps"
        )


def bpf(held: frozenset[str]) -> Check:
    """Makes the smallest map there is, and closes it."""
    failed = _cannot_make_map(8)
    if failed is None:
        return Check("bpf(2)", "warn", "unknown without libbpf", libbpf().remedy)
    if not failed:
        return Check("bpf(2)", "ok", "a map could be made")
    if "CAP_BPF" not in held:
        return Check("bpf(2)", "warn", "unknown without CAP_BPF", "sudo offtop doctor")
    remedy = {
        errno.ENOSYS: "use a kernel with CONFIG_BPF_SYSCALL=y, as the distributions' kernels are",
        errno.EPERM: "in a container, allow the system call: docker run --privileged --pid=host",
    }.get(failed, "see dmesg for the reason")
    return Check("bpf(2)", "FAIL", f"the kernel refuses: {os.strerror(failed)}", remedy, "everything")


def memlock(held: frozenset[str]) -> Check:
    """Until d5299b67dd59 (5.11) maps counted against RLIMIT_MEMLOCK; since then against the memory cgroup."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KB"
    if limit == resource.RLIM_INFINITY or _cannot_make_map(_BIG_MAP_BYTES) == 0:
        return Check("locked memory", "ok", f"limit {shown}; a map of {_BIG_MAP_BYTES >> 20} MB fits")
    if "CAP_BPF" not in held or _cannot_make_map(8) != 0:
        return Check("locked memory", "ok", f"limit {shown}; whether it matters is unknown without bpf(2)")
    return Check(
        "locked memory",
        "warn",
        f"limit {shown}, and this kernel counts maps against it",
        "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)",
        "room for many threads and stacks",
    )


def btf() -> Check:
    if _types() is not None:
        return Check("BTF", "ok", "/sys/kernel/btf/vmlinux")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        what, remedy = "the kernel does not describe its types", "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
    else:
        what, remedy = "it is there, and libbpf could not read it", _install("libbpf1", "libbpf")
    return Check("BTF", "FAIL", what, remedy, "everything: where the kernel keeps a thread's state")


def task_struct() -> Check:
    """Whether the kernel's description of a thread has what offtop reads of it."""
    types = _types()
    if types is None:
        return _unknown("task_struct")
    try:
        features.find(types)
    except KernelError as error:
        return Check("task_struct", "FAIL", str(error), "report it, with the output of: uname -r", "everything")
    return Check("task_struct", "ok", "has the members that offtop reads")


def door() -> Check:
    """How the kernel can tell that a thread is back."""
    known = _features()
    if known is None:
        return _unknown("door")
    late = "stacks are walked on return, and only for long waits"
    if known.doors[0] == "exit":
        return Check("door", "ok", f"exit (sched_exit_tp): {late}")
    if known.doors[0] == "kprobe":
        return Check("door", "ok", f"kprobe ({known.kprobe_symbol}): {late}")
    return Check(
        "door",
        "warn",
        "switch: neither sched_exit_tp nor a kprobe on finish_task_switch",
        "use a kernel with CONFIG_KPROBES=y, or one with sched_exit_tp (Linux 6.16)",
        "the low cost: stacks are walked at every switch, as other tools do; and what waits that ended were on",
    )


def tracefs() -> Check:
    """Only kprobes of old kernels go through it; raw tracepoints never do."""
    for place in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        try:
            if (Path(place) / "events").is_dir():
                return Check("tracefs", "ok", place)
        except PermissionError:
            return Check("tracefs", "ok", f"{place}, for root only")
    known = _features()
    if known is not None and known.doors[0] == "exit":
        return Check("tracefs", "ok", "not mounted, and not needed for this door")
    return Check(
        "tracefs",
        "warn",
        "not mounted",
        "sudo mount -t tracefs nodev /sys/kernel/tracing",
        "kprobes, where the kernel has no other way to attach them",
    )


def task_storage() -> Check:
    """Came with a10787e6d58c (5.11) and, for tracing programs, 4cf1bc1f1045."""
    known = _features()
    if known is None:
        return _unknown("task storage")
    if known.task_storage:
        return Check("task storage", "ok", "a thread's record is kept with the thread")
    return Check(
        "task storage",
        "warn",
        "none; threads' records are kept in a table",
        "use a kernel from 5.11 on",
        "some of the low cost: each switch looks its thread up",
    )


def task_iterator() -> Check:
    """Came with eaaacd23910f (5.8)."""
    types = _types()
    if types is None:
        return _unknown("task iterator")
    if types.has_struct("bpf_iter__task"):
        return Check("task iterator", "ok", "waits in progress are seen, those from before offtop too")
    return Check(
        "task iterator",
        "FAIL",
        "this kernel cannot walk its tasks for BPF",
        "use a kernel from 5.8 on",
        "everything: names of threads and waits in progress",
    )


def run_delay() -> Check:
    """The kernel keeps it with CONFIG_SCHED_INFO, which CONFIG_SCHEDSTATS and CONFIG_TASK_DELAY_ACCT bring."""
    known = _features()
    if known is None:
        return _unknown("run-queue time")
    if not known.waking:
        return Check("run-queue time", "ok", "the kernel keeps it for each thread (run_delay)")
    return Check(
        "run-queue time",
        "warn",
        "no run_delay; by sched_waking instead",
        "use a kernel with CONFIG_SCHED_INFO=y, as the distributions' kernels are",
        "some of the low cost: each wakeup runs a program too",
    )


def wakers() -> Check:
    """Whether who ends a wait can be told: by the program at sched_waking, where run-queue time needs that anyway; else
    by one of the type that came with f1b9509c2fb0 (5.5), loaded once somebody asks."""
    known = _features()
    if known is None:
        return _unknown("wakers")
    if known.waking or known.doors[0] == "switch":
        return Check("wakers", "ok", "at sched_waking, for run-queue time, too")
    if known.waking_type is not None:
        return Check("wakers", "ok", "at sched_waking, while a mode asks for them")
    return Check(
        "wakers",
        "warn",
        "the kernel does not describe its tracepoint sched_waking",
        "use a kernel from 5.5 on with CONFIG_DEBUG_INFO_BTF=y; or stay with: offtop --mode offcpu",
        "the modes wakeup, offwake and chain: who ends a wait",
    )


def uprobes(machine: str = platform.machine()) -> Check:
    """What --within asks for."""
    known, loses = _features(), "--within: only waits inside of one function of a program"
    if known is None:
        return _unknown("uprobes")
    why = within.lacking(known, machine)
    if not why:
        return Check("uprobes", "ok", "calls of a program's functions can be watched (--within)")
    return Check("uprobes", "warn", why, "take -p, or --filter stack=, instead", loses)


def statistics(held: frozenset[str]) -> Check:
    """BPF_ENABLE_STATS came with d46edd671a14 (5.8) and asks for CAP_SYS_ADMIN."""
    try:
        os.close(enable_statistics())
    except KernelError:
        return Check("own cost", "warn", "unknown without libbpf", libbpf().remedy)
    except OSError as error:
        remedy = "use a kernel from 5.8 on" if "CAP_SYS_ADMIN" in held else "sudo offtop"
        return Check("own cost", "warn", error.strerror or str(error), remedy, "the ns per switch in the header")
    return Check("own cost", "ok", "the kernel counts what BPF programs take")


def kernel_symbols(held: frozenset[str]) -> Check:
    """Zeros without CAP_SYSLOG, or for everybody when kptr_restrict is 2 (kernel/ksyms_common.c)."""
    try:
        with Path("/proc/kallsyms").open() as file:
            seen = any(int(line.split(maxsplit=1)[0], 16) for line, _ in zip(file, range(100), strict=False))
    except OSError as error:
        return Check(
            "kernel symbols",
            "FAIL",
            f"/proc/kallsyms: {error.strerror}",
            "use a kernel with CONFIG_KALLSYMS=y",
            "all categories",
        )
    if seen:
        return Check("kernel symbols", "ok", "/proc/kallsyms")
    if "CAP_SYSLOG" not in held:
        return Check("kernel symbols", "warn", "/proc/kallsyms reads as zeros", "sudo offtop", "all categories")
    return Check(
        "kernel symbols",
        "FAIL",
        "/proc/kallsyms reads as zeros",
        "sudo sysctl kernel.kptr_restrict=1",
        "all categories: the names of kernel functions decide them",
    )


def perf_event_paranoid(held: frozenset[str]) -> Check:
    """Above 2 (a patch of Debian's and Ubuntu's kernels) perf events, and with them kprobes, need CAP_SYS_ADMIN."""
    try:
        level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except OSError:
        return Check("perf_event_paranoid", "ok", "this kernel has no perf events; offtop needs none but for kprobes")
    if level <= 2 or "CAP_SYS_ADMIN" in held:
        return Check("perf_event_paranoid", "ok", str(level))
    return Check(
        "perf_event_paranoid",
        "warn",
        f"{level}, without CAP_SYS_ADMIN",
        "sudo sysctl kernel.perf_event_paranoid=2",
        "kprobes, on kernels without sched_exit_tp",
    )


def bcc() -> Check:
    """Imported by a child, as offtop itself does: the compiler takes 100 MB."""
    program = "import runpy, sys; b = runpy.run_path(sys.argv[1])['import_bcc'](); print(b.__version__, b.__file__)"
    # -I: the directory that offtop is called from may hold another bcc
    command = [sys.executable, "-I", "-c", program, str(Path(__file__).with_name("compile.py"))]
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
        f"{_install('python3-bpfcc', 'python3-bcc')} (it comes from the distribution: PyPI's bcc is another project)",
        "everything: it compiles and attaches the BPF programs",
    )


def libdw() -> Check:
    try:
        ct.CDLL("libdw.so.1")
    except OSError:
        return Check(
            "libdw", "FAIL", "libdw.so.1 is missing", _install("libdw1", "elfutils-libs"), "user stacks and their names"
        )
    return Check("libdw", "ok", "user stacks by .eh_frame, and names with size checks")


def user_stacks() -> Check:
    """How those of the programs that run now will be walked, by what their binaries have."""
    found = _features()
    if found is None:
        return _unknown("user stacks")
    if not AUTO.is_ruled(found):
        return Check(
            "user stacks",
            "warn",
            f"along frame pointers, on {platform.machine()}",
            "build what you want to see whole with -fno-omit-frame-pointer; kernel stacks are whole anyway",
            "the callers in user stacks of programs without frame pointers",
        )
    ruled, others = programs_by_unwind_information()
    what = f".eh_frame in {len(ruled)} of {len(ruled) + len(others)} programs that run: {_some(ruled)}"
    if not others:
        return Check("user stacks", "ok", what)
    return Check(
        "user stacks",
        "warn",
        what,
        "gcc and clang make .eh_frame with -fasynchronous-unwind-tables",
        f"certainty about callers (~: by frame pointers, or guessed) in {_some(others)}",
    )


def programs_by_unwind_information() -> tuple[list[str], list[str]]:
    """Names of the binaries of running processes: those with .eh_frame's table, and those without."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    seen: set[tuple[int, int]] = set()
    for process in Path("/proc").glob("[0-9]*/exe"):
        try:
            fd = os.open(process, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:  # a kernel thread, one that has ended, or another user's
            continue
        try:
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                names[dwfl.has_unwind_table(fd)].add(printable(process.readlink().name))
        except OSError:
            continue
        finally:
            os.close(fd)
    return sorted(names[True]), sorted(names[False])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def pid_namespace() -> Check:
    types = _types()
    try:
        if not namespace.own():
            return Check("pid namespace", "ok", namespace.told({}))
        if types is None:
            return _unknown("pid namespace")
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
        return Check("sudo", "ok", "no sudo here")
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
    """Compiles offtop's own program, attaches it, and takes it away again."""
    known, types = _features(), _types()
    if known is None or types is None or any(check.verdict == "FAIL" for check in so_far):
        return Check("attaching", "warn", "not tried", "mend what failed above")
    try:
        attached = program.attach(known, defines=namespace.defines(types), anew=True)
    except OfftopError as error:
        return Check("attaching", "FAIL", str(error), "the sentence says it; if not, report it", "everything")
    door_in_use, version = attached.door, attached.bcc_version
    attached.close()
    return Check("attaching", "ok", f"compiled by bcc {version}, attached through the door '{door_in_use}'")


@cache
def _types() -> KernelTypes | None:
    try:
        return KernelTypes()
    except KernelError:
        return None


@cache
def _features() -> Features | None:
    types = _types()
    try:
        return None if types is None else features.find(types)
    except KernelError:
        return None


def _unknown(name: str) -> Check:
    return Check(name, "warn", "unknown without BTF", btf().remedy)


def _cannot_make_map(size: int) -> int | None:
    """errno of making an array of `size` bytes, 0 when it could be made; None where libbpf cannot be asked."""
    try:
        lib = library()
    except KernelError:
        return None
    if hasattr(lib, "bpf_map_create"):
        fd = lib.bpf_map_create(_ARRAY_MAP, None, 4, 8, size // 8, None)
    else:  # before libbpf 0.7
        fd = lib.bpf_create_map(_ARRAY_MAP, 4, 8, size // 8, 0)
    if fd < 0:
        return -fd if fd < -1 else ct.get_errno()
    os.close(fd)
    return 0


def _install(deb: str, rpm: str) -> str:
    return f"sudo dnf install {rpm}" if shutil.which("dnf") else f"sudo apt install {deb}"
