"""Names of the rows of a table, raw: escape them before they are shown."""

from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import Reason
from offtop.model.values.catalog import Catalog, ThreadKey
from offtop.model.values.container import label, place
from offtop.model.values.snapshot import EXITED
from offtop.model.values.wake import Object

EXITED_NAME = "(exited)"
"""Stands for evicted threads."""
NO_CGROUP = "?"
"""Stands for the cgroup of processes whose cgroup is not known yet; paths begin with `/`."""


def wake_name(key: WakerKey | Object | Reason) -> str:
    """Return what a waker, an object or a cause is called."""
    return (key.label or "(unknown)") if isinstance(key, Object) else key.name


def process_name(pid: int, catalog: Catalog) -> str:
    """Return the name of a process. Threads that exited no longer belong to one."""
    return EXITED_NAME if pid == EXITED.pid else catalog.process(pid)


def cgroup_of(pid: int, catalog: Catalog) -> str:
    """Return the path of a process's container, unit or other cgroup.

    It is NO_CGROUP if it is not known yet.
    """
    return place(catalog.detail(pid).cgroup) or NO_CGROUP


def cgroup_name(path: str) -> str:
    """Return the usual name of a cgroup, or its path."""
    return "(unknown)" if path == NO_CGROUP else label(path) or path


def thread_name(thread: ThreadKey, catalog: Catalog) -> str:
    """Return the name of a thread."""
    return EXITED_NAME if thread == EXITED else catalog.comm(thread)
