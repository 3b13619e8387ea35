// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which waits happen inside of one function of a program, and how long does that function take?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: uprobes at the function's entry, and at each instruction that may leave it
 *
 * maps
 *   within_call   per thread: its call in progress
 *   within_calls  all calls that ended, in a double buffer, per CPU
 *   within_now    calls in progress, as the last scan found them
 *
 * units: ns of bpf_ktime_get_ns()
 *
 * cost: see bpf/README.md
 *
 * There is no uretprobe: the kernel implements it by replacing the return address on the stack, which kills a C++
 * program that throws through the function, truncates every user stack there, and breaks Go.
 *
 * A call is identified by where its return address is: the stack grows downwards, so calls and returns deeper than that
 * are inside of it, and any higher up mean that it was left, by longjmp or an exception. At each switch-out it is
 * checked that the program's stack pointer is still deeper, and that the return address is still there: code that is
 * called after such an exit overwrites it. A coroutine that switches stacks is mistaken for such an exit.
 *
 * -D: WITHIN (not set: every wait counts, and this file costs nothing)
 */

#ifdef WITHIN
struct call {
	u64 sp; /* address of its return address; 0: no call */
	u64 returns_to;
	u64 began_ns;
	u64 offcpu_ns; /* sum of the ended waits in it */
	u64 runqueue_ns;
};

struct calls {
	u64 returned;
	u64 abandoned; /* left by longjmp or an exception, or the thread exited: duration unknown */
	u64 total_ns;  /* this and the fields below: of the calls that returned */
	u64 offcpu_ns;
	u64 runqueue_ns;
	u64 max_ns;
	u64 histogram[LANES];
};

struct calls_now {
	u64 calls;
	u64 began_ns; /* of the oldest */
	u64 tid;      /* of the last one seen: a scan may see a thread twice in a row */
};

BPF_PERCPU_ARRAY(within_calls, struct calls, 2);
BPF_ARRAY(within_now, struct calls_now, 1);
#ifdef RECORDS_IN_HASH
BPF_TABLE("hash", u64, struct call, within_call, THREADS);
#else
BPF_TASK_STORAGE(within_call, struct call);
#endif

