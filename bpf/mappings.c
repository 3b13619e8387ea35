// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * How long do programs wait for pages of the files that they have mapped?
 *
 * Part of files.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hook
 *   faults   raw_tp page_fault_user, where the kernel has it
 *
 * map
 *   file_fault   per CPU: the last page fault of a program that began there
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * A page fault counts only if its thread sleeps in it and the address is in the mapping of a file: that is looked up at
 * its first switch-out, because hardly any fault gets there. No tracepoint marks the end of a fault. It ends at its
 * thread's last switch-in, and is counted when the thread is next switched out or begins a call. A fault is known by
 * the number of faults that the thread has finished, which the kernel counts (mm_account_fault), because a loop may
 * fault again and again at the same instruction. Its stacks are those of its last wait that reached the minimum, which
 * offcpu.c has unwound.
 *
 * cost: see bpf/README.md
 *
 * -D:
 *   MAPPING_FILE, MAPPING_*, TASK_MEMORY   from a task and an address to the mapped file
 *   MEMORY_TREE, TREE_ROOT, MAPLE_*        mappings are in a maple tree (d4af56c5c7c6, 6.1); otherwise MEMORY_TREE,
 *                                          NODE_*, MAPPING_NODE: in a red-black tree
 *   FAULTS_MAJOR, FAULTS_MINOR             offsets in task_struct
 *   MMAP_READ                              the operation as which faults count
 */

#define PF_EXITING 4 /* include/linux/sched.h */
#define NO_CALL -1   /* instead of a system call number: in an exception */
#define TREE_STEPS 40
#define MAPLE_STEPS 8
#define MAPLE_PIVOTS 16 /* at least as many as a node has */

struct fault {
	u64 start_ns;
	u64 address;
	u64 faults; /* that its thread had finished before */
	u32 tid;    /* 0: none */
	u32 unused;
};
BPF_PERCPU_ARRAY(file_fault, struct fault, 1);

static __always_inline u64 finished_faults(struct task_struct *task)
{
	return MEMBER(u64, task, FAULTS_MAJOR) + MEMBER(u64, task, FAULTS_MINOR);
}

/* Return whether a thread is in an exception, and not in a system call or about to exit. */
static __always_inline bool is_in_exception(struct task_struct *task)
{
	char *regs = (void *)bpf_task_pt_regs(task);
	s64 call = 0;

	bpf_probe_read_kernel(&call, sizeof(call), regs + REG_CALL);
	return call == NO_CALL && !(MEMBER(u32, task, TASK_FLAGS) & PF_EXITING);
}

#ifdef MAPLE_LEAF
/*
 * Return the entry of a kernel's maple tree for an index, as mtree_range_walk() finds it, or NULL. In the low bits of a
 * pointer to a node is its type. A node is replaced by another one to change it, and freed after all programs that may
 * read it have ended (RCU).
 */
static __always_inline char *find_in_tree(char *memory, u64 index)
{
	u64 pivots[MAPLE_PIVOTS];
	char *at = 0;

	bpf_probe_read_kernel(&at, sizeof(at), memory + MEMORY_TREE + TREE_ROOT);
	if (((u64)at & 3) != 2) /* xa_is_node() */
		return 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAPLE_STEPS; i++) {
		READ_AGAIN;
		u32 type = (u64)at >> 3 & 15, slot = 0;
		char *node = (char *)((u64)at & ~255ULL);
		u32 count = type == MAPLE_ARANGE ? MAPLE_ARANGE_PIVOTS : MAPLE_RANGE_PIVOTS;

		if (type != MAPLE_ARANGE && type != MAPLE_RANGE && type != MAPLE_LEAF)
			return 0;
		if (bpf_probe_read_kernel(pivots, sizeof(pivots), node + MAPLE_PIVOT))
			return 0;
		/* A pivot is the last index of its slot; 0 after the first: unused */
#pragma unroll
		for (u32 j = 0; j < MAPLE_PIVOTS; j++)
			if (slot == j && j < count && pivots[j] < index && (!j || pivots[j]))
				slot = j + 1;
		u64 first_slot = type == MAPLE_ARANGE ? MAPLE_ARANGE_SLOT : MAPLE_RANGE_SLOT;
		if (bpf_probe_read_kernel(&at, sizeof(at), node + first_slot + 8 * slot))
			return 0;
		if (type == MAPLE_LEAF)
			return at;
	}
	return 0;
}
#else
/* Return the first mapping that ends after an address, as find_vma() does, or NULL. */
static __always_inline char *find_in_tree(char *memory, u64 address)
{
	char *node = 0, *found = 0;

	bpf_probe_read_kernel(&node, sizeof(node), memory + MEMORY_TREE);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < TREE_STEPS && node; i++) {
		READ_AGAIN;
		char *mapping = node - MAPPING_NODE;
		u64 end = 0;

		bpf_probe_read_kernel(&end, sizeof(end), mapping + MAPPING_END);
		if (end > address)
			found = mapping;
		bpf_probe_read_kernel(&node, sizeof(node), node + (end > address ? NODE_LEFT : NODE_RIGHT));
	}
	return found;
}
#endif

