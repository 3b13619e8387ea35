// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which waits get a stack, if there are so many that the stacks would take too much of a CPU's time?
 *
 * Part of offcpu.c, files.c and disks.c, which include it (offtop/kernel/bpf/compile.py replaces the #include by this
 * text).
 *
 * maps
 *   thinning   per CPU: time spent on stacks, and the minimum that follows from it
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: one more clock reading per wait that gets a stack
 *
 * Each CPU may spend config.stacks_ns of a second on the stacks of waits, wakers, calls and requests. Whenever that is
 * used up, the minimum doubles there, up to THIN_BELOW_NS. It halves again after a second in which the stacks, together
 * with those that half the minimum would have added, would have taken at most three quarters of it: so it does not
 * oscillate.
 * Waits below the raised minimum count as short waits, so no sum and no run-queue time changes.
 *
 * PROBE_SWITCH unwinds stacks before it knows how long the wait will be, so there only user space raises the minimum.
 *
 * on_exit() runs with interrupts on: a wakeup in an interrupt may change this state between any two of its accesses. At
 * worst one stack is charged to the wrong period.
 */
BPF_PERCPU_ARRAY(thinning, struct thinning, 1);

static __always_inline struct thinning *thinning_of_cpu(void)
{
	u32 zero = 0;

	return thinning.lookup(&zero);
}

/* Return the minimum of a CPU that has doubled it `level` times. */
static __always_inline u64 raised_min_ns(struct config *c, u64 level)
{
	u64 lowest_ns = c->min_ns > LOWEST_MIN_NS ? c->min_ns : LOWEST_MIN_NS;
	u64 most_ns = c->min_ns > THIN_BELOW_NS ? c->min_ns : THIN_BELOW_NS;
	u64 raised_ns = lowest_ns << (level & 31);

	return !level ? c->min_ns : raised_ns < most_ns ? raised_ns : most_ns;
}

/* Return the time since `then_ns`, or 0 if that is later: an interrupt has set it, or the clock was adjusted. */
static __always_inline u64 elapsed_ns(u64 then_ns, u64 now_ns)
{
	return now_ns > then_ns ? now_ns - then_ns : 0;
}

/*
 * End the period if it is over, and lower the minimum if the load allows it. It lasted longer if there were no waits
 * after its first second: each further second lowers the minimum, too.
 */
static __always_inline void end_period(struct config *c, struct thinning *t, u64 now_ns)
{
	u64 passed_ns = elapsed_ns(t->since_ns, now_ns);

	if (passed_ns < THIN_PERIOD_NS)
		return;
	u64 periods = passed_ns / THIN_PERIOD_NS;
	u64 each_ns = t->stacks ? t->stacks_ns / t->stacks : 0;
	u64 more_ns = t->next_waits * each_ns * (c->depth ? 2 : 1); /* the stacks of its waker cost about as much */
	u64 down = periods - (t->stacks_ns + more_ns > c->stacks_ns / 4 * 3);
	t->level = t->level > down ? t->level - down : 0;
	t->since_ns = now_ns;
	t->stacks_ns = t->stacks = t->next_waits = 0;
}

/*
 * Return whether a wait that reached the requested minimum gets no stack all the same, and count it then. A wait that
 * may be an outlier always gets one.
 */
static __always_inline bool is_thinned(struct config *c, struct thinning *t, u64 now_ns, u64 off_ns)
{
	end_period(c, t, now_ns);
	if (off_ns >= raised_min_ns(c, t->level) || off_ns >= c->least_threshold_ns)
		return false;
	if (elapsed_ns(t->sampled_ns, now_ns) >= THIN_SAMPLE_NS) {
		t->sampled_ns = now_ns;
		return false;
	}
	t->next_waits += t->level && off_ns >= raised_min_ns(c, t->level - 1);
	t->waits += 1;
	t->waits_ns += off_ns;
	return true;
}

/*
 * Return whether a request gets stacks, of which nobody knows yet how long it will take: it does if one like it, of the
 * same disk or process, has been slow within the last second, and so does one per CPU and THIN_SAMPLE_NS. `slow_ns`:
 * when one was; `sampled_ns`: when this CPU took the last sample. Either may be NULL.
 */
static __always_inline bool may_be_slow(struct config *c, struct thinning *t, u64 *slow_ns, u64 *sampled_ns, u64 now_ns)
{
	end_period(c, t, now_ns);
	if (!t->level && (!c->min_ns || (slow_ns && elapsed_ns(*slow_ns, now_ns) < SLOW_NS)))
		return true;
	if (!sampled_ns || elapsed_ns(*sampled_ns, now_ns) < THIN_SAMPLE_NS)
		return false;
	*sampled_ns = now_ns;
	return true;
}

/*
 * Charge this CPU for the stacks of a wait or a waker that were begun at `began_ns`, and raise the minimum if its time
 * is used up.
 */
static __always_inline void charge_stacks(struct config *c, struct thinning *t, u64 began_ns)
{
	u64 now_ns = bpf_ktime_get_ns(), took_ns = elapsed_ns(began_ns, now_ns);

	t->stacks_ns += took_ns < MOST_STACKS_NS ? took_ns : MOST_STACKS_NS;
	t->stacks += 1;
	if (t->stacks_ns <= c->stacks_ns || raised_min_ns(c, t->level) >= THIN_BELOW_NS)
		return;
	t->level += 1;
	t->since_ns = now_ns;
	t->stacks_ns = t->stacks = t->next_waits = 0;
}
