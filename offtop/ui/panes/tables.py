"""The table of categories, and the list of programs, processes, threads, pools or cgroups."""

from collections.abc import Sequence
from dataclasses import replace

from offtop.model.aggregate import location, place_shares
from offtop.model.aggregate.baseline_rows import Change
from offtop.model.aggregate.pool import Pool
from offtop.model.aggregate.program import Program
from offtop.model.aggregate.row_names import cgroup_name
from offtop.model.aggregate.rows import CHANGE, NOWHERE, Row
from offtop.model.aggregate.scope_text import visible_processes
from offtop.model.values.catalog import Catalog, Details, ThreadKey
from offtop.model.values.snapshot import EXITED
from offtop.model.values.wake import NO_STORM, OFFCPU, OFFWAKE, gathers
from offtop.model.viewmodel.category_picture import CategoriesPicture
from offtop.model.viewmodel.common import Common
from offtop.model.viewmodel.listing import ListPicture
from offtop.model.viewmodel.seconds import AccountPicture
from offtop.model.viewmodel.view import CATEGORIES, LIST, View
from offtop.model.windows.breakdown import ALL
from offtop.ui.kit.columns import Column, heads, line_of, that_fit, width_of
from offtop.ui.kit.glyphs import sparkline
from offtop.ui.kit.lines import Line, Pen, fit, plain, rule
from offtop.ui.panes import account, wakers
from offtop.ui.panes.head import name_of
from offtop.units import average, count, duration, threads


def _percent(row: Row) -> str:
    return f"{row.share_pct:.0f}%" if row.part.total_ns > 0 else ""


NUMBERS = (
    Column("EV/S", 5, lambda row: count(row.waits_per_s) if row.part.waits else "", sort="EV/S", least_width=58),
    Column("p50<=", 6, lambda row: duration(row.percentile_ns(50)), sort="P50", least_width=76),
    Column("p99<=", 6, lambda row: duration(row.percentile_ns(99)), sort="P99", least_width=52),
    Column("MAX", 6, lambda row: duration(row.part.max_ns), sort="MAX"),
)


def change_token(change: Change | None) -> str:
    if change is None or not change.is_sure:
        return "dim"
    return "grew" if change.by > 0 else "shrank"


def times_token(change: Change | None) -> str:
    if change is None or not (change.is_new or change.is_gone or change.is_p99_sure):
        return "dim"
    return "grew" if change.is_new or change.p99_times > 1 else "shrank"


def _change(row: Row) -> str:
    return row.change.text if row.change else ""


CHANGES = (
    Column(CHANGE, 8, _change, sort=CHANGE, stays=True, token_of=lambda row: change_token(row.change)),
    Column(
        "p99 x", 5, lambda row: row.change.p99_text if row.change else "", token_of=lambda row: times_token(row.change)
    ),
)
"""Columns of a comparison with the baseline.

They are the change in average waiting threads, and p99 as a multiple of the baseline's, or `new` or `gone`.
"""


def changes_of(row: Row) -> str:
    """Return the columns of CHANGES as text; empty without a comparison."""
    return " ".join(filter(None, (column.text_of(row).strip() for column in CHANGES)))


