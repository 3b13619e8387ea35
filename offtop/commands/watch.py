"""From what was asked for to a source, and with it to the screen, to a batch of ticks, or to a file.

Batch modes never import Textual; bcc compiles in a child while the screen's own modules are loaded.
"""

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from offtop.commands import choices, keeping, sources
from offtop.errors import CaughtError, OfftopError, UsageError, warn
from offtop.export.folded import Style
from offtop.feed.source import Recorded, Source
from offtop.model.aggregate.filter import Filter
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import OFFCPU
from offtop.printable import printable
from offtop.reports import batch
from offtop.units import NS_PER_S

if TYPE_CHECKING:  # not to be loaded for --help
    from offtop.export.profile import Profile
    from offtop.feed.outlier_actions import Catch
    from offtop.model.values.outlier import Group
    from offtop.model.viewmodel.view import View
    from offtop.model.windows.baseline import Baseline
    from offtop.recording.writer import Recorder
    from offtop.settings.config import Loaded
    from offtop.settings.rule_files import RuleFiles

_EXPORT_TICKS = 10
_RULES_TICKS = 5
_RECORD_NS, _RECORD_BYTES = 5 * NS_PER_S, 1 << 20
"""What is remembered of what goes into a file and nowhere else."""


def show_config(asked: argparse.Namespace) -> int:
    from offtop.settings import config

    loaded, _ = choices.load(asked)
    choices.check_theme(loaded)
    choices.keymap(loaded)
    with written():
        print(config.shown(loaded), end="")
    return 0


def live(asked: argparse.Namespace) -> int:
    """This machine, on the screen or in text."""
    no_screen = _no_screen(asked)
    if no_screen is not None and asked.rate and not asked.pid:
        raise UsageError("--rate in batch is about the processes that -p names. Give -p PID, too, or leave it out")
    rules, chosen, user = choices.chosen(asked)
    loaded, whose = choices.load(asked)
    choices.check_theme(loaded)
    filters = sources.filters(asked, loaded)
    kept = keeping.Kept(loaded, whose, asked)
    view = None if no_screen is not None else choices.view(loaded, filters, rules, chosen, user, asked)
    if asked.fail_on_trigger and loaded.settings.triggers == ("off",):
        raise UsageError("--fail-on-trigger with --trigger off cannot fail. Name what is to be caught")
    if view and asked.fail_on_trigger:
        raise UsageError("--fail-on-trigger is a check that ends by itself. Add -b or --json, and -n N")
    keymap: Mapping[str, str] = choices.keymap(loaded) if view else {}
    catch = choices.catch(loaded, rules, whose, asked.freeze)
    if view:
        kept = kept.checked()
        threading.Thread(target=_load_screen, daemon=True).start()
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(choices.rule_files(rules, loaded, whose))
        stack.enter_context(_ended_by_signals())
        baseline = _baseline(asked, rules, files, loaded)
        source = stack.enter_context(sources.live(rules, filters, asked, loaded))
        recorder = kept.recorder(source, asked.record) if asked.record else None
        if view:
            view = replace(view, baseline=baseline, diff=baseline is not None)
            return _screen(source, view, rules, files, loaded, kept, keymap, asked, recorder, catch)
        _say_that_it_is_text(no_screen)
        try:
            status = _batch(
                source, rules, files, loaded, choices.of_user(user, chosen), asked, recorder, baseline, catch
            )
            if catch.alarm.failure:
                warn(f"offtop: {catch.alarm.failure}")
            if asked.fail_on_trigger and catch.alarm.count:
                raise CaughtError(f"{catch.alarm.count:,} caught (--fail-on-trigger). See: offtop -b, or --json")
            return status
        finally:
            if recorder:
                warn(f"offtop: {recorder.close()}")


def recorded(asked: argparse.Namespace, path: Path) -> int:
    """A recording, on the screen or in text."""
    from offtop.recording.replay import RecordedSource

    no_screen = _no_screen(asked)
    rules, chosen, user = choices.chosen(asked)
    loaded, whose = choices.load(asked)
    choices.check_theme(loaded)
    view = None if no_screen is not None else choices.view(loaded, Filters(), rules, chosen, user, asked)
    keymap: Mapping[str, str] = choices.keymap(loaded) if view else {}
    kept = keeping.Kept(loaded, whose, asked)
    if view:
        kept = kept.checked()
    with (
        choices.rule_files(rules, loaded, whose) as files,
        _ended_by_signals(),
        contextlib.closing(RecordedSource(path, speed=asked.speed if view else 0.0, categories=rules.ids)) as source,
    ):
        baseline = _baseline(asked, rules, files, loaded)
        if asked.begin is not None:
            source.go_to(_begin(asked.begin, source.recorded))
        held_ns = None
        if asked.at is not None:
            first = _first_outlier(source, path)
            held_ns = source.go_to(first.worst.taken_ns)
            view = view and _around(view, first, rules)
        if view:
            view = replace(view, baseline=baseline, diff=baseline is not None)
            return _screen(source, view, rules, files, loaded, kept, keymap, asked, None, held_ns=held_ns)
        _say_that_it_is_text(no_screen)
        return _batch(source, rules, files, loaded, choices.of_user(user, chosen), asked, None, baseline)


