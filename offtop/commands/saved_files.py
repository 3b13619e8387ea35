"""Save settings, exports, recordings and clips for the screen."""

import argparse
import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from offtop.feed.source import Source
from offtop.printable import printable

if TYPE_CHECKING:  # not imported at run time, so that --help is fast
    from offtop.model.viewmodel.view import View
    from offtop.person import Person
    from offtop.recording.writer import Recorder
    from offtop.settings.config import Loaded


@dataclass(frozen=True, slots=True)
class SavedFiles:
    """Writes files with the user's rights. Implements ui.actions.files.Files."""

    loaded: "Loaded"
    owner: "Person"
    args: argparse.Namespace
    theme: str = ""
    """Theme when the screen started."""
    clip_directory: Path | None = None
    """None: `--snapshot-dir` was not given."""

    def checked(self) -> "SavedFiles":
        """Return a copy with the clip directory set.

        Raises UsageError if the user cannot write there.
        """
        from offtop.commands import clip_file

        return replace(self, clip_directory=clip_file.clip_directory(self.loaded.settings.snapshot_dir, self.owner))

    def save_settings(self, view: "View", theme: str, mouse: bool) -> str:
        from offtop.settings import config, saving

        before = self.loaded.settings
        settings = replace(
            before,
            theme=before.theme if theme == self.theme else theme,
            mouse=mouse,
            delay_ns=view.delay_ns,
            span_ns=view.span_ns,
            min_ns=view.filters.min_ns,
            idle=view.idle_shown,
            threads=view.threads,
            programs=view.programs,
            mode=view.mode,
            sort=view.sort,
            reverse=view.reverse,
            names=view.names,
            latency=view.latency,
            hidden=view.hidden,
            muted=tuple(one.text for one in view.muted),
            triggers=view.triggers or before.triggers,
        )
        values = config.toml_of(settings)
        for name in ("debuginfod", "on_trigger"):  # they reach the network or run commands: never saved implicitly
            if self.loaded.origin[name] == "command line":
                del values[name]
        return saving.save(self.loaded.path, self.owner, values)

    def write(self, path: Path, text: str | bytes) -> str:
        from offtop.person import write_theirs

        write_theirs(path, self.owner, text)
        return f"written to {printable(str(path))}"

    def recorder(self, source: Source, file: str = "") -> "Recorder":
        from offtop.recording import writer

        args, directory = self.args, getattr(self.args, "directory", None)
        most_bytes = getattr(args, "max_size", None) or writer.MOST_BYTES
        host = re.sub(r"[^A-Za-z0-9.-]", "_", source.host)
        return writer.Recorder(
            Path(directory or "", file or f"offtop-{host}-{datetime.now():%Y%m%dT%H%M%S}.offtop"),
            source,
            self.owner,
            keep_ns=getattr(args, "keep", None) or writer.KEEP_NS,
            # The recording from before a restart stays until the new one is as large.
            most_bytes=most_bytes // 2 if directory is not None else most_bytes,
            cmdlines=getattr(args, "cmdlines", False),
        )

    def clip(self, source: Source, what: str, taken_ns: int) -> "Recorder":
        from offtop.commands import clip_file

        cmdlines = getattr(self.args, "cmdlines", False)
        return clip_file.new_clip(source, self.owner, self.clip_directory, what, taken_ns, cmdlines=cmdlines)
