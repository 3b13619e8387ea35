"""What keys do in the list: another list, or one level down or up."""

from dataclasses import replace

from offtop.model.aggregate.breakdown_rows import STORM_OF
from offtop.model.aggregate.filter import NOTHING, Filter
from offtop.model.aggregate.pool import Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.rows import Key
from offtop.model.aggregate.waker_rows import WakerKey
from offtop.model.classify.causes import Reason
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.wake import OFFCPU, WAKEUP, Object
from offtop.model.viewmodel import panes
from offtop.model.viewmodel.view import (
    CATEGORIES,
    DISKS,
    FILES,
    FLAME,
    LATENCY,
    LIST,
    OUTLIERS,
    SITE,
    STUCK,
    TREE,
    FlameView,
    View,
)
from offtop.model.viewmodel.view_changes import about, filtered, in_cgroup, into, out_of, out_of_waker
from offtop.model.windows.breakdown import ALL


def at_category(view: View, category: str, line: int | None = None) -> View:
    """Move the cursor of the categories. `line`: see View."""
    view = replace(view, category_line=line) if line != view.category_line else view
    return about(view, category=category, cursor=None) if category != view.category else view


def at_row(view: View, key: Key, line: int | None = None) -> View:
    """Move the cursor of the list; if a thread is selected, select that one instead. `line`: see View."""
    if view.thread is not None and isinstance(key, ThreadKey) and key != view.thread:
        return about(view, thread=key, cursor=key, line=line)
    return replace(view, cursor=key, line=line)


def entered(view: View, key: Key | None) -> View:
    """Go one level down from row `key`.

    The levels are the categories, the list, a cgroup, a program, a process, a thread, its tree, a branch of that, its
    site.
    """
    if view.focus == CATEGORIES:
        return replace(view, focus=LIST)
    if view.focus == LIST and isinstance(key, WakerKey):
        key = key._replace(name=key.name.removeprefix(STORM_OF))
        is_last = view.lists_waking_threads or not key.pid
        above = view.wakers[:1] if view.wakers and view.wakers[0].pid and not view.wakers[0].tid else ()
        cursor, focus = (key, TREE) if is_last else (None, LIST)
        return into(view, "wakers", wakers=(*above, key), cursor=cursor, focus=focus)
    if view.focus == LIST and isinstance(key, Object):
        return into(view, "object", object=key, cursor=None) if key.kind else view
    if view.focus == LIST and isinstance(key, Reason):
        return into(view, "reason", reason=key, cursor=None)
    if view.focus == LIST and isinstance(key, Program):
        return into(view, "program", program=key, cursor=None)
    if view.focus == LIST and isinstance(key, Pool):
        return into(view, "pool", pool=key, cursor=None)
    if view.focus == LIST and isinstance(key, str):
        inside = in_cgroup(key)
        text = f"{view.filter.text} {inside.text}".lstrip()
        both = replace(view.filter, text=text, waits=(*view.filter.waits, *inside.waits))
        return replace(filtered(view, both), cgroups=False, threads=False, group=(key, view.filter))
    if view.focus == LIST and isinstance(key, ThreadKey):
        return into(view, "thread", thread=key, cursor=key, focus=TREE)
    if view.focus == LIST and isinstance(key, int) and view.pid is None:
        return into(view, "pid", pid=key, cursor=None)
    if view.focus == TREE:
        return replace(view, path=view.tree.cursor, focus=SITE, scrolled=0)
    return view


