// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * What does a thread wait on?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: none of its own. Runs at the end of a wait that reached the minimum, at wakeups (waker.c), and in the scan of
 * the waits in progress (scan.c)
 *
 * maps
 *   calls    by system call number: whether and how its arguments name what it waits on
 *   objects  objects by their hash, which a site's key refers to; used while wakers are off
 *
 * units: ports in host byte order, addresses in network byte order
 *
 * cost: see bpf/README.md
 *
 * A thread that waits is inside of its system call, so its user registers do not change. They are read when the wait is
 * over, or while it goes on; nothing is recorded when a system call begins. A socket's addresses and state are read
 * then, too, and may have changed since the wait began. The descriptors of poll and select are in the program's memory,
 * which cannot be read from another thread; but poll has a table on the kernel stack of what can wake it. A lock inside
 * the kernel takes precedence over what the system call names.
 *
 * -D:
 *   WAKES                  map size
 *   TASK_FILES, FILES_TABLE, TABLE_FILES, FILE_INODE, FILE_PRIVATE, INODE_NUMBER, INODE_SUPER, SUPER_MAGIC,
 *   SUPER_DEVICE           from a thread's descriptor to its open file
 *   SOCKET_SOCK, SOCK_*    from there to a socket's addresses
 *   SOCK_PEER_PID, PID_NUMBERS, UPID_NUMBER    to the process that created the other end of a Unix socket
 *   POLL_*, ENTRY_*, WAIT_*    in the table of a poll, to its files
 *   TASK_BLOCKER           the lock that a thread waits for, with CONFIG_DETECT_HUNG_TASK_BLOCKER
 *   *_OWNER, INODE_*, MM_*, FILE_POSITION_LOCK, PIPE_MUTEX    its holder, and what it is part of
 */

BPF_ARRAY(calls, u32, CALLS);
BPF_TABLE("hash", u64, struct object, objects, WAKES);

/* Too large for the BPF stack. */
struct waited {
	struct object object;
	u64 id;
};
BPF_PERCPU_ARRAY(waited_scratch, struct waited, 1);

/* Read a socket's protocol, addresses and state. */
static __always_inline void read_socket(struct object *o)
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

#ifdef TASK_FILES
/* Return a thread's descriptor table. */
static __always_inline char *table_of(struct task_struct *task)
{
	char *table = 0;

	bpf_probe_read_kernel(&table, sizeof(table), (char *)task + TASK_FILES);
	bpf_probe_read_kernel(&table, sizeof(table), table + FILES_TABLE);
	return table;
}

/* Return the open file of the descriptor in `argument`, or NULL. */
static __always_inline char *file_of(struct object *o, struct task_struct *task)
{
	char *at = table_of(task);

	o->argument &= 0xffffffff;
	bpf_probe_read_kernel(&at, sizeof(at), at + TABLE_FILES);
	return bpf_probe_read_kernel(&at, sizeof(at), at + 8 * o->argument) ? 0 : at;
}

static __always_inline void find_inode(struct object *o, char *inode)
{
	char *at = 0;

	bpf_probe_read_kernel(&o->inode, sizeof(u64), inode + INODE_NUMBER);
	bpf_probe_read_kernel(&at, sizeof(at), inode + INODE_SUPER);
	bpf_probe_read_kernel(&o->magic, sizeof(u64), at + SUPER_MAGIC);
	bpf_probe_read_kernel(&o->device, sizeof(u32), at + SUPER_DEVICE);
}

static __always_inline void find_file(struct object *o, char *file)
{
	char *at = file;

	if (!file)
		return;
	bpf_probe_read_kernel(&o->file, sizeof(u64), at + FILE_PRIVATE);
	bpf_probe_read_kernel(&at, sizeof(at), at + FILE_INODE);
	if (!o->file)
		o->file = (u64)at;
	find_inode(o, at);
	if (o->magic == MAGIC_SOCKETS)
		read_socket(o);
}
#endif

#define AT_SCAN SLOTS

#if defined(TASK_BLOCKER) && defined(TASK_FILES) && !defined(NAMESPACE)
#define HAS_LOCKS 1
#endif

#if defined(POLL_TASK) && defined(TASK_SP) && POLL_BYTES <= 8 * (POLL_WORDS + POLL_HEAD)
#define HAS_POLL 1
#define POLL_WAIT (POLL_ENTRIES + ENTRY_WAIT) /* of the first entry */
#define UNLISTED 0x22 /* LIST_POISON1 ^ LIST_POISON2: pointers of an entry that was removed from its list */

