"""The JSON Schema of what `--json` prints, one object a tick: a contract, so keys are only ever added."""

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
    "description": "[low_ns, count] of each power of two that holds waits, shortest first",
    "items": {"type": "array", "prefixItems": [_COUNT, _COUNT], "minItems": 2, "maxItems": 2},
}
_END = {
    "enum": [*ENDS, None],
    "description": "how the user stack ends: "
    + "; ".join(f"{end}: {means.removeprefix('whole: ')}" for end, means in ENDS.items())
    + "; null: there is none",
}
_UNSURE = {
    "type": "boolean",
    "description": "callers may be others: they were found along frame pointers, or by what looks so in the stack",
}
_DIAGNOSIS = {
    "type": ["string", "null"],
    "description": "what rules say that most of it is for, the id of one of `diagnoses`; null: no rule knows",
}
_FRAMES = {"type": "array", "items": {"type": "string"}, "description": "leaf first"}


def _object(properties: dict[str, Any], **others: Any) -> dict[str, Any]:
    """`others`: those that may be missing."""
    return {
        "type": "object",
        "properties": {**properties, **others},
        "required": list(properties),
    }


def _or_null(of_type: str, what: str, null: str = "not known") -> dict[str, Any]:
    return {"type": [of_type, "null"], "description": f"{what}; null: {null}"}


def _unless(found: dict[str, Any], what: str, null: str) -> dict[str, Any]:
    """Null, or that."""
    return {"anyOf": [found, {"type": "null"}], "description": f"{what}; null: {null}"}


