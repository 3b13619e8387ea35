// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * What ended a wait, through which code, and what had the waker itself waited for?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: sched_waking, in the thread that wakes another one, or in an interrupt that hit some thread
 *
 * maps
 *   wakers    by hash: a thread or interrupt, and its stacks
 *   wakes     by hash: what ended a wait: a waker, the object waited on, and the chain behind the waker
 *   storms_*  bursts of wakeups, in a double buffer like that of the sites
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * The waker's stacks are unwound only if the sleeper has waited for the minimum. An interrupt's stack is cut at the
 * entry of the interrupt: the frames below are those of an unrelated thread. But a thread that returns from an
 * interrupt to user space handles signals, and may exit: wakeups from there are its own.
 *
 * A chain is built from what is already known: what ended a thread's last wait is kept in its record, and is copied
 * into the wakes of the threads that it wakes. So no events are sent to user space.
 *
 * -D: WAKES, STORMS (map sizes)
 */

BPF_TABLE("hash", u64, struct waker, wakers, WAKES);
BPF_TABLE("hash", u64, struct wake, wakes, WAKES);
BPF_TABLE("hash", struct storm_key, struct storm, storms_0, STORMS);
BPF_TABLE("hash", struct storm_key, struct storm, storms_1, STORMS);

/* Bursts of interrupts, and of threads that are not counted. */
BPF_PERCPU_ARRAY(burst_of_cpu, struct burst, 1);

/*
 * A wakeup being recorded. Too large for the BPF stack, and in memory because the verifier tracks no values there
 * (unwind.c). Wakeups hold a lock with interrupts off, so an entry is not used twice at once.
 */
struct waking {
	struct wake wake;
	struct waker waker;
	u64 interrupted; /* number of stack frames of the interrupt that is the waker; 0: the waker is a thread */
	u64 returning;   /* 1: the waker is a thread returning from an interrupt, whose entry code is on the stack */
	u64 depth;
};
BPF_PERCPU_ARRAY(waking_scratch, struct waking, 1);

static __always_inline u64 kept_id(struct hash *hash, struct hash_keys *keys)
{
	u64 id = hash_end(hash, keys) & ~OBJECT_ID_BIT;

	return id < FIRST_ID ? id + FIRST_ID : id;
}

static __always_inline void add_to_storm(u32 which, struct storm_key *burst, u64 waker, u64 woken, u64 brief_runs,
					 bool make)
{
	struct storm_key key = {.at_ns = burst->at_ns, .by = burst->by};
	struct storm *storm = which ? storms_1.lookup(&key) : storms_0.lookup(&key);

	if (!storm && make) {
		struct storm blank = {};
		if (which)
			storms_1.update(&key, &blank);
		else
			storms_0.update(&key, &blank);
		storm = which ? storms_1.lookup(&key) : storms_0.lookup(&key);
		if (!storm)
			count_lost(LOST_WAKES);
	}
	if (!storm)
		return;
	if (waker)
		storm->waker = waker;
	storm->begun |= woken == STORM;
	if (woken)
		__sync_fetch_and_add(&storm->woken, woken);
	if (brief_runs)
		__sync_fetch_and_add(&storm->brief_runs, brief_runs);
}

/*
 * Count it in the storm if the thread ran only briefly. Called when a thread that was woken in a burst is switched out
 * by itself.
 */
static __always_inline void count_brief_run(struct record *r, u32 which, u64 now_ns)
{
	if (now_ns - r->switched_in_ns < BRIEF_RUN_NS)
		add_to_storm(which, &r->storm, 0, 0, 1, r->storm.is_storm);
	r->storm.at_ns = 0;
}

