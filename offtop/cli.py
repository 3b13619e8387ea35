"""Arguments → a Source → the screen, or a batch of ticks.

`--help`, `--version` and `--batch` never import Textual; bcc compiles in a child while the screen's own
modules are loaded.
"""

import argparse
import contextlib
import importlib
import io
import json
import locale
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import NoReturn, TypeVar

from offtop import __version__, batch, paths
from offtop.errors import OfftopError, UsageError
from offtop.model import categories
from offtop.model.printable import printable
from offtop.model.snapshot import Filters
from offtop.model.view import LONGEST_DELAY_NS, SHORTEST_DELAY_NS
from offtop.source import Source
from offtop.units import NS_PER_S, parse_duration

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
_LONGEST_HISTORY_NS = 24 * 3600 * NS_PER_S
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
    asked = _parser().parse_args(arguments)
    if not asked.batch and not asked.json and (why := _no_screen()):
        print(f"offtop: {why}, so this is batch mode (-b)", file=sys.stderr)
        asked.batch = True
    asked.batch = asked.batch or asked.json
    return _watch(asked)


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
    add("-d", "--delay", type=_delay, default=NS_PER_S, metavar="S", help="seconds between two ticks (default 1)")
    add("-w", "--width", type=_count, default=0, metavar="N", help="batch: cut lines at N columns")
    add("--json", action="store_true", help="one JSON object a tick (see: offtop schema)")
    add("-p", "--pid", type=_ids, default=(), metavar="PID,…", help="only these processes")
    add("-t", "--tid", type=_ids, default=(), metavar="TID,…", help="only these threads")
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
        type=_wait,
        default=1_000_000,
        metavar="TIME",
        help="take stacks of waits from here up (default 1ms; bare: us)",
    )
    add("--max", type=_wait, default=0, metavar="TIME", help="leave out waits longer than this")
    add("-H", "--threads", action="store_true", help="begin with threads instead of processes")
    add("-i", "--idle", action="store_true", help="begin with idle-looking waits shown")
    add(
        "--door",
        choices=("auto", "exit", "kprobe", "switch"),
        default="auto",
        help="how to notice that a thread is back",
    )
    add(
        "--history",
        type=_history,
        default=600 * NS_PER_S,
        metavar="TIME",
        help="how far back to remember (default 10m)",
    )
    add("--theme", default="", metavar="NAME", help="colours: a name from the themes directory")
    add("--color", choices=("auto", "always", "never"), default="auto", help="whether to use colours")
    add("--ascii", action="store_true", help="draw with ASCII characters only")
    add("-V", "--version", action="version", version=f"offtop {__version__}", help="print the version and end")
    return parser


def _watch(asked: argparse.Namespace) -> int:
    rules = categories.parse(paths.categories().read_text(encoding="utf-8"))
    filters = Filters(
        pids=asked.pid,
        tids=asked.tid,
        who=asked.who or "all",
        states=asked.state,
        min_ns=asked.min,
        max_ns=asked.max,
    )
    if asked.max and asked.max < asked.min:
        raise UsageError("--max is below --min, so no wait would be shown. Give a larger --max or a smaller --min")
    if asked.theme and not (paths.themes() / f"{asked.theme}.toml").is_file():
        names = ", ".join(sorted(path.stem for path in paths.themes().glob("*.toml")))
        raise UsageError(f"There is no theme '{printable(asked.theme)}'. Take one of: {names}")
    if not asked.batch:
        threading.Thread(target=_load_screen, daemon=True).start()
    with _ended_by_signals():
        from offtop.kernel.live import LiveSource

        source = LiveSource(rules, filters, door=asked.door, keep_ns=asked.history + _GRACE_NS)
        try:
            return _batch(source, rules, asked) if asked.batch else _screen(source, rules, filters, asked)
        finally:
            source.close()


def _batch(source: Source, rules: categories.Categories, asked: argparse.Namespace) -> int:
    out: object = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")  # a name may have letters that the locale has not
    with _written():
        _print_ticks(source, rules, asked)
    if asked.iterations is None:
        print("offtop: what was watched has ended", file=sys.stderr)
    return 0


def _print_ticks(source: Source, rules: categories.Categories, asked: argparse.Namespace) -> None:
    batch.run(
        source,
        rules,
        asked.delay,
        asked.iterations,
        as_json=asked.json,
        width=asked.width,
        idle_shown=asked.idle,
        threads_listed=asked.threads,
        out=sys.stdout,
    )


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


def _screen(source: Source, rules: categories.Categories, filters: Filters, asked: argparse.Namespace) -> int:
    from offtop.model.view import View
    from offtop.ui import app

    view = View(filters=filters, delay_ns=asked.delay, threads=asked.threads, idle_shown=asked.idle)
    return app.run(
        source,
        view,
        rules,
        theme=asked.theme or "dark",
        ascii_only=asked.ascii,
        colour=asked.color != "never",
        history_ns=asked.history,
        iterations=asked.iterations,
    )


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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _delay_of(text: str) -> int:
    delay_ns = parse_duration(text, NS_PER_S)
    if not SHORTEST_DELAY_NS <= delay_ns <= LONGEST_DELAY_NS:
        raise ValueError(text)
    return delay_ns


def _history_of(text: str) -> int:
    history_ns = parse_duration(text, NS_PER_S)
    if not 10 * NS_PER_S <= history_ns <= _LONGEST_HISTORY_NS:
        raise ValueError(text)
    return history_ns


def _ids_of(text: str) -> tuple[int, ...]:
    ids = tuple(sorted({int(part) for part in text.split(",")}))
    if not all(0 < one < 1 << 31 for one in ids) or len(ids) > _MOST_IDS:
        raise ValueError(text)
    return ids


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
_delay = _argument(_delay_of, "a number of seconds from 0.1 to 60")
_history = _argument(_history_of, "a time from 10s to 24h, as 10m")
_count = _argument(_positive, "a whole number from 1 up")
_state = _argument(_states_of, f"a list of states ({', '.join(_STATES)}) or a mask of them, as 0x2")
