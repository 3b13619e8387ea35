"""Categories: the shipped rules against real stacks, and the errors of a broken file of rules.

The stacks in stacks-6.18.json were recorded from real waits by tests/recordings/record_stacks.py: each kind was made to
happen 23 times.
"""

import itertools
import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtop.errors import OfftopError
from offtop.model.classify import categories
from offtop.model.classify.categories import Categories, Rule
from offtop.model.values import histogram
from offtop.model.values.table import nonzero_lanes

TESTS = Path(__file__).resolve().parents[2]
TEXT = (TESTS.parent / "offtop" / "categories.toml").read_text()
RULES = categories.parse(TEXT)
RECORDING: dict[str, Any] = json.loads((TESTS / "recordings" / "stacks-6.18.json").read_text())
WAITS: dict[str, Any] = RECORDING["waits"]

TIMES = 23
INEXACT = {"read", "read-direct", "write-direct", "fault", "swap", "rcu", "run-queue", "throttle"} | {
    kind for kind in WAITS if kind.startswith("fsync")
}
"""The kernel decides how often these wait; of all others there are 23."""
IDS = (
    *("lock", "kernel-lock", "net-recv", "net-send", "connect", "accept", "poll"),
    *("disk-read", "disk-write", "fsync", "page-fault", "swap", "reclaim", "pipe", "sleep", "child", "signal", "tty"),
    *("stopped", "throttle", "run-queue", "kthread-idle", "io-uring", "device", "rcu", "short", "other"),
)


def trimmed(frames: Sequence[str]) -> list[str]:
    return list(frames[RULES.tail_length(frames) :])


def category_of(frames: Sequence[str]) -> str:
    return RULES.classify(trimmed(frames))


# ---- real stacks


@pytest.mark.parametrize("kind", WAITS)
def test_nine_tenths_of_the_time_of_each_kind_of_wait_are_in_its_category(kind: str) -> None:
    by_category: Counter[str] = Counter()
    for entry in WAITS[kind]["finished"]:
        by_category[category_of(entry["frames"])] += entry["total_ns"]
    ours_ns = by_category[WAITS[kind]["category"]]
    if kind == "throttle":
        del by_category["run-queue"]  # a thread that always wants its CPU is also preempted
    assert ours_ns
    assert 10 * ours_ns >= 9 * by_category.total()


@pytest.mark.parametrize("kind", sorted(WAITS.keys() - INEXACT))
def test_each_category_has_the_23_waits_of_its_kind(kind: str) -> None:
    finished = WAITS[kind]["finished"]
    ours = sum(entry["waits"] for entry in finished if category_of(entry["frames"]) == WAITS[kind]["category"])
    assert ours == TIMES + (kind == "pipe")  # its wait for the start signal is a pipe read too


@pytest.mark.parametrize("form", ["iterator", "restored"])
@pytest.mark.parametrize("kind", sorted(WAITS.keys() - {"run-queue", "throttle"}))
def test_wait_in_progress_is_in_the_category_of_the_finished_one(kind: str, form: str) -> None:
    also = {"reclaim"} if kind == "swap" else set[str]()  # to swap a page in, another must go out
    assert WAITS[kind][form]
    assert {category_of(frames) for frames in WAITS[kind][form]} <= {WAITS[kind]["category"]} | also


@pytest.mark.parametrize("kind", sorted(WAITS.keys() - INEXACT))
def test_stack_read_from_outside_is_the_finished_one_without_its_first_frames(kind: str) -> None:
    finished = max(WAITS[kind]["finished"], key=lambda entry: entry["total_ns"])
    for walked in WAITS[kind]["iterator"]:
        assert trimmed(finished["frames"])[-len(trimmed(walked)) :] == trimmed(walked)


@pytest.mark.parametrize("comm", RECORDING["kernel_threads"])
def test_kernel_thread_without_work_is_idle(comm: str) -> None:
    forms = RECORDING["kernel_threads"][comm]
    assert {category_of(frames) for frames in forms.values()} == {"kthread-idle"}


def test_every_category_with_a_rule_was_recorded_except_for_devices() -> None:
    with_rules = {rule.category for rule in RULES.rules}
    recorded = {WAITS[kind]["category"] for kind in WAITS} | {"kthread-idle"}
    recorded |= {category_of(entry["frames"]) for entry in WAITS["swap"]["finished"]}
    assert with_rules - recorded == {"device"}
    assert set(RULES.ids) - with_rules == {"short", "other"}


