/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Layouts and constants shared by offcpu.c and offtop/kernel/bpf/layout.py. Times are in ns of bpf_ktime_get_ns(). */
#ifndef OFFTOP_OFFCPU_H
#define OFFTOP_OFFCPU_H

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#define LANES 40 /* buckets of a histogram, see offtop/model/values/histogram.py */
#define FIRST_EXPONENT 8
#define FRAMES 127 /* limit of the kernel: perf_event_max_stack */
#define SCAN_FRAMES 64
#define SHORT_FRAMES 24 /* of a scanned stack that is not SCANNED_DEEP: most kernel stacks have fewer */
#define SCAN_WORDS 64   /* top of a scanned kernel stack, in which __sched functions are searched for */
#define SCHED_FRAMES 8

#define NO_STACK 0 /* stack ids below FIRST_ID stand for no stack */
#define STACK_LOST 1
#define FIRST_ID 16

#define NO_WAKE 0 /* wake ids below FIRST_ID stand for no wake: wakers are off, or the wait goes on */
#define WAKE_LOST 1
#define WAKE_SHORT 2 /* woken before the minimum, so the waker was not looked up */
#define WAKE_UNSEEN 3
#define WAKE_CPU 4                 /* waited only for a CPU: there is no waker */
#define WAKE_NO_ROOM 5             /* wakers are off, and there are too many objects to keep this one */
#define OBJECT_ID_BIT (1ULL << 63) /* in a wake id: the id is that of a struct object, because wakers are off */
#define MAX_OBJECTS 64             /* most new sites per thread and tick that are kept with their object */
#define LINKS 7                    /* wakers in a chain behind the first one */
#define INTERRUPTS 2               /* ranges of entry code of interrupts */
#define RETURNS 4            /* ranges of code that a thread runs on its return to user space after an interrupt */
#define STORM 8              /* wakeups in one burst; also in model/values/wake.py */
#define BURST_NS 100000      /* longest gap between two wakeups of one burst */
#define BY_CPU (1u << 31)    /* in storm_key.by: an interrupt of this CPU is the waker, not a thread */
#define BRIEF_RUN_NS 1000000 /* a thread that ran for less than this was woken for (almost) nothing */

#define UNKNOWN_DELAY (~0ULL) /* run_delay_ns: the kernel counts this sleep as time in the run queue */

#define RUNNING (1u << 31) /* state of a thread that was switched out while runnable */
#define TASK_DEAD 0x80     /* include/linux/sched.h */
#define TASK_NEW 0x800     /* include/linux/sched.h: not on a run queue yet. With RUNNING: queued for its first CPU */
#define TASK_WAKING 0x200  /* include/linux/sched.h: being woken */
#define TASK_NOLOAD 0x400  /* with TASK_UNINTERRUPTIBLE: idle, as kernel threads wait */
#define TASK_HELD 0xc      /* stopped or traced: also set if the thread itself does not wait */
#define TASK_FROZEN 0x8000 /* since f5d39b020809 (6.1); from then on, a freezer may set it in the middle of a sleep */
#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_NORMAL 0x3 /* interruptible or not: asleep */
#define PF_KTHREAD 0x200000
#define THIN_PERIOD_NS 1000000000ULL /* the time for stacks is limited per CPU and period */
#define THIN_BELOW_NS 64000000ULL    /* a wait of this length always gets its stack, however busy the CPU is */
#define THIN_SAMPLE_NS 16000000ULL   /* one wait per CPU and this time gets a stack below the raised minimum, too */
#define SLOW_NS 1000000000ULL        /* for so long after a slow request all others like it get stacks */
#define MOST_STACKS_NS 100000 /* a wait's stacks take less; more is an interrupt, or time taken by the hypervisor */
#define LOWEST_MIN_NS 1024    /* the minimum of a busy CPU doubles from this, if it is lower */
#define MAX_TICK_NS 12000000  /* longest time between two scheduler ticks, at HZ=100 */

