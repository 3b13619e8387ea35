"""The command export: convert a recording, or the next seconds of this machine."""

import argparse
import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from offtop.commands import choices, recorded, recordings, sources
from offtop.commands.output import flushed_output
from offtop.errors import UsageError
from offtop.export.folded import Style
from offtop.feed.source import Source
from offtop.model.classify import categories
from offtop.model.values.disks import LIST_MODES, LIST_NOUNS
from offtop.model.values.wake import OFFCPU

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.export.profile import Profile
    from offtop.settings.config import Loaded


_EXPORT_TICKS = 10


def export(args: argparse.Namespace) -> int:
    """Convert a recording, or the next seconds of this machine, to another format."""
    from offtop.reports import exports

    known = choices.category_rules()
    chosen = choices.export_filter(args.filter, known, has_rows=args.mode in LIST_MODES)
    if not args.file and (args.begin or args.end):
        raise UsageError("--begin and --end need a recording. Name one, or omit them")
    chosen = choices.with_user(args.user or "", chosen)
    loaded, owner = choices.load(args)
    settings = loaded.settings
    mode = args.mode or (OFFCPU if args.file else settings.wait_mode)

    style = Style(args.delimiter, args.per)
    if args.format == exports.TIMELINE and not args.file:
        raise UsageError("perfetto needs a recording with outliers. Name one; offtop record writes it")
    if args.format == exports.TIMELINE and mode in LIST_MODES:
        raise UsageError(f"perfetto has outliers, and no {LIST_NOUNS[mode]}. Use svg or speedscope, or omit --mode")
    if args.format == exports.TIMELINE and chosen.chooses_waits:
        raise UsageError("perfetto always has all outliers. Omit --filter and -u, or select with --begin and --end")
    exports.check(args.format, args.baseline is not None, args.output or "", style)
    if args.file is None and chosen.needs_wakers and mode == OFFCPU:
        raise UsageError("--filter needs wakers, which mode offcpu does not record. Add --mode wakeup")

    ticks: int | None = args.iterations or (None if args.file else _EXPORT_TICKS)
    with choices.rule_files(known, loaded, owner) as files, flushed_output():

        def profile_of(source: Source, ticks: int | None = None, end_ns: int = 0) -> "Profile":
            idle, delay_ns = settings.idle, settings.delay_ns
            if mode in LIST_MODES:
                return exports.profile_of_list(source, known, files, chosen, mode, delay_ns, ticks, end_ns)
            weights = choices.suspect_weights()
            return exports.profile(source, known, files, chosen, mode, idle, delay_ns, ticks, weights, end_ns)

        baseline, out = None, args.output or ""
        if args.baseline:
            with _open_recording(Path(args.baseline), known) as (source, _):
                recorded.check_lists(source, mode)
                baseline = profile_of(source)
        with (
            _open_recording(recordings.named(args.file), known, args.begin, args.end)
            if args.file
            else _open_live(args, loaded, known, ticks or 0, counted=mode if mode in LIST_MODES else "") as (
                source,
                end_ns,
            )
        ):
            recorded.check_lists(source, mode)
            if args.format == exports.TIMELINE:
                begin_ns = recorded.parse_time(args.begin, source.recorded) if args.begin and source.recorded else 0
                exports.write_timeline(source, begin_ns, end_ns, out, owner)
                return 0
            if args.format == exports.LINES:
                delay_ns = settings.delay_ns
                weights = choices.suspect_weights()
                exports.write_lines(source, known, files, chosen, delay_ns, ticks, end_ns, out, owner, weights)
                return 0
            profile = profile_of(source, ticks, end_ns)
        exports.write(args.format, profile, baseline, out, args.title, owner, style)
    return 0


@contextlib.contextmanager
def _open_recording(
    path: Path, known: categories.Categories, begin: str | None = None, end: str | None = None
) -> Generator[tuple[Source, int]]:
    """Open a recording at `begin`; yield it with the time of `end` (0: none)."""
    from offtop.recording.replay import RecordedSource
    from offtop.reports.whole import EVER_NS

    with contextlib.closing(RecordedSource(path, categories=known.ids, keep_ns=EVER_NS)) as source:
        begin_ns = recorded.parse_time(begin, source.recorded) if begin is not None else 0
        end_ns = recorded.parse_time(end, source.recorded, "--end") if end is not None else 0
        if end is not None and end_ns <= begin_ns:
            raise UsageError("--end is not after --begin. Give a later time, or omit one of them")
        if begin is not None:
            source.go_to(begin_ns)
        yield source, end_ns


@contextlib.contextmanager
def _open_live(
    args: argparse.Namespace, loaded: "Loaded", known: categories.Categories, ticks: int, counted: str
) -> Generator[tuple[Source, int]]:
    """Open this machine for `ticks` ticks; yield it with 0, because it has no end. `counted`: see sources.live."""
    filters, keep_ns = sources.filters(args, loaded), ticks * loaded.settings.delay_ns
    with sources.live(known, filters, args, loaded, keep_ns, counted) as source:
        yield source, 0
