/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What offcpu.c and offtop/kernel/bpf/layout.py agree on. Times are ns of bpf_ktime_get_ns(). */
#ifndef OFFTOP_OFFCPU_H
#define OFFTOP_OFFCPU_H

#define LANES 40           /* of a histogram: offtop/model/values/histogram.py */
#define FIRST_EXPONENT 8
#define FRAMES 127         /* the kernel's own limit: perf_event_max_stack */
#define WALK_FRAMES 64
#define WALK_WORDS 64

#define NO_STACK 0         /* stack ids that are no stacks */
#define STACK_LOST 1
#define FIRST_ID 16

#define NO_WAKE 0          /* ids of wakes that are none: nobody asked, or the wait goes on */
#define WAKE_LOST 1
#define WAKE_SHORT 2       /* it was woken before the minimum, so nobody looked at the waker */
#define WAKE_UNSEEN 3
#define WAKE_CPU 4         /* it was for nothing but a CPU: nobody woke it */
#define WAKE_UNTOLD 5      /* nobody asked who woke it; what it waited on is one of too many */
#define OF_OBJECT (1ULL << 63) /* of a wake's id: nobody asked who woke it, and it is that of a struct object */
#define MOST_OBJECTS 64    /* sites that a thread begins in a tick for what it waits on */
#define LINKS 7            /* of a chain, behind the waker itself: offtop/kernel/bpf/layout.py */
#define INTERRUPTS 2
#define RETURNS 4
#define STORM 8            /* wakings in one burst: model/values/wake.py has it, too */
#define EXECS 8192         /* processes of which it is known that they called exec */
#define BURST_NS 100000    /* no longer from one of them to the next */
#define BY_CPU (1u << 31)
#define IDLED_NS 1000000   /* who has the CPU for less was woken for nothing, or nearly so */

#define RUNNING (1u << 31) /* state at leaving of a thread that could have gone on */
#define TASK_DEAD 0x80     /* include/linux/sched.h */
#define TASK_NEW 0x800     /* likewise: no run queue has it yet. With RUNNING: it waits there for its first CPU */
#define TASK_NOLOAD 0x400  /* with TASK_UNINTERRUPTIBLE: idle, as kernel threads wait */
#define TASK_HELD 0xc      /* stopped, or traced: killable, too, but no wait of the thread's own */
#define PF_KTHREAD 0x200000
#define LATEST_TICK_NS 12000000 /* of the kernel, at 100 a second */

enum lost {
	LOST_WAKINGS,
	LOST_STACKS,
	LOST_THREADS,
	LOST_SITES,
	LOST_EVENTS,
	LOST_COPIES,
	LOST_WAKES,
	LOST_CAUGHT, /* long waits that had no room in the ring buffer */
	LOST_CHAINS, /* wakes, too, but no sign that there is no room: the other side has taken what they go on with */
	LOST_KINDS
};
enum kind { KIND_NONE, KIND_SITE, KIND_SHORT, KIND_FILTERED, KIND_LOST };
#define KIND_NEW 0x10      /* with one of them: the wait of a new thread for its first CPU */
enum select { ONLY_PIDS = 1, ONLY_TIDS = 2, ONLY_USER = 4, ONLY_KERNEL = 8, ONLY_CGROUP = 16, CGROUP_V1 = 32 };
enum walk_mode { WALK_WAITS = 1, WALK_PRIME = 2, WALK_HALF_0 = 4, WALK_HALF_1 = 8, WALK_ALONE = 16 };
enum walked_flag {
	WALKED_RUNNABLE = 1,
	WALKED_THREAD = 2,
	WALKED_STACK = 4,
	WALKED_RAN = 8,
	WALKED_OLDER = 16,
	WALKED_HOLDER = 32,
	WALKED_STARTED = 64,
};

/* A piece of the kernel's code. */
struct code {
	u64 start;
	u64 bytes;
};

