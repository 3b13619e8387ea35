"""What a live source is made of, started in the order in which the parts need each other."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from offtop.errors import OfftopError
from offtop.kernel.accounting.drain import Drain
from offtop.kernel.accounting.ledger import Ledger
from offtop.kernel.accounting.outlier_events import OutlierEvents
from offtop.kernel.accounting.scanned_waits import ScannedWaits
from offtop.kernel.binary.debuginfod import DebugFiles
from offtop.kernel.binary.files import Files
from offtop.kernel.bpf.cost import CostMeter
from offtop.kernel.bpf.features import Features
from offtop.kernel.bpf.program import Program, Unwind
from offtop.kernel.procfs.guarded_reads import GuardedReads
from offtop.kernel.procfs.processes import DetailsWorker
from offtop.kernel.resolve.blockers import BlockersWorker
from offtop.kernel.resolve.peers import PeersWorker
from offtop.kernel.resolve.quotas import ProcessQuotas, Quotas
from offtop.kernel.resolve.sites import Sites
from offtop.kernel.resolve.stacks import Stacks
from offtop.kernel.resolve.titles import TitlesWorker
from offtop.kernel.resolve.user_frames import UserFrames
from offtop.kernel.resolve.wakes import Wakes
from offtop.kernel.scope.config import BpfConfig, Settings
from offtop.kernel.symbols.kallsyms import HiddenSymbols, KernelSymbols
from offtop.kernel.symbols.mappings import Processes
from offtop.kernel.symbols.names import NameWorker
from offtop.kernel.unwind.cpu_allowance import Allowance
from offtop.kernel.unwind.cpython_frames import CPythonFrames
from offtop.kernel.unwind.stack_copies import Copies
from offtop.kernel.unwind.stack_memos import StackMemos
from offtop.kernel.unwind.unwinder import RuleMaps, Unwinder
from offtop.kernel.unwind.user_stacks import UserStacks
from offtop.model.classify.categories import Categories
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.snapshot import PSEUDO_PIDS, Filters

_PATIENCE_S, _PATIENCE_A_TICK_S = 0.3, 0.5
"""How long a tick waits for one read of another process, and for all reads that miss their deadline."""


class Loaded(NamedTuple):
    """The BPF programs, and what was requested of them."""

    program: Program
    features: Features
    unwind: Unwind
    filters: Filters


class Parts:
    """The parts of a live source. It must be closed, also if the constructor fails: `opened` does that."""

    def __init__(
        self,
        loaded: Loaded,
        reads: GuardedReads,
        categories: Categories,
        debuginfod: Sequence[str],
        opened: ExitStack,
    ) -> None:
        """`debuginfod`: servers for debug files. Raises OfftopError and OSError."""
        program, maps, unwind = loaded.program, loaded.program.maps, loaded.unwind
        self.reads, self.program, self.features, self.unwind = reads, program, loaded.features, unwind
        files = Files(reads)
        opened.callback(files.perf_maps.close)
        self.procfs = reads.channel(_PATIENCE_S, _PATIENCE_A_TICK_S)
        """For reads of a tick."""
        self.processes = Processes(files, self.procfs)
        rules = RuleMaps.of(maps) if "rules" in maps else None
        cpython_frames = CPythonFrames(maps.get("python_processes"), rules and rules.generations)
        self.memos = StackMemos(maps["memo_settings"], maps["memo_counts"], unwind.check_every) if rules else None
        """None if BPF does not unwind by rules."""
        self.kernel_memos = _kernel_memos(loaded)
        """None if BPF does not verify kernel stacks."""
        self.user_stacks = _user_stacks(files, loaded, cpython_frames, rules)
        opened.callback(self.user_stacks.close)
        self.debug_files = DebugFiles(debuginfod) if debuginfod else None
        if self.debug_files:
            opened.callback(self.debug_files.close)
        self.names = NameWorker(files, self.debug_files)
        opened.callback(self.names.close)
        self.symbols_refused = ""
        """Why the kernel's symbols are unknown; "" if they are known."""
        self.symbols = self._read_symbols()  # the reader processes start in the meantime
        self.catalog = Catalog()
        self.details = DetailsWorker(self.catalog, reads)
        opened.callback(self.details.close)
        self.user_frames = UserFrames(self.processes, self.user_stacks, cpython_frames, maps["execs"])
        self.stacks = Stacks(maps, self.catalog, categories, self.symbols, self.user_frames, self._forget_stacks)
        raw = maps["wakers"], maps["wakes"], maps["objects"]
        self.wakes = Wakes(*raw, self.catalog, self.stacks.ids, self.symbols.variable, self.procfs)
        self.peers = PeersWorker(self.catalog, self.wakes.epolls, reads)
        opened.callback(self.peers.close)
        quotas = Quotas(loaded.features.throttle_work)
        self.blockers = BlockersWorker(self.catalog, self.names, cpython_frames, reads, quotas)
        opened.callback(self.blockers.close)
        self.titles = TitlesWorker(self.catalog, reads)
        opened.callback(self.titles.close)
        self.config = BpfConfig(maps, loaded.features, self.symbols)
        self.config.find_cgroup(loaded.filters.cgroup)
        self.config.write(Settings(loaded.filters, min_ns=loaded.filters.min_ns))
        now_ns = time.monotonic_ns()
        sites = Sites(self.stacks, self.wakes, self.catalog, ProcessQuotas())
        self.ledger = Ledger(now_ns, sites.every, self.catalog, _is_alive)
        user_stacks = self.user_stacks if unwind.way != "off" else None
        self.scanned_waits = ScannedWaits(self.catalog, self.stacks, self.wakes, sites, user_stacks)
        self.drain = Drain(
            *(program, self.catalog, self.stacks, self.wakes, sites, self.details),
            *(self.scanned_waits, self.ledger.begin_all),
        )
        self.outlier_events: OutlierEvents | None = None
        """None if this kernel has no ring buffer."""
        if "outliers" in maps:
            kernel_stack = self.stacks.kernel
            self.outlier_events = OutlierEvents(
                maps["outliers"], maps["thresholds"], self.catalog, sites.site, kernel_stack
            )
            opened.callback(self.outlier_events.close)
        self.cost = CostMeter(program.programs, now_ns, program.kprobe_links)
        opened.callback(self.cost.close)

    @property
    def helper_pids(self) -> tuple[int, int, int]:
        """PIDs of offtop's child processes; 0 for one that is not running."""
        return self.names.reader_pid, self.user_stacks.reader_pid, self.reads.pid

    def _forget_stacks(self) -> None:
        """Have all stacks unwound anew."""
        for memos in filter(None, (self.memos, self.kernel_memos)):
            memos.forget_stacks()

    def _read_symbols(self) -> KernelSymbols | HiddenSymbols:
        try:
            return KernelSymbols.read()
        except OfftopError as error:
            self.symbols_refused = str(error)
            return HiddenSymbols()


def _user_stacks(files: Files, loaded: Loaded, cpython_frames: CPythonFrames, rules: RuleMaps | None) -> UserStacks:
    maps, unwind = loaded.program.maps, loaded.unwind
    allowance = Allowance(unwind.cpu_pct)
    if rules is None:
        return UserStacks(Unwinder(files, "fp", None, cpython_frames), allowance)
    return UserStacks(
        Unwinder(files, unwind.way, rules, cpython_frames), allowance, Copies(maps["copies"], maps["copies_left"])
    )


def _kernel_memos(loaded: Loaded) -> StackMemos | None:
    maps = loaded.program.maps
    if "kernel_memo_settings" not in maps:
        return None
    return StackMemos(maps["kernel_memo_settings"], maps["kernel_memo_counts"], loaded.unwind.kernel_check_every)


def _is_alive(key: ThreadKey) -> bool:
    return key.pid in PSEUDO_PIDS or Path(f"/proc/{key.pid}/task/{key.tid}").exists()
