"""Open another machine as a source: which options it gets, and how it is reached."""

import argparse
import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from offtop.commands import option_groups, sources
from offtop.errors import UsageError, warn
from offtop.model.classify import categories
from offtop.person import NO_USER, is_user
from offtop.printable import printable

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.remote.source import RemoteSource
    from offtop.settings.config import Loaded


@contextlib.contextmanager
def opened(
    args: argparse.Namespace, loaded: "Loaded", rules: categories.Categories, report: Callable[[str], None]
) -> "Generator[RemoteSource]":
    """Connect to --host until the block ends, and print its notices.

    ssh may ask for a password meanwhile. `report` is called when the connection is lost and when it is back. Raises
    OfftopError.
    """
    from offtop.remote.source import RemoteSource
    from offtop.remote.ssh import Target, ssh_words

    sources.check_filters(args, loaded)
    target = Target(
        args.host,
        record_arguments(args, loaded),
        ssh_words(args.ssh_command),
        args.sudo_command,
        args.remote_offtop or "offtop",
    )
    source = RemoteSource(target, loaded.settings.delay_ns, rules.ids, report)
    try:
        for notice in source.notices:
            warn(f"offtop: {source.host}: {notice}")
        yield source
    finally:
        source.close()


def record_arguments(args: argparse.Namespace, loaded: "Loaded") -> Sequence[str]:
    """Return the arguments of `offtop record` on the host: what is measured there follows the settings here."""
    from offtop.recording import stream

    settings, origin = loaded.settings, loaded.origin
    found = ["--output=-", f"--stream-version={stream.VERSION}"]
    found += [f"--delay={settings.delay_ns}ns", f"--min={settings.min_ns}ns", f"--mode={settings.mode}"]
    for trigger in settings.triggers:
        found.append(f"--trigger={trigger}")
    found.append("--on-trigger=")  # the command is run here
    for name, value in (("debuginfod", settings.debuginfod), ("source", settings.source)):
        if origin[name] == "command line":  # the config file's are about this machine
            found.append(f"--{name}={value}")
    return [*found, *option_groups.measuring_arguments(args)]


def check_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that need --host, or a user who is not on this machine."""
    is_there = args.host is not None and args.user
    if args.user is not None and not is_there and not is_user(args.user):
        raise UsageError(f"argument -u/--user: '{printable(args.user)}' is not {NO_USER}. See: offtop --help")
    for name, option in option_groups.SSH_OPTIONS.items():
        if args.host is None and getattr(args, name) is not None:
            raise UsageError(f"{option} is about another machine. Add --host HOST, or omit it")
