/* test_sessions.c - how long a session lives, by a clock that is an argument; and what workers keep for it under pressure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "broker/sessions.h"
#include "tests/support/random.h"
#include "worker/session_pins.h"

static struct sessions s;
static struct random dice;

static int use(uint64_t name, uint64_t ttl, uint64_t now)
{
    int at = SESSION_NONE;

    return sessions_use(&s, (uint64_t[2]){ name, 0 }, name % 3, SESSIONS_USER_MAX, ttl, now, &at) == ST_OK ? at : SESSION_NONE;
}

static void a_session_lives_until_its_time_out_and_not_longer(void **state)
{
    (void)state;
    memset(&s, 0, sizeof(s));
    int at = use(7, 100, 1000);
    assert_int_equal(sessions_place(&s, at, 3), 1);
    sessions_expire(&s, 5000); /* in use: time does not pass */
    assert_int_equal(sessions_to_tell(&s, 3), SESSION_NONE);
    sessions_unuse(&s, at, 5000);
    sessions_expire(&s, 5099);
    assert_int_equal(sessions_to_tell(&s, 3), SESSION_NONE);
    at = use(7, 100, 5099); /* refreshed */
    sessions_unuse(&s, at, 5100);
    sessions_expire(&s, 5199);
    assert_int_equal(sessions_to_tell(&s, 3), SESSION_NONE);
    sessions_expire(&s, 5200);
    assert_int_equal(sessions_to_tell(&s, 3), at);
    assert_int_equal(s.list[at].number, 1);
    sessions_told(&s, at, 3);
    assert_int_equal(s.n, 0);
    assert_int_equal(sessions_place(&s, use(7, 100, 6000), 3), 2); /* another number */
}

static void a_session_that_moves_is_kept_in_one_place(void **state)
{
    (void)state;
    memset(&s, 0, sizeof(s));
    int at = use(1, 100, 0);
    sessions_place(&s, at, 0);
    sessions_place(&s, at, 1); /* worker 0 had no room */
    assert_int_equal(sessions_to_tell(&s, 0), SESSION_NONE); /* its request may still leave blocks there */
    sessions_unuse(&s, at, 1);
    assert_int_equal(sessions_to_tell(&s, 0), at);
    assert_int_equal(sessions_to_tell(&s, 1), SESSION_NONE);
    sessions_told(&s, at, 0);
    assert_int_equal(s.list[at].worker, 1);
    sessions_forget_worker(&s, 1); /* it died */
    assert_int_equal(s.list[at].worker, -1);
    assert_true(sessions_end(&s, (uint64_t[2]){ 1, 0 }));
    assert_false(sessions_end(&s, (uint64_t[2]){ 1, 0 }));
    assert_int_equal(s.n, 0); /* nobody keeps anything: nobody is told */
}

static void a_session_ended_in_use_is_told_after_its_last_request(void **state)
{
    (void)state;
    memset(&s, 0, sizeof(s));
    int at = use(1, 100, 0);
    sessions_place(&s, at, 0);
    assert_true(sessions_end(&s, (uint64_t[2]){ 1, 0 }));
    int again = use(1, 100, 1); /* the name is free */
    assert_int_not_equal(again, at);
    assert_int_equal(sessions_place(&s, at, 2), 0); /* a takeover of the old one keeps nothing */
    assert_int_equal(sessions_to_tell(&s, 0), SESSION_NONE);
    sessions_unuse(&s, at, 2);
    assert_int_equal(sessions_to_tell(&s, 0), at);
    sessions_check(&s);
}

