// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Has the kernel stack of a thread changed since its last wait?
 *
 * Part of offcpu.c, which includes it after kernelstack.c (offtop/kernel/bpf/compile.py replaces the #include by this
 * text).
 *
 * hooks: none of its own
 *
 * maps
 *   kernel_memos           per thread: its last kernel stack, and where its return addresses are. Task storage, or a
 *                          hash by the address of the task
 *   kernel_memo_settings   how many verified stacks are unwound all the same; written by user space
 *   kernel_memo_counts     per CPU: how many stacks were unwound, verified and checked
 *   kernel_unwinds         per CPU: what is compared, and what is kept
 *
 * units: addresses; words of 8 bytes
 *
 * cost: see docs/stacks.md
 *
 * The frames of a thread that waits are on its stack from its saved stack pointer on, beginning with __schedule()'s.
 * The kernel's unwinder does not say where it has found a return address. So all words that equal any of the return
 * addresses are kept with their places: those that the unwinder has read are among them. If all of these words are the
 * same at the next wait, so is the stack. Others are left over from earlier calls: if a word differs at a later wait
 * although the stack is the same, it is one of these, and is dropped. The outermost return address is compared by its
 * distance from the user registers instead: x86-64 leaves a gap of random size below it
 * (CONFIG_RANDOMIZE_KSTACK_OFFSET).
 *
 * Frames that are found by saved registers are not proved to be the same, because only return addresses are compared:
 * that is so after a page fault in the kernel, in functions with a variable frame, and everywhere with
 * CONFIG_UNWINDER_FRAME_POINTER. Nor is the caller of a function whose return is traced (kretprobe, fgraph), because
 * its return address is not on the stack. So this is off by default, and one in so many verified stacks is unwound all
 * the same. If the result differs, that is counted (LOST_MEMOS).
 *
 * Preempted threads have no memo, because their stack begins with the registers that the interrupt has saved.
 *
 * -D:
 *   KERNEL_MEMOS      verify kernel stacks; map size, if RECORDS_IN_HASH
 *   RECORDS_IN_HASH   see offcpu.c
 */

#ifdef KERNEL_MEMOS
#ifdef RECORDS_IN_HASH
BPF_TABLE("lru_hash", u64, struct kernel_memo, kernel_memos, KERNEL_MEMOS);
#else
BPF_TASK_STORAGE(kernel_memos, struct kernel_memo);
#endif
BPF_ARRAY(kernel_memo_settings, struct memo_settings, 1);
BPF_PERCPU_ARRAY(kernel_memo_counts, struct memo_counts, 1);

#define STACK_WORDS 512 /* deeper stacks have no memo */
#define FILTER_WORDS 128

struct kernel_unwind {
	u64 words[STACK_WORDS];   /* of the thread's kernel stack, from `sp` on */
	u64 filter[FILTER_WORDS]; /* a Bloom filter of the return addresses */
	struct kernel_memo memo;  /* what is kept of this stack */
	u64 sp;                   /* saved stack pointer */
	u64 top;                  /* end of the stack: the user registers */
	u64 count;                /* entries of `words` */
	u64 outermost;            /* the word that is compared with memo->outermost */
	u64 differs;              /* a word differs from the memo's */
	u64 round;                /* ROUNDS */
	/*
	 * Index of the frame in __schedule(); FRAMES: there is none. Those before it are of the call of this program,
	 * and depend on which other programs are attached, and on bpf_stats.
	 */
	u64 first;
	u64 next;        /* the first frame that has not been found in `words` yet */
	u64 generation;  /* settings->stack_generation, before the unwind */
	u64 misses;      /* waits of this thread since its memo was last of use */
	u64 verified_id; /* id of the stack that the memo has; 0: another one, or unknown */
	u64 id;          /* id of this stack */
};
BPF_PERCPU_ARRAY(kernel_unwinds, struct kernel_unwind, 1);

/* Return the bit of an address in `filter`. */
static __always_inline u64 filter_bit(u64 address)
{
	return address * 0x9e3779b97f4a7c15ULL >> 51;
}

/* Set `sp` and `top`. */
static __always_inline void find_stack_bounds(struct kernel_unwind *k, struct task_struct *task)
{
	k->sp = MEMBER(u64, task, TASK_SP);
	k->top = (u64)bpf_task_pt_regs(task);
	READ_AGAIN; /* read back as a number, not as a pointer to registers */
}

/* Read the part of the thread's stack that its memo is about. Return false if the outermost return address differs. */
static __always_inline bool read_kernel_stack(struct kernel_unwind *k, struct task_struct *task,
					      struct kernel_memo *memo)
{
	u64 bytes = memo->span;

