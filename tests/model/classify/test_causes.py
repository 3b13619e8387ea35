"""Cause rules: offtop's own against stacks of real programs, and the errors of a broken file."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from offtop import paths
from offtop.errors import OfftopError
from offtop.model.classify import categories, causes
from offtop.model.classify.cause_finder import CauseFinder, CauseShare, advice, most, with_pid, without_keys
from offtop.model.classify.causes import NO_RULES, Fixed, PeerName, Rules, Subject, first_match, subject_of
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.peers import CLIENT, PEER, WRITER, Peers, PeerSide, Process
from offtop.model.values.snapshot import EXITED, OUTSIDE, SiteTotals, Snapshot
from offtop.model.values.stack import INLINED, KERNEL, NO_STACK, SHORT, Frame, Stack, nameless
from offtop.model.values.table import Ints, Mask
from offtop.model.values.wake import Object, Wake
from offtop.model.windows.breakdown import Idle, Leaf, Part, Scope, break_down, by_site, shares
from offtop.model.windows.history import History
from offtop.model.windows.idle_by_rule import IDLE, NOT_IDLE, SLEEPS, UNDECIDED, IdleByRule
from offtop.model.windows.window import Window

CATEGORIES = categories.parse(paths.categories().read_text())
TEXT = paths.rules().read_text()


def parsed(text: str) -> Rules:
    return causes.parse(text, "rules.toml", "Mend it", CATEGORIES.ids)


PACKAGED = parsed(TEXT)
RULE = 'id = "it"\nname = "it"\nsays = "It is so."\n'


class FixedNames:
    """Names that are the frames' own, or are resolved later."""

    def __init__(self) -> None:
        self.version = 0
        self.later: dict[Frame, str] = {}

    def of(self, frame: Frame) -> str:
        return frame.name or self.later.get(frame) or nameless(frame)


def frames(*functions: str, file: str = "/opt/prog") -> tuple[Frame, ...]:
    """`lib:function` is in the C library, `file!function` in another file; a number is a function without a name."""
    made: list[Frame] = []
    for at, function in enumerate(functions, 1):
        where, own = file, function
        if function.startswith("lib:"):
            where, own = "/lib/x86_64-linux-gnu/libc.so.6", function[4:]
        elif "!" in function:
            where, _, own = function.partition("!")
        made.append(Frame(where, int(own), "") if own.isdigit() else Frame(where, at, own))
    return tuple(made)


def cause_of(
    program: str, category: str, *functions: str, kernel: Sequence[str] = ("futex_wait",), what: Object | None = None
) -> str:
    """Return the id of the rule that matches."""
    of_kernel = Stack(tuple(Frame(KERNEL, 0, name) for name in kernel), 0, category)
    subject = subject_of(of_kernel, Stack(frames(*functions)), FixedNames(), program, what)
    rule = first_match(PACKAGED.among(category, program), subject)
    return rule.id if rule else ""


WAIT = "lib:pthread_cond_timedwait"
ON_A_QUEUE = (
    "lib:sem_clockwait",
    "PyThread_acquire_lock_timed",
    "Condition.wait (threading.py:295)",
    "Queue.get (queue.py:154)",
)


