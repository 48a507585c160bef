/* The scheduler's rules, on the fake backend, which breaks off at the first wrong block.  Then random traffic in which
 * sequences come, pause, are cancelled and preempted, with every invariant checked after every step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_engine.h"
#include "tests/support/random.h"

enum { CONTEXT = 512 };

static struct random rng;
static int32_t text[CONTEXT], other[CONTEXT]; /* two prompts without a common beginning */

static const struct fake_options roomy = {
    .scheduler = { .n_blocks = 256, .max_seqs = 8, .max_rows = 128, .context_tokens = CONTEXT },
    .row_ns = 1000000,
};

/* A test of this kind finds an engine with room for all in *state. */
#define in_roomy(test) cmocka_unit_test_setup_teardown(test, open_roomy, close_roomy)

static int open_roomy(void **state)
{
    struct fake_engine *e = calloc(1, sizeof(*e));
    assert_non_null(e);
    fake_engine_init(e, &roomy);
    *state = e;
    return 0;
}

static int close_roomy(void **state)
{
    struct fake_engine *e = *state;
    fake_engine_deinit(e);
    free(e);
    return 0;
}

static struct fake_sequence *add(struct fake_engine *e, const int32_t *tokens, uint32_t n_prompt, uint32_t max_tokens,
                                 bool interactive)
{
    struct error err = { 0 };
    struct fake_sequence *f = fake_sequence_new(tokens, n_prompt, n_prompt, max_tokens);
    f->seq.interactive = interactive;
    assert_int_equal(fake_engine_add(e, f, &err), ST_OK);
    return f;
}

static void run_until_idle(struct fake_engine *e)
{
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t n = fake_engine_step(e);
        scheduler_check(e->scheduler);
        struct scheduler_levels l = scheduler_levels(e->scheduler);
        if (n == 0 && l.n_running == 0 && l.n_waiting == 0)
            break;
    }
    assert_int_equal(scheduler_kv_counts(e->scheduler).n_pinned, 0);
}

static void finish(struct fake_sequence *f)
{
    fake_sequence_check(f);
    fake_sequence_free(f);
}

static void a_long_prompt_is_computed_in_chunks_within_the_budget(void **state)
{
    struct fake_engine *e = *state;
    struct fake_sequence *f = add(e, text, 300, 5, true);
    uint32_t n_steps = 0;
    while (f->seq.state != SEQUENCE_ENDED) {
        fake_engine_step(e);
        assert_true(e->plan->plan.n_rows <= 128);
        n_steps++;
    }
    assert_int_equal(n_steps, 3 + 4);
    assert_int_equal(scheduler_counters(e->scheduler).prefill_tokens, 300);
    assert_int_equal(scheduler_counters(e->scheduler).decode_tokens, 5);
    finish(f);
}

static void an_equal_prompt_is_found_but_for_its_last_token(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 50; n++) {
        struct fake_engine e;
        fake_engine_init(&e, &roomy);
        struct fake_sequence *a = add(&e, text, n, 7, true);
        run_until_idle(&e);
        struct fake_sequence *b = add(&e, text, n, 7, true);
        run_until_idle(&e);
        assert_int_equal(a->seq.n_cached, 0);
        assert_int_equal(b->seq.n_cached, n - 1);
        assert_memory_equal(a->seq.tokens, b->seq.tokens, (n + 7) * sizeof(int32_t));
        finish(a);
        finish(b);
        fake_engine_deinit(&e);
    }
}

static void the_next_turn_of_a_chat_computes_only_what_is_new(void **state)
{
    struct fake_engine *e = *state;
    int32_t turn[CONTEXT];
    struct fake_sequence *a = add(e, text, 37, 20, true);
    run_until_idle(e);
    memcpy(turn, a->seq.tokens, 57 * sizeof(int32_t));
    memcpy(turn + 57, other, 11 * sizeof(int32_t));
    struct fake_sequence *b = add(e, turn, 68, 3, true);
    run_until_idle(e);
    assert_int_equal(b->seq.n_cached, 56); /* the answer's last token was sampled, never computed */
    finish(a);
    finish(b);
}

