// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which threads wait now, since when, where and on what; and what did each thread do since the last tick?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: none in the scheduler. User space reads an iterator over tasks two or three times a tick; within a pid
 * namespace also one over records. If few of many threads have changed, it reads one over `changed` in the second scan
 *
 * maps
 *   scan_mode  which scan it is (enum scan_mode)
 *   record     the second scan clears the idle buffers (offcpu.c)
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * The first scan of a tick reports the waits in progress, before the buffers are swapped. If it costs too much, user
 * space skips it in some ticks. The second scan reports what ended, from the buffer that is no longer written. A third,
 * short one reports how often each thread has been given a CPU: user space has read stacks of waits in progress
 * meanwhile, and discards those of threads that have run.
 */

struct seq_file;
struct bpf_map;
struct bpf_iter_meta {
	struct seq_file *seq;
	u64 session_id;
	u64 seq_num;
};
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};
struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	struct record *value;
};

/* A stack with all of its frames, and the top of the kernel stack. */
struct scan_scratch {
	struct scanned_stack stack;
	u64 deep_frames[SCAN_FRAMES - SHORT_FRAMES]; /* right behind stack.frames */
	u64 words[SCAN_WORDS];
#ifdef REG_CALL
	u64 registers[REG_WORDS];
#endif
};
BPF_PERCPU_ARRAY(scan_scratch, struct scan_scratch, 1);

/*
 * Return how long a thread has run in total, and when that was read. The kernel updates it at its own ticks only, so
 * for a thread on a CPU the time since is added, if the offset between the clocks is known: exec_start is on the
 * scheduler's clock, which leaves out time taken by interrupts and the hypervisor.
 */
static __always_inline u64 run_time_ns(struct task_struct *task, u64 *at_ns)
{
	u64 exec_ns = MEMBER(u64, task, SUM_EXEC);
	u32 zero = 0;
	u64 *offset_ns = clock_offset.lookup(&zero);

	*at_ns = is_on_cpu(task) ? bpf_ktime_get_ns() : 0;
	if (!offset_ns || !*offset_ns || !*at_ns)
		return exec_ns;
	u64 since_ns = *at_ns - *offset_ns - MEMBER(u64, task, EXEC_START);
	return since_ns < MAX_TICK_NS ? exec_ns + since_ns : exec_ns;
}

/* Return how long the wait in progress has lasted at now_ns; 0 if there is none. */
static __always_inline u64 wait_so_far_ns(struct record *r, u64 now_ns)
{
	u64 switched_out_ns = r->switched_out_ns;

	return switched_out_ns && switched_out_ns < now_ns ? now_ns - switched_out_ns : 0;
}

/* Return whether a thread is queued for its first CPU. */
static __always_inline bool is_new(struct task_struct *task, u32 state)
{
	return !state && !is_on_cpu(task) && !pcount_of(task);
}

/* Return when a new thread was queued. Until it gets a CPU, run_delay is the time it was queued on other CPUs. */
static __always_inline u64 queued_since(struct task_struct *task)
{
	u64 start_ns = MEMBER(u64, task, START_TIME);
#if defined(LAST_QUEUED) && defined(RUN_DELAY)
	u32 zero = 0;
	u64 *offset_ns = clock_offset.lookup(&zero), last_ns = MEMBER(u64, task, LAST_QUEUED);
	if (offset_ns && *offset_ns && last_ns) {
		u64 queued_ns = last_ns + *offset_ns - MEMBER(u64, task, RUN_DELAY);
		if (queued_ns > start_ns)
			return queued_ns;
	}
#endif
	return start_ns;
}

/*
 * Report that a thread is on its first CPU, and its wait for that CPU, which begin_record() will count at its
 * switch-out.
 */
static __always_inline void report_first_cpu(struct config *c, struct task_struct *task, struct scanned_task *out,
					     struct record *r)
{
	u64 switched_out_ns = r->switched_out_ns;

	if (r->tid || !is_on_cpu(task))
		return;
	out->first_ns = first_cpu_wait_ns(c, task, &switched_out_ns);
	if (!out->first_ns)
		return;
	out->switched_out_ns = switched_out_ns;
	out->flags |= SCANNED_STARTED;
}

