// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Through which code of its own program did a thread get to where it waits?
 *
 * Part of offcpu.c, which includes it: only the hooks below, which keep `spaces` and `python_processes` up to date, are
 * attached by this file. offtop/kernel/bpf/compile.py replaces the #include by this text, because bcc rewrites map
 * calls in the main file only.
 *
 * hooks: raw_tp sched_process_fork (a child has its parent's code), sched_process_exec (the code is replaced)
 *
 * maps
 *   rules             how to step from an address to its caller, as .eh_frame describes it. User space reads that
 *                     from the binary, for addresses that were encountered
 *   spaces            id of a process's address space, to which rules belong. Processes with the same binaries at the
 *                     same addresses share one
 *   copies            ring buffer of unwinds that met an address without a rule, each with a piece of the stack: user
 *                     space continues from there, and adds the rules
 *   copies_left       how many more copies may be made
 *   user_stacks       frames by stack id
 *   python_processes  where CPython keeps its threads, in processes that run it; filled by user space
 *   python_threads    where CPython keeps one thread
 *
 * units: addresses of the process; bytes
 *
 * cost: see bpf/README.md
 *
 * Two waits have the same stack only if all addresses match: no heuristics merge similar stacks. At worst a rule is out
 * of date, if a library was unloaded and another one was mapped there; user space checks every 10 s.
 *
 * Without UNWIND_KB, stacks are only walked by the kernel, along frame pointers.
 *
 * -D:
 *   STACKS, RULES, SPACES, PYTHON_PROCESSES, PYTHON_THREADS    map sizes
 *   COPIES          ring buffer size in pages
 *   CPUS            number of possible CPUs
 *   UNWIND_KB       how much of a stack is copied
 *   USER_STACKS     0: no user stacks
 *   REGISTERS       words of pt_regs in a copy
 *   REG_IP, REG_SP, REG_BP, REG_LINK    offsets in pt_regs; the last on arm64 only
 *   CODE_ADDRESSES  arm64: mask of a return address without its signature
 *   TASK_FS_BASE    offset in task_struct of the thread pointer; or else
 *   TASK_THREAD_PID, PID_LEVEL, PID_NUMBERS, UPID_NUMBER, UPID_BYTES    the way to its tid in its own namespace
 *   VERIFY          also copy stacks that were unwound by rules, from the leaf on: bench/merges.py compares the two
 */

BPF_TABLE("hash", u64, struct stack, user_stacks, STACKS);
/*
 * Too large for the BPF stack. Two slots, because an interrupt may wake a thread while another stack is being walked.
 */
enum { AT_SWITCH, AT_WAKING, SLOTS };

/*
 * A stack on its way to its map, together with the keys of its id: a separate pointer to these would have to be tracked
 * by the verifier through every walk.
 */
struct scratch {
	struct stack stack;
	struct hash_keys keys;
	struct hash hash; /* of the words so far */
};
BPF_PERCPU_ARRAY(scratch, struct scratch, SLOTS);

static inline __attribute__((always_inline)) struct hash_keys *hash_keys(void)
{
	u32 slot = AT_SWITCH;
	struct scratch *s = scratch.lookup(&slot);

	return s ? &s->keys : 0;
}

/*
 * Return the id of `depth` frames in `stack`, which must be in a struct scratch; frames beyond must be 0. The loop has
 * one exit only, because the verifier follows each one to the end of the program, and takes the depth from the map,
 * because the verifier of 6.1 would follow each depth there.
 */
static inline __attribute__((always_inline)) u64 id_of(struct stack *stack, u32 depth)
{
	struct hash_keys *keys = &((struct scratch *)stack)->keys;
	struct hash *hash = &((struct scratch *)stack)->hash;

	stack->depth = depth;
	hash->a = hash->b = 0;
	hash_word(hash, depth, &keys->words[FRAMES + 1]);
	hash_word(hash, stack->end, &keys->words[FRAMES + 2]);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < FRAMES + 1; i += 8) {
		READ_AGAIN;
		if (i >= stack->depth)
			continue;
#pragma unroll
		for (u32 j = i; j < i + 8; j++)
			hash_word(hash, stack->frames[j], &keys->words[j]);
	}
	u64 id = hash_end(hash, keys) & ~COPIED;
	return id < FIRST_ID ? id + FIRST_ID : id;
}

