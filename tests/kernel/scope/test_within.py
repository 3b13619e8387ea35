"""Test --within.

Only waits inside one function count, however it is left, and its calls are timed.
"""

import json
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from offtop.errors import UsageError
from offtop.kernel import sandbox
from offtop.kernel.binary import functions
from offtop.kernel.bpf.program import Unwind
from offtop.kernel.scope.within import WatchedFunctions
from offtop.model.values import histogram as log2
from offtop.model.values.snapshot import Filters
from offtop.model.values.within import Calls
from tests import command
from tests.kernel import programs, watch
from tests.kernel.programs import Program
from tests.kernel.reads import READS
from tests.kernel.watch import MS, Watch

WAITS = r"""
#include <pthread.h>
#include <setjmp.h>
#include <string.h>
#define KEPT __attribute__((noinline, noclone, used))
static jmp_buf out;
static volatile int done;

static void doze(int ms) { usleep(1000 * ms); }
KEPT void handle(int ms) { doze(ms); asm volatile(""); }
KEPT void handle_again(int times) { doze(5); if (times > 1) handle_again(times - 1); doze(5); asm volatile(""); }
KEPT void handle_or_jump(int jumps) { doze(5); if (jumps) longjmp(out, 1); asm volatile(""); }
KEPT void handle_to_the_end(void) { doze(5); pthread_exit(0); }
KEPT void nothing(void) { }
asm(".type spin, @function\nspin: nop\n jne spin\n ret\n.size spin, . - spin\n");
asm(".type torn, @function\ntorn: test %edi, %edi\n js torn.cold\n1: mov $0xc3c3, %eax\n ret\n.size torn, . - torn\n"
    ".type torn.cold, @function\ntorn.cold: nop\n jmp 1b + 1\n.size torn.cold, . - torn.cold\n");
asm(".type worn, @function\nworn: test %edi, %edi\n js worn.cold\n ret\n.size worn, . - worn\n"
    ".type worn.cold, @function\nworn.cold: nop\n .byte 6\n ret\n.size worn.cold, . - worn.cold\n");
KEPT void finish(void) { doze(5); asm volatile(""); }
KEPT void hand_over(int ms) { doze(ms); finish(); }
KEPT void copied(int ms) { doze(ms); asm volatile(""); }
KEPT void copied_for_5(void) asm("copied.constprop.0");
KEPT void copied_for_5(void) { doze(5); asm volatile("nop"); }
KEPT void promoted(int ms) asm("promoted.llvm.4711");
KEPT void promoted(int ms) { doze(ms); asm volatile("nop\n nop"); }
#define CODE(name) asm(".type " name ", @function\n" name ": nop\n ret\n.size " name ", . - " name "\n")
CODE("copied.cold"); CODE("promoted.llvm.4711.cold"); CODE("shaken.isra.0"); CODE("shaken.isra.0.cold");
CODE("inlined.cold"); CODE("parted.part.0"); CODE("parted.part.0.cold");
CODE("twice.llvm.1"); CODE("twice.llvm.2"); CODE("_ZN4shop4sellEi"); CODE("_ZN4shop4sellEi.cold"); CODE("sell.cold");
KEPT int pick(int how) {
	switch (how) {
	case 1: return getpid();
	case 2: return getppid();
	case 3: return getuid();
	case 4: return getgid();
	case 5: return geteuid();
	case 6: return getegid();
	default: doze(how); return 0;
	}
}
static void *bystander(void *unused) { while (!done) doze(5); return 0; }
static void *ends_inside(void *unused) { handle_to_the_end(); return 0; }
static void *stays(void *unused) { handle(600000); return 0; }

static void make(char how)
{
	pthread_t other;
	switch (how) {
	case 'h':
		done = 0;
		pthread_create(&other, 0, bystander, 0);
		for (int i = 0; i < 23; i++) { handle(5); doze(3); }
		done = 1;
		pthread_join(other, 0);
		break;
	case 'a': for (int i = 0; i < 7; i++) { handle_again(3); doze(3); } break;
	case 'j': for (int i = 0; i < 8; i++) { if (!setjmp(out)) handle_or_jump(i % 2); doze(3); } break;
	case 'e':
		for (int i = 0; i < 5; i++) { pthread_create(&other, 0, ends_inside, 0); pthread_join(other, 0); doze(3); }
		break;
	case 'o': for (int i = 0; i < 9; i++) { hand_over(5); doze(3); } break;
	case 'c': for (int i = 0; i < 6; i++) { copied(5); copied_for_5(); copied_for_5(); promoted(5); doze(3); } break;
	case 'p': for (int i = 0; i < 10; i++) { pick(i % 6 + 1); pick(7); doze(3); } break;
	case 's': pthread_create(&other, 0, stays, 0); break;
	}
}
int main(void) { for (char how; (how = next());) make(how); return 0; }
"""
THROWS = r"""
static void doze(int ms) { usleep(1000 * ms); }
namespace shop { struct Cart {
	__attribute__((noinline)) void pay(int fails) { doze(5); if (fails) throw fails; asm volatile(""); }
	__attribute__((noinline)) void pay(int fails, int again) { pay(fails); doze(again); }
}; }
int main() {
	shop::Cart cart;
	while (next())
		for (int i = 0; i < 8; i++) {
			try { cart.pay(i % 2); } catch (int) { }
			doze(3);
			if (i > 100) cart.pay(0, i);
		}
	return 0;
}
"""


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.mktemp("within") / "offtop_waits", WAITS, "-O2", "-pthread")


