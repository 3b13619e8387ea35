"""Running the app: from the choice of a theme until the terminal is restored."""

import os
from collections.abc import Mapping

from offtop import faults
from offtop.errors import warn
from offtop.feed.outlier_actions import OutlierActions
from offtop.feed.source import Source
from offtop.model.classify.categories import Categories
from offtop.model.classify.causes import WITHOUT_RULES, RuleSource
from offtop.model.classify.suspect_weights import Weights
from offtop.model.viewmodel.view import View
from offtop.model.windows.history import HISTORY_NS
from offtop.ui.actions.files import Files, Recorder
from offtop.ui.app import OfftopApp
from offtop.ui.kit import terminal


def run(
    source: Source,
    view: View,
    categories: Categories,
    *,
    theme: str = "",
    ascii_only: bool = False,
    colour: bool = True,
    history_ns: int = HISTORY_NS,
    iterations: int | None = None,
    keymap: Mapping[str, str] | None = None,
    files: Files | None = None,
    mouse: bool = False,
    recorder: Recorder | None = None,
    rules: RuleSource = WITHOUT_RULES,
    outlier_actions: OutlierActions | None = None,
    pause_at_ns: int | None = None,
    weights: Weights | None = None,
    is_first_start: bool = False,
) -> int:
    """Show `source` until the user quits, or for `iterations` ticks; return the exit status.

    Raises what the source raised, once the terminal is restored. `colour` is False for --color never; NO_COLOR
    has the same effect. An empty `theme` selects one that the terminal can show. `history_ns` is the length of the
    history, which its memory limit may shorten. `outlier_actions` is None if the outliers come from a recording.
    `pause_at_ns` is the time in a recording at which the screen is paused at first (CLOCK_REALTIME).
    `weights` are those of suspects; None: do not look for any. `is_first_start` says whether to tell the keys to begin
    with.
    """
    if os.environ.pop("NO_COLOR", None) or not colour:
        theme = "mono"
    app = OfftopApp(
        source,
        view,
        categories,
        theme_name=theme or terminal.theme(),
        ascii_only=ascii_only or not terminal.supports_utf8(),
        history_ns=history_ns,
        iterations=iterations,
        keymap=keymap,
        files=files,
        mouse=mouse,
        recorder=recorder,
        rules=rules,
        outlier_actions=outlier_actions,
        pause_at_ns=pause_at_ns,
        weights=weights,
        is_first_start=is_first_start,
    )
    try:
        with faults.report_thread_errors(app.report_thread_error), terminal.collected_signals() as app.early_signals:
            status = app.run(mouse=mouse)
    finally:
        app.leave_terminal()
        results = app.close_recordings()
        if results:
            warn(f"offtop: {results}")
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0 if status is None else status
