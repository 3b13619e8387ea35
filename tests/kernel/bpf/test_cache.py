"""What was compiled before is loaded again without the compiler, counts the same, and is no stranger's way in."""

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
from typing import Any

import pytest

from offtop.errors import OfftopError
from offtop.kernel.bpf import cache as ready
from offtop.kernel.bpf import compile as compiler
from offtop.kernel.bpf import features, libbpf, pid_namespace, program
from offtop.kernel.bpf.program import Program, Unwind
from offtop.model.values.snapshot import Filters
from offtop.model.values.wake import CHAIN
from tests.kernel import waits, wakings, watch
from tests.kernel.test_batch_live import started, wait_for
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


def kept(cache: Path, number: int = 1) -> list[Path]:
    """The files with what was compiled, once there are so many: nobody waits for them to be written."""
    wait_for(lambda: cache.is_dir() and len([*cache.glob("*.json")]) == number, 30)
    return [*cache.glob("*.json")]


def attached(**defines: int) -> Program:
    types = libbpf.KernelTypes()
    return program.attach(features.find(types), defines={**pid_namespace.defines(types), **defines})


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
        kept(cache)
        assert "on_switch" in compiled
    assert compiled.count("on_switch") == 1
    assert (cache.stat().st_mode & 0o777, {file.stat().st_mode & 0o777 for file in cache.iterdir()}) == (0o700, {0o600})


def test_wakers_are_told_by_what_was_compiled_before(cache: Path, compiled: list[str]) -> None:
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
            kept(cache, 2)
    assert (compiled.count("on_switch"), compiled.count("on_waking")) == (1, 1)


@pytest.mark.parametrize("defines", [{}, {"WITHIN": 1}], ids=["all", "within"])
def test_it_hands_over_the_same_and_leaves_no_descriptor_open(
    cache: Path, compiled: list[str], defines: dict[str, int]
) -> None:
    before = opened()
    shapes: list[tuple[Any, ...]] = []
    for _ in range(2):
        one = attached(**defines)
        maps = sorted((name, found.entries, found.key_bytes, found.value_bytes) for name, found in one.maps.items())
        shapes.append((one.door, one.bcc_version, one.unwind, sorted(one.programs), maps, (opened() - before).total()))
        kept(cache)
        one.close()
        assert not opened() - before
    assert shapes[0] == shapes[1]
    assert compiled.count("on_switch") == 1


def signed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The file as another compiler's child would have written it."""
    told = json.loads(file.read_bytes().partition(b"\n")[2])
    change(told)
    body = json.dumps(told).encode()
    file.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def resized(file: Path) -> None:
    """All of it is as the kernel takes it, and not as it was written."""
    content, was = file.read_bytes(), b'"entries": 16384'
    assert was in content
    file.write_bytes(content.replace(was, b'"entries": 16383'))


SPOIL: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-40]),
    "other sizes": resized,
    "empty": lambda file: file.write_text("{}"),
    "no answer": lambda file: signed(file, lambda told: told.pop("answer")),
    "no programs": lambda file: signed(file, lambda told: told["programs"].clear()),
    "other makers": lambda file: signed(file, lambda told: told["makers"].update({"/usr/lib/libbcc.so.0": [1, 2]})),
    "writable": lambda file: file.chmod(0o622),
    "another's": lambda file: os.chown(file, 65534, 65534),
    "link": lambda file: file.symlink_to(file.rename(file.with_suffix(".old"))),
    "fifo": lambda file: (file.unlink(), os.mkfifo(file)),
    "open directory": lambda file: file.parent.chmod(0o777),
    "another's directory": lambda file: os.chown(file.parent, 65534, 65534),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with what was compiled, to be copied."""
    directory = tmp_path_factory.mktemp("made") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ready.VARIABLE, str(directory))
        attached().close()
        return kept(directory)[0]


@pytest.mark.parametrize("how", SPOIL)
def test_what_is_broken_or_could_be_another_s_is_not_looked_at(
    how: str, made: Path, cache: Path, compiled: list[str]
) -> None:
    cache.mkdir(mode=0o700)
    file = cache / made.name
    shutil.copy(made, file)
    attached().close()
    assert not compiled
    before = opened()
    SPOIL[how](file)
    attached().close()
    assert compiled.count("on_switch") == 1
    assert not opened() - before


def test_another_program_another_kernel_or_another_child_is_another_file(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[dict[str, Any]] = []

    def nowhere(request: dict[str, Any], **_: object) -> Any:
        requests.append(request)
        return {"error": "load"}, [], ""

    monkeypatch.setattr(program, "_ready_or_compiled", nowhere)
    with pytest.raises(OfftopError):
        attached()
    request = requests[0]
    here = ready.place(request)
    assert here and here.name == made.name
    assert ready.place({**request, "flags": [*request["flags"], "-DX=1"]}) != here
    with monkeypatch.context() as patch:
        patch.setattr(ready.platform, "version", lambda: "#2 of another day")
        assert ready.place(request) != here
    assert ready.place(request) == here


def test_the_oldest_go_and_what_is_not_ours_stays(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    begun, newest = "0" * 64 + ".77", "f" * 64 + ".json"
    for number, name in enumerate((begun, *(f"{number:064x}.json" for number in range(98)), newest, "mine.json")):
        (cache / name).write_text("")
        os.utime(cache / name, (number, number))
    (cache / "directory").mkdir()
    (cache / ("e" * 64 + ".json")).symlink_to("nowhere")
    os.utime(cache / "mine.json", (0, 0))
    place = os.open(cache, os.O_RDONLY)
    compiler.make_room(place)
    os.close(place)
    left = {file.name for file in cache.iterdir()}
    assert {"mine.json", "directory", newest} < left
    assert len(left) == 63 + 2
    assert begun not in left and f"{0:064x}.json" not in left


def test_a_file_system_that_hangs_holds_up_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a loop device, frozen: who writes there waits until it is thawed, whatever is done to it."""
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as made:
        made.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, timeout=60)
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False, timeout=60).returncode:
        pytest.skip("no loop device can be mounted here")
    try:
        monkeypatch.setenv(ready.VARIABLE, str(place / "cache"))
        for number in (0, 1):
            with frozen(place), started("--json", OFFTOP_CACHE=str(place / "cache")) as run:
                assert run.tick()["taken_ns"]
                run.process.send_signal(signal.SIGINT)
                assert run.ended().status == 130
            if not number:
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


def test_empty_is_nowhere_and_a_directory_that_cannot_be_made_is_no_error(
    cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("", "cache", "/proc/nowhere"):
        monkeypatch.setenv(ready.VARIABLE, where)
        attached().close()
    assert compiled.count("on_switch") == 3
    assert not cache.exists()
