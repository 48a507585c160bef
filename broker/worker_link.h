/* worker_link.h - the broker's end of one region: requests in, events out, every number of the worker's checked.
 *
 * A link lives as long as one life of a worker.  The broker owns the region's slots: a request gets a slot when it is
 * dispatched and gives it back when the worker says DONE or ERROR; its generation is new each time, so that events still under way
 * for the last holder are known as such and dropped.
 *
 * The arena is used as a ring of bytes.  A record lies in one piece; its bytes are free again when the worker has taken the
 * ring slot that named it:
 *
 *        head                     tail                  records are freed in the order they were written;
 *         v                        v                    one that does not fit before the end starts at 0 again
 *   [.....rrrrrrrr|rrrr|rrrrrrrrrrr.................]
 *
 * What the worker writes is input.  An impossible slot, generation, length, count or order gives ST_CORRUPT: the caller kills
 * that worker.  What belongs to a request (index of a token, number of a choice) is checked by its owner, in events.c. */
#ifndef WORKER_LINK_H
#define WORKER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"
#include "span.h"
#include "work.h"

enum { LINK_NO_REQUEST = 0xFFFFFFFFu };

struct link_slot {
    uint32_t generation; /* of the last holder */
    uint32_t request;    /* the broker's number of the request, or LINK_NO_REQUEST */
    uint32_t flags;      /* SLOT_CANCEL, SLOT_PAUSE as last told */
};

struct link_record {     /* a record on its way: where it ends, and the ring position that frees it */
    uint64_t ring_position, arena_end;
};

struct worker_link {
    struct region region;
    bool open;
    int memory, bells[2];
    int control[2];      /* 0 is the broker's end; 1 is the worker's, closed after the start */
    uint32_t n_held;     /* slots in use */
    struct link_slot slots[REGION_SLOTS];
    uint64_t arena_head, arena_tail; /* positions that only grow; modulo arena_bytes they are offsets */
    struct link_record on_way[REQUEST_RING_SLOTS];
    uint64_t on_way_head, on_way_tail;
    uint64_t reserved_at;            /* arena position of the record between reserve and commit */
    uint8_t event[EVENT_SLOTS_MAX * RING_SLOT_BYTES];
};

struct link_event {
    struct work_event head;
    struct span payload;  /* in the link's buffer until the next call */
    uint32_t request;     /* of the slot; LINK_NO_REQUEST for READY and FAILED, and for events of a request that holds it no more */
};

/* ST_OK, ST_NOMEM, ST_SYSTEM.  l may be uninitialised. */
MUST_CHECK enum status worker_link_open(struct worker_link *l, uint32_t worker_slot, uint32_t life, uint64_t boot_id);
void worker_link_close(struct worker_link *l); /* idempotent */

/* Close the worker's end of the control pair: it is the worker's alone now. */
void worker_link_started(struct worker_link *l);

/* Room in the arena for a record of so many bytes (at most RECORD_BYTES_MAX), a free slot and a place in the ring.  Then the record
 * is written to *ret_at and worker_link_commit() sends it, with the session it is of (work.h; 0: none); a reservation
 * that is not committed costs nothing.
 * ST_OK, ST_FULL (try again when the worker has moved on), ST_CORRUPT. */
MUST_CHECK enum status worker_link_reserve(struct worker_link *l, uint64_t bytes, uint8_t **ret_at, uint32_t *ret_slot,
                                           uint32_t *ret_generation);
void worker_link_commit(struct worker_link *l, uint32_t slot, uint32_t request, uint64_t bytes, uint64_t session);
/* The worker need not keep anything for this session.  ST_OK, ST_FULL (try again), ST_CORRUPT. */
MUST_CHECK enum status worker_link_session_end(struct worker_link *l, uint64_t session);

/* Set the flags of a slot that is held (SLOT_CANCEL, SLOT_PAUSE; 0 resumes) and wake the worker. */
void worker_link_flag(struct worker_link *l, uint32_t slot, uint32_t flags);

/* The request of this slot has ended. */
void worker_link_release(struct worker_link *l, uint32_t slot);

/* Ask the worker to finish what it has and exit. */
MUST_CHECK enum status worker_link_drain(struct worker_link *l);

/* The next event.  ST_OK, ST_AGAIN, ST_CORRUPT. */
MUST_CHECK enum status worker_link_next(struct worker_link *l, struct link_event *ret_event);

/* A checked copy of the worker's card: strings end within their fields and are UTF-8.  ST_OK or ST_CORRUPT. */
MUST_CHECK enum status worker_link_card(const struct worker_link *l, struct region_card *ret_card);

struct worker_stats {
#define X(name) uint64_t name;
    REGION_STATS_LIST(X)
#undef X
    uint64_t batches[STEP_BATCH_BOUNDS + 1], batch_sum, times[STEP_TIME_BOUNDS + 1];
};
void worker_link_stats(const struct worker_link *l, struct worker_stats *ret_stats);

/* What the worker has written of the request in a slot that is held.  All 0 when it is of another one or just being changed. */
struct link_trace {
#define X(name) uint64_t name;
    REGION_TRACE_LIST(X)
#undef X
    struct link_chunk { uint64_t began_ns, took_ns, rows; } chunk[TRACE_CHUNKS];
};
void worker_link_trace(const struct worker_link *l, uint32_t slot, struct link_trace *ret_trace);

void worker_link_check(const struct worker_link *l); /* aborts at the first broken invariant */

#endif