@contextmanager
def within(program: Path, function: str, probe: str = "auto", mode: str = "offcpu") -> Generator[tuple[Watch, Program]]:
    """Run the program and watch it by its path."""
    with (
        programs.running([program]) as child,
        watch.watching(
            Filters(within=f"{program}:{function}"), probe=probe, mode=mode, unwind=Unwind("fp", cpu_pct=200)
        ) as live,
    ):
        yield live, child


def did(live: Watch, child: Program, what: bytes) -> tuple[Calls, int, int]:
    """Return the function's calls during one action, and all counted waits and their ns.

    The waits are those of all counted threads, without preempted ones.
    """
    live.tick()
    child.write(what)
    child.listen()
    window = live.tick()
    every = [totals for _, totals in window.each_thread()]
    return window.calls, sum(one.voluntary for one in every), sum(one.offcpu_ns for one in every)


@pytest.mark.kernel
@pytest.mark.parametrize("probe", ["auto", "switch"])
def test_only_waits_inside_the_23_calls_count(waits: Path, probe: str) -> None:
    """Waits outside do not count, nor do those of another thread.

    The same thread also sleeps outside, and another makes the same system call without the function.
    """
    with within(waits, "handle", probe) as (live, child):
        calls, count, ns = did(live, child, b"h")
        lost = live.last.lost.get("events", 0)
        threads = {key.tid for key, _ in live.tick().each_thread()}
    assert (calls.returned, calls.left, calls.now) == (23, 0, 0)
    assert count == 23 - lost
    assert (23 - lost) * 5 * MS <= ns == calls.offcpu_ns <= calls.total_ns
    assert calls.max_ns >= 5 * MS
    assert log2.count(calls.histogram) == 23
    assert calls.blocked_ns >= (23 - lost) * 4 * MS
    assert not threads


@pytest.mark.kernel
def test_a_recursive_function_is_one_call_from_first_entry_to_last_return(waits: Path) -> None:
    with within(waits, "handle_again") as (live, child):
        calls, count, ns = did(live, child, b"a")
    assert (calls.returned, calls.left) == (7, 0)
    assert count == 7 * 6
    assert ns >= 7 * 6 * 5 * MS
    assert calls.max_ns >= 6 * 5 * MS


@pytest.mark.kernel
def test_a_call_left_by_longjmp_counts_as_left_and_later_waits_as_outside(waits: Path) -> None:
    with within(waits, "handle_or_jump") as (live, child):
        calls, count, ns = did(live, child, b"j")
    assert (calls.returned, calls.left, calls.now) == (4, 4, 0)
    assert count == 8  # inside, of both kinds
    assert calls.offcpu_ns < ns  # the duration of a call that was left is unknown


@pytest.mark.kernel
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
def test_a_call_left_by_an_exception_counts_as_left_and_the_program_survives(tmp_path: Path) -> None:
    program = programs.build(tmp_path / "offtop_throws", THROWS, "-O1", language="c++")
    with within(program, "shop::Cart::pay(int)") as (live, child):
        calls, count, _ = did(live, child, b"t")
        again, *_ = did(live, child, b"t")
    assert (calls.returned, calls.left) == (again.returned, again.left) == (4, 4)
    assert count == 8


@pytest.mark.kernel
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
def test_functions_of_one_name_are_listed(tmp_path: Path) -> None:
    program = programs.build(tmp_path / "offtop_throws", THROWS, "-O1", language="c++")
    with pytest.raises(UsageError, match=r"2 functions pay: shop::Cart::pay\(int(, int)?\) \(0x"):
        WatchedFunctions(f"{program}:pay", (), READS)
    with pytest.raises(UsageError, match="2 functions"):
        WatchedFunctions(f"{program}:shop::Cart::pay", (), READS)
    for name in ("shop::Cart::pay(int, int)", "_ZN4shop4Cart3payEii"):
        watched = WatchedFunctions(f"{program}:{name}", (), READS)
        assert watched.functions[0].name == "shop::Cart::pay(int, int)"
        watched.close()


