/* block_mover.h - carries full blocks between the device and the host store: the shelf (prefix_cache.h) of a running worker.
 *
 *   save   own partition has it: note that it was used.  Another's has it: nothing to do, the store keeps one copy of a block as a
 *          rule.  Else a slot is taken in the own partition, and the device copies the block there; the slot counts
 *          when the copy is done, which may be some steps later.
 *   load   the block is copied out of the store into a buffer of our own, verified there, and only then copied to the device.
 *
 * Both have a budget of bytes a step, so that a full store costs every step a little and none a lot.  A copy needs no state
 * of its own in the KV pool: the backend orders it before whatever is submitted later.
 *
 * Threads: the step thread's.  Memory: all taken by block_mover_new(). */
#ifndef BLOCK_MOVER_H
#define BLOCK_MOVER_H

#include "backend.h"
#include "host_store.h"
#include "prefix_cache.h"

struct block_mover_options {
    struct host_store *store;        /* borrowed, like the two below */
    const struct backend_api *api;
    struct backend *backend;
    uint32_t block_bytes;
    uint64_t save_bytes_max;         /* a step; 0: 8 MiB.  One block always fits */
    uint64_t load_bytes_max;         /* a step; 0: 64 MiB */
};

struct block_mover; /* opaque */

/* ST_OK or ST_NOMEM. */
MUST_CHECK enum status block_mover_new(const struct block_mover_options *opt, struct block_mover **ret_mover);
void block_mover_free(struct block_mover *m); /* NULL is fine; copies under way are waited for, so before the backend is closed */

const struct block_shelf *block_mover_shelf(const struct block_mover *m);

/* A step begins: new budgets; copies that are done are accounted for.  ST_OK, or ST_SYSTEM: the device failed (now or in a save
 * or load since the last call), the worker ends. */
MUST_CHECK enum status block_mover_begin_step(struct block_mover *m);

#endif
