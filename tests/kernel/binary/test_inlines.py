"""Test inlined functions.

All of them are shown, innermost first, up to the containing function.
"""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from offtop.kernel.binary import inlines as inlined_module
from offtop.kernel.binary.binaries import Binaries
from offtop.kernel.binary.dwfl import Binary
from offtop.kernel.binary.files import File, Files, Mapping
from offtop.kernel.symbols.mappings import Processes
from offtop.kernel.symbols.names import NameWorker
from offtop.model.values.stack import functions
from tests import command
from tests.kernel.programs import build, make_readable_by_all, running

INLINE = "static inline __attribute__((always_inline))"
SOURCE = rf"""
__attribute__((noinline)) int leaf(void) {{ tell("inside", (char *)__builtin_return_address(0) - 1); return getpid(); }}
{INLINE} int inner(int a) {{ for (;;) {{ int b = leaf() + a; if (b) return b; }} }}
{INLINE} int middle(int a) {{ return inner(a) * 3; }}
__attribute__((noipa)) int outer(int a) {{ int b = middle(a); return b + 1; }}
int main(void) {{ int a = outer(1); next(); return a; }}
"""
WHOLE = "inner (inlined) < middle (inlined) < outer"
BOX = r"""
__attribute__((noinline)) int leaf() { tell("inside", (char *)__builtin_return_address(0) - 1); return getpid(); }
namespace shop {
template <typename T> struct Box {
    __attribute__((always_inline)) T take(T n) { return leaf() + n; }
    __attribute__((noinline)) T wait(T n) { return take(n) * 3; }
};
}
int main() {
    shop::Box<int> box;
    auto call = [&](int a) __attribute__((noinline)) { int b = box.wait(a); return b + box.take(a); };
    int a = call(1);
    next();
    return a;
}
"""
RUST = r"""
use std::io::Read;
#[inline(always)] fn inner(n: u32) -> u32 { std::thread::yield_now(); std::process::id() * n }
mod shop { #[inline(always)] pub fn middle(n: u32) -> u32 { super::inner(n) + 1 } }
#[no_mangle] #[inline(never)] pub extern "C" fn outer(n: u32) -> u32 { shop::middle(n) * 2 }
fn main() {
    println!("outer {:x}\nready {}", outer as *const () as usize, outer(1));
    std::io::stdin().read(&mut [0]).unwrap();
}
"""


def name_inside(path: Path) -> str:
    """Return the name of the location that `leaf` was last called from."""
    files = Files()
    worker = NameWorker(files)
    try:
        with running([path]) as app:
            (frame,) = Processes(files).frames(app.pid, [app.at["inside"]])
        assert worker.wait({frame}, 60)
        return worker.of(frame)
    finally:
        worker.close()


@pytest.mark.parametrize("options", ["-g", "-gdwarf-4", "-gdwarf-5", "-g -gz", "-g -O2", "-g -O2 -flto", "-g -no-pie"])
def test_inlined_functions_come_before_their_containing_function(tmp_path: Path, options: str) -> None:
    path = build(tmp_path / "app", SOURCE, *options.split())
    name = name_inside(path)
    assert name == WHOLE
    assert functions(name) == ["inner (inlined)", "middle (inlined)", "outer"]


def test_without_debug_information_only_the_containing_function_shows(tmp_path: Path) -> None:
    assert name_inside(build(tmp_path / "app", SOURCE)) == "outer"


