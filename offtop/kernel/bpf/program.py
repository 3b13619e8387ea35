"""Load and attach the BPF programs of a mode, and hold their maps and links.

The compiler runs in a child process (compile.py), which passes file descriptors and exits. Programs and maps exist as
long as the descriptors are open, so the kernel removes them when this process exits, for whatever reason.
"""

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from types import MappingProxyType
from typing import Any, NamedTuple

from offtop import paths
from offtop.errors import KernelError, OfftopError, PrivilegeError
from offtop.kernel.bpf import cache, layout, libbpf, map_sizes, pid_namespace
from offtop.kernel.bpf.distribution import install_command
from offtop.kernel.bpf.features import Features, choose_probes
from offtop.kernel.bpf.libbpf import Map
from offtop.kernel.bpf.map_sizes import Sizes
from offtop.kernel.procfs import syscalls
from offtop.kernel.procfs.memory import code_addresses
from offtop.printable import printable

_COMPILE_SECONDS = 600.0
"""Compiling takes one or two seconds on an idle machine, and the kernel's verifier may take much longer."""
_KILLED_SECONDS = 1.0
"""How long to wait for a killed compiler."""
_MOST_DESCRIPTORS = 253
"""SCM_MAX_FD of the kernel: as many as one message can pass."""
_CLOSERS = 64
"""How many threads close descriptors in parallel."""
SWITCH_IN_TRACEPOINTS = {"exit": "sched_exit_tp"}
CHECK_EVERY = 64
"""One in so many verified stacks is unwound as well."""
_NOTHING_ELSE: Mapping[str, Any] = {
    "raw_tracepoints": {},
    "typed_tracepoints": {},
    "kprobes": {},
    "iterators": {},
    "uprobes": [],
    "random_maps": [],
    "maps": [],
}
"""In the request for a program beside the main one: what only that one has."""


class Unwind(NamedTuple):
    """How user stacks are unwound, and whether kernel stacks are verified."""

    way: str = "auto"
    """`auto`: by .eh_frame, otherwise by frame pointers and by words that look like return addresses;
    `dwarf`: only by .eh_frame; `fp`: only by frame pointers; `off`: no user stacks."""
    stack_kb: int = 16
    """How much of a stack to copy if the BPF programs do not have the rules to unwind it yet."""
    cpu_pct: float = 5.0
    """Share of one CPU that offtop may use in all; unwinding in user space gets what everything else leaves of it."""
    check_every: int = CHECK_EVERY
    """One in so many user stacks that BPF has verified is unwound as well (memo.c); 0: each stack is unwound."""
    kernel_check_every: int = 0
    """The same for kernel stacks (kernelmemo.c)."""

    def uses_rules(self, features: Features) -> bool:
        """Whether the BPF programs unwind by rules: this is requested, and possible.

        They need a thread's registers (x86-64, arm64), and a ring buffer for copies of stacks: these show user space
        which rules are missing.
        """
        return self.wants_rules and "REG_CALLEE_SAVED_0" in features.registers and features.ring_buffer

    @property
    def wants_rules(self) -> bool:
        return self.way in ("auto", "dwarf")

    def verifies_kernel_stacks(self, features: Features, probe: str) -> bool:
        """Whether the BPF programs verify kernel stacks: this is requested, and possible.

        The switch-in probe `switch` does not run in the thread that has waited, and with `kprobe`, 6.12's verifier
        refuses the program. arm64 may sign return addresses, and leaves its gap of random size in the middle of the
        stack.
        """
        can = features.may_goto and features.stack_pointer is not None and platform.machine() == "x86_64"
        return bool(self.kernel_check_every) and can and probe == "exit"

    def defines(self, features: Features, probe: str) -> dict[str, int]:
        found = {"USER_STACKS": int(self.way != "off")}
        if self.verifies_kernel_stacks(features, probe):
            found["KERNEL_MEMOS"] = map_sizes.MEMOS
        if self.uses_rules(features):
            found |= {
                "UNWIND_KB": self.stack_kb,
                "RULES": map_sizes.RULES,
                "SPACES": map_sizes.SPACES,
                "MEMOS": map_sizes.MEMOS,
                "COPIES": _copies_pages(self),
            }
            found |= {"REGISTERS": layout.REGISTERS, "CODE_ADDRESSES": code_addresses(), "CPUS": possible_cpus()}
        return found