enum lost {
	LOST_WAKINGS,
	LOST_STACKS,
	LOST_THREADS,
	LOST_SITES,
	LOST_EVENTS,
	LOST_COPIES,
	LOST_WAKES,
	LOST_OUTLIERS, /* outliers that did not fit into the ring buffer */
	LOST_MEMOS,    /* verified stacks that differed from the same stack unwound (memo.c, kernelmemo.c) */
	LOST_CHAINS,   /* truncated chains: user space had evicted the wake that they continue from; no map is full */
	LOST_KINDS
};
enum kind { KIND_NONE, KIND_SITE, KIND_SHORT, KIND_FILTERED, KIND_LOST };
#define KIND_NEW 0x10       /* ORed in: the wait of a new thread for its first CPU */
#define KIND_PREEMPTED 0x20 /* ORed in: the thread was still runnable when the wait began */
enum select { ONLY_PIDS = 1, ONLY_TIDS = 2, ONLY_USER = 4, ONLY_KERNEL = 8, ONLY_CGROUP = 16, CGROUP_V1 = 32 };
enum scan_mode {
	SCAN_WAITS = 1,
	SCAN_PRIME = 2,
	SCAN_BUFFER_0 = 4,
	SCAN_BUFFER_1 = 8,
	SCAN_ALONE = 16,
	SCAN_RUNS = 32
};
enum scanned_flag {
	SCANNED_RUNNABLE = 1,
	SCANNED_THREAD = 2,
	SCANNED_STACK = 4,
	SCANNED_RAN = 8,
	SCANNED_BEGAN_EARLIER = 16,
	SCANNED_HOLDER = 32,
	SCANNED_STARTED = 64,
	SCANNED_DEEP = 128,
	SCANNED_FROZEN = 256,
};

/* A range of kernel code. */
struct code {
	u64 start;
	u64 bytes;
};

struct config {
	u64 min_ns;        /* waits of at least this length get a stack; a busy CPU raises it further (thinning.c) */
	u64 max_ns;        /* longer waits are filtered out; all ones: no limit */
	u32 states;        /* waits that began in a state outside this mask are filtered out; all ones: none are */
	u32 select;        /* enum select; 0: every thread */
	u32 self;          /* offtop's own pid, never counted */
	u32 children[3];   /* pids of its child processes, never counted either */
	u32 selection;     /* number of the current selection of threads: each change increments it */
	u32 depth;         /* 0: no wakers; 1: the waker of each wait; more: also the chain behind it, of this length */
	u64 cgroup;        /* ONLY_CGROUP: cgroup id (kernfs id, the inode number of its directory) */
	u32 cgroup_level;  /* its depth below the root of its hierarchy */
	u32 cgroup_offset; /* CGROUP_V1: offset in css_set of the hierarchy's state; otherwise of the cgroup itself */
	u64 wakes;         /* mask for wake ids: all ones while wakers are on, else 0 */
	u64 least_threshold_ns; /* the lowest outlier threshold; all ones: outliers are off */
	/* When this selection took effect: the first wait of a thread that started earlier is not counted */
	u64 since_ns;
	u64 requested_min_ns; /* the minimum that the user wants; min_ns is higher if offtop is over its CPU budget */
	u64 stacks_ns;        /* time that a CPU may spend on stacks in THIN_PERIOD_NS; all ones: no limit */
	struct code interrupts[INTERRUPTS]; /* entry code of interrupts */
	struct code returns[RETURNS];       /* code that a thread runs on its return to user space after an interrupt */
	struct code sched_text;             /* the __sched functions */
	u64 signed_bits;                    /* bits of a kernel return address that are set if it is not signed */
};

/*
 * How one CPU limits its time for stacks: each time that it has used up its time, it doubles the minimum. It goes back
 * after a period in which it would have kept well below the limit with half the minimum, too.
 */
struct thinning {
	u64 since_ns;   /* start of the current period */
	u64 stacks_ns;  /* time for stacks since then */
	u64 stacks;     /* waits and wakers that got one since then */
	u64 next_waits; /* waits since then that would get one if the minimum were half as high */
	u64 sampled_ns; /* when a wait below the minimum got a stack */
	u64 level;      /* the minimum is config.min_ns << level, but at most THIN_BELOW_NS */
	u64 waits;      /* since the start: waits without a stack that reached config.requested_min_ns */
	u64 waits_ns;   /* their off-CPU time */
};

/* Consecutive wakeups by one waker through one code path: the current burst. */
struct burst {
	u64 path; /* hash of the waker and its code path in the kernel */
	u64 first_ns;
	u64 last_ns; /* the time for which the waker was preempted is added, so that it does not end the burst */
	u64 wakings;
};

struct storm_key {
	u64 at_ns;    /* first wakeup of the burst */
	u32 by;       /* a tid; with BY_CPU a CPU, for wakeups by its interrupts */
	u32 is_storm; /* 1: the burst had reached STORM when this thread was woken */
};

