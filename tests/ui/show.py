"""Shows the screen with made-up waits, to look at it and to measure it: `python tests/ui/show.py [SITES [STILL]]`."""

import argparse
import json
import sys
from pathlib import Path
from time import monotonic_ns

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from offtop import paths
from offtop.errors import KernelError, OfftopError
from offtop.feed.source import Source
from offtop.model.classify.categories import parse
from offtop.model.values.snapshot import Snapshot
from offtop.model.viewmodel.view import View
from offtop.ui.app import OfftopApp
from offtop.ui.kit import terminal
from offtop.ui.kit.terminal_app import run
from offtop.units import NS_PER_S
from tests.ui.busy import BusySource
from tests.ui.scripted import ScriptedSource


class _TimedBusySource(BusySource):
    """A BusySource that records when it was read."""

    def __init__(self, sites: int, still: int) -> None:
        super().__init__(sites, still)
        self.read_ns: list[int] = []
        """CLOCK_MONOTONIC."""

    def read(self) -> Snapshot | None:
        self.read_ns.append(monotonic_ns())
        return super().read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sites", type=int, nargs="?", default=300, help="sites that finish a wait in each tick")
    parser.add_argument("still", type=int, nargs="?", default=200, help="threads in a wait that does not end")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds between two ticks, each of which covers 1 s")
    parser.add_argument("--same", type=int, metavar="N", help="show N ticks of a few waits that never change instead")
    parser.add_argument("--fail", action="store_true", help="the source fails on its third reading")
    parser.add_argument("--mouse", action="store_true", help="enable the mouse")
    parser.add_argument("--reads", type=Path, metavar="FILE", help="at the end, write when each tick was read to FILE")
    options = parser.parse_args()

    source: Source
    if options.fail:
        source = ScriptedSource(ticks=1, error=KernelError("the kernel took the probe away. Start offtop again"))
    elif options.same is not None:
        source = ScriptedSource(ticks=options.same)
    else:
        source = _TimedBusySource(options.sites, options.still)
    view = View(delay_ns=round(options.delay * NS_PER_S))
    categories = parse(paths.categories().read_text(encoding="utf-8"))
    try:
        theme, ascii_only = terminal.choose_look()
        app = OfftopApp(source, view, categories, theme_name=theme, ascii_only=ascii_only, mouse=options.mouse)
        return run(app)
    except OfftopError as error:
        print(f"offtop: {error}", file=sys.stderr)
        return error.status
    finally:
        if options.reads and isinstance(source, _TimedBusySource):
            options.reads.write_text(json.dumps(source.read_ns))


if __name__ == "__main__":
    sys.exit(main())
