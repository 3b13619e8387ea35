"""Run the command line: pick the command, report its errors without a traceback, and exit.

`--help` and `--version` import neither the screen nor bcc.
"""

import contextlib
import difflib
import io
import json
import locale
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from types import FrameType
from typing import NoReturn

from offtop import faults, paths
from offtop.commands import export, options, pages, record, recordings, run
from offtop.commands.output import flushed_output
from offtop.errors import OfftopError, UsageError, warn
from offtop.printable import printable


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run offtop and exit.

    The status is 0, that of the error, 130 for ctrl-C, 143 for SIGTERM, or 129 for SIGHUP.
    """
    try:
        out: object = sys.stdout
        if out is None:
            raise OfftopError("There is no standard output. Leave it open, or send it somewhere: offtop -b >FILE")
        _escape_unencodable()
        with (
            faults.report_thread_errors(faults.print_error),
            faults.report_callback_errors(),
            _exit_on_signals(),
        ):
            status = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except OfftopError as error:
        warn(f"offtop: {error}")
        status = error.status
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BrokenPipeError:
        status = 0  # `offtop -b | head` is no error
        _drop_output()
    except OSError as error:
        if error.filename is None and not faults.is_of_writing(error):
            faults.print_error(error)
        else:
            warn(f"offtop: {_os_error_text(error)}")
        status = OfftopError.status
        _drop_output()
    except Exception as error:
        faults.print_error(error)
        status = OfftopError.status
    sys.exit(status)


@contextlib.contextmanager
def _exit_on_signals() -> Generator[None]:
    """Handle SIGTERM and SIGHUP like ctrl-C, so that everything is closed at exit.

    If SIGHUP is ignored, as under nohup, it stays ignored.
    """

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    ending = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    previous = {number: signal.signal(number, end) for number in ending}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _escape_unencodable() -> None:
    """Make stdout escape characters of names that the locale cannot encode."""
    out: object = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")


def _os_error_text(error: OSError) -> str:
    if error.filename is not None:
        return f"{printable(str(error.filename))}: {error.strerror}. See what is missing: sudo offtop doctor"
    return f"The output cannot be written ({error.strerror}). Make room, or write elsewhere"


def _drop_output() -> None:
    """Redirect stdout to /dev/null; otherwise Python flushes it again at exit, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(arguments: Sequence[str]) -> int:
    with contextlib.suppress(locale.Error):  # ssh may pass on a locale that is not installed here
        locale.setlocale(locale.LC_CTYPE, "")
    first = arguments[0] if arguments else "-"
    if not first.startswith("-"):
        if first not in _COMMANDS:
            raise UsageError(_unknown_command_text(first))
        return _COMMANDS[first](options.values_joined(arguments[1:]))
    try:
        args = options.live().parse_args(options.values_joined(arguments))
    except UsageError as error:
        for word in _COMMANDS.keys() & {*arguments}:
            if f"does not take '{word}" in str(error):
                raise UsageError(f"The command comes first: offtop {word} OPTIONS. See: offtop {word} --help") from None
        raise
    return run.show_config(args) if args.show_config else run.show_live(args)


def _unknown_command_text(word: str) -> str:
    near = difflib.get_close_matches(word, _COMMANDS, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return f"There is no command '{printable(word)}'. {hint}Commands: {', '.join(_COMMANDS)}. See: offtop --help"


def _record(arguments: Sequence[str]) -> int:
    return record.record(options.record().parse_args(arguments))


def _replay(arguments: Sequence[str]) -> int:
    args = options.replay().parse_args(arguments)
    return run.show_recording(args, recordings.named(args.file))


def _demo(arguments: Sequence[str]) -> int:
    return run.show_recording(options.demo().parse_args(arguments), paths.demo())


def _report(arguments: Sequence[str]) -> int:
    return pages.report(options.report().parse_args(arguments))


def _export(arguments: Sequence[str]) -> int:
    return export.export(options.export().parse_intermixed_args(arguments))


def _diff(arguments: Sequence[str]) -> int:
    return pages.diff(options.diff().parse_args(arguments))


def _agent(arguments: Sequence[str]) -> int:
    from offtop.commands import agent

    return agent.run(options.agent().parse_args(arguments))


def _fleet(arguments: Sequence[str]) -> int:
    from offtop.commands import fleet

    return fleet.run(options.fleet().parse_args(arguments))


def _rules(arguments: Sequence[str]) -> int:
    return pages.rules(options.rules().parse_args(arguments))


def _doctor(arguments: Sequence[str]) -> int:
    from offtop.kernel.doctor import report as doctor

    as_json = options.doctor().parse_args(arguments).json
    checks = doctor.checks()
    with flushed_output():
        print(doctor.as_json(checks) if as_json else doctor.render(checks))
    return doctor.status(checks)


def _schema(arguments: Sequence[str]) -> int:
    from offtop.reports.schema import schema

    options.schema().parse_args(arguments)
    with flushed_output():
        print(json.dumps(schema(), indent=2))
    return 0


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "record": _record,
    "replay": _replay,
    "report": _report,
    "export": _export,
    "diff": _diff,
    "demo": _demo,
    "agent": _agent,
    "fleet": _fleet,
    "rules": _rules,
    "doctor": _doctor,
    "schema": _schema,
}
