"""Cause rules: those that come with offtop, and before them the system-wide and the user's own."""

from collections.abc import Iterable
from pathlib import Path

from offtop import paths
from offtop.errors import OfftopError
from offtop.model.classify.causes import Rules, parse
from offtop.person import Person, as_person, is_roots, read_theirs
from offtop.person import person as current_person
from offtop.printable import printable
from offtop.settings.config import EVERYBODYS
from offtop.worker import Worker

NAME = "rules.toml"
_POLL_SECONDS = 2.0
_State = tuple[int, int, int] | None


class RuleFiles:
    """The current cause rules.

    `watch` starts a thread that rereads changed files every two seconds. A separate thread is needed because the home
    directory may be on a file server that does not answer.
    """

    def __init__(self, own: Path, person: Person, categories: Iterable[str]) -> None:
        """`own`: the user's file, which may not exist. Raises OfftopError for an invalid file."""
        self._categories = frozenset(categories)
        self._person = person
        self.files = (own, EVERYBODYS.with_name(NAME))
        self._packaged = _parsed(paths.rules().read_text(encoding="utf-8"), NAME, self._categories)
        self._states: list[_State] = []
        self.rules = Rules()
        self.error = ""
        """What is wrong with a file that changed; the previous rules stay in effect."""
        self._worker = Worker("offtop-rules", self._watch_files)
        self._read()

    def watch(self) -> None:
        self._worker.wake()

    def close(self) -> None:
        self._worker.close()

    def _watch_files(self, worker: Worker) -> None:
        while worker.rest(_POLL_SECONDS):
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
            content = read_theirs(path, current_person({}) if is_roots(path) else self._person)
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
    remedy = f"Fix it, or remove that rule. For the format, see {paths.rules()}"
    return parse(text, shown, remedy, categories)