/* Return the open file that the current process has mapped at an address, or NULL. */
static __always_inline char *mapped_file(struct task_struct *task, u64 address)
{
	char *memory = 0, *file = 0;
	u64 start = 0, end = 0;

	bpf_probe_read_kernel(&memory, sizeof(memory), (char *)task + TASK_MEMORY);
	char *mapping = memory ? find_in_tree(memory, address) : 0;
	if (!mapping)
		return 0;
	bpf_probe_read_kernel(&start, sizeof(start), mapping + MAPPING_START);
	bpf_probe_read_kernel(&end, sizeof(end), mapping + MAPPING_END);
	if (address < start || address >= end)
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), mapping + MAPPING_FILE);
	return file;
}

/* Count a page fault of the current thread that is over, if it slept. */
static __always_inline void finish_fault(struct config *c, struct task_struct *task, struct file_call *call)
{
	struct file_stack_key at = {.file = call->key};
	u64 ns = call->switched_in_ns - call->start_ns;
	u32 zero = 0, *buffer = active_buffer.lookup(&zero);
	bool is_second = buffer && *buffer & 1, is_new = false;

	if (!call->has_slept)
		return;
	at.file.cpu = bpf_get_smp_processor_id();
	struct file_totals *t = totals_of(&at.file, is_second, &is_new);
	if (!t)
		return;
	if (is_new)
		__builtin_memcpy(t->comm, call->comm, sizeof(t->comm));
	add_to_totals(t, ns, call->off_cpu_ns, 0);
	struct record *r = record_of(task, false);
	if (ns < c->min_ns || !r || r->stacked_ns <= call->start_ns)
		return;
	at.kernel = r->stacked_kernel;
	at.user = r->stacked_user;
	add_to_stack(&at, ns, 0, is_second);
}

/* Begin to count the page fault in which the current thread is switched out, if it is one of a mapped file. */
static __always_inline void begin_fault(struct config *c, struct task_struct *task, struct fault *fault, u64 now_ns,
					bool sleeps)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 pid = id >> 32, tid = id, host_tid = id;
	struct file_call call = {};
	char *file = mapped_file(task, fault->address);

	if (!file || !identify(file, &call.key.file))
		return;
#ifdef NAMESPACE
	if (!find_ids(task, &pid, &tid))
		return;
#endif
	if (!passes_filters(c, task, true, pid, tid, 0))
		return;
	call.start_ns = fault->start_ns;
	call.switched_out_ns = now_ns;
	call.faults = fault->faults + 1;
	call.has_slept = sleeps;
	call.key.pid = pid;
	call.key.operation = MMAP_READ;
	bpf_get_current_comm(call.comm, sizeof(call.comm));
	if (file_calls.update(&host_tid, &call))
		count_lost_call(FILE_LOST_CALLS);
	else
		store_path(file, &call.key.file);
}

/* page_fault_user(address, regs, error code): a program's own access, not one by a system call. */
int on_fault(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0;
	struct fault *fault = file_fault.lookup(&zero);

	if (!fault)
		return 0;
	fault->address = ctx->args[0];
	fault->faults = finished_faults(current_task());
	fault->tid = bpf_get_current_pid_tgid();
	fault->start_ns = bpf_ktime_get_ns();
	return 0;
}
