/* A worker's loop in this process, the test being its broker: what requests are answered, in which order events come, and
 * that nothing stays behind however a request leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "tests/support/fake_backend.h"
#include "tests/support/random.h"
#include "tests/support/worker_rig.h"

static struct random rng;
static const struct worker_rig_options fake = { 0 }, real = { .real = true };

static const struct test_request question = {
    .prompt = "The quick brown fox jumps over the lazy dog, and then again over the other one.",
    .flags = WORK_INTERACTIVE,
    .max_tokens = 40,
};

/* The text that ids stand for, without stop strings. */
static size_t text_of(const struct worker_rig *r, const int32_t *ids, uint32_t n, uint8_t *out)
{
    struct utf8_hold hold = { 0 };
    size_t n_out = 0;
    for (uint32_t i = 0; i < n; i++)
        n_out += utf8_hold_push(&hold, tokenizer_piece(r->engine.tokenizer, ids[i], false), out + n_out);
    return n_out + utf8_hold_finish(&hold, out + n_out);
}

static void check_text(struct worker_rig *r, uint32_t slot)
{
    uint8_t text[8192];
    struct test_choice *c = &r->broker.answers[slot].choices[0];
    size_t n = text_of(r, c->ids, c->n_ids, text);
    assert_int_equal(c->n_text, n);
    assert_memory_equal(c->text, text, n);
}

static void an_answer_comes_in_order_and_its_text_is_that_of_its_tokens(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct worker_rig r;
        worker_rig_open(&r, i == 0 ? &fake : &real);
        struct test_answer *a = worker_rig_ask(&r, 0, &question);
        assert_true(a->done);
        assert_int_equal(a->choices[0].finish, a->choices[0].n_ids == 40 ? FINISH_LENGTH : FINISH_STOP);
        assert_int_equal(a->completion_tokens, a->choices[0].n_ids);
        check_text(&r, 0);
        assert_true(worker_rig_is_clean(&r));
        worker_rig_close(&r);
    }
}

static void the_same_prompt_again_is_cached_and_the_answer_bit_equal(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = question;
    q.sampling = (struct sampling){ .temperature = 1, .seed = 11, .logprobs = 1, .n_logprobs = 3 };
    worker_rig_open(&r, &real);
    struct test_answer *a = worker_rig_ask(&r, 0, &q), *b = worker_rig_ask(&r, 1, &q);
    assert_int_equal(a->cached_tokens, 0);
    assert_int_equal(b->cached_tokens, b->prompt_tokens - 1);
    assert_int_equal(a->choices[0].n_ids, b->choices[0].n_ids);
    assert_memory_equal(a->choices[0].ids, b->choices[0].ids, a->choices[0].n_ids * sizeof(int32_t));
    assert_true(a->choices[0].n_logprob_bytes >= a->choices[0].n_ids * 44);
    q.flags |= WORK_CACHE_OFF;
    struct test_answer *c = worker_rig_ask(&r, 2, &q);
    assert_int_equal(c->cached_tokens, 0);
    assert_memory_equal(a->choices[0].ids, c->choices[0].ids, a->choices[0].n_ids * sizeof(int32_t));
    worker_rig_close(&r);
}

static void each_choice_draws_its_own_numbers_and_the_same_ones_again(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = question;
    q.n_choices = 4;
    q.flags |= WORK_IGNORE_EOS;
    q.sampling = (struct sampling){ .temperature = 1, .seed = 11, .frequency_penalty = 0.5f };
    worker_rig_open(&r, &real);
    struct test_answer *a = worker_rig_ask(&r, 0, &q), *b = worker_rig_ask(&r, 1, &q);
    assert_int_equal(a->completion_tokens, 160);
    for (uint32_t i = 0; i < 4; i++) {
        assert_memory_equal(a->choices[i].ids, b->choices[i].ids, 40 * sizeof(int32_t));
        for (uint32_t k = 0; k < i; k++)
            assert_memory_not_equal(a->choices[i].ids, a->choices[k].ids, 40 * sizeof(int32_t));
    }
    worker_rig_close(&r);
}