#if defined(TASK_FS_BASE) || defined(TASK_THREAD_PID)
#define HAS_PYTHON 1
#define PYTHON_SEARCH 256      /* most threads and interpreters searched for one thread */
#define PYTHON_RETRY_NS 100000000 /* how long to wait before a thread that was not found is searched for again */
#define PYTHON_BYTES 80        /* how much of a frame is read */

BPF_TABLE("lru_hash", u32, struct python, python_processes, PYTHON_PROCESSES);
struct python_thread {
	u64 at;                /* address of CPython's struct in the process; 0: CPython does not know the thread */
	u64 searched_ns;
};
BPF_TABLE("lru_hash", u32, struct python_thread, python_threads, PYTHON_THREADS);

/* State of the Python part of a walk. */
struct python_walk {
	struct python_thread thread;
	u64 id;
	u64 interpreter;
	u64 frame;             /* the next one; 0: no more */
	u64 words[16];         /* PYTHON_BYTES of it, with room for any offset */
	u32 generation;
	u32 depth;
	u32 total;             /* including native frames */
	u64 frames[PYTHON_FRAMES];
	u64 round;             /* ROUNDS */
};
BPF_PERCPU_ARRAY(python_scratch, struct python_walk, SLOTS);

/*
 * Return CPython's identifier of a thread: pthread_self(), or gettid() if the distance of pthread_self() from the
 * thread pointer is unknown.
 */
static inline __attribute__((always_inline)) u64 python_id(void *task)
{
#ifdef TASK_FS_BASE
	return MEMBER(u64, task, TASK_FS_BASE);
#else
	char *pid = MEMBER(char *, task, TASK_THREAD_PID);
	u32 level = 0, number = 0;

	bpf_probe_read_kernel(&level, sizeof(level), pid + PID_LEVEL);
	bpf_probe_read_kernel(&number, sizeof(number), pid + PID_NUMBERS + (u64)level * UPID_BYTES + UPID_NUMBER);
	return number;
#endif
}

