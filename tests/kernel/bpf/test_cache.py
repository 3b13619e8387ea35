"""Test the cache of compiled BPF programs.

What it loads counts the same as fresh code, needs no compiler, and cannot be forged.
"""

import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from offtop.kernel.bpf import cache as ready
from offtop.kernel.bpf import compile as compiler
from offtop.kernel.bpf import features, libbpf, pid_namespace, program
from offtop.kernel.bpf.program import Program, Unwind
from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import CHAIN
from tests.command import QUICK
from tests.kernel import waits, wakings, watch
from tests.kernel.offtop_process import started, wait_for
from tests.kernel.test_counts import count_23_sleeps

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache directory of these tests, which does not exist yet."""
    directory = tmp_path / "cache"
    monkeypatch.setenv(ready.VARIABLE, str(directory))
    return directory


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the functions that the compiler is called for, from now on."""
    functions: list[str] = []
    ask: Callable[..., Any] = program._compile  # pyright: ignore[reportPrivateUsage]

    def recorded(request: Any, shared: Any = ()) -> Any:
        functions.extend((*request["raw_tracepoints"], *request["typed_tracepoints"]))
        return ask(request, shared)

    monkeypatch.setattr(program, "_compile", recorded)
    return functions


def kept(cache: Path, number: int = 1) -> list[Path]:
    """Return the cached files once there are so many.

    They are written in the background.
    """
    wait_for(lambda: cache.is_dir() and len([*cache.glob("*.json")]) == number, 30)
    return [*cache.glob("*.json")]


def attached(**defines: int) -> Program:
    """Attach the programs without user stacks, which compile fastest."""
    types = libbpf.KernelTypes()
    defines = {**pid_namespace.defines(types), **defines}
    return program.attach(features.detect(types), defines=defines, unwind=Unwind("off"))


def opened() -> Counter[str]:
    """Count what the descriptors of this process refer to.

    Descriptors that earlier tests left for the garbage collector are not counted.
    """
    gc.collect()
    found: Counter[str] = Counter()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found[str(fd.readlink())] += 1
    return found


@pytest.mark.variant
def test_the_second_start_skips_the_compiler_and_counts_the_same(cache: Path, compiled: list[str]) -> None:
    for _ in range(2):
        with (
            waits.running("sleep", times=23, each_ms=10) as sleeper,
            wakings.running("pipe") as child,
            watch.watching_kernel_stacks(Filters(pids=(sleeper.pid, child.pid)), mode=CHAIN) as live,
        ):
            count_23_sleeps(live, sleeper)
            child.go()
            window = live.tick(0.02)
            wakers = [window.catalog.wake(key.wake).waker.tid for key in window.sites if key.tid == child.at["sleeper"]]
            assert child.at["waker"] in wakers
        kept(cache, 2)
    assert (compiled.count("on_switch"), compiled.count("on_waking")) == (1, 1)
    assert (cache.stat().st_mode & 0o777, {file.stat().st_mode & 0o777 for file in cache.iterdir()}) == (0o700, {0o600})


class Compiled(NamedTuple):
    file: Path
    """Its cache file."""
    request: dict[str, Any]
    shape: tuple[Any, ...]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Compile the programs, with those that trace a function."""
    directory = tmp_path_factory.mktemp("fresh") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ready.VARIABLE, str(directory))
        before = opened()
        one = attached(WITHIN=1)
        found = shape(one, before)
        request = {name: value for name, value in one._request.items() if name != "waking_type"}  # pyright: ignore[reportPrivateUsage]
        one.close()
        return Compiled(kept(directory)[0], request, found)


def shape(one: Program, before: Counter[str]) -> tuple[Any, ...]:
    """Return what an attached program consists of, with the number of descriptors opened since `before`."""
    maps = sorted((name, found.entries, found.key_bytes, found.value_bytes) for name, found in one.maps.items())
    return one.probe, one.bcc_version, one.unwind, sorted(one.programs), maps, (opened() - before).total()


@pytest.mark.variant
def test_a_cached_program_is_the_same_and_leaks_no_descriptor(
    cache: Path, fresh: Compiled, compiled: list[str]
) -> None:
    copied(fresh, cache)
    before = opened()
    one = attached(WITHIN=1)
    assert shape(one, before) == fresh.shape
    one.close()
    assert not opened() - before
    assert not compiled


def copied(fresh: Compiled, cache: Path) -> Path:
    """Put the file of the compiled program into this cache."""
    cache.mkdir(mode=0o700)
    return Path(shutil.copy(fresh.file, cache))


def signed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite the file with a change and a valid checksum, as another compiler child would."""
    content = json.loads(file.read_bytes().partition(b"\n")[2])
    change(content)
    body = json.dumps(content).encode()
    file.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def resized(file: Path) -> None:
    """Change a map's size without updating the checksum.

    The kernel would accept the other size too.
    """
    content, was = file.read_bytes(), b'"entries": 16384'
    assert was in content
    file.write_bytes(content.replace(was, b'"entries": 16383'))