static void messages_go_through_the_template_and_users_text_stays_text(void **state)
{
    (void)state;
    struct worker_rig r;
    const struct test_message m[] = { { "user", "<|im_end|>" } };
    struct test_request q = { .messages = m, .n_messages = 1, .max_tokens = 2 };
    worker_rig_open(&r, &fake);
    struct test_answer *a = worker_rig_ask(&r, 0, &q);
    /* <|im_start|> user \n, ten bytes of text, <|im_end|> \n, <|im_start|> assistant \n */
    assert_true(a->prompt_tokens >= 1 + 3 + 10 + 2 + 1 + 9);
    struct test_request nonsense = q;
    nonsense.template_name = "no-such";
    a = worker_rig_ask(&r, 0, &nonsense);
    assert_int_not_equal(a->error, ERR_NONE);
    worker_rig_close(&r);
}

static void a_stop_string_is_cut_exactly_wherever_tokens_end(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = question;
    q.flags |= WORK_IGNORE_EOS;
    worker_rig_open(&r, &fake);
    worker_rig_ask(&r, 0, &q);
    const char *whole = test_text(&r.broker, 0, 0);
    size_t n = strlen(whole);
    for (size_t at = 1; at + 4 < n; at++) {
        char stop[16];
        size_t n_stop = 0;
        if ((whole[at] & 0xc0) == 0x80)
            continue; /* not the beginning of a character */
        while (n_stop < 12 && (n_stop < 2 || (whole[at + n_stop] & 0xc0) == 0x80) && at + n_stop < n)
            stop[n_stop] = whole[at + n_stop], n_stop++;
        while (at + n_stop < n && (whole[at + n_stop] & 0xc0) == 0x80)
            n_stop--; /* not within one */
        stop[n_stop] = '\0';
        if (n_stop == 0)
            continue;
        q.stops[0] = "never to be found";
        q.stops[1] = stop;
        struct test_answer *a = worker_rig_ask(&r, 1, &q);
        assert_int_equal(a->choices[0].finish, FINISH_STOP);
        assert_int_equal(a->choices[0].stop_index, 1);
        size_t expected = (size_t)(strstr(whole, stop) - whole);
        assert_int_equal(a->choices[0].n_text, expected);
        assert_memory_equal(whole, test_text(&r.broker, 1, 0), expected);
    }
    worker_rig_close(&r);
}

/* The same five requests on a worker of this shape, all at once or one after the other; ids and log-probabilities to out. */
static void five_answers(const struct worker_rig_options *opt, bool at_once, bool crowded, uint64_t out[5][2])
{
    static const char *const prompts[] = { "the", "the quick brown fox jumps over the lazy dog", "in the beginning there was nothing at all, and then",
                                           "the quick brown fox jumps over the lazy cat", "er" };
    struct worker_rig r;
    worker_rig_open(&r, opt);
    for (uint32_t i = 0; i < 5; i++) {
        struct test_request q = { .prompt = prompts[i], .max_tokens = 60, .flags = WORK_IGNORE_EOS,
                                  .sampling = { .temperature = i == 1 ? 0 : 1, .seed = i, .logprobs = 1, .n_logprobs = 4,
                                                .repetition_penalty = i == 2 ? 1.3f : 1 } };
        if (crowded)
            for (uint32_t k = 0; k < 4; k++) {
                struct test_request other = q;
                other.sampling.seed = 100 * i + k;
                other.flags = k % 2 == 0 ? WORK_INTERACTIVE : WORK_IGNORE_EOS;
                region_broker_send(&r.broker, 10 + 4 * i + k, &other);
            }
        region_broker_send(&r.broker, i, &q);
        if (!at_once)
            worker_rig_run(&r, 100000);
    }
    worker_rig_run(&r, 100000);
    for (uint32_t i = 0; i < 5; i++) {
        const struct test_choice *c = &r.broker.answers[i].choices[0];
        assert_int_equal(c->n_ids, 60);
        out[i][0] = 0;
        for (uint32_t k = 0; k < 60; k++)
            out[i][0] = out[i][0] * 31 + (uint32_t)c->ids[k];
        out[i][1] = c->logprob_hash;
    }
    if (opt->n_blocks == 16)
        assert_true(scheduler_counters(worker_scheduler(r.worker)).preemptions > 0);
    assert_true(worker_rig_is_clean(&r));
    worker_rig_close(&r);
}

