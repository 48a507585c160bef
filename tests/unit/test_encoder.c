/* test_encoder.c - encoding against a plain one, in slices, with special texts, and on texts made to be slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/random.h"
#include "tests/support/test_model_path.h"
#include "tests/support/vocabulary.h"
#include "worker/encoder.h"

static struct gguf_writer w;
static struct tokenizer *t;
static struct encoder *e;
static struct error err;
static struct random rng;

static int end(void **state)
{
    (void)state;
    encoder_free(e);
    tokenizer_free(t);
    e = NULL;
    t = NULL;
    gguf_writer_deinit(&w);
    return 0;
}

static void load(void)
{
    encoder_free(e);
    tokenizer_free(t);
    e = NULL;
    t = NULL;
    t = vocabulary_load(&w);
    gguf_writer_deinit(&w);
    assert_int_equal(encoder_new(t, &e), ST_OK);
}

static void expect_ids(const int32_t *want, size_t n_want)
{
    size_t n;
    const int32_t *ids;

    while (encoder_step(e, 3) == ST_AGAIN)
        ;
    ids = encoder_ids(e, &n);
    if (n != n_want || (n > 0 && memcmp(ids, want, n * sizeof(*ids)) != 0))
        for (size_t i = 0; i < n; i++)
            print_error("ids[%zu] = %d\n", i, ids[i]);
    assert_int_equal(n, n_want);
    if (n > 0)
        assert_memory_equal(ids, want, n * sizeof(*ids));
}

#define EXPECT_IDS(...) \
    expect_ids((const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void begin(const char *text, enum encoder_part part)
{
    encoder_begin(e);
    assert_int_equal(encoder_add(e, span_str(text), part, &err), ST_OK);
}

/* --- special texts ----------------------------------------------------------------------------------------------------- */

enum { C0 = VOCABULARY_FIRST_MERGED + 1 }; /* the first control token of load_special() */

/* One merge, then three control tokens. */
static void load_special(void)
{
    static const char *const control[] = {"<c>", "<cc>", "<c><c>"}, *const merges[] = {"a b"};

    vocabulary_bpe(&w, "gpt-2", control, 3, merges, 1);
    load();
}

static void plain_text_never_becomes_a_control_token(void **state)
{
    (void)state;
    load_special();
    begin("<c>", ENCODE_PLAIN);
    EXPECT_IDS('<', 'c', '>');
    begin("x<c>y", ENCODE_CONTROL);
    EXPECT_IDS('x', C0, 'y');
    begin("<c><c><c><cc>", ENCODE_CONTROL);
    EXPECT_IDS(C0 + 2, C0, C0 + 1);
}

static void a_control_token_lies_within_control_parts(void **state)
{
    (void)state;
    load_special();
    begin("<", ENCODE_PLAIN);
    assert_int_equal(encoder_add(e, span_str("c>"), ENCODE_CONTROL, &err), ST_OK);
    EXPECT_IDS('<', 'c', '>');
    begin("<c", ENCODE_CONTROL);
    assert_int_equal(encoder_add(e, span_str(">"), ENCODE_PLAIN, &err), ST_OK);
    EXPECT_IDS('<', 'c', '>');
    begin("<c", ENCODE_CONTROL); /* parts of one kind are one part */
    assert_int_equal(encoder_add(e, span_str(">"), ENCODE_CONTROL, &err), ST_OK);
    EXPECT_IDS(C0);
    begin("<c>", ENCODE_CONTROL);
    assert_int_equal(encoder_add(e, span_str("<c>"), ENCODE_PLAIN, &err), ST_OK);
    EXPECT_IDS(C0, '<', 'c', '>');
}

