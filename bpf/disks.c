// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * What do the block devices do, for whom, from which code, and how long does it take?
 *
 * A program of its own, which is loaded and attached only in mode disk.
 *
 * hooks
 *   made        raw_tp block_io_start (b53f3dcd9413, 6.5): in the context of the thread that submits it
 *   queued      raw_tp block_rq_insert
 *   issued      raw_tp block_rq_issue
 *   completed   raw_tp block_rq_complete, also in interrupts
 *   requeued    raw_tp block_rq_requeue
 *   merged      raw_tp block_rq_merge: into another request; block_bio_backmerge, block_bio_frontmerge: I/O that
 *               became part of a request
 *   bios        raw_tp block_bio_queue, block_bio_complete: for devices without requests
 *
 * maps
 *   disk_requests                  by address of struct request or struct bio: what is queued or in the device
 *   disk_totals_0, disk_totals_1   what is completed, by device, operation, thread and CPU, in a double buffer
 *   disk_stacks_0, disk_stacks_1   those of them that reached the minimum and have a stack, by stack as well
 *   disk_flushers                  by device: the thread that asked last to flush it
 *   disk_slow                      by device: when a request last reached the minimum
 *   disk_sampled                   per CPU: when a request last got a stack although its device was not slow
 *   disk_lost                      what did not fit, by enum disk_lost
 *   those of offcpu.c that it shares: config, active_buffer, the filters (filters.c), stacks (kernelstack.c,
 *   userstack.c), time for stacks (thinning.c)
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * A request waits in the queue from when it is made until the device gets it; if the device returns it (requeue), until
 * the device gets it for the last time. A request that only asks for a flush never reaches the device and is not
 * counted. The kernel makes the flush as a request of its own, which counts for the thread that asked last.
 *
 * Totals are kept by CPU, so that only one program at a time writes to an entry: if an interrupt hits a program, the
 * kernel does not run that program again on the same CPU until it has returned, and counts the skipped runs. Only
 * `merged` is also written by other programs, so it is added to atomically.
 *
 * The stack of a request is that of the thread that makes it, so it can only be unwound then, when nobody knows yet how
 * long the request will take. Unwinding each would cost as much as a fast request itself. So a request gets a stack if
 * its device has had one within the last second that reached the minimum, and this CPU has time left for stacks; and
 * one per CPU in THIN_SAMPLE_NS gets one in any case. `scratch` is its own, because block_io_start may run in an
 * interrupt while offcpu.c unwinds.
 *
 * -D:
 *   DISK_REQUESTS, DISK_TOTALS, DISK_STACKS, DISK_FLUSHERS    map sizes
 *   REQUEST_*, QUEUE_DISK, DISK_*, BIO_*, DEVICE_DISK    offsets in a request, and from there to its device
 *   FLAG_*                    bits of cmd_flags and bi_opf
 *   REQUEST_STARTS            the kernel has block_io_start. Otherwise a request belongs to the thread that queues it
 *   TASK_WORKER, WORKER_*     from a task to what its kernel worker does, if known
 *   TASK_FLAGS                offset in task_struct
 *   NAMESPACE                 show ids of this pid namespace (namespace.h)
 */
#include "offcpu.h"
#include "namespace.h"

#define OP_MASK 0xff /* include/linux/blk_types.h: REQ_OP_BITS */
#define OP_FLUSH 2
#define KEPT_FLAGS (OP_MASK | FLAG_SYNC | FLAG_META | FLAG_AHEAD)
#define MINOR_BITS 20
#define PF_WQ_WORKER 0x20 /* include/linux/sched.h */

enum disk_lost { DISK_LOST_REQUESTS, DISK_LOST_TOTALS, DISK_LOST_ENDS, DISK_LOST_KINDS };

BPF_ARRAY(config, struct config, 1);
BPF_ARRAY(active_buffer, u32, 1);

#include "record.c"
#include "filters.c"
#include "thinning.c"
#include "userstack.c"
#include "kernelstack.c"

struct disk_key {
	char worker[24]; /* what a kernel worker does, pid and tid are 0 then; empty for other threads */
	u32 device;
	u32 pid;
	u32 tid;
	u32 operation; /* KEPT_FLAGS of cmd_flags */
	u32 cpu;
	u32 is_selected; /* it passes the filters */
};

