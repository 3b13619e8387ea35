// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which threads wait now, since when, where and on what; and what did each thread do since the last tick?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: none in the scheduler. An iterator over tasks, read by user space twice a tick; within a pid namespace also
 * one over records
 *
 * maps: walk_mode: which of the two scans it is. The idle buffers of records are emptied
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * The first scan of a tick reports the waits in progress, before the buffers are swapped; if it would cost too much it
 * is left out now and then. The second scan reports what ended, from the buffer that is no longer written.
 */

struct seq_file;
struct bpf_map;
struct bpf_iter_meta { struct seq_file *seq; u64 session_id; u64 seq_num; };
struct bpf_iter__task { struct bpf_iter_meta *meta; struct task_struct *task; };
struct bpf_iter__bpf_map_elem { struct bpf_iter_meta *meta; struct bpf_map *map; u64 *key; struct record *value; };
BPF_PERCPU_ARRAY(walk_scratch, struct walked_stack, 1);

/*
 * Return how long a thread has run in total. The kernel updates that at its own ticks only, so for a thread on a CPU
 * the time since is added, if the offset between the clocks is known: exec_start is on the scheduler's clock, which
 * leaves out time taken by interrupts and the hypervisor.
 */
static inline __attribute__((always_inline)) u64 ran_ns(struct task_struct *task, u64 *at_ns)
{
	u64 exec_ns = MEMBER(u64, task, SUM_EXEC);
	u32 zero = 0;
	u64 *offset_ns = apart.lookup(&zero);

	*at_ns = is_on_cpu(task) ? bpf_ktime_get_ns() : 0;
	if (!offset_ns || !*offset_ns || !*at_ns)
		return exec_ns;
	u64 since_ns = *at_ns - *offset_ns - MEMBER(u64, task, EXEC_START);
	return since_ns < LATEST_TICK_NS ? exec_ns + since_ns : exec_ns;
}

/* Return how long the wait in progress has lasted by then. */
static inline __attribute__((always_inline)) u64 so_far_ns(struct record *r, u64 now_ns)
{
	u64 left_ns = r->left_ns;

	return left_ns && left_ns < now_ns ? now_ns - left_ns : 0;
}

/* Return whether a thread is queued for its first CPU. */
static inline __attribute__((always_inline)) bool is_new(struct task_struct *task, u32 state)
{
	return !state && !is_on_cpu(task) && !turns_of(task);
}

/* Return when a new thread was queued. Until it gets a CPU, run_delay is the time it was queued on other CPUs. */
static inline __attribute__((always_inline)) u64 queued_since(struct task_struct *task)
{
	u64 start_ns = MEMBER(u64, task, START_TIME);
#if defined(LAST_QUEUED) && defined(RUN_DELAY)
	u32 zero = 0;
	u64 *offset_ns = apart.lookup(&zero), last_ns = MEMBER(u64, task, LAST_QUEUED);
	if (offset_ns && *offset_ns && last_ns) {
		u64 queued_ns = last_ns + *offset_ns - MEMBER(u64, task, RUN_DELAY);
		if (queued_ns > start_ns)
			return queued_ns;
	}
#endif
	return start_ns;
}

/* Report that a thread is on its first CPU, and its wait for that, which begin() will count at its switch-out. */
static inline __attribute__((always_inline)) void tell_first(struct config *c, struct task_struct *task, struct walked *walked, struct record *r)
{
	u64 left_ns = r->left_ns;

	if (r->tid || !is_on_cpu(task))
		return;
	walked->first_ns = first_wait_ns(c, task, &left_ns);
	if (!walked->first_ns)
		return;
	walked->left_ns = left_ns;
	walked->flags |= WALKED_STARTED;
}

/*
 * Report what a thread did, from the buffer that is no longer written, and empty it. `alone`: there was no scan of the
 * waits before, so the run time is reported here.
 */
static inline __attribute__((always_inline)) void give_half(struct seq_file *seq, struct task_struct *task, struct walked *walked, struct record *r, struct config *c, struct thread *idle, struct thread *now, bool alone)
{
	walked->start_ns = MEMBER(u64, task, START_TIME);
	if (alone) {
		u64 exec_ns = ran_ns(task, &walked->exec_at_ns);
		if (idle->state) {
			idle->exec_ns = exec_ns;
			idle->exec_at_ns = bpf_ktime_get_ns();
			idle->exec_off_ns = idle->offcpu_ns + now->offcpu_ns + so_far_ns(r, idle->exec_at_ns);
		} else if (exec_ns != r->exec_ns) {
			walked->exec_ns = exec_ns;
			walked->flags = WALKED_RAN;
			if (now->state) /* it was also off CPU since the buffers were swapped */
				walked->exec_at_ns = 0;
			tell_first(c, task, walked, r);
		}
		r->exec_ns = exec_ns;
	}
	if (!idle->state && !walked->flags)
		return;
	bpf_probe_read_kernel(walked->comm, sizeof(walked->comm), (char *)task + TASK_COMM);
	if (walked->flags) {
		bpf_seq_write(seq, walked, sizeof(*walked));
		return;
	}
	walked->flags = WALKED_THREAD;
	/* What does not fit into this read() is repeated in the next one: empty nothing before it is out. */
	if (!bpf_seq_write(seq, walked, sizeof(*walked)) && !bpf_seq_write(seq, idle, sizeof(*idle)))
		__builtin_memset(idle, 0, sizeof(*idle));
}

