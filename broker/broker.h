/* broker.h - the broker: one loop over a socket, the workers' doorbells and the clock; and what its parts share.
 *
 *   intake.c     messages from clients -> requests, or a refusal           (dispatch table by message type)
 *   admission.c  whose a message is, and whether there is room for it
 *   dispatch.c   queued requests -> workers                                 (fair_queue and router decide)
 *   events.c     events of workers -> requests                              (every number checked)
 *   delivery.c   what requests received -> clients                          (never blocks; keeps what a client does not take)
 *   death.c      a worker ended -> its requests go on elsewhere             (takeover decides)
 *   keys.c       idempotency keys: what was asked before, and its answer
 *   sessions.c   named conversations: their time and their worker
 *   identity.c   who is who: the users file, by uid and by CURVE key
 *   endpoint.c   the sockets; tcp_door.c clients of other machines; descriptors.c what their connections may not take
 *   ending.c     the one place where requests change phase and end
 *   admin.c      workers paused, drained, added, removed by hand
 *   trace.c      where the time of requests went; report_trace.c tells it
 *   devices.c    how busy and how full the GPUs are, by NVML, in a thread of its own
 *   report.c     hello, models, status; metrics_page.c the same for Prometheus, served by metrics.c in a thread of its own
 *   broker.c     the loop, ticks, signals, drain
 *
 * One thread owns everything.  A pass of the loop: wait; signals; some messages of clients; some events of every worker; deaths;
 * what is due by the clock; dispatch; delivery.  Each has a budget, so none can starve the others, and nothing blocks. */
#ifndef BROKER_H
#define BROKER_H

#include <stdbool.h>
#include <stdint.h>

#include "account.h"
#include "client.h"
#include "devices.h"
#include "endpoint.h"
#include "fair_queue.h"
#include "identity.h"
#include "keys.h"
#include "metrics.h"
#include "options.h"
#include "request.h"
#include "router.h"
#include "sessions.h"
#include "store.h"
#include "supervisor.h"
#include "tcp_door.h"
#include "trace.h"
#include "wire.h"

enum {
    PASS_MESSAGES = 256,      /* client messages in one pass of the loop */
    PASS_HANDSHAKES = 64,     /* questions of libzmq about keys in one pass */
    PASS_EVENTS = 4096,       /* events of one worker in one pass */
    PASS_DISPATCHES = 64,     /* requests sent to workers in one pass */
    TICK_MS = 20,             /* the clock is looked at so often while anything is going on */
    TICK_IDLE_MS = 500,
    BLOCKED_RETRY_MS = 5,     /* a client whose queue is full is tried again after so long */
    METRICS_MS = 1000,        /* a new page of metrics so often */
    DROPPED_MS = 1000,        /* the log tells of dropped replies so often at most */
    METRICS_USERS_MAX = 200,  /* users with series of their own */
    LATE_REPLIES_MAX = 4096,  /* answers that are no request's, waiting for room in a client's queue */
    LATE_BYTES_MAX = 16 << 20,/* of them all */
    SCOPE_SECRET_BYTES = 192,
    TOKEN_MESSAGE_IDS_MAX = 8192,      /* ids of one token message */
    TOKEN_MESSAGE_LOGPROBS_MAX = 256,  /* ... that carries log-probabilities */
    TOKEN_MESSAGE_TEXT_MAX = 1 << 20,
};

struct served_model {
    const char *name, *path;
    double bytes_per_token;   /* moving average of text prompts */
    double output_tokens;     /* moving average of a choice's length */
    uint32_t n_suspects;      /* suspects of it that run now: at most one */
};

struct late_reply {           /* an answer for which the client's queue had no room */
    struct peer to;
    uint8_t *at;
    size_t n;
    uint64_t since_ns;
};

struct totals {
    uint64_t accepted, done, failed, cancelled, refused, malformed, takeovers, tokens;
    uint64_t prompt_tokens, cached_tokens; /* of requests that began */
    uint64_t errors[ERR_COUNT];            /* ended in, or refused with */
};