	find_stack_bounds(k, task);
	asm volatile("" : "+r"(bytes));
	return bytes && bytes <= sizeof(k->words) && !bpf_probe_read_kernel(k->words, bytes, (void *)k->sp) &&
	       !bpf_probe_read_kernel(&k->outermost, sizeof(k->outermost), (void *)(k->top - memo->outermost_below)) &&
	       k->outermost == memo->outermost;
}

/* Compare the words of the stack with those of its memo. */
static __always_inline bool has_memo_words(struct kernel_unwind *k, struct kernel_memo *memo)
{
	k->differs = !memo->count;
	ROUNDS(i, k->round, KERNEL_MEMO_WORDS) {
		READ_AGAIN;
		if (i >= memo->count || k->differs)
			DONE();
		u64 at = memo->places[i];
		asm volatile("" : "+r"(at));
		k->differs |= k->words[at & (STACK_WORDS - 1)] ^ memo->words[i];
	}
	return !k->differs;
}

/* Set k->verified_id to the id of the thread's kernel stack if it is still the one of its memo, else to 0. */
static __always_inline void verify_kernel_stack(struct kernel_unwind *k, void *task)
{
#ifdef RECORDS_IN_HASH
	u64 key = (u64)task;
	struct kernel_memo *memo = kernel_memos.lookup(&key);
#else
	struct kernel_memo *memo = kernel_memos.task_storage_get(task, 0, 0);
#endif
	if (!memo)
		return;
	u32 misses = memo->misses++;
	k->misses = misses + 1;
	if (misses > MISSES && misses % MISSES > 1)
		return;
	if (memo->stack_generation != k->generation)
		return;
	if (!read_kernel_stack(k, task, memo) || !has_memo_words(k, memo))
		return;
	memo->misses = k->misses = 0;
	k->verified_id = memo->id;
}

/* Set k->first for a stack that was unwound. */
static __always_inline void find_schedule(struct kernel_unwind *k, struct stack *stack, struct config *c)
{
	k->first = FRAMES;
	ROUNDS(i, k->round, FRAMES) {
		READ_AGAIN;
		if (i >= stack->depth || k->first < FRAMES)
			DONE();
		k->first = stack->frames[i] - c->sched_text.start < c->sched_text.bytes ? i : FRAMES;
	}
}

/* Compare the frames that were unwound, from `first` on, with those of the stack in the memo. */
static __always_inline bool has_same_frames(struct kernel_unwind *k, struct stack *stack, struct stack *known)
{
	u64 shift = known->depth - stack->depth;

	k->differs = k->first == FRAMES;
	k->next = k->first;
	ROUNDS(i, k->round, FRAMES) {
		READ_AGAIN;
		u64 at = k->next, of_known = at + shift;
		if (k->differs || at >= stack->depth)
			DONE();
		k->differs = stack->frames[at & FRAMES] ^ known->frames[of_known & FRAMES];
		k->next = at + 1;
	}
	return !k->differs;
}

/*
 * Find the return addresses of a stack that was unwound. k->memo.count is 0 if not all of them were found, or too many
 * words look like them: no wait has the stack of such a memo.
 */
static __always_inline void find_return_addresses(struct kernel_unwind *k, struct stack *stack)
{
	struct kernel_memo *memo = &k->memo;
	u64 outermost = stack->depth - 1, bytes = k->top - k->sp;

	memo->count = memo->span = k->count = 0;
	asm volatile("" : "+r"(outermost), "+r"(bytes));
	if (k->first >= outermost || outermost >= FRAMES - 1 || bytes > sizeof(k->words) || !bytes ||
	    bpf_probe_read_kernel(k->words, bytes, (void *)k->sp))
		return;
	memo->outermost = stack->frames[outermost];
	k->count = bytes / 8;
	__builtin_memset(k->filter, 0, sizeof(k->filter));
	ROUNDS(i, k->round, FRAMES) {
		READ_AGAIN;
		if (i >= stack->depth)
			DONE();
		u64 bit = filter_bit(stack->frames[i]);
		if (i >= k->first)
			k->filter[bit >> 6] |= 1ULL << (bit & 63);
	}
	k->next = k->first;
	ROUNDS(i, k->round, STACK_WORDS) {
		READ_AGAIN;
		if (i >= k->count)
			DONE();
		u64 word = k->words[i], bit = filter_bit(word), next = k->next & FRAMES, count = memo->count;
		if (!(k->filter[bit >> 6] >> (bit & 63) & 1))
			continue;
		k->next = next + (word == stack->frames[next]);
		if (word == memo->outermost) {
			memo->outermost_below = bytes - 8 * i;
			continue;
		}
		asm volatile("" : "+r"(count));
		if (count >= KERNEL_MEMO_WORDS) {
			k->next = 0;
			DONE();
		}
		memo->places[count] = i;
		memo->words[count] = word;
		memo->span = 8 * (i + 1);
		memo->count = count + 1;
	}
	if (k->next != stack->depth)
		memo->count = memo->span = 0;
}

