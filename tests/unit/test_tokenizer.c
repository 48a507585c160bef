/* test_tokenizer.c - what a vocabulary file says is what the tokenizer does, and a broken one is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/test_model_path.h"
#include "tests/support/vocabulary.h"
#include "worker/tokenizer.h"

static struct gguf_writer w;
static struct tokenizer *t;
static struct error err;

static int end(void **state)
{
    (void)state;
    tokenizer_free(t);
    t = NULL;
    gguf_writer_deinit(&w);
    return 0;
}

static void expect_refusal(enum status status, const char *word)
{
    struct gguf *g = NULL;
    enum status st;

    memset(&err, 0, sizeof(err));
    assert_int_equal(gguf_open_memory(gguf_writer_finish(&w), "test.gguf", &g, &err), ST_OK);
    st = tokenizer_new(g, &t, &err);
    if (st != status || strstr(err.message, word) == NULL)
        print_error("got %s: %s\n", status_text(st), err.message);
    assert_int_equal(st, status);
    assert_null(t);
    assert_non_null(strstr(err.message, word));
    gguf_close(g);
    gguf_writer_deinit(&w);
}

static void pieces_are_the_bytes_that_tokens_stand_for(void **state)
{
    static const char *const control[] = {"<|im_end|>"}, *const merges[] = {"\xC4\xA0 a",
                                                                            "\xC3\x83 \xC2\xA9"};

    (void)state;
    vocabulary_bpe(&w, "gpt-2", control, 1, merges, 2);
    t = vocabulary_load(&w);
    for (int b = 0; b < 256; b++) {
        struct span piece = tokenizer_piece(t, b, false);

        assert_int_equal(piece.n, 1);
        assert_int_equal(piece.at[0], b);
    }
    assert_true(span_is(tokenizer_piece(t, 256, false), " a"));
    assert_true(span_is(tokenizer_piece(t, 257, false), "\xC3\xA9"));
    assert_true(span_is(tokenizer_text(t, 256), "\xC4\xA0"
                                                "a"));
    assert_int_equal(tokenizer_piece(t, 258, false).n, 0);
    assert_true(span_is(tokenizer_piece(t, 258, true), "<|im_end|>"));
    assert_int_equal(tokenizer_find(t, span_str("<|im_end|>")), 258);
    assert_int_equal(tokenizer_find(t, span_str("none")), TOKEN_NONE);
    assert_int_equal(tokenizer_piece(t, -1, true).n, 0);
    assert_int_equal(tokenizer_piece(t, 259, true).n, 0);
    assert_int_equal(tokenizer_piece(t, INT32_MAX, true).n, 0);
    assert_false(tokenizer_is_control(t, 259));
    assert_false(tokenizer_is_end(t, INT32_MIN));
    end(state);

    static const struct vocabulary_entry entries[] = {{"\xE2\x96\x81"
                                                       "a",
                                                       0, 0},
                                                      {"a\xE2\x96\x81\xE2\x96\x81", -1, 0},
                                                      {"  ", -1, 4}};

    vocabulary_spm(&w, entries, 3);
    t = vocabulary_load(&w);
    assert_true(span_is(tokenizer_piece(t, VOCABULARY_SPM_FIRST, false), " a"));
    assert_true(span_is(tokenizer_piece(t, VOCABULARY_SPM_FIRST + 1, false), "a  "));
    assert_true(span_is(tokenizer_piece(t, VOCABULARY_SPM_FIRST + 2, false), "  "));
    assert_true(span_is(tokenizer_piece(t, VOCABULARY_SPM_FIRST_BYTE + 0xC3, false), "\xC3"));
}

static void decoding_drops_one_leading_space_where_the_vocabulary_adds_one(void **state)
{
    static const struct vocabulary_entry entries[] = {{"\xE2\x96\x81"
                                                       "a",
                                                       0, 0},
                                                      {"\xE2\x96\x81\xE2\x96\x81", -1, 0}};
    const int32_t a = VOCABULARY_SPM_FIRST, ids[] = {1, a, a, 2}, spaces[] = {a + 1, a};
    uint8_t out[16];

    (void)state;
    vocabulary_spm(&w, entries, 2);
    t = vocabulary_load(&w);
    assert_int_equal(tokenizer_decode(t, ids, 4, false, out, sizeof(out)), 3);
    assert_memory_equal(out, "a a", 3);
    assert_int_equal(tokenizer_decode(t, spaces, 2, false, out, sizeof(out)), 3);
    assert_memory_equal(out, "  a", 3);
    assert_int_equal(tokenizer_decode(t, ids, 4, true, out, 4),
                     11); /* <s> a a</s>: the length of all, four bytes written */
    assert_memory_equal(out, "<s> ", 4);
    end(state);

    vocabulary_spm(&w, entries, 2);
    gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    t = vocabulary_load(&w);
    assert_int_equal(tokenizer_decode(t, ids, 4, false, out, sizeof(out)), 4);
    assert_memory_equal(out, " a a", 4);
}

