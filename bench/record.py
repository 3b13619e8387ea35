"""Measure the cost of recording on top of measuring: CPU per tick, and bytes per day.

A Recorder gets synthetic waits, all of whose sites change every second. Its CPU is that of all threads of this process
during a tick, including the writer; nothing else runs in the process.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

from bench.answer import Answer, Bar, middle, table
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.change import NOTHING, Replayed, change
from offtop.person import person
from offtop.recording.writer import Recorder
from offtop.units import size
from tests.ui.busy import BusySource

_TICKS = 180
_SITES = {300: 5.0, 5_000: 30.0}
"""Sites that change each second → limit in ms per tick. At 1 Hz, 10 ms are one percent of a CPU."""
_DAY_S = 86_400


def ask(_: Path) -> Answer:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    bars: list[Bar] = []
    for sites, most_ms in _SITES.items():
        cpu_ms, day_bytes = _recorded(sites)
        rows.append((f"{sites:,} sites that change each second", middle(cpu_ms, 1), size(round(day_bytes))))
        figures[str(sites)] = {"cpu_ms": cpu_ms, "bytes_a_day": day_bytes}
        bars.append(Bar(f"CPU of recording {sites:,} sites, a tick", median(cpu_ms), most_ms, " ms"))
    head = ("", "CPU a tick, ms", "a day")
    return Answer("Recording at 1 Hz", table(head, rows), tuple(bars), figures)


def _recorded(sites: int) -> tuple[list[float], float]:
    """Return the CPU of each tick in ms, and the bytes per day."""
    source = BusySource(sites=sites, still=sites // 2, ticks=_TICKS + 1)
    made = Replayed(source._catalog)  # pyright: ignore[reportPrivateUsage]
    before = NOTHING
    cpu_ms: list[float] = []
    with tempfile.TemporaryDirectory(prefix="offtop-bench-") as directory:
        path = Path(directory) / "it.offtop"
        recorder = Recorder(path, source, person(), leave_bytes=0)
        first_bytes = 0
        while (now := source.read()) is not None:
            snapshot: Snapshot = made.add(change(before, now))
            before = now
            began_s = time.process_time()
            recorder.add(snapshot)
            while recorder._queue:  # pyright: ignore[reportPrivateUsage]
                time.sleep(0.001)
            time.sleep(0.01)
            cpu_ms.append(1e3 * (time.process_time() - began_s))
            first_bytes = first_bytes or recorder.bytes_written
        recorder.close()
        day_bytes = (path.stat().st_size - first_bytes) / _TICKS * _DAY_S
    return cpu_ms[1:], day_bytes
