"""Test that a live source goes on if the programs that find wakers cannot be loaded."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from offtop.errors import KernelError
from offtop.kernel.bpf import cache, program
from offtop.model.values.wake import CHAIN, OFFCPU
from tests.kernel import wakings, watch
from tests.kernel.programs import until
from tests.kernel.watch import S
from tests.kernel.woken import TIMES, of, waits, wakes_of

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("typed", [None, pytest.param(1, marks=pytest.mark.variant)])
def test_if_wakers_are_refused_the_error_names_a_fix_and_offcpu_goes_on(
    monkeypatch: pytest.MonkeyPatch, typed: int | None
) -> None:
    with wakings.running("futex") as child, watch.watching_kernel_stacks(of(child)) as live:
        request = {**live.source._program._request, "waking_type": typed}  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(live.source._program, "_request", request)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(KernelError, match="offtop doctor"):
            live.source.set_mode(CHAIN)
        live.tick()
        child.go()
        window = live.tick()
        assert window.mode == OFFCPU
        assert watch.thread(window, child.at["sleeper"]).waits >= TIMES
        assert watch.thread(window, child.at["sleeper"]).offcpu_ns < 2 * S


def opened() -> set[tuple[str, str]]:
    """Return this process's descriptors and what they refer to."""
    found: set[tuple[str, str]] = set()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor that lists them
            found.add((fd.name, str(fd.readlink())))
    return found


@pytest.mark.variant
def test_a_failed_load_is_reported_and_may_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    with wakings.running("futex") as child, watch.watching_kernel_stacks(of(child)) as live:
        monkeypatch.setenv(cache.VARIABLE, "")
        live.tick()
        live.tick()  # the source's workers start when they are first needed
        before = opened()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nosuch")
            with pytest.raises(KernelError, match="No such file"):
                live.source.set_mode(CHAIN)
        until(lambda: opened() == before)  # meanwhile the source's workers open descriptors of their own
        live.source.set_mode(CHAIN)
        live.tick()
        child.go()
        assert waits(wakes_of(live.tick(), child.at["sleeper"]).values()) == TIMES


def test_closing_while_wakers_are_loaded_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def bpf_ones() -> set[tuple[str, str]]:
        return {one for one in opened() if "bpf" in one[1]}

    before = bpf_ones()
    with wakings.running("futex") as child, watch.watching_kernel_stacks(of(child)) as live:
        load = program._load_or_compile  # pyright: ignore[reportPrivateUsage]

        def close_and_load(request: Mapping[str, Any], shared: Sequence[int] = ()) -> Any:
            live.source.close()
            return load(request, shared)

        assert bpf_ones() > before
        monkeypatch.setattr(program, "_load_or_compile", close_and_load)
        with pytest.raises(KernelError, match="has stopped tracing"):
            live.source.set_mode(CHAIN)
        assert bpf_ones() == before
        monkeypatch.undo()
        with pytest.raises(KernelError, match="has stopped tracing"):
            live.source.set_mode(CHAIN)
        assert bpf_ones() == before
        assert live.source.read() is None
