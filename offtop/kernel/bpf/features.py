"""What this kernel has of what offtop can use. Each is asked for as a feature; only the oldest kernel is a version."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from offtop.errors import KernelError, UsageError
from offtop.kernel.bpf.libbpf import KPROBES, KernelTypes
from offtop.kernel.bpf.switch_maps import map_internals, safe_maps

DOORS = ("exit", "kprobe", "switch")
"""Switch-in probes: ways to learn that a thread is back on a CPU, best first."""
_OLDEST = 5, 14
_SWITCH_IN_FUNCTION = re.compile(r"finish_task_switch(\.(isra|constprop|llvm)\.\d+)*")
"""Compilers rename the whole function so. `.cold` and `.part.N` are pieces of it, which most switches do not run."""


@dataclass(frozen=True, slots=True)
class Features:
    """Offsets are in bytes; None where the kernel has no such thing."""

    doors: tuple[str, ...]
    """The switch-in probes that can be tried, best first."""
    kprobe_symbol: str
    """The name of `finish_task_switch` in this kernel (`.isra.0` and so on); empty if it cannot be probed."""
    pid: int
    tgid: int
    state: int
    comm: int
    leader: int | None
    """Of the pointer to its main thread."""
    flags: int
    on_cpu: int
    stack_pointer: int | None
    """Of the thread's kernel stack, in task_struct."""
    run_delay: int | None
    """The kernel keeps it wherever it has the member: sched_info_on() is a constant since c5895d3f06cb (5.14)."""
    last_arrival: int | None
    last_queued: int | None
    turns: int | None
    """Of the count of how often the thread was given a CPU."""
    sum_exec: int
    """Of how long the thread has run in all, by the kernel's own account."""
    exec_start: int
    """Of when that was last added to."""
    start_time: int
    execs: int
    """Of a number that each exec changes."""
    state_argument: bool
    """sched_switch passes prev_state (kernel commit fa2c3254d7cf, 5.18)."""
    task_storage: bool
    """Programs at sched_switch may create task storage (switch_maps.py)."""
    ring_buffer: bool
    """They may write to a ring buffer (switch_maps.py)."""
    user_registers: bool
    """bpf_task_pt_regs can be called."""
    registers: Mapping[str, int]
    """Offsets in pt_regs, by their names in bpf/offcpu.c; empty where they are not known."""
    fs_base: int | None
    """Of where a thread's own memory lies, in task_struct: what pthread_self() gives. On x86-64."""
    own_id: Mapping[str, int]
    """Elsewhere offsets on the way from a task to its id in its own pid namespace: what gettid() gives."""
    waking_type: int | None
    """Of the tracepoint sched_waking in BTF, by which a program there knows what its argument is."""
    files: Mapping[str, int]
    """Offsets on the way from a task's descriptor to what is open there, likewise."""
    sockets: Mapping[str, int]
    """And from there to a socket's addresses."""
    locks: Mapping[str, int]
    """And from a task to the kernel's lock that it waits for, to who holds that, and to what it is in."""
    cgroup: Mapping[str, int]
    """Offsets on the way from a task to the id of its cgroup, likewise."""
    hierarchies: Mapping[str, int]
    """Offset in css_set of what a task's cgroup is found by: of version 2 (empty), or by a controller of version 1."""

    @property
    def tells_pythons(self) -> bool:
        """Whether a thread can be found among those that CPython has."""
        return self.fs_base is not None or bool(self.own_id)

    @property
    def waking(self) -> bool:
        """Whether run-queue time must come from sched_waking, for want of the kernel's own count."""
        return self.run_delay is None


