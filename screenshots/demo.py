"""Record the demo: 75 s of a generated load on a real machine, with only the load's own threads.

`sudo .venv/bin/python screenshots/demo.py` overwrites offtop/demo.offtop. It needs PostgreSQL, pgbench and nginx from
Debian, and the blkio cgroup controller. The demo shows a database that commits all the time and an idle web server.
From second 1 to 10, a session that is idle in transaction holds the rows that all others want. From second 14 on, the
threads of a report contend for Python's GIL. From second 30 on, a table lock blocks all sessions. From second 50 on,
the database's disk is limited to 200 KB/s, so that each fsync stalls and sessions queue up behind it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from offtop import paths
from offtop.feed.source import LiveFeed
from offtop.kernel.live import LiveSource
from offtop.model.classify.categories import parse
from offtop.model.values.catalog import Catalog, Details, SiteKey, ThreadKey
from offtop.model.values.disks import DISK, DiskActivity
from offtop.model.values.files import FILE, FileActivity
from offtop.model.values.outlier import Thresholds
from offtop.model.values.snapshot import Filters, SiteTotals, Snapshot, ThreadTotals
from offtop.model.values.stack import Frame, Names
from offtop.model.values.wake import CHAIN, UNSEEN, WAKE_UNSEEN, Object, Wake
from offtop.model.values.wake import RESERVED as RESERVED_WAKES
from offtop.person import person
from offtop.recording.writer import Recorder

SECONDS = 75
HOST = "db7"
_KEPT = ("postgres", "pgbench", "psql", "nginx", "report.py")
_KERNEL = ("kworker", "jbd2", "ksoftirqd", "kswapd", "rcu_", "migration", "kcompactd", "kthreadd", "khugepaged")
_PG = Path("/usr/lib/postgresql")
_CGROUP = Path("/sys/fs/cgroup/blkio/offtop-demo")
_REPORT = """#!{python}
import threading, time
def add_up():
    end = time.monotonic() + {seconds}
    while time.monotonic() < end:
        sum(range(20_000))
