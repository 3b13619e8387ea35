"""What keys do in a pane: tree, icicle, waits in progress, outliers, file operations or requests to disks."""

from collections.abc import Iterable
from dataclasses import replace

from offtop.model.aggregate import tree
from offtop.model.aggregate.disk_rows import DISK_SORTS
from offtop.model.aggregate.file_rows import FILE_SORTS
from offtop.model.aggregate.steps import Path, Shape
from offtop.model.values.catalog import ThreadKey
from offtop.model.values.disks import DiskKey
from offtop.model.values.files import FILE, FileKey
from offtop.model.values.outlier import SlowIo
from offtop.model.viewmodel.alike import Alike
from offtop.model.viewmodel.outlier_list import Which
from offtop.model.viewmodel.view import (
    CATEGORIES,
    DISKS,
    FILES,
    FLAME,
    LIST,
    OUTLIERS,
    SITE,
    STUCK,
    TREE,
    WHOLE_SCREEN,
    DisksView,
    FilesView,
    FlameView,
    OutliersView,
    StuckView,
    TreeView,
    View,
)
from offtop.model.viewmodel.view_changes import about, into, out_of_waker
from offtop.model.windows.breakdown import ALL


def tree_or_list(view: View) -> View:
    """Open the tree of the selection, or return to its list."""
    if view.io_list:
        return replace(_with_io_list(view, tree=not view.io_list.tree, heat=False), tree=TreeView(view.tree.shape))
    if view.focus in (TREE, SITE):
        if view.drilled == "wakers" and view.is_at_waker:
            return out_of_waker(view)
        back = about(view, thread=None, cursor=view.thread, focus=LIST) if view.thread else view
        return replace(back, focus=LIST, path=())
    return replace(view, focus=TREE, path=())


def heat_map_or_rows(view: View) -> View:
    """Show the heat map of file operations or requests to disks, or their rows again."""
    return replace(_with_io_list(view, heat=not view.has_io_heat, tree=False), cell=None)


def row_opened(view: View, scrolled: int = 0) -> View:
    """Show the row under the cursor in full; `scrolled` lines of it are above the screen."""
    return _with_io_list(view, opened=True, scrolled=scrolled)


def row_closed(view: View) -> View:
    return _with_io_list(view, opened=False)


def at_row(view: View, pane: str, key: FileKey | DiskKey, line: int | None = None) -> View:
    """Move the cursor of the list of file operations or of requests to disks. `line`: see View."""
    return _with_io_list(replace(view, focus=pane), cursor=key, line=line)


def rows_sorted_by(view: View, sort: str) -> View:
    """Sort the list that has the focus, of file operations or of requests to disks; from the first row on.

    `sort`: a column of the list, or one of rows.SORTS.
    """
    if view.focus == FILES:
        return replace(view, files=FilesView(sort=FILE_SORTS.column_for(sort)))
    return replace(view, disks=DisksView(sort=DISK_SORTS.column_for(sort), by_thread=view.disks.by_thread))


def rows_reversed(view: View) -> View:
    """Reverse the order of the list that has the focus, of file operations or of requests to disks."""
    listed = view.files if view.focus == FILES else view.disks
    return _with_io_list(view, reverse=not listed.reverse)


def _with_io_list(view: View, **changes: object) -> View:
    """Change the list of file operations or of requests to disks, whichever has the focus."""
    if view.focus == FILES:
        return replace(view, files=replace(view.files, **changes))
    return replace(view, disks=replace(view.disks, **changes))


def flame_or_not(view: View) -> View:
    if view.focus == FLAME:
        return replace(view, focus=view.came_from)
    return replace(view, focus=FLAME, path=(), came_from=came_from(view), zoomed=False)


def stuck_or_not(view: View) -> View:
    """Open the list of waits in progress, or return to the previous pane."""
    if view.focus == STUCK:
        return off_cpu_panes(view)
    view = replace(view, came_from=came_from(view))
    return replace(view, focus=STUCK, path=(), zoomed=False, stuck=StuckView(view.stuck.cursor))


def outliers_or_not(view: View) -> View:
    """Open the list of outliers, or return to the previous pane."""
    if view.focus == OUTLIERS:
        return off_cpu_panes(view)
    view = replace(view, came_from=came_from(view))
    return replace(view, focus=OUTLIERS, path=(), zoomed=False, outliers=OutliersView(view.outliers.cursor))


def files_or_not(view: View) -> View:
    """Open the list of file operations, or return to the previous pane."""
    return off_cpu_panes(view) if view.focus == FILES else _at_io_list(view, FILES)


def disks_or_not(view: View, near_pid: int) -> View:
    """Open the list of requests to disks, or return to the previous pane. `near_pid`: the cursor starts there."""
    if view.focus == DISKS:
        return off_cpu_panes(view)
    return _at_io_list(replace(view, disks=replace(view.disks, cursor=None, near_pid=near_pid, near=None)), DISKS)


def _at_io_list(view: View, pane: str) -> View:
    return replace(view, came_from=came_from(view), focus=pane, path=(), zoomed=False)


def came_from(view: View) -> str:
    """Return the focused pane, or the one before a pane that has the whole screen."""
    return TREE if view.focus == SITE else view.came_from if view.focus in WHOLE_SCREEN else view.focus


def at_outlier(view: View, one: Which, line: int | None = None) -> View:
    """Move the cursor of the outliers. `line`: see View."""
    return replace(view, focus=OUTLIERS, came_from=came_from(view), zoomed=False, outliers=OutliersView(one, line))


def with_triggers(view: View, triggers: tuple[str, ...]) -> View:
    """Set the triggers."""
    return replace(view, triggers=triggers)


