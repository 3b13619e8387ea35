"""What batch mode prints of each tick."""

from dataclasses import dataclass

from offtop.export.folded import AS_BCC, Style
from offtop.model.aggregate.budget import Rate
from offtop.model.aggregate.filter import NOTHING, Filter
from offtop.model.aggregate.rows import CHANGE, WAITING, Order
from offtop.model.values.wake import OFFCPU
from offtop.model.windows.baseline import Baseline
from offtop.model.windows.breakdown import ALL, Scope

ALL_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to print of each tick."""

    filter: Filter = NOTHING
    """Its row terms apply to the list of processes or threads."""
    idle_shown: bool = False
    """For tables. JSON always holds idle waits, and marks them."""
    threads: bool = False
    """List threads instead of processes."""
    programs: bool = False
    """List the processes of a program as one row."""
    sort: str = "WAITING"
    """One of rows.SORTS; for tables."""
    reverse: bool = False
    most_rows: int = ALL_ROWS
    stuck: bool = False
    """Add a table of the waits in progress."""
    rate: Rate | None = None
    """Request rate of the processes given with -p; adds their budgets."""
    mode: str = OFFCPU
    """One of wake.MODES: what the tables show."""
    folded: bool = False
    """Print folded stacks of the whole run at the end, and no tables."""
    listed: str = ""
    """One of disks.LIST_MODES, to list that instead of what waits."""
    baseline: Baseline | None = None
    """What to compare each tick with."""
    style: Style = AS_BCC
    """Style of folded stacks."""

    @property
    def order(self) -> Order:
        return Order(self.sort if self.baseline or self.sort != CHANGE else WAITING, self.reverse, self.most_rows)

    @property
    def scope(self) -> Scope:
        return Scope(ALL, idle=self.idle_shown, blocked=self.mode != OFFCPU)