static void blocks_of_another_scope_are_never_met(void **state)
{
    struct fake_engine *e = *state;
    struct error err;
    struct fake_sequence *a = add(e, text, 64, 2, true);
    run_until_idle(e);
    struct fake_sequence *b = fake_sequence_new(text, 64, 64, 2);
    b->seq.scope.id[1] = 7;
    assert_int_equal(fake_engine_add(e, b, &err), ST_OK);
    run_until_idle(e);
    assert_int_equal(b->seq.n_cached, 0);
    finish(a);
    finish(b);
}

static void cache_off_neither_finds_nor_leaves_blocks(void **state)
{
    struct fake_engine *e = *state;
    struct error err;
    struct fake_sequence *a = add(e, text, 64, 2, true);
    run_until_idle(e);
    uint32_t n_cached = scheduler_kv_counts(e->scheduler).n_cached;
    struct fake_sequence *b = fake_sequence_new(text, 64, 64, 30);
    b->seq.cache_off = true;
    assert_int_equal(fake_engine_add(e, b, &err), ST_OK);
    run_until_idle(e);
    assert_int_equal(b->seq.n_cached, 0);
    assert_int_equal(scheduler_kv_counts(e->scheduler).n_cached, n_cached);
    finish(a);
    finish(b);
}

static void choices_share_the_prompts_blocks_and_it_is_computed_once(void **state)
{
    (void)state;
    for (uint32_t off = 0; off < 2; off++) {
        for (uint32_t n_prompt = 1; n_prompt < 40; n_prompt += 3) {
            struct fake_engine e;
            struct fake_sequence *f[4];
            struct error err;
            fake_engine_init(&e, &roomy);
            for (uint32_t i = 0; i < 4; i++) {
                f[i] = fake_sequence_new(text, n_prompt, n_prompt, 20);
                f[i]->seq.choice = i;
                f[i]->seq.cache_off = off == 1;
                f[i]->seq.leader = i > 0 ? &f[0]->seq : NULL;
                f[i]->sampling = (struct sampling){ .seed = 5, .temperature = 1 };
                assert_int_equal(fake_engine_add(&e, f[i], &err), ST_OK);
            }
            run_until_idle(&e);
            /* Each of the three others computes the last token of the prompt again, to have logits of its own. */
            assert_int_equal(scheduler_counters(e.scheduler).prefill_tokens, n_prompt + 3);
            for (uint32_t i = 0; i < 4; i++)
                finish(f[i]);
            fake_engine_deinit(&e);
        }
    }
}

static void decodes_come_first_and_never_miss_a_step(void **state)
{
    struct fake_engine *e = *state;
    struct fake_sequence *decoding = add(e, text, 20, 100, false);
    fake_engine_step(e);
    struct fake_sequence *prefill = add(e, other, 400, 3, true);
    while (sequence_behind(&prefill->seq) > 1) {
        uint32_t before = decoding->seq.n_tokens;
        fake_engine_step(e);
        assert_int_equal(decoding->seq.n_tokens, before + 1);
        assert_ptr_equal(e->plan->sequences[0], &decoding->seq);
        assert_int_equal(e->plan->plan.entries[0].n_tokens, 1);
    }
    run_until_idle(e);
    finish(decoding);
    finish(prefill);
}

static void a_short_prompt_passes_a_long_one_and_the_long_one_still_moves(void **state)
{
    struct fake_engine *e = *state;
    struct fake_sequence *lengthy = add(e, text, 500, 1, true);
    fake_engine_step(e);
    struct fake_sequence *brief = add(e, other, 40, 1, true);
    uint32_t before = lengthy->seq.n_computed;
    fake_engine_step(e);
    assert_int_equal(brief->seq.state, SEQUENCE_ENDED);
    assert_true(lengthy->seq.n_computed >= before + 32);
    run_until_idle(e);
    finish(lengthy);
    finish(brief);
}

