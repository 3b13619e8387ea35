// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/*
 * Which threads are counted?
 *
 * Part of offcpu.c, which includes it (offtop/kernel/bpf/compile.py replaces the #include by this text).
 *
 * hooks: none of its own. Runs at a thread's first switch after the filters have changed, and in the scans (scan.c)
 *
 * maps
 *   only_pids, only_tids    processes and threads, if the user has selected some
 *   only_cgroup             the cgroup, if the user has selected one
 *
 * cost: see bpf/README.md
 *
 * -D: TASK_CGROUPS, CGROUP_*  how to get from a task to its cgroup's id
 */

BPF_HASH(only_pids, u32, u32, 1024);
BPF_HASH(only_tids, u32, u32, 1024);
#ifdef TASK_CGROUPS
BPF_CGROUP_ARRAY(only_cgroup, 1); /* cgroup v2 */
#else
BPF_ARRAY(only_cgroup, u32, 1);
#endif

static __always_inline bool is_own(struct config *c, u32 pid)
{
	return pid == c->self || pid == c->children[0] || pid == c->children[1] || pid == c->children[2];
}

/*
 * Return whether a thread is in the selected cgroup or below it. For the current thread and cgroup v2 a helper does
 * this at a tenth of the cost.
 */
static __always_inline bool in_cgroup(struct config *c, void *task, bool is_current)
{
#ifdef TASK_CGROUPS
	if (is_current && !(c->select & CGROUP_V1))
		return only_cgroup.check_current_task(0) > 0;

	char *at = 0;
	u32 level = 0;
	u64 id = 0;

	bpf_probe_read_kernel(&at, sizeof(at), (char *)task + TASK_CGROUPS);
	bpf_probe_read_kernel(&at, sizeof(at), at + c->cgroup_offset);
	if (c->select & CGROUP_V1)
		bpf_probe_read_kernel(&at, sizeof(at), at + CGROUP_OF_STATE);
	bpf_probe_read_kernel(&level, sizeof(level), at + CGROUP_LEVEL);
	if (level < c->cgroup_level)
		return false;
#ifdef CGROUP_ANCESTORS
	bpf_probe_read_kernel(&at, sizeof(at), at + CGROUP_ANCESTORS + 8 * (u64)c->cgroup_level);
	bpf_probe_read_kernel(&at, sizeof(at), at + CGROUP_NODE);
	bpf_probe_read_kernel(&id, sizeof(id), at + CGROUP_NODE_ID);
#else /* before 7f203bc89eb6, 6.1 */
	bpf_probe_read_kernel(&id, sizeof(id), at + CGROUP_ANCESTOR_IDS + 8 * (u64)c->cgroup_level);
#endif
	return id == c->cgroup;
#else
	return false;
#endif
}

static __always_inline bool passes_filters(struct config *c, void *task, bool is_current, u32 pid, u32 tid, u32 flags)
{
	if (is_own(c, pid) || !IS_COUNTED(pid))
		return false;
	if (!c->select)
		return true;
	if (c->select & ONLY_USER && flags & PF_KTHREAD)
		return false;
	if (c->select & ONLY_KERNEL && !(flags & PF_KTHREAD))
		return false;
	if (c->select & (ONLY_PIDS | ONLY_TIDS) && !(c->select & ONLY_PIDS && only_pids.lookup(&pid)) &&
	    !(c->select & ONLY_TIDS && !IS_OUTSIDE(pid) && only_tids.lookup(&tid)))
		return false;
	return !(c->select & ONLY_CGROUP) || in_cgroup(c, task, is_current);
}
