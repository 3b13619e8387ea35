// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Where does every thread wait, and for how long?
 *
 * hooks
 *   switch-out     raw_tp sched_switch, in the thread that is switched out
 *   switch-in      one of these switch-in probes:
 *                  PROBE_EXIT    raw_tp sched_exit_tp (6.16), in the thread that is switched in
 *                  PROBE_KPROBE  kprobe finish_task_switch*, in the thread that is switched in
 *                  PROBE_SWITCH  raw_tp sched_switch, in the thread that is switched out: stacks at switch-out
 *   wakeup         WAKING        raw_tp sched_waking, always attached: with PROBE_SWITCH, or without run_delay
 *                  TYPED_WAKING  tp_btf sched_waking, attached while wakers are on (waker.c)
 *   migration      DELAYS_DEQUEUE: raw_tp or tp_btf sched_migrate_task
 *   program code   raw_tp sched_process_exec and, for user stacks by unwind rules, sched_process_fork
 *   scan           iterator over tasks, or over `changed`, two or three times a tick (scan.c)
 *
 * maps
 *   active_buffer  number of the tick; its lowest bit is the index of the buffers that are being written. User space
 *                  reads and empties the others meanwhile
 *   stacks are in kernelstack.c and userstack.c, records of threads in record.c
 *   changed        CHANGED: threads with something in the buffers. So a scan need not visit all threads
 *   changes        per CPU and buffer: how many threads it has noted there, also if there was no room
 *   clock_sample   offset between our clock and the scheduler's, as measured here
 *   clock_offset   the same offset, as user space has chosen it from the samples
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * An application's stack does not change while it is off CPU, so it is unwound at switch-in, and only if the wait
 * reached the minimum. PROBE_SWITCH runs in the wrong thread for that, and unwinds at every switch-out, as other tools
 * do.
 *
 * A new thread waits on a run queue for its first CPU without having been switched out. This wait is its run_delay at
 * its first switch-out, or at its exit if it was never switched out before. It is counted then: as one wait, all of it
 * run queue, not preempted, and without a stack. Until then the task scan (scan.c) reports it. Without
 * sched_info (CONFIG_SCHED_INFO) it is unknown.
 *
 * All of this runs under a run queue's lock. So all hashes are preallocated (bcc's default: no BPF_F_NO_PREALLOC), and
 * task storage and ring buffers are used only if offtop/kernel/bpf/switch_maps.py finds them safe.
 *
 * The sums in the buffer that is being written are written only in their thread's own context (PROBE_SWITCH: under its
 * run queue's lock), on one CPU at a time, so nothing here is atomic. The task scan notes run times there (exec_*).
 *
 * -D:
 *   TASK_*, RUN_DELAY, LAST_ARRIVAL, LAST_QUEUED, PCOUNT, SUM_EXEC, EXEC_START, START_TIME
 *                           offsets in task_struct, from BTF
 *   REG_*                   offsets in pt_regs: system call number and arguments, ip, sp, frame pointer, other
 *                           callee-saved registers
 *   STATE_ARGUMENT          sched_switch passes prev_state (since fa2c3254d7cf, 5.18)
 *   RECORDS_IN_HASH         records are in a preallocated hash by task address instead of task storage: because the
 *                           kernel cannot create task storage safely here, or because records are used from another
 *                           thread's context, or listed
 *   CHANGED, CHANGED_PER_CPU    entries of `changed`, and how many of them each CPU writes; user space writes those
 *                           behind them. All threads are visited in a container, and without records in task storage or
 *                           task_from_pid()
 *   DELAYS_DEQUEUE          a thread that sleeps may stay in the run queue for some time
 *   MAY_GOTO                the verifier knows the instruction may_goto (ROUNDS in offcpu.h)
 *   NAMESPACE               show ids of this pid namespace (namespace.h)
 */
#include "offcpu.h"
#include "namespace.h"

#define USER_MEMOS /* memo.c */