static void limits_hold(void **state)
{
    int at = SESSION_NONE;

    (void)state;
    memset(&s, 0, sizeof(s));
    for (uint64_t i = 0; i < SESSIONS_USER_MAX; i++)
        assert_int_equal(sessions_use(&s, (uint64_t[2]){ i, 1 }, 1, SESSIONS_USER_MAX, 10, 0, &at), ST_OK);
    assert_int_equal(sessions_use(&s, (uint64_t[2]){ 999, 1 }, 1, SESSIONS_USER_MAX, 10, 0, &at), ST_LIMIT);
    assert_int_equal(sessions_use(&s, (uint64_t[2]){ 5, 1 }, 1, 1, 10, 0, &at), ST_OK); /* one that is there, though the limit is lower now */
    for (uint64_t i = SESSIONS_USER_MAX; i < SESSIONS_MAX; i++)
        assert_int_equal(sessions_use(&s, (uint64_t[2]){ i, 2 }, 100 + i, 1, 10, 0, &at), ST_OK);
    assert_int_equal(sessions_use(&s, (uint64_t[2]){ 1, 3 }, 3, UINT64_MAX, 10, 0, &at), ST_FULL);
    sessions_check(&s);
}

/* Every step: no session ends early, none is left when its time is over, and whoever may keep blocks is told.  At most n_max steps; how many. */
static uint64_t random_lives(uint64_t n_max)
{
    enum { NAMES = 40 };
    struct { int at; uint32_t n; uint64_t due, number; } own[NAMES];
    uint64_t now = 1;
    static bool keeps[8][4096];
    uint64_t step = 0;

    memset(keeps, 0, sizeof(keeps));
    memset(&s, 0, sizeof(s));
    memset(own, 0, sizeof(own));
    for (; step < n_max && s.last_number < 4000; step++) {
        uint32_t i = random_below(&dice, NAMES), what = random_below(&dice, 8);
        uint64_t ttl = 1 + random_below(&dice, 50);

        now += random_below(&dice, 6);
        sessions_expire(&s, now);
        for (uint32_t w = 0; w < 8; w++)
            for (int at; (at = sessions_to_tell(&s, w)) != SESSION_NONE; sessions_told(&s, at, w))
                keeps[w][s.list[at].number] = false;
        for (uint32_t k = 0; k < NAMES; k++)
            if (own[k].number != 0 && own[k].n == 0 && own[k].due <= now) {
                for (uint32_t w = 0; w < 8; w++)
                    assert_false(keeps[w][own[k].number]);
                own[k].number = 0;
            }
        if (what < 4) {
            int at = use(i, ttl, now);
            assert_int_not_equal(at, SESSION_NONE);
            if (own[i].number != 0)
                assert_int_equal(s.list[at].number, own[i].number); /* it did not end early */
            own[i].at = at;
            own[i].number = s.list[at].number;
            own[i].due = now + ttl;
            own[i].n++;
            uint32_t w = random_below(&dice, 8);
            if (sessions_place(&s, at, w) != 0)
                keeps[w][own[i].number] = true;
        } else if (own[i].n > 0) {
            sessions_unuse(&s, own[i].at, now);
            own[i].n--;
            own[i].due = now + s.list[own[i].at].ttl_ns;
        }
        sessions_check(&s);
    }
    return step;
}

static void random_lives_keep_the_rules(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < random_ops();)
        n += random_lives(random_ops() - n);
}

/* --- what a worker keeps ---------------------------------------------------------------------- */

enum { BLOCKS = 64 };
static struct session_pins pins;
static struct prefix_cache *cache;

/* A sequence of n full blocks whose first token is `first` computes, ends, and leaves its path to the session. */
static bool run(uint64_t session, int32_t first, uint32_t n)
{
    const struct prefix_scope scope = { { 1, 1 } };
    int32_t tokens[BLOCKS * BLOCK_TOKENS];
    uint32_t blocks[BLOCKS], got = 0;
    struct prefix_match m;

    for (uint32_t i = 0; i < n * BLOCK_TOKENS; i++)
        tokens[i] = first + (int32_t)i;
    prefix_cache_match(cache, scope, tokens, n * BLOCK_TOKENS, blocks, &m);
    if (m.partial != KV_BLOCK_NONE)
        prefix_cache_release(cache, m.partial);
    got = m.n_blocks;
    while (got < n) {
        if (prefix_cache_take(cache, &blocks[got]) != ST_OK) {
            if (session_pins_drop_oldest(&pins, cache))
                continue;
            break;
        }
        blocks[got] = prefix_cache_publish(cache, scope, got > 0 ? blocks[got - 1] : KV_BLOCK_NONE, blocks[got],
                                           tokens + (size_t)got * BLOCK_TOKENS, BLOCK_TOKENS);
        got++;
    }
    bool whole = got == n;
    if (got > 0 && session != 0)
        session_pins_hold(&pins, cache, session, blocks[got - 1], got);
    while (got > 0)
        prefix_cache_release(cache, blocks[--got]);
    session_pins_check(&pins, cache);
    prefix_cache_check(cache);
    return whole;
}