/*
 * Report what a thread did, from the buffer that is no longer written, and clear it. `alone`: this tick had no scan of
 * the waits in progress, so the run time of selected threads is reported here.
 */
static __always_inline void report_tick(struct seq_file *seq, struct task_struct *task, struct scanned_task *out,
					struct record *r, struct config *c, struct thread *idle, struct thread *now,
					bool selected, bool alone)
{
	out->start_ns = MEMBER(u64, task, START_TIME);
	if (alone) {
		u64 exec_ns = run_time_ns(task, &out->exec_at_ns);
		if (idle->state) {
			idle->exec_ns = exec_ns;
			idle->exec_at_ns = bpf_ktime_get_ns();
			idle->exec_off_ns = idle->offcpu_ns + now->offcpu_ns + wait_so_far_ns(r, idle->exec_at_ns);
		} else if (selected && exec_ns != r->exec_ns) {
			out->exec_ns = exec_ns;
			out->flags = SCANNED_RAN;
			if (now->state) /* it was also off CPU since the buffers were swapped */
				out->exec_at_ns = 0;
			report_first_cpu(c, task, out, r);
		}
		r->exec_ns = exec_ns;
	}
	if (!idle->state && !out->flags)
		return;
	bpf_probe_read_kernel(out->comm, sizeof(out->comm), (char *)task + TASK_COMM);
	if (out->flags) {
		bpf_seq_write(seq, out, sizeof(*out));
		return;
	}
	out->flags = SCANNED_THREAD;
	/* Clear the buffer only after it was written: what does not fit into this read() is repeated in the next one. */
	if (!bpf_seq_write(seq, out, sizeof(*out)) && !bpf_seq_write(seq, idle, sizeof(*idle)))
		__builtin_memset(idle, 0, sizeof(*idle));
}

/*
 * Find the __sched functions, which bpf_get_task_stack() omits: the words of the thread's kernel stack that are in
 * their section and above the first frame that it does return.
 */
static __always_inline void find_sched_functions(struct task_struct *task, struct scan_scratch *x, struct config *c)
{
	__builtin_memset(x->stack.sched, 0, sizeof(x->stack.sched));
#ifdef TASK_SP
	u64 leaf = x->stack.depth ? x->stack.frames[0] : 0, found = 0, is_past = 0;

	bpf_probe_read_kernel(x->words, sizeof(x->words), (void *)MEMBER(u64, task, TASK_SP));
	/* Neither a loop nor a branch: the verifier would follow each round and both sides of each branch to the end. */
#pragma unroll
	for (u32 at = 0; at < SCAN_WORDS; at++) {
		u64 word = x->words[at] | c->signed_bits, offset = word - c->sched_text.start;
		is_past |= ones_if_same(word, leaf);
		/* All ones if the top bit is set: the word is in the section, and there is room. */
		u64 take = ~offset & (offset - c->sched_text.bytes) & (found - SCHED_FRAMES) & ~is_past;
		asm volatile("%0 s>>= 63" : "+r"(take)); /* clang would make a branch of the shift */
		x->stack.sched[found & (SCHED_FRAMES - 1)] |= word & take;
		found -= take;
	}
#endif
}

