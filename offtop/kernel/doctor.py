"""`offtop doctor`: what works on this machine, what does not, and the command that mends it.

Each check asks for the feature itself and never goes by the kernel's version. It changes nothing, and
needs no privilege: what cannot be seen without one is said to be unknown. What is not needed here, for there is
something better, is said to be so.
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
from offtop.kernel import dwfl, features, namespace, probes, program, ready, within
from offtop.kernel import privileges as rights
from offtop.kernel.features import Features
from offtop.kernel.libbpf import KernelTypes, library
from offtop.kernel.privileges import CAPABILITIES, capabilities
from offtop.kernel.program import AUTO
from offtop.model.printable import printable

Verdict = Literal["ok", "warn", "FAIL"]
State = Literal["there", "missing", "unneeded", "unknown"]

_SECURE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What sudo looks through, where it does not tell (only root may ask it)."""
_GET_STACK, _GET_CURRENT_TASK_BTF = 67, 158  # enum bpf_func_id
_BIG_MAP_BYTES = 16 << 20
_MOST_NAMED = 12
_REMEDY_FOR_DOOR = "use a kernel with CONFIG_KPROBES=y, or one with sched_exit_tp (Linux 6.16)"
_LOW_COST = "the low cost: stacks are walked at every switch, as other tools do; and what waits that ended were on"


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
    state: State | None = None
    """`unneeded`: it is not there, or is not used, and nothing is lost by that; `unknown`: it takes a privilege, or
    what failed before it, to tell. None: it is there where the verdict is ok, else it is missing."""


def checks() -> list[Check]:
    """All of them, the most fundamental first; the last attaches offtop's program for a moment."""
    found = conditions()
    return [*found, attaching(found)]


