/* test_stop_match.c - a stop string ends the answer exactly before itself, however the text was cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "worker/stop_match.h"

static struct stop_set set;
static struct error err;

static void make(const char *const *stops, size_t n)
{
    struct span spans[STOPS_MAX];

    for (size_t i = 0; i < n; i++)
        spans[i] = span_str(stops[i]);
    assert_int_equal(stop_set_init(&set, spans, n, &err), ST_OK);
}

/* Push the NULL-terminated pieces; what comes out, with '|' after each push and '!' after a hit. */
static const char *run(const char *const *pieces)
{
    static char text[4096];
    struct stop_match m = {0};
    size_t n = 0;

    for (; *pieces != NULL; pieces++) {
        n += stop_match_push(&m, &set, span_str(*pieces), (uint8_t *)text + n);
        text[n++] = '|';
    }
    if (m.hit)
        text[n++] = '!';
    n += stop_match_finish(&m, (uint8_t *)text + n);
    text[n] = '\0';
    return text;
}

#define STOPS(...) \
    make((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))
#define EXPECT(want, ...) assert_string_equal(run((const char *const[]){__VA_ARGS__, NULL}), want)

static void a_stop_inside_a_piece_is_cut_exactly(void **state)
{
    (void)state;
    STOPS("\n");
    EXPECT("What?|!", "What?\nBob");
    EXPECT("What|?||!", "What", "?\n", "more");
}

static void a_stop_over_several_pieces_is_never_shown(void **state)
{
    (void)state;
    STOPS("END");
    EXPECT("a||||!", "aE", "N", "D", "x");
    EXPECT("a|||ENd|", "aE", "N", "", "d");
}

static void what_was_held_comes_out_when_it_is_no_stop(void **state)
{
    (void)state;
    STOPS("aab");
    EXPECT("|a|aaaac||", "aa", "a", "aac", "");
}

static void the_first_completed_stop_wins_and_the_longest_of_those(void **state)
{
    (void)state;
    STOPS("abcd", "bc");
    EXPECT("xa|!", "xabcd");
    STOPS("c", "bc");
    EXPECT("xa|!", "xabcd");
}

static void without_stops_everything_passes(void **state)
{
    (void)state;
    make(NULL, 0);
    EXPECT("abc|def|", "abc", "def");
}

static void bad_stop_strings_are_refused_by_index(void **state)
{
    static uint8_t text[STOP_BYTES_MAX + 1];
    struct span many[STOPS_MAX + 1];

    (void)state;
    memset(text, 'x', sizeof(text));
    for (size_t i = 0; i <= STOPS_MAX; i++)
        many[i] = span_str("x");
    assert_int_equal(stop_set_init(&set, many, STOPS_MAX + 1, &err), ST_LIMIT);
    many[1] = span_of(text, sizeof(text));
    assert_int_equal(stop_set_init(&set, many, 2, &err), ST_LIMIT);
    assert_string_equal(err.param, "stop[1]");
    many[1] = span_str("");
    assert_int_equal(stop_set_init(&set, many, 2, &err), ST_INVALID);
    many[1] = span_str("\xC3");
    assert_int_equal(stop_set_init(&set, many, 2, &err), ST_INVALID);
    many[1] = span_of(text, STOP_BYTES_MAX);
    assert_int_equal(stop_set_init(&set, many, STOPS_MAX, &err), ST_OK);
}

/* The oracle: for each end, try every stop string; the first end wins, then the longest.  Returns the length kept. */
static size_t oracle(struct span text, const struct span *stops, size_t n_stops, bool *ret_hit)
{
    for (size_t end = 1; end <= text.n; end++) {
        size_t longest = 0;

        for (size_t s = 0; s < n_stops; s++)
            if (stops[s].n <= end && memcmp(text.at + end - stops[s].n, stops[s].at, stops[s].n) == 0 &&
                stops[s].n > longest)
                longest = stops[s].n;
        *ret_hit = longest > 0;
        if (longest > 0)
            return end - longest;
    }
    *ret_hit = false;
    return text.n;
}

/* The longest suffix of text that begins a stop string. */
static size_t oracle_held(struct span text, const struct span *stops, size_t n_stops)
{
    for (size_t n = text.n; n > 0; n--)
        for (size_t s = 0; s < n_stops; s++)
            if (n < stops[s].n && memcmp(text.at + text.n - n, stops[s].at, n) == 0)
                return n;
    return 0;
}

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void random_texts_agree_with_a_plain_search(void **state)
{
    uint32_t seed = 99;

    (void)state;
    print_message("seed %u\n", seed);
    for (int round = 0; round < 20000; round++) {
        uint8_t words[3][8], text[60], out[60 + STOP_BYTES_MAX];
        struct span stops[3];
        size_t n_stops = 1 + next_random(&seed) % 3, n_text = next_random(&seed) % sizeof(text), n_out = 0,
               at = 0;
        struct stop_match m = {0};
        bool hit = false;

        for (size_t s = 0; s < n_stops; s++) {
            stops[s] = span_of(words[s], 1 + next_random(&seed) % sizeof(words[s]));
            for (size_t i = 0; i < stops[s].n; i++)
                words[s][i] = (uint8_t)('a' + next_random(&seed) % 2);
        }
        for (size_t i = 0; i < n_text; i++)
            text[i] = (uint8_t)('a' + next_random(&seed) % (round % 2 ? 2 : 3));
        assert_int_equal(stop_set_init(&set, stops, n_stops, &err), ST_OK);
        while (at < n_text) {
            size_t n = 1 + next_random(&seed) % 9;

            n = n > n_text - at ? n_text - at : n;
            n_out += stop_match_push(&m, &set, span_of(text + at, n), out + n_out);
            at += n;
            if (!m.hit) /* exactly the longest possible beginning is held, no more and no less */
                assert_int_equal(at - n_out, oracle_held(span_of(text, at), stops, n_stops));
        }
        n_out += stop_match_finish(&m, out + n_out);
        size_t want = oracle(span_of(text, n_text), stops, n_stops, &hit);

        assert_int_equal(m.hit, hit);
        assert_int_equal(n_out, want);
        assert_memory_equal(out, text, n_out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_inside_a_piece_is_cut_exactly),
        cmocka_unit_test(a_stop_over_several_pieces_is_never_shown),
        cmocka_unit_test(what_was_held_comes_out_when_it_is_no_stop),
        cmocka_unit_test(the_first_completed_stop_wins_and_the_longest_of_those),
        cmocka_unit_test(without_stops_everything_passes),
        cmocka_unit_test(bad_stop_strings_are_refused_by_index),
        cmocka_unit_test(random_texts_agree_with_a_plain_search),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
