"""The Source that watches this machine: drains the kernel's maps, adds up, and hands out snapshots."""

import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from offtop.errors import KernelError, PrivilegeError, UsageError
from offtop.kernel import features, layout, libbpf
from offtop.kernel.cost import CostMeter
from offtop.kernel.files import Files
from offtop.kernel.kallsyms import KernelSymbols
from offtop.kernel.layout import ThreadRecord
from offtop.kernel.leaves import Leaves
from offtop.kernel.ledger import Ledger, Walked
from offtop.kernel.mappings import Processes
from offtop.kernel.names import NameWorker
from offtop.kernel.program import attach
from offtop.kernel.stacks import Stacks
from offtop.model.book import Book, SiteKey, ThreadKey
from offtop.model.categories import Categories
from offtop.model.snapshot import Filters, SiteTotals, Snapshot
from offtop.model.stack import Frame
from offtop.model.window import new_site

_ALL_ONES = (1 << 64) - 1
_KEEP_NS = 15 * 60 * 1_000_000_000
"""How long what a window may still name is kept: longer than any History reaches back."""
_ZERO = bytes(4)


class LiveSource:
    """A live kernel. Attached from the constructor on until close(). Implements source.Source."""

    def __init__(
        self,
        categories: Categories,
        filters: Filters,
        door: str = "auto",
        waking: bool = False,
        keep_ns: int = _KEEP_NS,
    ) -> None:
        """Raises an OfftopError that says what is missing and how to get it; nothing is left attached then."""
        if os.geteuid() != 0 and not _may_load_bpf():
            raise PrivilegeError(
                "offtop needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG) to attach to the "
                "scheduler. Try: sudo offtop"
            )
        self._filters = filters
        self._check_alive(filters)
        self._keep_ns = keep_ns
        self._features = features.find(libbpf.KernelTypes())
        self._program = attach(self._features, door, waking=waking)
        self._closed = False
        try:
            self._start(categories)
        except BaseException:
            self._program.close()
            raise

    def _start(self, categories: Categories) -> None:
        maps = self._program.maps
        symbols = KernelSymbols.read()
        files = Files()
        self._processes = Processes(files)
        self._leaves = Leaves(files, self._processes)
        self._names = NameWorker(files)
        self._book = Book()
        self._stacks = Stacks(
            maps["kernel_stacks"],
            maps["user_stacks"],
            self._book,
            categories,
            symbols.lookup,
            self._leaves.frames,
            (symbols.address_of("__sched_text_start") or 0, symbols.address_of("__sched_text_end") or 0),
        )
        self._half = 0
        self._clock_apart_ns = 0
        self._prime = True
        self._asked = self._filters
        self._configure(self._filters, 0)
        now_ns = time.monotonic_ns()
        self._ledger = Ledger(now_ns, self._stacks.site, self._book)
        self._cost = CostMeter(self._program.programs, now_ns)

    @property
    def host(self) -> str:
        return platform.node()

    @property
    def names(self) -> NameWorker:
        return self._names

    def read(self) -> Snapshot:
        """Drain what has ended since the last call. Raises KernelError if the kernel refuses."""
        try:
            return self._read()
        except OSError as error:
            raise KernelError(
                f"The kernel refused to hand over what it counted ({error.strerror}). Start offtop again; "
                "if it stays, see: offtop doctor"
            ) from error

    def _read(self) -> Snapshot:
        asked = self._asked
        if asked != self._filters:
            self._prime = self._prime or _selection(asked) != _selection(self._filters)
            self._filters = asked
            self._configure(asked, 0)
        primed, self._prime = self._prime, False
        walked = list(self._waits(primed))  # first, because the flip itself wakes threads of the kernel
        at_ns, taken_ns = time.monotonic_ns(), time.time_ns()
        drained = self._flip()
        sites = list(self._sites(drained))
        threads = list(self._threads(drained))
        gone = self._gone(drained, threads)
        self._ledger.tick(at_ns, asked.min_ns, threads, sites, walked, gone=gone, primed=primed)
        for key in gone:
            self._stacks.forget_thread(key)
            if key.tid == key.pid:
                self._processes.forget(key.pid)
        self._stacks.make_room()
        dropped = self._ledger.age(self._keep_ns)
        if dropped:
            self._stacks.forget(dropped)
        cost, missed = self._cost.read(at_ns)
        lost = self._lost()
        if missed:
            lost["missed_runs"] = missed
        return Snapshot(
            taken_ns=taken_ns,
            at_ns=at_ns,
            threads=dict(self._ledger.threads),
            sites=dict(self._ledger.sites),
            waiting=dict(self._ledger.waiting),
            book=self._book,
            lost=lost,
            cost=cost,
            door=self._program.door,
            filters=self._filters,
        )

    def set_filters(self, filters: Filters) -> None:
        """From the next read on, count only this. Raises UsageError for a process that is not there."""
        self._check_alive(filters)
        self._asked = filters

    def wait_for_names(self, frames: set[Frame], seconds: float) -> None:
        self._names.wait(frames, seconds)

    def about(self) -> list[tuple[str, str]]:
        maps, doors = self._program.maps, {"exit": "tracepoint sched_exit_tp", "kprobe": self._features.kprobe_symbol}
        kernel_fill, user_fill = self._stacks.fill
        return [
            ("kernel", f"{platform.release()} {platform.machine()}"),
            ("door", f"{self._program.door} ({doors.get(self._program.door, 'tracepoint sched_switch')})"),
            ("run-queue time", "tracepoint sched_waking" if self._program.waking else "the kernel's run_delay"),
            ("compiler", f"bcc {self._program.bcc_version}"),
            ("maps", f"sites {maps['sites_0'].entries:,}, ended threads {maps['gone_0'].entries:,} a tick"),
            ("stacks", f"kernel {kernel_fill:.0%}, user {user_fill:.0%} of {maps['user_stacks'].entries:,}"),
            ("processes gone before they were read", f"{self._processes.gone:,}"),
        ]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._cost.close()
        self._program.close()
        self._leaves.close()
        self._names.close()

    def _configure(self, filters: Filters, walk: int) -> None:
        maps = self._program.maps
        select = {"user": layout.ONLY_USER, "kernel": layout.ONLY_KERNEL}.get(filters.who, 0)
        for name, wanted, bit in (
            ("only_pids", filters.pids, layout.ONLY_PIDS),
            ("only_tids", filters.tids, layout.ONLY_TIDS),
        ):
            select |= bit if wanted else 0
            for _ in maps[name].drain():
                pass
            for one in wanted:
                maps[name].update(one.to_bytes(4, "little"), b"\1\0\0\0")
        maps["config"].update(
            _ZERO,
            layout.CONFIG.pack(
                filters.min_ns,
                filters.max_ns or _ALL_ONES,
                filters.states or 0xFFFFFFFF,
                select,
                os.getpid(),
                walk,
            ),
        )

    def _sites(self, half: int) -> Iterator[tuple[SiteKey, SiteTotals]]:
        site = self._stacks.site
        for keys, values in self._program.maps[f"sites_{half}"].drain():
            for key, (waits, total_ns, runqueue_ns, max_ns, histogram) in zip(
                layout.SITE_KEY.iter_unpack(keys), layout.SITE.iter_unpack(values), strict=True
            ):
                lanes = int.from_bytes(histogram, "little")
                yield site(*key), new_site((waits, total_ns, runqueue_ns, max_ns, lanes))

    def _flip(self) -> int:
        """The half that was written until now, once nobody writes it any more."""
        maps = self._program.maps
        drained, self._half = self._half, 1 - self._half
        maps["half"].update(_ZERO, self._half.to_bytes(4, "little"))
        maps["barrier"].update(_ZERO, maps["nobody"].fd.to_bytes(4, "little"))
        return drained

    def _walk(self, mode: int) -> Iterator[layout.WalkedRecord]:
        self._configure(self._filters, mode)
        for record in layout.walked_records(libbpf.walk(self._program.walk_link)):
            self._note_name(ThreadKey(record.pid, record.tid), record.comm)
            yield record

    def _waits(self, primed: bool) -> Iterator[Walked]:
        """The waits in progress that are new, or that became ready to run; all of them when `primed`."""
        apart_ns = self._clock()
        for record in self._walk(layout.WALK_WAITS | (layout.WALK_PRIME if primed else 0)):
            yield Walked(
                ThreadKey(record.pid, record.tid),
                record.left_ns,
                bool(record.flags & layout.WALKED_RUNNABLE),
                record.queued_ns + apart_ns if record.queued_ns and apart_ns else 0,
                None if record.frames is None else self._stacks.walked(record.frames, record.words),
            )

    def _threads(self, half: int) -> Iterator[tuple[ThreadKey, ThreadRecord]]:
        for record in self._walk(layout.WALK_HALVES[half]):
            if record.thread is not None:
                yield ThreadKey(record.pid, record.tid), record.thread

    def _gone(self, half: int, threads: list[tuple[ThreadKey, ThreadRecord]]) -> list[ThreadKey]:
        """The threads that ended; what they did is added to `threads`."""
        gone: list[ThreadKey] = []
        for keys, values in self._program.maps[f"gone_{half}"].drain():
            for (_, pid, tid), (comm, thread) in zip(
                layout.GONE_KEY.iter_unpack(keys), layout.GONE.iter_unpack(values), strict=True
            ):
                key = ThreadKey(pid, tid)
                gone.append(key)
                self._note_name(key, comm)
                threads.append((key, ThreadRecord._make(layout.THREAD.unpack(thread))))
        return gone

    def _clock(self) -> int:
        """How far our clock is ahead of the scheduler's: the least seen in the last tick; 0: not known."""
        clock = self._program.maps["clock"]
        least = int.from_bytes(clock.lookup(_ZERO) or b"", "little")
        clock.update(_ZERO, bytes(8))
        if least:
            self._clock_apart_ns = least - (1 << 64) if least >> 63 else least
        return self._clock_apart_ns

    def _note_name(self, key: ThreadKey, raw: bytes) -> None:
        comm = layout.text_of(raw)
        if self._book.comms.get(key) == comm:
            return
        self._book.comms[key] = comm
        if key.tid == key.pid:
            if self._book.processes.get(key.pid, comm) != comm:
                self._stacks.forget_thread(key)  # most likely another program by now
            self._book.processes[key.pid] = comm
        elif key.pid not in self._book.processes:
            with suppress(OSError):
                name = Path(f"/proc/{key.pid}/comm").read_bytes().rstrip(b"\n")
                self._book.processes[key.pid] = layout.text_of(name)

    def _lost(self) -> dict[str, int]:
        lost: dict[str, int] = {}
        for number, kind in enumerate(layout.LOST_KINDS):
            per_cpu = self._program.maps["lost"].lookup(number.to_bytes(4, "little")) or b""
            count = sum(memoryview(per_cpu).cast("Q"))
            if count:
                lost[kind] = count
        if self._stacks.unread:
            lost["stacks"] = lost.get("stacks", 0) + self._stacks.unread
        return lost

    def _check_alive(self, filters: Filters) -> None:
        for pid in filters.pids:
            if not Path(f"/proc/{pid}").exists():
                raise UsageError(f"No process {pid}. Look it up with: pgrep NAME")
        for tid in filters.tids:
            if not Path(f"/proc/{tid}").exists():
                raise UsageError(f"No thread {tid}. List a process's threads with: ps -L -p PID")


def _selection(filters: Filters) -> tuple[Sequence[int], Sequence[int], str]:
    return filters.pids, filters.tids, filters.who


def _may_load_bpf() -> bool:
    """CAP_BPF (39) and CAP_PERFMON (38), or CAP_SYS_ADMIN (21), in effect."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            caps = int(line.split()[1], 16)
            return bool(caps >> 21 & 1) or (bool(caps >> 39 & 1) and bool(caps >> 38 & 1))
    return False
