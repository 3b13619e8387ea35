"""Translate system call numbers into names and back.

Numbers differ between machines, so only names are used outside of this package.
"""

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
"""Machine name in uname → machine name in the tables, where they differ."""
MACHINE_32_BIT = "armv8l" if _MACHINE == "aarch64" else "i386"
"""Machine name that uname reports to a 32-bit program on this machine."""


def name_of(number: int, machine: str = _MACHINE) -> str:
    """Name of a system call, such as `futex`.

    Empty if unknown, and for -1, which is no system call.

    `number` is the value of the register, signed or unsigned. `machine` is the program's own, as in uname: a 32-bit
    program has other numbers.
    """
    number = ((number & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000  # the kernel treats it as a C int
    return _names(machine).get(number, "")


def number_of(name: str) -> int:
    """Number of a system call on this machine, or -1 if unknown."""
    return next((number for number, found in _names(_MACHINE).items() if found == name), -1)


@cache
def _names(machine: str) -> Mapping[int, str]:
    """System call number → name; empty for an unknown machine."""
    # Imported here, because the import takes 7 ms.
    from system_calls import NoSuchArchitecture, syscalls  # pyright: ignore[reportMissingTypeStubs]

    try:
        return cast(Mapping[int, str], syscalls().load_reverse_arch_table(_TABLES.get(machine, machine)))
    except NoSuchArchitecture:
        return {}