struct disk_request {
	u64 start_ns;
	u64 issued_ns; /* 0: it is in the queue */
	u64 bytes;     /* completed already */
	u32 left;      /* bytes of a bio */
	u32 requeues;
	u32 lane; /* see count_in() */
	u32 unused;
	u64 kernel; /* stack ids */
	u64 user;
	struct disk_key key;
	char comm[16];
};

struct disk_totals {
	u64 requests;
	u64 bytes;
	u64 queue_ns;
	u64 device_ns;
	u64 max_ns;
	u64 merged;
	u64 requeues;
	u64 errors;
	char comm[16];
	u64 lanes[LANES]; /* of queue and device time together */
	u64 queue_lanes[LANES];
	u64 device_lanes[LANES];
};

struct disk_stack_key {
	struct disk_key key;
	u64 kernel;
	u64 user;
};

struct disk_stack {
	u64 requests;
	u64 bytes;
	u64 total_ns; /* in queue and device */
	u64 max_ns;
};

struct disk_user {
	struct disk_key key;
	char comm[16];
};

BPF_TABLE("hash", u64, struct disk_request, disk_requests, DISK_REQUESTS);
BPF_TABLE("hash", struct disk_key, struct disk_totals, disk_totals_0, DISK_TOTALS);
BPF_TABLE("hash", struct disk_key, struct disk_totals, disk_totals_1, DISK_TOTALS);
BPF_TABLE("hash", struct disk_stack_key, struct disk_stack, disk_stacks_0, DISK_STACKS);
BPF_TABLE("hash", struct disk_stack_key, struct disk_stack, disk_stacks_1, DISK_STACKS);
BPF_TABLE("lru_hash", u32, struct disk_user, disk_flushers, DISK_FLUSHERS);
BPF_TABLE("lru_hash", u32, u64, disk_slow, DISK_FLUSHERS);
BPF_PERCPU_ARRAY(disk_sampled, u64, 1);
BPF_PERCPU_ARRAY(disk_lost, u64, DISK_LOST_KINDS);
BPF_ARRAY(no_disk_totals, struct disk_totals, 1); /* never written: too large for the BPF stack */

static __always_inline void count_lost_request(u32 kind)
{
	u64 *n = disk_lost.lookup(&kind);

	if (n)
		__sync_fetch_and_add(n, 1);
}

/* Return the encoded device number of a struct gendisk. */
static __always_inline u32 device_of(char *disk)
{
	u32 major = 0, minor = 0;

	bpf_probe_read_kernel(&major, sizeof(major), disk + DISK_MAJOR);
	bpf_probe_read_kernel(&minor, sizeof(minor), disk + DISK_MINOR);
	return major << MINOR_BITS | minor;
}

static __always_inline char *disk_of(char *request)
{
	char *queue = 0, *disk = 0;

	bpf_probe_read_kernel(&queue, sizeof(queue), request + REQUEST_QUEUE);
	bpf_probe_read_kernel(&disk, sizeof(disk), queue + QUEUE_DISK);
	return disk;
}

static __always_inline char *disk_of_bio(char *bio)
{
	char *device = 0, *disk = 0;

	bpf_probe_read_kernel(&device, sizeof(device), bio + BIO_DEVICE);
	bpf_probe_read_kernel(&disk, sizeof(disk), device + DEVICE_DISK);
	return disk;
}

/* Fill in the current thread, or what it does if it is a kernel worker, and whether it passes the filters. */
static __always_inline void identify_user(struct disk_key *key, char comm[16])
{
	struct task_struct *task = current_task();
	u64 id = bpf_get_current_pid_tgid();
	u32 pid = id >> 32, tid = id, zero = 0, flags = MEMBER(u32, task, TASK_FLAGS);
	struct config *c = config.lookup(&zero);
	bool has_ids = true;

#ifdef NAMESPACE
	has_ids = find_ids(task, &pid, &tid);
#endif
	key->is_selected = c && has_ids && passes_filters(c, task, true, pid, tid, flags);
	bpf_get_current_comm(comm, 16);
#ifdef TASK_WORKER
	if (flags & PF_WQ_WORKER) {
		char *at = 0;

		bpf_probe_read_kernel(&at, sizeof(at), (char *)task + TASK_WORKER);
		bpf_probe_read_kernel(&at, sizeof(at), at + WORKER_DATA);
		bpf_probe_read_kernel_str(key->worker, sizeof(key->worker), at + WORKER_TEXT);
		if (key->worker[0])
			return;
	}
#endif
	key->pid = pid;
	key->tid = tid;
}

