"""The speedscope.app format: one profile of all processes, then one per process.

The profile's name says what was lost or sampled. Source: https://www.speedscope.app/file-format-schema.json.
"""

import json
from collections.abc import Iterable
from typing import Any

from offtop import __version__
from offtop.export.profile import Profile, Sample
from offtop.printable import printable

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_MOST_PROCESSES = 200
"""Most processes that get their own profile: those with most time."""


def text(profile: Profile, title: str) -> str:
    frames: dict[str, int] = {}
    by_process: dict[tuple[int, str], list[Sample]] = {}
    for one in profile.samples:
        by_process.setdefault((one.pid, one.process), []).append(one)

    def number(name: str) -> int:
        return frames.setdefault(printable(name), len(frames))

    def sampled(name: str, samples: Iterable[Sample], with_process: bool) -> dict[str, Any]:
        stacks: list[list[int]] = []
        weights: list[int] = []
        for one in samples:
            above = [f"{one.process} ({one.pid})"] if with_process else []
            stacks.append([number(called) for called in (*above, one.thread, *(step.name for step in one.path))])
            weights.append(one.total_ns)
        return {
            "type": "sampled",
            "name": name,
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": stacks,
            "weights": weights,
        }

    largest = sorted(by_process.items(), key=lambda item: -sum(one.total_ns for one in item[1]))[:_MOST_PROCESSES]
    profiles = [sampled("all", profile.samples, with_process=True)]
    profiles += [sampled(printable(f"{name} ({pid})"), some, with_process=False) for (pid, name), some in largest]
    return json.dumps(
        {
            "$schema": _SCHEMA,
            "exporter": f"offtop {__version__}",
            "name": "; ".join((title, *map(printable, profile.caveats))),
            "activeProfileIndex": 0,
            "shared": {"frames": [{"name": name} for name in frames]},
            "profiles": profiles,
        },
        separators=(",", ":"),
    )
