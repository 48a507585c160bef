/* worker.h - the loop of a worker: requests in from a region, steps, events out.
 *
 *     worker_pass:   new requests -> flags and deadlines -> plan -> step -> tokens out -> statistics
 *     worker_sleep:  until there is something to do
 *
 * The life of a request here:
 *
 *     ring -> PREPARING (with the tokenizer thread) -> RELEASING (text another worker owed) -> SCHEDULED -> gone
 *                 |                                         |                                    |
 *                 +-------- error, cancel, deadline --------+------------------------------------+--> ERROR event
 *
 * A short interactive prompt that has come is in the plan that is made next, so it does not wait for two steps: the tokenizer thread gets
 * a moment, small beside a step, before the plan is made.
 *
 * The statistics page is written at the end of every pass; step_began_ns is set around a step, so that the broker can tell a
 * long step from a hang.
 *
 * Threads: one step thread calls everything here; the tokenizer thread and the backend's own are behind their interfaces. */
#ifndef WORKER_H
#define WORKER_H

#include "engine.h"
#include "host_store.h"
#include "region.h"

struct worker_options {
    uint64_t step_ns_max;    /* scheduler.h; 0: no time budget */
    uint64_t age_ns, prefix_wait_ns;
    uint64_t tokenize_wait_ns; /* a plan waits so long for the ids of a short interactive prompt; 0: an eighth of the last step, at most 2 ms */
    uint64_t secret;         /* random */
    struct host_store *store; /* where evicted blocks go and missing ones are looked up; NULL: nowhere.  Borrowed */
};

enum worker_state {
    WORKER_BUSY,    /* a step was done: pass again */
    WORKER_IDLE,    /* nothing to compute: sleep */
    WORKER_STALLED, /* there is something, but no room for its events: sleep shortly */
    WORKER_DRAINED, /* told to finish, and has */
    WORKER_BROKEN,  /* the region or the device cannot be believed any more: end */
};

struct worker; /* opaque */

/* Borrows engine (opened) and region (attached) until worker_free().  ST_OK, ST_NOMEM, ST_SYSTEM. */
MUST_CHECK enum status worker_new(struct engine *engine, struct region *region, const struct worker_options *opt,
                                  struct worker **ret_worker);
void worker_free(struct worker *w); /* NULL is fine */

/* Fill the card and say READY. */
void worker_announce(struct worker *w, const char *name);

enum worker_state worker_pass(struct worker *w);

/* Sleep until a request, a flag, a prompt from the tokenizer or a deadline; at most max_ms.  control_fd (or -1): end of file on it
 * means that the broker is gone: returns ST_GONE.  Else ST_OK. */
MUST_CHECK enum status worker_sleep(struct worker *w, enum worker_state state, int control_fd, int max_ms);

/* Pass and sleep until it is over.  ST_OK: drained; ST_GONE: no broker; ST_CORRUPT: broken. */
MUST_CHECK enum status worker_run(struct worker *w, int control_fd);

/* For a worker that could not start: the reason into the card, and FAILED. */
void worker_announce_failure(struct region *region, const struct error *err);

/* Requests it holds, for tests. */
uint32_t worker_n_requests(const struct worker *w);
const struct scheduler *worker_scheduler(const struct worker *w);

#endif
