"""Checks of what this process may do, and of what the kernel offers it. Each asks for the feature itself."""

import errno
import os
import platform
import re
import resource
from pathlib import Path

from offtop.errors import KernelError
from offtop.kernel import features, probes, within
from offtop.kernel import privileges as rights
from offtop.kernel.check import Check, features_found, kernel_types, unknown
from offtop.kernel.distribution import install
from offtop.kernel.libbpf import library
from offtop.kernel.privileges import CAPABILITIES

_GET_STACK, _GET_CURRENT_TASK_BTF = 67, 158  # enum bpf_func_id
_BIG_MAP_BYTES = 16 << 20
_REMEDY_FOR_DOOR = "use a kernel with CONFIG_KPROBES=y, or one with sched_exit_tp (Linux 6.16)"
_OUTSIDE = "sudo offtop, outside of it: a rootless container cannot"
_LOW_COST = "the low cost: stacks are walked at every switch, as other tools do; and what waits that ended were on"


def privileges(held: frozenset[str], confined: bool | None = None) -> Check:
    """`confined`: privileges.is_confined(), if not asked."""
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    everything = "all that BPF tells: the kernel lets nobody else watch it"
    if rights.is_confined() if confined is None else confined:
        return Check("privileges", "FAIL", f"{who} of a user namespace only", _OUTSIDE, everything)
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
    if name in rights.NEEDED:
        remedy += ", or SYS_ADMIN where that is not known (docker 20.10)"
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
            "libbpf", "FAIL", "libbpf.so.1 is missing", install("libbpf1", "libbpf"), "the kernel's types and maps"
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
    remedy = _OUTSIDE if rights.is_confined() else remedy
    return Check("bpf(2)", "FAIL", f"the kernel refuses: {os.strerror(failed)}", remedy, "all that BPF tells")


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


def task_struct() -> Check:
    """Whether the kernel's description of a thread has what offtop reads of it."""
    types = kernel_types()
    if types is None:
        return unknown("task_struct")
    try:
        features.find(types)
    except KernelError as error:
        return Check("task_struct", "FAIL", str(error), "report it, with the output of: uname -r", "all that BPF tells")
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
    known = features_found()
    if known is None:
        return unknown("state at leaving")
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
    known = features_found()
    if known is None:
        return unknown("door")
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
    known = features_found()
    if known is None:
        return unknown("kprobes")
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
    known = features_found()
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
    known, remedy = features_found(), "use a kernel from 5.11 on"
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
    known = features_found()
    if known is None:
        return unknown("task storage")
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
    types = kernel_types()
    if types is None:
        return unknown("task iterator")
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
    known = features_found()
    if known is None:
        return unknown("run-queue time")
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
    known = features_found()
    if known is None:
        return unknown("wakers")
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
    known, loses = features_found(), "--within: only waits inside of one function of a program"
    if known is None:
        return unknown("uprobes")
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
    remedy = _OUTSIDE if rights.is_confined() else remedy
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
    remedy = _OUTSIDE if rights.is_confined() else remedy
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
    return Check(name, "FAIL", f"programs may not call {function}", remedy, "all that BPF tells")


def registers() -> Check:
    """bpf_task_pt_regs came with dd6e10fbd9fb (5.15)."""
    known = features_found()
    if known is None:
        return unknown("user registers")
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
    if rights.is_confined():
        return Check("other processes", "warn", what, _OUTSIDE, lost)
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


def _may_load(held: frozenset[str]) -> bool:
    """Whether a program may be loaded, so that the kernel's answer is about the program."""
    return held.issuperset(rights.NEEDED) and probes.a_map(8) == 0


def _unasked(name: str, held: frozenset[str]) -> Check:
    missing = [one for one in rights.NEEDED if one not in held]
    if missing:
        return Check(name, "warn", f"unknown without {', '.join(missing)}", "sudo offtop doctor", state="unknown")
    return Check(name, "warn", "unknown without bpf(2), or libbpf from 0.7 on", "see above", state="unknown")
