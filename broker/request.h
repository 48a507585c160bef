/* request.h - the table of requests: what the broker knows of each, and where it stands.
 *
 *            accept                dispatch                 STARTED
 *   FREE ------------> QUEUED ----------------> SENT ------------------> RUNNING
 *    ^                  |  ^                     |                          |
 *    |        refused,  |  +--- its worker died -+--------------------------+
 *    |        cancelled |                        | DONE, ERROR, or its worker died and nobody waits for it
 *    |                  v                        v
 *    +--- told --------OVER <--------------------+
 *
 * OVER is neither in the queue nor in a worker: where a request ends, and where it is for as long as it takes to enter it into the queue, when it
 * has just been made or its worker has died.
 *
 * `end` says how the request ended for its client (not yet, done, error); it is set once, in any phase.  A cancelled request has
 * its end at once but holds its worker's slot until the worker says that its blocks are released.  A place is free again when
 * the phase is OVER and the client has been told (or is gone).
 *
 * A request owns its record (record.h) and per choice the ids and text received.  Ids are kept to the end, for a takeover; text and
 * log-probabilities until the client took them.  All these bytes are counted in requests.bytes; at --pool-bytes no new request is taken. */
#ifndef REQUEST_H
#define REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "client.h"
#include "error.h"
#include "limits.h"
#include "record.h"
#include "sessions.h"
#include "span.h"
#include "status.h"
#include "trace.h"
#include "work.h"

enum request_phase { REQUEST_FREE, REQUEST_QUEUED, REQUEST_SENT, REQUEST_RUNNING, REQUEST_OVER };
enum request_end { END_NONE, END_DONE, END_ERROR };
enum { REQUEST_BUCKETS = 8192, NO_WORKER = -1, NO_KEY = -1 };

struct bytes {              /* a growing piece of memory that knows its use */
    uint8_t *at;
    size_t n, capacity;
};

struct choice {
    struct bytes ids;       /* int32 each, all since the beginning */
    uint32_t n_sent;        /* of them given to the client */
    struct bytes text;      /* received, not yet given to the client; all of it where the request has a key */
    size_t text_sent;       /* with a key: bytes of text, and of logprobs, that the client was given */
    size_t logprobs_sent;
    uint64_t released_bytes;/* text received in all: where a takeover goes on */
    struct bytes logprobs;  /* u32 length, then the payload of EVENT_TOKEN; one a token from n_sent on */
    enum finish_reason reason;
    int32_t stop_index;
    uint64_t last_token_ns; /* when its last token came; 0: none has */
    bool finished;
};

struct request {
    enum request_phase phase;
    enum request_end end;
    uint64_t number;        /* with the boot id: its name in accepted and in logs */
    uint32_t client;        /* CLIENT_NONE: gone, or told its end */
    uint8_t id[CLIENT_ID_BYTES_MAX];
    uint32_t id_bytes;
    uint32_t account, model;
    enum work_kind kind;
    bool batch, stream, logprobs, takeover_any, cache_off;
    uint8_t priority;           /* enum wire_priority */
    bool owes_accepted;     /* the accepted message has not gone out */
    bool owes_progress;     /* its state changed: tell with the next flush */
    bool started;           /* STARTED has come in this dispatch */
    bool was_started;       /* ... or in an earlier one: usage is known */
    bool paused;            /* SLOT_PAUSE is set */
    bool suspect;           /* runs alone: a worker died under it, by its own fault */
    uint32_t bad_deaths;    /* how many did */
    uint32_t n_before;      /* completion tokens when it was dispatched last */
    bool dirty;             /* on the list of those that have something for their client */

    int session;            /* its place in the table of sessions; SESSION_NONE */
    int64_t key;            /* its place in the table of idempotency keys; NO_KEY */
    uint64_t orphaned_ns;   /* with a key: when its client left; 0: it is there */

    struct record record;
    uint64_t prompt_tokens_estimate, charged; /* charged: what the fair queue takes for it */
    uint64_t arrived_ns, dispatched_ns, first_token_ns, deadline_ns; /* 0: not yet, or none */
    uint32_t prompt_tokens, cached_tokens, preemptions, takeovers;
    uint64_t prefill_ns;
    struct trace_times times;
    struct link_trace run;  /* what the last worker that let it go wrote of it */
    uint32_t ids_total;     /* TOKENIZE: how many will come */
    char numerics_id[NUMERICS_ID_BYTES]; /* of the worker of its first token; empty before */

    int worker;             /* SENT, RUNNING: its worker; OVER: the last one; NO_WORKER before */
    uint32_t slot;          /* SENT, RUNNING: in that worker's region */
    uint32_t n_choices, max_tokens; /* max_tokens as the broker enforces it: never 0 */
    struct choice *choices; /* [n_choices] */
    struct error error;     /* END_ERROR */
    uint32_t retry_after_ms;

    uint32_t client_next, client_prev; /* list of the client's */
    uint32_t bucket_next;   /* of its hash chain, or of the free list */
    uint32_t dirty_next;
};

struct requests {
    struct request *list;   /* [REQUESTS_MAX] */
    uint32_t *buckets;
    uint32_t free, n_live;
    uint32_t dirty_first, dirty_last;
    uint64_t next_number;
    uint64_t bytes;         /* of records and output */
};

MUST_CHECK enum status requests_init(struct requests *t); /* ST_OK, ST_NOMEM */
void requests_deinit(struct requests *t);

/* A place for a request of this client under its id, which is not in use, with n_choices empty choices.  Joins the client's
 * list.  Takes record (on ST_OK).  ST_OK, ST_FULL, ST_NOMEM. */
MUST_CHECK enum status requests_add(struct requests *t, struct clients *c, uint32_t client, struct span id, uint32_t n_choices,
                                    struct record *record, uint32_t *ret_request);

/* The client's request of this id; NO_REQUEST when there is none. */
uint32_t requests_find(const struct requests *t, uint32_t client, struct span id);

/* Join a client's list under this id, which is not in use there.  The request has no client. */
void requests_attach(struct requests *t, struct clients *c, uint32_t request, uint32_t client, struct span id);

/* Leave the client's list: nobody is told any more.  Harmless when it has left. */
void requests_detach(struct requests *t, struct clients *c, uint32_t request);

/* Free the place.  phase OVER, detached. */
void requests_remove(struct requests *t, uint32_t request);

void requests_mark_dirty(struct requests *t, uint32_t request);
uint32_t requests_take_dirty(struct requests *t); /* NO_REQUEST when there is none */

/* Append and count.  ST_OK, ST_NOMEM. */
MUST_CHECK enum status requests_append(struct requests *t, struct bytes *b, const void *at, size_t n);
/* Drop the first n bytes. */
void requests_consume(struct bytes *b, size_t n);
/* Drop all and give the memory back. */
void requests_clear(struct requests *t, struct bytes *b);

static inline uint32_t choice_n_ids(const struct choice *c)
{
    return (uint32_t)(c->ids.n / 4);
}

static inline const int32_t *choice_ids(const struct choice *c)
{
    return (const int32_t *)(const void *)c->ids.at;
}

static inline bool request_in_worker(const struct request *r)
{
    return r->phase == REQUEST_SENT || r->phase == REQUEST_RUNNING;
}

/* Bytes received that the client has not taken. */
uint64_t request_backlog(const struct request *r);
bool request_finished(const struct request *r); /* every choice has ended */
uint32_t request_completion_tokens(const struct request *r);
static inline struct span request_id(const struct request *r)
{
    return span_of(r->id, r->id_bytes);
}

void requests_check(const struct requests *t, const struct clients *c); /* aborts at the first broken invariant */

#endif