BPF_ARRAY(config, struct config, 1);
BPF_ARRAY(active_buffer, u32, 1);
BPF_ARRAY(scan_mode, u32, 1);
BPF_ARRAY(clock_sample, u64, 1);
BPF_ARRAY(clock_offset, u64, 1);

/*
 * Updating an array of maps waits until no program uses the old map (maybe_wait_bpf_programs). User space updates
 * `barrier` after it has changed active_buffer: from then on no program writes to the idle buffers.
 */
BPF_TABLE("hash", u32, u32, barrier_inner, 1);
BPF_ARRAY_OF_MAPS(barrier, "barrier_inner", 1);

/* For a thread that exits without a record: only its ids are set. Too large for the BPF stack. */
BPF_PERCPU_ARRAY(exiting_scratch, struct record, 1);

#define is_on_cpu(task) MEMBER(u8, task, TASK_ON_CPU) /* an int; one byte from 7.3 on */

#include "record.c"
#include "filters.c"

#ifdef NAMESPACE
/*
 * Find the ids under which a thread is shown. Return false if it has none. find_ids() is slow, so it is called only for
 * threads without a record. `host`: the thread's bpf_get_current_pid_tgid().
 */
static __always_inline bool find_shown_ids(struct task_struct *task, u64 host, u32 *pid, u32 *tid)
{
	struct record *r = record_of(task, false);

	if (!r || r->host != host)
		return find_ids(task, pid, tid);
	*pid = r->pid;
	*tid = r->tid;
	return true;
}
#endif

#include "within.c"
#include "exited.c"
#include "site.c"
#include "outlier.c"
#include "thinning.c"
#include "userstack.c"
#include "kernelstack.c"
#include "kernelmemo.c"

static __always_inline void set_identity(struct record *r, u32 pid, u32 tid, u64 tid_acquired_ns)
{
	r->pid = pid;
	r->tid = tid;
	r->tid_acquired_ns = tid_acquired_ns;
}

/*
 * Reduce a task state to the one that filters and people know: idle and stopped threads also have bits of others. A
 * frozen thread is in state D, as in /proc.
 */
static __always_inline u32 state_of(u32 state)
{
	return !state                ? RUNNING
	       : state & TASK_NOLOAD ? TASK_NOLOAD
	       : state & TASK_HELD   ? state & TASK_HELD
	       : state & TASK_FROZEN ? TASK_UNINTERRUPTIBLE
				     : state;
}

#ifdef CHANGED
BPF_ARRAY(changed, struct changed, CHANGED);
BPF_PERCPU_ARRAY(changes, u64, 2);
#endif

/* Note the state of a thread at its last switch-out in a buffer, which a scan reports from then on. */
static __always_inline void note_state(struct record *r, struct thread *thread, u32 tick)
{
#ifdef CHANGED
	u32 which = tick & 1;
	u64 *count = r->noted == tick ? 0 : changes.lookup(&which);
	if (count) {
		u64 at = *count;
		u32 index = bpf_get_smp_processor_id() * CHANGED_PER_CPU + at;
		struct changed *one = at < CHANGED_PER_CPU ? changed.lookup(&index) : 0;

		r->noted = tick;
		*count = at + 1;
		if (one)
			one->tids[which] = r->tid;
	}
#endif
	thread->state = r->state;
	thread->tid_acquired_ns = r->tid_acquired_ns;
}

#include "object.c"
#include "waker.c"

/* Return how often a thread got a CPU. All ones: unknown, or first waits are not counted (WITHIN). */
static __always_inline u64 pcount_of(struct task_struct *task)
{
#if defined(PCOUNT) && defined(RUN_DELAY) && !defined(WITHIN)
	return MEMBER(u64, task, PCOUNT);
#else
	return ~0ULL;
#endif
}

/*
 * Return how long a thread on its first CPU waited for it. 0: it is not on its first CPU, or the wait was over before
 * the thread was selected. `switched_out_ns`: on entry, since when a task scan has reported this wait, or 0; on return,
 * the start of the wait.
 */