_WAKER = _object(
    {
        "kind": {
            "enum": [*KINDS],
            "description": "what ended the wait: " + "; ".join(f"{kind}: {means}" for kind, means in KINDS.items()),
        },
        "name": {
            "type": "string",
            "description": "of an interrupt its handler, of a softirq or timer its function, of what is unknown why; "
            "else empty",
        },
        "pid": {**_COUNT, "description": "0: no thread did it"},
        "tid": {**_COUNT, "description": "0: no thread did it"},
        "comm": {"type": "string", "description": "the thread's name then; empty: no thread did it"},
        "via": {
            "enum": ["", SOFTIRQ],
            "description": f"{SOFTIRQ}: the thread's own system call ran one, and that woke",
        },
        "kernel": {**_FRAMES, "description": "where it woke, leaf first; of an interrupt up to where that began"},
        "user": _FRAMES,
    }
)
_WAITED_ON = _object(
    {
        "kind": {
            "type": "string",
            "description": "futex, pipe, tcp, udp, unix, socket (of another family), "
            "eventfd, epoll, file, child, poll (any of several), mutex, rwsem, semaphore (locks of the kernel's own) "
            "and so on",
        },
        "name": {
            "type": "string",
            "description": "the same for all who wait on it: an address, an inode, a path",
        },
        "pid": {
            **_COUNT,
            "description": "of the process in which that name holds; 0: everywhere",
        },
        "local": {
            "type": "string",
            "description": "of tcp and udp the own end: 10.0.0.1:40312, *:80, [::1]:53; else empty",
        },
        "peer": {
            "type": "string",
            "description": "the other end, where it is connected; of unix the process that "
            "made it: postgres(4242); else empty",
        },
        "state": {
            "type": "string",
            "description": "of tcp: established, listen, close-wait and so on; else empty",
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
            "the processes of this machine at the other end of a pipe, or of a tcp, udp or unix connection in the "
            "waiting process's own network namespace, known from the tick after the first on; so many of each role at "
            f"most: {NAMED}",
            "not known",
        ),
        "ends_more": {**_COUNT, "description": "how many more they are"},
        "members": _unless(
            {"type": "object", "additionalProperties": _COUNT},
            "of an epoll, how many descriptors of each kind it watches: socket, pipe, eventfd, timerfd, file and so on",
            "not known",
        ),
    }
)
_CALLS = _object(
    {
        "function": {"type": "string", "description": "as --within has it"},
        "calls": {**_COUNT, "description": "that returned in the tick"},
        "left": {
            **_COUNT,
            "description": "calls that were left by longjmp, an exception or the thread's end; how long they took is "
            "not known",
        },
        "total_ns": {
            **_COUNT,
            "description": "of the calls that returned, as are the next ones, whole, whenever they "
            "began; running_ns + offcpu_ns",
        },
        "running_ns": {**_COUNT, "description": "with what interrupts and hypervisor took"},
        "offcpu_ns": {**_COUNT, "description": "blocked_ns + runqueue_ns"},
        "blocked_ns": _COUNT,
        "runqueue_ns": _COUNT,
        "max_ns": _COUNT,
        "histogram": _HISTOGRAM,
        "now": {
            **_COUNT,
            "description": "calls that go on at its end; those from before offtop are not known",
        },
        "oldest_ns": {**_COUNT, "description": "age of the oldest of these"},
    }
)
_THEN = {"type": "number", "description": "average waiting threads then"}
_SAMPLING = _unless(
    _object(
        {
            "rate_hz": {"type": "number", "description": "how often all threads were looked at a second"},
            "apart_ns": {
                **_COUNT,
                "description": "longest from look to look: at each end by so much a wait may be shorter",
            },
            "guessed_ns": {
                **_COUNT,
                "description": "off-CPU time of all threads that may have passed at another site than told",
            },
            "own_only": {"type": "boolean", "description": "only the user's own processes are seen"},
            "lost_known": {
                "type": "boolean",
                "description": "false: lost leaves out threads that came and went between two looks",
            },
            "container_only": {"type": "boolean", "description": "only this container's processes are seen"},
        }
    ),
    "threads were looked at now and then, so that sites, lengths of waits and preempted_ns are estimates; "
    "runqueue_ns, running_ns and waits of threads are the kernel's own, from the first look to the last, but for run "
    "queue that was taken for blocked until the kernel told of it: guessed_ns has that; "
    "offcpu_ns is the rest of its time, with what a hypervisor stole or interrupts took",
    "every wait was seen",
)
_BASELINE = _unless(
    _object(
        {
            "waiting": {"type": "number", "description": "average waiting threads then; 0: it is new"},
            "change": {"type": "number", "description": "average waiting threads in this tick, less that"},
            "spread": _or_null(
                "number",
                "between the smallest and the largest average of so long a tick, as far as the baseline tells",
                "the baseline is too short to tell",
            ),
            "p99_ns": {**_COUNT, "description": "then, as an upper bound; 0: no wait ended"},
            "new": {"type": "boolean", "description": "the baseline has none of it"},
            "sure": {"type": "boolean", "description": "the change is more than the spread"},
        }
    ),
    "with --baseline alone: what that has of the same, whatever its pid was",
    "there is nothing to compare",
)
_HOLDER = _object({"pid": _COUNT, "tid": _COUNT, "comm": {"type": "string", "description": "empty: not known"}})
_NO_WAKER = "nobody asked, or the wait goes on, or was for a CPU alone"

