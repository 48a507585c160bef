/* test_gguf.c - a GGUF file is read as written, and no lie in it is believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "limits.h"
#include "tests/support/gguf_writer.h"
#include "worker/gguf.h"

static struct gguf_writer w;
static struct error err;

static int begin(void **state)
{
    (void)state;
    gguf_writer_deinit(&w);
    memset(&err, 0, sizeof(err));
    return 0;
}

static int end(void **state)
{
    (void)state;
    gguf_writer_deinit(&w);
    return 0;
}

/* Open what was written from a heap block of its exact size, so that a read past it is seen by AddressSanitizer. */
static enum status open_bytes(struct span file, size_t n, struct gguf **ret_gguf, uint8_t **ret_copy)
{
    *ret_copy = malloc(n + (n == 0));
    memcpy(*ret_copy, file.at, n);
    return gguf_open_memory(span_of(*ret_copy, n), "test.gguf", ret_gguf, &err);
}

static void expect_refusal(enum status status, const char *word)
{
    struct gguf *g = NULL;
    uint8_t *copy;
    struct span file = gguf_writer_finish(&w);
    enum status st = open_bytes(file, file.n, &g, &copy);

    if (st != status || strstr(err.message, word) == NULL)
        print_error("got %s: %s\n", status_text(st), err.message);
    assert_int_equal(st, status);
    assert_null(g);
    assert_non_null(strstr(err.message, word));
    assert_non_null(strstr(err.message, "test.gguf"));
    free(copy);
}

