"""Shows the screen on made-up waits, to look at it and to measure it: `python tests/ui/show.py [SITES [STILL]]`.

With --fail, the source fails on its third reading.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from offtop import paths
from offtop.errors import KernelError, OfftopError
from offtop.model.categories import parse
from offtop.model.view import View
from offtop.source import Source
from offtop.ui.app import run
from tests.ui.busy import BusySource
from tests.ui.scripted import ScriptedSource


def main() -> int:
    categories = parse(paths.categories().read_text(encoding="utf-8"))
    source: Source
    if "--fail" in sys.argv:
        source = ScriptedSource(ticks=1, error=KernelError("the kernel took the probe away. Start offtop again"))
    else:
        sites, still = [*(int(word) for word in sys.argv[1:3]), 300, 200][:2]
        source = BusySource(sites, still)
    try:
        return run(source, View(), categories)
    except OfftopError as error:
        print(f"offtop: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
