/* test_tokenizer_vectors.c - token ids equal the reference's on every text of tests/reference/data/NAME.tokenizer.json.
 *
 * The files hold {"text", "plain", "special"}: ids without BOS, special texts taken as text and as tokens.  They were made with the
 * models' own tokenizers; see tests/reference/README.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "tests/support/test_model_path.h"
#include "worker/encoder.h"

static struct error err;
static unsigned n_models;

static void print_ids(const char *what, const int32_t *ids, size_t n)
{
    print_message("  %s", what);
    for (size_t i = 0; i < n; i++)
        print_message(" %d", ids[i]);
    print_message("\n");
}

static bool same(struct encoder *e, const char *text, size_t n_text, enum encoder_part part, json_t *want)
{
    const int32_t *ids = NULL;
    int32_t wanted[4096];
    size_t n = 0, n_want = json_array_size(want);

    for (size_t i = 0; i < n_want; i++)
        wanted[i] = (int32_t)json_integer_value(json_array_get(want, i));
    assert_int_equal(encoder_encode(e, span_of(text, n_text), part, &ids, &n, &err), ST_OK);
    if (n == n_want && memcmp(ids, wanted, n * sizeof(*ids)) == 0)
        return true;
    print_message("differs: \"%s\"\n", text);
    print_ids("ours", ids, n);
    print_ids("want", wanted, n_want);
    return false;
}

/* Ids back to bytes: the text itself, unless the vocabulary had no token for some byte. */
static bool round_trips(struct encoder *e, const char *text, size_t n_text)
{
    const int32_t *ids = NULL;
    static uint8_t out[65536];
    size_t n = 0, n_out;

    assert_int_equal(encoder_encode(e, span_of(text, n_text), ENCODE_PLAIN, &ids, &n, &err), ST_OK);
    n_out = tokenizer_decode(encoder_tokenizer(e), ids, n, false, out, sizeof(out));
    if (encoder_dropped_bytes(e) > 0 || memmem(text, n_text, "\xE2\x96\x81", 3) != NULL)
        return true;
    if (n_out == n_text && memcmp(out, text, n_text) == 0)
        return true;
    print_message("does not come back: \"%s\"\n", text);
    return false;
}

static void check_model(const char *model, const char *vectors)
{
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct encoder *e = NULL;
    json_t *rows = json_load_file(vectors, JSON_ALLOW_NUL, NULL), *row;
    size_t i, n_equal = 0;

    assert_non_null(rows);
    assert_int_equal(gguf_open(model, &g, &err), ST_OK);
    assert_int_equal(tokenizer_new(g, &t, &err), ST_OK);
    gguf_close(g);
    assert_int_equal(encoder_new(t, &e), ST_OK);
    json_array_foreach(rows, i, row)
    {
        json_t *s = json_object_get(row, "text");
        const char *text = json_string_value(s);
        size_t n = json_string_length(s);

        bool plain = same(e, text, n, ENCODE_PLAIN, json_object_get(row, "plain"));
        bool special = same(e, text, n, ENCODE_CONTROL, json_object_get(row, "special"));

        n_equal += round_trips(e, text, n) && plain && special;
    }
    print_message("%s: %zu of %zu texts equal\n", vectors, n_equal, json_array_size(rows));
    assert_int_equal(n_equal, json_array_size(rows));
    n_models++;
    encoder_free(e);
    tokenizer_free(t);
    json_decref(rows);
}

static void ids_equal_the_reference_smollm2(void **state)
{
    (void)state;
    if (test_model_smollm2() == NULL)
        skip();
    check_model(test_model_smollm2(), "tests/reference/data/smollm2-135m.tokenizer.json");
}

static void ids_equal_the_reference_gemma3(void **state)
{
    (void)state;
    if (test_model_gemma3() == NULL)
        skip();
    check_model(test_model_gemma3(), "tests/reference/data/gemma3-270m.tokenizer.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_the_reference_smollm2),
        cmocka_unit_test(ids_equal_the_reference_gemma3),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    if (failed == 0 && n_models == 0) {
        printf("no test model on this machine\n");
        return 77;
    }
    return failed;
}
