"""Convert suspects to JSON objects."""

from typing import Any

from msgspec import UNSET, UnsetType

from offtop.model.aggregate import location
from offtop.model.aggregate.suspect_text import SuspectTexts
from offtop.model.classify.cause_finder import CauseFinder
from offtop.model.classify.suspect import Found, Hop, Suspect, SuspectName
from offtop.model.values.catalog import Catalog
from offtop.model.values.stack import NO_STACK, Names
from offtop.printable import printable
from offtop.reports.objects import json_baseline, json_suspects
from offtop.reports.stack_objects import printable_names


def suspect_names(one: SuspectName) -> dict[str, Any]:
    """Return the keys by which a suspect is recognized at another time."""
    return {
        "kind": one.kind,
        "waiters": printable(one.waiters),
        "category": one.category,
        "end": printable(one.end),
        "what": printable(one.what) or None,
    }


def suspect_objects(
    found: Found, catalog: Catalog, names: Names, cause_finder: CauseFinder
) -> list[json_suspects.Suspect]:
    """Return the suspects of a tick as `--json` prints them, without a baseline."""
    texts = SuspectTexts(catalog, names, cause_finder)
    return [suspect_object(one, texts, catalog, names, UNSET) for one in found.suspects]


def suspect_object(
    one: Suspect, texts: SuspectTexts, catalog: Catalog, names: Names, change: json_baseline.SuspectChange | UnsetType
) -> json_suspects.Suspect:
    return json_suspects.Suspect(
        kind=one.kind,
        text=printable(texts.sentence(one).in_batch),
        harm=round(one.harm, 3),
        waiting=round(one.waiting, 3),
        age_ns=one.age_ns,
        likely=one.is_likely,
        hops=[_hop_object(hop, texts, catalog, names) for hop in one.hops],
        baseline=change,
    )


def _hop_object(hop: Hop, texts: SuspectTexts, catalog: Catalog, names: Names) -> json_suspects.Hop:
    rule, (kernel, user) = texts.rule(hop), (hop.site.kernel, hop.site.user) if hop.site else (NO_STACK, NO_STACK)
    return json_suspects.Hop(
        pid=hop.key.pid,
        tid=hop.key.tid,
        comm=printable(catalog.comm(hop.key)),
        process=printable(hop.program),
        title=printable(hop.title) or None,
        threads=hop.threads,
        unread=hop.unread,
        processes=hop.pids,
        others=hop.others,
        state=hop.state,
        diagnosis=rule.id if rule else None,
        age_ns=hop.age_ns,
        kernel=printable_names(location.kernel_names(catalog, kernel, names)),
        user=printable_names(location.user_names(catalog, user, names)),
        via=hop.via or None,
        exact=hop.is_exact,
        what=printable(hop.what) or None,
        frozen_by=printable(hop.frozen_by) or None,
        limited_by=printable(hop.limited_by) or None,
        limit_bytes=hop.limit_bytes or None,
        quota_cpus=hop.quota_cpus or None,
    )
