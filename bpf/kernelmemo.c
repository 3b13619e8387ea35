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
 *   kernel_memos           per thread: its last kernel stack, and where its return addresses are. Task storage, or a hash
 *                          by the address of the task
 *   kernel_memo_settings   how many verified stacks are unwound all the same; written by user space
 *   kernel_memo_counts     per CPU: how many stacks were unwound, verified and checked
 *   kernel_unwinds         per CPU: the unwind in progress
 *
 * units: addresses; words of 8 bytes
 *
 * cost: see bpf/README.md
 *
 * The frames of a thread that waits are on its stack from its saved stack pointer on. The kernel's unwinder does not say
 * where it has found a return address. So all words that equal any of the return addresses are kept with their places:
 * those that the unwinder has read are among them. If all of these words are the same at the next wait, so is the stack.
 * Others are left over from earlier calls: if a word differs at a later wait although the stack is the same, it is one
 * of these, and is dropped. The outermost return address is compared by its distance from the user registers instead:
 * there is a gap of random size below it (CONFIG_RANDOMIZE_KSTACK_OFFSET).
 *
 * This is not proved for functions whose frame is found by the frame pointer, because saved frame pointers are not
 * compared. Hence it is off by default, and one in so many verified stacks is unwound all the same. If the result
 * differs, that is counted (LOST_MEMOS).
 *
 * Preempted threads have no memo, because their stack depends on the interrupted registers as well.
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

#define STACK_WORDS 512  /* deeper stacks have no memo */
#define FILTER_WORDS 128
#define CALLING_FRAMES 4 /* at most so many frames belong to the call of this program; those below the saved stack pointer
			  * are not compared. One differs while bpf_stats are on */

struct kernel_unwind {
	u64 words[STACK_WORDS];   /* of the thread's kernel stack, from `sp` on */
	u64 filter[FILTER_WORDS]; /* a Bloom filter of the return addresses */
	struct kernel_memo memo;  /* what is kept of this stack */
	u64 sp;                   /* saved stack pointer */
	u64 top;                  /* end of the stack: the user registers */
	u64 count;                /* entries of `words` */
	u64 last;                 /* the word that is compared with memo->last */
	u64 differs;              /* a word differs from the memo's */
	u64 round;                /* ROUNDS */
	u64 next;                 /* the first frame that has not been found in `words` yet */
	u64 misses;               /* waits of this thread since its memo was last of use */
	u64 verified_id;          /* id of the stack that the memo has; 0: another one, or unknown */
	u64 id;                   /* id of this stack */
};
BPF_PERCPU_ARRAY(kernel_unwinds, struct kernel_unwind, 1);

/* Return the bit of an address in `filter`. */
static inline __attribute__((always_inline)) u64 filter_bit(u64 address)
{
	return address * 0x9e3779b97f4a7c15ULL >> 51;
}

/* Find the thread's stack. */
static inline __attribute__((always_inline)) void find_kernel_stack(struct kernel_unwind *k, struct task_struct *task)
{
	k->sp = MEMBER(u64, task, TASK_SP);
	k->top = (u64)bpf_task_pt_regs(task);
	READ_AGAIN; /* read back as a number, not as a pointer to registers */
}

/* Read the part of the thread's stack that its memo is about. Return false if the outermost return address differs. */
static inline __attribute__((always_inline)) bool read_kernel_stack(struct kernel_unwind *k, struct task_struct *task, struct kernel_memo *memo)
{
	u64 bytes = memo->span;

	find_kernel_stack(k, task);
	asm volatile("" : "+r"(bytes));
	return bytes && bytes <= sizeof(k->words) && !bpf_probe_read_kernel(k->words, bytes, (void *)k->sp) &&
	       !bpf_probe_read_kernel(&k->last, sizeof(k->last), (void *)(k->top - memo->last_below)) && k->last == memo->last;
}

/* Compare the words of the stack with those of its memo. */
static inline __attribute__((always_inline)) bool has_memo_words(struct kernel_unwind *k, struct kernel_memo *memo)
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
static inline __attribute__((always_inline)) void verify_kernel_stack(struct kernel_unwind *k, void *task, struct memo_settings *settings)
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
	if (memo->stack_generation != settings->stack_generation)
		return;
	if (!read_kernel_stack(k, task, memo) || !has_memo_words(k, memo))
		return;
	memo->misses = k->misses = 0;
	k->verified_id = memo->id;
}

/*
 * Compare the frames that were unwound with those of the stack in the memo. Its id may be another one all the same
 * (CALLING_FRAMES).
 */
static inline __attribute__((always_inline)) bool has_same_frames(struct kernel_unwind *k, struct stack *stack, struct stack *known)
{
	k->differs = stack->depth ^ known->depth;
	ROUNDS(i, k->round, FRAMES) {
		READ_AGAIN;
		if (k->differs || i >= stack->depth)
			DONE();
		k->differs = i >= CALLING_FRAMES ? stack->frames[i] ^ known->frames[i] : 0;
	}
	return !k->differs;
}