threads = [threading.Thread(target=add_up) for _ in range(5)]
[one.start() for one in threads]
[one.join() for one in threads]
"""

K = TypeVar("K", ThreadKey, SiteKey)
V = TypeVar("V", ThreadTotals, SiteTotals)


class OfTheLoad(LiveFeed):
    """A source that passes on only some processes of another source.

    Exited threads stay in its totals, because the exits of other threads are hidden too.
    """

    host = HOST

    def __init__(self, source: LiveSource) -> None:
        self._source = source
        self._catalog = Catalog()
        self._threads: dict[ThreadKey, ThreadTotals] = {}
        self._sites: dict[SiteKey, SiteTotals] = {}

    def read(self) -> Snapshot | None:
        snapshot = self._source.read()
        if snapshot is None:
            return None
        catalog = snapshot.catalog
        own = {pid for pid, name in catalog.processes.items() if name in _KEPT or name.startswith(_KERNEL)}
        self._threads = _grown(self._threads, snapshot.threads, own)
        self._sites = _grown(self._sites, snapshot.sites, own)
        self._catalog.stacks = catalog.stacks
        self._catalog.wakes = {number: _without_others(wake, own) for number, wake in catalog.wakes.items()}
        self._catalog.processes = {pid: catalog.processes[pid] for pid in own}
        self._catalog.comms = {key: comm for key, comm in catalog.comms.items() if key.pid in own}
        self._catalog.details = {
            pid: Details(user=known.user, uid=known.uid) for pid, known in catalog.details.items() if pid in own
        }
        self._catalog.details_version = catalog.details_version
        self._catalog.lives = {key: life for key, life in catalog.lives.items() if key.pid in own}
        self._catalog.calls = catalog.calls
        return replace(
            snapshot,
            threads=self._threads,
            sites=self._sites,
            waiting={key: one for key, one in snapshot.waiting.items() if key.pid in own},
            catalog=self._catalog,
            blockers={
                key: tuple(one for one in some if one.pid in own)
                for key, some in snapshot.blockers.items()
                if key.pid in own
            },
            moves=[one for one in snapshot.moves if one.was.pid in own],
            long_waits=[one for one in snapshot.long_waits if one.site.pid in own],
            storms={wake: one for wake, one in snapshot.storms.items() if catalog.wake(wake).waker.pid in own},
            titles={pid: title for pid, title in snapshot.titles.items() if pid in own},
            files=snapshot.files and _files_of(snapshot.files, own),
            disks=snapshot.disks and _requests_of(snapshot.disks, own),
        )

    @property
    def names(self) -> Names:
        return self._source.names

    def set_filters(self, filters: Filters) -> None:
        raise NotImplementedError

    def set_counted(self, mode: str, wanted: bool) -> None:
        raise NotImplementedError

    def set_thresholds(self, thresholds: Thresholds | None) -> None:
        self._source.set_thresholds(thresholds)

    def set_mode(self, mode: str, depth: int) -> None:
        raise NotImplementedError

    def wait_for_names(self, frames: set[Frame], seconds: float) -> bool:
        return self._source.wait_for_names(frames, seconds)

    def why_nameless(self, frame: Frame) -> str:
        return self._source.why_nameless(frame)

    def describe(self, pids: Collection[int]) -> None:
        self._source.describe(pids)

    def find_peers(self, waited_on: Mapping[Object, int]) -> None:
        """Look up nothing: the other end may be a process that is not in the demo."""

    def process_details(self, pid: int) -> Sequence[tuple[str, str]]:
        return self._source.process_details(pid)

    def about(self) -> list[tuple[str, str]]:
        return [
            ("kernel", os.uname().release.split("-")[0]),
            ("switch-in probe", dict(self._source.about())["switch-in probe"]),
        ]

    def close(self) -> None:
        self._source.close()


def _without_others(wake: Wake, own: set[int]) -> Wake:
    """Return `wake` without wakers of other processes, such as this one: nobody has recorded those wakeups."""
    if wake.waker.pid and wake.waker.pid not in own:
        return Wake(RESERVED_WAKES[WAKE_UNSEEN].waker, wake.object)
    for number, link in enumerate(wake.links):
        if link.waker.pid and link.waker.pid not in own:
            return wake._replace(links=wake.links[:number], end=UNSEEN)
    return wake


def _files_of(every: FileActivity, own: set[int]) -> FileActivity:
    """Return the file operations of the processes `own`."""
    totals = {key: totals for key, totals in every.totals.items() if key.pid in own}
    files = {key.file for key in totals}
    return replace(
        every,
        totals=totals,
        names={file: name for file, name in every.names.items() if file in files},
        comms={pid: comm for pid, comm in every.comms.items() if pid in own},
        stacks={stack: totals for stack, totals in every.stacks.items() if stack.row in totals},
    )


def _requests_of(every: DiskActivity, own: set[int]) -> DiskActivity:
    """Return the requests of the processes `own` and of kernel workers, and the totals of each disk."""
    totals = {key: totals for key, totals in every.totals.items() if key.pid in (own | {0})}
    tids = {key.tid for key in totals}
    return replace(
        every,
        totals=totals,
        comms={tid: comm for tid, comm in every.comms.items() if tid in tids},
        stacks={stack: totals for stack, totals in every.stacks.items() if stack.row in totals},
    )


def _grown(before: Mapping[K, V], now: Mapping[K, V], own: set[int]) -> dict[K, V]:
    """Update the totals of the processes `own`. `max_ns` is that of the last tick only."""
    was = {key: totals._replace(max_ns=0) for key, totals in before.items()}
    return {**was, **{key: totals for key, totals in now.items() if key[0] in own}}


def main() -> None:
    target = paths.demo()
    with ExitStack() as opened:
        place = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="demo-", dir="/srv")))
        place.chmod(0o755)
        _database(opened, place)
        _web_server(opened, place)
        rules = parse(paths.categories().read_text(encoding="utf-8"))
        source = OfTheLoad(LiveSource(rules, Filters(), mode=CHAIN, counted=(FILE, DISK)))
        opened.callback(source.close)
        memory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="offtop-demo-", dir="/dev/shm")))
        recorded = memory / target.name  # the disk is busy with the database
        recorder = Recorder(recorded, source, person())
        for second, begin in ((1, _idle), (14, _report), (30, _lock), (50, _slow)):
            _later(opened, second, begin, place)
        began_s = time.monotonic()
        for second in range(SECONDS + 1):
            time.sleep(max(0.0, began_s + second - time.monotonic()))
            snapshot = source.read()
            assert snapshot is not None
            recorder.add(snapshot)
        print(recorder.close())
        shutil.copyfile(recorded, target)
    target.chmod(0o644)


def _run(*command: str | Path, user: str = "") -> None:
    subprocess.run(_as(user, command), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _started(opened: ExitStack, *command: str | Path, user: str = "") -> None:
    """Start a command, and terminate it when `opened` closes."""
    process = subprocess.Popen(
        _as(user, command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    opened.callback(process.wait)
    opened.callback(process.terminate)


def _as(user: str, command: "tuple[str | Path, ...]") -> list[str]:
    return [*(["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []), *map(str, command)]


def _database(opened: ExitStack, place: Path) -> None:
    _CGROUP.mkdir()
    opened.callback(_CGROUP.rmdir)
    tools = max(_PG.iterdir()) / "bin"
    data = place / "pg"
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")
    _run(tools / "initdb", "-D", data / "data", "-A", "trust", user="postgres")
    options = (
        f"-c listen_addresses= -c unix_socket_directories={data} -c wal_sync_method=fdatasync -c shared_buffers=64MB"
    )
    _run(tools / "pg_ctl", "-D", data / "data", "-o", options, "-l", data / "log", "-w", "start", user="postgres")
    opened.callback(_run, tools / "pg_ctl", "-D", data / "data", "-m", "immediate", "stop", user="postgres")
    postmaster = (data / "data" / "postmaster.pid").read_text().split()[0]
    for process in (postmaster, *_children(postmaster)):
        (_CGROUP / "cgroup.procs").write_text(process)
    _run(tools / "pgbench", "-h", data, "-i", "-s", "20", "-q", "postgres", user="postgres")
    os.sync()  # otherwise the disk would still be busy with that
    load = ("-c", "16", "-j", "2", "-R", "300", "-T", str(SECONDS + 20), "postgres")
    _started(opened, tools / "pgbench", "-h", data, *load, user="postgres")


def _children(pid: str) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _web_server(opened: ExitStack, place: Path) -> None:
    config = place / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {place}/nginx.pid; error_log /dev/null; events {{}}\n"
        f"http {{ access_log off; server {{ listen unix:{place}/web; }} }}\n"
    )
    _started(opened, "nginx", "-c", config)


def _later(opened: ExitStack, second: int, begin: Callable[[ExitStack, Path], None], place: Path) -> None:
    timer = threading.Timer(second, begin, (opened, place))
    opened.callback(timer.cancel)
    timer.start()


def _idle(opened: ExitStack, place: Path) -> None:
    """Let a client update rows and then do nothing for a while, as one that waits for its user does."""
    psql = max(_PG.iterdir()) / "bin" / "psql"
    update = "BEGIN; UPDATE pgbench_branches SET bbalance = bbalance;"
    script = f"{{ echo '{update}'; sleep 9; echo 'COMMIT;'; }} | {psql} -q -h {place / 'pg'} postgres"
    _started(opened, "sh", "-c", script, user="postgres")


def _report(opened: ExitStack, place: Path) -> None:
    script = place / "report.py"
    script.write_text(_REPORT.format(python="/usr/bin/python3", seconds=15))
    script.chmod(0o755)
    _started(opened, script)


def _lock(opened: ExitStack, place: Path) -> None:
    hold = "BEGIN; LOCK TABLE pgbench_branches IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(12); COMMIT"
    tools = max(_PG.iterdir()) / "bin"
    _started(opened, tools / "psql", "-h", place / "pg", "-c", hold, "postgres", user="postgres")


def _slow(opened: ExitStack, place: Path) -> None:
    limit = _CGROUP / "blkio.throttle.write_bps_device"
    disk = place.stat().st_dev
    limit.write_text(f"{os.major(disk)}:{os.minor(disk)} 200000")
    time.sleep(12)
    limit.write_text(f"{os.major(disk)}:{os.minor(disk)} 0")


if __name__ == "__main__":
    main()