/* Read the kernel stack of an off-CPU thread, its system call, what it waits on, and its user registers. */
static __always_inline void read_blocked_stack(struct task_struct *task, struct scan_scratch *x, struct config *c)
{
	struct scanned_stack *s = &x->stack;

	find_object(&s->object, task, AT_SCAN);
	long bytes = bpf_get_task_stack(task, s->frames, sizeof(s->frames) + sizeof(x->deep_frames), 0);

	s->depth = bytes > 0 ? (u32)bytes / 8 : 0;
	find_sched_functions(task, x, c);
	s->pcount = 0;
	s->call = -1;
	s->ip = s->sp = s->bp = s->mode = s->thread = 0;
	__builtin_memset(s->callee_saved, 0, sizeof(s->callee_saved));
#ifdef PCOUNT
	s->pcount = MEMBER(u64, task, PCOUNT);
#endif
#ifdef REG_CALL
	if (MEMBER(u32, task, TASK_FLAGS) & PF_KTHREAD)
		return;
#ifdef HAS_PYTHON
	s->thread = python_id(task);
#endif
	bpf_probe_read_kernel(x->registers, sizeof(x->registers), (void *)bpf_task_pt_regs(task));
	s->call = x->registers[REG_CALL / 8];
	s->arguments[0] = x->registers[REG_ARGUMENT_0 / 8];
	s->arguments[1] = x->registers[REG_ARGUMENT_1 / 8];
	s->arguments[2] = x->registers[REG_ARGUMENT_2 / 8];
	s->arguments[3] = x->registers[REG_ARGUMENT_3 / 8];
	s->arguments[4] = x->registers[REG_ARGUMENT_4 / 8];
	s->arguments[5] = x->registers[REG_ARGUMENT_5 / 8];
	s->ip = x->registers[REG_IP / 8];
	s->sp = x->registers[REG_SP / 8];
	s->bp = x->registers[REG_BP / 8];
	s->mode = x->registers[REG_MODE / 8];
	s->callee_saved[0] = x->registers[REG_CALLEE_SAVED_0 / 8];
	s->callee_saved[1] = x->registers[REG_CALLEE_SAVED_1 / 8];
	s->callee_saved[2] = x->registers[REG_CALLEE_SAVED_2 / 8];
	s->callee_saved[3] = x->registers[REG_CALLEE_SAVED_3 / 8];
	s->callee_saved[4] = x->registers[REG_CALLEE_SAVED_4 / 8];
#ifdef REG_CALLEE_SAVED_5
	s->callee_saved[5] = x->registers[REG_CALLEE_SAVED_5 / 8];
	s->callee_saved[6] = x->registers[REG_CALLEE_SAVED_6 / 8];
	s->callee_saved[7] = x->registers[REG_CALLEE_SAVED_7 / 8];
	s->callee_saved[8] = x->registers[REG_CALLEE_SAVED_8 / 8];
	s->callee_saved[9] = x->registers[REG_CALLEE_SAVED_9 / 8];
	s->callee_saved[10] = x->registers[REG_CALLEE_SAVED_10 / 8];
#endif
#endif
}

/*
 * Fill in the wait in progress of an off-CPU thread: whether it is runnable, and, once the wait has reached the
 * minimum, its kernel stack, which is reported only once. With `prime`, a thread without a known wait counts as
 * switched out now, and every stack is reported. The thread may start to run at any time: the data is valid only for
 * the wait that began at switched_out_ns. Return whether `s` is to be reported.
 */
static __always_inline bool fill_wait(struct task_struct *task, struct scanned_task *out, struct record *r,
				      struct scan_scratch *s, struct config *c, bool prime)
{
	u64 now_ns = bpf_ktime_get_ns();

	if (is_on_cpu(task) || out->state & (TASK_DEAD | TASK_NEW))
		return false;
	if (!r->tid && is_new(task, out->state)) {
		if (!r->switched_out_ns) {
			r->began_earlier = MEMBER(u64, task, START_TIME) <= c->since_ns;
			r->state = RUNNING | TASK_NEW;
			r->selection = c->selection;
			r->switched_out_ns = r->began_earlier ? now_ns : queued_since(task);
			if (pcount_of(task)) { /* it got its first CPU meanwhile */
				r->switched_out_ns = 0;
				return false;
			}
		}
	} else if (!r->tid && r->switched_out_ns) {
		/*
		 * It was switched out while it was not selected; or it is just getting its first CPU, and
		 * begin_record() needs switched_out_ns.
		 */
		if (out->state || pcount_of(task) != 1)
			r->switched_out_ns = 0;
		return false;
	} else if (prime && !r->switched_out_ns) {
		if (r->tid != out->tid) /* it called exec, as in switch_out(); or it has no id yet */
			set_identity(r, out->pid, out->tid, r->tid ? now_ns : MEMBER(u64, task, START_TIME));
		r->state = state_of(out->state);
#ifdef WAKING
		r->run_delay_ns = 0;
#else
		r->run_delay_ns = MEMBER(u64, task, RUN_DELAY);
#endif
		r->kernel = NO_STACK;
		r->user = NO_STACK;
		r->wake = WAKE_UNSEEN & c->wakes;
		r->began_earlier = 1;
		r->selection = c->selection;
		r->switched_out_ns = now_ns;
		if (is_on_cpu(task)) { /* it was switched in meanwhile, and that was missed */
			r->switched_out_ns = 0;
			return false;
		}
	}
	u64 switched_out_ns = r->switched_out_ns;
	if (!switched_out_ns)
		return false;
	out->switched_out_ns = switched_out_ns;
	out->flags |= r->began_earlier ? SCANNED_BEGAN_EARLIER : 0;
	if (!out->state || r->state & RUNNING) {
		out->flags |= SCANNED_RUNNABLE;
#ifdef LAST_QUEUED
		if (!(r->state & RUNNING) && r->run_delay_ns != UNKNOWN_DELAY)
			out->queued_ns = MEMBER(u64, task, LAST_QUEUED);
#endif
	}
	if (!s || !(prime || (r->reported_ns != switched_out_ns && now_ns - switched_out_ns >= c->min_ns)))
		return false;
	read_blocked_stack(task, s, c);
	return r->switched_out_ns == switched_out_ns;
}