/* Read the kernel stack of an off-CPU thread, its system call, what it waits on, and its user registers. */
static inline __attribute__((always_inline)) void take_stack(struct task_struct *task, struct walked_stack *s)
{
	find_object(&s->object, task, AT_WALK);
	long bytes = bpf_get_task_stack(task, s->frames, sizeof(s->frames), 0);

	s->depth = bytes > 0 ? (u32)bytes / 8 : 0;
	s->words[0] = 0;
#ifdef TASK_SP
	bpf_probe_read_kernel(s->words, sizeof(s->words), (void *)MEMBER(u64, task, TASK_SP));
#endif
	s->turns = 0;
	s->call = -1;
	s->ip = s->sp = s->bp = s->mode = s->thread = 0;
	__builtin_memset(s->others, 0, sizeof(s->others));
#ifdef TURNS
	s->turns = MEMBER(u64, task, TURNS);
#endif
#ifdef REG_CALL
	if (MEMBER(u32, task, TASK_FLAGS) & PF_KTHREAD)
		return;
#ifdef PYTHON_IS_TOLD
	s->thread = python_id(task);
#endif
	void *regs = (void *)bpf_task_pt_regs(task);
	bpf_probe_read_kernel(&s->call, sizeof(s->call), (char *)regs + REG_CALL);
	bpf_probe_read_kernel(&s->arguments[0], sizeof(u64), (char *)regs + REG_ARGUMENT_0);
	bpf_probe_read_kernel(&s->arguments[1], sizeof(u64), (char *)regs + REG_ARGUMENT_1);
	bpf_probe_read_kernel(&s->arguments[2], sizeof(u64), (char *)regs + REG_ARGUMENT_2);
	bpf_probe_read_kernel(&s->arguments[3], sizeof(u64), (char *)regs + REG_ARGUMENT_3);
	bpf_probe_read_kernel(&s->arguments[4], sizeof(u64), (char *)regs + REG_ARGUMENT_4);
	bpf_probe_read_kernel(&s->arguments[5], sizeof(u64), (char *)regs + REG_ARGUMENT_5);
	bpf_probe_read_kernel(&s->ip, sizeof(u64), (char *)regs + REG_IP);
	bpf_probe_read_kernel(&s->sp, sizeof(u64), (char *)regs + REG_SP);
	bpf_probe_read_kernel(&s->bp, sizeof(u64), (char *)regs + REG_BP);
	bpf_probe_read_kernel(&s->mode, sizeof(u64), (char *)regs + REG_MODE);
	bpf_probe_read_kernel(&s->others[0], sizeof(u64), (char *)regs + REG_OTHER_0);
	bpf_probe_read_kernel(&s->others[1], sizeof(u64), (char *)regs + REG_OTHER_1);
	bpf_probe_read_kernel(&s->others[2], sizeof(u64), (char *)regs + REG_OTHER_2);
	bpf_probe_read_kernel(&s->others[3], sizeof(u64), (char *)regs + REG_OTHER_3);
	bpf_probe_read_kernel(&s->others[4], sizeof(u64), (char *)regs + REG_OTHER_4);
#ifdef REG_OTHER_5
	bpf_probe_read_kernel(&s->others[5], sizeof(u64), (char *)regs + REG_OTHER_5);
	bpf_probe_read_kernel(&s->others[6], sizeof(u64), (char *)regs + REG_OTHER_6);
	bpf_probe_read_kernel(&s->others[7], sizeof(u64), (char *)regs + REG_OTHER_7);
	bpf_probe_read_kernel(&s->others[8], sizeof(u64), (char *)regs + REG_OTHER_8);
	bpf_probe_read_kernel(&s->others[9], sizeof(u64), (char *)regs + REG_OTHER_9);
	bpf_probe_read_kernel(&s->others[10], sizeof(u64), (char *)regs + REG_OTHER_10);
#endif
#endif
}

/*
 * Fill in the wait in progress of an off-CPU thread: whether it is runnable, and, once the wait has reached the
 * minimum, its kernel stack, which is reported only once. With `prime`, a thread without a known wait is taken as
 * switched out now, and every stack is reported. The thread may start to run at any time: the data is valid for the
 * wait that began at left_ns only. Return whether `s` is to be reported.
 */