struct config {
	u64 min_ns;        /* from here on a wait has a stack */
	u64 max_ns;        /* longer waits are filtered; all ones: none are */
	u32 states;        /* waits left in another state are filtered; all ones: none are */
	u32 select;        /* enum select; 0: every thread */
	u32 self;          /* offtop's own pid, never counted */
	u32 readers[3];    /* nor are its children */
	u32 asked;         /* another number whenever another choice of threads is asked for */
	u32 depth;         /* 0: nobody asks for wakers; 1: the waker of each wait; more: the chain behind it, too */
	u64 cgroup;        /* ONLY_CGROUP: its id (in kernfs, as inode numbers of its files are) */
	u32 cgroup_level;  /* how far it is below the root of its hierarchy */
	u32 cgroup_at;     /* CGROUP_V1: offset in css_set of the hierarchy's state; else of the cgroup itself */
	u64 wakes;         /* all ones where somebody asks for wakers, else 0 */
	u64 mark_ns;       /* the lowest of the marks: from here on a wait may be caught; all ones: none is */
	u64 since_ns;      /* when this choice of threads began: the first wait of an older thread is not counted */
	struct code interrupts[INTERRUPTS]; /* by which these enter the kernel */
	struct code returns[RETURNS]; /* by which a thread goes on to its program, once an interrupt is over */
};

/* Wakings one behind the other, of one waker through one code path. */
struct burst {
	u64 path;          /* of which waker, through which code of the kernel */
	u64 first_ns;
	u64 last_ns;       /* while the waker is put aside, this goes on with the clock */
	u64 wakings;
};

struct storm_key {
	u64 at_ns;         /* the first of them */
	u32 by;            /* a thread, or with BY_CPU a CPU, whose interrupts they are */
	u32 is_storm;      /* 1: there were STORM of them by then */
};

struct storm {
	u64 waker;
	u64 woken;
	u64 again;         /* of them, who left the CPU again by themselves within IDLED_NS */
	u64 begun;         /* 1: it grew to STORM in this tick */
};

/* What one thread did in one tick. blocked = offcpu - runqueue. */
struct thread {
	u64 left_ns;       /* at the end of the tick: off CPU since; 0: it was back last */
	u64 waits;
	u64 offcpu_ns;
	u64 runqueue_ns;
	u64 max_ns;
	u64 preempted_ns;
	u64 involuntary;
	u64 short_waits;
	u64 short_ns;
	u64 short_runqueue_ns;
	u64 filtered_waits;
	u64 filtered_ns;
	u64 filtered_runqueue_ns;
	u64 lost_waits;    /* long, but their site could not be kept */
	u64 lost_ns;
	u64 lost_runqueue_ns;
	u64 first_left_ns; /* the first wait that ended in this tick: it may have begun before */
	u64 first_off_ns;
	u64 first_runqueue_ns;
	u64 first_kernel;
	u64 first_user;
	u64 first_wake;
	u64 exec_ns;       /* as the walk of the tick met it: how long it has run in all; 0: it was not met */
	u64 exec_at_ns;    /* when that was; 0: nothing more is known of that moment */
	u64 exec_off_ns;   /* its off-CPU time by then, since the last tick, its wait in progress included */
	u64 born_ns;       /* since when it has its id: who had that before may be heard of later than who has it now */
	u32 first_kind;    /* enum kind, and KIND_NEW */
	u32 state;         /* at the last leaving; 0: nothing happened in this tick */
	u32 objects;       /* of MOST_OBJECTS */
	u32 is_older;      /* of one that has ended: of the tick before, which no walk came to tell */
	u64 histogram[LANES];
};

/* All that is kept of one thread while it lives. left_ns is 0 while it runs. tid is 0 until it is switched out for the
 * first time: until then left_ns, if it is set, is when a scan of the tasks found it queued for its first CPU. */