@pytest.mark.parametrize(
    ("kernel", "stack", "category"),
    [
        ("5.10", "futex_wait_queue_me futex_wait do_futex __x64_sys_futex do_syscall_64", "lock"),
        ("5.18", "futex_wait_queue futex_wait do_futex __x64_sys_futex do_syscall_64", "lock"),
        ("5.10", "pipe_read new_sync_read vfs_read ksys_read do_syscall_64", "pipe"),
        ("5.10", "ep_poll do_epoll_wait __x64_sys_epoll_wait do_syscall_64", "poll"),
        ("5.10", "wait_on_page_bit_common generic_file_buffered_read new_sync_read vfs_read ksys_read", "disk-read"),
        ("5.10", "__lock_page_killable filemap_fault ext4_filemap_fault __do_fault handle_mm_fault", "page-fault"),
        ("5.10", "wait_on_page_bit_common do_swap_page handle_mm_fault do_user_addr_fault", "swap"),
        ("5.10", "rwsem_down_read_slowpath down_read do_user_addr_fault exc_page_fault", "kernel-lock"),
        ("5.10", "do_signal_stop get_signal arch_do_signal_or_restart exit_to_user_mode_prepare", "stopped"),
        ("5.10", "exit_to_user_mode_prepare irqentry_exit_to_user_mode asm_sysvec_apic_timer_interrupt", "run-queue"),
        ("5.10", "io_wqe_worker ret_from_fork", "io-uring"),
        ("5.15", "balance_dirty_pages balance_dirty_pages_ratelimited generic_perform_write vfs_write", "disk-write"),
        ("5.15", "rq_qos_wait wbt_wait __rq_qos_throttle blk_mq_submit_bio submit_bio ext4_writepages", "disk-write"),
        ("5.15", "blk_mq_get_tag __blk_mq_alloc_requests blk_mq_submit_bio ext4_mpage_readpages vfs_read", "disk-read"),
        ("5.15", "blk_mq_get_tag __blk_mq_alloc_requests blk_mq_submit_bio iomap_dio_rw vfs_write", "disk-write"),
        ("5.15", "wait_transaction_locked add_transaction_credits start_this_handle ext4_create", "fsync"),
        ("5.15", "jbd2_log_wait_commit jbd2_log_do_checkpoint __jbd2_log_wait_for_space vfs_write", "fsync"),
        (
            "6.1",
            "throttle_direct_reclaim try_to_free_pages __alloc_pages_slowpath.constprop.0 __alloc_pages",
            "reclaim",
        ),
        ("6.1", "folio_wait_bit_common folio_wait_writeback truncate_inode_pages_range evict", "disk-write"),
        (
            "6.18",
            "__iomap_dio_rw iomap_dio_rw ext4_file_read_iter do_iter_readv_writev vfs_readv do_preadv",
            "disk-read",
        ),
        ("6.18", "__iomap_dio_rw iomap_dio_rw xfs_file_write_iter do_iter_readv_writev vfs_writev", "disk-write"),
        ("6.1", "__folio_lock migrate_pages_batch migrate_pages compact_zone __alloc_pages", "reclaim"),
        (
            "6.1",
            "rpc_wait_bit_killable __wait_on_bit out_of_line_wait_on_bit __rpc_execute nfs4_proc_getattr",
            "net-recv",
        ),
        ("6.1", "request_wait_answer fuse_simple_request fuse_lookup_name __lookup_slow", "pipe"),
        ("6.1", "fuse_dev_do_read fuse_dev_read vfs_read", "poll"),
        ("6.1", "kvm_vcpu_block kvm_vcpu_halt vcpu_run kvm_arch_vcpu_ioctl_run kvm_vcpu_ioctl", "poll"),
        ("6.1", "wait_for_completion_io_timeout blk_execute_rq nvme_submit_user_cmd nvme_ioctl", "device"),
        ("6.1", "dma_fence_default_wait dma_fence_wait_timeout drm_atomic_helper_wait_for_fences", "device"),
        ("6.18", "file_tty_write.isra.0 vfs_write ksys_write do_syscall_64", "kernel-lock"),
        ("6.18", "n_tty_write file_tty_write.isra.0 vfs_write ksys_write do_syscall_64", "tty"),
        ("6.1 arm64", "el0_interrupt __el0_irq_handler_common el0t_64_irq_handler el0t_64_irq", "run-queue"),
        ("6.1 realtime", "rtlock_slowlock_locked rt_spin_lock __local_bh_disable_ip", "kernel-lock"),
        ("7.0", "preempt_schedule_common throttle_cfs_rq_work task_work_run exit_to_user_mode_loop", "throttle"),
        (
            "6.18, preemptible",
            "preempt_schedule preempt_schedule_thunk _raw_spin_unlock_irqrestore task_work_run exit_to_user_mode_loop",
            "throttle",
        ),
        ("6.18, preemptible", "preempt_schedule preempt_schedule_thunk ____fput task_work_run", "run-queue"),
    ],
)
def test_names_of_other_kernels_match(kernel: str, stack: str, category: str) -> None:
    assert RULES.classify(stack.split()) == category, kernel