/*
 * Find the return addresses of a stack that was unwound. k->memo.count is 0 if not all of them were found, or too many
 * words look like them: no wait has the stack of such a memo.
 */
static inline __attribute__((always_inline)) void find_return_addresses(struct kernel_unwind *k, struct stack *stack)
{
	struct kernel_memo *memo = &k->memo;
	u64 outermost = stack->depth - 1, bytes = k->top - k->sp;

	memo->count = memo->span = k->next = k->count = 0;
	asm volatile("" : "+r"(outermost), "+r"(bytes));
	if (outermost < CALLING_FRAMES || outermost >= FRAMES - 1 || bytes > sizeof(k->words) || !bytes ||
	    bpf_probe_read_kernel(k->words, bytes, (void *)k->sp))
		return;
	memo->last = stack->frames[outermost];
	k->count = bytes / 8;
	__builtin_memset(k->filter, 0, sizeof(k->filter));
	ROUNDS(i, k->round, FRAMES) {
		READ_AGAIN;
		if (i >= stack->depth)
			DONE();
		u64 bit = filter_bit(stack->frames[i]);
		k->filter[bit >> 6] |= 1ULL << (bit & 63);
	}
	k->next = CALLING_FRAMES;
	ROUNDS(i, k->round, STACK_WORDS) {
		READ_AGAIN;
		if (i >= k->count)
			DONE();
		u64 word = k->words[i], bit = filter_bit(word), next = k->next & FRAMES, count = memo->count;
		if (!(k->filter[bit >> 6] >> (bit & 63) & 1))
			continue;
		k->next = next + (word == stack->frames[next]);
		if (word == memo->last) {
			memo->last_below = bytes - 8 * i;
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
		memo->count = 0;
}

/* Drop the words of a memo that differ although the stack is the same. Return false if others are needed then. */
static inline __attribute__((always_inline)) bool keep_same_words(struct kernel_unwind *k, struct kernel_memo *memo, struct stack *stack)
{
	k->count = 0;
	k->next = CALLING_FRAMES;
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
static inline __attribute__((always_inline)) void learn_kernel_stack(struct kernel_unwind *k, struct stack *stack, void *task, struct memo_settings *settings, struct memo_counts *counts)
{
#ifdef RECORDS_IN_HASH
	u64 key = (u64)task;
	struct kernel_memo *memo = kernel_memos.lookup(&key);
#else
	struct kernel_memo *memo = kernel_memos.task_storage_get(task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
#endif
	struct stack *known = memo ? kernel_stacks.lookup(&memo->id) : 0;
	bool is_same = known && has_same_frames(k, stack, known);

	if (k->verified_id && known) { /* otherwise user space has just removed it */
		counts->checked += 1;
		if (!is_same) {
			counts->disagreements += 1;
			count_lost(LOST_MEMOS);
		}
	}
	if (k->misses > MISSES && k->misses % MISSES != 1)
		return;
	k->memo.misses = k->misses;
	k->memo.id = k->id;
	k->memo.stack_generation = settings->stack_generation;
	if (memo && is_same && read_kernel_stack(k, task, memo) && keep_same_words(k, memo, stack)) {
		memo->id = k->id;
		memo->stack_generation = k->memo.stack_generation;
		return;
	}
	find_kernel_stack(k, task);
	find_return_addresses(k, stack);
#ifdef RECORDS_IN_HASH
	kernel_memos.update(&key, &k->memo);
#else
	if (memo)
		bpf_probe_read_kernel(memo, sizeof(*memo), &k->memo);
#endif
}

/* Return the id of the kernel stack of the current thread, whose wait began in `state`. */
static inline __attribute__((always_inline)) u64 kernel_stack_of_wait(void *ctx, void *task, u32 state)
{
	u32 zero = 0, slot = AT_SWITCH;
	struct kernel_unwind *k = kernel_unwinds.lookup(&zero);
	struct stack *stack = (struct stack *)scratch.lookup(&slot);
	struct memo_settings *settings = kernel_memo_settings.lookup(&zero);
	struct memo_counts *counts = kernel_memo_counts.lookup(&zero);

	if (!k || !stack || !settings || !counts)
		return STACK_LOST;
	k->verified_id = k->misses = 0;
	bool is_blocked = !(state & RUNNING) && settings->check_every;
	if (is_blocked)
		verify_kernel_stack(k, task, settings);
	READ_AGAIN;
	k->id = k->verified_id;
	if (k->id) {
		counts->verified += 1;
		counts->unchecked += 1;
		if (counts->unchecked < settings->check_every)
			return k->id;
		counts->unchecked = 0;
	}
	u32 depth = unwind_kernel(ctx, stack);
	k->id = depth ? keep_kernel_stack(stack, depth) : STACK_LOST;
	READ_AGAIN;
	if (k->id == STACK_LOST)
		return STACK_LOST;
	counts->walked += 1;
	if (is_blocked)
		learn_kernel_stack(k, stack, task, settings, counts);
	return k->id;
}
#else
#define kernel_stack_of_wait(ctx, task, state) kernel_stack(ctx)
#endif
