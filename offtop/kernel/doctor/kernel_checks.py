"""Checks of the privileges of this process, and of the kernel's features. Each tests the feature itself."""

import errno
import os
import platform
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from offtop.errors import KernelError
from offtop.kernel.bpf import disk_program, features, file_program, map_sizes, probes
from offtop.kernel.bpf import privileges as rights
from offtop.kernel.bpf.distribution import install_command
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.libbpf import library
from offtop.kernel.bpf.privileges import CAPABILITIES
from offtop.kernel.bpf.program import possible_cpus
from offtop.kernel.bpf.switch_maps import MapInternals, map_internals, safe_maps
from offtop.kernel.doctor.check import Check, features_found, kernel_types, unknown
from offtop.kernel.procfs.direct_reads import every_pid
from offtop.kernel.scope import within
from offtop.units import size

_REMEDY_FOR_PROBE = "use a kernel with CONFIG_KPROBES=y, or one with sched_exit_tp (Linux 6.16)"
_EVERYTHING = "all BPF data: the kernel does not allow tracing without it"
_OUTSIDE = "sudo offtop, outside of it: a rootless container cannot"
_LOW_COST = "the low cost: stacks are unwound at every switch, as other tools do; and what ended waits were on"


def privileges(held: frozenset[str], confined: bool | None = None) -> Check:
    """`confined`: replaces privileges.is_confined()."""
    user = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    everything = _EVERYTHING
    if rights.is_confined() if confined is None else confined:
        return Check("privileges", "FAIL", f"{user} of a user namespace only", _OUTSIDE, everything)
    missing = [name for name in (*rights.NEEDED, *rights.WANTED) if name not in held]
    if not missing:
        return Check("privileges", "ok", user)
    what = f"{user}, without {', '.join(missing)}"
    if not held.issuperset(rights.NEEDED):
        return Check("privileges", "FAIL", what, "sudo offtop", everything)
    lost = "; ".join(CAPABILITIES[name].loses for name in missing)
    return Check("privileges", "warn", what, "sudo offtop", lost)


def capability(name: str, held: frozenset[str]) -> Check:
    if name in held:
        return Check(name, "ok", "held")
    remedy = f"sudo offtop; in a container: docker run --cap-add {name.removeprefix('CAP_')}"
    if name in rights.NEEDED:
        remedy += ", or SYS_ADMIN if docker does not know it (20.10)"
    return Check(name, "warn", "not held", remedy, CAPABILITIES[name].loses)


def kernel(release: str = platform.release()) -> Check:
    """Check the kernel's version, see features.why_too_old()."""
    what = f"{platform.system()} {release} {platform.machine()}"
    if not features.why_too_old(release):
        return Check("kernel", "ok", what)
    return Check("kernel", "FAIL", f"{what}: offtop traces Linux 5.14 and newer", "update the kernel", "all BPF data")


def lockdown(file: str = "/sys/kernel/security/lockdown") -> Check:
    """Check kernel lockdown.

    Only `confidentiality` forbids BPF to read kernel memory (security/lockdown).
    """
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
        "all BPF data: stacks and states are kernel memory",
    )


def libbpf() -> Check:
    try:
        return Check("libbpf", "ok", str(getattr(library(), "_name", "")))
    except KernelError:
        return Check(
            "libbpf",
            "FAIL",
            "libbpf.so.1 is missing",
            install_command("libbpf1", "libbpf"),
            "the kernel's types and maps",
        )


def bpf(held: frozenset[str]) -> Check:
    """Check whether bpf(2) works, by creating the smallest possible map."""
    failed = probes.array_map(8)
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
    return Check("bpf(2)", "FAIL", f"the kernel refuses: {os.strerror(failed)}", remedy, "all BPF data")


def _is_refused() -> bool:
    """Whether bpf(2) is forbidden altogether, for example by a container's seccomp profile."""
    return probes.array_map(8) == errno.EPERM


def task_struct() -> Check:
    """Check whether the kernel's task_struct has the members that offtop reads."""
    types = kernel_types()
    if types is None:
        return unknown("task_struct")
    if features.why_too_old(platform.release()):
        return Check("task_struct", "warn", "not checked: the kernel is too old", kernel().remedy, state="unknown")
    try:
        features.detect(types)
    except KernelError as error:
        return Check("task_struct", "FAIL", str(error), "report it, with the output of: uname -r", "all BPF data")
    return Check("task_struct", "ok", "has the members that offtop reads")


