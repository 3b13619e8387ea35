// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * What is known of each thread, and how much could not be recorded?
 *
 * Part of offcpu.c, files.c and disks.c, which include it (offtop/kernel/bpf/compile.py replaces the #include by this
 * text).
 *
 * maps
 *   record        per thread: its wait in progress, and what ended, in a double buffer
 *   lost          what could not be recorded, by enum lost
 *   added         per CPU: how many entries the tables have got that user space empties
 *
 * cost: see bpf/README.md
 *
 * -D:
 *   THREADS          map size
 *   RECORDS_IN_HASH  see offcpu.c
 */

BPF_PERCPU_ARRAY(lost, u64, LOST_KINDS);
BPF_PERCPU_ARRAY(added, u64, 1);

#ifdef RECORDS_IN_HASH
BPF_TABLE("hash", u64, struct record, record, THREADS);
BPF_ARRAY(blank_record, struct record, 1); /* never written, because it is too large for the BPF stack */
#else
BPF_TASK_STORAGE(record, struct record);
#endif

#define MEMBER(type, pointer, offset) (*(type *)((char *)(pointer) + (offset)))
#define current_task() ((struct task_struct *)bpf_get_current_task_btf())

static __always_inline void count_lost(u32 kind)
{
	u64 *n = lost.lookup(&kind);

	if (n)
		__sync_fetch_and_add(n, 1); /* a program in an interrupt may count, too */
}

/* Count new entries of the tables that user space empties, so that it can see how full they are. */
static __always_inline void count_added(u64 entries)
{
	u32 zero = 0;
	u64 *n = added.lookup(&zero);

	if (n)
		*n += entries;
}

/* Return the record of a thread. If it has none, make one if `make`, or else return NULL. */
static __always_inline struct record *record_of(struct task_struct *task, bool make)
{
#ifdef RECORDS_IN_HASH
	u64 key = (u64)task;
	struct record *r = record.lookup(&key);
	u32 zero = 0;

	if (r || !make)
		return r;
	struct record *blank = blank_record.lookup(&zero);
	if (blank)
		record.insert(&key, blank);
	r = record.lookup(&key);
#else
	struct record *r = record.task_storage_get((void *)task, 0, make ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
#endif
	if (!r && make)
		count_lost(LOST_THREADS);
	return r;
}
