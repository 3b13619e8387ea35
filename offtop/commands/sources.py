"""What is measured, of what was asked for, and by which source: the kernel's own, or else samples of /proc."""

import argparse
import contextlib
import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from offtop.commands import options
from offtop.errors import KernelError, OfftopError, PrivilegeError, UsageError, warn
from offtop.feed.source import Source
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters
from offtop.units import NS_PER_S

if TYPE_CHECKING:  # not to be loaded for --help
    from offtop.settings.config import Loaded

_GRACE_NS = 300 * NS_PER_S


def filters(asked: argparse.Namespace, loaded: "Loaded") -> Filters:
    settings = loaded.settings
    if asked.max and asked.max < settings.min_ns:
        raise UsageError("--max is below --min, so no wait would be shown. Give a larger --max or a smaller --min")
    cgroup = ""
    if asked.cgroup is not None:
        from offtop.kernel.procfs import cgroup_selector

        cgroup = cgroup_selector.find(asked.cgroup).path
    return Filters(
        pids=_pids(asked.pid),
        tids=asked.tid,
        who=asked.who or "all",
        states=asked.state,
        min_ns=settings.min_ns,
        max_ns=asked.max,
        cgroup=cgroup,
        within=_within(asked),
    )


def _within(asked: argparse.Namespace) -> str:
    if asked.within is None:
        return ""
    if getattr(asked, "rate", None):
        raise UsageError("--rate is about whole seconds of threads, and --within counts parts of them. Leave one out")
    from offtop.kernel.scope import within

    within.parted(asked.within)
    return asked.within


def _pids(asked: tuple[int | tuple[str, int], ...]) -> tuple[int, ...]:
    """As they are seen here. Raises UsageError for one of a container, or in it, that is not there."""
    named = [one for one in asked if not isinstance(one, int)]
    if not named:
        return tuple(one for one in asked if isinstance(one, int))
    from offtop.kernel.bpf import pid_namespace

    return tuple(sorted({one if isinstance(one, int) else pid_namespace.pid_in(*one) for one in asked}))


@contextlib.contextmanager
def live(
    rules: categories.Categories,
    filters: Filters,
    asked: argparse.Namespace,
    loaded: "Loaded",
    least_keep_ns: int = 0,
) -> Generator[Source]:
    """`least_keep_ns`: how long it is to keep what it names, at least."""
    keep_ns = max(loaded.settings.history_ns, least_keep_ns) + _GRACE_NS
    wanted, refused = loaded.settings.source, None
    source: Source | None = None
    if wanted == "proc" and asked.door != "auto":
        raise UsageError("--probe is BPF's: sampling /proc needs none. Leave it out, or add --source bpf")
    if wanted != "proc":
        try:
            source = _traced(rules, filters, asked, loaded, keep_ns)
        except (PrivilegeError, KernelError) as error:
            if wanted == "bpf" or asked.door != "auto":
                raise
            refused = error
    is_sampled = source is None
    source = source or _sampled(rules, filters, asked, loaded, keep_ns, refused)
    for notice in source.notices:
        warn(f"offtop: {notice}")
    if is_sampled and (idle := options.for_tracing(asked)):
        warn(f"offtop: without BPF this does nothing: {', '.join(idle)}")
    try:
        yield source
    finally:
        source.close()


def _traced(
    rules: categories.Categories, filters: Filters, asked: argparse.Namespace, loaded: "Loaded", keep_ns: int
) -> Source:
    from offtop.kernel.bpf.program import Unwind
    from offtop.kernel.live import LiveSource

    return LiveSource(
        rules,
        filters,
        door=asked.door,
        unwind=Unwind(asked.unwind, asked.unwind_bytes >> 10, asked.cpu_budget),
        keep_ns=keep_ns,
        mode=loaded.settings.mode,
        depth=asked.depth,
        debuginfod=_servers(loaded.settings.debuginfod),
    )


def _sampled(
    rules: categories.Categories,
    filters: Filters,
    asked: argparse.Namespace,
    loaded: "Loaded",
    keep_ns: int,
    refused: OfftopError | None,
) -> Source:
    """`refused`: why there is no BPF. It is said, too, where what was asked for needs that."""
    from offtop.kernel.sampling.source import NeedsBpfError, ProcSource

    try:
        return ProcSource(rules, filters, asked.cpu_budget, keep_ns, loaded.settings.mode, refused)
    except NeedsBpfError as error:
        raise (type(refused)(f"{str(refused).rstrip('.')}. {error}") if refused else error) from error
    except KernelError as error:
        raise refused or error from error


def _servers(said: str) -> Sequence[str]:
    """Raises UsageError where none is known."""
    if not said:
        return ()
    from offtop.kernel.binary import debuginfod

    return debuginfod.servers(said, os.environ)
