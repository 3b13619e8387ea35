"""The JSON of a recording stays the same: every number, key and id, but for texts that are listed as rewritten."""

import hashlib
import json
from pathlib import Path
from typing import TypeAlias

from tests.command import call

_RECORDINGS = Path(__file__).parents[1] / "recordings"
REWRITTEN: dict[str, dict[str, str]] = json.loads((_RECORDINGS / "rewritten-texts.json").read_text(encoding="utf-8"))
"""Path of a text → the text of the first JSON → the text of today. A rewritten text is added here, and nothing else."""
FIRST = "66ef04d637e49a93064fbb21b9ba46bc89c3078bc3b34ac0de1bbc8cb9bccdcb"
"""SHA-256 of the first demo's ticks as offtop first printed them, each as JSON with sorted keys on a line."""
ADDED = {"probe", "notices", "detail", "programs", "suspects", "standing", "stack_memos", "kernel_stack_memos"}
"""Keys of a tick that came later."""
ADDED_BELOW = {"standing", "standing_ns", "estimated_ns"}
"""Keys of what a tick holds that came later."""


Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | None"


def with_first_texts(value: Json, path: str = "") -> Json:
    """Return `value` with the texts that were rewritten since."""
    if isinstance(value, dict):
        there = {key: one for key, one in value.items() if key not in ADDED_BELOW}
        return {key: with_first_texts(one, f"{path}.{key}" if path else key) for key, one in there.items()}
    if isinstance(value, list):
        return [with_first_texts(one, path) for one in value]
    first = {now: then for then, now in REWRITTEN.get(path, {}).items()}
    return first.get(value, value) if isinstance(value, str) else value


def test_replayed_json_differs_from_the_first_only_in_listed_texts() -> None:
    ended = call("replay", str(_RECORDINGS / "first-demo.offtop"), "--json")
    digest = hashlib.sha256()
    for line in ended.out.splitlines():
        tick = {key: value for key, value in json.loads(line).items() if key not in ADDED}
        digest.update(json.dumps(with_first_texts(tick), sort_keys=True).encode() + b"\n")
    assert (ended.status, digest.hexdigest()) == (0, FIRST)
