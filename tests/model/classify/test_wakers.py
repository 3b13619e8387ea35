"""Classification of wakers by kernel function names: a thread, or an interrupt on top of one."""

import pytest

from offtop.model.classify.wakers import (
    INTERRUPTS,
    Kind,
    cut_at_interrupt,
    entry_length,
    is_interrupt,
    kind_of,
    tail_length,
)
from offtop.model.values.wake import EXIT, IRQ, SIGNAL, SOFTIRQ, THREAD, TIMEOUT, TIMER

SYSCALL = "do_syscall_64 entry_SYSCALL_64_after_hwframe"
DEVICE = (
    "__handle_irq_event_percpu handle_irq_event handle_edge_irq __common_interrupt common_interrupt "
    "asm_common_interrupt"
)
TICK = "hrtimer_interrupt __sysvec_apic_timer_interrupt sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt"
AFTER_TICK = "handle_softirqs __irq_exit_rcu sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt"
INNOCENT = f"vfs_read ksys_read {SYSCALL}"
KTHREAD = "kthread ret_from_fork ret_from_fork_asm"
INLINE = f"do_softirq __local_bh_enable_ip fpregs_restore_userregs {INNOCENT}"
SIGIO = "signal_wake_up_state complete_signal send_sigio_to_task send_sigio kill_fasync sock_wake_async"
KICKED = "irqentry_exit_to_user_mode asm_sysvec_reschedule_ipi"

