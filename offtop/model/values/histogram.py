"""A histogram is one int: 40 lanes of 64 bits.

Lane i counts the waits of one power of two of ns.

As one int, adding or subtracting two histograms is one exact addition, cheap enough for thousands of sites a tick. The
BPF programs use the same lanes (`bpf/offcpu.h`).
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LANES = 40
LANE_BITS = 64
FIRST_EXPONENT = 8
"""Lane 0 holds waits below 2**9 ns; lane i > 0 those from 2**(8+i) up to 2**(9+i); the last all above."""

_ALL_LANES = struct.Struct(f"<{LANES}Q")
_LANE_MASK = (1 << LANE_BITS) - 1
EMPTY = 0


def lane_of(wait_ns: int) -> int:
    """Return the lane that counts a wait of `wait_ns`."""
    return min(LANES - 1, max(0, wait_ns.bit_length() - 1 - FIRST_EXPONENT))


def low_ns(lane: int) -> int:
    """Return the shortest wait that `lane` counts."""
    return 0 if lane == 0 else 1 << (FIRST_EXPONENT + lane)


def high_ns(lane: int) -> int:
    """Return the end of `lane`: every wait in it is shorter. The last lane has no end."""
    return 1 << (FIRST_EXPONENT + lane + 1)


def of(*waits_ns: int) -> int:
    """Return the histogram of the given waits."""
    return sum(1 << (LANE_BITS * lane_of(wait_ns)) for wait_ns in waits_ns)


def slots(histogram: int) -> list[tuple[int, int]]:
    """Return (low_ns, count) of each lane that is not 0, shortest first, as JSON has it."""
    return [(low_ns(lane), n) for lane, n in enumerate(counts(histogram)) if n]


def counts(histogram: int) -> tuple[int, ...]:
    """Return the counts of the 40 lanes."""
    return _ALL_LANES.unpack(histogram.to_bytes(_ALL_LANES.size, "little"))


def of_lanes(lanes: NDArray[np.int64]) -> list[int]:
    """Return the histogram of each row of `lanes` (n, 40).

    A difference may have negative lanes.
    """
    if lanes.size and lanes.min() < 0:
        return [sum(n << (LANE_BITS * lane) for lane, n in enumerate(row)) for row in lanes.tolist()]
    raw = lanes.tobytes()
    return [int.from_bytes(raw[at : at + _ALL_LANES.size], "little") for at in range(0, len(raw), _ALL_LANES.size)]


def to_lanes(histograms: Sequence[int]) -> NDArray[np.int64]:
    """Return the counts (n, 40) of `histograms`, which may be differences."""
    return np.array([_signed_counts(histogram) for histogram in histograms], np.int64).reshape(-1, LANES)


def _signed_counts(histogram: int) -> list[int]:
    """Return the counts of a difference; a negative lane has borrowed from the next one."""
    found: list[int] = []
    for _ in range(LANES):
        n = histogram & _LANE_MASK
        n -= (n >> (LANE_BITS - 1)) << LANE_BITS
        found.append(n)
        histogram = (histogram - n) >> LANE_BITS
    return found


def count(histogram: int) -> int:
    """Return how many waits it counts."""
    return sum(counts(histogram))


def percentile_ns(histogram: int, percent: float, max_ns: int) -> int:
    """Return an upper bound of the `percent`-th percentile: the end of its lane.

    Nearest-rank definition; 0 for an empty histogram. `max_ns` is the longest wait counted.
    """
    by_lane = counts(histogram)
    total = sum(by_lane)
    if not total:
        return 0
    rank = max(1, -(-total * percent // 100))
    seen = 0
    for lane, n in enumerate(by_lane):
        seen += n
        if seen >= rank:
            return min(high_ns(lane), max_ns) if lane < LANES - 1 else max_ns
    return max_ns


def ranges(histogram: int, most: int) -> tuple[tuple[int, int], ...]:
    """Divide the used lanes of `histogram` into at most `most` ranges of equal width.

    A range is (first lane, end).
    """
    used = [lane for lane, n in enumerate(counts(histogram)) if n]
    if not used or most < 1:
        return ()
    step = -(-(used[-1] + 1 - used[0]) // most)
    return tuple((lane, lane + step) for lane in range(used[0], used[-1] + 1, step))


def within(by_lane: Sequence[int], lanes: tuple[int, int]) -> int:
    """Return how many waits there are in that range of lanes."""
    return sum(by_lane[lanes[0] : lanes[1]])
