// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which waits reached an outlier threshold?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: none of its own. Runs at the end of each wait that reached the lowest threshold
 *
 * maps
 *   thresholds    outlier thresholds by program and kernel stack, written by user space
 *   outliers      ring buffer of the waits that reached them
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * -D:
 *   THRESHOLDS    map size
 *   OUTLIERS      ring buffer size in pages; not set if ring buffers are not safe on this kernel
 */

#ifdef OUTLIERS
BPF_TABLE("hash", struct threshold_key, struct threshold, thresholds, THRESHOLDS);
BPF_RINGBUF_OUTPUT(outliers, OUTLIERS);
BPF_PERCPU_ARRAY(outlier_scratch, struct outlier, 1);

/*
 * Report a wait that reached the lowest outlier threshold, unless it is below the threshold of its own program and
 * stack, which user space may not have set yet.
 */
static __always_inline void report_outlier(struct record *r, void *task, struct site_key *key, u64 switched_out_ns,
					   u64 off_ns, u64 runqueue_ns)
{
	u32 zero = 0;
	struct outlier *o = outlier_scratch.lookup(&zero);

	if (!o)
		return;
	void *main_thread = task;
#ifdef TASK_LEADER
	bpf_probe_read_kernel(&main_thread, sizeof(main_thread), (char *)task + TASK_LEADER);
#endif
	o->threshold.kernel = key->kernel;
	bpf_probe_read_kernel(o->threshold.program, sizeof(o->threshold.program), (char *)main_thread + TASK_COMM);
	struct threshold *threshold = thresholds.lookup(&o->threshold);
	if (threshold && off_ns - runqueue_ns < threshold->blocked_ns && runqueue_ns < threshold->runqueue_ns)
		return;
	o->switched_out_ns = switched_out_ns;
	o->switched_in_ns = switched_out_ns + off_ns;
	o->runqueue_ns = runqueue_ns;
	o->kernel = key->kernel;
	o->user = key->user;
	o->wake = key->wake;
	o->pid = r->pid;
	o->tid = r->tid;
	o->state = r->state;
	o->cpu = bpf_get_smp_processor_id();
	if (outliers.ringbuf_output(o, sizeof(*o), BPF_RB_NO_WAKEUP))
		count_lost(LOST_OUTLIERS);
}
#endif