struct record {
	u64 left_ns;
	u64 run_delay_ns;  /* of the kernel's own count (with WAKING: when it was woken) */
	u64 walked_ns;     /* the left_ns whose stack the task walk has given already */
	u64 holder;        /* and who held then the lock that it waits for: pid << 32 | tid */
	u64 kernel;        /* stack ids, where stacks are taken at leaving */
	u64 user;
	u32 state;
	u32 pid;
	u32 tid;           /* whose halves these are: a thread that calls exec takes its main thread's id */
	u32 older;         /* its wait in progress began before left_ns, unseen */
	u32 asked;         /* config.asked when it left, and was wanted: so is its wait, wherever it is moved meanwhile */
	u32 unused;
	u64 born_ns;       /* as struct thread has it */
	u64 exec_ns;       /* of what was told with WALKED_RAN */
	u64 wake;          /* who ended its last wait for something: id of a struct wake, or NO_WAKE and so on */
	u64 last_kernel;   /* and where that wait was; stack ids */
	u64 last_user;
	struct storm_key storm; /* the burst that woke it; at_ns 0: none */
	u64 last_burst_ns; /* the begin of the last that did, by storm.by: in each it counts once */
	u64 back_ns;       /* when it was back from that */
	struct burst burst; /* whom it wakes */
#ifdef NAMESPACE
	u64 host;          /* the host's pid << 32 | tid, of which pid and tid are what is shown */
	u32 host_tid;      /* by which a walk finds it */
	u32 unused_too;
#endif
	struct thread half[2];
};

/* A thread that ended in this tick. */
struct gone_key {
	u64 at_ns;
	u32 pid;
	u32 tid;
};

struct gone {
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
	u64 born_ns;       /* as struct thread has it: of who had that id then */
};

struct site {
	u64 waits;
	u64 total_ns;
	u64 runqueue_ns;
	u64 max_ns;
	u64 histogram[LANES];
};

/* Which waits have a mark of their own. */
struct mark_key {
	u64 kernel;
	char program[16];  /* the name of its main thread */
};

/* From which length on such a wait is caught: by what it waited for, and by how long it was ready to run. */
struct mark {
	u64 blocked_ns;
	u64 runqueue_ns;
};

/* A wait that has reached its mark, whole. */
struct caught {
	u64 left_ns;
	u64 back_ns;
	u64 runqueue_ns;
	u64 kernel;        /* as in struct site_key */
	u64 user;
	u64 wake;
	u32 pid;
	u32 tid;
	u32 state;         /* at leaving */
	u32 cpu;           /* on which it came back */
	struct mark_key of;
};

struct stack {
	u64 depth;
	u64 end;           /* user stacks: enum end, and END_UNSURE; above that, from END_EXECS on, of which program */
	u64 frames[FRAMES + 1]; /* the last is always 0 */
};

/* Who wakes, and through which code. pid 0: an interrupt, whomever it hit. */
struct waker {
	u64 kernel;        /* stack id; of an interrupt, up to where that begins */
	u64 user;
	u32 pid;
	u32 tid;
	char comm[16];
};

/* The last wait of a waker, and who ended that. */
struct link {
	u64 kernel;        /* stack ids */
	u64 user;
	u64 waker;         /* id of a struct waker */
};

enum object_kind {
	OBJECT_NONE,       /* it waits on nothing that is known */
	OBJECT_FILE,       /* what the descriptor is open on that is the first argument */
	OBJECT_EPOLL,      /* likewise */
	OBJECT_FUTEX,      /* the address that is the first argument; an operation is the second */
	OBJECT_FUTEX_WAIT, /* likewise, with the flags as the fourth */
	OBJECT_CHILD,      /* as wait4(2) has its first argument */
	OBJECT_ID,         /* as waitid(2) has the first two */
	OBJECT_POLL,       /* any of several: how many, and argument 1 if there are more; of one alone it is OBJECT_FILE */
	OBJECT_LOCK,       /* a lock of the kernel's own, at `file`; `state` is enum place */
};
enum place {
	PLACE_UNKNOWN,
	PLACE_MEMORY,      /* a process's map of its memory: peer_pid */
	PLACE_INODE,       /* inode, of the file system of `device`; argument is a descriptor of it */
	PLACE_POSITION,    /* in what the descriptor is open on that is the argument */
	PLACE_PIPE,        /* likewise, a pipe */
};
#define LOCK_SEMAPHORE 1   /* include/linux/hung_task.h, in the low bits of a lock's address: 0 is a mutex */
#define LOCK_RWSEM 2       /* 3: wanted for writing */
#define LOCK_TYPES 3
#define OWNER_FLAGS 7      /* kernel/locking: in the low bits of who holds a mutex or rwsem */
#define MUTEX_HANDED_OVER 4 /* MUTEX_FLAG_PICKUP: to one who does not have it yet */
#define RWSEM_READERS 1    /* RWSEM_READER_OWNED: who came last of them, and may have left */
#define CALLS 512
#define FUTEX_PRIVATE 128
#define MAGIC_PIPES 0x50495045
#define MAGIC_SOCKETS 0x534f434b /* include/uapi/linux/magic.h */
#define NO_DESCRIPTOR 0xffffffff
#define POLL_WORDS 128     /* of a kernel stack, from where its thread went to sleep: poll's table begins at 70 to 90 */
#define POLL_HEAD 16       /* of that table, what is looked at */
#define DESCRIPTORS 64     /* NR_OPEN_DEFAULT */
#define FAMILY_UNIX 1      /* include/linux/socket.h */
#define FAMILY_IPV4 2
#define FAMILY_IPV6 10