struct storm {
	u64 waker;
	u64 woken;
	u64 brief_runs; /* how many of them were switched out again by themselves within BRIEF_RUN_NS */
	u64 begun;      /* 1: it reached STORM in this tick */
};

/*
 * What one thread did in one tick. Blocked time is offcpu_ns - runqueue_ns. The numbers that every wait changes come
 * first, to be in few cache lines: those of many threads do not stay in the cache.
 */
struct thread {
	u64 switched_out_ns; /* when it was switched out, if it still is at the end of the tick; otherwise 0 */
	u64 waits;
	u64 offcpu_ns;
	u64 runqueue_ns;
	u64 max_ns;
	u64 tid_acquired_ns; /* when the thread acquired its tid: records of the tid's previous owner may arrive later */
	u32 state;           /* at the last switch-out; 0: nothing happened in this tick */
	u32 short_waits;
	u64 short_ns;
	u64 short_runqueue_ns;
	u64 first_switched_out_ns; /* the first wait that ended in this tick; it may have begun in an earlier one */
	u64 first_off_ns;
	u64 first_runqueue_ns;
	u64 first_kernel;
	u64 first_user;
	u64 first_wake;
	u32 first_kind; /* enum kind, with KIND_NEW or KIND_PREEMPTED */
	u32 involuntary;
	u64 preempted_ns;
	u64 exec_ns;     /* total run time when the scan of this tick saw the thread; 0: no scan saw it */
	u64 exec_at_ns;  /* when that was; 0: unknown */
	u64 exec_off_ns; /* off-CPU time from the last tick to then, including the wait in progress */
	u32 objects;     /* sites counted against MAX_OBJECTS */
	u32 is_previous; /* of an exited thread: this is of the previous tick, and no scan has reported it */
	u32 filtered_waits;
	u32 lost_waits; /* long waits for which there was no room for a site */
	u64 filtered_ns;
	u64 filtered_runqueue_ns;
	u64 lost_ns;
	u64 lost_runqueue_ns;
	u32 histogram[LANES];
};

/*
 * State of one live thread, and what it did in this tick and in the previous one. switched_out_ns is 0 while the
 * thread runs. tid is 0 until its first switch-out; until then switched_out_ns, if set, is when a task scan found the
 * thread queued for its first CPU.
 *
 * In task storage, the kernel adds up to 80 bytes to it (6.4 to 6.18): both together fit into 1 KB. The fields that
 * every switch uses come first.
 */
struct record {
	u64 switched_out_ns;
	u64 run_delay_ns; /* sched_info.run_delay at switch-out; with WAKING: time of the wakeup */
	u32 state;
	u32 pid;
	u32 tid;           /* owner of the buffers: a thread that calls exec takes over the tid of its main thread */
	u16 began_earlier; /* its wait in progress began before switched_out_ns, when it was first seen */
	u16 frozen;        /* it was frozen when a scan last reported its stack */
	/*
	 * config.selection at switch-out if the thread was selected then: its wait counts even if it moves to another
	 * cgroup meanwhile
	 */
	u32 selection;
	u32 noted;              /* active_buffer when this thread was last noted in `changed` */
	u64 tid_acquired_ns;    /* as in struct thread */
	u64 wake;               /* what ended its last blocked wait: id of a struct wake, or NO_WAKE etc. */
	struct storm_key storm; /* the burst that woke it; at_ns 0: none */
	u64 last_burst_ns;      /* first_ns of the last burst, by storm.by, that woke it: each burst counts it once */
	u64 switched_in_ns;     /* when it was switched in after that wakeup */
	u64 reported_ns;        /* switched_out_ns of the wait whose stack a scan has already reported */
	u64 holder;             /* holder of the lock that it waits for, as last reported: pid << 32 | tid */
	u64 exec_ns;            /* total run time as last reported */
	u64 last_kernel;        /* stack ids of its last blocked wait */
	u64 last_user;
	u64 stacked_kernel; /* stack ids of its last wait that got stacks, for files.c */
	u64 stacked_user;
	u64 stacked_ns;     /* when that wait ended */
	struct burst burst; /* its own wakeups of other threads */
	u64 kernel;         /* stack ids, if stacks are unwound at switch-out */
	u64 user;
#ifdef NAMESPACE
	u64 host;     /* the host's pid << 32 | tid, for which `pid` and `tid` are shown */
	u32 host_tid; /* a task scan finds the task by it */
	u32 padding;
#endif
	struct thread buffers[2]; /* one is being written; a task scan reads and clears the other */
};