/* Count a wakeup in the waker's current burst, and in a storm once that has STORM wakeups. */
static __always_inline void add_to_burst(struct record *r, struct record *of_waker, struct waker *waker, u64 plain,
					 u64 now_ns)
{
	u32 zero = 0, by = bpf_get_smp_processor_id() | BY_CPU;
	struct burst *b = burst_of_cpu.lookup(&zero);
	u32 *active = active_buffer.lookup(&zero);
	struct hash_keys *keys = hash_keys();
	struct hash hash = {};
	u64 ip = 0;

	if (!b || !active || !keys)
		return;
#ifdef REG_IP
	if (waker->tid) /* instead of the user stack, which may be more complete at the next wakeup */
		bpf_probe_read_kernel(&ip, sizeof(ip), (char *)bpf_task_pt_regs(current_task()) + REG_IP);
#endif
	hash_word(&hash, waker->kernel, &keys->words[0]);
	hash_word(&hash, waker->tid, &keys->words[1]);
	hash_word(&hash, ip, &keys->words[2]);
	u64 path = hash_end(&hash, keys);
	if (of_waker) {
		b = &of_waker->burst;
		by = waker->tid;
	}
	if (b->path != path || (s64)(now_ns - b->last_ns) > BURST_NS) {
		b->path = path;
		b->first_ns = now_ns;
		b->wakings = 0;
	} else if (r->storm.by == by && r->last_burst_ns == b->first_ns) {
		b->last_ns = now_ns; /* the same thread woken again counts once */
		return;
	}
	b->last_ns = now_ns;
	b->wakings += 1;
	r->last_burst_ns = b->first_ns;
	r->storm.by = by;
	r->storm.at_ns = b->first_ns;
	r->storm.is_storm = b->wakings >= STORM;
	r->switched_in_ns = ~0ULL; /* keeps now_ns - switched_in_ns large until it is switched in */
	if (b->wakings >= STORM)
		add_to_storm(*(volatile u32 *)active & 1, &r->storm, plain, b->wakings == STORM ? STORM : 1, 0, true);
}

static __always_inline bool is_in_code(struct code *code, u64 frame)
{
	return frame - code->start < code->bytes;
}

/* Return the id of the waker's kernel stack. If it is an interrupt, the stack is cut at its entry. */
static __always_inline u64 waker_kernel_stack(void *ctx, struct config *c, struct waking *w)
{
	u32 slot = AT_WAKING;
	struct stack *stack = (struct stack *)scratch.lookup(&slot);

	w->depth = stack ? unwind_kernel(ctx, stack) : 0;
	if (!stack || !w->depth)
		return STACK_LOST;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < FRAMES; i++) {
		READ_AGAIN;
		if (i >= w->depth)
			continue;
		u64 frame = stack->frames[i];
		if (w->interrupted)
			stack->frames[i] = 0;
		else if (is_in_code(&c->interrupts[0], frame) || is_in_code(&c->interrupts[1], frame))
			w->interrupted = w->returning ? 0 : i + 1;
		else if (is_in_code(&c->returns[0], frame) || is_in_code(&c->returns[1], frame) ||
			 is_in_code(&c->returns[2], frame) || is_in_code(&c->returns[3], frame))
			w->returning = 1;
	}
	return keep_kernel_stack(stack, w->interrupted ? w->interrupted : w->depth);
}

static __always_inline u64 keep_waker(struct waker *w)
{
	u64 *name = (u64 *)w->comm;
	struct hash_keys *keys = hash_keys();
	struct hash hash = {};

	if (!keys)
		return WAKE_LOST;
	hash_word(&hash, w->kernel, &keys->words[0]);
	hash_word(&hash, w->user, &keys->words[1]);
	hash_word(&hash, (u64)w->pid << 32 | w->tid, &keys->words[2]);
	hash_word(&hash, name[0], &keys->words[3]);
	hash_word(&hash, name[1], &keys->words[4]);
	u64 id = kept_id(&hash, keys);
	if (wakers.lookup(&id) || !wakers.update(&id, w))
		return id;
	count_lost(LOST_WAKES);
	return WAKE_LOST;
}

/* Build the chain behind the waker whose record is `r`: what ended its last wait, and so on, up to `depth`. */
static __always_inline void find_chain(struct wake *wake, struct record *r, u32 depth)
{
	u64 id = r ? r->wake : NO_WAKE;
	struct wake *previous = id < FIRST_ID ? 0 : wakes.lookup(&id);

	wake->depth = 0;
	wake->end = previous ? FIRST_ID : id < FIRST_ID ? id : WAKE_LOST;
	if (!previous && id >= FIRST_ID)
		count_lost(LOST_CHAINS);
	if (!previous)
		return;
	wake->links[0].kernel = r->last_kernel;
	wake->links[0].user = r->last_user;
	wake->links[0].waker = previous->plain;
	wake->depth = 1;
	wake->end = previous->end;
#pragma unroll
	for (u32 i = 1; i < LINKS; i++) {
		if (i > previous->depth)
			continue;
		if (i + 1 >= depth) {
			wake->end = FIRST_ID;
			continue;
		}
		wake->links[i] = previous->links[i - 1];
		wake->depth = i + 1;
	}
	if (previous->depth >= LINKS)
		wake->end = FIRST_ID;
}