static __always_inline u64 first_cpu_wait_ns(struct config *c, struct task_struct *task, u64 *switched_out_ns)
{
#ifdef RUN_DELAY
	if (pcount_of(task) != 1)
		return 0;
	u64 ns = MEMBER(u64, task, RUN_DELAY), start_ns = MEMBER(u64, task, START_TIME);
	if (start_ns > c->since_ns) {
		*switched_out_ns = *switched_out_ns ? *switched_out_ns : start_ns;
		return ns;
	}
	return *switched_out_ns && start_ns + ns > *switched_out_ns ? start_ns + ns - *switched_out_ns : 0;
#else
	return 0;
#endif
}

/*
 * Initialize the record of a thread at its first switch-out and count its wait for its first CPU. Counting it at the
 * end of that wait would need a check at each switch whether the thread is new, and a record for every short-lived
 * thread.
 */
static __always_inline void begin_record(struct config *c, struct task_struct *task, struct record *r,
					 struct thread *thread, u32 which, u32 pid, u32 tid)
{
	u32 zero = 0;
	struct ended *e = ended_scratch.lookup(&zero);
	u64 switched_out_ns = r->switched_out_ns, off_ns = first_cpu_wait_ns(c, task, &switched_out_ns);

	r->switched_out_ns = 0;
	set_identity(r, pid, tid, MEMBER(u64, task, START_TIME));
	if (!e || !off_ns)
		return;
	r->state = RUNNING | TASK_NEW;
	e->switched_out_ns = switched_out_ns;
	e->off_ns = e->runqueue_ns = off_ns;
	e->key.pid = pid;
	e->key.tid = tid;
	e->key.kernel = e->key.user = NO_STACK;
	e->key.wake = WAKE_CPU & c->wakes;
	e->key.tid_acquired_ns = r->tid_acquired_ns;
	e->which = which;
	e->lane = lane_of(off_ns);
	READ_AGAIN;
	u32 kind = count_without_site(c, r->state, thread, e);
	if (!kind) {
#ifdef OUTLIERS
		if (e->off_ns >= c->least_threshold_ns)
			report_outlier(r, task, &e->key, e->switched_out_ns, e->off_ns, e->off_ns);
#endif
		kind = count_at_site(e->which & 1, thread, e);
	}
	count_wait(thread, e, kind | KIND_NEW);
}