/* A thread with something in the first buffer, and one with something in the second. 0: none. */
struct changed {
	u32 tids[2];
};

/* Key of the record of an exited thread. */
struct exited_key {
	u64 at_ns; /* time of its exit, plus 1 for the newer of its two buffers */
	u32 pid;
	u32 tid;
};

/* What an exited thread did in one tick. */
struct exited {
	char comm[16];
	u64 start_ns;
	struct thread thread;
};

struct site_key {
	u32 pid;
	u32 tid;
	u64 kernel;
	u64 user;
	u64 wake;
	u64 tid_acquired_ns; /* as in struct thread: when the thread acquired that tid */
};

struct site {
	u64 waits;
	u64 total_ns;
	u64 runqueue_ns;
	u64 max_ns;
	u32 histogram[LANES];
};

/* Key of an outlier threshold. */
struct threshold_key {
	u64 kernel;
	char program[16]; /* name of the main thread */
};

/* Outlier thresholds of a program and kernel stack: a wait that reaches either of them is an outlier. */
struct threshold {
	u64 blocked_ns;
	u64 runqueue_ns;
};

/* An outlier: one wait in full. */
struct outlier {
	u64 switched_out_ns;
	u64 switched_in_ns;
	u64 runqueue_ns;
	u64 kernel; /* as in struct site_key */
	u64 user;
	u64 wake;
	u32 pid;
	u32 tid;
	u32 state; /* at switch-out */
	u32 cpu;   /* at switch-in */
	struct threshold_key threshold;
};

struct stack {
	u64 depth;
	u64 end;                /* user stacks: enum end, END_UNSURE, and the fields at END_*_SHIFT */
	u64 frames[FRAMES + 1]; /* leaf first; the last one is always 0 */
};

/* A waker and its code path. pid 0: an interrupt, whichever thread it interrupted. */
struct waker {
	u64 kernel; /* stack id; for an interrupt, cut at its entry */
	u64 user;
	u32 pid;
	u32 tid;
	char comm[16];
};

/* The last wait of a waker, and what ended it. */
struct link {
	u64 kernel; /* stack ids */
	u64 user;
	u64 waker; /* id of a struct waker */
};

enum object_kind {
	OBJECT_NONE,       /* nothing known */
	OBJECT_FILE,       /* the open file of the descriptor in the first argument */
	OBJECT_EPOLL,      /* likewise */
	OBJECT_FUTEX,      /* the address in the first argument; the operation, with its flags, is in the second */
	OBJECT_FUTEX_WAIT, /* likewise; the flags are in the fourth */
	OBJECT_CHILD,      /* the first argument of wait4(2) */
	OBJECT_ID,         /* the first two arguments of waitid(2) */
	/* Any of `detail` files; argument 1: there are more. A poll for a single file is OBJECT_FILE */
	OBJECT_POLL,
	OBJECT_LOCK, /* a lock inside the kernel, at address `file`; `state` is enum protects */
	OBJECT_RING, /* as OBJECT_FILE, unless the flags in the fourth argument say that it is a registered ring */
};
/* What a lock inside the kernel protects. */
enum protects {
	PROTECTS_UNKNOWN,
	PROTECTS_MM,       /* mmap_lock of the process peer_pid */
	PROTECTS_INODE,    /* i_rwsem of `inode` on the file system of `device`; argument is a descriptor of it */
	PROTECTS_POSITION, /* position of the open file of the descriptor in `argument` */
	PROTECTS_PIPE,     /* the pipe of that descriptor */
};
#define LOCK_SEMAPHORE 1 /* include/linux/hung_task.h: type in the low bits of a lock's address; 0 is a mutex */
#define LOCK_RWSEM 2     /* 3: a writer waits */
#define LOCK_TYPES 3
#define OWNER_FLAGS 7       /* kernel/locking: flags in the low bits of the owner of a mutex or rwsem */
#define MUTEX_HANDED_OVER 4 /* MUTEX_FLAG_PICKUP: handed over to a thread that has not taken it yet */
#define RWSEM_READERS 1 /* RWSEM_READER_OWNED: the owner is the last reader that took it, and may have released it */
#define CALLS 512
#define FUTEX_PRIVATE 128
#define REGISTERED_RING 16 /* IORING_ENTER_REGISTERED_RING (uapi/linux/io_uring.h) */
#define MAGIC_PIPES 0x50495045
#define MAGIC_SOCKETS 0x534f434b /* include/uapi/linux/magic.h */
#define NO_DESCRIPTOR 0xffffffff
/*
 * Words of a kernel stack that are searched for poll's table, from the sleeping thread's stack pointer: it begins at
 * word 70 to 90
 */