static void ends_are_the_file_s_ids_and_known_control_tokens(void **state)
{
    static const char *const control[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>",
                                          "<reponame>",   "<fim_pad>",  "mine"};
    const int32_t first = VOCABULARY_FIRST_MERGED;

    (void)state;
    vocabulary_bpe(&w, "smollm", control, 6, NULL, 0);
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", (uint32_t)first + 5);
    t = vocabulary_load(&w);
    assert_false(tokenizer_is_end(t, first));
    assert_true(tokenizer_is_end(t, first + 1));
    assert_true(tokenizer_is_end(t, first + 2));
    assert_false(tokenizer_is_end(t, first + 3)); /* a repository mark, not an end */
    assert_false(tokenizer_is_end(t, first + 4));
    assert_true(tokenizer_is_end(t, first + 5));
    assert_int_equal(tokenizer_eos(t), first + 5);
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE);
    assert_false(tokenizer_adds_bos(t));
}

static void an_end_s_text_of_another_type_is_no_end(void **state)
{
    static const struct vocabulary_entry entries[] = {{"<eos>", 0, 4}};

    (void)state;
    vocabulary_spm(&w, entries, 1);
    t = vocabulary_load(&w);
    assert_false(tokenizer_is_end(t, VOCABULARY_SPM_FIRST));
    assert_false(tokenizer_is_control(t, VOCABULARY_SPM_FIRST));
    assert_true(span_is(tokenizer_piece(t, VOCABULARY_SPM_FIRST, false), "<eos>"));
}

static void bos_follows_the_kind_unless_the_file_says_otherwise(void **state)
{
    (void)state;
    vocabulary_spm(&w, NULL, 0);
    t = vocabulary_load(&w);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_true(tokenizer_is_end(t, 2));
    assert_true(tokenizer_adds_bos(t));
    end(state);
    vocabulary_bpe(&w, "llama-bpe", NULL, 0, NULL, 0);
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", 7);
    t = vocabulary_load(&w);
    assert_true(tokenizer_adds_bos(t));
    end(state);
    vocabulary_bpe(&w, "llama-bpe", NULL, 0, NULL, 0);
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", 7);
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", false);
    t = vocabulary_load(&w);
    assert_false(tokenizer_adds_bos(t));
}

static void other_kinds_are_refused_by_name(void **state)
{
    (void)state;
    gguf_writer_string(&w, "tokenizer.ggml.model", "bert");
    expect_refusal(ST_UNSUPPORTED, "\"bert\"");
    vocabulary_bpe(&w, "tekken", NULL, 0, NULL, 0);
    expect_refusal(ST_UNSUPPORTED, "\"tekken\"");
    gguf_writer_u32(&w, "x", 0);
    expect_refusal(ST_INVALID, "tokenizer.ggml.model");
    vocabulary_spm(&w, NULL, 0);
    gguf_writer_u32s(&w, "tokenizer.ggml.precompiled_charsmap", GGUF_U32, NULL, 0);
    expect_refusal(ST_UNSUPPORTED, "precompiled_charsmap");
}