static void parts_that_touch_are_one_text(void **state)
{
    (void)state;
    load_special();
    begin("a", ENCODE_CONTROL);
    assert_int_equal(encoder_add(e, span_str("b"), ENCODE_PLAIN, &err), ST_OK);
    EXPECT_IDS(VOCABULARY_FIRST_MERGED);
    begin("a", ENCODE_PLAIN);
    assert_int_equal(encoder_add_token(e, C0, &err), ST_OK);
    assert_int_equal(encoder_add(e, span_str("b"), ENCODE_PLAIN, &err), ST_OK);
    assert_true(span_is(encoder_text(e), "a<c>b"));
    EXPECT_IDS('a', C0, 'b');
    encoder_begin(e);
    expect_ids(NULL, 0);
}

static void user_defined_tokens_are_found_everywhere_and_made_of_no_merge(void **state)
{
    static const struct vocabulary_entry entries[] = {{"a", 0, 0},    {"b", 0, 0},  {"ab", 5, 5},
                                                      {"<tr>", 0, 4}, {"  ", 0, 4}, {"<0x", 9, 0}};
    const int32_t a = VOCABULARY_SPM_FIRST, space = VOCABULARY_SPM_FIRST_BYTE;

    (void)state;
    vocabulary_spm(&w, entries, 6);
    gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    load();
    begin("a<tr>b", ENCODE_PLAIN);
    EXPECT_IDS(a, a + 3, a + 1);
    begin("a<t", ENCODE_CONTROL);
    assert_int_equal(encoder_add(e, span_str("r>b"), ENCODE_PLAIN, &err), ST_OK);
    EXPECT_IDS(a, a + 3, a + 1);
    begin("ab", ENCODE_PLAIN); /* "ab" is an unused token */
    EXPECT_IDS(a, a + 1);
    begin("a   b",
          ENCODE_PLAIN); /* two blanks are the token; the third is U+2581, which only has bytes here */
    EXPECT_IDS(a, a + 4, space + 0xE2, space + 0x96, space + 0x81, a + 1);
    begin("<s>", ENCODE_PLAIN);
    EXPECT_IDS(space + '<', space + 's', space + '>');
    begin("<s>", ENCODE_CONTROL);
    EXPECT_IDS(1);
}

static void text_cannot_spell_a_byte_token_or_a_whole_control_word(void **state)
{
    static const struct vocabulary_entry entries[] = {
        {"<0", 9, 0}, {"<0x", 8, 0}, {"<0x4", 7, 0}, {"<0x41", 6, 0}};
    static const char *const control[] = {"word"}, *const merges[] = {"w o", "wo r"};

    (void)state;
    vocabulary_spm(&w, entries, 4);
    gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    load();
    begin("<0x41>", ENCODE_PLAIN);
    EXPECT_IDS(VOCABULARY_SPM_FIRST + 3, VOCABULARY_SPM_FIRST_BYTE + '>');
    begin("<0x41>", ENCODE_CONTROL);
    EXPECT_IDS(VOCABULARY_SPM_FIRST + 3, VOCABULARY_SPM_FIRST_BYTE + '>');
    vocabulary_bpe(&w, "llama-bpe", control, 1, merges, 2); /* takes whole words that are tokens */
    load();
    begin("word", ENCODE_PLAIN);
    EXPECT_IDS(VOCABULARY_FIRST_MERGED + 1, 'd');
}

static void spm_adds_a_blank_at_the_start_and_after_special_tokens(void **state)
{
    static const struct vocabulary_entry entries[] = {{"\xE2\x96\x81", 0, 0},
                                                      {"a", 0, 0},
                                                      {"\xE2\x96\x81"
                                                       "a",
                                                       1, 0}};
    const int32_t blank = VOCABULARY_SPM_FIRST;

    (void)state;
    vocabulary_spm(&w, entries, 3);
    load();
    encoder_begin(e);
    assert_int_equal(encoder_add_bos(e, &err), ST_OK);
    assert_int_equal(encoder_add(e, span_str("a</s>a"), ENCODE_CONTROL, &err), ST_OK);
    EXPECT_IDS(1, blank + 2, 2, blank + 2);
    begin(" a", ENCODE_PLAIN);
    EXPECT_IDS(blank, blank + 2);
    begin("\xE2\x96\x81"
          "a",
          ENCODE_PLAIN); /* U+2581 in a text is the same as a blank */
    EXPECT_IDS(blank, blank + 2);
    begin("", ENCODE_PLAIN);
    expect_ids(NULL, 0);
}

