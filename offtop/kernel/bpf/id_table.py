"""What a kernel map holds under ids that are hashes of it: read once, and given back before the map is full."""

from collections.abc import Callable
from typing import Generic, TypeVar

from offtop.kernel.bpf.libbpf import Map

T = TypeVar("T")


class IdTable(Generic[T]):
    """A map by ids: emptied when half full, because the kernel puts back what it meets again."""

    def __init__(self, entries: Map, read: Callable[[bytes | memoryview], T]) -> None:
        """`read` makes of a value what it means."""
        self._map, self._parse = entries, read
        self._read: dict[int, T] = {}
        self._older: dict[int, T] = {}
        self._met: set[int] = set()
        """Others that are in it, which nobody has read."""

    def read(self, raw_id: int) -> T | None:
        """None: it was not kept."""
        found = self._read.get(raw_id)
        if found is None:
            self._met.discard(raw_id)
            value = self._map.lookup(raw_id.to_bytes(8, "little"))
            found = self._older.get(raw_id) if value is None else self._parse(value[: self._map.value_bytes])
            if found is not None:
                self._read[raw_id] = found
        return found

    def meet(self, raw_id: int) -> None:
        """It was put into the map, whether or not anybody will read it."""
        if raw_id not in self._read:
            self._met.add(raw_id)

    @property
    def fill(self) -> float:
        """How much of the map is taken, 0 to 1."""
        return (len(self._read) + len(self._met)) / self._map.entries

    def make_room(self, at_once: bool) -> bool:
        """Empty the map if it is half full, or `at_once`. Records made before this are still understood."""
        if self.fill < 0.5 and not at_once:
            return False
        self._older, self._read, self._met = self._read, {}, set()
        size = self._map.value_bytes
        for keys, values in self._map.drain():
            for number, raw_id in enumerate(keys.cast("Q")):
                self._older[raw_id] = self._parse(values[number * size : (number + 1) * size])
        return True
