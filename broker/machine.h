/* machine.h - how much of this machine the pool may use: the smallest of what the kernel, the affinity mask and the control groups
 * (version 2, then 1) allow.  Read once at start. */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdint.h>

/* CPUs, at least 1: affinity mask and cpu.max / cpu.cfs_quota_us of this process's group and all above it, rounded up. */
uint32_t machine_cpus(void);

/* Bytes of memory that could be taken now: MemAvailable, and what memory.max of the groups leaves. */
uint64_t machine_memory_available(void);

#endif