static void bytes_without_a_token_are_counted(void **state)
{
    static const char *const tokens[] = {"a"};
    static const struct vocabulary_entry entries[] = {{"a", 0, 0}};

    (void)state;
    gguf_writer_string(&w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_strings(&w, "tokenizer.ggml.tokens", tokens, 1);
    gguf_writer_strings(&w, "tokenizer.ggml.merges", NULL, 0);
    load();
    begin("abca", ENCODE_PLAIN);
    EXPECT_IDS(0, 0);
    assert_int_equal(encoder_dropped_bytes(e), 2);
    vocabulary_spm(&w, entries, 1);
    gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    load();
    begin("\xC3\xA9\xFF", ENCODE_PLAIN); /* a character without a token, and a byte that is none */
    EXPECT_IDS(VOCABULARY_SPM_FIRST_BYTE + 0xC3, VOCABULARY_SPM_FIRST_BYTE + 0xA9,
               VOCABULARY_SPM_FIRST_BYTE + 0xFF);
    assert_int_equal(encoder_dropped_bytes(e), 0);
}

static void limits_are_named_and_nothing_is_added(void **state)
{
    uint8_t *text = calloc(1, ENCODER_BYTES_MAX + 1);

    (void)state;
    load_special();
    encoder_begin(e);
    assert_int_equal(encoder_add(e, span_of(text, ENCODER_BYTES_MAX + 1), ENCODE_PLAIN, &err), ST_LIMIT);
    assert_non_null(strstr(err.message, "ENCODER_BYTES_MAX"));
    assert_int_equal(encoder_text(e).n, 0);
    assert_int_equal(encoder_add(e, span_of(text, ENCODER_BYTES_MAX), ENCODE_PLAIN, &err), ST_OK);
    assert_int_equal(encoder_add(e, span_str("x"), ENCODE_PLAIN, &err), ST_LIMIT);
    encoder_begin(e);
    for (int i = 0; i < ENCODER_PARTS_MAX; i++)
        assert_int_equal(encoder_add_token(e, C0, &err), ST_OK);
    assert_int_equal(encoder_add(e, span_str("x"), ENCODE_PLAIN, &err), ST_LIMIT);
    assert_non_null(strstr(err.message, "ENCODER_PARTS_MAX"));
    free(text);
}

/* --- against the plain algorithm ---------------------------------------------------------------------------------------- */

enum { WORDS_MAX = 40, WORD_MAX = 40 };

struct oracle {
    char texts[WORDS_MAX][32]; /* of mergeable tokens, in rank order */
    float scores[WORDS_MAX];
    char merges[WORDS_MAX][64];
    size_t n;
};

static int find_text(const struct oracle *o, const char *at, size_t n)
{
    for (size_t i = 0; i < o->n; i++)
        if (strlen(o->texts[i]) == n && memcmp(o->texts[i], at, n) == 0)
            return (int)i;
    return -1;
}

/* Repeat: the best pair of neighbours, leftmost among equals, becomes one.  ends: where the symbols end. */
static size_t merge_plainly(const struct oracle *o, const char *text, size_t *ends, size_t n, bool by_score)
{
    for (;;) {
        size_t best = n, best_token = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            size_t from = i == 0 ? 0 : ends[i - 1];

            for (size_t k = 0; k < o->n; k++) {
                size_t left = ends[i] - from;
                bool fits = strlen(o->texts[k]) == ends[i + 1] - from &&
                            memcmp(o->texts[k], text + from, ends[i + 1] - from) == 0;

                if (!by_score)
                    fits = fits &&
                           o->merges[k][left] == ' '; /* the rule's left side ends where the symbol does */
                bool better = best == n || (by_score ? o->scores[k] > o->scores[best_token] : k < best_token);

                if (fits && better) {
                    best = i;
                    best_token = k;
                }
            }
        }
        if (best == n)
            return n;
        memmove(ends + best, ends + best + 1, (n - best - 1) * sizeof(*ends));
        n--;
    }
}

