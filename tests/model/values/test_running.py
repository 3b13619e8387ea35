"""Running totals against plain dicts: rows are added, repeated, evicted and compacted, and tables made before stay."""

import random
from collections.abc import Mapping

import numpy as np

from offtop.model.values import histogram as log2
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.running import Running
from offtop.model.values.snapshot import EXITED, ThreadTotals
from offtop.model.values.table import MAX_NS, THREADS, Table, integers, of_exited

WAITS = ThreadTotals._fields.index("waits")
Model = dict[ThreadKey, tuple[int, int, tuple[int, ...]]]
"""Number of waits, longest wait of the tick, histogram."""


def test_totals_are_those_of_a_dict_whatever_is_added_and_evicted() -> None:
    chance, running, model = random.Random(7), Running(THREADS), Model()
    tables = list[tuple[Model, Table[ThreadKey, ThreadTotals]]]()
    for _ in range(60):
        running.begin_tick()
        model = {key: (waits, 0, lanes) for key, (waits, _, lanes) in model.items()}
        rows = [(ThreadKey(1, chance.randrange(3000)), chance.randrange(5), chance.randrange(40)) for _ in range(200)]
        numbers = np.zeros((len(rows), THREADS.numbers), np.int64)
        numbers[:, WAITS] = numbers[:, MAX_NS] = [waits for _, waits, _ in rows]
        counts = integers([(at, lane, waits) for at, (_, waits, lane) in enumerate(rows) if waits], 3)
        running.add(integers([key for key, *_ in rows], 2), numbers, counts, 1)
        for key, waits, lane in rows:
            add(model, key, waits, waits, tuple(waits * (lane == one) for one in range(40)))
        evicted = chance.sample([key for key in model if key != EXITED], 150)
        ids = integers([*evicted, ThreadKey(9, 9)], 2)
        running.move(ids, of_exited(ids))
        for key in evicted:
            add(model, EXITED, *model.pop(key))
        tables.append((dict(model), running.frozen()))
        assert model_of(running.frozen()) == model_of(running) == model
    assert all(model_of(table) == was for was, table in tables), "a table does not change afterwards"
    assert len(running.frozen().ids) < 60 * 150, "evicted rows were compacted"


def add(model: Model, key: ThreadKey, waits: int, longest_ns: int, lanes: tuple[int, ...]) -> None:
    more, before_ns, other = model.get(key, (0, 0, (0,) * 40))
    model[key] = waits + more, max(longest_ns, before_ns), tuple(map(sum, zip(lanes, other, strict=True)))


def model_of(totals: Mapping[ThreadKey, ThreadTotals]) -> Model:
    return {key: (one.waits, one.max_ns, log2.counts(one.histogram)) for key, one in totals.items()}
