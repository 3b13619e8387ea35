// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which file operations are slow, on which file, and from which code?
 *
 * A program of its own, which is loaded and attached only in mode file.
 *
 * hooks
 *   entry     raw_tp sys_enter
 *   return    raw_tp sys_exit
 *   switches  raw_tp sched_switch: how much of a call was off CPU
 *   faults    raw_tp page_fault_user, where the kernel has it: pages of mapped files
 *   requests  raw_tp io_uring_submit_req (before 08760051b9d2, 6.3: io_uring_submit_sqe), io_uring_complete, where the
 *             kernel has them as they are since 5.19
 *
 * maps
 *   file_operations     by system call number: the operation, and which argument is the descriptor; 0: none
 *   file_calls          by tid: calls in progress
 *   file_totals_0, _1   calls that returned, by process, operation, file and CPU, in a double buffer
 *   file_stacks_0, _1   those of them that reached the minimum, by stack as well
 *   file_fault          per CPU: the last page fault of a program that began there
 *   ring_operations     by operation of io_uring, as file_operations
 *   ring_requests       by address of struct io_kiocb: requests in progress
 *   ring_slow           by process: when one of its requests last reached the minimum
 *   ring_sampled        per CPU: when a request last got a stack although its process had no slow one
 *   file_names          path of each file, in pieces, from the file up to the root
 *   file_sampled        per CPU: when a call below the raised minimum last got a stack
 *   file_lost           what did not fit, by enum file_lost
 *   those of offcpu.c that it shares: config, active_buffer, the filters (filters.c), user stacks (userstack.c),
 *   records of threads (record.c), time for stacks (thinning.c)
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * Only descriptors of regular files, directories and block devices count. An open is counted at its return, by the
 * descriptor that it returned, so one that fails is not counted.
 *
 * A page fault counts only if its thread sleeps in it and the address is in the mapping of a file: that is looked up at its
 * first switch-out, because hardly any fault gets there. No tracepoint marks the end of a fault. It ends at its thread's
 * last switch-in, and is counted when the thread is next switched out or begins a call. A fault is known by the number of
 * faults that the thread has finished, which the kernel counts (mm_account_fault), because a loop may fault again and
 * again at the same instruction. Its stacks are those of its last wait that reached the minimum, which offcpu.c has unwound.
 *
 * A request to io_uring is in progress from its submission until it is completed, in whatever thread that happens. The
 * user stack of its submission is unwound then, when nobody knows yet how long it will take, by the rule by which
 * requests to disks get a stack (disks.c). The file of a registered descriptor is known when the request is completed.
 *
 * Totals are kept by CPU, so that only one program at a time writes to an entry and nothing has to be atomic: programs
 * at system call tracepoints run with preemption disabled. For the same reason the scratch space of switches
 * (AT_SWITCH) is free there.
 *
 * The user stack of a call does not change during it, so it is unwound at the return, and only if the call reached the
 * minimum. By then its kernel stack is gone: it gets that of its last wait that reached the minimum, which offcpu.c has
 * unwound.
 *
 * -D:
 *   FILE_CALLS, FILE_TOTALS, FILE_STACKS, FILE_NAMES     map sizes
 *   TASK_FILES, FILES_TABLE, TABLE_*, FILE_INODE, INODE_*, SUPER_*    from a descriptor to its inode
 *   FILE_PATH, PATH_*, DENTRY_*, NAME_TEXT, MOUNT_*, VFS_ROOT, TASK_FS, FS_ROOT    from there to its path
 *   REG_CALL, REG_MODE, REG_ARGUMENT_*      offsets in pt_regs
 *   TASK_PID, TASK_FLAGS                    offsets in task_struct
 *   MAPPING_FILE, MAPPING_*, TASK_MEMORY    from a task and an address to the mapped file. Not set: faults do not count
 *   MEMORY_TREE, TREE_ROOT, MAPLE_*         mappings are in a maple tree (d4af56c5c7c6, 6.1); otherwise MEMORY_TREE,
 *                                           NODE_*, MAPPING_NODE: in a red-black tree
 *   FAULTS_MAJOR, FAULTS_MINOR              offsets in task_struct
 *   MMAP_READ                               the operation as which faults count
 *   RING_FILE, RING_*                       offsets in struct io_kiocb. Not set: io_uring does not count
 *   SUBMIT_ARGUMENT, RESULT_ARGUMENT        which argument of the tracepoints is the request, and the result
 *   CQE_ARGUMENT, CQE_RESULT                instead of RESULT_ARGUMENT: which one is the completion, and an offset in it
 *   NAMESPACE                               show ids of this pid namespace (namespace.h)
 */