OF_THREADS = {
    f"wake_up_q futex_wake do_futex __x64_sys_futex {SYSCALL}": Kind(THREAD),
    f"autoremove_wake_function __wake_up_common __wake_up_sync_key anon_pipe_write vfs_write {SYSCALL}": Kind(THREAD),
    f"rwsem_wake up_write ext4_buffered_write_iter vfs_write {SYSCALL}": Kind(THREAD),
    f"complete kthread_worker_fn {KTHREAD}": Kind(THREAD),
    # its own system call runs the softirq: loopback
    f"sock_def_readable tcp_v4_rcv __netif_receive_skb process_backlog net_rx_action handle_softirqs do_softirq "
    f"__local_bh_enable_ip __dev_queue_xmit tcp_sendmsg {SYSCALL}": Kind(THREAD, "", SOFTIRQ),
    f"signal_wake_up_state complete_signal __send_signal_locked do_send_sig_info kill_pid_info {SYSCALL}": Kind(SIGNAL),
    "signal_wake_up_state complete_signal __send_signal_locked do_notify_parent exit_notify do_exit do_group_exit "
    f"__x64_sys_exit_group {SYSCALL}": Kind(EXIT),
    f"__wake_up_common child_wait_callback do_notify_parent exit_notify do_exit make_task_dead {SYSCALL}": Kind(EXIT),
    f"wake_up_q futex_wake mm_release exit_mm_release do_exit __x64_sys_exit {SYSCALL}": Kind(EXIT),
    # after an interrupt, on the way to user mode, it takes signals, exits and runs its task work
    "__wake_up_common child_wait_callback do_notify_parent do_exit do_group_exit get_signal arch_do_signal_or_restart "
    f"{KICKED}": Kind(EXIT),
    f"signal_wake_up_state complete_signal do_notify_parent_cldstop do_signal_stop get_signal {KICKED}": Kind(SIGNAL),
    f"complete fput_finish task_work_run exit_to_user_mode_loop {KICKED}": Kind(THREAD),
    "__wake_up_common do_notify_parent do_exit get_signal do_signal do_notify_resume el0_interrupt "
    "__el0_irq_handler_common el0t_64_irq_handler el0t_64_irq": Kind(EXIT),
    # hit by another interrupt right there
    f"complete nvme_irq {DEVICE} task_work_run {KICKED}": Kind(IRQ, "nvme_irq"),
    # ksoftirqd is a thread, but not the waker
    f"sock_def_readable tcp_v4_rcv napi_poll net_rx_action handle_softirqs run_ksoftirqd smpboot_thread_fn {KTHREAD}": (
        Kind(SOFTIRQ, "net_rx")
    ),
    f"process_timeout call_timer_fn run_timer_softirq handle_softirqs run_ksoftirqd {KTHREAD}": Kind(TIMEOUT),
    # a timer that runs where a thread enables softirqs again has nothing to do with the thread
    f"process_timeout call_timer_fn __run_timers run_timer_softirq __do_softirq do_softirq __local_bh_enable_ip "
    f"tcp_sendmsg {SYSCALL}": Kind(TIMEOUT),
    # nor has deferred work of other threads
    f"swake_up_one rcu_core handle_softirqs {INLINE}": Kind(SOFTIRQ, "rcu_core"),
    f"complete blk_end_sync_rq blk_complete_reqs blk_done_softirq handle_softirqs {INLINE}": Kind(SOFTIRQ, "blk_done"),
    f"complete usb_giveback_urb_bh tasklet_action_common tasklet_action handle_softirqs {INLINE}": (
        Kind(SOFTIRQ, "tasklet")
    ),
    f"swake_up_one rcu_core handle_softirqs do_softirq __local_bh_enable_ip do_exit {SYSCALL}": (
        Kind(SOFTIRQ, "rcu_core")
    ),
    # its exit closes its connections
    "sock_def_readable tcp_fin net_rx_action handle_softirqs do_softirq __local_bh_enable_ip tcp_close do_exit": (
        Kind(EXIT)
    ),
    # the thread that runs a softirq is not the sender of a signal
    f"{SIGIO} tcp_v4_rcv net_rx_action handle_softirqs {INLINE}": Kind(THREAD, "", SOFTIRQ),
    f"{SIGIO} tcp_v4_rcv net_rx_action handle_softirqs run_ksoftirqd smpboot_thread_fn {KTHREAD}": (
        Kind(SOFTIRQ, "net_rx")
    ),
    f"{SIGIO} aio_complete blk_done_softirq handle_softirqs {INLINE}": Kind(SOFTIRQ, "blk_done"),
    "signal_wake_up_state complete_signal posixtimer_send_sigqueue posix_timer_fn __hrtimer_run_queues "
    f"hrtimer_run_softirq handle_softirqs run_ktimerd smpboot_thread_fn {KTHREAD}": Kind(TIMER, "posix_timer_fn"),
    # ksoftirqd itself is woken by what finds too much to do
    f"handle_softirqs {INLINE}": Kind(SOFTIRQ),
    f"wake_up_process handle_softirqs {INLINE}": Kind(SOFTIRQ),
    # interrupts that were not trimmed in BPF
    f"hrtimer_wakeup __hrtimer_run_queues {TICK} {INNOCENT}": Kind(TIMEOUT),
    f"complete nvme_irq {DEVICE} {INNOCENT}": Kind(IRQ, "nvme_irq"),
    # on a machine with other entry functions
    "complete nvme_irq __handle_irq_event_percpu handle_irq_event plic_handle_irq do_irq handle_exception vfs_read": (
        Kind(IRQ, "nvme_irq")
    ),
    "sock_def_readable net_rx_action handle_softirqs __irq_exit_rcu irq_exit_rcu do_irq handle_exception vfs_read": (
        Kind(SOFTIRQ, "net_rx")
    ),
}
OF_INTERRUPTS = {
    f"handle_softirqs {AFTER_TICK.partition(' ')[2]}": Kind(SOFTIRQ),
    f"__wake_up_common __wake_up call_timer_fn run_timer_softirq {AFTER_TICK}": Kind(TIMER),
    f"kick_pool __queue_work call_timer_fn run_timer_softirq {AFTER_TICK}": Kind(TIMER, "delayed_work_timer_fn"),
    DEVICE: Kind(IRQ),
    f"{SIGIO} tcp_v4_rcv net_rx_action {AFTER_TICK}": Kind(SOFTIRQ, "net_rx"),
    f"complete blk_end_sync_rq nvme_irq {DEVICE}": Kind(IRQ, "nvme_irq"),
    f"kick_pool __queue_work queue_work_on vring_interrupt {DEVICE}": Kind(IRQ, "vring_interrupt"),
    f"hrtimer_wakeup __hrtimer_run_queues {TICK}": Kind(TIMEOUT),
    f"process_timeout call_timer_fn __run_timers run_timer_softirq {AFTER_TICK}": Kind(TIMEOUT),
    # it makes a tail call and is in no frame
    f"call_timer_fn __run_timers run_timer_softirq {AFTER_TICK}": Kind(TIMEOUT),
    f"kick_pool __queue_work delayed_work_timer_fn call_timer_fn run_timer_softirq {AFTER_TICK}": (
        Kind(TIMER, "delayed_work_timer_fn")
    ),
    f"__wake_up_common timerfd_tmrproc __hrtimer_run_queues {TICK}": Kind(TIMER, "timerfd_tmrproc"),
    f"signal_wake_up_state complete_signal posixtimer_send_sigqueue posix_timer_fn __hrtimer_run_queues {TICK}": (
        Kind(SIGNAL)
    ),
    "sock_def_readable tcp_v4_rcv napi_complete_done virtnet_poll net_rx_action handle_softirqs __irq_exit_rcu "
    "common_interrupt asm_common_interrupt": Kind(SOFTIRQ, "net_rx"),
    f"swake_up_one rcu_core {AFTER_TICK}": Kind(SOFTIRQ, "rcu_core"),
    "complete blk_mq_complete_request_remote __flush_smp_call_function_queue sysvec_call_function_single "
    "asm_sysvec_call_function_single": Kind(IRQ, "call_function_single"),
    "__flush_smp_call_function_queue flush_smp_call_function_queue do_idle cpu_startup_entry start_secondary": (
        Kind(IRQ, "ipi")
    ),
    "complete nvme_irq __handle_irq_event_percpu handle_irq_event handle_fasteoi_irq gic_handle_irq "
    "call_on_irq_stack do_interrupt_handler el1_interrupt el1h_64_irq_handler el1h_64_irq": Kind(IRQ, "nvme_irq"),
    "hrtimer_wakeup __hrtimer_run_queues hrtimer_interrupt arch_timer_handler_virt gic_handle_irq "
    "el0t_64_irq_handler": Kind(TIMEOUT),
    "swake_up_one gic_handle_irq el1h_64_irq": Kind(IRQ),
}


