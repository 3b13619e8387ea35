// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which waits get a stack, if there are so many that the stacks would take too much of a CPU's time?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * maps
 *   thinning   per CPU: time spent on stacks, and the minimum that follows from it
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: one more clock reading per wait that gets a stack
 *
 * Each CPU may spend config.stacks_ns of a second on the stacks of waits and wakers. Whenever that is used up, the
 * minimum doubles there, up to THIN_BELOW_NS. It halves again after a second in which the waits that half the minimum
 * would let through would let through would have used up at most three quarters, so it does not move back and forth. Waits below
 * the raised minimum count as short waits, so no sum and no run-queue time changes.
 *
 * PROBE_SWITCH walks stacks before it knows how long the wait will be, so there only user space raises the minimum.
 */
BPF_PERCPU_ARRAY(thinning, struct thinning, 1);

static inline __attribute__((always_inline)) struct thinning *thinning_of_cpu(void)
{
	u32 zero = 0;

	return thinning.lookup(&zero);
}

/* Return the minimum of a CPU that has doubled it `level` times. */
static inline __attribute__((always_inline)) u64 raised_min_ns(struct config *c, u64 level)
{
	u64 lowest_ns = c->min_ns > LOWEST_MIN_NS ? c->min_ns : LOWEST_MIN_NS;
	u64 most_ns = c->min_ns > THIN_BELOW_NS ? c->min_ns : THIN_BELOW_NS;
	u64 raised_ns = lowest_ns << (level & 31);

	return !level ? c->min_ns : raised_ns < most_ns ? raised_ns : most_ns;
}

/* End a period, which lasted longer if there were no waits. Lower the minimum if the load allows it. */
static inline __attribute__((always_inline)) void end_period(struct config *c, struct thinning *t, u64 now_ns)
{
	u64 periods = (now_ns - t->since_ns) / THIN_PERIOD_NS;
	u64 each_ns = t->stacks ? t->stacks_ns / t->stacks : 0;

	if (t->stacks_ns + t->next_waits * each_ns <= c->stacks_ns / 4 * 3 * periods)
		t->level = t->level > periods ? t->level - periods : 0;
	t->since_ns = now_ns;
	t->stacks_ns = t->stacks = t->next_waits = 0;
}

/*
 * Return whether a wait that reached the requested minimum gets no stack all the same, and count it then. A wait that
 * may be an outlier always gets one.
 */
static inline __attribute__((always_inline)) bool is_thinned(struct config *c, struct thinning *t, u64 now_ns, u64 off_ns)
{
	if (now_ns - t->since_ns >= THIN_PERIOD_NS)
		end_period(c, t, now_ns);
	if (off_ns >= raised_min_ns(c, t->level) || off_ns >= c->least_threshold_ns)
		return false;
	if (now_ns - t->sampled_ns >= THIN_SAMPLE_NS) {
		t->sampled_ns = now_ns;
		return false;
	}
	t->next_waits += t->level && off_ns >= raised_min_ns(c, t->level - 1);
	t->waits += 1;
	t->waits_ns += off_ns;
	return true;
}

/* Charge this CPU for a stack that was begun at `began_ns`, and raise the minimum if its time is used up. */
static inline __attribute__((always_inline)) void charge_stack(struct config *c, struct thinning *t, u64 began_ns)
{
	u64 now_ns = bpf_ktime_get_ns();

	t->stacks_ns += now_ns - began_ns;
	t->stacks += 1;
	if (t->stacks_ns <= c->stacks_ns || raised_min_ns(c, t->level) >= THIN_BELOW_NS)
		return;
	t->level += 1;
	t->since_ns = now_ns;
	t->stacks_ns = t->stacks = t->next_waits = 0;
}