/* Handle a switch-out of the current thread. */
static __always_inline void switch_out(void *ctx, bool preempted, u32 state)
{
	u32 zero = 0;
	u64 id = bpf_get_current_pid_tgid();
	u32 pid = id >> 32, tid = id;
	struct config *c = config.lookup(&zero);
	u32 *active = active_buffer.lookup(&zero);

	if (!tid || !c || !c->self || !active) /* without c->self the selection has not been set yet */
		return;
	u32 tick = *(volatile u32 *)active, which = tick & 1; /* read once: it may change meanwhile */
	struct task_struct *task = current_task();
	bool dead = state & TASK_DEAD;
	if (dead)
		forget_call(task);
	u32 selection = *(volatile u32 *)&c->selection; /* read before the filters, which may change meanwhile */
	/* An exiting thread is handled even if it is not selected: if it was, its record must be freed. */
	if (!dead && !(find_shown_ids(task, id, &pid, &tid) &&
		       is_selected(c, task, true, pid, tid, MEMBER(u32, task, TASK_FLAGS))))
		return;
	struct record *r = record_of(task, !dead);
	if (!r && dead && pcount_of(task) == 1 && find_shown_ids(task, id, &pid, &tid) &&
	    is_selected(c, task, true, pid, tid, MEMBER(u32, task, TASK_FLAGS))) {
		r = exiting_scratch.lookup(&zero); /* its first switch-out is its exit */
		if (r)
			r->tid = r->switched_out_ns = 0;
	}
	if (!r)
		return;
	if (r->switched_out_ns && r->tid) /* its last switch-in was missed */
		count_lost(LOST_EVENTS);
	struct thread *thread = &r->buffers[which];
	if (dead) {
		if (!r->tid && find_shown_ids(task, id, &pid, &tid))
			begin_record(c, task, r, thread, which, pid, tid);
		thread->state = r->state = state_of(state);
		thread->tid_acquired_ns = r->tid_acquired_ns;
		thread->exec_ns = MEMBER(u64, task, SUM_EXEC);
		thread->exec_at_ns = 0;
		r->switched_out_ns = 0;
		if (r->tid) /* tid 0: it was never switched out before, and has no id in this container any more */
			save_exiting(task, r, which);
#ifdef RECORDS_IN_HASH
		u64 key = (u64)task;

		record.delete(&key);
#endif
		return;
	}
	u32 known_tid = *(volatile u32 *)&r->tid; /* read once: a scan on another CPU may be setting it */
	if (!known_tid) {
		begin_record(c, task, r, thread, which, pid, tid);
	} else if (known_tid != tid || r->pid != pid) {
		/*
		 * A thread that calls exec takes over the tid and the start time of its main thread. The record of the
		 * tid's previous owner may arrive later, because that may still wait for a CPU to exit. If the process
		 * differs (RECORDS_IN_HASH), this record is of a thread whose exit was missed and whose task_struct was
		 * reused.
		 */
		bool is_exec = known_tid != tid && r->pid == pid;
		r->noted = 0;
		if (known_tid != tid)
			save_exiting(task, r, which);
		set_identity(r, pid, tid, is_exec ? bpf_ktime_get_ns() : MEMBER(u64, task, START_TIME));
	}
	r->state = preempted ? RUNNING : state_of(state);
#ifdef NAMESPACE
	r->host = id;
	r->host_tid = id;
#endif
	note_state(r, thread, tick);
#ifndef WAKING
	r->run_delay_ns = MEMBER(u64, task, RUN_DELAY);
#endif
#ifdef PROBE_SWITCH
	r->kernel = kernel_stack(ctx);
	r->user = user_stack(ctx, AT_SWITCH, task, r->pid, r->tid, MEMBER(u32, task, TASK_FLAGS));
#endif
	u64 now_ns = bpf_ktime_get_ns();
	thread->switched_out_ns = now_ns;
	r->began_earlier = 0;
	if (!(r->state & RUNNING) || r->selection != selection) /* wakeups are missed while a thread is not selected */
		r->wake = WAKE_UNSEEN & c->wakes;
	if (!(r->state & RUNNING) && r->storm.at_ns)
		count_brief_run(r, which, now_ns);
	r->selection = selection;
	r->switched_out_ns = now_ns;
}

