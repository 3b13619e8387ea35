"""What PostgreSQL sessions say in their titles: which wait for a lock, which may hold it."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from offtop.model.values.blockers import TITLE, Blocker
from offtop.model.values.catalog import Catalog

_TITLE = re.compile(r"postgres: (?:(?P<cluster>\S+): )?(?P<user>\S+) (?P<database>\S+) \S+ (?P<activity>.+)")
"""Title of a PostgreSQL session: `postgres: main: bench shop [local] UPDATE waiting` (set_ps_display)."""
_IDLE, _IDLE_IN_TRANSACTION, _WAITS_FOR_LOCK = "idle", "idle in transaction", " waiting"


class Database(NamedTuple):
    """A database of one PostgreSQL server. Two servers may have the same names, in two containers for example."""

    cluster: str
    """Empty if titles do not have it (cluster_name)."""
    cgroup: str
    """Empty if unknown."""
    name: str


class Sessions(NamedTuple):
    waiting: Mapping[int, Database]
    """PID of a session that waits for a lock → its database."""
    holders: Mapping[Database, tuple[Blocker, ...]]
    """Database → its sessions that are idle in a transaction."""
    active: Mapping[Database, list[int]]
    """Database → PIDs of its sessions that are in a statement, and wait for no lock."""


def sessions_of(titles: Mapping[int, str], catalog: Catalog) -> Sessions:
    waiting: dict[int, Database] = {}
    holders: defaultdict[Database, tuple[Blocker, ...]] = defaultdict(tuple)
    active: defaultdict[Database, list[int]] = defaultdict(list)
    for pid, title in titles.items():
        if session := _TITLE.fullmatch(title.strip()):
            details, activity = catalog.details.get(pid), session["activity"]
            database = Database(session["cluster"] or "", details.cgroup if details else "", session["database"])
            if activity.endswith(_WAITS_FOR_LOCK):
                waiting[pid] = database
            elif activity.startswith(_IDLE_IN_TRANSACTION):
                holders[database] += (Blocker(pid, 0, TITLE, False),)
            elif activity != _IDLE:
                active[database].append(pid)
    return Sessions(waiting, holders, active)