DEFAULT_UNWIND = Unwind()


class _LoadError(KernelError):
    """A program could not be compiled, loaded or attached."""

    def __init__(self, text: str, cause: str) -> None:
        """`cause`: the part of `text` that gives the cause, without the remedy."""
        super().__init__(text)
        self.cause = cause


def _copies_pages(unwind: Unwind) -> int:
    """Number of pages for 64 copies and their headers: a power of two, because a ring buffer needs one."""
    return 1 << (64 * (unwind.stack_kb + 2) * 1024 // os.sysconf("SC_PAGE_SIZE") - 1).bit_length()


class Program:
    """The attached BPF programs of a mode.

    They are detached by `close`, or when the process exits.
    """

    def __init__(
        self,
        probe: str,
        waking: bool,
        fds: Mapping[str, int],
        bcc_version: str,
        unwind: Unwind,
        request: Mapping[str, Any],
        in_task_storage: bool,
    ) -> None:
        """`request`: what the compiler was given.

        `in_task_storage`: whether threads' records are in task storage. Otherwise they are in a hash map.
        """
        self.probe, self.waking, self.bcc_version = probe, waking, bcc_version
        self._request = request
        self.unwind = unwind
        """How stacks are unwound: by frame pointers if the kernel refused the program that follows rules."""
        self.in_task_storage = in_task_storage
        self.notices: tuple[str, ...] = ()
        """Requested features that do not work here: for each, one sentence with its remedy."""
        self._fds = dict(fds)
        self._changing = Lock()
        """Held while descriptors are added or closed."""
        self._is_closed = False
        self.programs = {name.removeprefix("program "): fd for name, fd in fds.items() if name.startswith("program ")}
        links = {name: fd for name, fd in fds.items() if name.startswith("link bpf_iter__")}
        has_changed = "map changed" in fds
        self.changed_link = links.pop("link bpf_iter__bpf_map_elem") if has_changed else None
        """Descriptor of the iterator over `changed`; None if BPF does not note which threads have something to
        report."""
        self.scan_links = [*links.values()]
        """Descriptors of the iterators that make up a task scan, in the order in which they run."""
        self.kprobe_links = [fds[f"link {symbol}"] for symbol in request["kprobes"].values()]
        sizes = {
            **layout.SIZES,
            **layout.OUTLIER_SIZES,
            **layout.UNWIND_SIZES,
            **layout.PYTHON_SIZES,
            **layout.WITHIN_SIZES,
            **layout.KERNEL_MEMO_SIZES,
            **layout.CHANGED_SIZES,
        }
        self.maps = maps_of(fds, sizes, layout.PER_CPU)

    def load_waking(self) -> None:
        """Load the program that finds wakers, without attaching it.

        This takes a second, so call it only when wakers are needed. Raises OSError, and KernelError if this kernel does
        not support it, or if `close` was called meanwhile.
        """
        if self.waking or "sched_waking" in self.programs:
            return
        type_id = self._request["waking_type"]
        if type_id is None:
            raise KernelError("Wakers cannot be shown: this kernel does not describe sched_waking. See: offtop doctor")
        request = {
            **self._request,
            **_NOTHING_ELSE,
            "flags": [*self._request["flags"], "-DTYPED_WAKING=1"],
            "typed_tracepoints": {"on_waking": ["sched_waking", type_id]},
        }
        answer, fds, output = self._load_sharing_maps(request)
        if "error" in answer:
            raise _explain_failure(answer, output, self.probe)
        if not fds:
            cause = " ".join(answer["refused"].split())
            raise KernelError(f"Wakers cannot be shown: {printable(cause[:300])}. See what is missing: offtop doctor")
        with contextlib.ExitStack() as failed:
            failed.callback(os.close, fds[0])
            try:
                os.close(libbpf.attach_typed(fds[0]))  # fail now if it cannot be attached, not in the middle of a tick
            except OSError as error:
                raise KernelError(
                    f"Wakers cannot be shown: {error.strerror}. See what is missing: offtop doctor"
                ) from error
            with self._changing:
                self._check_open()
                self.programs["sched_waking"] = self._fds["program sched_waking"] = fds[0]
            failed.pop_all()

    def load_beside(
        self,
        source: str,
        raw_tracepoints: Mapping[str, str],
        maps: Sequence[str],
        defines: Mapping[str, int],
        own_scratch: bool = False,
    ) -> dict[str, int]:
        """Load and attach another source file, which uses this program's maps of the same names.

        `raw_tracepoints`: function → tracepoint. `defines`: macros in addition to those of this program. `own_scratch`:
        it gets a map `scratch` of its own, because it may run in an interrupt of this program. Returns descriptors by
        name: `map NAME`, `program TRACEPOINT`, `link TRACEPOINT`; the caller closes them. Raises OfftopError.
        """
        request: dict[str, Any] = {
            **self._request,
            **_NOTHING_ELSE,
            "source": str(paths.bpf() / source),
            "flags": [*self._request["flags"], *(f"-D{name}={value}" for name, value in defines.items())],
            "raw_tracepoints": raw_tracepoints,
            "inner_maps": {},
            "random_maps": ["scratch"] if own_scratch else [],
            "maps": maps,
        }
        answer, fds, output = self._load_sharing_maps(request)
        if "error" in answer:
            raise _explain_failure(answer, output, self.probe)
        return dict(zip(answer["fds"], fds, strict=True))

    def _load_sharing_maps(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], list[int], str]:
        """Load a program that uses the maps of this one. Returns the same as `_compile`."""
        with contextlib.ExitStack() as copies:  # close() does not wait for a compiler
            shared_maps: dict[str, int] = {}
            with self._changing:
                self._check_open()
                for name in [name.removeprefix("map ") for name in self._fds if name.startswith("map ")]:
                    if name not in request["random_maps"]:
                        shared_maps[name] = copy = os.dup(self._fds[f"map {name}"])
                        copies.callback(os.close, copy)
            return _load_or_compile({**request, "shared_maps": shared_maps}, [*shared_maps.values()])

    def attach_waking(self, wanted: bool) -> None:
        """Attach (or, if not `wanted`, detach) the program that finds wakers. Raises OSError.

        Does nothing if run-queue time is taken from sched_waking, too: then that program is always attached.
        """
        if self.waking or wanted == ("link sched_waking" in self._fds):
            return
        with self._changing:
            if wanted:
                self._fds["link sched_waking"] = libbpf.attach_typed(self.programs["sched_waking"])
            else:
                os.close(self._fds.pop("link sched_waking"))

    def attach_to_function(self, path: str, begins: Collection[int], ends: Collection[int]) -> None:
        """Attach the programs that detect calls of a function, at these offsets in its file. Raises OSError."""
        with self._changing:
            self._check_open()
            for function, offsets in (("on_call", begins), ("on_return", ends)):
                for offset in offsets:
                    name = f"link {function} {len(self._fds)}"
                    self._fds[name] = libbpf.attach_uprobe(self.programs[function], path, offset)

    def close(self) -> None:
        with self._changing:
            self._is_closed = True
            # To remove a breakpoint the kernel waits for all CPUs. Closed in parallel, those waits overlap.
            with ThreadPoolExecutor(_CLOSERS) as pool:
                list(pool.map(os.close, self._fds.values()))
            self._fds = {}

    def _check_open(self) -> None:
        if self._is_closed:
            raise KernelError("Nothing more can be shown: offtop has stopped tracing. Start it again")