static void reads_back_what_was_written(void **state)
{
    (void)state;
    const char *words[] = {"one", "", "three"};
    const float rows[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    struct gguf *g = NULL;
    uint8_t *copy;
    uint32_t u = 0;
    float f = 0;
    bool b = false;
    struct span s;
    struct gguf_array a;

    gguf_writer_u32(&w, "a.u32", 7);
    gguf_writer_f32(&w, "a.f32", 1.5f);
    gguf_writer_bool(&w, "a.bool", true);
    gguf_writer_string(&w, "a.string", "hello");
    gguf_writer_strings(&w, "a.strings", words, 3);
    gguf_writer_raw(&w, "a.i8", GGUF_I8, "\xFF", 1);
    gguf_writer_raw(&w, "a.u64", GGUF_U64, "\x05\0\0\0\0\0\0\0", 8);
    gguf_writer_tensor(&w, "first", TENSOR_F32, 1, (uint64_t[]){3}, (float[]){9, 9, 9});
    gguf_writer_tensor(&w, "second", TENSOR_F32, 2, (uint64_t[]){4, 2}, rows);
    struct span file = gguf_writer_finish(&w);

    assert_int_equal(open_bytes(file, file.n, &g, &copy), ST_OK);
    assert_int_equal(gguf_u32(g, "a.u32", &u, &err), ST_OK);
    assert_int_equal(u, 7);
    assert_int_equal(gguf_u32(g, "a.u64", &u, &err), ST_OK);
    assert_int_equal(u, 5);
    assert_int_equal(gguf_f32(g, "a.f32", &f, &err), ST_OK);
    assert_true(f == 1.5f);
    assert_int_equal(gguf_bool(g, "a.bool", &b, &err), ST_OK);
    assert_true(b);
    assert_int_equal(gguf_string(g, "a.string", &s, &err), ST_OK);
    assert_true(span_is(s, "hello"));
    assert_int_equal(gguf_array(g, "a.strings", GGUF_STRING, &a, &err), ST_OK);
    assert_int_equal(a.n, 3);
    for (int i = 0; i < 3; i++)
        assert_true(span_is(gguf_array_next_string(&a), words[i]));

    /* Outputs stay as they are when the type, the range or the key does not fit. */
    assert_int_equal(gguf_u32(g, "a.i8", &u, &err), ST_INVALID);
    assert_int_equal(gguf_u32(g, "a.string", &u, &err), ST_INVALID);
    assert_int_equal(gguf_u32(g, "a.none", &u, &err), ST_NOT_FOUND);
    assert_int_equal(gguf_u32_if(g, "a.none", &u, &err), ST_OK);
    assert_int_equal(u, 5);
    assert_int_equal(gguf_array(g, "a.strings", GGUF_F32, &a, &err), ST_INVALID);

    const struct gguf_tensor *t = gguf_tensor_find(g, "second");

    assert_non_null(t);
    assert_int_equal(t->ne[0], 4);
    assert_int_equal(t->ne[1], 2);
    assert_int_equal(t->ne[2], 1);
    assert_int_equal(t->bytes, sizeof(rows));
    assert_memory_equal(t->data, rows, sizeof(rows));
    assert_null(gguf_tensor_find(g, "third"));
    gguf_close(g);
    free(copy);
}

static void every_shorter_file_is_refused(void **state)
{
    (void)state;
    const char *words[] = {"one", "two"};

    gguf_writer_strings(&w, "words", words, 2);
    gguf_writer_u32(&w, "number", 1);
    gguf_writer_string(&w, "string", "text");
    gguf_writer_tensor(&w, "t", TENSOR_Q4_0, 2, (uint64_t[]){64, 3}, NULL);
    struct span file = gguf_writer_finish(&w);

    for (size_t n = 0; n < file.n; n++) {
        struct gguf *g = NULL;
        uint8_t *copy;
        enum status st = open_bytes(file, n, &g, &copy);

        assert_int_equal(st, ST_INVALID);
        assert_null(g);
        assert_true(err.message[0] != '\0');
        free(copy);
    }
}

static void a_foreign_or_old_file_is_refused_by_what_it_is(void **state)
{
    gguf_writer_u32(&w, "k", 1);
    w.version = 1;
    expect_refusal(ST_UNSUPPORTED, "version 1");
    w.version = 4;
    expect_refusal(ST_UNSUPPORTED, "version 4");
    w.version = 3u << 24;
    expect_refusal(ST_UNSUPPORTED, "big-endian");
    begin(state);

    struct gguf *g = NULL;

    assert_int_equal(gguf_open_memory(span_str("GGML and more text than a header"), "x", &g, &err),
                     ST_INVALID);
    assert_non_null(strstr(err.message, "not a GGUF file"));
}

static void counts_larger_than_the_file_are_refused(void **state)
{
    const uint64_t huge[] = {1000, 1u << 13, GGUF_KVS_MAX + 1, 1ull << 32, 1ull << 62, UINT64_MAX};

    for (size_t i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        begin(state);
        gguf_writer_u32(&w, "k", 1);
        w.claim_pairs = huge[i];
        expect_refusal(huge[i] > GGUF_KVS_MAX ? ST_LIMIT : ST_INVALID, "");
        begin(state);
        gguf_writer_u32(&w, "k", 1);
        w.claim_tensors = huge[i];
        expect_refusal(huge[i] > GGUF_TENSORS_MAX ? ST_LIMIT : ST_INVALID, "");
    }
}

static void lengths_and_element_counts_larger_than_the_file_are_refused(void **state)
{
    const uint64_t huge[] = {100, 1ull << 32, 1ull << 61, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};

    for (size_t i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        begin(state);
        gguf_writer_raw(&w, "long.string", GGUF_STRING, &huge[i], 8);
        expect_refusal(ST_INVALID, "long.string");
        for (uint32_t type = 0; type < GGUF_TYPE_COUNT; type++) {
            uint8_t value[12];

            memcpy(value, &type, 4);
            memcpy(value + 4, &huge[i], 8);
            begin(state);
            gguf_writer_raw(&w, "long.array", GGUF_ARRAY, value, sizeof(value));
            expect_refusal(ST_INVALID, "long.array");
        }
    }
}

static void bad_types_names_and_keys_are_refused(void **state)
{
    uint8_t nested[12] = {GGUF_ARRAY};

    gguf_writer_raw(&w, "nested", GGUF_ARRAY, nested, sizeof(nested));
    expect_refusal(ST_INVALID, "array of arrays");
    begin(state);
    gguf_writer_raw(&w, "odd", GGUF_TYPE_COUNT, "1234", 4);
    expect_refusal(ST_INVALID, "unknown type 13");
    begin(state);
    gguf_writer_raw(&w, "maybe", GGUF_BOOL, "\2", 1);
    expect_refusal(ST_INVALID, "bool");
    begin(state);
    gguf_writer_u32(&w, "", 1);
    expect_refusal(ST_INVALID, "empty");
    begin(state);
    gguf_writer_u32(&w, "twice", 1);
    gguf_writer_u32(&w, "twice", 1);
    expect_refusal(ST_INVALID, "\"twice\" twice");
    begin(state);
    gguf_writer_tensor(&w, "t", TENSOR_F32, 1, (uint64_t[]){8}, NULL);
    gguf_writer_tensor(&w, "t", TENSOR_F32, 1, (uint64_t[]){8}, NULL);
    expect_refusal(ST_INVALID, "\"t\" twice");
    begin(state);
    gguf_writer_tensor(&w, "a name of sixty-four bytes, which is one more than the format takes", TENSOR_F32,
                       1, (uint64_t[]){8}, NULL);
    expect_refusal(ST_INVALID, "bytes, allowed are 1 to 63");
    begin(state);
    gguf_writer_u32(&w, "general.alignment", 24);
    expect_refusal(ST_INVALID, "general.alignment");
    begin(state);
    gguf_writer_string(&w, "general.alignment", "32");
    expect_refusal(ST_INVALID, "general.alignment");
    begin(state);
    gguf_writer_u32(&w, "split.count", 3);
    expect_refusal(ST_UNSUPPORTED, "one of 3 parts");
}

static void expect_tensor_refusal(void **state, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                                  uint64_t offset, enum status status, const char *word)
{
    static const uint8_t data[4096];

    begin(state);
    gguf_writer_info(&w, "bad", n_dims, ne, type, offset);
    for (int i = 0; i < 64; i++) { /* data that is there */
        w.data.at = w.data.at == NULL ? calloc(1, sizeof(data)) : w.data.at;
        w.data.n = w.data.cap = sizeof(data);
    }
    expect_refusal(status, word);
    assert_non_null(strstr(err.message, "bad"));
}

static void impossible_tensors_are_refused(void **state)
{
    const uint64_t five[8] = {1, 1, 1, 1, 1, 1, 1, 1};

    expect_tensor_refusal(state, 5, five, TENSOR_F32, 0, ST_INVALID, "5 dimensions");
    expect_tensor_refusal(state, 8, five, TENSOR_F32, 0, ST_INVALID, "8 dimensions");
    expect_tensor_refusal(state, 0, five, TENSOR_F32, 0, ST_INVALID, "0 dimensions");
    expect_tensor_refusal(state, 1, (uint64_t[]){0}, TENSOR_F32, 0, ST_INVALID, "is 0");
    expect_tensor_refusal(state, 1, (uint64_t[]){UINT64_MAX}, TENSOR_F32, 0, ST_INVALID, "is -1");
    expect_tensor_refusal(state, 1, (uint64_t[]){(1ull << 42) + 1}, TENSOR_F32, 0, ST_INVALID, "more bytes");
    expect_tensor_refusal(state, 2, (uint64_t[]){1ull << 32, 1ull << 32}, TENSOR_F32, 0, ST_INVALID,
                          "overflow");
    expect_tensor_refusal(state, 4, (uint64_t[]){1ull << 62, 2, 2, 1}, TENSOR_F32, 0, ST_INVALID, "overflow");
    expect_tensor_refusal(state, 1, (uint64_t[]){33}, TENSOR_Q4_0, 0, ST_INVALID, "multiple of 32");
    expect_tensor_refusal(state, 1, (uint64_t[]){128}, TENSOR_Q4_K, 0, ST_INVALID, "multiple of 256");
    expect_tensor_refusal(state, 1, (uint64_t[]){8}, TENSOR_F32, 32, ST_INVALID, "offset 32");
    expect_tensor_refusal(state, 1, (uint64_t[]){8}, TENSOR_F32, UINT64_MAX, ST_INVALID, "offset");
    expect_tensor_refusal(state, 1, (uint64_t[]){1025}, TENSOR_F32, 0, ST_INVALID, "past the file");
    expect_tensor_refusal(state, 1, (uint64_t[]){256}, 16, 0, ST_UNSUPPORTED, "IQ2_XXS");
    expect_tensor_refusal(state, 1, (uint64_t[]){256}, 39, 0, ST_UNSUPPORTED, "MXFP4");
    expect_tensor_refusal(state, 1, (uint64_t[]){256}, 4, 0, ST_INVALID, "unknown type 4");
    expect_tensor_refusal(state, 1, (uint64_t[]){256}, UINT32_MAX, 0, ST_INVALID, "unknown type");
}

static void a_missing_file_and_a_folder_are_told_apart(void **state)
{
    struct gguf *g = NULL;

    (void)state;
    assert_int_equal(gguf_open("/nonexistent/x.gguf", &g, &err), ST_SYSTEM);
    assert_non_null(strstr(err.message, "x.gguf"));
    assert_int_equal(gguf_open("/", &g, &err), ST_INVALID);
    assert_int_equal(gguf_open("/dev/null", &g, &err), ST_INVALID);
    assert_null(g);
}

/* Random damage must give an answer, whatever it is, and never a read outside (sanitizers watch). */
static void random_damage_never_reads_outside(void **state)
{
    uint32_t seed = 12345;
    const char *words[] = {"a", "bb", "ccc", ""};

    (void)state;
    gguf_writer_tiny_model(&w, "llama", 20);
    gguf_writer_strings(&w, "words", words, 4);
    struct span file = gguf_writer_finish(&w);

    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        struct gguf *g = NULL;
        uint8_t *copy = malloc(file.n);

        memcpy(copy, file.at, file.n);
        for (int i = 0; i < 3; i++) {
            seed = seed * 1664525u + 1013904223u;
            size_t at = (seed >> 8) % (i == 0 ? 24 + w.pairs.n + w.infos.n : file.n);

            seed = seed * 1664525u + 1013904223u;
            copy[at] = (seed >> 24) % 3 == 0 ? 0xFF : (uint8_t)(seed >> 16);
        }
        if (gguf_open_memory(span_of(copy, file.n), "damaged", &g, &err) == ST_OK)
            for (uint32_t i = 0; i < gguf_n_tensors(g); i++) {
                const struct gguf_tensor *t = gguf_tensor_at(g, i);

                assert_true((const uint8_t *)t->data >= copy);
                assert_true((const uint8_t *)t->data + t->bytes <= copy + file.n);
            }
        gguf_close(g);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_back_what_was_written, begin, end),
        cmocka_unit_test_setup_teardown(every_shorter_file_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(a_foreign_or_old_file_is_refused_by_what_it_is, begin, end),
        cmocka_unit_test_setup_teardown(counts_larger_than_the_file_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(lengths_and_element_counts_larger_than_the_file_are_refused, begin,
                                        end),
        cmocka_unit_test_setup_teardown(bad_types_names_and_keys_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(impossible_tensors_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(a_missing_file_and_a_folder_are_told_apart, begin, end),
        cmocka_unit_test_setup_teardown(random_damage_never_reads_outside, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
