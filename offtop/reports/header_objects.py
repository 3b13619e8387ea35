"""Convert what says how a tick was measured to JSON objects: filters, cost, detail, sampling."""

from offtop.model.values import histogram as log2
from offtop.model.values.snapshot import (
    Cost,
    Filters,
    Sampling,
    Thinned,
)
from offtop.model.windows.window import Window
from offtop.printable import printable
from offtop.reports.objects import json_header


def filters_object(filters: Filters) -> json_header.Filters:
    return json_header.Filters(
        pids=tuple(filters.pids),
        tids=tuple(filters.tids),
        who=filters.who,
        states=filters.states,
        min_ns=filters.min_ns,
        max_ns=filters.max_ns or None,
        cgroup=printable(filters.cgroup) or None,
        within=printable(filters.within) or None,
    )


def sampling_object(sampling: Sampling | None, span_ns: int) -> json_header.Sampling | None:
    if sampling is None:
        return None
    return json_header.Sampling(
        rate_hz=round(sampling.rate_hz(span_ns), 1),
        apart_ns=sampling.apart_ns(span_ns),
        guessed_ns=sampling.guessed_ns,
        own_only=sampling.own_only,
        lost_known=sampling.lost_known,
        container_only=sampling.container_only,
    )


def calls_object(window: Window) -> json_header.Calls:
    calls = window.calls
    return json_header.Calls(
        function=printable(window.filters.within),
        calls=calls.returned,
        left=calls.left,
        total_ns=calls.total_ns,
        running_ns=calls.running_ns,
        offcpu_ns=calls.offcpu_ns,
        blocked_ns=calls.blocked_ns,
        runqueue_ns=calls.runqueue_ns,
        max_ns=calls.max_ns,
        histogram=log2.slots(calls.histogram),
        now=calls.now,
        oldest_ns=calls.oldest_ns,
    )


def cost_object(cost: Cost) -> json_header.Cost:
    return json_header.Cost(
        bpf_ns_per_switch=round(cost.bpf_ns_per_switch, 1) if cost.bpf_ns_per_switch >= 0 else None,
        switches=cost.switches if cost.switches >= 0 else None,
        cpu_pct=round(cost.cpu_pct, 2) if cost.cpu_pct >= 0 else None,
        bpf_pct=round(cost.bpf_pct, 2) if cost.bpf_pct >= 0 else None,
        rss_bytes=cost.rss_bytes if cost.rss_bytes >= 0 else None,
        walk_ns=cost.scan_ns if cost.scan_ns >= 0 else None,
        walk_every=cost.scan_every,
    )


def kernel_memos_object(cost: Cost) -> json_header.KernelStackMemos | None:
    if not cost.kernel_check_every:
        return None
    return json_header.KernelStackMemos(**cost.kernel_memos._asdict(), check_every=cost.kernel_check_every)


def detail_object(thinned: Thinned, min_ns: int) -> json_header.Detail:
    return json_header.Detail(
        level=thinned.level,
        stacks_from_ns=thinned.stacks_from_ns or min_ns,
        cpus=thinned.cpus,
        thinned_waits=thinned.waits,
        thinned_ns=thinned.waits_ns,
        over_budget=thinned.is_over,
    )