def conditions() -> list[Check]:
    """What this machine is like, whatever offtop's own program makes of it."""
    held = capabilities()
    return [
        privileges(held),
        *(capability(name, held) for name in CAPABILITIES),
        kernel(),
        lockdown(),
        libbpf(),
        bpf(held),
        memlock(held),
        btf(),
        task_struct(),
        raw_tracepoints(held),
        state_at_leaving(),
        door(),
        kprobes(),
        tracefs(),
        perf_event_paranoid(held),
        current_task(held),
        task_storage(),
        task_iterator(),
        batches(held),
        ring_buffer(held),
        run_delay(),
        schedstat(),
        wakers(),
        uprobes(),
        statistics(held),
        kernel_symbols(held),
        stack_walks(held),
        registers(),
        other_processes(held),
        bcc(),
        kept_programs(),
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
    if failed and _samples(found):
        lines.append(f"offtop cannot use BPF here, and samples /proc instead: {', '.join(failed)}")
    elif failed:
        lines.append(f"offtop cannot run here: {', '.join(failed)}")
    elif warned:
        lines.append(f"offtop runs here; it would be better with: {', '.join(warned)}")
    else:
        lines.append("offtop runs here, and lacks nothing")
    return "\n".join(lines)


def _samples(found: Sequence[Check]) -> bool:
    """Whether what fails is BPF's, and the other source has what it needs."""
    verdicts = {check.name: check.verdict for check in found}
    has_schedstat = any(check.name == "schedstat" and check.state != "unneeded" for check in found)
    return has_schedstat and "FAIL" not in (verdicts.get("libdw"), verdicts.get("pid namespace"))


def as_json(found: Sequence[Check]) -> str:
    """An array of objects with the members of a Check; each has a state."""
    states = {check.name: check.state or ("there" if check.verdict == "ok" else "missing") for check in found}
    return json.dumps([{**asdict(check), "state": states[check.name]} for check in found], indent=2)


def privileges(held: frozenset[str], confined: bool | None = None) -> Check:
    """`confined`: privileges.is_confined(), if not asked."""
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    everything = "all that BPF tells: the kernel lets nobody else watch it"
    if rights.is_confined() if confined is None else confined:
        remedy = "sudo offtop, outside of it: a rootless container cannot"
        return Check("privileges", "FAIL", f"{who} of a user namespace only", remedy, everything)
    missing = [name for name in (*rights.NEEDED, *rights.WANTED) if name not in held]
    if not missing:
        return Check("privileges", "ok", who)
    what = f"{who}, without {', '.join(missing)}"
    if not held.issuperset(rights.NEEDED):
        return Check("privileges", "FAIL", what, "sudo offtop", everything)
    lost = "; ".join(CAPABILITIES[name].loses for name in missing)
    return Check("privileges", "warn", what, "sudo offtop", lost)


def capability(name: str, held: frozenset[str]) -> Check:
    if name in held:
        return Check(name, "ok", "held")
    remedy = f"sudo offtop; in a container: docker run --cap-add {name.removeprefix('CAP_')}"
    return Check(name, "warn", "not held", remedy, CAPABILITIES[name].loses)


def kernel() -> Check:
    return Check("kernel", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")


def lockdown(file: str = "/sys/kernel/security/lockdown") -> Check:
    """`confidentiality` forbids BPF to read kernel memory; `integrity` does not (security/lockdown)."""
    try:
        found = re.search(r"\[(\w+)\]", Path(file).read_text())
    except OSError:
        return Check("lockdown", "ok", "off, or not shown here", state="unneeded")
    level = found[1] if found else "none"
    if level != "confidentiality":
        return Check("lockdown", "ok", level, state="unneeded")
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
    failed = probes.a_map(8)
    if failed is None:
        return Check("bpf(2)", "warn", "unknown without libbpf", libbpf().remedy, state="unknown")
    if not failed:
        return Check("bpf(2)", "ok", "a map could be made")
    if "CAP_BPF" not in held:
        return Check("bpf(2)", "warn", "unknown without CAP_BPF", "sudo offtop doctor", state="unknown")
    remedy = {
        errno.ENOSYS: "use a kernel with CONFIG_BPF_SYSCALL=y, as the distributions' kernels are",
        errno.EPERM: "in a container, let its seccomp profile allow it: docker run --security-opt seccomp=unconfined",
    }.get(failed, "see dmesg for the reason")
    return Check("bpf(2)", "FAIL", f"the kernel refuses: {os.strerror(failed)}", remedy, "everything")


def _is_refused() -> bool:
    """Whether no bpf(2) at all is let through, as by the seccomp profile of a container."""
    return probes.a_map(8) == errno.EPERM


def memlock(held: frozenset[str]) -> Check:
    """Until d5299b67dd59 (5.11) maps counted against RLIMIT_MEMLOCK; since then against the memory cgroup."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KB"
    if limit == resource.RLIM_INFINITY:
        return Check("locked memory", "ok", f"limit {shown}")
    if probes.a_map(_BIG_MAP_BYTES) == 0:
        what = f"limit {shown}, which this kernel does not count maps against: one of {_BIG_MAP_BYTES >> 20} MB fits"
        return Check("locked memory", "ok", what, state="unneeded")
    if "CAP_BPF" not in held or probes.a_map(8) != 0:
        what = f"limit {shown}; whether it matters is unknown without bpf(2)"
        return Check("locked memory", "ok", what, state="unknown")
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


def raw_tracepoints(held: frozenset[str]) -> Check:
    """Came with c4f6699dfcb8 (4.17)."""
    failed = probes.raw_tracepoint("sched_switch") if _may_load(held) else None
    if failed is None:
        return _unasked("raw tracepoints", held)
    if not failed:
        return Check("raw tracepoints", "ok", "a program could be attached to sched_switch")
    return Check(
        "raw tracepoints",
        "FAIL",
        f"sched_switch cannot be attached to: {os.strerror(failed)}",
        "use a kernel from 4.17 on with CONFIG_BPF_EVENTS=y, as the distributions' kernels are",
        "everything: when a thread leaves its CPU",
    )


def state_at_leaving() -> Check:
    """An argument of sched_switch since fa2c3254d7cf (5.18)."""
    known = _features()
    if known is None:
        return _unknown("state at leaving")
    if known.state_argument:
        return Check("state at leaving", "ok", "sched_switch tells it, as its fourth argument")
    return Check(
        "state at leaving",
        "warn",
        "sched_switch does not tell it; it is read from the thread",
        "use a kernel from 5.18 on",
        "certainty about threads that are woken while they leave: they may count as ready from the beginning",
    )


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
        _REMEDY_FOR_DOOR,
        _LOW_COST,
    )


def kprobes() -> Check:
    """Only for the door of that name."""
    known = _features()
    if known is None:
        return _unknown("kprobes")
    if known.kprobe_symbol:
        return Check("kprobes", "ok", f"{known.kprobe_symbol} can be probed")
    what = "none, or not of finish_task_switch"
    if known.doors[0] == "exit":
        return Check("kprobes", "ok", f"{what}; not needed, with sched_exit_tp", state="unneeded")
    return Check("kprobes", "warn", what, _REMEDY_FOR_DOOR, _LOW_COST)


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
        return Check("tracefs", "ok", "not mounted, and not needed for this door", state="unneeded")
    return Check(
        "tracefs",
        "warn",
        "not mounted",
        "sudo mount -t tracefs nodev /sys/kernel/tracing",
        "kprobes, where the kernel has no other way to attach them",
    )


def current_task(held: frozenset[str]) -> Check:
    """Came with 3ca1032ab7ab (5.11)."""
    known, remedy = _features(), "use a kernel from 5.11 on"
    if known is None or known.typed_task:
        return _helper("current task", _GET_CURRENT_TASK_BTF, "bpf_get_current_task_btf", remedy, held)
    return Check(
        "current task",
        "warn",
        "no bpf_get_current_task_btf; what is read of a thread is copied first",
        remedy,
        "some of the low cost: each switch makes these copies",
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


def batches(held: frozenset[str]) -> Check:
    """Came with 057996380a42 (5.6)."""
    failed = probes.batches() if "CAP_BPF" in held else None
    if failed is None or _is_refused():
        return _unasked("batch operations", held)
    if not failed:
        return Check("batch operations", "ok", "a table is emptied in a few calls")
    what, lost = f"a table cannot be emptied at once: {os.strerror(failed)}", "everything: what was counted is read so"
    return Check("batch operations", "FAIL", what, "use a kernel from 5.6 on", lost)


def ring_buffer(held: frozenset[str]) -> Check:
    """Came with 457f44363a88 (5.8)."""
    failed = probes.ring_buffer() if "CAP_BPF" in held else None
    if failed is None or _is_refused():
        return _unasked("ring buffer", held)
    if not failed:
        return Check("ring buffer", "ok", "stacks are copied and long waits are told through one")
    what = f"none could be made: {os.strerror(failed)}"
    return Check("ring buffer", "FAIL", what, "use a kernel from 5.8 on", "everything: its programs have one")


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


def schedstat() -> Check:
    """Of CONFIG_SCHED_INFO, as run_delay."""
    try:
        numbers = Path("/proc/self/schedstat").read_text().split()
    except OSError:
        numbers = []
    if len(numbers) == 3 and any(map(int, numbers)):
        return Check("schedstat", "ok", "/proc tells run-queue time, where BPF is refused")
    return Check("schedstat", "ok", "not told by /proc, and only sampling needs it", state="unneeded")


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
    failed = probes.statistics()
    if failed is None:
        return Check("own cost", "warn", "unknown without libbpf", libbpf().remedy, state="unknown")
    if not failed:
        return Check("own cost", "ok", "the kernel counts what BPF programs take")
    remedy = "use a kernel from 5.8 on" if "CAP_SYS_ADMIN" in held else "sudo offtop, or add CAP_SYS_ADMIN"
    return Check("own cost", "warn", os.strerror(failed), remedy, "the ns per switch in the header")


def kernel_symbols(held: frozenset[str]) -> Check:
    """Zeros without CAP_SYSLOG, or for everybody when kptr_restrict is 2 (kernel/ksyms_common.c)."""
    lost = CAPABILITIES["CAP_SYSLOG"].loses
    try:
        with Path("/proc/kallsyms").open() as file:
            seen = any(int(line.split(maxsplit=1)[0], 16) for line, _ in zip(file, range(100), strict=False))
    except OSError as error:
        what = f"/proc/kallsyms: {error.strerror}"
        return Check("kernel symbols", "warn", what, "use a kernel with CONFIG_KALLSYMS=y", lost)
    if seen:
        return Check("kernel symbols", "ok", "/proc/kallsyms")
    remedy = "sudo sysctl kernel.kptr_restrict=1" if "CAP_SYSLOG" in held else "sudo offtop"
    return Check("kernel symbols", "warn", "/proc/kallsyms shows no addresses", remedy, lost)


def stack_walks(held: frozenset[str]) -> Check:
    """Came with c195651e565a (4.18)."""
    return _helper("stack walks", _GET_STACK, "bpf_get_stack", "use a kernel from 4.18 on", held)


def _helper(name: str, number: int, function: str, remedy: str, held: frozenset[str]) -> Check:
    """Whether programs may call one of the kernel's functions without which offtop's cannot be."""
    found = probes.helper(number) if _may_load(held) else None
    if found is None:
        return _unasked(name, held)
    if found:
        return Check(name, "ok", f"programs may call {function}")
    return Check(name, "FAIL", f"programs may not call {function}", remedy, "everything")


def registers() -> Check:
    """bpf_task_pt_regs came with dd6e10fbd9fb (5.15)."""
    known = _features()
    if known is None:
        return _unknown("user registers")
    if known.registers:
        return Check("user registers", "ok", "of waiting threads, too (bpf_task_pt_regs)")
    return Check(
        "user registers",
        "warn",
        "not told by this kernel (bpf_task_pt_regs)",
        f"use a kernel from 5.15 on, on x86-64 or arm64 (this is {platform.machine()})",
        "user stacks by .eh_frame, those of waits in progress, and system calls with what they wait on",
    )


def other_processes(held: frozenset[str]) -> Check:
    """By asking each for its memory, at an address where nothing is."""
    told = [probes.memory_of(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdecimal()]
    told = [failed for failed in told if failed != errno.ESRCH]  # threads of the kernel's, and who has ended
    closed = told.count(errno.EPERM)
    if not closed:
        return Check("other processes", "ok", "their memory, files and mappings can be read")
    what, lost = f"{closed} of {len(told)} may not be looked into", CAPABILITIES["CAP_SYS_PTRACE"].loses
    if "CAP_SYS_PTRACE" not in held:
        return Check("other processes", "warn", what, "sudo offtop", lost)
    if closed < len(told):
        return Check("other processes", "ok", f"{what}: they are protected, even from root")
    remedy = "boot with kernel.yama.ptrace_scope below 3; in a container: allow process_vm_readv (seccomp)"
    return Check("other processes", "warn", what, remedy, lost)


def perf_event_paranoid(held: frozenset[str]) -> Check:
    """Above 2 (a patch of Debian's and Ubuntu's kernels) perf events, and with them kprobes, need CAP_SYS_ADMIN."""
    try:
        level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except OSError:
        what = "this kernel has no perf events, which only kprobes and --within need"
        return Check("perf_event_paranoid", "ok", what, state="unneeded")
    if level <= 2 or "CAP_SYS_ADMIN" in held:
        return Check("perf_event_paranoid", "ok", str(level))
    return Check(
        "perf_event_paranoid",
        "warn",
        f"{level}, without CAP_SYS_ADMIN",
        "sudo sysctl kernel.perf_event_paranoid=2",
        "--within, and kprobes, on kernels without sched_exit_tp",
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


def kept_programs() -> Check:
    """Whether the next start can do without the compiler."""
    name, where = "kept programs", ready.directory()
    if where is None:
        said = os.environ.get(ready.VARIABLE)
        if not said:
            why = f"by {ready.VARIABLE}" if said == "" else f"without root, unless {ready.VARIABLE} names a directory"
            return Check(name, "ok", f"none {why}", state="unneeded")
        where, why = Path(said), "its path is not absolute"
    else:
        why = ready.trouble(where)
    shown = printable(str(where))
    if not why:
        return Check(name, "ok", f"in {shown}")
    return Check(
        name,
        "warn",
        f"none, in {shown}: {why}",
        f"let {ready.VARIABLE} name a directory that only this user can write to",
        "half of the time that a start takes: the BPF programs are compiled each time",
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
    """Compiles offtop's own program, attaches it, and takes it away again."""
    known, types = _features(), _types()
    if known is None or types is None or any(check.verdict == "FAIL" for check in so_far):
        return Check("attaching", "warn", "not tried", "mend what failed above", state="unknown")
    try:
        attached = program.attach(known, defines=namespace.defines(types), anew=True)
    except OfftopError as error:
        return Check("attaching", "FAIL", str(error), "the sentence says it; if not, report it", "everything")
    attached.close()
    what = f"compiled by bcc {attached.bcc_version}, attached through the door '{attached.door}'"
    if attached.unwind == AUTO or not AUTO.is_ruled(known):
        return Check("attaching", "ok", what)
    lost = "user stacks by .eh_frame: they go along frame pointers"
    return Check("attaching", "warn", f"{what}, without rules for user stacks", "report it, with uname -r", lost)


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
    return Check(name, "warn", "unknown without BTF", btf().remedy, state="unknown")


def _may_load(held: frozenset[str]) -> bool:
    """Whether a program may be loaded, so that the kernel's answer is about the program."""
    return held.issuperset(rights.NEEDED) and probes.a_map(8) == 0


def _unasked(name: str, held: frozenset[str]) -> Check:
    missing = [one for one in rights.NEEDED if one not in held]
    if missing:
        return Check(name, "warn", f"unknown without {', '.join(missing)}", "sudo offtop doctor", state="unknown")
    return Check(name, "warn", "unknown without bpf(2), or libbpf from 0.7 on", "see above", state="unknown")


def _install(deb: str, rpm: str) -> str:
    return f"sudo dnf install {rpm}" if shutil.which("dnf") else f"sudo apt install {deb}"