_LEAST_COMPARED, _LEAST_COMPARED_LIST, _WIDER_COMPARED = 90, 120, 30
"""Least pane widths for other numbers beside a comparison, and by how much their own least widths grow."""
NOW = Column("NOW", 7, lambda row: row.now.text, sort="NOW")
WAITING = Column(
    "WAITING",
    8,
    lambda row: threads(row.waiting) if row.part.total_ns > 0 else "",
    "waiting",
    sort="WAITING",
    stays=True,
    filled=lambda row: row.share_pct / 100,
)
SHARE = Column("%", 4, _percent, least_width=44)
TOTAL = Column("TOTAL", 6, lambda row: duration(row.lifetime_ns), sort="TOTAL")
"""Shown if rows are sorted by it."""
_LEAST_BAR = 8
_LEAST_WHERE, _WHERE_SHARE = 40, 1 / 3
"""Cells that WHERE gets, or its share of a narrow list; other columns are dropped for it."""
_BELOW_WHERE = ("p50<=", "EV/S", "p99<=", "%", "THR", "CGROUP", "USER")
"""Titles of the columns that are dropped for WHERE, in this order."""
USER_WIDTH = 130
"""Least width for the USER column."""
CGROUP_WIDTH = 160
"""Least width for the CGROUP column."""
_BESIDE_TITLES = 64
"""Minimum width, in cells, of the column with titles."""
_OBJECT_WIDTH = 190
"""Least width for the WAITING ON column: the main object at the row's main location."""
_WIDE_WAKERS = 120
"""Least width for all numbers in the list of wakers, beside their WHERE column."""
CATEGORY_MARK, LIST_MARK = 1, 2
"""Cells at the left for the cursor, and in the list also for the mark of a pin or outlier."""
CHOOSABLE = (
    *("%", "spark", "EV/S", "p50<=", "p99<=", "MAX", "NOW", "THR"),
    *("USER", "WAITING ON", "CGROUP", "PROCESS", "WHERE"),
)
"""Columns that `f` can hide; `spark` is the last minute of a category."""


def category_columns(shown: CategoriesPicture, common: Common, pen: Pen) -> list[Column]:
    view = common.view
    cells = max((len(spark) for spark in shown.sparks.values()), default=0)
    spark = Column(
        "last 60s",
        cells,
        lambda row: sparkline(shown.sparks.get(str(row.key), ()), pen.glyphs) if not row.rows else "",
        "spark",
        left=True,
        least_width=70,
    )
    name = Column("CATEGORY", 13, lambda row: row.name, left=True, sort="NAME", stays=True, token_of=_category_token)
    total = [TOTAL] if view.sort == "TOTAL" else []
    columns = [
        name,
        *with_changes(view, [WAITING, SHARE, *([] if "spark" in view.hidden else [spark]), *total, *NUMBERS, NOW]),
    ]
    return that_fit(columns, pen.width, view, view.table_sort, CATEGORY_MARK)


def with_changes(view: View, numbers: Sequence[Column], least_width: int = _LEAST_COMPARED) -> list[Column]:
    """Insert the comparison after the first column of `numbers`, which is WAITING.

    The other columns then need at least `least_width`.
    """
    if view.compared is None:
        return [*numbers]
    first, *others = numbers
    wide = [
        replace(one, least_width=0 if one is NOW else max(one.least_width + _WIDER_COMPARED, least_width))
        for one in others
    ]
    return [first, *CHANGES, *wide]


def _category_token(row: Row) -> str:
    return f"cat-{row.key}" if row.key and isinstance(row.key, str) else "name"


def categories(shown: CategoriesPicture, common: Common, pen: Pen) -> list[Line]:
    """Return the table of the selection's categories; its first row is their sum."""
    columns = category_columns(shown, common, pen)
    view, ranking = common.view, shown.ranking
    above = shown.seen.first
    everything = Row(
        ALL,
        f"all ({above} above)" if above else "all",
        common.span_ns,
        ranking.whole,
        ranking.whole.total_ns,
        lifetime_ns=shown.lifetime_ns,
        now=shown.oldest,
        before=ranking.before,
    )
    lines = [heads(columns, view.table_sort, CATEGORY_MARK)]
    for row in (everything, *ranking.rows[shown.seen.first : shown.seen.end]):
        chosen = row.key == view.category
        base = ("cursor" if view.focus == CATEGORIES else "cursor-away") if chosen else "text"
        named = row._replace(name=f"~{row.name}") if row.idle else row
        lines.append(line_of(columns, named, ">" if chosen else " ", base, pen))
    if shown.seen.below:
        lines.append(line_of(columns, shown.seen.below, " ", "text", pen))
    return lines