def test_a_separate_debug_file_has_inlined_functions_too(tmp_path: Path) -> None:
    path, debug = build(tmp_path / "app", SOURCE, "-g"), tmp_path / ".debug" / "app.debug"
    debug.parent.mkdir()
    make_readable_by_all(debug)
    subprocess.run(["objcopy", "--only-keep-debug", path, debug], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", path], check=True)
    assert name_inside(path) == WHOLE


def test_methods_have_their_source_names(tmp_path: Path) -> None:
    path = build(tmp_path / "app", BOX, "-g", language="c++")
    assert name_inside(path) == ("shop::Box<int>::take(int) (inlined) < main::{lambda(int)#1}::operator()(int) const")


@pytest.mark.skipif(not shutil.which("rustc"), reason="no rustc")
def test_rust_functions_are_named(tmp_path: Path) -> None:
    source, path = tmp_path / "app.rs", tmp_path / "app"
    source.write_text(RUST)
    subprocess.run(["rustc", "-g", "-O", "-o", path, source], check=True, timeout=100)
    listing = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    (start,) = (int(line.split()[0], 16) for line in listing.splitlines() if line.endswith(" T outer"))
    binary = Binary(os.open(path, os.O_RDONLY), str(path))
    found = [binary.inlined(address) for address in range(start, start + 40)]
    assert any("inner" in names[-2] and "middle" in names[-1] for names in found if len(names) > 1)
    binary.close()


def test_inline_depth_matches_binutils_at_every_address(tmp_path: Path) -> None:
    path = build(tmp_path / "app", BOX, "-g", "-O2", language="c++")
    listing = subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout
    sizes = [
        (int(row[0], 16), int(row[1], 16)) for row in map(str.split, listing.splitlines()) if row[2:3] in (["t"], ["T"])
    ]
    addresses = [address for start, size in sizes for address in range(start, start + size)]
    assert len(addresses) > 100
    addresses_text = "\n".join(map(hex, addresses))
    answer = subprocess.run(
        ["addr2line", "-afie", path], input=addresses_text, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    binary = Binary(os.open(path, os.O_RDONLY), str(path))
    for address, lines in zip(addresses, answer.split("0x")[1:], strict=True):
        assert len(binary.inlined(address)) == len(lines.splitlines()) // 2 - 1, hex(address)
    binary.close()


def test_addresses_beyond_all_functions_have_no_inlines(tmp_path: Path) -> None:
    path = build(tmp_path / "app", SOURCE, "-g")
    binary = Binary(os.open(path, os.O_RDONLY), str(path))
    assert [binary.inlined(address) for address in (0, 1, 1 << 40, (1 << 64) - 1)] == [[], [], [], []]
    binary.close()


@pytest.mark.parametrize("most", [0, 1, 10, 30])
def test_a_file_with_too_many_entries_shows_no_inlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(inlined_module, "_MOST_ENTRIES", most)
    path = build(tmp_path / "app", SOURCE, "-g")
    binary = Binary(os.open(path, os.O_RDONLY), str(path))
    start = next(n for n in range(1 << 16) if (symbol := binary.symbol(n)) and symbol.name == "outer")
    assert binary.inlined(start + 12) in ([], ["inner", "middle"])
    assert most > 10 or binary.inlined(start + 12) == []
    binary.close()


def file_of(path: Path) -> File:
    found = path.stat()
    device = f"{os.major(found.st_dev):x}:{os.minor(found.st_dev):x}"
    return File(str(path), str(path), device, found.st_ino, Mapping(os.getpid(), 0, 0))


def test_damaged_debug_information_costs_only_the_names_of_its_file(tmp_path: Path) -> None:
    good, broken = (build(tmp_path / name, SOURCE, "-g") for name in ("good", "broken"))
    listing = subprocess.run(["readelf", "-SW", good], capture_output=True, text=True, check=True).stdout
    (row,) = (line.split("PROGBITS")[1].split() for line in listing.splitlines() if " .debug_info " in line)
    start, length = int(row[1], 16), int(row[2], 16)
    whole, flaws = good.read_bytes(), random.Random(7)
    listing = subprocess.run(["nm", good], capture_output=True, text=True, check=True).stdout
    (outer,) = (int(line.split()[0], 16) for line in listing.splitlines() if line.endswith(" outer"))
    binaries = Binaries(60)
    try:
        for _ in range(100):
            content = bytearray(whole)
            for _ in range(8):
                content[start + flaws.randrange(length)] = flaws.choice((0, 1, 0x7F, 0x80, 0xFF))
            broken.write_bytes(content)
            names = binaries.names(file_of(broken), range(outer, outer + 16))
            assert all(not name or name.endswith("outer") for name in names)
        assert WHOLE in binaries.names(file_of(good), range(outer, outer + 40))
    finally:
        binaries.end()


NAPS = rf"""
#include <sys/syscall.h>
#include <time.h>
static const struct timespec ten_ms = {{0, 10000000}};
{INLINE} int inner(int a) {{ for (;;) {{ syscall(SYS_nanosleep, &ten_ms, 0); a++; }} }}
{INLINE} int middle(int a) {{ return inner(a) * 3; }}
__attribute__((noipa)) int outer(int a) {{ return middle(a) + 1; }}
int main(void) {{ next(); return outer(1); }}
"""


@pytest.mark.kernel
def test_live_and_replayed_stacks_have_an_entry_per_inlined_function(tmp_path: Path) -> None:
    path, recording = build(tmp_path / "app", NAPS, "-g", "-fno-omit-frame-pointer"), tmp_path / "it.offtop"
    with running([path]) as app:
        app.go_on_alone()
        live = command.run("--json", "-n", "2", "-d", "0.5", "-p", str(app.pid), "--record", str(recording))
    stacks = {tuple(site["user"]) for line in live.out.splitlines() for site in json.loads(line)["sites"]}
    whole = ("inner (inlined)", "middle (inlined)", "outer", "main")
    assert [one for one in stacks if any(one[at : at + 4] == whole for at in range(len(one)))], stacks
    assert command.run("replay", str(recording), "--json").out == live.out
    assert "inner (inlined) < middle (inlined) < outer < main" in command.run("replay", str(recording), "-b", "-i").out
