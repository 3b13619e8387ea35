"""Print what `offtop rules` shows: the cause rules, and what each matches on this machine."""

from collections.abc import Iterable
from typing import TextIO

from offtop.feed.source import Source
from offtop.model.aggregate import location
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder, CauseShare
from offtop.model.windows.breakdown import ALL, Scope, by_site
from offtop.model.windows.history import HistoryTick
from offtop.printable import printable
from offtop.reports.whole import whole_of
from offtop.settings.rule_files import RuleFiles
from offtop.units import duration, threads

_MOST_UNKNOWN = 10
"""How many stacks that no rule matches are listed."""


def checked(files: RuleFiles) -> Iterable[str]:
    """Yield a line per rule file: how many rules it has, or that it has none."""
    by_file: dict[str, int] = {}
    for rule in files.rules.rules:
        file = rule.origin.partition(", rule ")[0]
        by_file[file] = by_file.get(file, 0) + 1
    for file, many in by_file.items():
        yield f"{many} rule{'s' * (many != 1)} of {file}"
    missing = [path for path in files.files if printable(str(path)) not in by_file]
    if missing:
        yield f"no rules in {' or '.join(printable(str(path)) for path in missing)}"


def write(
    source: Source, categories: Categories, files: RuleFiles, delay_ns: int, iterations: int | None, out: TextIO
) -> None:
    """Measure some ticks, and print what each rule matched.

    `iterations`: how many; None: until the source ends.
    """
    cause_finder = CauseFinder(source.names, files)
    whole = whole_of(source, categories, cause_finder, delay_ns, iterations)
    catalog = whole.window.catalog
    sites = by_site(whole.shares, Scope(ALL))
    matched = cause_finder.rules_of(sites, catalog, apart=True)
    out.write(f"what rules match in {duration(whole.span_ns)}, idle waits included:\n")
    out.write(f"{'WAITING':>8} {'%':>4}  {'RULE':<24} {'WAITS FOR':<34} MOSTLY\n")
    for one in matched:
        if one.rule:
            idle = {None: "", True: " (idle)", False: ""}[one.rule.idle]
            process = f"{printable(catalog.process(one.pid))}({one.pid})"
            out.write(f"{_numbers(one, whole)}  {one.rule.id:<24} {f'{one.rule.name}{idle}':<34} {process}\n")
    for one in matched:
        if not one.rule:
            out.write(f"{_numbers(one, whole)}  (no rule)\n")
    unknown = [(part[1], site) for site, part in sites.items() if cause_finder.is_unknown(site, catalog)]
    for ns, (kernel, user, _, pid) in sorted(unknown, reverse=True)[:_MOST_UNKNOWN]:
        words = printable(location.in_short(catalog, kernel, user, source.names))
        out.write(f"{threads(ns / whole.span_ns):>8}       {printable(catalog.process(pid))}({pid}): {words}\n")
    unmatched = len(files.rules.rules) - sum(one.rule is not None for one in matched)
    out.write(f"{unmatched} rules matched nothing.\n")


def _numbers(one: CauseShare, whole: HistoryTick) -> str:
    return f"{threads(one.total_ns / whole.span_ns):>8} {100 * one.share:>3.0f}%"