static void a_step_is_kept_short_by_what_the_last_ones_took(void **state)
{
    (void)state;
    struct fake_engine e;
    struct fake_options opt = roomy;
    opt.scheduler.step_ns_max = 50 * opt.row_ns;
    fake_engine_init(&e, &opt);
    struct fake_sequence *decoding = add(&e, text, 128, 20, true); /* a full step tells the time of a row */
    fake_engine_step(&e);
    assert_int_equal(e.plan->plan.n_rows, 128);
    struct fake_sequence *prefill = add(&e, other, 400, 3, true);
    fake_engine_step(&e);
    assert_int_equal(e.plan->plan.n_rows, 50);
    decoding->seq.paused = true; /* nobody awaits a token, but somebody may arrive */
    fake_engine_step(&e);
    assert_int_equal(e.plan->plan.n_rows, 50);
    decoding->seq.paused = false;
    run_until_idle(&e);
    finish(decoding);
    finish(prefill);
    fake_engine_deinit(&e);
}

static void batch_prompts_fill_a_quarter_of_a_step_and_leave_it_to_questions(void **state)
{
    (void)state;
    struct fake_engine e;
    struct fake_options opt = roomy;
    opt.scheduler.step_ns_max = 200 * opt.row_ns;
    fake_engine_init(&e, &opt);
    struct fake_sequence *first = add(&e, text, 128, 1, true); /* tells the time of a row */
    fake_engine_step(&e);
    struct fake_sequence *batch = add(&e, other, 400, 3, false);
    fake_engine_step(&e);
    assert_int_equal(e.plan->plan.n_rows, 50);
    struct fake_sequence *question = add(&e, text + 1, 230, 3, true);
    fake_engine_step(&e);
    assert_int_equal(e.plan->plan.n_rows, 128); /* all that a step takes */
    assert_false(batch->seq.in_plan || e.plan->plan.n_entries != 1);
    run_until_idle(&e);
    finish(first);
    finish(batch);
    finish(question);
    fake_engine_deinit(&e);
}

static void an_interactive_request_is_in_the_next_plan_whatever_batch_runs(void **state)
{
    (void)state;
    struct fake_options opt = roomy;
    opt.scheduler.n_blocks = 64; /* batch alone fills the blocks, and preempts itself */
    for (uint32_t when = 1; when < 60; when++) {
        struct fake_engine e;
        struct fake_sequence *batch[30];
        int32_t prompt[CONTEXT];
        fake_engine_init(&e, &opt);
        for (uint32_t i = 0; i < 30; i++) {
            memcpy(prompt, text, sizeof(prompt));
            prompt[0] = (int32_t)i;
            batch[i] = add(&e, prompt, 100 + 5 * i, 30, false);
        }
        for (uint32_t i = 0; i < when; i++)
            fake_engine_step(&e);
        struct fake_sequence *question = add(&e, other, 60, 5, true);
        run_until_idle(&e);
        assert_int_equal(question->n_steps_to_plan, 1);
        finish(question);
        for (uint32_t i = 0; i < 30; i++)
            finish(batch[i]);
        fake_engine_deinit(&e);
    }
}

/* A batch sequence that needs 27 blocks, beside questions of 7 that always wait. */
static void try_batch_beside_questions(uint32_t n_blocks)
{
    struct fake_engine e;
    struct fake_options opt = roomy;
    struct fake_sequence *questions[400];
    uint32_t n = 0;
    int32_t prompt[CONTEXT];
    opt.scheduler.age_ns = 3000000000;
    opt.scheduler.n_blocks = n_blocks;
    fake_engine_init(&e, &opt);
    struct fake_sequence *batch = fake_sequence_new(other, 400, 400, 20);
    struct error err;
    while (n < 400 && batch->seq.state != SEQUENCE_ENDED) {
        while (scheduler_levels(e.scheduler).n_waiting < 3 && n < 400) { /* more than the pool can take, always */
            memcpy(prompt, text, sizeof(prompt));
            prompt[0] = (int32_t)n + 100;
            questions[n++] = add(&e, prompt, 100, 10, true);
        }
        if (batch->seq.state == SEQUENCE_NEW)
            assert_int_equal(fake_engine_add(&e, batch, &err), ST_OK);
        fake_engine_step(&e);
    }
    assert_int_equal(batch->seq.state, SEQUENCE_ENDED);
    assert_true(n < 400);
    run_until_idle(&e);
    finish(batch);
    for (uint32_t i = 0; i < n; i++)
        finish(questions[i]);
    fake_engine_deinit(&e);
}

