"""Encodes and decodes the wakes of a tick or outlier, and the peers of the objects that threads waited on."""

from collections.abc import Mapping, Sequence

from offtop.model.values.peers import NAMED, ROLES, Peers, PeerSide, Process
from offtop.model.values.wake import (
    CHAIN_ENDS,
    FIRST_WAKE,
    KINDS,
    MOST_DEPTH,
    NOBODY,
    SOFTIRQ,
    Link,
    Object,
    Wake,
    Waker,
)
from offtop.recording import checked

_OBJECT = 3
"""Number of fields of Object that are stored with the wake."""
_WAKE, _LINK = 6, 3
"""Number of values of a wake before its links, and of each link."""


def encode_wakes(wakes: Mapping[int, Wake]) -> dict[str, object]:
    """Encode wakes as fields of a JSON object: each waker once, and a row for each wake, which ends with its links.

    Rows refer to wakers by number.
    """
    if not wakes:
        return {}
    numbers: dict[Waker, int] = {}

    def number_of(waker: Waker) -> int:
        return numbers.setdefault(waker, len(numbers))

    rows = [
        [number, number_of(wake.waker), *wake.object[:_OBJECT], wake.end]
        + [value for link in wake.links for value in (link.kernel, link.user, number_of(link.waker))]
        for number, wake in wakes.items()
    ]
    ends = [[number, *rest] for number, wake in wakes.items() if any(rest := wake.object[_OBJECT:])]
    return {"wakers": [list(waker) for waker in numbers], "wakes": rows, **({"ends": ends} if ends else {})}


def decode_wakes(fields: Mapping[str, object]) -> dict[int, Wake]:
    """Decode what `encode_wakes` encoded. Raises ValueError."""
    return _with_addresses(_wakes(fields.get("wakers", []), fields.get("wakes", [])), fields.get("ends", []))


def _wakes(wakers: object, wakes: object) -> dict[int, Wake]:
    known = [_waker(*one) for one in checked.arrays(wakers, len(Waker._fields))]
    found: dict[int, Wake] = {}
    for row in map(checked.array, checked.array(wakes)):
        number, waker, kind, name, pid, end = checked.array(row[:_WAKE], _WAKE)
        links = row[_WAKE:]
        if checked.text(end) not in CHAIN_ENDS:
            raise ValueError("a waker chain has an unknown end")
        if len(links) % _LINK or len(links) > _LINK * MOST_DEPTH:
            raise ValueError("not the links of a waker chain")
        found[checked.identity(number)] = Wake(
            _one_of(known, waker),
            Object(checked.name(kind), checked.name(name), checked.identity(pid)),
            tuple(
                Link(checked.identity(kernel), checked.identity(user), _one_of(known, by))
                for kernel, user, by in zip(links[::3], links[1::3], links[2::3], strict=True)
            ),
            end,
        )
    if min(found, default=FIRST_WAKE) < FIRST_WAKE:
        raise ValueError("a wake has a reserved number")
    return found


def _with_addresses(wakes: dict[int, Wake], ends: object) -> dict[int, Wake]:
    """Add the addresses and state of the objects that were waited on."""
    for number, local, peer, state in checked.arrays(ends, 1 + len(Object._fields) - _OBJECT):
        wake = wakes.get(checked.identity(number))
        if wake is None:
            raise ValueError("addresses without a wake")
        what = wake.object._replace(local=checked.name(local), peer=checked.name(peer), state=checked.name(state))
        wakes[checked.identity(number)] = wake._replace(object=what)
    return wakes


def _waker(*values: object) -> Waker:
    kind, name, pid, tid, comm, via, kernel, user = values
    return Waker(
        kind if isinstance(kind, str) and kind in KINDS else NOBODY,
        checked.name(name),
        checked.identity(pid),
        checked.identity(tid),
        checked.name(comm),
        SOFTIRQ if via == SOFTIRQ else "",
        checked.identity(kernel),
        checked.identity(user),
    )


def _one_of(wakers: Sequence[Waker], number: object) -> Waker:
    if checked.identity(number) >= len(wakers):
        raise ValueError("a waker is missing")
    return wakers[checked.integer(number)]


def encode_peers(what: Object, peers: Peers) -> list[object]:
    """Encode an object, the processes at its other end, and what it watches (of an epoll)."""
    sides = [[side.role, side.total, *(value for one in side.processes for value in one)] for side in peers.sides]
    return [list(what), sides, [value for member in peers.members for value in member]]


def decode_peers(what: object, sides: object, members: object) -> tuple[Object, Peers]:
    kind, name, pid, local, peer, state = checked.array(what, len(Object._fields))
    flat = checked.array(members)
    return (
        Object(
            checked.name(kind),
            checked.name(name),
            checked.identity(pid),
            checked.name(local),
            checked.name(peer),
            checked.name(state),
        ),
        Peers(
            tuple(side for one in map(checked.array, checked.array(sides)) if (side := _side(one)).role in ROLES),
            tuple(
                (checked.name(kind), checked.identity(count)) for kind, count in zip(flat[::2], flat[1::2], strict=True)
            ),
        ),
    )


def _side(values: Sequence[object]) -> PeerSide:
    role, total = checked.array(values[:2], 2)
    some = zip(values[2::2], values[3::2], strict=True)
    return PeerSide(
        checked.word(role),
        tuple(Process(checked.identity(pid), checked.name(comm)) for pid, comm in some)[:NAMED],
        checked.identity(total),
    )
