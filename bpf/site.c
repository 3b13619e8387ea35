// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * At which site does an ended wait count: at which stack, on which object, or at none?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: none of its own. Runs at the end of each wait
 *
 * maps
 *   sites_*         ended waits by stack, in a double buffer
 *   object_sites    per buffer: how many of these sites exist because of their object (object.c)
 *   ended_scratch   the wait that is being counted
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * -D: SITES    map size
 */

BPF_TABLE("hash", struct site_key, struct site, sites_0, SITES);
BPF_TABLE("hash", struct site_key, struct site, sites_1, SITES);
BPF_ARRAY(object_sites, u64, 2);
BPF_ARRAY(blank_site, struct site, 1); /* never written, because it is too large for the BPF stack */

/*
 * A wait that has ended. It is kept in a map, where the verifier tracks no values: otherwise the verifier would follow
 * the rest of the program once for each path through the unwinding of stacks.
 */
struct ended {
	struct site_key key;
	u64 switched_out_ns;
	u64 off_ns;
	u64 runqueue_ns;
	u32 which; /* which buffer of the sites */
	u32 lane;  /* histogram bucket */
};
BPF_PERCPU_ARRAY(ended_scratch, struct ended, 1);

/*
 * Return the site of a wait, and create it if there is none yet.
 *
 * Threads that wait on a new object each time would fill the map of sites. So beyond a limit per tick, for one thread
 * and for all, new sites are kept without their object. This code has nearly no branches, because the verifier reaches
 * it on many paths.
 */
static __always_inline struct site *site_of(u32 which, struct site_key *key, struct thread *thread)
{
	struct site *site = which ? sites_1.lookup(key) : sites_0.lookup(key);
	u32 zero = 0;

	if (site)
		return site;
	struct site *blank = blank_site.lookup(&zero);
	if (!blank)
		return 0;
	u64 is_object = key->wake >> 63, has_room = ((u64)thread->objects - MAX_OBJECTS) >> 63;
	key->wake = is_object & ~has_room ? WAKE_NO_ROOM : key->wake;
	thread->objects += is_object & has_room;
	u64 *count = object_sites.lookup(&which);
	if (count)
		__sync_fetch_and_add(count, is_object & has_room);
	count_added(1);
	if (which)
		sites_1.insert(key, blank);
	else
		sites_0.insert(key, blank);
	return which ? sites_1.lookup(key) : sites_0.lookup(key);
}

static __always_inline u32 count_short(struct thread *thread, struct ended *e)
{
	thread->short_waits += 1;
	thread->short_ns += e->off_ns;
	thread->short_runqueue_ns += e->runqueue_ns;
	return KIND_SHORT;
}

/*
 * Count a wait that gets no stack because it is filtered out or short. Return its kind, or KIND_NONE if it gets one.
 */
static __always_inline u32 count_without_site(struct config *c, u32 state, struct thread *thread, struct ended *e)
{
	if (e->off_ns > c->max_ns || !(state & c->states)) {
		thread->filtered_waits += 1;
		thread->filtered_ns += e->off_ns;
		thread->filtered_runqueue_ns += e->runqueue_ns;
		return KIND_FILTERED;
	}
	if (e->off_ns < c->requested_min_ns)
		return count_short(thread, e);
	return KIND_NONE;
}

/* Count a wait at its site. Return its kind. */
static __always_inline u32 count_at_site(u32 which, struct thread *thread, struct ended *e)
{
	struct site *site = site_of(which, &e->key, thread);

	if (!site) {
		count_lost(LOST_SITES);
		thread->lost_waits += 1;
		thread->lost_ns += e->off_ns;
		thread->lost_runqueue_ns += e->runqueue_ns;
		return KIND_LOST;
	}
	site->waits += 1;
	site->total_ns += e->off_ns;
	site->runqueue_ns += e->runqueue_ns;
	if (e->off_ns > site->max_ns)
		site->max_ns = e->off_ns;
	count_in_histogram(site->histogram, e->lane);
	return KIND_SITE;
}

/* Count a wait of any kind in its thread. */
static __always_inline void count_wait(struct thread *thread, struct ended *e, u32 kind)
{
	if (!thread->waits) {
		thread->first_kind = kind;
		thread->first_switched_out_ns = e->switched_out_ns;
		thread->first_off_ns = e->off_ns;
		thread->first_runqueue_ns = e->runqueue_ns;
		thread->first_kernel = e->key.kernel;
		thread->first_user = e->key.user;
		thread->first_wake = e->key.wake;
	}
	thread->switched_out_ns = 0;
	thread->waits += 1;
	thread->offcpu_ns += e->off_ns;
	thread->runqueue_ns += e->runqueue_ns;
	if (e->off_ns > thread->max_ns)
		thread->max_ns = e->off_ns;
	count_in_histogram(thread->histogram, e->lane);
}
