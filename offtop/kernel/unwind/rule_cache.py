"""The rules of all binaries that were asked for, those used last remembered."""

import time
from collections import OrderedDict
from typing import NamedTuple

from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import File
from offtop.kernel.binary.unwind_rules import NO_RULE, Rule, read

_MOST = 16_384
"""Rules that are remembered: 20 MB."""
_LONGEST_S = 2.0
"""One walk asks no longer than this."""
_MOST_FILES = 1024


class Ways(NamedTuple):
    """How a binary's frames are walked: of how many places that were met."""

    linked: int = 0
    """.eh_frame says that a frame pointer is kept there."""
    others: int = 0
    """.eh_frame says where the caller is, and it takes no frame pointer."""
    nothing: int = 0
    """The binary says nothing."""

    @property
    def told(self) -> str:
        known = self.linked + self.others
        if not known:
            return "no unwind information"
        share = 100 * self.linked // known
        rest = f"; of {self.nothing} of {known + self.nothing} places it says nothing" if self.nothing else ""
        return f"walked by .eh_frame, {share}% frame pointers{rest}"


class Rulebook:
    """For use by one thread, but for `ways` and `has`."""

    def __init__(self, binaries: Binaries) -> None:
        self._binaries = binaries
        self._known: OrderedDict[tuple[File, int], Rule] = OrderedDict()
        self.ways: dict[str, Ways] = {}
        """By the label of the file, those met last at the end."""
        self.doubts = False
        """Something could not be asked since `begin`: what was answered then is not the binaries' word."""
        self._until_s = 0.0

    def begin(self) -> None:
        """A walk begins."""
        self.doubts, self._until_s = False, time.monotonic() + _LONGEST_S

    def of(self, file: File, offset: int) -> Rule:
        """The rule of the byte of code at `offset`; waits for the reader."""
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
        """Whether there is a rule there, or nobody has asked. For any thread."""
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
        linked, others, nothing = self.ways.pop(label, Ways())
        if rule == NO_RULE:
            nothing += 1
        elif rule.is_linked:
            linked += 1
        else:
            others += 1
        self.ways[label] = Ways(linked, others, nothing)
        if len(self.ways) > _MOST_FILES:
            del self.ways[next(iter(self.ways))]
