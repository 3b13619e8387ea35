"""Programs in C that sleep or spin forever, and a clock for other programs."""

from collections.abc import Mapping
from pathlib import Path

from tests.kernel import programs

_OPTIONS = ("-D_GNU_SOURCE", "-pthread", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin")

CLOCK = r"""
#include <sys/syscall.h>
#include <time.h>
static long ns_of(int clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
static long now_ns(void) { return ns_of(CLOCK_MONOTONIC); }
static void spin_ms(long ms)
{
	for (long until = ns_of(CLOCK_THREAD_CPUTIME_ID) + ms * 1000000; ns_of(CLOCK_THREAD_CPUTIME_ID) < until;)
		;
}
"""
SLEEPS = (
    CLOCK
    + r"""
int main(void)
{
	static const struct timespec long_time = {1000, 0};
	next();
	tell("asleep", (void *)now_ns());
	puts("ready");
	fflush(stdout);
	syscall(SYS_nanosleep, &long_time, 0);
	return 0;
}
"""
)
"""Prints the time when it falls asleep forever."""
SPINS = CLOCK + "int main(void) { next(); for (;;) ; }"


def build_all(directory: Path, sources: Mapping[str, str]) -> Path:
    """Compile programs into a directory, and return it."""
    for name, source in sources.items():
        programs.build(directory / name, source, *_OPTIONS)
    return directory
