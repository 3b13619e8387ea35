// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Through which code of the kernel did a thread get to where it waits?
 *
 * Part of offcpu.c and of disks.c, which include it after userstack.c (offtop/kernel/bpf/compile.py replaces the
 * #include by this text).
 *
 * hooks: none of its own
 *
 * maps
 *   kernel_stacks    frames by stack id
 *
 * cost: see bpf/README.md
 *
 * -D: KERNEL_STACKS    map size
 */

BPF_TABLE("hash", u64, struct stack, kernel_stacks, KERNEL_STACKS);

static __always_inline u64 keep_kernel_stack(struct stack *stack, u32 depth)
{
	stack->frames[FRAMES] = stack->end = 0;
	u64 id = id_of(stack, depth);
	if (kernel_stacks.lookup(&id))
		return id;
	if (kernel_stacks.update(&id, stack)) {
		count_lost(LOST_STACKS);
		return STACK_LOST;
	}
	count_added(1);
	return id;
}

/* Unwind the kernel stack and return the number of frames; 0 if that failed, which is counted. */
static __always_inline u32 unwind_kernel(void *ctx, struct stack *stack)
{
	long bytes = bpf_get_stack(ctx, stack->frames, FRAMES * sizeof(u64), 0);

	if (bytes > 0)
		return (u32)bytes / 8;
	count_lost(LOST_STACKS);
	return 0;
}

static __always_inline u64 kernel_stack(void *ctx)
{
	u32 slot = AT_SWITCH;
	struct stack *stack = (struct stack *)scratch.lookup(&slot);
	u32 depth = stack ? unwind_kernel(ctx, stack) : 0;

	return depth ? keep_kernel_stack(stack, depth) : STACK_LOST;
}
