"""Outliers that another machine finds, in place of an OutlierDetector here."""

from collections.abc import Callable, Collection, Sequence

from offtop.model.classify.suspect import NOTHING_FOUND, Found, Suspect
from offtop.model.outliers.detector import OutlierDetector
from offtop.model.outliers.trigger import Trigger
from offtop.model.values.outlier import AUTO, Outlier
from offtop.model.values.snapshot import Snapshot
from offtop.model.windows.history import HistoryTick
from offtop.remote.source import RemoteSource


class ReportedOutliers(OutlierDetector):
    """Stores the outliers that come with the ticks."""

    def __init__(self, source: RemoteSource) -> None:
        super().__init__(())
        self._source = source

    def set_triggers(self, triggers: Collection[Trigger | None]) -> None:
        self._source.set_triggers([one.text if one else AUTO for one in triggers])

    def tick(
        self,
        snapshot: Snapshot,
        tick: HistoryTick,
        suspects: Found = NOTHING_FOUND,
        sentence: Callable[[Suspect], str] = lambda _: "",
    ) -> Sequence[Outlier]:
        self.outliers.add(snapshot.outliers)
        return snapshot.outliers