def raw_tracepoints(held: frozenset[str]) -> Check:
    """Check whether a program can be attached to sched_switch."""
    failed = probes.raw_tracepoint("sched_switch") if _may_load(held) else None
    if failed is None:
        return _unchecked("raw tracepoints", held)
    if not failed:
        return Check("raw tracepoints", "ok", "a program could be attached to sched_switch")
    return Check(
        "raw tracepoints",
        "FAIL",
        f"sched_switch cannot be attached to: {os.strerror(failed)}",
        "use a kernel with CONFIG_BPF_EVENTS=y, as the distributions' kernels are",
        "all BPF data: this tracepoint fires when a thread is switched out",
    )


def state_at_switch_out() -> Check:
    """Check for the state argument of sched_switch, which it has since fa2c3254d7cf (5.18)."""
    known = features_found()
    if known is None:
        return unknown("state at leaving")
    if known.state_argument:
        return Check("state at leaving", "ok", "sched_switch passes it, as its fourth argument")
    return Check(
        "state at leaving",
        "warn",
        "sched_switch does not pass it; it is read from the thread",
        "use a kernel from 5.18 on",
        "accuracy for threads woken while they are switched out: their wait may count as run-queue time from its start",
    )


def switch_in_probe() -> Check:
    """Check which switch-in probe the kernel supports."""
    name, known = "switch-in probe", features_found()
    if known is None:
        return unknown(name)
    at_switch_in = "stacks are unwound at switch-in, and only for long waits"
    if known.switch_in_probes[0] == "exit":
        return Check(name, "ok", f"exit (sched_exit_tp): {at_switch_in}")
    if known.switch_in_probes[0] == "kprobe":
        return Check(name, "ok", f"kprobe ({known.kprobe_symbol}): {at_switch_in}")
    what = "switch: neither sched_exit_tp nor a kprobe on finish_task_switch"
    return Check(name, "warn", what, _REMEDY_FOR_PROBE, _LOW_COST)


def kprobes() -> Check:
    """Check for kprobes, which only the switch-in probe of that name needs."""
    known = features_found()
    if known is None:
        return unknown("kprobes")
    if known.kprobe_symbol:
        return Check("kprobes", "ok", f"{known.kprobe_symbol} can be probed")
    what = "none, or not of finish_task_switch"
    if known.switch_in_probes[0] == "exit":
        return Check("kprobes", "ok", f"{what}; not needed, with sched_exit_tp", state="unneeded")
    return Check("kprobes", "warn", what, _REMEDY_FOR_PROBE, _LOW_COST)


def task_storage() -> Check:
    """Check whether programs may create task storage in sched_switch (switch_maps.py)."""
    types = kernel_types()
    return unknown("task storage") if types is None else task_storage_of(map_internals(types))


def task_storage_of(internals: MapInternals, machine: str = platform.machine()) -> Check:
    name = "task storage"
    if safe_maps(internals, machine).task_storage:
        return Check(name, "ok", f"threads' records are in task storage ({internals.storage_allocator})")
    what = "creating it is not safe at a switch ({}), so threads' records are in a preallocated table"
    loses = "some of the low cost: a switch takes about 70 ns more"
    if internals.storage_allocator == "kmalloc":
        cause = "this kernel allocates it by kmalloc, which may deadlock there"
        return Check(name, "warn", what.format(cause), "use a kernel from 6.4 on", loses)
    cause = "kmalloc_nolock() fails there on a real-time kernel"
    if not internals.spinlocks_sleep:
        cause = f"kmalloc_nolock() fails on {machine}"
    return Check(name, "ok", what.format(cause), state="unneeded")


def kernel_memory() -> Check:
    """Report how much kernel memory the BPF maps will take on this machine."""
    threads, types = map_sizes.threads_now(), kernel_types()
    in_hash = types is not None and not safe_maps(map_internals(types)).task_storage
    sizes, cpus = map_sizes.for_machine(threads), possible_cpus()
    alone, with_wakers = (map_sizes.memory_bytes(sizes, cpus, in_hash=in_hash, waking=more) for more in (False, True))
    more = "" if in_hash else ", and up to 1 KB a thread"
    what = (
        f"BPF maps take {size(alone)} for {threads:,} threads and {cpus} CPUs, {size(with_wakers - alone)} more with "
        f"wakers{more}"
    )
    return Check("kernel memory", "ok", what)