def rows(listed: ListPicture, of_selection: AccountPicture | None, common: Common, pen: Pen) -> list[Line]:
    """Return the list of cgroups, processes or threads, with its title, and the account of the selection if it fits."""
    view, ranking = common.view, listed.ranking
    what = _what(view)
    pid = view.pool.pid if view.pool is not None else view.pid
    inside = pid if pid is not None else view.program or (view.group[0] if view.group else None)
    if view.lists_wakers and view.thread is not None:
        inside = view.thread
    of = f" of {name_of(common.catalog, inside, pen.glyphs)}" if inside is not None else ""
    category = view.category if view.category != ALL else "all categories"
    title = f"{what}{of}: {'where each second went' if view.lists_account else category}"
    if listed.first:
        title += f" ({listed.first} above)"
    if common.uncompared or listed.caveat:
        title += f"  ({common.uncompared or listed.caveat})"
    lines = [rule(title, pen)]
    if listed.account_lines:
        lines += account.lines(of_selection, common, pen)
    if not common.gathered:
        return [*lines, plain(fit(not_gathered(common), pen.width, pen.glyphs), "dim")]
    if not ranking.rows:
        lines.append(plain(fit(_nothing(listed, common), pen.width, pen.glyphs), "dim"))
        if not ranking.elided or not view.filter.chooses_rows:
            return lines
    columns = list_columns(listed, common, pen)
    lines.append(heads(columns, view.list_sort, LIST_MARK))
    for index, row in enumerate(seen_rows(listed, pen), listed.first):
        shows_cursor = view.focus == LIST or (view.thread is not None if view.lists_sleepers else view.is_at_waker)
        chosen = index == listed.cursor and shows_cursor
        outlier_mark = pen.glyphs.mark if row.key in listed.marked else " "
        mark = (">" if chosen else " ") + ("*" if row.pinned else outlier_mark)
        base = ("cursor" if view.focus == LIST else "cursor-away") if chosen else "text"
        if row.storm != NO_STORM:
            lines.append(wakers.storm_line(common, row, mark, base, pen))
        else:
            lines.append(line_of(columns, row, mark, base, pen))
    if listed.below and len(lines) < pen.height:
        lines.append(line_of(columns, listed.below, "  ", "text", pen))
    return lines


def _what(view: View) -> str:
    if view.lists_objects:
        return "objects"
    if view.lists_reasons:
        return "causes"
    if view.lists_wakers:
        return "wakers"
    return "threads" if view.lists_threads else "cgroups" if view.lists_cgroups else "processes"


def not_gathered(common: Common) -> str:
    """Return why the mode's data is missing, and which key shows what there is."""
    if gathers(common.newest.header.mode, OFFWAKE):
        return " No chains of wakers are recorded for this time (yet): 3 shows the last wakers."
    return " No wakers are recorded for this time (yet): 1 shows where threads waited."


def seen_rows(listed: ListPicture, pen: Pen) -> Sequence[Row]:
    """Return the rows of the list that are on the screen.

    Title, account and column titles are above them; below them is one row for all others.
    """
    room = pen.height - 2 - listed.account_lines
    room = max(min(1, room), room - (listed.below is not None))
    return listed.ranking.rows[listed.first : listed.first + room]


def _nothing(listed: ListPicture, common: Common) -> str:
    view = common.view
    if view.mode == OFFCPU and view.filter.needs_wakers and not common.totals.passing_ns:
        return f' nothing matches "{view.filter.text}": modes 2, 3 and 4 record wakers. Esc clears'
    if view.filter.text or view.user:
        chosen = " ".join(
            ([view.filter.text] if view.filter.text else []) + ([f"user={view.user}"] if view.user else [])
        )
        if common.totals.passing_ns and not view.filter.chooses_rows:
            passing = threads(average(common.totals.passing_ns, common.span_ns))
            return f' nothing that matches "{chosen}" waits here; {passing} match elsewhere (Esc goes up)'
        if common.totals.idle_passing_ns and not view.filter.chooses_rows:
            idle = threads(average(common.totals.idle_passing_ns, common.span_ns))
            return f' all that matches "{chosen}" is idle: {idle} threads (press i to see them)'
        if view.group or view.selects_by_filter:
            return f' no thread matches "{chosen}" here. Esc goes up'
        return f' no thread matches "{chosen}" ({sum(listed.threads_of.values())} threads seen). Esc clears'
    if common.totals.hidden_ns and not view.idle_shown:
        return " Only idle waits here (press i to see them)."
    return nothing(common)


