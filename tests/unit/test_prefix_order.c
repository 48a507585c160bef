/* test_prefix_order.c - lines with one beginning stand together; against a comparison of the texts themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "gateway/prefix_order.h"
#include "tests/support/random.h"

static struct random dice;

static void any_prompts(void **state)
{
    enum { LINES = 60, BYTES = 400 };
    static char prompts[LINES][BYTES + 1];

    (void)state;
    for (uint64_t op = 0; op < random_ops(); op++) {
        struct prefix_key keys[LINES];
        struct line_ref lines[LINES];
        bool seen[LINES] = { false };
        uint32_t stems = 1 + random_below(&dice, 5);
        for (uint32_t i = 0; i < LINES; i++) {
            uint32_t stem = random_below(&dice, stems), n = random_below(&dice, BYTES);
            for (uint32_t k = 0; k < n; k++) /* a stem differs from others from byte 0, 70 or 140 on, and lines end in noise */
                prompts[i][k] = k + 40 >= n ? (char)('0' + random_below(&dice, 10)) : k < 70 * (stem % 3) ? 'x' : (char)('a' + stem);
            prompts[i][n] = '\0';
            const struct weir_request q = { .prompt = prompts[i], .prompt_bytes = n };
            prefix_key_make(&q, &keys[i]);
            lines[i] = (struct line_ref){ .number = i + 1, .bytes = i };
        }
        prefix_order(lines, keys, LINES);
        for (uint32_t i = 0; i < LINES; i++) { /* each line once, whole */
            assert_int_equal(lines[i].bytes, lines[i].number - 1);
            assert_false(seen[lines[i].number - 1]);
            seen[lines[i].number - 1] = true;
        }
        static const size_t steps[] = { 64, 128, 192, 256, 384 };
        for (size_t s = 0; s < 5; s++) /* who shares a beginning of this length is one stretch */
            for (uint32_t a = 0; a < LINES; a++)
                for (uint32_t b = a + 2; b < LINES; b++) {
                    const char *pa = prompts[lines[a].number - 1], *pb = prompts[lines[b].number - 1];
                    if (strlen(pa) < steps[s] || strlen(pb) < steps[s] || memcmp(pa, pb, steps[s]) != 0)
                        continue;
                    const char *pm = prompts[lines[b - 1].number - 1];
                    assert_true(strlen(pm) >= steps[s] && memcmp(pa, pm, steps[s]) == 0);
                }
    }
}

static void equal_prompts_keep_the_order_of_the_file(void **state)
{
    struct prefix_key keys[3];
    struct line_ref lines[3] = { { .number = 1 }, { .number = 2 }, { .number = 3 } };
    const struct weir_request q = { .prompt = "short", .prompt_bytes = 5 };

    (void)state;
    for (int i = 0; i < 3; i++)
        prefix_key_make(&q, &keys[i]);
    prefix_order(lines, keys, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(lines[i].number, i + 1);
}

static void models_messages_and_prompts_are_told_apart(void **state)
{
    char text[100];
    memset(text, 'a', sizeof text);
    const struct weir_message m = { .role = "user", .content = text, .content_bytes = sizeof text };
    const struct weir_request requests[] = { { .prompt = text, .prompt_bytes = sizeof text },
                                             { .prompt = text, .prompt_bytes = sizeof text, .model = "m" },
                                             { .messages = &m, .n_messages = 1 } };
    struct prefix_key keys[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        prefix_key_make(&requests[i], &keys[i]);
    assert_int_not_equal(keys[0].hash[0], keys[1].hash[0]);
    assert_int_not_equal(keys[0].hash[0], keys[2].hash[0]);
    assert_int_equal(keys[0].hash[1], 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_prompts),
        cmocka_unit_test(equal_prompts_keep_the_order_of_the_file),
        cmocka_unit_test(models_messages_and_prompts_are_told_apart),
    };

    dice = random_start(argc, argv, 500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