static inline __attribute__((always_inline)) u64 word_at(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

/*
 * Find the innermost frame if s->thread.at is CPython's struct of this thread. Several interpreters may know a thread,
 * and it may be running in another one than this struct's.
 */
static inline __attribute__((always_inline)) void find_innermost_frame(struct python_walk *s, struct python *p)
{
	u64 from = s->thread.at;

	if (!from || word_at(from + p->thread_id) != s->id)
		return;
	if (p->frame_holder != PYTHON_NO_HOLDER)
		from = word_at(from + p->frame_holder);
	if (from)
		s->frame = word_at(from + p->frame);
}

/* Search the threads of all interpreters for this one. Each interpreter lists its threads, newest first. */
static inline __attribute__((always_inline)) void find_thread(struct python_walk *s, struct python *p)
{
	s->thread.at = 0;
	s->interpreter = word_at(p->interpreters);
	if (s->interpreter)
		s->thread.at = word_at(s->interpreter + p->threads);
	ROUNDS(i, s->round, PYTHON_SEARCH) {
		READ_AGAIN;
		if (s->frame || !s->interpreter)
			DONE();
		if (!s->thread.at) {
			s->interpreter = word_at(s->interpreter + p->next_interpreter);
			if (s->interpreter)
				s->thread.at = word_at(s->interpreter + p->threads);
			continue;
		}
		find_innermost_frame(s, p);
		if (!s->frame)
			s->thread.at = word_at(s->thread.at + p->next_thread);
	}
}

/* Store one Python frame and step to its caller. */
static inline __attribute__((always_inline)) void python_step(struct python_walk *s, struct python *p, u64 i)
{
	u64 *at = &s->frames[i];

	asm volatile("" : "+r"(at)); /* keeps clang from carrying it over to the next round (READ_AGAIN) */
	s->depth = i + 1;
	*at = PYTHON;
	if (bpf_probe_read_user(s->words, PYTHON_BYTES, (void *)s->frame)) {
		s->frame = 0;
		return;
	}
	u8 call_byte = ((u8 *)s->words)[p->call_byte & 127];
	u64 code = s->words[(p->code >> 3) & 15] & p->code_mask & PYTHON_ADDRESS;
	if (p->call_kind == PYTHON_CALL_SHIM)
		*at |= call_byte >= PYTHON_SHIM_OWNER ? PYTHON_ENTRY : code;
	else
		*at |= code | (p->call_kind == PYTHON_CALL_ALWAYS || call_byte ? PYTHON_ENTRY : 0);
	s->frame = s->words[(p->caller >> 3) & 15];
}
#endif

/* Read the Python frames of the current thread into this slot's python_scratch, from which its stacks get them. */
static inline __attribute__((always_inline)) void read_python_frames(u32 slot, void *task, u32 pid, u32 tid)
{
#ifdef HAS_PYTHON
	struct python *p = python_processes.lookup(&pid);
	struct python_walk *s = python_scratch.lookup(&slot);

	if (!s)
		return;
	s->depth = 0;
	if (!p)
		return;
	s->generation = p->generation;
	u64 now_ns = bpf_ktime_get_ns();
	struct python_thread *known = python_threads.lookup(&tid);
	s->thread.at = known ? known->at : 0;
	s->id = python_id(task);
	s->frame = 0;
	find_innermost_frame(s, p);
	if (!s->frame && !(known && now_ns - known->searched_ns < PYTHON_RETRY_NS)) {
		find_thread(s, p);
		s->thread.searched_ns = now_ns;
		python_threads.update(&tid, &s->thread);
	}
	ROUNDS(i, s->round, PYTHON_FRAMES) {
		READ_AGAIN;
		if (!s->frame)
			DONE();
		python_step(s, p, i);
	}
	if (s->frame)
		s->frames[PYTHON_FRAMES - 1] = PYTHON;
#endif
}

/*
 * Append the Python frames to the native ones, dropping outermost native frames if there are too many. Return the
 * total.
 */
static inline __attribute__((always_inline)) u32 with_python(u32 slot, struct stack *stack, u32 depth)
{
#ifdef HAS_PYTHON
	struct python_walk *s = python_scratch.lookup(&slot);

	if (!s || !s->depth)
		return depth;
	s->total = depth;
	if (depth + (u64)s->depth > FRAMES) {
		s->total = FRAMES - s->depth;
		stack->end = END_TRUNCATED | (stack->end & END_UNSURE);
	}
	stack->end |= (u64)s->generation << END_GENERATION_SHIFT | (u64)s->depth << END_PYTHON_SHIFT;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PYTHON_FRAMES; i++) {
		READ_AGAIN;
		if (i >= s->depth || s->total >= FRAMES)
			continue;
		stack->frames[s->total & FRAMES] = s->frames[i];
		s->total += 1;
	}
	return s->total;
#else
	return depth;
#endif
}

static inline __attribute__((always_inline)) u64 keep_user_stack(u32 slot, struct stack *stack, u32 depth)
{
	u32 total = with_python(slot, stack, depth);
	stack->end |= (u64)MEMBER(u32, current_task(), TASK_EXECS) << END_EXECS_SHIFT;
	u64 id = id_of(stack, total);

	return user_stacks.lookup(&id) || !user_stacks.update(&id, stack) ? id : STACK_LOST;
}

