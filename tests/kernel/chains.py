"""Programs that wait 23 times at the end of a known call chain.

Then they wait once more until the test ends. Each is built once, in the directory that it is given, and prints `ready`
before its waits and after them.
"""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.kernel.programs import STAND

WAITS = 23

_LEAF = r"""
#include <time.h>
#define KEPT __attribute__((noinline, noclone))
#define BEHIND __asm__ volatile("" ::: "memory") /* so that no call is a tail call */
static const struct timespec pause_ = {0, 4000000};
KEPT void gamma_(void) {
    do {
        for (int i = 0; i < 23; i++) { nanosleep(&pause_, 0); BEHIND; }
    } while (next());
}
"""
_CHAIN = r"""
KEPT int beta(int n) { gamma_(); BEHIND; return n + 1; }
KEPT int alpha(int n) { int m = beta(n + 1); BEHIND; return m; }
int main(int count, char **words) { next(); count = alpha(count); BEHIND; return count; }
"""
_ALIGNED = r"""
#include <alloca.h>
#include <string.h>
KEPT int beta(int n) {
    volatile char room[64] __attribute__((aligned(64)));
    volatile char *more = alloca(100 * n);
    room[n] = more[n] = 1;
    gamma_(); BEHIND;
    return room[n] + more[n];
}
KEPT int alpha(int n) {
    volatile char room[200] __attribute__((aligned(128)));
    room[n] = 2;
    return beta(n + 1) + room[n];
}
int main(int count, char **words) {
    volatile char *room = alloca(1000 * count);
    next(); room[count] = alpha(count); BEHIND; return room[count];
}
"""
_DEEP = r"""
KEPT int down(int n) { if (n) n = down(n - 1); else gamma_(); BEHIND; return n + 1; }
int main(int count, char **words) { next(); return down(200); }
"""
_NEARLY_TOO_DEEP = _DEEP.replace("200", "100")
_LARGE = r"""
KEPT int beta(int n) { gamma_(); BEHIND; return n + 1; }
KEPT int alpha(int n) { volatile char room[100000]; room[n * 40000] = 1; n = beta(n + 1); return n + room[n]; }
KEPT int alpha_2(int n) { volatile char room[30000]; room[n * 10000] = 1; n = alpha(n); return n + room[n]; }
int main(int count, char **words) { next(); count = alpha_2(count); BEHIND; return count; }
"""
_THREAD = r"""
#include <pthread.h>
#include <sys/syscall.h>
KEPT int beta(int n) { gamma_(); BEHIND; return n + 1; }
KEPT int alpha(int n) { int m = beta(n + 1); BEHIND; return m; }
static void *run(void *of) {
    tell("tid", (void *)syscall(SYS_gettid)); next(); alpha(3); BEHIND; return of;
}
int main(void) { pthread_t thread; pthread_create(&thread, 0, run, 0); pthread_join(thread, 0); return 0; }
"""
_SIGNAL = r"""
#include <signal.h>
#include <stdlib.h>
static int number;
KEPT void handler(int n) { if (n == SIGUSR1) gamma_(); BEHIND; }
KEPT int beta(int n) { if (n) kill(getpid(), SIGUSR1); BEHIND; return n; }
KEPT int alpha(int n) { int m = beta(n); BEHIND; return m + number; }
int main(int count, char **words) {
    stack_t other = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaltstack(&other, 0);
    sigaction(SIGUSR1, &action, 0);
    next(); count = alpha(count); BEHIND; return count;
}
"""
_FAULT = r"""
#include <signal.h>
KEPT void handler(int n) { gamma_(); BEHIND; }
KEPT int beta(volatile int *at) { return *at + 1; }
KEPT int alpha(int n) { int m = beta((void *)(long)(n - 1)); BEHIND; return m; }
int main(int count, char **words) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGSEGV, &action, 0);
    next(); return alpha(count);
}
"""
_EXCEPTION = r"""
#include <stdexcept>
struct Base { virtual KEPT int wait(int n) = 0; virtual ~Base() {} };
struct Derived : Base { KEPT int wait(int n) override { gamma_(); BEHIND; return n + 1; } };
struct Guard {
    Base &base;
    KEPT ~Guard() { base.wait(1); BEHIND; }
};
KEPT void thrower(int n) { if (n) throw std::runtime_error("so"); }
KEPT void beta(Base &base, int n) { Guard guard{base}; thrower(n); BEHIND; }
KEPT int alpha(Base &base, int n) { try { beta(base, n); } catch (std::exception &e) { return 2; } return n; }
int main(int count, char **words) { Derived derived; next(); count = alpha(derived, count); BEHIND; return count; }
"""
_CATCH = _EXCEPTION.replace("Guard guard{base};", "").replace("return 2;", "n = base.wait(n); BEHIND;")
_PLUGIN_HOST = r"""
#include <dlfcn.h>
KEPT int alpha(const char *path) {
    void (*run)(void (*)(void)) = dlsym(dlopen(path, RTLD_LAZY), "in_library");
    run(gamma_); BEHIND;
    return 1;
}
int main(int count, char **words) {
    nanosleep(&pause_, 0);
    next(); count = alpha(words[1]); BEHIND; return count;
}
"""
_PLUGIN = r"""
void in_library(void (*wait)(void)) { wait(); __asm__ volatile(""); }
"""
_TAKEN_PLACE = r"""
#include <dlfcn.h>
KEPT void once(void) { for (int i = 0; i < 23; i++) { nanosleep(&pause_, 0); BEHIND; } }
KEPT void alpha(const char *path, int rounds) {
    void *library = dlopen(path, RTLD_NOW);
    void (*in_library)(void (*)(void)) = dlsym(library, "in_library");
    tell(path, in_library);
    while (rounds--) { next(); in_library(once); BEHIND; }
    dlclose(library);
}
int main(int count, char **words) { alpha(words[1], 2); alpha(words[2], 1000); BEHIND; return 0; }
"""
_OF_SIZE = r"""
.text
.globl in_library
.type in_library, @function
in_library:
.cfi_startproc
    sub $%(size)d, %%rsp
.cfi_adjust_cfa_offset %(size)d
    movq $0, %(zero)d(%%rsp)
    call *%%rdi
    add $%(size)d, %%rsp
.cfi_adjust_cfa_offset -%(size)d
    ret
.cfi_endproc
.size in_library, . - in_library
.section .note.GNU-stack
"""
_LAZY = r"""
extern int resolved_late(int);
KEPT int beta(int n) { n = resolved_late(n); BEHIND; return n + 1; }
KEPT int alpha(int n) { int m = beta(n + 1); BEHIND; return m; }
int main(int count, char **words) { next(); count = alpha(count); BEHIND; return count; }
"""
_RESOLVER = r"""
static int body(int n) { return n; }
static KEPT void *resolver(void) { gamma_(); BEHIND; return body; }
int resolved_late(int) __attribute__((ifunc("resolver")));
"""
_JIT = r"""
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
static int n_calls;
KEPT void beta(void (*code)(void)) { code(); BEHIND; n_calls++; }
KEPT void alpha(void (*code)(void)) { beta(code); BEHIND; n_calls++; }
int main(int count, char **words) {
    /* push rbp; mov rbp, rsp; mov rax, gamma_; call rax; pop rbp; ret */
    unsigned char linked[] = "\x55\x48\x89\xe5\x48\xb8........\xff\xd0\x5d\xc3";
    /* sub rsp, 40; mov rax, gamma_; call rax; add rsp, 40; ret */
    unsigned char frameless[] = "\x48\x83\xec\x28\x48\xb8........\xff\xd0\x48\x83\xc4\x28\xc3";
    /* push rbp; mov rbp, rsp; lea rax, 1f; push rax; jmp 2f; 1: pop rbp; ret; 2: as linked */
    unsigned char jumps[] = "\x55\x48\x89\xe5\x48\x8d\x05\x06\0\0\0\x50\xe9\x02\0\0\0\x5d\xc3"
                            "\x55\x48\x89\xe5\x48\xb8........\xff\xd0\x5d\xc3";
    unsigned char *code = *words[1] == 'l' ? linked : *words[1] == 'j' ? jumps : frameless;
    void *target = gamma_, *at = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code + (code == jumps ? 25 : 6), &target, sizeof(target));
    memcpy(at, code, code == jumps ? sizeof(jumps) : code == linked ? sizeof(linked) : sizeof(frameless));
    tell("jit", at);
    next(); alpha(at); BEHIND; return n_calls;
}
"""
_RUST = r"""
use std::io::{Read, Write};
#[inline(never)] fn next() -> bool {
    println!("ready"); std::io::stdout().flush().unwrap();
    let mut one = [0u8; 1]; std::io::stdin().read(&mut one).unwrap() == 1
}
#[inline(never)] fn gamma(n: u64) -> u64 {
    loop {
        for _ in 0..std::hint::black_box(23) { std::thread::sleep(std::time::Duration::from_millis(4)); }
        if !next() { return std::hint::black_box(n) }
    }
}
#[inline(never)] fn beta(n: u64) -> u64 { let boxed = vec![gamma(n + 1)]; std::hint::black_box(boxed)[0] }
#[inline(never)] fn alpha(run: &dyn Fn(u64) -> u64) -> u64 { std::hint::black_box(run(3)) + 1 }
fn main() { next(); std::hint::black_box(alpha(&|n| std::hint::black_box(beta(n)))); }
"""
_GO = r"""
package main
import ("fmt"; "os"; "runtime"; "syscall")
//go:noinline
func next() bool {
    os.Stdout.WriteString("ready\n")
    n, _ := syscall.Read(0, make([]byte, 1))
    return n == 1
}
//go:noinline
func gamma(n int) int {
    pause := syscall.Timespec{Nsec: 4000000}
    for {
        for i := 0; i < 23; i++ { syscall.Nanosleep(&pause, nil) }
        if !next() { return n }
    }
}
//go:noinline
func beta(n int) int { room := [100]int{}; room[n] = gamma(n); return room[n] + n }
//go:noinline
func alpha(n int) int { return beta(n) + 1 }
func main() {
    runtime.LockOSThread()
    fmt.Printf("tid %x\n", syscall.Gettid())
    next()
    alpha(3)
}
"""
BEGINNINGS = frozenset({"_start", "__clone3", "clone3", "__clone", "clone", "runtime.goexit.abi0", "runtime.main"})