/* Unwind the current thread, which makes a request, if that is worth it. */
static __always_inline void find_stacks(void *ctx, struct disk_request *new, u32 device)
{
	struct task_struct *task = current_task();
	struct thinning *t = thinning_of_cpu();
	u32 zero = 0, tid = bpf_get_current_pid_tgid();
	u64 now_ns = bpf_ktime_get_ns();
	struct config *c = config.lookup(&zero);

	if (!c || !t || !new->key.is_selected)
		return;
	if (!may_be_slow(c, t, disk_slow.lookup(&device), disk_sampled.lookup(&zero), now_ns))
		return;
#ifdef NAMESPACE
	tid = new->key.tid;
#endif
	new->kernel = kernel_stack(ctx);
	new->user = user_stack(ctx, AT_SWITCH, task, new->key.pid, tid, MEMBER(u32, task, TASK_FLAGS));
	charge_stacks(c, t, now_ns);
}

/*
 * Store a new request. A flush belongs to the thread that asked last, any other request to the current thread. `ctx`:
 * if not NULL, the current thread is making the request now, so that it may get a stack.
 */
static __always_inline void begin(void *ctx, char *at, char *disk, u32 flags, u64 start_ns, u64 issued_ns, u32 left)
{
	u64 address = (u64)at;
	struct disk_request new = {.start_ns = start_ns, .issued_ns = issued_ns, .left = left}, *old;
	u32 device = device_of(disk);
	struct disk_user *user = (flags & OP_MASK) == OP_FLUSH ? disk_flushers.lookup(&device) : 0;

	if (user) {
		new.key = user->key;
		__builtin_memcpy(new.comm, user->comm, sizeof(new.comm));
	} else {
		identify_user(&new.key, new.comm);
		if (ctx)
			find_stacks(ctx, &new, device);
	}
	new.key.device = device;
	new.key.operation = flags & KEPT_FLAGS;
	old = disk_requests.lookup(&address);
	if (old && old->issued_ns) /* its end was missed */
		count_lost_request(DISK_LOST_ENDS);
	if (disk_requests.update(&address, &new))
		count_lost_request(DISK_LOST_REQUESTS);
}

/* Return which buffer is being written. */
static __always_inline bool is_second_buffer(void)
{
	u32 zero = 0, *buffer = active_buffer.lookup(&zero);

	return buffer && *buffer & 1;
}

static __always_inline struct disk_totals *totals_of(struct disk_key *from, char comm[16], bool is_second)
{
	struct disk_key key = *from;
	u32 zero = 0;

	key.cpu = bpf_get_smp_processor_id();
	struct disk_totals *t = is_second ? disk_totals_1.lookup(&key) : disk_totals_0.lookup(&key);
	if (t)
		return t;
	struct disk_totals *none = no_disk_totals.lookup(&zero);
	if (none && is_second) {
		disk_totals_1.insert(&key, none);
		t = disk_totals_1.lookup(&key);
	} else if (none) {
		disk_totals_0.insert(&key, none);
		t = disk_totals_0.lookup(&key);
	}
	if (t)
		__builtin_memcpy(t->comm, comm, sizeof(t->comm));
	else
		count_lost_request(DISK_LOST_TOTALS);
	return t;
}

/*
 * Count a time in a histogram. The lane goes through the map, where the verifier does not track it. Otherwise the
 * verifier would follow each path through lane_of() separately, and three calls in a row have too many.
 */
static __always_inline void count_in(u64 *lanes, struct disk_request *r, u64 ns)
{
	*(volatile u32 *)&r->lane = lane_of(ns);
	u32 lane = *(volatile u32 *)&r->lane;

	if (lane < LANES)
		lanes[lane] += 1;
}

