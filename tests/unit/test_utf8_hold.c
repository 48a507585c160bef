/* test_utf8_hold.c - text leaves only as whole characters, whatever the pieces are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "utf8.h"
#include "worker/utf8_hold.h"

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Push all of in, cut at random places, and finish.  out is large enough. */
static size_t run(struct span in, uint32_t *seed, size_t piece_max, uint8_t *out)
{
    struct utf8_hold h = {0};
    size_t n_out = 0;

    for (size_t at = 0; at < in.n;) {
        size_t n = 1 + next_random(seed) % piece_max;

        if (n > in.n - at)
            n = in.n - at;
        n_out += utf8_hold_push(&h, span_of(in.at + at, n), out + n_out);
        assert_true(h.n <= 3);
        assert_true(utf8_valid(span_of(out, n_out)));
        at += n;
    }
    return n_out + utf8_hold_finish(&h, out + n_out);
}

static void expect(const char *in, size_t n_in, const char *want)
{
    uint8_t out[256];
    uint32_t seed = 1;

    for (size_t piece = 1; piece <= 8; piece++) {
        size_t n = run(span_of(in, n_in), &seed, piece, out);

        assert_int_equal(n, strlen(want));
        assert_memory_equal(out, want, n);
    }
}

#define FFFD             "\xEF\xBF\xBD"
#define EXPECT(in, want) expect(in, sizeof(in) - 1, want)

static void whole_characters_pass_unchanged(void **state)
{
    (void)state;
    EXPECT("", "");
    EXPECT("plain", "plain");
    EXPECT("caf\xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x98\x80", "caf\xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x98\x80");
}

static void a_split_character_waits_for_its_last_byte(void **state)
{
    struct utf8_hold h = {0};
    uint8_t out[16];

    (void)state;
    assert_int_equal(utf8_hold_push(&h, span_str("\xF0\x9F"), out), 0);
    assert_int_equal(utf8_hold_push(&h, span_str("\x8C"), out), 0);
    assert_int_equal(utf8_hold_push(&h, span_str("\xB6!"), out), 5);
    assert_memory_equal(out, "\xF0\x9F\x8C\xB6!", 5);
    assert_int_equal(utf8_hold_finish(&h, out), 0);
}

/* Behind a text that ends within a character: the bytes of that text never come out by themselves. */
static void what_the_text_before_began_is_completed_or_left_out(void **state)
{
    static const struct {
        const char *before, *in, *want;
    } cases[] = {
        { "x\xF0\x9F", "\x8C\xB6!", "\xF0\x9F\x8C\xB6!" },
        { "\xF0\x9F\x8C", "\xB6", "\xF0\x9F\x8C\xB6" },
        { "\xC3", "\xA9", "\xC3\xA9" },
        { "x\xF0\x9F", "plain", "plain" },
        { "x\xF0\x9F", "", "" },
        { "x\xF0\x9F", "\x8C", FFFD },
        { "x\xF0\x9F", "\x8C!", FFFD "!" },
        { "x\xF0\x9F", "\xF0\x9F\x8C\xB6", "\xF0\x9F\x8C\xB6" },
        { "caf\xC3\xA9", "\xA9", FFFD },
        { "", "\xC3\xA9", "\xC3\xA9" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct utf8_hold h;
        uint8_t out[64];

        utf8_hold_after(&h, span_str(cases[i].before));
        size_t n = utf8_hold_push(&h, span_str(cases[i].in), out);
        n += utf8_hold_finish(&h, out + n);
        assert_int_equal(n, strlen(cases[i].want));
        assert_memory_equal(out, cases[i].want, n);
    }
}

static void an_unfinished_character_at_the_end_is_one_replacement(void **state)
{
    (void)state;
    EXPECT("a\xC3", "a" FFFD);
    EXPECT("a\xF0\x9F\x98", "a" FFFD);
}

static void each_maximal_subpart_is_one_replacement(void **state)
{
    (void)state;
    /* the example of the Unicode standard, table 3-8 */
    EXPECT("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
           "a" FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d");
    EXPECT("\xC0\xAF", FFFD FFFD);                   /* overlong */
    EXPECT("\xE0\x80\x80", FFFD FFFD FFFD);          /* overlong */
    EXPECT("\xED\xA0\x80", FFFD FFFD FFFD);          /* surrogate */
    EXPECT("\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD); /* above U+10FFFF */
    EXPECT("\xFF\xFE", FFFD FFFD);
}

static void random_bytes_give_valid_text_that_does_not_depend_on_the_cuts(void **state)
{
    uint32_t seed = 4711;
    static const uint8_t likely[] = {'a', 0x80, 0xBF, 0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0x9F, 0xA0, 0xFF};

    (void)state;
    print_message("seed %u\n", seed);
    for (int round = 0; round < 5000; round++) {
        uint8_t in[40], one[UTF8_HOLD_OUT_MAX(40)], other[UTF8_HOLD_OUT_MAX(40)];
        size_t n = next_random(&seed) % sizeof(in);

        for (size_t i = 0; i < n; i++)
            in[i] = likely[next_random(&seed) % sizeof(likely)];
        size_t n_one = run(span_of(in, n), &seed, 40, one), n_other = run(span_of(in, n), &seed, 3, other);

        assert_true(utf8_valid(span_of(one, n_one)));
        assert_int_equal(n_one, n_other);
        assert_memory_equal(one, other, n_one);
        if (utf8_valid(span_of(in, n)))
            assert_true(n == n_one && memcmp(in, one, n) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_characters_pass_unchanged),
        cmocka_unit_test(a_split_character_waits_for_its_last_byte),
        cmocka_unit_test(an_unfinished_character_at_the_end_is_one_replacement),
        cmocka_unit_test(what_the_text_before_began_is_completed_or_left_out),
        cmocka_unit_test(each_maximal_subpart_is_one_replacement),
        cmocka_unit_test(random_bytes_give_valid_text_that_does_not_depend_on_the_cuts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
