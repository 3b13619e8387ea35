"""Guarded reads for tests that read other processes; none of these hangs."""

from offtop.kernel.procfs.guarded_reads import GuardedReads

GUARDED = GuardedReads()
READS = GUARDED.channel(10)
READS.start()
