"""What the words of a filter choose in lists that are not about waits: file operations, requests to disks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from offtop.model.aggregate.filter import Bound, Filter, Ids, Text
from offtop.model.values.catalog import Catalog
from offtop.model.values.container import names as container_names
from offtop.model.values.container import place

Row = TypeVar("Row")
Word = Text | Ids | Bound
_ID_KEYS = ("pid", "tid")
"""By filter.Ids.column."""


@dataclass(frozen=True, slots=True)
class WordFilter(Generic[Row]):
    """What each key of a filter word looks at in a row; words with other keys are ignored."""

    texts: Mapping[str, Callable[[Row, Catalog], Iterable[str]]]
    bounds: Mapping[str, Callable[[Row], float]]
    ids: Mapping[str, Callable[[Row], int]]
    """By `pid` or `tid`."""

    def chosen(
        self, rows: Iterable[Row], filters: Sequence[Filter], catalog: Catalog
    ) -> tuple[list[Row], bool, list[str]]:
        """Return the rows that pass all filters, whether any word chose them, and the keys of ignored words."""
        words = [word for one in filters for word in (*one.waits, *one.rows, *one.lists)]
        suited = [word for word in words if self._is_suited(word)]
        unsuited = dict.fromkeys(_key_of(word) for word in words if not self._is_suited(word))
        passed = [row for row in rows if all(self._holds(word, row, catalog) for word in suited)]
        return passed, bool(suited), [*unsuited]

    def _is_suited(self, word: Word) -> bool:
        match word:
            case Ids():
                return _key_of(word) in self.ids
            case Bound():
                return word.key in self.bounds
            case Text():
                return word.key in self.texts

    def _holds(self, word: Word, row: Row, catalog: Catalog) -> bool:
        match word:
            case Ids():
                return (self.ids[_key_of(word)](row) in word.ids) != word.excludes
            case Bound():
                return word.compares(self.bounds[word.key](row))
            case Text():
                return any(map(word.matches, self.texts[word.key](row, catalog))) != word.excludes


def about_process(pid: Callable[[Row], int]) -> Mapping[str, Callable[[Row, Catalog], Iterable[str]]]:
    """Return what words about the process of a row look at. `pid`: returns its pid."""
    return {
        "user": lambda row, catalog: (catalog.detail(pid(row)).user, str(catalog.detail(pid(row)).uid)),
        "cgroup": lambda row, catalog: (catalog.detail(pid(row)).cgroup, place(catalog.detail(pid(row)).cgroup)),
        "container": lambda row, catalog: container_names(catalog.detail(pid(row)).cgroup),
        "cmd": lambda row, catalog: (catalog.detail(pid(row)).cmdline,),
    }


def _key_of(word: Word) -> str:
    return _ID_KEYS[word.column] if isinstance(word, Ids) else word.key


def ignored_words(unsuited: Sequence[str]) -> str:
    """Return what to say about words that choose nothing in a list. `unsuited`: their keys, empty for a plain word."""
    return f"ignored filter words: {', '.join(key or 'word' for key in unsuited)}"