static __always_inline struct call *call_of(void *task, bool make)
{
#ifdef RECORDS_IN_HASH
	u64 key = (u64)task;
	struct call *call = within_call.lookup(&key);
	if (call || !make)
		return call;
	struct call blank = {};
	within_call.insert(&key, &blank);
	call = within_call.lookup(&key);
#else
	struct call *call = within_call.task_storage_get(task, 0, make ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
#endif
	if (!call && make)
		count_lost(LOST_THREADS);
	return call;
}

/*
 * Drop the current thread's wait in progress if there is one: its end was missed, because the thread runs. Otherwise
 * the next switch-in, outside of the function, would end it.
 */
static __always_inline void drop_missed_wait(u32 which)
{
	struct record *r = record_of(current_task(), false);

	if (!r || !r->switched_out_ns)
		return;
	struct thread *thread = which ? &r->buffers[1] : &r->buffers[0];
	count_lost(LOST_EVENTS);
	thread->state = r->state;
	thread->tid_acquired_ns = r->tid_acquired_ns;
	thread->switched_out_ns = r->switched_out_ns = 0;
}

/* End a call of the current thread. Sums are per CPU, but added atomically: the thread may lose the CPU meanwhile. */
static __always_inline void end_call(struct call *call, bool returns)
{
	u32 zero = 0;
	u32 *active = active_buffer.lookup(&zero);
	u32 which = active ? *(volatile u32 *)active & 1 : 0;
	struct calls *calls = within_calls.lookup(&which);
	u64 ns = bpf_ktime_get_ns() - call->began_ns;

	call->sp = 0;
	drop_missed_wait(which);
	if (!calls)
		return;
	if (!returns) {
		__sync_fetch_and_add(&calls->abandoned, 1);
		return;
	}
	__sync_fetch_and_add(&calls->returned, 1);
	__sync_fetch_and_add(&calls->total_ns, ns);
	__sync_fetch_and_add(&calls->offcpu_ns, call->offcpu_ns);
	__sync_fetch_and_add(&calls->runqueue_ns, call->runqueue_ns);
	if (ns > calls->max_ns)
		calls->max_ns = ns;
	u64 lane = lane_of(ns);
	asm volatile("" : "+r"(lane)); /* as in count_in_histogram() */
	if (lane < LANES)
		__sync_fetch_and_add(&calls->histogram[lane], 1);
}

/* Return whether the thread is in a call. `is_current`: its user stack pointer can be checked. */
static __always_inline bool is_inside(void *task, bool is_current)
{
	struct call *call = call_of(task, false);
	u64 sp = 0, returns_to = 0;

	if (!call || !call->sp)
		return false;
	if (!is_current)
		return true;
	bpf_probe_read_kernel(&sp, sizeof(sp), (char *)bpf_task_pt_regs(current_task()) + REG_SP);
	if (sp <= call->sp &&
	    (bpf_probe_read_user(&returns_to, sizeof(returns_to), (void *)call->sp) || returns_to == call->returns_to))
		return true;
	end_call(call, false);
	return false;
}

static __always_inline bool is_selected(struct config *c, void *task, bool is_current, u32 pid, u32 tid, u32 flags)
{
	return passes_filters(c, task, is_current, pid, tid, flags) && is_inside(task, is_current);
}

static __always_inline void add_to_call(void *task, u64 off_ns, u64 runqueue_ns)
{
	struct call *call = call_of(task, false);

	if (!call)
		return;
	call->offcpu_ns += off_ns;
	call->runqueue_ns += runqueue_ns;
}

/* End a thread's call, because it exits or calls exec. */
static __always_inline void forget_call(void *task)
{
	struct call *call = call_of(task, false);

	if (call && call->sp)
		end_call(call, false);
#ifdef RECORDS_IN_HASH
	u64 key = (u64)task;

	within_call.delete(&key);
#endif
}

/* Count a thread's call in progress, if it has one. */
static __always_inline void note_call_in_progress(void *task)
{
	u32 zero = 0, tid = MEMBER(u32, task, TASK_PID);
	struct calls_now *now = within_now.lookup(&zero);
	struct call *call = call_of(task, false);

	if (!now || !call || !call->sp || now->tid == tid)
		return;
	now->tid = tid;
	now->calls += 1;
	if (!now->began_ns || call->began_ns < now->began_ns)
		now->began_ns = call->began_ns;
}

/* Begin a call, unless the function was entered recursively. */
int on_call(void *ctx)
{
	u32 zero = 0;
	u64 host = bpf_get_current_pid_tgid(), sp = MEMBER(u64, ctx, REG_SP);
	u32 pid = host >> 32, tid = host;
	struct config *c = config.lookup(&zero);
	struct task_struct *task = current_task();

	if (!c || !c->self || !find_shown_ids(task, host, &pid, &tid) ||
	    !passes_filters(c, task, true, pid, tid, MEMBER(u32, task, TASK_FLAGS)))
		return 0;
	struct call *call = call_of(task, true);
	if (!call || sp < call->sp)
		return 0;
	if (call->sp)
		end_call(call, false);
	bpf_probe_read_user(&call->returns_to, sizeof(call->returns_to), (void *)sp);
	call->offcpu_ns = call->runqueue_ns = 0;
	call->began_ns = bpf_ktime_get_ns();
	call->sp = sp;
	return 0;
}

/* End the call: the thread has reached an instruction that may leave the function, or one that it has jumped to. */
int on_return(void *ctx)
{
	u64 sp = MEMBER(u64, ctx, REG_SP), returns_to = 0;
	struct call *call = call_of(current_task(), false);

	if (!call || !call->sp || sp < call->sp)
		return 0;
	bpf_probe_read_user(&returns_to, sizeof(returns_to), (void *)sp);
	end_call(call, sp == call->sp && returns_to == call->returns_to);
	return 0;
}
#else
#define is_selected passes_filters
#define add_to_call(task, off_ns, runqueue_ns)
#define forget_call(task)
#define note_call_in_progress(task)
#endif