# ---- the scheduler's tail


def test_five_leaf_frames_of_a_sleep_belong_to_scheduler_and_tracer() -> None:
    frames = ["bpf_prog_1_back", "bpf_trace_run1", "__schedule", "schedule", "schedule_timeout", "msleep"]
    assert RULES.tail_length(frames) == 5


def test_stack_read_from_outside_has_no_tail() -> None:
    assert RULES.tail_length(["hrtimer_nanosleep", "__x64_sys_nanosleep", "do_syscall_64"]) == 0


def test_functions_that_wait_for_their_callers_are_tail_without_the_scheduler_too() -> None:
    assert RULES.tail_length(["wait_woken", "sk_wait_data", "tcp_recvmsg_locked"]) == 1


def test_stale_word_between_two_scheduler_frames_is_trimmed_with_them() -> None:
    assert RULES.tail_length(["__schedule", "wait_for_completion", "schedule", "wait_woken", "n_tty_read"]) == 4


def test_frame_that_shows_a_preemption_is_not_trimmed() -> None:
    frames = ["__schedule", "preempt_schedule_irq", "irqentry_exit", "asm_sysvec_apic_timer_interrupt"]
    assert RULES.tail_length(frames) == 1
    assert category_of(frames) == "run-queue"


def test_kprobe_stack_on_arm64_lacks_the_caller_of_the_probed_function() -> None:
    aside = ["finish_task_switch.isra.0", "__cond_resched", "move_page_tables", "setup_arg_pages"]
    asleep = ["finish_task_switch.isra.0", "schedule", "do_nanosleep", "hrtimer_nanosleep"]
    assert [RULES.tail_length(frames) for frames in (aside, asleep)] == [1, 2]
    assert [category_of(frames) for frames in (aside, asleep)] == ["run-queue", "sleep"]


def test_scheduler_deeper_than_twelve_frames_is_not_trimmed() -> None:
    assert RULES.tail_length(["f"] * 11 + ["__schedule", "g"]) == 12
    assert RULES.tail_length(["f"] * 12 + ["__schedule", "g"]) == 0


def test_stack_of_only_scheduler_frames_is_all_tail_and_in_other() -> None:
    assert RULES.tail_length(["__schedule", "schedule"]) == 2
    assert category_of(["__schedule", "schedule"]) == "other"


def test_empty_stack_has_no_tail_and_is_in_other() -> None:
    assert RULES.tail_length([]) == 0
    assert RULES.classify([]) == "other"
    assert RULES.rule_of([], "other") == "no rule"


# ---- the kernel's entry


ARM64_ROOT = "el0t_64_sync_handler el0t_64_sync"