def too_old(release: str) -> str:
    """Why offtop does not run on the kernel of this release; empty if it does.

    The one place where a version decides: offtop is not tested on older kernels, whatever features they have. RHEL 9's
    kernel is called 5.14 and has features of much later ones, which is why everything else is asked for by feature.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    if not found or (int(found[1]), int(found[2])) >= _OLDEST:
        return ""
    return (
        f"This kernel is Linux {release}, and offtop traces Linux 5.14 and newer. Update the kernel, or sample /proc: "
        "offtop --source proc"
    )


def find(types: KernelTypes) -> Features:
    """Ask the running kernel. Raises KernelError where a thing is missing that offtop cannot do without."""
    if why := too_old(platform.release()):
        raise KernelError(why)

    def needed(member: str) -> int:
        offset = types.offset("task_struct", member)
        if offset is None:
            raise KernelError(
                f"This kernel's task_struct has no member '{member}' that offtop knows. "
                "Please report it with the output of: uname -r"
            )
        return offset

    sched_info = types.offset("task_struct", "sched_info")

    def in_sched_info(member: str) -> int | None:
        offset = types.offset("sched_info", member)
        return None if sched_info is None or offset is None else sched_info + offset

    entity = needed("se")
    exec_runtime, exec_start = (types.offset("sched_entity", member) for member in ("sum_exec_runtime", "exec_start"))
    if exec_runtime is None or exec_start is None:
        raise KernelError("This kernel does not count how long a thread runs. Please report it with: uname -r")
    thread, sp = types.offset("task_struct", "thread"), _stack_pointer(types)
    fs_base = types.offset("thread_struct", "fsbase")
    symbol = kprobe_symbol()
    available = {"exit": types.has_tracepoint("sched_exit_tp"), "kprobe": bool(symbol), "switch": True}
    state = types.offset("task_struct", "__state")
    cgroup = _cgroup(types)
    safe = safe_maps(map_internals(types))
    return Features(
        doors=tuple(door for door in DOORS if available[door]),
        kprobe_symbol=symbol,
        pid=needed("pid"),
        tgid=needed("tgid"),
        state=needed("state") if state is None else state,
        comm=needed("comm"),
        leader=types.offset("task_struct", "group_leader"),
        flags=needed("flags"),
        on_cpu=needed("on_cpu"),
        stack_pointer=None if thread is None or sp is None else thread + sp,
        run_delay=in_sched_info("run_delay"),
        last_arrival=in_sched_info("last_arrival"),
        last_queued=in_sched_info("last_queued"),
        turns=in_sched_info("pcount"),
        sum_exec=entity + exec_runtime,
        exec_start=entity + exec_start,
        start_time=needed("start_time"),
        execs=needed("self_exec_id"),
        state_argument=types.tracepoint_arguments("sched_switch") >= 4,
        task_storage=safe.task_storage,
        ring_buffer=safe.ring_buffer,
        user_registers=types.has_function("bpf_task_pt_regs"),
        registers=_registers(types) if types.has_function("bpf_task_pt_regs") else {},
        fs_base=None if thread is None or fs_base is None else thread + fs_base,
        own_id=_own_id(types) if fs_base is None else {},
        waking_type=types.tracepoint_type("sched_waking"),
        files=_files(types),
        sockets=_sockets(types),
        locks=_locks(types),
        cgroup=cgroup,
        hierarchies=_hierarchies(types) if cgroup else {},
    )


def _stack_pointer(types: KernelTypes) -> int | None:
    """Of a thread's kernel stack, in thread_struct: arm64 keeps it among other registers there."""
    saved, sp = types.offset("thread_struct", "cpu_context"), types.offset("cpu_context", "sp")
    return types.offset("thread_struct", "sp") if saved is None or sp is None else saved + sp


_CGROUP = {
    "TASK_CGROUPS": ("task_struct", "cgroups"),
    "CGROUP_OF_STATE": ("cgroup_subsys_state", "cgroup"),
    "CGROUP_LEVEL": ("cgroup", "level"),
    "CGROUP_NODE": ("cgroup", "kn"),
    "CGROUP_NODE_ID": ("kernfs_node", "id"),
}
_ANCESTORS = {"CGROUP_ANCESTORS": ("cgroup", "ancestors"), "CGROUP_ANCESTOR_IDS": ("cgroup", "ancestor_ids")}
"""The one or the other."""


