"""Command-line parsers. The man page, completions and the manual's tables are generated from their texts.

An option that is also a setting has no default here; offtop/settings/config.py has the default, and checks the value.
"""

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import NoReturn

from offtop import __version__
from offtop.commands.option_groups import (
    add_delay,
    add_display_options,
    add_folded_options,
    add_host_options,
    add_limits,
    add_look_options,
    add_measuring_options,
    add_outlier_options,
    add_output_options,
    add_recording_options,
    add_replay_options,
    add_selection_options,
    add_ssh_options,
    add_waker_options,
)
from offtop.commands.option_values import count_value, duration_value, time_value
from offtop.errors import UsageError


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _, _, unknown = message.partition("unrecognized arguments: ")
        if unknown:
            is_word = self.prog == "offtop" and not unknown.startswith("-")
            filter_hint = f". To show only what matches it: --filter {shlex.quote(unknown)}" if is_word else ""
            message = f"{self.prog} does not take '{unknown}'{filter_hint}"
        message = re.sub(r"argument (\S+): ignored explicit argument .*", r"\1 takes no value", message)
        raise UsageError(f"{message}. See: {self.prog} --help")


def values_joined(arguments: Sequence[str]) -> Sequence[str]:
    """Join `-o -MAX` to `-o-MAX` and `--begin -5m` to `--begin=-5m`.

    Otherwise argparse takes such values for options.
    """
    joined: list[str] = []
    for argument in arguments:
        previous = joined[-1] if joined else ""
        if argument[:1] == "-" and previous in ("--sort", "--begin", "--end"):
            joined[-1] += f"={argument}"
        elif argument[:1] == "-" and re.fullmatch("-[bHi]*o", previous):
            joined[-1] += argument
        else:
            joined.append(argument)
    return joined


def live() -> argparse.ArgumentParser:
    """Return the parser of `offtop` without a command."""
    parser = Parser(
        prog="offtop",
        description="top for waiting: where every thread's time goes while it is not running",
        epilog="commands: record, replay, report, export, diff, demo, agent, fleet, rules, doctor, schema; each has "
        "--help",
        allow_abbrev=False,
    )
    add_output_options(parser)
    add_delay(parser)
    add_host_options(parser)
    add_measuring_options(parser)
    add_waker_options(parser)
    add_outlier_options(parser, live=True)
    add_display_options(parser, any_user=True)
    add_recording_options(parser, records=True)
    parser.add_argument(
        "--show-config", action="store_true", help="print each setting and where its value comes from, then exit"
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"offtop {__version__}", help="print the version and exit"
    )
    return parser


def record() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop record",
        description="record everything to a file, without a screen, for a time or until ctrl-C",
        epilog="Open the file with: offtop replay FILE",
        allow_abbrev=False,
    )
    parser.add_argument(
        "duration",
        nargs="?",
        type=duration_value,
        metavar="TIME",
        help="how long to record: 30s, 10m, 2h (default: until ctrl-C)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file to write (default: offtop-HOST-TIME.offtop); -: write a stream for offtop --host to stdout",
    )
    where.add_argument(
        "--directory",
        metavar="DIR",
        help="write offtop-HOST-TIME.offtop there; --keep and --max-size then apply to all recordings in it together, "
        "and the oldest are deleted",
    )
    parser.add_argument("-n", "--iterations", type=count_value, metavar="N", help="exit after N ticks")
    parser.add_argument(
        "--stream-version",
        type=count_value,
        metavar="N",
        help="with --output -: fail unless the stream has this version",
    )
    add_delay(parser)
    add_measuring_options(parser)
    add_waker_options(parser)
    add_outlier_options(parser)
    add_recording_options(parser)
    parser.add_argument("--config", metavar="FILE", help="read settings from this file")
    return parser


def replay() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop replay",
        description="open a recording on the same screen, with the same keys; needs no root",
        allow_abbrev=False,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the recording: written by offtop record, --record, or the keys a and s; latest: the one written to "
        "last, of the services or in the current directory",
    )
    add_replay_options(parser)
    add_output_options(parser)
    add_waker_options(parser)
    add_display_options(parser)
    return parser


def demo() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop demo",
        description="replay a recording of a busy database that comes with offtop; needs no root",
        allow_abbrev=False,
    )
    add_replay_options(parser)
    add_output_options(parser)
    add_waker_options(parser)
    add_display_options(parser)
    return parser


def report() -> argparse.ArgumentParser:
    parser = Parser(prog="offtop report", description="summarise a recording on one page", allow_abbrev=False)
    parser.add_argument("file", metavar="FILE", help="the recording, or latest")
    parser.add_argument("-w", "--width", type=count_value, default=0, metavar="N", help="truncate lines to N columns")
    return parser