@pytest.mark.parametrize(
    ("stack", "length"),
    [
        ("ksys_read do_syscall_64 entry_SYSCALL_64_after_hwframe", 2),
        ("do_wait __x64_sys_wait4 x64_sys_call do_syscall_64 entry_SYSCALL_64_after_hwframe", 3),
        ("do_poll __ia32_sys_poll __do_fast_syscall_32 do_fast_syscall_32 entry_SYSENTER_compat_after_hwframe", 3),
        (f"do_wait __arm64_sys_wait4 invoke_syscall el0_svc_common.constprop.0 do_el0_svc el0_svc {ARM64_ROOT}", 6),
        ("do_wait __arm64_sys_wait4 el0_svc_common.constprop.0 do_el0_svc el0_sync_handler el0_sync", 4),
        (f"folio_wait_bit_common do_page_fault do_translation_fault do_mem_abort el0_da {ARM64_ROOT}", 3),
        ("folio_wait_bit_common handle_mm_fault exc_page_fault asm_exc_page_fault", 1),
        ("worker_thread kthread ret_from_fork ret_from_fork_asm", 2),
        ("exit_to_user_mode_loop irqentry_exit_to_user_mode asm_sysvec_apic_timer_interrupt", 0),
        ("do_syscall_64 ksys_read", 0),
        ("[stack lost]", 0),
    ],
)
def test_entry_code_ends_at_the_first_meaningful_frame(stack: str, length: int) -> None:
    assert RULES.entry_length(stack.split()) == length


def test_stack_of_only_entry_code_keeps_one_frame() -> None:
    assert RULES.entry_length(["do_syscall_64", "entry_SYSCALL_64_after_hwframe"]) == 1
    assert RULES.entry_length(["ret_from_fork"]) == 0
    assert RULES.entry_length([]) == 0


@pytest.mark.parametrize("kind", WAITS)
def test_trimmed_stacks_of_all_kinds_begin_outside_the_entry_code(kind: str) -> None:
    for entry in WAITS[kind]["finished"]:
        left = trimmed(entry["frames"])
        assert not RULES.kernel_entry.match(left[-1 - RULES.entry_length(left)])


# ---- matching


@pytest.mark.parametrize("added", ["", ".isra.0", ".constprop.0", ".part.0", ".cold", ".llvm.123456", ".isra.0.cold"])
def test_compiler_suffixes_do_not_matter(added: str) -> None:
    assert RULES.classify([f"do_sigtimedwait{added}"]) == "signal"


def test_stack_without_a_matching_rule_is_in_other() -> None:
    assert RULES.classify(["[stack lost]"]) == "other"
    assert RULES.classify(["frobnicate", "do_syscall_64"]) == "other"


def test_rule_description_names_the_pattern_that_matched() -> None:
    assert RULES.rule_of(["futex_wait_queue", "do_futex"], "lock") == "one of the 4 innermost functions = futex_wait*"
    assert RULES.rule_of(["wait_for_completion_state", "kernel_clone"], "child") == (
        "one of the 4 innermost functions = kernel_clone, not below copy_process"
    )
    assert RULES.rules_of("child")[1] == (
        "one of the 4 innermost functions = kernel_clone or _do_fork, not below copy_process"
    )
    assert RULES.rules_of("other") == ()


TINY = """\
scheduler_entry = ["__schedule"]
scheduler_tail = ["schedule*"]
kernel_entry = ["do_syscall_64"]
[names]
wet = ["sea", "rain"]
[groups]
all = ["pipe"]
[category.pipe]
plain = "a pipe"
idle = true
[category.tty]
plain = "a terminal"
[category.other]
plain = "no idea"
[[rule]]
category = "pipe"
leaf = ["a"]
caller = ["b*"]
[[rule]]
category = "pipe"
near = ["n"]
not = ["x"]
[[rule]]
category = "tty"
any = ["@wet"]
"""


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        ("a b", "pipe"),
        ("a bb c", "pipe"),
        ("a", "other"),
        ("b a", "other"),
        ("a c b", "other"),
        ("n", "pipe"),
        ("1 2 3 n", "pipe"),
        ("1 2 3 4 n", "other"),
        ("n 2 3 4 5 x", "other"),
        ("1 2 3 4 5 6 7 8 rain", "tty"),
        ("n sea", "pipe"),
        ("n x sea", "tty"),
        ("nn", "other"),
    ],
)
def test_each_condition_covers_the_documented_frames(stack: str, category: str) -> None:
    assert categories.parse(TINY).classify(stack.split()) == category


def test_parsed_file_has_the_contents_of_the_text() -> None:
    tiny = categories.parse(TINY)
    assert tiny.ids == ("pipe", "tty", "other")
    assert tiny.plain == {"pipe": "a pipe", "tty": "a terminal", "other": "no idea"}
    assert tiny.idle == {"pipe"}
    assert tiny.groups == {"all": ("pipe",)}