/* What is waited on. Its id is a hash of it. */
struct object {
	u64 file;          /* where it is in the kernel */
	u64 inode;
	u64 magic;         /* of its file system */
	u64 argument;      /* a descriptor, the address of a futex, or whose end is waited for */
	u32 kind;          /* enum object_kind */
	u32 device;        /* of its file system */
	u32 how;           /* of a futex FUTEX_PRIVATE or 0; OBJECT_ID: what the argument is; OBJECT_POLL: how many; of a
			    * lock 0, LOCK_SEMAPHORE or LOCK_RWSEM */
	u32 peer_pid;      /* of a Unix socket: who made the other end; 0: not known */
	u16 family;        /* of a socket, as are the others */
	u16 protocol;
	u16 state;
	u16 local_port;
	u16 peer_port;
	u16 unused[3];
	u8 local[16];      /* IPv4: the first four */
	u8 peer[16];
};

/* What ended a wait. Its id is a hash of it. */
struct wake {
	u64 waker;
	u64 plain;         /* the same waker without its user stack, where that is a copy's; else the same */
	struct object object;
	u16 depth;         /* how many links there are */
	u16 end;           /* why not more: NO_WAKE, WAKE_LOST, WAKE_SHORT of the last waker; else there are as many as asked for */
	u32 unused;
	struct link links[LINKS];
};

/* How a user stack ends. */
enum end {
	END_LINKED = 1,    /* wherever its frame pointers led, which nobody has checked */
	END_WHOLE,         /* where the thread began */
	END_DEEP,          /* after FRAMES */
	END_MEMORY,        /* where the stack is not in memory */
	END_ASTRAY,        /* where what should be a frame is none */
	END_NO_WAY,        /* in code of which nothing says how to go on */
	END_NO_RULE,       /* never of a stack that is kept: here user space goes on */
	END_ODD,           /* likewise: the rule needs registers that are not followed */
};
#define END_UNSURE 0x100   /* some of its steps were made without .eh_frame */
#define END_PYTHON 9       /* from this bit on: how many of the frames are Python's own; PYTHON_FRAMES at most */
#define END_GENERATION 16  /* from this bit on: struct python's, if there are any */
#define END_EXECS 32       /* from this bit on: the thread's self_exec_id, another one after each exec */
#define COPIED (1ULL << 63) /* of a stack's id: what it is will be known when user space has walked the copy */
#define EXACT (1ULL << 63) /* of an address: it was interrupted there; all others but the leaf are return addresses */
#define PYTHON (1ULL << 62) /* of a frame: it is one of Python's own, behind all others, by its code object; 0: here are more */
#define PYTHON_ENTRY (1ULL << 61) /* of such a one: with it a call of the interpreter began. 0: it began behind the last */
#define PYTHON_FRAMES 64
#define PYTHON_ADDRESS ((1ULL << 56) - 1)
#define LARGEST_FRAME (1 << 24)
#ifndef REGISTERS
#define REGISTERS 21       /* of x86-64's pt_regs */
#endif

/* The way from one address of a program to its caller's. CFA: the stack pointer there, below which the return
 * address is (DWARF 5, 6.4). */
