"""Classify wakers: a thread, or an interrupt, which runs on top of any thread.

The kernel functions on the waker's stack show which one it was: their names, leaf first, as in `Stack.trimmed`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from offtop.model.classify.categories import bare
from offtop.model.values.wake import EXIT, IRQ, SIGNAL, SOFTIRQ, THREAD, TIMEOUT, TIMER

FIRST = "try_to_wake_up"
"""Frames above it belong to the tracer (kernel/sched/core.c)."""
_TAIL = frozenset(
    {
        *("try_to_wake_up", "default_wake_function", "autoremove_wake_function", "woken_wake_function"),
        *("ep_autoremove_wake_function", "wake_page_function", "pollwake", "__pollwake", "rcuwait_wake_up"),
        *("wake_up_process", "wake_up_state", "wake_up_q", "wake_up_bit", "__wake_up_bit"),
        *("__wake_up", "__wake_up_common", "__wake_up_common_lock", "__wake_up_locked", "__wake_up_locked_key"),
        *("__wake_up_sync", "__wake_up_sync_key", "__wake_up_locked_sync_key", "__wake_up_on_current_cpu"),
        *("swake_up_locked", "swake_up_one", "swake_up_all"),
    }
)
"""Functions that are part of every wakeup."""
_X86_INTERRUPTS = (
    *("asm_common_interrupt", "asm_sysvec_", "asm_spurious_interrupt", "fred_extint"),
    "asm_exc_xen_hypervisor_callback",
)
_ARM_INTERRUPTS = ("el1h_64_irq", "el0t_64_irq", "el1h_64_fiq", "el0t_64_fiq", "el1_irq", "el0_irq")
INTERRUPTS = (*_X86_INTERRUPTS, *_ARM_INTERRUPTS)
"""Prefixes of the functions by which interrupts enter the kernel (arch/*/kernel/entry*.S)."""
RETURNS = (
    *("irqentry_exit_to_user_mode", "exit_to_user_mode_loop", "exit_to_user_mode_prepare", "prepare_exit_to_usermode"),
    "do_notify_resume",
)
"""Functions in which a thread returns to user mode after an interrupt. What it does there is its own work: it takes
signals, exits, and runs its task work (kernel/entry/common.c, arch/arm64/kernel/signal.c)."""
_ENTRY_PREFIXES = (
    "asm_",
    "sysvec_",
    "common_interrupt",
    "irq_exit_rcu",
    "el1",
    "el0",
    "do_interrupt_handler",
    "call_on",
)
_OWN_TIMEOUT = frozenset({"hrtimer_wakeup", "process_timeout"})
"""Timers that wake the thread that set them: nanosleep, poll, futex and other calls with a timeout (kernel/time)."""
_ONLY_WAKES = frozenset({"try_to_wake_up", "wake_up_process", ""})
"""What a timer called that only wakes one thread: process_timeout makes a tail call, so it is in no stack."""
_TAIL_CALLED = {"__queue_work": "delayed_work_timer_fn"}
"""What a timer seems to have called → the timer's function, which made a tail call to that (kernel/workqueue.c)."""
_RUN_TIMERS = frozenset(
    {"__hrtimer_run_queues", "hrtimer_interrupt", "hrtimer_run_softirq", "call_timer_fn", "run_timer_softirq"}
    | {"__run_timers", "expire_timers", "run_timer_base", "__run_timer_base", "alarmtimer_fired"}
)
_RUN_SOFTIRQS = frozenset({"handle_softirqs", "__do_softirq", "__softirqentry_text_start"})
_OWN_SOFTIRQS = frozenset({"net_rx_action", "net_tx_action"})
"""Run by the thread that raised them, when it sends to its own machine. The others may belong to any thread."""
_ENDS = frozenset({"do_exit", "do_group_exit", "make_task_dead"})
_SIGNALS = frozenset({"signal_wake_up_state", "signal_wake_up", "complete_signal"})
_IN_INTERRUPTS = frozenset(
    {"hrtimer_interrupt", "__handle_irq_event_percpu", "handle_irq_event_percpu", "handle_percpu_devid_irq"}
    | {"generic_handle_irq", "generic_handle_domain_irq", "irq_exit", "irq_exit_rcu", "__irq_exit_rcu"}
    | {"__flush_smp_call_function_queue", "generic_smp_call_function_interrupt"}
)
"""Functions that run in interrupts on every architecture."""
_IDLE = frozenset({"do_idle", "cpu_startup_entry", "flush_smp_call_function_queue"})


class Kind(NamedTuple):
    kind: str
    """One of wake.KINDS."""
    name: str = ""
    via: str = ""


def is_interrupt(name: str) -> bool:
    """Return whether interrupts enter the kernel by this function."""
    return name.startswith(_X86_INTERRUPTS) or bare(name).removesuffix("_handler") in _ARM_INTERRUPTS


def is_return(name: str) -> bool:
    """Return whether a thread returns to user mode in this function, after an interrupt."""
    return bare(name) in RETURNS


def tail_length(kernel: Sequence[str]) -> int:
    """Return how many frames at the leaf are part of every wakeup. At least one is left."""
    found = next((i for i, name in enumerate(kernel) if bare(name) not in _TAIL), len(kernel))
    return min(found, max(0, len(kernel) - 1))


def cut_at_interrupt(kernel: Sequence[str]) -> int:
    """Return how many frames of a waker's stack are its own.

    Frames after an interrupt's entry belong to the thread that it hit, unless the thread was returning to user mode.
    """
    for i, name in enumerate(kernel):
        if is_return(name):
            break
        if is_interrupt(name):
            return i + 1
    return len(kernel)


def entry_length(kernel: Sequence[str]) -> int:
    """Return how many frames at the root are only the entry of that interrupt.

    At least one is left.
    """
    if not kernel or not is_interrupt(kernel[-1]):
        return 0
    own = next((i for i, name in enumerate(reversed(kernel)) if not name.lstrip("_").startswith(_ENTRY_PREFIXES)), 0)
    return min(own, len(kernel) - 1)


def kind_of(kernel: Sequence[str], is_thread: bool) -> Kind:
    """Classify a waker by its stack.

    `is_thread`: it ran in a thread, not in an interrupt on top of one.
    """
    names = [bare(name) for name in kernel]
    names = names[: next((i for i, name in enumerate(names) if is_return(name)), len(names))]
    found = frozenset(names)
    is_thread = is_thread and not found & (_IN_INTERRUPTS | _IDLE) and not any(map(is_interrupt, names))
    in_softirq = bool(found & _RUN_SOFTIRQS)
    if found & _RUN_TIMERS and (in_softirq or not is_thread):
        called = _callee_of(names, _RUN_TIMERS)
        if found & _OWN_TIMEOUT or called in _ONLY_WAKES:
            return Kind(TIMEOUT)
        if in_softirq or not found & _SIGNALS:  # the sender of a signal is not the thread that ran the softirq
            return Kind(TIMER, _TAIL_CALLED.get(called, _unless_generic(called)))
    softirq = _callee_of(names, _RUN_SOFTIRQS)
    if in_softirq and not (is_thread and softirq in _OWN_SOFTIRQS and "run_ksoftirqd" not in found):
        return Kind(SOFTIRQ, _unless_generic(softirq).removesuffix("_action").removesuffix("_softirq"))
    if found & _ENDS and is_thread:
        return Kind(EXIT)
    if in_softirq:
        return Kind(THREAD, "", SOFTIRQ)
    if found & _SIGNALS:
        return Kind(SIGNAL)
    if is_thread:
        return Kind(THREAD)
    handler = _callee_of(names, frozenset({"__handle_irq_event_percpu", "handle_irq_event_percpu"}))
    return Kind(IRQ, _unless_generic(handler) or _entry(names))


def _callee_of(names: Sequence[str], callers: frozenset[str]) -> str:
    """Return what the leafmost of `callers` called; empty if none is in the stack."""
    at = next((i for i, name in enumerate(names) if name in callers), 0)
    return names[at - 1] if at else ""


def _unless_generic(function: str) -> str:
    """Return `function`, or nothing if it is part of every wakeup."""
    return "" if function in _TAIL else function


def _entry(names: Sequence[str]) -> str:
    """Return `call_function_single` for the interrupt that begins there.

    `ipi` for an idle CPU woken by another one.
    """
    for name in names:
        if name.startswith("asm_sysvec_"):
            return name.removeprefix("asm_sysvec_")
        if is_interrupt(name):
            return ""
    return "ipi" if _IDLE.intersection(names) else ""
