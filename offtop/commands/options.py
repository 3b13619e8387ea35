"""Command-line parsers. The man page, completions and the manual's tables are generated from their texts.

An option that is also a setting has no default here; offtop/settings/config.py has the default, and checks the value.
"""

import argparse
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from offtop import __version__, paths
from offtop.errors import UsageError
from offtop.model.aggregate.budget import parse_rate
from offtop.model.aggregate.rows import SORTS
from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from offtop.model.values.state import MASKS
from offtop.model.values.wake import DEFAULT_DEPTH, MODES, MOST_DEPTH
from offtop.person import NO_USER, is_user
from offtop.printable import printable
from offtop.units import NS_PER_S, parse_duration, parse_size

UNWIND_METHODS = ("auto", "dwarf", "fp", "off")
"""Values of --unwind; kernel/bpf/program.py documents them."""
STATES = {
    "running": 1 << 31,
    "interruptible": 0x1,
    "uninterruptible": 0x2,
    "stopped": 0x4,
    "traced": 0x8,
    "parked": 0x40,
    "idle": 0x402,
}
"""Names for --state and the kernel's bits (include/linux/sched.h). `running` is offtop's own: preempted."""
_NS_PER_US = 1000
_STACK_BYTES = 16 << 10
_MOST_STACK_KB = 64
_PER = frozenset(("thread", "category"))
"""Values of --per; export.folded uses them."""
_MOST_IDS = 1024
"""Size of the BPF map only_pids in bpf/offcpu.c."""
_HOST = re.compile(r"[^\s\x00-\x1f\x7f'\"`$\\;&<>|(){}!*?#~-][^\s\x00-\x1f\x7f'\"`$\\;&<>|(){}!*?#]*")
"""A host must be no option of ssh, and hold nothing that a shell in ssh_config would interpret."""
_LONGEST_HOST = 512
SSH_OPTIONS = {"ssh_command": "--ssh-command", "sudo_command": "--sudo-command", "remote_offtop": "--remote-offtop"}
"""Options about how another machine is reached, by their names in the namespace."""

T = TypeVar("T")


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
    _add_output_options(parser)
    _add_delay(parser)
    _add_host_options(parser)
    _add_measuring_options(parser)
    _add_waker_options(parser)
    _add_outlier_options(parser, live=True)
    _add_display_options(parser, any_user=True)
    _add_recording_options(parser, records=True)
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
        type=_duration,
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
    parser.add_argument("-n", "--iterations", type=_count, metavar="N", help="exit after N ticks")
    parser.add_argument(
        "--stream-version", type=_count, metavar="N", help="with --output -: fail unless the stream has this version"
    )
    _add_delay(parser)
    _add_measuring_options(parser)
    _add_waker_options(parser)
    _add_outlier_options(parser)
    _add_recording_options(parser)
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
    _add_replay_options(parser)
    _add_output_options(parser)
    _add_waker_options(parser)
    _add_display_options(parser)
    return parser


def demo() -> argparse.ArgumentParser:
    parser = Parser(
        prog="offtop demo",
        description="replay a recording of a busy database that comes with offtop; needs no root",
        allow_abbrev=False,
    )
    _add_replay_options(parser)
    _add_output_options(parser)
    _add_waker_options(parser)
    _add_display_options(parser)
    return parser


