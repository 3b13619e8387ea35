"""Task states as ps shows them: one letter for the kernel's bits (include/linux/sched.h)."""

RUNNING = 1 << 31
"""Of a thread that left while it could have run on."""
NEW = 0x800
"""TASK_NEW (include/linux/sched.h). With RUNNING: the thread is new, and waits for its first CPU."""
_LETTERS = (
    # (bits that must be set, letter), most specific first
    (RUNNING, "R"),
    (0x402, "I"),  # TASK_UNINTERRUPTIBLE | TASK_NOLOAD: idle kernel threads
    (0x400, "I"),
    (0x102, "K"),  # TASK_UNINTERRUPTIBLE | TASK_WAKEKILL
    (0x40, "P"),
    (0x8, "t"),
    (0x4, "T"),
    (0x2, "D"),
    (0x1, "S"),
)
WORDS = {
    "R": "runnable, waiting for a CPU",
    "S": "sleeps until what it waits for or a signal comes",
    "D": "waits, not woken by signals",
    "K": "waits, woken only by fatal signals",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "P": "parked by the kernel",
    "I": "idle kernel thread",
}
"""Meaning of each letter."""
MASKS = {"R": RUNNING, "S": 0x1, "D": 0x2, "K": 0x100, "T": 0x4, "t": 0x8, "P": 0x40, "I": 0x400}
"""The bit by which --state and the BPF programs know each. A wait in state K has the bit of D, too."""


def letters(mask: int) -> str:
    """Return the states in a mask as `D,T`; bits without a letter in hexadecimal."""
    known = [letter for letter, bit in MASKS.items() if mask & bit]
    rest = mask & ~sum(MASKS.values())
    return ",".join([*known, *([f"{rest:#x}"] if rest else [])])


def letter(state: int) -> str:
    """Return the letter of a state, `?` if no bit is known."""
    return next((found for bits, found in _LETTERS if state & bits == bits), "?")
