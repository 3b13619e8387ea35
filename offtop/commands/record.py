"""The command record: write what this machine does to a file, or stream it."""

import argparse
from pathlib import Path

from offtop.commands import choices, recorded, recordings, saved_files, sources
from offtop.errors import OfftopError, UsageError, warn
from offtop.printable import printable
from offtop.units import NS_PER_S

STREAM = "-"
"""In place of the file of a recording: write a stream to stdout."""
_DELETION_NS = 60 * NS_PER_S
"""How often `offtop record --directory` deletes old recordings."""
_RECORD_NS, _RECORD_BYTES = 5 * NS_PER_S, 1 << 20
"""Limits of the history in `offtop record`, which needs it only to judge outliers."""


def record(args: argparse.Namespace) -> int:
    """Record this machine to a file, without output; or stream it to stdout."""
    from offtop.feed.pace import Pace
    from offtop.feed.suspect_watch import SuspectWatch, history_for
    from offtop.model.classify.cause_finder import CauseFinder
    from offtop.recording import writer

    if args.output == STREAM:
        from offtop.commands import streaming

        return streaming.record(args)
    if args.stream_version is not None:
        raise UsageError("--stream-version is about the stream. Add --output -, or omit it")
    rules = choices.category_rules()
    loaded, owner = choices.load(args)
    filters = sources.filters(args, loaded)
    outlier_actions = choices.outlier_actions(loaded, rules, owner)
    keep_ns, most_bytes = args.keep or writer.KEEP_NS, args.max_size or writer.MOST_BYTES
    if args.directory is not None:  # before the first tick, because the disk may be full
        recordings.delete_oldest(Path(args.directory), keep_ns, most_bytes, owner)
    with (
        choices.rule_files(rules, loaded, owner) as files,
        sources.live(
            rules, filters, args, loaded, counted=recorded.listed_mode(loaded), triggers=outlier_actions.texts
        ) as source,
    ):
        recorder = saved_files.SavedFiles(loaded, owner, args).recorder(source, args.output or "")
        cause_finder = CauseFinder(source.names, files)
        suspects = SuspectWatch(source, choices.suspect_weights(), files)
        history = history_for(rules, cause_finder, suspects, _RECORD_NS, _RECORD_BYTES)
        pace = Pace(source, history, loaded.settings.delay_ns, detector=outlier_actions.detector, suspects=suspects)
        pace.recorder, pace.alarm = recorder, outlier_actions.alarm
        try:
            warn(f"offtop: recording to {printable(str(recorder.path))}; ctrl-C ends it")
            first_ns = next_deletion_ns = 0
            for number, kept in enumerate(pace.ticks(), 1):
                if args.directory is not None and kept.at_ns >= next_deletion_ns:
                    recordings.delete_oldest(recorder.path.parent, keep_ns, most_bytes, owner, recorder.path)
                    next_deletion_ns = kept.at_ns + _DELETION_NS
                first_ns = first_ns or kept.at_ns - kept.span_ns
                has_lasted = args.duration is not None and kept.at_ns - first_ns >= args.duration
                if has_lasted or number == args.iterations or recorder.failure:
                    break
        except KeyboardInterrupt:
            warn("")  # the terminal has echoed ^C without a newline
        finally:
            summary = recorder.close()
            if not recorder.failure:
                warn(f"offtop: {summary}")
        if recorder.failure:
            raise OfftopError(f"{recorder.failure}. What was written before can be replayed")
    return 0
