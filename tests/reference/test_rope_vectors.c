/* Rotary positions scaled by YaRN against numbers that make_yarn_vectors.py computed from the paper's formulas. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/rope.h"

#define DATA "tests/reference/data/yarn.txt"

enum { HALF_MAX = 64, CASES = 5, POSITIONS = 5 };

static double number(FILE *in)
{
    double x;

    assert_int_equal(fscanf(in, "%lf", &x), 1);
    return x;
}

static void word(FILE *in, const char *want)
{
    char got[16];

    assert_int_equal(fscanf(in, "%15s", got), 1);
    assert_string_equal(got, want);
}

static void near(double got, double want, double error)
{
    if (!(fabs(got - want) <= error))
        fail_msg("%.9g instead of %.9g", got, want);
}

static void check_case(FILE *in)
{
    struct model_rope m = { .scaling = ROPE_SCALING_YARN };
    double frequencies[HALF_MAX];
    float cosines[HALF_MAX], sines[HALF_MAX];

    word(in, "case");
    struct rope r = { .half = (uint32_t)number(in) / 2, .frequencies = frequencies };
    assert_true(r.half <= HALF_MAX);
    m.freq_base = (float)number(in);
    m.factor = (float)number(in);
    m.original_context = (uint32_t)number(in);
    m.yarn_beta_fast = (float)number(in);
    m.yarn_beta_slow = (float)number(in);
    m.yarn_ext_factor = (float)number(in);
    m.yarn_attn_factor = (float)number(in);
    rope_init(&r, &m, NULL);

    word(in, "magnitude");
    near((double)r.magnitude, number(in), 1e-6);
    for (uint32_t i = 0; i < r.half; i++) {
        const double want = number(in);
        near(frequencies[i], want, want * 1e-12);
    }
    for (int k = 0; k < POSITIONS; k++) {
        word(in, "position");
        rope_position(&r, (uint32_t)number(in), cosines, sines);
        for (uint32_t i = 0; i < r.half; i++)
            near((double)cosines[i], number(in), 3e-7);
        for (uint32_t i = 0; i < r.half; i++)
            near((double)sines[i], number(in), 3e-7);
    }
}

static void yarn_turns_as_the_paper_says(void **state)
{
    FILE *in = fopen(DATA, "re");

    (void)state;
    assert_non_null(in);
    for (int i = 0; i < CASES; i++)
        check_case(in);
    fclose(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(yarn_turns_as_the_paper_says) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
