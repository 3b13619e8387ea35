"""Run `offtop agent`: the headless exporter."""

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from offtop.commands import choices, recordings, saved_files, sources
from offtop.errors import OfftopError, UsageError, warn
from offtop.model.values.disks import LIST_MODES
from offtop.printable import printable
from offtop.units import NS_PER_S

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.agent.exposition import Recording
    from offtop.agent.server import Address
    from offtop.agent.web_config import Access
    from offtop.feed.pace import Pace
    from offtop.feed.source import Source
    from offtop.model.windows.history import HistoryTick
    from offtop.person import Person
    from offtop.recording.writer import Recorder
    from offtop.settings.config import Loaded

_KEEP_NS = 6 * 3600 * NS_PER_S
_CHECK_NS = 60 * NS_PER_S
"""How often old recordings are deleted, and a new one begins if one has failed."""
_MISSING = (
    "offtop agent needs the Python package {}. Install offtop with it: pip install 'offtop[agent]'; offtop's own "
    "packages and make install have it"
)


def run(args: argparse.Namespace) -> int:
    """Measure and answer requests until a signal ends it."""
    try:
        from offtop.agent import agent, server
    except ModuleNotFoundError as error:
        raise OfftopError(_MISSING.format(error.name)) from None
    where = server.address(args.listen)
    access = _access(args, where)
    if args.directory is None and (args.keep or args.max_size or args.cmdlines):
        raise UsageError("--keep, --max-size and --cmdlines are for recordings. Add --directory DIR, or omit them")
    args.keep = args.keep or _KEEP_NS
    rules = choices.category_rules()
    loaded, owner = choices.load(args)
    filters = sources.filters(args, loaded)
    outlier_actions = choices.outlier_actions(loaded, rules, owner) if args.directory is not None else None
    kept = _Recordings(args, loaded, owner) if args.directory is not None else None
    with (
        choices.rule_files(rules, loaded, owner) as files,
        contextlib.ExitStack() as stack,
    ):
        listening = server.Server(where, access)  # before the BPF programs are loaded, because the port may be taken
        stack.callback(listening.close)
        triggers = outlier_actions.texts if outlier_actions else ()
        mode = loaded.settings.mode
        counted = mode if kept and mode in LIST_MODES else ""  # metrics and profiles are of waits only
        live = sources.live(rules, filters, args, loaded, agent.HISTORY_NS, counted, triggers)
        source = stack.enter_context(live)
        one = agent.Agent(
            source,
            rules,
            files,
            choices.suspect_weights(),
            loaded.settings.delay_ns,
            args.series,
            outlier_actions.detector if outlier_actions else None,
        )
        if kept and outlier_actions:
            kept.start(source, one.pace)
            stack.callback(kept.close)
            one.pace.alarm, one.recording = outlier_actions.alarm, lambda: kept.state
        listening.start(one.pages)
        scheme = "https" if access().tls else "http"
        warn(f"offtop: {scheme}://{listening.text}/metrics; ctrl-C ends it")
        one.run(kept.at if kept else lambda _: None)
        warn("offtop: all measured processes have exited")
    return 0


def _access(args: argparse.Namespace, where: "Address") -> "Callable[[], Access]":
    """Return who may connect. Raises UsageError if that would be anyone in the network."""
    from offtop.agent import web_config

    file = web_config.WebConfig(Path(args.web_config)) if args.web_config is not None else None
    is_closed = where.is_loopback or args.insecure_listen or (file and file.access.is_closed)
    if not is_closed:
        lacks = "has no TLS, or no users and no client certificates" if file else "needs --web.config.file"
        subject = f"{web_config.OPTION}: {printable(str(args.web_config))}" if file else f"--listen {where.text}"
        raise UsageError(
            f"{subject} {lacks}, and other machines could read which programs run here. Give a file with TLS and "
            "users, listen on 127.0.0.1, or add --insecure-listen"
        )
    return (lambda: file.access) if file else (lambda: web_config.OPEN)


class _Recordings:
    """Keeps the last hours in a directory. A write that fails does not end the agent: a minute later it tries again."""

    def __init__(self, args: argparse.Namespace, loaded: "Loaded", owner: "Person") -> None:
        """Delete what is too old, because the disk may be full. Raises OfftopError if the directory cannot be used."""
        from offtop.recording import writer

        self._directory, self._keep_ns, self._owner = Path(args.directory), args.keep, owner
        self._most_bytes = args.max_size or writer.MOST_BYTES
        self._files = saved_files.SavedFiles(loaded, owner, args)
        self._recorder: Recorder | None = None
        self._next_ns = 0
        self._delete()

    def start(self, source: "Source", pace: "Pace") -> None:
        """Write a new recording. Raises OfftopError."""
        self._source, self._pace = source, pace
        self._recorder = pace.recorder = self._files.recorder(source)

    def at(self, tick: "HistoryTick") -> None:
        if tick.at_ns >= self._next_ns:
            self._next_ns = tick.at_ns + _CHECK_NS
            try:
                self._delete()
                if self._recorder and self._recorder.failure:
                    warn(f"offtop: {self._recorder.close()}. In a minute, a new recording begins")
                    self._recorder = self._pace.recorder = None
                elif self._recorder is None:
                    self.start(self._source, self._pace)
            except OfftopError as error:  # the metrics go on
                warn(f"offtop: {error}")

    def close(self) -> None:
        if self._recorder:
            warn(f"offtop: {self._recorder.close()}")

    @property
    def state(self) -> "Recording":
        from offtop.agent.exposition import Recording

        recorder = self._recorder
        return Recording(bool(recorder and not recorder.failure), recorder.bytes_written if recorder else 0)

    def _delete(self) -> None:
        used = self._recorder.path if self._recorder else None
        recordings.delete_oldest(self._directory, self._keep_ns, self._most_bytes, self._owner, used)