@pytest.mark.parametrize(
    ("expected", "program", "category", "functions", "kernel"),
    [
        ("gil", "gunicorn", "lock", (WAIT, "77", "PyEval_RestoreThread", "99", "_PyEval_EvalFrameDefault"), ()),
        ("gil", "python3", "lock", (WAIT, "5", "_PyEval_EvalFrameDefault", "PyEval_EvalCode"), ()),
        ("gil", "python3", "lock", (WAIT, "5", "Server.handle (app.py:12)", "PyEval_EvalCode"), ()),
        ("gil", "python3", "lock", (WAIT, "5", "<module> (<string>:1)", "PyEval_EvalCode"), ()),
        ("gil", "python3", "lock", (WAIT, "PyCOND_TIMEDWAIT", "take_gil", "PyEval_RestoreThread", "time_sleep"), ()),
        ("python-pool", "python3", "lock", ("lib:sem_wait", "PyThread_acquire_lock", "_worker (thread.py:81)"), ()),
        ("python-pool", "python3", "lock", ("lib:sem_wait", "PyThread_acquire_lock", "worker (pool.py:97)"), ()),
        ("python-lock", "python3", "lock", ("lib:sem_wait", "PyThread_acquire_lock", "worker (pool.py:4)"), ()),
        ("python-lock", "python3", "lock", ("lib:sem_clockwait", "PyThread_acquire_lock_timed", "4"), ()),
        (
            "python-task",
            "python3",
            "lock",
            (
                *("lib:sem_wait", "PyThread_acquire_lock_timed", "Condition.wait (threading.py:320)"),
                *("Future.result (_base.py:451)", "outer (pool.py:5)", "_worker (thread.py:81)"),
            ),
            (),
        ),
        ("python-worker", "python3", "lock", (*ON_A_QUEUE, "consume (app.py:7)", "Thread.run (threading.py:982)"), ()),
        (
            "python-worker",
            "python3",
            "lock",
            (*ON_A_QUEUE, "run (app.py:7)", "_bootstrap_inner (threading.py:1045)"),
            (),
        ),
        *(
            (
                "python-worker",
                "offtop",
                "lock",
                ("lib:sem_wait", "PyThread_acquire_lock_timed", "Condition.wait (threading.py:288)", *callers),
                (),
            )
            for callers in (
                ("Worker.requests (worker.py:61)", "FilesWorker._run (files.py:9)"),
                (
                    "Condition.wait_for (threading.py:336)",
                    "Worker.rest (worker.py:69)",
                    "TitlesWorker._run (titles.py:63)",
                ),
                ("Pace._wait_after (pace.py:111)", "Pace._snapshots (pace.py:94)"),
            )
        ),
        (
            "python-lock",
            "python3",
            "lock",
            (*ON_A_QUEUE, "ask (app.py:7)", "handle (app.py:9)", "run (threading.py:9)"),
            (),
        ),
        ("python-lock", "python3", "lock", ON_A_QUEUE, ()),
        ("postgres-row-lock", "postgres", "poll", ("lib:epoll_wait", "WaitLatch", "ProcSleep", "LockAcquire"), ()),
        ("postgres-wal", "postgres", "fsync", ("lib:fdatasync", "issue_xlog_fsync", "XLogWrite", "XLogFlush"), ()),
        ("postgres-wal", "postgres", "lock", ("lib:sem_wait", "LWLockAcquireOrWait", "XLogFlush"), ()),
        ("postgres-lwlock", "postgres", "lock", ("lib:sem_wait", "PGSemaphoreLock", "LWLockAcquire", "GetPage"), ()),
        (
            "postgres-client",
            "postgres",
            "poll",
            ("lib:epoll_wait", "WaitEventSetWait", "secure_read", "PostgresMain"),
            (),
        ),
        ("postgres-idle", "postgres", "poll", ("lib:epoll_wait", "WaitLatch", "WalWriterMain"), ()),
        ("innodb-row-lock", "mysqld", "lock", (WAIT, "lock_wait(que_thr_t*)", "row_mysql_handle_errors(int)"), ()),
        ("innodb-row-lock-stripped", "mariadbd", "lock", (WAIT, "1", "2", "handler::ha_index_read_map(int, int)"), ()),
        ("mariadb-metadata-lock", "mariadbd", "lock", (WAIT, "MDL_wait::timed_wait(x) const", "MDL_context::y()"), ()),
        ("mysql-metadata-lock", "mysqld", "lock", (WAIT, "MDL_wait::timed_wait(x) const", "MDL_context::y()"), ()),
        ("mysql-client", "mariadbd", "poll", ("lib:__poll", "vio_io_wait", "7", "my_net_read_packet"), ()),
        ("mysql-sleep", "mariadbd", "lock", (WAIT, "Interruptible_wait::wait(a, b)", "Item_func_sleep::val_int()"), ()),
        ("redis-idle", "redis-server", "poll", ("lib:epoll_wait", "aeProcessEvents", "main"), ()),
        ("client-redis-cli", "redis-cli", "pipe", ("lib:read", "5"), ("unix_stream_read_generic",)),
        ("client-postgres", "web", "poll", ("lib:__poll", "/usr/lib/libpq.so.5.15!PQgetResult", "query"), ()),
        ("client-mysql", "web", "net-recv", ("lib:recv", "/usr/lib/libmariadb.so.3!4", "query"), ()),
        ("dns", "getent", "poll", ("lib:__poll", "lib:__res_context_send", "lib:getaddrinfo", "main"), ()),
        ("dns-server", "dig", "net-recv", ("lib:recv",), ()),
        ("curl", "web", "poll", ("lib:__poll", "/usr/lib/libcurl.so.4!curl_multi_poll"), ()),
        ("tls-handshake", "web", "net-recv", ("lib:read", "/usr/lib/libssl.so.3!SSL_do_handshake"), ()),
        ("go-idle", "etcd", "lock", ("runtime.futex.abi0", "runtime.futexsleep", "runtime.notesleep"), ()),
        ("go-lock", "etcd", "lock", ("runtime.futex.abi0", "runtime.futexsleep", "runtime.lock2"), ()),
        ("java-monitor", "java", "lock", (WAIT, "PlatformEvent::park()", "ObjectMonitor::enter(JavaThread*)"), ()),
        ("java-park", "java", "lock", (WAIT, "Parker::park(bool, long)", "Unsafe_Park"), ()),
        ("java-wait", "java", "lock", (WAIT, "os::PlatformEvent::park()", "ObjectMonitor::wait(long, bool)"), ()),
        ("java-wait", "java", "lock", (WAIT, "PlatformEvent::park_nanos(long)", "ObjectMonitor::wait(long, bool)"), ()),
        ("java-sleep", "java", "lock", (WAIT, "os::PlatformEvent::park(long)", "JavaThread::sleep(long)"), ()),
        ("java-sleep", "java", "lock", (WAIT, "PlatformEvent::park_nanos(long)", "JVM_SleepNanos"), ()),
        (
            "java-launcher",
            "java",
            "lock",
            ("lib:__pthread_clockjoin_ex", "CallJavaMainInNewThread", "ContinueInNewThread", "JLI_Launch"),
            (),
        ),
        *(
            ("java-gc-idle", "java", "lock", (WAIT, "os::PlatformMonitor::wait(long)", "Monitor::wait(long)", own), ())
            for own in (
                *("NotificationThread::notification_thread_entry(JavaThread*)", "NMethodSweeper::sweeper_loop()"),
                *("JVM_WaitForReferencePendingList", "recorderthread_entry(JavaThread*, JavaThread*)"),
                *("ZDriverPort::receive()", "ZMetronome::wait_for_tick()", "ZUncommitter::run_service()"),
            )
        ),
        *(
            ("java-vm-operation", "java", "lock", (WAIT, "Monitor::wait(long)", *own), ())
            for own in (
                ("VMThread::wait_until_executed(VM_Operation*)", "VMThread::execute(VM_Operation*)"),
                ("CompileBroker::wait_for_completion(CompileTask*)", "CompileBroker::compile_method_base(x)"),
            )
        ),
        (
            "java-gc-idle",
            "java",
            "lock",
            ("lib:__new_sem_wait_slow64", "PosixSemaphore::wait()", "os::signal_wait()", "signal_thread_entry(x)"),
            (),
        ),
        (
            "node-sync-child",
            "node",
            "poll",
            (
                *("lib:epoll_pwait", "uv__io_poll", "uv_run"),
                *("node::SyncProcessRunner::TryInitializeAndRunLoop(v8::Local<v8::Value>)", "main"),
            ),
            (),
        ),
        ("event-loop", "node", "poll", ("lib:epoll_pwait", "uv__io_poll", "uv_run", "node::Start(int, char**)"), ()),
        ("event-loop", "nginx", "poll", ("lib:epoll_wait", "ngx_epoll_process_events"), ()),
        ("malloc", "web", "lock", ("lib:__lll_lock_wait_private", "lib:malloc", "work"), ()),
        ("mutex", "web", "lock", ("lib:__lll_lock_wait", "lib:pthread_mutex_lock", "work"), ()),
        ("condition", "web", "lock", ("lib:pthread_cond_wait", "ask", "serve", "work"), ()),
        ("condition", "web", "lock", ("lib:pthread_cond_wait", "main"), ()),
        ("worker", "web", "lock", ("lib:pthread_cond_wait", "work", "lib:start_thread"), ()),
        ("condition", "web", "lock", (WAIT, "1", "_start", "lib:__libc_start_main"), ()),
        ("worker", "web", "lock", (WAIT, "/usr/lib/libstdc++.so.6!wait", "1", "/usr/lib/libstdc++.so.6!run"), ()),
        ("postgres-postmaster", "postgres", "poll", ("lib:select", "5", "PostmasterMain", "main"), ()),
        (
            "python-lock",
            "python3",
            "lock",
            ("lib:sem_wait", "PyThread_acquire_lock", "a (a.py:1)", "_worker (thread.py:2)"),
            (),
        ),
        ("rust-channel", "web", "lock", ("lib:syscall", "1", "<std::sync::mpmc::list::Channel<u8>>::recv"), ()),
        ("rust-park", "web", "lock", ("lib:syscall", "<std::thread::thread::Thread>::park", "serve"), ()),
        ("shell-input", "bash", "poll", ("lib:pselect", "shtimer_select", "main"), ("poll_schedule_timeout",)),
        ("pipe-full", "bash", "pipe", ("lib:write", "main"), ("pipe_write",)),
        ("sqlite-lock", "web", "sleep", ("lib:usleep", "libsqlite3.so.0!sqlite3InvokeBusyHandler", "main"), ()),
        ("sleep", "web", "sleep", ("lib:nanosleep", "work", "main"), ()),
        ("poll", "web", "poll", ("lib:poll", "serve", "main"), ()),
        ("launcher", "bash", "child", ("lib:wait4", "waitchld", "main"), ()),
        *(
            (
                "cxx-wait",
                "web",
                "lock",
                ("lib:syscall", own, "work", "/usr/lib/libstdc++.so.6!9", "lib:start_thread"),
                (),
            )
            for own in (
                "std::__atomic_futex_unsigned_base::_M_futex_wait_until(unsigned int*, unsigned int, bool)",
                f"void std::__detail::__platform_wait<int>(int const*, int){INLINED}",
            )
        ),
        ("barrier", "web", "lock", ("lib:pthread_barrier_wait", "work", "lib:start_thread"), ()),
        ("openmp", "web", "lock", ("/usr/lib/libgomp.so.1.0.0!129059", "/usr/lib/libgomp.so.1.0.0!2", "main"), ()),
        ("openmp", "web", "lock", ("/usr/lib/libgomp.so.1.0.0!129059", "lib:start_thread"), ()),
        ("mutex", "web", "lock", ("lib:__lll_lock_wait", "work", "/usr/lib/libgomp.so.1.0.0!2"), ()),
        *(
            ("", "web", "lock", ("lib:syscall", own, "work", "/usr/lib/libgomp.so.1.0.0!2", "lib:start_thread"), ())
            for own in (
                "absl::lts_20250127::Mutex::LockSlowLoop(absl::lts_20250127::SynchWaitParams*, int)",
                "AbslInternalPerThreadSemWait_lts_20250127",
                "tbb::detail::r1::market::process(rml::job&)",
            )
        ),
        ("join", "web", "lock", ("lib:pthread_join", "main"), ()),
        ("pipe-full", "yes", "pipe", ("lib:write", "main"), ("pipe_write", "vfs_write")),
        ("unix-connect", "t", "connect", ("lib:connect", "main"), ("unix_wait_for_peer", "unix_stream_connect")),
        ("unix-full", "t", "pipe", ("lib:send", "main"), ("unix_wait_for_peer", "unix_dgram_sendmsg")),
        ("page-fault", "web", "page-fault", ("work",), ("folio_wait_bit", "filemap_fault")),
        ("userfaultfd", "web", "page-fault", ("work",), ("handle_userfault", "__handle_mm_fault", "exc_page_fault")),
        ("mmap-lock", "web", "kernel-lock", ("work",), ("down_read", "do_user_addr_fault")),
        ("frozen", "dd", "kernel-lock", ("lib:open",), ("percpu_rwsem_wait", "mnt_want_write", "path_openat")),
        ("frozen", "dd", "kernel-lock", ("lib:write",), ("percpu_rwsem_wait", "__percpu_down_read", "vfs_write")),
        ("inode-lock", "web", "kernel-lock", ("lib:write",), ("down_write", "ext4_buffered_write_iter")),
        ("kernel-lock", "web", "kernel-lock", ("lib:ioctl",), ("mutex_lock", "some_driver")),
        ("file-lease", "t", "lock", ("lib:open", "main"), ("__break_lease", "do_dentry_open", "path_openat")),
        ("sysv-semaphore", "t", "lock", ("lib:semop", "work"), ("__do_semtimedop", "do_semtimedop", "__x64_sys_semop")),
        ("sysv-message", "t", "pipe", ("lib:msgrcv", "main"), ("do_msgrcv", "do_syscall_64")),
        ("sysv-queue-full", "t", "pipe", ("lib:msgsnd", "main"), ("do_msgsnd", "do_syscall_64")),
        (
            "mq-message",
            "t",
            "pipe",
            ("lib:mq_receive", "main"),
            ("wq_sleep", "do_mq_timedreceive", "__x64_sys_mq_timedreceive"),
        ),
        ("mq-full", "t", "pipe", ("lib:mq_send", "main"), ("wq_sleep", "do_mq_timedsend", "__x64_sys_mq_timedsend")),
        ("fifo-open", "t", "pipe", ("lib:open", "main"), ("wait_for_partner", "fifo_open", "do_dentry_open")),
        ("eventfd", "t", "pipe", ("lib:read", "work"), ("eventfd_read", "vfs_read")),
        ("tty-output", "t", "tty", ("lib:write", "main"), ("n_tty_write", "file_tty_write", "vfs_write")),
        ("tty-output", "t", "kernel-lock", ("lib:write", "main"), ("__mutex_lock", "file_tty_write", "vfs_write")),
        ("tty-output", "t", "kernel-lock", ("lib:write", "main"), ("file_tty_write", "vfs_write")),
        ("tty-input", "cat", "tty", ("lib:read", "main"), ("n_tty_read", "tty_read")),
        ("shell-input", "bash", "tty", ("lib:read", "main"), ("n_tty_read", "tty_read")),
        ("file-events", "t", "poll", ("lib:read", "main"), ("inotify_read", "vfs_read")),
        ("signal", "t", "signal", ("lib:pause", "main"), ("__do_sys_pause", "do_syscall_64")),
        ("signal", "t", "signal", ("lib:sigsuspend", "main"), ("sigsuspend", "__x64_sys_rt_sigsuspend")),
        ("signal", "t", "signal", ("lib:sigwait", "main"), ("do_sigtimedwait", "__x64_sys_rt_sigtimedwait")),
        ("signal", "t", "signal", ("lib:read", "main"), ("signalfd_read_iter", "vfs_read")),
        ("launcher", "sh", "signal", ("lib:sigsuspend", "main"), ("sigsuspend", "__x64_sys_rt_sigsuspend")),
        ("aio", "t", "io-uring", ("lib:syscall", "main"), ("read_events", "do_io_getevents")),
        ("kernel-thread", "kswapd0", "kthread-idle", (), ("kswapd",)),
    ],
)
def test_rules_name_what_real_programs_wait_for(
    expected: str, program: str, category: str, functions: tuple[str, ...], kernel: tuple[str, ...]
) -> None:
    what = Object("udp", "socket:[1]", local="10.0.0.9:40000", peer="10.0.0.1:53") if expected == "dns-server" else None
    assert cause_of(program, category, *functions, kernel=kernel or ("do_wait",), what=what) == expected