struct times {                /* of requests: [0] interactive, [1] batch */
    struct histogram queue[2], first_token[2], token_interval[2], total[2];
    struct histogram refusal; /* `busy`: from when the message can have been there at the earliest (messages_since_ns) to its answer */
};

enum broker_state { BROKER_RUNNING, BROKER_DRAINING, BROKER_STOPPING };

struct broker {
    const struct options *options;
    enum broker_state state;
    struct endpoint endpoint;
    int signals;              /* signalfd */
    uint64_t boot_id;
    char boot[17];            /* in hexadecimal */
    uint8_t scope_secret[SCOPE_SECRET_BYTES];
    uint64_t store_secret[2]; /* keys the names of blocks in the host store */
    uint64_t now_ns, started_ns, tick_due_ns, stop_due_ns;
    uint64_t messages_since_ns; /* what intake_receive() finds came after this */
    bool said_ready;
    bool more_to_dispatch;    /* the last pass ran out of its budget, not out of room */

    struct identity identity; /* users, by uid and by key */
    struct accounts accounts;
    struct clients clients;
    struct requests requests;
    struct keys *keys;        /* idempotency keys */
    struct sessions sessions;
    struct fair_queue *queue;
    struct router *router;
    struct served_model models[MODELS_MAX];
    uint32_t n_models;
    struct worker workers[WORKERS_MAX];
    uint32_t n_workers;       /* slots ever used; those of removed workers are GONE */
    char added_devices[WORKERS_MAX][NAME_BYTES_MAX]; /* of workers that were added by hand */
    struct supervisor_options supervision;
    struct totals totals;
    struct times times;
    struct traces traces;
    struct metrics *metrics;  /* NULL: not served */
    struct devices *devices;  /* NULL: no GPU that NVML knows */
    uint64_t metrics_due_ns;
    uint64_t watchdog_ms, watchdog_due_ns; /* of systemd; 0: none */

    struct wire_buffer out;   /* the message being written */
    struct late_reply late[LATE_REPLIES_MAX];
    uint32_t late_first, n_late;
    uint64_t late_bytes, n_dropped, dropped_due_ns; /* n_dropped: late replies given up since the log said so; it does again then */
};

/* --- broker.c -------------------------------------------------------------------------------- */

/* Bind, make the tables, start nothing yet.  ST_OK, or with *err set.  options is borrowed. */
MUST_CHECK enum status broker_new(const struct options *options, struct broker **ret_broker, struct error *err);
void broker_free(struct broker *b); /* kills what runs */
/* Run until told to stop.  The exit code of the process. */
int broker_run(struct broker *b);
/* Aborts at the first broken invariant of any part. */
void broker_check(const struct broker *b);

/* How many workers are to run on the device of this one. */
uint32_t broker_device_share(const struct broker *b, const char *device);

/* --- intake.c -------------------------------------------------------------------------------- */

void intake_receive(struct broker *b);
/* Users and keys are others now: who may no longer come loses its requests. */
void intake_users_changed(struct broker *b);
/* Whose key is it, and how many connections may that user hold?  A tcp_door_judge; arg is the broker. */
bool intake_judge_key(void *arg, const uint8_t key[CURVE_KEY_BYTES], struct tcp_door_user *ret_user);

/* --- dispatch.c ------------------------------------------------------------------------------ */

void dispatch_queued(struct broker *b);
void dispatch_wake(struct broker *b);    /* workers that left while idle come back for requests that nobody else can take */
void dispatch_release(struct broker *b); /* workers that have been idle for long leave */
uint64_t dispatch_cost(const struct broker *b, const struct request *r); /* estimate in tokens */
/* Can this model be served at all, now or soon?  If not, *ret_why is the error of one of its workers. */
bool dispatch_has_hope(const struct broker *b, uint32_t model, const char **ret_why);

/* --- events.c -------------------------------------------------------------------------------- */

/* Take up to budget events of a worker.  ST_OK (there may be more), ST_AGAIN (none left), ST_CORRUPT: it broke a rule. */
MUST_CHECK enum status events_take(struct broker *b, struct worker *w, uint32_t budget);