def possible_cpus() -> int:
    """Number of CPUs for which per-CPU maps have values, online or not."""
    last = Path("/sys/devices/system/cpu/possible").read_text().strip().split(",")[-1].split("-")[-1]
    return int(last) + 1


def maps_of(fds: Mapping[str, int], sizes: Mapping[str, tuple[int, int]], per_cpu: Collection[str]) -> dict[str, Map]:
    """Return those of the maps in `sizes` that `fds` has, by name.

    `sizes` has the bytes of a key and of a value; `per_cpu` the maps with a value for each CPU. Raises KernelError if a
    map has other sizes, and OSError.
    """
    cpus, maps = possible_cpus(), dict[str, Map]()
    for name, expected in sizes.items():
        if (fd := fds.get(f"map {name}")) is None:
            continue
        maps[name] = one = Map(fd, cpus if name in per_cpu else 1)
        if (one.key_bytes, one.value_bytes) != expected:
            raise KernelError(
                f"offtop's files are from different versions (map {name} has another layout). Reinstall offtop."
            )
    return maps


def attach(
    features: Features,
    probe: str = "auto",
    sizes: Sizes | None = None,
    defines: Mapping[str, int] = MappingProxyType({}),
    unwind: Unwind = DEFAULT_UNWIND,
    recompile: bool = False,
) -> Program:
    """Compile and attach with the first switch-in probe that works. On failure, nothing stays attached.

    `probe`: `auto` or one of features.SWITCH_IN_PROBES. `defines`: additional macros (pid_namespace.defines, and
    WITHIN if calls are traced). `unwind`: how user stacks are unwound. `recompile`: compile even if the program is in
    the cache.
    Raises OfftopError with the remedy.
    """
    sizes = sizes or map_sizes.for_machine()
    failures: list[KernelError] = []
    notices = [] if features.ring_buffer else [_WITHOUT_RING_BUFFER]
    if unwind.wants_rules and not unwind.uses_rules(features) and features.ring_buffer:
        notices.append(_WITHOUT_REGISTERS)
    ways = (unwind, unwind._replace(way="fp")) if unwind.uses_rules(features) else (unwind,)
    switch_in_probes = choose_probes(features, probe)
    for candidate in switch_in_probes:
        for way in ways:  # a better probe matters more than complete user stacks
            try:
                program = _attach_with_fewer_features(candidate, features, sizes, defines, way, recompile)
            except KernelError as error:
                failures.append(error)
                continue
            if not _probe_is_called(program, features):
                program.close()
                failures.append(_never_called_error(candidate))
                break
            if candidate != (first := switch_in_probes[0]):
                notices.append(
                    f"The switch-in probe '{first}' does not work here ({_cause(failures[0])}), so offtop uses "
                    f"'{candidate}'. Please report it, with the output of: offtop doctor."
                )
            if way != unwind:
                notices.append(
                    "User stacks follow frame pointers only, because the program that unwinds by .eh_frame could not "
                    f"be loaded ({_cause(failures[-1])}). Please report it, with the output of: offtop doctor."
                )
            if unwind.kernel_check_every and "kernel_memo_settings" not in program.maps:
                notices.append(_KERNEL_STACKS_UNWOUND)
            if program.probe == "switch" and probe == "auto":
                notices.append(_BY_SWITCH)
            program.notices = tuple(notices)
            return program
    raise failures[0]