@dataclass(frozen=True)
class Chain:
    """One program, and what its stacks look like."""

    make: Callable[[Path, Path], None]
    """Builds the program; arguments are (directory, program)."""
    path: Sequence[str] = ("gamma_", "beta", "alpha", "main")
    """The program's own functions, leaf first."""
    words: Sequence[str] = ()
    """Command-line arguments; {} stands for the directory."""
    end: str = ""
    is_unsure: bool = False
    needs: Sequence[str] = ("gcc",)
    """The commands that build it."""

    def missing(self) -> str:
        """Return a command that is needed but not installed, or an empty string."""
        return next((name for name in self.needs if not found(name)), "")


_BARE = ("-O2", "-fomit-frame-pointer")


def found(name: str) -> str | None:
    """Return the path of a command, also if it is one of rustup's, which are not on PATH."""
    return shutil.which(name) or shutil.which(name, path="/root/.cargo/bin")


def ran(*command: str | Path, source: str = "") -> None:
    done = subprocess.run([str(one) for one in command], input=source.encode(), capture_output=True, timeout=100)
    assert not done.returncode, f"{command}: {done.stderr.decode()}"


def _c(
    directory: Path, program: Path, *, source: str, flags: Sequence[str], compiler: str = "gcc", language: str = "c"
) -> None:
    ran(
        *(found(compiler) or compiler, "-w", "-D_GNU_SOURCE", "-fno-optimize-sibling-calls", "-pthread"),
        *(*flags, "-o", program, "-x", language, "-"),
        source=STAND + _LEAF + source,
    )


