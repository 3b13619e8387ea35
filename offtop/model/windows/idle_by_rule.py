"""Which waits the cause rules declare idle, or not idle, whatever their category.

A tick keeps what was known at the time, so that its numbers do not change.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from offtop.model.values.table import Ints

WHERE = [0, 2, 3]
"""Columns of sites' ids that the rules look at: process and stacks."""
Where = tuple[int, int, int]


class IdleByRule:
    """Which waits are idle, or are not, whatever their category. Immutable."""

    __slots__ = ("flags", "hashes")

    def __init__(self, by_where: Mapping[Where, bool]) -> None:
        ids = np.array([*by_where], np.int64).reshape(-1, len(WHERE))
        hashes = _hashes(ids)
        order = np.argsort(hashes)
        self.hashes: NDArray[np.uint64] = hashes[order]
        self.flags: Ints = np.array([1 if idle else -1 for idle in by_where.values()], np.int64)[order]

    @property
    def bytes_held(self) -> int:
        return self.hashes.nbytes + self.flags.nbytes

    def of(self, ids: Ints) -> Ints:
        """Return for each of sites' ids 1 if idle, -1 if not, and 0 if no rule decides.

        They are looked up by a 64-bit hash, as in SiteKeys.mask.
        """
        if not len(self.hashes):
            return np.zeros(len(ids), np.int64)
        hashes = _hashes(ids[:, WHERE])
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self.flags[at], 0)


_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def _hashes(ids: Ints) -> NDArray[np.uint64]:
    return np.ascontiguousarray(ids).view(np.uint64) @ _MIX


NOTHING_BY_RULE = IdleByRule({})
