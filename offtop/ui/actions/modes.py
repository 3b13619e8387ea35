"""Actions of the mode keys.

The mode is shown at once; the source collects its data a little later.
"""

from threading import Lock, Thread, current_thread

from textual.message import Message

from offtop.errors import OfftopError
from offtop.feed.source import Source
from offtop.model.values.wake import CHAIN, OFFCPU, OFFWAKE, WAKEUP
from offtop.model.viewmodel import drilling
from offtop.ui.actions.sorting import Sorting
from offtop.ui.actions.view import OF_OBJECTS

_ALREADY = {
    OFFCPU: "this is off-CPU time already: 2 shows who ends waits, 5 what is stuck",
    WAKEUP: "these are the wakers already: 3 shows both stacks",
    OFFWAKE: "these are both stacks already: 4 goes on with who woke the waker",
    CHAIN: "these are the chains already: 1 goes back to off-CPU time",
}
_ALREADY_SAMPLED = "this is off-CPU time already: 5 shows what is stuck; who ends waits (2) needs BPF"


class Refused(Message):
    """The source cannot collect the data of a mode."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class Modes(Sorting):
    """Actions of the mode keys."""

    _source: Source

    _wanted: tuple[str, int] | None = None
    """Mode and chain depth to request from the source next, or None."""
    _wanting = Lock()
    _asker: Thread | None = None

    def action_mode(self, mode: str) -> None:
        """Show the current selection in `mode`."""
        view = drilling.in_mode(self._view, mode)
        if view == self._view:
            sampled = self._picture is not None and self._picture.sampling is not None
            self._say(_ALREADY_SAMPLED if sampled and mode == OFFCPU else _ALREADY[mode])
            return
        changes = mode != self._view.mode
        self._look(view)
        if changes and not self._source.recorded:
            self._gather(mode)

    def action_objects(self) -> None:
        if self._picture and self._picture.sampling and not self._view.lists_objects:
            self._say(OF_OBJECTS)
            return
        self._look(drilling.objects_or_not(self._view))

    def action_reasons(self) -> None:
        self._look(drilling.reasons_or_not(self._view))

    def on_refused(self, message: Refused) -> None:
        if self._picture and self._picture.sampling:  # sampling /proc never supports it
            self._look(drilling.in_mode(self._view, OFFCPU))
        self._say(message.why)

    def _gather(self, mode: str) -> None:
        """Request the mode from the source, in a separate thread.

        The first time, loading the BPF programs takes a second.
        """
        with self._wanting:
            self._wanted = mode, self._view.depth
            if self._asker is None:
                asker = Thread(target=self._ask_source, name="offtop-mode", daemon=True)
                asker.start()
                self._asker = asker

    def _ask_source(self) -> None:
        try:
            while (wanted := self._next_wanted()) is not None:
                try:
                    self._source.set_mode(*wanted)
                except OfftopError as refused:
                    self.post_message(Refused(str(refused)))
        finally:  # even after an unexpected error, so that the mode keys keep working
            with self._wanting:
                if self._asker is current_thread():
                    self._asker = None

    def _next_wanted(self) -> tuple[str, int] | None:
        """Take the next request; None ends this thread.

        A new thread then handles later requests.
        """
        with self._wanting:
            wanted, self._wanted = self._wanted, None
            if wanted is None:
                self._asker = None
        return wanted
