"""Write what `offtop export` asks for: measurements in formats that other programs open."""

import contextlib
import io
import sys
from pathlib import Path
from typing import NamedTuple, TextIO

from offtop.errors import OfftopError, UsageError, warn
from offtop.export import flamegraph, folded, perfetto, pprof, speedscope, table
from offtop.export.folded import AS_BCC, Style
from offtop.export.profile import Profile, profile_of, profile_of_rows
from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch
from offtop.model.aggregate.filter import Filter
from offtop.model.aggregate.list_rows import activity_of, rows_of
from offtop.model.aggregate.word_filter import ignored_words
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import RuleSource
from offtop.model.classify.suspect_weights import Weights
from offtop.model.values.disks import LIST_NOUNS, LIST_UNITS
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.wake import WAKEUP, gathers
from offtop.model.windows.history import HistoryTick
from offtop.person import Person, write_theirs, writing_theirs
from offtop.printable import printable
from offtop.reports import batch
from offtop.reports.tick import passing
from offtop.reports.wanted import Wanted
from offtop.reports.whole import INTERRUPTED, not_gathered, whole_of

FORMATS = {
    "folded": "one stack and its microseconds per line, for flamegraph.pl, speedscope and scripts",
    "svg": "a flame graph in one file, for a browser",
    "speedscope": "for speedscope.app, or npx speedscope",
    "pprof": "gzipped, for go tool pprof, Pyroscope, Parca and Perfetto",
    "csv": "one stack of one thread per row",
}
LINES = "jsonl"
"""The only format with one entry per tick instead of one for all ticks."""
TIMELINE = "perfetto"
"""The only format of outliers."""
COMMANDS = {
    **FORMATS,
    TIMELINE: "outliers of a recording on a time line, with arrows from their wakers, for ui.perfetto.dev",
    LINES: "one JSON object per tick, as --json prints it, idle waits included",
}
ENDINGS = {"folded": "folded", "svg": "svg", "speedscope": "speedscope.json", "pprof": "pb.gz", "csv": "csv"}
"""File name suffixes by format."""
_COMPARES = ("folded", "svg")
"""Formats that can show the difference to a baseline."""


def profile(
    source: Source,
    categories: Categories,
    rules: RuleSource,
    chosen: Filter,
    mode: str,
    idle: bool,
    delay_ns: int,
    iterations: int | None,
    weights: Weights,
    end_ns: int = 0,
) -> Profile:
    """Return the profile of a source, up to `iterations` ticks or `end_ns` (CLOCK_REALTIME).

    Raises OfftopError if there is no whole tick, or if `mode` needs wakers and they were not recorded.
    """
    cause_finder = CauseFinder(source.names, rules)
    watch = SuspectWatch(source, weights, rules)
    whole = whole_of(source, categories, cause_finder, delay_ns, iterations, end_ns, chosen, watch)
    if not gathers(whole.header.mode, mode):
        raise OfftopError(f"Wakers were not recorded. Omit --mode, or record with --mode {mode}")
    shares = passing(whole, chosen, cause_finder).shares
    return profile_of(whole.window, shares, source.names, source.host, mode, idle)


def profile_of_list(
    source: Source,
    categories: Categories,
    rules: RuleSource,
    chosen: Filter,
    mode: str,
    delay_ns: int,
    iterations: int | None,
    end_ns: int = 0,
) -> Profile:
    """Return the profile of a source's file operations or requests to disks, as `profile` does.

    `mode`: one of disks.LIST_MODES. Only ticks in which they were counted are part of it.
    """
    counted_ns = 0

    def count(tick: HistoryTick) -> None:
        nonlocal counted_ns
        counted_ns += tick.span_ns if activity_of(tick.window, mode) else 0

    cause_finder = CauseFinder(source.names, rules)
    whole = whole_of(source, categories, cause_finder, delay_ns, iterations, end_ns, chosen, each=count).window
    if not counted_ns:
        raise OfftopError(f"No {LIST_NOUNS[mode]} were counted then. Record with --mode {mode}, or choose another time")
    listed = rows_of(activity_of(whole, mode), counted_ns, whole.catalog, [chosen], by_thread=True)
    if listed.unsuited:
        warn(f"offtop: {ignored_words(listed.unsuited)}")
    if listed.elided_rows:
        warn(f"offtop: {listed.elided_rows} rows with less time are left out")
    return profile_of_rows(
        *([row.io for row in listed.rows], mode, whole.catalog, source.names, source.host),
        *(whole.taken_ns, counted_ns, {LIST_UNITS[mode]: listed.lost}),
    )


