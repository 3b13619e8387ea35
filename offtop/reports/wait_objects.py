"""Convert single waits to JSON objects: waits in progress, outliers, what they were on, and what ended them."""

from typing import TypedDict

from offtop.model.aggregate import location
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.values.catalog import Catalog, SiteKey, ThreadKey
from offtop.model.values.outlier import LongWait, Outlier
from offtop.model.values.snapshot import (
    EXITED,
    Bound,
    Waiting,
)
from offtop.model.values.stack import Names
from offtop.model.values.state import letter
from offtop.model.values.wake import NO_OBJECT, Waker
from offtop.model.windows.breakdown import (
    Leaf,
)
from offtop.model.windows.stuck import Age
from offtop.printable import printable
from offtop.reports.objects import json_waited_on, json_waits, json_wakers
from offtop.reports.stack_objects import StackFields, printable_names, stack_fields


def who(key: ThreadKey, catalog: Catalog) -> tuple[int, int, str, str]:
    """Return the PID, the TID, and the names of the thread and its process."""
    if key == EXITED:
        return 0, 0, "(exited)", "(exited)"
    return key.pid, key.tid, printable(catalog.comm(key)), printable(catalog.process(key.pid))


def waited_on(site: SiteKey, catalog: Catalog) -> json_waited_on.WaitedOn | None:
    """Return the object waited on at a site, or None if it is unknown."""
    what = catalog.wake(site.wake).object
    if what == NO_OBJECT:
        return None
    peers = catalog.peers_of(what)
    sides = peers.sides_of_wait(catalog.stack(site.kernel))
    ends = [
        json_waited_on.Peer(role=side.role, pid=one.pid, comm=printable(one.comm))
        for side in sides
        for one in side.processes
    ]
    return json_waited_on.WaitedOn(
        kind=printable(what.kind),
        name=printable(what.name),
        pid=what.pid,
        local=printable(what.local),
        peer=printable(what.peer),
        state=printable(what.state),
        ends=ends or None,
        ends_more=sum(side.total for side in sides) - len(ends),
        members={printable(kind): count for kind, count in peers.members} or None,
    )


class _Woken(TypedDict):
    """The keys about what ended the waits of a site, and about what they were on."""

    waker: json_wakers.Waker | None
    object: json_waited_on.WaitedOn | None
    chain: list[list[str]] | None
    chain_wakers: list[json_wakers.Waker] | None
    chain_end: str | None


class Wakers:
    """Builds the JSON objects of wakers, and reuses them for sites that share a waker."""

    def __init__(self, catalog: Catalog, names: Names) -> None:
        self._catalog, self._names = catalog, names
        self._wakers: dict[Waker, json_wakers.Waker] = {}
        self._functions: dict[tuple[int, int], list[str]] = {}

    def wake(self, site: SiteKey, chained: bool) -> _Woken:
        """The waker is None if wakers are not recorded, the waits go on, or they were for a CPU only."""
        found, on = self._catalog.wake(site.wake), waited_on(site, self._catalog)
        waker = self.waker(found.waker) if found.has_waker else None
        if waker is None or not chained:
            return _Woken(waker=waker, object=on, chain=None, chain_wakers=None, chain_end=None)
        return _Woken(
            waker=waker,
            object=on,
            chain=[self._functions_of(link.kernel, link.user) for link in found.links],
            chain_wakers=[self.waker(link.waker) for link in found.links],
            chain_end=found.end,
        )

    def waker(self, waker: Waker) -> json_wakers.Waker:
        found = self._wakers.get(waker)
        if found is None:
            found = self._wakers[waker] = json_wakers.Waker(
                kind=waker.kind,
                name=printable(waker.name),
                pid=waker.pid,
                tid=waker.tid,
                comm=printable(waker.comm),
                via=waker.via,
                kernel=printable_names(location.kernel_names(self._catalog, waker.kernel, self._names)),
                user=printable_names(location.user_names(self._catalog, waker.user, self._names)),
            )
        return found

    def _functions_of(self, kernel: int, user: int) -> list[str]:
        """Return the functions of both stacks, leaf first."""
        found = self._functions.get((kernel, user))
        if found is None:
            names = location.kernel_names(self._catalog, kernel, self._names)
            names += location.user_names(self._catalog, user, self._names)
            found = self._functions[kernel, user] = printable_names(names)
        return found


_AGE_IS = {Bound.EXACT: "exact", Bound.AT_MOST: "at_most", Bound.AT_LEAST: "at_least"}


def blocked_object(
    one: Waiting, age: Age, leaf: Leaf, fields: StackFields, catalog: Catalog, cause_finder: CauseFinder
) -> json_waits.Blocked:
    rule, holder = cause_finder.rule_of(one.place, catalog), one.holder
    return json_waits.Blocked(
        *who(one.site.thread, catalog),
        age_ns=age.ns,
        age_is=_AGE_IS[age.bound],
        state=one.letter,
        category=leaf.category,
        idle=leaf.is_idle_kind,
        standing=leaf.standing,
        diagnosis=rule.id if rule else None,
        syscall=printable(catalog.call(one.call)) if one.call >= 0 else None,
        arguments=tuple(one.arguments),
        **fields,
        object=waited_on(one.site, catalog),
        held_by=json_waited_on.Holder(pid=holder.pid, tid=holder.tid, comm=printable(holder.comm))
        if holder.tid
        else None,
    )


def outlier_object(one: Outlier, names: Names, cause_finder: CauseFinder) -> json_waits.Outlier:
    return json_waits.Outlier(
        rule=printable(one.rule),
        metric=one.metric,
        category=printable(one.category),
        process=printable(one.program),
        value=round(float(one.value), 3),
        mark=round(float(one.threshold), 3),
        usual_ns=one.usual_ns or None,
        taken_ns=one.taken_ns,
        more=one.more,
        was_told=one.was_reported,
        wait=_wait_object(one, one.wait, names, cause_finder) if one.wait else None,
        mode=one.io.mode if one.io else None,
        what=printable(one.what) or None,
    )


def _wait_object(one: Outlier, wait: LongWait, names: Names, cause_finder: CauseFinder) -> json_waits.LongWait:
    site, catalog = wait.site, one.catalog
    rule = cause_finder.copy().rule_of(site, catalog)
    return json_waits.LongWait(
        *who(site.thread, catalog),
        began_ns=one.taken_ns - (one.at_ns - wait.began_ns),
        length_ns=one.length_ns,
        runqueue_ns=wait.runqueue_ns,
        going_on=one.is_going_on,
        exact=wait.is_exact,
        began_earlier=wait.began_earlier,
        cpu=wait.cpu if wait.cpu >= 0 else None,
        state=letter(wait.state),
        after=printable(one.after) or None,
        **stack_fields(site.kernel, site.user, catalog, names),
        diagnosis=rule.id if rule else None,
        **Wakers(catalog, names).wake(site, chained=True),
    )
