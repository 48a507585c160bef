/* Greedy continuations of the real models against float32 ones of Hugging Face Transformers on the same weights.  Where the
 * two best logits of the reference are more than MARGIN apart, rounding must not change the choice; where they are closer
 * it may, so every step is taken after the reference's own tokens. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/support/engine_rig.h"
#include "tests/support/test_model_path.h"

#define DATA "tests/reference/data/"
#define MARGIN 0.3

enum { TOKENS_MAX = 2048, BLOCKS = TOKENS_MAX / BLOCK_TOKENS };

struct tally {
    uint32_t n_steps, n_close, n_other; /* all, those within MARGIN, and of those the ones that chose another token */
};

static uint32_t best_of(const float *logits, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void follow(struct rig *r, const json_t *one, float *logits, struct tally *t)
{
    const json_t *ids = json_object_get(one, "ids"), *greedy = json_object_get(one, "greedy"), *margin = json_object_get(one, "margin");
    const uint32_t n = (uint32_t)json_array_size(ids), n_greedy = (uint32_t)json_array_size(greedy);
    int32_t tokens[TOKENS_MAX];
    uint32_t blocks[BLOCKS];

    assert_in_range(n, 1, TOKENS_MAX - n_greedy);
    rig_blocks(blocks, BLOCKS, 0);
    for (uint32_t i = 0; i < n + n_greedy; i++)
        tokens[i] = (int32_t)json_integer_value(i < n ? json_array_get(ids, i) : json_array_get(greedy, i - n));
    rig_feed(r, tokens, 0, n - 1, 512, blocks, NULL);
    for (uint32_t i = 0; i < n_greedy; i++) {
        rig_feed(r, tokens, n - 1 + i, n + i, 1, blocks, logits);
        const int32_t got = (int32_t)best_of(logits, r->model->n_vocab);
        t->n_steps++;
        if (json_number_value(json_array_get(margin, i)) > MARGIN) {
            if (got != tokens[n + i])
                fail_msg("prompt \"%.40s\", step %u: token %d, reference %d by %.2f",
                         json_string_value(json_object_get(one, "prompt")), i, got, tokens[n + i],
                         json_number_value(json_array_get(margin, i)));
        } else {
            t->n_close++;
            t->n_other += got != tokens[n + i];
        }
    }
}

static void check(const char *model, const char *reference, const char *name)
{
    json_error_t err;
    json_t *all;
    struct tally t = { 0 };
    struct rig r;

    if (model == NULL) {
        printf("  %s: not on this machine\n", name);
        skip();
    }
    all = json_load_file(reference, 0, &err);
    assert_non_null(all);
    rig_open(&r, model, &(struct backend_options){ .context_tokens = TOKENS_MAX, .n_blocks = BLOCKS });
    float *logits = malloc((size_t)r.model->n_vocab * sizeof(*logits));
    assert_non_null(logits);
    for (size_t i = 0; i < json_array_size(all); i++)
        follow(&r, json_array_get(all, i), logits, &t);
    printf("  %s: %u steps; %u were close, %u of them went the other way\n", name, t.n_steps, t.n_close, t.n_other);
    free(logits);
    rig_close(&r);
    json_decref(all);
}

static void smollm2_takes_the_tokens_of_the_reference(void **state)
{
    (void)state;
    check(test_model_smollm2(), DATA "smollm2-135m.generate.json", "SmolLM2-135M");
}

static void gemma3_takes_the_tokens_of_the_reference(void **state)
{
    (void)state;
    check(test_model_gemma3(), DATA "gemma3-270m.generate.json", "gemma-3-270m");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_takes_the_tokens_of_the_reference),
        cmocka_unit_test(gemma3_takes_the_tokens_of_the_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
