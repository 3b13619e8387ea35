// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * What does a thread wait on?
 *
 * Part of offcpu.c, which includes it (the compiler's child puts this text in its place).
 *
 * hooks   none of its own: at the end of a wait that reached the minimum, in a waking (waker.c), and in the walk of
 *         the waits in progress
 * maps    calls: which system calls name what they wait on, and how. objects: what was waited on where nobody asks
 *         for wakers, by its hash, which a site's key names
 * units   ports are the machine's own numbers, addresses as packets have them
 * cost    bpf/README.md has it measured
 *
 * A thread that waits is in its system call, whose registers stand still. So what that names is read when the wait is
 * over, or goes on, and nothing is noted when a system call begins. A socket's addresses and state are read beside it:
 * they are what they were then.
 *
 * -D: WAKES (map size), TASK_FILES, FILES_TABLE, TABLE_FILES, FILE_INODE, FILE_PRIVATE, INODE_NUMBER, INODE_SUPER,
 * SUPER_MAGIC, SUPER_DEVICE (the way from a thread's descriptor to what is open there), SOCKET_SOCK and SOCK_* (the way
 * from there to its addresses), SOCK_PEER_PID, PID_NUMBERS, UPID_NUMBER (to who made the other end of a Unix socket).
 */

BPF_ARRAY(calls, u32, CALLS);
BPF_TABLE("hash", u64, struct object, objects, WAKES);

/* Larger than a program's own stack. */
struct waited {
	struct object object;
	u64 id;
};
BPF_PERCPU_ARRAY(waited_scratch, struct waited, 1);

/* A socket's protocol, addresses and state. */
static inline __attribute__((always_inline)) void find_ends(struct object *o)
{
#ifdef SOCKET_SOCK
	char *sock = 0, *peer = 0;
	u8 state = 0;

	bpf_probe_read_kernel(&sock, sizeof(sock), (char *)o->file + SOCKET_SOCK);
	bpf_probe_read_kernel(&o->family, sizeof(u16), sock + SOCK_FAMILY);
	if (o->family == FAMILY_UNIX) {
#if defined(SOCK_PEER_PID) && !defined(NAMESPACE) /* the number is the host's */
		bpf_probe_read_kernel(&peer, sizeof(peer), sock + SOCK_PEER_PID);
		if (peer)
			bpf_probe_read_kernel(&o->peer_pid, sizeof(u32), peer + PID_NUMBERS + UPID_NUMBER);
#endif
		return;
	}
	if (o->family != FAMILY_IPV4 && o->family != FAMILY_IPV6)
		return;
	bpf_probe_read_kernel(&o->protocol, sizeof(u16), sock + SOCK_PROTOCOL);
	bpf_probe_read_kernel(&state, sizeof(state), sock + SOCK_STATE);
	o->state = state;
	bpf_probe_read_kernel(&o->local_port, sizeof(u16), sock + SOCK_LOCAL_PORT);
	bpf_probe_read_kernel(&o->peer_port, sizeof(u16), sock + SOCK_PEER_PORT);
	o->peer_port = __builtin_bswap16(o->peer_port);
	if (o->family == FAMILY_IPV4) {
		bpf_probe_read_kernel(o->local, 4, sock + SOCK_LOCAL);
		bpf_probe_read_kernel(o->peer, 4, sock + SOCK_PEER);
		return;
	}
#ifdef SOCK_LOCAL_6
	bpf_probe_read_kernel(o->local, sizeof(o->local), sock + SOCK_LOCAL_6);
	bpf_probe_read_kernel(o->peer, sizeof(o->peer), sock + SOCK_PEER_6);
#endif
#endif
}

/* What a descriptor is open on. */
static inline __attribute__((always_inline)) void find_file(struct object *o, struct task_struct *task)
{
#ifdef TASK_FILES
	char *at = 0;

	o->argument &= 0xffffffff;
	bpf_probe_read_kernel(&at, sizeof(at), (char *)task + TASK_FILES);
	bpf_probe_read_kernel(&at, sizeof(at), at + FILES_TABLE);
	bpf_probe_read_kernel(&at, sizeof(at), at + TABLE_FILES);
	if (bpf_probe_read_kernel(&at, sizeof(at), at + 8 * o->argument) || !at)
		return;
	bpf_probe_read_kernel(&o->file, sizeof(u64), at + FILE_PRIVATE);
	bpf_probe_read_kernel(&at, sizeof(at), at + FILE_INODE);
	if (!o->file)
		o->file = (u64)at;
	bpf_probe_read_kernel(&o->inode, sizeof(u64), at + INODE_NUMBER);
	bpf_probe_read_kernel(&at, sizeof(at), at + INODE_SUPER);
	bpf_probe_read_kernel(&o->magic, sizeof(u64), at + SUPER_MAGIC);
	bpf_probe_read_kernel(&o->device, sizeof(u32), at + SUPER_DEVICE);
	if (o->magic == MAGIC_SOCKETS)
		find_ends(o);
#endif
}

/* What a thread waits on, as far as its system call names it. */
static inline __attribute__((always_inline)) void find_object(struct object *o, struct task_struct *task)
{
	__builtin_memset(o, 0, sizeof(*o));
#ifdef REG_CALL
	u64 call = 0, segment = 0, sp = 0;

	if (MEMBER(u32, task, TASK_FLAGS) & PF_KTHREAD)
		return;
	char *regs = (void *)bpf_task_pt_regs(task);
	bpf_probe_read_kernel(&call, sizeof(call), regs + REG_CALL);
	bpf_probe_read_kernel(&sp, sizeof(sp), regs + REG_SP);
	if (!sp) /* a thread without a program, as those of io_uring: all its registers are 0, which is a system call, too */
		return;
#ifdef REG_OTHER_5
	bpf_probe_read_kernel(&segment, sizeof(segment), regs + REG_OTHER_5);
	if ((u32)segment == COMPAT_CODE) /* whose system calls have other numbers */
		return;
#endif
	u32 number = call;
	u32 *kind = calls.lookup(&number);
	if (!kind || !*kind)
		return;
	o->kind = *kind;
	bpf_probe_read_kernel(&o->argument, sizeof(u64), regs + REG_ARGUMENT_0);
	if (o->kind == OBJECT_FILE || o->kind == OBJECT_EPOLL) {
		find_file(o, task);
	} else if (o->kind == OBJECT_FUTEX) {
		bpf_probe_read_kernel(&o->how, sizeof(u32), regs + REG_ARGUMENT_1);
		o->how &= FUTEX_PRIVATE;
	} else if (o->kind == OBJECT_FUTEX_WAIT) {
		bpf_probe_read_kernel(&o->how, sizeof(u32), regs + REG_ARGUMENT_3);
		o->how &= FUTEX_PRIVATE;
	} else if (o->kind == OBJECT_ID) {
		o->how = o->argument;
		bpf_probe_read_kernel(&o->argument, sizeof(u64), regs + REG_ARGUMENT_1);
	}
#endif
}

static inline __attribute__((always_inline)) u64 hash_of_object(struct object *o)
{
	u64 *words = (u64 *)o, a = 0, b = 0, c = 0, d = 0;

#pragma unroll
	for (u32 i = 0; i < sizeof(*o) / sizeof(u64); i += 4) {
		a = mix(a, words[i]);
		b = mix(b, words[i + 1]);
		c = mix(c, words[i + 2]);
		d = mix(d, words[i + 3]);
	}
	return mix(mix(a, b), mix(c, d));
}

/*
 * What the current thread has waited on, where nobody asks who ended that: the id of a struct object, as that of a
 * wake. It comes before the stacks, by way of memory, of which the verifier remembers nothing: else it would walk each
 * way through here once more for each way through them.
 */
static inline __attribute__((always_inline)) u64 waited_on(u32 which, struct thread *thread, void *task)
{
	u32 zero = 0;
	struct waited *w = waited_scratch.lookup(&zero);
	u64 *sites = object_sites.lookup(&which);

	if (!w || !sites)
		return NO_WAKE;
	find_object(&w->object, task);
	w->id = NO_WAKE;
	if (w->object.kind) {
		w->id = hash_of_object(&w->object) | OF_OBJECT;
		if (*sites >= SITES / 2 ||
		    (!objects.lookup(&w->id) && (thread->objects >= MOST_OBJECTS || objects.update(&w->id, &w->object))))
			w->id = WAKE_UNTOLD;
	}
	return *(volatile u64 *)&w->id;
}