static void batch_never_stops_under_interactive_load(void **state)
{
    (void)state;
    try_batch_beside_questions(roomy.scheduler.n_blocks);
    try_batch_beside_questions(40); /* the questions alone fill the pool, and what one of them leaves is never enough */
}

static void within_a_class_the_fair_tag_orders(void **state)
{
    (void)state;
    struct fake_engine e;
    struct fake_options opt = roomy;
    struct error err;
    opt.scheduler.max_seqs = 1;
    fake_engine_init(&e, &opt);
    struct fake_sequence *f[3];
    for (uint32_t i = 0; i < 3; i++) {
        f[i] = fake_sequence_new(text, 30, 30, 4);
        f[i]->seq.fair_tag = 10 - i;
        assert_int_equal(fake_engine_add(&e, f[i], &err), ST_OK);
    }
    run_until_idle(&e);
    assert_true(f[2]->n_steps_to_plan < f[1]->n_steps_to_plan && f[1]->n_steps_to_plan < f[0]->n_steps_to_plan);
    for (uint32_t i = 0; i < 3; i++)
        finish(f[i]);
    fake_engine_deinit(&e);
}

static void the_youngest_batch_sequence_is_preempted_first_and_answers_as_if_undisturbed(void **state)
{
    (void)state;
    struct fake_engine e;
    struct fake_options opt = roomy;
    opt.scheduler.n_blocks = 16;
    fake_engine_init(&e, &opt);
    struct fake_sequence *old = add(&e, text, 60, 100, false), *young = add(&e, other, 60, 100, false);
    for (uint32_t i = 0; i < 400 && scheduler_counters(e.scheduler).preemptions == 0; i++)
        fake_engine_step(&e);
    assert_int_equal(old->seq.n_preemptions, 0);
    assert_int_equal(young->seq.n_preemptions, 1);
    run_until_idle(&e);
    assert_int_equal(old->seq.n_preemptions, 0);
    finish(old);
    finish(young);
    fake_engine_deinit(&e);
}

static void a_request_that_another_worker_began_goes_on_as_if_undisturbed(void **state)
{
    (void)state;
    struct fake_engine e;
    struct error err;
    fake_engine_init(&e, &roomy);
    struct fake_sequence *whole = fake_sequence_new(text, 50, 50, 40);
    whole->sampling = (struct sampling){ .seed = 3, .temperature = 1 };
    assert_int_equal(fake_engine_add(&e, whole, &err), ST_OK);
    run_until_idle(&e);
    for (uint32_t cut = 1; cut < 40; cut++) {
        struct fake_engine second;
        fake_engine_init(&second, &roomy);
        struct fake_sequence *rest = fake_sequence_new(whole->seq.tokens, 50, 50 + cut, 40);
        rest->sampling = whole->sampling;
        assert_int_equal(fake_engine_add(&second, rest, &err), ST_OK);
        run_until_idle(&second);
        assert_memory_equal(whole->seq.tokens, rest->seq.tokens, 90 * sizeof(int32_t));
        finish(rest);
        fake_engine_deinit(&second);
    }
    finish(whole);
    fake_engine_deinit(&e);
}

static void a_shared_prefix_in_the_making_is_waited_for(void **state)
{
    struct fake_engine *e = *state;
    struct fake_sequence *f[8];
    int32_t prompt[CONTEXT];
    memcpy(prompt, text, sizeof(prompt));
    for (uint32_t i = 0; i < 8; i++) {
        prompt[320] = (int32_t)i; /* 20 blocks in common */
        f[i] = add(e, prompt, 330, 4, i > 0); /* batch first: the others lend it their class */
        if (i == 0)
            fake_engine_step(e);
    }
    run_until_idle(e);
    assert_int_equal(scheduler_counters(e->scheduler).prefill_tokens, 330 + 7 * 10);
    assert_int_equal(scheduler_counters(e->scheduler).prefix_waits, 7);
    assert_int_equal(f[0]->seq.n_cached, 0);
    for (uint32_t i = 0; i < 8; i++)
        finish(f[i]);
}

