"""Encodes and decodes the outliers of a recording: one row each, with the number of the tick that reported it.

A wait that was reported while still in progress has a second row in the tick in which it ended. Its stacks are stored
with that tick; all other names are in the row itself.
"""

import json
import zlib
from collections.abc import Callable

from offtop.model.outliers.trigger import METRICS
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.disks import LIST_MODES
from offtop.model.values.outlier import LongWait, Outlier, SlowIo
from offtop.model.values.stack import FIRST_STACK, Stack
from offtop.model.values.wake import FIRST_WAKE
from offtop.recording import checked, wake_rows

_LEVEL = 4
_MOST_TEXT = 300
MOST_BYTES = 64 << 10
"""Largest outlier, compressed or not."""
_MOST_NAMES = 100
"""Most threads, processes and wakes that an outlier names: it has the thread that waited, and its wakers."""
_OUTLIER, _WAIT = 12, 11
"""Number of values of an outlier and of its wait."""


def encode(one: Outlier) -> bytes:
    wait, catalog = one.wait, one.catalog
    head = (one.at_ns, one.taken_ns, one.rule, one.metric, one.category, one.program)
    fields: dict[str, object] = {
        "outlier": [*head, one.value, one.threshold, one.usual_ns, one.after, one.was_reported, one.more],
        "wait": wait
        and [*wait.site, wait.began_ns, wait.ended_ns, wait.runqueue_ns, wait.state, wait.cpu, wait.is_exact],
        "comms": [[*key, comm] for key, comm in catalog.comms.items()],
        "processes": [[pid, name] for pid, name in catalog.processes.items()],
        **({"io": one.io} if one.io else {}),
        **({"says": one.says[:_MOST_TEXT]} if one.says else {}),
        **({"began_earlier": True} if wait and wait.began_earlier else {}),
        **wake_rows.encode_wakes({number: wake for number, wake in catalog.wakes.items() if number >= FIRST_WAKE}),
    }
    return zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), _LEVEL)


def decode(blob: object, stack_of: Callable[[int], Stack]) -> Outlier:
    """Decode a row. Raises ValueError if `blob` is not an outlier.

    `stack_of` returns a stack by its number in the file.
    """
    fields = checked.json_object(checked.decompressed(blob, MOST_BYTES))
    at_ns, taken_ns, *texts, value, threshold, usual_ns, after, was_reported, more = checked.array(
        fields.get("outlier"), _OUTLIER
    )
    rule, metric, category, program = map(_text, texts)
    if metric not in METRICS:
        raise ValueError("an outlier has an unknown metric")
    if any(
        len(checked.array(fields.get(name, []))) > _MOST_NAMES for name in ("comms", "processes", "wakers", "wakes")
    ):
        raise ValueError("an outlier names too much")
    catalog = Catalog(
        comms={ThreadKey(*map(checked.identity, key)): _text(comm) for *key, comm in _arrays(fields, "comms", 3)},
        processes={checked.identity(pid): _text(name) for pid, name in _arrays(fields, "processes", 2)},
    )
    wakes = wake_rows.decode_wakes(fields)
    found = fields.get("wait")
    wait = None if found is None else _wait(checked.array(found, _WAIT), program)
    if wait:
        wait = wait._replace(began_earlier=fields.get("began_earlier") is True)
        if wake := wakes.get(wait.site.wake):
            catalog.wakes[wait.site.wake] = wake
        for number in {wait.site.kernel, wait.site.user, *catalog.wake(wait.site.wake).stacks}:
            if number >= FIRST_STACK:
                catalog.stacks[number] = stack_of(number)
    numbers = float(checked.number(value)), float(checked.number(threshold)), checked.time(usual_ns)
    times = checked.time(at_ns), checked.time(taken_ns)
    return Outlier(
        *times,
        rule,
        metric,
        category,
        program,
        *numbers,
        wait,
        _text(after),
        was_reported is True,
        checked.identity(more),
        catalog,
        _io(fields.get("io")),
        _text(fields.get("says", "")),
    )


def _io(value: object) -> SlowIo | None:
    if value is None:
        return None
    mode, what = map(_text, checked.array(value, len(SlowIo._fields)))
    if mode not in LIST_MODES:
        raise ValueError("an outlier has an unknown mode")
    return SlowIo(mode, what)


def _wait(values: list[object], program: str) -> LongWait:
    pid, tid, kernel, user, wake, began_ns, ended_ns, runqueue_ns, state, cpu, is_exact = values
    stacks = checked.integer(kernel), checked.integer(user)
    site = SiteKey(checked.identity(pid), checked.identity(tid), *stacks, checked.identity(wake))
    times = checked.time(began_ns), checked.time(ended_ns), checked.time(runqueue_ns)
    if times[1] and times[1] < times[0]:
        raise ValueError("a wait ended before it began")
    if times[1] and times[2] > times[1] - times[0]:
        raise ValueError("a wait has more run-queue time than it lasted")
    return LongWait(site, *times, checked.integer(state) & 0xFFFFFFFF, checked.integer(cpu), program, is_exact is True)


def _arrays(fields: dict[str, object], name: str, length: int) -> list[list[object]]:
    return checked.arrays(fields.get(name, []), length)


def _text(value: object) -> str:
    text = checked.text(value)
    if len(text) > _MOST_TEXT:
        raise ValueError("a string is too long")
    return text
