// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * How long do requests to io_uring on files take?
 *
 * Part of files.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks, where the kernel has them as they are since 5.19
 *   submission   raw_tp io_uring_submit_req (before 08760051b9d2, 6.3: io_uring_submit_sqe)
 *   completion   raw_tp io_uring_complete
 *
 * maps
 *   ring_operations   by operation of io_uring, as file_operations
 *   ring_requests     by address of struct io_kiocb: requests in progress
 *   ring_slow         by process: when one of its requests last reached the minimum
 *   ring_sampled      per CPU: when a request last got a stack although its process had no slow one
 *
 * units: ns of bpf_ktime_get_ns(); bytes
 *
 * A request to io_uring is in progress from its submission until it is completed, in whatever thread that happens. The
 * user stack of its submission is unwound then, when nobody knows yet how long it will take, by the rule by which
 * requests to disks get a stack, too (thinning.c). The file of a registered descriptor is known when the request is
 * completed.
 *
 * cost: see bpf/README.md
 *
 * -D:
 *   RING_FILE, RING_*                 offsets in struct io_kiocb
 *   RING_USERS                        map size
 *   SUBMIT_ARGUMENT, RESULT_ARGUMENT  which argument of the tracepoints is the request, and the result
 *   CQE_ARGUMENT, CQE_RESULT          instead of RESULT_ARGUMENT: which one is the completion, and an offset in it
 */

#define RING_OPERATIONS 256
#define RING_FIXED_FILE 1 /* include/uapi/linux/io_uring.h: IOSQE_FIXED_FILE: a registered descriptor */
#define RING_SKIPS_END 64 /* IOSQE_CQE_SKIP_SUCCESS */
#define PF_IO_WORKER 0x10

struct ring_request {
	u64 start_ns;
	u64 user;            /* id of the stack of its submission; 0: none */
	struct file_key key; /* that of a registered descriptor has no file yet */
	char comm[16];
};
BPF_ARRAY(ring_operations, u32, RING_OPERATIONS);
BPF_TABLE("hash", u64, struct ring_request, ring_requests, FILE_CALLS);
BPF_TABLE("lru_hash", u32, u64, ring_slow, RING_USERS);
BPF_PERCPU_ARRAY(ring_sampled, u64, 1);

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
	if (!(task_flags & PF_IO_WORKER) &&
	    may_be_slow(c, t, ring_slow.lookup(&pid), ring_sampled.lookup(&zero), new.start_ns)) {
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
	bool is_second = buffer && *buffer & 1, is_new = false;
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