#include "offcpu.h"
#include "namespace.h"

#define OPERATION_MASK 0xff   /* of an entry of file_operations */
#define ARGUMENT_SHIFT 8      /* the argument that is the descriptor; RETURNED: the call returns it */
#define ARGUMENT_MASK 0xf
#define RETURNED 0xf
#define HAS_BYTES (1 << 16)   /* the call returns a number of bytes */
#define TYPE_MASK 0170000     /* include/uapi/linux/stat.h */
#define TYPE_BLOCK 0060000
#define TYPE_DIRECTORY 0040000
#define TYPE_REGULAR 0100000
#define MAGIC_ANONYMOUS 0x09041934 /* include/uapi/linux/magic.h: eventfd, timerfd and so on */
#define NAME_BYTES 256        /* of one piece, with its NUL */
#define PATH_ROOM 1024        /* a power of two */
#define PATH_STEPS 32
#define PF_EXITING 4          /* include/linux/sched.h */
#define NO_CALL -1            /* instead of a system call number: in an exception */
#define RING_OPERATIONS 256
#define RING_FIXED_FILE 1     /* include/uapi/linux/io_uring.h: IOSQE_FIXED_FILE: a registered descriptor */
#define RING_SKIPS_END 64     /* IOSQE_CQE_SKIP_SUCCESS */
#define PF_IO_WORKER 0x10
#define SLOW_NS 1000000000ULL
#define TREE_STEPS 40
#define MAPLE_STEPS 8
#define MAPLE_PIVOTS 16       /* at least as many as a node has */

enum file_lost { FILE_LOST_CALLS, FILE_LOST_TOTALS, FILE_LOST_KINDS };

BPF_ARRAY(config, struct config, 1);
BPF_ARRAY(active_buffer, u32, 1);

#include "record.c"
#include "filters.c"
#include "thinning.c"
#include "userstack.c"

struct file_id {
	u64 inode;
	u32 device;
	u32 generation;    /* tells a file from a later one with the same inode number */
};

struct file_key {
	struct file_id file;
	u32 pid;
	u32 operation;
	u32 cpu;
	u32 unused;
};

struct file_call {
	u64 start_ns;
	u64 off_cpu_ns;    /* without the time since switched_out_ns */
	u64 switched_out_ns; /* 0: it runs */
	u64 switched_in_ns;
	u64 faults;        /* of a page fault: 1 more than its thread had finished before; 0: it is a system call */
	u64 has_slept;
	struct file_key key; /* an open has no file yet */
	char comm[16];
};

struct file_totals {
	u64 calls;
	u64 bytes;
	u64 total_ns;
	u64 off_cpu_ns;
	u64 max_ns;
	char comm[16];     /* of one of the threads */
	u64 lanes[LANES];
};

struct file_stack_key {
	struct file_key file;
	u64 kernel;        /* stack ids */
	u64 user;
};

struct file_stack {
	u64 calls;
	u64 bytes;
	u64 total_ns;
	u64 max_ns;
};

struct file_path {
	u32 bytes;         /* of text: names of the file and of the directories above it, each with a NUL */
	u32 is_cut;        /* the path has more directories above these */
	char text[PATH_ROOM + NAME_BYTES];
};