def report() -> argparse.ArgumentParser:
    parser = Parser(prog="offtop report", description="summarise a recording on one page", allow_abbrev=False)
    parser.add_argument("file", metavar="FILE", help="the recording, or latest")
    parser.add_argument("-w", "--width", type=_count, default=0, metavar="N", help="truncate lines to N columns")
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
    add("-n", "--iterations", type=_count, metavar="N", help="export N ticks (default: 10 live, all of a recording)")
    add(
        "--begin",
        metavar="T",
        help="recording: start here: 02:10:55, 2026-11-21T02:10, +5m, or -5m (before the end)",
    )
    add("--end", metavar="T", help="recording: stop here")
    add("--baseline", metavar="FILE", help="svg, folded: compare with this recording")
    add("--title", default="", metavar="TEXT", help="title of the flame graph")
    _add_folded_options(parser)
    _add_delay(parser)
    _add_measuring_options(parser)
    _add_waker_options(parser)
    _add_selection_options(parser)
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
    add("-w", "--width", type=_count, default=0, metavar="N", help="truncate lines to N columns")
    _add_selection_options(parser)
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
        "-n", "--iterations", type=_count, metavar="N", help="measure N ticks (default: 5 live, all of a recording)"
    )
    _add_delay(parser)
    _add_measuring_options(parser)
    _add_waker_options(parser)
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
        type=_count,
        default=2000,
        metavar="N",
        help="most series with names of programs (default 2000); programs with less time count as other",
    )
    _add_delay(parser, seconds=5)
    _add_measuring_options(parser, budget_pct=1.0)
    _add_waker_options(parser)
    add = parser.add_argument_group("recording").add_argument
    add("--directory", metavar="DIR", help="record everything there, too: offtop-HOST-TIME.offtop")
    _add_limits(add, keep="6h")
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
    add("-d", "--delay", dest="every", type=_time, metavar="S", help="seconds between refreshes (default 10)")
    add = parser.add_argument_group("text and JSON").add_argument
    add("-b", "--batch", action="store_true", help="print text tables (also if stdout is no terminal)")
    add("-n", "--iterations", type=_count, metavar="N", help="exit after N refreshes")
    add("-w", "--width", type=_count, default=0, metavar="N", help="batch: truncate lines to N columns")
    add("--json", action="store_true", help="print one JSON object a refresh")
    add = parser.add_argument_group("what to show").add_argument
    add("--filter", default="", metavar="EXPR", help="only hosts whose labels match, e.g. 'job=db env!=test db*'")
    add(
        "--range",
        type=_duration,
        metavar="TIME",
        help="averages over so long: 1m, 1h (default: 5m with recording rules, else enough for four scrapes)",
    )
    _add_look_options(add)
    add("--config", metavar="FILE", help="read settings from this file")
    _add_ssh_options(parser.add_argument_group("a host live").add_argument)
    return parser


def schema() -> argparse.ArgumentParser:
    return Parser(prog="offtop schema", description="print the JSON Schema of the --json output", allow_abbrev=False)


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("text and JSON")
    add = group.add_argument
    add("-b", "--batch", action="store_true", help="print text tables, like top -b (also if stdout is no terminal)")
    add("-n", "--iterations", type=_count, metavar="N", help="exit after N ticks")
    add("-w", "--width", type=_count, default=0, metavar="N", help="batch: truncate lines to N columns")
    written = group.add_mutually_exclusive_group()
    written.add_argument("--json", action="store_true", help="print one JSON object a tick (see: offtop schema)")
    written.add_argument(
        "-f", "--folded", action="store_true", help="print folded stacks of the whole run at exit, for flamegraph.pl"
    )
    _add_folded_options(parser)


def _add_folded_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that shape folded stacks."""
    add = parser.add_argument_group("folded stacks").add_argument
    add(
        "--delimiter",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="put a - between user and kernel frames",
    )
    add(
        "--per",
        type=_per,
        default=frozenset(),
        metavar="WHAT,…",
        help="one line per thread (comm-tid first), category, or both (default: per thread name)",
    )


def _add_delay(parser: argparse.ArgumentParser, seconds: int | None = None) -> None:
    """Add --delay. `seconds`: a default that no setting changes; None: the setting."""
    parser.add_argument(
        "-d",
        "--delay",
        type=_setting("delay"),
        default=None if seconds is None else str(seconds),
        metavar="S",
        help=f"seconds between ticks (default {seconds or 1})",
    )


def _add_host_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about another machine."""
    add = parser.add_argument_group("another machine").add_argument
    add(
        "--host",
        type=_host,
        metavar="HOST",
        help="measure that machine over ssh, and show it here: a name from your ssh_config, USER@HOST, or "
        "ssh://USER@HOST:PORT",
    )
    _add_ssh_options(add)


def _add_ssh_options(add: Callable[..., object]) -> None:
    """Add the options about how another machine is reached."""
    add(
        "--ssh-command",
        metavar="COMMAND",
        help="the ssh to use, with its options: 'ssh -p 2222 -i key' (default: ssh)",
    )
    add(
        "--sudo-command",
        metavar="COMMAND",
        help="what makes offtop root on the host: 'doas -n', or '' for nothing (default: sudo -n, unless you log in as "
        "root)",
    )
    add("--remote-offtop", metavar="PATH", help="offtop on the host, if it is not in the PATH there")