/* Walk the user stack along frame pointers, with the kernel's own walker. */
static inline __attribute__((always_inline)) u64 frame_pointer_stack(void *ctx, u32 slot)
{
	struct stack *stack = (struct stack *)scratch.lookup(&slot);

	if (!stack)
		return STACK_LOST;
	long bytes = bpf_get_stack(ctx, stack->frames, FRAMES * sizeof(u64), BPF_F_USER_STACK);
	if (bytes <= 0)
		return NO_STACK; /* no user stack, or exiting */
	stack->frames[FRAMES] = 0;
	stack->end = END_LINKED;
	return keep_user_stack(slot, stack, (u32)bytes / 8);
}

#ifdef UNWIND_KB
#define READ_BYTES 1024
#define READ_BELOW 48 /* how much is read below the words that are needed: saved registers are there */

BPF_TABLE("lru_hash", struct rule_key, struct rule, rules, RULES);
BPF_TABLE("lru_hash", u32, struct space, spaces, SPACES);
BPF_ARRAY(copies_left, s64, 1);
BPF_RINGBUF_OUTPUT(copies, COPIES);
struct copy {
	struct copy_head head;
	char stack[UNWIND_KB * 1024]; /* during the unwind: the last `bytes` that were read, from address `from` on */
	u64 from;
	u64 bytes;
	u64 words[2];                 /* result of read_stack() */
	u64 round;                    /* ROUNDS */
#ifdef REG_LINK
	u64 link;                     /* value of x30; 0: unknown */
#endif
};
/*
 * One per CPU and slot, but not in a per-CPU map, whose entries are limited to 32 KB (PCPU_MIN_UNIT_SIZE). Indexing by
 * CPU is as safe as a per-CPU map, because two programs never use an entry at once. AT_SWITCH code runs inside
 * of the scheduler, which neither preempts nor migrates there; on_exit() may be interrupted, but an interrupt can only
 * wake threads, which is AT_WAKING. Wakeups hold a lock with interrupts off.
 */
BPF_ARRAY(copy_scratch, struct copy, SLOTS * CPUS);

/*
 * Send a piece of the stack to user space, with the frames unwound so far: user space continues from `head->sp`. Return
 * the id of the copy, or that of the stack along frame pointers if no copy can be made.
 */
static inline __attribute__((always_inline)) u64 copy_stack(void *ctx, u32 slot, struct copy *copy)
{
	u32 zero = 0;
	s64 *left = copies_left.lookup(&zero);

	copy->head.fallback = frame_pointer_stack(ctx, slot);
	copy->head.python_depth = 0;
#ifdef HAS_PYTHON
	struct python_walk *s = python_scratch.lookup(&slot);
	if (s && s->depth) {
		copy->head.python_depth = s->depth;
		bpf_probe_read_kernel(copy->head.python_frames, sizeof(copy->head.python_frames), s->frames);
	}
#endif
	if (!left || *left <= 0 || !copy->head.fallback) {
		count_lost(LOST_COPIES);
		return copy->head.fallback;
	}
	__sync_fetch_and_add(left, -1);
	copy->head.bytes = copy->head.end = 0;
	u64 from = copy->head.sp;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < UNWIND_KB; i++) {
		READ_AGAIN;
		if (copy->head.end)
			continue;
		if (!bpf_probe_read_user(copy->stack + i * 1024, 1024, (void *)(from + i * 1024))) {
			copy->head.bytes += 1024;
			continue;
		}
		u64 rest = -from & 1023; /* up to the end of the last page that is present */
		copy->head.end = 1;
		if (rest && !bpf_probe_read_user(copy->stack + i * 1024, rest, (void *)(from + i * 1024)))
			copy->head.bytes += rest;
	}
	/* Unique for 13 days, on up to 8192 CPUs. */
	copy->head.id = bpf_ktime_get_ns() << 13 | bpf_get_smp_processor_id() | COPIED;
	u64 size = sizeof(copy->head) + copy->head.bytes;
	asm volatile("" : "+r"(size));
	if (size > sizeof(*copy))
		size = sizeof(*copy);
	if (copies.ringbuf_output(copy, size, BPF_RB_NO_WAKEUP)) {
		count_lost(LOST_COPIES);
		return copy->head.fallback;
	}