/*
 * Drop the words of a memo that differ although the stack is the same. Return false if the others do not include every
 * return address.
 */
static __always_inline bool keep_same_words(struct kernel_unwind *k, struct kernel_memo *memo, struct stack *stack)
{
	k->count = 0;
	k->next = k->first;
	ROUNDS(i, k->round, KERNEL_MEMO_WORDS) {
		READ_AGAIN;
		if (i >= memo->count)
			DONE();
		u64 at = memo->places[i], word = memo->words[i], count = k->count, next = k->next & FRAMES;
		asm volatile("" : "+r"(at), "+r"(count));
		if (k->words[at & (STACK_WORDS - 1)] != word)
			continue;
		count &= KERNEL_MEMO_WORDS - 1;
		memo->places[count] = at;
		memo->words[count] = word;
		k->count = count + 1;
		k->next = next + (word == stack->frames[next]);
	}
	memo->count = k->count;
	return k->next == stack->depth - 1;
}

/* Keep the stack that was unwound, and compare it with the one that was verified. */
static __always_inline void learn_kernel_stack(struct kernel_unwind *k, struct stack *stack, void *task,
					       struct config *c, struct memo_counts *counts)
{
	if (k->misses > MISSES && k->misses % MISSES != 1)
		return;
#ifdef RECORDS_IN_HASH
	u64 key = (u64)task;
	struct kernel_memo *memo = kernel_memos.lookup(&key);
#else
	struct kernel_memo *memo = kernel_memos.task_storage_get(task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
#endif
	struct stack *known = memo ? kernel_stacks.lookup(&memo->id) : 0;
	find_schedule(k, stack, c);
	bool is_same = known && has_same_frames(k, stack, known);

	if (k->verified_id && known) { /* otherwise user space has just removed it */
		counts->verified += 1;
		counts->checked += 1;
		if (!is_same) {
			counts->disagreements += 1;
			count_lost(LOST_MEMOS);
		}
	}
	k->memo.misses = k->misses;
	k->memo.id = k->id;
	k->memo.stack_generation = k->generation;
	if (memo && is_same && read_kernel_stack(k, task, memo) && keep_same_words(k, memo, stack)) {
		memo->id = k->id;
		memo->stack_generation = k->generation;
		return;
	}
	find_stack_bounds(k, task);
	find_return_addresses(k, stack);
#ifdef RECORDS_IN_HASH
	kernel_memos.update(&key, &k->memo);
#else
	if (memo)
		bpf_probe_read_kernel(memo, sizeof(*memo), &k->memo);
#endif
}

/* Return the id of the kernel stack of the current thread, whose wait began in `state`. */
static __always_inline u64 kernel_stack_of_wait(void *ctx, struct config *c, void *task, u32 state)
{
	u32 zero = 0, slot = AT_SWITCH;
	struct kernel_unwind *k = kernel_unwinds.lookup(&zero);
	struct stack *stack = (struct stack *)scratch.lookup(&slot);
	struct memo_settings *settings = kernel_memo_settings.lookup(&zero);
	struct memo_counts *counts = kernel_memo_counts.lookup(&zero);

	if (!k || !stack || !settings || !counts)
		return STACK_LOST;
	k->verified_id = k->misses = 0;
	k->generation = settings->stack_generation;
	bool is_blocked = !(state & RUNNING) && settings->check_every;
	if (is_blocked)
		verify_kernel_stack(k, task);
	READ_AGAIN;
	if (k->verified_id) {
		counts->unchecked += 1;
		if (counts->unchecked < settings->check_every) {
			counts->verified += 1;
			return k->verified_id;
		}
		counts->unchecked = 0;
	}
	u32 depth = unwind_kernel(ctx, stack);
	k->id = depth ? keep_kernel_stack(stack, depth) : STACK_LOST;
	READ_AGAIN;
	if (k->id == STACK_LOST)
		return STACK_LOST;
	counts->walked += 1;
	if (is_blocked)
		learn_kernel_stack(k, stack, task, c, counts);
	return k->id;
}
#else
#define kernel_stack_of_wait(ctx, c, task, state) kernel_stack(ctx)
#endif