#define POLL_WORDS 128
#define POLL_HEAD 16   /* words of that table that are read */
#define DESCRIPTORS 64 /* NR_OPEN_DEFAULT: every descriptor table has room for as many */
#define FAMILY_UNIX 1  /* include/linux/socket.h */
#define FAMILY_IPV4 2
#define FAMILY_IPV6 10

/* What a thread waits on. Its id is its hash. */
struct object {
	u64 file; /* address in the kernel */
	u64 inode;
	u64 magic;    /* of the file system */
	u64 argument; /* a descriptor, the address of a futex, or which child is waited for */
	u32 kind;     /* enum object_kind */
	u32 device;   /* of the file system */
	/*
	 * futex: FUTEX_PRIVATE or 0; OBJECT_ID: type of the argument; OBJECT_POLL: number of files; lock: 0 for a
	 * mutex, LOCK_SEMAPHORE or LOCK_RWSEM
	 */
	u32 detail;
	u32 peer_pid; /* Unix socket: process that created the other end; 0: unknown */
	u16 family;   /* of a socket, like the fields below */
	u16 protocol;
	u16 state;
	u16 local_port;
	u16 peer_port;
	u16 unused[3];
	u8 local[16]; /* IPv4: the first four bytes */
	u8 peer[16];
};

/* What ended a wait. Its id is its hash. */
struct wake {
	u64 waker; /* id of a struct waker */
	u64 plain; /* id of the same waker without its user stack if that is a copy's; else equal to waker */
	struct object object;
	u16 depth; /* number of links */
	/*
	 * Why the chain ends: NO_WAKE, WAKE_LOST etc. of the last waker; FIRST_ID: it has as many links as configured
	 */
	u16 end;
	u32 unused;
	struct link links[LINKS];
};

/* Why a user stack ends. */
enum end {
	END_LINKED = 1,      /* followed frame pointers, unchecked */
	END_COMPLETE,        /* reached the start of the thread */
	END_TRUNCATED,       /* at FRAMES */
	END_MEMORY,          /* stack memory not resident */
	END_BAD_PC,          /* no valid frame where one should be */
	END_NO_UNWIND_INFO,  /* no unwind information for this code */
	END_NO_RULE,         /* no rule loaded yet: never in a stored stack, user space continues from here */
	END_CFA_UNSUPPORTED, /* the rule needs registers that are not tracked: likewise */
};
#define END_UNSURE 0x100        /* some steps were made without .eh_frame */
#define END_PYTHON_SHIFT 9      /* number of Python frames, at most PYTHON_FRAMES */
#define END_GENERATION_SHIFT 16 /* generation of struct python, if there are Python frames */
#define END_EXECS_SHIFT 32      /* self_exec_id of the thread, which each exec changes */
/*
 * As how many new entries (count_added) these count: few copies fit, and a new stack may be of a process that exits
 * soon.
 */
#define COPY_ENTRIES 64
#define USER_STACK_ENTRIES 512
#define COPIED (1ULL << 63) /* in a stack id: the real stack is known once user space has unwound the copy */
/* In an address: interrupted at this instruction; all others, but for the leaf, are return addresses */
#define EXACT (1ULL << 63)
/*
 * In a frame: a Python frame, listed after all native ones, by the address of its code object; address 0: more frames
 * follow that are not listed
 */
#define PYTHON (1ULL << 62)
/* In a Python frame: a call of the interpreter began with it; address 0: with the frame listed before it */
#define PYTHON_ENTRY (1ULL << 61)
#define PYTHON_FRAMES 64
#define PYTHON_ADDRESS ((1ULL << 56) - 1)
#define MAX_FRAME_BYTES (1 << 24)
#ifndef REGISTERS
#define REGISTERS 21 /* words in x86-64's pt_regs */
#endif

/*
 * How to step from a code address to its caller's. CFA: the value of the caller's stack pointer; the return address is
 * right below it (DWARF 5, 6.4).
 */
struct rule_key {
	u64 pc; /* of the instruction; for a call, any of its bytes */
	u32 space;
	u32 unused;
};

