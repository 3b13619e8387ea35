"""Options that several commands take, and how they are passed on to another offtop.

An option that is also a setting has no default here; offtop/settings/config.py has the default, and checks the value.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from offtop import paths
from offtop.commands.option_values import (
    STATES,
    AddIds,
    count_value,
    depth_value,
    duration_value,
    host_value,
    ids_value,
    per_value,
    percent_value,
    pids_value,
    rate_value,
    setting,
    size_value,
    speed_value,
    stack_bytes_value,
    state_value,
    user_value,
    wait_value,
)
from offtop.model.aggregate.rows import SORTS
from offtop.model.values.disks import DISK
from offtop.model.values.files import FILE
from offtop.model.values.wake import DEFAULT_DEPTH, MODES, MOST_DEPTH

UNWIND_METHODS = ("auto", "dwarf", "fp", "off")
"""Values of --unwind; kernel/bpf/program.py documents them."""
_STACK_BYTES = 16 << 10
SSH_OPTIONS = {"ssh_command": "--ssh-command", "sudo_command": "--sudo-command", "remote_offtop": "--remote-offtop"}
"""Options about how another machine is reached, by their names in the namespace."""


def add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("text and JSON")
    add = group.add_argument
    add(
        "-b",
        "--batch",
        action="store_true",
        help="print text tables, like top -b (also if stdin or stdout is no terminal, or TERM is unset or dumb)",
    )
    add("-n", "--iterations", type=count_value, metavar="N", help="exit after N ticks")
    add("-w", "--width", type=count_value, default=0, metavar="N", help="batch: truncate lines to N columns")
    written = group.add_mutually_exclusive_group()
    written.add_argument("--json", action="store_true", help="print one JSON object a tick (see: offtop schema)")
    written.add_argument(
        "-f", "--folded", action="store_true", help="print folded stacks of the whole run at exit, for flamegraph.pl"
    )
    add_folded_options(parser)


def add_folded_options(parser: argparse.ArgumentParser) -> None:
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
        type=per_value,
        default=frozenset(),
        metavar="WHAT,…",
        help="one line per thread (comm-tid first), category, or both (default: per thread name)",
    )


def add_delay(parser: argparse.ArgumentParser, seconds: int | None = None) -> None:
    """Add --delay. `seconds`: a default that no setting changes; None: the setting."""
    parser.add_argument(
        "-d",
        "--delay",
        type=setting("delay"),
        default=None if seconds is None else str(seconds),
        metavar="S",
        help=f"seconds between ticks (default {seconds or 1})",
    )


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about another machine."""
    add = parser.add_argument_group("another machine").add_argument
    add(
        "--host",
        type=host_value,
        metavar="HOST",
        help="measure that machine over ssh, and show it here: a name from your ssh_config, USER@HOST, or "
        "ssh://USER@HOST:PORT",
    )
    add_ssh_options(add)


def add_ssh_options(add: Callable[..., object]) -> None:
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


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--begin", metavar="T", help="start here: 02:10:55, 2026-11-21T02:10, +5m, or -5m (before the end)"
    )
    parser.add_argument(
        "--at", choices=("outlier",), help="start paused at the first outlier; n and N go to the others"
    )
    parser.add_argument(
        "--speed", type=speed_value, default=1.0, metavar="N", help="play N recorded seconds per second (default 1)"
    )


def add_recording_options(parser: argparse.ArgumentParser, *, records: bool = False) -> None:
    """Add the options of a recording.

    `records`: add `--record`, because a recording is optional.
    """
    add = parser.add_argument_group("recording").add_argument
    if records:
        add("--record", metavar="FILE", help="record everything to this file while showing it")
    add_limits(add)


def add_limits(add: Callable[..., object], keep: str = "48h") -> None:
    """Add the options of what a recording holds. `keep`: the default of --keep, which is not set here."""
    add("--keep", type=duration_value, metavar="TIME", help=f"drop what is older than this (default {keep})")
    add("--max-size", type=size_value, metavar="SIZE", help="drop the oldest ticks above this size (default 2G)")
    add("--cmdlines", action="store_true", help="record command lines too; they may hold secrets")