@given(
    st.lists(
        st.text(max_size=20) | st.sampled_from(["__schedule", "schedule", "pipe_read", "ret_from_fork"]), max_size=40
    )
)
def test_any_stack_has_a_category_and_a_tail_within_twelve_frames(frames: list[str]) -> None:
    assert 0 <= RULES.tail_length(frames) <= min(12, len(frames))
    assert RULES.tail_length(frames) + RULES.entry_length(trimmed(frames)) <= len(frames)
    assert category_of(frames) in RULES.ids


# ---- the shipped file


def test_ids_are_the_documented_ones() -> None:
    assert RULES.ids == IDS


def test_groups_are_net_and_disk() -> None:
    assert RULES.groups == {
        "net": ("net-recv", "net-send", "connect", "accept"),
        "disk": ("disk-read", "disk-write", "fsync", "page-fault", "swap"),
    }


def test_three_categories_are_idle() -> None:
    assert RULES.idle == {"poll", "accept", "kthread-idle"}


@pytest.mark.parametrize("category", IDS)
def test_first_sentence_about_a_category_needs_no_kernel_knowledge(category: str) -> None:
    words = RULES.plain[category]
    assert words.endswith((".", "?"))
    first = words.split(". ")[0].lower()
    assert not [w for w in ("futex", "rwsem", "mutex", "inode", "folio", "syscall", "kthread", "tty") if w in first]


def stacks_for(rule: Rule) -> list[list[str]]:
    """Return a stack for each pattern of the rule's first condition that meets the other conditions."""
    found: list[list[str]] = []
    first, *rest = [condition for condition in rule.conditions if condition.where != "not"]
    for pattern in first.patterns:
        stack = ["", "", "", ""]
        for where, name in [(first.where, pattern), *((other.where, other.patterns[0]) for other in rest)]:
            at = {"leaf": 0, "caller": 1, "near": 2, "any": 3}[where]
            stack[at] = name.replace("*", "zz").replace("?", "z")
        found.append([name or f"f{i}" for i, name in enumerate(stack)])
    return found


@pytest.mark.parametrize("number", range(len(RULES.rules)))
def test_every_pattern_can_match(number: int) -> None:
    rule = RULES.rules[number]
    first = {
        " ".join(stack): next(i for i, other in enumerate(RULES.rules) if other.matches(stack))
        for stack in stacks_for(rule)
    }
    assert {stack: i for stack, i in first.items() if RULES.rules[i].category != rule.category} == {}
    assert number in first.values()


# ---- broken files


def broken(find: str, put: str) -> str:
    assert find in TINY
    return TINY.replace(find, put, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ids = [", "not valid TOML"),
        ("\n\nids = = 3", "line 3"),
        ("", "`category` is missing"),
        (broken('category = "tty"', 'category = "ttty"'), "rule 3 (line 23): there is no category `ttty`"),
        (broken('category = "tty"', "category = 3"), "rule 3 (line 23): `category` is missing"),
        (broken('any = ["@wet"]', 'some = ["wet"]'), "rule 3 (line 23): `some` is unknown here"),
        (broken('any = ["@wet"]', 'any = ["@dry"]'), "rule 3 (line 23): `@dry` is unknown"),
        (broken('any = ["@wet"]', ""), "rule 3 (line 23): it has none of the conditions"),
        (broken('any = ["@wet"]', 'not = ["wet"]'), "rule 3 (line 23): it has none of the conditions"),
        (broken('any = ["@wet"]', "any = []"), "rule 3 (line 23): `any` is not a list of names"),
        (broken('any = ["@wet"]', 'any = "wet"'), "rule 3 (line 23): `any` is not a list of names"),
        (broken('any = ["@wet"]', 'any = ["wet", 3]'), "rule 3 (line 23): `any` is not a list of names"),
        (broken('any = ["@wet"]', 'any = ["s", "s"]'), "rule 3 (line 23): `s` is listed twice"),
        (broken('plain = "a pipe"', ""), "[category.pipe] (line 8): `plain`, its plain words, is missing"),
        (broken('plain = "a pipe"', 'plain = " "'), "[category.pipe] (line 8): `plain`, its plain words, is missing"),
        (broken("idle = true", 'idle = "often"'), "[category.pipe] (line 8): `idle` is neither true nor false"),
        (broken("idle = true", "lazy = true"), "[category.pipe] (line 8): `lazy` is unknown here"),
        (broken("[category.other]", "[category.else]"), "there is no [category.other]"),
        (broken('all = ["pipe"]', 'all = ["pip"]'), "[groups] (line 6): there is no category `pip`"),
        (broken('scheduler_tail = ["schedule*"]', ""), "`scheduler_tail` is not a list of names"),
        (broken('kernel_entry = ["do_syscall_64"]', "kernel_entry = []"), "`kernel_entry` is not a list of names"),
        (broken("[names]", "[nouns]"), "`nouns` is unknown here"),
        (TINY[: TINY.index("[[rule]]")], "there is no [[rule]]"),
    ],
)
def test_broken_file_reports_place_error_and_remedy(text: str, said: str) -> None:
    with pytest.raises(OfftopError) as error:
        categories.parse(text)
    assert said in str(error.value)
    assert str(error.value).endswith("reinstall offtop to get its own file back.")