static void write_spm_arrays(const char *const *texts, uint64_t n)
{
    gguf_writer_string(&w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", texts, n);
}

static void broken_vocabularies_are_refused(void **state)
{
    static const char *const bad_bytes[] = {"<0x-1>", "<0xZZ>", "<0x>", "<0x100>", "0x41", "<0x4 >"},
                             *const two[] = {"a", "b"};
    const float scores[2] = {0, NAN};
    const uint32_t byte_type[1] = {6}, bad_type[2] = {1, 7};

    (void)state;
    for (size_t i = 0; i < sizeof(bad_bytes) / sizeof(bad_bytes[0]); i++) {
        write_spm_arrays(&bad_bytes[i], 1);
        gguf_writer_u32s(&w, "tokenizer.ggml.token_type", GGUF_I32, byte_type, 1);
        expect_refusal(ST_INVALID, "<0xXX>");
    }
    write_spm_arrays(two, 2);
    gguf_writer_raw(&w, "tokenizer.ggml.scores", GGUF_ARRAY, "\0\0\0\0\2\0\0\0\0\0\0\0xy",
                    14); /* two bytes */
    expect_refusal(ST_INVALID, "array of u8");
    write_spm_arrays(two, 2);
    gguf_writer_f32s(&w, "tokenizer.ggml.scores", scores, 1);
    expect_refusal(ST_INVALID, "1 entries for 2 tokens");
    write_spm_arrays(two, 2);
    gguf_writer_f32s(&w, "tokenizer.ggml.scores", scores, 2);
    expect_refusal(ST_INVALID, "scores[1]");
    write_spm_arrays(two, 2);
    expect_refusal(ST_INVALID, "tokenizer.ggml.scores");
    write_spm_arrays(two, 2);
    gguf_writer_u32s(&w, "tokenizer.ggml.token_type", GGUF_I32, bad_type, 2);
    expect_refusal(ST_INVALID, "token_type[1] is 7");
    write_spm_arrays(two, 2);
    gguf_writer_u32s(&w, "tokenizer.ggml.token_type", GGUF_I32, bad_type, 1);
    expect_refusal(ST_INVALID, "token_type is 1");
    write_spm_arrays(two, 0);
    expect_refusal(ST_INVALID, "0 entries");
    vocabulary_bpe(&w, "gpt-2", NULL, 0, NULL, 0);
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", 256);
    expect_refusal(ST_INVALID, "eos_token_id\" is 256");
}

static void a_merge_must_name_tokens(void **state)
{
    static const char *const bad[] = {"a", "a ", " a", "", "a zz"}, *const tokens[] = {"a", "b", "ab"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gguf_writer_string(&w, "tokenizer.ggml.model", "gpt2");
        gguf_writer_strings(&w, "tokenizer.ggml.tokens", tokens, 3);
        gguf_writer_strings(&w, "tokenizer.ggml.merges", &bad[i], 1);
        expect_refusal(ST_INVALID, "merges[0]");
    }
}

static void too_long_texts_are_refused(void **state)
{
    static char text[2048];
    const char *texts[1] = {text};

    (void)state;
    memset(text, 'x', 513);
    write_spm_arrays(texts, 1);
    expect_refusal(ST_LIMIT, "513 bytes");
    memset(text, 'x', 1025);
    write_spm_arrays(texts, 1);
    expect_refusal(ST_LIMIT, "1025 bytes");
}

static void smollm2_ends_are_right(void **state)
{
    struct gguf *g = NULL;

    (void)state;
    if (test_model_smollm2() == NULL)
        skip();
    assert_int_equal(gguf_open(test_model_smollm2(), &g, &err), ST_OK);
    assert_int_equal(tokenizer_new(g, &t, &err), ST_OK);
    gguf_close(g);
    for (int32_t id = 0; id < (int32_t)tokenizer_n_tokens(t); id++)
        assert_int_equal(tokenizer_is_end(t, id), id == 0 || id == 2); /* <|endoftext|>, <|im_end|> */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(pieces_are_the_bytes_that_tokens_stand_for, end),
        cmocka_unit_test_teardown(decoding_drops_one_leading_space_where_the_vocabulary_adds_one, end),
        cmocka_unit_test_teardown(ends_are_the_file_s_ids_and_known_control_tokens, end),
        cmocka_unit_test_teardown(an_end_s_text_of_another_type_is_no_end, end),
        cmocka_unit_test_teardown(bos_follows_the_kind_unless_the_file_says_otherwise, end),
        cmocka_unit_test_teardown(other_kinds_are_refused_by_name, end),
        cmocka_unit_test_teardown(broken_vocabularies_are_refused, end),
        cmocka_unit_test_teardown(a_merge_must_name_tokens, end),
        cmocka_unit_test_teardown(too_long_texts_are_refused, end),
        cmocka_unit_test_teardown(smollm2_ends_are_right, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