enum cfa_kind { CFA_NONE, CFA_SP, CFA_BP, CFA_AT_BP, CFA_LINK, CFA_SIGNAL, CFA_UNSUPPORTED, CFA_END };
enum saved { SAVED_NOT, SAVED_BELOW, SAVED_AT, SAVED_AT_BP, SAVED_LINK };

struct rule {
	s32 cfa_offset; /* from the register that cfa_kind names; CFA_AT_BP: the CFA is the word there */
	s16 bp_offset;  /* of the saved frame pointer from the CFA; SAVED_AT_BP: from the frame pointer */
	u8 cfa_kind;    /* enum cfa_kind; from CFA_END on: the stack ends here, with CFA_END + enum end */
	/*
	 * enum saved. SAVED_BELOW: right below the return address, as frame pointers are. On arm64 the return address
	 * is above the frame pointer, too; SAVED_LINK: only that is saved. SAVED_NOT: still in its register
	 */
	u8 saved;
	u32 unsure; /* guessed, not from .eh_frame */
};

struct space {
	u32 id;
};

/* After so many waits in a row with another stack each, one in so many is kept, and compared with the next one only */
#define MISSES 8
#define MEMO_WORDS 80        /* most words of a user stack in its memo */
#define KERNEL_MEMO_WORDS 32 /* of a kernel stack */
#define GENERATIONS 256

/* The last user stack of a thread that was unwound by rules, and on what this unwind depended (memo.c). */
struct memo {
	u64 id; /* of the stack */
	u64 ip; /* registers of the leaf */
	u64 sp;
	u64 bp;
	u64 link; /* x30, on arm64 only */
	u64 mode; /* as in struct scanned_stack */
	u32 pid;
	u32 execs; /* self_exec_id */
	u32 space;
	u32 rule_generation;
	u32 stack_generation;
	u32 span;   /* bytes from sp to the end of the last of the words */
	u32 misses; /* waits since the last one that had this stack */
	u32 unused;
	u32 words_read;          /* more than MEMO_WORDS: no memo can be made of this unwind */
	u32 uses_bp;             /* the unwind has used the leaf's frame pointer */
	u16 offsets[MEMO_WORDS]; /* from sp, in words, of the words that were read */
	u64 words[MEMO_WORDS];
};

/* The last kernel stack of a thread, and where its return addresses are (kernelmemo.c). */
struct kernel_memo {
	u64 id;              /* of the stack */
	u64 outermost;       /* the outermost return address */
	u32 outermost_below; /* bytes from there to the user registers */
	u32 count;           /* entries of `words`; 0: no memo can be made of this stack */
	u32 span;            /* bytes from the saved stack pointer to the end of the last of them */
	u32 misses;          /* waits since the last one that had this stack */
	u32 stack_generation;
	u32 unused;
	u16 places[KERNEL_MEMO_WORDS]; /* from the saved stack pointer, in words */
	u64 words[KERNEL_MEMO_WORDS];  /* every word there that equals one of the other return addresses */
};

struct memo_settings {
	u64 check_every;      /* one in so many verified stacks is unwound as well; 0: memos are off */
	u32 stack_generation; /* changes when stacks are removed from user_stacks or kernel_stacks */
	u32 unused;
};

/* Numbers of user stacks, or of kernel stacks, since the start. */
struct memo_counts {
	u64 walked;        /* unwound to their end (user stacks: by rules), including checked ones */
	u64 verified;      /* the same as in the thread's memo */
	u64 checked;       /* of these: unwound as well */
	u64 disagreements; /* of these: unwinding found another stack */
	u64 unchecked;     /* verified since the last one that was checked */
};

/* How to find the frames of CPython (python.c): offsets in its structs, for the version that a process runs. */
struct python {
	u64 interpreters; /* address of the pointer to the first interpreter */
	u64 code_mask;    /* of the word that holds a frame's code object */
	u32 next_interpreter;
	u32 threads; /* in an interpreter: pointer to its first thread */
	u32 next_thread;
	u32 thread_id;    /* in a thread: its pthread_self(), on arm64 its gettid() */
	u32 frame;        /* innermost frame: in a thread, or in what frame_holder points to */
	u32 frame_holder; /* in a thread; PYTHON_NO_HOLDER: the thread holds its frame itself */
	u32 code;         /* in a frame */
	u32 caller;
	u32 call_byte;  /* in a frame: a byte that shows whether a call of the interpreter began with it */
	u32 call_kind;  /* enum python_call: how to interpret that byte */
	u16 generation; /* part of the stack's identity: changes when code objects get other names */
	u16 unused[3];
};
#define PYTHON_NO_HOLDER 0xffffffff
enum python_call {
	PYTHON_CALL_ALWAYS, /* each frame is a call of the interpreter */
	PYTHON_CALL_FLAG,   /* nonzero: a call of the interpreter began with this frame */
	PYTHON_CALL_SHIM,   /* PYTHON_SHIM_OWNER or more: not a function's frame; the one before began the call */
};
#define PYTHON_SHIM_OWNER 3