#ifdef PROBE_SWITCH
	return copy->head.fallback; /* the id of a copy is only valid for some ticks, and this wait may last longer */
#endif
	return copy->head.id;
}

/*
 * Read the word of the stack at `at`, and the one above it, into copy->words, together with what is around them:
 * reading 1 KB takes only half as long again as 8 bytes.
 */
static inline __attribute__((always_inline)) bool read_stack(struct copy *copy, u64 at)
{
	u64 off = at - copy->from;

	if (off >= copy->bytes || off > READ_BYTES - 2 * sizeof(u64)) {
		off = READ_BELOW;
		copy->from = at - off;
		copy->bytes = READ_BYTES;
		if (bpf_probe_read_user(copy->stack, READ_BYTES, (void *)copy->from)) { /* part of it is not resident */
			copy->bytes = 0;
			if (bpf_probe_read_user(copy->stack + off, 2 * sizeof(u64), (void *)at))
				return false;
		}
	}
	asm volatile("" : "+r"(off)); /* the verifier of 6.1 loses the limits of a value on the BPF stack */
	off &= READ_BYTES - 1;
	copy->words[0] = *(u64 *)(copy->stack + off);
	copy->words[1] = *(u64 *)(copy->stack + off + sizeof(u64));
	return true;
}

#ifdef REG_LINK
#define SIGNAL_X29 544 /* offset in arm64's rt_sigframe, from the stack pointer in the restorer */
#define FOLLOWS_ONLY_FRAME_POINTERS(head) ((head)->unsure)

/*
 * Step to the caller where a call leaves its return address in x30: functions that call others save that above their
 * caller's x29. After a step that follows frame pointers alone the stack pointer is unknown, so all further steps must
 * do the same.
 */
static inline __attribute__((always_inline)) u32 link_register_step(struct copy *copy, struct rule *rule, struct stack *stack, u64 i)
{
	struct copy_head *head = &copy->head;
	u64 words[4], cfa_kind = rule->cfa_kind, saved = rule->saved, link = copy->link;
	u64 cfa = (cfa_kind == CFA_SP ? head->sp : head->bp) + (s64)rule->cfa_offset;
	s64 at = rule->bp_offset;

	if (cfa_kind == CFA_SIGNAL) {
		stack->frames[i] |= EXACT;
		if (FOLLOWS_ONLY_FRAME_POINTERS(head))
			return END_BAD_PC;
		/* x29, x30, sp, pc */
		if (bpf_probe_read_user(words, sizeof(words), (void *)(head->sp + SIGNAL_X29)))
			return END_MEMORY;
		head->bp = words[0];
		copy->link = words[1];
		head->sp = words[2];
		head->at = words[3];
		head->pc = words[3] | EXACT;
		return 0;
	}
	if (FOLLOWS_ONLY_FRAME_POINTERS(head)) {
		if (!head->bp) /* it is 0 in the outermost frame */
			return END_COMPLETE;
		cfa = head->bp + 2 * sizeof(u64);
		at = -2 * (s64)sizeof(u64);
		saved = SAVED_AT;
	}
	copy->link = 0;
	if (cfa - head->sp - !!saved >= MAX_FRAME_BYTES)
		return END_BAD_PC;
	if (saved) {
		if (!read_stack(copy, cfa + at))
			return END_MEMORY;
		link = copy->words[1];
		if (saved != SAVED_LINK)
			head->bp = copy->words[0];
	} else if (!link) {
		return END_MEMORY;
	}
	link &= CODE_ADDRESSES;
	head->sp = cfa;
	head->pc = link;
	head->at = link - 1; /* the call instruction */
	return link ? 0 : END_COMPLETE;
}
#else
#define SIGNAL_BP 120 /* offset in x86-64's rt_sigframe, from the stack pointer in the restorer */
#define FOLLOWS_ONLY_FRAME_POINTERS(head) 0
#endif