def _add_replay_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--begin", metavar="T", help="start here: 02:10:55, 2026-11-21T02:10, +5m, or -5m (before the end)"
    )
    parser.add_argument(
        "--at", choices=("outlier",), help="start paused at the first outlier; n and N go to the others"
    )
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="N", help="play N recorded seconds per second (default 1)"
    )


def _add_recording_options(parser: argparse.ArgumentParser, *, records: bool = False) -> None:
    """Add the options of a recording.

    `records`: add `--record`, because a recording is optional.
    """
    add = parser.add_argument_group("recording").add_argument
    if records:
        add("--record", metavar="FILE", help="record everything to this file while showing it")
    _add_limits(add)


def _add_limits(add: Callable[..., object], keep: str = "48h") -> None:
    """Add the options of what a recording holds. `keep`: the default of --keep, which is not set here."""
    add("--keep", type=_duration, metavar="TIME", help=f"drop what is older than this (default {keep})")
    add("--max-size", type=_size, metavar="SIZE", help="drop the oldest ticks above this size (default 2G)")
    add("--cmdlines", action="store_true", help="record command lines too; they may hold secrets")


def _add_measuring_options(parser: argparse.ArgumentParser, budget_pct: float = 5.0) -> None:
    """Add the options that decide what the BPF programs count. `budget_pct`: default of --cpu-budget."""
    group = parser.add_argument_group("what to measure")
    add = group.add_argument
    add(
        "-p",
        "--pid",
        type=_pids,
        default=(),
        metavar="PID,…",
        help="only these processes; CONTAINER:PID takes the PID inside a container",
    )
    add("-t", "--tid", type=_ids, default=(), metavar="TID,…", help="only these threads")
    add(
        "--cgroup",
        metavar="PATH",
        help="only this cgroup and those below it: a path, a directory, a container id or a unit name",
    )
    add(
        "--within",
        metavar="PROGRAM:FUNCTION",
        help="only waits inside this function, and how long its calls take: mysqld:dispatch_command, "
        "libpq.so.5:PQexec, /path/of/it:function or, with -p, :function",
    )
    who = group.add_mutually_exclusive_group()
    who.add_argument("--user-threads", dest="who", action="store_const", const="user", help="only user threads")
    who.add_argument("--kernel-threads", dest="who", action="store_const", const="kernel", help="only kernel threads")
    add(
        "--state",
        type=_state,
        default=0,
        metavar="STATE,…",
        help=f"only waits that begin in these states: {', '.join(STATES)}, a letter as in ps, or a mask",
    )
    add(
        "--min",
        type=_setting("min"),
        metavar="TIME",
        help="shortest wait that gets a stack (default 1ms; a bare number is us); shorter waits are only counted",
    )
    add("--max", type=_wait, default=0, metavar="TIME", help="leave out waits longer than this")
    add(
        "--debuginfod",
        nargs="?",
        const="auto",
        type=_setting("debuginfod"),
        metavar="URL,…",
        help="download missing debug files from these servers; without a URL, from those set up on this machine",
    )
    add(
        "--source",
        type=_setting("source"),
        metavar="SOURCE",
        help="bpf sees every wait; proc samples /proc and needs no root; auto takes bpf if it can (default auto)",
    )
    add(
        "--probe",
        "--door",
        dest="probe",
        choices=("auto", "exit", "kprobe", "switch"),
        default="auto",
        help="switch-in probe: how offtop notices that a thread runs again",
    )
    add(
        "--unwind",
        choices=UNWIND_METHODS,
        default=UNWIND_METHODS[0],
        help="how to unwind user stacks: auto, dwarf (.eh_frame only), fp (frame pointers only), off (default auto)",
    )
    add(
        "--unwind-bytes",
        type=_stack_bytes,
        default=_STACK_BYTES,
        metavar="SIZE",
        help="how much of a stack to copy if the kernel cannot unwind it yet, 1K to 64K (default 16K)",
    )
    add(
        "--cpu-budget",
        type=_percent,
        default=budget_pct,
        metavar="PCT",
        help="CPU time for offtop's processes, without drawing and BPF, in percent of one CPU (default "
        f"{budget_pct:g}); beyond it, short waits get no stacks, and waits in progress are scanned less often",
    )
    exact = parser.add_mutually_exclusive_group()
    exact.add_argument(
        "--exact-stacks",
        action="store_true",
        help="take the stack of every wait that reaches the minimum, whatever that costs, and unwind each one: "
        "do not compare it with the thread's last one",
    )
    exact.add_argument(
        "--verify-kernel-stacks",
        action="store_true",
        help="compare each kernel stack with the thread's last one, and unwind it only if it differs: about halves "
        "the cost at switches, but is not proved exact. One in 64 is unwound all the same, as a check",
    )


