"""A thread's state, as ps and people write it: one letter for what the kernel keeps as bits (include/linux/sched.h)."""

RUNNING = 1 << 31
"""Of a thread that left while it could have run on."""
_LETTERS = (
    # (bits that must be set, letter), the more particular first
    (RUNNING, "R"),
    (0x402, "I"),  # TASK_UNINTERRUPTIBLE | TASK_NOLOAD: idle, as kernel threads wait
    (0x400, "I"),
    (0x102, "K"),  # TASK_UNINTERRUPTIBLE | TASK_WAKEKILL
    (0x40, "P"),
    (0x8, "t"),
    (0x4, "T"),
    (0x2, "D"),
    (0x1, "S"),
)
WORDS = {
    "R": "ready to run, and no CPU is free",
    "S": "sleeps until what it waits for or a signal comes",
    "D": "waits, and no signal wakes it",
    "K": "waits, and only a deadly signal wakes it",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "P": "parked by the kernel",
    "I": "a kernel thread without work",
}
"""What each letter says."""
MASKS = {"R": RUNNING, "S": 0x1, "D": 0x2, "K": 0x100, "T": 0x4, "t": 0x8, "P": 0x40, "I": 0x400}
"""The bit that --state and the kernel side know each by. A wait of state K has that of D, too."""


def letters(mask: int) -> str:
    """The states that a mask of bits chooses, as `D,T`; what has no letter in hexadecimal."""
    known = [letter for letter, bit in MASKS.items() if mask & bit]
    rest = mask & ~sum(MASKS.values())
    return ",".join([*known, *([f"{rest:#x}"] if rest else [])])


def letter(state: int) -> str:
    """`?` where no bit is known."""
    return next((found for bits, found in _LETTERS if state & bits == bits), "?")
