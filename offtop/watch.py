"""From what was asked for to a source, and with it to the screen, to a batch of ticks, or to a file.

Batch modes never import Textual; bcc compiles in a child while the screen's own modules are loaded.
"""

import argparse
import contextlib
import importlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from offtop import aside, batch, options, paths
from offtop.errors import CaughtError, KernelError, OfftopError, PrivilegeError, UsageError
from offtop.export.folded import Style
from offtop.model import categories
from offtop.model.filter import NOTHING, Filter, FilterError, parse, quoted
from offtop.model.printable import printable
from offtop.model.rows import CHANGE
from offtop.model.snapshot import Filters
from offtop.model.wake import OFFCPU
from offtop.source import Recorded, Source
from offtop.units import NS_PER_S

if TYPE_CHECKING:  # not to be loaded for --help
    from offtop.catching import Catch
    from offtop.config import Loaded
    from offtop.export.profile import Profile
    from offtop.model.baseline import Baseline
    from offtop.model.outlier import Group
    from offtop.model.view import View
    from offtop.person import Person
    from offtop.recording.writer import Recorder
    from offtop.rules import RuleFiles

_GRACE_NS = 300 * NS_PER_S
_EXPORT_TICKS = 10
_RULES_TICKS = 5
_RECORD_NS, _RECORD_BYTES = 5 * NS_PER_S, 1 << 20
"""What is remembered of what goes into a file and nowhere else."""


def _load(asked: argparse.Namespace) -> "tuple[Loaded, Person]":
    """The settings of this run, and whose they are."""
    from offtop import config, person

    if getattr(asked, "within", None) and getattr(asked, "idle", False) is None:
        asked.idle = True  # who waits for a function calls none of its waits idle
    given = {one.name: value for one in config.SETTINGS if (value := getattr(asked, one.name, None)) is not None}
    whose = person.person()
    return config.load(given, getattr(asked, "config", None), whose, os.environ), whose


def show_config(asked: argparse.Namespace) -> int:
    from offtop import config

    loaded, _ = _load(asked)
    _check_theme(loaded)
    _keymap(loaded)
    with written():
        print(config.shown(loaded), end="")
    return 0


def live(asked: argparse.Namespace) -> int:
    """This machine, on the screen or in text."""
    no_screen = _no_screen(asked)
    if no_screen is not None and asked.rate and not asked.pid:
        raise UsageError("--rate in batch is about the processes that -p names. Give -p PID, too, or leave it out")
    rules, chosen, user = _choices(asked)
    loaded, whose = _load(asked)
    _check_theme(loaded)
    filters = _filters(asked, loaded)
    kept = _Kept(loaded, whose, asked)
    view = None if no_screen is not None else _view(loaded, filters, rules, chosen, user, asked)
    if asked.fail_on_trigger and loaded.settings.triggers == ("off",):
        raise UsageError("--fail-on-trigger with --trigger off cannot fail. Name what is to be caught")
    if view and asked.fail_on_trigger:
        raise UsageError("--fail-on-trigger is a check that ends by itself. Add -b or --json, and -n N")
    keymap: Mapping[str, str] = _keymap(loaded) if view else {}
    catch = _catch(loaded, rules, whose, asked.freeze)
    if view:
        kept = kept.checked()
        threading.Thread(target=_load_screen, daemon=True).start()
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(_rule_files(rules, loaded, whose))
        stack.enter_context(_ended_by_signals())
        baseline = _baseline(asked, rules, files, loaded)
        source = stack.enter_context(_live_source(rules, filters, asked, loaded))
        recorder = kept.recorder(source, asked.record) if asked.record else None
        if view:
            view = replace(view, baseline=baseline, diff=baseline is not None)
            return _screen(source, view, rules, files, loaded, kept, keymap, asked, recorder, catch)
        try:
            status = _batch(source, rules, files, loaded, _of_user(user, chosen), asked, recorder, baseline, catch)
            if catch.alarm.failure:
                aside.say(f"offtop: {catch.alarm.failure}")
            if asked.fail_on_trigger and catch.alarm.count:
                raise CaughtError(f"{catch.alarm.count:,} caught (--fail-on-trigger). See: offtop -b, or --json")
            return status
        finally:
            if recorder:
                aside.say(f"offtop: {recorder.close()}")


