// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Through which Python functions did a thread get to where it waits?
 *
 * Part of userstack.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * maps
 *   python_processes  where CPython keeps its threads, in processes that run it; filled by user space
 *   python_threads    where CPython keeps one thread
 *
 * units: addresses of the process; bytes
 *
 * -D:
 *   PYTHON_PROCESSES, PYTHON_THREADS    map sizes
 *   TASK_FS_BASE    offset in task_struct of the thread pointer; or else
 *   TASK_THREAD_PID, PID_LEVEL, PID_NUMBERS, UPID_NUMBER, UPID_BYTES    the way to its tid in its own namespace
 */

#if defined(TASK_FS_BASE) || defined(TASK_THREAD_PID)
#define HAS_PYTHON 1
#define PYTHON_SEARCH 256         /* most threads and interpreters searched for one thread */
#define PYTHON_RETRY_NS 100000000 /* how long to wait before a thread that was not found is searched for again */
#define PYTHON_BYTES 80           /* how much of a frame is read */

BPF_TABLE("lru_hash", u32, struct python, python_processes, PYTHON_PROCESSES);
struct python_thread {
	u64 at; /* address of CPython's struct in the process; 0: CPython does not know the thread */
	u64 searched_ns;
};
BPF_TABLE("lru_hash", u32, struct python_thread, python_threads, PYTHON_THREADS);

/* State of reading Python frames. */
struct python_unwind {
	struct python_thread thread;
	u64 id;
	u64 interpreter;
	u64 frame;     /* the next one; 0: no more */
	u64 words[16]; /* PYTHON_BYTES of it, with room for any offset */
	u32 generation;
	u32 depth;
	u32 total; /* including native frames */
	u64 frames[PYTHON_FRAMES];
	u64 round; /* ROUNDS */
};
BPF_PERCPU_ARRAY(python_scratch, struct python_unwind, SLOTS);

/*
 * Return CPython's identifier of a thread: pthread_self(), or gettid() if the distance of pthread_self() from the
 * thread pointer is unknown.
 */
static __always_inline u64 python_id(void *task)
{
#ifdef TASK_FS_BASE
	return MEMBER(u64, task, TASK_FS_BASE);
#else
	char *pid = MEMBER(char *, task, TASK_THREAD_PID);
	u32 level = 0, number = 0;

	bpf_probe_read_kernel(&level, sizeof(level), pid + PID_LEVEL);
	bpf_probe_read_kernel(&number, sizeof(number), pid + PID_NUMBERS + (u64)level * UPID_BYTES + UPID_NUMBER);
	return number;
#endif
}

static __always_inline u64 word_at(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

/*
 * Find the innermost frame if s->thread.at is CPython's struct of this thread. Several interpreters may know a thread,
 * and it may be running in another one than this struct's.
 */
static __always_inline void find_innermost_frame(struct python_unwind *s, struct python *p)
{
	u64 from = s->thread.at;

	if (!from || word_at(from + p->thread_id) != s->id)
		return;
	if (p->frame_holder != PYTHON_NO_HOLDER)
		from = word_at(from + p->frame_holder);
	if (from)
		s->frame = word_at(from + p->frame);
}

/* Search the threads of all interpreters for this one. Each interpreter lists its threads, newest first. */
static __always_inline void find_thread(struct python_unwind *s, struct python *p)
{
	s->thread.at = 0;
	s->interpreter = word_at(p->interpreters);
	if (s->interpreter)
		s->thread.at = word_at(s->interpreter + p->threads);
	ROUNDS(i, s->round, PYTHON_SEARCH) {
		READ_AGAIN;
		if (s->frame || !s->interpreter)
			DONE();
		if (!s->thread.at) {
			s->interpreter = word_at(s->interpreter + p->next_interpreter);
			if (s->interpreter)
				s->thread.at = word_at(s->interpreter + p->threads);
			continue;
		}
		find_innermost_frame(s, p);
		if (!s->frame)
			s->thread.at = word_at(s->thread.at + p->next_thread);
	}
}

/* Store one Python frame and step to its caller. */
static __always_inline void python_step(struct python_unwind *s, struct python *p, u64 i)
{
	u64 *at = &s->frames[i];

	asm volatile("" : "+r"(at)); /* keeps clang from carrying it over to the next round (READ_AGAIN) */
	s->depth = i + 1;
	*at = PYTHON;
	if (bpf_probe_read_user(s->words, PYTHON_BYTES, (void *)s->frame)) {
		s->frame = 0;
		return;
	}
	u8 call_byte = ((u8 *)s->words)[p->call_byte & 127];
	u64 code = s->words[(p->code >> 3) & 15] & p->code_mask & PYTHON_ADDRESS;
	if (p->call_kind == PYTHON_CALL_SHIM)
		*at |= call_byte >= PYTHON_SHIM_OWNER ? PYTHON_ENTRY : code;
	else
		*at |= code | (p->call_kind == PYTHON_CALL_ALWAYS || call_byte ? PYTHON_ENTRY : 0);
	s->frame = s->words[(p->caller >> 3) & 15];
}
#endif

/* Read the Python frames of the current thread into this slot's python_scratch, from which its stacks get them. */
static __always_inline void read_python_frames(u32 slot, void *task, u32 pid, u32 tid)
{
#ifdef HAS_PYTHON
	struct python *p = python_processes.lookup(&pid);
	struct python_unwind *s = python_scratch.lookup(&slot);

	if (!s)
		return;
	s->depth = 0;
	if (!p)
		return;
	s->generation = p->generation;
	u64 now_ns = bpf_ktime_get_ns();
	struct python_thread *known = python_threads.lookup(&tid);
	s->thread.at = known ? known->at : 0;
	s->id = python_id(task);
	s->frame = 0;
	find_innermost_frame(s, p);
	if (!s->frame && !(known && now_ns - known->searched_ns < PYTHON_RETRY_NS)) {
		find_thread(s, p);
		s->thread.searched_ns = now_ns;
		python_threads.update(&tid, &s->thread);
	}
	ROUNDS(i, s->round, PYTHON_FRAMES) {
		READ_AGAIN;
		if (!s->frame)
			DONE();
		python_step(s, p, i);
	}
	if (s->frame)
		s->frames[PYTHON_FRAMES - 1] = PYTHON;
#endif
}

/*
 * Append the Python frames to the native ones, dropping outermost native frames if there are too many. Return the
 * total.
 */
static __always_inline u32 with_python(u32 slot, struct stack *stack, u32 depth)
{
#ifdef HAS_PYTHON
	struct python_unwind *s = python_scratch.lookup(&slot);

	if (!s || !s->depth)
		return depth;
	s->total = depth;
	if (depth + (u64)s->depth > FRAMES) {
		s->total = FRAMES - s->depth;
		stack->end = END_TRUNCATED | (stack->end & END_UNSURE);
	}
	stack->end |= (u64)s->generation << END_GENERATION_SHIFT | (u64)s->depth << END_PYTHON_SHIFT;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PYTHON_FRAMES; i++) {
		READ_AGAIN;
		if (i >= s->depth || s->total >= FRAMES)
			continue;
		stack->frames[s->total & FRAMES] = s->frames[i];
		s->total += 1;
	}
	return s->total;
#else
	return depth;
#endif
}
