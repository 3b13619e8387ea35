"""What took CPU time that no thread has, as the kernel counts it for the whole machine (/proc/stat)."""

import psutil

from offtop.model.snapshot import Machine
from offtop.units import NS_PER_S


def machine() -> Machine:
    """As of now; in steps of 10 ms (USER_HZ). Its time of guests is part of what the threads that run them have."""
    now = psutil.cpu_times()
    steal_s, irq_s = getattr(now, "steal", 0.0), getattr(now, "irq", 0.0) + getattr(now, "softirq", 0.0)
    return Machine(psutil.cpu_count() or 1, round(steal_s * NS_PER_S), round(irq_s * NS_PER_S))
