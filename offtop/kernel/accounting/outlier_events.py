"""Outliers from the BPF programs' ring buffer, and the thresholds that are loaded into BPF for them.

BPF keeps a threshold for each pair of kernel stack and program. If it has none for a pair, it reports every wait above
the lowest threshold of all, and user space then loads the pair's own threshold. A wait that was reported this way is
dropped if it is below its own threshold: on a machine short of CPUs, every short-lived program has such waits.
"""

from collections.abc import Callable

from offtop.kernel.bpf import layout, libbpf
from offtop.kernel.bpf.libbpf import Map
from offtop.model.values.catalog import Catalog, SiteKey
from offtop.model.values.outlier import LongWait, Thresholds

Locate = Callable[[int, int, int, int, int], SiteKey]
"""(pid, tid, raw kernel stack id, raw user stack id, raw wake id) → site."""
KernelStack = Callable[[int], int]
"""Raw kernel stack id → catalog id."""

_Known = tuple[str, int, tuple[int, int]]
"""Program, kernel stack (catalog id), and the thresholds for such waits (blocked, run queue) in ns."""


class OutlierEvents:
    """Reads outliers and loads thresholds. For the polling thread; call close() at the end."""

    def __init__(
        self, ring: Map, threshold_map: Map, catalog: Catalog, locate: Locate, kernel_stack: KernelStack
    ) -> None:
        """Open the ring buffer. Raises OSError if it cannot be read."""
        self._map, self._catalog, self._locate, self._kernel_stack = threshold_map, catalog, locate, kernel_stack
        self._raw: list[bytes] = []
        self._loaded: dict[bytes, _Known] = {}
        """What is loaded into BPF, by its map key."""
        self._thresholds: Thresholds | None = None
        self._version = -1
        self._ring = libbpf.RingBuffer(ring.fd, self._raw.append)

    def take(self, thresholds: Thresholds | None) -> list[LongWait]:
        """Return the outliers since the last call. `thresholds`: the thresholds from now on."""
        self._ring.consume()
        raw, self._raw[:] = [*self._raw], []
        if thresholds is None:
            return []
        if thresholds is not self._thresholds or thresholds.version != self._version:
            self._thresholds, self._version = thresholds, thresholds.version
            self._reload(thresholds)
        return [one for one in (self._outlier(event, thresholds) for event in raw) if one]

    def forget(self) -> None:
        """Delete all thresholds in BPF.

        The kernel's symbols have changed, so stacks and their thresholds differ.
        """
        for key in self._loaded:
            self._map.delete(key)
        self._loaded.clear()

    def close(self) -> None:
        self._ring.close()

    def _outlier(self, raw: bytes, thresholds: Thresholds) -> LongWait | None:
        """Return the outlier; None if it is below its threshold, which was not loaded into BPF yet."""
        began_ns, ended_ns, runqueue_ns, kernel, user, wake, pid, tid, state, cpu, key = layout.OUTLIER.unpack(raw)
        known = self._loaded.get(key)
        if known is None:
            known = self._load(key, thresholds)
        program, _, (blocked_ns, ready_ns) = known
        if ended_ns - began_ns - runqueue_ns < blocked_ns and runqueue_ns < ready_ns:
            return None
        site = self._locate(pid, tid, kernel, user, wake)
        return LongWait(site, began_ns, ended_ns, runqueue_ns, state, cpu, program)

    def _load(self, key: bytes, thresholds: Thresholds) -> _Known:
        if len(self._loaded) >= self._map.entries // 2:
            self.forget()
        raw_kernel, name = layout.THRESHOLD_KEY.unpack(key)
        program, kernel = layout.text_of(name), self._kernel_stack(raw_kernel)
        thresholds_ns = thresholds.thresholds_ns(program, kernel, self._catalog)
        self._map.update(key, layout.THRESHOLD.pack(*thresholds_ns))
        self._loaded[key] = program, kernel, thresholds_ns
        return self._loaded[key]

    def _reload(self, thresholds: Thresholds) -> None:
        for key, (program, kernel, loaded_ns) in list(self._loaded.items()):
            if kernel not in self._catalog.stacks:  # evicted: loaded again at its next wait
                self._map.delete(key)
                del self._loaded[key]
                continue
            thresholds_ns = thresholds.thresholds_ns(program, kernel, self._catalog)
            if thresholds_ns != loaded_ns:
                self._map.update(key, layout.THRESHOLD.pack(*thresholds_ns))
                self._loaded[key] = program, kernel, thresholds_ns
