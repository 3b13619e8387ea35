"""Run offtop's BPF programs and read them in this process, without a screen."""

from collections.abc import Generator
from contextlib import contextmanager

from offtop import paths
from offtop.kernel.bpf.program import DEFAULT_UNWIND, Unwind
from offtop.kernel.live import LiveSource
from offtop.model.classify import categories
from offtop.model.values.snapshot import Filters, Snapshot


@contextmanager
def watching(filters: Filters = Filters(), unwind: Unwind = DEFAULT_UNWIND) -> Generator[LiveSource]:
    """Attach the BPF programs until the block ends."""
    source = LiveSource(categories.parse(paths.categories().read_text()), filters, unwind=unwind)
    try:
        yield source
    finally:
        source.close()


def tick(source: LiveSource) -> Snapshot:
    """Read a snapshot."""
    snapshot = source.read()
    assert snapshot, "what was watched has ended"
    return snapshot