/* Report a thread in the first scan of a tick: its wait in progress, or that it ran and did nothing else. */
static __always_inline void report_wait(struct seq_file *seq, struct task_struct *task, struct scanned_task *out,
					struct record *r, struct config *c, bool prime, u32 which)
{
	u32 zero = 0;
	struct scan_scratch *s = scan_scratch.lookup(&zero);
	u64 exec_ns = run_time_ns(task, &out->exec_at_ns);
	struct thread *now = which ? &r->buffers[1] : &r->buffers[0];
	u16 frozen = out->state & TASK_FROZEN ? 1 : 0;

	if (frozen != r->frozen && r->reported_ns == r->switched_out_ns) {
		r->reported_ns = 0;                      /* report the stack again: it is in another category now */
		if (!frozen && out->state & TASK_NORMAL) /* it may have been frozen when a scan first saw it */
			r->state = state_of(out->state);
	}
	if (fill_wait(task, out, r, s, c, prime))
		out->flags |= SCANNED_STACK | (s && s->stack.depth > SHORT_FRAMES ? SCANNED_DEEP : 0);
#ifdef HAS_LOCKS
	u64 holder = out->switched_out_ns ? holder_of(task) : 0;
	out->holder_pid = holder >> 32;
	out->holder_tid = holder;
	if (out->switched_out_ns && r->reported_ns == out->switched_out_ns && r->holder != holder)
		out->flags |= SCANNED_HOLDER;
#endif
	if (exec_ns != r->exec_ns && !now->state)
		out->flags |= SCANNED_RAN;
	report_first_cpu(c, task, out, r);
	if (now->state) {
		now->exec_ns = exec_ns; /* reported with the buffer */
		now->exec_at_ns = bpf_ktime_get_ns();
		now->exec_off_ns = now->offcpu_ns + wait_so_far_ns(r, now->exec_at_ns);
		r->exec_ns = exec_ns;
	}
	if (!(out->flags & (SCANNED_RUNNABLE | SCANNED_STACK | SCANNED_RAN | SCANNED_HOLDER | SCANNED_STARTED)))
		return;
	out->exec_ns = exec_ns;
	out->start_ns = MEMBER(u64, task, START_TIME);
#ifdef LAST_ARRIVAL
	out->arrived_ns = MEMBER(u64, task, LAST_ARRIVAL);
#endif
#ifdef TASK_CPU
	/* A thread that is queued or being woken may be on another CPU than it ran on. Its state changes before its CPU. */
	out->exec_start_ns = MEMBER(u64, task, EXEC_START);
	out->cpu = MEMBER(u32, task, TASK_CPU);
	u32 state = MEMBER(u32, task, TASK_STATE);
	if (!state || state & TASK_WAKING || MEMBER(u32, task, TASK_ON_RQ))
		out->exec_start_ns = 0;
#endif
	out->state = r->switched_out_ns ? r->state : out->state; /* that at switch-out shows whether it was preempted */
	if (frozen) {
		out->state = state_of(TASK_FROZEN);
		out->flags |= SCANNED_FROZEN;
	}
	bpf_probe_read_kernel(out->comm, sizeof(out->comm), (char *)task + TASK_COMM);
	long is_full = bpf_seq_write(seq, out, sizeof(*out));
	if (s && out->flags & SCANNED_STACK && !is_full) {
		is_full = bpf_seq_write(seq, &s->stack, sizeof(s->stack));
		if (!is_full && out->flags & SCANNED_DEEP)
			is_full = bpf_seq_write(seq, s->deep_frames, sizeof(s->deep_frames));
		if (!is_full) {
			r->reported_ns = out->switched_out_ns;
			r->frozen = frozen;
		}
	}
	if (!is_full) {
		r->exec_ns = exec_ns;
		r->holder = (u64)out->holder_pid << 32 | out->holder_tid;
	}
}

