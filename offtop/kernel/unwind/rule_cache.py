"""Cache of unwind rules: the most recently used ones of all binaries."""

import time
from collections import OrderedDict
from typing import NamedTuple

from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import File
from offtop.kernel.binary.unwind_rules import NO_RULE, Rule, read

_MOST = 16_384
"""How many rules are kept: 20 MB."""
_LONGEST_S = 2.0
"""How long one stack may request rules from the reader."""
_MOST_FILES = 1024


class UnwindCounts(NamedTuple):
    """How a binary's frames are unwound: numbers of locations seen so far."""

    linked: int = 0
    """By .eh_frame, and the function keeps a frame pointer."""
    others: int = 0
    """By .eh_frame, and the function keeps no frame pointer."""
    nothing: int = 0
    """The binary has no rule."""

    @property
    def told(self) -> str:
        known = self.linked + self.others
        if not known:
            return "no unwind information"
        share = 100 * self.linked // known
        rest = f"; no rule at {self.nothing} of {known + self.nothing} locations" if self.nothing else ""
        return f"unwound by .eh_frame, {share}% frame pointers{rest}"


class RuleCache:
    """Returns the rules of binaries.

    For use by one thread, except `ways` and `has`, which are thread-safe.
    """

    def __init__(self, binaries: Binaries) -> None:
        self._binaries = binaries
        self._known: OrderedDict[tuple[File, int], Rule] = OrderedDict()
        self.ways: dict[str, UnwindCounts] = {}
        """Label of a file → how it is unwound, most recently seen last."""
        self.doubts = False
        """Whether a rule could not be requested since `begin`, so that NO_RULE may be wrong."""
        self._until_s = 0.0

    def begin(self) -> None:
        """Prepare for the next stack."""
        self.doubts, self._until_s = False, time.monotonic() + _LONGEST_S

    def of(self, file: File, offset: int) -> Rule:
        """Return the rule of the byte of code at `offset`. Waits for the reader."""
        known = self._known.get((file, offset))
        if known is None and (self._binaries.rest_s or time.monotonic() > self._until_s):
            self.doubts = True
            return NO_RULE
        if known is None:
            known = self._learn(file, offset)
        else:
            self._known.move_to_end((file, offset))
        return known

    def has(self, file: File, offset: int) -> bool:
        """Whether there is a rule, or that is not known yet. Thread-safe."""
        known = self._known.get((file, offset))
        return not file.unreadable if known is None else known != NO_RULE

    def _learn(self, file: File, offset: int) -> Rule:
        (text,) = self._binaries.rules(file, [offset])
        rule = read(text)
        if text:
            self._known[file, offset] = rule
            self._count(file.label, rule)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        elif self._binaries.is_left_alone(file):
            self.doubts = True
        return rule

    def _count(self, label: str, rule: Rule) -> None:
        linked, others, nothing = self.ways.pop(label, UnwindCounts())
        if rule == NO_RULE:
            nothing += 1
        elif rule.is_linked:
            linked += 1
        else:
            others += 1
        self.ways[label] = UnwindCounts(linked, others, nothing)
        if len(self.ways) > _MOST_FILES:
            del self.ways[next(iter(self.ways))]
