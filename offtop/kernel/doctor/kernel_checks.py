"""Checks of what this process may do, and of what the kernel offers it. Each asks for the feature itself."""

import errno
import os
import platform
import re
from pathlib import Path

from offtop.errors import KernelError
from offtop.kernel.bpf import features, probes
from offtop.kernel.bpf import privileges as rights
from offtop.kernel.bpf.distribution import install
from offtop.kernel.bpf.libbpf import library
from offtop.kernel.bpf.privileges import CAPABILITIES
from offtop.kernel.bpf.switch_maps import MapInternals, map_internals, safe_maps
from offtop.kernel.doctor.check import Check, features_found, kernel_types, unknown
from offtop.kernel.scope import within

_REMEDY_FOR_PROBE = "use a kernel with CONFIG_KPROBES=y, or one with sched_exit_tp (Linux 6.16)"
_EVERYTHING = "all that BPF tells: the kernel lets nobody else watch it"
_OUTSIDE = "sudo offtop, outside of it: a rootless container cannot"
_LOW_COST = "the low cost: stacks are walked at every switch, as other tools do; and what waits that ended were on"


def privileges(held: frozenset[str], confined: bool | None = None) -> Check:
    """`confined`: privileges.is_confined(), if not asked."""
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    everything = _EVERYTHING
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


def kernel(release: str = platform.release()) -> Check:
    """The one check of a version, see features.too_old()."""
    what = f"{platform.system()} {release} {platform.machine()}"
    if not features.too_old(release):
        return Check("kernel", "ok", what)
    return Check("kernel", "FAIL", f"{what}: offtop traces Linux 5.14 and newer", "update the kernel", _EVERYTHING)


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


def task_struct() -> Check:
    """Whether the kernel's description of a thread has what offtop reads of it."""
    types = kernel_types()
    if types is None:
        return unknown("task_struct")
    if features.too_old(platform.release()):
        return Check("task_struct", "warn", "not looked at: the kernel is too old", kernel().remedy, state="unknown")
    try:
        features.find(types)
    except KernelError as error:
        return Check("task_struct", "FAIL", str(error), "report it, with the output of: uname -r", "all that BPF tells")
    return Check("task_struct", "ok", "has the members that offtop reads")


def raw_tracepoints(held: frozenset[str]) -> Check:
    """Whether a program can be attached."""
    failed = probes.raw_tracepoint("sched_switch") if _may_load(held) else None
    if failed is None:
        return _unasked("raw tracepoints", held)
    if not failed:
        return Check("raw tracepoints", "ok", "a program could be attached to sched_switch")
    return Check(
        "raw tracepoints",
        "FAIL",
        f"sched_switch cannot be attached to: {os.strerror(failed)}",
        "use a kernel with CONFIG_BPF_EVENTS=y, as the distributions' kernels are",
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


def switch_in_probe() -> Check:
    """How the kernel tells that a thread is back on a CPU."""
    name, known = "switch-in probe", features_found()
    if known is None:
        return unknown(name)
    late = "stacks are walked on return, and only for long waits"
    if known.doors[0] == "exit":
        return Check(name, "ok", f"exit (sched_exit_tp): {late}")
    if known.doors[0] == "kprobe":
        return Check(name, "ok", f"kprobe ({known.kprobe_symbol}): {late}")
    what = "switch: neither sched_exit_tp nor a kprobe on finish_task_switch"
    return Check(name, "warn", what, _REMEDY_FOR_PROBE, _LOW_COST)


def kprobes() -> Check:
    """Only the switch-in probe of that name needs them."""
    known = features_found()
    if known is None:
        return unknown("kprobes")
    if known.kprobe_symbol:
        return Check("kprobes", "ok", f"{known.kprobe_symbol} can be probed")
    what = "none, or not of finish_task_switch"
    if known.doors[0] == "exit":
        return Check("kprobes", "ok", f"{what}; not needed, with sched_exit_tp", state="unneeded")
    return Check("kprobes", "warn", what, _REMEDY_FOR_PROBE, _LOW_COST)


def task_storage() -> Check:
    """Whether programs may create it in sched_switch (switch_maps.py)."""
    types = kernel_types()
    return unknown("task storage") if types is None else task_storage_of(map_internals(types))


def task_storage_of(internals: MapInternals, machine: str = platform.machine()) -> Check:
    name = "task storage"
    if safe_maps(internals, machine).task_storage:
        return Check(name, "ok", f"a thread's record is kept with the thread ({internals.storage_allocator})")
    what = "creating it is not safe at a switch ({}), so threads' records are in a preallocated table"
    loses = "some of the low cost: a switch takes about 70 ns more"
    if internals.storage_allocator == "kmalloc":
        why = "this kernel allocates it by kmalloc, which may deadlock there"
        return Check(name, "warn", what.format(why), "use a kernel from 6.4 on", loses)
    why = "kmalloc_nolock() fails there on a real-time kernel"
    if not internals.spinlocks_sleep:
        why = f"kmalloc_nolock() fails on {machine}"
    return Check(name, "ok", what.format(why), state="unneeded")


def ring_buffer(held: frozenset[str]) -> Check:
    """Whether programs may write to one in sched_switch (switch_maps.py)."""
    types = kernel_types()
    if types is None:
        return unknown("ring buffer")
    if not safe_maps(map_internals(types)).ring_buffer:
        return _without_ring_buffer()
    failed = probes.ring_buffer() if "CAP_BPF" in held else None
    if failed is None or _is_refused():
        return _unasked("ring buffer", held)
    if not failed:
        return Check("ring buffer", "ok", "stacks are copied and long waits are told through one")
    what = f"none could be made: {os.strerror(failed)}"
    return Check("ring buffer", "FAIL", what, "see dmesg for the reason", "everything: its programs have one")


def _without_ring_buffer() -> Check:
    return Check(
        "ring buffer",
        "warn",
        "on this real-time kernel its lock may sleep, so offtop does without",
        "use a kernel from 6.12 on",
        "single outliers, and user stacks by .eh_frame: they follow frame pointers",
    )


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
    by one that knows its argument's type, loaded once somebody asks."""
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
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y; or stay with: offtop --mode offcpu",
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
    """BPF_ENABLE_STATS asks for CAP_SYS_ADMIN."""
    failed = probes.statistics()
    if failed is None:
        return Check("own cost", "warn", "unknown without libbpf", libbpf().remedy, state="unknown")
    if not failed:
        return Check("own cost", "ok", "the kernel counts what BPF programs take")
    remedy = "sudo offtop, or add CAP_SYS_ADMIN"
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
