"""Detect which kernel features offtop can use.

Each is tested as a feature; only the oldest supported kernel is a version number.
"""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from offtop.errors import KernelError, UsageError
from offtop.kernel.bpf import probes
from offtop.kernel.bpf.libbpf import KPROBES, KernelTypes
from offtop.kernel.bpf.switch_maps import map_internals, safe_maps

SWITCH_IN_PROBES = ("exit", "kprobe", "switch")
"""Switch-in probes: ways to detect that a thread was switched in, best first."""
_OLDEST = 5, 14
_SWITCH_IN_FUNCTION = re.compile(r"finish_task_switch(\.(isra|constprop|llvm)\.\d+)*")
"""Matches the names that compilers give to the whole function.

`.cold` and `.part.N` are only parts of it, which most switches do not run.
"""


@dataclass(frozen=True, slots=True)
class Features:
    """Features of the running kernel.

    Offsets are in bytes, and in task_struct unless noted; None if the kernel has no such member.
    """

    switch_in_probes: tuple[str, ...]
    """Switch-in probes that can be tried, best first."""
    kprobe_symbol: str
    """Name of `finish_task_switch` in this kernel (`.isra.0` and so on); empty if it cannot be probed."""
    pid: int
    tgid: int
    state: int
    comm: int
    leader: int | None
    """Offset of the pointer to its main thread."""
    flags: int
    on_cpu: int
    stack_pointer: int | None
    """Offset of the saved stack pointer of the thread's kernel stack."""
    run_delay: int | None
    """The kernel maintains it if it has the member: sched_info_on() is a constant since c5895d3f06cb (5.14)."""
    last_arrival: int | None
    last_queued: int | None
    pcount: int | None
    """Offset of the counter of how often the thread got a CPU."""
    sum_exec: int
    """Offset of the total run time of the thread, as the kernel accounts it."""
    exec_start: int
    """Offset of the time when the total run time was last updated."""
    cpu: int | None
    """Offset of the number of its CPU."""
    on_rq: int
    """Offset of whether it is in a run queue."""
    start_time: int
    execs: int
    """Offset of a counter that each exec increments."""
    state_argument: bool
    """sched_switch passes prev_state (kernel commit fa2c3254d7cf, 5.18)."""
    task_storage: bool
    """Programs at sched_switch may create task storage (switch_maps.py)."""
    throttle_work: bool
    """A thread whose cgroup has used up its CPU quota leaves the CPU in a function of its own (e1fad12dcb66, 6.18).
    Before, it stays in the run queue."""
    ring_buffer: bool
    """Programs at sched_switch may write to a ring buffer (switch_maps.py)."""
    registers: Mapping[str, int]
    """Offsets in pt_regs, by their names in bpf/offcpu.c; empty if unknown."""
    fs_base: int | None
    """Offset of the base of thread-local storage, which is the value of pthread_self(). Only on x86-64."""
    own_id: Mapping[str, int]
    """Without fs_base: offsets that lead from a task to its id in its own pid namespace, as gettid() returns it."""
    delays_dequeue: bool
    """A thread that sleeps may stay in the run queue for some time (152e11f6df29, 6.12). If it is moved to another CPU
    then, its run_delay grows until it runs."""
    migrate_type: int | None
    """BTF id of the type of the tracepoint sched_migrate_task."""
    waking_type: int | None
    """BTF id of the type of the tracepoint sched_waking, which gives a program there typed arguments."""
    files: Mapping[str, int]
    """Offsets that lead from a task and a file descriptor to the open file, by their names in BPF."""
    paths: Mapping[str, int]
    """Further offsets that lead from an open file to its type and path; empty if unknown."""
    mappings: Mapping[str, int]
    """Offsets that lead from a task and an address to the mapped file, by their names in bpf/files.c; empty if unknown,
    or if the kernel has no tracepoint at page faults."""
    rings: Mapping[str, int]
    """Offsets in requests to io_uring, and arguments of its tracepoints, by their names in bpf/files.c; empty if
    they are unknown, or if the kernel has no such tracepoints."""
    ring_submission: str
    """The tracepoint at the submission of such a request; empty if the kernel has none."""
    ring_operations: Mapping[str, int]
    """Operations of io_uring by the kernel's names for them (IORING_OP_READ and so on)."""
    disks: Mapping[str, int]
    """Offsets in requests to block devices, and flags, by their names in bpf/disks.c; empty if unknown."""
    disk_operations: Mapping[str, int]
    """Operations of such requests by the kernel's names for them (REQ_OP_READ and so on)."""
    sockets: Mapping[str, int]
    """Offsets that lead from an open file to a socket's addresses."""
    locks: Mapping[str, int]
    """Offsets that lead from a task to the kernel lock that it waits for, to its holder, and to its object."""
    cgroup: Mapping[str, int]
    """Offsets that lead from a task to the id of its cgroup."""
    hierarchies: Mapping[str, int]
    """Offset in css_set that leads to a task's cgroup, by controller of version 1; version 2 is the empty name."""

    task_functions: Mapping[str, int]
    """BTF ids of the functions that find a thread by its tid, by their names in BPF; empty unless programs may call
    them and the kernel has iterators over maps."""
    may_goto: bool
    """The verifier knows may_goto, which makes loops cheap to verify (kernel commit 011832b97b31, 6.9)."""

    @property
    def can_find_python_threads(self) -> bool:
        """Whether BPF can find a thread among those of a CPython process, if it knows CPython's identifier of it."""
        return self.fs_base is not None or bool(self.own_id)

    @property
    def needs_waking(self) -> bool:
        """Whether run-queue time must be measured at sched_waking: the kernel does not count it."""
        return self.run_delay is None