static void make_oracle(struct oracle *o, bool bpe)
{
    size_t want = 5 + random_below(&rng, WORDS_MAX - 8);

    o->n = 0;
    if (!bpe)
        for (; o->n < 3; o->n++)
            snprintf(o->texts[o->n], sizeof(o->texts[0]), "%c", (char)('a' + o->n));
    for (int tries = 0; tries < 400 && o->n < want; tries++) {
        char parts[2][20], both[40];

        for (int p = 0; p < 2; p++) {
            size_t k = random_below(&rng, (uint32_t)o->n + 3);

            snprintf(parts[p], sizeof(parts[p]), "%.10s",
                     k < o->n ? o->texts[k] : (const char[]){(char)('a' + k - o->n), 0});
        }
        snprintf(both, sizeof(both), "%s%s", parts[0], parts[1]);
        if (strlen(both) > 10 || find_text(o, both, strlen(both)) >= 0)
            continue;
        snprintf(o->texts[o->n], sizeof(o->texts[0]), "%s", both);
        snprintf(o->merges[o->n], sizeof(o->merges[0]), "%s %s", parts[0], parts[1]);
        o->n++;
    }
    for (size_t i = 0; i < o->n; i++)
        o->scores[i] = (float)random_below(&rng, 6); /* many equal ones */
}

static void load_oracle(const struct oracle *o, bool bpe)
{
    const char *merges[WORDS_MAX];
    struct vocabulary_entry entries[WORDS_MAX];

    for (size_t i = 0; i < o->n; i++) {
        merges[i] = o->merges[i];
        entries[i] = (struct vocabulary_entry){o->texts[i], o->scores[i], 0};
    }
    if (bpe) {
        vocabulary_bpe(&w, "gpt-2", NULL, 0, merges, o->n);
    } else {
        vocabulary_spm(&w, entries, o->n);
        gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    }
    load();
}

static void check_words(bool bpe)
{
    static struct oracle o;

    for (uint64_t round = 0; round < random_ops() / 20; round++) {
        make_oracle(&o, bpe);
        load_oracle(&o, bpe);
        for (int k = 0; k < 20; k++) {
            char text[WORD_MAX];
            size_t ends[WORD_MAX], n = 1 + random_below(&rng, WORD_MAX - 1), n_symbols;
            int32_t want[WORD_MAX];

            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + random_below(&rng, 3));
                ends[i] = i + 1;
            }
            n_symbols = merge_plainly(&o, text, ends, n, !bpe);
            for (size_t i = 0; i < n_symbols; i++) {
                size_t from = i == 0 ? 0 : ends[i - 1];
                int id = find_text(&o, text + from, ends[i] - from);

                want[i] = id >= 0 ? (bpe ? VOCABULARY_FIRST_MERGED : VOCABULARY_SPM_FIRST) + id : text[from];
            }
            encoder_begin(e);
            assert_int_equal(encoder_add(e, span_of(text, n), ENCODE_PLAIN, &err), ST_OK);
            expect_ids(want, n_symbols);
        }
    }
}

static void merges_go_by_rank_as_the_plain_algorithm_does(void **state)
{
    (void)state;
    check_words(true);
}

static void merges_go_by_score_as_the_plain_algorithm_does(void **state)
{
    (void)state;
    check_words(false);
}

/* --- slices and time ------------------------------------------------------------------------------------------------------- */

