"""Run the commands: open a source, and send it to the screen, to batch output, or to a file.

Batch modes never import Textual. bcc compiles in a child process while the screen's modules are imported.
"""

import argparse
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Generator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from offtop.commands import choices, hosts, recordings, saved_files, sources
from offtop.errors import OfftopError, OutlierFoundError, UsageError, warn
from offtop.export.folded import Style
from offtop.feed.source import Recorded, Source
from offtop.model.aggregate.filter import Filter
from offtop.model.classify import categories
from offtop.model.values.disks import LIST_MODES, LIST_NOUNS
from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import OFFCPU
from offtop.printable import printable
from offtop.reports import batch
from offtop.reports.wanted import Wanted
from offtop.units import NS_PER_S

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.export.profile import Profile
    from offtop.feed.outlier_actions import OutlierActions
    from offtop.model.values.outlier import Group
    from offtop.model.viewmodel.view import View
    from offtop.model.windows.baseline import Baseline
    from offtop.recording.writer import Recorder
    from offtop.settings.config import Loaded
    from offtop.settings.rule_files import RuleFiles

STREAM = "-"
"""In place of the file of a recording: write a stream to stdout."""
_EXPORT_TICKS = 10
_RULES_TICKS = 5
_DELETION_NS = 60 * NS_PER_S
"""How often `offtop record --directory` deletes old recordings."""
_RECORD_NS, _RECORD_BYTES = 5 * NS_PER_S, 1 << 20
"""Limits of the history in `offtop record`, which needs it only to judge outliers."""


def show_config(args: argparse.Namespace) -> int:
    from offtop.settings import config

    loaded, _ = choices.load(args)
    choices.check_theme(loaded)
    choices.keymap(loaded)
    with flushed_output():
        print(config.shown(loaded), end="")
    return 0


def show_live(args: argparse.Namespace) -> int:
    """Show this machine, or that of --host, on the screen or as text."""
    hosts.check_options(args)
    no_screen = why_no_screen(args.batch or args.json or args.folded)
    if no_screen is not None and args.rate and not args.pid:
        raise UsageError("--rate in batch mode needs a process. Add -p PID, or omit --rate")
    rules, chosen, user = choices.checked_filter(args)
    loaded, owner = choices.load(args)
    choices.check_theme(loaded)
    filters = sources.filters(args, loaded) if args.host is None else Filters(min_ns=loaded.settings.min_ns)
    kept = saved_files.SavedFiles(loaded, owner, args)
    view = None if no_screen is not None else choices.first_view(loaded, filters, rules, chosen, user, args)
    if args.fail_on_trigger and loaded.settings.triggers == ("off",):
        raise UsageError("--fail-on-trigger with --trigger off never fails. Give a trigger")
    if view and args.fail_on_trigger:
        raise UsageError("--fail-on-trigger is for batch mode. Add -b or --json, and -n N")
    keymap: Mapping[str, str] = choices.keymap(loaded) if view else {}
    outlier_actions = choices.outlier_actions(loaded, rules, owner, args.freeze)
    if view:
        kept = kept.checked()
        threading.Thread(target=_load_screen, daemon=True).start()
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(choices.rule_files(rules, loaded, owner))
        baseline = _baseline(args, rules, files, loaded)
        counted = "" if view and args.stuck else _listed_mode(loaded)
        if args.host is None:
            triggers = outlier_actions.texts
            live = sources.live(rules, filters, args, loaded, counted=counted, triggers=triggers)
            source: Source = stack.enter_context(live)
        else:
            source, filters = _open_host(args, loaded, rules, outlier_actions, stack, is_batch=view is None)
            view = view and replace(view, filters=filters)
        recorder = kept.recorder(source, args.record) if args.record else None
        if view:
            view = replace(view, baseline=baseline, diff=baseline is not None)
            return _run_screen(source, view, rules, files, loaded, kept, keymap, args, recorder, outlier_actions)
        warn_of_batch_mode(no_screen)
        try:
            status = _batch(
                source, rules, files, loaded, choices.with_user(user, chosen), args, recorder, baseline, outlier_actions
            )
            if outlier_actions.alarm.failure:
                warn(f"offtop: {outlier_actions.alarm.failure}")
            if args.fail_on_trigger and outlier_actions.alarm.count:
                raise OutlierFoundError(
                    f"Outliers: {outlier_actions.alarm.count:,} (--fail-on-trigger). See: offtop -b, or --json"
                )
            return status
        finally:
            if recorder:
                warn(f"offtop: {recorder.close()}")