/*
 * Make one step by `rule`, from the state in `head` to the caller. Only ip, sp and the frame pointer are tracked: a
 * rule that needs other registers is CFA_UNSUPPORTED. Return 0, or enum end.
 */
static inline __attribute__((always_inline)) u32 step(struct copy *copy, struct rule *rule, struct stack *stack, u64 i)
{
	struct copy_head *head = &copy->head;
	u64 words[7], cfa_kind = rule->cfa_kind;

	if (cfa_kind == CFA_UNSUPPORTED && !FOLLOWS_ONLY_FRAME_POINTERS(head))
		return END_CFA_UNSUPPORTED;
	if (cfa_kind == CFA_END + END_BAD_PC) /* no code at this address */
		return END_BAD_PC;
	stack->frames[i] = head->pc;
	head->depth = i + 1;
	head->unsure |= rule->unsure;
	if (cfa_kind >= CFA_END)
		return cfa_kind - CFA_END;
#ifdef REG_LINK
	return link_register_step(copy, rule, stack, i);
#else
	if (cfa_kind == CFA_SIGNAL) {
		stack->frames[i] |= EXACT; /* the restorer: a handler returns to it, but no call precedes it */
		/* saved for rt_sigreturn(2): rbp, rbx, rdx, rax, rcx, rsp, rip */
		if (bpf_probe_read_user(words, sizeof(words), (void *)(head->sp + SIGNAL_BP)))
			return END_MEMORY;
		head->bp = words[0];
		head->sp = words[5];
		head->at = words[6];
		head->pc = words[6] | EXACT;
		return 0;
	}
	u64 cfa = (cfa_kind == CFA_SP ? head->sp : head->bp) + (s64)rule->cfa_offset;
	if (cfa_kind == CFA_AT_BP) {
		if (bpf_probe_read_user(words, sizeof(u64), (void *)cfa))
			return END_MEMORY;
		cfa = words[0];
	}
	if (cfa_kind == CFA_LINK && !head->bp) /* it is 0 in the outermost frame */
		return END_COMPLETE;
	if (cfa - head->sp - 1 >= MAX_FRAME_BYTES)
		return END_BAD_PC;
	if (!read_stack(copy, cfa - 2 * sizeof(u64)))
		return END_MEMORY;
	head->pc = copy->words[1];
	head->at = copy->words[1] - 1; /* the call instruction */
	if (rule->saved > SAVED_BELOW && !read_stack(copy, (rule->saved == SAVED_AT_BP ? head->bp : cfa) + (s64)rule->bp_offset))
		return END_MEMORY;
	if (rule->saved)
		head->bp = copy->words[0];
	head->sp = cfa;
	return head->pc ? 0 : END_COMPLETE;
#endif
}

/* Set the state of the unwind to where the thread entered the kernel. */
static inline __attribute__((always_inline)) void set_leaf_registers(struct copy_head *head)
{
	head->pc = head->at = *(u64 *)((char *)head->registers + REG_IP);
	head->sp = *(u64 *)((char *)head->registers + REG_SP);
	head->bp = *(u64 *)((char *)head->registers + REG_BP);
}

/*
 * Unwind the user stack by rules. The state of the unwind is in a map, where the verifier tracks no values: otherwise
 * it would follow each of the hundreds of paths on which 128 steps can end.
 */