def check(form: str, has_baseline: bool, path: str, style: Style = AS_BCC) -> None:
    """Raise UsageError for an export that is not possible. Call it before measuring."""
    if form != "folded" and style != AS_BCC:
        raise UsageError("--delimiter and --per are for folded stacks. Use folded, or omit them")
    if has_baseline and form not in _COMPARES:
        raise UsageError(f"--baseline works only with {' and '.join(_COMPARES)}. Use one of these, or omit it")
    if form in ("pprof", TIMELINE) and not path and sys.stdout.isatty():
        raise UsageError(f"{form} is a binary format. Write it to a file: -o FILE")


class _WakersCheck(NamedTuple):
    """Checks each snapshot.

    Raises OfftopError if the filter needs wakers and the snapshot has none.
    """

    chosen: Filter

    def add(self, snapshot: Snapshot) -> None:
        if self.chosen.needs_wakers and not gathers(snapshot.mode, WAKEUP):
            raise OfftopError(not_gathered(self.chosen))


def write_lines(
    source: Source,
    categories: Categories,
    rules: RuleSource,
    chosen: Filter,
    delay_ns: int,
    iterations: int | None,
    end_ns: int,
    path: str,
    owner: Person,
    weights: Weights,
) -> None:
    """Write each tick like --json, to a file or to stdout. Raises OfftopError."""
    with contextlib.ExitStack() as opened:
        out: TextIO = sys.stdout
        if path:
            _check_directory(Path(path))
            out = io.TextIOWrapper(opened.enter_context(writing_theirs(Path(path), owner)), encoding="utf-8")
        try:
            batch.run(
                source,
                categories,
                delay_ns,
                iterations,
                Wanted(chosen),
                as_json=True,
                width=0,
                out=out,
                recorder=_WakersCheck(chosen),
                rules=rules,
                end_ns=end_ns,
                weights=weights,
            )
        except KeyboardInterrupt:
            if source.recorded:
                raise
            warn(INTERRUPTED)


def write_timeline(source: Source, begin_ns: int, end_ns: int, path: str, owner: Person) -> None:
    """Write the outliers from `begin_ns` to `end_ns` (CLOCK_REALTIME; 0: no limit).

    Raises OfftopError.
    """
    some = [one for one in source.outliers() if begin_ns <= one.taken_ns <= (end_ns or one.taken_ns)]
    waits = [*perfetto.waits_of(some, source.names)]
    if not waits:
        warn("offtop: there are no outliers, so the timeline is empty. Record with a --trigger that long waits meet")
    at_ns, taken_ns = (some[-1].at_ns, some[-1].taken_ns) if some else (0, 0)
    _write(perfetto.packed(waits, at_ns, taken_ns), path, owner)


def write(
    form: str, one: Profile, baseline: Profile | None, path: str, title: str, owner: Person, style: Style = AS_BCC
) -> None:
    """Write a profile to a file or to stdout, and its caveats to stderr. Raises OfftopError."""
    content = in_form(form, one, title, baseline, style)
    _write(content.encode() if isinstance(content, str) else content, path, owner)
    if not one.samples:
        warn(f"offtop: no {LIST_UNITS.get(one.mode, 'waits')} match, so the output is empty")
    for caveat in one.caveats:
        warn(f"offtop: {caveat}")
    for caveat in baseline.caveats if baseline else []:
        warn(f"offtop: baseline: {caveat}")


def _write(content: bytes, path: str, owner: Person) -> None:
    """Write to a file, or to stdout if there is no path."""
    if path:
        _check_directory(Path(path))
        write_theirs(Path(path), owner, content)
    else:
        sys.stdout.buffer.write(content)


def _check_directory(file: Path) -> None:
    """Raise OfftopError if the directory does not exist, as for a mistyped name."""
    if not file.absolute().parent.is_dir():
        directory = printable(str(file.parent))
        raise OfftopError(f"There is no directory {directory}. Create it, or name another file")


def in_form(
    form: str, one: Profile, title: str = "", baseline: Profile | None = None, style: Style = AS_BCC
) -> str | bytes:
    """Return a profile in one of FORMATS."""
    match form:
        case "folded":
            return folded.text(one, baseline, style)
        case "svg":
            return flamegraph.svg(one, title, baseline)
        case "speedscope":
            return speedscope.text(one, title or f"offtop: {one.host}")
        case "pprof":
            return pprof.packed(one)
        case _:
            return table.text(one)
