/* supervisor.h - the life of the worker processes: start, watch, kill, reap, start again.
 *
 *   WAITING --due--> STARTING --EVENT_READY--> READY --drain--> LEAVING
 *      ^                |                        |                 |
 *      |                +-- dies, fails, too slow| dies, killed    |
 *      +-------- after its back-off -------------+                 +--> STOPPED (shutdown, or drained by hand)
 *
 * A READY worker that was idle for long may be released: it leaves, and its slot waits, STOPPED and released, until there is a request for
 * it (--idle-release).
 *
 * A slot is a place in the pool: one device, one model.  A life is one run of a process in it; each has its own region.  A worker that
 * is killed from outside is started again at once; one that dies by its own fault, or cannot start, waits: 250 ms, doubling,
 * up to 30 s.  The pool goes on with the others, and the slot's error is shown in the status.
 *
 * A worker's heartbeat goes on while it is idle (every 100 ms), so one that is stopped or hangs is noticed whether it has work or not: it is
 * killed after hang_ns_max, counted anew from the first request it gets when it has none, but from no later one: requests that keep
 * coming must not put its end off.  One that is silent for SUPERVISOR_SILENT_MS gets no new requests until it shows life again.
 *
 * The process is named by a pidfd from its birth to its reaping, so no signal of ours can hit another process of the same number.  It dies
 * with the broker (PR_SET_PDEATHSIG, and end of file on its control socket). */
#ifndef SUPERVISOR_H
#define SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "partition.h"
#include "region.h"
#include "status.h"
#include "takeover.h"
#include "worker_link.h"

enum {
    SUPERVISOR_BACKOFF_MS_MIN = 250,
    SUPERVISOR_BACKOFF_MS_MAX = 30 * 1000,
    SUPERVISOR_STABLE_MS = 60 * 1000, /* a life of this length wipes out the failures before it */
    SUPERVISOR_HOPELESS = 3,          /* failed starts in a row after which nobody waits for the slot */
    SUPERVISOR_SILENT_MS = 5 * 1000,  /* of silence, after which a worker gets no new requests */
    SUPERVISOR_IDLE_HANG_MS_MIN = 3 * 1000, /* an idle worker may be silent for so long even where hang_ns_max is less */
};

/* What an administrator wants of a slot.  The order stands until the next one; the state follows it as soon as it can:
 *
 *   RUN      the process runs and gets requests
 *   PAUSE    it gets no new ones; what it holds goes on
 *   DRAIN    likewise, and when it holds nothing the process ends: its device's memory is free.  The slot waits, STOPPED, for RUN
 *   REMOVE   likewise, and then the slot is GONE: nobody waits for it, and the next worker that is added may have its number */
enum worker_order { ORDER_RUN, ORDER_PAUSE, ORDER_DRAIN, ORDER_REMOVE, ORDER_GONE };
enum { SUPERVISOR_LEAVE_MS = 10 * 1000 }; /* a drained worker that has not ended after so long is killed */

enum worker_state { WORKER_WAITING, WORKER_STARTING, WORKER_READY, WORKER_LEAVING, WORKER_STOPPED };

struct worker {
    /* fixed for the life of the broker */
    uint32_t slot, model;
    const char *device;        /* as asked for: "auto", "cpu", "cuda:0" */
    uint32_t device_share;     /* workers that were to run on the same when it was made, it included */
    struct partition store;    /* its part of the host store (store.c); may not be there */
    int store_fds[WORKERS_MAX]; /* [n_store_fds] what its processes get: the own partition first, then others to read; borrowed */
    uint32_t n_store_fds;

    enum worker_order order;
    enum worker_state state;
    bool released;             /* idle: it leaves or has left, and comes back when it is wanted */
    uint32_t life;             /* of the running or the last process; the first is 1 */
    uint32_t restarts;         /* processes started after the first */
    uint32_t failures;         /* bad ends in a row: decides the back-off */
    uint32_t failed_starts;    /* of them, before READY */
    uint64_t state_since_ns;
    uint64_t start_due_ns;     /* WAITING */
    uint64_t last_busy_ns;     /* when it last got or was seen to hold a request */
    uint64_t patience_from_ns; /* silence before this does not count: it got ready, was excused, or got work when it had none */
    uint64_t silent_ns;        /* READY: since its last sign of life, as seen in the last tick */
    pid_t pid;                 /* 0: none */
    int pidfd;                 /* -1: none */
    enum kill_reason killed;
    struct worker_link link;
    bool has_card;             /* it has been ready in this or an earlier life */
    struct region_card card;   /* of the last READY or FAILED */
    char error[ERROR_MESSAGE_BYTES]; /* why it is not serving; empty while all is well */

