"""The keys that write a file into the working directory: the selection for other programs, and the screen."""

import re
from datetime import datetime
from pathlib import Path

from offtop.errors import OfftopError
from offtop.export.profile import profile_of
from offtop.model.cut import Shares
from offtop.model.picture import Picture
from offtop.model.window import Window
from offtop.takeaway import ENDINGS, FORMATS, in_form
from offtop.ui.chooser import Choice, Chooser
from offtop.ui.head import selection
from offtop.ui.modes import Modes


class Keeping(Modes):
    def action_export(self) -> None:
        """What is selected, over the span that is shown."""
        if self._picture is None or not self._picture.gathered:
            self._say("there is nothing to write yet")
            return
        choices = [Choice(name, f"{name:<10} {what}") for name, what in FORMATS.items()]
        self.push_screen(Chooser("write the selection as", lambda: choices, self._export, self._glyphs, closes=True))

    def _export(self, form: str) -> None:
        picture = self._picture
        if picture is None:
            return
        window, shares = self._selected(picture)
        mode, idle, host = picture.view.mode, picture.view.idle_shown, self._source.host
        made = profile_of(window, shares, self._source.names, host, mode, idle)
        machine = re.sub(r"[^A-Za-z0-9.-]", "_", host)
        file = Path(f"offtop-{machine}-{_now()}.{ENDINGS[form]}")
        self._write(file, in_form(form, made, selection(picture, self._glyphs)))

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