/* aa, aaaa, ...: every power of two of one letter, of a blank and of a line end; the worst case of a single word. */
static void load_doubling(bool bpe)
{
    static char texts[3][8][1300];
    static const char *const letters[2][3] = {{"a", "\xC4\xA0", "\xC4\x8A"}, {"a", "\xE2\x96\x81", "\n"}};
    const char *merges[24];
    struct vocabulary_entry entries[27];
    size_t n = 0, n_entries = 0;

    for (int l = 0; l < 3; l++) {
        char half[600] = "";

        if (!bpe)
            entries[n_entries++] = (struct vocabulary_entry){letters[1][l], 0, 0};
        snprintf(half, sizeof(half), "%s", letters[!bpe][l]);
        for (int k = 0; k < 6; k++) {
            char *text = texts[l][k];

            snprintf(text, sizeof(texts[l][k]), bpe ? "%s %s" : "%s%s", half, half);
            merges[n++] = text;
            if (!bpe)
                entries[n_entries++] = (struct vocabulary_entry){text, (float)-k, 0};
            size_t h = strlen(half);

            memcpy(half + h, half, h);
            half[2 * h] = '\0';
        }
    }
    if (bpe)
        vocabulary_bpe(&w, "llama-bpe", NULL, 0, merges, n);
    else
        vocabulary_spm(&w, entries, n_entries);
    load();
}

static uint64_t work_for(uint8_t *text, size_t n, int kind)
{
    const int32_t *ids;
    size_t n_ids;

    for (size_t i = 0; i < n; i++) {
        uint32_t c = 0x1F300 + (uint32_t)(i / 4) % 0x500;
        const uint8_t emoji[4] = {0xF0, (uint8_t)(0x80 | (c >> 12 & 63)), (uint8_t)(0x80 | (c >> 6 & 63)),
                                  (uint8_t)(0x80 | (c & 63))};

        text[i] = kind == 0   ? 'a'
                  : kind == 1 ? ' '
                  : kind == 2 ? '\n'
                  : kind == 3 ? (uint8_t)('0' + i % 10)
                  : kind == 4 ? emoji[i % 4]
                              : 0xFF;
    }
    assert_int_equal(encoder_encode(e, span_of(text, n), ENCODE_CONTROL, &ids, &n_ids, &err), ST_OK);
    return encoder_work(e);
}

static void check_work(void)
{
    uint8_t *text = malloc(PROMPT_BYTES_MAX);

    for (int kind = 0; kind < 6; kind++) {
        uint64_t small = work_for(text, PROMPT_BYTES_MAX / 16, kind),
                 large = work_for(text, PROMPT_BYTES_MAX, kind);

        print_message("text %d: %.1f, %.1f steps a byte\n", kind, (double)small * 16 / PROMPT_BYTES_MAX,
                      (double)large / PROMPT_BYTES_MAX);
        assert_true(large < small * 16 * 3 /
                                2); /* n log n grows by a quarter here; quadratic would by sixteen times */
        assert_true(large < 100ull * PROMPT_BYTES_MAX);
    }
    free(text);
}

static void a_megabyte_of_anything_takes_near_linear_work(void **state)
{
    (void)state;
    load_doubling(true);
    check_work();
    load_doubling(false);
    check_work();
}