def test_advice_about_a_metadata_lock_is_that_of_the_server() -> None:
    advised = {rule.id: rule.next for rule in PACKAGED.rules if rule.name == "a metadata lock"}
    assert advised["mysql-metadata-lock"] == "select * from sys.schema_table_lock_waits"
    assert advised["mariadb-metadata-lock"].startswith("install soname 'metadata_lock_info'; select ")
    assert "schema_table_lock_waits" not in advised["mariadb-metadata-lock"], "it returns no row"


def test_texts_of_shipped_rules_are_short_and_complete() -> None:
    assert len({rule.id for rule in PACKAGED.rules}) == len(PACKAGED.rules) > 70
    for rule in PACKAGED.rules:
        assert len(rule.name) <= 34, rule.id
        assert rule.says.endswith(".") and not rule.next.endswith("."), rule.id
        assert rule.origin.startswith(f"rules.toml, rule {PACKAGED.rules.index(rule) + 1} (line ")
    assert PACKAGED.services[5432] == "PostgreSQL"


@pytest.mark.parametrize(
    ("rule", "subject", "holds"),
    [
        ('category = ["lock"]', Subject("lock"), True),
        ('category = ["lock"]', Subject("poll"), False),
        ('leaf = ["a"]', Subject("x", ("a", "b")), True),
        ('leaf = ["b"]', Subject("x", ("a", "b")), False),
        ('kernel = ["b"]', Subject("x", ("a", "b")), True),
        ('libc = ["b*"]', Subject("x", libc=("read", "bcd")), True),
        ('libc = ["b*"]', Subject("x", own=("bcd",)), False),
        ('own = ["a"]', Subject("x", own=("a", "b")), True),
        ('own = ["b"]', Subject("x", own=("a", "b")), False),
        ('near = ["d"]', Subject("x", own=("a", "b", "c", "d", "e")), True),
        ('near = ["e"]', Subject("x", own=("a", "b", "c", "d", "e")), False),
        ('user = ["e"]', Subject("x", own=("a", "b", "c", "d", "e")), True),
        ('user = ["read"]', Subject("x", libc=("read",)), True),
        ('module = ["libpq.so*"]', Subject("x", modules=("prog", "libpq.so.5")), True),
        ('program = ["Web"]', Subject("x", program="web"), False),
        ('program = ["we?"]', Subject("x", program="web"), True),
        ('object = ["pipe"]', Subject("x", object=("pipe:[1]", "pipe:[1]", "pipe")), True),
        ('category = ["lock"]\nnot = ["work"]', Subject("lock", own=("main",)), True),
        ('category = ["lock"]\nnot = ["work"]', Subject("lock", own=("work", "main")), False),
        ('[names]\nnone = ["x"]\nsome = ["a", "b"]\n', Subject("x"), False),
        ('own = ["@some"]', Subject("x", own=("b",)), True),
    ],
)
def test_rule_matches_if_all_its_conditions_do(rule: str, subject: Subject, holds: bool) -> None:
    if rule.startswith("["):
        assert parsed(rule) == Rules()
        return
    rules = parsed(f'[names]\nsome = ["a", "b"]\n[[rule]]\n{RULE}{rule}\n')
    found = first_match(rules.among(subject.category, subject.program), subject)
    assert (found is not None) is holds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule]\n", "rules.toml is not valid TOML"),
        (f"x = {'1' * 5_000}", "a number is too long, or brackets are nested too deep"),
        (f"x = {'[' * 3_000}", "a number is too long, or brackets are nested too deep"),
        (f"[[rule]]\n{RULE}", "rule 1 (line 1): it has none of the conditions category, "),
        (f'[[rule]]\n{RULE}not = ["a"]', "rule 1 (line 1): it has none of the conditions"),
        (f'[[rule]]\n{RULE}own = "a"', "`own` is not a list of names"),
        (f'[[rule]]\n{RULE}colour = ["a"]', "`colour` is unknown here; known keys: category, "),
        (f'[[rule]]\n{RULE}own = ["@nobody"]', "`names` is missing"),
        *(
            (f'[[rule]]\n{RULE}own = ["a"]\ndepth = {said}', "`depth` is not a number")
            for said in ("0", "true", "128", '"2"')
        ),
        (f'[[rule]]\n{RULE}category = ["locks"]', "there is no category `locks`"),
        (f'[[rule]]\n{RULE}own = ["a"]\nidle = "no"', "`idle` is neither true nor false"),
        (
            f'\n[[rule]]\n{RULE}own = ["a"]\n\n[[rule]]\n{RULE}own = ["b"]',
            "rule 2 (line 8): the id `it` is used twice",
        ),
        ('[[rule]]\nid = "A word"\nname = "x"\nsays = "y"\nown = ["a"]', "`id` may only have a to z"),
        ('[[rule]]\nid = "it"\nsays = "y"\nown = ["a"]', "`name`, what is waited for, in a few words, is missing"),
        ('[[rule]]\nid = "it"\nname = "x"\nown = ["a"]', "`says`, what that is, in a sentence, is missing"),
        (f'[[rule]]\nid = "it"\nname = "{"x" * 201}"\nsays = "y"\nown = ["a"]', "`name` has more than 200 characters"),
        ('[services]\nmany = "x"', "is not a port"),
        ('[services]\n70000 = "x"', "is not a port"),
        ("[services]\n80 = 7", "`80`, the service at that port, is missing"),
        ("colour = 7", "`colour` is unknown here"),
        (
            f'[[rule]]\n{RULE}object = ["pipe"]\nidle = true',
            "`idle` depends on the stack, so it cannot",
        ),
        (
            f'[[rule]]\n{RULE}own = ["x"]\nsleep = true\nidle = true',
            "`idle` and `sleep` both decide whether it is idle",
        ),
        (f'[[rule]]\n{RULE}object = ["x"]\nsleep = true', "`sleep` depends on the stack, so it cannot"),
        ("rule = 7", "there is no [[rule]]"),
        ("rule = [7]", "there is no [[rule]]"),
        (f'[[rule]]\n{RULE}"\\u001b[2J" = ["a"]', "`\\x1b[2J` is unknown here"),
    ],
)
def test_broken_file_reports_place_and_error(text: str, said: str) -> None:
    with pytest.raises(OfftopError) as refused:
        parsed(text)
    assert said in str(refused.value)
    assert str(refused.value).endswith(". Mend it")
    assert "\x1b" not in str(refused.value)