def recorded(asked: argparse.Namespace, path: Path) -> int:
    """A recording, on the screen or in text."""
    from offtop.recording.replay import RecordedSource

    no_screen = _no_screen(asked)
    rules, chosen, user = _choices(asked)
    loaded, whose = _load(asked)
    _check_theme(loaded)
    view = None if no_screen is not None else _view(loaded, Filters(), rules, chosen, user, asked)
    keymap: Mapping[str, str] = _keymap(loaded) if view else {}
    kept = _Kept(loaded, whose, asked)
    if view:
        kept = kept.checked()
    with (
        _rule_files(rules, loaded, whose) as files,
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
        return _batch(source, rules, files, loaded, _of_user(user, chosen), asked, None, baseline)


def _baseline(
    asked: argparse.Namespace, known: categories.Categories, files: "RuleFiles", loaded: "Loaded"
) -> "Baseline | None":
    """What --baseline names."""
    if asked.baseline is None:
        return None
    from offtop.model.diagnoser import Diagnoser
    from offtop.recording.replay import RecordedSource
    from offtop.whole import EVER_NS, baseline_in

    path = Path(asked.baseline)
    with contextlib.closing(RecordedSource(path, categories=known.ids, keep_ns=EVER_NS)) as source:
        diagnoser = Diagnoser(source.names, files)
        return baseline_in(source, path.name, known, diagnoser, loaded.settings.delay_ns)


def _first_outlier(source: Source, path: Path) -> "Group":
    """Raises OfftopError where there is none."""
    from offtop.model.outlier import groups

    found = groups(source.outliers())
    if not found:
        raise OfftopError(f"{printable(str(path))} has no outlier in it. Leave --at out, and press 5 or M")
    return found[0]


def _around(view: "View", group: "Group", rules: categories.Categories) -> "View":
    from offtop.model import view as views
    from offtop.model.outlierview import which

    one = group.worst
    category = one.category if one.category in rules.ids else views.ALL
    return views.around_outlier(view, which(group), one.wait.site.thread if one.wait else None, category)


def record(asked: argparse.Namespace) -> int:
    """This machine, into a file and nowhere else."""
    from offtop.model.diagnoser import Diagnoser
    from offtop.model.history import History
    from offtop.pace import Pace

    rules = _rules()
    loaded, whose = _load(asked)
    filters = _filters(asked, loaded)
    catch = _catch(loaded, rules, whose)
    with (
        _rule_files(rules, loaded, whose) as files,
        _ended_by_signals(),
        _live_source(rules, filters, asked, loaded) as source,
    ):
        recorder = _Kept(loaded, whose, asked).recorder(source, asked.output or "")
        diagnoser = Diagnoser(source.names, files)
        history = History(rules.idle, categories.is_periodic, _RECORD_NS, _RECORD_BYTES, verdicts=diagnoser.verdicts)
        pace = Pace(source, history, loaded.settings.delay_ns, judge=catch.judge)
        pace.recorder, pace.alarm = recorder, catch.alarm
        try:
            aside.say(f"offtop: recording to {printable(str(recorder.path))}; ctrl-C ends it")
            first_ns = 0
            for number, kept in enumerate(pace.ticks(), 1):
                first_ns = first_ns or kept.at_ns - kept.span_ns
                over = asked.duration is not None and kept.at_ns - first_ns >= asked.duration
                if over or number == asked.iterations or recorder.failure:
                    break
        except KeyboardInterrupt:
            aside.say("")  # behind the ^C
        finally:
            said = recorder.close()
            if not recorder.failure:
                aside.say(f"offtop: {said}")
        if recorder.failure:
            raise OfftopError(f"{recorder.failure}. What was written until then can be replayed")
    return 0


def report(asked: argparse.Namespace) -> int:
    """A recording on one page."""
    from offtop.recording import report as page

    rules = _rules()
    loaded, whose = _load(asked)
    with _rule_files(rules, loaded, whose) as files, written():
        page.write(Path(asked.file), rules, asked.width, sys.stdout, files)
    return 0


def _begin(text: str, recorded: Recorded, option: str = "--begin") -> int:
    from offtop.moment import moment

    began_ns, ended_ns = recorded.began_ns, recorded.ended_ns
    try:
        at_ns = moment(text, began_ns if text.strip().startswith("+") else ended_ns, ended_ns)
        if not began_ns - NS_PER_S < at_ns <= ended_ns + NS_PER_S:
            ends = [datetime.fromtimestamp(ns // NS_PER_S).strftime("%Y-%m-%dT%H:%M:%S") for ns in (began_ns, ended_ns)]
            raise UsageError(f"{option}: the recording is from {ends[0]} to {ends[1]}. Name a moment in it")
        return at_ns
    except ValueError:
        raise UsageError(
            f"{option}: '{printable(text)}' is no moment. Try 02:10:55, 2026-11-21T02:10, +5m, or -5m from the end"
        ) from None


def _rules() -> categories.Categories:
    return categories.parse(paths.categories().read_text(encoding="utf-8"))


def rules(asked: argparse.Namespace) -> int:
    """The rules that name what waits are for: checked, and what each matches."""
    from offtop import rulespage

    known = _rules()
    loaded, whose = _load(asked)
    with _rule_files(known, loaded, whose) as files, written():
        print("\n".join(rulespage.checked(files)), flush=True)
        if asked.check:
            return 0
        settings = loaded.settings
        if asked.file:
            from offtop.recording.replay import RecordedSource
            from offtop.whole import EVER_NS

            file = RecordedSource(Path(asked.file), categories=known.ids, keep_ns=EVER_NS)
            with contextlib.closing(file) as recording:
                rulespage.write(recording, known, files, settings.delay_ns, asked.iterations, sys.stdout)
            return 0
        filters = _filters(asked, loaded)
        with _ended_by_signals(), _live_source(known, filters, asked, loaded) as source:
            rulespage.write(source, known, files, settings.delay_ns, asked.iterations or _RULES_TICKS, sys.stdout)
    return 0


def export(asked: argparse.Namespace) -> int:
    """A recording, or this machine for a while, in a form that other programs open."""
    from offtop import takeaway
    from offtop.recording.replay import RecordedSource
    from offtop.whole import EVER_NS

    known = _rules()
    chosen = _of_waits(asked.filter, known)
    if not asked.file and (asked.begin or asked.end):
        raise UsageError("--begin and --end are moments of a recording. Name one, or leave them out")
    chosen = _of_user(asked.user or "", chosen)
    loaded, whose = _load(asked)
    settings = loaded.settings
    mode = asked.mode or (OFFCPU if asked.file else settings.mode)

    style = Style(asked.delimiter, asked.per)
    if asked.format == takeaway.TIMELINE and not asked.file:
        raise UsageError("perfetto is of what was caught in a recording. Name one: offtop record makes it")
    if asked.format == takeaway.TIMELINE and chosen.chooses_waits:
        raise UsageError("perfetto has all that was caught. Leave --filter and -u out, or choose by --begin and --end")
    takeaway.check(asked.format, asked.baseline is not None, asked.output or "", style)
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
        filters, keep_ns = _filters(asked, loaded), (ticks or 0) * settings.delay_ns
        with _ended_by_signals(), _live_source(known, filters, asked, loaded, keep_ns) as source:
            yield source, 0

    ticks: int | None = asked.iterations or (None if asked.file else _EXPORT_TICKS)
    with _rule_files(known, loaded, whose) as files, written():

        def whole(source: Source, ticks: int | None = None, end_ns: int = 0) -> "Profile":
            idle, delay_ns = settings.idle, settings.delay_ns
            return takeaway.profile(source, known, files, chosen, mode, idle, delay_ns, ticks, end_ns)

        baseline, out = None, asked.output or ""
        if asked.baseline:
            with of_file(asked.baseline) as (source, _):
                baseline = whole(source)
        with of_file(asked.file, asked.begin, asked.end) if asked.file else of_now() as (source, end_ns):
            if asked.format == takeaway.TIMELINE:
                begin_ns = _begin(asked.begin, source.recorded) if asked.begin and source.recorded else 0
                takeaway.write_timeline(source, begin_ns, end_ns, out, whose)
                return 0
            if asked.format == takeaway.LINES:
                delay_ns = settings.delay_ns
                takeaway.write_lines(source, known, files, chosen, delay_ns, ticks, end_ns, out, whose)
                return 0
            made = whole(source, ticks, end_ns)
        takeaway.write(asked.format, made, baseline, out, asked.title, whose, style)
    return 0


def diff(asked: argparse.Namespace) -> int:
    """What changed between two recordings."""
    from offtop import diffpage
    from offtop.recording.replay import RecordedSource
    from offtop.whole import EVER_NS

    known = _rules()
    chosen = _of_user(asked.user or "", _of_waits(asked.filter, known))
    loaded, whose = _load(asked)

    with _rule_files(known, loaded, whose) as files, written():

        def of_file(name: str) -> diffpage.Compared:
            with contextlib.closing(RecordedSource(Path(name), categories=known.ids, keep_ns=EVER_NS)) as source:
                idle, delay_ns = bool(asked.idle), loaded.settings.delay_ns
                return diffpage.compared(source, Path(name).name, known, files, chosen, idle, delay_ns)

        before, after = of_file(asked.before), of_file(asked.after)
        _escape_what_the_locale_has_not()
        diffpage.write(before, after, sys.stdout, asked.json, asked.width)
    return 0


def _of_waits(text: str, known: categories.Categories) -> Filter:
    """Raises UsageError for a filter that chooses rows."""
    chosen = _filter(text, known, "--filter")
    if chosen.chooses_rows:
        raise UsageError("--filter: rows of a table are chosen by their numbers, and there is none. Leave them out")
    return chosen


@contextlib.contextmanager
def _rule_files(rules: categories.Categories, loaded: "Loaded", whose: "Person") -> "Generator[RuleFiles]":
    """Those by which waits are told what they are for, looked at again while they change."""
    from offtop.rules import NAME, RuleFiles

    files = RuleFiles(loaded.path.with_name(NAME), whose, rules.ids)
    files.watch()
    try:
        yield files
    finally:
        files.close()


def _choices(asked: argparse.Namespace) -> tuple[categories.Categories, Filter, str]:
    """The rules, the filter, and the user whose processes are shown."""
    rules = _rules()
    chosen, user = _filter(asked.filter, rules, "--filter"), asked.user or ""
    if (asked.json or asked.folded) and chosen.chooses_rows:
        bound = chosen.rows[0]
        raise UsageError(
            f"--filter: {bound.key}{bound.operator} chooses rows of a table, and "
            + ("--json has none. Leave it out, and choose with jq" if asked.json else "--folded has none. Leave it out")
        )
    if asked.folded and asked.baseline is not None:
        raise UsageError("--folded compares with nothing. Take: offtop export folded FILE --baseline FILE")
    if asked.sort is not None and asked.sort.lstrip("-").upper() == CHANGE and asked.baseline is None:
        raise UsageError("--sort CHANGE is by what changed since --baseline FILE. Name one, or sort by another field")
    if (asked.delimiter or asked.per) and not asked.folded:
        raise UsageError("--delimiter and --per are of folded stacks. Add --folded, or leave them out")
    if asked.json and asked.rate:
        raise UsageError("--rate checks a budget in words, and --json has none. Leave it out")
    return rules, chosen, user


def _catch(loaded: "Loaded", rules: categories.Categories, whose: "Person", freeze: bool = False) -> "Catch":
    from offtop.catching import Alarm, Catch

    settings = loaded.settings
    said = loaded.origin["trigger"]
    where = "--trigger" if said == "command line" else f"{said}: trigger"
    alarm = Alarm(settings.on_trigger, whose)
    return Catch(settings.triggers, rules, settings.min_ns, where, alarm, freeze, settings.bell)


def _filters(asked: argparse.Namespace, loaded: "Loaded") -> Filters:
    settings = loaded.settings
    if asked.max and asked.max < settings.min_ns:
        raise UsageError("--max is below --min, so no wait would be shown. Give a larger --max or a smaller --min")
    cgroup = ""
    if asked.cgroup is not None:
        from offtop.kernel import whichcgroup

        cgroup = whichcgroup.find(asked.cgroup).path
    return Filters(
        pids=_pids(asked.pid),
        tids=asked.tid,
        who=asked.who or "all",
        states=asked.state,
        min_ns=settings.min_ns,
        max_ns=asked.max,
        cgroup=cgroup,
        within=_within(asked),
    )


def _within(asked: argparse.Namespace) -> str:
    if asked.within is None:
        return ""
    if getattr(asked, "rate", None):
        raise UsageError("--rate is about whole seconds of threads, and --within counts parts of them. Leave one out")
    from offtop.kernel import within

    within.parted(asked.within)
    return asked.within


def _pids(asked: tuple[int | tuple[str, int], ...]) -> tuple[int, ...]:
    """As they are seen here. Raises UsageError for one of a container, or in it, that is not there."""
    named = [one for one in asked if not isinstance(one, int)]
    if not named:
        return tuple(one for one in asked if isinstance(one, int))
    from offtop.kernel import namespace

    return tuple(sorted({one if isinstance(one, int) else namespace.pid_in(*one) for one in asked}))


@contextlib.contextmanager
def _live_source(
    rules: categories.Categories,
    filters: Filters,
    asked: argparse.Namespace,
    loaded: "Loaded",
    least_keep_ns: int = 0,
) -> Generator[Source]:
    """`least_keep_ns`: how long it is to keep what it names, at least."""
    keep_ns = max(loaded.settings.history_ns, least_keep_ns) + _GRACE_NS
    wanted, refused = loaded.settings.source, None
    source: Source | None = None
    if wanted == "proc" and asked.door != "auto":
        raise UsageError("--door is BPF's: sampling /proc needs none. Leave it out, or add --source bpf")
    if wanted != "proc":
        try:
            source = _traced(rules, filters, asked, loaded, keep_ns)
        except (PrivilegeError, KernelError) as error:
            if wanted == "bpf" or asked.door != "auto":
                raise
            refused = error
    source = source or _sampled(rules, filters, asked, loaded, keep_ns, refused)
    if source.notice:
        aside.say(f"offtop: {source.notice}")
        if idle := options.for_tracing(asked):
            aside.say(f"offtop: without BPF this does nothing: {', '.join(idle)}")
    try:
        yield source
    finally:
        source.close()


def _traced(
    rules: categories.Categories, filters: Filters, asked: argparse.Namespace, loaded: "Loaded", keep_ns: int
) -> Source:
    from offtop.kernel.live import LiveSource
    from offtop.kernel.program import Unwind

    return LiveSource(
        rules,
        filters,
        door=asked.door,
        unwind=Unwind(asked.unwind, asked.unwind_bytes >> 10, asked.cpu_budget),
        keep_ns=keep_ns,
        mode=loaded.settings.mode,
        depth=asked.depth,
        debuginfod=_servers(loaded.settings.debuginfod),
    )


def _sampled(
    rules: categories.Categories,
    filters: Filters,
    asked: argparse.Namespace,
    loaded: "Loaded",
    keep_ns: int,
    refused: OfftopError | None,
) -> Source:
    """`refused`: why there is no BPF. It is raised, too, where what was asked for needs that."""
    from offtop.kernel.procsource import NeedsBpfError, ProcSource

    try:
        return ProcSource(rules, filters, asked.cpu_budget, keep_ns, loaded.settings.mode, refused)
    except (NeedsBpfError, KernelError) as error:
        raise refused or error from error


def _servers(said: str) -> Sequence[str]:
    """Raises UsageError where none is known."""
    if not said:
        return ()
    from offtop.kernel import debuginfod

    return debuginfod.servers(said, os.environ)


def _filter(text: str, rules: categories.Categories, where: str) -> Filter:
    """Raises UsageError, which says where it stands."""
    try:
        chosen = parse(text, rules.groups, rules.ids)
    except FilterError as wrong:
        raise UsageError(f"{where}: {wrong}") from None
    return chosen if chosen.chooses_waits or chosen.chooses_rows else NOTHING


def _of_user(user: str, chosen: Filter) -> Filter:
    """Those waits and rows of a user alone."""
    if not user:
        return chosen
    theirs = parse(f"user={quoted(user)}")
    return Filter(f"{theirs.text} {chosen.text}".rstrip(), (*theirs.waits, *chosen.waits), chosen.rows)


def _check_theme(loaded: "Loaded") -> None:
    theme, where = loaded.settings.theme, loaded.origin["theme"]
    if theme and not (paths.themes() / f"{theme}.toml").is_file():
        names = ", ".join(sorted(path.stem for path in paths.themes().glob("*.toml")))
        said = f"There is no theme '{theme}'" if where == "command line" else f"{where}: there is no theme '{theme}'"
        raise UsageError(f"{said}. Take one of: {names}")


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
        aside.say("offtop: what was watched has ended")
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


def _view(
    loaded: "Loaded",
    filters: Filters,
    rules: categories.Categories,
    chosen: Filter,
    user: str,
    asked: argparse.Namespace,
) -> "View":
    """What the screen begins with."""
    from offtop.model.steps import Shape
    from offtop.model.view import CATEGORIES, STUCK, TreeView, View

    settings = loaded.settings
    return View(
        filters=filters,
        delay_ns=settings.delay_ns,
        mode=settings.mode,
        depth=asked.depth,
        tree=TreeView(Shape(mode=settings.mode)),
        span_ns=settings.span_ns,
        threads=settings.threads,
        idle_shown=settings.idle,
        sort=settings.sort,
        reverse=settings.reverse,
        names=settings.names,
        latency=settings.latency,
        hidden=settings.hidden,
        muted=tuple(_mute(text, rules, f"{loaded.origin['muted']}: muted") for text in settings.muted),
        filter=chosen,
        user=user,
        focus=STUCK if asked.stuck else CATEGORIES,
        rate=asked.rate,
    )


def _keymap(loaded: "Loaded") -> Mapping[str, str]:
    """Action → keys, where they are others. Raises UsageError before anything is attached."""
    settings = loaded.settings
    if settings.preset == "top" and not settings.keys:
        return {}
    from offtop.ui import keys

    try:
        return keys.keymap(settings.preset, settings.keys)
    except UsageError as wrong:
        raise UsageError(f"{loaded.path}: {wrong}") from None


def _mute(text: str, rules: categories.Categories, where: str) -> Filter:
    mute = _filter(text, rules, where)
    if mute.chooses_rows or not mute.chooses_waits:
        what = "rows" if mute.chooses_rows else "nothing"
        raise UsageError(
            f"{where}: '{printable(text)}' chooses {what}, and waits are muted. Try comm=mysql* or cat=poll"
        )
    return mute


def _screen(
    source: Source,
    view: "View",
    rules: categories.Categories,
    rule_files: "RuleFiles",
    loaded: "Loaded",
    kept: "_Kept",
    keymap: Mapping[str, str],
    asked: argparse.Namespace,
    recorder: "Recorder | None",
    catch: "Catch | None" = None,
    held_ns: int | None = None,
) -> int:
    from offtop.ui import app, terminal

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


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a person keeps from the screen, in files of theirs. Implements ui.app.Files."""

    loaded: "Loaded"
    whose: "Person"
    asked: argparse.Namespace
    theme: str = ""
    """The one that the screen began with."""
    snapshots: Path | None = None
    """Where they go; None: nobody said."""

    def checked(self) -> "_Kept":
        """Raises UsageError for a place where the person cannot write."""
        from offtop import snapshotfile

        return replace(self, snapshots=snapshotfile.named(self.loaded.settings.snapshot_dir, self.whose))

    def keep(self, view: "View", theme: str, mouse: bool) -> str:
        from offtop import config

        before = self.loaded.settings
        settings = replace(
            before,
            theme=before.theme if theme == self.theme else theme,
            mouse=mouse,
            delay_ns=view.delay_ns,
            span_ns=view.span_ns,
            min_ns=view.filters.min_ns,
            idle=view.idle_shown,
            threads=view.threads,
            mode=view.mode,
            sort=view.sort,
            reverse=view.reverse,
            names=view.names,
            latency=view.latency,
            hidden=view.hidden,
            muted=tuple(one.text for one in view.muted),
            triggers=view.triggers or before.triggers,
        )
        said = config.toml_of(settings)
        for once in ("debuginfod", "on_trigger"):  # who asks for a network, or a command, once has not asked for ever
            if self.loaded.origin[once] == "command line":
                del said[once]
        return config.save(self.loaded.path, self.whose, said)

    def write(self, path: Path, text: str | bytes) -> str:
        from offtop.person import write_theirs

        write_theirs(path, self.whose, text)
        return f"written to {printable(str(path))}"

    def recorder(self, source: Source, file: str = "") -> "Recorder":
        from offtop.recording import writer

        asked = self.asked
        host = re.sub(r"[^A-Za-z0-9.-]", "_", source.host)
        return writer.Recorder(
            Path(file or f"offtop-{host}-{datetime.now():%Y%m%dT%H%M%S}.offtop"),
            source,
            self.whose,
            keep_ns=getattr(asked, "keep", None) or writer.KEEP_NS,
            most_bytes=getattr(asked, "max_size", None) or writer.MOST_BYTES,
            cmdlines=getattr(asked, "cmdlines", False),
        )

    def snapshot(self, source: Source, what: str, taken_ns: int) -> "Recorder":
        from offtop import snapshotfile

        cmdlines = getattr(self.asked, "cmdlines", False)
        return snapshotfile.begin(source, self.whose, self.snapshots, what, taken_ns, cmdlines=cmdlines)


def _load_screen() -> None:
    """While bcc compiles on another CPU. What goes wrong here goes wrong again, and is told, where it is used."""
    with contextlib.suppress(ImportError):
        importlib.import_module("offtop.ui.app")


def _no_screen(asked: argparse.Namespace) -> str | None:
    """None where there is a screen; else why not, which is told where nobody asked for text."""
    if asked.batch or asked.json or asked.folded:
        return ""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        why = "there is no terminal here"
    elif os.environ.get("TERM", "dumb") in ("", "dumb"):
        why = "TERM says that this terminal cannot show a screen"
    else:
        return None
    aside.say(f"offtop: {why}, so this is batch mode (-b)")
    return why


@contextlib.contextmanager
def _ended_by_signals() -> Generator[None]:
    """SIGTERM and SIGHUP end offtop as ctrl-C does: everything is closed on the way out."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
