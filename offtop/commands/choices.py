"""Turn command line and config file into what the rest of offtop needs.

That is: settings, rules, filters, triggers, and the first view of the screen.
"""

import argparse
import contextlib
import os
from collections.abc import Collection, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from offtop import paths
from offtop.errors import UsageError
from offtop.model.aggregate.filter import NOTHING, Filter
from offtop.model.aggregate.filter_syntax import FilterError, parse, quoted
from offtop.model.aggregate.rows import CHANGE
from offtop.model.classify import categories
from offtop.model.classify import suspect_weights as weights_file
from offtop.model.values.disks import LIST_MODES
from offtop.model.values.snapshot import Filters
from offtop.printable import printable

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.feed.outlier_actions import OutlierActions
    from offtop.model.viewmodel.view import View
    from offtop.person import Person
    from offtop.settings.config import Loaded
    from offtop.settings.rule_files import RuleFiles


def load(args: argparse.Namespace) -> "tuple[Loaded, Person]":
    """Return the settings of this run, and the user they belong to."""
    from offtop import person
    from offtop.settings import config

    if getattr(args, "within", None) and getattr(args, "idle", False) is None:
        args.idle = True  # every wait inside the measured function matters
    given = {one.name: value for one in config.SETTINGS if (value := getattr(args, one.name, None)) is not None}
    owner = person.person()
    return config.load(given, getattr(args, "config", None), owner, os.environ), owner


def category_rules() -> categories.Categories:
    """Return the category rules that come with offtop."""
    return categories.parse(paths.categories().read_text(encoding="utf-8"))


def suspect_weights() -> weights_file.Weights:
    """Return the weights of suspects that come with offtop."""
    return weights_file.parse(paths.suspects().read_text(encoding="utf-8"))


@contextlib.contextmanager
def rule_files(rules: categories.Categories, loaded: "Loaded", owner: "Person") -> "Generator[RuleFiles]":
    """Load the cause rules, and reload them when their files change, until the block ends."""
    from offtop.settings.rule_files import NAME, RuleFiles

    files = RuleFiles(loaded.path.with_name(NAME), owner, rules.ids)
    files.watch()
    try:
        yield files
    finally:
        files.close()


def checked_filter(args: argparse.Namespace) -> tuple[categories.Categories, Filter, str]:
    """Return the category rules, the filter, and the user whose processes to show.

    Raises UsageError for options that exclude each other.
    """
    rules = category_rules()
    parsed, user = _filter(args.filter, rules, "--filter"), args.user or ""
    if (args.json or args.folded) and parsed.chooses_rows:
        bound = parsed.rows[0]
        raise UsageError(
            f"--filter: {bound.key}{bound.operator} selects rows of a table, and "
            + ("--json has none. Omit it, and use jq" if args.json else "--folded has none. Omit it")
        )
    if args.folded and args.baseline is not None:
        raise UsageError("--folded cannot compare with a baseline. Use: offtop export folded FILE --baseline FILE")
    if args.sort is not None and args.sort.lstrip("-").upper() == CHANGE and args.baseline is None:
        raise UsageError("--sort CHANGE needs --baseline FILE. Add it, or sort by another field")
    if (args.delimiter or args.per) and not args.folded:
        raise UsageError("--delimiter and --per are for folded stacks. Add --folded, or omit them")
    if args.json and args.rate:
        raise UsageError("--rate prints a budget as text, which --json does not have. Omit it")
    return rules, parsed, user


def outlier_actions(
    loaded: "Loaded", rules: categories.Categories, owner: "Person", freeze: bool = False
) -> "OutlierActions":
    from offtop.feed.outlier_actions import Alarm, OutlierActions

    settings = loaded.settings
    origin = loaded.origin["trigger"]
    where = "--trigger" if origin == "command line" else f"{origin}: trigger"
    alarm = Alarm(settings.on_trigger, owner)
    return OutlierActions(settings.triggers, rules, settings.min_ns, where, alarm, freeze, settings.bell)


def export_filter(text: str, known: categories.Categories, has_rows: bool) -> Filter:
    """Parse a filter of waits, or with `has_rows` of rows, too. Raises UsageError."""
    return _filter(text, known, "--filter") if has_rows else wait_filter(text, known)


