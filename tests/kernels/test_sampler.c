/* The sampler against a stupid one that sorts everything, on random logits and parameters from a printed seed; Philox against
 * its published vectors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/numeric.h"
#include "kernels/cpu/sampler.h"

enum { VOCAB = 3001, PADDED = 3008 };

static uint64_t seed = 88172645463325252ULL;
static struct ranked ranked[VOCAB];
static float raw[PADDED];
static struct sampler_scratch scratch = { raw, ranked };

static uint32_t next(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

static int by_logit_then_token(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Sort all, then the rules of sampling.h one after the other. */
static int32_t plain(const struct plan_entry *e, float *logits)
{
    static struct ranked r[VOCAB];
    const struct sampling *s = e->sampling;
    double total = 0, sum = 0;
    uint32_t words[4], n = s->top_k > 0 && s->top_k < VOCAB ? s->top_k : VOCAB;

    for (uint32_t i = 0; i < e->n_bias; i++)
        logits[e->bias[i].token] += e->bias[i].bias;
    for (uint32_t i = 0; i < e->n_seen; i++) {
        float *l = &logits[e->seen[i].token];
        *l = *l > 0 ? *l / s->repetition_penalty : *l * s->repetition_penalty;
        if (e->seen[i].in_answer > 0)
            *l -= s->presence_penalty + s->frequency_penalty * (float)e->seen[i].in_answer;
    }
    for (uint32_t i = 0; i < VOCAB; i++)
        r[i] = (struct ranked){ logits[i], (int32_t)i };
    qsort(r, VOCAB, sizeof(r[0]), by_logit_then_token);
    if (s->temperature <= SAMPLING_GREEDY_BELOW)
        return r[0].token;
#define P(i) exp((double)(r[i].logit - r[0].logit) / (double)s->temperature)
    for (uint32_t i = 0; i < n; i++)
        total += P(i);
    for (uint32_t i = 0; i < n; i++) {
        if ((s->top_p < 1 && sum >= (double)s->top_p * total) || P(i) < (double)s->min_p)
            n = i;
        else
            sum += P(i);
    }
    total = sum;
    philox4x32((uint32_t[2]){ (uint32_t)s->seed, (uint32_t)(s->seed >> 32) }, (uint32_t[4]){ e->index, e->choice, 0, 0 }, words);
    const double target = (double)(words[0] >> 8) / 16777216.0 * total;
    sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += P(i);
        if (sum > target)
            return r[i].token;
    }
#undef P
    return r[n - 1].token;
}

static void chooses_what_sorting_everything_chooses(void **state)
{
    static float logits[PADDED], copy[PADDED];
    uint32_t differ = 0;

    (void)state;
    for (uint32_t round = 0; round < 3000; round++) {
        struct sampling s = { .seed = round, .top_p = 1, .repetition_penalty = 1, .temperature = (float)(next() % 30) / 10.0f };
        struct logit_bias bias[2] = { { (int32_t)(next() % VOCAB), 3 }, { (int32_t)(next() % VOCAB), -100 } };
        struct token_count seen[2] = { { (int32_t)(next() % VOCAB), 1, 0 }, { (int32_t)(next() % VOCAB), 1, 3 } };
        struct step_result result;
        if (next() % 2)
            s.top_k = 1 + next() % 200;
        if (next() % 2)
            s.top_p = 0.05f + 0.9f * (float)(next() % 100) / 100.0f;
        if (next() % 3 == 0)
            s.min_p = 0.1f * (float)(next() % 10) / 10.0f;
        if (next() % 3 == 0)
            s.repetition_penalty = 1.2f, s.frequency_penalty = 0.3f, s.presence_penalty = 0.1f;
        struct plan_entry e = { .want = WANT_TOKEN, .sampling = &s, .index = round, .choice = round % 3, .bias = bias, .seen = seen };
        e.n_bias = next() % 3, e.n_seen = s.repetition_penalty != 1 ? 2 : 0;
        const float spread = 1 + (float)(next() % 20), step = next() % 4 == 0 ? 0.25f : 0.0f; /* with ties now and then */
        for (uint32_t i = 0; i < VOCAB; i++) {
            logits[i] = ((float)(next() >> 8) * 0x1p-24f - 0.5f) * spread;
            if (step > 0)
                logits[i] = floorf(logits[i] / step) * step;
        }
        memcpy(copy, logits, sizeof(copy));
        sample_token(&kernels_scalar, &e, logits, VOCAB, &scratch, &result);
        differ += result.token != plain(&e, copy);
    }
    assert_true(differ <= 3); /* sums rounded in another order can move a draw that falls on an edge */
}

