"""CSV, one row per stack of each thread, for spreadsheets and databases."""

import csv
import io

from offtop.export import folded
from offtop.export.profile import Profile
from offtop.printable import printable

HEAD = ("category", "process", "pid", "thread", "tid", "waits", "total_ns", "max_ns", "stack")


def text(profile: Profile) -> str:
    """Write RFC 4180 CSV. `stack` lists the functions, outermost first, separated by `;`.

    Text that a spreadsheet would take for a formula is prefixed with an apostrophe (CWE-1236).
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(HEAD)
    for one in profile.samples:
        process, thread, stack = (_plain(part) for part in (one.process, one.thread, folded.one_line(one.path)))
        writer.writerow((one.category, process, one.pid, thread, one.tid, one.waits, one.total_ns, one.max_ns, stack))
    return out.getvalue()


def _plain(name: str) -> str:
    shown = printable(name)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown
