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
 *
 * maps
 *   file_operations     by system call number: the operation, and which argument is the descriptor; 0: none
 *   file_calls          by tid: calls in progress
 *   file_totals_0, _1   calls that returned, by process, operation, file and CPU, in a double buffer
 *   file_stacks_0, _1   those of them that reached the minimum, by stack as well
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
 *   MAPPING_FILE                            page faults on mapped files count (mappings.c)
 *   RING_FILE                               requests to io_uring count (rings.c)
 *   NAMESPACE                               show ids of this pid namespace (namespace.h)
 */
#include "offcpu.h"
#include "namespace.h"

#define OPERATION_MASK 0xff /* of an entry of file_operations */
#define ARGUMENT_SHIFT 8    /* the argument that is the descriptor; RETURNED: the call returns it */
#define ARGUMENT_MASK 0xf
#define RETURNED 0xf
#define HAS_BYTES (1 << 16) /* the call returns a number of bytes */
#define TYPE_MASK 0170000   /* include/uapi/linux/stat.h */
#define TYPE_BLOCK 0060000
#define TYPE_DIRECTORY 0040000
#define TYPE_REGULAR 0100000
#define MAGIC_ANONYMOUS 0x09041934 /* include/uapi/linux/magic.h: eventfd, timerfd and so on */
#define NAME_BYTES 256             /* of one piece, with its NUL */
#define PATH_ROOM 1024             /* a power of two */
#define PATH_STEPS 32

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
	u32 generation; /* tells a file from a later one with the same inode number */
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
	u64 off_cpu_ns;      /* without the time since switched_out_ns */
	u64 switched_out_ns; /* 0: it runs */
	u64 switched_in_ns;
	u64 faults; /* of a page fault: 1 more than its thread had finished before; 0: it is a system call */
	u64 has_slept;
	struct file_key key; /* an open has no file yet */
	char comm[16];
	u64 descriptor; /* kept, because on arm64 the result of a call overwrites its first argument */
};

struct file_totals {
	u64 calls;
	u64 bytes;
	u64 total_ns;
	u64 off_cpu_ns;
	u64 max_ns;
	char comm[16]; /* of one of the threads */
	u64 lanes[LANES];
};

struct file_stack_key {
	struct file_key file;
	u64 kernel; /* stack ids */
	u64 user;
};

struct file_stack {
	u64 calls;
	u64 bytes;
	u64 total_ns;
	u64 max_ns;
};

struct file_path {
	u32 bytes;  /* of text: names of the file and of the directories above it, each with a NUL */
	u32 is_cut; /* the path has more directories above these */
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

static __always_inline void count_lost_call(u32 kind)
{
	u64 *n = file_lost.lookup(&kind);

	if (n)
		__sync_fetch_and_add(n, 1); /* a program in an interrupt may count, too */
}

/* Return the open file of one of the current thread's descriptors, or NULL. */
static __always_inline char *open_file(u32 descriptor)
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
static __always_inline bool identify(char *file, struct file_id *id)
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
static __always_inline void store_path(char *file, struct file_id *id)
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

static __always_inline void end_off_cpu(struct file_call *call, u64 now_ns)
{
	call->switched_in_ns = now_ns;
	call->off_cpu_ns += now_ns - call->switched_out_ns;
	call->switched_out_ns = 0;
}

/*
 * Handle a switch-in of the current thread that sched_switch has not reported: on Linux 6.18 it left out up to one
 * switch in 150. offcpu.c has most of them by another tracepoint, and else the end of this time off CPU is unknown.
 * Signed, because waker.c sets switched_in_ns to ~0 until the switch-in.
 */
static __always_inline void catch_up(struct task_struct *task, struct file_call *call)
{
	u64 out_ns = *(volatile u64 *)&call->switched_out_ns;
	struct record *r = out_ns ? record_of(task, false) : 0;

	if (out_ns)
		end_off_cpu(call, r && (s64)r->switched_in_ns > (s64)out_ns ? r->switched_in_ns : out_ns);
}

/* Return the file operation of a system call, with its flags; 0 if it is none. */
static __always_inline u32 operation_of(u32 call)
{
	u32 *operation = file_operations.lookup(&call);

	return operation ? *operation : 0;
}

static __always_inline void add_to_stack(struct file_stack_key *key, u64 ns, u64 bytes, bool is_second)
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
static __always_inline struct file_totals *totals_of(struct file_key *key, bool is_second, bool *is_new)
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

static __always_inline void add_to_totals(struct file_totals *t, u64 ns, u64 off_cpu_ns, u64 bytes)
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
 * Count a call that reached the minimum at its stack. If stacks take too much of this CPU's time, only longer calls
 * have one, and one shorter call per CPU and THIN_SAMPLE_NS: as with waits (thinning.c), but the samples are its own,
 * because there may be many more waits than calls.
 */
static __always_inline void count_at_stack(void *ctx, struct config *c, struct file_key *file, u64 start_ns, u64 ns,
					   u64 bytes, bool is_second)
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
#include "mappings.c"
#endif
#ifdef RING_FILE
#include "rings.c"
#endif

int on_enter(struct bpf_raw_tracepoint_args *ctx)
{
	u32 operation = operation_of(ctx->args[1]), zero = 0;

	if (!operation)
		return 0;
	struct task_struct *task = current_task();
	struct config *c = config.lookup(&zero);
	u64 id = bpf_get_current_pid_tgid(), mode = 0;
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

		bpf_probe_read_kernel(&call.descriptor, sizeof(call.descriptor), regs + at);
		char *file = open_file(call.descriptor);
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
	u32 number = 0; /* on arm64, there is something else in the next four bytes */

	bpf_probe_read_kernel(&number, sizeof(number), (char *)ctx->args[0] + REG_CALL);
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
	bool is_second = buffer && *buffer & 1;
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
		if (!is_open)
			file = open_file(call->descriptor);
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
		end_off_cpu(call, now_ns);
	return 0;
}