struct copy_head {
	u64 id;       /* id of the stack until it is unwound: COPIED, and unique */
	u64 fallback; /* id of the stack by frame pointers */
	u64 registers[REGISTERS];
	/* Next frame to unwind, with EXACT; sp and bp are its registers, and the copied stack begins at sp */
	u64 pc;
	u64 sp;
	u64 bp;
	u64 bytes; /* of the stack, which follows this header */
	u64 at;    /* address by which the rule of pc is looked up */
	u32 pid;
	u32 tid;
	u32 space;
	u32 unused;
	u32 depth; /* entries of `frames` that are already unwound; 0: `registers` are those at pc */
	u32 unsure;
	u32 end;
	u32 execs;
	u32 python_depth; /* entries of python_frames */
	u32 ruled_end;    /* VERIFY: enum end of the unwound stack in `frames`; else 0 */
	u64 frames[FRAMES + 1];
	u64 python_frames[PYTHON_FRAMES];
};

/*
 * What a task scan reports for a thread.
 *
 *   SCANNED_RUNNABLE       it is on the run queue
 *   SCANNED_THREAD         a struct thread follows
 *   SCANNED_STACK          a struct scanned_stack follows
 *   SCANNED_RAN            it ran, and did nothing else in this tick
 *   SCANNED_BEGAN_EARLIER  the wait began after arrived_ns, and before switched_out_ns, when a scan first saw it
 *   SCANNED_HOLDER         the lock that it waits for has another holder now
 *   SCANNED_STARTED        it is on its first CPU, for which it waited from switched_out_ns on, for first_ns
 *   SCANNED_DEEP           the stack's other SCAN_FRAMES - SHORT_FRAMES frames follow it
 *   SCANNED_FROZEN         a freezer holds it where it waits: its stack does not show that
 */
struct scanned_task {
	u64 switched_out_ns; /* when it was switched out; 0: it runs */
	u64 queued_ns;       /* scheduler's clock: on the run queue since; 0: not queued */
	u64 arrived_ns;      /* scheduler's clock: it last got a CPU then; 0: unknown */
	u64 exec_ns;         /* total run time by the kernel's account; 0: unknown */
	u64 exec_at_ns;      /* when exec_ns was read, if the thread was on a CPU then; else 0 */
	u64 start_ns;        /* start time of the thread */
	u64 tid_acquired_ns; /* as in struct thread */
	u64 first_ns;        /* SCANNED_STARTED */
	u64 exec_start_ns;   /* rq_clock_task() of `cpu` when it was switched out; 0: unknown, or it is not blocked */
	u32 pid;
	u32 tid;
	u32 state;
	u32 flags;      /* enum scanned_flag */
	u32 execs;      /* self_exec_id */
	u32 holder_pid; /* holder of the lock that it waits for; 0: unknown, or none */
	u32 holder_tid;
	u32 cpu;
	char comm[16];
};

struct scanned_runs {
	u32 pid;
	u32 tid;
	u64 pcount; /* how often the thread has been given a CPU */
};

#define ARGUMENTS 6
#define CALLEE_SAVED 11 /* registers besides sp and bp */

struct scanned_stack {
	u64 depth;
	u64 pcount; /* how often it got a CPU; also in /proc/PID/task/TID/schedstat */
	s64 call;   /* system call that it is in; -1: none, or unknown */
	u64 arguments[ARGUMENTS];
	u64 ip; /* user registers, like those below; sp 0: unknown */
	u64 sp;
	u64 bp;
	u64 callee_saved[CALLEE_SAVED]; /* rbx, r12 to r15; x19 to x28, x30. 0: unknown */
	u64 mode;                       /* cs; pstate. 0: unknown */
	u64 thread;                     /* python_id(); 0: unknown */
	struct object object;           /* what it waits on */
	u64 sched[SCHED_FRAMES]; /* return addresses into __sched functions above frames[0], leaf first, then zeros */
	u64 frames[SHORT_FRAMES];
};

