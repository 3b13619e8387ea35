"""Running the app until the terminal is restored."""

from offtop import faults
from offtop.errors import warn
from offtop.ui.app import OfftopApp
from offtop.ui.kit import terminal


def run(app: OfftopApp) -> int:
    """Show the app until the user quits, or for its iterations; return the exit status.

    Raises what the source raised, once the terminal is restored.
    """
    try:
        with faults.report_thread_errors(app.report_thread_error), terminal.collected_signals() as app.early_signals:
            status = app.run(mouse=app.uses_mouse)
    finally:
        app.leave_terminal()
        results = app.close_recordings()
        if results:
            warn(f"offtop: {results}")
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0 if status is None else status