static uint32_t found(int32_t first, uint32_t n)
{
    int32_t tokens[BLOCKS * BLOCK_TOKENS];
    uint32_t scratch[BLOCKS];

    for (uint32_t i = 0; i < n * BLOCK_TOKENS; i++)
        tokens[i] = first + (int32_t)i;
    return prefix_cache_peek(cache, (struct prefix_scope){ { 1, 1 } }, tokens, n * BLOCK_TOKENS, scratch) / BLOCK_TOKENS;
}

static void open_cache(void)
{
    memset(&pins, 0, sizeof(pins));
    assert_int_equal(prefix_cache_new(BLOCKS, 1, &cache), ST_OK);
}

static void a_kept_path_survives_what_evicts_all_others(void **state)
{
    (void)state;
    open_cache();
    assert_true(run(1, 0, 10));
    assert_true(run(0, 100000, 10));
    for (int32_t i = 2; i < 30; i++)
        assert_true(run(0, i * 100000, 40));
    assert_int_equal(found(0, 10), 10);
    assert_int_equal(found(100000, 10), 0);
    assert_true(run(1, 0, 15)); /* the next turn */
    assert_int_equal(pins.n_blocks, 15);
    session_pins_drop(&pins, cache, 1);
    assert_int_equal(prefix_cache_counts(cache).n_pinned, 0);
    prefix_cache_free(cache);
}

static void the_session_used_longest_ago_gives_way(void **state)
{
    (void)state;
    open_cache();
    run(1, 100000, 12);
    run(2, 200000, 12);
    session_pins_touch(&pins, 1);
    run(3, 300000, 12); /* over the share of 32 */
    assert_int_equal(pins.n, 2);
    assert_int_equal(prefix_cache_counts(cache).n_pinned, 24);
    assert_true(run(0, 900000, 64)); /* work that needs all of it gets all of it */
    assert_int_equal(pins.n, 0);
    run(4, 400000, 60); /* more than the share: its beginning */
    assert_int_equal(pins.n_blocks, BLOCKS / SESSION_PINS_SHARE);
    prefix_cache_free(cache);
}

static void random_sessions_never_stop_a_sequence(void **state)
{
    (void)state;
    open_cache();
    for (uint64_t i = 0; i < random_ops(); i++) {
        uint64_t session = random_below(&dice, 9);

        if (session != 0 && random_below(&dice, 6) == 0)
            session_pins_drop(&pins, cache, session);
        else
            assert_true(run(session, (int32_t)random_below(&dice, 6) * 100000, 1 + random_below(&dice, BLOCKS)));
    }
    while (session_pins_drop_oldest(&pins, cache))
        continue;
    assert_int_equal(prefix_cache_counts(cache).n_pinned, 0);
    prefix_cache_free(cache);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_lives_until_its_time_out_and_not_longer),
        cmocka_unit_test(a_session_that_moves_is_kept_in_one_place),
        cmocka_unit_test(a_session_ended_in_use_is_told_after_its_last_request),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(random_lives_keep_the_rules),
        cmocka_unit_test(a_kept_path_survives_what_evicts_all_others),
        cmocka_unit_test(the_session_used_longest_ago_gives_way),
        cmocka_unit_test(random_sessions_never_stop_a_sequence),
    };
    dice = random_start(argc, argv, 20000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