def ring_buffer(held: frozenset[str]) -> Check:
    """Check whether programs may write to a ring buffer in sched_switch (switch_maps.py)."""
    types = kernel_types()
    if types is None:
        return unknown("ring buffer")
    if not safe_maps(map_internals(types)).ring_buffer:
        return _without_ring_buffer()
    failed = probes.ring_buffer() if "CAP_BPF" in held else None
    if failed is None or _is_refused():
        return _unchecked("ring buffer", held)
    if not failed:
        return Check("ring buffer", "ok", "used for stack copies and outliers")
    what = f"none could be created: {os.strerror(failed)}"
    return Check("ring buffer", "FAIL", what, "see dmesg for the reason", "all BPF data: the BPF programs need one")


def _without_ring_buffer() -> Check:
    return Check(
        "ring buffer",
        "warn",
        "on this real-time kernel its lock may sleep, so offtop does not use one",
        "use a kernel from 6.12 on",
        "single outliers, and user stacks by .eh_frame: they follow frame pointers",
    )


def run_delay() -> Check:
    """Check for run_delay, which needs CONFIG_SCHED_INFO.

    CONFIG_SCHEDSTATS and CONFIG_TASK_DELAY_ACCT select it.
    """
    known = features_found()
    if known is None:
        return unknown("run-queue time")
    if not known.needs_waking:
        return Check("run-queue time", "ok", "the kernel counts it for each thread (run_delay)")
    return Check(
        "run-queue time",
        "warn",
        "no run_delay; measured at sched_waking instead",
        "use a kernel with CONFIG_SCHED_INFO=y, as the distributions' kernels are",
        "some of the low cost: each wakeup runs a program too",
    )


def schedstat() -> Check:
    """Check for /proc/PID/schedstat, which needs CONFIG_SCHED_INFO, as run_delay does."""
    try:
        numbers = Path("/proc/self/schedstat").read_text().split()
    except OSError:
        numbers = []
    if len(numbers) == 3 and any(map(int, numbers)):
        return Check("schedstat", "ok", "/proc has run-queue times, for sampling without BPF")
    return Check("schedstat", "ok", "not in /proc, and only sampling needs it", state="unneeded")


def wakers() -> Check:
    """Check whether wakers can be recorded.

    They are recorded by the program at sched_waking, if run-queue time needs that anyway, or else by one with a typed
    argument, which is loaded when wakers are first needed.
    """
    known = features_found()
    if known is None:
        return unknown("wakers")
    if known.needs_waking or known.switch_in_probes[0] == "switch":
        return Check("wakers", "ok", "at sched_waking, together with run-queue time")
    if known.waking_type is not None:
        return Check("wakers", "ok", "at sched_waking, while a mode needs them")
    return Check(
        "wakers",
        "warn",
        "the kernel does not describe its tracepoint sched_waking",
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y; or use only: offtop --mode offcpu",
        "the modes wakeup, offwake and chain: what ends a wait",
    )


def uprobes(machine: str = platform.machine()) -> Check:
    """Check for uprobes, which --within needs."""
    known, loses = features_found(), "--within: only waits inside a function of a program"
    if known is None:
        return unknown("uprobes")
    cause = within.why_unavailable(known, machine)
    if not cause:
        return Check("uprobes", "ok", "calls of a program's functions can be traced (--within)")
    return Check("uprobes", "warn", cause, "use -p or --filter stack= instead", loses)


def file_operations() -> Check:
    """Check for the types that counting file operations needs (key 7)."""
    check = _list_check("file operations", file_program.why_unavailable, "7, --mode file")
    known = features_found()
    if check.verdict != "ok" or known is None:
        return check
    missing = {
        "page faults on mapped files": file_program.why_without_faults(known),
        "requests to io_uring": file_program.why_without_rings(known),
    }
    without = "".join(f"; without {what}: {why}" for what, why in missing.items() if why)
    return replace(check, what=check.what + without)


def disk_requests() -> Check:
    """Check for the types that counting requests to disks needs (key 8)."""
    return _list_check("requests to disks", disk_program.why_unavailable, "8, --mode disk")


