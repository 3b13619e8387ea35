"""What batch mode prints of a live source, and the laws that hold in each tick of it."""

import io
import os
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import OFFCPU
from offtop.person import person
from offtop.reports import batch
from offtop.reports.wanted import Wanted
from offtop.settings.rule_files import RuleFiles
from tests.kernel import watch
from tests.kernel.offtop_process import Tick
from tests.kernel.watch import Watch

NOTHING_WATCHED = Filters(pids=(os.getpid(),))
"""Filters of the shared source between tests: offtop's own waits never count."""


@contextmanager
def selecting(live: Watch, filters: Filters, mode: str = OFFCPU) -> Generator[None]:
    """Watch with these filters, in this mode."""
    live.source.set_filters(filters)
    live.source.set_mode(mode, 8)
    live.begin()
    try:
        yield
    finally:
        live.source.set_filters(NOTHING_WATCHED)
        live.source.set_mode(OFFCPU)


def printed(live: Watch, wanted: Wanted, as_json: bool, ticks: int, delay_ns: int) -> str:
    """Return what the command prints in so many ticks of this source."""
    out = io.StringIO()
    rules = RuleFiles(Path("/nonexistent"), person(), watch.rules().ids)
    batch.run(live.source, watch.rules(), delay_ns, ticks, wanted, as_json=as_json, width=0, out=out, rules=rules)
    return out.getvalue()


def check_laws(tick: Tick) -> None:
    sites_ns, sites_waits = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for site in tick["sites"]:
        sites_ns[site["pid"], site["tid"]] += site["total_ns"]
        sites_waits[site["pid"], site["tid"]] += site["waits"]
        assert site["total_ns"] == site["blocked_ns"] + site["runqueue_ns"]
        assert site["waits"] == counted(site) or site["kernel"] == ["[stack lost]"]
    for thread in tick["threads"]:
        key = thread["pid"], thread["tid"]
        assert thread["offcpu_ns"] == sites_ns.pop(key, 0) + thread["short_ns"] + thread["filtered_ns"]
        assert thread["offcpu_ns"] == thread["blocked_ns"] + thread["runqueue_ns"]
        assert thread["runqueue_ns"] >= thread["preempted_ns"] >= 0
        assert thread["waits"] == counted(thread)
        assert thread["waits"] == sites_waits[key] + thread["short_waits"] or thread["filtered_ns"]
    assert not any(sites_ns.values())
    assert sum(part["total_ns"] for part in tick["categories"]) == sum(t["offcpu_ns"] for t in tick["threads"])
    for part in tick["categories"]:
        assert 0 <= part["idle_ns"] <= part["total_ns"]
        assert part["waits"] == counted(part) or part["name"] == "short" or "sites" in tick["lost"]


def counted(row: Tick) -> int:
    return sum(count for _, count in row["histogram"])