/* Report how often a thread has been given a CPU. */
static __always_inline void report_runs(struct seq_file *seq, struct task_struct *task)
{
	struct scanned_runs out = {.pid = MEMBER(u32, task, TASK_TGID), .tid = MEMBER(u32, task, TASK_PID)};
	u64 host = (u64)out.pid << 32 | out.tid;

	if (MEMBER(u32, task, TASK_FLAGS) & PF_KTHREAD || !find_shown_ids(task, host, &out.pid, &out.tid))
		return;
#ifdef PCOUNT
	out.pcount = MEMBER(u64, task, PCOUNT);
#endif
	bpf_seq_write(seq, &out, sizeof(out));
}

/*
 * Return whether a scan has nothing to report of a thread: its record has not changed since the last scan. Most threads
 * of a machine just wait, and this reads few of their cache lines.
 */
static __always_inline bool is_unchanged(struct task_struct *task, u32 mode, u32 which)
{
	struct record *r = record_of(task, false);

	if (!r || is_on_cpu(task))
		return false;
	if (mode & (SCAN_BUFFER_0 | SCAN_BUFFER_1)) {
		u32 state = mode & SCAN_BUFFER_0 ? r->buffers[0].state : r->buffers[1].state;
		return !state && (!(mode & SCAN_ALONE) || MEMBER(u64, task, SUM_EXEC) == r->exec_ns);
	}
	if (mode & SCAN_PRIME || !r->tid || !r->switched_out_ns || r->reported_ns != r->switched_out_ns)
		return false;
#ifdef HAS_LOCKS
	if (holder_of(task) != r->holder)
		return false;
#endif
	u32 state = which ? r->buffers[1].state : r->buffers[0].state;
	u32 now = MEMBER(u32, task, TASK_STATE);
	return !state && !(r->state & RUNNING) && now && !(now & TASK_FROZEN) == !r->frozen &&
	       MEMBER(u64, task, SUM_EXEC) == r->exec_ns;
}

/*
 * Report a thread to user space: in the first scan of a tick its wait in progress, in the second one what it did, in
 * the third one how often it has been given a CPU.
 */
static __always_inline void report_task(struct seq_file *seq, struct task_struct *task)
{
	u32 zero = 0;
	struct config *c = config.lookup(&zero);
	u32 *mode = scan_mode.lookup(&zero);
	u32 *which = active_buffer.lookup(&zero);

	if (!c || !mode || !which)
		return;
	if (*mode & SCAN_RUNS) {
		report_runs(seq, task);
		return;
	}
	if (*mode & (SCAN_BUFFER_0 | SCAN_BUFFER_1))
		note_call_in_progress(task);
	if (is_unchanged(task, *mode, *which & 1))
		return;
	struct scanned_task out = {.pid = MEMBER(u32, task, TASK_TGID), .tid = MEMBER(u32, task, TASK_PID)};
	u64 host = (u64)out.pid << 32 | out.tid;
	bool is_shown = find_shown_ids(task, host, &out.pid, &out.tid);
	bool selected = is_shown && is_selected(c, task, false, out.pid, out.tid, MEMBER(u32, task, TASK_FLAGS));
	out.state = MEMBER(u32, task, TASK_STATE);
	out.execs = MEMBER(u32, task, TASK_EXECS);
	bool is_first = !(*mode & (SCAN_BUFFER_0 | SCAN_BUFFER_1));
	bool prime = *mode & SCAN_PRIME;
	/* Threads that were never switched out are reported, too. */
	bool make = is_first && selected && !(out.state & TASK_DEAD) &&
		    (prime || is_on_cpu(task) || is_new(task, out.state));
	struct record *r = record_of(task, make);
	if (!r)
		return;
	/*
	 * A finished wait belongs to the cgroup in which it began, one in progress to the current cgroup of its thread.
	 * A child of offtop may have begun to wait before it was known as one, see switch_in_current().
	 */
	if (is_shown && !selected && is_first && r->switched_out_ns && r->selection == c->selection) {
		if (prime || is_own(c, out.pid))
			r->switched_out_ns = 0;
		else
			selected = true;
	}
	out.tid_acquired_ns = MEMBER(u64, task, START_TIME);
	READ_AGAIN; /* otherwise clang merges both loads into one, from either pointer, which the verifier rejects */
	if (r->tid)
		out.tid_acquired_ns = r->tid_acquired_ns;
	if (!is_first && r->tid) {
		out.pid = r->pid;
		out.tid = r->tid;
	}
	if (*mode & SCAN_BUFFER_0)
		report_tick(seq, task, &out, r, c, &r->buffers[0], &r->buffers[1], selected, *mode & SCAN_ALONE);
	else if (*mode & SCAN_BUFFER_1)
		report_tick(seq, task, &out, r, c, &r->buffers[1], &r->buffers[0], selected, *mode & SCAN_ALONE);
	else if (selected)
		report_wait(seq, task, &out, r, c, prime, *which & 1);
}