def why_too_old(release: str) -> str:
    """Why offtop does not run on the kernel of this release; empty if it does.

    This is the only check of a version: offtop is not tested on older kernels. All else is tested by feature, because
    RHEL 9's kernel is called 5.14 but has features of much later ones.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    if not found or (int(found[1]), int(found[2])) >= _OLDEST:
        return ""
    return (
        f"This kernel is Linux {release}, and offtop traces Linux 5.14 and newer. Update the kernel, or sample /proc: "
        "offtop --source proc"
    )


def detect(types: KernelTypes) -> Features:
    """Detect the features of the running kernel.

    Raises KernelError if a required one is missing.
    """
    if error := why_too_old(platform.release()):
        raise KernelError(error)

    def needed(member: str) -> int:
        offset = types.offset("task_struct", member)
        if offset is None:
            raise KernelError(
                f"This kernel's task_struct has no member '{member}', which offtop needs. "
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
        raise KernelError(
            "This kernel does not count the run time of threads. Please report it with the output of: uname -r"
        )
    thread, sp = types.offset("task_struct", "thread"), _stack_pointer(types)
    fs_base = types.offset("thread_struct", "fsbase")
    symbol = kprobe_symbol()
    available = {"exit": types.has_tracepoint("sched_exit_tp"), "kprobe": bool(symbol), "switch": True}
    cgroup = _cgroup(types)
    submission = next((name for name in _RING_SUBMISSIONS if types.has_tracepoint(name)), "")
    safe_map_kinds = safe_maps(map_internals(types))
    return Features(
        switch_in_probes=tuple(probe for probe in SWITCH_IN_PROBES if available[probe]),
        kprobe_symbol=symbol,
        pid=needed("pid"),
        tgid=needed("tgid"),
        state=needed("__state"),
        comm=needed("comm"),
        leader=types.offset("task_struct", "group_leader"),
        flags=needed("flags"),
        on_cpu=needed("on_cpu"),
        stack_pointer=None if thread is None or sp is None else thread + sp,
        run_delay=in_sched_info("run_delay"),
        last_arrival=in_sched_info("last_arrival"),
        last_queued=in_sched_info("last_queued"),
        pcount=in_sched_info("pcount"),
        sum_exec=entity + exec_runtime,
        exec_start=entity + exec_start,
        on_rq=needed("on_rq"),
        cpu=_cpu(types),
        start_time=needed("start_time"),
        execs=needed("self_exec_id"),
        state_argument=types.tracepoint_arguments("sched_switch") >= 4,
        task_storage=safe_map_kinds.task_storage,
        throttle_work=types.offset("task_struct", "sched_throttle_work") is not None,
        ring_buffer=safe_map_kinds.ring_buffer,
        registers=_registers(types) if types.has_function("bpf_task_pt_regs") else {},
        fs_base=None if thread is None or fs_base is None else thread + fs_base,
        own_id=_own_id(types) if fs_base is None else {},
        delays_dequeue=types.offset("sched_entity", "sched_delayed") is not None,
        migrate_type=types.tracepoint_type("sched_migrate_task"),
        waking_type=types.tracepoint_type("sched_waking"),
        files=_files(types),
        paths=_all_of(types, _PATHS),
        mappings=_mappings(types),
        rings=_rings(types, submission),
        ring_submission=submission,
        ring_operations=types.enumerators("io_uring_op"),
        disks=_disks(types),
        disk_operations=types.enumerators("req_op") or types.enumerators("req_opf"),
        sockets=_sockets(types),
        locks=_locks(types),
        cgroup=cgroup,
        hierarchies=_hierarchies(types) if cgroup else {},
        task_functions=_task_functions(types),
        may_goto=bool(types.enumerators("bpf_cond_pseudo_jmp")),
    )


def _task_functions(types: KernelTypes) -> Mapping[str, int]:
    found = {name: types.function(function) for name, function in _TASK_FUNCTIONS.items()}
    known = {name: number for name, number in found.items() if number is not None}
    return known if len(known) == len(found) and probes.has_map_iterators(types) else {}


def _cpu(types: KernelTypes) -> int | None:
    """Return the offset in task_struct of the thread's CPU, which is in thread_info since bcf9033e5449 (5.16)."""
    thread_info, cpu = types.offset("task_struct", "thread_info"), types.offset("thread_info", "cpu")
    return types.offset("task_struct", "cpu") if thread_info is None or cpu is None else thread_info + cpu