def test_user_rules_come_first_and_replace_ours_of_the_same_id() -> None:
    own = parsed('[services]\n5432 = "billing"\n[[rule]]\nid = "gil"\nname = "the GIL"\nsays = "x"\nprogram = ["web"]')
    both = own.before(PACKAGED)
    assert len(both.rules) == len(PACKAGED.rules)
    assert both.rules[0].name == "the GIL"
    assert (both.services[5432], both.services[6379]) == ("billing", "Redis")
    assert NO_RULES.before(PACKAGED).rules == PACKAGED.rules


DEEP = f"deep(int){INLINED} < shallow.isra.0(void (*)(int)) const{INLINED} < (anonymous namespace)::run(x)"


def test_compiler_suffixes_are_removed_from_functions() -> None:
    stack = Stack(
        (
            *frames("lib:futex", "lib:pthread_cond_wait"),
            Frame(
                "/opt/prog",
                1,
                DEEP,
            ),
            Frame("/opt/prog", 2, ""),
            *frames("lib:start_thread", "work.cold"),
        )
    )
    subject = subject_of(Stack((Frame(KERNEL, 0, "futex_wait.constprop.0"),), 0, "lock"), stack, FixedNames())
    assert subject.kernel == ("futex_wait",)
    assert subject.libc == ("futex", "pthread_cond_wait")
    assert subject.own[:3] == ("deep", "shallow", "(anonymous namespace)::run")
    assert subject.own[3:] == ("start_thread", "work")
    assert subject.modules == ("libc.so.6", "prog")


