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
UNDECIDED, IDLE, NOT_IDLE, SLEEPS = 0, 1, -1, 2
"""What rules say about a wait. SLEEPS: it is idle if a wait of category `sleep` would be."""


class IdleByRule:
    """Which waits are idle, or are not, whatever their category. Immutable."""

    __slots__ = ("flags", "hashes")

    def __init__(self, by_where: Mapping[Where, int]) -> None:
        """`by_where`: IDLE, NOT_IDLE or SLEEPS."""
        ids = np.array([*by_where], np.int64).reshape(-1, len(WHERE))
        hashes = hashes_of(ids)
        order = np.argsort(hashes)
        self.hashes: NDArray[np.uint64] = hashes[order]
        self.flags: Ints = np.array([*by_where.values()], np.int64)[order]

    @property
    def bytes_held(self) -> int:
        return self.hashes.nbytes + self.flags.nbytes

    def of(self, ids: Ints) -> Ints:
        """Return what the rules say about each of sites' ids: IDLE, NOT_IDLE, SLEEPS or UNDECIDED.

        They are looked up by a 64-bit hash, as in SiteKeys.mask.
        """
        if not len(self.hashes):
            return np.zeros(len(ids), np.int64)
        hashes = hashes_of(ids[:, WHERE])
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self.flags[at], UNDECIDED)


NOTHING_BY_RULE = IdleByRule({})