/* Handle a switch-in of a thread: count the wait that ends. */
static __always_inline void switch_in(void *ctx, struct config *c, struct record *r, void *task)
{
	u32 zero = 0;
	u32 *active = active_buffer.lookup(&zero);
	struct ended *e = ended_scratch.lookup(&zero);

	if (!active || !e)
		return;
	u32 tick = *(volatile u32 *)active, which = tick & 1; /* read once: thread and site go to the same buffer */
	u64 now_ns = bpf_ktime_get_ns();
	u64 switched_out_ns = r->switched_out_ns;
	r->switched_out_ns = 0;
	u64 off_ns = now_ns > switched_out_ns ? now_ns - switched_out_ns : 0;
	e->switched_out_ns = switched_out_ns;
	e->off_ns = e->runqueue_ns = off_ns;
	struct thread *thread = &r->buffers[which];
	note_state(r, thread, tick);
	if (!(r->state & RUNNING)) {
		r->switched_in_ns = now_ns;
		r->wake &= c->wakes;
#ifdef WAKING
		u64 woken_ns = r->run_delay_ns;
		r->run_delay_ns = 0;
		if (!woken_ns) {
			count_lost(LOST_WAKINGS);
			woken_ns = now_ns;
		}
		e->runqueue_ns = woken_ns < switched_out_ns ? off_ns : woken_ns < now_ns ? now_ns - woken_ns : 0;
#else
		u64 runqueue_ns = MEMBER(u64, task, RUN_DELAY) - r->run_delay_ns;
		if (r->run_delay_ns == UNKNOWN_DELAY)
			e->runqueue_ns = 0;
		else if (runqueue_ns < off_ns)
			e->runqueue_ns = runqueue_ns;
#endif
	} else {
		r->burst.last_ns += off_ns;
		thread->preempted_ns += off_ns;
		thread->involuntary += 1;
	}

	/* All ones, or 0 if the thread was preempted. No branch, because the verifier follows each to the end. */
	u64 slept_mask = (u64)(r->state >> 31) - 1;
	e->key.kernel = e->key.user = 0;
	e->key.pid = r->pid;
	e->key.tid = r->tid;
	e->key.tid_acquired_ns = r->tid_acquired_ns;
	e->key.wake = (r->wake & slept_mask) | (WAKE_CPU & c->wakes & ~slept_mask);

	READ_AGAIN;
	u32 kind = count_without_site(c, r->state, thread, e);
	struct thinning *t = kind ? 0 : thinning_of_cpu();
	if (t && is_thinned(c, t, now_ns, e->off_ns))
		kind = count_short(thread, e);
	if (!kind) {
#ifdef PROBE_SWITCH
		e->key.kernel = r->kernel;
		e->key.user = r->user;
#else
		if (slept_mask && !c->wakes)
			e->key.wake = object_id_of_wait(which, thread, task);
		e->key.kernel = kernel_stack_of_wait(ctx, c, task, r->state);
		e->key.user = user_stack(ctx, AT_SWITCH, task, r->pid, r->tid, MEMBER(u32, task, TASK_FLAGS));
		if (t)
			charge_stacks(c, t, now_ns);
#endif
		r->stacked_kernel = e->key.kernel;
		r->stacked_user = e->key.user;
		r->stacked_ns = now_ns;
#ifdef OUTLIERS
		if (e->off_ns >= c->least_threshold_ns)
			report_outlier(r, task, &e->key, e->switched_out_ns, e->off_ns, e->runqueue_ns);
#endif
	}
	e->lane = lane_of(e->off_ns);
	READ_AGAIN;
	if (!kind)
		kind = count_at_site(which, thread, e);
	if (!(r->state & RUNNING) && e->key.wake) {
		r->last_kernel = e->key.kernel;
		r->last_user = e->key.user & COPIED ? NO_STACK : e->key.user;
	}
	count_wait(thread, e, kind | (KIND_PREEMPTED & ~slept_mask));
	add_to_call(task, e->off_ns, e->runqueue_ns);
}

#ifndef PROBE_SWITCH
static __always_inline int switch_in_current(void *ctx)
{
	u32 zero = 0;
	u64 id = bpf_get_current_pid_tgid();
	u32 pid = id >> 32, tid = id;

	if (!tid)
		return 0;
	struct config *c = config.lookup(&zero);
	if (!c)
		return 0;
	struct task_struct *task = current_task();
	if (find_shown_ids(task, id, &pid, &tid) && pid == c->self) {
		/*
		 * Calibrate the scheduler's clock against ours at offtop's own switch-in: the smallest difference is
		 * the nearest.
		 */
#ifdef LAST_ARRIVAL
		u64 offset_ns = bpf_ktime_get_ns() - MEMBER(u64, task, LAST_ARRIVAL);
		u64 *least_offset_ns = clock_sample.lookup(&zero);
		if (least_offset_ns && (!*least_offset_ns || offset_ns < *least_offset_ns))
			*least_offset_ns = offset_ns;
#endif
		return 0;
	}
	struct record *r = record_of(task, false);
	if (!r || !r->switched_out_ns || !r->tid) /* tid 0: it is on its first CPU; begin_record() counts that wait */
		return 0;
	/* A child of offtop may have begun to wait before it was known as one, which does not change the selection. */
	if (is_own(c, r->pid) || (r->selection != c->selection &&
				  !is_selected(c, task, true, r->pid, r->tid, MEMBER(u32, task, TASK_FLAGS)))) {
		r->switched_out_ns = 0;
		return 0;
	}
	switch_in(ctx, c, r, task);
	return 0;
}
#endif