# ---- the cause_finder

LOCK, POLL = 3, 4
WORKER, LATE, LOOP = 5, 6, 7
LATE_FRAME = Frame("/opt/prog", 0x99, "")
IDLE_RULES = parsed(
    f'[[rule]]\n{RULE}own = ["serve"]\nidle = true\n'
    '[[rule]]\nid = "busy"\nname = "busy"\nsays = "x"\nown = ["row_lock"]\nidle = false\n'
    '[[rule]]\nid = "plain"\nname = "plain"\nsays = "x"\nown = ["work"]\n'
    '[[rule]]\nid = "same"\nname = "it"\nsays = "x"\nown = ["other"]\n'
    '[[rule]]\nid = "sleep"\nname = "sleep"\nsays = "x"\nown = ["doze"]\nsleep = true\n'
)


def catalog() -> Catalog:
    made = Catalog()
    made.stacks |= {
        LOCK: Stack((Frame(KERNEL, 0, "futex_wait"),), 0, "lock"),
        POLL: Stack((Frame(KERNEL, 0, "ep_poll"),), 0, "poll"),
        WORKER: Stack(frames("lib:wait", "serve")),
        LATE: Stack((LATE_FRAME,)),
        LOOP: Stack(frames("lib:epoll_wait", "row_lock")),
        8: Stack(frames("work")),
        9: Stack(frames("other")),
        10: Stack(frames("doze")),
    }
    made.processes |= {7: "web", 8: "db"}
    made.comms[ThreadKey(7, 71)] = "main"
    return made


def window(*sites: tuple[SiteKey, int]) -> Window:
    return Window(0, 10**9, 10**9, sites={key: SiteTotals(1, ns, 0, ns) for key, ns in sites}, catalog=catalog())


def test_cause_is_of_the_program_that_waits_most_for_it_not_of_one_large_process() -> None:
    workers = [(SiteKey(pid, pid, LOCK, 8), 20) for pid in (21, 22, 23)]
    some = window((SiteKey(8, 81, LOCK, 8), 50), *workers)
    some.catalog.processes.update(dict.fromkeys((21, 22, 23), "stress-ng"))
    (one,) = CauseFinder(FixedNames(), Fixed(IDLE_RULES)).rules_of(by_site(shares(some, Idle()), Scope()), some.catalog)
    assert one.in_short(some.catalog, with_process=True) == "100% wait for plain (stress-ng)"