BPF_ARRAY(file_operations, u32, CALLS);
BPF_TABLE("hash", u32, struct file_call, file_calls, FILE_CALLS);
BPF_TABLE("hash", struct file_key, struct file_totals, file_totals_0, FILE_TOTALS);
BPF_TABLE("hash", struct file_key, struct file_totals, file_totals_1, FILE_TOTALS);
BPF_TABLE("hash", struct file_stack_key, struct file_stack, file_stacks_0, FILE_STACKS);
BPF_TABLE("hash", struct file_stack_key, struct file_stack, file_stacks_1, FILE_STACKS);
BPF_TABLE("lru_hash", struct file_id, struct file_path, file_names, FILE_NAMES);
BPF_PERCPU_ARRAY(file_sampled, u64, 1);
BPF_PERCPU_ARRAY(file_lost, u64, FILE_LOST_KINDS);
BPF_ARRAY(no_totals, struct file_totals, 1); /* never written: too large for the BPF stack, as is a path */
BPF_PERCPU_ARRAY(path_scratch, struct file_path, 1);

static inline __attribute__((always_inline)) void count_lost_call(u32 kind)
{
	u64 *n = file_lost.lookup(&kind);

	if (n)
		*n += 1;
}

/* Return the open file of one of the current thread's descriptors, or NULL. */
static inline __attribute__((always_inline)) char *open_file(u32 descriptor)
{
	char *table = 0, *at = 0;
	u32 size = 0;

	bpf_probe_read_kernel(&table, sizeof(table), (char *)current_task() + TASK_FILES);
	bpf_probe_read_kernel(&table, sizeof(table), table + FILES_TABLE);
	bpf_probe_read_kernel(&size, sizeof(size), table + TABLE_SIZE);
	if (descriptor >= size)
		return 0;
	bpf_probe_read_kernel(&at, sizeof(at), table + TABLE_FILES);
	return bpf_probe_read_kernel(&at, sizeof(at), at + 8 * (u64)descriptor) ? 0 : at;
}

/* Identify the file behind an open file. Return false if it is a socket, a pipe, a terminal or the like. */
static inline __attribute__((always_inline)) bool identify(char *file, struct file_id *id)
{
	char *inode = 0, *super = 0;
	u64 magic = 0;
	u16 mode = 0;

	bpf_probe_read_kernel(&inode, sizeof(inode), file + FILE_INODE);
	bpf_probe_read_kernel(&mode, sizeof(mode), inode + INODE_MODE);
	mode &= TYPE_MASK;
	if (mode != TYPE_REGULAR && mode != TYPE_DIRECTORY && mode != TYPE_BLOCK)
		return false;
	bpf_probe_read_kernel(&super, sizeof(super), inode + INODE_SUPER);
	bpf_probe_read_kernel(&magic, sizeof(magic), super + SUPER_MAGIC);
	if (magic == MAGIC_ANONYMOUS)
		return false;
	bpf_probe_read_kernel(&id->device, sizeof(u32), super + SUPER_DEVICE);
	bpf_probe_read_kernel(&id->inode, sizeof(u64), inode + INODE_NUMBER);
	bpf_probe_read_kernel(&id->generation, sizeof(u32), inode + INODE_GENERATION);
	return true;
}