def _add_waker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about who ended the waits."""
    add = parser.add_argument_group("wakers").add_argument
    add(
        "--mode",
        type=_setting("mode"),
        metavar="MODE",
        help=f"{', '.join((*MODES, FILE))} or {DISK}: where threads wait, who woke them, both, the chain of wakers, "
        f"file operations, or requests to disks (default {MODES[0]})",
    )
    add(
        "--depth",
        type=_depth,
        default=DEFAULT_DEPTH,
        metavar="N",
        help=f"wakers in a chain, 2 to {MOST_DEPTH} (default {DEFAULT_DEPTH})",
    )


def _add_outlier_options(parser: argparse.ArgumentParser, *, live: bool = False) -> None:
    """Add the options about outliers; `live`: also what screen and batch do when there is one."""
    add = parser.add_argument_group("outliers").add_argument
    add(
        "--trigger",
        action="append",
        metavar="RULE",
        help="keep waits that match, e.g. 'lock.max > 500ms', 'comm:mysqld disk.p99 > 50ms for 3s', 'any.now > 5s'; "
        "file.max > 100ms, request.p99 > 20ms: file operations, requests to disks; "
        "suspect: what others wait for; auto (the default): far longer than usual; off. May be given more than once",
    )
    add(
        "--on-trigger",
        metavar="COMMAND",
        help="run this command at each outlier, as the user who typed sudo; OFFTOP_* variables describe the outlier",
    )
    if live:
        add("--freeze", action="store_true", help="screen: pause at the first outlier")
        add("--fail-on-trigger", action="store_true", help="batch: exit with status 5 if there was an outlier")


def _add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide which waits are written."""
    add = parser.add_argument_group("what to show").add_argument
    add("-u", "--user", type=_user, metavar="NAME", help="only this user's processes (name or id)")
    add("--filter", default="", metavar="EXPR", help="only waits that match, e.g. 'comm=mysql* cat=lock'")
    add("-i", "--idle", action="store_true", default=None, help="include idle waits")


def _add_display_options(parser: argparse.ArgumentParser, *, any_user: bool = False) -> None:
    """Add the options that decide what screen and tables show.

    `any_user`: the caller checks whether the user exists.
    """
    add = parser.add_argument_group("what to show").add_argument
    is_user = str if any_user else _user
    add("-u", "--user", type=is_user, metavar="NAME", help="only this user's processes (name or id)")
    add("--filter", default="", metavar="EXPR", help="only waits and rows that match, e.g. 'comm=mysql* max>10ms'")
    add("-H", "--threads", action="store_true", default=None, help="list threads instead of processes")
    add(
        "--programs",
        action=argparse.BooleanOptionalAction,
        help="list the processes of a program as one row (default on the screen, but not in batch)",
    )
    add(
        "--rate",
        type=_rate,
        metavar="R[,C]",
        help="requests per second, and CPU time per request, e.g. 1500,1ms: shows whether the process waits more than "
        "this load explains",
    )
    add("--stuck", action="store_true", help="start with the waits in progress; batch: print them too")
    add("-i", "--idle", action="store_true", default=None, help="show idle waits too")
    add(
        "-o",
        "--sort",
        type=_setting("sort"),
        metavar="FIELD",
        help=f"sort by {', '.join(SORTS[:-1])} or {SORTS[-1]}; -FIELD reverses the order",
    )
    add("--baseline", metavar="FILE", help="compare with this recording: what changed, what is new, what is gone")
    add("--window", type=_setting("window"), metavar="SPAN", help="screen: numbers over 1s, 10s, 60s, or since start")
    add(
        "--history",
        type=_setting("history"),
        metavar="TIME",
        help="screen: how far back you can rewind (default 10m)",
    )
    add(
        "--snapshot-dir",
        type=lambda text: text if text.startswith("~/") else str(Path.cwd() / text),
        metavar="DIR",
        help="screen: where the key s saves clips (default: the current directory)",
    )
    _add_look_options(add)
    add("--config", metavar="FILE", help="read settings from this file")