static void waiting_for_a_prefix_ends_with_its_bound_or_its_maker(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 2; kind++) {
        struct fake_engine e;
        struct fake_options opt = roomy;
        opt.scheduler.max_rows = 32;
        opt.scheduler.prefix_wait_ns = kind == 0 ? 1 : 0;
        fake_engine_init(&e, &opt);
        struct fake_sequence *maker = add(&e, text, 500, 2, true), *waiter = add(&e, text, 400, 2, true);
        fake_engine_step(&e);
        assert_int_equal(waiter->seq.state, SEQUENCE_WAITING);
        if (kind == 1)
            scheduler_end(e.scheduler, &maker->seq);
        fake_engine_step(&e);
        assert_int_equal(waiter->seq.state, SEQUENCE_RUNNING);
        run_until_idle(&e);
        finish(waiter);
        fake_sequence_free(maker);
        fake_engine_deinit(&e);
    }
}

static void nothing_is_sampled_without_room_for_its_events(void **state)
{
    struct fake_engine *e = *state;
    struct fake_sequence *a = add(e, text, 20, 5, true), *b = add(e, other, 20, 5, true);
    e->event_slots = 3; /* one token may take four */
    for (uint32_t i = 0; i < 5; i++)
        fake_engine_step(e);
    assert_int_equal(a->seq.n_tokens, 20);
    assert_int_equal(a->seq.n_computed, 19);
    e->event_slots = 7;
    fake_engine_step(e);
    assert_int_equal(a->seq.n_tokens + b->seq.n_tokens, 41);
    e->event_slots = UINT32_MAX;
    run_until_idle(e);
    finish(a);
    finish(b);
}

/* A batch prefill that claims the whole budget is no reason to leave an interactive one out of the plan. */
static void the_fifth_interactive_prompt_is_in_the_plan_beside_a_long_batch_prompt(void **state)
{
    struct fake_engine *e = *state;
    struct fake_sequence *f[6];
    f[5] = add(e, text, 500, 3, false);
    fake_engine_step(e);
    for (uint32_t i = 0; i < 5; i++)
        f[i] = add(e, other + i, 20, 3, true); /* 100 rows of 128 */
    run_until_idle(e);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(f[i]->n_steps_to_plan, 1);
        finish(f[i]);
    }
}

/* The oldest batch sequence is paused: that does not keep the next from being promoted while interactive ones come without end. */
static void ageing_passes_over_what_cannot_run(void **state)
{
    (void)state;
    struct fake_options opt = roomy;
    struct fake_engine e;
    struct fake_sequence *chat[100] = { NULL };
    opt.scheduler.max_seqs = 2;
    opt.scheduler.age_ns = 200000000;
    fake_engine_init(&e, &opt);
    struct fake_sequence *paused = add(&e, text, 40, 3, false);
    paused->seq.paused = true;
    struct fake_sequence *batch = add(&e, other, 40, 12, false);
    uint32_t n = 0;
    for (; n < 100 && batch->seq.state != SEQUENCE_ENDED; n++) {
        chat[n] = add(&e, text + n, 20, 10, true);
        for (int i = 0; i < 2; i++)
            fake_engine_step(&e);
    }
    assert_int_equal(batch->seq.state, SEQUENCE_ENDED);
    paused->seq.paused = false;
    run_until_idle(&e);
    for (uint32_t i = 0; i < n; i++)
        finish(chat[i]);
    finish(paused);
    finish(batch);
    fake_engine_deinit(&e);
}

static void paused_prompts_keep_nobody_from_the_rows(void **state)
{
    struct fake_engine *e = *state;
    struct fake_sequence *f[5];
    for (uint32_t i = 0; i < 4; i++)
        f[i] = add(e, text + i, 400, 3, true);
    fake_engine_step(e); /* all four have begun */
    for (uint32_t i = 0; i < 4; i++)
        f[i]->seq.paused = true;
    f[4] = add(e, other, 20, 3, true);
    fake_engine_step(e);
    assert_int_equal(f[4]->n_steps_to_plan, 1);
    for (uint32_t i = 0; i < 4; i++)
        f[i]->seq.paused = false;
    run_until_idle(e);
    for (uint32_t i = 0; i < 5; i++)
        finish(f[i]);
}

