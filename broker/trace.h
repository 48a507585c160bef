/* trace.h - where a request's time went: what `weir trace` shows of those that run and of the last that ended.
 *
 * A request passes points in this order.  The broker's own are taken from its clock as they are passed, the worker's stand in the region
 * (region.h); both are CLOCK_MONOTONIC of this machine, so they lie on one line:
 *
 *   arrived  picked      sent      taken      tokenized   admitted    first       last      ended   told
 *      |------|-----------|---------|-----------|-----------|-----------|-----------|---------|-------|
 *       queue   routing     handover  tokenize    wait        prefill     steps       stream
 *
 * A phase is the time between two neighbours, so phases add up to the whole, always.  A point that was not passed takes the time of the next
 * one that was: its phase is empty.  What a worker tells is input: a time out of order is moved to its neighbour's.  Of a request that was
 * taken over, the phases are those with its last worker, and `earlier` is all the time before that worker was picked: with the dead ones, and
 * waiting for another.  `wait` is the wait for a place in the worker, less `prefix`, the part of it spent waiting for a prefix that another
 * sequence computed. */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "users.h"
#include "work.h"
#include "worker_link.h"

struct trace_times {        /* the broker's; 0: not yet */
    uint64_t first_picked_ns; /* by the first worker's dispatch */
    uint64_t picked_ns, sent_ns; /* by the last one's */
    uint64_t ended_ns, told_ns;
};

enum trace_state { TRACE_QUEUED, TRACE_RUNNING, TRACE_DONE, TRACE_ERROR };

struct trace {
    uint64_t number;
    char user[USER_NAME_BYTES];
    uint32_t model;
    int worker;             /* the last one; -1: none */
    bool batch, tokenize;
    enum trace_state state;
    enum error_code error;  /* TRACE_ERROR */
    uint32_t prompt_tokens, cached_tokens, completion_tokens, takeovers, preemptions;
    uint64_t arrived_ns, first_token_ns, last_token_ns; /* tokens as the broker saw them come */
    struct trace_times times;
    struct link_trace run;  /* of the last worker; all 0 when it told nothing */
};

enum trace_phase_name {
    TRACE_QUEUE, TRACE_EARLIER, TRACE_ROUTING, TRACE_HANDOVER, TRACE_TOKENIZE, TRACE_WAIT, TRACE_PREFIX, TRACE_PREFILL, TRACE_STEPS,
    TRACE_STREAM, TRACE_PHASES
};
const char *trace_phase_name(enum trace_phase_name p);

struct trace_phase {
    uint64_t began_ns, took_ns;
    bool reached;           /* the request got there */
};

/* Its phases; they begin with arrived_ns, end with told_ns, or now_ns for one that is not over, and leave no gap. */
void trace_phases(const struct trace *t, uint64_t now_ns, struct trace_phase ret_phases[TRACE_PHASES]);

/* The last that ended, of each class apart: lines of a job do not push out what people asked. */
enum { TRACES_KEPT = 512 };
struct traces {
    struct trace list[2][TRACES_KEPT]; /* [batch]; the n-th is at n mod TRACES_KEPT */
    uint64_t n[2];                     /* ever kept */
};
void traces_keep(struct traces *t, const struct trace *one);
/* The k-th youngest of a class, from 0; NULL when there is none. */
const struct trace *traces_youngest(const struct traces *t, bool batch, uint32_t k);

#endif
