/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/*
 * The pid and tid under which a thread is shown. In a container, threads of its pid namespace and of the namespaces
 * below it are shown by their ids in that namespace. All other threads have no id there: they are shown as one process,
 * OUTSIDE, with the host's tids.
 *
 * -D:
 *   NAMESPACE           inode of the pid namespace, as in /proc/self/ns/pid. Not set: the host's ids are shown, and
 *                       this file costs nothing
 *   OUTSIDE             the pid that stands for all threads outside of the namespace
 *   TASK_THREAD_PID, TASK_LEADER    offsets in task_struct (these and all below from BTF)
 *   PID_LEVEL, PID_NUMBERS          offsets in struct pid
 *   UPID_NR, UPID_NS, UPID_SIZE     offsets in struct upid, and its size
 *   NAMESPACE_INUM                  offset in struct pid_namespace
 *   TASK_FROM_PID, TASK_RELEASE     kfunc numbers; also set on the host, for CHANGED (offcpu.c)
 *   TASK_ITER_NEW, TASK_ITER_NEXT, TASK_ITER_DESTROY    kfunc numbers
 *
 * A task iterator sees only the pid namespace of its reader (eaaacd23910f, 5.8). Threads outside can only be listed
 * with kfuncs; offtop/kernel/bpf/compile.py turns calls through the numbers above into kfunc calls. Without all of
 * these kfuncs (c68a78ffe2cb, 6.7) threads outside are not counted.
 */
#ifndef OFFTOP_NAMESPACE_H
#define OFFTOP_NAMESPACE_H

#ifdef NAMESPACE
#define MAX_LEVELS 32 /* MAX_PID_NS_LEVEL, include/linux/pid_namespace.h */

/* Return the number of a struct pid in our namespace, or 0 if it has none there or the pointer is NULL. */
static __always_inline u32 id_in_namespace(char *pid_struct)
{
	u32 level = 0;

	bpf_probe_read_kernel(&level, sizeof(level), pid_struct + PID_LEVEL);
#pragma clang loop unroll(disable)
	for (u32 i = 1; i <= MAX_LEVELS; i++) { /* level 0 is the host's */
		char *upid = pid_struct + PID_NUMBERS + i * UPID_SIZE, *namespace = 0;
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

/* Replace a thread's host ids by those under which it is shown. Return false if it is exiting and has none any more. */
static __always_inline bool find_ids(void *task, u32 *pid, u32 *tid)
{
	char *leader = 0, *thread_pid = 0;

	bpf_probe_read_kernel(&thread_pid, sizeof(thread_pid), (char *)task + TASK_THREAD_PID);
	if (!thread_pid)
		return false;
	u32 own_id = id_in_namespace(thread_pid);
	if (!own_id) {
		*pid = OUTSIDE;
		return true;
	}
	*pid = *tid = own_id;
	bpf_probe_read_kernel(&leader, sizeof(leader), (char *)task + TASK_LEADER);
	if (leader != task) {
		bpf_probe_read_kernel(&thread_pid, sizeof(thread_pid), leader + TASK_THREAD_PID);
		*pid = id_in_namespace(thread_pid);
	}
	return *pid;
}

#define IS_OUTSIDE(shown_pid) ((shown_pid) == OUTSIDE)
#else
#define find_shown_ids(task, host, pid, tid) true
#define IS_OUTSIDE(shown_pid) false
#endif

#ifdef TASK_FROM_PID
static struct task_struct *(*task_from_pid)(u32 tid) = (void *)TASK_FROM_PID;
static void (*task_release)(struct task_struct *task) = (void *)TASK_RELEASE;
#endif

#ifdef TASK_ITER_NEW
#define ALL_THREADS 1 /* BPF_TASK_ITER_ALL_THREADS, kernel/bpf/task_iter.c */
struct task_iter {
	u64 opaque[3];
};

static int (*task_iter_new)(struct task_iter *iter, void *task, u32 flags) = (void *)TASK_ITER_NEW;
static struct task_struct *(*task_iter_next)(struct task_iter *iter) = (void *)TASK_ITER_NEXT;
static void (*task_iter_destroy)(struct task_iter *iter) = (void *)TASK_ITER_DESTROY;
#define IS_COUNTED(shown_pid) true
#else
#define IS_COUNTED(shown_pid) (!IS_OUTSIDE(shown_pid))
#endif

#endif