static void an_answer_has_the_same_bits_alone_in_a_crowd_in_chunks_and_preempted(void **state)
{
    (void)state;
    static const struct worker_rig_options shapes[] = {
        { .real = true },
        { .real = true, .max_seqs = 3, .max_rows = 5 },
        { .real = true, .max_seqs = 8, .max_rows = 64, .n_blocks = 16 },
    };
    uint64_t alone[5][2], again[5][2];
    five_answers(&shapes[0], false, false, alone);
    for (size_t i = 0; i < 3; i++)
        for (int crowded = 0; crowded < 2; crowded++) {
            five_answers(&shapes[i], true, crowded, again);
            assert_memory_equal(alone, again, sizeof(alone));
        }
}

/* --- takeover --- */

/* Take an answer's first n_events events, then let another worker go on; the whole must be as if undisturbed. */
static void take_over_after(const struct worker_rig *whole, const struct test_request *q, uint32_t n_events)
{
    struct worker_rig first, second;
    struct test_resume resume[CHOICES_MAX];
    const struct test_answer *right = &whole->broker.answers[0];
    worker_rig_open(&first, &fake);
    region_broker_send(&first.broker, 0, q);
    struct test_answer *a = &first.broker.answers[0];
    while (a->live && a->n_events < n_events) {
        if (region_broker_take(&first.broker, 1) == 0 && worker_pass(first.worker) != WORKER_BUSY)
            assert_int_equal(worker_sleep(first.worker, WORKER_IDLE, -1, 2), ST_OK);
    }
    if (!a->live) {
        worker_rig_close(&first);
        return;
    }
    struct test_request rest = *q;
    rest.resume = resume;
    rest.n_resume = a->started ? a->n_choices : 0;
    for (uint32_t i = 0; i < rest.n_resume; i++)
        resume[i] = (struct test_resume){ i, a->choices[i].n_ids, (uint32_t)a->choices[i].n_text,
                                          a->choices[i].finish != FINISH_NONE, a->choices[i].ids };
    worker_rig_open(&second, &fake);
    struct test_answer *b = worker_rig_ask(&second, 0, &rest);
    assert_true(b->done);
    assert_int_equal(b->completion_tokens, right->completion_tokens);
    for (uint32_t i = 0; i < a->n_choices; i++) {
        const struct test_choice *c = &b->choices[i], *w = &right->choices[i];
        size_t n_before = a->choices[i].n_text;
        assert_int_equal(c->n_ids, w->n_ids);
        assert_memory_equal(c->ids, w->ids, w->n_ids * sizeof(int32_t));
        assert_int_equal(n_before + c->n_text, w->n_text);
        assert_memory_equal(a->choices[i].text, w->text, n_before);
        assert_memory_equal(c->text, w->text + n_before, c->n_text);
        if (a->choices[i].finish == FINISH_NONE)
            assert_int_equal(c->finish, w->finish);
    }
    worker_rig_close(&first);
    worker_rig_close(&second);
}

static void a_takeover_after_any_event_gives_the_undisturbed_answer(void **state)
{
    (void)state;
    struct worker_rig whole;
    struct test_request q = question;
    q.n_choices = 2;
    q.max_tokens = 24;
    q.stops[0] = "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"; /* held back often: bytes of no character become U+FFFD */
    q.sampling = (struct sampling){ .temperature = 1, .seed = 6, .presence_penalty = 0.3f, .logprobs = 1, .n_logprobs = 2 };
    for (uint64_t seed = 6; seed < 9; seed++) {
        q.sampling.seed = seed;
        worker_rig_open(&whole, &fake);
        struct test_answer *a = worker_rig_ask(&whole, 0, &q);
        assert_true(a->done);
        for (uint32_t n = 0; n < a->n_events; n++)
            take_over_after(&whole, &q, n);
        worker_rig_close(&whole);
    }
}

