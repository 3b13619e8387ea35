"""Choose what to measure, and with which source: BPF, or otherwise samples of /proc."""

import argparse
import contextlib
import math
import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from offtop.commands import option_groups
from offtop.errors import KernelError, OfftopError, PrivilegeError, UsageError, warn
from offtop.feed.source import Source
from offtop.model.classify import categories
from offtop.model.outliers.trigger import io_modes
from offtop.model.values.disks import LIST_NOUNS
from offtop.model.values.snapshot import Filters
from offtop.units import NS_PER_S

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.settings.config import Loaded

_GRACE_NS = 300 * NS_PER_S
"""How much longer than the history a source keeps names."""


def check_filters(args: argparse.Namespace, loaded: "Loaded") -> None:
    """Raise UsageError for options that exclude each other."""
    if args.max and args.max < loaded.settings.min_ns:
        raise UsageError("--max is below --min, so no wait would be shown. Give a larger --max or a smaller --min")
    if args.within is not None and getattr(args, "rate", None):
        raise UsageError("--rate needs all of a thread's time, and --within counts only a part. Omit one of them")


def filters(args: argparse.Namespace, loaded: "Loaded") -> Filters:
    settings = loaded.settings
    check_filters(args, loaded)
    cgroup = ""
    if args.cgroup is not None:
        from offtop.kernel.procfs import cgroup_selector

        cgroup = cgroup_selector.find(args.cgroup).path
    return Filters(
        pids=_pids(args.pid),
        tids=args.tid,
        who=args.who or "all",
        states=args.state,
        min_ns=settings.min_ns,
        max_ns=args.max,
        cgroup=cgroup,
        within=_within(args),
    )


def _within(args: argparse.Namespace) -> str:
    if args.within is None:
        return ""
    from offtop.kernel.scope import within

    within.split_spec(args.within)
    return args.within


def _pids(args: tuple[int | tuple[str, int], ...]) -> tuple[int, ...]:
    """Return PIDs in offtop's PID namespace.

    Raises UsageError for a container, or a PID in it, that does not exist.
    """
    named = [one for one in args if not isinstance(one, int)]
    if not named:
        return tuple(one for one in args if isinstance(one, int))
    from offtop.kernel.bpf import pid_namespace

    return tuple(sorted({one if isinstance(one, int) else pid_namespace.pid_in(*one) for one in args}))


@contextlib.contextmanager
def live(
    rules: categories.Categories,
    filters: Filters,
    args: argparse.Namespace,
    loaded: "Loaded",
    least_keep_ns: int = 0,
    counted: str = "",
    triggers: Sequence[str] = (),
) -> Generator[Source]:
    """Open a live source until the block ends, and print its notices.

    `least_keep_ns`: how long it keeps names at least. `counted`: one of LIST_MODES, to count what it lists; empty:
    nothing more than waits. `triggers`: those that will judge it. Raises UsageError, PrivilegeError or KernelError.
    """
    keep_ns = max(loaded.settings.history_ns, least_keep_ns) + _GRACE_NS
    wanted, refused = loaded.settings.source, None
    source: Source | None = None
    if wanted == "proc" and args.probe != "auto":
        raise UsageError("--probe has no effect when sampling /proc. Omit it, or add --source bpf")
    if wanted != "proc":
        try:
            source = _traced(rules, filters, args, loaded, keep_ns, counted)
        except (PrivilegeError, KernelError) as error:
            if wanted == "bpf" or args.probe != "auto":
                raise
            refused = error
    is_sampled = source is None
    source = source or _sampled(rules, filters, args, loaded, keep_ns, counted, refused)
    for notice in source.notices:
        warn(f"offtop: {notice}")
    try:
        _count_for_triggers(source, triggers, counted, is_sampled)
        yield source
    finally:
        source.close()


def _count_for_triggers(source: Source, triggers: Sequence[str], counted: str, is_sampled: bool) -> None:
    """Have file operations and requests to disks counted if triggers judge them; warn if that is not possible."""
    from offtop.kernel.sampling.source import UNSEEN

    for mode in sorted(io_modes(triggers) - {counted}):
        try:
            source.set_counted(mode, True)
        except OfftopError as error:
            remedy = f"They need BPF: {UNSEEN[mode]}. See what is missing: offtop doctor"
            warn(f"offtop: triggers for {LIST_NOUNS[mode]} have no effect. {remedy if is_sampled else error}")


def _traced(
    rules: categories.Categories,
    filters: Filters,
    args: argparse.Namespace,
    loaded: "Loaded",
    keep_ns: int,
    counted: str,
) -> Source:
    from offtop.kernel.bpf.program import CHECK_EVERY, Unwind
    from offtop.kernel.live import LiveSource

    check_every = 0 if args.exact_stacks else CHECK_EVERY
    kernel_check_every = CHECK_EVERY if args.verify_kernel_stacks else 0
    return LiveSource(
        rules,
        filters,
        probe=args.probe,
        unwind=Unwind(args.unwind, args.unwind_bytes >> 10, args.cpu_budget, check_every, kernel_check_every),
        keep_ns=keep_ns,
        mode=loaded.settings.wait_mode,
        depth=args.depth,
        debuginfod=_servers(loaded.settings.debuginfod),
        budget_pct=math.inf if args.exact_stacks else args.cpu_budget,
        counted=[counted] if counted else [],
    )


def _sampled(
    rules: categories.Categories,
    filters: Filters,
    args: argparse.Namespace,
    loaded: "Loaded",
    keep_ns: int,
    counted: str,
    refused: OfftopError | None,
) -> Source:
    """Open a source that samples /proc.

    `refused`: why BPF is not available; becomes part of the error if an option needs BPF.
    """
    from offtop.kernel.sampling.source import NOT_LISTED, NeedsBpfError, ProcSource

    try:
        if counted and refused:  # it may be that BPF works, but not the programs for this mode
            raise refused
        if counted:
            raise NeedsBpfError(NOT_LISTED[counted])
        ignored = option_groups.options_ignored_without_bpf(args)
        return ProcSource(rules, filters, args.cpu_budget, keep_ns, loaded.settings.wait_mode, refused, ignored)
    except NeedsBpfError as error:
        if not refused:
            raise
        kind = PrivilegeError if isinstance(refused, PrivilegeError) else KernelError
        raise kind(f"{str(refused).rstrip('.')}. {error}") from error
    except KernelError as error:
        raise refused or error from error


def _servers(setting: str) -> Sequence[str]:
    """Return the debuginfod servers of a setting. Raises UsageError if `auto` finds none."""
    if not setting:
        return ()
    from offtop.kernel.binary import debuginfod

    return debuginfod.servers(setting, os.environ)