/* Store the path of a file, as the current process sees it: up to the process's root directory. */
static inline __attribute__((always_inline)) void store_path(char *file, struct file_id *id)
{
	char *dentry = 0, *mount = 0, *top = 0, *parent = 0, *name = 0, *fs = 0, *root = 0, *root_mount = 0;
	u32 zero = 0;
	struct file_path *path = path_scratch.lookup(&zero);

	if (!path || file_names.lookup(id))
		return;
	bpf_probe_read_kernel(&dentry, sizeof(dentry), file + FILE_PATH + PATH_DENTRY);
	bpf_probe_read_kernel(&mount, sizeof(mount), file + FILE_PATH + PATH_MOUNT);
	bpf_probe_read_kernel(&fs, sizeof(fs), (char *)current_task() + TASK_FS);
	bpf_probe_read_kernel(&root, sizeof(root), fs + FS_ROOT + PATH_DENTRY);
	bpf_probe_read_kernel(&root_mount, sizeof(root_mount), fs + FS_ROOT + PATH_MOUNT);
	path->bytes = 0;
	path->is_cut = 1;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PATH_STEPS; i++) {
		READ_AGAIN;
		if (dentry == root && mount == root_mount) {
			path->is_cut = 0;
			break;
		}
		bpf_probe_read_kernel(&top, sizeof(top), mount + VFS_ROOT);
		bpf_probe_read_kernel(&parent, sizeof(parent), dentry + DENTRY_PARENT);
		if (dentry == top || dentry == parent) {
			char *above = 0, *own = mount - MOUNT_VFS;

			bpf_probe_read_kernel(&above, sizeof(above), own + MOUNT_PARENT);
			if (above == own || !above) { /* the root of all mounts, or no mount that a process can see */
				path->is_cut = 0;
				break;
			}
			bpf_probe_read_kernel(&dentry, sizeof(dentry), own + MOUNT_POINT);
			mount = above + MOUNT_VFS;
			continue;
		}
		bpf_probe_read_kernel(&name, sizeof(name), dentry + DENTRY_NAME + NAME_TEXT);
		u32 at = path->bytes;
		if (at >= PATH_ROOM)
			break;
		long read = bpf_probe_read_kernel_str(path->text + (at & (PATH_ROOM - 1)), NAME_BYTES, name);
		if (read <= 0)
			break;
		path->bytes = at + read;
		dentry = parent;
	}
	file_names.update(id, path);
}

static inline __attribute__((always_inline)) void switch_in(struct file_call *call, u64 now_ns)
{
	call->switched_in_ns = now_ns;
	call->off_cpu_ns += now_ns - call->switched_out_ns;
	call->switched_out_ns = 0;
}

/*
 * Handle a switch-in of the current thread that sched_switch has not reported: on Linux 6.18 it left out up to one switch
 * in 150. offcpu.c has most of them by another tracepoint, and else the end of this time off CPU is unknown.
 */
static inline __attribute__((always_inline)) void catch_up(struct task_struct *task, struct file_call *call)
{
	u64 out_ns = *(volatile u64 *)&call->switched_out_ns;
	struct record *r = out_ns ? record_of(task, false) : 0;

	if (out_ns)
		switch_in(call, r && r->switched_in_ns > out_ns ? r->switched_in_ns : out_ns);
}

/* Return the file operation of a system call, with its flags; 0 if it is none. */
static inline __attribute__((always_inline)) u32 operation_of(u64 call)
{
	u32 number = call;
	u32 *operation = call < CALLS ? file_operations.lookup(&number) : 0;

	return operation ? *operation : 0;
}

static inline __attribute__((always_inline)) void add_to_stack(struct file_stack_key *key, u64 ns, u64 bytes, bool is_second)
{
	struct file_stack one = {.calls = 1, .bytes = bytes, .total_ns = ns, .max_ns = ns}, *s;

	s = is_second ? file_stacks_1.lookup(key) : file_stacks_0.lookup(key);
	if (s) {
		s->calls += 1;
		s->bytes += bytes;
		s->total_ns += ns;
		if (ns > s->max_ns)
			s->max_ns = ns;
	} else if (is_second ? file_stacks_1.update(key, &one) : file_stacks_0.update(key, &one)) {
		count_lost(LOST_SITES);
	}
}

/* Return the totals of a key, or NULL if there is no room. `is_new` is set if they are new. */
static inline __attribute__((always_inline)) struct file_totals *totals_of(struct file_key *key, bool is_second, bool *is_new)
{
	struct file_totals *t = is_second ? file_totals_1.lookup(key) : file_totals_0.lookup(key);
	u32 zero = 0;

	if (t)
		return t;
	struct file_totals *none = no_totals.lookup(&zero);
	if (none && is_second) {
		file_totals_1.insert(key, none);
		t = file_totals_1.lookup(key);
	} else if (none) {
		file_totals_0.insert(key, none);
		t = file_totals_0.lookup(key);
	}
	*is_new = true;
	if (!t)
		count_lost_call(FILE_LOST_TOTALS);
	return t;
}