/* Count a request at its stack. */
static __always_inline void count_at_stack(struct disk_request *r, u64 ns, bool is_second)
{
	struct disk_stack_key key = {.key = r->key, .kernel = r->kernel, .user = r->user};
	struct disk_stack one = {.requests = 1, .bytes = r->bytes, .total_ns = ns, .max_ns = ns}, *s;

	key.key.cpu = bpf_get_smp_processor_id();
	s = is_second ? disk_stacks_1.lookup(&key) : disk_stacks_0.lookup(&key);
	if (s) {
		s->requests += 1;
		s->bytes += r->bytes;
		s->total_ns += ns;
		if (ns > s->max_ns)
			s->max_ns = ns;
	} else if (is_second ? disk_stacks_1.update(&key, &one) : disk_stacks_0.update(&key, &one)) {
		count_lost(LOST_SITES);
	}
}

static __always_inline void finish(struct disk_request *r, bool has_failed)
{
	bool is_second = is_second_buffer();
	struct disk_totals *t = totals_of(&r->key, r->comm, is_second);
	u32 zero = 0, device = r->key.device;
	struct config *c = config.lookup(&zero);
	u64 now_ns = bpf_ktime_get_ns(), queued_until_ns = r->issued_ns ? r->issued_ns : now_ns;
	u64 queue_ns = queued_until_ns - r->start_ns, device_ns = now_ns - queued_until_ns;

	if (!t)
		return;
	t->requests += 1;
	t->bytes += r->bytes;
	t->queue_ns += queue_ns;
	t->device_ns += device_ns;
	if (queue_ns + device_ns > t->max_ns)
		t->max_ns = queue_ns + device_ns;
	t->requeues += r->requeues;
	t->errors += has_failed;
	count_in(t->lanes, r, queue_ns + device_ns);
	count_in(t->queue_lanes, r, queue_ns);
	if (r->issued_ns)
		count_in(t->device_lanes, r, device_ns);
	if (!c || queue_ns + device_ns < c->min_ns)
		return;
	disk_slow.update(&device, &now_ns);
	if (r->kernel)
		count_at_stack(r, queue_ns + device_ns, is_second);
}

/* Return whether a request only asks for a flush. It never reaches the device, but the flush does. */
static __always_inline bool is_only_flush(char *request, u32 flags)
{
	u32 bytes = 0;

	bpf_probe_read_kernel(&bytes, sizeof(bytes), request + REQUEST_BYTES);
	return flags & FLAG_FLUSH && !bytes;
}

/* Return when a request was made, as the kernel has noted; `now_ns` if it has not. */
static __always_inline u64 made_ns(char *request, u64 now_ns)
{
	u64 start_ns = 0;

	bpf_probe_read_kernel(&start_ns, sizeof(start_ns), request + REQUEST_START);
	return start_ns && start_ns < now_ns ? start_ns : now_ns;
}

static __always_inline u32 flags_of(char *request)
{
	u32 flags = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), request + REQUEST_FLAGS);
	return flags;
}

#ifdef REQUEST_STARTS
int on_start(struct bpf_raw_tracepoint_args *ctx)
{
	char *request = (char *)ctx->args[0], *disk = disk_of(request);
	u32 flags = flags_of(request);

	if (disk && !is_only_flush(request, flags))
		begin(ctx, request, disk, flags, bpf_ktime_get_ns(), 0, 0);
	return 0;
}
#else
int on_insert(struct bpf_raw_tracepoint_args *ctx)
{
	char *request = (char *)ctx->args[0], *disk = disk_of(request);
	u64 address = (u64)request;
	struct disk_request *r = disk_requests.lookup(&address);
	u32 flags = flags_of(request);

	if (disk && (!r || r->issued_ns) && !is_only_flush(request, flags))
		begin(ctx, request, disk, flags, made_ns(request, bpf_ktime_get_ns()), 0, 0);
	return 0;
}
#endif

int on_issue(struct bpf_raw_tracepoint_args *ctx)
{
	char *request = (char *)ctx->args[0], *disk = disk_of(request);
	u64 address = (u64)request, now_ns = bpf_ktime_get_ns();
	struct disk_request *r = disk_requests.lookup(&address);

	if (r && !r->issued_ns) {
		r->issued_ns = now_ns;
		return 0;
	}
	u32 flags = flags_of(request);
#ifdef REQUEST_STARTS
	/* a flush has no block_io_start; any other request without one was made before this program was attached */
	if ((flags & OP_MASK) != OP_FLUSH)
		return 0;
#endif
	if (disk)
		begin(0, request, disk, flags, made_ns(request, now_ns), now_ns, 0);
	return 0;
}