def c(*flags: str, source: str = _CHAIN, compiler: str = "gcc", language: str = "c") -> Callable[[Path, Path], None]:
    return partial(
        _c, source=source, flags=flags or ("-O2", "-fomit-frame-pointer"), compiler=compiler, language=language
    )


def _stripped(directory: Path, program: Path) -> None:
    twin = program.with_name(f"{program.name}.full")
    _c(directory, twin, source=_CHAIN, flags=_BARE)
    ran("strip", "-o", program, twin)


def _with_library(directory: Path, program: Path, *, source: str, library: str, links: bool) -> None:
    beside = directory / f"{program.name}.so"
    ran("gcc", "-w", "-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o", beside, "-x", "c", "-", source=library)
    flags = ("-O2", "-rdynamic", f"-Wl,-rpath,{directory}", "-Wl,-z,lazy")
    ran(
        *(
            "gcc",
            "-w",
            "-D_GNU_SOURCE",
            *flags,
            "-o",
            program,
            "-x",
            "c",
            "-",
            "-x",
            "none",
            *((beside,) if links else ()),
        ),
        source=STAND + _LEAF + source,
    )


def two_of_one_place(directory: Path) -> list[Path]:
    """Build a program and two libraries that it calls from the very same address in turn.

    The libraries differ only in the size of a frame, so the second one's stack has no callers under the rules of the
    first.
    """
    found = [directory / "taken-place", directory / "first.so", directory / "second.so"]
    ran(*("gcc", "-w", "-D_GNU_SOURCE", *_BARE, "-o", found[0], "-x", "c", "-"), source=STAND + _LEAF + _TAKEN_PLACE)
    for library, size in zip(found[1:], (56, 88), strict=True):
        source = _OF_SIZE % {"size": size, "zero": 56 if size == 88 else 48}
        ran("gcc", "-shared", "-o", library, "-x", "assembler", "-", source=source)
    return found


def _rust(directory: Path, program: Path, *, strips: bool) -> None:
    source = directory / f"{program.name}.rs"
    source.write_text(_RUST)
    twin = program.with_name(f"{program.name}.full")
    ran(found("rustc") or "", "--crate-name", "chain", "-O", "-o", twin, source)
    ran("strip" if strips else "cp", *(("-o", program, twin) if strips else (twin, program)))