def test_cause_of_many_programs_is_not_put_down_to_the_largest_alone() -> None:
    some = window(*((SiteKey(pid, pid, LOCK, 8), ns) for pid, ns in ((7, 30), (21, 40), (22, 30))))
    some.catalog.processes.update({21: "nu-cond", 22: "kworker"})
    (one,) = CauseFinder(FixedNames(), Fixed(IDLE_RULES)).rules_of(by_site(shares(some, Idle()), Scope()), some.catalog)
    assert one.in_short(some.catalog, with_process=True) == "100% wait for plain (nu-cond and others)"


def test_largest_cause_comes_first_and_rules_of_one_name_are_one_cause() -> None:
    some = window(
        *((SiteKey(7, 71, LOCK, WORKER), 30), (SiteKey(7, 72, LOCK, 9), 10), (SiteKey(8, 81, LOCK, 8), 50)),
        *((SiteKey(8, 82, LOCK, NO_STACK), 10), (SiteKey(8, 83, SHORT, NO_STACK), 0)),
    )
    cause_finder = CauseFinder(FixedNames(), Fixed(IDLE_RULES))
    found = cause_finder.rules_of(by_site(shares(some, Idle()), Scope()), some.catalog)
    assert [(one.rule and one.rule.name, one.total_ns, one.pid) for one in found] == [
        ("plain", 50, 8),
        ("it", 40, 7),
        (None, 10, 8),
    ]
    assert most(found, 100) is found[0]
    assert most(found, 100 * found[0].total_ns + 1) is None, "it is an idle process"
    assert found[0].in_short(some.catalog, with_process=True) == "50% wait for plain (db)"
    assert found[1].in_full(some.catalog, with_process=False) == "40% wait for it: It is so."
    assert most(found[2:], 100) is None
    assert cause_finder.rule_of(SiteKey(8, 83, SHORT, NO_STACK), some.catalog) is None


def test_shares_are_at_most_the_whole_while_time_moves() -> None:
    """When the stack of a wait has been read, its time leaves the row without one."""
    table = {(LOCK, WORKER, 0, 7): Part(1, 30), (LOCK, NO_STACK, 0, 7): Part(0, -10)}
    (one,) = CauseFinder(FixedNames(), Fixed(IDLE_RULES)).rules_of(table, window().catalog)
    assert one.share == 1.0


def test_wait_is_matched_again_when_its_functions_get_names() -> None:
    names, some = FixedNames(), catalog()
    cause_finder = CauseFinder(names, Fixed(IDLE_RULES))
    site = SiteKey(7, 71, LOCK, LATE)
    assert cause_finder.rule_of(site, some) is None
    ids = np.array([site], np.int64)
    assert cause_finder.idle_by_rule([ids], some).of(ids).tolist() == [0]
    names.later[LATE_FRAME] = "serve"
    assert cause_finder.rule_of(site, some) is None, "nobody said that there are other names"
    names.version += 1
    rule = cause_finder.rule_of(site, some)
    assert rule and rule.id == "it"
    assert cause_finder.idle_by_rule([ids], some).of(ids).tolist() == [1]


def test_changed_rules_apply_at_once() -> None:
    source = _Changing(IDLE_RULES)
    cause_finder, some = CauseFinder(FixedNames(), source), catalog()
    ids = np.array([(7, 71, LOCK, WORKER, 0)], np.int64)
    assert cause_finder.idle_by_rule([ids], some).of(ids).tolist() == [1]
    source.rules = NO_RULES
    assert cause_finder.rule_of(SiteKey(7, 71, LOCK, WORKER), some) is None
    assert cause_finder.idle_by_rule([ids], some).of(ids).tolist() == [0]


class _Changing:
    error = ""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules


def test_rule_overrides_whether_a_wait_is_idle() -> None:
    some = window(
        (SiteKey(7, 71, LOCK, WORKER), 10),
        (SiteKey(7, 72, POLL, LOOP), 20),
        (SiteKey(7, 73, POLL, WORKER), 30),
        (SiteKey(7, 74, LOCK, 8), 40),
    )
    cause_finder = CauseFinder(FixedNames(), Fixed(IDLE_RULES))
    ids = shares(some, Idle()).ids
    idle = Idle({"poll"}, by_rule=cause_finder.idle_by_rule([ids], some.catalog))
    parts = {leaf: part.total_ns for leaf, part in break_down(some, idle).categories.items()}
    assert parts == {Leaf("lock", True): 10, Leaf("poll"): 20, Leaf("poll", True): 30, Leaf("lock"): 40}
    assert sum(parts.values()) == sum(part.total_ns for part in break_down(some, Idle({"poll"})).categories.values())


def test_wait_in_progress_without_user_stack_is_idle_like_the_others_of_its_process() -> None:
    some, cause_finder = catalog(), CauseFinder(FixedNames(), Fixed(IDLE_RULES))
    ids = np.array([(7, 71, LOCK, WORKER, 0), (7, 72, LOCK, NO_STACK, 0), (8, 81, LOCK, NO_STACK, 0)], np.int64)
    assert cause_finder.idle_by_rule([ids], some).of(ids).tolist() == [1, 1, 0]
    more = np.array([(7, 73, LOCK, 8, 0)], np.int64)
    cause_finder.idle_by_rule([more], some)
    another = np.array([(7, 74, POLL, WORKER, 0)], np.int64)
    assert cause_finder.idle_by_rule([another], some).of(ids).tolist() == [1, 0, 0], "of those, one works"


def test_tick_keeps_what_was_idle_by_rule_at_its_time() -> None:
    names, made = FixedNames(), catalog()
    cause_finder = CauseFinder(names, Fixed(IDLE_RULES))
    history = History((), never, idle_by_rule=cause_finder.idle_by_rule)
    site, sums = SiteKey(7, 71, LOCK, LATE), SiteTotals()
    for second in range(3):
        if second == 2:
            names.later[LATE_FRAME] = "serve"
            names.version += 1
        sums = sums.plus(SiteTotals(1, 5, 0, 5, 1))
        history.add(Snapshot(0, second * 10**9, sites={site: sums._replace(max_ns=5)}, catalog=made))
    first, second = history.last(10**10)
    assert {*first.leaves} == {*first.breakdown.categories} == {Leaf("lock")}
    assert {*second.leaves} == {Leaf("lock", True)}
    assert {*first.breakdown.categories} == {*break_down(first.window, first.idle).categories}


