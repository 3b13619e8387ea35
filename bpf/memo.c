// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Has the user stack of a thread changed since it was last unwound?
 *
 * Part of unwind.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: none of its own
 *
 * maps
 *   memos              per thread: the last user stack that was unwound by rules, and what its unwind read. Task
 *                      storage, or a hash by the address of the task
 *   memo_settings      how many verified stacks are unwound all the same; written by user space
 *   memo_counts        per CPU: how many stacks were unwound, verified and checked
 *   rule_generations   by address space id, modulo GENERATIONS: how often user space has changed rules
 *
 * units: addresses of the process; bytes
 *
 * cost: see bpf/README.md
 *
 * An unwind depends on the registers, on the rules, and on the words of the stack that its steps read: return
 * addresses, and saved frame pointers as far as a later step uses them. If all of these are the same as the last time,
 * then so is the stack, and comparing these words takes a fraction of the time of unwinding. Words that no step has
 * read may differ.
 *
 * Stacks are not kept if the unwind ended at memory that is not resident, or passed a signal handler, or has more than
 * MEMO_WORDS such words. A thread that runs Python has no memo, because its Python frames are not on this stack.
 *
 * One of memo_settings.check_every verified stacks is unwound all the same. If the result differs, that is counted
 * (LOST_MEMOS).
 *
 * Without USER_MEMOS, in files.c and disks.c, each stack is unwound.
 *
 * -D:
 *   MEMOS             map size, if RECORDS_IN_HASH
 *   RECORDS_IN_HASH   see offcpu.c
 */

#ifdef USER_MEMOS
#ifdef RECORDS_IN_HASH
BPF_TABLE("lru_hash", u64, struct memo, memos, MEMOS);
#else
BPF_TASK_STORAGE(memos, struct memo);
#endif
BPF_ARRAY(memo_settings, struct memo_settings, 1);
BPF_PERCPU_ARRAY(memo_counts, struct memo_counts, 1);
BPF_ARRAY(rule_generations, u32, GENERATIONS);

#define BP_OF_LEAF 1      /* in copy->bp_at */
#define COMPARED_BELOW 16 /* how much is read below a word that is compared: often the next one is there */

/* Note that the unwind has read a word of the stack, on which its result depends. */
static __always_inline void note_word(struct copy *copy, u64 at, u64 word)
{
	struct memo *memo = &copy->memo;
	u64 n = memo->words_read, offset = at - memo->sp;

	if (offset >= 8 * 65536 || offset & 7)
		n = MEMO_WORDS;
	memo->words_read = n + 1;
	asm volatile("" : "+r"(n));
	if (n >= MEMO_WORDS)
		return;
	memo->offsets[n] = offset / 8;
	if (memo->span < offset + 8)
		memo->span = offset + 8;
	memo->words[n] = word;
}

/* Note that the unwind uses the frame pointer. */
static __always_inline void note_bp(struct copy *copy)
{
	if (copy->bp_at == BP_OF_LEAF)
		copy->memo.uses_bp = 1;
	else if (copy->bp_at)
		note_word(copy, copy->bp_at, copy->head.bp);
	copy->bp_at = 0;
}

/* Note that the frame pointer is now the word at `at`. A later step shows whether the unwind depends on it. */
static __always_inline void note_saved_bp(struct copy *copy, u64 at)
{
	copy->bp_at = at;
}

/* Note that the stack depends on more than registers, rules and some words, so no memo can be made of it. */
static __always_inline void note_more(struct copy *copy)
{
	copy->memo.words_read = MEMO_WORDS + 1;
}

/* Set up copy->memo for the unwind. */
static __always_inline void begin_memo(struct copy *copy, u32 slot)
{
	struct copy_head *head = &copy->head;
	struct memo *memo = &copy->memo;
	u32 zero = 0, at = head->space % GENERATIONS, pid = head->pid;
	struct memo_settings *settings = memo_settings.lookup(&zero);
	u32 *generation = rule_generations.lookup(&at);

	memo->words_read = memo->uses_bp = memo->span = 0;
	copy->bp_at = BP_OF_LEAF;
	if (generation && *generation != memo->rule_generation) /* verified by rules that are no longer in effect */
		copy->verified_id = 0;
	if (slot != AT_SWITCH || !settings || !settings->check_every || !generation || !head->space) {
		note_more(copy);
		return;
	}
	if (copy->misses > MISSES && copy->misses % MISSES != 1)
		note_more(copy);
#ifdef HAS_PYTHON
	if (python_processes.lookup(&pid))
		note_more(copy);
#endif
	memo->misses = copy->misses;
	memo->ip = head->pc;
	memo->sp = head->sp;
	memo->bp = head->bp;
#ifdef REG_LINK
	memo->link = copy->link;
#endif
	memo->mode = *(u64 *)((char *)head->registers + REG_MODE);
	memo->pid = pid;
	memo->execs = head->execs;
	memo->space = head->space;
	memo->rule_generation = *generation;
	memo->stack_generation = settings->stack_generation;
}

