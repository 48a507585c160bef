/* fake_engine.h - scheduler and fake backend driven together under a virtual clock, one sequence after another checked
 * against what it must answer.  Used by the scheduler's tests and by simulations.
 *
 * A fake_request is one sequence; its answer is fake_token() of its tokens, so any wrong block or lost token shows. */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include "fake_backend.h"
#include "worker/scheduler.h"

struct fake_engine {
    struct scheduler *scheduler;
    struct backend *backend;
    uint64_t now_ns;
    uint64_t row_ns, step_ns;   /* a step takes step_ns + rows * row_ns of virtual time */
    uint32_t event_slots;       /* given to each plan */
    uint32_t n_steps;
    const struct scheduler_plan *plan; /* the last one; its entries stay readable until the next step */
    struct step_result results[SEQS_MAX];
};

struct fake_options {
    struct scheduler_options scheduler;
    uint64_t row_ns, step_ns;
};

void fake_engine_init(struct fake_engine *e, const struct fake_options *opt);
void fake_engine_deinit(struct fake_engine *e);

/* A sequence of its own memory: tokens [n_tokens] are the prompt and, from n_prompt on, what is generated already.  It ends after
 * max_tokens generated ones.  Give it to the scheduler with fake_engine_add(); free it with fake_sequence_free(). */
struct fake_sequence {
    struct sequence seq;
    struct sampling sampling;
    uint32_t n_steps_to_plan;   /* steps from add until it was first in a plan; UINT32_MAX: not yet */
    uint32_t added_at_step;
};
struct fake_sequence *fake_sequence_new(const int32_t *tokens, uint32_t n_prompt, uint32_t n_tokens, uint32_t max_tokens);
void fake_sequence_free(struct fake_sequence *f);

enum status fake_engine_add(struct fake_engine *e, struct fake_sequence *f, struct error *err);

/* One step; every sampled token is checked and appended, finished sequences end.  Returns the number of entries planned. */
uint32_t fake_engine_step(struct fake_engine *e);

/* Is its answer complete and right from the first token on? */
void fake_sequence_check(const struct fake_sequence *f);

#endif