def test_locations_that_disappear_are_dropped_and_matched_again_when_they_return() -> None:
    cause_finder, some = CauseFinder(FixedNames(), Fixed(IDLE_RULES)), catalog()
    first = np.array([(7, 71, LOCK, WORKER, 0)], np.int64)
    assert cause_finder.idle_by_rule([first], some).of(first).tolist() == [1]
    for n in range(100):
        more = np.array([(1000 + n, 1, LOCK, WORKER, 0)], np.int64)
        cause_finder.idle_by_rule([more], some)
    assert len(cause_finder._program_at) < 10  # pyright: ignore[reportPrivateUsage]
    assert cause_finder.idle_by_rule([first], some).of(first).tolist() == [1]


def never(_: Ints, rows: int) -> Mask:
    return np.zeros(rows, np.bool_)


@pytest.mark.parametrize("is_even", [False, True])
def test_sleep_by_rule_is_idle_at_an_even_pace_only(is_even: bool) -> None:
    made, cause_finder = catalog(), CauseFinder(FixedNames(), Fixed(IDLE_RULES))
    history = History((), lambda _, rows: np.full(rows, is_even), idle_by_rule=cause_finder.idle_by_rule)
    asleep, at_work = SiteKey(7, 71, LOCK, 10), SiteKey(7, 72, LOCK, 8)
    sums = SiteTotals()
    for second in range(3):
        sums = sums.plus(SiteTotals(1, 5, 0, 5, 1))
        history.add(Snapshot(0, second * 10**9, sites=dict.fromkeys((asleep, at_work), sums), catalog=made))
    *_, last = history.last(10**10)
    parts = {leaf: part.total_ns for leaf, part in last.leaves.items()}
    assert parts == ({Leaf("lock"): 5, Leaf("lock", True): 5} if is_even else {Leaf("lock"): 10})


def test_wait_in_progress_without_user_stack_may_be_a_sleep_if_others_of_its_process_were() -> None:
    some, cause_finder = catalog(), CauseFinder(FixedNames(), Fixed(IDLE_RULES))
    ids = np.array([(7, 71, LOCK, WORKER, 0), (7, 72, LOCK, 10, 0), (7, 73, LOCK, NO_STACK, 0)], np.int64)
    assert cause_finder.idle_by_rule([ids], some).of(ids).tolist() == [IDLE, SLEEPS, SLEEPS]
    at_work = np.array([(7, 74, LOCK, 8, 0)], np.int64)
    cause_finder.idle_by_rule([at_work], some)
    another = np.array([(7, 75, POLL, WORKER, 0)], np.int64)
    assert cause_finder.idle_by_rule([another], some).of(ids).tolist() == [IDLE, SLEEPS, UNDECIDED]


def test_rules_say_nothing_about_unknown_sites() -> None:
    said = IdleByRule({(7, 3, 5): IDLE, (7, 3, 6): NOT_IDLE})
    ids = np.array([(7, 1, 3, 5, 9), (7, 2, 3, 6, 0), (7, 1, 3, 7, 0), (8, 1, 3, 5, 0)], np.int64)
    assert said.of(ids).tolist() == [1, -1, 0, 0]
    assert IdleByRule({}).of(ids).tolist() == [0] * 4


def test_peer_is_named_by_its_port() -> None:
    some = catalog()
    some.stacks[10] = Stack((Frame(KERNEL, 0, "tcp_recvmsg"),), 0, "net-recv")
    peers = {10: "10.0.0.5:5432", 11: "[::1]:6379", 12: "10.0.0.5:9999", 13: ""}
    some.wakes |= {n: Wake(object=Object("tcp", f"socket:[{n}]", peer=peer)) for n, peer in peers.items()}
    cause_finder = CauseFinder(FixedNames(), Fixed(PACKAGED))
    found = [cause_finder.rule_of(SiteKey(7, 71, 10, 8, wake), some) for wake in peers]
    assert [(rule.id, rule.name) for rule in found if rule] == [
        ("answer-5432", "an answer from PostgreSQL"),
        ("answer-6379", "an answer from Redis"),
        ("answer", "an answer over the network"),
        ("answer", "an answer over the network"),
    ]
    assert cause_finder.rule_of(SiteKey(7, 72, 10, 9, 10), some) is found[0]


def test_client_is_not_named_by_its_port() -> None:
    came = Object("tcp", "socket:[1]", local="10.0.0.1:8080", peer="10.0.0.5:33060")
    went = came._replace(local="10.0.0.1:50000")
    assert (PACKAGED.service(came), PACKAGED.service(went)) == (None, PeerName("MySQL", "33060"))


def test_text_of_a_cause_is_that_of_the_rule_with_most_of_its_time() -> None:
    rule = '[[rule]]\nid = "{}"\nname = "it"\nsays = "{}"\nown = ["{}"]\n'
    rules = parsed(rule.format("a", "Little.", "work") + rule.format("b", "Much.", "other"))
    some = window((SiteKey(7, 71, LOCK, 8), 10), (SiteKey(7, 72, LOCK, 9), 90))
    cause_finder = CauseFinder(FixedNames(), Fixed(rules))
    table = by_site(shares(some, Idle()), Scope())
    assert [one.in_full(some.catalog, with_process=False) for one in cause_finder.rules_of(table, some.catalog)] == [
        "100% wait for it: Much."
    ]
    apart = cause_finder.rules_of(table, some.catalog, apart=True)
    assert [(one.rule and one.rule.id, one.total_ns) for one in apart] == [("b", 90), ("a", 10)]


def test_hint_about_wakers_says_where_they_are_not_available() -> None:
    rule = '[[rule]]\nid = "{0}"\nname = "{0}"\nsays = "It is."\nnext = "{1}"\nown = ["{0}"]\n'
    rules = parsed(rule.format("work", "who does: key 2") + rule.format("other", "see the log")).rules
    traced, sampled = catalog(), replace(catalog(), has_programs=False)
    assert [advice(one, traced, 7) for one in rules] == ["who does: key 2", "see the log"]
    assert [advice(one, sampled, 7) for one in rules] == ["who does: key 2 (needs BPF)", "see the log"]


