"""What is measured, and all that is computed from it, for the screen and its actions."""

from offtop.feed.outlier_actions import OutlierActions
from offtop.feed.pace import Pace
from offtop.feed.source import Source
from offtop.feed.suspect_watch import SuspectWatch, history_for
from offtop.model.classify.categories import Categories
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.causes import RuleSource
from offtop.model.classify.suspect_weights import Weights
from offtop.model.values.outlier import Outliers
from offtop.model.viewmodel.outlier_list import OutlierList
from offtop.model.viewmodel.picture import Pictures
from offtop.model.viewmodel.view import View


class Session:
    def __init__(
        self,
        source: Source,
        categories: Categories,
        rules: RuleSource,
        view: View,
        history_ns: int,
        outlier_actions: OutlierActions | None,
        weights: Weights | None,
    ) -> None:
        """`outlier_actions` is None if the outliers come from a recording. `weights` are those of suspects, or None."""
        self.source, self.categories, self.rules, self.outlier_actions = source, categories, rules, outlier_actions
        self.suspects = SuspectWatch(source, weights, rules, view.baseline) if weights else None
        """None if they are not searched for."""
        causes = CauseFinder(source.names, rules)  # for the polling thread alone
        self.history = history_for(categories, causes, self.suspects, history_ns)
        self.outliers = outlier_actions.detector.outliers if outlier_actions else Outliers(source.outliers())
        self.outlier_list = OutlierList(self.outliers)
        self.pictures = Pictures(self.history, source.names, rules, self.outliers, goes_on=source.recorded is None)
        detector = outlier_actions.detector if outlier_actions else None
        self.pace = Pace(source, self.history, view.delay_ns, detector=detector, suspects=self.suspects)
        self.pace.alarm = outlier_actions.alarm if outlier_actions else None

    @property
    def versions(self) -> tuple[int, int]:
        """The versions of function names and process details, which may arrive after their tick."""
        newest = self.history.newest
        return self.source.names.version, newest.header.catalog.details_version if newest else 0
