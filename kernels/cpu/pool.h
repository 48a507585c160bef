/* pool.h - the threads of one backend: all run the same function, and meet at barriers.
 *
 * Thread 0 is whoever calls pool_run().  The others wait between runs: they spin for a few tens of microseconds (a decode
 * step follows the one before at once), then sleep on a futex, so an idle worker uses no processor.  With one thread
 * nothing spins and nothing is atomic that matters.
 *
 * Inside a run: pool_barrier() makes everything written before it visible to all after it.  pool_take() hands out the n units
 * of a phase, each once: a thread gets those of its own equal share in ascending order (so it walks through memory as the
 * prefetcher likes it, and no two threads write one counter), then what is left of the others' shares.  Every phase starts
 * anew after a barrier. */
#ifndef POOL_H
#define POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

enum { THREADS_MAX = 256 };
#define POOL_NONE UINT32_MAX

struct pool;

typedef void pool_fn(void *arg, uint32_t thread);

/* ST_OK, ST_NOMEM, ST_SYSTEM.  1 <= n_threads <= THREADS_MAX.  pin: thread i stays on the i-th usable processor. */
MUST_CHECK enum status pool_new(uint32_t n_threads, bool pin, struct pool **ret_pool);
void pool_free(struct pool *p); /* NULL is fine */

void pool_run(struct pool *p, pool_fn *fn, void *arg);
void pool_barrier(struct pool *p);

/* The next unit for this thread of n, or POOL_NONE.  All threads of a phase give the same n. */
uint32_t pool_take(struct pool *p, uint32_t thread, uint32_t n);

/* Processors this process may use: affinity and the cgroup's quota, at least 1. */
uint32_t usable_processors(void);

#endif
