"""Budget check: does a process wait more than its requests explain?

If T threads serve R requests a second, with C of CPU time each, then T - R*C threads are off CPU in a service that only
waits for work. If fewer are, a request needs more CPU than C; if they wait for something else than work, that shows in
the blocked part without idle waits.
"""

from dataclasses import dataclass

from offtop.model.aggregate.account import Account
from offtop.units import average, count, duration, parse_duration, percent, three

_NS_PER_MS = 1_000_000
_MOST_REQUESTS = 1e12
_NEAR = 0.1
"""Fraction of the threads by which expected and measured may differ; at least half a thread."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Request rate of a process, as given by the user."""

    per_s: float
    cpu_ns: int = 0
    """Expected CPU time of a request; 0: as measured."""

    @property
    def text(self) -> str:
        """In the form that parse_rate() reads."""
        return f"{self.per_s:g}" + (f",{self.cpu_ns / _NS_PER_MS:g}ms" if self.cpu_ns else "")


def parse_rate(text: str) -> Rate:
    """Parse a rate: `1500`, `1.5k/s`, `1500,1ms` or `1500 1ms`.

    It has requests a second, and optionally the CPU time expected for one. Raises ValueError.
    """
    rate, *rest = text.replace(",", " ").split()
    if len(rest) > 1:
        raise ValueError(text)
    number = rate.removesuffix("/s")
    factor = {"k": 1e3, "M": 1e6}.get(number[-1:], 1.0)
    per_s = float(number[:-1] if factor > 1 else number) * factor
    cpu_ns = parse_duration(rest[0], _NS_PER_MS) if rest else 0
    if not 0 < per_s < _MOST_REQUESTS or (rest and not cpu_ns):
        raise ValueError(text)
    return Rate(per_s, cpu_ns)


@dataclass(frozen=True, slots=True)
class Budget:
    """Averages over a span, in threads unless noted otherwise."""

    threads: float
    running: float
    blocked: float
    """Without idle waits."""
    idle: float
    off_cpu: float
    """`blocked`, `idle` and runnable."""
    rate: float = 0.0
    """Requests a second; 0: unknown."""
    cpu_ns: float = 0.0
    """CPU time of a request, as measured."""
    blocked_ns: float = 0.0
    """Blocked time of a request, without idle waits."""
    expected: float | None = None
    """Threads off CPU according to T - R*C; None if C was not given."""

    @property
    def lines(self) -> list[str]:
        """The shares, and what the requests explain, for display."""
        ready = max(0.0, self.off_cpu - self.blocked - self.idle)
        blocked = "blocked" if not self.idle else "blocked otherwise"
        shares = ((self.idle, "idle"), (self.blocked, blocked), (ready, "ready to run"), (self.running, "running"))
        parts = ", ".join(f"{percent(part, self.threads):.0f}% {word}" for part, word in shares)
        texts = [f"{self.threads:.0f} thread{'s' * (round(self.threads) != 1)}: {parts}"]
        if self.rate:
            each = f"{duration(round(self.cpu_ns)) or '0'} CPU + {duration(round(self.blocked_ns)) or '0'} blocked"
            texts.append(f"{count(self.rate)} requests/s: {each} each")
        if self.expected is not None and self.expected < 0:
            texts[-1] += f"; R*C is {three(self.threads - self.expected)}, more than the threads: {self.comparison}"
        elif self.expected is not None:
            off = f"{three(self.expected)} off CPU, {three(self.off_cpu)} are"
            texts[-1] += f"; T-R*C expects {off}: {self.comparison}"
        return texts

    @property
    def comparison(self) -> str:
        """How the measured value compares with the expected one, in words."""
        if self.expected is None:
            return ""
        if self.expected < 0:
            return "one of the numbers is wrong"
        apart = self.off_cpu - self.expected
        if abs(apart) <= max(0.5, _NEAR * self.threads):
            return "as expected"
        return "less: requests take more CPU" if apart < 0 else "more: see what they are blocked for"


def budget(account: Account, idle_ns: int, span_ns: int, rate: Rate | None) -> Budget | None:
    """Check a process over `span_ns`; None if none of its threads existed."""
    if not account.threads or span_ns <= 0:
        return None
    off_ns = account.ready_ns + account.blocked_ns
    running = average(account.running_ns, span_ns)
    blocked_ns = max(0, account.blocked_ns - idle_ns)
    plain = Budget(
        average(account.sum_ns, span_ns),
        running,
        average(blocked_ns, span_ns),
        average(idle_ns, span_ns),
        average(off_ns, span_ns),
    )
    if rate is None:
        return plain
    requests = rate.per_s * span_ns / 1e9
    return Budget(
        plain.threads,
        plain.running,
        plain.blocked,
        plain.idle,
        plain.off_cpu,
        rate.per_s,
        account.running_ns / requests,
        blocked_ns / requests,
        plain.threads - rate.per_s * rate.cpu_ns / 1e9 if rate.cpu_ns else None,
    )