struct rule_key {
	u64 pc;            /* of the instruction; of a call's, any byte */
	u32 space;
	u32 unused;
};

enum how { HOW_NONE, HOW_SP, HOW_BP, HOW_AT_BP, HOW_LINK, HOW_SIGNAL, HOW_ODD, HOW_END };
enum saved { SAVED_NOT, SAVED_BELOW, SAVED_AT, SAVED_AT_BP, SAVED_LINK };

struct rule {
	s32 cfa;           /* from what `how` says: the stack pointer, the frame pointer, or the word there */
	s16 bp;            /* where the caller's frame pointer is: from the CFA, or SAVED_AT_BP from the frame pointer */
	u8 how;            /* enum how; from HOW_END on: the stack ends here, HOW_END + enum end */
	u8 saved;          /* enum saved: SAVED_BELOW is where frame pointers are, right below the return address. On
			    * arm64 that is above `bp`, too; SAVED_LINK: it alone. SAVED_NOT: it is in its register */
	u32 unsure;        /* it is no rule of .eh_frame */
};

struct space {
	u32 id;
};

/* Where CPython has what it runs (userstack.c): offsets in its structs, of the version that a process has. */
struct python {
	u64 interpreters;  /* address of the pointer to the first one */
	u64 code_mask;     /* of the word that has a frame's code object */
	u32 next_interpreter;
	u32 threads;       /* of an interpreter: the pointer to its first thread */
	u32 next_thread;
	u32 thread_id;     /* of a thread: what pthread_self() gives in it, on arm64 gettid() */
	u32 frame;         /* of a thread, or of what `frame_holder` points to: its innermost frame */
	u32 frame_holder;  /* of a thread; PYTHON_NO_HOLDER: it has its frame itself */
	u32 code;          /* of a frame */
	u32 caller;
	u32 mark;          /* of a frame: a byte, by which it is known where a call of the interpreter began */
	u32 marks;         /* enum python_marks */
	u16 generation;    /* another one makes other stacks of the same frames: what they are called has changed */
	u16 unused[3];
};
#define PYTHON_NO_HOLDER 0xffffffff
enum python_marks {
	MARKS_ALL,         /* each frame is a call of the interpreter */
	MARKS_ENTRY,       /* not 0: there it began */
	MARKS_SHIM,        /* MARKS_SHIM_OWNER and more: this is no function's frame; the one before was the first */
};
#define MARKS_SHIM_OWNER 3

struct copy_head {
	u64 id;
	u64 fallback;      /* id of the stack along frame pointers */
	u64 registers[REGISTERS];
	u64 pc;            /* the next frame, with EXACT; sp and bp are there, and the copy begins at sp */
	u64 sp;
	u64 bp;
	u64 bytes;         /* of the stack, behind this */
	u64 at;            /* where the rule of pc is found */
	u32 pid;
	u32 tid;
	u32 space;
	u32 unused;
	u32 depth;         /* of what is in `frames` already; 0: all registers are those at pc */
	u32 unsure;
	u32 end;
	u32 execs;
	u32 pythons;       /* how many of Python's own frames there are */
	u32 walked_end;    /* VERIFY: how the walk ended whose frames these are, enum end; else 0 */
	u64 frames[FRAMES + 1];
	u64 of_python[PYTHON_FRAMES];
};

/* What a task walk says of a thread. WALKED_THREAD: a struct thread follows, then, with WALKED_STACK,
 * its stack. WALKED_RAN: it has run, and did nothing else in this tick. WALKED_OLDER: the wait began after
 * arrived_ns, and before left_ns, when the walk first met it. WALKED_HOLDER: another one holds the lock by now.
 * WALKED_STARTED: it is on its first CPU since it was made, and waited for that from left_ns on, for first_ns. */