#ifndef TASK_ITER_NEW
BPF_ITER(task)
{
	if (ctx->task)
		report_task(ctx->meta->seq, ctx->task);
	return 0;
}

#ifdef CHANGED
/*
 * Report the threads that are in `changed`, and remove them from it, unless the output has no room: then the kernel
 * calls this again. A tid may be of a thread that has exited, or of one with nothing to report.
 */
BPF_ITER(bpf_map_elem)
{
	u32 zero = 0, *mode = scan_mode.lookup(&zero), *key = ctx->key;

	if (!mode || !key)
		return 0;
	u32 index = *key, which = *mode & SCAN_BUFFER_0 ? 0 : 1;
	struct changed *one = changed.lookup(&index);
	struct task_struct *task = one && one->tids[which] ? task_from_pid(one->tids[which]) : 0;
	struct record *r = 0;

	if (task) {
		report_task(ctx->meta->seq, task);
		r = record_of(task, false);
		task_release(task);
	}
	if (one && !(r && (which ? r->buffers[1].state : r->buffers[0].state)))
		one->tids[which] = 0;
	return 0;
}
#endif
#else
/*
 * The task iterator is limited to its reader's pid namespace. So here it only creates records, once a scan, for all
 * threads of the machine for which report_task() would create one; then an iterator over the records calls
 * report_task().
 */
BPF_ITER(task)
{
	struct task_iter iter;
	struct task_struct *task;
	u32 zero = 0;
	struct config *c = config.lookup(&zero);
	u32 *mode = scan_mode.lookup(&zero);

	if (ctx->meta->seq_num || !c || !mode || *mode & (SCAN_BUFFER_0 | SCAN_BUFFER_1 | SCAN_RUNS))
		return 0;
	task_iter_new(&iter, 0, ALL_THREADS);
	while ((task = task_iter_next(&iter))) {
		u32 pid = 0, host_tid = MEMBER(u32, task, TASK_PID), tid = host_tid;

		if (MEMBER(u32, task, TASK_STATE) & TASK_DEAD || record_of(task, false))
			continue;
		if (!(*mode & SCAN_PRIME) && !is_on_cpu(task) && !is_new(task, MEMBER(u32, task, TASK_STATE)))
			continue;
		if (!find_ids(task, &pid, &tid) ||
		    !is_selected(c, task, false, pid, tid, MEMBER(u32, task, TASK_FLAGS)))
			continue;
		struct record *r = record_of(task, true);
		if (r)
			r->host_tid = host_tid;
	}
	task_iter_destroy(&iter);
	return 0;
}

BPF_ITER(bpf_map_elem)
{
	struct task_struct *task = ctx->value ? task_from_pid(ctx->value->host_tid) : 0;

	if (!task)
		return 0;
	report_task(ctx->meta->seq, task);
	task_release(task);
	return 0;
}
#endif
