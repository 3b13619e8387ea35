"""JSON Schema of `--json`, which prints one object per tick. A contract: keys are only ever added."""

from typing import Any

from offtop.model.aggregate.stack_problems import REASONS
from offtop.model.outliers.trigger import METRICS
from offtop.model.values.peers import NAMED, ROLES
from offtop.model.values.stack import ANONYMOUS, CLOSED, ENDS, GONE, UNREAD
from offtop.model.values.wake import CHAIN_ENDS, KINDS, MODES, SOFTIRQ, STORM

_NS = {"type": "integer", "description": "ns"}
_COUNT = {"type": "integer", "minimum": 0}
_HISTOGRAM = {
    "type": "array",
    "description": "[low_ns, count] for each power of two that has waits, shortest first",
    "items": {"type": "array", "prefixItems": [_COUNT, _COUNT], "minItems": 2, "maxItems": 2},
}
_END = {
    "enum": [*ENDS, None],
    "description": "how the user stack ends: "
    + "; ".join(f"{end}: {means.removeprefix('whole: ')}" for end, means in ENDS.items())
    + "; null: there is no user stack",
}
_UNSURE = {
    "type": "boolean",
    "description": "callers may be wrong: they were found by frame pointers, or guessed from values on the stack",
}
_DIAGNOSIS = {
    "type": ["string", "null"],
    "description": "cause of most of it: the id of one of `diagnoses`; null: no rule matches",
}
_FRAMES = {"type": "array", "items": {"type": "string"}, "description": "leaf first"}