/* --- delivery.c ------------------------------------------------------------------------------ */

void delivery_flush(struct broker *b);                  /* all requests that have something for their clients */
void delivery_tick(struct broker *b);                   /* probes, blocked clients, late replies, slow readers */
void delivery_reply(struct broker *b, const struct peer *to); /* b->out, now or later; it is no request's */
void delivery_error(struct broker *b, const struct peer *to, struct span id, const struct error *error, uint32_t retry_after_ms);

/* --- ending.c -------------------------------------------------------------------------------- */

/* Phases: from OVER into the queue (class RESUMED: it was charged already); from there into a worker's slot; out of that slot again, OVER.
 * over: for good, and settled; else ending_enqueue() follows. */
void ending_enqueue(struct broker *b, uint32_t request, enum queue_class class);
void ending_sent(struct broker *b, uint32_t request, struct worker *w, uint32_t slot);
void ending_left_worker(struct broker *b, uint32_t request, bool over);
void ending_clear_suspect(struct broker *b, uint32_t request); /* it runs, and its worker may take others again */

/* Ends, as the client will hear of them; nothing for a request that has one.  With an error it leaves the queue; a worker is asked to let go of it.
 * retry_after_ms: 0 for no advice. */
void ending_done(struct broker *b, uint32_t request);
void ending_error(struct broker *b, uint32_t request, const struct error *error, uint32_t retry_after_ms);
__attribute__((format(printf, 5, 6))) void ending_errorf(struct broker *b, uint32_t request, enum error_code code, const char *param,
                                                         const char *format, ...);

void ending_told(struct broker *b, uint32_t request);   /* the client has its end */
void ending_client_gone(struct broker *b, uint32_t client);

/* Whoever is the last to let go of a request frees its place: after ending_error(), ending_left_worker(.., true), ending_told() and
 * ending_client_gone() it may be FREE, and another's with the next message. */

uint32_t ending_retry_after_ms(const struct broker *b); /* advice for who is refused: the longer, the more requests are here */

/* --- death.c --------------------------------------------------------------------------------- */

void death_look(struct broker *b, struct worker *w);    /* its pidfd is readable, or it may be */

/* --- admin.c --------------------------------------------------------------------------------- */

/* Do what an administrator asks.  ST_OK and the worker's slot, or ST_INVALID with *err set. */
MUST_CHECK enum status admin_order(struct broker *b, const struct wire_admin *a, uint32_t *ret_slot, struct error *err);
/* May this uid give orders: root and the broker's own. */
bool admin_allowed(uid_t uid);
/* What the queued requests of a model wait for, in words. */
void admin_waits_for(const struct broker *b, uint32_t model, char ret_text[ERROR_MESSAGE_BYTES]);

/* --- report.c -------------------------------------------------------------------------------- */

void report_hello(struct broker *b, const char *user);  /* all of these write b->out */
void report_models(struct broker *b, struct span id);
/* only_user: NULL, or whose numbers alone are told of all users'. */
void report_status(struct broker *b, struct span id, const char *only_user);
void report_admin(struct broker *b, struct span id, uint32_t slot);

/* --- report_trace.c -------------------------------------------------------------------------- */

/* The request is about to leave the table: keep where its time went. */
void trace_keep(struct broker *b, const struct request *r);
/* Writes b->out: the timeline of the request that `accepted` called so; without a name a list.  user: whose requests may be told of;
 * NULL: everybody's.  False when there is no such request, or not for this user. */
bool report_trace(struct broker *b, struct span id, struct span name, const char *user);

/* --- metrics_page.c -------------------------------------------------------------------------- */

/* Gives *ret_page (free()) of *ret_n bytes; NULL without memory. */
void metrics_page(const struct broker *b, char **ret_page, size_t *ret_n);
/* Can the pool answer now?  If not, *ret_why. */
bool metrics_ready(const struct broker *b, const char **ret_why);

#endif
