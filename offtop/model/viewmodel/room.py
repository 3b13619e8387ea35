"""Room: how much space each pane has on the screen, so that no more is computed than it can show."""

from dataclasses import dataclass

from offtop.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Room:
    """Space for each pane, in rows, lines or cells; 0: the pane is not shown."""

    rows: int = 7
    """Visible rows of the list, for which places are looked up."""
    tree: int = 0
    """Lines."""
    stuck: int = 0
    """Lines of the list of waits in progress, or of outliers."""
    files: int = 0
    """Lines of the list of file operations."""
    io_tree: int = 0
    """Lines of the stack tree of file operations or of requests to disks."""
    disks: int = 0
    """Lines of the list of requests to disks, with those of the disks."""
    site: int = 0
    """Places."""
    flame: tuple[int, int] = (0, 0)
    """Columns and lines."""
    latency: bool = False
    heat: tuple[int, int] = (0, 0)
    """Columns and rows."""
    heat_cell_ns: int = 5 * NS_PER_S
    categories: int = 7
    spark_cells: int = 20
    spark_cell_ns: int = 3 * NS_PER_S
    timeline_cells: int = 60
    timeline_cell_ns: int = 5 * NS_PER_S
