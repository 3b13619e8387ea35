"""Which waits the cause rules declare idle, or not idle, whatever their category.

A tick keeps what was known at the time, so that its numbers do not change.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from offtop.model.values.table import Ints, hashes_of

WHERE = [0, 2, 3]
"""Columns of sites' ids that the rules look at: process and stacks."""
Where = tuple[int, int, int]


class IdleByRule:
    """Which waits are idle, or are not, whatever their category. Immutable."""

    __slots__ = ("flags", "hashes")

    def __init__(self, by_where: Mapping[Where, bool]) -> None:
        ids = np.array([*by_where], np.int64).reshape(-1, len(WHERE))
        hashes = hashes_of(ids)
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
        hashes = hashes_of(ids[:, WHERE])
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self.flags[at], 0)


NOTHING_BY_RULE = IdleByRule({})
