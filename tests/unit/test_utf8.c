/* test_utf8.c - exactly the well-formed sequences of RFC 3629 pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/random.h"
#include "utf8.h"

static struct random rng;

/* The oracle: decode by arithmetic, then look whether the code point is allowed and its encoding the shortest. */
static size_t slow_character(const uint8_t *p, size_t n)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t want = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    uint32_t code = want == 1 ? p[0] : want > 0 ? p[0] & (0x7Fu >> want) : 0;

    if (want == 0 || want > n)
        return 0;
    for (size_t i = 1; i < want; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        code = code << 6 | (p[i] & 63);
    }
    if (code < least[want] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return 0;
    return want;
}

static size_t slow_prefix(struct span t)
{
    size_t i = 0;

    while (i < t.n) {
        size_t n = slow_character(t.at + i, t.n - i);
        if (n == 0)
            break;
        i += n;
    }
    return i;
}

static void all_sequences_of_three_bytes_agree_with_arithmetic(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 1u << 24; bits += 1 + (bits >> 16 < 0xC0 ? 61 : 0)) { /* leads below C0 need no care */
        const uint8_t text[3] = { (uint8_t)(bits >> 16), (uint8_t)(bits >> 8), (uint8_t)bits };
        struct span t = span_of(text, 3);

        if (utf8_valid_prefix(t) != slow_prefix(t))
            fail_msg("%02x %02x %02x: %zu", text[0], text[1], text[2], utf8_valid_prefix(t));
    }
}

static void random_text_with_damage_agrees_with_arithmetic(void **state)
{
    (void)state;
    for (uint64_t op = 0; op < random_ops(); op++) {
        uint8_t text[64];
        size_t n = 0;

        while (n < sizeof(text) - 4 && random_below(&rng, 30) != 0) {
            uint32_t code = random_below(&rng, 3) == 0 ? random_below(&rng, 0x110000) : random_below(&rng, 0x80);
            if (code < 0x80) {
                text[n++] = (uint8_t)code;
            } else if (code < 0x800) {
                text[n++] = (uint8_t)(0xC0 | code >> 6);
                text[n++] = (uint8_t)(0x80 | (code & 63));
            } else if (code < 0x10000) {
                text[n++] = (uint8_t)(0xE0 | code >> 12);
                text[n++] = (uint8_t)(0x80 | (code >> 6 & 63));
                text[n++] = (uint8_t)(0x80 | (code & 63));
            } else {
                text[n++] = (uint8_t)(0xF0 | code >> 18);
                text[n++] = (uint8_t)(0x80 | (code >> 12 & 63));
                text[n++] = (uint8_t)(0x80 | (code >> 6 & 63));
                text[n++] = (uint8_t)(0x80 | (code & 63));
            }
        }
        if (n > 0 && random_below(&rng, 2) == 0)
            text[random_below(&rng, (uint32_t)n)] = (uint8_t)random_next(&rng);
        struct span t = span_of(text, n);
        assert_int_equal(utf8_valid_prefix(t), slow_prefix(t));
        assert_int_equal(utf8_valid(t), slow_prefix(t) == n);
    }
}

static void the_borders_are_where_they_should_be(void **state)
{
    static const struct { const char *text; size_t n, valid; } cases[] = {
        { "", 0, 0 }, { "a\0b", 3, 3 }, { "\x7F", 1, 1 }, { "\x80", 1, 0 }, { "\xC0\x80", 2, 0 }, { "\xC1\xBF", 2, 0 },
        { "\xC2\x80", 2, 2 }, { "\xE0\x9F\xBF", 3, 0 }, { "\xE0\xA0\x80", 3, 3 }, { "\xED\x9F\xBF", 3, 3 },
        { "\xED\xA0\x80", 3, 0 }, { "\xEE\x80\x80", 3, 3 }, { "\xF0\x8F\xBF\xBF", 4, 0 }, { "\xF0\x90\x80\x80", 4, 4 },
        { "\xF4\x8F\xBF\xBF", 4, 4 }, { "\xF4\x90\x80\x80", 4, 0 }, { "\xF5\x80\x80\x80", 4, 0 }, { "\xFF", 1, 0 },
        { "abcdefgh\xF0\x9F\x8C", 11, 8 }, { "abcdefg\xF0\x9F\x8C\xB6z", 12, 12 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(utf8_valid_prefix(span_of(cases[i].text, cases[i].n)), cases[i].valid);
    assert_true(utf8_valid(span_of(NULL, 0)));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sequences_of_three_bytes_agree_with_arithmetic),
        cmocka_unit_test(random_text_with_damage_agrees_with_arithmetic),
        cmocka_unit_test(the_borders_are_where_they_should_be),
    };

    rng = random_start(argc, argv, 100000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