static inline __attribute__((always_inline)) void add_to_totals(struct file_totals *t, u64 ns, u64 off_cpu_ns, u64 bytes)
{
	t->calls += 1;
	t->bytes += bytes;
	t->total_ns += ns;
	t->off_cpu_ns += off_cpu_ns;
	if (ns > t->max_ns)
		t->max_ns = ns;
	count_in_histogram(t->lanes, lane_of(ns));
}

/*
 * Count a call that reached the minimum at its stack. If stacks take too much of this CPU's time, only longer calls have
 * one, and one shorter call per CPU and THIN_SAMPLE_NS: as with waits (thinning.c), but the samples are its own, because
 * there may be many more waits than calls.
 */
static inline __attribute__((always_inline)) void count_at_stack(void *ctx, struct config *c, struct file_key *file, u64 start_ns, u64 ns, u64 bytes, bool is_second)
{
	struct thinning *t = thinning_of_cpu();
	struct task_struct *task = current_task();
	u64 id = bpf_get_current_pid_tgid(), now_ns = bpf_ktime_get_ns();
	u32 pid = file->pid, tid = id, zero = 0;
	u64 *sampled_ns = file_sampled.lookup(&zero);
	struct file_stack_key key = {.file = *file};

	if (!t || !sampled_ns)
		return;
	end_period(c, t, now_ns);
	if (ns < raised_min_ns(c, t->level)) {
		if (elapsed_ns(*sampled_ns, now_ns) < THIN_SAMPLE_NS) {
			t->next_waits += t->level && ns >= raised_min_ns(c, t->level - 1);
			return;
		}
		*sampled_ns = now_ns;
	}
#ifdef NAMESPACE
	if (!find_ids(task, &pid, &tid))
		return;
#endif
	struct record *r = record_of(task, false);
	if (r && r->stacked_ns > start_ns)
		key.kernel = r->stacked_kernel;
	key.user = user_stack(ctx, AT_SWITCH, task, pid, tid, MEMBER(u32, task, TASK_FLAGS));
	charge_stacks(c, t, now_ns);
	add_to_stack(&key, ns, bytes, is_second);
}

#ifdef MAPPING_FILE
struct fault {
	u64 start_ns;
	u64 address;
	u64 faults;        /* that its thread had finished before */
	u32 tid;           /* 0: none */
	u32 unused;
};
BPF_PERCPU_ARRAY(file_fault, struct fault, 1);

static inline __attribute__((always_inline)) u64 finished_faults(struct task_struct *task)
{
	return MEMBER(u64, task, FAULTS_MAJOR) + MEMBER(u64, task, FAULTS_MINOR);
}