def _list_check(name: str, why_unavailable: Callable[[Features], str], option: str) -> Check:
    known = features_found()
    if known is None:
        return unknown(name)
    cause, _, remedy = why_unavailable(known).partition(". ")
    if not cause:
        return Check(name, "ok", f"can be counted ({option})")
    return Check(name, "warn", cause, remedy[0].lower() + remedy[1:], f"the list of {name} ({option})")


def statistics(held: frozenset[str]) -> Check:
    """Check BPF statistics: BPF_ENABLE_STATS needs CAP_SYS_ADMIN."""
    failed = probes.statistics()
    if failed is None:
        return Check("own cost", "warn", "unknown without libbpf", libbpf().remedy, state="unknown")
    if not failed:
        return Check("own cost", "ok", "the kernel measures the run time of BPF programs")
    remedy = "sudo offtop, or add CAP_SYS_ADMIN"
    remedy = _OUTSIDE if rights.is_confined() else remedy
    return Check("own cost", "warn", os.strerror(failed), remedy, "the ns per switch in the header")


def kernel_symbols(held: frozenset[str]) -> Check:
    """Check whether /proc/kallsyms shows addresses.

    They are zeros without CAP_SYSLOG, or for every process if kptr_restrict is 2 (kernel/ksyms_common.c).
    """
    lost = CAPABILITIES["CAP_SYSLOG"].loses
    try:
        with Path("/proc/kallsyms").open() as file:
            has_addresses = any(int(line.split(maxsplit=1)[0], 16) for line, _ in zip(file, range(100), strict=False))
    except OSError as error:
        what = f"/proc/kallsyms: {error.strerror}"
        return Check("kernel symbols", "warn", what, "use a kernel with CONFIG_KALLSYMS=y", lost)
    if has_addresses:
        return Check("kernel symbols", "ok", "/proc/kallsyms")
    remedy = "sudo sysctl kernel.kptr_restrict=1" if "CAP_SYSLOG" in held else "sudo offtop"
    remedy = _OUTSIDE if rights.is_confined() else remedy
    return Check("kernel symbols", "warn", "/proc/kallsyms shows no addresses", remedy, lost)


def registers() -> Check:
    """Check for bpf_task_pt_regs, which exists since dd6e10fbd9fb (5.15)."""
    known = features_found()
    if known is None:
        return unknown("user registers")
    if known.registers:
        return Check("user registers", "ok", "readable, also those of waiting threads (bpf_task_pt_regs)")
    return Check(
        "user registers",
        "warn",
        "not readable on this kernel (bpf_task_pt_regs)",
        f"use a kernel from 5.15 on, on x86-64 or arm64 (this is {platform.machine()})",
        "user stacks by .eh_frame and of waits in progress; system calls, and what they wait on",
    )


def other_processes(held: frozenset[str]) -> Check:
    """Check whether other processes may be traced, by opening the memory of each."""
    results = [*map(probes.memory_of, every_pid())]
    results = [failed for failed in results if failed != errno.ESRCH]  # kernel threads, and exited processes
    closed = results.count(errno.EPERM)
    if not closed:
        return Check("other processes", "ok", "their memory, files and mappings can be read")
    what, lost = f"{closed} of {len(results)} may not be read", CAPABILITIES["CAP_SYS_PTRACE"].loses
    if "CAP_SYS_PTRACE" not in held:
        return Check("other processes", "warn", what, "sudo offtop", lost)
    if rights.is_confined():
        return Check("other processes", "warn", what, _OUTSIDE, lost)
    if closed < len(results):
        return Check("other processes", "ok", f"{what}: they are protected, even from root")
    remedy = "boot with kernel.yama.ptrace_scope below 3; in a container: allow process_vm_readv (seccomp)"
    return Check("other processes", "warn", what, remedy, lost)


def perf_event_paranoid(held: frozenset[str]) -> Check:
    """Check perf_event_paranoid.

    Above 2 (a patch of Debian's and Ubuntu's kernels), perf events, and so kprobes, need CAP_SYS_ADMIN.
    """
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
    """Whether programs may be loaded, so that an error is about the particular program."""
    return held.issuperset(rights.NEEDED) and probes.array_map(8) == 0


def _unchecked(name: str, held: frozenset[str]) -> Check:
    missing = [one for one in rights.NEEDED if one not in held]
    if missing:
        return Check(name, "warn", f"unknown without {', '.join(missing)}", "sudo offtop doctor", state="unknown")
    return Check(name, "warn", "unknown without bpf(2), or libbpf from 0.7 on", "see above", state="unknown")