static inline __attribute__((always_inline)) bool take_wait(struct task_struct *task, struct walked *walked, struct record *r, struct walked_stack *s, struct config *c, bool prime)
{
	u64 now_ns = bpf_ktime_get_ns();

	if (is_on_cpu(task) || walked->state & (TASK_DEAD | TASK_NEW))
		return false;
	if (!r->tid && is_new(task, walked->state)) {
		if (!r->left_ns) {
			r->older = MEMBER(u64, task, START_TIME) <= c->since_ns;
			r->state = RUNNING | TASK_NEW;
			r->asked = c->asked;
			r->left_ns = r->older ? now_ns : queued_since(task);
			if (turns_of(task)) { /* it got its first CPU meanwhile */
				r->left_ns = 0;
				return false;
			}
		}
	} else if (!r->tid && r->left_ns) {
		/*
		 * It was switched out while it was not selected; or it is just getting its first CPU, and begin() needs
		 * left_ns.
		 */
		if (walked->state || turns_of(task) != 1)
			r->left_ns = 0;
		return false;
	} else if (prime && !r->left_ns) {
		if (r->tid != walked->tid) /* it called exec, as in leave(); or it started before it was watched */
			give_id(r, walked->pid, walked->tid, r->tid ? now_ns : MEMBER(u64, task, START_TIME));
		r->state = state_of(walked->state);
#ifdef WAKING
		r->run_delay_ns = 0;
#else
		r->run_delay_ns = MEMBER(u64, task, RUN_DELAY);
#endif
		r->kernel = NO_STACK;
		r->user = NO_STACK;
		r->wake = WAKE_UNSEEN & c->wakes;
		r->older = 1;
		r->asked = c->asked;
		r->left_ns = now_ns;
		if (is_on_cpu(task)) { /* it was switched in meanwhile, unseen */
			r->left_ns = 0;
			return false;
		}
	}
	u64 left_ns = r->left_ns;
	if (!left_ns)
		return false;
	walked->left_ns = left_ns;
	walked->flags |= r->older ? WALKED_OLDER : 0;
	if (!walked->state || r->state & RUNNING) {
		walked->flags |= WALKED_RUNNABLE;
#ifdef LAST_QUEUED
		if (!(r->state & RUNNING))
			walked->queued_ns = MEMBER(u64, task, LAST_QUEUED);
#endif
	}
	if (!s || !(prime || (r->walked_ns != left_ns && now_ns - left_ns >= c->min_ns)))
		return false;
	take_stack(task, s);
	return r->left_ns == left_ns;
}

/* Report a thread in the first scan of a tick: its wait in progress, or that it ran and did nothing else. */
static inline __attribute__((always_inline)) void give_wait(struct seq_file *seq, struct task_struct *task, struct walked *walked, struct record *r, struct config *c, bool prime, u32 which)
{
	u32 zero = 0;
	struct walked_stack *s = walk_scratch.lookup(&zero);
	u64 exec_ns = ran_ns(task, &walked->exec_at_ns);
	struct thread *now = which ? &r->half[1] : &r->half[0];

	if (take_wait(task, walked, r, s, c, prime))
		walked->flags |= WALKED_STACK;
#ifdef LOCK_IS_TOLD
	u64 holder = walked->left_ns ? holder_of(task) : 0;
	walked->holder_pid = holder >> 32;
	walked->holder_tid = holder;
	if (walked->left_ns && r->walked_ns == walked->left_ns && r->holder != holder)
		walked->flags |= WALKED_HOLDER;
#endif
	if (exec_ns != r->exec_ns && !now->state)
		walked->flags |= WALKED_RAN;
	tell_first(c, task, walked, r);
	if (now->state) {
		now->exec_ns = exec_ns; /* reported with the buffer */
		now->exec_at_ns = bpf_ktime_get_ns();
		now->exec_off_ns = now->offcpu_ns + so_far_ns(r, now->exec_at_ns);
		r->exec_ns = exec_ns;
	}
	if (!(walked->flags & (WALKED_RUNNABLE | WALKED_STACK | WALKED_RAN | WALKED_HOLDER | WALKED_STARTED)))
		return;
	walked->exec_ns = exec_ns;
	walked->start_ns = MEMBER(u64, task, START_TIME);
#ifdef LAST_ARRIVAL
	walked->arrived_ns = MEMBER(u64, task, LAST_ARRIVAL);
#endif
	walked->state = r->left_ns ? r->state : walked->state; /* at switch-out: tells whether it was preempted */
	bpf_probe_read_kernel(walked->comm, sizeof(walked->comm), (char *)task + TASK_COMM);
	long full = bpf_seq_write(seq, walked, sizeof(*walked));
	if (s && walked->flags & WALKED_STACK && !full) {
		full = bpf_seq_write(seq, s, sizeof(*s));
		if (!full)
			r->walked_ns = walked->left_ns;
	}
	if (!full) {
		r->exec_ns = exec_ns;
		r->holder = (u64)walked->holder_pid << 32 | walked->holder_tid;
	}
}