static void a_paused_sequence_costs_only_itself(void **state)
{
    (void)state;
    struct fake_engine e;
    struct fake_options opt = roomy;
    opt.scheduler.n_blocks = 12;
    opt.scheduler.max_seqs = 1;
    fake_engine_init(&e, &opt);
    struct fake_sequence *slow = add(&e, text, 100, 50, true);
    fake_engine_step(&e);
    fake_engine_step(&e);
    slow->seq.paused = true;
    uint32_t n_tokens = slow->seq.n_tokens;
    struct fake_sequence *next = add(&e, other, 120, 5, false);
    for (uint32_t i = 0; i < 20; i++)
        fake_engine_step(&e);
    assert_int_equal(next->seq.state, SEQUENCE_ENDED);
    assert_int_equal(slow->seq.n_tokens, n_tokens);
    slow->seq.paused = false;
    run_until_idle(&e);
    finish(slow);
    finish(next);
    fake_engine_deinit(&e);
}

/* Batch has all the slots it may have, one of them paused; the youngest paused one is interactive, whose slot would not help. */
static void a_paused_batch_sequence_makes_room_for_batch(void **state)
{
    (void)state;
    struct fake_engine e;
    struct fake_options opt = roomy;
    struct fake_sequence *f[5];
    opt.scheduler.max_seqs = 4; /* three of them for batch */
    fake_engine_init(&e, &opt);
    for (uint32_t i = 0; i < 4; i++)
        f[i] = add(&e, i % 2 == 0 ? text : other, 40 + i, 60, i == 3);
    for (uint32_t i = 0; i < 5; i++)
        fake_engine_step(&e);
    f[1]->seq.paused = f[3]->seq.paused = true;
    f[4] = add(&e, text, 70, 5, false);
    for (uint32_t i = 0; i < 20; i++)
        fake_engine_step(&e);
    assert_int_equal(f[4]->seq.state, SEQUENCE_ENDED);
    assert_int_equal(f[3]->seq.state, SEQUENCE_RUNNING);
    f[1]->seq.paused = f[3]->seq.paused = false;
    run_until_idle(&e);
    for (uint32_t i = 0; i < 5; i++)
        finish(f[i]);
    fake_engine_deinit(&e);
}

static void what_can_never_fit_is_refused_with_the_numbers(void **state)
{
    (void)state;
    struct fake_engine e;
    struct fake_options opt = roomy;
    struct error err = { 0 };
    opt.scheduler.n_blocks = 10;
    fake_engine_init(&e, &opt);
    struct fake_sequence *f = fake_sequence_new(text, 512, 512, 1);
    assert_int_equal(fake_engine_add(&e, f, &err), ST_LIMIT);
    assert_int_equal(err.code, ERR_CONTEXT_OVERFLOW);
    assert_non_null(strstr(err.message, "512"));
    fake_sequence_free(f);
    f = fake_sequence_new(text, 161, 161, 1);
    assert_int_equal(fake_engine_add(&e, f, &err), ST_LIMIT);
    assert_int_equal(err.code, ERR_LIMIT_EXCEEDED);
    assert_non_null(strstr(err.message, "161"));
    assert_non_null(strstr(err.message, "160"));
    fake_sequence_free(f);
    fake_engine_deinit(&e);
}

static void one_sequence_may_fill_the_whole_pool(void **state)
{
    (void)state;
    struct fake_engine e;
    struct fake_options opt = roomy;
    opt.scheduler.n_blocks = 10;
    fake_engine_init(&e, &opt);
    struct fake_sequence *a = add(&e, text, 150, 10, true);
    run_until_idle(&e);
    /* Half of its last block matches, but there is no block left to copy from and to. */
    struct fake_sequence *b = add(&e, text, 155, 5, true);
    run_until_idle(&e);
    assert_true(b->seq.n_cached >= 144);
    finish(a);
    finish(b);
    fake_engine_deinit(&e);
}

