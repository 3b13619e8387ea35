"""What was compiled before is loaded again without the compiler, counts the same, and is no stranger's way in."""

import gc
import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from offtop.kernel import features, libbpf, namespace, program, ready
from offtop.kernel.program import Program, Unwind
from offtop.model.snapshot import Filters
from offtop.model.wake import CHAIN
from tests.kernel import waits, wakings, watch
from tests.kernel.test_counts import check_23_sleeps

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled programs are kept in these tests. It is not there yet."""
    directory = tmp_path / "cache"
    monkeypatch.setenv(ready.VARIABLE, str(directory))
    return directory


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions for which the compiler is asked, from now on."""
    asked: list[str] = []
    ask: Callable[..., Any] = program._ask_compiler  # pyright: ignore[reportPrivateUsage]

    def told(request: Any, shared: Any = ()) -> Any:
        asked.extend((*request["raw_tracepoints"], *request["typed_tracepoints"]))
        return ask(request, shared)

    monkeypatch.setattr(program, "_ask_compiler", told)
    return asked


def attached(**defines: int) -> Program:
    types = libbpf.KernelTypes()
    return program.attach(features.find(types), defines={**namespace.defines(types), **defines})


def opened() -> Counter[str]:
    """What the descriptors of this process are of: none of a test before this one, whose files wait to be collected."""
    gc.collect()
    found: Counter[str] = Counter()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found[str(fd.readlink())] += 1
    return found


def test_the_second_start_asks_no_compiler_and_counts_the_same(cache: Path, compiled: list[str]) -> None:
    for _ in range(2):
        with waits.running("sleep", times=23, each_ms=10) as child, watch.watching() as live:
            check_23_sleeps(live, child)
        assert "on_switch" in compiled
    assert compiled.count("on_switch") == 1
    assert (cache.stat().st_mode & 0o777, {file.stat().st_mode & 0o777 for file in cache.iterdir()}) == (0o700, {0o600})


def test_wakers_are_told_by_what_was_compiled_before(compiled: list[str]) -> None:
    for _ in range(2):
        with (
            wakings.running("pipe") as child,
            watch.watching(Filters(pids=(child.pid,)), unwind=Unwind("off"), mode=CHAIN) as live,
        ):
            live.tick()
            child.go()
            window = live.tick(0.02)
            wakers = [window.book.wake(key.wake).waker.tid for key in window.sites if key.tid == child.at["sleeper"]]
            assert child.at["waker"] in wakers
    assert (compiled.count("on_switch"), compiled.count("on_waking")) == (1, 1)


@pytest.mark.parametrize("defines", [{}, {"WITHIN": 1}], ids=["all", "within"])
def test_it_hands_over_the_same_and_leaves_no_descriptor_open(compiled: list[str], defines: dict[str, int]) -> None:
    before = opened()
    shapes: list[tuple[Any, ...]] = []
    for _ in range(2):
        one = attached(**defines)
        maps = sorted((name, found.entries, found.key_bytes, found.value_bytes) for name, found in one.maps.items())
        shapes.append((one.door, one.bcc_version, one.unwind, sorted(one.programs), maps, opened().total()))
        one.close()
        assert opened() == before
    assert shapes[0] == shapes[1]
    assert compiled.count("on_switch") == 1


SPOIL: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_text(file.read_text()[:-40]),
    "empty": lambda file: file.write_text("{}"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe"),
    "other code": lambda file: file.write_text(file.read_text().replace("AAAA", "////", 400)),
    "writable": lambda file: file.chmod(0o622),
    "another's": lambda file: os.chown(file, 65534, 65534),
    "link": lambda file: file.symlink_to(file.rename(file.with_suffix(".old"))),
    "fifo": lambda file: (file.unlink(), os.mkfifo(file)),
    "open directory": lambda file: file.parent.chmod(0o777),
    "another's directory": lambda file: os.chown(file.parent, 65534, 65534),
}


@pytest.mark.parametrize("how", SPOIL)
def test_what_is_broken_or_could_be_another_s_is_not_looked_at(how: str, cache: Path, compiled: list[str]) -> None:
    attached().close()
    (file,) = cache.iterdir()
    before = opened()
    SPOIL[how](file)
    attached().close()
    assert compiled.count("on_switch") == 2
    assert opened() == before


def test_another_program_or_another_kernel_is_another_file(
    cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attached().close()
    monkeypatch.setattr(ready.platform, "version", lambda: "#2 of another day")
    attached().close()
    assert compiled.count("on_switch") == 2
    assert len([*cache.iterdir()]) == 2


def test_those_that_were_not_used_for_longest_go(cache: Path) -> None:
    attached().close()
    (newest,) = cache.iterdir()
    for number in range(100):
        old = cache / (f"{number}.json" if number % 2 else f"{newest.stem}.{number}")
        old.write_text(json.dumps({}))
        os.utime(old, (number, number))
    ready.make_room(newest)
    left = {file.name for file in cache.iterdir()}
    assert len(left) == 63
    assert {newest.name, "99.json"} < left and not {"1.json", f"{newest.stem}.0"} & left


def test_empty_is_nowhere_and_a_directory_that_cannot_be_made_is_no_error(
    cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("", "cache", "/proc/nowhere"):
        monkeypatch.setenv(ready.VARIABLE, where)
        attached().close()
    assert compiled.count("on_switch") == 3
    assert not cache.exists()