static void text_that_another_worker_owed_comes_first_and_whole(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = question;
    int32_t ids[120];
    for (uint32_t i = 0; i < 120; i++)
        ids[i] = i % 2 == 0 ? 0xc3 - 174 + 256 - 174 : 64; /* any ordinary bytes */
    struct test_resume resume = { 0, 120, 0, 0, ids };
    q.resume = &resume;
    q.n_resume = 1;
    q.max_tokens = 150;
    q.flags |= WORK_IGNORE_EOS;
    worker_rig_open(&r, &fake);
    struct test_answer *a = worker_rig_ask(&r, 0, &q);
    assert_true(a->done);
    assert_int_equal(a->choices[0].n_ids, 150);
    check_text(&r, 0);
    worker_rig_close(&r);
}

/* --- leaving --- */

static void cancel_frees_everything_at_any_time(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = question;
    q.max_tokens = 150;
    q.flags |= WORK_IGNORE_EOS;
    q.n_choices = 3;
    worker_rig_open(&r, &fake);
    for (uint32_t n_passes = 0; n_passes < 12; n_passes++) {
        region_broker_send(&r.broker, 5, &q);
        worker_rig_run(&r, n_passes);
        assert_true(r.broker.answers[5].live);
        region_broker_flag(&r.broker, 5, SLOT_CANCEL);
        worker_rig_run(&r, 1000);
        assert_int_equal(r.broker.answers[5].error, ERR_CANCELLED);
        assert_true(worker_rig_is_clean(&r));
    }
    worker_rig_close(&r);
}

static void a_flag_of_an_earlier_generation_is_ignored(void **state)
{
    (void)state;
    struct worker_rig r;
    worker_rig_open(&r, &fake);
    region_broker_send(&r.broker, 5, &question);
    atomic_store(&r.broker.region.slots[5].word, (uint64_t)(r.broker.generations[5] - 1) << 32 | SLOT_CANCEL);
    worker_rig_run(&r, 1000);
    assert_true(r.broker.answers[5].done);
    worker_rig_close(&r);
}

static void a_deadline_ends_a_request_with_its_code(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = question;
    q.max_tokens = 150;
    worker_rig_open(&r, &fake);
    q.deadline_ns = 1;
    assert_int_equal(worker_rig_ask(&r, 0, &q)->error, ERR_DEADLINE_EXCEEDED);
    struct test_answer *a;
    uint64_t step_ns = 3000000;
    do { /* a busy machine may take so long that it has not begun by then */
        assert_true(step_ns < UINT64_C(3000000000));
        fake_backend_set_delay(r.engine.backend, step_ns);
        q.deadline_ns = clock_now_ns() + 10 * step_ns;
        a = worker_rig_ask(&r, 0, &q);
        assert_int_equal(a->error, ERR_DEADLINE_EXCEEDED);
        step_ns *= 2;
    } while (!a->started || a->choices[0].n_ids == 0);
    assert_true(worker_rig_is_clean(&r));
    worker_rig_close(&r);
}

static void a_paused_request_says_nothing_until_it_is_resumed(void **state)
{
    (void)state;
    struct worker_rig r;
    worker_rig_open(&r, &fake);
    struct test_request q = question;
    q.flags |= WORK_IGNORE_EOS;
    region_broker_send(&r.broker, 0, &q);
    while (r.broker.answers[0].choices[0].n_ids < 5)
        worker_rig_run(&r, 1);
    region_broker_flag(&r.broker, 0, SLOT_PAUSE);
    uint32_t n_events = r.broker.answers[0].n_events;
    worker_rig_run(&r, 20);
    assert_int_equal(r.broker.answers[0].n_events, n_events);
    region_broker_flag(&r.broker, 0, 0);
    worker_rig_run(&r, 1000);
    assert_true(r.broker.answers[0].done);
    check_text(&r, 0);
    worker_rig_close(&r);
}