_WITHOUT_RING_BUFFER = (
    "This real-time kernel's BPF ring buffers use a lock that may sleep, so single outliers are not reported and user "
    "stacks follow frame pointers only. Use Linux 6.12 or newer."
)
_WITHOUT_REGISTERS = (
    "User stacks follow frame pointers only, because BPF programs cannot read a thread's registers here. Use Linux "
    "5.15 or newer, on x86-64 or arm64."
)
_KERNEL_STACKS_UNWOUND = (
    "Each kernel stack is unwound, none is verified (--verify-kernel-stacks): that needs x86-64, and the switch-in "
    "probe exit, which Linux has from 6.16 on."
)
_BY_SWITCH = (
    "Stacks are unwound at every switch, which costs about 3 µs each, and what a wait was on is unknown. Use a kernel "
    "with CONFIG_KPROBES=y, or Linux 6.16 or newer."
)
_SLEEPS, _SLEEP_S = 100, 0.001


def _probe_is_called(program: Program, features: Features) -> bool:
    """Whether the switch-in probe is called: the compiler may have inlined the function.

    Sleeps for a moment, with a filter that counts no waits, until switch_in_current() in offcpu.c has recorded a
    switch-in of offtop itself.
    """
    if program.probe == "switch" or features.last_arrival is None:  # always called, or it does not record anything
        return True
    config, clock = program.maps["config"], program.maps["clock_sample"]
    count_none = layout.CONFIG.pack(*(0, 0, 0, layout.ONLY_PIDS, os.getpid()), *[0] * 28)
    config.update(bytes(4), count_none)
    try:
        for _ in range(_SLEEPS):
            time.sleep(_SLEEP_S)
            if any(clock.lookup(bytes(4)) or b""):
                return True
        return False
    finally:
        config.update(bytes(4), bytes(len(count_none)))


