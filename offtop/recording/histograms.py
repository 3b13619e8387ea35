"""Encodes and decodes the histograms of file operations and of requests to disks: counts, shortest times first."""

from collections.abc import Sequence

from offtop.model.values import histogram as log2
from offtop.model.values.table import integers
from offtop.recording import checked

_MOST_COUNT = 1 << 40
"""Most events of one lane in a row. Sums over 16 million rows still fit a lane of 64 bits."""


def encode(histogram: int) -> list[int]:
    """Return the counts of `histogram` up to the last one that is not 0."""
    counts = [*log2.counts(histogram)]
    while counts and not counts[-1]:
        counts.pop()
    return counts


def decode(counts: Sequence[object]) -> int:
    """Return the histogram with these counts. Raises ValueError if they are invalid."""
    if len(counts) > log2.LANES:
        raise ValueError("not a histogram")
    lanes = integers([[*map(checked.integer, counts), *[0] * (log2.LANES - len(counts))]], log2.LANES)
    checked.check_range(lanes, 0, _MOST_COUNT)
    return log2.of_lanes(lanes)[0]