/* Return whether a thread is in an exception, and not in a system call or about to exit. */
static inline __attribute__((always_inline)) bool is_in_exception(struct task_struct *task)
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
static inline __attribute__((always_inline)) char *find_in_tree(char *memory, u64 index)
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
#pragma unroll
		for (u32 j = 0; j < MAPLE_PIVOTS; j++) /* a pivot is the last index of its slot; 0 after the first: unused */
			if (slot == j && j < count && pivots[j] < index && (!j || pivots[j]))
				slot = j + 1;
		if (bpf_probe_read_kernel(&at, sizeof(at), node + (type == MAPLE_ARANGE ? MAPLE_ARANGE_SLOT : MAPLE_RANGE_SLOT) + 8 * slot))
			return 0;
		if (type == MAPLE_LEAF)
			return at;
	}
	return 0;
}
#else
/* Return the first mapping that ends after an address, as find_vma() does, or NULL. */
static inline __attribute__((always_inline)) char *find_in_tree(char *memory, u64 address)
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
static inline __attribute__((always_inline)) char *mapped_file(struct task_struct *task, u64 address)
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
static inline __attribute__((always_inline)) void finish_fault(struct config *c, struct task_struct *task, struct file_call *call)
{
	struct file_stack_key at = {.file = call->key};
	u64 ns = call->switched_in_ns - call->start_ns;
	u32 zero = 0, *buffer = active_buffer.lookup(&zero);
	bool is_second = buffer && *buffer, is_new = false;

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
static inline __attribute__((always_inline)) void begin_fault(struct config *c, struct task_struct *task, struct fault *fault, u64 now_ns, bool sleeps)
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
#endif

#ifdef RING_FILE
struct ring_request {
	u64 start_ns;
	u64 user;          /* id of the stack of its submission; 0: none */
	struct file_key key; /* that of a registered descriptor has no file yet */
	char comm[16];
};
BPF_ARRAY(ring_operations, u32, RING_OPERATIONS);
BPF_TABLE("hash", u64, struct ring_request, ring_requests, FILE_CALLS);
BPF_TABLE("lru_hash", u32, u64, ring_slow, RING_USERS);
BPF_PERCPU_ARRAY(ring_sampled, u64, 1);

/* Return whether a request of a process gets a stack. */
static inline __attribute__((always_inline)) bool wants_stack(struct config *c, struct thinning *t, u32 pid, u64 now_ns)
{
	u32 zero = 0;
	u64 *slow_ns = ring_slow.lookup(&pid), *sampled_ns = ring_sampled.lookup(&zero);

	end_period(c, t, now_ns);
	if (!t->level && (!c->min_ns || (slow_ns && elapsed_ns(*slow_ns, now_ns) < SLOW_NS)))
		return true;
	if (!sampled_ns || elapsed_ns(*sampled_ns, now_ns) < THIN_SAMPLE_NS)
		return false;
	*sampled_ns = now_ns;
	return true;
}

/* In the thread that submits, or in the kernel thread of the ring that does it for the process. */
int on_submit(struct bpf_raw_tracepoint_args *ctx)
{
	char *request = (char *)ctx->args[SUBMIT_ARGUMENT];
	struct task_struct *task = current_task();
	struct thinning *t = thinning_of_cpu();
	u64 id = bpf_get_current_pid_tgid(), address = (u64)request;
	u32 pid = id >> 32, tid = id, zero = 0, number = 0, flags = 0, descriptor = 0;
	u32 task_flags = MEMBER(u32, task, TASK_FLAGS);
	struct config *c = config.lookup(&zero);
	struct ring_request new = {};
	u8 opcode = 0;

	bpf_probe_read_kernel(&opcode, sizeof(opcode), request + RING_OPCODE);
	number = opcode;
	u32 *operation = ring_operations.lookup(&number);
	bpf_probe_read_kernel(&flags, sizeof(flags), request + RING_FLAGS);
	if (!operation || !*operation || flags & RING_SKIPS_END || !c || !t)
		return 0;
#ifdef NAMESPACE
	if (!find_ids(task, &pid, &tid))
		return 0;
#endif
	if (!passes_filters(c, task, true, pid, tid, 0))
		return 0;
	if (!(flags & RING_FIXED_FILE)) {
		bpf_probe_read_kernel(&descriptor, sizeof(descriptor), request + RING_DESCRIPTOR);
		char *file = open_file(descriptor);
		if (!file || !identify(file, &new.key.file))
			return 0;
		store_path(file, &new.key.file);
	}
	new.key.pid = pid;
	new.key.operation = *operation & OPERATION_MASK;
	bpf_get_current_comm(new.comm, sizeof(new.comm));
	new.start_ns = bpf_ktime_get_ns();
	if (!(task_flags & PF_IO_WORKER) && wants_stack(c, t, pid, new.start_ns)) {
		new.user = user_stack(ctx, AT_SWITCH, task, pid, tid, task_flags);
		charge_stacks(c, t, new.start_ns);
	}
	if (ring_requests.lookup(&address)) /* its end was missed */
		count_lost_call(FILE_LOST_CALLS);
	if (ring_requests.update(&address, &new))
		count_lost_call(FILE_LOST_CALLS);
	return 0;
}

/* io_uring_complete(ctx, request, ...); the request is NULL for completions that do not end one. */
int on_request_end(struct bpf_raw_tracepoint_args *ctx)
{
	char *request = (char *)ctx->args[1], *file = 0;
	u64 address = (u64)request;
	struct ring_request *r = ring_requests.lookup(&address);
	u32 zero = 0, number = 0, *buffer = active_buffer.lookup(&zero);
	bool is_second = buffer && *buffer, is_new = false;
	struct config *c = config.lookup(&zero);
	u8 opcode = 0;
	s32 returned = 0;

	if (!r || !c)
		return 0;
	struct file_stack_key at = {.file = r->key, .user = r->user};
	u64 now_ns = bpf_ktime_get_ns(), ns = now_ns - r->start_ns;
#ifdef CQE_RESULT
	bpf_probe_read_kernel(&returned, sizeof(returned), (char *)ctx->args[CQE_ARGUMENT] + CQE_RESULT);
#else
	returned = ctx->args[RESULT_ARGUMENT];
#endif
	bpf_probe_read_kernel(&opcode, sizeof(opcode), request + RING_OPCODE);
	number = opcode;
	u32 *operation = ring_operations.lookup(&number);
	u64 bytes = operation && *operation & HAS_BYTES && returned > 0 ? returned : 0;
	if (!at.file.file.inode) {
		bpf_probe_read_kernel(&file, sizeof(file), request + RING_FILE);
		if (!file || !identify(file, &at.file.file)) {
			ring_requests.delete(&address);
			return 0;
		}
		store_path(file, &at.file.file);
	}
	at.file.cpu = bpf_get_smp_processor_id();
	struct file_totals *t = totals_of(&at.file, is_second, &is_new);
	if (t) {
		if (is_new)
			__builtin_memcpy(t->comm, r->comm, sizeof(t->comm));
		add_to_totals(t, ns, 0, bytes);
		if (ns >= c->min_ns) {
			ring_slow.update(&at.file.pid, &now_ns);
			if (at.user)
				add_to_stack(&at, ns, bytes, is_second);
		}
	}
	ring_requests.delete(&address);
	return 0;
}
#endif

int on_enter(struct bpf_raw_tracepoint_args *ctx)
{
	u32 operation = operation_of(ctx->args[1]), zero = 0;

	if (!operation)
		return 0;
	struct task_struct *task = current_task();
	struct config *c = config.lookup(&zero);
	u64 id = bpf_get_current_pid_tgid(), mode = 0, descriptor = 0;
	u32 pid = id >> 32, tid = id, host_tid = id;
	char *regs = (char *)ctx->args[0];
	struct file_call call = {};

#ifdef NAMESPACE
	if (!find_ids(task, &pid, &tid))
		return 0;
#endif
	if (!c || !passes_filters(c, task, true, pid, tid, 0))
		return 0;
	bpf_probe_read_kernel(&mode, sizeof(mode), regs + REG_MODE);
	if ((mode & MODE_MASK) == MODE_32_BIT) /* a 32-bit program has other system call numbers */
		return 0;
	u32 argument = operation >> ARGUMENT_SHIFT & ARGUMENT_MASK;
	if (argument != RETURNED) {
		u32 at = argument == 0 ? REG_ARGUMENT_0 : argument == 1 ? REG_ARGUMENT_1 : REG_ARGUMENT_2;

		bpf_probe_read_kernel(&descriptor, sizeof(descriptor), regs + at);
		char *file = open_file(descriptor);
		if (!file || !identify(file, &call.key.file))
			return 0;
	}
	call.key.pid = pid;
	call.key.operation = operation & OPERATION_MASK;
	bpf_get_current_comm(call.comm, sizeof(call.comm));
	call.start_ns = bpf_ktime_get_ns();
#ifdef MAPPING_FILE
	if (!file_calls.insert(&host_tid, &call))
		return 0;
	struct file_call *fault = file_calls.lookup(&host_tid);
	if (fault && fault->faults) {
		catch_up(task, fault);
		finish_fault(c, task, fault);
	}
#endif
	if (file_calls.update(&host_tid, &call))
		count_lost_call(FILE_LOST_CALLS);
	return 0;
}

int on_leave(struct bpf_raw_tracepoint_args *ctx)
{
	char *regs = (char *)ctx->args[0];
	u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), regs + REG_CALL);
	u32 operation = operation_of(number);
	if (!operation)
		return 0;
	u32 tid = bpf_get_current_pid_tgid(), zero = 0;
	struct file_call *call = file_calls.lookup(&tid);
	if (!call || call->faults)
		return 0;
	catch_up(current_task(), call);
	u64 start_ns = call->start_ns, ns = bpf_ktime_get_ns() - start_ns, off_cpu_ns = call->off_cpu_ns, bytes = 0;
	s64 returned = ctx->args[1];
	struct file_key key = call->key;
	bool is_open = (operation >> ARGUMENT_SHIFT & ARGUMENT_MASK) == RETURNED, is_new = false;
	char *file = 0;

	if (is_open) {
		file = returned >= 0 ? open_file(returned) : 0;
		if (!file || !identify(file, &key.file)) {
			file_calls.delete(&tid);
			return 0;
		}
	}
	key.cpu = bpf_get_smp_processor_id();
	u32 *buffer = active_buffer.lookup(&zero);
	bool is_second = buffer && *buffer;
	struct file_totals *t = totals_of(&key, is_second, &is_new);
	if (!t) {
		file_calls.delete(&tid);
		return 0;
	}
	if (operation & HAS_BYTES && returned > 0)
		bytes = returned;
	add_to_totals(t, ns, off_cpu_ns, bytes);
	if (is_new) {
		__builtin_memcpy(t->comm, call->comm, sizeof(t->comm));
		if (!is_open) {
			bpf_probe_read_kernel(&number, sizeof(number), regs + REG_ARGUMENT_0);
			u32 argument = operation >> ARGUMENT_SHIFT & ARGUMENT_MASK;
			if (argument)
				bpf_probe_read_kernel(&number, sizeof(number),
						      regs + (argument == 1 ? REG_ARGUMENT_1 : REG_ARGUMENT_2));
			file = open_file(number);
		}
		struct file_id now = {};
		/* another thread may have closed the descriptor meanwhile, and opened another file */
		if (file && identify(file, &now) && now.inode == key.file.inode && now.device == key.file.device)
			store_path(file, &key.file);
	}
	file_calls.delete(&tid);
	struct config *c = config.lookup(&zero);
	if (c && ns >= c->min_ns)
		count_at_stack(ctx, c, &key, start_ns, ns, bytes, is_second);
	return 0;
}

