"""Guarded reads for tests of what reads other processes; none of these hangs."""

from offtop.kernel.guardedreads import GuardedReads

GUARDED = GuardedReads()
READS = GUARDED.channel(10)
READS.start()
