"""What is known of one process, read when a person asks for it."""

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
    "Z": "zombie: it has ended, and its parent has not asked how",
    "X": "has ended",
    "T": "stopped",
    "t": "stopped by a debugger",
}
"""Those that stay, and tell a person something (fs/proc/array.c)."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The process, and what several facts are taken from."""

    process: psutil.Process
    status: Mapping[str, str]
    """Not by psutil, which looks for `Uid:` even in what a process calls itself."""
    reading: Reading | None
    """None for a zombie."""
    quota: Quota | None


def facts(pid: int, reads: Channel) -> tuple[tuple[str, str], ...]:
    """Label and value, in the order in which a person reads them.

    What does not apply, or went while it was read, is left out; what we may not read says so. A process that is not
    there has one fact, that; and so has one that ended meanwhile, whose pid may be another's by now. Raw: values are
    strangers' text, to be escaped before they are shown.

    Never raises. May take long: a command line that waits for the process's mmap_lock is `[not read]` after a second,
    but a user's name may wait for another machine. So never call it in the thread that polls or in the one that draws.
    """
    if pid == OUTSIDE:
        return (("process", "all threads outside of this container, by the host's ids"),)
    if pid == UNNAMED.pid:
        return (("process", "threads that ended when there was no room to keep which they were"),)
    gone = (("process", f"{pid} is not there any more"),)
    try:
        process = psutil.Process(pid)
        quota = quota_of(content_of(pid), mounted())
        asked = _Asked(process, status_of(pid), reading(reads, pid), quota)
        told = tuple((name, value) for name, fact in _FACTS if (value := _value(fact, asked)))
        return told if process.is_running() else gone
    except (PermissionError, psutil.AccessDenied):
        return (("process", _NOT_PERMITTED),)
    except (OSError, psutil.Error, ValueError):  # no negative number is a pid
        return gone


def _value(fact: Callable[[_Asked], str], asked: _Asked) -> str:
    try:
        return fact(asked)
    except (PermissionError, psutil.AccessDenied):
        return _NOT_PERMITTED
    except (OSError, psutil.Error, KeyError, ValueError):  # it went, and left a file without an end
        return ""


def _command_line(asked: _Asked) -> str:
    return asked.reading.details.cmdline if asked.reading else ""


def _executable(asked: _Asked) -> str:
    """With ` (deleted)`, where it has been replaced since; not by psutil, which guesses where it may not know."""
    return str(Path(f"/proc/{asked.process.pid}/exe").readlink())


def _user(asked: _Asked) -> str:
    """Whom it acts as, as in ps, and whose it really is where that is another."""
    real, effective = (int(uid) for uid in asked.status["Uid"].split()[:2])
    return _named(effective) + (f" (real: {_named(real)})" if real != effective else "")


def _named(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name}, uid {uid}"
    except KeyError:
        return f"uid {uid}"


def _started(asked: _Asked) -> str:
    """In whole seconds: that is how exactly the kernel tells when it booted, from where beginnings are counted."""
    began_s = asked.process.create_time()
    age_s = max(0, int(time.time() - began_s))
    age = f"{age_s}s" if age_s < 60 else units.duration(age_s * units.NS_PER_S)
    return f"{datetime.fromtimestamp(began_s):%Y-%m-%d %H:%M:%S}, {age} ago"


def _parent(asked: _Asked) -> str:
    parent = asked.process.parent()
    return f"{parent.pid} {_name(parent.pid)}" if parent else ""


def _name(pid: int) -> str:
    """Raw, as /proc/PID/status does not have it; and not longer than the kernel's, as psutil's is."""
    return os.fsdecode(_content(pid, "comm").removesuffix(b"\n"))


def _state(asked: _Asked) -> str:
    state = asked.status["State"][:1]
    if state == "Z" and asked.status["Threads"] != "1":
        return "its main thread has ended, others go on"
    return _STATES.get(state, "")


def _threads(asked: _Asked) -> str:
    return asked.status["Threads"]


def _open_files(asked: _Asked) -> str:
    if asked.status["State"].startswith("Z"):  # they are not the main thread's any more
        return ""
    limit, _ = asked.process.rlimit(psutil.RLIMIT_NOFILE)
    return f"{asked.process.num_fds()}, limit {limit if limit >= 0 else 'none'}"


def _memory(asked: _Asked) -> str:
    """Nothing of a kernel thread."""
    rss_bytes = asked.process.memory_info().rss
    return f"{units.size(rss_bytes)} resident" if rss_bytes else ""


def _cgroup(asked: _Asked) -> str:
    return asked.reading.details.cgroup if asked.reading else ""


def _container(asked: _Asked) -> str:
    cgroup = _cgroup(asked)
    return label(cgroup) if container(cgroup).kind not in ("", "unit", "session") else ""


def _quota(asked: _Asked) -> str:
    if not (quota := asked.quota):
        return ""
    shared = "" if quota.path == _cgroup(asked) else f", of {quota.path}"
    each, period = units.duration(quota.quota_ns), units.duration(quota.period_ns)
    return f"{quota.cpus:.3g} CPUs: {each} in each {period}{shared}"


def _throttled(asked: _Asked) -> str:
    """Since the cgroup was made, and of all that is in it."""
    if not (quota := asked.quota):
        return ""
    if not quota.throttled:
        return f"never, in {quota.periods} periods"
    return f"in {quota.throttled} of {quota.periods} periods, {units.duration(quota.throttled_ns) or '0'} over all CPUs"


_FACTS: tuple[tuple[str, Callable[[_Asked], str]], ...] = (
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
    ("cpu quota", _quota),
    ("throttled", _throttled),
)


def _content(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()