@pytest.mark.parametrize("stack", OF_THREADS)
def test_stack_of_a_thread_is_classified(stack: str) -> None:
    assert kind_of(["try_to_wake_up", *stack.split()], is_thread=True) == OF_THREADS[stack]
    assert kind_of(stack.split(), is_thread=True) == OF_THREADS[stack]


@pytest.mark.parametrize("stack", OF_INTERRUPTS)
def test_stack_of_an_interrupt_is_classified(stack: str) -> None:
    assert kind_of(["try_to_wake_up", *stack.split()], is_thread=False) == OF_INTERRUPTS[stack]


def test_empty_stack_shows_only_whether_a_thread_ran() -> None:
    assert kind_of([], is_thread=True) == Kind(THREAD)
    assert kind_of([], is_thread=False) == Kind(IRQ)


def test_compiler_suffixes_change_nothing() -> None:
    names = ["try_to_wake_up.part.0", "hrtimer_wakeup.cold", "__hrtimer_run_queues.constprop.0", "hrtimer_interrupt"]
    assert kind_of(names, is_thread=False) == Kind(TIMEOUT)
    assert tail_length(names) == 1


def test_tail_is_what_every_wakeup_has_and_one_frame_is_left() -> None:
    assert tail_length(f"try_to_wake_up wake_up_q futex_wake {SYSCALL}".split()) == 2
    assert tail_length(["try_to_wake_up", "pollwake", "__wake_up_common", "eventfd_write"]) == 3
    assert tail_length(["try_to_wake_up", "kick_pool", "__queue_work"]) == 1
    assert tail_length(["try_to_wake_up", "wake_up_q"]) == 1
    assert tail_length(["try_to_wake_up"]) == 0
    assert tail_length([]) == 0


def test_frames_after_an_interrupt_s_entry_are_not_its_own() -> None:
    cut = f"try_to_wake_up hrtimer_wakeup __hrtimer_run_queues {TICK}".split()
    assert cut_at_interrupt([*cut, *INNOCENT.split()]) == len(cut)
    assert cut_at_interrupt(cut) == len(cut)
    arm = ["try_to_wake_up", "gic_handle_irq", "el1_interrupt", "el1h_64_irq_handler"]
    assert cut_at_interrupt([*arm, "el1h_64_irq", "vfs_read", "el0t_64_sync"]) == len(arm)
    assert cut_at_interrupt(f"try_to_wake_up {INNOCENT}".split()) == 5
    assert cut_at_interrupt([]) == 0


def test_thread_that_returns_to_user_mode_after_an_interrupt_has_its_own_stack() -> None:
    own = f"try_to_wake_up do_notify_parent do_exit get_signal exit_to_user_mode_loop.isra.0 {KICKED}".split()
    assert cut_at_interrupt(own) == len(own)
    hit = f"try_to_wake_up hrtimer_wakeup __hrtimer_run_queues {TICK}".split()
    assert cut_at_interrupt([*hit, *own[2:]]) == len(hit)
    assert entry_length(own[1:]) == 1


def test_system_calls_faults_and_similar_names_are_no_interrupts() -> None:
    assert [name for name in INTERRUPTS if not is_interrupt(name)] == []
    others = [
        "entry_SYSCALL_64_after_hwframe",
        "asm_exc_page_fault",
        "common_interrupt",
        "el0t_64_sync",
        "el1_irq_like",
        "asm_",
        "",
    ]
    assert [name for name in others if is_interrupt(name)] == []
