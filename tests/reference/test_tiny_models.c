/* Tiny random models of every architecture and weight type against float32 logits of Hugging Face Transformers on the same
 * weights: a wrong formula anywhere shows as an error of order 1, rounding of activations to int8 as one of 1e-3. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/engine_rig.h"

#define DATA "tests/reference/data/tiny/"

static json_t *reference;

/* Normalised mean square error over all rows the reference has of one file. */
static double error_of(const char *file, enum kv_type kv_type)
{
    char path[256];
    struct rig r;
    double wrong = 0, all = 0;
    json_t *entry = json_object_get(reference, file);
    uint32_t blocks[16];

    assert_non_null(entry);
    snprintf(path, sizeof(path), DATA "%s", file);
    rig_open(&r, path, &(struct backend_options){ .kv_type = kv_type });
    rig_blocks(blocks, 16, 3);
    for (size_t s = 0; s < json_array_size(json_object_get(entry, "ids")); s++) {
        json_t *ids = json_array_get(json_object_get(entry, "ids"), s), *rows = json_array_get(json_object_get(entry, "logits"), s);
        const uint32_t n = (uint32_t)json_array_size(ids), n_vocab = r.model->n_vocab, n_rows = (uint32_t)json_array_size(rows);
        int32_t tokens[256];
        float *logits = malloc((size_t)n * n_vocab * sizeof(*logits));
        assert_non_null(logits);
        for (uint32_t i = 0; i < n; i++)
            tokens[i] = (int32_t)json_integer_value(json_array_get(ids, i));
        rig_feed(&r, tokens, 0, n, 512, blocks, logits);
        for (uint32_t i = 0; i < n_rows; i++) {
            for (uint32_t v = 0; v < n_vocab; v++) {
                const double want = json_number_value(json_array_get(json_array_get(rows, i), v));
                const double got = (double)logits[(size_t)(n - n_rows + i) * n_vocab + v];
                wrong += (got - want) * (got - want);
                all += want * want;
            }
        }
        free(logits);
    }
    rig_close(&r);
    return wrong / all;
}

static void every_type_and_architecture_is_within_its_bound(void **state)
{
    const char *file;
    json_t *entry;

    (void)state;
    json_object_foreach(reference, file, entry) {
        const double bound = strstr(file, "F16") != NULL ? 1e-5 : 3e-3;
        for (int kv = KV_F16; kv <= KV_Q8; kv++) {
            const double e = error_of(file, (enum kv_type)kv);
            printf("  %-28s kv %-4s error %.2e\n", file, kv == KV_F16 ? "f16" : "q8", e);
            assert_true(e <= (kv == KV_F16 ? bound : 3e-3));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_type_and_architecture_is_within_its_bound) };
    json_error_t err;

    reference = json_load_file(DATA "tiny.logits.json", 0, &err);
    if (reference == NULL) {
        fprintf(stderr, "%s: %s\n", DATA, err.text);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(reference);
    return failed;
}