/* --- random traffic --- */

enum { LIVE = 40 };
static struct fake_sequence *live[LIVE];

static void maybe_add(struct fake_engine *e, const struct fake_options *opt, uint32_t at)
{
    int32_t prompt[CONTEXT];
    struct error err;
    uint32_t n = 1 + random_below(&rng, random_below(&rng, 8) == 0 ? 300 : 60);
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = random_below(&rng, 60) == 0 ? (int32_t)random_below(&rng, 5) : 1;
    uint32_t max_tokens = 1 + random_below(&rng, 40), context = opt->scheduler.context_tokens;
    if (n < context && max_tokens > context - n)
        max_tokens = context - n;
    struct fake_sequence *f = fake_sequence_new(prompt, n, n, max_tokens);
    f->seq.interactive = random_below(&rng, 3) == 0;
    f->seq.cache_off = random_below(&rng, 8) == 0;
    f->seq.scope.id[0] = random_below(&rng, 3);
    f->seq.fair_tag = random_below(&rng, 4);
    f->sampling = (struct sampling){ .seed = random_next(&rng), .temperature = (float)random_below(&rng, 2) };
    enum status st = fake_engine_add(e, f, &err);
    if (st == ST_OK) {
        live[at] = f;
        return;
    }
    assert_true(n + 1 > opt->scheduler.n_blocks * BLOCK_TOKENS || n >= context);
    fake_sequence_free(f);
}

/* A family of choices, when there is room for it in live[]. */
static void add_choices(struct fake_engine *e, uint32_t at)
{
    int32_t prompt[CONTEXT];
    struct error err;
    uint32_t n = 1 + random_below(&rng, 50);
    bool off = random_below(&rng, 4) == 0;
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = 2;
    for (uint32_t i = 0; i < 3; i++) {
        struct fake_sequence *f = fake_sequence_new(prompt, n, n, 1 + random_below(&rng, 40));
        f->seq.choice = i;
        f->seq.cache_off = off;
        f->seq.leader = i > 0 ? &live[at]->seq : NULL;
        f->sampling = (struct sampling){ .seed = 9, .temperature = 1 };
        assert_int_equal(fake_engine_add(e, f, &err), ST_OK);
        live[at + i] = f;
    }
}

static bool family_is_free(uint32_t at)
{
    return live[at] == NULL && live[at + 1] == NULL && live[at + 2] == NULL;
}

static bool leads_somebody(const struct sequence *leader)
{
    for (uint32_t i = 0; i < LIVE; i++)
        if (live[i] != NULL && live[i]->seq.leader == leader)
            return true;
    return false;
}

static void touch(struct fake_engine *e, const struct fake_options *opt, uint32_t at)
{
    if (at < 6) { /* two families of three */
        if (at % 3 == 0 && family_is_free(at) && opt->scheduler.context_tokens > 95)
            add_choices(e, at);
    } else if (live[at] == NULL) {
        maybe_add(e, opt, at);
        return;
    }
    if (live[at] == NULL)
        return;
    if (random_below(&rng, 10) == 0)
        live[at]->seq.paused = !live[at]->seq.paused;
    else if (random_below(&rng, 20) == 0)
        scheduler_end(e->scheduler, &live[at]->seq);
}

static void collect(bool unpause)
{
    for (uint32_t i = LIVE; i-- > 0;) {
        if (live[i] == NULL)
            continue;
        if (unpause)
            live[i]->seq.paused = false;
        if (live[i]->seq.state != SEQUENCE_ENDED || leads_somebody(&live[i]->seq))
            continue;
        if (live[i]->seq.n_tokens == live[i]->seq.tokens_max)
            fake_sequence_check(live[i]);
        fake_sequence_free(live[i]);
        live[i] = NULL;
    }
}

static uint32_t n_live(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < LIVE; i++)
        n += live[i] != NULL;
    return n;
}

