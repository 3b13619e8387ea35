"""Running the app of `offtop fleet` until the terminal is restored."""

from offtop import faults
from offtop.ui.fleet.app import FleetApp
from offtop.ui.kit import terminal


def run(app: FleetApp) -> int:
    """Show the app until the person quits; return the exit status. Raises what ended it."""
    try:
        with faults.report_thread_errors(app.report_thread_error), terminal.collected_signals() as app.early_signals:
            status = app.run(mouse=app.uses_mouse)
    finally:
        app.leave_terminal()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0 if status is None else status