@pytest.mark.kernel
def test_a_gap_in_the_confinement_is_reported(waits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = WatchedFunctions(f"{waits}:hand_over", (), READS)
    watched.close()
    assert watched.notice == ""
    report_of = functions.report_of

    def without_landlock(child: sandbox.Sandbox, seconds: float) -> list[str]:
        return [*report_of(child, seconds), "Landlock (Function not implemented)"]

    monkeypatch.setattr(functions, "report_of", without_landlock)
    watched = WatchedFunctions(f"{waits}:hand_over", (), READS)
    watched.close()
    assert watched.notice.startswith(
        "--within read programs without Landlock (Function not implemented). To confine it: "
    )


@pytest.mark.parametrize("child", ["import time; time.sleep(60)", "import sys; sys.exit()"], ids=["hangs", "ends"])
def test_a_child_that_does_not_answer_is_left_behind(child: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "START", f"{child}; {sandbox.START}")
    monkeypatch.setattr(functions, "_BEGIN_S", 0.3)
    with pytest.raises(UsageError, match="could not be read completely"):
        WatchedFunctions("/bin/bash:main", (), READS)


@pytest.mark.kernel
def test_threads_that_exit_inside_are_forgotten(waits: Path) -> None:
    with within(waits, "handle_to_the_end") as (live, child):
        calls, count, _ = did(live, child, b"e")
    assert (calls.returned, calls.left, calls.now) == (0, 5, 0)
    assert count >= 5


@pytest.mark.kernel
def test_a_tail_call_is_outside(waits: Path) -> None:
    """hand_over ends with a jump to finish.

    Others call finish too, so a probe there would slow all of them.
    """
    watched = WatchedFunctions(f"{waits}:hand_over", (), READS)
    assert (watched.functions[0].elsewhere, len(watched.functions[0].ends)) == (1, 1)
    watched.close()
    with within(waits, "hand_over") as (live, child):
        calls, count, ns = did(live, child, b"o")
    assert (calls.returned, calls.left) == (9, 0)
    assert count == 9
    assert ns >= 9 * 5 * MS


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("function", "times", "taken"),
    [
        ("copied", 18, "copied, copied.constprop.0"),
        ("copied.constprop.0", 12, "copied.constprop.0"),
        ("promoted", 6, "promoted.llvm.4711"),
    ],
)
def test_copies_of_a_function_count_and_are_reported(waits: Path, function: str, times: int, taken: str) -> None:
    with within(waits, function) as (live, child):
        calls, count, ns = did(live, child, b"c")
        assert f"{taken} in {waits}; " in dict(live.source.about())["within"]
    assert (calls.returned, calls.left) == (times, 0)
    assert count == times
    assert ns >= times * 5 * MS


@pytest.mark.kernel
def test_a_switch_statement_is_no_exit(waits: Path) -> None:
    with within(waits, "pick") as (live, child):
        calls, count, _ = did(live, child, b"p")
    assert (calls.returned, calls.left) == (20, 0)
    assert count == 10


@pytest.mark.kernel
def test_a_call_in_progress_has_its_age(waits: Path) -> None:
    with within(waits, "handle") as (live, child):
        did(live, child, b"s")
        live.tick(after_s=0.1)
        window = live.tick(after_s=0.1)
        assert (window.calls.now, window.calls.returned) == (1, 0)
        waited_ns = sum(totals.offcpu_ns for _, totals in window.each_thread())
        assert waited_ns == window.span_ns < window.calls.oldest_ns


@pytest.mark.kernel
def test_a_call_from_before_is_unknown(waits: Path) -> None:
    with programs.running([waits]) as child:
        child.write(b"s")
        child.listen()
        with watch.watching(Filters(within=f"{waits}:handle"), unwind=Unwind("off")) as live:
            window = live.tick(after_s=0.05)
    assert not [*window.each_thread()]
    assert window.calls == Calls()


@pytest.mark.kernel
def test_with_a_process_filter_both_must_match(waits: Path) -> None:
    with programs.running([waits]) as child, programs.running([waits]) as stranger:
        filters = Filters(pids=(child.pid,), within=":handle")
        with watch.watching(filters, unwind=Unwind("off")) as live:
            calls, *_ = did(live, stranger, b"h")
            assert calls == Calls()
            calls, *_ = did(live, child, b"h")
            assert calls.returned == 23


