"""A question on the alert line, with an input field for the answer."""

from collections.abc import Callable, Mapping

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input

from offtop.ui.kit.glyphs import Glyphs
from offtop.ui.kit.lines import Panel, fit, plain, width_of


class _Answer(Input):
    def validate_value(self, value: str) -> str:
        """Drop unprintable characters: pasted text may contain escape codes for the terminal."""
        return "".join(character for character in value if character.isprintable())


_EDITS: Mapping[str, str] = {
    key: binding.action
    for binding in Input.BINDINGS
    if isinstance(binding, Binding) and binding.action not in ("submit", "copy")
    for key in binding.key.split(",")
}
"""Keys that edit an answer, and the action of each."""


class Prompt(Horizontal):
    DEFAULT_CSS = """
    Prompt { position: absolute; height: 1; width: 100%; display: none; }
    Prompt > #question { width: auto; height: 1; }
    Prompt > #answer {
        width: 1fr; height: 1; border: none; padding: 0; background: $background; color: $foreground;
    }
    """

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(id="asking")
        self._glyphs = glyphs
        self._question = Panel("question")
        self._answer = _Answer(id="answer", compact=True, disabled=True)
        self._answered: Callable[[str], str | None] | None = None
        self._typed: Callable[[str], None] | None = None
        self._asked = ""

    @property
    def is_open(self) -> bool:
        return self._answered is not None

    def compose(self) -> ComposeResult:
        yield self._question
        yield self._answer

    def ask(
        self,
        question: str,
        answered: Callable[[str], str | None],
        now: str = "",
        typed: Callable[[str], None] | None = None,
    ) -> None:
        """Open the question, with `now` as the initial answer.

        `answered` acts on the answer and returns None, or returns what is wrong with it. `typed` is called with the
        text after each change, and with an empty string if the question is cancelled.
        """
        self._answered, self._typed = answered, typed
        self._answer.disabled = False
        self.display = True
        self._show(question)
        self._answer.value = now
        self.screen.set_focus(self._answer)

    async def take(self, event: events.Key) -> bool:
        """Handle a key of the answer at once; return whether it was one.

        The reader of the keys calls this directly: over a slow line several keys arrive in one burst, and each must see
        the effect of the previous one.
        """
        if event.key == "escape":
            self.drop()
        elif event.key == "enter":
            self._submit()
        elif event.key in _EDITS:
            await self.app.run_action(_EDITS[event.key], self._answer)  # pyright: ignore[reportUnknownMemberType]
        elif event.is_printable and event.character:
            self._answer.replace(event.character, *self._answer.selection)
        else:
            return False
        return True

    def paste(self, text: str) -> None:
        """Insert the first line of pasted text."""
        if text:
            self._answer.replace(text.splitlines()[0], *self._answer.selection)

    def on_resize(self) -> None:
        if self.is_open:
            self._show(self._asked)

    def _show(self, question: str) -> None:
        self._asked = question
        room = max(2, self.screen.size.width * 3 // 4)
        shown = question if len(question) <= room else f"{fit(question, room - 1, self._glyphs)} "
        line = plain(fit(shown, len(shown), self._glyphs), "alert")
        self._question.styles.width = width_of(line.spans)
        self._question.show([line])

    def drop(self) -> None:
        """Close the question without an answer."""
        if self._typed:
            self._typed("")
        self._close()

    def _close(self) -> None:
        self._answered = self._typed = None
        self._answer.disabled = True
        self.display = False
        self.screen.set_focus(None)

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        if self._typed and message.value == self._answer.value:
            self._typed(message.value)

    def _submit(self) -> None:
        wrong = self._answered(self._answer.value) if self._answered else None
        if wrong is None:
            self._close()
        else:
            self._show(f"{wrong}: ")
            self._answer.action_select_all()
