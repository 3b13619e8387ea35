"""What a system call's number means: on each machine something else, so that only names leave this room."""

import platform
from collections.abc import Mapping
from functools import cache
from typing import cast

_MACHINE = platform.machine()
_TABLES = {
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv8l": "arm",
    "i586": "i386",
    "i686": "i386",
    "ppc64": "powerpc64",
    "ppc64le": "powerpc64",
}
"""What uname calls a machine → what the tables call it, where that is another word."""
NARROW = "armv8l" if _MACHINE == "aarch64" else "i386"
"""What uname calls this machine to a program of 32 bits."""


def name_of(number: int, machine: str = _MACHINE) -> str:
    """`futex`; empty where nobody knows it, and for -1, which is no system call.

    `number` is as the register has it, signed or not. `machine` is the program's own, as uname names it: a 32-bit
    program has its own numbers.
    """
    number = ((number & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000  # the kernel takes it as a C int
    return _names(machine).get(number, "")


def number_of(name: str) -> int:
    """Of this machine's own; -1 where nobody knows it."""
    return next((number for number, found in _names(_MACHINE).items() if found == name), -1)


@cache
def _names(machine: str) -> Mapping[int, str]:
    """Nothing for a machine that nobody knows."""
    # Imported here, since it takes 7 ms.
    from system_calls import NoSuchArchitecture, syscalls  # pyright: ignore[reportMissingTypeStubs]

    try:
        return cast(Mapping[int, str], syscalls().load_reverse_arch_table(_TABLES.get(machine, machine)))
    except NoSuchArchitecture:
        return {}
