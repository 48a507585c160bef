/* test_splitter.c - the scanners cut as the published regular expressions do, and look at each character a few times only.
 *
 * tests/reference/data/splitters.json was made with the expressions themselves (make_splitter_vectors.py beside it). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include <jansson.h>

#include "worker/splitter.h"
#include "worker/unicode.h"

static bool cut_equals(const char *name, struct span text, json_t *words)
{
    const struct splitter_name *n = splitter_find(span_str(name));
    struct splitter s;
    size_t at = 0, i;
    json_t *word;

    assert_non_null(n);
    splitter_begin(&s, n->kind);
    json_array_foreach(words, i, word)
    {
        struct span want = span_of(json_string_value(word), json_string_length(word));
        size_t end = at < text.n ? splitter_next(&s, text, at) : at;

        if (!span_equal(span_of(text.at + at, end - at), want)) {
            print_message("%s cuts \"%.*s\" at %zu..%zu, wanted \"%.*s\"\n", name, (int)text.n,
                          (const char *)text.at, at, end, (int)want.n, (const char *)want.at);
            return false;
        }
        at = end;
    }
    return at == text.n;
}

static void words_equal_those_of_the_regular_expressions(void **state)
{
    json_t *rows = json_load_file("tests/reference/data/splitters.json", JSON_ALLOW_NUL, NULL), *row;
    size_t i, n_equal = 0;

    (void)state;
    assert_non_null(rows);
    json_array_foreach(rows, i, row)
    {
        json_t *text = json_object_get(row, "text");

        n_equal += cut_equals(json_string_value(json_object_get(row, "splitter")),
                              span_of(json_string_value(text), json_string_length(text)),
                              json_object_get(row, "words"));
    }
    print_message("%zu of %zu equal\n", n_equal, json_array_size(rows));
    assert_int_equal(n_equal, json_array_size(rows));
    json_decref(rows);
}

static void the_ascii_shortcut_agrees_with_the_table(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x80; c++) {
        enum unicode_class want = UNICODE_OTHER;

        for (uint32_t i = 0; i < unicode_n_ranges; i++)
            if (unicode_ranges[i].first <= c && c <= unicode_ranges[i].last)
                want = (enum unicode_class)unicode_ranges[i].class;
        assert_int_equal(unicode_class_of(c), want);
    }
    for (uint32_t i = 1; i < unicode_n_ranges; i++)
        assert_true(unicode_ranges[i].first > unicode_ranges[i - 1].last);
    assert_int_equal(unicode_class_of(0x10FFFF), UNICODE_OTHER);
    assert_int_equal(unicode_class_of(UINT32_MAX), UNICODE_OTHER);
}

static void malformed_bytes_are_one_character_each(void **state)
{
    static const char *const bad[] = {"\x80", "\xC0\x80", "\xE2\x82", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                      "\xFF", "\xC3("};
    uint32_t c;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(unicode_decode(span_str(bad[i]), &c), 1);
        assert_int_equal(c, UNICODE_INVALID);
    }
    assert_int_equal(unicode_decode(span_str("\xF4\x8F\xBF\xBF"), &c), 4);
    assert_int_equal(c, 0x10FFFF);
}

static double cut_all_ms(enum splitter_kind kind, struct span text)
{
    struct splitter s;
    struct timespec a, b;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    splitter_begin(&s, kind);
    for (size_t at = 0; at < text.n;)
        at = splitter_next(&s, text, at);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    return (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
}

/* Quadratic scanning of 256 KiB would take minutes. */
static void no_text_takes_more_than_linear_time(void **state)
{
    static const char *const units[] = {
        "a", " ", "\n", "1", "!", " \n", "a ", "\t\n ", "'", "'s", "\xF0\x9F\x98\x80", "\xFF", "\r\n!"};
    static uint8_t text[256 << 10];

    (void)state;
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++)
        for (int kind = SPLITTER_GPT2; kind <= SPLITTER_DEFAULT; kind++) {
            size_t n = strlen(units[u]);

            for (size_t i = 0; i < sizeof(text); i++)
                text[i] = (uint8_t)units[u][i % n];
            assert_true(cut_all_ms((enum splitter_kind)kind, span_of(text, sizeof(text))) < 2000);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_equal_those_of_the_regular_expressions),
        cmocka_unit_test(the_ascii_shortcut_agrees_with_the_table),
        cmocka_unit_test(malformed_bytes_are_one_character_each),
        cmocka_unit_test(no_text_takes_more_than_linear_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