def _never_called_error(probe: str) -> KernelError:
    cause = "it is attached, but the kernel never calls it"
    return _LoadError(
        f"The switch-in probe '{probe}' does not work here: {cause}. Leave --probe out, or see: offtop doctor", cause
    )


def _cause(error: KernelError) -> str:
    return error.cause if isinstance(error, _LoadError) else str(error)


def _attach_with_fewer_features(probe: str, features: Features, *rest: Any) -> Program:
    """Attach as `_attach_with_probe` does, but without features with which the verifier refuses the programs.

    Without may_goto, kernel stacks are not verified; without task_functions, scans visit all threads.
    """
    without: list[dict[str, Any]] = [{}, {"task_functions": {}}, {"may_goto": False}]
    ways = [replace(features, **one) for one in [*without, without[1] | without[2]]]
    ways = [way for number, way in enumerate(ways) if way not in ways[:number]]
    for way in ways[:-1]:
        with contextlib.suppress(_LoadError):
            return _attach_with_probe(probe, way, *rest)
    return _attach_with_probe(probe, ways[-1], *rest)


def _attach_with_probe(
    probe: str,
    features: Features,
    sizes: Sizes,
    defines: Mapping[str, int],
    unwind: Unwind,
    recompile: bool,
) -> Program:
    waking = features.needs_waking or probe == "switch"
    raw = {"on_switch": "sched_switch", "on_exec": "sched_process_exec"}
    kfuncs = [defines[name] for name in pid_namespace.FUNCTIONS if name in defines]
    if probe in SWITCH_IN_TRACEPOINTS:
        raw["on_exit"] = SWITCH_IN_TRACEPOINTS[probe]
    if waking:
        raw["on_waking"] = "sched_waking"
    # Programs can only access the task storage of the current thread, and user space cannot list it.
    in_hash = waking or bool(kfuncs) or not features.task_storage
    typed: dict[str, list[Any]] = {}
    if features.delays_dequeue and not waking:
        if in_hash:
            raw["on_migrate"] = "sched_migrate_task"
        elif features.migrate_type is not None:
            typed["on_migrate"] = ["sched_migrate_task", features.migrate_type]
    uses_rules = unwind.uses_rules(features)
    if uses_rules:
        raw["on_fork"] = "sched_process_fork"
    macros = {**_defines(probe, features, sizes, waking, in_hash), **unwind.defines(features, probe), **defines}
    iterated = {"bpf_iter__bpf_map_elem": "record"} if kfuncs else {}
    # WITHIN looks at the calls of all threads, and task_from_pid() takes the host's tids.
    if features.task_functions and not in_hash and not defines.keys() & {"WITHIN", "NAMESPACE"}:
        iterated, kfuncs = {"bpf_iter__bpf_map_elem": "changed"}, [*features.task_functions.values()]
        per_cpu = sizes.changed_per_cpu(possible_cpus())
        room = {"CHANGED": (per_cpu + map_sizes.RUNNING) * possible_cpus(), "CHANGED_PER_CPU": per_cpu}
        macros |= {**features.task_functions, **room}
    kprobes = {"on_finish": features.kprobe_symbol} if probe == "kprobe" else {}
    request = {
        "source": str(paths.bpf() / "offcpu.c"),
        "headers": str(paths.bpf() / "headers"),
        "flags": [f"-D{name}={value}" for name, value in macros.items()],
        "raw_tracepoints": raw,
        "typed_tracepoints": typed,
        "shared_maps": {},
        "inner_maps": {"barrier": "barrier_inner"},
        "bpf_syscall": syscalls.number_of("bpf"),
        "kprobes": kprobes,
        "iterators": {"bpf_iter__task": "", **iterated},
        "kfuncs": kfuncs,
        "random_maps": ["scratch"],
        "uprobes": ["on_call", "on_return"] if "WITHIN" in defines else [],
        "maps": [
            *("record", *layout.SIZES),
            *(layout.CHANGED_SIZES if "CHANGED" in macros else ()),
            *(("memos",) if uses_rules else ()),
            *(("kernel_memos", "kernel_unwinds", *layout.KERNEL_MEMO_SIZES) if "KERNEL_MEMOS" in macros else ()),
            *(layout.OUTLIER_SIZES if features.ring_buffer else ()),
            *(layout.UNWIND_SIZES if uses_rules else ()),
            *(layout.PYTHON_SIZES if features.can_find_python_threads else ()),
            *(("within_call", *layout.WITHIN_SIZES) if "WITHIN" in defines else ()),
        ],
    }
    answer, fds, output = _load_or_compile(request, recompile=recompile)
    if "error" in answer:
        raise _explain_failure(answer, output, probe)
    named = dict(zip(answer["fds"], fds, strict=True))
    try:
        for symbol in kprobes.values():
            named[f"link {symbol}"] = libbpf.attach_kprobe(named[f"program {symbol}"], symbol)
        if "program sched_migrate_task" in named and typed:
            named["link sched_migrate_task"] = libbpf.attach_typed(named["program sched_migrate_task"])
        later = {**request, "waking_type": features.waking_type}
        return Program(probe, waking, named, answer["bcc"], unwind, later, in_task_storage=not in_hash)
    except BaseException as error:
        for fd in named.values():
            os.close(fd)
        if isinstance(error, OSError):
            raise _load_error(probe, f"attaching to {features.kprobe_symbol}: {error.strerror}") from error
        raise


