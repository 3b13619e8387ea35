// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which user stack does each thread leave the CPU with, and with which registers?
 *
 * hooks   raw_tp sched_switch, in the thread that leaves
 * maps    left: the last time of each thread
 *
 * For tests only. -D: USER_IP, USER_SP, USER_FP (offsets in pt_regs).
 */
#define FRAMES 127

struct left { u64 ip; u64 sp; u64 fp; s64 bytes; u64 at[FRAMES]; };

BPF_HASH(left, u32, struct left, 4096);
BPF_PERCPU_ARRAY(scratch, struct left, 1);

int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0, tid = bpf_get_current_pid_tgid();
	struct left *l = scratch.lookup(&zero);

	if (!l || !tid)
		return 0;
	char *regs = (void *)bpf_task_pt_regs((void *)bpf_get_current_task_btf());
	bpf_probe_read_kernel(&l->ip, sizeof(l->ip), regs + USER_IP);
	bpf_probe_read_kernel(&l->sp, sizeof(l->sp), regs + USER_SP);
	bpf_probe_read_kernel(&l->fp, sizeof(l->fp), regs + USER_FP);
	l->bytes = bpf_get_stack(ctx, l->at, sizeof(l->at), BPF_F_USER_STACK);
	left.update(&tid, l);
	return 0;
}