def test_hint_has_the_process_id_in_place_of_the_word_pid() -> None:
    text = '[[rule]]\nid = "a"\nname = "a"\nsays = "It is."\nnext = "ps -o pid,stat PID: see LSPID"\nown = ["work"]\n'
    (rule,) = parsed(text).rules
    said = CauseShare(rule, 5, 0.5, 7).in_full(catalog(), with_process=False)
    assert said.endswith("Next: ps -o pid,stat 7: see LSPID.")
    for pid in (EXITED.pid, OUTSIDE):
        assert advice(rule, catalog(), pid) == rule.next, "no process that can be looked at"


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("grep Sig /proc/PID/status", "grep Sig /proc/7/status"),
        ("add a policy to PID", "add a policy to 7"),
        ("ps -eo PID,stat; ps -o stat,PID; top -b -o PID", "ps -eo PID,stat; ps -o stat,PID; top -b -o PID"),
        ("ls /opt/PID/run", "ls /opt/PID/run"),
    ],
)
def test_word_pid_stays_in_lists_of_columns_and_in_paths(hint: str, said: str) -> None:
    assert with_pid(hint, 7) == said


def test_hint_about_wakers_names_the_option_if_there_are_no_keys() -> None:
    rules = parsed('[[rule]]\nid = "a"\nname = "a"\nsays = "It is."\nnext = "who does: key 2"\nown = ["work"]\n').rules
    share = CauseShare(rules[0], 5, 0.5, 7)
    assert share.in_full(catalog(), with_process=False) == "50% wait for a: It is. Next: who does: key 2."
    without = share.in_full(catalog(), with_process=False, with_keys=False)
    assert without == "50% wait for a: It is. Next: who does: --mode wakeup."


def test_no_hint_of_ours_names_a_key_where_there_are_none() -> None:
    hints = {rule.next: without_keys(rule.next) for rule in PACKAGED.rules if "key " in rule.next}
    assert len(hints) > 9
    assert not [text for text in hints.values() if re.search(r"\bkey (?!that|of)|  | [;:,.]", text)]
    assert without_keys("a lock (key 5), or its file (key G): key 7") == "a lock (--stuck), or its file: --mode file"
    for own in ("key 25 of the table", "redis key 5f3a", "hotkey 2 in the app", "its primary key (key 9)"):
        assert without_keys(own) == own


def test_no_hint_of_ours_points_to_a_process_that_is_not_named() -> None:
    """A suspect's sentence has the hint, but not what the wait means."""
    assert not [rule.id for rule in PACKAGED.rules if "that process" in rule.next]


def test_another_program_of_the_same_process_is_matched_again() -> None:
    some = catalog()
    cause_finder = CauseFinder(FixedNames(), Fixed(PACKAGED))
    some.stacks[12] = Stack((Frame(KERNEL, 0, "do_wait"),), 0, "child")
    site, ids = SiteKey(7, 71, 12, NO_STACK), np.array([(7, 71, 12, 0, 0)], np.int64)
    found: list[tuple[str, int]] = []
    for program in ("bash", "psql", "bash"):
        some.processes[7] = program
        rule = cause_finder.rule_of(site, some)
        found.append((rule.id if rule else "", int(cause_finder.idle_by_rule([ids], some).of(ids)[0])))
    assert found == [("launcher", 1), ("child", 0), ("launcher", 1)]


def test_process_at_the_other_end_is_named_if_the_port_is_unknown() -> None:
    some = catalog()
    some.stacks[10] = Stack((Frame(KERNEL, 0, "tcp_recvmsg"),), 0, "net-recv")
    some.stacks[11] = Stack((Frame(KERNEL, 0, "pipe_read"),), 0, "pipe")
    peers = {10: "[::1]:9999", 11: "[::1]:5432", 12: "[::1]:9998"}
    what = {n: Object("tcp", f"socket:[{n}]", local="[::1]:40000", peer=peer) for n, peer in peers.items()}
    what[13] = Object("pipe", "pipe:[13]")
    some.wakes |= {n: Wake(object=one) for n, one in what.items()}
    cause_finder = CauseFinder(FixedNames(), Fixed(PACKAGED))

    def found() -> list[tuple[str, str]]:
        rules = [cause_finder.rule_of(SiteKey(7, 71, 11 if wake == 13 else 10, 8, wake), some) for wake in what]
        return [(rule.id, rule.name) for rule in rules if rule]

    def unanswered(*wakes: int) -> dict[Object, int]:
        cause_finder.rules_of({(11 if wake == 13 else 10, 8, wake, 7): Part(1, 10) for wake in wakes}, some)
        return cause_finder.unanswered

    before = [("answer", "an answer over the network"), ("answer-5432", "an answer from PostgreSQL")]
    assert found() == [*before, before[0], ("pipe-empty", "data from a pipe")]
    assert unanswered(*what) == {what[10]: 7, what[12]: 7, what[13]: 7}
    assert unanswered(11, 12) == {what[12]: 7}, "the others are over"
    of = {10: (PEER, "My App\x1b"), 11: (PEER, "proxy"), 13: (WRITER, "gzip")}
    some.peers = {
        what[n]: Peers((PeerSide(role, (Process(5, name), Process(6, name)), 2),)) for n, (role, name) in of.items()
    }
    assert found() == [*before, before[0], ("pipe-empty", "data from a pipe")], "until the next tick"
    some.peers_version += 1
    assert found() == [
        ("answer-my-app-x1b", "an answer from My App\\x1b"),
        *(("answer-proxy", "an answer from proxy"), before[0]),
        ("pipe-empty-gzip", "data in the pipe from gzip"),
    ]
    some.peers = {
        what[10]: Peers((PeerSide(CLIENT, (Process(5, "nginx"),), 1),)),
        what[12]: Peers((PeerSide(CLIENT, (), 0),)),
    }
    some.peers_version += 1
    assert [*found()[:1], *found()[2:3]] == [
        ("answer-client-nginx", "a message from client nginx"),
        ("answer-client", "a message from a client"),
    ]