@pytest.mark.kernel
def test_a_library_function_counts_in_processes_of_that_name(waits: Path, tmp_path: Path) -> None:
    stranger_s = Path(shutil.copy(waits, tmp_path / "stranger"))
    filters = Filters(within="offtop_waits:usleep")
    with programs.running([waits]) as child, programs.running([stranger_s]) as stranger:
        with watch.watching(filters, unwind=Unwind("off")) as live:
            assert live.last.filters.pids == (child.pid,)
            live.source.set_filters(replace(filters, min_ns=0))
            calls, *_ = did(live, stranger, b"a")
            assert calls == Calls()
            calls, count, ns = did(live, child, b"a")
            assert live.last.filters == replace(filters, min_ns=0, pids=(child.pid,))
        assert calls.returned == count == 7 * 7
        assert ns == calls.offcpu_ns
        library = next(
            line.split()[5] for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines() if "/libc" in line
        )
        named = Filters(pids=(stranger.pid,), within=f"{Path(library).name}:usleep")
        with watch.watching(named, unwind=Unwind("off")) as live:
            calls, *_ = did(live, stranger, b"a")
        assert calls.returned == 7 * 7


@pytest.mark.kernel
def test_with_wakers_only_waits_inside_count(waits: Path) -> None:
    with within(waits, "handle", mode="chain") as (live, child):
        calls, count, _ = did(live, child, b"h")
        sites = [key for key, totals in live.last.sites.items() if totals.waits]
    assert calls.returned == 23
    assert count == 23
    assert all(live.last.catalog.wake(site.wake).has_waker for site in sites)


@pytest.mark.variant
@pytest.mark.kernel
def test_recordings_and_exports_have_only_waits_inside(waits: Path, tmp_path: Path) -> None:
    function, file = f"{waits}:handle", str(tmp_path / "it.offtop")
    with programs.running([waits]) as child:
        child.write(b"s")
        child.listen()
        before = command.run("record", "-n", "3", "-d", "0.2", "-o", file, "--within", function, *command.QUICK)
        assert before.status == 0, before.err
        child.write(b"s")
        child.listen()
        none = command.run("export", "folded", "-n", "1", "-d", "0.2", "--within", function, *command.QUICK)
    assert (none.status, none.out) == (0, "")
    ticks = [json.loads(line) for line in command.run("replay", file, "--json").out.splitlines()]
    assert [tick["filters"]["within"] for tick in ticks] == [function] * len(ticks)
    assert [(tick["within"]["calls"], tick["threads"]) for tick in ticks] == [(0, [])] * len(ticks)


def test_an_unknown_function_is_refused_with_suggestions(waits: Path, tmp_path: Path) -> None:
    def why(text: str) -> str:
        with pytest.raises(UsageError) as refused:
            WatchedFunctions(text, (), READS)
        return str(refused.value)

    assert "names no function" in why("mysqld")
    assert "names no function" in why("mysqld:")
    assert "Give -p" in why(":handle")
    assert "there is no process, library or command offtop-nobody" in why("offtop-nobody:handle")
    assert "cannot be read" in why(f"{tmp_path}/nothing:handle")
    assert f"{waits} has no function handel. Is it handle" in why(f"{waits}:handel")
    assert "is a single instruction" in why(f"{waits}:nothing")
    assert "spin of" in (again := why(f"{waits}:spin")) and "jumps back to where it begins" in again
    assert "is data, not a function" in why(f"{waits}:done")
    assert "torn of" in (unreadable := why(f"{waits}:torn")) and "instructions that offtop cannot read" in unreadable
    assert "instructions that offtop cannot read" in why(f"{waits}:worn")
    assert f"{waits} imports usleep from a library" in why(f"{waits}:usleep")
    assert "no 64-bit program or library" in why(f"{__file__}:handle")
    assert "IFUNC" in why("libc.so.6:strlen")
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", str(stripped), str(waits)], check=True, timeout=30)
    assert "It is stripped: for more, install its debug symbols" in why(f"{stripped}:handle")


def test_a_function_fragment_is_never_probed(waits: Path) -> None:
    def taken(name: str) -> str:
        watched = WatchedFunctions(f"{waits}:{name}", (), READS)
        watched.close()
        return watched.functions[0].name

    def why(name: str) -> str:
        with pytest.raises(UsageError) as refused:
            WatchedFunctions(f"{waits}:{name}", (), READS)
        return str(refused.value)

    assert taken("shaken") == "shaken.isra.0"
    assert taken("sell") == taken("shop::sell") == taken("shop::sell(int)") == "shop::sell(int)"
    assert taken("parted.part.0") == "parted.part.0"
    assert "has no separate inlined: the compiler inlined it into the functions that call it. Name" in why("inlined")
    assert "except parted.part.0. Name that, or one of those" in why("parted")
    assert "2 functions twice: twice.llvm.1" in why("twice")
    assert "is code that a function jumps to, not a function. Name copied" in why("copied.cold")
    assert "is code that a function jumps to, not a function. Name shop::sell(int)" in why("_ZN4shop4sellEi.cold")


@pytest.mark.skipif(not shutil.which("go"), reason="there is no go")
def test_go_programs_are_refused(tmp_path: Path) -> None:
    go = Path(shutil.which("go") or "").resolve()
    with pytest.raises(UsageError, match="is a Go program"):
        WatchedFunctions(f"{go}:main.main", (), READS)
