"""Read a BPF map whose keys are hashes of the values, and empty it before it is full."""

from collections.abc import Callable
from typing import Generic, TypeVar

from offtop.kernel.bpf.libbpf import Map

T = TypeVar("T")


class IdTable(Generic[T]):
    """A BPF map keyed by hashes of its values, with a cache.

    It is emptied when it is half full: the BPF programs insert a value again if it occurs again.
    """

    def __init__(
        self,
        entries: Map,
        read: Callable[[bytes | memoryview], T],
        note_emptying: Callable[[], None] = lambda: None,
    ) -> None:
        """`read`: parses a value. `note_emptying` is called before and after the map is emptied."""
        self._map, self._parse, self._note_emptying = entries, read, note_emptying
        self._read: dict[int, T] = {}
        self._older: dict[int, T] = {}
        """Entries as they were when the map was last emptied."""
        self._unread: set[int] = set()
        """Ids that are in the map, but have not been read."""

    def read(self, raw_id: int) -> T | None:
        """Look up an id; None if it is unknown."""
        found = self._read.get(raw_id)
        if found is None:
            self._unread.discard(raw_id)
            value = self._map.lookup(raw_id.to_bytes(8, "little"))
            found = self._older.get(raw_id) if value is None else self._parse(value[: self._map.value_bytes])
            if found is not None:
                self._read[raw_id] = found
        return found

    def note_inserted(self, raw_id: int) -> None:
        """Count an id that was inserted into the map, whether or not it will be read."""
        if raw_id not in self._read:
            self._unread.add(raw_id)

    @property
    def fill(self) -> float:
        """Fill level of the map, 0 to 1."""
        return (len(self._read) + len(self._unread)) / self._map.entries

    def make_room(self, at_once: bool) -> bool:
        """Empty the map if it is half full, or if `at_once`. Return whether it was emptied.

        The ids that were in it can still be looked up until it is emptied again.
        """
        if self.fill < 0.5 and not at_once:
            return False
        self._older, self._read, self._unread = self._read, {}, set()
        size = self._map.value_bytes
        self._note_emptying()
        for keys, values in self._map.drain():
            for number, raw_id in enumerate(keys.cast("Q")):
                self._older[raw_id] = self._parse(values[number * size : (number + 1) * size])
        self._note_emptying()
        return True