def wait_filter(text: str, known: categories.Categories) -> Filter:
    """Parse a filter of waits. Raises UsageError for one that selects rows."""
    chosen = _filter(text, known, "--filter")
    if chosen.chooses_rows:
        raise UsageError("--filter: conditions such as max>10ms select rows of a table, and there is none. Omit them")
    return chosen


def _filter(text: str, rules: categories.Categories, where: str) -> Filter:
    """Parse a filter. Raises UsageError, which begins with `where`."""
    try:
        chosen = parse(text, rules.groups, rules.ids)
    except FilterError as wrong:
        raise UsageError(f"{where}: {wrong}") from None
    return chosen if chosen.chooses_waits or chosen.chooses_rows or chosen.lists else NOTHING


def with_user(user: str, chosen: Filter) -> Filter:
    """Restrict a filter to the processes of a user; empty: all users."""
    if not user:
        return chosen
    user_filter = parse(f"user={quoted(user)}")
    text = f"{user_filter.text} {chosen.text}".rstrip()
    return replace(chosen, text=text, waits=(*user_filter.waits, *chosen.waits))


def check_theme(loaded: "Loaded") -> None:
    theme, where = loaded.settings.theme, loaded.origin["theme"]
    if theme and theme not in (names := paths.theme_names()):
        error = f"There is no theme '{theme}'" if where == "command line" else f"{where}: there is no theme '{theme}'"
        raise UsageError(f"{error}. Use one of: {', '.join(names)}")


def first_view(
    loaded: "Loaded",
    filters: Filters,
    rules: categories.Categories,
    chosen: Filter,
    user: str,
    args: argparse.Namespace,
    *,
    lists: Collection[str] = LIST_MODES,
) -> "View":
    """Return the first view of the screen. `lists`: those of LIST_MODES whose list can be shown."""
    from offtop.model.aggregate.disk_rows import DISK_SORTS
    from offtop.model.aggregate.file_rows import FILE_SORTS
    from offtop.model.aggregate.steps import Shape
    from offtop.model.viewmodel.view import CATEGORIES, MODE_OF_LIST, STUCK, DisksView, FilesView, TreeView, View

    settings = loaded.settings
    pane_of_mode = {mode: pane for pane, mode in MODE_OF_LIST.items() if mode in lists}
    return View(
        filters=filters,
        delay_ns=settings.delay_ns,
        mode=settings.wait_mode,
        depth=args.depth,
        tree=TreeView(Shape(mode=settings.wait_mode)),
        span_ns=settings.span_ns,
        threads=settings.threads,
        programs=settings.programs,
        idle_shown=settings.idle,
        sort=settings.sort,
        reverse=settings.reverse,
        files=FilesView(sort=FILE_SORTS.column_for(settings.sort), reverse=settings.reverse),
        disks=DisksView(
            sort=DISK_SORTS.column_for(settings.sort), reverse=settings.reverse, by_thread=settings.threads
        ),
        names=settings.names,
        latency=settings.latency,
        hidden=settings.hidden,
        muted=tuple(_mute(text, rules, f"{loaded.origin['muted']}: muted") for text in settings.muted),
        filter=chosen,
        user=user,
        focus=STUCK if args.stuck else pane_of_mode.get(settings.mode, CATEGORIES),
        rate=args.rate,
    )


def keymap(loaded: "Loaded") -> Mapping[str, str]:
    """Return action → keys where they differ from the defaults. Raises UsageError."""
    settings = loaded.settings
    if settings.preset == "top" and not settings.keys:
        return {}
    from offtop.ui.kit import keys

    try:
        return keys.keymap(settings.preset, settings.keys)
    except UsageError as wrong:
        raise UsageError(f"{loaded.path}: {wrong}") from None


def _mute(text: str, rules: categories.Categories, where: str) -> Filter:
    mute = _filter(text, rules, where)
    if mute.chooses_rows or not mute.chooses_waits:
        what = "rows" if mute.chooses_rows else "nothing"
        raise UsageError(
            f"{where}: '{printable(text)}' selects {what}, but only waits can be muted. Try comm=mysql* or cat=poll"
        )
    return mute