def _open_host(
    args: argparse.Namespace,
    loaded: "Loaded",
    rules: categories.Categories,
    outlier_actions: "OutlierActions",
    stack: contextlib.ExitStack,
    *,
    is_batch: bool,
) -> tuple[Source, Filters]:
    """Connect to --host, which also finds the outliers; return it with what it counts."""
    from offtop.remote.outliers import ReportedOutliers

    def report(text: str) -> None:
        if is_batch:  # the screen shows it
            warn(f"offtop: {text}")

    source = stack.enter_context(hosts.opened(args, loaded, rules, report))
    outlier_actions.detector = ReportedOutliers(source)
    return source, source.filters


def show_recording(args: argparse.Namespace, path: Path) -> int:
    """Show a recording, on the screen or as text."""
    from offtop.recording.replay import RecordedSource

    no_screen = why_no_screen(args.batch or args.json or args.folded)
    rules, chosen, user = choices.checked_filter(args)
    loaded, owner = choices.load(args)
    choices.check_theme(loaded)
    speed = args.speed if no_screen is None else 0.0
    kept = saved_files.SavedFiles(loaded, owner, args)
    with (
        choices.rule_files(rules, loaded, owner) as files,
        contextlib.closing(RecordedSource(path, speed=speed, categories=rules.ids)) as source,
    ):
        _check_recorded(source, args.mode)
        view = None
        keymap: Mapping[str, str] = {}
        if no_screen is None:
            view = choices.first_view(loaded, Filters(), rules, chosen, user, args, lists=source.recorded.lists)
            keymap, kept = choices.keymap(loaded), kept.checked()
        baseline = _baseline(args, rules, files, loaded)
        if args.begin is not None:
            source.go_to(_parse_time(args.begin, source.recorded))
        pause_at_ns = None
        if args.at is not None:
            first = _first_outlier(source, path)
            pause_at_ns = source.go_to(first.worst.taken_ns)
            view = view and _view_of_outlier(view, first, rules)
        if view:
            view = replace(view, baseline=baseline, diff=baseline is not None)
            return _run_screen(source, view, rules, files, loaded, kept, keymap, args, None, pause_at_ns=pause_at_ns)
        warn_of_batch_mode(no_screen)
        return _batch(source, rules, files, loaded, choices.with_user(user, chosen), args, None, baseline)


def _baseline(
    args: argparse.Namespace, known: categories.Categories, files: "RuleFiles", loaded: "Loaded"
) -> "Baseline | None":
    """Read the recording given with --baseline; None: none is given."""
    if args.baseline is None:
        return None
    from offtop.feed.suspect_watch import SuspectWatch
    from offtop.model.classify.cause_finder import CauseFinder
    from offtop.recording.replay import RecordedSource
    from offtop.reports.whole import EVER_NS, baseline_in

    path = Path(args.baseline)
    with contextlib.closing(RecordedSource(path, categories=known.ids, keep_ns=EVER_NS)) as source:
        cause_finder = CauseFinder(source.names, files)
        watch = SuspectWatch(source, choices.suspect_weights(), files)
        return baseline_in(source, path.name, known, cause_finder, loaded.settings.delay_ns, watch)


def _first_outlier(source: Source, path: Path) -> "Group":
    """Return the first group of outliers in a recording. Raises OfftopError if it has none."""
    from offtop.model.values.outlier import groups

    found = groups(source.outliers())
    if not found:
        raise OfftopError(f"{printable(str(path))} has no outliers. Omit --at; M sorts by the longest wait")
    return found[0]


def _view_of_outlier(view: "View", group: "Group", rules: categories.Categories) -> "View":
    from offtop.model.viewmodel import panes
    from offtop.model.viewmodel import view as views
    from offtop.model.viewmodel.outlier_list import which

    one = group.worst
    category = one.category if one.category in rules.ids else views.ALL
    return panes.around_outlier(view, which(group), one.wait.site.thread if one.wait else None, category)


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
            rules, filters, args, loaded, counted=_listed_mode(loaded), triggers=outlier_actions.texts
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


