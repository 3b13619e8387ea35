"""Streams what is measured here to the offtop on another machine that started this one (`offtop --host`).

Requests arrive on stdin, one JSON object a line: another mode, filters, a delay. Measuring ends when the stream has no
reader, when stdin is closed after a request, or when no request has arrived for a minute.
"""

import argparse
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from offtop.commands import choices, sources
from offtop.errors import OfftopError, UsageError
from offtop.feed.outlier_actions import OutlierActions
from offtop.feed.pace import Pace
from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch, history_for
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.disks import DISK, LIST_MODES
from offtop.model.values.files import FILE
from offtop.model.values.wake import MODES
from offtop.recording import checked, stream, tick_rows
from offtop.recording.stream_writer import StreamWriter
from offtop.units import NS_PER_S

_KEEP_NS, _KEEP_BYTES = 5 * NS_PER_S, 1 << 20
"""Limits of the history, which is needed only to judge outliers."""
_MOST_LINE = 64 << 10
"""Longest request."""
_SILENT_S = 60.0
"""How long to go on without a request: the other machine sends an empty one every few seconds."""
_MOST_TRIGGERS, _MOST_TRIGGER = 40, 200
_MOST_DELAY_NS = 60 * NS_PER_S


def check(args: argparse.Namespace) -> None:
    """Raise UsageError if the stream cannot be written."""
    if args.stream_version not in (None, stream.VERSION):
        raise UsageError(
            f"This offtop writes version {stream.VERSION} of the stream, not {args.stream_version}. "
            "Use the same offtop on both machines"
        )
    if sys.__stdout__ is None or sys.stdout.isatty():
        raise UsageError("--output - is for offtop --host, not for a terminal. Name a file")


def record(args: argparse.Namespace) -> int:
    """Write the stream to stdout until it has no reader."""
    check(args)
    rules = choices.category_rules()
    loaded, owner = choices.load(args)
    filters = sources.filters(args, loaded)
    outlier_actions = choices.outlier_actions(loaded, rules, owner)
    out = os.dup(1)
    os.dup2(2, 1)  # nothing else may write into the stream
    mode = loaded.settings.mode
    counted = mode if mode in LIST_MODES else ""
    with (
        choices.rule_files(rules, loaded, owner) as files,
        sources.live(rules, filters, args, loaded, counted=counted, triggers=outlier_actions.texts) as source,
    ):
        try:
            writer = StreamWriter(source, out, filters, _boot())
        except OSError:
            return 0
        cause_finder = CauseFinder(source.names, files)
        suspects = SuspectWatch(source, choices.suspect_weights(), files)
        history = history_for(rules, cause_finder, suspects, _KEEP_NS, _KEEP_BYTES)
        pace = Pace(source, history, loaded.settings.delay_ns, detector=outlier_actions.detector, suspects=suspects)
        pace.recorder, pace.alarm = writer, outlier_actions.alarm
        writer.watch_reader(pace.stop)
        requests = Requests(source, pace, outlier_actions, writer)
        threading.Thread(target=requests.serve, args=(sys.stdin.buffer,), name="offtop-requests", daemon=True).start()
        threading.Thread(target=requests.end_when_silent, name="offtop-silence", daemon=True).start()
        first_ns = 0
        try:
            for number, tick in enumerate(pace.ticks(), 1):
                first_ns = first_ns or tick.at_ns - tick.span_ns
                has_lasted = args.duration is not None and tick.at_ns - first_ns >= args.duration
                if has_lasted or number == args.iterations:
                    break
        except BaseException:
            writer.has_reader = False
            raise
        writer.close()
    return 0


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class Requests:
    """Serves requests of the other machine."""

    def __init__(
        self,
        source: Source,
        pace: Pace,
        outlier_actions: OutlierActions,
        writer: StreamWriter,
    ) -> None:
        self._source, self._pace, self._outlier_actions, self._writer = source, pace, outlier_actions, writer
        self._arrived = threading.Event()
        self._has_ended = False

    def serve(self, lines: BinaryIO) -> None:
        """Serve requests until stdin ends. If there was one, end the stream then: the other machine is gone."""
        has_begun = False
        while line := lines.readline(_MOST_LINE):
            has_begun = True
            self._arrived.set()
            if not line.endswith(b"\n"):
                break
            if line.strip():
                self._serve(line)
        self._has_ended = True
        if has_begun:
            self._stop()

    def end_when_silent(self) -> None:
        """Stop measuring when requests stop arriving, though stdin stays open: the connection is dead."""
        self._arrived.wait()
        while not self._has_ended:
            self._arrived.clear()
            if not self._arrived.wait(_SILENT_S) and not self._has_ended:
                self._stop()
                return

    def _stop(self) -> None:
        self._writer.has_reader = False
        self._pace.stop()

    def _serve(self, line: bytes) -> None:
        number, fields, error = 0, dict[str, object](), ""
        try:
            request = checked.json_object(line)
            number = checked.identity(request.get("id"))
            fields = dict(self._carry_out(request))
        except OfftopError as refused:
            error = str(refused)
        except (ValueError, RecursionError):
            error = "This offtop does not know that request. Use the same offtop on both machines"
        self._writer.answer({"id": number, "error": error, **fields})

    def _carry_out(self, request: Mapping[str, object]) -> Mapping[str, object]:
        """Carry out a request, and return what to answer. Raises ValueError or OfftopError."""
        source = self._source
        match request.get("do"):
            case "mode":
                mode = checked.text(request.get("mode"))
                if mode not in MODES:
                    raise ValueError(mode)
                source.set_mode(mode, checked.identity(request.get("depth")))
            case "files":
                source.set_counted(FILE, request.get("wanted") is True)
            case "disks":
                source.set_counted(DISK, request.get("wanted") is True)
            case "filters":
                source.set_filters(tick_rows.decode_filters(request))
            case "delay":
                delay_ns = checked.integer(request.get("delay_ns"))
                checked_delay_ns = min(_MOST_DELAY_NS, max(NS_PER_S // 10, delay_ns))
                self._pace.set_delay(checked_delay_ns)
            case "triggers":
                texts = [checked.text(one)[:_MOST_TRIGGER] for one in checked.array(request.get("triggers"))]
                self._outlier_actions.set_triggers(texts[:_MOST_TRIGGERS], 0)
            case "details":
                return {"details": source.process_details(checked.identity(request.get("pid")))}
            case _:
                raise ValueError("unknown request")
        return {}
