"""Edges of the wait-for graph (wait_graph.py), and how waiting is passed along them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtop.model.values.table import Ints

Floats = NDArray[np.float64]
MOST_HOPS = 16


class Edge(NamedTuple):
    source: int
    target: int
    share: float
    """Share of the waiting that is passed to this target; the shares of all edges of a source add up to 1."""
    via: str
    """One of blockers.VIA; empty from a process to one of its threads."""
    is_exact: bool
    what: str
    """Name of the object that is held; may be empty. Raw."""


class Edges:
    """The edges of a graph: from waits to what must act to end them, and from processes to their threads.

    A process may have 50,000 threads, so an Edge to one of them is made only when it is looked at.
    """

    def __init__(self, of_waits: Iterable[Edge] = ()) -> None:
        self.of_waits = list(of_waits)
        self._threads: dict[int, tuple[Ints, Floats, int]] = {}
        """Node of a process → nodes of its threads, their shares, and how many edges of waits there were before."""

    def __iter__(self) -> Iterator[Edge]:
        yield from self.of_waits
        for process, (threads, shares, _) in self._threads.items():
            for thread, share in zip(threads.tolist(), shares.tolist(), strict=True):
                yield _to_thread(process, thread, share)

    def add(self, edge: Edge) -> None:
        self.of_waits.append(edge)

    def add_threads(self, process: int, threads: Ints, shares: Floats) -> None:
        """Add the edges from a process to its threads."""
        self._threads[process] = threads, shares, len(self.of_waits)

    def threads_of(self, process: int) -> Sequence[int]:
        """Return the nodes of those threads of a process that may act for it; none if it is no process."""
        return self._threads[process][0].tolist() if process in self._threads else ()

    def into(self) -> Mapping[int, Sequence[tuple[int, Edge]]]:
        """Return the edges from waits by their target, each with its number."""
        found: defaultdict[int, list[tuple[int, Edge]]] = defaultdict(list)
        for number, one in enumerate(self.of_waits):
            found[one.target].append((number, one))
        return found

    def processes_of(self, threads: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield the processes with an edge to any of these threads.

        Each with the position of the first of these, and the number of the edge from a wait that was added next.
        """
        for process, (own, _, number) in self._threads.items():
            at = np.flatnonzero(np.isin(threads, own))
            if len(at):
                yield process, int(at[0]), number

    def between(self, source: int, target: int) -> Edge:
        """Return the edge from `source` to `target`. Raises KeyError if there is none."""
        if source not in self._threads:
            return {one.target: one for one in self.of_waits if one.source == source}[target]
        threads, shares, _ = self._threads[source]
        return _to_thread(source, target, dict(zip(threads.tolist(), shares.tolist(), strict=True))[target])

    @property
    def columns(self) -> tuple[Ints, Ints, Floats]:
        """Source, target and share of each edge."""
        sources = [np.array([one.source for one in self.of_waits], np.int64)]
        targets = [np.array([one.target for one in self.of_waits], np.int64)]
        shares = [np.array([one.share for one in self.of_waits], np.float64)]
        for process, (threads, of_threads, _) in self._threads.items():
            sources.append(np.full(len(threads), process))
            targets.append(threads)
            shares.append(of_threads)
        return np.concatenate(sources), np.concatenate(targets), np.concatenate(shares)


def _to_thread(process: int, thread: int, share: float) -> Edge:
    return Edge(process, thread, share, "", True, "")


class Passed(NamedTuple):
    """Waiting, passed along the edges."""

    through: Floats
    """How much waiting passed through each node, including its own."""
    ends: Floats
    """How much waiting ended at each node; for a loop, it is at the first of its nodes."""


class Paths:
    """Passes waiting along the edges of a graph of `count` nodes."""

    def __init__(self, count: int, edges: Edges) -> None:
        self._count = count
        self._source, self._target, self._share = edges.columns
        self._is_end = np.ones(count, np.bool_)
        self._is_end[self._source] = False
        self.loops = self._loops()
        """Nodes that wait only for each other, each loop in the order of the edges."""
        for loop in self.loops:  # waiting that arrives there stays there: no thread in it can act
            self._is_end[[*loop]] = True

    def passed(self, own: Floats) -> Passed:
        """Pass `own` waiting of the nodes along the edges to their ends. The sum of `ends` is the sum of `own`."""
        through, ends, flow = own.copy(), np.zeros(self._count), own.copy()
        for _ in range(MOST_HOPS):
            ends[self._is_end] += flow[self._is_end]
            flow[self._is_end] = 0
            if not flow.any():
                break
            flow = np.bincount(self._target, flow[self._source] * self._share, self._count)
            through += flow
        ends += flow
        for loop in self.loops:
            ends[loop[0]] = ends[[*loop]].sum()
            ends[[*loop[1:]]] = 0
        return Passed(through, ends)

    def _loops(self) -> list[tuple[int, ...]]:
        leads = self._is_end.copy()
        """Nodes from which an end can be reached: from all others, only loops."""
        known = -1
        while known != (known := int(np.count_nonzero(leads))):
            leads[self._source[leads[self._target]]] = True
        if leads.all():
            return []
        first_target = dict(zip(self._source[::-1].tolist(), self._target[::-1].tolist(), strict=True))
        found: list[tuple[int, ...]] = []
        seen = set[int]()
        for start in np.flatnonzero(~leads).tolist():
            path: dict[int, int] = {}
            node = start
            while node not in seen and node not in path:
                path[node] = len(path)
                node = first_target[node]
            if node in path:
                found.append(tuple(one for one, at in path.items() if at >= path[node]))
            seen.update(path)
        return found
