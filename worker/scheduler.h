/* scheduler.h - decides what the next step computes, and who holds which KV block.
 *
 *     scheduler_add(seq)            a request's sequences, when its prompt is tokenized
 *     loop:
 *         plan = scheduler_plan(now, ring slots)      copies and entries for the backend
 *         ... the caller does the copies, then the step ...
 *         scheduler_step_done(now, how long)          positions are computed; full blocks are published
 *         for each entry that sampled:  scheduler_append(seq, token)   or   scheduler_end(seq)
 *
 * A plan holds, in this order: one row for every running sequence that only awaits its next token, then chunks of
 * those that are further behind, within a budget of rows.
 *
 *   Budget      max_rows; less if by what the last steps took a row a step would take longer than step_ns_max: who awaits a
 *               token waits for the whole step, and so does who arrives meanwhile.  Batch prompts make a step no longer than a
 *               quarter of that.
 *   Order       interactive before batch, then the fair tag, then arrival.
 *   Passing     the prefill that is here longest gets a quarter of the budget, every other one a small chunk, the rest goes
 *               to the shortest: a short prompt passes a long one and the long one still moves.
 *   Ageing      a batch sequence that made no progress for age_ns ranks as interactive until it ends, and is admitted ahead
 *               of interactive ones; one at a time.  If after 2 * age_ns the interactive ones that run still leave it no blocks, nobody
 *               is admitted until they do.
 *   Slots       an eighth of the sequence slots is kept for the interactive class; beyond them an interactive sequence
 *               preempts the youngest batch one.  So an interactive request is in the first plan after it arrived, unless
 *               interactive requests alone fill the pool.
 *   Pausing     a paused sequence keeps its slot and blocks while nobody else wants them, and is the first to lose them.
 *   Blocks      a sequence is admitted when the blocks for all its tokens, beside what others still need for theirs, can be
 *               had.  Growth that finds none preempts the youngest batch sequence, or interactive one if there is no other: its
 *               blocks go to the cache, and it starts again from what is left of them.
 *   Waiting     a sequence whose next uncached block a running one is computing (same scope) waits for it: it holds
 *               nothing, lends it its class, and stops waiting when that one leaves the pool or after prefix_wait_ns.
 *   Choices     the second and later completions of a request take the prompt's blocks from the first one.
 *   Shelf       what the cache lacks of a sequence that is admitted and the shelf has is loaded, whole blocks, before it runs; if
 *               that takes more than one step may spend on it, it waits for the next one, as long as that brings more.
 *   Sessions    what an ended sequence of a session computed is kept for it, until pressure or the broker says otherwise
 *               (session_pins.h); it gives way before anybody is preempted.
 *   Ring        a row that samples is planned only with event slots left for all that its token may set off.
 *
 * The last token of a prompt is always computed, so that there are logits to sample from.
 *
 * Pure: no I/O, no clock (time comes as an argument), no randomness.  Threads: none.  Memory: scheduler_new() takes all. */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include "backend.h"
#include "error.h"
#include "prefix_cache.h"
#include "sequence.h"

struct scheduler_options {
    uint32_t n_blocks;
    uint32_t max_seqs;       /* 1 .. SEQS_MAX */
    uint32_t max_rows;       /* > max_seqs, at most PLAN_TOKENS_MAX */
    uint32_t context_tokens; /* longest sequence */
    uint64_t step_ns_max;    /* 0: no time budget */
    uint64_t age_ns;         /* 0: 5 seconds */
    uint64_t prefix_wait_ns; /* 0: 10 seconds */
    uint64_t secret;         /* keys the prefix index's hash */
    const struct block_shelf *shelf; /* prefix_cache.h; NULL: none.  Borrowed */
};

/* Copy block `from` to block `to`, before the step. */
struct scheduler_copy {
    uint32_t from, to;
};

struct scheduler_plan {
    struct plan plan;               /* for the backend; sequences[i] is entry i's */
    struct sequence *const *sequences;
    const struct scheduler_copy *copies;
    uint32_t n_copies;
    bool loading;                   /* a sequence waits for more blocks from the shelf: plan again, even if this one is empty */
};

struct scheduler_counters {         /* they only grow */
    uint64_t prefill_tokens;        /* rows of prompt tokens computed */
    uint64_t recomputed_tokens;     /* rows computed again after a preemption or a takeover */
    uint64_t cached_tokens;         /* prompt tokens found in the cache */
    uint64_t decode_tokens;         /* tokens sampled */
    uint64_t preemptions;
    uint64_t prefix_waits;          /* sequences that waited for another's prefix */
};

struct scheduler_levels {
    uint32_t n_running, n_waiting;
    uint64_t tokens_behind;         /* prompt tokens not yet computed, running and waiting */
};

struct scheduler; /* opaque */

/* ST_OK or ST_NOMEM. */
MUST_CHECK enum status scheduler_new(const struct scheduler_options *opt, struct scheduler **ret_scheduler);
void scheduler_free(struct scheduler *s); /* NULL is fine; sequences still in it are forgotten, not freed */

/* Take a NEW sequence into the waiting list.  Leaders come before those they lead.
 * ST_OK, or ST_LIMIT when it can never run: *err says which limit and by how much. */
MUST_CHECK enum status scheduler_add(struct scheduler *s, struct sequence *seq, uint64_t now_ns, struct error *err);

/* Decide the next step; the plan is valid until scheduler_step_done().  event_slots: ring slots that may be filled.
 * A plan without entries means that there is nothing to do now. */
const struct scheduler_plan *scheduler_plan(struct scheduler *s, uint64_t now_ns, uint32_t event_slots);

/* The planned step was computed; it took step_ns.  (Also to be called for a plan without entries.) */
void scheduler_step_done(struct scheduler *s, uint64_t step_ns);

/* Between steps: a running sequence that sampled goes on with this token.  There must be room below tokens_max. */
void scheduler_append(struct scheduler *s, struct sequence *seq, int32_t token);

/* Between steps: a sequence ends, whatever its state; its blocks are released, and published unless cache_off. */
void scheduler_end(struct scheduler *s, struct sequence *seq);

/* Between steps: this session's blocks are no longer kept for it. */
void scheduler_session_end(struct scheduler *s, uint64_t session);

/* Between steps: offer finished blocks to the shelf, as many as it takes now.  Are there more? */
bool scheduler_save_some(struct scheduler *s);

struct scheduler_counters scheduler_counters(const struct scheduler *s);
struct scheduler_levels scheduler_levels(const struct scheduler *s);
struct kv_counts scheduler_kv_counts(const struct scheduler *s);
struct eviction_counts scheduler_evictions(const struct scheduler *s);
uint64_t scheduler_sessions_yielded(const struct scheduler *s); /* under pressure, so far */

/* Walk everything; abort at the first broken invariant. */
void scheduler_check(const struct scheduler *s);

#endif