def export() -> argparse.ArgumentParser:
    from offtop.reports.exports import COMMANDS

    parser = Parser(
        prog="offtop export",
        description="convert a recording, or the next seconds of this machine, to a format other programs open",
        epilog="; ".join(f"{name}: {what}" for name, what in COMMANDS.items()),
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("format", choices=tuple(COMMANDS), metavar="FORMAT", help=f"one of {', '.join(COMMANDS)}")
    add("file", nargs="?", metavar="FILE", help="a recording, or latest (default: this machine, live)")
    add("-o", "--output", metavar="OUT", help="the file to write, mode 0600 (default: stdout)")
    add(
        "-n",
        "--iterations",
        type=count_value,
        metavar="N",
        help="export N ticks (default: 10 live, all of a recording)",
    )
    add(
        "--begin",
        metavar="T",
        help="recording: start here: 02:10:55, 2026-11-21T02:10, +5m, or -5m (before the end)",
    )
    add("--end", metavar="T", help="recording: stop here")
    add("--baseline", metavar="FILE", help="svg, folded: compare with this recording")
    add("--title", default="", metavar="TEXT", help="title of the flame graph")
    add_folded_options(parser)
    add_delay(parser)
    add_measuring_options(parser)
    add_waker_options(parser)
    add_selection_options(parser)
    add("--config", metavar="FILE", help="read settings from this file")
    return parser


def diff() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop diff",
        description="show what changed between two recordings; needs no root",
        epilog="As a flame graph: offtop export svg AFTER --baseline BEFORE",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("before", metavar="BEFORE", help="the recording taken as normal")
    add("after", metavar="AFTER", help="the recording to compare with it")
    add("--json", action="store_true", help="print one JSON object")
    add("-w", "--width", type=count_value, default=0, metavar="N", help="truncate lines to N columns")
    add_selection_options(parser)
    return parser


def rules() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop rules",
        description="check the cause rules, and show what each matches on this machine or in a recording",
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a recording, or latest (default: this machine, live)")
    parser.add_argument("--check", action="store_true", help="only check the rule files; needs no root")
    parser.add_argument(
        "-n",
        "--iterations",
        type=count_value,
        metavar="N",
        help="measure N ticks (default: 5 live, all of a recording)",
    )
    add_delay(parser)
    add_measuring_options(parser)
    add_waker_options(parser, lists="; the last two have no effect here")
    parser.add_argument(
        "--config", metavar="FILE", help="read settings from this file, and rules from rules.toml next to it"
    )
    return parser


def doctor() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop doctor",
        description="check what offtop needs of this machine, and print the fix for what is missing",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print the checks as a JSON array")
    return parser


def agent() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop agent",
        description="measure without a screen, and serve metrics for Prometheus and profiles for Pyroscope and Parca",
        allow_abbrev=False,
    )
    add = parser.add_argument_group("HTTP server").add_argument
    add(
        "--listen",
        default="127.0.0.1:9877",
        metavar="ADDRESS",
        help="address and port (default 127.0.0.1:9877); :9877 is all addresses",
    )
    add(
        "--web.config.file",
        dest="web_config",
        metavar="FILE",
        help="TLS and users, in the file format of Prometheus's exporters; any address but loopback needs it",
    )
    add("--insecure-listen", action="store_true", help="let any machine that reaches the address read everything")
    add(
        "--series",
        type=count_value,
        default=2000,
        metavar="N",
        help="most series with names of programs (default 2000); programs with less time count as other",
    )
    add_delay(parser, seconds=5)
    add_measuring_options(parser, budget_pct=1.0)
    add_waker_options(parser, lists="; the last two are only recorded, with --directory")
    add = parser.add_argument_group("recording").add_argument
    add("--directory", metavar="DIR", help="record everything there, too: offtop-HOST-TIME.offtop")
    add_limits(add, keep="6h")
    parser.add_argument("--config", metavar="FILE", help="read settings from this file")
    return parser


def fleet() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop fleet",
        description="show which of many hosts wait, and behind what, from what Prometheus has of their agents",
        epilog="On each host: offtop agent",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "url",
        metavar="URL",
        help="a Prometheus, VictoriaMetrics, Thanos or Mimir: http://prometheus:9090, https://mimir/prometheus",
    )
    add(
        "--http.config.file",
        dest="http_config",
        metavar="FILE",
        help="user, token, headers and TLS, in the file format that promtool takes; mode 0600 if it has a secret",
    )
    add("--ca-file", metavar="FILE", help="certificates to trust instead of those of this machine (PEM)")
    add(
        "-d",
        "--delay",
        dest="every",
        type=time_value,
        metavar="S",
        help="seconds between refreshes (default 10, or as often as hosts are scraped if that is less often)",
    )
    add = parser.add_argument_group("text and JSON").add_argument
    add(
        "-b",
        "--batch",
        action="store_true",
        help="print text tables (also if stdin or stdout is no terminal, or TERM is unset or dumb)",
    )
    add("-n", "--iterations", type=count_value, metavar="N", help="exit after N refreshes")
    add("-w", "--width", type=count_value, default=0, metavar="N", help="batch: truncate lines to N columns")
    add("--json", action="store_true", help="print one JSON object a refresh")
    add = parser.add_argument_group("what to show").add_argument
    add("--filter", default="", metavar="EXPR", help="only hosts whose labels match, e.g. 'job=db env!=test db*'")
    add(
        "--range",
        type=duration_value,
        metavar="TIME",
        help="averages over so long: 1m, 1h (default: 5m with recording rules, else enough for four scrapes)",
    )
    add_look_options(add)
    add("--config", metavar="FILE", help="read settings from this file")
    add_ssh_options(parser.add_argument_group("a host live").add_argument)
    return parser


def schema() -> argparse.ArgumentParser:
    return Parser(prog="offtop schema", description="print the JSON Schema of the --json output", allow_abbrev=False)