static void logprobs_come_from_the_raw_logits(void **state)
{
    static float logits[PADDED];
    struct sampling s = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = 3, .logprobs = 1 };
    struct logit_bias bias = { 5, 50 };
    struct plan_entry e = { .want = WANT_TOKEN, .sampling = &s, .bias = &bias, .n_bias = 1 };
    struct step_result result;
    double sum = 0;

    (void)state;
    for (uint32_t i = 0; i < VOCAB; i++) {
        logits[i] = i < 8 ? (float)i * 0.5f : -3.0f;
        sum += exp((double)logits[i]);
    }
    logits[9] = 3.5f, sum += exp(3.5) - exp(-3.0); /* equal to the one of token 7 */
    sample_token(&kernels_scalar, &e, logits, VOCAB, &scratch, &result);
    assert_int_equal(result.token, 5);
    assert_true(fabs((double)result.logprob - (2.5 - log(sum))) < 1e-4);
    assert_int_equal(result.n_top, 3);
    assert_int_equal(result.top[0].token, 7);
    assert_int_equal(result.top[1].token, 9);
    assert_int_equal(result.top[2].token, 6);
    assert_true(fabs((double)result.top[0].logprob - (3.5 - log(sum))) < 1e-4);
}

/* kat_vectors of the Random123 library, philox4x32 10 */
static void philox_gives_its_published_numbers(void **state)
{
    uint32_t w[4];

    (void)state;
    philox4x32((uint32_t[2]){ 0, 0 }, (uint32_t[4]){ 0, 0, 0, 0 }, w);
    assert_true(w[0] == 0x6627e8d5 && w[1] == 0xe169c58d && w[2] == 0xbc57ac4c && w[3] == 0x9b00dbd8);
    philox4x32((uint32_t[2]){ 0xffffffff, 0xffffffff }, (uint32_t[4]){ 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff }, w);
    assert_true(w[0] == 0x408f276d && w[1] == 0x41c83b0e && w[2] == 0xa20bc7c6 && w[3] == 0x6d5451fd);
}

static void own_functions_agree_with_the_library(void **state)
{
    double s, c;

    (void)state;
    for (double x = -690; x < 690; x += 0.37)
        assert_true(fabs(exp_f64(x) / exp(x) - 1) < 1e-14);
    for (double x = 1e-6; x < 1e6; x *= 1.003)
        assert_true(fabs(log_f64(x) - log(x)) < 1e-14 * (1 + fabs(log(x))));
    for (double x = 0; x < 140000; x += 1.61803) {
        sincos_f64(x, &s, &c);
        assert_true(fabs(s - sin(x)) < 1e-11 && fabs(c - cos(x)) < 1e-11);
    }
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = f16_to_f32((uint16_t)h);
        if (f == f)
            assert_int_equal(f32_to_f16(f), h);
    }
    assert_int_equal(f32_to_f16(65519.9f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(1.0f + 0x1p-11f), 0x3c00); /* a tie goes to even */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chooses_what_sorting_everything_chooses),
        cmocka_unit_test(logprobs_come_from_the_raw_logits),
        cmocka_unit_test(philox_gives_its_published_numbers),
        cmocka_unit_test(own_functions_agree_with_the_library),
    };

    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