/*
 * A copy of a piece of a kernel stack, or of a descriptor table, and what is searched for in it. Each context has its
 * own, because an interrupt may come while another one is in use.
 */
struct polled {
	u64 words[POLL_WORDS + POLL_HEAD];
	u64 sought;
	u64 from;
};
BPF_PERCPU_ARRAY(poll_scratch, struct polled, SLOTS + 1);

/* A value about which the verifier knows nothing, because it is read from memory. */
#define UNKNOWN(x) (*(volatile u64 *)&(x))

/*
 * Return all ones if a == b, else 0. There is no branch, because the verifier would follow both sides of each branch in
 * a loop to the end.
 */
static __always_inline u64 ones_if_same(u64 a, u64 b)
{
	u64 differ = a ^ b, negative = -differ;

	asm volatile("" : "+r"(negative)); /* keeps clang from recognizing this and making a branch of it */
	return ((differ | negative) >> 63) - 1;
}

/* Return all ones if the first entry of a poll table is linked in a wait queue, else 0. */
static __always_inline u64 ones_if_queued(u64 table)
{
	u64 next = 0, previous = 0, entry = table + POLL_WAIT + WAIT_ENTRY;

	bpf_probe_read_kernel(&next, sizeof(next), (void *)entry);
	bpf_probe_read_kernel(&previous, sizeof(previous), (void *)next + 8);
	return ones_if_same(previous, entry);
}

/*
 * Return the table of poll or select, or 0 if there is none.
 *
 * It is on the kernel stack, near where the thread went to sleep, and recognized by its contents: it points to its
 * thread, and its first entry points to the table and is queued. Earlier calls leave stale tables behind, which look
 * the same if partly overwritten; so the first two matches and the last one are tried.
 */
static __always_inline u64 poll_table(struct polled *p, struct task_struct *task)
{
	p->sought = (u64)task;
	p->from = MEMBER(u64, task, TASK_SP);
	u64 own = UNKNOWN(p->sought), from = UNKNOWN(p->from), first = 0, second = 0, last = 0;

	bpf_probe_read_kernel(p->words, sizeof(p->words), (void *)from);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < POLL_WORDS; i++) {
		READ_AGAIN;
		u64 *words = p->words + i, at = from + 8 * i;
		u64 *entry = words + (POLL_WAIT + WAIT_ENTRY) / 8;
		u64 is_table = ones_if_same(words[POLL_TASK / 8], own);
		is_table &= ones_if_same(words[(POLL_WAIT + WAIT_PRIVATE) / 8], at);
		is_table &= ~ones_if_same(entry[0] ^ entry[1], UNLISTED);
		second |= at & is_table & ~ones_if_same(first, 0) & ones_if_same(second, 0);
		first |= at & is_table & ones_if_same(first, 0);
		last = (last & ~is_table) | (at & is_table);
	}
	return (first & ones_if_queued(first)) | (second & ones_if_queued(second)) | (last & ones_if_queued(last));
}

/* Return the only file that poll or select waits for. If there are several, or none, return 0 and set their number. */
static __always_inline u64 polled_file(struct object *o, struct polled *p, struct task_struct *task)
{
	u64 table = poll_table(p, task), file = 0, files = 0;

	bpf_probe_read_kernel(p->words, POLL_BYTES, (void *)table); /* all zeros if table is 0 */
	u64 entries = *(u32 *)&p->words[POLL_COUNT / 8], more = p->words[POLL_TABLE / 8];
#pragma unroll
	for (u32 i = 0; i < (POLL_BYTES - POLL_ENTRIES) / ENTRY_BYTES; i++) {
		u64 next = p->words[(POLL_ENTRIES + i * ENTRY_BYTES + ENTRY_FILE) / 8], used = -((i - entries) >> 63);
		files -= used & ~ones_if_same(next, file); /* a file may have entries for reading and writing */
		file = (file & ~used) | (next & used);
	}
	o->detail = files;
	o->argument = ~ones_if_same(more, 0) & 1; /* more than fit into the table on the stack */
	return file & ones_if_same(files, 1) & ones_if_same(more, 0);
}

/* Return the last descriptor of a file among those that fit into every table. */
static __always_inline u64 descriptor_of(struct polled *p, struct task_struct *task, u64 file)
{
	char *at = table_of(task);
	u64 found = NO_DESCRIPTOR;

	bpf_probe_read_kernel(&at, sizeof(at), at + TABLE_FILES);
	bpf_probe_read_kernel(p->words, DESCRIPTORS * sizeof(u64), at);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < DESCRIPTORS; i++) {
		READ_AGAIN;
		u64 is_match = ones_if_same(p->words[i], file);
		found = (found & ~is_match) | (i & is_match);
	}
	return found;
}

