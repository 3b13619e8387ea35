"""What the values of options must look like: functions for argparse, which raise its error."""

import argparse
import re
from collections.abc import Callable
from typing import Any, TypeVar

from offtop.model.aggregate.budget import parse_rate
from offtop.model.values.state import MASKS
from offtop.model.values.wake import MOST_DEPTH
from offtop.person import NO_USER, is_user
from offtop.printable import printable
from offtop.units import NS_PER_S, parse_duration, parse_size

STATES = {
    "running": 1 << 31,
    "interruptible": 0x1,
    "uninterruptible": 0x2,
    "stopped": 0x4,
    "traced": 0x8,
    "parked": 0x40,
    "idle": 0x402,
}
"""Names for --state and the kernel's bits (include/linux/sched.h). `running` is offtop's own: preempted."""
_NS_PER_US = 1000
_MOST_STACK_KB = 64
_PER = frozenset(("thread", "category"))
"""Values of --per; export.folded uses them."""
_MOST_IDS = 1024
"""Size of the BPF map only_pids in bpf/offcpu.c."""
_HOST = re.compile(r"[^\s\x00-\x1f\x7f'\"`$\\;&<>|(){}!*?#~-][^\s\x00-\x1f\x7f'\"`$\\;&<>|(){}!*?#]*")
"""A host must be no option of ssh, and hold nothing that a shell in ssh_config would interpret."""
_LONGEST_HOST = 512
T = TypeVar("T")


def _argument(parse: Callable[[str], T], expected: str) -> Callable[[str], T]:
    """Wrap `parse` for argparse, with an error message that says what is expected."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is not {expected}") from None

    return parsed


def setting(name: str) -> Callable[[str], str]:
    """Return an argparse type that checks a text with a setting, and returns it unchanged."""

    def checked(text: str) -> str:
        from offtop.settings import config

        setting = next(one for one in config.SETTINGS if one.name == name)
        try:
            setting.attributes(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is not {setting.expected}") from None
        return text

    return checked


def _speed_of(text: str) -> float:
    factor = float(text)
    if not 0.01 <= factor <= 100_000:
        raise ValueError(text)
    return factor


def _time_of(text: str) -> int:
    return _positive(str(parse_duration(text, NS_PER_S)))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _depth_of(text: str) -> int:
    number = int(text)
    if not 2 <= number <= MOST_DEPTH:
        raise ValueError(text)
    return number


def _ids_of(text: str) -> tuple[int, ...]:
    ids = tuple(sorted({int(part) for part in text.split(",")}))
    if not all(0 < one < 1 << 31 for one in ids) or len(ids) > _MOST_IDS:
        raise ValueError(text)
    return ids


def _pids_of(text: str) -> tuple[int | tuple[str, int], ...]:
    """Parse PIDs. A process in a container becomes (container name, PID inside of it)."""
    parts = text.split(",")
    plain = [part for part in parts if ":" not in part]
    found: list[int | tuple[str, int]] = [*_ids_of(",".join(plain))] if plain else []
    for part in dict.fromkeys(parts):
        name, colon, inside = part.rpartition(":")
        if colon and not name:
            raise ValueError(text)
        found += [(name, pid) for pid in _ids_of(inside)] if colon else []
    if len(found) > _MOST_IDS:
        raise ValueError(text)
    return tuple(found)


def _user_of(text: str) -> str:
    if not is_user(text):
        raise ValueError(text)
    return text


def _host_of(text: str) -> str:
    address = text.removeprefix("ssh://")
    name = address.rpartition("@")[2]
    hides_something = address != text and "%" in address  # ssh decodes %2d to a dash
    if len(text) > _LONGEST_HOST or not _HOST.fullmatch(text) or name.startswith("-") or not name or hides_something:
        raise ValueError(text)
    return text


def _states_of(text: str) -> int:
    """Parse states to a mask for Filters.

    A number is the kernel's mask; 0 means running, as in bcc's tools.
    """
    mask = 0
    for word in text.split(","):
        if word in STATES or word in MASKS:
            mask |= STATES.get(word) or MASKS[word]
        else:
            number = int(word, 0)
            if not 0 <= number < 1 << 31:
                raise ValueError(text)
            mask |= number or STATES["running"]
    return mask


def _stack_bytes_of(text: str) -> int:
    size = _bytes_of(text)
    if size % 1024 or not 1 <= size >> 10 <= _MOST_STACK_KB:
        raise ValueError(text)
    return size


def _bytes_of(text: str) -> int:
    return int(text[:-1]) << 10 if text[-1:] in ("k", "K") else int(text)


def _per_of(text: str) -> frozenset[str]:
    parts = frozenset(text.split(","))
    if not parts <= _PER:
        raise ValueError(text)
    return parts


def _percent_of(text: str) -> float:
    share = float(text.removesuffix("%"))
    if not 0.1 <= share <= 1000:
        raise ValueError(text)
    return share


class AddIds(argparse.Action):
    """Add ids to those of the same option before it, as top does: `-p 1 -p 2` is `-p 1,2`."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: object = None
    ) -> None:
        ids = tuple(dict.fromkeys((*getattr(namespace, self.dest), *values)))
        if len(ids) > _MOST_IDS:
            raise argparse.ArgumentError(self, f"{len(ids):,} ids are too many (at most {_MOST_IDS})")
        setattr(namespace, self.dest, ids)


host_value = _argument(_host_of, "a host: a name from your ssh_config, USER@HOST, or ssh://USER@HOST:PORT")
ids_value = _argument(_ids_of, f"a list of ids such as 4242 or 4242,977 (at most {_MOST_IDS})")
pids_value = _argument(_pids_of, f"a list of ids such as 4242 or 4242,977 or CONTAINER:7 (at most {_MOST_IDS})")
wait_value = _argument(
    lambda text: parse_duration(text, _NS_PER_US), "a time such as 200us, 1ms or 2s; 200 means 200us"
)
count_value = _argument(_positive, "a whole number from 1 up")
depth_value = _argument(_depth_of, f"a whole number from 2 to {MOST_DEPTH}")
user_value = _argument(_user_of, NO_USER)
state_value = _argument(_states_of, f"a list of states ({', '.join(STATES)}) or a mask such as 0x2")
duration_value = _argument(_time_of, "a time such as 90s, 10m or 48h")
time_value = _argument(_time_of, "a number of seconds such as 10, or a time such as 1m")
rate_value = _argument(
    parse_rate, "a request rate such as 1500 or 1.5k, optionally with CPU time per request: 1500,1ms"
)
stack_bytes_value = _argument(_stack_bytes_of, f"a size in whole KB from 1K to {_MOST_STACK_KB}K")
percent_value = _argument(_percent_of, "a percentage of one CPU from 0.1 up, such as 5 or 20")
speed_value = _argument(_speed_of, "a factor from 0.01 up, such as 10 or 0.5")
per_value = _argument(_per_of, "thread, category, or thread,category")
size_value = _argument(parse_size, "a size of at least 1M, such as 500M or 2G")
