// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Through which code of its own program did a thread get to where it waits?
 *
 * Part of offcpu.c, files.c and disks.c, which include it (offtop/kernel/bpf/compile.py replaces the #include by this
 * text, because bcc rewrites map calls in the main file only). Stacks are unwound by the programs of these files; the
 * hooks below, which belong to offcpu.c, only keep `spaces` and `python_processes` up to date. This file includes
 * python.c, which reads Python frames, and unwind.c, which unwinds by rules.
 *
 * hooks: raw_tp sched_process_fork (a child has its parent's code), sched_process_exec (the code is replaced)
 *
 * maps
 *   user_stacks       frames by stack id
 *   execs             by process: self_exec_id after its last exec
 *
 * cost: see bpf/README.md
 *
 * Two waits have the same stack only if all addresses match: no heuristics merge similar stacks.
 *
 * Without UNWIND_KB, stacks are only unwound by the kernel, along frame pointers.
 *
 * -D:
 *   STACKS, EXECS   map sizes
 *   UNWIND_KB       unwind by rules
 *   USER_STACKS     0: no user stacks
 */

BPF_TABLE("hash", u64, struct stack, user_stacks, STACKS);
BPF_TABLE("lru_hash", u32, u32, execs, EXECS);
/*
 * Too large for the BPF stack. Two slots, because an interrupt may wake a thread while another stack is being unwound.
 */
enum { AT_SWITCH, AT_WAKING, SLOTS };

/*
 * A stack on its way to its map, together with the keys of its id: a separate pointer to these would have to be tracked
 * by the verifier through all of the unwinding.
 */
struct scratch {
	struct stack stack;
	struct hash_keys keys;
	struct hash hash; /* of the words so far */
};
BPF_PERCPU_ARRAY(scratch, struct scratch, SLOTS);

static __always_inline struct hash_keys *hash_keys(void)
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
static __always_inline u64 id_of(struct stack *stack, u32 depth)
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

#include "python.c"

static __always_inline u64 keep_user_stack(u32 slot, struct stack *stack, u32 depth)
{
	u32 total = with_python(slot, stack, depth);
	stack->end |= (u64)MEMBER(u32, current_task(), TASK_EXECS) << END_EXECS_SHIFT;
	u64 id = id_of(stack, total);

	if (user_stacks.lookup(&id))
		return id;
	if (user_stacks.update(&id, stack))
		return STACK_LOST;
	count_added(USER_STACK_ENTRIES);
	return id;
}

/* Unwind the user stack along frame pointers, with the kernel's own unwinder. */
static __always_inline u64 frame_pointer_stack(void *ctx, u32 slot)
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
#include "unwind.c"

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

static __always_inline u64 user_stack(void *ctx, u32 slot, void *task, u32 pid, u32 tid, u32 flags)
{
#if USER_STACKS
	if (flags & PF_KTHREAD || IS_OUTSIDE(pid)) /* the files of processes outside cannot be read */
		return NO_STACK;
#if defined(UNWIND_KB) && defined(USER_MEMOS)
	u64 verified_id = slot == AT_SWITCH ? verified_stack(task, pid) : 0;
	if (verified_id)
		return verified_id;
#endif
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