int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
#ifdef STATE_ARGUMENT
	u32 state = ctx->args[3];
#else
	u32 state = MEMBER(u32, current_task(), TASK_STATE);
#endif
	switch_out(ctx, ctx->args[0], state);

#ifdef PROBE_SWITCH
	void *next = (void *)ctx->args[2];
	u32 zero = 0;
	struct config *c = config.lookup(&zero);
	struct record *r = record_of(next, false);

	if (!c || !r || !r->switched_out_ns || !r->tid)
		return 0;
	u32 flags = 0;
	bpf_probe_read_kernel(&flags, sizeof(flags), (char *)next + TASK_FLAGS);
	if (is_own(c, r->pid) ||
	    (r->selection != c->selection && !is_selected(c, next, false, r->pid, r->tid, flags))) {
		r->switched_out_ns = 0;
		return 0;
	}
	switch_in(ctx, c, r, next);
#endif
	return 0;
}

#ifdef PROBE_EXIT
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	return ctx->args[0] ? switch_in_current(ctx) : 0;
}
#endif

#ifdef PROBE_KPROBE
int on_finish(void *ctx)
{
	return switch_in_current(ctx);
}
#endif

int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = current_task();
	u64 host = bpf_get_current_pid_tgid();
	u32 pid = host >> 32, tid = host;

	forget_call(task);
	if (find_shown_ids(task, host, &pid, &tid)) {
		u32 number = MEMBER(u32, task, TASK_EXECS);
		execs.update(&pid, &number);
#ifdef UNWIND_KB
		spaces.delete(&pid); /* its code has changed */
#endif
#ifdef HAS_PYTHON
		python_processes.delete(&pid);
#endif
	}
#ifdef NAMESPACE
	struct record *r = record_of(task, false);
	if (r)
		r->host_tid = host; /* it may have taken over the tid of its main thread */
#endif
	return 0;
}

#ifdef DELAYS_DEQUEUE
/*
 * A thread is being moved to another CPU. If it sleeps, its dequeueing was delayed (152e11f6df29, 6.12), and the kernel
 * counts all the time from now until it runs as run_delay (sched_info_enqueue in enqueue_task, kernel/sched/core.c). So
 * it is unknown for how long it will be queued.
 */
int on_migrate(struct bpf_raw_tracepoint_args *ctx)
{
	u32 state = 0;
	struct task_struct *task;

	asm volatile("" : "=r"(task) : "0"(ctx->args[0])); /* as in on_waking() */
	bpf_probe_read_kernel(&state, sizeof(state), (char *)task + TASK_STATE);
	if (!state || state & (TASK_WAKING | TASK_NEW | TASK_DEAD))
		return 0;
	struct record *r = record_of(task, false);
	if (r && r->switched_out_ns)
		r->run_delay_ns = UNKNOWN_DELAY;
	return 0;
}
#endif

#if defined(WAKING) || defined(TYPED_WAKING)
/* A thread is being woken. Runs in the context of its waker, or in an interrupt. */
int on_waking(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0, flags = 0;
	struct task_struct *task;
	struct config *c = config.lookup(&zero);

	asm volatile("" : "=r"(task) : "0"(ctx->args[0])); /* keeps bcc from replacing each access by a read */
#ifdef TYPED_WAKING
	flags = MEMBER(u32, task, TASK_FLAGS);
#else
	bpf_probe_read_kernel(&flags, sizeof(flags), (char *)task + TASK_FLAGS);
#endif
	struct record *r = record_of(task, false);
	if (!r || !c)
		return 0;
#ifdef WAKING
	r->run_delay_ns = bpf_ktime_get_ns(); /* also if it has not been switched out yet, on its way to sleep */
#endif
	if (!c->depth || !r->switched_out_ns || r->state & RUNNING)
		return 0;
	if (r->selection == c->selection || is_selected(c, task, false, r->pid, r->tid, flags))
		find_waker(ctx, c, r, task);
	return 0;
}
#endif

#include "scan.c"
