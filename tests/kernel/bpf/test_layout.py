"""Test that bpf/offcpu.h and offtop/kernel/bpf/layout.py agree on every field offset.

gcc lays out the structs.
"""

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

from offtop import paths
from offtop.kernel.bpf import layout, map_sizes
from offtop.kernel.bpf.compile import inline_includes
from offtop.kernel.bpf.layout import ObjectRecord, ScannedStack, ThreadRecord
from offtop.kernel.bpf.scan_rows import (
    REGISTERS_ROW,
    STACK_ROW,
    TASK_ROW,
    THREAD_ROW,
    chosen,
    joined,
    record_of,
    scan_of,
    stack_of,
)
from offtop.model.values import histogram as log2
from offtop.model.values import wake

FORMATS = {
    "config": (layout.CONFIG, 0),
    "thinning": (layout.THINNING, 0),
    "thread": (layout.THREAD, 0),
    "exited_key": (layout.EXITED_KEY, 0),
    "exited": (layout.EXITED, 0),
    "site_key": (layout.SITE_KEY, 0),
    "site": (layout.SITE, 0),
    "stack": (layout.STACK, 0),
    "rule_key": (layout.RULE_KEY, 0),
    "rule": (layout.RULE, 0),
    "space": (layout.SPACE, 0),
    "memo": (layout.MEMO, 0),
    "memo_settings": (layout.MEMO_SETTINGS, 0),
    "memo_counts": (layout.MEMO_COUNTS, 0),
    "python": (layout.PYTHON_LAYOUT, 0),
    "copy_head": (layout.COPY_HEAD, 0),
    "threshold_key": (layout.THRESHOLD_KEY, 0),
    "threshold": (layout.THRESHOLD, 0),
    "outlier": (layout.OUTLIER, 0),
    "waker": (layout.WAKER, 0),
    "wake": (layout.WAKE, 0),
    "object": (layout.OBJECT, 0),
    "storm_key": (layout.STORM_KEY, 0),
    "storm": (layout.STORM, 0),
    "scanned_task": (layout.SCANNED_TASK, 0),
    "scanned_stack": (layout.SCANNED_STACK_LAYOUT, 0),
}
"""Each struct that user space reads or writes, and how it is unpacked."""
_NUMBER_BYTES = {"Q": 8, "q": 8, "I": 4, "i": 4, "H": 2, "h": 2, "B": 1}


def fields_of(struct_name: str) -> list[str]:
    """Return the struct's field names, in the order of the header."""
    found = re.search(rf"^struct {struct_name} \{{(.*?)^\}};", _header(), re.MULTILINE | re.DOTALL)
    assert found, f"no struct {struct_name} in offcpu.h"
    return re.findall(r"(\w+)(?:\[[^]]*\])?;", found[1])


