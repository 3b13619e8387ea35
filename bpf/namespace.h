/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * The ids by which a thread is shown: in a container those that are seen in there, for its own threads and those of
 * namespaces below it. All other threads have none; they are those of one process, OUTSIDE, by the host's ids.
 *
 * -D: NAMESPACE (the inode of the pid namespace, as in /proc/self/ns/pid; without it the host's ids are shown, and
 * this costs nothing), OUTSIDE; offsets, from BTF: TASK_THREAD_PID and TASK_LEADER in task_struct, PID_LEVEL and
 * PID_NUMBERS in struct pid, UPID_NR, UPID_NS and UPID_SIZE of struct upid, NAMESPACE_INUM in struct pid_namespace.
 *
 * A task iterator sees no more than its reader's pid namespace does (eaaacd23910f, 5.8). Those outside can only be
 * listed by functions of the kernel's (kfuncs: TASK_FROM_PID and so on are their numbers, from BTF;
 * offtop/kernel/bpf/compile.py makes calls of them). A kernel that has them not all (c68a78ffe2cb, 6.7) does not count
 * those outside.
 */
#ifndef OFFTOP_NAMESPACE_H
#define OFFTOP_NAMESPACE_H

#ifdef NAMESPACE
#define MOST_LEVELS 32 /* MAX_PID_NS_LEVEL, include/linux/pid_namespace.h */

/* What a struct pid is called in our namespace; 0: nothing, it is of another one, or none. */
static inline __attribute__((always_inline)) u32 id_inside(char *of)
{
	u32 level = 0;

	bpf_probe_read_kernel(&level, sizeof(level), of + PID_LEVEL);
#pragma clang loop unroll(disable)
	for (u32 i = 1; i <= MOST_LEVELS; i++) { /* level 0 is the host's */
		char *upid = of + PID_NUMBERS + i * UPID_SIZE, *namespace = 0;
		u32 inode = 0, id = 0;

		if (i > level)
			break;
		bpf_probe_read_kernel(&namespace, sizeof(namespace), upid + UPID_NS);
		bpf_probe_read_kernel(&inode, sizeof(inode), namespace + NAMESPACE_INUM);
		if (inode != NAMESPACE)
			continue;
		bpf_probe_read_kernel(&id, sizeof(id), upid + UPID_NR);
		return id;
	}
	return 0;
}

/* Make the host's ids of a thread those that are shown; false: it is on its way out, and has none any more. */
static inline __attribute__((always_inline)) bool find_ids(void *task, u32 *pid, u32 *tid)
{
	char *leader = 0, *of = 0;

	bpf_probe_read_kernel(&of, sizeof(of), (char *)task + TASK_THREAD_PID);
	if (!of)
		return false;
	u32 own = id_inside(of);
	if (!own) {
		*pid = OUTSIDE;
		return true;
	}
	*pid = *tid = own;
	bpf_probe_read_kernel(&leader, sizeof(leader), (char *)task + TASK_LEADER);
	if (leader != task) {
		bpf_probe_read_kernel(&of, sizeof(of), leader + TASK_THREAD_PID);
		*pid = id_inside(of);
	}
	return *pid;
}

#define IS_OUTSIDE(shown_pid) ((shown_pid) == OUTSIDE)
#else
#define show(task, host, pid, tid) true
#define IS_OUTSIDE(shown_pid) false
#endif

#ifdef TASK_FROM_PID
#define ALL_THREADS 1 /* BPF_TASK_ITER_ALL_THREADS, kernel/bpf/task_iter.c */
struct every_task { u64 opaque[3]; };

static struct task_struct *(*task_from_pid)(u32 tid) = (void *)TASK_FROM_PID;
static void (*task_release)(struct task_struct *task) = (void *)TASK_RELEASE;
static int (*task_iter_new)(struct every_task *every, void *task, u32 flags) = (void *)TASK_ITER_NEW;
static struct task_struct *(*task_iter_next)(struct every_task *every) = (void *)TASK_ITER_NEXT;
static void (*task_iter_destroy)(struct every_task *every) = (void *)TASK_ITER_DESTROY;
#define IS_COUNTED(shown_pid) true
#else
#define IS_COUNTED(shown_pid) (!IS_OUTSIDE(shown_pid))
#endif

#endif
