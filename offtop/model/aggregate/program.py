"""Program: the processes of one executable, which are one row: 18 `postgres`.

Kernel threads are processes to the kernel; those that there is one of for each CPU or work queue are one program, too.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from offtop.model.aggregate.folding import Folding
from offtop.model.values.catalog import Catalog
from offtop.model.values.snapshot import EXITED, PSEUDO_PIDS

LEAST_PROCESSES = 2
"""A program with fewer is shown as its process."""
_KERNEL_THREADS = re.compile(r"(cpuhp|idle_inject|ksoftirqd|kworker|migration|rcu(?:b|c|og|op|os))/.")
"""Kernel threads whose names differ only by CPU or work queue after the slash."""
_ANY = "/*"
_MOST_NAMES = 65_536


class Program(NamedTuple):
    """Key of a program's row."""

    name: str
    """Name of its processes, or `kworker/*`. Raw."""

    def holds(self, pid: int, catalog: Catalog) -> bool:
        return program_name(catalog.process(pid)) == self.name

    @property
    def kind(self) -> str:
        """Common beginning of the names of such kernel threads; empty if its processes have the program's name."""
        return self.name.removesuffix("*") if _KERNEL_THREADS.match(self.name) and self.name.endswith(_ANY) else ""


@lru_cache(maxsize=_MOST_NAMES)
def program_name(process: str) -> str:
    """Return the program of a process, by the name of that."""
    kind = _KERNEL_THREADS.match(process)
    return f"{kind[1]}{_ANY}" if kind else process


def programs(pids: Iterable[int], catalog: Catalog) -> dict[Program, list[int]]:
    """Return the programs of which several processes are among `pids`, and these processes, lowest PID first."""
    named: dict[str, list[int]] = {}
    for pid in sorted(pids):
        if pid != EXITED.pid and pid not in PSEUDO_PIDS and (name := catalog.process(pid)):
            named.setdefault(program_name(name), []).append(pid)
    return {Program(name): some for name, some in named.items() if len(some) >= LEAST_PROCESSES}


def program_folding(pids: Iterable[int], catalog: Catalog) -> Folding[int, Program]:
    """Fold processes by program. In tables by process a program is its lowest PID, negative."""
    members = programs(pids, catalog)
    return Folding({-some[0]: program for program, some in members.items()}, members)