def _header() -> str:
    """Return offcpu.h without its comments."""
    return re.sub(r"/\*.*?\*/", "", (paths.bpf() / "offcpu.h").read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Return gcc's sizes, offsets and constants.

    Keys are `struct sizeof`, `struct.field offset`, `struct.field size`, and the names of constants.
    """
    if not shutil.which("gcc"):
        pytest.skip("no gcc: sudo apt install gcc libc6-dev")
    says = [f'say("{name} sizeof", sizeof(struct {name}));' for name in FORMATS]
    for name in FORMATS:
        for field in fields_of(name):
            says.append(f'say("{name}.{field} offset", offsetof(struct {name}, {field}));')
            says.append(f'say("{name}.{field} size", sizeof(((struct {name} *)0)->{field}));')
    says += [f'say("{name}", {name});' for name in constants()]
    says += [f'say("{name} sizeof", sizeof(struct {name}));' for name in ("link", "record")]
    says += [f'say("lane {ns}", lane_of({ns}ull));' for ns in LANES_OF]
    source = f"""
        #include <stddef.h>
        #include <stdint.h>
        #include <stdio.h>
        typedef uint8_t u8;
        typedef uint16_t u16;
        typedef int16_t s16;
        typedef int32_t s32;
        typedef uint32_t u32;
        typedef uint64_t u64;
        typedef int64_t s64;
        #include "{paths.bpf() / "offcpu.h"}"
        static void say(const char *what, u64 value) {{ printf("%s=%llu\\n", what, (unsigned long long)value); }}
        int main(void) {{ {" ".join(says)} return 0; }}
    """
    program = tmp_path_factory.mktemp("layout") / "layout"
    subprocess.run(["gcc", "-o", program, "-x", "c", "-"], input=source.encode(), check=True, timeout=60)
    lines = subprocess.run([program], capture_output=True, check=True, timeout=10).stdout.decode().splitlines()
    return {what: int(value) for what, value in (line.split("=") for line in lines)}


LANES_OF = [0, 1, 511, 512, 513, 1023, 1024, *(1 << n for n in range(11, 64)), *((1 << n) - 1 for n in range(11, 65))]
"""Every boundary between two lanes, and its neighbors."""


def constants() -> list[str]:
    """Return the names of constants defined on both sides."""
    names = set(re.findall(r"^#define ([A-Z]\w+) +(?!asm)\S", _header(), re.MULTILINE))
    for values in re.findall(r"^enum \w+ \{(.*?)\};", _header(), re.MULTILINE | re.DOTALL):
        names.update(re.findall(r"([A-Z]\w+)", values))
    return sorted(names)


@pytest.mark.parametrize("name", FORMATS)
def test_every_field_is_unpacked_from_where_gcc_puts_it(name: str, measured: dict[str, int]) -> None:
    form, at = FORMATS[name]
    assert form.size == measured[f"{name} sizeof"]
    steps = step_bytes(form)
    for field in fields_of(name):
        assert measured[f"{name}.{field} offset"] == at, field
        end = at + measured[f"{name}.{field} size"]
        while at < end:
            at += next(steps)
        assert at == end, f"{field} ends inside a number of the format"
    assert at == form.size
    assert list(steps) == [], "the format has more than the struct"


def step_bytes(form: struct.Struct) -> Iterator[int]:
    """Yield the size of each number or text that `form` unpacks."""
    for count, code in re.findall(r"(\d*)([QqIiHhBs])", form.format):
        if code == "s":
            yield int(count)
        else:
            yield from [_NUMBER_BYTES[code]] * int(count or 1)


def test_record_fields_are_in_the_order_of_the_header() -> None:
    assert list(ThreadRecord._fields) == fields_of("thread")
    rows = {"thread": THREAD_ROW, "scanned_task": TASK_ROW}
    assert {name: fields_of(name) for name in rows} == {name: [*(row.names or ())] for name, row in rows.items()}
    assert [row.itemsize for row in rows.values()] == [FORMATS[name][0].size for name in rows]
    registers = list(ScannedStack._fields)
    assert [*(REGISTERS_ROW.names or ())] == registers
    assert [*(STACK_ROW.names or ())] == ["depth", "registers", "object", "sched", "frames"]
    assert fields_of("scanned_stack") == ["depth", *registers, "object", "sched", "frames"]
    assert STACK_ROW.itemsize == FORMATS["scanned_stack"][0].size
    assert list(ObjectRecord._fields) == fields_of("object")


def test_constants_agree_with_the_header(measured: dict[str, int]) -> None:
    known = {name: value for name, value in vars(layout).items() if name in constants() and isinstance(value, int)}
    assert known == {name: measured[name] for name in known}
    assert len(known) >= 15
    assert (measured["SCAN_BUFFER_0"], measured["SCAN_BUFFER_1"]) == layout.SCAN_BUFFERS
    assert len(layout.LOST_KINDS) == measured["LOST_KINDS"]
    assert [measured[f"LOST_{kind.upper()}"] for kind in layout.LOST_KINDS] == list(range(len(layout.LOST_KINDS)))


def test_storms_and_wake_ids_agree_with_the_header(measured: dict[str, int]) -> None:
    names = "NO_WAKE", "WAKE_LOST", "WAKE_SHORT", "WAKE_UNSEEN", "STORM"
    assert [measured[name] for name in names] == [getattr(wake, name) for name in names]
    assert measured["LINKS"] == wake.MOST_DEPTH - 1
    assert measured["wake.links size"] == layout.LINKS * measured["link sizeof"] == layout.LINKS * 3 * 8
    assert len(wake.RESERVED) == wake.FIRST_WAKE == measured["WAKE_NO_ROOM"], "BPF has none of the catalog's IDs"


def test_bpf_and_the_model_agree_on_histogram_lanes(measured: dict[str, int]) -> None:
    assert (measured["LANES"], measured["FIRST_EXPONENT"]) == (log2.LANES, log2.FIRST_EXPONENT)
    assert {ns: measured[f"lane {ns}"] for ns in LANES_OF} == {ns: log2.lane_of(ns) for ns in LANES_OF}


def test_a_record_in_task_storage_fits_into_1_kb(measured: dict[str, int]) -> None:
    """The kernel puts struct bpf_local_storage_elem before it, 72 bytes, and a struct llist_node before that."""
    assert measured["record sizeof"] == map_sizes.RECORD_BYTES <= 1024 - 72 - 8


def test_an_empty_scan_has_no_records() -> None:
    assert [len(part) for part in scan_of(b"")] == [0] * 6


def test_each_record_of_a_scan_is_parsed_whatever_follows_it() -> None:
    record = ThreadRecord._make([*range(1, 31), bytes(range(layout.HISTOGRAM_BYTES))])
    frames, more = [7, 8, *[0] * (layout.SHORT_FRAMES - 2)], [*range(layout.SCAN_FRAMES - layout.SHORT_FRAMES)]
    numbers = 2, 5, -1, *range(6), 11, 12, 13, *range(11), 14, 15
    end = bytes(layout.OBJECT.size), bytes(8 * layout.SCHED_FRAMES), struct.pack(f"={layout.SHORT_FRAMES}Q", *frames)
    thread, stack = layout.THREAD.pack(*record), layout.SCANNED_STACK_LAYOUT.pack(*numbers, *end)
    data = b""
    deep = struct.pack(f"={len(more)}Q", *more)
    for tid, flags in enumerate((0, 2, 4, 6 | layout.SCANNED_DEEP, 0, 6)):
        numbers_of_task = *[1 << 40] * 9, 7, tid, 1, flags | layout.SCANNED_RUNNABLE, 0, 0, 0, 0
        data += layout.SCANNED_TASK.pack(*numbers_of_task, b"sh") + thread * bool(flags & 2) + stack * bool(flags & 4)
        data += deep * bool(flags & layout.SCANNED_DEEP)
    scan = scan_of(data)
    assert scan.tasks["tid"].tolist() == [0, 1, 2, 3, 4, 5]
    assert {*scan.tasks["comm"].tolist()} == {b"sh"}
    assert (scan.of_threads.tolist(), scan.of_stacks.tolist()) == ([1, 3, 5], [2, 3, 5])
    assert [*map(record_of, scan.threads)] == [record] * 3
    assert scan.stacks["depth"].tolist() == [2, 2, 2]
    assert scan.stacks["frames"].tolist() == [frames] * 3
    assert {at: one.tolist() for at, one in scan.deep_frames.items()} == {1: more}
    of_last = stack_of(scan.stacks["registers"][2:])
    assert of_last == (5, -1, (0, 1, 2, 3, 4, 5), 11, 12, 13, tuple(range(11)), 14, 15)


@pytest.mark.parametrize("spread", [1, 3])
def test_rows_of_a_scan_are_chosen_and_joined_with_all_their_fields(spread: int) -> None:
    random = np.random.default_rng(1)
    words = random.integers(0, 1 << 63, 60 * spread * TASK_ROW.itemsize // 8, np.int64)
    rows = words.view(TASK_ROW)[::spread]
    at, mask = np.array([5, 0, 5, 59]), random.random(60) < 0.5

    assert chosen(rows, at).tolist() == [rows[number].tolist() for number in at]
    assert chosen(rows, mask).tolist() == [row.tolist() for row, is_chosen in zip(rows, mask, strict=True) if is_chosen]
    assert joined((rows, rows[:0], rows[7:])).tolist() == [*rows.tolist(), *rows[7:].tolist()]


def test_a_bpf_histogram_reads_as_the_models_number() -> None:
    lanes = [0] * log2.LANES
    lanes[log2.lane_of(10_000_000)] = 23
    raw = struct.pack(f"={log2.LANES}Q", *lanes)
    assert log2.slots(int.from_bytes(raw, "little")) == [(8_388_608, 23)]


def test_offcpu_c_and_its_reader_name_the_same_maps() -> None:
    text = inline_includes(paths.bpf() / "offcpu.c")
    made = set(re.findall(r"^BPF_\w+\((?:\"\w+\", [^,]+, [^,]+, )?(\w+)", text, re.M))
    assert {*layout.SIZES, *layout.UNWIND_SIZES} <= made