def _add_look_options(add: Callable[..., object]) -> None:
    """Add the options about how the screen is drawn."""
    add("--theme", type=_setting("theme"), metavar="NAME", help=f"screen: {', '.join(paths.theme_names())}")
    add("--color", choices=("auto", "always", "never"), help="screen: use colours or not; always overrides NO_COLOR")
    add("--ascii", action="store_true", default=None, help="screen: draw with ASCII characters only")
    add("--mouse", action=argparse.BooleanOptionalAction, help="screen: use the mouse (default)")


def _argument(parse: Callable[[str], T], expected: str) -> Callable[[str], T]:
    """Wrap `parse` for argparse, with an error message that says what is expected."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is not {expected}") from None

    return parsed


def options_ignored_without_bpf(args: argparse.Namespace) -> list[str]:
    """Return the given options that have no effect when /proc is sampled."""
    given = {
        "--min": args.min is not None,
        "--debuginfod": args.debuginfod is not None,
        "--unwind": args.unwind != UNWIND_METHODS[0],
        "--unwind-bytes": args.unwind_bytes != _STACK_BYTES,
        "--exact-stacks": args.exact_stacks,
        "--verify-kernel-stacks": args.verify_kernel_stacks,
        "--depth": args.depth != DEFAULT_DEPTH,
    }
    return [option for option, is_given in given.items() if is_given]


def measuring_arguments(args: argparse.Namespace) -> Sequence[str]:
    """Return the given options about what to measure, as another offtop takes them, without settings."""
    given: dict[str, str] = {
        "--pid": ",".join(str(one) if isinstance(one, int) else f"{one[0]}:{one[1]}" for one in args.pid),
        "--tid": ",".join(map(str, args.tid)),
        "--cgroup": args.cgroup or "",
        "--within": args.within or "",
        "--state": _states_text(args.state),
        "--max": f"{args.max}ns" if args.max else "",
        "--probe": args.probe,
        "--unwind": args.unwind,
        "--unwind-bytes": str(args.unwind_bytes),
        "--cpu-budget": f"{args.cpu_budget:g}",
        "--depth": str(args.depth),
    }
    flags = [f"--{args.who}-threads"] if args.who else []
    flags += ["--exact-stacks"] if args.exact_stacks else []
    flags += ["--verify-kernel-stacks"] if args.verify_kernel_stacks else []
    return [*flags, *(f"{option}={value}" for option, value in given.items() if value)]


def look_arguments(args: argparse.Namespace) -> Sequence[str]:
    """Return the given options about how the screen is drawn, as another offtop takes them."""
    given = {"--theme": args.theme, "--color": args.color, "--config": args.config}
    flags = ["--ascii"] if args.ascii else []
    flags += [] if args.mouse is None else ["--mouse" if args.mouse else "--no-mouse"]
    return [*flags, *_with_values(given)]


def ssh_arguments(args: argparse.Namespace) -> Sequence[str]:
    """Return the given options about how another machine is reached, as another offtop takes them."""
    return _with_values({option: getattr(args, name) for name, option in SSH_OPTIONS.items()})


def _with_values(given: Mapping[str, str | None]) -> list[str]:
    return [f"{option}={value}" for option, value in given.items() if value is not None]


def _states_text(mask: int) -> str:
    """Return states as --state takes them."""
    running = STATES["running"]
    return ",".join([*(["running"] if mask & running else []), *([hex(mask & ~running)] if mask & ~running else [])])


def _setting(name: str) -> Callable[[str], str]:
    """Return an argparse type that checks a text with a setting, and returns it unchanged."""

    def checked(text: str) -> str:
        from offtop.settings import config

        setting = next(one for one in config.SETTINGS if one.name == name)
        try:
            setting.attributes(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is not {setting.expected}") from None
        return text

    return checked


def _speed_of(text: str) -> float:
    factor = float(text)
    if not 0.01 <= factor <= 100_000:
        raise ValueError(text)
    return factor


def _time_of(text: str) -> int:
    return _positive(str(parse_duration(text, NS_PER_S)))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _depth_of(text: str) -> int:
    number = int(text)
    if not 2 <= number <= MOST_DEPTH:
        raise ValueError(text)
    return number


def _ids_of(text: str) -> tuple[int, ...]:
    ids = tuple(sorted({int(part) for part in text.split(",")}))
    if not all(0 < one < 1 << 31 for one in ids) or len(ids) > _MOST_IDS:
        raise ValueError(text)
    return ids


def _pids_of(text: str) -> tuple[int | tuple[str, int], ...]:
    """Parse PIDs. A process in a container becomes (container name, PID inside of it)."""
    parts = text.split(",")
    plain = [part for part in parts if ":" not in part]
    found: list[int | tuple[str, int]] = [*_ids_of(",".join(plain))] if plain else []
    for part in dict.fromkeys(parts):
        name, colon, inside = part.rpartition(":")
        if colon and not name:
            raise ValueError(text)
        found += [(name, pid) for pid in _ids_of(inside)] if colon else []
    if len(found) > _MOST_IDS:
        raise ValueError(text)
    return tuple(found)


def _user_of(text: str) -> str:
    if not is_user(text):
        raise ValueError(text)
    return text


def _host_of(text: str) -> str:
    address = text.removeprefix("ssh://")
    name = address.rpartition("@")[2]
    hides_something = address != text and "%" in address  # ssh decodes %2d to a dash
    if len(text) > _LONGEST_HOST or not _HOST.fullmatch(text) or name.startswith("-") or not name or hides_something:
        raise ValueError(text)
    return text


def _states_of(text: str) -> int:
    """Parse states to a mask for Filters.

    A number is the kernel's mask; 0 means running, as in bcc's tools.
    """
    mask = 0
    for word in text.split(","):
        if word in STATES or word in MASKS:
            mask |= STATES.get(word) or MASKS[word]
        else:
            number = int(word, 0)
            if not 0 <= number < 1 << 31:
                raise ValueError(text)
            mask |= number or STATES["running"]
    return mask


def _stack_bytes_of(text: str) -> int:
    size = _bytes_of(text)
    if size % 1024 or not 1 <= size >> 10 <= _MOST_STACK_KB:
        raise ValueError(text)
    return size


def _bytes_of(text: str) -> int:
    return int(text[:-1]) << 10 if text[-1:] in ("k", "K") else int(text)


def _per_of(text: str) -> frozenset[str]:
    parts = frozenset(text.split(","))
    if not parts <= _PER:
        raise ValueError(text)
    return parts


def _percent_of(text: str) -> float:
    share = float(text.removesuffix("%"))
    if not 0.1 <= share <= 1000:
        raise ValueError(text)
    return share


_host = _argument(_host_of, "a host: a name from your ssh_config, USER@HOST, or ssh://USER@HOST:PORT")
_ids = _argument(_ids_of, f"a list of ids such as 4242 or 4242,977 (at most {_MOST_IDS})")
_pids = _argument(_pids_of, f"a list of ids such as 4242 or 4242,977 or CONTAINER:7 (at most {_MOST_IDS})")
_wait = _argument(lambda text: parse_duration(text, _NS_PER_US), "a time such as 200us, 1ms or 2s; 200 means 200us")
_count = _argument(_positive, "a whole number from 1 up")
_depth = _argument(_depth_of, f"a whole number from 2 to {MOST_DEPTH}")
_user = _argument(_user_of, NO_USER)
_state = _argument(_states_of, f"a list of states ({', '.join(STATES)}) or a mask such as 0x2")
_duration = _argument(_time_of, "a time such as 90s, 10m or 48h")
_time = _argument(_time_of, "a number of seconds such as 10, or a time such as 1m")
_rate = _argument(parse_rate, "a request rate such as 1500 or 1.5k, optionally with CPU time per request: 1500,1ms")
_stack_bytes = _argument(_stack_bytes_of, f"a size in whole KB from 1K to {_MOST_STACK_KB}K")
_percent = _argument(_percent_of, "a percentage of one CPU from 0.1 up, such as 5 or 20")
_speed = _argument(_speed_of, "a factor from 0.01 up, such as 10 or 0.5")
_per = _argument(_per_of, "thread, category, or thread,category")
_size = _argument(parse_size, "a size of at least 1M, such as 500M or 2G")