def _defines(probe: str, features: Features, of_maps: Sizes, waking: bool, in_hash: bool) -> dict[str, int]:
    release = [int("".join(c for c in part if c.isdigit()) or 0) for part in platform.release().split(".")[:3]] + [
        0
    ] * 3
    defines: dict[str, int | None] = {
        "LINUX_VERSION_CODE": (release[0] << 16) + (release[1] << 8) + min(255, release[2]),
        **of_maps.defines(),
        "EXECS": map_sizes.EXECS,
        "THRESHOLDS": map_sizes.THRESHOLDS,
        "OUTLIERS": map_sizes.OUTLIERS_BYTES // os.sysconf("SC_PAGE_SIZE") if features.ring_buffer else None,
        f"PROBE_{probe.upper()}": 1,
        "MAY_GOTO": 1 if features.may_goto else None,
        "WAKING": 1 if waking else None,
        "DELAYS_DEQUEUE": 1 if features.delays_dequeue and not waking else None,
        "STATE_ARGUMENT": 1 if features.state_argument else None,
        "RECORDS_IN_HASH": 1 if in_hash else None,
        "TASK_PID": features.pid,
        "TASK_TGID": features.tgid,
        "TASK_STATE": features.state,
        "TASK_COMM": features.comm,
        "TASK_LEADER": features.leader,
        "TASK_FLAGS": features.flags,
        "TASK_ON_CPU": features.on_cpu,
        "TASK_SP": features.stack_pointer,
        "RUN_DELAY": features.run_delay,
        "LAST_ARRIVAL": features.last_arrival,
        "LAST_QUEUED": features.last_queued,
        "PCOUNT": features.pcount,
        "SUM_EXEC": features.sum_exec,
        "EXEC_START": features.exec_start,
        "TASK_CPU": features.cpu,
        "TASK_ON_RQ": features.on_rq,
        "START_TIME": features.start_time,
        "TASK_EXECS": features.execs,
        "TASK_FS_BASE": features.fs_base,
        "PYTHON_PROCESSES": map_sizes.PYTHON_PROCESSES,
        "PYTHON_THREADS": map_sizes.PYTHON_THREADS,
        "MODE_MASK": layout.MODE_MASK,
        "MODE_32_BIT": layout.MODE_32_BIT,
        **features.own_id,
        **features.registers,
        **features.cgroup,
        **features.files,
        **features.sockets,
        **features.locks,
    }
    return {name: value for name, value in defines.items() if value is not None}


