"""A question on the alert line, and the answer that is typed to it."""

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input

from offtop.ui.glyphs import Glyphs
from offtop.ui.lines import Panel, fit, plain, width_of


class Dropped(Message):
    """The question was left without an answer."""


class _Answer(Input):
    """Textual takes keys like backspace later than letters: what comes in one burst over a slow line would be mixed
    up."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key in ("backspace", "escape"):
            event.stop()
            event.prevent_default()
            if event.key == "escape":
                self.post_message(Dropped())
            else:
                self.action_delete_left()
        else:
            await super()._on_key(event)

    def validate_value(self, value: str) -> str:
        """What is pasted may hold escape codes: they never reach the terminal."""
        return "".join(character for character in value if character.isprintable())


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
        """`answered` does what the answer says, or tells what is wrong with it. `typed` is told of each letter, and
        of nothing where the question is dropped."""
        self._answered, self._typed = answered, typed
        self._answer.disabled = False
        self.display = True
        self._show(question)
        self._answer.value = now
        self._answer.focus()

    def on_dropped(self) -> None:
        self.drop()

    def on_resize(self) -> None:
        if self.is_open:
            self._show(self._asked)

    def _show(self, question: str) -> None:
        self._asked = question
        line = plain(fit(question, min(len(question), max(1, self.screen.size.width * 3 // 4)), self._glyphs), "alert")
        self._question.styles.width = width_of(line.spans)
        self._question.show([line])

    def drop(self) -> None:
        """Close it without an answer."""
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
        if self._typed:
            self._typed(message.value)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        if self._answered is None:
            return
        wrong = self._answered(message.value)
        if wrong is None:
            self._close()
        else:
            message.stop()
            self._show(f"{wrong}: ")
            self._answer.action_select_all()
