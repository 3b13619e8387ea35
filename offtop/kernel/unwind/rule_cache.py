"""Cache of unwind rules, which are requested from the reader process."""

import time
from collections import OrderedDict
from typing import NamedTuple

from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.files import File
from offtop.kernel.binary.unwind_rules import NO_RULE, Rule, parse

_MOST = 16_384
"""How many rules are kept: 20 MB."""
_LONGEST_S = 2.0
"""How long one stack may request rules from the reader."""
_MOST_FILES = 1024


class UnwindCounts(NamedTuple):
    """How the frames of a binary are unwound: numbers of code locations so far."""

    with_frame_pointer: int = 0
    """By .eh_frame, and the function keeps a frame pointer."""
    without_frame_pointer: int = 0
    """By .eh_frame, and the function keeps no frame pointer."""
    without_rule: int = 0
    """The binary has no rule."""

    @property
    def summary(self) -> str:
        known = self.with_frame_pointer + self.without_frame_pointer
        if not known:
            return "no unwind information"
        share = 100 * self.with_frame_pointer // known
        rest = f"; no rule at {self.without_rule} of {known + self.without_rule} locations" if self.without_rule else ""
        return f"unwound by .eh_frame, {share}% frame pointers{rest}"


class RuleCache:
    """The most recently used rules of all binaries.

    For use by one thread, except `counts` and `may_have_rule`, which are thread-safe.
    """

    def __init__(self, binaries: Binaries) -> None:
        self._binaries = binaries
        self._rules: OrderedDict[tuple[File, int], Rule] = OrderedDict()
        self.counts: dict[str, UnwindCounts] = {}
        """Label of a file → how it is unwound, most recently seen last."""
        self.is_uncertain = False
        """Whether, since `begin_stack`, a rule could not be requested, so that a NO_RULE may be wrong."""
        self._until_s = 0.0

    def begin_stack(self) -> None:
        """Reset `is_uncertain` and the time limit, before each stack."""
        self.is_uncertain, self._until_s = False, time.monotonic() + _LONGEST_S

    def rule_at(self, file: File, offset: int) -> Rule:
        """Return the rule for the byte of code at `offset`. Waits for the reader if it is not in the cache."""
        known = self._rules.get((file, offset))
        if known is None and (self._binaries.rest_s or time.monotonic() > self._until_s):
            self.is_uncertain = True
            return NO_RULE
        if known is None:
            known = self._request(file, offset)
        else:
            self._rules.move_to_end((file, offset))
        return known

    def may_have_rule(self, file: File, offset: int) -> bool:
        """Whether there is a rule, as far as that is known. Thread-safe."""
        known = self._rules.get((file, offset))
        return not file.unreadable if known is None else known != NO_RULE

    def _request(self, file: File, offset: int) -> Rule:
        (text,) = self._binaries.rules(file, [offset])
        rule = parse(text)
        if text:
            self._rules[file, offset] = rule
            self._count(file.label, rule)
            if len(self._rules) > _MOST:
                self._rules.popitem(last=False)
        elif self._binaries.is_skipped(file):
            self.is_uncertain = True
        return rule

    def _count(self, label: str, rule: Rule) -> None:
        with_frame_pointer, without_frame_pointer, without_rule = self.counts.pop(label, UnwindCounts())
        if rule == NO_RULE:
            without_rule += 1
        elif rule.is_linked:
            with_frame_pointer += 1
        else:
            without_frame_pointer += 1
        self.counts[label] = UnwindCounts(with_frame_pointer, without_frame_pointer, without_rule)
        if len(self.counts) > _MOST_FILES:
            del self.counts[next(iter(self.counts))]
