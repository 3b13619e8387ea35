"""What is asked to be caught, and what happens when something is: a command of the person's own, by their rights.

What a thread is called never comes into the command's text: it is in the environment, without letters that a shell or
a terminal would act on.
"""

import os
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence

from offtop.errors import UsageError
from offtop.model.classify.categories import Categories
from offtop.model.outliers.detector import Judge
from offtop.model.outliers.trigger import MAX, NOW, Trigger, TriggerError, parse
from offtop.model.values.outlier import APART_NS, Outlier
from offtop.person import Person
from offtop.printable import printable
from offtop.units import duration

OFF = "off"
"""Said instead of a trigger: nothing is caught."""
_MOST_PENDING = 20
_KEPT = ("PATH", "LANG", "LC_ALL", "TERM", "DISPLAY")


def triggers(texts: Sequence[str], rules: Categories, min_ns: int, where: str) -> list[Trigger | None]:
    """As Judge has them. Raises UsageError, which begins with `where`."""
    if [*texts] == [OFF]:
        return []
    found: list[Trigger | None] = []
    for text in texts:
        try:
            one = parse(text, rules.ids, rules.groups)
        except TriggerError as wrong:
            raise UsageError(f"{where}: {wrong}") from None
        if one and one.metric in (MAX, NOW) and one.value < min_ns:
            raise UsageError(
                f"{where}: '{printable(text)}': waits below the minimum of {duration(min_ns)} are not told one by one. "
                f"Give a longer time, or a smaller --min"
            )
        found.append(one)
    return found


class Alarm:
    """Counts outliers, and has the person's command run for the first of each kind in a while. For one thread."""

    def __init__(self, command: str, whose: Person) -> None:
        """An empty command: none."""
        self._command, self._whose = command, whose
        self._told_ns: dict[tuple[str, str, str], int] = {}
        self._pending = deque[Outlier](maxlen=_MOST_PENDING)
        """Of which the command has not run yet: the newest."""
        self._running: subprocess.Popen[bytes] | None = None
        self.count = 0
        """Of outliers."""
        self.failure = ""
        """Why the command did not run."""

    def add(self, outliers: Sequence[Outlier]) -> None:
        """Those of a tick."""
        for one in outliers:
            if one.was_told:
                continue
            self.count += 1 + one.more
            if self._command and one.at_ns - self._told_ns.get(one.kind, -APART_NS) >= APART_NS:
                self._told_ns[one.kind] = one.at_ns
                self._pending.append(one)
                self._told_ns = {kind: ns for kind, ns in self._told_ns.items() if one.at_ns - ns < APART_NS}
        if self._running is not None and (status := self._running.poll()) is not None:
            self._running = None
            if status:
                self.failure = f"--on-trigger ended with status {status}"
        if self._pending and self._running is None:
            self._run(self._pending.popleft())

    def _run(self, one: Outlier) -> None:
        whose = self._whose
        is_other = whose.uid != os.geteuid()
        try:
            self._running = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment(one, whose),
                start_new_session=True,
                user=whose.uid if is_other else None,
                group=whose.gid if is_other else None,
                extra_groups=os.getgrouplist(whose.name, whose.gid) if is_other else None,
            )
        except (OSError, ValueError) as error:  # also of names that the locale has not
            why = error.strerror if isinstance(error, OSError) else str(error)
            self.failure = printable(f"--on-trigger could not be run ({why})")


class Catch:
    """What is caught, and all that follows from it."""

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
        """`freeze`, `bell`: what a screen does then. Raises UsageError, which begins with `where`."""
        self._rules = rules
        self.texts = tuple(texts)
        self._triggers = triggers(texts, rules, min_ns, where)
        self.judge = Judge(self._triggers)
        self.alarm, self.freeze, self.bell = alarm, freeze, bell

    def deaf(self, min_ns: int) -> str:
        """The first rule of waits that are shorter than the minimum, and so not told one by one; empty: none."""
        return next((one.text for one in self._triggers if one and one.is_of_waits and one.value < min_ns), "")

    def ask(self, texts: Sequence[str], min_ns: int) -> None:
        """From the next tick on catch what these say. For any thread. Raises UsageError."""
        self._triggers = triggers(texts, self._rules, min_ns, "catch")
        self.judge.ask(self._triggers)


def environment(one: Outlier, whose: Person) -> Mapping[str, str]:
    wait = one.wait
    told: dict[str, object] = {
        "RULE": one.rule,
        "CATEGORY": one.category,
        "METRIC": one.metric,
        "VALUE": round(one.value, 3),
        "MARK": round(one.mark, 3),
        "USUAL_NS": one.usual_ns,
        "PROCESS": one.program,
        "COMM": one.comm,
        "PID": wait.site.pid if wait else "",
        "TID": wait.site.tid if wait else "",
        "LENGTH_NS": one.length_ns if wait else "",
        "GOING_ON": int(one.is_going_on),
        "TAKEN_NS": one.taken_ns,
    }
    own = {name: value for name in _KEPT if (value := os.environ.get(name))}
    person = {"HOME": str(whose.home), "USER": whose.name, "LOGNAME": whose.name}
    return {**own, **person, **{f"OFFTOP_{name}": printable(str(value)) for name, value in told.items()}}
