"""A scripted source that samples /proc 20 times a second."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from offtop.model.values.snapshot import Sampling, Snapshot
from tests.ui.scripted import MS, SHOP, ScriptedSource

NOTICE = "/proc is sampled"


class SampledSource(ScriptedSource):
    def __init__(
        self,
        guessed_ns: int = 250 * MS,
        ticks: int = 3,
        ends: bool = False,
        own_only: bool = False,
        lost: Mapping[str, int] = MappingProxyType({}),
        seen: Sampling | None = None,
    ) -> None:
        """`guessed_ns`, `lost`: per second. `seen`: further details of the sampling."""
        super().__init__(SHOP, ticks=ticks, ends=ends, lost=lost)
        self._guessed_ns = guessed_ns
        self._seen = seen or Sampling(own_only=own_only)

    @property
    def notices(self) -> Sequence[str]:
        return (NOTICE,)

    def after(self, seconds: int) -> Snapshot:
        some = self._seen._replace(scans=20 * seconds, guessed_ns=self._guessed_ns * seconds)
        return replace(super().after(seconds), sampling=some, probe="proc")