static inline __attribute__((always_inline)) u64 unwind_by_rules(void *ctx, u32 slot, void *task, u32 pid, u32 tid)
{
	struct stack *stack = (struct stack *)scratch.lookup(&slot);
	u32 at = bpf_get_smp_processor_id() * SLOTS + slot;
	struct copy *copy = copy_scratch.lookup(&at);
	struct space *space = spaces.lookup(&pid);
	struct rule_key key = {};

	if (!stack || !copy)
		return STACK_LOST;
	struct copy_head *head = &copy->head;
	bpf_probe_read_kernel(head->registers, sizeof(head->registers), (void *)bpf_task_pt_regs(task));
	set_leaf_registers(head);
	if (!head->sp)
		return NO_STACK; /* no user stack */
	if ((*(u64 *)((char *)head->registers + REG_MODE) & MODE_MASK) == MODE_32_BIT)
		return frame_pointer_stack(ctx, slot); /* unwind information of 32-bit programs is not read */
	head->pid = pid;
	head->tid = tid;
	head->execs = MEMBER(u32, task, TASK_EXECS);
	head->space = space ? space->id : 0;
	head->end = space ? 0 : END_NO_RULE;
	head->depth = head->unsure = head->ruled_end = copy->bytes = 0;
#ifdef REG_LINK
	copy->link = *(u64 *)((char *)head->registers + REG_LINK);
#endif
	key.space = head->space;
	__builtin_memset(stack->frames, 0, sizeof(stack->frames));
	ROUNDS(i, copy->round, FRAMES + 1) {
		READ_AGAIN;
		if (head->end || i == FRAMES)
			DONE();
		key.pc = head->at;
		struct rule *rule = rules.lookup(&key);
		head->end = rule ? step(copy, rule, stack, i) : END_NO_RULE;
	}
	if (!head->end)
		head->end = END_TRUNCATED;
	if (head->end != END_NO_RULE && head->end != END_CFA_UNSUPPORTED) {
		stack->end = head->end | (head->unsure ? END_UNSURE : 0);
#ifdef VERIFY
		u64 id = keep_user_stack(slot, stack, head->depth);
		head->ruled_end = stack->end;
		bpf_probe_read_kernel(head->frames, sizeof(head->frames), stack->frames);
		set_leaf_registers(head);
		copy_stack(ctx, slot, copy);
		return id;
#else
		return keep_user_stack(slot, stack, head->depth);
#endif
	}
	if (head->end == END_CFA_UNSUPPORTED) {
		head->depth = 0;
		set_leaf_registers(head);
	}
	bpf_probe_read_kernel(head->frames, sizeof(head->frames), stack->frames);
	return copy_stack(ctx, slot, copy);
}

/* Give a new process its parent's space, because it has a copy of its parent's address space. */
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *parent = (void *)ctx->args[0], *child = (void *)ctx->args[1];
	u32 pid = 0, tid = 0, parent_pid = 0;

	bpf_probe_read_kernel(&pid, sizeof(pid), (char *)child + TASK_TGID);
	bpf_probe_read_kernel(&tid, sizeof(tid), (char *)child + TASK_PID);
	if (pid != tid)
		return 0; /* a new thread */
	bpf_probe_read_kernel(&parent_pid, sizeof(parent_pid), (char *)parent + TASK_TGID);
#ifdef NAMESPACE
	if (!find_ids(child, &pid, &tid) || !find_ids(parent, &parent_pid, &tid))
		return 0;
#endif
	execs.delete(&pid); /* of an earlier process with this pid */
	struct space *space = spaces.lookup(&parent_pid);
	if (space)
		spaces.update(&pid, space);
	else
		spaces.delete(&pid);
#ifdef HAS_PYTHON
	struct python *python = python_processes.lookup(&parent_pid);
	if (python)
		python_processes.update(&pid, python);
	else
		python_processes.delete(&pid);
#endif
	return 0;
}
#endif

static inline __attribute__((always_inline)) u64 user_stack(void *ctx, u32 slot, void *task, u32 pid, u32 tid, u32 flags)
{
#if USER_STACKS
	if (flags & PF_KTHREAD || IS_OUTSIDE(pid)) /* the files of processes outside cannot be read */
		return NO_STACK;
	read_python_frames(slot, task, pid, tid);
#ifdef UNWIND_KB
	u64 id = unwind_by_rules(ctx, slot, task, pid, tid);
#else
	u64 id = frame_pointer_stack(ctx, slot);
#endif
	if (id == STACK_LOST)
		count_lost(LOST_STACKS);
	return id;
#else
	return NO_STACK;
#endif
}
