"""Show this machine, another one or a recording, on the screen or as text.

Batch modes never import Textual. bcc compiles in a child process while the screen's modules are imported.
"""

import argparse
import contextlib
import importlib
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from offtop.commands import choices, hosts, recorded, saved_files, sources
from offtop.commands.output import flushed_output, warn_of_batch_mode, why_no_screen
from offtop.errors import OfftopError, OutlierFoundError, UsageError, warn
from offtop.export.folded import Style
from offtop.feed.source import Source
from offtop.model.aggregate.filter import Filter
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import OFFCPU
from offtop.printable import printable
from offtop.reports import batch
from offtop.reports.wanted import Wanted

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.feed.outlier_actions import OutlierActions
    from offtop.model.values.outlier import Group
    from offtop.model.viewmodel.view import View
    from offtop.model.windows.baseline import Baseline
    from offtop.recording.writer import Recorder
    from offtop.settings.config import Loaded
    from offtop.settings.rule_files import RuleFiles


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
        counted = "" if view and args.stuck else recorded.listed_mode(loaded)
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
        recorded.check_lists(source, args.mode)
        view = None
        keymap: Mapping[str, str] = {}
        if no_screen is None:
            view = choices.first_view(loaded, Filters(), rules, chosen, user, args, lists=source.recorded.lists)
            keymap, kept = choices.keymap(loaded), kept.checked()
        baseline = _baseline(args, rules, files, loaded)
        if args.begin is not None:
            source.go_to(recorded.parse_time(args.begin, source.recorded))
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
        listed=recorded.listed_mode(loaded, source.recorded),
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
