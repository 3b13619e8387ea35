"""`offtop doctor`: report what works on this machine, what does not, and how to fix it.

Each check tests the feature itself; only the oldest supported kernel is checked by its version. The checks change
nothing and need no privilege: what cannot be checked without one is reported as unknown. A feature for which there is a
better one on this machine is reported as unneeded.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from offtop.kernel.bpf.privileges import CAPABILITIES, capabilities
from offtop.kernel.doctor import host_checks, kernel_checks
from offtop.kernel.doctor.check import Check, btf
from offtop.printable import printable

_WITHOUT_COMPILER = "modes and filters whose programs no earlier start has cached"


def checks() -> list[Check]:
    """Run all checks, the most fundamental first.

    The last one attaches offtop's program for a moment.
    """
    found = conditions()
    attached = host_checks.attaching(found)
    if attached.state != "unknown" and attached.verdict != "FAIL":  # without bcc it used the cache
        found = [
            replace(check, verdict="warn", loses=_WITHOUT_COMPILER) if check.verdict == "FAIL" else check
            for check in found
        ]
    return [*found, attached]


def conditions() -> list[Check]:
    """Run all checks except for attaching offtop's program."""
    held = capabilities()
    return [
        kernel_checks.privileges(held),
        *(kernel_checks.capability(name, held) for name in CAPABILITIES),
        kernel_checks.kernel(),
        kernel_checks.lockdown(),
        kernel_checks.libbpf(),
        kernel_checks.bpf(held),
        btf(),
        kernel_checks.task_struct(),
        kernel_checks.raw_tracepoints(held),
        kernel_checks.state_at_switch_out(),
        kernel_checks.switch_in_probe(),
        kernel_checks.kprobes(),
        kernel_checks.perf_event_paranoid(held),
        kernel_checks.task_storage(),
        kernel_checks.kernel_memory(),
        kernel_checks.ring_buffer(held),
        kernel_checks.run_delay(),
        kernel_checks.schedstat(),
        kernel_checks.wakers(),
        kernel_checks.uprobes(),
        kernel_checks.file_operations(),
        kernel_checks.disk_requests(),
        kernel_checks.statistics(held),
        kernel_checks.kernel_symbols(held),
        kernel_checks.registers(),
        kernel_checks.other_processes(held),
        host_checks.bcc(),
        host_checks.kept_programs(),
        host_checks.libdw(),
        host_checks.sandbox(),
        host_checks.user_stacks(),
        host_checks.pid_namespace(),
        host_checks.sudo_path(),
        host_checks.character_set(),
        host_checks.terminal(),
    ]


def status(found: Sequence[Check]) -> int:
    """Exit status: 3 if a privilege is missing, 4 if anything else failed, otherwise 0."""
    failed = {check.name for check in found if check.verdict == "FAIL"}
    if "privileges" in failed:
        return 3
    return 4 if failed else 0


def render(found: Sequence[Check]) -> str:
    """Render one line per check, and a verdict at the end.

    For a check that is not ok, further lines say what is missing without it, and how to fix it.
    """
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
        lines.append("offtop runs here, with all its features")
    return "\n".join(map(printable, lines))


def _samples(found: Sequence[Check]) -> bool:
    """Whether offtop can sample /proc although BPF does not work."""
    verdicts = {check.name: check.verdict for check in found}
    has_schedstat = any(check.name == "schedstat" and check.state != "unneeded" for check in found)
    return has_schedstat and verdicts.get("pid namespace") != "FAIL"


def as_json(found: Sequence[Check]) -> str:
    """JSON array with the fields of each Check; `state` is always set."""
    states = {check.name: check.state or ("there" if check.verdict == "ok" else "missing") for check in found}
    return json.dumps([{**asdict(check), "state": states[check.name]} for check in found], indent=2)