/*
 * Report a thread to user space, twice a tick: its wait in progress before the buffers are swapped; what it did after.
 */
static inline __attribute__((always_inline)) void give(struct seq_file *seq, struct task_struct *task)
{
	u32 zero = 0;
	struct config *c = config.lookup(&zero);
	u32 *mode = walk_mode.lookup(&zero);
	u32 *which = half.lookup(&zero);

	if (!c || !mode || !which)
		return;
	if (*mode & (WALK_HALF_0 | WALK_HALF_1))
		tell_call(task);
	struct walked walked = {.pid = MEMBER(u32, task, TASK_TGID), .tid = MEMBER(u32, task, TASK_PID)};
	u64 host = (u64)walked.pid << 32 | walked.tid;
	bool is_shown = show(task, host, &walked.pid, &walked.tid);
	bool is_wanted = is_shown && wanted(c, task, false, walked.pid, walked.tid, MEMBER(u32, task, TASK_FLAGS));
	walked.state = MEMBER(u32, task, TASK_STATE);
	walked.execs = MEMBER(u32, task, TASK_EXECS);
	bool is_first = !(*mode & (WALK_HALF_0 | WALK_HALF_1));
	bool prime = *mode & WALK_PRIME;
	/* Threads that were never switched out are reported, too. */
	bool make = is_first && is_wanted && !(walked.state & TASK_DEAD) && (prime || is_on_cpu(task) || is_new(task, walked.state));
	struct record *r = record_of(task, make);
	if (!r)
		return;
	/*
	 * A wait belongs to the cgroup in which it began; one that is still in progress, to its thread's current one.
	 */
	if (is_shown && !is_wanted && is_first && r->left_ns && r->asked == c->asked) {
		if (prime)
			r->left_ns = 0;
		else
			is_wanted = true;
	}
	walked.born_ns = MEMBER(u64, task, START_TIME);
	READ_AGAIN; /* otherwise clang merges both loads into one, from either pointer, which the verifier rejects */
	if (r->tid)
		walked.born_ns = r->born_ns;
	if (!is_first && r->tid) {
		walked.pid = r->pid;
		walked.tid = r->tid;
	}
	if (*mode & WALK_HALF_0)
		give_half(seq, task, &walked, r, c, &r->half[0], &r->half[1], *mode & WALK_ALONE);
	else if (*mode & WALK_HALF_1)
		give_half(seq, task, &walked, r, c, &r->half[1], &r->half[0], *mode & WALK_ALONE);
	else if (is_wanted)
		give_wait(seq, task, &walked, r, c, prime, *which & 1);
}

#ifndef TASK_FROM_PID
BPF_ITER(task)
{
	if (ctx->task)
		give(ctx->meta->seq, ctx->task);
	return 0;
}
#else
/*
 * The task iterator is limited to its reader's pid namespace. So here it only makes records, once a scan, for all
 * threads of the machine for which give() would make one; then an iterator over the records calls give().
 */
BPF_ITER(task)
{
	struct every_task every;
	struct task_struct *task;
	u32 zero = 0;
	struct config *c = config.lookup(&zero);
	u32 *mode = walk_mode.lookup(&zero);

	if (ctx->meta->seq_num || !c || !mode || *mode & (WALK_HALF_0 | WALK_HALF_1))
		return 0;
	task_iter_new(&every, 0, ALL_THREADS);
	while ((task = task_iter_next(&every))) {
		u32 pid = 0, host_tid = MEMBER(u32, task, TASK_PID), tid = host_tid;

		if (MEMBER(u32, task, TASK_STATE) & TASK_DEAD || record_of(task, false))
			continue;
		if (!(*mode & WALK_PRIME) && !is_on_cpu(task) && !is_new(task, MEMBER(u32, task, TASK_STATE)))
			continue;
		if (!find_ids(task, &pid, &tid) || !wanted(c, task, false, pid, tid, MEMBER(u32, task, TASK_FLAGS)))
			continue;
		struct record *r = record_of(task, true);
		if (r)
			r->host_tid = host_tid;
	}
	task_iter_destroy(&every);
	return 0;
}

BPF_ITER(bpf_map_elem)
{
	struct task_struct *task = ctx->value ? task_from_pid(ctx->value->host_tid) : 0;

	if (!task)
		return 0;
	give(ctx->meta->seq, task);
	task_release(task);
	return 0;
}
#endif