def nothing(common: Common) -> str:
    """Return the text of an empty list; it says which processes are visible if not all are."""
    here = visible_processes(common.sampling) if common.sampling else ""
    return f" Nothing waits here{f' ({here})' if here else ''}."


def list_columns(listed: ListPicture, common: Common, pen: Pen) -> list[Column]:
    view, width = common.view, pen.width
    if not view.lists_sleepers:
        return _waker_columns(common, pen)
    columns = [*_name_columns(listed, common, pen), *([] if view.lists_cgroups else _process_columns(common))]
    if view.lists_account:
        return _with_account(columns, common, pen)
    roomy = width >= 90 or "WHERE" in view.hidden
    numbers = [one for one in NUMBERS if roomy or one.title not in ("p50<=", "EV/S") or one.sort == view.sort]
    shown = [WAITING, *([SHARE] if width >= 90 else []), *([TOTAL] if view.sort == "TOTAL" else []), *numbers, NOW]
    columns += shown if common.uncompared else with_changes(view, shown, _LEAST_COMPARED_LIST)
    columns = that_fit(columns, width, view, view.list_sort, LIST_MARK)
    if "WHERE" in view.hidden:
        return columns
    columns = _with_room_for_where(columns, width, view.list_sort)
    left = width - width_of(columns, LIST_MARK) - 2
    return [*columns, _where_column(common.catalog, left + 1, pen)] if left >= 8 else columns


def _waker_columns(common: Common, pen: Pen) -> list[Column]:
    view = common.view
    total = [TOTAL] if view.sort == "TOTAL" else []
    events, p50, p99, longest = NUMBERS
    wide = [p50, p99, longest, NOW] if pen.width >= _WIDE_WAKERS or "WHERE" in view.hidden else [p99, longest]
    shown = [WAITING, SHARE, *total, *([] if view.lists_reasons else [wakers.READY]), events, *wide]
    return wakers.columns(common, pen, shown if common.uncompared else with_changes(view, shown, _LEAST_COMPARED_LIST))


def _name_columns(listed: ListPicture, common: Common, pen: Pen) -> list[Column]:
    """Return the columns that say which cgroup, thread, process or program a row is about."""
    view, width, details = common.view, pen.width, common.catalog.details
    if view.lists_cgroups:
        name_width = min(48, max(10, min(20, width - 41), width - 56))
        return [
            Column("CGROUP", name_width, lambda row: row.name, "name", left=True, sort="NAME", stays=True),
            Column("PROC", 5, lambda row: count(row.processes) if row.processes else "", least_width=50),
        ]
    in_full = view.names != "comm"
    name_width = min(48, max(15, width - 50)) if in_full else 15 if width >= 56 else 10
    if view.program is not None and not in_full and view.lists_processes:
        longest = max((len(row.title) for row in seen_rows(listed, pen)), default=0)
        name_width = max(name_width, min(longest, 48, width - _BESIDE_TITLES))

    def name_of(row: Row) -> str:
        known = details.get(row.pid) if in_full else None
        full = (known.cmdline if view.names == "cmdline" else _cgroup_of(known)) if known else ""
        return full or row.title or row.name

    title = {"comm": "", "cmdline": "COMMAND LINE", "cgroup": "CGROUP"}[view.names]
    if not view.lists_threads:
        return [
            Column("PID", 7, _tid, sort="PID"),
            Column(title or "COMMAND", name_width, name_of, "name", left=True, sort="NAME", stays=True),
            Column("THR", 4, _threads_of, least_width=64),
        ]
    columns = [
        Column("TID", 7, _tid, sort="PID"),
        Column(title or "THREAD", name_width, name_of, "name", left=True, sort="NAME", stays=True),
    ]
    if view.pid is None:
        columns.append(Column("PROCESS", 10, lambda row: row.process, "name", left=True, least_width=90))
    return columns


