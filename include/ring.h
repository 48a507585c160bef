/* ring.h - single producer, single consumer, fixed slots of RING_SLOT_BYTES, in shared memory.
 *
 * struct ring_shared lives in the region and is written by both sides; struct ring_end is one process's private handle:
 * a pointer, the geometry it checked once, and its own copies of the positions.  Whatever the other side wrote is input:
 * a position that cannot be is ST_CORRUPT, after which the peer is to be dropped.
 *
 *   tail   written by the producer only    slots in [head, tail) hold messages
 *   head   written by the consumer only    slots before head may be reused
 *
 *   producer                                   consumer
 *   P1  load  head   acquire   <-- C3          C1  load  tail   acquire   <-- P3
 *   P2  write the slots                        C2  read the slots
 *   P3  store tail   seq_cst   --> C1, D4      C3  store head   seq_cst   --> P1
 *
 * P3 pairs with C1: who sees the new tail sees the whole message.  C3 pairs with P1: who sees the new head knows that the
 * reader has finished with the slots.  P3 is seq_cst, not release, because a doorbell hangs on it (doorbell.h, D1), and the
 * load in ring_peek that decides about sleeping is seq_cst (D4).  C3 and the load in ring_room are seq_cst too, so that
 * a producer may sleep until there is room with the same protocol the other way round.
 * Positions are 64 bits and only grow, so full and empty cannot be confused.  A message of several slots is published by one
 * store of tail: the consumer sees all of it or nothing. */
#ifndef RING_H
#define RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "limits.h"
#include "status.h"

struct ring_shared {
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) uint8_t slots[]; /* [n_slots][RING_SLOT_BYTES] */
};
_Static_assert(offsetof(struct ring_shared, slots) == 128, "layout is part of the region");

struct ring_end {
    struct ring_shared *shared;
    uint64_t n_slots;  /* power of two; checked at attach, never read again from shared memory */
    uint64_t mine;     /* the position this side writes */
    uint64_t seen;     /* the other side's position, as last loaded */
};

/* Bytes a ring of n_slots takes. */
static inline size_t ring_bytes(uint32_t n_slots)
{
    return sizeof(struct ring_shared) + (size_t)n_slots * RING_SLOT_BYTES;
}

/* Take one end of a ring that is all zero (fresh) or that the caller knows to be quiet.  n_slots is a power of two.
 * ST_OK, or ST_CORRUPT when the positions found there cannot be. */
MUST_CHECK enum status ring_attach_producer(struct ring_end *ret_end, struct ring_shared *r, uint32_t n_slots);
MUST_CHECK enum status ring_attach_consumer(struct ring_end *ret_end, struct ring_shared *r, uint32_t n_slots);

/* How many slots the producer may still fill.  ST_OK or ST_CORRUPT. */
MUST_CHECK enum status ring_room(struct ring_end *e, uint32_t *ret_slots);

/* Append n_slots consecutive slots from msg [n_slots * RING_SLOT_BYTES].  ST_OK, ST_AGAIN (no room), ST_CORRUPT. */
MUST_CHECK enum status ring_push(struct ring_end *e, const void *msg, uint32_t n_slots);

/* Copy the next slot without consuming it.  ST_OK, ST_AGAIN (empty), ST_CORRUPT. */
MUST_CHECK enum status ring_peek(struct ring_end *e, void *ret_slot);

/* Copy and consume n_slots.  ST_OK, ST_AGAIN (fewer are there: a broken rule if the first slot announced them), ST_CORRUPT. */
MUST_CHECK enum status ring_pop(struct ring_end *e, void *ret_msg, uint32_t n_slots);

#endif