static __always_inline void find_polled_file(struct object *o, struct task_struct *task, u32 slot)
{
	struct polled *p = poll_scratch.lookup(&slot);

	if (!p)
		return;
	p->sought = polled_file(o, p, task);
	u64 file = UNKNOWN(p->sought);
	if (!file)
		return;
	o->kind = OBJECT_FILE; /* as if it were a read of that file */
	o->detail = 0;
	find_file(o, (char *)file);
	o->argument = descriptor_of(p, task, file);
}
#endif

/* Find what the arguments of a thread's system call name. */
static __always_inline void find_by_syscall(struct object *o, struct task_struct *task, u32 slot)
{
#ifdef REG_CALL
	u64 call = 0, mode = 0, sp = 0;

	if (MEMBER(u32, task, TASK_FLAGS) & PF_KTHREAD)
		return;
	char *regs = (void *)bpf_task_pt_regs(task);
	bpf_probe_read_kernel(&call, sizeof(call), regs + REG_CALL);
	bpf_probe_read_kernel(&sp, sizeof(sp), regs + REG_SP);
	if (!sp) /* no user registers, as in io_uring threads: all 0, which is a valid system call number, too */
		return;
	bpf_probe_read_kernel(&mode, sizeof(mode), regs + REG_MODE);
	if ((mode & MODE_MASK) == MODE_32_BIT) /* a 32-bit program has other system call numbers */
		return;
	u32 number = call;
	u32 *kind = calls.lookup(&number);
	if (!kind || !*kind)
		return;
	o->kind = *kind;
	bpf_probe_read_kernel(&o->argument, sizeof(u64), regs + REG_ARGUMENT_0);
	if (o->kind == OBJECT_RING) {
		bpf_probe_read_kernel(&o->detail, sizeof(u32), regs + REG_ARGUMENT_3);
		o->kind = o->detail & REGISTERED_RING ? OBJECT_NONE : OBJECT_FILE;
		o->argument &= o->kind == OBJECT_FILE ? 0xffffffff : 0; /* or else an index */
		o->detail = 0;
	}
	if (o->kind == OBJECT_POLL) {
		o->argument = 0;
#ifdef HAS_POLL
		find_polled_file(o, task, slot);
#endif
		if (o->kind == OBJECT_POLL && !o->detail)
			o->kind = OBJECT_NONE; /* sleeping only, or unknown */
	} else if (o->kind == OBJECT_FILE || o->kind == OBJECT_EPOLL) {
#ifdef TASK_FILES
		find_file(o, file_of(o, task));
#endif
	} else if (o->kind == OBJECT_FUTEX) {
		bpf_probe_read_kernel(&o->detail, sizeof(u32), regs + REG_ARGUMENT_1);
		o->detail &= FUTEX_PRIVATE;
	} else if (o->kind == OBJECT_FUTEX_WAIT) {
		bpf_probe_read_kernel(&o->detail, sizeof(u32), regs + REG_ARGUMENT_3);
		o->detail &= FUTEX_PRIVATE;
	} else if (o->kind == OBJECT_ID) {
		o->detail = o->argument;
		bpf_probe_read_kernel(&o->argument, sizeof(u64), regs + REG_ARGUMENT_1);
	}
#endif
}

#ifdef HAS_LOCKS
/* Replace the object, which is what a thread's system call names, by the lock inside the kernel that it waits for. */
static __always_inline void find_lock(struct object *o, struct task_struct *task, u64 blocker)
{
	char *lock = (char *)(blocker & ~(u64)LOCK_TYPES), *file = 0, *inode = 0, *at = 0;
	u64 descriptor = o->argument;
	u16 protects = PROTECTS_UNKNOWN;

	if (o->kind == OBJECT_FILE)
		file = file_of(o, task);
	if (file)
		bpf_probe_read_kernel(&inode, sizeof(inode), file + FILE_INODE);
	if (file && lock == file + FILE_POSITION_LOCK) {
		protects = PROTECTS_POSITION;
	} else if (o->magic == MAGIC_PIPES && lock == (char *)o->file + PIPE_MUTEX) {
		protects = PROTECTS_PIPE;
	} else {
		__builtin_memset(o, 0, sizeof(*o));
		if (blocker & LOCK_RWSEM) { /* the guess is right if the struct points back to itself */
			bpf_probe_read_kernel(&at, sizeof(at), lock - INODE_RWSEM + INODE_MAPPING);
			if (at == lock - INODE_RWSEM + INODE_DATA) {
				protects = PROTECTS_INODE;
				find_inode(o, lock - INODE_RWSEM);
				o->argument = inode == lock - INODE_RWSEM ? descriptor : NO_DESCRIPTOR;
			}
#ifdef MM_OWNER
			char *owner = 0;

			bpf_probe_read_kernel(&owner, sizeof(owner), lock - MM_LOCK + MM_OWNER);
			bpf_probe_read_kernel(&at, sizeof(at), owner + TASK_MM);
			if (at == lock - MM_LOCK) {
				protects = PROTECTS_MM;
				bpf_probe_read_kernel(&o->peer_pid, sizeof(u32), owner + TASK_TGID);
			}
#endif
		}
	}
	o->kind = OBJECT_LOCK;
	o->file = (u64)lock;
	o->detail = blocker & LOCK_RWSEM ? LOCK_RWSEM : blocker & LOCK_SEMAPHORE;
	o->state = protects;
}

