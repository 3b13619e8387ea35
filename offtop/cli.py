"""Arguments → a Source → the screen, or a batch of ticks.

`--help`, `--version` and `--batch` never import Textual; bcc compiles in a child while the screen's own
modules are loaded. What may also stand in the config file has no default here: config knows it, and checks it.
"""

import argparse
import contextlib
import importlib
import io
import json
import locale
import os
import pwd
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from offtop import __version__, batch, paths
from offtop.errors import OfftopError, UsageError
from offtop.model import categories
from offtop.model.filter import NOTHING, Filter, FilterError, parse, quoted
from offtop.model.printable import printable
from offtop.model.snapshot import Filters
from offtop.source import Source
from offtop.units import NS_PER_S, parse_duration

if TYPE_CHECKING:  # not to be loaded for --help
    from offtop.config import Loaded
    from offtop.model.view import View
    from offtop.person import Person

_STATES = {
    "running": 1 << 31,
    "interruptible": 0x1,
    "uninterruptible": 0x2,
    "stopped": 0x4,
    "traced": 0x8,
    "parked": 0x40,
    "idle": 0x402,
}
"""--state's words and the kernel's bits (include/linux/sched.h); running is our own: it left involuntarily."""
_NS_PER_US = 1000
_GRACE_NS = 300 * NS_PER_S
_MOST_IDS = 1024
"""As many as the kernel side has room for (only_pids in bpf/offcpu.c)."""