struct walked {
	u64 left_ns;       /* off CPU since, at the moment of the walk; 0: it runs */
	u64 queued_ns;     /* on the scheduler's clock: in the run queue since; 0: not queued */
	u64 arrived_ns;    /* on the scheduler's clock: when it last got a CPU; 0: not known */
	u64 exec_ns;       /* how long it has run in all, by the kernel's own account; 0: not known */
	u64 exec_at_ns;    /* when that was, if it was on a CPU then; else 0 */
	u64 start_ns;      /* when the thread began */
	u64 born_ns;       /* as struct thread has it */
	u64 first_ns;      /* WALKED_STARTED */
	u32 pid;
	u32 tid;
	u32 state;
	u32 flags;         /* enum walked_flag */
	u32 execs;         /* its self_exec_id */
	u32 holder_pid;    /* who holds the lock that it waits for; 0: not known, or there is none */
	u32 holder_tid;
	u32 unused;
	char comm[16];
};

#define ARGUMENTS 6
#define OTHERS 11

struct walked_stack {
	u64 depth;
	u64 turns;               /* how often it has been given a CPU: /proc/PID/task/TID/schedstat has it, too */
	s64 call;                /* the system call that it is in; -1: in none, or not known */
	u64 arguments[ARGUMENTS];
	u64 ip;                  /* of its program, as are the next ones; sp 0: not known */
	u64 sp;
	u64 bp;
	u64 others[OTHERS];      /* rbx, r12 to r15; x19 to x28, x30: what calls keep. 0: not known */
	u64 mode;                /* cs; pstate. 0: not known */
	u64 thread;              /* what Python knows it by (python_id()); 0: not known */
	struct object object;    /* what it waits on */
	u64 words[WALK_WORDS];   /* the top of the thread's kernel stack, for the __sched functions */
	u64 frames[WALK_FRAMES];
};

/* The lane of a histogram that counts a wait. */
static inline __attribute__((always_inline)) u32 lane_of(u64 ns)
{
	u32 lane = 0;

	ns >>= FIRST_EXPONENT + 1;
	if (ns >> 32) { lane += 32; ns >>= 32; }
	if (ns >> 16) { lane += 16; ns >>= 16; }
	if (ns >> 8) { lane += 8; ns >>= 8; }
	if (ns >> 4) { lane += 4; ns >>= 4; }
	if (ns >> 2) { lane += 2; ns >>= 2; }
	if (ns >> 1) { lane += 1; ns >>= 1; }
	lane += ns;
	return lane < LANES ? lane : LANES - 1;
}

/* What is read from here on is read from memory. At the head of a loop: else clang reads before the first round, and
 * jumps into the middle of the loop, which the verifier of 6.1 refuses ("back-edge"). Where ways have parted: else clang
 * has what it wrote in registers, of which the verifier knows on each way something else. */
#define READ_AGAIN asm volatile("" ::: "memory")

/*
 * Ids of what a program can choose (its stacks, what it waits on, how it is woken) are hashes by keys that are drawn at
 * each start, so that nobody can make two that meet. NH (Black, Halevi and others, UMAC, 1999), twice, the second time
 * with keys moved by one: of any two inputs, as they are hashed here, the sums are equal for one choice of keys in
 * about 2^62. The words are added up in any order, and no addition waits for another one. By chance two of 16,384
 * stacks meet once in 10^11.
 */
#define HASH_KEYS 136      /* one for each word of the longest input, a stack with its depth and end, and a few more */
struct hash_keys {
	u64 words[HASH_KEYS];
};

struct hash {
	u64 a;
	u64 b;
};

static inline __attribute__((always_inline)) u64 product(u64 sum)
{
	return (sum & 0xffffffff) * (sum >> 32);
}

/* `key`: that of the word's place in the input. The next one is used, too. */
static inline __attribute__((always_inline)) void hash_word(struct hash *hash, u64 word, u64 *key)
{
	hash->a += product(word + key[0]);
	hash->b += product(word + key[1]);
}

/* All 64 bits depend on both sums, so that some of them may be used for other things. */
static inline __attribute__((always_inline)) u64 hash_end(struct hash *hash, struct hash_keys *keys)
{
	u64 id = hash->a + hash->b * (keys->words[HASH_KEYS - 2] | 1);

	id = (id ^ id >> 32) * (keys->words[HASH_KEYS - 1] | 1);
	return id ^ id >> 29;
}

#endif