_FILES = {
    "TASK_FILES": ("task_struct", "files"),
    "FILES_TABLE": ("files_struct", "fdt"),
    "TABLE_FILES": ("fdtable", "fd"),
    "FILE_INODE": ("file", "f_inode"),
    "FILE_PRIVATE": ("file", "private_data"),
    "INODE_NUMBER": ("inode", "i_ino"),
    "INODE_SUPER": ("inode", "i_sb"),
    "SUPER_MAGIC": ("super_block", "s_magic"),
    "SUPER_DEVICE": ("super_block", "s_dev"),
}
_POLLS = {
    "POLL_TASK": ("poll_wqueues", "polling_task"),
    "POLL_TABLE": ("poll_wqueues", "table"),
    "POLL_COUNT": ("poll_wqueues", "inline_index"),
    "POLL_ENTRIES": ("poll_wqueues", "inline_entries"),
    "ENTRY_FILE": ("poll_table_entry", "filp"),
    "ENTRY_WAIT": ("poll_table_entry", "wait"),
    "WAIT_PRIVATE": ("wait_queue_entry", "private"),
    "WAIT_ENTRY": ("wait_queue_entry", "entry"),
}
_SOCKETS = {
    "SOCKET_SOCK": ("socket", "sk"),
    "SOCK_FAMILY": ("sock_common", "skc_family"),
    "SOCK_STATE": ("sock_common", "skc_state"),
    "SOCK_LOCAL_PORT": ("sock_common", "skc_num"),
    "SOCK_PEER_PORT": ("sock_common", "skc_dport"),
    "SOCK_LOCAL": ("sock_common", "skc_rcv_saddr"),
    "SOCK_PEER": ("sock_common", "skc_daddr"),
    "SOCK_PROTOCOL": ("sock", "sk_protocol"),
}
"""struct sock begins with its struct sock_common."""
_SOCKETS_6 = {"SOCK_LOCAL_6": ("sock_common", "skc_v6_rcv_saddr"), "SOCK_PEER_6": ("sock_common", "skc_v6_daddr")}
_SOCKETS_UNIX = {
    "SOCK_PEER_PID": ("sock", "sk_peer_pid"),
    "PID_NUMBERS": ("pid", "numbers"),
    "UPID_NUMBER": ("upid", "nr"),
}
_OWN_ID = {
    "TASK_THREAD_PID": ("task_struct", "thread_pid"),
    "PID_LEVEL": ("pid", "level"),
    "PID_NUMBERS": ("pid", "numbers"),
    "UPID_NUMBER": ("upid", "nr"),
}
_LOCKS = {
    "TASK_BLOCKER": ("task_struct", "blocker"),
    "MUTEX_OWNER": ("mutex", "owner"),
    "RWSEM_OWNER": ("rw_semaphore", "owner"),
    "INODE_RWSEM": ("inode", "i_rwsem"),
    "INODE_MAPPING": ("inode", "i_mapping"),
    "INODE_DATA": ("inode", "i_data"),
    "FILE_POSITION_LOCK": ("file", "f_pos_lock"),
    "PIPE_MUTEX": ("pipe_inode_info", "mutex"),
}
_LOCKS_OF_MEMORY = {
    "TASK_MM": ("task_struct", "mm"),
    "MM_LOCK": ("mm_struct", "mmap_lock"),
    "MM_OWNER": ("mm_struct", "owner"),
}
"""The last is there in kernels with a memory controller."""


def _all_of(types: KernelTypes, members: Mapping[str, tuple[str, str]]) -> Mapping[str, int]:
    """Offsets of all of `members`; empty where one is not known."""
    every = {name: types.offset(*member) for name, member in members.items()}
    found = {name: offset for name, offset in every.items() if offset is not None}
    return found if len(found) == len(every) else {}


def _files(types: KernelTypes) -> Mapping[str, int]:
    found, polls = _all_of(types, _FILES), _all_of(types, _POLLS)
    poll_bytes, entry_bytes = types.size("poll_wqueues"), types.size("poll_table_entry")
    if not (found and polls and poll_bytes and entry_bytes):
        return found
    return {**found, **polls, "POLL_BYTES": poll_bytes, "ENTRY_BYTES": entry_bytes}