T = TypeVar("T")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See: {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run offtop and exit: 0, or the status of the error, 130 for ctrl-C, 143 and 129 for SIGTERM and SIGHUP."""
    try:
        out: object = sys.stdout
        if out is None:
            raise OfftopError("There is no standard output. Leave it open, or send it somewhere: offtop -b >FILE")
        status = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except OfftopError as error:
        print(f"offtop: {error}", file=sys.stderr)
        status = error.status
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BrokenPipeError:
        status = 0  # as `offtop -b | head` means it
        _drop_output()
    except OSError as error:
        print(f"offtop: {_refused(error)}", file=sys.stderr)
        status = OfftopError.status
        _drop_output()
    sys.exit(status)


def _refused(error: OSError) -> str:
    if error.filename is not None:
        return f"{printable(str(error.filename))}: {error.strerror}. See what is missing: sudo offtop doctor"
    return f"The output cannot be written ({error.strerror}). Make room, or write elsewhere"


def _drop_output() -> None:
    """Or Python tries to write once more on its way out, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(arguments: Sequence[str]) -> int:
    with contextlib.suppress(locale.Error):  # ssh carries over locales that are not installed here
        locale.setlocale(locale.LC_CTYPE, "")
    if arguments[:1] == ["doctor"]:
        return _doctor(arguments[1:])
    if arguments[:1] == ["schema"]:
        return _schema(arguments[1:])
    asked = _parser().parse_args(_reversals_joined(arguments))
    if asked.show_config:
        return _show_config(asked)
    return _watch(asked, "" if asked.batch or asked.json else _no_screen())


def _reversals_joined(arguments: Sequence[str]) -> Sequence[str]:
    """`-o -MAX` as `-o-MAX`: argparse takes -MAX for an option of its own."""
    joined: list[str] = []
    for argument in arguments:
        before = joined[-1] if joined else ""
        if argument[:1] == "-" and (before == "--sort" or re.fullmatch("-[bHi]*o", before)):
            joined[-1] += f"={argument}" if before == "--sort" else argument
        else:
            joined.append(argument)
    return joined


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="offtop",
        description="top for waiting: where every thread's time goes while it is not running",
        epilog="commands: 'offtop doctor' checks this machine, 'offtop schema' describes --json",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-b", "--batch", action="store_true", help="text tables on stdout, as top -b (also where there is no terminal)")
    add("-n", "--iterations", type=_count, metavar="N", help="stop after N ticks")
    add("-d", "--delay", type=_setting("delay"), metavar="S", help="seconds between two ticks (default 1)")
    add("-w", "--width", type=_count, default=0, metavar="N", help="batch: cut lines at N columns")
    add("--json", action="store_true", help="one JSON object a tick (see: offtop schema)")
    add("-p", "--pid", type=_ids, default=(), metavar="PID,…", help="only these processes")
    add("-t", "--tid", type=_ids, default=(), metavar="TID,…", help="only these threads")
    add("-u", "--user", type=_user, metavar="NAME", help="show only this user's processes (name or id)")
    add("--filter", default="", metavar="EXPR", help="show only waits and rows that pass, as 'comm=mysql* max>10ms'")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--user-threads", dest="who", action="store_const", const="user", help="only user threads")
    who.add_argument("--kernel-threads", dest="who", action="store_const", const="kernel", help="only kernel threads")
    add(
        "--state",
        type=_state,
        default=0,
        metavar="STATE,…",
        help=f"only waits that begin so: {', '.join(_STATES)}, or a mask",
    )
    add(
        "--min",
        type=_setting("min"),
        metavar="TIME",
        help="take stacks of waits from here up (default 1ms; bare: us)",
    )
    add("--max", type=_wait, default=0, metavar="TIME", help="leave out waits longer than this")
    add("-H", "--threads", action="store_true", default=None, help="begin with threads instead of processes")
    add("-i", "--idle", action="store_true", default=None, help="begin with idle-looking waits shown")
    add(
        "-o",
        "--sort",
        type=_setting("sort"),
        metavar="FIELD",
        help="sort by WAITING, MAX, TOTAL, EV/S, NAME or PID; -FIELD the other way round",
    )
    add("--window", type=_setting("window"), metavar="SPAN", help="screen: numbers over 1s, 10s, 60s, or start")
    add(
        "--door",
        choices=("auto", "exit", "kprobe", "switch"),
        default="auto",
        help="how to notice that a thread is back",
    )
    add(
        "--history",
        type=_setting("history"),
        metavar="TIME",
        help="screen: how far back to remember (default 10m)",
    )
    add("--theme", type=_setting("theme"), metavar="NAME", help="screen: colours; the README names the themes")
    add("--color", choices=("auto", "always", "never"), help="screen: whether to use colours; always beats NO_COLOR")
    add("--ascii", action="store_true", default=None, help="screen: draw with ASCII characters only")
    add("--mouse", action=argparse.BooleanOptionalAction, help="screen: take the mouse's clicks and wheel (default)")
    add("--config", metavar="FILE", help="read the settings from this file")
    add("--show-config", action="store_true", help="print each setting and where it comes from, and end")
    add("-V", "--version", action="version", version=f"offtop {__version__}", help="print the version and end")
    return parser


def _load(asked: argparse.Namespace) -> "tuple[Loaded, Person]":
    """The settings of this run, and whose they are."""
    from offtop import config, person

    given = {one.name: value for one in config.SETTINGS if (value := getattr(asked, one.name, None)) is not None}
    whose = person.person()
    return config.load(given, asked.config, whose, os.environ), whose


def _show_config(asked: argparse.Namespace) -> int:
    from offtop import config

    loaded, _ = _load(asked)
    _check_theme(loaded)
    _keymap(loaded)
    with _written():
        print(config.shown(loaded), end="")
    return 0


def _watch(asked: argparse.Namespace, no_screen: str) -> int:
    """`no_screen`: why there is none, where that was not asked for."""
    rules = categories.parse(paths.categories().read_text(encoding="utf-8"))
    chosen, user = _filter(asked.filter, rules, "--filter"), asked.user or ""
    if asked.json and chosen.chooses_rows:
        bound = chosen.rows[0]
        raise UsageError(
            f"--filter: {bound.key}{bound.operator} chooses rows of a table, and --json has none. "
            "Leave it out, and choose with jq"
        )
    loaded, whose = _load(asked)
    settings = loaded.settings
    _check_theme(loaded)
    if asked.max and asked.max < settings.min_ns:
        raise UsageError("--max is below --min, so no wait would be shown. Give a larger --max or a smaller --min")
    filters = Filters(
        pids=asked.pid,
        tids=asked.tid,
        who=asked.who or "all",
        states=asked.state,
        min_ns=settings.min_ns,
        max_ns=asked.max,
    )
    in_text = asked.batch or asked.json or no_screen
    view = None if in_text else _view(loaded, filters, rules, chosen, user)
    if no_screen:
        print(f"offtop: {no_screen}, so this is batch mode (-b)", file=sys.stderr)
    keymap: Mapping[str, str] = _keymap(loaded) if view else {}
    if view:
        threading.Thread(target=_load_screen, daemon=True).start()
    with _ended_by_signals():
        from offtop.kernel.live import LiveSource

        source = LiveSource(rules, filters, door=asked.door, keep_ns=settings.history_ns + _GRACE_NS)
        try:
            if view:
                return _screen(source, view, rules, loaded, whose, keymap, asked.iterations)
            return _batch(source, rules, loaded, _of_user(user, chosen), asked)
        finally:
            source.close()


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
    source: Source, rules: categories.Categories, loaded: "Loaded", chosen: Filter, asked: argparse.Namespace
) -> int:
    out: object = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")  # a name may have letters that the locale has not
    settings = loaded.settings
    wanted = batch.Wanted(chosen, settings.idle, settings.threads, settings.sort, settings.reverse)
    with _written():
        batch.run(
            source,
            rules,
            settings.delay_ns,
            asked.iterations,
            wanted,
            as_json=asked.json,
            width=asked.width,
            out=sys.stdout,
        )
    if asked.iterations is None:
        print("offtop: what was watched has ended", file=sys.stderr)
    return 0


