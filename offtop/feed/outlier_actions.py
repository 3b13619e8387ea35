"""What happens at an outlier: the user's command is run, with the user's rights.

Thread names never become part of the command's text. They are in its environment, escaped.
"""

import os
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence

from offtop.errors import UsageError
from offtop.model.classify.categories import Categories
from offtop.model.outliers.detector import OutlierDetector
from offtop.model.outliers.trigger import Trigger, TriggerError, parse
from offtop.model.values.outlier import APART_NS, Outlier
from offtop.person import Person
from offtop.printable import printable
from offtop.units import duration

OFF = "off"
"""Given in place of a trigger: report no outliers."""
_MOST_PENDING = 20
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "DISPLAY")


def triggers(texts: Sequence[str], rules: Categories, min_ns: int, where: str) -> list[Trigger | None]:
    """Parse triggers for OutlierDetector. Raises UsageError, which begins with `where`."""
    if [*texts] == [OFF]:
        return []
    found: list[Trigger | None] = []
    for text in texts:
        try:
            one = parse(text, rules.ids, rules.groups)
        except TriggerError as wrong:
            raise UsageError(f"{where}: {wrong}") from None
        if one and one.is_of_waits and one.value < min_ns:
            raise UsageError(
                f"{where}: '{printable(text)}': waits below the minimum of {duration(min_ns)} are only counted. "
                f"Use a longer time, or a smaller --min"
            )
        found.append(one)
    return found


class Alarm:
    """Counts outliers, and runs the user's command at most once per kind of outlier in APART_NS.

    Not thread-safe.
    """

    def __init__(self, command: str, user: Person) -> None:
        """`command`: empty for none."""
        self._command, self._user = command, user
        self._last_ns: dict[tuple[str, str, str], int] = {}
        self._pending = deque[Outlier](maxlen=_MOST_PENDING)
        """The newest outliers that the command has not run for yet."""
        self._running: subprocess.Popen[bytes] | None = None
        self.count = 0
        """How many outliers there were."""
        self.failure = ""
        """Why the command did not run or with which status it failed; empty if all is well."""

    def add(self, outliers: Sequence[Outlier]) -> None:
        """Add the outliers of a tick."""
        for one in outliers:
            if one.was_reported:
                continue
            self.count += 1 + one.more
            if self._command and one.at_ns - self._last_ns.get(one.kind, -APART_NS) >= APART_NS:
                self._last_ns[one.kind] = one.at_ns
                self._pending.append(one)
                self._last_ns = {kind: ns for kind, ns in self._last_ns.items() if one.at_ns - ns < APART_NS}
        if self._running is not None and (status := self._running.poll()) is not None:
            self._running = None
            if status:
                self.failure = f"--on-trigger exited with status {status}"
        if self._pending and self._running is None:
            self._run(self._pending.popleft())

    def _run(self, one: Outlier) -> None:
        user = self._user
        is_other = user.uid != os.geteuid()
        try:
            self._running = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment(one, user),
                start_new_session=True,
                user=user.uid if is_other else None,
                group=user.gid if is_other else None,
                extra_groups=os.getgrouplist(user.name, user.gid) if is_other else None,
            )
        except (OSError, ValueError) as error:  # ValueError: names that the locale cannot encode
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.failure = printable(f"--on-trigger cannot be run ({reason})")


class OutlierActions:
    """The triggers, and what to do at an outlier."""

    def __init__(
        self,
        texts: Sequence[str],
        rules: Categories,
        min_ns: int,
        where: str,
        alarm: Alarm,
        freeze: bool = False,
        bell: bool = False,
    ) -> None:
        """`freeze`, `bell`: what the screen does at an outlier.

        Raises UsageError, which begins with `where`.
        """
        self._rules = rules
        self.texts = tuple(texts)
        self._triggers = triggers(texts, rules, min_ns, where)
        self.detector = OutlierDetector(self._triggers)
        self.alarm, self.freeze, self.bell = alarm, freeze, bell

    def trigger_below(self, min_ns: int) -> str:
        """Return the first trigger with a threshold below the minimum; empty if there is none."""
        return next((one.text for one in self._triggers if one and one.is_of_waits and one.value < min_ns), "")

    def set_triggers(self, texts: Sequence[str], min_ns: int) -> None:
        """Use these triggers from the next tick on. Thread-safe. Raises UsageError."""
        self._triggers = triggers(texts, self._rules, min_ns, "trigger")
        self.detector.set_triggers(self._triggers)


def environment(one: Outlier, user: Person) -> Mapping[str, str]:
    """Return the environment of the user's command."""
    wait = one.wait
    variables: dict[str, object] = {
        "RULE": one.rule,
        "CATEGORY": one.category,
        "METRIC": one.metric,
        "VALUE": round(one.value, 3),
        "MARK": round(one.threshold, 3),
        "USUAL_NS": one.usual_ns,
        "PROCESS": one.program,
        "COMM": one.comm,
        "PID": wait.site.pid if wait else "",
        "TID": wait.site.tid if wait else "",
        "WHAT": one.what,
        "LENGTH_NS": one.length_ns if wait else "",
        "GOING_ON": int(one.is_going_on),
        "TAKEN_NS": one.taken_ns,
    }
    own = {name: value for name in _PASSED_ON if (value := os.environ.get(name))}
    user_variables = {"HOME": str(user.home), "USER": user.name, "LOGNAME": user.name}
    return {**own, **user_variables, **{f"OFFTOP_{name}": printable(str(value)) for name, value in variables.items()}}
