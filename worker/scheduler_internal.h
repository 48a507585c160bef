/* scheduler_internal.h - what scheduler.c, scheduler_admit.c and scheduler_plan.c share; nobody else includes it. */
#ifndef SCHEDULER_INTERNAL_H
#define SCHEDULER_INTERNAL_H

#include "scheduler.h"
#include "session_pins.h"

enum {
    MIN_CHUNK = 16,        /* rows every prefill in a plan gets, while the budget lasts */
    MIN_TIMED_ROWS = 32,   /* rows beside the decodes that the time budget never takes away */
    BATCH_STEP_SHARE = 4,  /* of step_ns_max batch prompts may fill one part */
    PREFILLS_A_CLASS = 4,  /* prefills of one class that run at once although the budget is taken */
};

struct scheduler {
    struct scheduler_options opt;
    struct prefix_cache *cache;
    struct session_pins sessions;

    struct sequence *first_waiting, *last_waiting; /* sorted: class, fair tag, arrival */
    uint32_t n_waiting;
    struct sequence *running[SEQS_MAX]; /* sorted at the start of a plan: paused last; class (own, lent, aged), arrival */
    uint32_t n_running;

    struct scheduler_plan out;
    struct plan_entry entries[SEQS_MAX];
    struct sequence *planned[SEQS_MAX];
    struct scheduler_copy copies[2 * SEQS_MAX]; /* one an admission; some are preempted again in the same plan */
    bool plan_is_open;       /* between scheduler_plan() and scheduler_step_done() */
    bool preempted;          /* in making this plan */

    uint32_t *scratch;       /* [blocks_for(context_tokens)] */
    uint64_t serial;         /* of the last sequence added */
    uint64_t ns_a_row;       /* moving average; 0: not known yet */
    struct scheduler_counters counters;
};

static inline bool ranks_interactive(const struct sequence *q)
{
    return q->interactive || q->lent_interactive || q->aged;
}

/* scheduler.c */
void scheduler_unwait(struct scheduler *s, struct sequence *seq);       /* out of the waiting list */
void scheduler_preempt(struct scheduler *s, struct sequence *seq, uint64_t now_ns); /* its blocks go to the cache, it waits again */

/* Hold blocks for the first n_tokens positions, as far as they can be had; returns for how many positions it holds them. */
uint32_t scheduler_extend(struct scheduler *s, struct sequence *seq, uint32_t n_tokens);

/* scheduler_plan.c */
void scheduler_lend(struct scheduler *s);                               /* the class of who waits to who is waited for */
/* Rows of the next step beside the decodes, as running[] is now; of batch prompts only so many if there are no others. */
uint32_t scheduler_chunk_rows(const struct scheduler *s, bool interactive);

/* scheduler_admit.c: move waiting sequences to running[]. */
void scheduler_admit(struct scheduler *s, uint64_t now_ns);

#endif
