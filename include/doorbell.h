/* doorbell.h - wakes the consumer of a ring: an eventfd and a flag that says it sleeps.
 *
 * The consumer may sleep only if nobody can have pushed without noticing that it sleeps:
 *
 *   producer  D1 store tail (ring P3)          consumer  D3 store sleeping = 1
 *             D2 load  sleeping -> ring it               D4 load  tail -> sleep only if still empty
 *
 * All four are seq_cst, so they have one order.  If D4 misses the message, D4 < D1, hence D3 < D2, and the producer rings.
 * Release/acquire would not do: a store followed by a load of another variable may be reordered.
 *
 * The consumer's wait, always in this shape:
 *
 *     while (ring_pop(&ring, &msg, 1) == ST_OK) handle(&msg);
 *     doorbell_sleep_begin(&bell);                       D3
 *     if (ring_peek(&ring, &msg) == ST_AGAIN)            D4
 *         poll(... bell.fd ...);
 *     doorbell_sleep_end(&bell);                         clears the flag and the eventfd
 */
#ifndef DOORBELL_H
#define DOORBELL_H

#include <stdatomic.h>
#include <stdint.h>

struct doorbell_shared {
    _Alignas(64) _Atomic uint32_t sleeping; /* written by the consumer only */
};

struct doorbell {
    struct doorbell_shared *shared;
    int fd; /* eventfd, non-blocking; borrowed */
};

void doorbell_ring(struct doorbell *b);        /* D2: by the producer, after its push */
void doorbell_sleep_begin(struct doorbell *b); /* D3 */
void doorbell_sleep_end(struct doorbell *b);

#endif