@contextlib.contextmanager
def _written() -> Generator[None]:
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


def _view(loaded: "Loaded", filters: Filters, rules: categories.Categories, chosen: Filter, user: str) -> "View":
    """What the screen begins with."""
    from offtop.model.view import View

    settings = loaded.settings
    return View(
        filters=filters,
        delay_ns=settings.delay_ns,
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
    loaded: "Loaded",
    whose: "Person",
    keymap: Mapping[str, str],
    iterations: int | None,
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
        iterations=iterations,
        keymap=keymap,
        files=_Kept(loaded, whose, theme),
        mouse=settings.mouse,
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a person keeps from the screen, in files of theirs. Implements ui.app.Files."""

    loaded: "Loaded"
    whose: "Person"
    theme: str
    """The one that the screen began with."""

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
            sort=view.sort,
            reverse=view.reverse,
            names=view.names,
            latency=view.latency,
            hidden=view.hidden,
            muted=tuple(one.text for one in view.muted),
        )
        return config.save(self.loaded.path, self.whose, config.toml_of(settings))

    def write(self, path: Path, text: str) -> str:
        from offtop.person import write_theirs

        write_theirs(path, self.whose, text)
        return f"written to {printable(str(path))}"


def _load_screen() -> None:
    """While bcc compiles on another CPU. What goes wrong here goes wrong again, and is told, where it is used."""
    with contextlib.suppress(ImportError):
        importlib.import_module("offtop.ui.app")


def _no_screen() -> str:
    """Why the terminal cannot show a screen; nothing if it can."""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return "there is no terminal here"
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "TERM says that this terminal cannot show a screen"
    return ""


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


def _doctor(arguments: Sequence[str]) -> int:
    from offtop.kernel import doctor

    parser = _Parser(
        prog="offtop doctor", description="check this machine, a line each, with what mends it", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="the checks as a JSON array")
    as_json = parser.parse_args(arguments).json
    checks = doctor.checks()
    with _written():
        print(doctor.as_json(checks) if as_json else doctor.render(checks))
    return doctor.status(checks)


def _schema(arguments: Sequence[str]) -> int:
    from offtop.schema import SCHEMA

    _Parser(prog="offtop schema", description="print the JSON Schema of --json", allow_abbrev=False).parse_args(
        arguments
    )
    with _written():
        print(json.dumps(SCHEMA, indent=2))
    return 0


def _argument(parse: Callable[[str], T], expected: str) -> Callable[[str], T]:
    """`parse` for argparse: what it refuses is told with what is expected."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is not {expected}") from None

    return parsed


def _setting(name: str) -> Callable[[str], str]:
    """For argparse: the text, once it can be a value of that setting, as config takes it."""

    def said(text: str) -> str:
        from offtop import config

        setting = next(one for one in config.SETTINGS if one.name == name)
        try:
            setting.attributes(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is not {setting.expected}") from None
        return text

    return said


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _ids_of(text: str) -> tuple[int, ...]:
    ids = tuple(sorted({int(part) for part in text.split(",")}))
    if not all(0 < one < 1 << 31 for one in ids) or len(ids) > _MOST_IDS:
        raise ValueError(text)
    return ids


def _user_of(text: str) -> str:
    if not (text.isascii() and text.isdecimal()):
        try:
            pwd.getpwnam(text)
        except KeyError:
            raise ValueError(text) from None
    return text


def _states_of(text: str) -> int:
    """A mask as Filters has it. A number is the kernel's own mask; 0 is running, as in bcc's tools."""
    mask = 0
    for word in text.split(","):
        if word in _STATES:
            mask |= _STATES[word]
        else:
            number = int(word, 0)
            if not 0 <= number < 1 << 31:
                raise ValueError(text)
            mask |= number or _STATES["running"]
    return mask


_ids = _argument(_ids_of, f"a list of ids, as 4242 or 4242,977 (at most {_MOST_IDS})")
_wait = _argument(lambda text: parse_duration(text, _NS_PER_US), "a time, as 200us, 1ms, 2s, or 200 for 200us")
_count = _argument(_positive, "a whole number from 1 up")
_user = _argument(_user_of, "a user: this machine knows no such name, nor is it a number")
_state = _argument(_states_of, f"a list of states ({', '.join(_STATES)}) or a mask of them, as 0x2")