def with_rules(*rules: str) -> str:
    return TINY[: TINY.index("[[rule]]")] + "".join(f'[[rule]]\ncategory = "pipe"\n{rule}\n' for rule in rules)


@pytest.mark.parametrize(
    ("earlier", "later", "dead"),
    [
        ('near = ["n"]', 'near = ["n"]', True),
        ('near = ["n"]', 'leaf = ["n"]', True),
        ('near = ["n"]', 'caller = ["n"]', True),
        ('near = ["n*"]', 'near = ["nnn"]', True),
        ('any = ["n*"]', 'near = ["x"]\nany = ["n*"]', True),
        ('near = ["n"]', 'any = ["n"]', False),
        ('leaf = ["n"]', 'near = ["n"]', False),
        ('leaf = ["n"]', 'caller = ["n"]', False),
        ('near = ["nnn"]', 'near = ["n*"]', False),
        ('near = ["n"]\nany = ["m"]', 'near = ["n"]', False),
        ('near = ["n"]\nnot = ["m"]', 'near = ["n"]', False),
        ('near = ["n"]', 'near = ["m"]\nnot = ["n"]', False),
    ],
)
def test_pattern_that_an_earlier_rule_always_takes_is_rejected(earlier: str, later: str, dead: bool) -> None:
    text = with_rules(earlier, later)
    if not dead:
        assert len(categories.parse(text).rules) == 2
        return
    with pytest.raises(OfftopError, match=r"rule 2 .*can never match: rule 1 .*comes first"):
        categories.parse(text)


def test_no_two_shipped_rules_are_the_same() -> None:
    written = [json.dumps(rule, sort_keys=True) for rule in tomllib.loads(TEXT)["rule"]]
    assert [a for a, b in itertools.pairwise(sorted(written)) if a == b] == []


# ---- an even pace


@pytest.mark.parametrize(
    ("waits_ms", "periodic"),
    [
        ([], False),
        ([10, 10], False),
        ([10, 10, 10], True),
        ([10, 10, 17], True),
        ([10, 10, 34], False),
        ([10, 10, 10, 10, 10, 0], False),
        ([*[10] * 18, 0], False),
        ([*[10] * 19, 0], True),
        ([0, *[10] * 30, *[17] * 30, 34], True),
        ([*[10] * 19, 900], False),
        ([*[900] * 19, 10], True),
        ([*[900] * 18, 10, 10], False),
        ([*[10] * 19, *[34] * 19], False),
    ],
)
def test_waits_are_periodic_if_95_percent_are_within_two_adjacent_lanes(waits_ms: list[int], periodic: bool) -> None:
    one, other = (histogram.of(*(ms * 1_000_000 for ms in some)) for some in (waits_ms, [5, 5, 5, 5]))
    for histograms, found in (([one], [periodic]), ([other, one, other, one], [True, periodic] * 2)):
        counts = nonzero_lanes(histogram.to_lanes(histograms))
        assert categories.is_periodic(counts, len(histograms)).tolist() == found


def test_categories_are_immutable() -> None:
    rules: Any = RULES
    with pytest.raises(AttributeError):
        rules.ids = ()
    with pytest.raises(TypeError):
        rules.plain["lock"] = ""
    assert isinstance(RULES, Categories)
