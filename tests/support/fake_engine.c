/* fake_engine.c - see fake_engine.h. */
#include "fake_engine.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fake_engine_init(struct fake_engine *e, const struct fake_options *opt)
{
    struct backend_options b = {
        .n_blocks = opt->scheduler.n_blocks,
        .max_rows = opt->scheduler.max_rows,
        .max_seqs = opt->scheduler.max_seqs,
        .context_tokens = opt->scheduler.context_tokens,
    };
    struct error err;
    *e = (struct fake_engine){ .now_ns = 1000000000, .row_ns = opt->row_ns, .step_ns = opt->step_ns, .event_slots = UINT32_MAX };
    enum status st = fake_backend()->open(NULL, &b, &e->backend, &err);
    assert(st == ST_OK);
    st = scheduler_new(&opt->scheduler, &e->scheduler);
    assert(st == ST_OK);
}

void fake_engine_deinit(struct fake_engine *e)
{
    scheduler_free(e->scheduler);
    fake_backend()->close(e->backend);
}

struct fake_sequence *fake_sequence_new(const int32_t *tokens, uint32_t n_prompt, uint32_t n_tokens, uint32_t max_tokens)
{
    struct fake_sequence *f = calloc(1, sizeof(*f));
    assert(f != NULL);
    uint32_t tokens_max = n_prompt + max_tokens;
    f->seq.tokens = calloc(tokens_max, sizeof(int32_t));
    f->seq.blocks = calloc(blocks_for(tokens_max), sizeof(uint32_t));
    assert(f->seq.tokens != NULL && f->seq.blocks != NULL);
    memcpy(f->seq.tokens, tokens, n_tokens * sizeof(*tokens));
    f->seq.owner = f;
    f->seq.n_prompt = n_prompt;
    f->seq.n_tokens = n_tokens;
    f->seq.tokens_max = tokens_max;
    f->seq.event_slots_max = 4;
    f->seq.sampling = &f->sampling;
    f->n_steps_to_plan = UINT32_MAX;
    return f;
}

void fake_sequence_free(struct fake_sequence *f)
{
    if (f == NULL)
        return;
    free(f->seq.tokens);
    free(f->seq.blocks);
    free(f);
}

enum status fake_engine_add(struct fake_engine *e, struct fake_sequence *f, struct error *err)
{
    f->added_at_step = e->n_steps;
    return scheduler_add(e->scheduler, &f->seq, e->now_ns, err);
}

static void copy_blocks(struct fake_engine *e)
{
    for (uint32_t i = 0; i < e->plan->n_copies; i++) {
        backend_ticket t;
        struct block_copy c = { .kind = BLOCK_TO_BLOCK, .block = e->plan->copies[i].from, .to_block = e->plan->copies[i].to };
        enum status st = fake_backend()->copy_submit(e->backend, &c, &t);
        assert(st == ST_OK);
    }
}

static void take_token(struct fake_engine *e, struct fake_sequence *f, int32_t token)
{
    struct sequence *q = &f->seq;
    int32_t right = fake_token(q->tokens, q->n_tokens, q->sampling, q->choice, sequence_index(q), FAKE_VOCAB);
    if (token != right) {
        fprintf(stderr, "token %u of a sequence with %u prompt tokens is %d, must be %d\n", sequence_index(q), q->n_prompt,
                token, right);
        abort();
    }
    scheduler_append(e->scheduler, q, token);
    if (q->n_tokens == q->tokens_max)
        scheduler_end(e->scheduler, q);
}

uint32_t fake_engine_step(struct fake_engine *e)
{
    e->plan = scheduler_plan(e->scheduler, e->now_ns, e->event_slots);
    uint32_t n = e->plan->plan.n_entries;
    copy_blocks(e);
    uint64_t step_ns = e->step_ns + e->plan->plan.n_rows * e->row_ns;
    if (n > 0) {
        backend_ticket t;
        enum status st = fake_backend()->step_submit(e->backend, &e->plan->plan, &t);
        assert(st == ST_OK);
        st = fake_backend()->step_wait(e->backend, t, e->results);
        assert(st == ST_OK);
    }
    e->n_steps++;
    e->now_ns += step_ns > 0 ? step_ns : 1000000;
    scheduler_step_done(e->scheduler, step_ns);
    for (uint32_t i = 0; i < n; i++) {
        struct fake_sequence *f = e->plan->sequences[i]->owner;
        if (f->n_steps_to_plan == UINT32_MAX)
            f->n_steps_to_plan = e->n_steps - f->added_at_step;
        if (e->plan->plan.entries[i].want == WANT_TOKEN)
            take_token(e, f, e->results[i].token);
    }
    return n;
}

void fake_sequence_check(const struct fake_sequence *f)
{
    const struct sequence *q = &f->seq;
    assert(q->state == SEQUENCE_ENDED && q->n_tokens == q->tokens_max);
    for (uint32_t i = q->n_prompt; i < q->n_tokens; i++)
        assert(q->tokens[i] == fake_token(q->tokens, i, q->sampling, q->choice, i - q->n_prompt, FAKE_VOCAB));
}