/*
 * Return the holder of the lock that a thread waits for, as the host's pid << 32 | tid. 0: none, possibly several, or
 * unknown. Readers of an rwsem are not reported: the kernel records only the last one, which may have released it.
 */
static __always_inline u64 holder_of(struct task_struct *task)
{
	u64 blocker = MEMBER(u64, task, TASK_BLOCKER), owner = 0, owner_after = 0;
	u32 pid = 0, tid = 0;

	if (!blocker || (blocker & LOCK_TYPES) == LOCK_SEMAPHORE)
		return 0;
	char *at = (char *)(blocker & ~(u64)LOCK_TYPES) + (blocker & LOCK_RWSEM ? RWSEM_OWNER : MUTEX_OWNER);
	u64 no_holder = blocker & LOCK_RWSEM ? RWSEM_READERS : MUTEX_HANDED_OVER;

	bpf_probe_read_kernel(&owner, sizeof(owner), at);
	bpf_probe_read_kernel(&pid, sizeof(pid), (char *)(owner & ~(u64)OWNER_FLAGS) + TASK_TGID);
	bpf_probe_read_kernel(&tid, sizeof(tid), (char *)(owner & ~(u64)OWNER_FLAGS) + TASK_PID);
	/* If the owner is unchanged, it existed when its ids were read. */
	bpf_probe_read_kernel(&owner_after, sizeof(owner_after), at);
	return owner & no_holder || (owner ^ owner_after) & ~(u64)OWNER_FLAGS ? 0 : (u64)pid << 32 | tid;
}
#endif

/* Find what a thread waits on. `slot`: index of the scratch memory for the calling context. */
static __always_inline void find_object(struct object *o, struct task_struct *task, u32 slot)
{
	__builtin_memset(o, 0, sizeof(*o));
	find_by_syscall(o, task, slot);
#ifdef HAS_LOCKS
	u64 blocker = MEMBER(u64, task, TASK_BLOCKER);
	if (blocker)
		find_lock(o, task, blocker);
#endif
}

#define OBJECT_WORDS (sizeof(struct object) / sizeof(u64))

/* Hash an object, with the first OBJECT_WORDS keys. */
static __always_inline void hash_object(struct hash *hash, struct object *o, struct hash_keys *keys)
{
#pragma unroll
	for (u32 i = 0; i < OBJECT_WORDS; i++)
		hash_word(hash, ((u64 *)o)[i], &keys->words[i]);
}

/*
 * Return the id of what the current thread waited on, which takes the place of a wake id while wakers are off.
 *
 * Called before the stacks are unwound. The id goes through memory, where the verifier tracks no values: otherwise it
 * would follow each path through here once more for each path through the unwinding.
 */
static __always_inline u64 object_id_of_wait(u32 which, struct thread *thread, void *task)
{
	u32 zero = 0;
	struct waited *w = waited_scratch.lookup(&zero);
	u64 *sites = object_sites.lookup(&which);
	struct hash_keys *keys = hash_keys();
	struct hash hash = {};

	if (!w || !sites || !keys)
		return NO_WAKE;
	find_object(&w->object, task, AT_SWITCH);
	w->id = NO_WAKE;
	if (w->object.kind) {
		hash_object(&hash, &w->object, keys);
		w->id = hash_end(&hash, keys) | OBJECT_ID_BIT;
		if (*sites >= SITES / 2 ||
		    (!objects.lookup(&w->id) && (thread->objects >= MAX_OBJECTS || objects.update(&w->id, &w->object))))
			w->id = WAKE_NO_ROOM;
	}
	return *(volatile u64 *)&w->id;
}
