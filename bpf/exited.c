// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * What did the threads do that have exited?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: none of its own. Runs at the last switch-out of a thread, and when a thread that calls exec gets another tid
 *
 * maps
 *   exited_*       what exited threads did, in a double buffer
 *   exited_sums    per CPU: the sums of those for which exited_* had no room
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * -D: EXITS    map size
 */

BPF_TABLE("hash", struct exited_key, struct exited, exited_0, EXITS);
BPF_TABLE("hash", struct exited_key, struct exited, exited_1, EXITS);
BPF_PERCPU_ARRAY(exited_sums, struct thread, 2);
/* Too large for the BPF stack. */
BPF_PERCPU_ARRAY(exited_scratch, struct exited, 1);

/* Copy one buffer of an exiting thread to exited_*. Return false if that is full. */
static __always_inline bool save_buffer(struct exited *exited, struct exited_key *key, u32 which, struct thread *thread,
					bool is_previous)
{
	thread->switched_out_ns = 0;
	thread->is_previous = is_previous;
	__builtin_memcpy(&exited->thread, thread, sizeof(exited->thread));
	return !(which ? exited_1.update(key, exited) : exited_0.update(key, exited));
}

/* Add `from` to `to`, which is of the next tick. */
static __always_inline void add_thread(struct thread *to, struct thread *from)
{
	if (from->waits) {
		to->first_switched_out_ns = from->first_switched_out_ns;
		to->first_off_ns = from->first_off_ns;
		to->first_runqueue_ns = from->first_runqueue_ns;
		to->first_kernel = from->first_kernel;
		to->first_user = from->first_user;
		to->first_wake = from->first_wake;
		to->first_kind = from->first_kind;
	}
	if (!to->state) {
		to->state = from->state;
		to->tid_acquired_ns = from->tid_acquired_ns;
		to->exec_ns = from->exec_ns;
	}
	to->waits += from->waits;
	to->offcpu_ns += from->offcpu_ns;
	to->runqueue_ns += from->runqueue_ns;
	to->preempted_ns += from->preempted_ns;
	to->involuntary += from->involuntary;
	to->short_waits += from->short_waits;
	to->short_ns += from->short_ns;
	to->short_runqueue_ns += from->short_runqueue_ns;
	to->filtered_waits += from->filtered_waits;
	to->filtered_ns += from->filtered_ns;
	to->filtered_runqueue_ns += from->filtered_runqueue_ns;
	to->lost_waits += from->lost_waits;
	to->lost_ns += from->lost_ns;
	to->lost_runqueue_ns += from->lost_runqueue_ns;
	if (from->max_ns > to->max_ns)
		to->max_ns = from->max_ns;
#pragma unroll
	for (int lane = 0; lane < LANES; lane++)
		to->histogram[lane] += from->histogram[lane];
}

/*
 * Save the buffers of an exiting thread. No scan will read its idle buffer any more, so both go to the active exited_*.
 * The key of the idle one, which is of the previous tick, has the lower time, to keep them in order. If there is room
 * for one entry only, it gets the sum of both: one buffer alone would be paired with the sites of both. If there is no
 * room at all, the sum goes to the CPU's exited_sums, which keeps the time but not the thread.
 *
 * A scan may be at the idle buffer at this moment, and have reported it without having cleared it. User space discards
 * the second copy (not_scanned() in offtop/kernel/accounting/exit_records.py).
 */
static __always_inline void save_exiting(struct task_struct *task, struct record *r, u32 which)
{
	u32 zero = 0;
	struct exited *exited = exited_scratch.lookup(&zero);
	struct exited_key key = {.at_ns = bpf_ktime_get_ns(), .pid = r->pid, .tid = r->tid};
	struct thread *previous = which ? &r->buffers[0] : &r->buffers[1],
		      *last = which ? &r->buffers[1] : &r->buffers[0];
	bool has_previous = previous->state;

	if (!exited)
		return;
	bpf_probe_read_kernel(exited->comm, sizeof(exited->comm), (char *)task + TASK_COMM);
	exited->start_ns = MEMBER(u64, task, START_TIME);
	count_added(2);
	bool previous_is_kept = has_previous && save_buffer(exited, &key, which, previous, true);
	key.at_ns += 1;
	bool is_kept =
		(!has_previous || previous_is_kept) && (!last->state || save_buffer(exited, &key, which, last, false));
	if (!is_kept) {
		key.at_ns -= 1;
		if (previous_is_kept) /* user space may have removed it meanwhile */
			has_previous = !(which ? exited_1.delete(&key) : exited_0.delete(&key));
		if (has_previous)
			add_thread(last, previous);
		key.at_ns += 1;
		is_kept = has_previous && save_buffer(exited, &key, which, last, false);
	}
	if (!is_kept) {
		struct thread *rest = exited_sums.lookup(&which);

		count_lost(LOST_THREADS);
		if (rest)
			add_thread(rest, last);
	}
	if (previous->state)
		__builtin_memset(previous, 0, sizeof(*previous));
	if (last->state)
		__builtin_memset(last, 0, sizeof(*last));
}
