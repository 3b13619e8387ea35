// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Records the kernel stacks under which threads wait.
 *
 * hooks   raw_tp sched_switch (a thread is switched out), raw_tp sched_exit_tp (it is switched in; 6.16)
 *         iterator over tasks: stacks of waits in progress
 * maps    finished: waits by thread, stack and whether it was switched out runnable; frames: stacks by id
 * units   ns of bpf_ktime_get_ns()
 *
 * For tests only: offtop's own program is bpf/offcpu.c.
 * -D: TASK_STATE, TASK_PID, TASK_COMM, TASK_FLAGS, TASK_SP (offsets in task_struct, from BTF).
 */
#define FRAMES 64
#define WORDS 64
#define PF_KTHREAD 0x00200000

struct left { u64 ns; u32 runnable; };
struct site { u64 stack; u32 tid; u32 runnable; };
struct sum { u64 waits; u64 total_ns; };
struct frames { u64 depth; u64 at[FRAMES]; };

BPF_TASK_STORAGE(left, struct left);
BPF_HASH(finished, struct site, struct sum, 65536);
BPF_HASH(frames, u64, struct frames, 16384);
BPF_PERCPU_ARRAY(scratch, struct frames, 1);
BPF_ARRAY(lost, u64, 1);

static inline __attribute__((always_inline)) void count_lost(void)
{
	u32 zero = 0;
	u64 *n = lost.lookup(&zero);

	if (n)
		__sync_fetch_and_add(n, 1);
}

RAW_TRACEPOINT_PROBE(sched_switch)
{
	void *task = (void *)bpf_get_current_task_btf();
	struct left *l = left.task_storage_get(task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!l)
		return 0;
	l->ns = bpf_ktime_get_ns();
	l->runnable = ctx->args[0] || !*(u32 *)((char *)task + TASK_STATE);
	return 0;
}

RAW_TRACEPOINT_PROBE(sched_exit_tp)
{
	u32 zero = 0;
	struct site site = {.tid = bpf_get_current_pid_tgid()};

	if (!ctx->args[0] || !site.tid)
		return 0;
	struct left *l = left.task_storage_get((void *)bpf_get_current_task_btf(), 0, 0);
	if (!l || !l->ns)
		return 0;
	u64 off_ns = bpf_ktime_get_ns() - l->ns;
	site.runnable = l->runnable;
	l->ns = 0;
	struct frames *stack = scratch.lookup(&zero);
	if (!stack)
		return 0;
	long bytes = bpf_get_stack(ctx, stack->at, sizeof(stack->at), 0);
	if (bytes <= 0) {
		count_lost();
		return 0;
	}
	stack->depth = bytes / 8;
	site.stack = stack->depth;
	for (u32 i = 0; i < FRAMES; i++) {
		if (i >= stack->depth)
			break;
		site.stack = (site.stack ^ stack->at[i]) * 0x9E3779B97F4A7C15ULL;
		site.stack ^= site.stack >> 29;
	}
	struct sum none = {};
	struct sum *sum = finished.lookup_or_try_init(&site, &none);
	if (!sum || (!frames.lookup(&site.stack) && frames.update(&site.stack, stack))) {
		count_lost();
		return 0;
	}
	sum->waits += 1;
	sum->total_ns += off_ns;
	return 0;
}

struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; u64 session_id; u64 seq_num; };
struct bpf_iter__task { struct bpf_iter_meta *meta; struct task_struct *task; };
struct row {
	u32 tid;
	u32 state;
	u32 kernel_thread;
	u32 pad;
	char comm[16];
	s64 bytes;
	u64 at[FRAMES];
	u64 words[WORDS]; /* of the stack of a thread off CPU, for functions that the iterator leaves out */
};
BPF_PERCPU_ARRAY(rows, struct row, 1);

BPF_ITER(task)
{
	struct task_struct *task = ctx->task;
	u32 zero = 0;
	struct row *row = rows.lookup(&zero);
	u64 sp = 0;

	if (!task || !row)
		return 0;
	row->tid = *(u32 *)((char *)task + TASK_PID);
	row->state = *(u32 *)((char *)task + TASK_STATE);
	row->kernel_thread = !!(*(u32 *)((char *)task + TASK_FLAGS) & PF_KTHREAD);
	bpf_probe_read_kernel(row->comm, sizeof(row->comm), (char *)task + TASK_COMM);
	row->bytes = bpf_get_task_stack(task, row->at, sizeof(row->at), 0);
	bpf_probe_read_kernel(&sp, sizeof(sp), (char *)task + TASK_SP);
	bpf_probe_read_kernel(row->words, sizeof(row->words), (void *)sp);
	bpf_seq_write(ctx->meta->seq, row, sizeof(*row));
	return 0;
}