/* sched_switch(preempt, prev, next, state of prev), in the context of prev. */
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u32 out = bpf_get_current_pid_tgid(), in = 0;
	u64 now_ns = bpf_ktime_get_ns();
	struct file_call *call = file_calls.lookup(&out);
	struct task_struct *task = current_task();

	if (call)
		catch_up(task, call);
#ifdef MAPPING_FILE
	u32 zero = 0;
	struct fault *fault = file_fault.lookup(&zero);
	struct config *c = config.lookup(&zero);
	u64 faults = finished_faults(task);
#ifdef STATE_ARGUMENT
	u32 state = ctx->args[3];
#else
	u32 state = MEMBER(u32, task, TASK_STATE);
#endif
	bool sleeps = !ctx->args[0] && state;

	if (!fault || !c)
		return 0;
	if (call && call->faults) {
		if (call->faults == faults + 1 && is_in_exception(task)) {
			call->has_slept |= sleeps;
		} else {
			finish_fault(c, task, call);
			file_calls.delete(&out);
			call = 0;
		}
	}
	if (out && fault->tid == out) {
		fault->tid = 0;
		if (!call && fault->faults == faults && is_in_exception(task))
			begin_fault(c, task, fault, now_ns, sleeps);
	}
#endif
	if (call)
		call->switched_out_ns = now_ns;
	bpf_probe_read_kernel(&in, sizeof(in), (char *)ctx->args[2] + TASK_PID);
	call = file_calls.lookup(&in);
	if (call && call->switched_out_ns)
		switch_in(call, now_ns);
	return 0;
}