int on_requeue(struct bpf_raw_tracepoint_args *ctx)
{
	u64 address = ctx->args[0];
	struct disk_request *r = disk_requests.lookup(&address);

	if (r) {
		r->issued_ns = 0;
		r->requeues += 1;
	}
	return 0;
}

/* block_rq_complete(request, error, bytes): of all or part of a request. */
int on_complete(struct bpf_raw_tracepoint_args *ctx)
{
	char *request = (char *)ctx->args[0];
	u64 address = (u64)request;
	u32 bytes = ctx->args[2], left = 0;
	bool has_failed = ctx->args[1] & 0xff; /* blk_status_t is a u8 */
	struct disk_request *r = disk_requests.lookup(&address);

	if (!r)
		return 0;
	bpf_probe_read_kernel(&left, sizeof(left), request + REQUEST_BYTES);
	if (!has_failed)
		r->bytes += bytes;
	if (bytes < left)
		return 0;
	if (r->issued_ns || has_failed) /* the driver of a disk that is gone refuses requests before they are issued */
		finish(r, has_failed);
	disk_requests.delete(&address);
	return 0;
}

int on_merge(struct bpf_raw_tracepoint_args *ctx)
{
	u64 address = ctx->args[0];
	struct disk_request *r = disk_requests.lookup(&address);

	if (!r)
		return 0;
	struct disk_totals *t = totals_of(&r->key, r->comm, is_second_buffer());
	if (t)
		__sync_fetch_and_add(&t->merged, 1);
	disk_requests.delete(&address);
	return 0;
}

static __always_inline u32 flags_of_bio(char *bio)
{
	u32 flags = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), bio + BIO_FLAGS);
	return flags;
}

static __always_inline int count_merged_bio(char *bio)
{
	struct disk_user user = {};
	char *disk = disk_of_bio(bio);

	if (!disk)
		return 0;
	identify_user(&user.key, user.comm);
	user.key.device = device_of(disk);
	user.key.operation = flags_of_bio(bio) & KEPT_FLAGS;
	struct disk_totals *t = totals_of(&user.key, user.comm, is_second_buffer());
	if (t)
		__sync_fetch_and_add(&t->merged, 1);
	return 0;
}

int on_back_merge(struct bpf_raw_tracepoint_args *ctx)
{
	return count_merged_bio((char *)ctx->args[0]);
}

int on_front_merge(struct bpf_raw_tracepoint_args *ctx)
{
	return count_merged_bio((char *)ctx->args[0]);
}

int on_bio_queue(struct bpf_raw_tracepoint_args *ctx)
{
	char *bio = (char *)ctx->args[0], *disk = disk_of_bio(bio), *operations = 0, *submit = 0;
	u32 flags = flags_of_bio(bio), bytes = 0;
	u64 now_ns = bpf_ktime_get_ns();

	if (!disk)
		return 0;
	if (flags & (FLAG_FLUSH | FLAG_FUA)) {
		struct disk_user user = {};
		u32 device = device_of(disk);

		identify_user(&user.key, user.comm);
		disk_flushers.update(&device, &user);
	}
	bpf_probe_read_kernel(&operations, sizeof(operations), disk + DISK_OPERATIONS);
	bpf_probe_read_kernel(&submit, sizeof(submit), operations + OPERATIONS_SUBMIT);
	if (!submit) /* the kernel will turn it into requests */
		return 0;
	bpf_probe_read_kernel(&bytes, sizeof(bytes), bio + BIO_BYTES);
	if (!bytes && flags & FLAG_FLUSH)
		flags = OP_FLUSH;
	begin(ctx, bio, disk, flags, now_ns, now_ns, bytes);
	return 0;
}

/* block_bio_complete(queue, bio) */
int on_bio_complete(struct bpf_raw_tracepoint_args *ctx)
{
	char *bio = (char *)ctx->args[1];
	u64 address = (u64)bio;
	u8 error = 0;
	struct disk_request *r = disk_requests.lookup(&address);

	if (!r)
		return 0;
	bpf_probe_read_kernel(&error, sizeof(error), bio + BIO_STATUS);
	if (!error)
		r->bytes = r->left;
	finish(r, error);
	disk_requests.delete(&address);
	return 0;
}
