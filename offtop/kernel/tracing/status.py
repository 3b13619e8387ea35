"""What a live source says about itself: how it measures, and what it lacks."""

import platform
from collections.abc import Mapping, Sequence

from offtop.kernel.bpf import pid_namespace
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.scope.within import WatchedFunctions
from offtop.kernel.tracing.parts import Parts
from offtop.kernel.unwind.stack_memos import StackMemos
from offtop.model.values.catalog import Catalog
from offtop.units import percent, size

_PROBES = {"exit": "tracepoint sched_exit_tp"}
_MAX_HUNG_SHOWN = 10
_MOST_FAILURES = 3
"""Read children that exit at once before that is reported."""


def about(
    parts: Parts, watched: WatchedFunctions | None, defines: Mapping[str, int], notices: Sequence[str]
) -> list[tuple[str, str]]:
    """See Source.about. `defines`: of the PID namespace, as pid_namespace.defines."""
    program, maps = parts.program, parts.program.maps
    kernel_fill, user_fill = parts.stacks.fill
    probes = {**_PROBES, "kprobe": parts.features.kprobe_symbol}
    hung = _hung(parts.reads, parts.catalog)
    return [
        *(("missing", one) for one in notices),
        ("kernel", f"{platform.release()} {platform.machine()}"),
        ("switch-in probe", f"{program.probe} ({probes.get(program.probe, 'tracepoint sched_switch')})"),
        ("thread records", "task storage" if program.in_task_storage else "a preallocated table"),
        ("task scans", f"visit {'only threads that changed, if few' if program.changed_link else 'all threads'}"),
        ("run-queue time", "tracepoint sched_waking" if program.waking else "the kernel's run_delay"),
        ("wakers", "tracepoint sched_waking" if parts.config.settings.depth else "not recorded (keys 2, 3 and 4)"),
        *([("within", watched.summary)] if watched else []),
        ("compiler", f"bcc {program.bcc_version}"),
        ("maps", f"sites {maps['sites_0'].entries:,}, exited threads {maps['exited_0'].entries:,} per tick"),
        ("kernel memory", f"{size(sum(one.memory_bytes for one in maps.values()))} in BPF maps"),
        ("stacks", f"kernel {kernel_fill:.0%}, user {user_fill:.0%} of {maps['user_stacks'].entries:,}"),
        ("processes that exited before they were read", f"{parts.processes.exited:,}"),
        *([("not read", hung)] if hung else []),
        ("user stacks", _user_stacks(parts)),
        *([("user stacks verified", _memos(parts.memos))] if parts.memos else []),
        *([("kernel stacks verified", _memos(parts.kernel_memos))] if parts.kernel_memos else []),
        *parts.user_stacks.about(),
        *([("debug files", parts.debug_files.summary)] if parts.debug_files else []),
        *([("process ids", pid_namespace.describe_ids(defines))] if defines else []),
    ]


def _hung(reads: GuardedReads, catalog: Catalog) -> str:
    """The processes and devices that hang reads from them; "" if none do."""
    if reads.failures >= _MOST_FAILURES:
        return "anything: the process that reads for offtop exits at once. Look for a limit (ulimit -a) or a kill"
    hung = sorted(
        f"{catalog.process(one)}({one})"
        if isinstance(one, int)
        else f"files of {one[1] if isinstance(one, tuple) else one}"
        for one in reads.hung
    )
    many = f" and {len(hung) - _MAX_HUNG_SHOWN} more" if len(hung) > _MAX_HUNG_SHOWN else ""
    full = "; no others are read until one of these reads returns" if reads.is_full else ""
    return f"{', '.join(hung[:_MAX_HUNG_SHOWN])}{many}{full}" if hung else ""


def _memos(memos: StackMemos) -> str:
    if not memos.check_every:
        return "none: each is unwound (--exact-stacks)"
    walked, verified, checked, disagreements = memos.total
    share_pct = percent(verified, memos.total.found)
    return (
        f"{share_pct:.0f}% of {memos.total.found:,}: the same as the thread's last; {checked:,} unwound as well, "
        f"{disagreements:,} of them differed; {walked:,} unwound in all"
    )


def _user_stacks(parts: Parts) -> str:
    way, refused = parts.program.unwind, parts.drain.count("copies")
    if way.way == "off":
        return "off"
    if not way.uses_rules(parts.features):
        asked = parts.unwind
        refused_why = (
            "could not load the program for .eh_frame"
            if asked.uses_rules(parts.features)
            else "the only way on this kernel"
        )
        return "frame pointers" + ("" if asked.way == "fp" else f" ({refused_why})")
    left = f"; {refused:,} stacks not copied, unwound by frame pointers instead (~)" if refused else ""
    return f"{way.way}, {way.stack_kb} KB copied, at most {way.cpu_pct:g}% of a CPU for all of offtop{left}"