def report(args: argparse.Namespace) -> int:
    """Print a recording on one page."""
    from offtop.recording.replay import RecordedSource
    from offtop.reports import recording_page

    rules = choices.category_rules()
    loaded, owner = choices.load(args)
    path, weights = recordings.named(args.file), choices.suspect_weights()
    with (
        choices.rule_files(rules, loaded, owner) as files,
        contextlib.closing(RecordedSource(path, categories=rules.ids)) as source,
        flushed_output(),
    ):
        recording_page.write(source, path.name, rules, args.width, sys.stdout, files, weights)
    return 0


def _parse_time(text: str, recorded: Recorded, option: str = "--begin") -> int:
    from offtop.units import parse_moment

    began_ns, ended_ns = recorded.began_ns, recorded.ended_ns
    try:
        at_ns = parse_moment(text, began_ns if text.strip().startswith("+") else ended_ns, ended_ns)
        if not began_ns - NS_PER_S < at_ns <= ended_ns + NS_PER_S:
            first, last = (
                datetime.fromtimestamp(ns // NS_PER_S).strftime("%Y-%m-%dT%H:%M:%S") for ns in (began_ns, ended_ns)
            )
            raise UsageError(f"{option}: the recording is from {first} to {last}. Give a time within it")
        return at_ns
    except ValueError:
        raise UsageError(
            f"{option}: '{printable(text)}' is not a time. Try 02:10:55, 2026-11-21T02:10, +5m, or -5m (before the end)"
        ) from None


def rules(args: argparse.Namespace) -> int:
    """Check the cause rules, and print what each matches."""
    from offtop.reports import rules_page

    known = choices.category_rules()
    loaded, owner = choices.load(args)
    with choices.rule_files(known, loaded, owner) as files, flushed_output():
        print("\n".join(rules_page.checked(files)), flush=True)
        if args.check:
            return 0
        settings = loaded.settings
        if args.file:
            from offtop.recording.replay import RecordedSource
            from offtop.reports.whole import EVER_NS

            file = RecordedSource(recordings.named(args.file), categories=known.ids, keep_ns=EVER_NS)
            with contextlib.closing(file) as recording:
                rules_page.write(recording, known, files, settings.delay_ns, args.iterations, sys.stdout)
            return 0
        filters = sources.filters(args, loaded)
        with sources.live(known, filters, args, loaded) as source:
            rules_page.write(source, known, files, settings.delay_ns, args.iterations or _RULES_TICKS, sys.stdout)
    return 0


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
                _check_recorded(source, mode)
                baseline = profile_of(source)
        with (
            _open_recording(recordings.named(args.file), known, args.begin, args.end)
            if args.file
            else _open_live(args, loaded, known, ticks or 0, counted=mode if mode in LIST_MODES else "") as (
                source,
                end_ns,
            )
        ):
            _check_recorded(source, mode)
            if args.format == exports.TIMELINE:
                begin_ns = _parse_time(args.begin, source.recorded) if args.begin and source.recorded else 0
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
        begin_ns = _parse_time(begin, source.recorded) if begin is not None else 0
        end_ns = _parse_time(end, source.recorded, "--end") if end is not None else 0
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


def diff(args: argparse.Namespace) -> int:
    """Print what changed between two recordings."""
    from offtop.recording.replay import RecordedSource
    from offtop.reports import diff_page
    from offtop.reports.whole import EVER_NS

    known = choices.category_rules()
    chosen = choices.with_user(args.user or "", choices.wait_filter(args.filter, known))
    loaded, owner = choices.load(args)

    with choices.rule_files(known, loaded, owner) as files, flushed_output():

        def of_file(name: str) -> diff_page.Compared:
            with contextlib.closing(RecordedSource(Path(name), categories=known.ids, keep_ns=EVER_NS)) as source:
                idle, delay_ns = bool(args.idle), loaded.settings.delay_ns
                weights = choices.suspect_weights()
                return diff_page.compared(source, Path(name).name, known, files, chosen, idle, delay_ns, weights)

        before, after = of_file(args.before), of_file(args.after)
        diff_page.write(before, after, sys.stdout, args.json, args.width)
    return 0


def _batch(
    source: Source,
    rules: categories.Categories,
    files: "RuleFiles",
    loaded: "Loaded",
    chosen: Filter,
    args: argparse.Namespace,
    recorder: "Recorder | None",
    baseline: "Baseline | None",
    outlier_actions: "OutlierActions | None" = None,
) -> int:
    settings = loaded.settings
    if chosen.needs_wakers and settings.wait_mode == OFFCPU:
        raise UsageError(
            f"--filter: '{printable(chosen.text)}' needs wakers, which mode offcpu does not record. Add --mode wakeup"
        )
    wanted = Wanted(
        chosen,
        settings.idle,
        settings.threads,
        bool(args.programs),
        settings.sort,
        settings.reverse,
        stuck=args.stuck,
        rate=args.rate,
        mode=settings.wait_mode,
        listed=_listed_mode(loaded, source.recorded),
        folded=args.folded,
        baseline=baseline,
        style=Style(args.delimiter, args.per),
    )
    with flushed_output():
        ended = batch.run(
            source,
            rules,
            settings.delay_ns,
            args.iterations,
            wanted,
            as_json=args.json,
            width=args.width,
            out=sys.stdout,
            recorder=recorder,
            rules=files,
            outlier_actions=outlier_actions,
            weights=choices.suspect_weights(),
        )
    if ended and source.recorded is None:
        warn("offtop: all measured processes have exited")
    return 0


@contextlib.contextmanager
def flushed_output() -> Generator[None]:
    """Flush stdout at the end of the block.

    Raises OfftopError if the output cannot be written. A BrokenPipeError is passed on: the reader has closed the pipe.
    """
    if sys.__stdout__ is None:
        raise OfftopError("The output cannot be written (stdout is closed). Open it, as with: offtop -b >FILE")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python flushes it again at exit
        raise OfftopError(f"The output cannot be written ({error.strerror}). Make room, or write elsewhere") from error


def _run_screen(
    source: Source,
    view: "View",
    rules: categories.Categories,
    rule_files: "RuleFiles",
    loaded: "Loaded",
    kept: "saved_files.SavedFiles",
    keymap: Mapping[str, str],
    args: argparse.Namespace,
    recorder: "Recorder | None",
    outlier_actions: "OutlierActions | None" = None,
    pause_at_ns: int | None = None,
) -> int:
    from offtop.settings.first_start import is_first_start
    from offtop.ui import app
    from offtop.ui.kit import terminal, terminal_app

    settings = loaded.settings
    look = terminal.choose_look(settings.theme, settings.ascii, settings.color)
    screen = app.OfftopApp(
        source,
        view,
        rules,
        theme_name=look.theme,
        ascii_only=look.ascii_only,
        history_ns=settings.history_ns,
        iterations=args.iterations,
        keymap=keymap,
        files=replace(kept, theme=look.theme),
        mouse=settings.mouse,
        recorder=recorder,
        rules=rule_files,
        outlier_actions=outlier_actions,
        pause_at_ns=pause_at_ns,
        weights=choices.suspect_weights(),
        is_first_start=is_first_start(kept.owner),
    )
    return terminal_app.run(screen)


def _load_screen() -> None:
    """Import the screen while bcc compiles on another CPU.

    Errors are reported when it is used.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("offtop.ui.app")


def _listed_mode(loaded: "Loaded", recorded: Recorded | None = None) -> str:
    """Return the mode if its list is not about waits, and not missing in the recording; empty otherwise."""
    mode = loaded.settings.mode
    return mode if mode in LIST_MODES and (recorded is None or mode in recorded.lists) else ""


def _check_recorded(source: Source, mode: str | None) -> None:
    """Raise UsageError if `mode` is one of LIST_MODES, and the source is a recording without what it lists."""
    if mode in LIST_MODES and source.recorded and mode not in source.recorded.lists:
        missing, remedy = LIST_NOUNS[mode], f"offtop record --mode {mode}"
        raise UsageError(f"There are no {missing} in this recording. Record them with: {remedy}")


def why_no_screen(is_text_wanted: bool) -> str | None:
    """Return why there is no screen: empty if text was requested; None if there is a screen."""
    if is_text_wanted:
        return ""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return "stdin or stdout is not a terminal"
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "TERM names a terminal that cannot show a screen"
    return None


def warn_of_batch_mode(reason: str | None) -> None:
    """Say why this is batch mode, if it was not requested."""
    if reason:
        warn(f"offtop: {reason}, so this is batch mode (-b)")
