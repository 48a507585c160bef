/* machine.h - how much of this machine the pool may use: the smallest of what the kernel, the affinity mask and the control groups
 * (version 2, then 1) allow, read once at start; and how soon the broker gets its turn on it. */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdbool.h>
#include <stdint.h>

/* CPUs, at least 1: affinity mask and cpu.max / cpu.cfs_quota_us of this process's group and all above it, rounded up. */
uint32_t machine_cpus(void);

/* Bytes of memory that could be taken now: MemAvailable, and what memory.max of the groups leaves. */
uint64_t machine_memory_available(void);

/* Ask for short turns, which come sooner: where the broker shares CPUs with its workers, a message would else wait for the rest of a worker's turn
 * (3 ms, several times).  It gets no more time than before.  For the calling thread and those it makes from then on; last: for this
 * thread alone; what it makes has turns of the usual length again (and niceness 0 if that was below).  From Linux 6.12 on; before, it changes nothing. */
void machine_short_turns(bool last);

#endif
