"""All controllers of keys and clicks, and which key calls which of their methods."""

from collections.abc import Callable, Mapping
from functools import partial

from offtop.model.values.wake import CHAIN, OFFCPU, OFFWAKE, WAKEUP
from offtop.ui.actions.baseline_comparison import BaselineComparison
from offtop.ui.actions.clips import Clips
from offtop.ui.actions.details import Details
from offtop.ui.actions.display import Display
from offtop.ui.actions.exports import Exports
from offtop.ui.actions.files import Files, Recorder
from offtop.ui.actions.filters import Filters
from offtop.ui.actions.help_page import HelpPage
from offtop.ui.actions.latency_pane import LatencyPane
from offtop.ui.actions.list_panes import DisksPane, FilesPane
from offtop.ui.actions.lookups import Lookups
from offtop.ui.actions.modes import Modes
from offtop.ui.actions.mouse import Mouse
from offtop.ui.actions.navigation import Navigation
from offtop.ui.actions.outliers import OutlierAlerts, OutlierTimes, Triggers
from offtop.ui.actions.pane import Panes
from offtop.ui.actions.questions import DelayQuestion, RateQuestion
from offtop.ui.actions.recording import Recording
from offtop.ui.actions.rewind import Rewind
from offtop.ui.actions.search import Search
from offtop.ui.actions.selection import Selection
from offtop.ui.actions.session import Session
from offtop.ui.actions.sorting import Sorting
from offtop.ui.actions.stack_panes import FlamePane, SitePane, TreePane
from offtop.ui.actions.suspects import SuspectReport
from offtop.ui.actions.table_panes import CategoriesPane, ListPane
from offtop.ui.actions.view_switches import VIEWS, ViewSwitches
from offtop.ui.actions.wait_panes import OutliersPane, StuckPane


class Controllers:
    def __init__(
        self,
        display: Display,
        session: Session,
        files: Files,
        recorder: Recorder | None,
        pause_at_ns: int | None,
        chosen_keys: Mapping[str, str],
    ) -> None:
        """`pause_at_ns` is the time in a recording to pause at first (CLOCK_REALTIME), or None."""
        source, history, categories = session.source, session.history, session.categories
        self.rewind = Rewind(display, source, history, pause_at_ns)
        self.view_switches = ViewSwitches(display)
        self.sorting = Sorting(display)
        self.modes = Modes(display, source)
        self.baseline_comparison = BaselineComparison(display, history, source.names, session.suspects)
        self.triggers = Triggers(display, session.outlier_actions)
        self.outlier_alerts = OutlierAlerts(display, session)
        self.outlier_times = OutlierTimes(display, session, self.rewind)
        self.filters = Filters(display, source, categories, self.triggers.warn_below)
        self.delay_question = DelayQuestion(display, source)
        self.rate_question = RateQuestion(display)
        self.suspect_report = SuspectReport(display, session)
        self.panes = Panes(
            display,
            (
                CategoriesPane(display, self.sorting),
                LatencyPane(display),
                ListPane(display, self.sorting),
                TreePane(display),
                SitePane(display, categories.rule_of),
                FlamePane(display),
                StuckPane(display),
                OutliersPane(display, self.outlier_times),
                FilesPane(display, self.sorting),
                DisksPane(display, self.sorting),
            ),
        )
        self.navigation = Navigation(display, self.panes)
        self.mouse = Mouse(display, self.panes, self.rewind)
        self.search = Search(display, self.panes, self.filters, self.outlier_times)
        self.selection = Selection(display, self.panes, source)
        self.details = Details(display, self.panes, source)
        self.help_page = HelpPage(display, session, chosen_keys)
        self.lookups = Lookups(display, source)
        self.recording = Recording(display, source, session.pace, files, recorder)
        self.clips = Clips(display, session, files)
        self.exports = Exports(display, session, files)

    def actions(self) -> Mapping[str, Callable[[], None]]:
        """Return what a row of KEYS does, by its id. The app itself does the rest."""
        return {
            **{view: partial(self.view_switches.change, view) for view in VIEWS},
            **{mode: partial(self.modes.show, mode) for mode in (OFFCPU, WAKEUP, OFFWAKE, CHAIN)},
            "down": partial(self.navigation.move, 1),
            "up": partial(self.navigation.move, -1),
            "page_down": partial(self.navigation.move_by_pages, 1),
            "page_up": partial(self.navigation.move_by_pages, -1),
            "first": self.navigation.move_to_first,
            "last": self.navigation.move_to_last,
            "next_pane": partial(self.navigation.focus_pane, 1),
            "previous_pane": partial(self.navigation.focus_pane, -1),
            "drill": self.navigation.enter,
            "right": partial(self.navigation.move_sideways, 1),
            "left": partial(self.navigation.move_sideways, -1),
            "objects": self.view_switches.list_objects,
            "triggers": self.triggers.ask,
            "reasons": self.view_switches.list_reasons,
            "latency": self.view_switches.show_next_latency,
            "open": self.navigation.open,
            "close": self.navigation.close,
            "open_all": self.navigation.open_all,
            "help": self.help_page.show,
            "search": self.search.ask,
            "next_hit": partial(self.search.go_to_next, 1),
            "previous_hit": partial(self.search.go_to_next, -1),
            "filter": self.filters.ask_for_filter,
            "user": self.filters.ask_for_user,
            "states": self.filters.choose_states,
            "rate": self.rate_question.ask,
            "facts": self.details.show_process,
            "stack_problems": self.details.show_stack_problems,
            "mute": self.selection.mute,
            "pin": self.selection.pin,
            "narrow": self.selection.measure_only_pinned,
            "pause": self.rewind.pause_or_resume,
            "tick_back": partial(self.rewind.step, -1),
            "tick_on": partial(self.rewind.step, 1),
            "minute_back": partial(self.rewind.skip, -60),
            "minute_on": partial(self.rewind.skip, 60),
            "go_to": self.rewind.ask_for_time,
            "live": self.rewind.return_to_live,
            "record": self.recording.start_or_stop,
            "snapshot": self.clips.ask_for_length,
            "mark": self.baseline_comparison.take,
            "diff": self.baseline_comparison.start_or_stop,
            "delay": self.delay_question.ask,
            "minimum": self.filters.ask_for_minimum,
            "sort_waiting": partial(self.sorting.sort_by, "WAITING"),
            "sort_max": partial(self.sorting.sort_by, "MAX"),
            "sort_total": partial(self.sorting.sort_by, "TOTAL"),
            "sort_events": partial(self.sorting.sort_by, "EV/S"),
            "sort_left": partial(self.sorting.sort_by_next_column, -1),
            "sort_right": partial(self.sorting.sort_by_next_column, 1),
            "sort_by": self.sorting.choose_column,
            "reverse": self.sorting.reverse,
            "setup": self.view_switches.choose_columns_and_panes,
            "copy": self.selection.copy,
            "export": self.exports.choose_format,
            "screenshot": self.exports.save_screen,
            "suspects": self.suspect_report.show_chains,
            "files": self.modes.show_files,
            "disks": lambda: self.modes.show_disks(self.panes.focused.process()),
        }