static void a_drained_worker_finishes_what_it_has(void **state)
{
    (void)state;
    struct worker_rig r;
    worker_rig_open(&r, &fake);
    region_broker_send(&r.broker, 0, &question);
    region_broker_drain(&r.broker);
    worker_rig_run(&r, 1000);
    assert_true(r.broker.answers[0].done);
    assert_int_equal(worker_pass(r.worker), WORKER_DRAINED);
    worker_rig_close(&r);
}

static void a_full_event_ring_stalls_and_loses_nothing(void **state)
{
    (void)state;
    struct worker_rig r;
    struct test_request q = question;
    q.flags |= WORK_IGNORE_EOS;
    q.max_tokens = 150;
    q.n_choices = 8;
    q.sampling = (struct sampling){ .temperature = 1, .logprobs = 1, .n_logprobs = 20 };
    worker_rig_open(&r, &fake);
    for (uint32_t slot = 0; slot < 8; slot++) {
        q.sampling.seed = slot;
        region_broker_send(&r.broker, slot, &q);
    }
    uint32_t n_stalled = 0;
    for (uint32_t i = 0; i < 4000 && n_stalled < 50; i++) { /* nobody takes events */
        enum worker_state state_now = worker_pass(r.worker);
        n_stalled += state_now == WORKER_STALLED;
        assert_int_not_equal(state_now, WORKER_BROKEN);
        if (state_now != WORKER_BUSY)
            assert_int_equal(worker_sleep(r.worker, state_now, -1, 2), ST_OK);
    }
    assert_int_equal(n_stalled, 50);
    region_broker_flag(&r.broker, 3, SLOT_CANCEL); /* an end is always possible */
    worker_pass(r.worker);
    worker_rig_run(&r, 100000);
    for (uint32_t slot = 0; slot < 8; slot++)
        assert_true(slot == 3 ? r.broker.answers[slot].error == ERR_CANCELLED : r.broker.answers[slot].completion_tokens == 1200);
    assert_true(worker_rig_is_clean(&r));
    worker_rig_close(&r);
}

static void tokenize_gives_ids_in_pieces_and_no_control_tokens_unless_raw(void **state)
{
    (void)state;
    struct worker_rig r;
    static char lengthy[300001];
    struct test_request q = { .kind = WORK_TOKENIZE, .prompt = "the <|im_end|>" };
    worker_rig_open(&r, &fake);
    struct test_answer *a = worker_rig_ask(&r, 0, &q);
    assert_true(a->done);
    assert_int_equal(a->n_ids, 1 + 1 + 10);
    q.flags = WORK_RAW;
    a = worker_rig_ask(&r, 0, &q);
    assert_int_equal(a->n_ids, 3);
    assert_int_equal(a->ids[2], RIG_EOS + 1);
    memset(lengthy, 'x', 300000);
    q.prompt = lengthy;
    a = worker_rig_ask(&r, 0, &q);
    assert_int_equal(a->n_ids, 300000);
    q.prompt = "";
    a = worker_rig_ask(&r, 0, &q);
    assert_true(a->done);
    assert_int_equal(a->n_ids, 0);
    worker_rig_close(&r);
}

/* --- what must be refused --- */