def _stack_pointer(types: KernelTypes) -> int | None:
    """Offset in thread_struct of the kernel stack pointer: arm64 has it in cpu_context."""
    saved, sp = types.offset("thread_struct", "cpu_context"), types.offset("cpu_context", "sp")
    return types.offset("thread_struct", "sp") if saved is None or sp is None else saved + sp


_TASK_FUNCTIONS = {"TASK_FROM_PID": "bpf_task_from_pid", "TASK_RELEASE": "bpf_task_release"}
_CGROUP = {
    "TASK_CGROUPS": ("task_struct", "cgroups"),
    "CGROUP_OF_STATE": ("cgroup_subsys_state", "cgroup"),
    "CGROUP_LEVEL": ("cgroup", "level"),
    "CGROUP_NODE": ("cgroup", "kn"),
    "CGROUP_NODE_ID": ("kernfs_node", "id"),
}
_ANCESTORS = {"CGROUP_ANCESTORS": ("cgroup", "ancestors"), "CGROUP_ANCESTOR_IDS": ("cgroup", "ancestor_ids")}
"""Each kernel has one of the two."""
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
_PATHS = {
    "TABLE_SIZE": ("fdtable", "max_fds"),
    "INODE_MODE": ("inode", "i_mode"),
    "INODE_GENERATION": ("inode", "i_generation"),
    "FILE_PATH": ("file", "f_path"),
    "PATH_DENTRY": ("path", "dentry"),
    "PATH_MOUNT": ("path", "mnt"),
    "DENTRY_PARENT": ("dentry", "d_parent"),
    "DENTRY_NAME": ("dentry", "d_name"),
    "NAME_TEXT": ("qstr", "name"),
    "MOUNT_VFS": ("mount", "mnt"),
    "MOUNT_PARENT": ("mount", "mnt_parent"),
    "MOUNT_POINT": ("mount", "mnt_mountpoint"),
    "VFS_ROOT": ("vfsmount", "mnt_root"),
    "TASK_FS": ("task_struct", "fs"),
    "FS_ROOT": ("fs_struct", "root"),
}
_MAPPINGS = {
    "TASK_MEMORY": ("task_struct", "mm"),
    "FAULTS_MAJOR": ("task_struct", "maj_flt"),
    "FAULTS_MINOR": ("task_struct", "min_flt"),
    "MAPPING_START": ("vm_area_struct", "vm_start"),
    "MAPPING_END": ("vm_area_struct", "vm_end"),
    "MAPPING_FILE": ("vm_area_struct", "vm_file"),
}
_MAPLE_TREE = {
    "MEMORY_TREE": ("mm_struct", "mm_mt"),
    "TREE_ROOT": ("maple_tree", "ma_root"),
    "MAPLE_PIVOT": ("maple_range_64", "pivot"),
    "MAPLE_RANGE_SLOT": ("maple_range_64", "slot"),
    "MAPLE_ARANGE_SLOT": ("maple_arange_64", "slot"),
}
_RED_BLACK_TREE = {
    "MEMORY_TREE": ("mm_struct", "mm_rb"),
    "MAPPING_NODE": ("vm_area_struct", "vm_rb"),
    "NODE_LEFT": ("rb_node", "rb_left"),
    "NODE_RIGHT": ("rb_node", "rb_right"),
}
_RINGS = {
    "RING_FILE": ("io_kiocb", "file"),
    "RING_OPCODE": ("io_kiocb", "opcode"),
    "RING_FLAGS": ("io_kiocb", "flags"),
}
_RING_SUBMISSIONS = ("io_uring_submit_req", "io_uring_submit_sqe")
"""Names of the tracepoint at the submission of a request, newest first."""
_DISKS = {
    "REQUEST_QUEUE": ("request", "q"),
    "REQUEST_FLAGS": ("request", "cmd_flags"),
    "REQUEST_BYTES": ("request", "__data_len"),
    "REQUEST_START": ("request", "start_time_ns"),
    "QUEUE_DISK": ("request_queue", "disk"),
    "DISK_MAJOR": ("gendisk", "major"),
    "DISK_MINOR": ("gendisk", "first_minor"),
    "DISK_OPERATIONS": ("gendisk", "fops"),
    "OPERATIONS_SUBMIT": ("block_device_operations", "submit_bio"),
    "BIO_DEVICE": ("bio", "bi_bdev"),
    "BIO_FLAGS": ("bio", "bi_opf"),
    "BIO_STATUS": ("bio", "bi_status"),
    "DEVICE_DISK": ("block_device", "bd_disk"),
}
_WORKERS = {
    "TASK_WORKER": ("task_struct", "worker_private"),
    "WORKER_DATA": ("kthread", "data"),
    "WORKER_TEXT": ("worker", "desc"),
}
"""worker_private is called so since e32cf5dfbe22 (5.17)."""
_REQUEST_FLAGS = {
    "FLAG_SYNC": "__REQ_SYNC",
    "FLAG_META": "__REQ_META",
    "FLAG_AHEAD": "__REQ_RAHEAD",
    "FLAG_FLUSH": "__REQ_PREFLUSH",
    "FLAG_FUA": "__REQ_FUA",
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
"""mm_struct.owner exists only in kernels with a memory controller."""


def _all_of(types: KernelTypes, members: Mapping[str, tuple[str, str]]) -> Mapping[str, int]:
    """Offsets of all `members`; empty if one is unknown."""
    offsets = {name: types.offset(*member) for name, member in members.items()}
    found = {name: offset for name, offset in offsets.items() if offset is not None}
    return found if len(found) == len(offsets) else {}


def _files(types: KernelTypes) -> Mapping[str, int]:
    found, polls = _all_of(types, _FILES), _all_of(types, _POLLS)
    poll_bytes, entry_bytes = types.size("poll_wqueues"), types.size("poll_table_entry")
    if not (found and polls and poll_bytes and entry_bytes):
        return found
    return {**found, **polls, "POLL_BYTES": poll_bytes, "ENTRY_BYTES": entry_bytes}


def _mappings(types: KernelTypes) -> Mapping[str, int]:
    if not types.has_tracepoint("page_fault_user"):  # arm64 has none
        return {}
    found, maple, red_black = (_all_of(types, members) for members in (_MAPPINGS, _MAPLE_TREE, _RED_BLACK_TREE))
    kinds = types.enumerators("maple_type")
    if maple and types.offset("maple_arange_64", "pivot") == maple["MAPLE_PIVOT"] and "maple_arange_64" in kinds:
        nodes = {f"MAPLE_{kind.split('_')[1].upper()}": number for kind, number in kinds.items()}
        pivots = {
            f"MAPLE_{kind}_PIVOTS": (maple[f"MAPLE_{kind}_SLOT"] - maple["MAPLE_PIVOT"]) // 8
            for kind in ("RANGE", "ARANGE")
        }
        tree = {**maple, **nodes, **pivots}
    else:
        tree = red_black
    return {**found, **tree} if found and tree else {}


def _rings(types: KernelTypes, submission: str) -> Mapping[str, int]:
    found, completion = _all_of(types, _RINGS), types.offset("io_kiocb", "cqe")
    descriptor, result = types.offset("io_cqe", "fd"), types.offset("io_uring_cqe", "res")
    if not found or completion is None or descriptor is None or result is None or not submission:
        return {}
    # A submission has the request, and until 6.2 another argument.
    # A completion has (ring, request, user data, result, ...), since 6.14 (ring, request, completion).
    arguments = types.tracepoint_arguments("io_uring_complete")
    if types.tracepoint_arguments(submission) > 2 or not arguments:
        return {}
    ends = {"CQE_ARGUMENT": 2, "CQE_RESULT": result} if arguments == 3 else {"RESULT_ARGUMENT": 3}
    return {**found, **ends, "RING_DESCRIPTOR": completion + descriptor, "SUBMIT_ARGUMENT": 0}


def _disks(types: KernelTypes) -> Mapping[str, int]:
    found, bits = _all_of(types, _DISKS), types.enumerators("req_flag_bits")
    position, size = types.offset("bio", "bi_iter"), types.offset("bvec_iter", "bi_size")
    if not found or position is None or size is None or not bits.keys() >= {*_REQUEST_FLAGS.values()}:
        return {}
    flags = {name: 1 << bits[bit] for name, bit in _REQUEST_FLAGS.items()}
    starts = {"REQUEST_STARTS": 1} if types.has_tracepoint("block_io_start") else {}
    return {**found, **flags, **starts, **_all_of(types, _WORKERS), "BIO_BYTES": position + size}


def _own_id(types: KernelTypes) -> Mapping[str, int]:
    found, upid_bytes = _all_of(types, _OWN_ID), types.size("upid")
    return {**found, "UPID_BYTES": upid_bytes} if found and upid_bytes else {}


def _sockets(types: KernelTypes) -> Mapping[str, int]:
    """Offsets for sockets; those for IPv6 are missing in a kernel that was built without it."""
    found = _all_of(types, _SOCKETS)
    return {**found, **_all_of(types, _SOCKETS_6), **_all_of(types, _SOCKETS_UNIX)} if found else {}


def _locks(types: KernelTypes) -> Mapping[str, int]:
    found = _all_of(types, _LOCKS)
    return {**found, **_all_of(types, _LOCKS_OF_MEMORY)} if found else {}


def _cgroup(types: KernelTypes) -> Mapping[str, int]:
    """Offsets that lead to a task's cgroup.

    Empty if unknown, such as in a kernel without cgroups.
    """
    offsets = {name: types.offset(*member) for name, member in (_CGROUP | _ANCESTORS).items()}
    found = {name: offset for name, offset in offsets.items() if offset is not None}
    return found if found.keys() >= _CGROUP.keys() and found.keys() & _ANCESTORS.keys() else {}


def _hierarchies(types: KernelTypes) -> Mapping[str, int]:
    """Offsets as Features.hierarchies."""
    v2, v1 = types.offset("css_set", "dfl_cgrp"), types.offset("css_set", "subsys")
    found = {} if v2 is None else {"": v2}
    for name, number in types.enumerators("cgroup_subsys_id").items():
        if v1 is not None and name.endswith("_cgrp_id"):
            controller = name.removesuffix("_cgrp_id")
            found["blkio" if controller == "io" else controller] = v1 + 8 * number  # it is called io in version 2
    return found


_REGISTERS = {
    "x86_64": {
        "REG_CALL": "orig_ax",
        "REG_IP": "ip",
        "REG_SP": "sp",
        "REG_BP": "bp",
        "REG_MODE": "cs",
        **{f"REG_ARGUMENT_{n}": member for n, member in enumerate(("di", "si", "dx", "r10", "r8", "r9"))},
        **{f"REG_CALLEE_SAVED_{n}": member for n, member in enumerate(("bx", "r12", "r13", "r14", "r15"))},
    },
    "aarch64": {
        "REG_CALL": "syscallno",
        "REG_IP": "pc",
        "REG_SP": "sp",
        "REG_BP": "regs:29",
        "REG_MODE": "pstate",
        **{f"REG_ARGUMENT_{n}": f"regs:{n}" for n in range(6)},
        **{f"REG_CALLEE_SAVED_{n}": f"regs:{number}" for n, number in enumerate((*range(19, 29), 30))},
        "REG_LINK": "regs:30",
    },
}
"""Members of pt_regs, by their names in bpf/offcpu.c.

They are the number and arguments of a system call (for its calling convention see syscall(2)), ip, sp, frame pointer
and mode, the other callee-saved registers, and the link register on machines that have one.
"""


def _registers(types: KernelTypes) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for name, member in _REGISTERS.get(platform.machine(), {}).items():
        member, _, index = member.partition(":")
        offset = types.offset("pt_regs", member)
        if offset is None:
            return {}
        found[name] = offset + 8 * int(index or 0)
    if found:
        found["REG_WORDS"] = max(found.values()) // 8 + 1
    return found


def choose_probes(features: Features, requested: str) -> tuple[str, ...]:
    """Switch-in probes to try, in order.

    Raises UsageError if this kernel does not have the requested one.
    """
    if requested == "auto":
        return features.switch_in_probes
    if requested not in features.switch_in_probes:
        raise UsageError(f"--probe {requested}: this kernel does not have it. Leave --probe out, or see: offtop doctor")
    return (requested,)


def kprobe_symbol(kallsyms: str = "/proc/kallsyms") -> str:
    """Name by which finish_task_switch can be probed.

    Empty if kprobes or the function are missing.
    """
    if not KPROBES.exists():
        return ""
    with Path(kallsyms).open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            name = line.split()[2]
            if _SWITCH_IN_FUNCTION.fullmatch(name):
                return name
    return ""
