"""What `offtop export` writes: what was measured, in the forms that other programs open."""

import sys
from pathlib import Path

from offtop.errors import OfftopError, UsageError
from offtop.export import flamegraph, folded, pprof, speedscope, table
from offtop.export.profile import Profile, profile_of
from offtop.model.categories import Categories
from offtop.model.diagnoser import Diagnoser
from offtop.model.diagnosis import RuleSource
from offtop.model.filter import Filter
from offtop.model.history import Kept
from offtop.model.wake import gathers
from offtop.person import Person, write_theirs
from offtop.source import Source
from offtop.tick import passing
from offtop.whole import whole_of

FORMATS = {
    "folded": "a line a stack and its us, for flamegraph.pl, speedscope and scripts",
    "svg": "a flame graph in one file, for a browser",
    "speedscope": "for speedscope.app, or npx speedscope",
    "pprof": "gzipped, for go tool pprof, Pyroscope, Parca and Perfetto",
    "csv": "a row a stack of each thread",
}
ENDINGS = {"folded": "folded", "svg": "svg", "speedscope": "speedscope.json", "pprof": "pb.gz", "csv": "csv"}
"""Of files."""
_COMPARES = ("folded", "svg")
"""Those that can be against a baseline."""


def profile(
    source: Source,
    categories: Categories,
    rules: RuleSource,
    chosen: Filter,
    mode: str,
    idle: bool,
    delay_ns: int,
    iterations: int | None,
    end_ns: int = 0,
) -> Profile:
    """All that a source tells, up to there. Raises OfftopError where that is nothing, or not what `mode` asks for."""
    diagnoser = Diagnoser(source.names, rules)
    whole = whole_or_error(source, categories, diagnoser, delay_ns, iterations, end_ns)
    if not gathers(whole.facts.mode, mode):
        raise OfftopError(f"It was not gathered who ended the waits. Leave --mode out, or record with --mode {mode}")
    shares = passing(whole, chosen, diagnoser).shares
    return profile_of(whole.window, shares, source.names, source.host, mode, idle)


def whole_or_error(
    source: Source,
    categories: Categories,
    diagnoser: Diagnoser,
    delay_ns: int,
    iterations: int | None = None,
    end_ns: int = 0,
) -> Kept:
    """As whole_of; raises OfftopError where there is no tick."""
    whole = whole_of(source, categories, diagnoser, delay_ns, iterations, end_ns)
    if whole is None:
        raise OfftopError("There was no whole tick: what passes between two readings. Take a longer time")
    return whole


def write(form: str, one: Profile, baseline: Profile | None, path: str, title: str, whose: Person) -> None:
    """Into that file, or to stdout. Raises OfftopError, UsageError."""
    if baseline and form not in _COMPARES:
        raise UsageError(f"--baseline compares in {' and '.join(_COMPARES)} alone. Take one of these, or leave it out")
    content = in_form(form, one, title, baseline)
    if path:
        write_theirs(Path(path), whose, content)
    elif isinstance(content, str):
        sys.stdout.write(content)
    elif sys.stdout.isatty():
        raise UsageError(f"{form} is no text. Write it to a file: -o FILE")
    else:
        sys.stdout.buffer.write(content)


def in_form(form: str, one: Profile, title: str = "", baseline: Profile | None = None) -> str | bytes:
    """`form`: one of FORMATS."""
    match form:
        case "folded":
            return folded.text(one, baseline)
        case "svg":
            return flamegraph.svg(one, title, baseline)
        case "speedscope":
            return speedscope.text(one, title or f"offtop: {one.host}")
        case "pprof":
            return pprof.packed(one)
        case _:
            return table.text(one)