def _object(properties: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return the schema of an object. `others`: properties that are optional."""
    return {
        "type": "object",
        "properties": {**properties, **others},
        "required": list(properties),
    }


def _or_null(of_type: str, what: str, null: str = "unknown") -> dict[str, Any]:
    return {"type": [of_type, "null"], "description": f"{what}; null: {null}"}


def _unless(found: dict[str, Any], what: str, null: str) -> dict[str, Any]:
    """Return a schema that also allows null."""
    return {"anyOf": [found, {"type": "null"}], "description": f"{what}; null: {null}"}


_WAKER = _object(
    {
        "kind": {
            "enum": [*KINDS],
            "description": "what ended the wait: " + "; ".join(f"{kind}: {means}" for kind, means in KINDS.items()),
        },
        "name": {
            "type": "string",
            "description": "handler of an interrupt, function of a softirq or timer, or why the waker is unknown; "
            "otherwise empty",
        },
        "pid": {**_COUNT, "description": "0: the waker is not a thread"},
        "tid": {**_COUNT, "description": "0: the waker is not a thread"},
        "comm": {"type": "string", "description": "the thread's name at that time; empty: the waker is not a thread"},
        "via": {
            "enum": ["", SOFTIRQ],
            "description": f"{SOFTIRQ}: a softirq that ran within the thread's system call did the wakeup",
        },
        "kernel": {
            **_FRAMES,
            "description": "kernel stack of the wakeup, leaf first; for an interrupt only the interrupt's own frames",
        },
        "user": _FRAMES,
    }
)
_WAITED_ON = _object(
    {
        "kind": {
            "type": "string",
            "description": "futex, pipe, tcp, udp, unix, socket (of another family), "
            "eventfd, epoll, file, child, poll (any of several), mutex, rwsem, semaphore (kernel locks) "
            "and others",
        },
        "name": {
            "type": "string",
            "description": "the same for all threads that wait on it: an address, an inode or a path",
        },
        "pid": {
            **_COUNT,
            "description": "process in which the name is valid; 0: everywhere",
        },
        "local": {
            "type": "string",
            "description": "local address of tcp and udp: 10.0.0.1:40312, *:80, [::1]:53; otherwise empty",
        },
        "peer": {
            "type": "string",
            "description": "the other end, if connected; for unix the process that "
            "created it: postgres(4242); otherwise empty",
        },
        "state": {
            "type": "string",
            "description": "of tcp: established, listen, close-wait and so on; otherwise empty",
        },
        "ends": _unless(
            {
                "type": "array",
                "items": _object(
                    {
                        "role": {
                            "enum": [*ROLES],
                            "description": "; ".join(f"{role}: {means}" for role, means in ROLES.items()),
                        },
                        "pid": _COUNT,
                        "comm": {"type": "string", "description": "the process's name"},
                    }
                ),
            },
            "the processes of this machine at the other end of a pipe, of a file lock, or of a tcp, udp or unix "
            "connection in the waiting process's network namespace; known from the second tick on; at most "
            f"{NAMED} of each role",
            "unknown",
        ),
        "ends_more": {**_COUNT, "description": "how many more processes there are"},
        "members": _unless(
            {"type": "object", "additionalProperties": _COUNT},
            "how many descriptors of each kind an epoll watches: socket, pipe, eventfd, timerfd, file and so on",
            "unknown",
        ),
    }
)
_CALLS = _object(
    {
        "function": {"type": "string", "description": "as given with --within"},
        "calls": {**_COUNT, "description": "calls that returned in the tick"},
        "left": {
            **_COUNT,
            "description": "calls that ended by longjmp, an exception or the thread's exit; their length is unknown",
        },
        "total_ns": {
            **_COUNT,
            "description": "full length of the calls that returned, whenever they began (as for "
            "the next keys); running_ns + offcpu_ns",
        },
        "running_ns": {**_COUNT, "description": "includes what interrupts and the hypervisor took"},
        "offcpu_ns": {**_COUNT, "description": "blocked_ns + runqueue_ns"},
        "blocked_ns": _COUNT,
        "runqueue_ns": _COUNT,
        "max_ns": _COUNT,
        "histogram": _HISTOGRAM,
        "now": {
            **_COUNT,
            "description": "calls in progress at the end of the tick; those that began before offtop are unknown",
        },
        "oldest_ns": {**_COUNT, "description": "age of the oldest call in progress"},
    }
)
_WAITING_BEFORE = {"type": "number", "description": "average waiting threads in the baseline"}
_SAMPLING = _unless(
    _object(
        {
            "rate_hz": {"type": "number", "description": "how often all threads were sampled, per second"},
            "apart_ns": {
                **_COUNT,
                "description": "longest time between two samples: a wait may be shorter by this much at each end",
            },
            "guessed_ns": {
                **_COUNT,
                "description": "off-CPU time of all threads that may belong to another site than reported",
            },
            "own_only": {"type": "boolean", "description": "only the user's own processes are visible"},
            "lost_known": {
                "type": "boolean",
                "description": "false: lost does not count threads that began and exited between two samples",
            },
            "container_only": {"type": "boolean", "description": "only this container's processes are visible"},
        }
    ),
    "threads were sampled, so sites, lengths of waits and preempted_ns are estimates; runqueue_ns, running_ns and "
    "waits of threads are the kernel's own, from the first sample to the last, except for run-queue time that counted "
    "as blocked until the kernel reported it, which guessed_ns includes; "
    "offcpu_ns is the rest of a thread's time, and includes what the hypervisor stole or interrupts took",
    "every wait was seen",
)
_BASELINE = _unless(
    _object(
        {
            "waiting": {"type": "number", "description": "average waiting threads in the baseline; 0: it is new"},
            "change": {"type": "number", "description": "average waiting threads in this tick, minus the baseline"},
            "spread": _or_null(
                "number",
                "difference between the smallest and the largest average of a tick of this length in the baseline",
                "the baseline is too short to tell",
            ),
            "p99_ns": {**_COUNT, "description": "upper bound of the 99th percentile in the baseline; 0: no wait ended"},
            "new": {"type": "boolean", "description": "it is not in the baseline"},
            "sure": {"type": "boolean", "description": "the change is larger than the spread"},
        }
    ),
    "only with --baseline: the same in the baseline, whatever its pid was",
    "there is nothing to compare",
)
_HOLDER = _object({"pid": _COUNT, "tid": _COUNT, "comm": {"type": "string", "description": "empty: unknown"}})
_NO_WAKER = "wakers are not recorded, or the wait goes on, or it was for a CPU only"

_WOKEN: dict[str, Any] = {
    "waker": _unless(_WAKER, "what ended these waits", _NO_WAKER),
    "object": _unless(_WAITED_ON, "what was waited on", "unknown"),
    "chain": _unless(
        {"type": "array", "items": _FRAMES},
        "in mode chain: the waker's most recent wait, that of the thread which ended it, and so on; kernel and "
        "program functions, leaf first",
        f"another mode, or {_NO_WAKER}",
    ),
    "chain_wakers": _unless({"type": "array", "items": _WAKER}, "what ended each of these waits", "as for chain"),
    "chain_end": {
        "enum": [*CHAIN_ENDS, None],
        "description": "why the chain goes no further: "
        + "; ".join(f"{end}: {means.removeprefix('whole: ')}" for end, means in CHAIN_ENDS.items())
        + "; null: as for chain",
    },
}


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "offtop --json",
    "description": (
        "One tick. sum(categories.total_ns) = sum(threads.offcpu_ns). For each thread, offcpu_ns = blocked_ns + "
        "runqueue_ns, and its sites' total_ns + short_ns + filtered_ns = offcpu_ns. Waits in progress count while "
        "they go on; waits, histograms and max_ns are of finished waits only. With --filter or -u, categories hold "
        "what matches, and sum(categories.total_ns) + left_out_ns is the off-CPU time of all threads; threads and "
        "sites are those with matching time, each with all of its time."
    ),
    **_object(
        {
            "version": {"type": "string", "description": "offtop's version"},
            "taken_ns": {"type": "integer", "description": "CLOCK_REALTIME of the end of the tick"},
            "span_ns": {"type": "integer", "description": "measured length of the tick"},
            "mode": {
                "enum": [*MODES],
                "description": "what was recorded; wakers in all modes but offcpu, and in chain the wakers of wakers",
            },
            "probe": {
                "type": "string",
                "description": "switch-in probe, which reports that a thread is back on a CPU; proc: /proc was sampled",
            },
            "door": {"type": "string", "description": "older name of probe"},
            "notices": {
                "type": "array",
                "description": "what offtop lacks on this machine, a sentence or two each, with the fix",
                "items": {"type": "string"},
            },
            "filters": _object(
                {
                    "pids": {"type": "array", "items": _COUNT},
                    "tids": {"type": "array", "items": _COUNT},
                    "who": {"enum": ["all", "user", "kernel"]},
                    "states": {"type": "integer", "description": "mask; 0: every state"},
                    "min_ns": _COUNT,
                    "max_ns": _or_null("integer", "longer waits are left out", "no maximum"),
                    "cgroup": _or_null(
                        "string", "path; only threads of this cgroup and those below it are counted", "all"
                    ),
                    "within": _or_null("string", "only waits inside this function are counted", "all"),
                }
            ),
            "sampling": _SAMPLING,
            "within": _unless(_CALLS, "calls of the function given with --within", "none is given"),
            "filter": _or_null("string", "--filter and -u as one expression", "none"),
            "left_out_ns": {"type": "integer", "description": "ns of waits that do not match the filter; 0: no filter"},
            "lost": {
                "type": "object",
                "description": "what was not recorded, by kind; a kind without losses is absent. threads: their time "
                "is in the thread [ended, not named], except for waits with stacks, which keep their own ids. "
                "unread: user stacks that were not read in time ([not read])",
                "additionalProperties": _COUNT,
            },
            "cost": _object(
                {
                    "bpf_ns_per_switch": _or_null(
                        "number", "all BPF programs on the switch path, by the kernel's count"
                    ),
                    "switches": _or_null("integer", "context switches of the machine"),
                    "cpu_pct": _or_null("number", "offtop's process, percent of one CPU"),
                    "bpf_pct": _or_null("number", "its BPF programs, percent of one CPU"),
                    "rss_bytes": _or_null("integer", "offtop's process"),
                    "walk_ns": _or_null("integer", "CPU time of a scan of all threads, on average"),
                    "walk_every": {**_COUNT, "description": "there is one scan per this many ticks"},
                }
            ),
            "categories": {
                "type": "array",
                "description": "only what matches the filter",
                "items": _object(
                    {
                        "name": {"type": "string"},
                        "idle": {"type": "boolean", "description": "all of it is idle"},
                        "idle_ns": {"type": "integer", "description": "the part of total_ns that is idle"},
                        "waits": _COUNT,
                        "total_ns": _NS,
                        "max_ns": _COUNT,
                        "histogram": _HISTOGRAM,
                        "diagnosis": _DIAGNOSIS,
                    },
                    baseline=_BASELINE,
                ),
            },
            "threads": {
                "type": "array",
                "description": "each thread with a matching wait, with all of its waits",
                "items": _object(
                    {
                        "pid": _COUNT,
                        "tid": _COUNT,
                        "comm": {"type": "string"},
                        "process": {"type": "string", "description": "the process's name"},
                        "waits": _COUNT,
                        "offcpu_ns": _NS,
                        "blocked_ns": _NS,
                        "runqueue_ns": _NS,
                        "preempted_ns": _NS,
                        "running_ns": _or_null("integer", "ns, from the kernel's accounting of the thread"),
                        "residue_ns": _or_null(
                            "integer",
                            "ns: span_ns - running_ns - offcpu_ns, which the hypervisor and interrupts may explain; "
                            "slightly below 0 if the kernel's accounting lags",
                            "unknown, or the thread began or exited in this tick",
                        ),
                        "voluntary": {
                            **_COUNT,
                            "description": "waits that the thread began by itself, and a new thread's first, for a CPU",
                        },
                        "involuntary": {**_COUNT, "description": "waits that began when the thread was preempted"},
                        "max_ns": _COUNT,
                        "short_waits": _COUNT,
                        "short_ns": _NS,
                        "filtered_ns": _NS,
                        "histogram": _HISTOGRAM,
                        "diagnosis": _DIAGNOSIS,
                    },
                    baseline=_BASELINE,
                ),
            },
            "diagnoses": {
                "type": "array",
                "description": "causes of the sites below, most time first; their run-queue time counts separately",
                "items": _object(
                    {
                        "id": {"type": "string", "description": "id of a cause rule in rules.toml"},
                        "name": {"type": "string", "description": "what the threads wait for, in a few words"},
                        "says": {"type": "string", "description": "what that means"},
                        "next": _or_null("string", "what to look at next", "nothing in particular"),
                        "idle": _or_null("boolean", "whether it is waiting for work", "as for its category"),
                        "total_ns": _NS,
                    }
                ),
            },
            "sites": {
                "type": "array",
                "description": "each site (a thread and its stacks) with matching time, with all of its time; also "
                "sites whose time of earlier ticks has moved elsewhere",
                "items": _object(
                    {
                        "pid": _COUNT,
                        "tid": _COUNT,
                        "comm": {"type": "string"},
                        "category": {"type": "string"},
                        "idle": {"type": "boolean"},
                        "waits": _COUNT,
                        "total_ns": _NS,
                        "diagnosis": _DIAGNOSIS,
                        "earlier_ns": {
                            "type": "integer",
                            "description": "ns: add this to what earlier ticks reported of this site. A wait in "
                            "progress counts at a site without a waker; if it ends at another site, its time moves "
                            "there, and this is negative here",
                        },
                        "blocked_ns": _NS,
                        "runqueue_ns": _NS,
                        "max_ns": _COUNT,
                        "kernel": _FRAMES,
                        "user": _FRAMES,
                        "user_end": _END,
                        "user_unsure": _UNSURE,
                        "histogram": _HISTOGRAM,
                        **_WOKEN,
                    },
                    baseline=_BASELINE,
                ),
            },
            "storms": {
                "type": "array",
                "description": f"wakers that woke {STORM} threads or more at once, through one code path, from waits "
                "that had reached the minimum, most woken first; not filtered",
                "items": _object(
                    {
                        "waker": _WAKER,
                        "storms": {**_COUNT, "description": "storms that began in this tick"},
                        "woken": {**_COUNT, "description": "threads woken in all storms"},
                        "again": {
                            **_COUNT,
                            "description": "woken threads that switched out again within a millisecond",
                        },
                        "largest": {**_COUNT, "description": "threads woken in the largest storm"},
                        "wasted_switches": {**_COUNT, "description": "2 * again"},
                    }
                ),
            },
            "still_blocked": {
                "type": "array",
                "description": "waits in progress at the end of the tick that have reached the minimum, oldest first; "
                "only those that match the filter",
                "items": _object(
                    {
                        "pid": _COUNT,
                        "tid": _COUNT,
                        "comm": {"type": "string"},
                        "process": {"type": "string"},
                        "age_ns": _COUNT,
                        "age_is": {
                            "enum": ["exact", "at_most", "at_least"],
                            "description": "at_most: its begin was not seen; the thread last had a CPU this long ago",
                        },
                        "state": {"type": "string", "description": "as in ps: R, S, D, T, t, P, I; K: killable"},
                        "category": {"type": "string"},
                        "idle": {"type": "boolean"},
                        "diagnosis": _DIAGNOSIS,
                        "syscall": _or_null("string", "name of the system call it is in", "in none"),
                        "arguments": {
                            "type": "array",
                            "items": {"type": "integer", "minimum": 0},
                            "description": "of the system call: six 64-bit words, or none if unknown",
                        },
                        "kernel": _FRAMES,
                        "user": {
                            **_FRAMES,
                            "description": "leaf first, read while the thread waits; empty: not read (yet)",
                        },
                        "user_end": _END,
                        "user_unsure": _UNSURE,
                        "object": _unless(_WAITED_ON, "what it waits on", "unknown"),
                        "held_by": _unless(
                            _HOLDER,
                            "thread that holds the mutex or rwsem it waits for",
                            "unknown, several readers, or it waits for something else",
                        ),
                    }
                ),
            },
            "outliers": {
                "type": "array",
                "description": "outliers of this tick: waits and ticks that a trigger matched, or that were far longer "
                "than usual; not filtered",
                "items": _object(
                    {
                        "rule": {"type": "string", "description": "auto, or the trigger's text"},
                        "metric": {
                            "enum": [*METRICS],
                            "description": "; ".join(f"{name}: {means}" for name, means in METRICS.items()),
                        },
                        "category": {"type": "string", "description": "empty: everything that is not idle"},
                        "process": {"type": "string", "description": "process name; empty: all processes together"},
                        "value": {
                            "type": "number",
                            "description": "measured value: ns, threads, or a rate per second. Excludes a wait's "
                            "run-queue time, which is judged separately",
                        },
                        "mark": {"type": "number", "description": "the threshold it crossed"},
                        "usual_ns": _or_null(
                            "integer",
                            "99.9th percentile of the waits of that process name and category in the last minutes, "
                            "as an upper bound",
                            "unknown",
                        ),
                        "taken_ns": {**_COUNT, "description": "taken_ns of the tick"},
                        "more": {**_COUNT, "description": "others of its kind in this tick, which are only counted"},
                        "was_told": {
                            "type": "boolean",
                            "description": "this wait was reported before, while it went on, and has ended now",
                        },
                        "wait": _unless(
                            _object(
                                {
                                    "pid": _COUNT,
                                    "tid": _COUNT,
                                    "comm": {"type": "string"},
                                    "process": {"type": "string"},
                                    "began_ns": {**_COUNT, "description": "CLOCK_REALTIME"},
                                    "length_ns": _COUNT,
                                    "runqueue_ns": {**_COUNT, "description": "run-queue time at the end of the wait"},
                                    "going_on": {
                                        "type": "boolean",
                                        "description": "in progress at the end of the tick",
                                    },
                                    "exact": {
                                        "type": "boolean",
                                        "description": "false: its begin or end is known only to a tick or a sample",
                                    },
                                    "cpu": _or_null("integer", "CPU on which the thread ran next", "unknown"),
                                    "state": {
                                        "type": "string",
                                        "description": "at switch-out; letters as in still_blocked",
                                    },
                                    "after": _or_null(
                                        "string",
                                        "what the thread did at the end of the tick: running, ended, or state and "
                                        "category of its next wait",
                                        "the wait goes on",
                                    ),
                                    "kernel": _FRAMES,
                                    "user": _FRAMES,
                                    "user_end": _END,
                                    "user_unsure": _UNSURE,
                                    "diagnosis": _DIAGNOSIS,
                                    **_WOKEN,
                                }
                            ),
                            "the wait",
                            "a tick crossed the threshold, not a wait",
                        ),
                    }
                ),
            },
            "user_stacks": _object(
                {
                    "total_ns": {**_NS, "description": "off-CPU time with a user stack"},
                    "whole_ns": {**_NS, "description": "off-CPU time with a user stack that is whole and not guessed"},
                    "others": {
                        "type": "array",
                        "description": "the rest, most first",
                        "items": _object(
                            {
                                "end": {"enum": [*ENDS], "description": "as user_end of a site"},
                                "unsure": _UNSURE,
                                "file": {"type": "string", "description": "file of the outermost known frame"},
                                "total_ns": _NS,
                            }
                        ),
                    },
                }
            ),
            "user_stack_problems": {
                "type": "array",
                "description": "what the user stacks of matching waits lack, most time first. A stack counts under "
                "each problem that it has",
                "items": _object(
                    {
                        "binary": _or_null(
                            "string",
                            "if callers are missing: file of the outermost known frame; if callers were guessed, or a "
                            "guess failed: file of the innermost frame whose caller was guessed; if names are "
                            "missing: file of the frame. In brackets if there is no file: "
                            f"{ANONYMOUS} generated at run time, {GONE} no longer known, {CLOSED} in a process that "
                            f"offtop may not read, {UNREAD} in a process that was not read in time",
                            "unknown, or any file",
                        ),
                        "process": _or_null(
                            "string", "name of the process if binary is in brackets", "binary is a file"
                        ),
                        "reason": {
                            "enum": [*REASONS],
                            "description": "; ".join(f"{reason}: {means}" for reason, means in REASONS.items()),
                        },
                        "total_ns": _NS,
                        "share": {
                            "type": "number",
                            "minimum": 0,
                            "maximum": 1,
                            "description": "part of the matching time with a user stack",
                        },
                        "remedy": _or_null("string", "how to fix it", "there is no known fix"),
                    }
                ),
            },
            "machine": _object(
                {
                    "cpus": _or_null("integer", "CPUs that are online"),
                    "steal_ns": _or_null("integer", "CPU time that the hypervisor took"),
                    "interrupt_ns": _or_null("integer", "CPU time of hard and soft interrupts"),
                }
            ),
        },
        baseline=_object(
            {
                "file": {"type": "string", "description": "only with --baseline: the file's name"},
                "taken_ns": {"type": "integer", "description": "CLOCK_REALTIME of the baseline's end"},
                "span_ns": _NS,
                "gone_categories": {
                    "type": "array",
                    "description": "categories of the baseline without time in this tick, most waiting first",
                    "items": _object({"name": {"type": "string"}, "waiting": _WAITING_BEFORE}),
                },
                "gone_threads": {
                    "type": "array",
                    "description": "the same for threads; threads of one name count as one",
                    "items": _object(
                        {"process": {"type": "string"}, "comm": {"type": "string"}, "waiting": _WAITING_BEFORE}
                    ),
                },
                "sampling": _SAMPLING,
            }
        ),
    ),
}