SPOIL: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-40]),
    "other sizes": resized,
    "empty": lambda file: file.write_text("{}"),
    "no answer": lambda file: signed(file, lambda words: words.pop("answer")),
    "no programs": lambda file: signed(file, lambda words: words["programs"].clear()),
    "other makers": lambda file: signed(
        file, lambda words: words["compiler_libraries"].update({"/usr/lib/libbcc.so.0": [1, 2]})
    ),
    "writable": lambda file: file.chmod(0o622),
    "another's": lambda file: os.chown(file, 65534, 65534),
    "link": lambda file: file.symlink_to(file.rename(file.with_suffix(".old"))),
    "fifo": lambda file: (file.unlink(), os.mkfifo(file)),
    "open directory": lambda file: file.parent.chmod(0o777),
    "another's directory": lambda file: os.chown(file.parent, 65534, 65534),
}


@pytest.mark.parametrize("how", SPOIL)
def test_broken_or_foreign_files_are_not_loaded(how: str, fresh: Compiled, cache: Path) -> None:
    file = copied(fresh, cache)
    before = opened()
    loaded = ready.load(file, fresh.request)
    assert loaded
    for fd in loaded[1]:
        os.close(fd)
    SPOIL[how](file)
    assert ready.load(file, fresh.request) is None
    assert not opened() - before


def test_a_broken_file_is_replaced(fresh: Compiled, cache: Path, compiled: list[str]) -> None:
    file = copied(fresh, cache)
    SPOIL["cut"](file)
    size = file.stat().st_size
    attached(WITHIN=1).close()
    assert compiled.count("on_switch") == 1
    wait_for(lambda: file.stat().st_size > size, 30)
    attached(WITHIN=1).close()
    assert compiled.count("on_switch") == 1


def test_another_program_kernel_or_compiler_has_another_file(
    fresh: Compiled, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = fresh.request
    here = ready.cache_file(request)
    assert here == cache / fresh.file.name
    assert ready.cache_file({**request, "flags": [*request["flags"], "-DX=1"]}) != here
    with monkeypatch.context() as patch:
        patch.setattr(ready.platform, "version", lambda: "#2 of another day")
        assert ready.cache_file(request) != here
    assert ready.cache_file(request) == here


def test_the_oldest_files_are_evicted_and_foreign_ones_stay(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    begun, newest = "0" * 64 + ".77", "f" * 64 + ".json"
    for number, name in enumerate((begun, *(f"{number:064x}.json" for number in range(98)), newest, "mine.json")):
        (cache / name).write_text("")
        os.utime(cache / name, (number, number))
    (cache / "directory").mkdir()
    (cache / ("e" * 64 + ".json")).symlink_to("nowhere")
    os.utime(cache / "mine.json", (0, 0))
    place = os.open(cache, os.O_RDONLY)
    compiler.evict_oldest(place)
    os.close(place)
    left = {file.name for file in cache.iterdir()}
    assert {"mine.json", "directory", newest} < left
    assert len(left) == 63 + 2
    assert begun not in left and f"{0:064x}.json" not in left


@pytest.mark.variant
def test_a_frozen_file_system_does_not_delay_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to a frozen loop device blocks until it is thawed, and cannot be killed."""
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as made:
        made.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, timeout=60)
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False, timeout=60).returncode:
        pytest.skip("no loop device can be mounted here")
    try:
        monkeypatch.setenv(ready.VARIABLE, str(place / "cache"))
        for is_cached in (False, True):
            with frozen(place), started(*QUICK, "--json", OFFTOP_CACHE=str(place / "cache")) as run:
                assert run.tick()["taken_ns"]
                run.process.send_signal(signal.SIGINT)
                assert run.ended().status == 130
            if not is_cached:
                attached().close()
                kept(place / "cache")
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


@contextmanager
def frozen(place: Path) -> Generator[None]:
    subprocess.run(["fsfreeze", "-f", str(place)], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(place)], check=True, timeout=60)


def test_an_empty_setting_or_unusable_directory_disables_the_cache(
    fresh: Compiled, cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("", "cache"):
        monkeypatch.setenv(ready.VARIABLE, where)
        assert ready.cache_file(fresh.request) is None
    monkeypatch.setenv(ready.VARIABLE, "/proc/nowhere")
    attached().close()
    assert compiled.count("on_switch") == 1
    assert not cache.exists()