def outlier_opened(view: View, scrolled: int = 0) -> View:
    """Open the outlier under the cursor; `scrolled` lines of it are above the screen."""
    return replace(view, outliers=replace(view.outliers, opened=True, scrolled=scrolled))


def around_outlier(view: View, one: Which, key: ThreadKey | None, category: str) -> View:
    """Select the outlier's thread in all panes."""
    view = replace(off_cpu_panes(view), outliers=OutliersView(one), category=category)
    if key is None:
        return about(view, thread=None, pid=None, program=None, pool=None, cursor=None, focus=CATEGORIES)
    view = about(view, pid=key.pid, program=None, pool=None, object=None, reason=None, wakers=(), cursor=key)
    return into(view, "thread", thread=key, cursor=key, focus=TREE)


def around_slow_io(view: View, one: Which, io: SlowIo, program: str) -> View:
    """Select the outlier's row in the list of file operations or of requests to disks. `program`: "" if unknown."""
    view = replace(view, outliers=OutliersView(one), category=ALL, disks=replace(view.disks, near_pid=0))
    view = _at_io_list(view, FILES if io.mode == FILE else DISKS)
    return _with_io_list(view, opened=False, tree=False, heat=False, cursor=None, near=(io.what, program))


def around_hop(view: View, key: ThreadKey) -> View:
    """Select a thread in all panes; with tid 0, its process."""
    view = replace(off_cpu_panes(view), category=ALL)
    view = about(
        view,
        pid=None,
        program=None,
        thread=None,
        pool=None,
        object=None,
        reason=None,
        wakers=(),
        cursor=None,
        way=(),
    )
    view = into(view, "pid", pid=key.pid, cursor=None, focus=LIST)
    return into(view, "thread", thread=key, cursor=key, focus=TREE) if key.tid else view


def off_cpu_panes(view: View) -> View:
    """Return from a list that is not about off-CPU time, or has the whole screen, to the panes of off-CPU time."""
    if view.focus not in (STUCK, OUTLIERS, FILES, DISKS):
        return view
    return replace(
        view,
        focus=view.came_from,
        stuck=StuckView(view.stuck.cursor),
        outliers=OutliersView(view.outliers.cursor),
    )


def stuck_entered(view: View, alike: Alike | None) -> View:
    """List the waits one by one that are one row; if the row is only one wait, open it."""
    return replace(view, stuck=replace(view.stuck, alike=alike)) if alike else stuck_opened(view)


def at_stuck(view: View, key: ThreadKey, line: int | None = None) -> View:
    """Move the cursor of the waits in progress. `line`: see View."""
    return replace(view, focus=STUCK, stuck=replace(view.stuck, cursor=key, line=line, scrolled=0))


def stuck_opened(view: View, scrolled: int = 0) -> View:
    """Open the wait under the cursor; `scrolled` lines of it are above the screen."""
    return replace(view, stuck=replace(view.stuck, opened=True, scrolled=scrolled))


def at_box(view: View, path: Path) -> View:
    """Move the cursor of the icicle."""
    return replace(view, flame=replace(view.flame, cursor=path))


def zoomed_in(view: View, path: Path) -> View:
    """Zoom the icicle into that box."""
    return replace(view, flame=FlameView(path, path))


def scrolled_to(view: View, line: int) -> View:
    return replace(view, scrolled=line)


def zoomed_or_not(view: View) -> View:
    """Zoom the focused pane, or not; some have the whole screen already."""
    return replace(view, zoomed=not view.zoomed and view.focus not in WHOLE_SCREEN)


def shaped(view: View, shape: Shape) -> View:
    """Give the tree another shape. Its paths change, so nothing stays open."""
    focus = TREE if view.focus == SITE else view.focus
    return replace(view, tree=TreeView(shape), flame=FlameView(), path=(), focus=focus)


def inverted(view: View) -> View:
    return shaped(view, view.tree.shape._replace(inverted=not view.tree.shape.inverted))


def only_frames(view: View, frames: str) -> View:
    """Show only kernel or only user frames, or both again."""
    return shaped(view, view.tree.shape._replace(frames="both" if view.tree.shape.frames == frames else frames))


def machinery_or_not(view: View) -> View:
    return shaped(view, view.tree.shape._replace(machinery=not view.tree.shape.machinery))


def by_object_or_not(view: View) -> View:
    return shaped(view, view.tree.shape._replace(objects=not view.tree.shape.objects))


def at_branch(view: View, path: Path, line: int) -> View:
    """Move the cursor of the tree to `path`, on that line of the pane."""
    return replace(view, tree=replace(view.tree, cursor=path, line=line))


def branch_opened(view: View, path: Path) -> View:
    opened = tree.opened_with(view.tree.opened, path)
    return replace(view, tree=replace(view.tree, opened=opened, closed=view.tree.closed - {path}))


def branch_closed(view: View, path: Path) -> View:
    opened = tree.closed(view.tree.opened, path)
    return replace(view, tree=replace(view.tree, opened=opened, closed=(view.tree.closed - opened) | {path}))


def all_opened(view: View, paths: Iterable[Path]) -> View:
    return replace(view, tree=replace(view.tree, opened=frozenset(paths), closed=frozenset()))


def grown(view: View, large: Iterable[Path]) -> View:
    """Open branches that have become large, unless the user closed them."""
    more = frozenset(path for path in large if not any(path[: len(shut)] == shut for shut in view.tree.closed))
    if more <= view.tree.opened:
        return view
    return replace(view, tree=replace(view.tree, opened=view.tree.opened | more))
