"""Standing waits are the blocked time of waits in progress at their sites, and nothing else there."""

import numpy as np

from offtop.model.values.catalog import SiteKey
from offtop.model.values.table import SITES, SiteKeys, integers
from offtop.model.windows.breakdown import RUN_QUEUE, Leaf, Shares, with_standing


def test_only_the_blocked_time_of_waits_in_progress_stands() -> None:
    site, other = SiteKey(1, 1, 3, 4), SiteKey(2, 2, 3, 4)
    leaves = [Leaf("pipe"), Leaf(RUN_QUEUE), Leaf("poll", True)]
    rows = [(0, site, 5), (0, site, 0), (1, site, 0), (2, site, 0), (0, other, 0)]
    leaf, waits = (np.array([row[column] for row in rows], np.int64) for column in (0, 2))
    ids, ns = integers([row[1] for row in rows], SITES.width), np.full(len(rows), 10)
    every = Shares(leaves, leaf, ids, waits, ns, ns, integers([], 3))
    made = with_standing(every, SiteKeys(integers([site], SITES.width)))
    assert [made.leaves[number] for number in made.leaf.tolist()] == [
        Leaf("pipe"),  # it ended
        Leaf("pipe", True, True),
        Leaf(RUN_QUEUE),
        Leaf("poll", True),
        Leaf("pipe"),
    ]
