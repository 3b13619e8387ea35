"""The rules that name culprits: those that offtop brings, and before them the machine's and the person's own."""

import threading
from collections.abc import Iterable
from pathlib import Path

from offtop import paths
from offtop.errors import OfftopError
from offtop.model.classify.causes import Rules, parse
from offtop.person import Person, as_person, is_roots, read_theirs
from offtop.person import person as whoever_runs
from offtop.printable import printable
from offtop.settings.config import EVERYBODYS

NAME = "rules.toml"
_LOOK_SECONDS = 2.0
_State = tuple[int, int, int] | None


class RuleFiles:
    """The rules as the files have them now, looked at again every other second by a thread of its own: a home may be
    on a server that does not answer."""

    def __init__(self, own: Path, person: Person, categories: Iterable[str]) -> None:
        """`own`: the person's file, whether it is there or not. Raises OfftopError for a file that is wrong."""
        self._categories = frozenset(categories)
        self._person = person
        self.files = (own, EVERYBODYS.with_name(NAME))
        self._packaged = _parsed(paths.rules().read_text(encoding="utf-8"), NAME, self._categories)
        self._states: list[_State] = []
        self.rules = Rules()
        self.error = ""
        """What is wrong with a file that was changed meanwhile: its rules are as before."""
        self._over = threading.Event()
        self._read()

    def watch(self) -> None:
        threading.Thread(target=self._look, name="offtop-rules", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                if self._states_now() != self._states:
                    self._read()
                    self.error = ""
            except OfftopError as error:
                self.error = str(error)

    def _read(self) -> None:
        self._states = self._states_now()
        rules = self._packaged
        for path in reversed(self.files):
            content = read_theirs(path, whoever_runs({}) if is_roots(path) else self._person)
            if content is not None:
                shown = printable(str(path))
                rules = _parsed(content.decode(errors="replace"), shown, self._categories).before(rules)
        self.rules = rules

    def _states_now(self) -> list[_State]:
        with as_person(self._person):
            return [_state(path) for path in self.files]


def _state(path: Path) -> _State:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _parsed(text: str, shown: str, categories: frozenset[str]) -> Rules:
    remedy = f"Mend it, or take that rule out; all that may stand there: {paths.rules()}"
    return parse(text, shown, remedy, categories)