def _threads_of(row: Row) -> str:
    return count(row.threads) if row.threads else ""


def _process_columns(common: Common) -> list[Column]:
    """Return the columns about the process of a row, and about what it waits on."""
    catalog = common.catalog

    def user_of(row: Row) -> str:
        return catalog.detail(row.pid).user

    def cgroup_of(row: Row) -> str:
        return _cgroup_of(catalog.detail(row.pid))

    def waiting_on(row: Row) -> str:
        return "" if row.top == NOWHERE else catalog.wake(row.top.wake).object.label

    columns = [
        Column("USER", 8, user_of, "name", left=True, least_width=USER_WIDTH),
        Column("WAITING ON", 26, waiting_on, "name", left=True, least_width=_OBJECT_WIDTH),
    ]
    if common.view.names != "cgroup":
        columns.append(Column("CGROUP", 20, cgroup_of, "name", left=True, least_width=CGROUP_WIDTH))
    return columns


def _with_account(columns: Sequence[Column], common: Common, pen: Pen) -> list[Column]:
    """Return those of `columns` that there is room for, and how each second was spent."""
    view, width = common.view, pen.width
    fitting = that_fit([*columns, *account.COLUMNS], width, view, view.list_sort, LIST_MARK)
    left = width - width_of(fitting, LIST_MARK) - 1
    if left < _LEAST_BAR:
        return fitting
    cells = min(left, account.BAR_CELLS * 2)
    bar = Column("", cells, lambda row: account.row_bar(row.account, cells, pen.glyphs), "spark", left=True)
    return [*fitting, bar]


def _where_column(catalog: Catalog, width: int, pen: Pen) -> Column:
    """Return the column that says in words where most of a row's time went."""

    def where_of(row: Row) -> str:
        if shares := place_shares.in_words(row.places, row.places_ns, place_shares.SEPARATORS[pen.glyphs.is_ascii]):
            return shares
        where = "" if row.top == NOWHERE else location.of_sleeper(catalog, row.top, pen.names)
        if row.convoy.waiting:
            return location.of_convoy(catalog, row.convoy, pen.names, row.rule.name if row.rule else "")
        return location.with_rule(catalog, row.top, row.rule, where)

    def category_token(row: Row) -> str:
        return "where" if row.top == NOWHERE else f"cat-{catalog.stack(row.top.kernel).category}"

    return Column(" WHERE", width, lambda row: " " + where_of(row), left=True, token_of=category_token)


def _with_room_for_where(columns: Sequence[Column], width: int, sort: str) -> list[Column]:
    """Drop columns, but no name and not the one that the list is sorted by, until WHERE has room for a name."""
    kept, least = [*columns], min(_LEAST_WHERE, round(width * _WHERE_SHARE))
    for title in _BELOW_WHERE:
        if width - width_of(kept, LIST_MARK) - 2 >= least:
            break
        kept = [one for one in kept if one.title != title or one.stays or one.sort == sort]
    return kept


def _cgroup_of(details: Details) -> str:
    return cgroup_name(details.cgroup)


def _tid(row: Row) -> str:
    if isinstance(row.key, Pool | Program):
        return f"x{count(row.processes or row.threads)}"
    if isinstance(row.key, ThreadKey):
        return str(row.key.tid) if row.key != EXITED else ""
    return str(row.key) if isinstance(row.key, int) and row.key else ""
