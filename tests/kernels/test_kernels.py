"""offtop counts known waits on other kernels, in an emulated machine, in each mode and with each probe.

`make kernels` runs these tests, one guest at a time; `KERNELS=6.1,newest` selects kernels. Downloads are cached in
~/.cache/offtop, or in $OFFTOP_KERNELS.
"""

import os
from typing import Any

import pytest

from tests.kernels import guests, kernels
from tests.kernels.kernels import KERNELS, UnavailableDownloadError

pytestmark = [pytest.mark.guest, pytest.mark.timeout(3600)]

_CHOSEN = [name for name in os.environ.get("KERNELS", "").replace(",", " ").split() if name] or [*KERNELS]
_MANY_CPUS = "6.12"
"""Since 6.4, a kernel says how much memory each map takes."""
_BESIDE_BCC, _BESIDE_DISK_TOOLS = "6.1", "6.12"
"""The kernels whose guests also have bcc's tools, or those for disks, and the headers that they need."""


@pytest.mark.parametrize("name", _CHOSEN)
def test_known_waits_are_counted_in_each_mode_with_each_probe(name: str) -> None:
    check_passed(output_of_guest(name, name))


@pytest.mark.parametrize("name", [name for name in _CHOSEN if name == _MANY_CPUS])
def test_each_map_takes_as_much_memory_as_computed_with_16_cpus(name: str) -> None:
    check_passed(output_of_guest(name, f"{name}-cpus", cpus=16, check="tests.kernels.memory"))


def check_passed(output: str) -> None:
    print(output)
    assert guests.PASSED in output.splitlines(), "\n".join(output.splitlines()[-40:])


def output_of_guest(name: str, log: str, **options: Any) -> str:
    """Boot a guest and return its output. `options` are those of guests.boot."""
    kernel = KERNELS[name]
    try:
        image = kernels.image(kernel)
        extra = kernels.headers(kernel, image) if name in (_BESIDE_BCC, _BESIDE_DISK_TOOLS) else []
        extra += [kernels.tools()] if name == _BESIDE_BCC else []
        extra += [kernels.disk_tools(kernel)] if name == _BESIDE_DISK_TOOLS else []
        archive = guests.root(kernel, kernels.modules(kernel, image), extra)
    except UnavailableDownloadError as error:
        assert not kernel.is_needed, f"{name} is not available: {error}"
        pytest.skip(f"{name} is not available: {error}")
    return guests.boot(kernel, image, archive, kernels.cache() / f"{log}.log", **options)