/* Compare the words of the stack with those of a memo. */
static __always_inline bool has_same_words(struct copy *copy, struct memo *memo)
{
	copy->differs = copy->bytes = 0;
	ROUNDS(i, copy->round, MEMO_WORDS) {
		READ_AGAIN;
		if (i >= memo->words_read || copy->differs)
			DONE();
		u64 offset = 8 * (u64)memo->offsets[i], off = memo->sp + offset - copy->from;
		if (off >= copy->bytes) {
			off = offset < COMPARED_BELOW ? offset : COMPARED_BELOW;
			u64 bytes = memo->span - offset + off;
			asm volatile("" : "+r"(bytes));
			if (bytes > READ_BYTES)
				bytes = READ_BYTES;
			copy->from = memo->sp + offset - off;
			copy->bytes = bytes;
			copy->differs = !!bpf_probe_read_user(copy->stack, bytes, (void *)copy->from);
		}
		asm volatile("" : "+r"(off));
		off &= READ_BYTES - 1;
		copy->differs |= *(u64 *)(copy->stack + off) ^ memo->words[i];
	}
	return !copy->differs;
}

/*
 * Return the id of this thread's user stack if it is still the one of its memo; otherwise 0, also if the stack is to be
 * checked.
 */
static __always_inline u64 verified_stack(void *task, u32 pid)
{
	u32 zero = 0, at = bpf_get_smp_processor_id() * SLOTS + AT_SWITCH;
	struct copy *copy = copy_scratch.lookup(&at);
	struct memo_settings *settings = memo_settings.lookup(&zero);
	struct memo_counts *counts = memo_counts.lookup(&zero);

	if (!copy || !settings || !counts)
		return 0;
	copy->verified_id = copy->misses = 0;
	if (!settings->check_every)
		return 0;
#ifdef RECORDS_IN_HASH
	u64 key = (u64)task;
	struct memo *memo = memos.lookup(&key);
#else
	struct memo *memo = memos.task_storage_get(task, 0, 0);
#endif
	if (!memo)
		return 0;
	copy->memo.rule_generation = memo->rule_generation;
	u32 misses = memo->misses++;
	copy->misses = misses + 1;
	if (misses > MISSES && misses % MISSES > 1)
		return 0;
	at = memo->space % GENERATIONS;
	u32 *generation = rule_generations.lookup(&at);
	if (!generation)
		return 0;
	void *registers = (void *)bpf_task_pt_regs(task);
	u64 differs = (memo->ip ^ MEMBER(u64, registers, REG_IP)) | (memo->sp ^ MEMBER(u64, registers, REG_SP)) |
		      (memo->mode ^ MEMBER(u64, registers, REG_MODE)) | (memo->pid ^ pid) |
		      (memo->execs ^ MEMBER(u32, task, TASK_EXECS)) | (memo->rule_generation ^ *generation) |
		      (memo->stack_generation ^ settings->stack_generation);
	if (memo->uses_bp)
		differs |= memo->bp ^ MEMBER(u64, registers, REG_BP);
#ifdef REG_LINK
	differs |= memo->link ^ MEMBER(u64, registers, REG_LINK);
#endif
	if (differs || !has_same_words(copy, memo))
		return 0;
	memo->misses = copy->misses = 0;
	counts->verified += 1;
	counts->unchecked += 1;
	if (counts->unchecked < settings->check_every)
		return memo->id;
	counts->unchecked = 0;
	copy->verified_id = memo->id;
	return 0;
}

/* Keep the stack that was unwound, if a memo can be made of it, and compare it with the one that was verified. */
static __always_inline void learn_stack(struct copy *copy, u64 id, void *task)
{
	u32 zero = 0, at = copy->head.space % GENERATIONS;
	struct memo_counts *counts = memo_counts.lookup(&zero);
	u32 *generation = rule_generations.lookup(&at);

	if (!counts || !generation || id < FIRST_ID)
		return;
	counts->walked += 1;
	if (*(volatile u32 *)generation != copy->memo.rule_generation) /* part of it may have followed other rules */
		return;
	if (copy->verified_id) {
		counts->checked += 1;
		if (copy->verified_id != id) {
			counts->disagreements += 1;
			count_lost(LOST_MEMOS);
		}
	}
	if (copy->memo.words_read > MEMO_WORDS || copy->head.end == END_MEMORY)
		return;
	copy->memo.id = id;
#ifdef RECORDS_IN_HASH
	u64 key = (u64)task;
	memos.update(&key, &copy->memo);
#else
	struct memo *memo = memos.task_storage_get(task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (memo)
		bpf_probe_read_kernel(memo, sizeof(*memo), &copy->memo);
#endif
}
#else
#define note_word(copy, at, word)
#define note_bp(copy)
#define note_saved_bp(copy, at)
#define note_more(copy)
#endif