def _baseline(
    asked: argparse.Namespace, known: categories.Categories, files: "RuleFiles", loaded: "Loaded"
) -> "Baseline | None":
    """What --baseline names."""
    if asked.baseline is None:
        return None
    from offtop.model.classify.cause_finder import Diagnoser
    from offtop.recording.replay import RecordedSource
    from offtop.reports.whole import EVER_NS, baseline_in

    path = Path(asked.baseline)
    with contextlib.closing(RecordedSource(path, categories=known.ids, keep_ns=EVER_NS)) as source:
        diagnoser = Diagnoser(source.names, files)
        return baseline_in(source, path.name, known, diagnoser, loaded.settings.delay_ns)


def _first_outlier(source: Source, path: Path) -> "Group":
    """Raises OfftopError where there is none."""
    from offtop.model.values.outlier import groups

    found = groups(source.outliers())
    if not found:
        raise OfftopError(f"{printable(str(path))} has no outlier in it. Leave --at out: M sorts by the longest wait")
    return found[0]


def _around(view: "View", group: "Group", rules: categories.Categories) -> "View":
    from offtop.model.viewmodel import panes
    from offtop.model.viewmodel import view as views
    from offtop.model.viewmodel.outlier_list import which

    one = group.worst
    category = one.category if one.category in rules.ids else views.ALL
    return panes.around_outlier(view, which(group), one.wait.site.thread if one.wait else None, category)


def record(asked: argparse.Namespace) -> int:
    """This machine, into a file and nowhere else."""
    from offtop.feed.pace import Pace
    from offtop.model.classify.cause_finder import Diagnoser
    from offtop.model.windows.history import History

    rules = choices.packaged()
    loaded, whose = choices.load(asked)
    filters = sources.filters(asked, loaded)
    catch = choices.catch(loaded, rules, whose)
    with (
        choices.rule_files(rules, loaded, whose) as files,
        _ended_by_signals(),
        sources.live(rules, filters, asked, loaded) as source,
    ):
        recorder = keeping.Kept(loaded, whose, asked).recorder(source, asked.output or "")
        diagnoser = Diagnoser(source.names, files)
        history = History(rules.idle, categories.is_periodic, _RECORD_NS, _RECORD_BYTES, verdicts=diagnoser.verdicts)
        pace = Pace(source, history, loaded.settings.delay_ns, judge=catch.judge)
        pace.recorder, pace.alarm = recorder, catch.alarm
        try:
            warn(f"offtop: recording to {printable(str(recorder.path))}; ctrl-C ends it")
            first_ns = 0
            for number, kept in enumerate(pace.ticks(), 1):
                first_ns = first_ns or kept.at_ns - kept.span_ns
                over = asked.duration is not None and kept.at_ns - first_ns >= asked.duration
                if over or number == asked.iterations or recorder.failure:
                    break
        except KeyboardInterrupt:
            warn("")  # behind the ^C
        finally:
            said = recorder.close()
            if not recorder.failure:
                warn(f"offtop: {said}")
        if recorder.failure:
            raise OfftopError(f"{recorder.failure}. What was written until then can be replayed")
    return 0


def report(asked: argparse.Namespace) -> int:
    """A recording on one page."""
    from offtop.recording import report as page

    rules = choices.packaged()
    loaded, whose = choices.load(asked)
    with choices.rule_files(rules, loaded, whose) as files, written():
        page.write(Path(asked.file), rules, asked.width, sys.stdout, files)
    return 0