def _own_id(types: KernelTypes) -> Mapping[str, int]:
    found, upid_bytes = _all_of(types, _OWN_ID), types.size("upid")
    return {**found, "UPID_BYTES": upid_bytes} if found and upid_bytes else {}


def _sockets(types: KernelTypes) -> Mapping[str, int]:
    """A kernel may have been built without IPv6."""
    found = _all_of(types, _SOCKETS)
    return {**found, **_all_of(types, _SOCKETS_6), **_all_of(types, _SOCKETS_UNIX)} if found else {}


def _locks(types: KernelTypes) -> Mapping[str, int]:
    found = _all_of(types, _LOCKS)
    return {**found, **_all_of(types, _LOCKS_OF_MEMORY)} if found else {}


def _cgroup(types: KernelTypes) -> Mapping[str, int]:
    """Empty where the way is not known, as in a kernel without control groups."""
    every = {name: types.offset(*member) for name, member in (_CGROUP | _ANCESTORS).items()}
    found = {name: offset for name, offset in every.items() if offset is not None}
    return found if found.keys() >= _CGROUP.keys() and found.keys() & _ANCESTORS.keys() else {}


def _hierarchies(types: KernelTypes) -> Mapping[str, int]:
    v2, v1 = types.offset("css_set", "dfl_cgrp"), types.offset("css_set", "subsys")
    found = {} if v2 is None else {"": v2}
    for name, number in types.enumerators("cgroup_subsys_id").items():
        if v1 is not None and name.endswith("_cgrp_id"):
            controller = name.removesuffix("_cgrp_id")
            found["blkio" if controller == "io" else controller] = v1 + 8 * number  # io is version 2's word
    return found


_REGISTERS = {
    "x86_64": {
        "REG_CALL": "orig_ax",
        "REG_IP": "ip",
        "REG_SP": "sp",
        "REG_BP": "bp",
        "REG_MODE": "cs",
        **{f"REG_ARGUMENT_{n}": member for n, member in enumerate(("di", "si", "dx", "r10", "r8", "r9"))},
        **{f"REG_OTHER_{n}": member for n, member in enumerate(("bx", "r12", "r13", "r14", "r15"))},
    },
    "aarch64": {
        "REG_CALL": "syscallno",
        "REG_IP": "pc",
        "REG_SP": "sp",
        "REG_BP": "regs:29",
        "REG_MODE": "pstate",
        **{f"REG_ARGUMENT_{n}": f"regs:{n}" for n in range(6)},
        **{f"REG_OTHER_{n}": f"regs:{number}" for n, number in enumerate((*range(19, 29), 30))},
        "REG_LINK": "regs:30",
    },
}
"""Members of pt_regs, by their names in bpf/offcpu.c: what holds a system call's number and arguments (its calling
convention: syscall(2)), ip, sp, frame pointer and mode; what else a call keeps; and where it leaves its return address
in a register, that."""


def _registers(types: KernelTypes) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for name, member in _REGISTERS.get(platform.machine(), {}).items():
        member, _, index = member.partition(":")
        offset = types.offset("pt_regs", member)
        if offset is None:
            return {}
        found[name] = offset + 8 * int(index or 0)
    return found


def choose_door(features: Features, asked: str) -> tuple[str, ...]:
    """The switch-in probes to try, in order. Raises UsageError for one that this kernel lacks."""
    if asked == "auto":
        return features.doors
    if asked not in features.doors:
        raise UsageError(f"--probe {asked}: this kernel does not have it. Leave --probe out, or see: offtop doctor")
    return (asked,)


def kprobe_symbol(kallsyms: str = "/proc/kallsyms") -> str:
    """The name under which finish_task_switch can be probed; empty if kprobes or the function are missing."""
    if not KPROBES.exists():
        return ""
    with Path(kallsyms).open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            name = line.split()[2]
            if _SWITCH_IN_FUNCTION.fullmatch(name):
                return name
    return ""
