// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which frames does a user stack have, by the rules of .eh_frame?
 *
 * Part of userstack.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * maps
 *   rules             how to step from an address to its caller, as .eh_frame describes it. User space reads that
 *                     from the binary, for addresses that were encountered
 *   spaces            id of a process's address space, to which rules belong. Processes with the same binaries at the
 *                     same addresses share one
 *   copies            ring buffer of unwinds that met an address without a rule, each with a piece of the stack: user
 *                     space continues from there, and adds the rules
 *   copies_left       how many more copies may be made
 *   memos             see memo.c
 *
 * units: addresses of the process; bytes
 *
 * A rule is out of date if a library was unloaded and another one was mapped there; user space checks that every 10 s.
 *
 * -D:
 *   RULES, SPACES   map sizes
 *   COPIES          ring buffer size in pages
 *   CPUS            number of possible CPUs
 *   UNWIND_KB       how much of a stack is copied
 *   REGISTERS       words of pt_regs in a copy
 *   REG_IP, REG_SP, REG_BP, REG_LINK    offsets in pt_regs; the last on arm64 only
 *   CODE_ADDRESSES  arm64: mask of a return address without its signature
 *   VERIFY          also copy stacks that were unwound by rules, from the leaf on: bench/merges.py compares the two
 */

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
	u64 words[2];     /* result of read_stack() */
	u64 round;        /* ROUNDS */
	struct memo memo; /* of the unwind in progress (memo.c) */
	u64 bp_at;        /* where the unwind has read the frame pointer; 0: that is noted in `memo` */
	u64 verified_id;  /* id of the stack that is being checked; 0: none is */
	u64 misses;       /* waits of this thread since its memo was last of use */
	u64 differs;      /* a word differs from the memo's */
#ifdef REG_LINK
	u64 link; /* value of x30; 0: unknown */
#endif
};
/*
 * One per CPU and slot, but not in a per-CPU map, whose entries are limited to 32 KB (PCPU_MIN_UNIT_SIZE). Indexing by
 * CPU is as safe as a per-CPU map, because two programs never use an entry at once. AT_SWITCH code runs inside
 * of the scheduler, which neither preempts nor migrates there; on_exit() may be interrupted, but an interrupt can only
 * wake threads, which is AT_WAKING. Wakeups hold a lock with interrupts off.
 */
BPF_ARRAY(copy_scratch, struct copy, (SLOTS * CPUS));

/*
 * Send a piece of the stack to user space, with the frames unwound so far: user space continues from `head->sp`. Return
 * the id of the copy, or that of the stack along frame pointers if no copy can be made.
 */
static __always_inline u64 copy_stack(void *ctx, u32 slot, struct copy *copy)
{
	u32 zero = 0;
	s64 *left = copies_left.lookup(&zero);

	copy->head.fallback = frame_pointer_stack(ctx, slot);
	copy->head.python_depth = 0;
#ifdef HAS_PYTHON
	struct python_unwind *s = python_scratch.lookup(&slot);
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
	count_added(COPY_ENTRIES);
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
static __always_inline bool read_stack(struct copy *copy, u64 at)
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

#include "memo.c"

#ifdef REG_LINK
#define SIGNAL_X29 544 /* offset in arm64's rt_sigframe, from the stack pointer in the restorer */
#define FOLLOWS_ONLY_FRAME_POINTERS(head) ((head)->unsure)

/*
 * Step to the caller where a call leaves its return address in x30: functions that call others save that above their
 * caller's x29. After a step that follows frame pointers alone the stack pointer is unknown, so all further steps must
 * do the same.
 */
static __always_inline u32 link_register_step(struct copy *copy, struct rule *rule, struct stack *stack, u64 i)
{
	struct copy_head *head = &copy->head;
	u64 words[4], cfa_kind = rule->cfa_kind, saved = rule->saved, link = copy->link;
	u64 cfa = (cfa_kind == CFA_SP ? head->sp : head->bp) + (s64)rule->cfa_offset;
	s64 at = rule->bp_offset;

	if (cfa_kind == CFA_SIGNAL) {
		note_more(copy);
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
	if (cfa_kind != CFA_SP || FOLLOWS_ONLY_FRAME_POINTERS(head))
		note_bp(copy);
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
		note_word(copy, cfa + at + sizeof(u64), link);
		if (saved != SAVED_LINK) {
			head->bp = copy->words[0];
			note_saved_bp(copy, cfa + at);
		}
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
static __always_inline u32 step(struct copy *copy, struct rule *rule, struct stack *stack, u64 i)
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
		note_more(copy);
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
	if (cfa_kind != CFA_SP || rule->saved == SAVED_AT_BP)
		note_bp(copy);
	u64 cfa = (cfa_kind == CFA_SP ? head->sp : head->bp) + (s64)rule->cfa_offset;
	if (cfa_kind == CFA_AT_BP) {
		if (bpf_probe_read_user(words, sizeof(u64), (void *)cfa))
			return END_MEMORY;
		note_word(copy, cfa, words[0]);
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
	note_word(copy, cfa - sizeof(u64), head->pc);
	u64 bp_at = cfa - 2 * sizeof(u64);
	if (rule->saved > SAVED_BELOW) {
		bp_at = (rule->saved == SAVED_AT_BP ? head->bp : cfa) + (s64)rule->bp_offset;
		if (!read_stack(copy, bp_at))
			return END_MEMORY;
	}
	if (rule->saved) {
		head->bp = copy->words[0];
		note_saved_bp(copy, bp_at);
	}
	head->sp = cfa;
	return head->pc ? 0 : END_COMPLETE;
#endif
}

/* Set the state of the unwind to where the thread entered the kernel. */
static __always_inline void set_leaf_registers(struct copy_head *head)
{
	head->pc = head->at = *(u64 *)((char *)head->registers + REG_IP);
	head->sp = *(u64 *)((char *)head->registers + REG_SP);
	head->bp = *(u64 *)((char *)head->registers + REG_BP);
}

/*
 * Unwind the user stack by rules. The state of the unwind is in a map, where the verifier tracks no values: otherwise
 * it would follow each of the hundreds of paths on which 128 steps can end.
 */
static __always_inline u64 unwind_by_rules(void *ctx, u32 slot, void *task, u32 pid, u32 tid)
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
#ifdef USER_MEMOS
	begin_memo(copy, slot);
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
		u64 id = keep_user_stack(slot, stack, head->depth);
#ifdef USER_MEMOS
		learn_stack(copy, id, task);
#endif
		return id;
#endif
	}
	if (head->end == END_CFA_UNSUPPORTED) {
		head->depth = 0;
		set_leaf_registers(head);
	}
	bpf_probe_read_kernel(head->frames, sizeof(head->frames), stack->frames);
	return copy_stack(ctx, slot, copy);
}