def _begin(text: str, recorded: Recorded, option: str = "--begin") -> int:
    from offtop.units import parse_moment

    began_ns, ended_ns = recorded.began_ns, recorded.ended_ns
    try:
        at_ns = parse_moment(text, began_ns if text.strip().startswith("+") else ended_ns, ended_ns)
        if not began_ns - NS_PER_S < at_ns <= ended_ns + NS_PER_S:
            ends = [datetime.fromtimestamp(ns // NS_PER_S).strftime("%Y-%m-%dT%H:%M:%S") for ns in (began_ns, ended_ns)]
            raise UsageError(f"{option}: the recording is from {ends[0]} to {ends[1]}. Name a moment in it")
        return at_ns
    except ValueError:
        raise UsageError(
            f"{option}: '{printable(text)}' is no moment. Try 02:10:55, 2026-11-21T02:10, +5m, or -5m from the end"
        ) from None


def rules(asked: argparse.Namespace) -> int:
    """The rules that name what waits are for: checked, and what each matches."""
    from offtop.reports import rules_page

    known = choices.packaged()
    loaded, whose = choices.load(asked)
    with choices.rule_files(known, loaded, whose) as files, written():
        print("\n".join(rules_page.checked(files)), flush=True)
        if asked.check:
            return 0
        settings = loaded.settings
        if asked.file:
            from offtop.recording.replay import RecordedSource
            from offtop.reports.whole import EVER_NS

            file = RecordedSource(Path(asked.file), categories=known.ids, keep_ns=EVER_NS)
            with contextlib.closing(file) as recording:
                rules_page.write(recording, known, files, settings.delay_ns, asked.iterations, sys.stdout)
            return 0
        filters = sources.filters(asked, loaded)
        with _ended_by_signals(), sources.live(known, filters, asked, loaded) as source:
            rules_page.write(source, known, files, settings.delay_ns, asked.iterations or _RULES_TICKS, sys.stdout)
    return 0


def export(asked: argparse.Namespace) -> int:
    """A recording, or this machine for a while, in a form that other programs open."""
    from offtop.recording.replay import RecordedSource
    from offtop.reports import exports
    from offtop.reports.whole import EVER_NS

    known = choices.packaged()
    chosen = choices.of_waits(asked.filter, known)
    if not asked.file and (asked.begin or asked.end):
        raise UsageError("--begin and --end are moments of a recording. Name one, or leave them out")
    chosen = choices.of_user(asked.user or "", chosen)
    loaded, whose = choices.load(asked)
    settings = loaded.settings
    mode = asked.mode or (OFFCPU if asked.file else settings.mode)

    style = Style(asked.delimiter, asked.per)
    if asked.format == exports.TIMELINE and not asked.file:
        raise UsageError("perfetto is of what was caught in a recording. Name one: offtop record makes it")
    if asked.format == exports.TIMELINE and chosen.chooses_waits:
        raise UsageError("perfetto has all that was caught. Leave --filter and -u out, or choose by --begin and --end")
    exports.check(asked.format, asked.baseline is not None, asked.output or "", style)
    if asked.file is None and chosen.needs_wakers and mode == OFFCPU:
        raise UsageError("--filter asks who ended waits, which is not gathered in mode offcpu. Add --mode wakeup")

    @contextlib.contextmanager
    def of_file(name: str, begin: str | None = None, end: str | None = None) -> Generator[tuple[Source, int]]:
        """From `begin` on, and when it ends."""
        with contextlib.closing(RecordedSource(Path(name), categories=known.ids, keep_ns=EVER_NS)) as source:
            begin_ns = _begin(begin, source.recorded) if begin is not None else 0
            end_ns = _begin(end, source.recorded, "--end") if end is not None else 0
            if end is not None and end_ns <= begin_ns:
                raise UsageError("--end is not behind --begin. Name a later moment, or leave one of them out")
            if begin is not None:
                source.go_to(begin_ns)
            yield source, end_ns

    @contextlib.contextmanager
    def of_now() -> Generator[tuple[Source, int]]:
        filters, keep_ns = sources.filters(asked, loaded), (ticks or 0) * settings.delay_ns
        with _ended_by_signals(), sources.live(known, filters, asked, loaded, keep_ns) as source:
            yield source, 0

    ticks: int | None = asked.iterations or (None if asked.file else _EXPORT_TICKS)
    with choices.rule_files(known, loaded, whose) as files, written():

        def whole(source: Source, ticks: int | None = None, end_ns: int = 0) -> "Profile":
            idle, delay_ns = settings.idle, settings.delay_ns
            return exports.profile(source, known, files, chosen, mode, idle, delay_ns, ticks, end_ns)

        baseline, out = None, asked.output or ""
        if asked.baseline:
            with of_file(asked.baseline) as (source, _):
                baseline = whole(source)
        with of_file(asked.file, asked.begin, asked.end) if asked.file else of_now() as (source, end_ns):
            if asked.format == exports.TIMELINE:
                begin_ns = _begin(asked.begin, source.recorded) if asked.begin and source.recorded else 0
                exports.write_timeline(source, begin_ns, end_ns, out, whose)
                return 0
            if asked.format == exports.LINES:
                delay_ns = settings.delay_ns
                exports.write_lines(source, known, files, chosen, delay_ns, ticks, end_ns, out, whose)
                return 0
            made = whole(source, ticks, end_ns)
        exports.write(asked.format, made, baseline, out, asked.title, whose, style)
    return 0


def diff(asked: argparse.Namespace) -> int:
    """What changed between two recordings."""
    from offtop.recording.replay import RecordedSource
    from offtop.reports import diff_page
    from offtop.reports.whole import EVER_NS

    known = choices.packaged()
    chosen = choices.of_user(asked.user or "", choices.of_waits(asked.filter, known))
    loaded, whose = choices.load(asked)

    with choices.rule_files(known, loaded, whose) as files, written():

        def of_file(name: str) -> diff_page.Compared:
            with contextlib.closing(RecordedSource(Path(name), categories=known.ids, keep_ns=EVER_NS)) as source:
                idle, delay_ns = bool(asked.idle), loaded.settings.delay_ns
                return diff_page.compared(source, Path(name).name, known, files, chosen, idle, delay_ns)

        before, after = of_file(asked.before), of_file(asked.after)
        _escape_what_the_locale_has_not()
        diff_page.write(before, after, sys.stdout, asked.json, asked.width)
    return 0


def _batch(
    source: Source,
    rules: categories.Categories,
    files: "RuleFiles",
    loaded: "Loaded",
    chosen: Filter,
    asked: argparse.Namespace,
    recorder: "Recorder | None",
    baseline: "Baseline | None",
    catch: "Catch | None" = None,
) -> int:
    _escape_what_the_locale_has_not()
    settings = loaded.settings
    if chosen.needs_wakers and settings.mode == OFFCPU:
        raise UsageError(
            f"--filter: '{printable(chosen.text)}' asks who ended waits, which is not gathered in mode offcpu. "
            "Add --mode wakeup"
        )
    wanted = batch.Wanted(
        chosen,
        settings.idle,
        settings.threads,
        settings.sort,
        settings.reverse,
        stuck=asked.stuck,
        rate=asked.rate,
        mode=settings.mode,
        folded=asked.folded,
        baseline=baseline,
        style=Style(asked.delimiter, asked.per),
    )
    with written():
        ended = batch.run(
            source,
            rules,
            settings.delay_ns,
            asked.iterations,
            wanted,
            as_json=asked.json,
            width=asked.width,
            out=sys.stdout,
            recorder=recorder,
            rules=files,
            catch=catch,
        )
    if ended and source.recorded is None:
        warn("offtop: what was watched has ended")
    return 0


def _escape_what_the_locale_has_not() -> None:
    """Names may have any letters."""
    out: object = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def written() -> Generator[None]:
    """What is printed in this block is out at its end, or raises OfftopError (BrokenPipeError: nobody reads on)."""
    if sys.__stdout__ is None:
        raise OfftopError("The output cannot be written (stdout is closed). Open it, as with: offtop -b >FILE")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries once more on its way out
        raise OfftopError(f"The output cannot be written ({error.strerror}). Make room, or write elsewhere") from error


def _screen(
    source: Source,
    view: "View",
    rules: categories.Categories,
    rule_files: "RuleFiles",
    loaded: "Loaded",
    kept: "keeping.Kept",
    keymap: Mapping[str, str],
    asked: argparse.Namespace,
    recorder: "Recorder | None",
    catch: "Catch | None" = None,
    held_ns: int | None = None,
) -> int:
    from offtop.ui import app
    from offtop.ui.kit import terminal

    settings = loaded.settings
    if settings.color == "always":
        os.environ.pop("NO_COLOR", None)
    colour = settings.color != "never" and not os.environ.get("NO_COLOR")
    theme = (settings.theme or terminal.theme()) if colour else "mono"
    return app.run(
        source,
        view,
        rules,
        theme=theme,
        ascii_only=settings.ascii or os.environ.get("TERM", "").startswith("linux"),
        colour=colour,
        history_ns=settings.history_ns,
        iterations=asked.iterations,
        keymap=keymap,
        files=replace(kept, theme=theme),
        mouse=settings.mouse,
        recorder=recorder,
        rules=rule_files,
        catch=catch,
        held_ns=held_ns,
    )


def _load_screen() -> None:
    """While bcc compiles on another CPU. What goes wrong here goes wrong again, and is told, where it is used."""
    with contextlib.suppress(ImportError):
        importlib.import_module("offtop.ui.app")


def _no_screen(asked: argparse.Namespace) -> str | None:
    """None where there is a screen; else why not: empty where text was asked for."""
    if asked.batch or asked.json or asked.folded:
        return ""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return "there is no terminal here"
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "TERM says that this terminal cannot show a screen"
    return None


def _say_that_it_is_text(why: str | None) -> None:
    """Where nobody asked for it, and once nothing is in its way."""
    if why:
        warn(f"offtop: {why}, so this is batch mode (-b)")


@contextlib.contextmanager
def _ended_by_signals() -> Generator[None]:
    """Have SIGTERM and SIGHUP end offtop as ctrl-C does, so that everything is closed on the way out.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    ending = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
