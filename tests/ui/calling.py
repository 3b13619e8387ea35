"""A scripted source that counts only waits inside one function, and that function's calls."""

from dataclasses import replace

from offtop.model.values import histogram as log2
from offtop.model.values.snapshot import Snapshot
from offtop.model.values.within import Calls
from tests.ui.scripted import MS, SHOP, ScriptedSource

NAME = "shop:Cart::pay"
A_SECOND = Calls(100, 2, 500 * MS, 400 * MS, 50 * MS, 104 * MS, log2.of(104 * MS, *[4 * MS] * 99), 3, 1500 * MS)
"""Calls in a second: 99 of 4 ms, one of 104 ms, two that never return, and three in progress."""


class CallingSource(ScriptedSource):
    def __init__(self, name: str = NAME, calls: Calls = A_SECOND, **options: object) -> None:
        super().__init__(SHOP, **options)  # pyright: ignore[reportArgumentType]
        self._name, self._calls = name, calls

    def after(self, seconds: int) -> Snapshot:
        calls = Calls()
        for _ in range(seconds):
            calls = calls.plus(self._calls)
        snapshot = super().after(seconds)
        return replace(snapshot, filters=replace(snapshot.filters, within=self._name), calls=calls)