def left(view: View) -> View:
    """Go one level up, with the cursor where it was; at the top, remove the filter."""
    if view.zoomed:
        return replace(view, zoomed=False)
    if view.search:
        return replace(view, search="")
    if view.focus == SITE:
        return replace(view, focus=TREE, path=())
    if view.focus == FLAME and view.flame.zoom:
        return replace(view, flame=FlameView(cursor=view.flame.zoom))
    if view.focus == STUCK and view.stuck.opened:
        return replace(view, stuck=replace(view.stuck, opened=False))
    if view.focus == STUCK and view.stuck.alike is not None:
        return replace(view, stuck=replace(view.stuck, alike=None))
    if view.focus == FLAME:
        return panes.flame_or_not(view)
    if view.focus == OUTLIERS and view.outliers.opened:
        return replace(view, outliers=replace(view.outliers, opened=False))
    if view.has_io_heat:
        return panes.heat_map_or_rows(view)
    if view.has_io_tree:
        return panes.tree_or_list(view)
    if view.io_list and view.io_list.opened:
        return panes.row_closed(view)
    if view.focus in (STUCK, OUTLIERS, FILES, DISKS):
        return panes.off_cpu_panes(view)
    if view.focus == LATENCY:
        return replace(view, focus=CATEGORIES)
    drilled = view.drilled
    if view.focus == TREE and drilled != "thread" and not (drilled == "wakers" and view.is_at_waker):
        return replace(view, focus=LIST)
    match drilled:
        case "thread":
            return out_of(view, "thread", thread=None, cursor=view.thread, focus=LIST)
        case "wakers":
            return out_of_waker(view)
        case "object":
            return out_of(view, "object", object=None, cursor=view.object, focus=LIST)
        case "reason":
            return out_of(view, "reason", reason=None, cursor=view.reason, focus=LIST)
        case "pool":
            return out_of(view, "pool", pool=None, cursor=view.pool, focus=LIST)
        case "program":
            return out_of(view, "program", program=None, cursor=view.program, focus=LIST)
        case "pid":
            cursor = ThreadKey(view.pid or 0, view.pid or 0) if view.threads else view.pid
            return out_of(view, "pid", pid=None, cursor=cursor, focus=LIST)
        case _:
            pass
    if view.objects or view.reasons:
        return objects_or_not(view) if view.objects else reasons_or_not(view)
    if view.focus == LIST and view.group is not None:
        return _out_of_group(view, *view.group)
    if view.focus == LIST:
        return replace(view, focus=CATEGORIES)
    if view.category != ALL:
        return at_category(view, ALL)
    return replace(view, filter=NOTHING, found="", user="", group=None)


def in_mode(view: View, mode: str) -> View:
    """Keep the selection in another mode; off-CPU mode has no wakers."""
    view = panes.off_cpu_panes(view)
    if mode == view.mode:
        return view
    if mode == OFFCPU:
        view = replace(view, wakers=())
    is_other_list = WAKEUP in (mode, view.mode) or isinstance(view.cursor, WakerKey | Object | Reason)
    shape = view.tree.shape._replace(mode=mode)
    return replace(panes.shaped(view, shape), mode=mode, cell=None, cursor=None if is_other_list else view.cursor)


def objects_or_not(view: View) -> View:
    """List the objects waited on, or what was listed before."""
    if view.object is not None:
        return about(view, object=None, objects=True, reasons=False, cursor=view.object, focus=LIST)
    reasons = view.reasons and view.reason is not None
    return about(view, objects=not view.lists_objects, reasons=reasons, cursor=None, focus=_list_or_above(view))


def reasons_or_not(view: View) -> View:
    """List causes, or what was listed before."""
    if view.reason is not None:
        return about(view, reason=None, reasons=True, cursor=view.reason, focus=LIST)
    return about(view, reasons=not view.reasons, cursor=None, focus=_list_or_above(view))


def threads_or_processes(view: View) -> View:
    """Switch between threads and processes; in wakeup mode, of the wakers; in the list of requests to disks, there."""
    if view.focus == DISKS:
        return replace(view, disks=replace(view.disks, by_thread=not view.disks.by_thread, cursor=None))
    if view.mode == WAKEUP:
        threads = not view.lists_wakers or not view.lists_waking_threads
        return about(
            view, threads=threads, wakers=(), cursor=None, **_without_object_lists(view), focus=_list_or_above(view)
        )
    return _listing(view, threads=not view.lists_threads, cgroups=False)


def cgroups_or_not(view: View) -> View:
    """List containers, units and other cgroups, or what was listed before."""
    if view.group is not None:
        return _out_of_group(view, *view.group)
    return _listing(replace(view, program=None), threads=view.threads, cgroups=not view.lists_cgroups)


def _out_of_group(view: View, path: str, before: Filter) -> View:
    above = replace(filtered(view, before), program=None)
    return replace(_listing(above, threads=False, cgroups=True), cursor=path)


def _listing(view: View, threads: bool, cgroups: bool) -> View:
    focus = _list_or_above(view)
    chosen = {"pid": None, "pool": None, "thread": None, "cursor": None, "focus": focus}
    return about(view, threads=threads, cgroups=cgroups, **chosen, **_without_object_lists(view))


def _without_object_lists(view: View) -> dict[str, bool]:
    """Return changes that close the lists of objects and causes.

    If one object or cause is selected, its list stays open one level up.
    """
    return {"objects": view.objects and view.object is not None, "reasons": view.reasons and view.reason is not None}


def folded_or_not(view: View, unfolded: bool) -> View:
    """List the threads of pools one by one, or each pool as one row."""
    return replace(view, unfolded=unfolded) if view.unfolded != unfolded else view


def programs_or_processes(view: View, programs: bool) -> View:
    """List each program of several processes as one row, or all processes one by one."""
    return replace(view, programs=programs) if view.programs != programs else view


def account_or_not(view: View) -> View:
    return replace(view, account=not view.account)


def _list_or_above(view: View) -> str:
    return CATEGORIES if view.focus == CATEGORIES else LIST
