/* test_router.c - a prompt goes where its beginning is warm, until waiting there costs more than computing it elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "broker/router.h"
#include "tests/support/random.h"

enum { WORKERS = 3 };
static struct random rng;
static const uint64_t scope_a[2] = { 1, 2 }, scope_b[2] = { 1, 3 };

static struct router *make(void)
{
    struct router *r = NULL;

    assert_int_equal(router_new(WORKERS, &r), ST_OK);
    return r;
}

static struct router_prefix prefix_of(const uint64_t scope[2], const char *text, size_t n)
{
    struct router_prefix p;

    router_prefix_of(scope, span_of(text, n), &p);
    return p;
}

static int pick(const struct router *r, const struct router_prefix *p, uint64_t l0, uint64_t l1, uint64_t l2)
{
    struct router_candidate c[WORKERS] = { { true, l0 }, { true, l1 }, { true, l2 } };

    return router_pick(r, p, 4000, 1000, c);
}

static void a_cold_prompt_goes_to_the_least_loaded(void **state)
{
    struct router *r = make();
    static char text[4000];
    struct router_prefix p = prefix_of(scope_a, text, sizeof(text));

    (void)state;
    assert_int_equal(pick(r, &p, 500, 100, 300), 1);
    router_free(r);
}

static void a_warm_prompt_goes_back_unless_the_queue_there_costs_more(void **state)
{
    struct router *r = make();
    static char text[4000];
    struct router_prefix p = prefix_of(scope_a, text, sizeof(text));

    (void)state;
    router_note(r, 2, &p);
    assert_int_equal(pick(r, &p, 0, 0, 900), 2);
    assert_int_equal(pick(r, &p, 0, 0, 1100), 0); /* a hot prefix spreads */
    router_note(r, 0, &p);
    assert_int_equal(pick(r, &p, 10, 0, 0), 2);   /* both are warm: the load decides */
    router_forget(r, 2);
    assert_int_equal(pick(r, &p, 10, 0, 0), 0);
    router_free(r);
}

static void another_scope_is_cold(void **state)
{
    struct router *r = make();
    static char text[4000];
    struct router_prefix a = prefix_of(scope_a, text, sizeof(text)), b = prefix_of(scope_b, text, sizeof(text));

    (void)state;
    router_note(r, 1, &a);
    assert_int_equal(router_warm_chunks(r, 1, &a), a.n);
    assert_int_equal(router_warm_chunks(r, 1, &b), 0);
    router_free(r);
}

static void nobody_usable_is_nobody(void **state)
{
    struct router *r = make();
    struct router_candidate c[WORKERS] = { 0 };
    struct router_prefix p = { 0 };

    (void)state;
    assert_int_equal(router_pick(r, &p, 0, 1, c), -1);
    c[1].usable = true;
    assert_int_equal(router_pick(r, &p, 0, 1, c), 1);
    router_free(r);
}

static void chunks_cover_whole_pieces_only(void **state)
{
    static char text[ROUTER_FINE_BYTES * ROUTER_FINE_CHUNKS + ROUTER_COARSE_BYTES * 400];

    (void)state;
    assert_int_equal(prefix_of(scope_a, text, 0).n, 0);
    assert_int_equal(prefix_of(scope_a, text, 63).n, 0);
    assert_int_equal(prefix_of(scope_a, text, 64).n, 1);
    assert_int_equal(prefix_of(scope_a, text, sizeof(text)).n, ROUTER_CHUNKS_MAX);
    assert_int_equal(router_chunk_bytes(ROUTER_FINE_CHUNKS + 2), ROUTER_FINE_BYTES * ROUTER_FINE_CHUNKS + 2 * ROUTER_COARSE_BYTES);
}

/* The oracle compares bytes: what the router calls warm is a common beginning with something noted, to within a chunk. */
static uint64_t compare_texts(void)
{
    enum { TEXTS = 60, BYTES = 2048 };
    static char texts[TEXTS][BYTES];
    struct router *r = make();
    size_t length[TEXTS];

    for (int i = 0; i < TEXTS; i++) {
        int from = i > 0 ? (int)random_below(&rng, (uint32_t)i) : 0;
        size_t shared = random_below(&rng, BYTES);

        length[i] = random_below(&rng, BYTES);
        for (size_t k = 0; k < BYTES; k++)
            texts[i][k] = k < shared ? texts[from][k] : (char)random_below(&rng, 256);
    }
    for (int i = 0; i < TEXTS; i++) {
        struct router_prefix p = prefix_of(scope_a, texts[i], length[i]);
        size_t best = 0;

        for (int k = 0; k < i; k++) {
            size_t n = 0, most = length[i] < length[k] ? length[i] : length[k];

            while (n < most && texts[i][n] == texts[k][n])
                n++;
            best = n > best ? n : best;
        }
        assert_int_equal(router_warm_chunks(r, 0, &p), best / ROUTER_FINE_BYTES);
        router_note(r, 0, &p);
    }
    router_free(r);
    return TEXTS;
}

static void warm_is_a_common_beginning(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < random_ops();)
        n += compare_texts();
}

static void memory_is_bounded_and_keeps_the_youngest(void **state)
{
    struct router *r = make();
    static char text[256];
    struct router_prefix p = { 0 };

    (void)state;
    for (uint32_t i = 0; i < 4 * ROUTER_TABLE_ENTRIES; i++) {
        memcpy(text, &i, sizeof(i));
        p = prefix_of(scope_a, text, sizeof(text));
        router_note(r, 1, &p);
    }
    assert_int_equal(router_warm_chunks(r, 1, &p), p.n);
    router_free(r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cold_prompt_goes_to_the_least_loaded),
        cmocka_unit_test(a_warm_prompt_goes_back_unless_the_queue_there_costs_more),
        cmocka_unit_test(another_scope_is_cold),
        cmocka_unit_test(nobody_usable_is_nobody),
        cmocka_unit_test(chunks_cover_whole_pieces_only),
        cmocka_unit_test(warm_is_a_common_beginning),
        cmocka_unit_test(memory_is_bounded_and_keeps_the_youngest),
    };
    rng = random_start(argc, argv, 1000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
