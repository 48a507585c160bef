/* store.h - the broker's part in the host store: a partition for every worker slot, made once, and who gets which descriptor.
 *
 * The broker reads and writes no block.  It makes the partitions, hands each worker its own to write and those of the other workers
 * of the same model to read, and raises the epoch of one whose worker ended by its own fault (include/partition.h). */
#ifndef STORE_H
#define STORE_H

#include "supervisor.h"

/* Make partitions of bytes / n_workers each and fill store, store_fds and n_store_fds of workers [n_workers].  Nothing for 0
 * bytes.  If the machine has no room for them, the log says so and there is no store. */
void store_open(struct worker *workers, uint32_t n_workers, uint64_t bytes, uint64_t boot_id, const uint64_t secret[2]);
void store_close(struct worker *workers, uint32_t n_workers);

#endif
