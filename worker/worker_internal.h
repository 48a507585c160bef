/* worker_internal.h - what worker.c and worker_report.c share; nobody else includes it. */
#ifndef WORKER_INTERNAL_H
#define WORKER_INTERNAL_H

#include "block_mover.h"
#include "outbox.h"
#include "preparer.h"
#include "utf8.h"
#include "worker.h"

enum stage { STAGE_NONE, STAGE_PREPARING, STAGE_RELEASING, STAGE_SCHEDULED };

struct slot { /* of the region, as the step thread sees it */
    struct request *request;   /* NULL: empty.  While PREPARING only the pointer is ours */
    enum stage stage;
    uint32_t generation;
    uint64_t deadline_ns;
    enum error_code end_code;  /* PREPARING: to be ended so when the tokenizer gives it back */
    bool started;              /* STARTED was said */
};

struct worker {
    struct engine *engine;
    struct region *region;
    struct outbox outbox;
    struct preparer *preparer;
    struct scheduler *scheduler;
    struct host_store *store;  /* NULL: none, and then no mover */
    struct block_mover *mover;
    struct slot slots[REGION_SLOTS];
    uint32_t n_requests;
    bool draining;
    bool no_memory;            /* for the next request in the ring */
    bool held_back;            /* in this pass: a request that could be scheduled but for room in the ring */
    uint64_t tokenize_wait_ns; /* worker.h */
    uint64_t last_step_ns;
    struct { uint64_t steps, step_ns, requests_started, requests_ended; } totals;
    struct step_result results[SEQS_MAX];
};

/* worker_report.c */
void worker_report(struct worker *w, uint64_t now_ns);            /* the whole statistics page */
void worker_report_step(struct worker *w, uint64_t began_ns);     /* a step begins */

void worker_report_batch(struct worker *w, uint32_t n_sequences, uint64_t step_ns); /* a step was done */

/* worker_trace.c: where the time of a request goes, told in the region as it happens */
void worker_trace_taken(struct worker *w, const struct request *r);
void worker_trace_prepared(struct worker *w, const struct request *r);
void worker_trace_planned(struct worker *w, const struct scheduler_plan *plan);
void worker_trace_step(struct worker *w, const struct scheduler_plan *plan, uint64_t began_ns, uint64_t now_ns);
void worker_trace_token(struct worker *w, const struct request *r, uint64_t now_ns);

#endif
