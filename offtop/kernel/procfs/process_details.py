"""Read the details of one process, when the user opens the process view."""

import os
import pwd
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from offtop import units
from offtop.kernel.procfs.cgroups import Quota, content_of, mounted, quota_of
from offtop.kernel.procfs.guarded_reads import Channel
from offtop.kernel.procfs.processes import Reading, reading
from offtop.kernel.procfs.threads import status_of
from offtop.model.values.container import container, label
from offtop.model.values.snapshot import OUTSIDE, UNNAMED

_NOT_PERMITTED = "not permitted"
_STATES = {
    "Z": "zombie: it has exited, and its parent has not waited for it",
    "X": "has exited",
    "T": "stopped",
    "t": "stopped by a debugger",
}
"""Descriptions of the states that last and that a user cares about (fs/proc/array.c)."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """A process, and what is read once because several details need it."""

    process: psutil.Process
    status: Mapping[str, str]
    """Fields of /proc/PID/status. Not read by psutil, which also finds `Uid:` in a name that a process gave itself."""
    reading: Reading | None
    """None for a zombie."""
    quota: Quota | None


def read_details(pid: int, reads: Channel) -> tuple[tuple[str, str], ...]:
    """Label and value of each detail, in display order.

    Details that do not apply, or disappear while they are read, are left out; those that we may not read are `not
    permitted`. If the process does not exist, or exits meanwhile, there is a single entry that says so. Values are raw,
    untrusted text: escape them before they are shown.

    Never raises. May take long: a command line that waits for the process's mmap_lock is `[not read]` after a second,
    but looking up a user's name may wait for another machine. So do not call it in the polling or the drawing thread.
    """
    if pid == OUTSIDE:
        return (("process", "all threads outside of this container, by the host's ids"),)
    if pid == UNNAMED.pid:
        return (("process", "exited threads whose identity was dropped because a table was full"),)
    exited = (("process", f"{pid} no longer exists"),)
    try:
        process = psutil.Process(pid)
        quota = quota_of(content_of(pid), mounted())
        inputs = _Inputs(process, status_of(pid), reading(reads, pid), quota)
        found = tuple((name, value) for name, detail in _DETAILS if (value := _value(detail, inputs)))
        return found if process.is_running() else exited
    except (PermissionError, psutil.AccessDenied):
        return (("process", _NOT_PERMITTED),)
    except (OSError, psutil.Error, ValueError):  # ValueError: psutil rejects a negative pid
        return exited


def _value(detail: Callable[[_Inputs], str], inputs: _Inputs) -> str:
    """Read a detail; empty if it does not apply."""
    try:
        return detail(inputs)
    except (PermissionError, psutil.AccessDenied):
        return _NOT_PERMITTED
    except (OSError, psutil.Error, KeyError, ValueError):  # it has exited, and a file was cut off
        return ""


def _command_line(inputs: _Inputs) -> str:
    return inputs.reading.details.cmdline if inputs.reading else ""


def _executable(inputs: _Inputs) -> str:
    """Path of the executable, with ` (deleted)` if it has been replaced since.

    Not read by psutil, which guesses a path if it may not read the link.
    """
    return str(Path(f"/proc/{inputs.process.pid}/exe").readlink())


def _user(inputs: _Inputs) -> str:
    """Effective user, as in ps, and the real user if it is another one."""
    real, effective = (int(uid) for uid in inputs.status["Uid"].split()[:2])
    return _user_name(effective) + (f" (real: {_user_name(real)})" if real != effective else "")


def _user_name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name}, uid {uid}"
    except KeyError:
        return f"uid {uid}"


def _started(inputs: _Inputs) -> str:
    """Start time and age, in whole seconds.

    Start times count from boot, and the kernel gives the boot time in seconds.
    """
    started_s = inputs.process.create_time()
    age_s = max(0, int(time.time() - started_s))
    age = f"{age_s}s" if age_s < 60 else units.duration(age_s * units.NS_PER_S)
    return f"{datetime.fromtimestamp(started_s):%Y-%m-%d %H:%M:%S}, {age} ago"


def _parent(inputs: _Inputs) -> str:
    parent = inputs.process.parent()
    return f"{parent.pid} {_name(parent.pid)}" if parent else ""


def _name(pid: int) -> str:
    """Read the comm of a process.

    It is raw, unlike in /proc/PID/status, and not extended to the whole name, as psutil does.
    """
    return os.fsdecode(_content(pid, "comm").removesuffix(b"\n"))


def _state(inputs: _Inputs) -> str:
    state = inputs.status["State"][:1]
    if state == "Z" and inputs.status["Threads"] != "1":
        return "its main thread has exited, other threads still run"
    return _STATES.get(state, "")


def _threads(inputs: _Inputs) -> str:
    return inputs.status["Threads"]


def _open_files(inputs: _Inputs) -> str:
    if inputs.status["State"].startswith("Z"):  # the main thread has exited, and released its files
        return ""
    limit, _ = inputs.process.rlimit(psutil.RLIMIT_NOFILE)
    return f"{inputs.process.num_fds()}, limit {limit if limit >= 0 else 'none'}"


def _memory(inputs: _Inputs) -> str:
    """Resident set size; empty for a kernel thread."""
    rss_bytes = inputs.process.memory_info().rss
    return f"{units.size(rss_bytes)} resident" if rss_bytes else ""


def _cgroup(inputs: _Inputs) -> str:
    return inputs.reading.details.cgroup if inputs.reading else ""


def _container(inputs: _Inputs) -> str:
    cgroup = _cgroup(inputs)
    return label(cgroup) if container(cgroup).kind not in ("", "unit", "session") else ""


def _cpus(inputs: _Inputs) -> str:
    return inputs.reading.details.cpus if inputs.reading else ""


def _quota(inputs: _Inputs) -> str:
    if not (quota := inputs.quota):
        return ""
    shared = "" if quota.path == _cgroup(inputs) else f", of {quota.path}"
    each, period = units.duration(quota.quota_ns), units.duration(quota.period_ns)
    return f"{quota.cpus:.3g} CPUs: {each} in each {period}{shared}"


def _throttled(inputs: _Inputs) -> str:
    """Throttling of all processes in the cgroup since it was created."""
    if not (quota := inputs.quota):
        return ""
    if not quota.throttled:
        return f"never, in {quota.periods} periods"
    return f"in {quota.throttled} of {quota.periods} periods, {units.duration(quota.throttled_ns) or '0'} over all CPUs"


_DETAILS: tuple[tuple[str, Callable[[_Inputs], str]], ...] = (
    ("command line", _command_line),
    ("executable", _executable),
    ("user", _user),
    ("started", _started),
    ("parent", _parent),
    ("state", _state),
    ("threads", _threads),
    ("open files", _open_files),
    ("memory", _memory),
    ("cgroup", _cgroup),
    ("container", _container),
    ("allowed CPUs", _cpus),
    ("cpu quota", _quota),
    ("throttled", _throttled),
)


def _content(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()
