"""Which peers and process details the source looks up: those that the screen needs, and no others."""

from collections.abc import Mapping, Sequence

from offtop.feed.source import Source
from offtop.model.aggregate.rows import NOWHERE
from offtop.model.values.peers import waited_on
from offtop.model.values.wake import Object
from offtop.model.viewmodel.picture import Picture
from offtop.model.viewmodel.view import DISKS, FILES, LIST, STUCK
from offtop.model.windows.stuck import Waiting
from offtop.ui.actions.display import Display
from offtop.ui.panes import tables

_MOST_DETAILED = 200
"""How many of the listed waits get process details and peers: a screenful."""


class Lookups:
    def __init__(self, display: Display, source: Source) -> None:
        self._display, self._source = display, source

    def request(self, picture: Picture) -> None:
        """Ask the source for what `picture` needs."""
        view = picture.common.view
        self._source.find_peers(self._visible_objects(picture))
        if view.user or view.lists_cgroups or any(one.needs_details for one in (view.filter, *view.muted)):
            every = [by_pid for tick in picture.common.ticks for by_pid in tick.breakdown.processes.values()]
            counted = picture.listed.threads_of if view.lists_cgroups else ()
            others = {row.key.pid for row in (*picture.files.listed.every, *picture.disks.listed.every)} - {0}
            self._source.describe({pid for by_pid in (*every, counted) for pid in by_pid} | others)
        elif view.focus == STUCK:
            self._source.describe({one.site.pid for one in _visible_waits(picture)})
        elif view.focus in (FILES, DISKS):
            chosen = picture.files.chosen or picture.disks.chosen
            self._source.describe({chosen.key.pid} if chosen and chosen.key.pid else ())
        elif view.names != "comm" or self._display.pen(LIST).width >= tables.USER_WIDTH:
            listed = picture.listed
            rows = listed.ranking.rows[listed.first : listed.first + self._display.pen(LIST).height]
            self._source.describe({row.pid for row in rows})

    def _visible_objects(self, picture: Picture) -> Mapping[Object, int]:
        """Return the objects that the visible rows wait on, each with a waiting PID.

        If a filter needs peers, return those of all rows.
        """
        view, catalog = picture.common.view, picture.common.catalog
        if any(one.needs_peers for one in (view.filter, *view.muted)):
            return waited_on(picture.common.newest.pids_and_wakes, catalog.wakes)
        if view.focus == STUCK:
            sites = [one.site for one in _visible_waits(picture)]
        else:
            sites = [row.top for row in tables.seen_rows(picture.listed, self._display.pen(LIST)) if row.top != NOWHERE]
        return {**picture.causes.unanswered, **waited_on([(site.pid, site.wake) for site in sites], catalog.wakes)}


def _visible_waits(picture: Picture) -> Sequence[Waiting]:
    return picture.stuck.shown.waits[picture.stuck.first :][:_MOST_DETAILED]