def _go(directory: Path, program: Path, *, flags: Sequence[str]) -> None:
    source = directory / f"{program.name}.go"
    source.write_text(_GO)
    for name, more in ((program, flags), (program.with_name(f"{program.name}.full"), ())):
        ran("env", f"GOCACHE={directory}/go-cache", "GO111MODULE=off", "go", "build", *more, "-o", name, source)


_RUST_PATH = ("chain::gamma", "chain::beta", "chain::alpha", "chain::main", "main")
_GO_PATH = ("main.gamma", "main.beta", "main.alpha", "main.main", "runtime.main")
_SIGNAL_PATH = ("gamma_", "handler", "beta", "alpha", "main")
_IN_LIBRARY = ("gamma_", "in_library", "alpha", "main")
_MUSL = {"compiler": "musl-gcc"}

CHAINS: Mapping[str, Chain] = {
    "frame pointers": Chain(c("-O2", "-fno-omit-frame-pointer")),
    **{f"-O{n}": Chain(c(f"-O{n}", "-fomit-frame-pointer")) for n in range(4)},
    "stripped": Chain(_stripped),
    "static": Chain(c(*_BARE, "-static")),
    "static-pie": Chain(c(*_BARE, "-static-pie")),
    "no-pie": Chain(c(*_BARE, "-no-pie")),
    "realigned": Chain(c(*_BARE, "-mstackrealign")),
    "aligned locals and alloca": Chain(c(*_BARE, source=_ALIGNED)),
    "100 callers": Chain(c(*_BARE, source=_NEARLY_TOO_DEEP), ("gamma_", *101 * ("down",), "main")),
    "200 callers": Chain(c(*_BARE, source=_DEEP), ("gamma_", "down"), end="too-deep"),
    "frames of 100 KB": Chain(c(*_BARE, source=_LARGE), ("gamma_", "beta", "alpha", "alpha_2", "main")),
    "a thread": Chain(c(*_BARE, source=_THREAD), ("gamma_", "beta", "alpha", "run")),
    "a signal, on another stack": Chain(c(*_BARE, source=_SIGNAL), _SIGNAL_PATH),
    "a fault": Chain(c(*_BARE, source=_FAULT), _SIGNAL_PATH),
    "C++, while an exception passes": Chain(
        c(*_BARE, source=_EXCEPTION, compiler="g++", language="c++"),
        ("gamma_()", "Derived::wait(int)", "Guard::~Guard()", "beta(Base&, int)", "alpha(Base&, int)", "main"),
        needs=("g++",),
    ),
    "C++, an exception is caught": Chain(
        c(*_BARE, source=_CATCH, compiler="g++", language="c++"),
        ("gamma_()", "Derived::wait(int)", "alpha(Base&, int)", "main"),
        needs=("g++",),
    ),
    "a library opened late": Chain(
        partial(_with_library, source=_PLUGIN_HOST, library=_PLUGIN, links=False), _IN_LIBRARY, ("{}.so",)
    ),
    "a symbol bound late": Chain(
        partial(_with_library, source=_LAZY, library=STAND + _LEAF + _RESOLVER, links=True),
        ("gamma_", "resolved_late", "_dl_fixup", "beta", "alpha", "main"),
    ),
    "a JIT's code with frame pointers": Chain(c(*_BARE, source=_JIT), words=("linked",), is_unsure=True),
    "a JIT's code that jumps": Chain(c(*_BARE, source=_JIT), words=("jumps",), is_unsure=True),
    "a JIT's code without": Chain(c(*_BARE, source=_JIT), words=("none",), is_unsure=True),
    "musl": Chain(c(*_BARE, **_MUSL), is_unsure=True, needs=("musl-gcc",)),
    "musl, -O0": Chain(c("-O0", **_MUSL), is_unsure=True, needs=("musl-gcc",)),
    "musl, static": Chain(c(*_BARE, "-static", **_MUSL), is_unsure=True, needs=("musl-gcc",)),
    "musl, a thread": Chain(
        c(*_BARE, source=_THREAD, **_MUSL), ("gamma_", "beta", "alpha", "run"), is_unsure=True, needs=("musl-gcc",)
    ),
    "musl, a signal": Chain(c(*_BARE, source=_SIGNAL, **_MUSL), _SIGNAL_PATH, is_unsure=True, needs=("musl-gcc",)),
    "Rust": Chain(partial(_rust, strips=False), _RUST_PATH, needs=("rustc",)),
    "Rust, stripped": Chain(partial(_rust, strips=True), _RUST_PATH, needs=("rustc",)),
    "Go": Chain(partial(_go, flags=()), _GO_PATH, needs=("go",)),
    "Go, stripped": Chain(partial(_go, flags=("-ldflags=-s -w",)), _GO_PATH, needs=("go",), is_unsure=True),
}