def _load_or_compile(
    request: Mapping[str, Any], shared: Sequence[int] = (), recompile: bool = False
) -> tuple[dict[str, Any], list[int], str]:
    """Load the program from the cache, or compile it if it is not there. Returns the same as `_compile`."""
    file = cache.cache_file(request)
    if file and not recompile and (found := cache.load(file, request)):
        return *found, ""
    return _compile({**request, "cache_file": str(file or "")}, shared)


def _compile(request: Mapping[str, Any], shared: Sequence[int] = ()) -> tuple[dict[str, Any], list[int], str]:
    """Compile in a child process. It is not a Sandbox, because it needs root and the system's Python packages.

    Returns its answer, the descriptors, and everything that it printed. `shared`: descriptors that the child inherits.
    """
    parent_end, child_end = socket.socketpair()
    with parent_end, child_end, os.fdopen(os.memfd_create("offtop-compiler"), "w+b") as output:
        child = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("compile.py")), str(child_end.fileno())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[child_end.fileno(), *shared],
            start_new_session=True,  # a ctrl-C on the terminal must only reach the parent
        )
        child_end.close()
        parent_end.settimeout(_COMPILE_SECONDS)
        fds: list[int] = []
        try:
            assert child.stdin
            with child.stdin as stdin:
                stdin.write(json.dumps(request).encode())
            message, fds, _, _ = socket.recv_fds(parent_end, 1 << 20, _MOST_DESCRIPTORS)
            answer: dict[str, Any] = json.loads(message) if message else {"error": "ended", "what": ""}
            if message:
                parent_end.send(b"!")
        except TimeoutError:
            answer = {"error": "slow", "what": f"no answer within {_COMPILE_SECONDS:.0f} s"}
        except OSError as error:
            answer = {"error": "ended", "what": str(error)}
        if "error" in answer:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_KILLED_SECONDS)
            for fd in fds:
                os.close(fd)
            fds = []
        else:  # the child still writes the cache file, in the background
            Thread(target=child.wait, name="offtop-compiler", daemon=True).start()
        output.seek(0)
        return answer, fds, output.read().decode(errors="replace")


def _explain_failure(answer: dict[str, Any], output: str, probe: str) -> OfftopError:
    """Turn an error that the compiler process has reported into one sentence and its remedy."""
    what = str(answer.get("what", ""))
    if answer["error"] == "import":
        return KernelError(
            "The Python module 'bcc' is missing. It comes from your distribution, not from PyPI: "
            f"{install_command('python3-bpfcc', 'python3-bcc')}"
        )
    if answer.get("errno") == 1:
        return PrivilegeError(
            "The kernel does not let offtop load BPF programs (operation not permitted). Try: sudo offtop   "
            "In a container, it needs CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG, and a seccomp filter that "
            "allows bpf(2) (systemd-nspawn --system-call-filter=bpf). Kernel lockdown always forbids it."
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    hint = next((line for line in lines if "error:" in line), lines[-1] if lines else "")
    what = " ".join((what or "the compiler exited").split())
    return _load_error(probe, f"{what}{f' ({printable(hint[:200])})' if hint else ''}")


def _load_error(probe: str, cause: str) -> _LoadError:
    return _LoadError(
        f"offtop's program could not be loaded with the switch-in probe '{probe}': {cause}. See what is missing: "
        "offtop doctor",
        cause,
    )