def add_measuring_options(parser: argparse.ArgumentParser, budget_pct: float = 5.0) -> None:
    """Add the options that decide what the BPF programs count. `budget_pct`: default of --cpu-budget."""
    group = parser.add_argument_group("what to measure")
    add = group.add_argument
    add(
        "-p",
        "--pid",
        type=pids_value,
        action=AddIds,
        default=(),
        metavar="PID,…",
        help="only these processes; CONTAINER:PID takes the PID inside a container",
    )
    add("-t", "--tid", type=ids_value, action=AddIds, default=(), metavar="TID,…", help="only these threads")
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
        type=state_value,
        default=0,
        metavar="STATE,…",
        help=f"only waits that begin in these states: {', '.join(STATES)}, a letter as in ps, or a mask",
    )
    add(
        "--min",
        type=setting("min"),
        metavar="TIME",
        help="shortest wait that gets a stack (default 1ms; a bare number is us); shorter waits are only counted",
    )
    add(
        "--max",
        type=wait_value,
        default=0,
        metavar="TIME",
        help="leave out waits longer than this (a bare number is us)",
    )
    add(
        "--debuginfod",
        nargs="?",
        const="auto",
        type=setting("debuginfod"),
        metavar="URL,…",
        help="download missing debug files from these servers; without a URL, from those set up on this machine",
    )
    add(
        "--source",
        type=setting("source"),
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
        type=stack_bytes_value,
        default=_STACK_BYTES,
        metavar="SIZE",
        help="how much of a stack to copy if the kernel cannot unwind it yet, 1K to 64K (default 16K)",
    )
    add(
        "--cpu-budget",
        type=percent_value,
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


def add_waker_options(parser: argparse.ArgumentParser, lists: str = "") -> None:
    """Add the options about who ended the waits. `lists`: a restriction of the modes in LIST_MODES, for the help."""
    add = parser.add_argument_group("wakers").add_argument
    add(
        "--mode",
        type=setting("mode"),
        metavar="MODE",
        help=f"{', '.join((*MODES, FILE))} or {DISK}: where threads wait, who woke them, both, the chain of wakers, "
        f"file operations, or requests to disks{lists} (default {MODES[0]})",
    )
    add(
        "--depth",
        type=depth_value,
        default=DEFAULT_DEPTH,
        metavar="N",
        help=f"wakers in a chain, 2 to {MOST_DEPTH} (default {DEFAULT_DEPTH})",
    )


def add_outlier_options(parser: argparse.ArgumentParser, *, live: bool = False) -> None:
    """Add the options about outliers; `live`: also what screen and batch do when there is one."""
    add = parser.add_argument_group("outliers").add_argument
    add(
        "--trigger",
        action="append",
        metavar="RULE",
        help="keep waits that match, e.g. 'lock.max > 500ms', 'comm:mysqld disk.p99 > 50ms for 3s', 'any.now > 5s'; "
        "file.max > 100ms, request.p99 > 20ms: file operations, requests to disks; "
        "suspect: what others wait for; auto (the default): far longer than usual; off. Times need a unit. May be "
        "given more than once",
    )
    add(
        "--on-trigger",
        metavar="COMMAND",
        help="run this command at an outlier, at most once in 30 s for a rule, program and category, as the user who "
        "typed sudo; OFFTOP_* variables describe the outlier",
    )
    if live:
        add("--freeze", action="store_true", help="screen: pause at the first outlier")
        add("--fail-on-trigger", action="store_true", help="batch: exit with status 5 if there was an outlier")


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide which waits are written."""
    add = parser.add_argument_group("what to show").add_argument
    add("-u", "--user", type=user_value, metavar="NAME", help="only this user's processes (name or id)")
    add("--filter", default="", metavar="EXPR", help="only waits that match, e.g. 'comm=mysql* cat=lock'")
    add("-i", "--idle", action="store_true", default=None, help="include idle waits")


def add_display_options(parser: argparse.ArgumentParser, *, any_user: bool = False) -> None:
    """Add the options that decide what screen and tables show.

    `any_user`: the caller checks whether the user exists.
    """
    add = parser.add_argument_group("what to show").add_argument
    is_user = str if any_user else user_value
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
        type=rate_value,
        metavar="R[,C]",
        help="requests per second, and CPU time per request, e.g. 1500,1ms: shows whether the process waits more than "
        "this load explains",
    )
    add("--stuck", action="store_true", help="start with the waits in progress; batch: print them too")
    add("-i", "--idle", action="store_true", default=None, help="show idle waits too")
    add(
        "-o",
        "--sort",
        type=setting("sort"),
        metavar="FIELD",
        help=f"sort by {', '.join(SORTS[:-1])} or {SORTS[-1]}; -FIELD reverses the order",
    )
    add("--baseline", metavar="FILE", help="compare with this recording: what changed, what is new, what is gone")
    add("--window", type=setting("window"), metavar="SPAN", help="screen: numbers over 1s, 10s, 60s, or since start")
    add(
        "--history",
        type=setting("history"),
        metavar="TIME",
        help="screen: how far back you can rewind (default 10m)",
    )
    add(
        "--snapshot-dir",
        type=lambda text: text if text.startswith("~/") else str(Path.cwd() / text),
        metavar="DIR",
        help="screen: where the key s saves clips (default: the current directory)",
    )
    add_look_options(add)
    add("--config", metavar="FILE", help="read settings from this file")


def add_look_options(add: Callable[..., object]) -> None:
    """Add the options about how the screen is drawn."""
    add("--theme", type=setting("theme"), metavar="NAME", help=f"screen: {', '.join(paths.theme_names())}")
    add("--color", choices=("auto", "always", "never"), help="screen: use colours or not; always overrides NO_COLOR")
    add("--ascii", action="store_true", default=None, help="screen: draw with ASCII characters only")
    add("--mouse", action=argparse.BooleanOptionalAction, help="screen: use the mouse (default)")


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
