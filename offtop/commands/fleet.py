"""Run `offtop fleet`: many machines, from the API of Prometheus."""

import argparse
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from offtop.commands import choices, option_groups
from offtop.commands.output import flushed_output, warn_of_batch_mode, why_no_screen
from offtop.errors import OfftopError, UsageError, warn
from offtop.remote.ssh import as_root, ssh_words
from offtop.units import NS_PER_S

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.fleet.survey import Question, Survey

_MISSING = (
    "offtop fleet needs the Python package {}. Install offtop with it: pip install 'offtop[fleet]'; offtop's own "
    "packages and make install have it"
)

_SSH_FAILED = 255


def run(args: argparse.Namespace) -> int:
    """Show the hosts, on the screen or as text."""
    try:
        from offtop.fleet import promql
        from offtop.fleet.access import Access
        from offtop.fleet.client import Client
        from offtop.fleet.survey import Question, Survey
    except ModuleNotFoundError as error:
        raise OfftopError(_MISSING.format(error.name)) from None
    try:
        chosen = promql.parse_filter(args.filter)
    except ValueError as error:
        raise UsageError(f"--filter: expected {error}. See the page fleet of the manual") from None
    no_screen = why_no_screen(args.batch or args.json)
    client = Client(args.url, Access(args.http_config, args.ca_file))
    with contextlib.closing(client):
        survey, question = Survey(client), Question(args.range or 0, None, chosen)
        if no_screen is None:
            return _screen(survey, question, client.url, args)
        warn_of_batch_mode(no_screen)
        return _batch(survey, question, client.url, args)


def _screen(survey: "Survey", question: "Question", url: str, args: argparse.Namespace) -> int:
    from offtop.fleet.reader import Reader

    loaded, _ = choices.load(args)
    choices.check_theme(loaded)
    reader = Reader(survey, question, args.every)
    reader.start()  # the first answer comes while the screen is imported
    from offtop.ui.fleet.app import FleetApp
    from offtop.ui.kit import terminal, terminal_app

    settings = loaded.settings
    environment = {**os.environ}  # with NO_COLOR
    live, ssh = live_command(args), ssh_words(args.ssh_command)
    look = terminal.choose_look(settings.theme, settings.ascii, settings.color)
    app = FleetApp(
        reader,
        args.filter,
        tuple(choices.category_rules().ids),
        _cause_names(),
        lambda host: run_in_terminal([*live, f"--host={host}"], environment),
        lambda host, at_ns: run_in_terminal(recording_command(args, ssh, host, at_ns), environment),
        theme_name=look.theme,
        ascii_only=look.ascii_only,
        mouse=settings.mouse,
        iterations=args.iterations,
    )
    return terminal_app.run(app)


def _cause_names() -> dict[str, str]:
    """Return what each cause rule that comes with offtop is called, by its id."""
    from offtop import paths
    from offtop.model.classify import causes

    known = choices.category_rules().ids
    rules = causes.parse(paths.rules().read_text(encoding="utf-8"), "rules.toml", "", known)
    return {rule.id: rule.name for rule in rules.rules}


def live_command(args: argparse.Namespace) -> list[str]:
    """Return the command that shows a host live, but for the host: this offtop, with the same look."""
    python = [sys.executable, "-I"] if sys.flags.isolated else [sys.executable]
    return [*python, sys.argv[0], *option_groups.look_arguments(args), *option_groups.ssh_arguments(args)]


def recording_command(args: argparse.Namespace, ssh: Sequence[str], host: str, at_ns: int) -> list[str]:
    """Return the command that shows what the agent of a host has recorded, from a moment on (CLOCK_REALTIME).

    It runs on that host, in a terminal of `ssh`.
    """
    moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # A config file is of this machine.
    look = [one for one in option_groups.look_arguments(args) if not one.startswith("--config=")]
    command = [args.remote_offtop or "offtop", "replay", "latest", f"--begin={moment}", *look]
    there = as_root(command, args.sudo_command, "sudo")  # which may ask for a password: there is a terminal
    return [*ssh, "-t", "-a", "-x", "-o", "ClearAllForwardings=yes", "--", host, there]


def run_in_terminal(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command in this terminal, until the person leaves it; if it fails, until they have read why."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the child, which sets its own handler
    try:
        status = subprocess.run(command, env=environment).returncode
        if 0 < status < 128 or status == _SSH_FAILED:
            print("Press Enter to return to the hosts.", end=" ", flush=True)
            sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, handler)


def _batch(survey: "Survey", question: "Question", url: str, args: argparse.Namespace) -> int:
    """Print the hosts at each refresh. Once there was an answer, a failure is a line on stderr."""
    from offtop.fleet import reports
    from offtop.fleet.client import ApiError
    from offtop.fleet.hosts import STANDS_OUT
    from offtop.fleet.reader import delay_ns
    from offtop.reports.json_encoding import encode

    order, fleet = tuple(choices.category_rules().ids), None
    for number in itertools.count(1):
        is_first = fleet is None
        try:
            found = survey.fleet(question)
            fleet = survey.with_beginnings(found, question.filter, len(found.suspects))
        except ApiError as error:
            if is_first:
                raise
            warn(f"offtop: {error}")
        else:
            made = reports.as_object(fleet, url, args.filter, STANDS_OUT)
            text = f"{encode(made)}\n" if args.json else reports.as_text(fleet, url, order, STANDS_OUT, args.width)
            with flushed_output():
                sys.stdout.write(text if is_first or args.json else f"\n{text}")
        if number == args.iterations:
            return 0
        time.sleep(delay_ns(args.every, fleet) / NS_PER_S)
    return 0