static void slices_of_any_size_give_the_same_ids_and_are_short(void **state)
{
    char text[4096];
    static int32_t whole[8192];

    (void)state;
    for (int bpe = 0; bpe < 2; bpe++) {
        load_doubling(bpe != 0);
        for (int round = 0; round < 30; round++) {
            size_t n = 1 + random_below(&rng, sizeof(text) - 1), n_ids, n_again;
            const int32_t *ids;

            for (size_t i = 0; i < n; i++)
                text[i] = "aaaaaa    \n\nb1\xC3\xA9"[random_below(&rng, 16)];
            assert_int_equal(encoder_encode(e, span_of(text, n), ENCODE_PLAIN, &ids, &n_ids, &err), ST_OK);
            assert_true(n_ids <= 8192);
            memcpy(whole, ids, n_ids * sizeof(*ids));
            encoder_begin(e);
            assert_int_equal(encoder_add(e, span_of(text, n), ENCODE_PLAIN, &err), ST_OK);
            if (round % 4 == 0) { /* all the rest at once, however much was done before */
                (void)!encoder_step(e, 1);
                assert_int_equal(encoder_step(e, UINT64_MAX), ST_OK);
            }
            for (enum status st = ST_AGAIN; st == ST_AGAIN;) {
                uint64_t slice = 1 + random_below(&rng, 50), before = encoder_work(e);

                st = encoder_step(e, slice);
                assert_true(encoder_work(e) - before <= slice + n + 64); /* a scan is not cut, a merge is */
            }
            ids = encoder_ids(e, &n_again);
            assert_int_equal(n_again, n_ids);
            assert_memory_equal(ids, whole, n_ids * sizeof(*ids));
        }
    }
}

/* Bytes in, the same bytes out, for the real vocabularies. */
static void round_trip(const char *path)
{
    struct gguf *g = NULL;
    static uint8_t text[2000], out[4000];

    assert_int_equal(gguf_open(path, &g, &err), ST_OK);
    assert_int_equal(tokenizer_new(g, &t, &err), ST_OK);
    gguf_close(g);
    assert_int_equal(encoder_new(t, &e), ST_OK);
    for (uint64_t round = 0; round < random_ops() / 10; round++) {
        size_t n = random_below(&rng, sizeof(text)), n_ids;
        const int32_t *ids;
        uint32_t range = round % 2 ? 256 : 95;

        for (size_t i = 0; i < n; i++)
            text[i] = (uint8_t)(range == 256 ? random_below(&rng, 256) : 32 + random_below(&rng, 95));
        assert_int_equal(encoder_encode(e, span_of(text, n), ENCODE_PLAIN, &ids, &n_ids, &err), ST_OK);
        if (encoder_dropped_bytes(e) > 0 || memmem(text, n, "\xE2\x96\x81", 3) != NULL)
            continue;
        assert_int_equal(tokenizer_decode(t, ids, n_ids, false, out, sizeof(out)), n);
        assert_memory_equal(out, text, n);
    }
}

static void random_bytes_come_back_smollm2(void **state)
{
    (void)state;
    if (test_model_smollm2() == NULL)
        skip();
    round_trip(test_model_smollm2());
}

static void random_bytes_come_back_gemma3(void **state)
{
    (void)state;
    if (test_model_gemma3() == NULL)
        skip();
    round_trip(test_model_gemma3());
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(plain_text_never_becomes_a_control_token, end),
        cmocka_unit_test_teardown(a_control_token_lies_within_control_parts, end),
        cmocka_unit_test_teardown(parts_that_touch_are_one_text, end),
        cmocka_unit_test_teardown(user_defined_tokens_are_found_everywhere_and_made_of_no_merge, end),
        cmocka_unit_test_teardown(text_cannot_spell_a_byte_token_or_a_whole_control_word, end),
        cmocka_unit_test_teardown(spm_adds_a_blank_at_the_start_and_after_special_tokens, end),
        cmocka_unit_test_teardown(bytes_without_a_token_are_counted, end),
        cmocka_unit_test_teardown(limits_are_named_and_nothing_is_added, end),
        cmocka_unit_test_teardown(merges_go_by_rank_as_the_plain_algorithm_does, end),
        cmocka_unit_test_teardown(merges_go_by_score_as_the_plain_algorithm_does, end),
        cmocka_unit_test_teardown(a_megabyte_of_anything_takes_near_linear_work, end),
        cmocka_unit_test_teardown(slices_of_any_size_give_the_same_ids_and_are_short, end),
        cmocka_unit_test_teardown(random_bytes_come_back_smollm2, end),
        cmocka_unit_test_teardown(random_bytes_come_back_gemma3, end),
    };

    rng = random_start(argc, argv, 4000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