    /* the broker's own book of the requests it holds */
    uint32_t n_seqs;           /* choices of all requests dispatched to it */
    uint32_t n_unstarted;      /* requests whose STARTED has not come */
    int64_t alone_request;     /* a suspect runs here, alone; -1: none */
};

struct supervisor_options {
    const char *program;       /* path of weir-worker */
    const char *const *model_paths; /* by model number */
    uint32_t threads;
    uint64_t kv_bytes;
    bool kv_bytes_given;      /* else only for a worker that finds itself on a CPU */
    bool fast_prefill;
    bool core_dumps;
    uint64_t start_ns_max;     /* READY must come within */
    uint64_t hang_ns_max;      /* a worker must show life within */
    uint64_t boot_id;
    const char *log_level;
};

void supervisor_init_worker(struct worker *w, uint32_t slot, uint32_t model, const char *device);

/* Start a process in a WAITING slot.  ST_OK and STARTING; otherwise the slot waits again, its error says why. */
MUST_CHECK enum status supervisor_start(struct worker *w, const struct supervisor_options *o, uint64_t now_ns);

/* The worker said READY (or FAILED) and its card is in w->card. */
void supervisor_ready(struct worker *w, uint64_t now_ns);

/* SIGKILL, for this reason.  The end is seen by supervisor_reap(). */
void supervisor_kill(struct worker *w, enum kill_reason reason);

/* Has the process ended?  Reaps it and says how.  The link stays open: its last events are still to be taken. */
struct supervisor_end {
    bool own_fault;
    int wait_code, wait_status; /* si_code and si_status of waitid() */
    char cause[32];
};
bool supervisor_reap(struct worker *w, struct supervisor_end *ret_end);

/* After the last events were taken: close the link and wait for the next start (or STOPPED if not again). */
void supervisor_bury(struct worker *w, const struct supervisor_end *end, bool again, uint64_t now_ns);

/* What time demands of a worker.  Pure. */
enum supervisor_advice { ADVICE_NONE, ADVICE_START, ADVICE_START_TIMEOUT, ADVICE_HANG };
struct supervisor_pulse {
    uint32_t n_active;         /* requests it holds that are not paused */
    uint64_t heartbeat_ns, step_began_ns;
};
enum supervisor_advice supervisor_advise(const struct worker *w, const struct supervisor_pulse *p,
                                         const struct supervisor_options *o, uint64_t now_ns);
/* How long a READY worker has shown no life. */
uint64_t supervisor_silence_ns(const struct worker *w, const struct supervisor_pulse *p, uint64_t now_ns);
/* The broker itself was not running (stopped, or the whole machine was): the silence up to now says nothing about the worker. */
void supervisor_excuse(struct worker *w, uint64_t now_ns);
uint64_t supervisor_backoff_ms(uint32_t failures); /* 0 for none */

/* An order by hand.  RUN also wipes out past failures: a slot that waits is started at once. */
void supervisor_order(struct worker *w, enum worker_order order, uint64_t now_ns);
/* Ask a READY worker to end what it holds and leave: LEAVING, with SUPERVISOR_LEAVE_MS for it.  It stays READY while its ring has no room. */
void supervisor_drain(struct worker *w, uint64_t now_ns);
/* Bring the state nearer to a DRAIN or REMOVE.  To be called in every tick. */
void supervisor_obey(struct worker *w, uint64_t now_ns);

/* A READY worker without requests gives back its process, and with it the memory of its device.  Its order stays RUN. */
void supervisor_release(struct worker *w, uint64_t now_ns);
/* A released one is wanted again: it is started, as soon as its last process has ended. */
void supervisor_wake(struct worker *w, uint64_t now_ns);

/* Nobody should wait for this slot: it failed to start SUPERVISOR_HOPELESS times in a row, or is being removed. */
bool supervisor_hopeless(const struct worker *w);
bool supervisor_is_silent(const struct worker *w); /* for SUPERVISOR_SILENT_MS and more, as of the last tick */

const char *worker_state_name(enum worker_state s);
const char *worker_order_name(enum worker_order o); /* "run", "pause", ... */

#endif