/* Return the histogram bucket that counts a wait of `ns`. */
static __always_inline u32 lane_of(u64 ns)
{
	u32 lane = 0;

	ns >>= FIRST_EXPONENT + 1;
	/* clang-format off */
	if (ns >> 32) { lane += 32; ns >>= 32; }
	if (ns >> 16) { lane += 16; ns >>= 16; }
	if (ns >> 8) { lane += 8; ns >>= 8; }
	if (ns >> 4) { lane += 4; ns >>= 4; }
	if (ns >> 2) { lane += 2; ns >>= 2; }
	if (ns >> 1) { lane += 1; ns >>= 1; }
	/* clang-format on */
	lane += ns;
	return lane < LANES ? lane : LANES - 1;
}

/*
 * Count a time in a histogram, whose counters may have any width. The verifier of 6.1 has lost the bound, hence the
 * check; the asm keeps clang from dropping that.
 */
#define count_in_histogram(histogram, counted_lane) \
	({                                          \
		u64 lane_ = counted_lane;           \
		asm volatile("" : "+r"(lane_));     \
		if (lane_ < LANES)                  \
			(histogram)[lane_] += 1;    \
	})

/*
 * Compiler barrier: what is read after it is read from memory. At the top of a loop it keeps clang from reading before
 * the first round and jumping into the middle of the loop, which the verifier of 6.1 rejects ("back-edge"). Where
 * branches join it keeps clang from holding stored values in registers, whose contents the verifier would track
 * separately for each branch.
 */
#define READ_AGAIN asm volatile("" ::: "memory")

/*
 * A loop of at most `most` rounds; `i` is the number of the round. Without may_goto the verifier follows every round
 * (444,000 steps in on_exit()). With it (kernel commit 011832b97b31, 6.9) it stops once a round begins in a state that
 * it has seen before, so `i` is read from `kept`, in a map, where the verifier does not track it (66,000 steps). DONE()
 * ends the loop: without may_goto by going through the remaining rounds, because the verifier would follow each exit to
 * the end of the program. may_goto itself would leave the loop after eight million rounds.
 */
#ifdef MAY_GOTO
static __always_inline bool may_go_on(void)
{
	/* LLVM knows the instruction from version 19 on */
	asm goto("1: .byte 0xe5; .byte 0; .long ((%l[stop] - 1b - 8) / 8) & 0xffff; .short 0" : : : : stop);
	return true;
stop:
	return false;
}
/* clang-format off */
#define ROUNDS(i, kept, most) \
	kept = 0; \
	for (u64 i; may_go_on() && (i = *(volatile u64 *)&(kept)) < (most); kept = i + 1)
#define DONE() break
#else
#define ROUNDS(i, kept, most) \
	_Pragma("clang loop unroll(disable)") \
	for (u64 i = 0; i < (most); i++)
#define DONE() continue
#endif
/* clang-format on */

/*
 * Ids of anything that a program can choose (its stacks, what it waits on, how it is woken) are keyed hashes. The keys
 * are drawn at each start, so that nobody can construct two inputs with the same id. The hash is NH (Black, Halevi and
 * others, UMAC, 1999), computed twice, the second time with keys shifted by one: any two inputs, as they are hashed
 * here, have equal sums for about one choice of keys in 2^62. Words may be added in any order, and no addition depends
 * on another. Two of 16,384 stacks collide by chance once in 10^11.
 */
#define HASH_KEYS 136 /* one per word of the longest input (a stack with its depth and end), and a few more */
struct hash_keys {
	u64 words[HASH_KEYS];
};

struct hash {
	u64 a;
	u64 b;
};

static __always_inline u64 product(u64 sum)
{
	return (sum & 0xffffffff) * (sum >> 32);
}

/* `key` is that of the word's position in the input; the next key is used, too. */
static __always_inline void hash_word(struct hash *hash, u64 word, u64 *key)
{
	hash->a += product(word + key[0]);
	hash->b += product(word + key[1]);
}

/* All 64 bits depend on both sums, so that some of them can serve as flags. */
static __always_inline u64 hash_end(struct hash *hash, struct hash_keys *keys)
{
	u64 id = hash->a + hash->b * (keys->words[HASH_KEYS - 2] | 1);

	id = (id ^ id >> 32) * (keys->words[HASH_KEYS - 1] | 1);
	return id ^ id >> 29;
}

#endif
