"""The keys that write a file into the working directory: the selection for other programs, and the screen."""

import re
from datetime import datetime
from pathlib import Path
from threading import Thread

from textual.message import Message

from offtop.errors import OfftopError
from offtop.export.profile import profile_of
from offtop.model.cut import Shares
from offtop.model.picture import Picture
from offtop.model.window import Window
from offtop.takeaway import ENDINGS, FORMATS, in_form
from offtop.ui.chooser import Choice, Chooser
from offtop.ui.head import selection
from offtop.ui.modes import Modes


class Exported(Message):
    """What was asked for is there to be written."""

    def __init__(self, form: str, content: str | bytes) -> None:
        super().__init__()
        self.form, self.content = form, content


class Keeping(Modes):
    def action_export(self) -> None:
        """What is selected, over the span that is shown."""
        if self._picture is None or not self._picture.gathered:
            self._say("there is nothing to write yet")
            return
        choices = [Choice(name, f"{name:<10} {what}") for name, what in FORMATS.items()]
        self.push_screen(Chooser("write the selection as", lambda: choices, self._export, self._glyphs, closes=True))

    def _export(self, form: str) -> None:
        if self._picture is not None:
            self._say("writing…")
            Thread(target=self._exported, args=(form, self._picture), name="offtop-export", daemon=True).start()

    def _exported(self, form: str, picture: Picture) -> None:
        """In a thread of its own: a minute of thousands of stacks takes seconds."""
        window, shares = self._selected(picture)
        mode, idle, host = picture.view.mode, picture.view.idle_shown, self._source.host
        made = profile_of(window, shares, self._source.names, host, mode, idle)
        self.post_message(Exported(form, in_form(form, made, selection(picture, self._glyphs))))

    def on_exported(self, message: Exported) -> None:
        machine = re.sub(r"[^A-Za-z0-9.-]", "_", self._source.host)
        self._write(Path(f"offtop-{machine}-{_now()}.{ENDINGS[message.form]}"), message.content)

    def action_save_screen(self) -> None:
        self._write(Path(f"offtop-{_now()}.svg"), self.export_screenshot())

    def _write(self, file: Path, content: str | bytes) -> None:
        try:
            self._say(self._write_file(file, content))
        except OfftopError as refused:
            self._say(str(refused))

    def _selected(self, picture: Picture) -> tuple[Window, Shares]:
        raise NotImplementedError

    def _write_file(self, path: Path, content: str | bytes) -> str:
        raise NotImplementedError


def _now() -> str:
    return datetime.now().strftime("%Y%m%dT%H%M%S")
