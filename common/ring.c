/* ring.c - the two ends of a ring; ring.h draws it and names the steps P1..P3 and C1..C3.
 *
 * Each end keeps its own position in private memory and believes only that: the copy in the region is for the
 * other side to read. The other side's position is checked whenever it is loaded: it only grows, and it stays
 * within one ring of ours.  So a peer that writes nonsense gets ST_CORRUPT and never a copy outside the
 * slots.
 *
 * A producer that dies between P2 and P3 has written slots that nobody will look at: tail never moved. */
#include "ring.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

static bool is_power_of_two(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* Copy n_slots slots from position `from` on; in at most two pieces, for the ring's end may lie between. */
static void copy_out(const struct ring_end *e, uint64_t from, uint8_t *to, uint32_t n_slots)
{
    uint64_t first = from & (e->n_slots - 1);
    uint64_t n_until_end = e->n_slots - first;
    uint64_t n_head = n_slots < n_until_end ? n_slots : n_until_end;

    memcpy(to, e->shared->slots + first * RING_SLOT_BYTES, n_head * RING_SLOT_BYTES);
    memcpy(to + n_head * RING_SLOT_BYTES, e->shared->slots, (n_slots - n_head) * RING_SLOT_BYTES);
}

static void copy_in(struct ring_end *e, uint64_t to, const uint8_t *from, uint32_t n_slots)
{
    uint64_t first = to & (e->n_slots - 1);
    uint64_t n_until_end = e->n_slots - first;
    uint64_t n_head = n_slots < n_until_end ? n_slots : n_until_end;

    memcpy(e->shared->slots + first * RING_SLOT_BYTES, from, n_head * RING_SLOT_BYTES);
    memcpy(e->shared->slots, from + n_head * RING_SLOT_BYTES, (n_slots - n_head) * RING_SLOT_BYTES);
}

/* The consumer's head as the producer may believe it: not behind what was seen, not past our own tail. */
static enum status take_head(struct ring_end *e, uint64_t head)
{
    if (head - e->seen > e->mine - e->seen)
        return ST_CORRUPT;
    e->seen = head;
    return ST_OK;
}

/* The producer's tail as the consumer may believe it: not behind what was seen, at most one ring ahead of
 * our head. */
static enum status take_tail(struct ring_end *e, uint64_t tail)
{
    if (tail - e->mine > e->n_slots || tail - e->mine < e->seen - e->mine)
        return ST_CORRUPT;
    e->seen = tail;
    return ST_OK;
}

enum status ring_attach_producer(struct ring_end *ret_end, struct ring_shared *r, uint32_t n_slots)
{
    assert(is_power_of_two(n_slots));
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&r->head, memory_order_acquire);

    if (tail - head > n_slots)
        return ST_CORRUPT;
    *ret_end = (struct ring_end){.shared = r, .n_slots = n_slots, .mine = tail, .seen = head};
    return ST_OK;
}

enum status ring_attach_consumer(struct ring_end *ret_end, struct ring_shared *r, uint32_t n_slots)
{
    assert(is_power_of_two(n_slots));
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);

    if (tail - head > n_slots)
        return ST_CORRUPT;
    *ret_end = (struct ring_end){.shared = r, .n_slots = n_slots, .mine = head, .seen = tail};
    return ST_OK;
}

enum status ring_room(struct ring_end *e, uint32_t *ret_slots)
{
    /* P1; seq_cst, so that a producer may also sleep on "no room" by the doorbell protocol: C3 is its D1. */
    enum status st = take_head(e, atomic_load_explicit(&e->shared->head, memory_order_seq_cst));

    if (st != ST_OK)
        return st;
    *ret_slots = (uint32_t)(e->n_slots - (e->mine - e->seen));
    return ST_OK;
}

enum status ring_push(struct ring_end *e, const void *msg, uint32_t n_slots)
{
    assert(n_slots > 0);
    assert(n_slots <= e->n_slots);

    if (e->n_slots - (e->mine - e->seen) < n_slots) {
        enum status st = take_head(e, atomic_load_explicit(&e->shared->head, memory_order_acquire)); /* P1 */
        if (st != ST_OK)
            return st;
        if (e->n_slots - (e->mine - e->seen) < n_slots)
            return ST_AGAIN;
    }
    copy_in(e, e->mine, msg, n_slots); /* P2 */
    e->mine += n_slots;
    atomic_store_explicit(&e->shared->tail, e->mine, memory_order_seq_cst); /* P3, D1 */
    return ST_OK;
}

enum status ring_peek(struct ring_end *e, void *ret_slot)
{
    if (e->seen == e->mine) {
        /* C1, and D4 of the doorbell: the load that decides about sleeping has to be seq_cst. */
        enum status st = take_tail(e, atomic_load_explicit(&e->shared->tail, memory_order_seq_cst));
        if (st != ST_OK)
            return st;
        if (e->seen == e->mine)
            return ST_AGAIN;
    }
    copy_out(e, e->mine, ret_slot, 1);
    return ST_OK;
}

enum status ring_pop(struct ring_end *e, void *ret_msg, uint32_t n_slots)
{
    assert(n_slots > 0);

    if (n_slots > e->n_slots)
        return ST_CORRUPT; /* the count came from the other side */
    if (e->seen - e->mine < n_slots) {
        enum status st = take_tail(e, atomic_load_explicit(&e->shared->tail, memory_order_acquire)); /* C1 */
        if (st != ST_OK)
            return st;
        if (e->seen - e->mine < n_slots)
            return ST_AGAIN;
    }
    copy_out(e, e->mine, ret_msg, n_slots); /* C2 */
    e->mine += n_slots;
    atomic_store_explicit(&e->shared->head, e->mine, memory_order_seq_cst); /* C3 */
    return ST_OK;
}