static void expect_error(struct worker_rig *r, const struct test_request *q, enum error_code code, const char *part)
{
    struct test_answer *a = worker_rig_ask(r, 9, q);
    assert_int_equal(a->error, code);
    if (strstr(a->message, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, a->message);
    assert_true(worker_rig_is_clean(r));
}

static void what_cannot_be_done_is_refused_by_name(void **state)
{
    (void)state;
    struct worker_rig r;
    static char lengthy[400];
    struct test_request q = question;
    worker_rig_open(&r, &fake);
    memset(lengthy, 'x', 300);
    q.prompt = lengthy;
    expect_error(&r, &q, ERR_CONTEXT_OVERFLOW, "300 tokens");
    q.prompt = "";
    expect_error(&r, &q, ERR_INVALID_PARAMETER, "empty");
    int32_t ids[] = { 5, RIG_VOCAB };
    q = (struct test_request){ .ids = ids, .n_ids = 2 };
    expect_error(&r, &q, ERR_INVALID_PARAMETER, "prompt_ids[1]");
    struct logit_bias bias = { -1, 1 };
    q = question;
    q.bias = &bias;
    q.n_bias = 1;
    expect_error(&r, &q, ERR_INVALID_PARAMETER, "logit_bias");
    const struct test_message m[] = { { "wizard", "hello" } };
    q = (struct test_request){ .messages = m, .n_messages = 1 };
    expect_error(&r, &q, ERR_INVALID_PARAMETER, "messages[0].role");
    q = question;
    q.sampling.temperature = -1;
    expect_error(&r, &q, ERR_MALFORMED_MESSAGE, "temperature");
    worker_rig_close(&r);
}

static void broken_records_are_answered_and_harm_nothing(void **state)
{
    (void)state;
    struct worker_rig r;
    static uint8_t record[1 << 16];
    struct logit_bias bias[] = { { 3, 1 }, { 9, -100 } };
    int32_t ids[] = { 1, 2, 3 };
    struct test_resume resume[] = { { 1, 3, 2, 0, ids } };
    const struct test_message m[] = { { "user", "hello there" } };
    worker_rig_open(&r, &fake);
    for (uint64_t i = 0; i < random_ops(); i++) {
        uint32_t slot = random_below(&rng, 100);
        struct test_request q = { .prompt = "abcabc", .max_tokens = 3, .n_choices = 2, .stops = { "xy", "z" }, .bias = bias,
                                  .n_bias = 2, .resume = resume, .n_resume = 1, .flags = WORK_INTERACTIVE };
        if (random_below(&rng, 3) == 0)
            q.messages = m, q.n_messages = 1;
        uint32_t bytes = region_broker_record(&q, slot, r.broker.generations[slot] + 1, record, sizeof(record));
        for (uint32_t k = random_below(&rng, 4); k > 0; k--) {
            uint32_t at = random_below(&rng, random_below(&rng, 2) == 0 ? (uint32_t)sizeof(struct work_request) : bytes);
            record[at] = random_below(&rng, 2) == 0 ? (uint8_t)random_next(&rng) : (uint8_t)(record[at] ^ 1u << random_below(&rng, 8));
        }
        if (random_below(&rng, 8) == 0)
            bytes = (uint32_t)sizeof(struct work_request) + random_below(&rng, bytes - (uint32_t)sizeof(struct work_request));
        region_broker_send_bytes(&r.broker, slot, record, bytes);
        if (random_below(&rng, 4) != 0)
            worker_rig_run(&r, 100000);
        else
            worker_rig_run(&r, random_below(&rng, 4));
        assert_int_not_equal(r.state, WORKER_BROKEN);
        for (uint32_t s = 0; s < REGION_SLOTS; s++) /* a changed deadline or pause may leave one; end it */
            if (r.broker.answers[s].live)
                region_broker_flag(&r.broker, s, SLOT_CANCEL);
        worker_rig_run(&r, 100000);
        assert_true(worker_rig_is_clean(&r));
    }
    assert_true(worker_rig_ask(&r, 0, &question)->done);
    worker_rig_close(&r);
}

static void a_broken_ring_ends_the_worker(void **state)
{
    (void)state;
    static const struct work_message bad[] = {
        { .type = 9, .generation = 1 },
        { .type = WORK_START, .slot = REGION_SLOTS, .generation = 1, .record_bytes = 512 },
        { .type = WORK_START, .slot = 1, .generation = 0, .record_bytes = 512 },
        { .type = WORK_START, .slot = 1, .generation = 1, .record_bytes = 512, .record_at = ARENA_BYTES },
        { .type = WORK_START, .slot = 1, .generation = 1, .record_bytes = 512, .record_at = UINT64_MAX - 63 },
        { .type = WORK_START, .slot = 1, .generation = 1, .record_bytes = RECORD_BYTES_MAX, .record_at = ARENA_BYTES - 64 },
        { .type = WORK_START, .slot = 1, .generation = 1, .record_bytes = 8 },
        { .type = WORK_START, .slot = 1, .generation = 1, .record_bytes = 512, .record_at = 8 },
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct worker_rig r;
        worker_rig_open(&r, &fake);
        assert_int_equal(ring_push(&r.broker.region.requests, &bad[i], 1), ST_OK);
        assert_int_equal(worker_pass(r.worker), WORKER_BROKEN);
        worker_rig_close(&r);
    }
    struct worker_rig r;
    worker_rig_open(&r, &fake);
    atomic_store(&r.broker.region.events.shared->head, UINT64_MAX / 2);
    assert_int_equal(worker_pass(r.worker), WORKER_BROKEN);
    worker_rig_close(&r);
}

static void a_failed_step_ends_the_worker(void **state)
{
    (void)state;
    struct worker_rig r;
    worker_rig_open(&r, &fake);
    fake_backend_fail_after(r.engine.backend, 3);
    region_broker_send(&r.broker, 0, &question);
    worker_rig_run(&r, 1000);
    assert_int_equal(r.state, WORKER_BROKEN);
    worker_rig_close(&r);
}

static void the_statistics_page_adds_up(void **state)
{
    (void)state;
    struct worker_rig r;
    worker_rig_open(&r, &fake);
    const struct region_stats *s = r.broker.region.stats;
    uint64_t before_ns = clock_now_ns();
    struct test_answer *a = worker_rig_ask(&r, 0, &question);
    worker_rig_ask(&r, 1, &question);
    assert_int_equal(s->requests_started, 2);
    assert_int_equal(s->requests_ended, 2);
    assert_int_equal(s->prefill_tokens, a->prompt_tokens + 1);
    assert_int_equal(s->cached_tokens, a->prompt_tokens - 1);
    assert_int_equal(s->decode_tokens, 2 * a->completion_tokens);
    assert_int_equal(s->step_began_ns, 0);
    assert_true(s->heartbeat_ns > before_ns && s->steps > 0);
    assert_int_equal(s->blocks_pinned, 0);
    assert_int_equal(s->blocks_free + s->blocks_cached, 128);
    worker_rig_close(&r);
}

/* --- a question beside others' work --- */

static void a_short_question_is_in_the_plan_of_the_pass_that_takes_it(void **state)
{
    (void)state;
    struct worker_rig r;
    const struct worker_rig_options opt = { .tokenize_wait_ns = UINT64_C(60000000000) };
    worker_rig_open(&r, &opt);
    region_broker_send(&r.broker, 0, &(struct test_request){ .prompt = "in the beginning", .max_tokens = 60, .flags = WORK_IGNORE_EOS });
    while (r.broker.answers[0].choices[0].n_ids == 0) /* of batch: no plan waits for it */
        worker_rig_run(&r, 1);
    for (uint32_t slot = 1; slot < 4; slot++)
        region_broker_send(&r.broker, slot, &(struct test_request){ .prompt = "the", .max_tokens = 1, .flags = WORK_INTERACTIVE });
    worker_pass(r.worker);
    region_broker_take(&r.broker, UINT32_MAX);
    for (uint32_t slot = 1; slot < 4; slot++)
        assert_int_equal(r.broker.answers[slot].completion_tokens, 1);
    assert_true(r.broker.answers[0].live);
    worker_rig_run(&r, 1000);
    worker_rig_close(&r);
}

/* --- many at once --- */

static void send_something(struct worker_rig *r, uint32_t slot)
{
    static const char *const prompts[] = { "the", "in the beginning", "the quick brown fox jumps over the lazy dog",
                                           "the quick brown fox sleeps", "er" };
    static char lengthy[231];
    memset(lengthy, 'a', 230);
    struct test_request q = {
        .prompt = random_below(&rng, 8) == 0 ? lengthy : prompts[random_below(&rng, 5)],
        .max_tokens = random_below(&rng, 4) == 0 ? 0 : 1 + random_below(&rng, 60),
        .n_choices = random_below(&rng, 4) == 0 ? 1 + random_below(&rng, 5) : 1,
        .flags = (uint16_t)((random_below(&rng, 2) == 0 ? WORK_INTERACTIVE : 0) | (random_below(&rng, 8) == 0 ? WORK_CACHE_OFF : 0)),
        .scope = { random_below(&rng, 2), 0 },
        .fair_tag = random_below(&rng, 10),
        .sampling = { .temperature = (float)random_below(&rng, 2), .seed = random_next(&rng), .logprobs = random_below(&rng, 4) == 0,
                      .repetition_penalty = random_below(&rng, 2) == 0 ? 1 : 1.2f },
        .deadline_ns = random_below(&rng, 16) == 0 ? clock_now_ns() + random_below(&rng, 20000000) : 0,
    };
    if (random_below(&rng, 3) == 0)
        q.stops[0] = "e";
    region_broker_send(&r->broker, slot, &q);
}

static void every_request_has_exactly_one_end_and_nothing_stays_behind(void **state)
{
    (void)state;
    struct worker_rig r;
    struct worker_rig_options opt = { .n_blocks = 40, .max_seqs = 6, .max_rows = 32 };
    worker_rig_open(&r, &opt);
    for (uint64_t i = 0; i < random_ops(); i++) {
        uint32_t slot = random_below(&rng, 40);
        if (!r.broker.answers[slot].live)
            send_something(&r, slot);
        else if (random_below(&rng, 4) == 0)
            region_broker_flag(&r.broker, slot, random_below(&rng, 3)); /* nothing, cancel or pause */
        if (random_below(&rng, 50) == 0)
            worker_rig_run(&r, 20);
        worker_pass(r.worker);
        scheduler_check(worker_scheduler(r.worker));
        region_broker_take(&r.broker, random_below(&rng, 200));
    }
    for (uint32_t slot = 0; slot < 40; slot++)
        if (r.broker.answers[slot].live)
            region_broker_flag(&r.broker, slot, 0);
    worker_rig_run(&r, 1000000);
    assert_true(worker_rig_is_clean(&r));
    worker_rig_close(&r);
}

int main(int argc, char **argv)
{
    rng = random_start(argc, argv, 2000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_comes_in_order_and_its_text_is_that_of_its_tokens),
        cmocka_unit_test(the_same_prompt_again_is_cached_and_the_answer_bit_equal),
        cmocka_unit_test(each_choice_draws_its_own_numbers_and_the_same_ones_again),
        cmocka_unit_test(messages_go_through_the_template_and_users_text_stays_text),
        cmocka_unit_test(a_stop_string_is_cut_exactly_wherever_tokens_end),
        cmocka_unit_test(an_answer_has_the_same_bits_alone_in_a_crowd_in_chunks_and_preempted),
        cmocka_unit_test(a_takeover_after_any_event_gives_the_undisturbed_answer),
        cmocka_unit_test(text_that_another_worker_owed_comes_first_and_whole),
        cmocka_unit_test(cancel_frees_everything_at_any_time),
        cmocka_unit_test(a_flag_of_an_earlier_generation_is_ignored),
        cmocka_unit_test(a_deadline_ends_a_request_with_its_code),
        cmocka_unit_test(a_paused_request_says_nothing_until_it_is_resumed),
        cmocka_unit_test(a_drained_worker_finishes_what_it_has),
        cmocka_unit_test(a_full_event_ring_stalls_and_loses_nothing),
        cmocka_unit_test(tokenize_gives_ids_in_pieces_and_no_control_tokens_unless_raw),
        cmocka_unit_test(what_cannot_be_done_is_refused_by_name),
        cmocka_unit_test(broken_records_are_answered_and_harm_nothing),
        cmocka_unit_test(a_broken_ring_ends_the_worker),
        cmocka_unit_test(a_failed_step_ends_the_worker),
        cmocka_unit_test(the_statistics_page_adds_up),
        cmocka_unit_test(a_short_question_is_in_the_plan_of_the_pass_that_takes_it),
        cmocka_unit_test(every_request_has_exactly_one_end_and_nothing_stays_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
