/* The real models against float32 logits of Hugging Face Transformers on the same weights: mean Kullback-Leibler divergence
 * over the 32 best of each row, sum p (log p - log q), p from the reference.  gemma3's long prompt goes past its window. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/support/engine_rig.h"
#include "tests/support/test_model_path.h"

#define DATA "tests/reference/data/"

struct divergence {
    double mean, largest;
    uint32_t n_rows, n_same_best;
};

static double log_sum_exp(const float *x, uint32_t n)
{
    double max = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        max = (double)x[i] > max ? (double)x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

static void add_row(struct divergence *d, const json_t *row, const float *logits, uint32_t n_vocab)
{
    const json_t *top = json_object_get(row, "top");
    const double lse_q = log_sum_exp(logits, n_vocab), lse_p = json_number_value(json_object_get(row, "logsumexp"));
    const json_int_t first = json_integer_value(json_array_get(json_array_get(top, 0), 0));
    double kl = 0;
    uint32_t best = 0;

    for (size_t i = 0; i < json_array_size(top); i++) {
        const json_int_t id = json_integer_value(json_array_get(json_array_get(top, i), 0));
        const double p = json_number_value(json_array_get(json_array_get(top, i), 1)) - lse_p;
        kl += exp(p) * (p - ((double)logits[id] - lse_q));
    }
    for (uint32_t i = 1; i < n_vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    d->mean += kl;
    d->largest = kl > d->largest ? kl : d->largest;
    d->n_rows++;
    d->n_same_best += (json_int_t)best == first;
}

static struct divergence measure(const char *model, const char *reference, enum kv_type kv_type)
{
    struct divergence d = { 0 };
    json_error_t err;
    json_t *all = json_load_file(reference, 0, &err);
    struct rig r;
    static uint32_t blocks[256];

    assert_non_null(all);
    rig_open(&r, model, &(struct backend_options){ .kv_type = kv_type, .context_tokens = 2048, .n_blocks = 128 });
    rig_blocks(blocks, 128, 0);
    for (size_t s = 0; s < json_array_size(all); s++) {
        const json_t *ids = json_object_get(json_array_get(all, s), "ids"), *rows = json_object_get(json_array_get(all, s), "rows");
        const uint32_t n = (uint32_t)json_array_size(ids), n_vocab = r.model->n_vocab;
        int32_t tokens[2048];
        float *logits = malloc((size_t)n_vocab * sizeof(*logits));
        assert_non_null(logits);
        for (uint32_t i = 0; i < n; i++)
            tokens[i] = (int32_t)json_integer_value(json_array_get(ids, i));
        uint32_t done = 0;
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const uint32_t pos = (uint32_t)json_integer_value(json_object_get(json_array_get(rows, i), "pos"));
            rig_feed(&r, tokens, done, pos, 512, blocks, NULL);
            rig_feed(&r, tokens, pos, pos + 1, 1, blocks, logits);
            done = pos + 1;
            add_row(&d, json_array_get(rows, i), logits, n_vocab);
        }
        free(logits);
    }
    rig_close(&r);
    json_decref(all);
    d.mean /= d.n_rows;
    return d;
}

static void check(const char *model, const char *reference, const char *name)
{
    if (model == NULL) {
        printf("  %s: not on this machine\n", name);
        skip();
    }
    for (int kv = KV_F16; kv <= KV_Q8; kv++) {
        struct divergence d = measure(model, reference, (enum kv_type)kv);
        printf("  %s, kv %s: mean KL %.2e, largest %.2e, same best token in %u of %u\n", name, kv == KV_F16 ? "f16" : "q8", d.mean, d.largest,
               d.n_same_best, d.n_rows);
        assert_true(d.mean <= (kv == KV_F16 ? 2e-3 : 3e-3));
    }
}

static void smollm2_is_as_close_as_rounding_allows(void **state)
{
    (void)state;
    check(test_model_smollm2(), DATA "smollm2-135m.logits.json", "SmolLM2-135M");
}

static void gemma3_is_as_close_as_rounding_allows(void **state)
{
    (void)state;
    check(test_model_gemma3(), DATA "gemma3-270m.logits.json", "gemma-3-270m");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_is_as_close_as_rounding_allows),
        cmocka_unit_test(gemma3_is_as_close_as_rounding_allows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