static __always_inline u64 id_of_wake(struct wake *wake)
{
	struct hash_keys *keys = hash_keys();
	struct hash hash = {};

	if (!keys)
		return WAKE_LOST;
	u64 *key = &keys->words[OBJECT_WORDS];
	hash_object(&hash, &wake->object, keys);
	hash_word(&hash, wake->waker, key);
	hash_word(&hash, (u32)wake->depth << 16 | wake->end, key + 1);
#pragma unroll
	for (u32 i = 0; i < LINKS; i++) {
		if (i >= wake->depth)
			continue;
		hash_word(&hash, wake->links[i].kernel, key + 2 + 3 * i);
		hash_word(&hash, wake->links[i].user, key + 3 + 3 * i);
		hash_word(&hash, wake->links[i].waker, key + 4 + 3 * i);
	}
	return kept_id(&hash, keys);
}

/* Record what wakes the off-CPU thread `task`, whose record is `r`. */
static __always_inline void find_waker(void *ctx, struct config *c, struct record *r, struct task_struct *task)
{
	u32 zero = 0;
	u64 now_ns = bpf_ktime_get_ns(), host = bpf_get_current_pid_tgid();
	u32 pid = host >> 32, tid = host;
	struct task_struct *current = current_task();
	struct waking *w = waking_scratch.lookup(&zero);

	u64 off_ns = elapsed_ns(r->switched_out_ns, now_ns);
	struct thinning *t = thinning_of_cpu();
	if (t)
		end_period(c, t, now_ns);
	if (off_ns < c->requested_min_ns ||
	    (t && off_ns < raised_min_ns(c, t->level) && off_ns < c->least_threshold_ns)) {
		r->wake = WAKE_SHORT;
		return;
	}
	r->wake = WAKE_LOST;
	if (!w)
		return;
#ifdef TYPED_WAKING
	find_object(&w->wake.object, task, AT_WAKING);
#else /* in other program types the verifier does not know the task whose registers would be read */
	__builtin_memset(&w->wake.object, 0, sizeof(w->wake.object));
#endif
	__builtin_memset(&w->waker, 0, sizeof(w->waker));
	w->interrupted = w->returning = 0;
	w->waker.kernel = waker_kernel_stack(ctx, c, w);
	struct record *of_waker = 0; /* NULL if the waker is not counted, or was not selected when it waited */
	if (!w->interrupted && find_shown_ids(current, host, &pid, &tid)) {
		u32 flags = MEMBER(u32, current, TASK_FLAGS);
		w->waker.pid = pid;
		w->waker.tid = tid;
		bpf_get_current_comm(w->waker.comm, sizeof(w->waker.comm));
		w->waker.user = user_stack(ctx, AT_WAKING, current, pid, tid, flags);
		of_waker = record_of(current, false);
		if (of_waker &&
		    (of_waker->selection != c->selection || !is_selected(c, current, true, pid, tid, flags)))
			of_waker = 0;
	}
#ifndef PROBE_SWITCH
	if (t)
		charge_stacks(c, t, now_ns);
#endif
	w->wake.waker = w->wake.plain = keep_waker(&w->waker);
	if (w->wake.waker == WAKE_LOST)
		return;
	if (w->waker.user & COPIED) {
		w->waker.user = NO_STACK;
		w->wake.plain = keep_waker(&w->waker);
	}
	add_to_burst(r, of_waker, &w->waker, w->wake.plain, now_ns);
	find_chain(&w->wake, c->depth > 1 ? of_waker : 0, c->depth);
	u64 id = id_of_wake(&w->wake);
	if (wakes.lookup(&id) || !wakes.update(&id, &w->wake))
		r->wake = id;
	else
		count_lost(LOST_WAKES);
}