_WOKEN: dict[str, Any] = {
    "waker": _unless(_WAKER, "who ended these waits", _NO_WAKER),
    "object": _unless(_WAITED_ON, "what was waited on", "not known"),
    "chain": _unless(
        {"type": "array", "items": _FRAMES},
        "in mode chain the last wait of the waker, that of who ended it, and so on: the functions "
        "of kernel and program, leaf first",
        f"another mode, or {_NO_WAKER}",
    ),
    "chain_wakers": _unless({"type": "array", "items": _WAKER}, "who ended each of these", "as chain"),
    "chain_end": {
        "enum": [*CHAIN_ENDS, None],
        "description": "why the chain goes no further: "
        + "; ".join(f"{end}: {means.removeprefix('whole: ')}" for end, means in CHAIN_ENDS.items())
        + "; null: as chain",
    },
}


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "offtop --json",
    "description": (
        "One tick. sum(categories.total_ns) = sum(threads.offcpu_ns); of each thread, offcpu_ns = blocked_ns + "
        "runqueue_ns, and its sites' total_ns + short_ns + filtered_ns = offcpu_ns. Waits in progress count as "
        "they pass; waits, histograms and max_ns are of finished ones. With --filter or -u, categories hold what "
        "passes, and sum(categories.total_ns) + left_out_ns is the off-CPU time of all threads; threads and sites "
        "are those with time that passes, each with all of its time."
    ),
    **_object(
        {
            "version": {"type": "string", "description": "of offtop"},
            "taken_ns": {"type": "integer", "description": "CLOCK_REALTIME of the end of the tick"},
            "span_ns": {"type": "integer", "description": "measured length of the tick"},
            "mode": {
                "enum": [*MODES],
                "description": "what was gathered: from wakeup on who ended each wait, in chain who had woken that one",
            },
            "probe": {
                "type": "string",
                "description": "the switch-in probe, which tells that a thread is on a CPU again; proc: sampled",
            },
            "door": {"type": "string", "description": "the same as probe, under its older name"},
            "notices": {
                "type": "array",
                "description": "what offtop does without on this machine, a sentence or two each, with the remedy",
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
                        "string", "path of the one whose threads are counted, and of those below", "all"
                    ),
                    "within": _or_null("string", "only waits inside of this function are counted", "all"),
                }
            ),
            "sampling": _SAMPLING,
            "within": _unless(_CALLS, "the function that --within names", "none is named"),
            "filter": _or_null("string", "what --filter and -u say, as one expression", "none"),
            "left_out_ns": {"type": "integer", "description": "ns of waits that do not pass the filter; 0: no filter"},
            "lost": {
                "type": "object",
                "description": "what the kernel could not tell, by kind; no losses of a kind: absent. threads: their "
                "time is in the thread [ended, not named], and that of their waits with stacks under their own ids. "
                "unread: user stacks of processes that did not answer in time ([not read])",
                "additionalProperties": _COUNT,
            },
            "cost": _object(
                {
                    "bpf_ns_per_switch": _or_null("number", "all programs on the switch path, by the kernel's count"),
                    "switches": _or_null("integer", "context switches of the machine"),
                    "cpu_pct": _or_null("number", "offtop's process, percent of one CPU"),
                    "bpf_pct": _or_null("number", "its BPF programs, percent of one CPU"),
                    "rss_bytes": _or_null("integer", "offtop's process"),
                    "walk_ns": _or_null("integer", "CPU time of a walk of all threads, on average"),
                    "walk_every": {**_COUNT, "description": "the walk was made once in so many ticks"},
                }
            ),
            "categories": {
                "type": "array",
                "description": "only what passes the filter",
                "items": _object(
                    {
                        "name": {"type": "string"},
                        "idle": {"type": "boolean", "description": "all of it looks idle"},
                        "idle_ns": {"type": "integer", "description": "the part of total_ns that looks idle"},
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
                "description": "each that has a wait that passes the filter, with all of its waits",
                "items": _object(
                    {
                        "pid": _COUNT,
                        "tid": _COUNT,
                        "comm": {"type": "string"},
                        "process": {"type": "string", "description": "the process's own name"},
                        "waits": _COUNT,
                        "offcpu_ns": _NS,
                        "blocked_ns": _NS,
                        "runqueue_ns": _NS,
                        "preempted_ns": _NS,
                        "running_ns": _or_null("integer", "ns, by the kernel's own account of the thread"),
                        "residue_ns": _or_null(
                            "integer",
                            "ns: span_ns - running_ns - offcpu_ns, which hypervisor and interrupts may explain; a "
                            "little below 0 where the kernel was late to add up",
                            "not known, or the thread began or ended in this tick",
                        ),
                        "voluntary": {
                            **_COUNT,
                            "description": "waits that the thread began by itself; a new thread's first, for a CPU",
                        },
                        "involuntary": {**_COUNT, "description": "waits of a thread that was put aside"},
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
                "description": "what rules say of the sites below, the run queue apart from them, most time first",
                "items": _object(
                    {
                        "id": {"type": "string", "description": "of a rule in rules.toml"},
                        "name": {"type": "string", "description": "what is waited for, in a few words"},
                        "says": {"type": "string", "description": "what that is"},
                        "next": _or_null("string", "what to look at next", "nothing in particular"),
                        "idle": _or_null("boolean", "whether it looks like waiting for work", "as its category"),
                        "total_ns": _NS,
                    }
                ),
            },
            "sites": {
                "type": "array",
                "description": "each that has time that passes the filter, with all of its time; also those that had "
                "some in earlier ticks which is elsewhere now",
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
                            "description": "ns: to be added to what earlier ticks told of this site. A wait that goes "
                            "on is at a site without a waker; when it ends elsewhere, the time that was told of it "
                            "goes there, and is below 0 here",
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
                "description": f"wakers that woke {STORM} threads and more at once, through one code path, from waits "
                "that had reached the minimum, most woken first; whatever the filter",
                "items": _object(
                    {
                        "waker": _WAKER,
                        "storms": {**_COUNT, "description": "that began in this tick"},
                        "woken": {**_COUNT, "description": "threads, in all of them"},
                        "again": {**_COUNT, "description": "of those, who left the CPU again within a millisecond"},
                        "largest": {**_COUNT, "description": "threads woken in the largest of them"},
                        "wasted_switches": {**_COUNT, "description": "two for each of again"},
                    }
                ),
            },
            "still_blocked": {
                "type": "array",
                "description": "the waits in progress at the end of the tick, from the minimum up, the oldest first; "
                "only what passes the filter",
                "items": _object(
                    {
                        "pid": _COUNT,
                        "tid": _COUNT,
                        "comm": {"type": "string"},
                        "process": {"type": "string"},
                        "age_ns": _COUNT,
                        "age_is": {
                            "enum": ["exact", "at_most", "at_least"],
                            "description": "at_most: nobody saw it begin; so long ago the thread last had a CPU",
                        },
                        "state": {"type": "string", "description": "as in ps: R, S, D, T, t, P, I; K: killable"},
                        "category": {"type": "string"},
                        "idle": {"type": "boolean"},
                        "diagnosis": _DIAGNOSIS,
                        "syscall": _or_null("string", "name of the system call that it is in", "in none"),
                        "arguments": {
                            "type": "array",
                            "items": {"type": "integer", "minimum": 0},
                            "description": "of the system call: six words of 64 bits, or none where they are not known",
                        },
                        "kernel": _FRAMES,
                        "user": {
                            **_FRAMES,
                            "description": "leaf first, read from outside; empty: not read (yet)",
                        },
                        "user_end": _END,
                        "user_unsure": _UNSURE,
                        "object": _unless(_WAITED_ON, "what it waits on", "not known"),
                        "held_by": _unless(
                            _HOLDER,
                            "who holds the mutex or rwsem that it waits for",
                            "not known, several readers, or it waits for something else",
                        ),
                    }
                ),
            },
            "outliers": {
                "type": "array",
                "description": "what was caught in this tick: waits and ticks that a trigger, or what is usual, calls "
                "too much; whatever the filter",
                "items": _object(
                    {
                        "rule": {"type": "string", "description": "auto, or the trigger's text"},
                        "metric": {
                            "enum": [*METRICS],
                            "description": "; ".join(f"{name}: {means}" for name, means in METRICS.items()),
                        },
                        "category": {"type": "string", "description": "empty: all that does not look idle"},
                        "process": {"type": "string", "description": "its name; empty: all of them together"},
                        "value": {
                            "type": "number",
                            "description": "what it came to: ns, threads, or a number a second. Of a wait without its "
                            "run-queue part, which is judged by itself",
                        },
                        "mark": {"type": "number", "description": "what it was too much against"},
                        "usual_ns": _or_null(
                            "integer",
                            "of all but one in a thousand waits of that process name and category in the last minutes, "
                            "at most",
                            "not known",
                        ),
                        "taken_ns": {**_COUNT, "description": "of the tick, as above"},
                        "more": {**_COUNT, "description": "others of its kind in this tick, not told one by one"},
                        "was_told": {
                            "type": "boolean",
                            "description": "this wait was told before, while it went on, and has ended now",
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
                                    "runqueue_ns": {**_COUNT, "description": "of it ready to run, at its end"},
                                    "going_on": {"type": "boolean", "description": "at the end of the tick"},
                                    "exact": {
                                        "type": "boolean",
                                        "description": "false: when it began or ended is known by a tick or look alone",
                                    },
                                    "cpu": _or_null("integer", "on which the thread went on", "not known"),
                                    "state": {"type": "string", "description": "as it left: as in still_blocked"},
                                    "after": _or_null(
                                        "string",
                                        "what the thread did at the end of the tick: running, ended, or state and "
                                        "category of its next wait",
                                        "it goes on",
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
                            "it is a tick that was too much",
                        ),
                    }
                ),
            },
            "user_stacks": _object(
                {
                    "total_ns": {**_NS, "description": "off-CPU time with a user stack"},
                    "whole_ns": {**_NS, "description": "that of user stacks which are whole, and for sure"},
                    "others": {
                        "type": "array",
                        "description": "the rest, most first",
                        "items": _object(
                            {
                                "end": {"enum": [*ENDS], "description": "as user_end of a site"},
                                "unsure": _UNSURE,
                                "file": {"type": "string", "description": "of the outermost frame that is known"},
                                "total_ns": _NS,
                            }
                        ),
                    },
                }
            ),
            "user_stack_problems": {
                "type": "array",
                "description": "what user stacks lack, of the waits that pass the filter, most time first. A stack "
                "counts under all that it lacks",
                "items": _object(
                    {
                        "binary": _or_null(
                            "string",
                            "where callers are missing: file of the outermost frame that is known; where they are "
                            "guessed, or that led astray: of the innermost whose caller is; where names are missing: "
                            "of what has none. "
                            f"In brackets what is in no file: {ANONYMOUS} made at run time, {GONE} not known any more, "
                            f"{CLOSED} of a process that offtop may not look into, {UNREAD} of one that was "
                            "not read in time",
                            "nobody knows, or any",
                        ),
                        "process": _or_null("string", "name of that which has it, of what is in no file", "of a file"),
                        "reason": {
                            "enum": [*REASONS],
                            "description": "; ".join(f"{reason}: {means}" for reason, means in REASONS.items()),
                        },
                        "total_ns": _NS,
                        "share": {
                            "type": "number",
                            "minimum": 0,
                            "maximum": 1,
                            "description": "of the time with a user stack that passes the filter",
                        },
                        "remedy": _or_null("string", "what to do about it", "nothing, or nobody knows"),
                    }
                ),
            },
            "machine": _object(
                {
                    "cpus": _or_null("integer", "that are online"),
                    "steal_ns": _or_null("integer", "CPU time that the hypervisor took"),
                    "interrupt_ns": _or_null("integer", "CPU time of hard and soft interrupts"),
                }
            ),
        },
        baseline=_object(
            {
                "file": {"type": "string", "description": "with --baseline alone: that"},
                "taken_ns": {"type": "integer", "description": "CLOCK_REALTIME of its end"},
                "span_ns": _NS,
                "gone_categories": {
                    "type": "array",
                    "description": "those without any time in this tick, most waiting first",
                    "items": _object({"name": {"type": "string"}, "waiting": _THEN}),
                },
                "gone_threads": {
                    "type": "array",
                    "description": "the same of threads, those of one name as one",
                    "items": _object({"process": {"type": "string"}, "comm": {"type": "string"}, "waiting": _THEN}),
                },
                "sampling": _SAMPLING,
            }
        ),
    ),
}
