"""What was asked for on the command line and in the config file, as the rest of offtop takes it: settings, rules,
filters, triggers, and what the screen begins with.
"""

import argparse
import contextlib
import os
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

from offtop import paths
from offtop.errors import UsageError
from offtop.model.aggregate.filter import NOTHING, Filter, FilterError, parse, quoted
from offtop.model.aggregate.rows import CHANGE
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters
from offtop.printable import printable

if TYPE_CHECKING:  # not to be loaded for --help
    from offtop.feed.outlier_actions import Catch
    from offtop.model.viewmodel.view import View
    from offtop.person import Person
    from offtop.settings.config import Loaded
    from offtop.settings.rule_files import RuleFiles


def load(asked: argparse.Namespace) -> "tuple[Loaded, Person]":
    """The settings of this run, and whose they are."""
    from offtop import person
    from offtop.settings import config

    if getattr(asked, "within", None) and getattr(asked, "idle", False) is None:
        asked.idle = True  # who waits for a function calls none of its waits idle
    given = {one.name: value for one in config.SETTINGS if (value := getattr(asked, one.name, None)) is not None}
    whose = person.person()
    return config.load(given, getattr(asked, "config", None), whose, os.environ), whose


def packaged() -> categories.Categories:
    return categories.parse(paths.categories().read_text(encoding="utf-8"))


@contextlib.contextmanager
def rule_files(rules: categories.Categories, loaded: "Loaded", whose: "Person") -> "Generator[RuleFiles]":
    """Those by which waits are told what they are for, looked at again while they change."""
    from offtop.settings.rule_files import NAME, RuleFiles

    files = RuleFiles(loaded.path.with_name(NAME), whose, rules.ids)
    files.watch()
    try:
        yield files
    finally:
        files.close()


def chosen(asked: argparse.Namespace) -> tuple[categories.Categories, Filter, str]:
    """The rules, the filter, and the user whose processes are shown."""
    rules = packaged()
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


def catch(loaded: "Loaded", rules: categories.Categories, whose: "Person", freeze: bool = False) -> "Catch":
    from offtop.feed.outlier_actions import Alarm, Catch

    settings = loaded.settings
    said = loaded.origin["trigger"]
    where = "--trigger" if said == "command line" else f"{said}: trigger"
    alarm = Alarm(settings.on_trigger, whose)
    return Catch(settings.triggers, rules, settings.min_ns, where, alarm, freeze, settings.bell)


def of_waits(text: str, known: categories.Categories) -> Filter:
    """Raises UsageError for a filter that chooses rows."""
    chosen = _filter(text, known, "--filter")
    if chosen.chooses_rows:
        raise UsageError("--filter: rows of a table are chosen by their numbers, and there is none. Leave them out")
    return chosen


def _filter(text: str, rules: categories.Categories, where: str) -> Filter:
    """Raises UsageError, which says where it stands."""
    try:
        chosen = parse(text, rules.groups, rules.ids)
    except FilterError as wrong:
        raise UsageError(f"{where}: {wrong}") from None
    return chosen if chosen.chooses_waits or chosen.chooses_rows else NOTHING


def of_user(user: str, chosen: Filter) -> Filter:
    """Those waits and rows of a user alone."""
    if not user:
        return chosen
    theirs = parse(f"user={quoted(user)}")
    return Filter(f"{theirs.text} {chosen.text}".rstrip(), (*theirs.waits, *chosen.waits), chosen.rows)


def check_theme(loaded: "Loaded") -> None:
    theme, where = loaded.settings.theme, loaded.origin["theme"]
    if theme and theme not in (names := paths.theme_names()):
        said = f"There is no theme '{theme}'" if where == "command line" else f"{where}: there is no theme '{theme}'"
        raise UsageError(f"{said}. Take one of: {', '.join(names)}")


def view(
    loaded: "Loaded",
    filters: Filters,
    rules: categories.Categories,
    chosen: Filter,
    user: str,
    asked: argparse.Namespace,
) -> "View":
    """What the screen begins with."""
    from offtop.model.aggregate.steps import Shape
    from offtop.model.viewmodel.view import CATEGORIES, STUCK, TreeView, View

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


def keymap(loaded: "Loaded") -> Mapping[str, str]:
    """Action → keys, where they are others. Raises UsageError before anything is attached."""
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
            f"{where}: '{printable(text)}' chooses {what}, and waits are muted. Try comm=mysql* or cat=poll"
        )
    return mute