static void random_run(void)
{
    struct fake_engine e;
    struct fake_options opt = roomy;
    opt.scheduler.n_blocks = 8 + random_below(&rng, 60);
    opt.scheduler.context_tokens = 400;
    if (opt.scheduler.context_tokens > opt.scheduler.n_blocks * BLOCK_TOKENS)
        opt.scheduler.context_tokens = opt.scheduler.n_blocks * BLOCK_TOKENS;
    opt.scheduler.max_seqs = 1 + random_below(&rng, 12);
    opt.scheduler.max_rows = opt.scheduler.max_seqs + 1 + random_below(&rng, 64);
    opt.scheduler.step_ns_max = random_below(&rng, 2) * 20000000;
    opt.scheduler.age_ns = 100000000;
    fake_engine_init(&e, &opt);
    for (uint32_t i = 0; i < 400; i++) {
        touch(&e, &opt, random_below(&rng, LIVE));
        e.event_slots = random_below(&rng, 4) == 0 ? random_below(&rng, 16) : UINT32_MAX;
        fake_engine_step(&e);
        scheduler_check(e.scheduler);
        collect(false);
    }
    e.event_slots = UINT32_MAX;
    for (uint32_t i = 0; i < 20000 && n_live() > 0; i++) {
        collect(true);
        fake_engine_step(&e);
        scheduler_check(e.scheduler);
    }
    assert_int_equal(n_live(), 0); /* everyone ends */
    assert_int_equal(scheduler_kv_counts(e.scheduler).n_pinned, 0);
    fake_engine_deinit(&e);
}

static void under_random_traffic_blocks_are_conserved_and_everyone_ends_with_the_right_answer(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < random_ops(); i++)
        random_run();
}

int main(int argc, char **argv)
{
    rng = random_start(argc, argv, 150);
    for (int32_t i = 0; i < CONTEXT; i++) {
        text[i] = i % 37;
        other[i] = 49 - i % 31;
    }
    const struct CMUnitTest tests[] = {
        in_roomy(a_long_prompt_is_computed_in_chunks_within_the_budget),
        cmocka_unit_test(an_equal_prompt_is_found_but_for_its_last_token),
        in_roomy(the_next_turn_of_a_chat_computes_only_what_is_new),
        in_roomy(blocks_of_another_scope_are_never_met),
        in_roomy(cache_off_neither_finds_nor_leaves_blocks),
        cmocka_unit_test(choices_share_the_prompts_blocks_and_it_is_computed_once),
        in_roomy(decodes_come_first_and_never_miss_a_step),
        in_roomy(a_short_prompt_passes_a_long_one_and_the_long_one_still_moves),
        cmocka_unit_test(a_step_is_kept_short_by_what_the_last_ones_took),
        cmocka_unit_test(batch_prompts_fill_a_quarter_of_a_step_and_leave_it_to_questions),
        cmocka_unit_test(an_interactive_request_is_in_the_next_plan_whatever_batch_runs),
        cmocka_unit_test(batch_never_stops_under_interactive_load),
        cmocka_unit_test(within_a_class_the_fair_tag_orders),
        cmocka_unit_test(the_youngest_batch_sequence_is_preempted_first_and_answers_as_if_undisturbed),
        cmocka_unit_test(a_request_that_another_worker_began_goes_on_as_if_undisturbed),
        in_roomy(a_shared_prefix_in_the_making_is_waited_for),
        cmocka_unit_test(waiting_for_a_prefix_ends_with_its_bound_or_its_maker),
        in_roomy(nothing_is_sampled_without_room_for_its_events),
        in_roomy(the_fifth_interactive_prompt_is_in_the_plan_beside_a_long_batch_prompt),
        cmocka_unit_test(ageing_passes_over_what_cannot_run),
        in_roomy(paused_prompts_keep_nobody_from_the_rows),
        cmocka_unit_test(a_paused_sequence_costs_only_itself),
        cmocka_unit_test(a_paused_batch_sequence_makes_room_for_batch),
        cmocka_unit_test(what_can_never_fit_is_refused_with_the_numbers),
        cmocka_unit_test(one_sequence_may_fill_the_whole_pool),
        cmocka_unit_test(under_random_traffic_blocks_are_conserved_and_everyone_ends_with_the_right_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
