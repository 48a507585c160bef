/* test_keys.c - the table of idempotency keys, against a list that is searched and sorted the dull way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "broker/keys.h"
#include "tests/support/random.h"

static const uint64_t ms_ns = 1000000;
static struct random dice;

static struct key key_of(uint64_t name, uint64_t user, uint64_t content)
{
    return (struct key){ .name = { name, name * 7 }, .user = user, .content = { content, 1 } };
}

static struct kept_answer answer_of(uint64_t number, uint64_t bytes)
{
    struct kept_answer a = { .choices = calloc(1, sizeof(struct choice)), .n_choices = 1, .bytes = bytes, .number = number };

    assert_non_null(a.choices);
    return a;
}

static enum key_state state_of(const struct keys *k, uint64_t name, uint64_t content, uint32_t *ret_place)
{
    struct key key = key_of(name, 1, content);
    uint32_t request;
    bool same;

    return keys_find(k, &key, ret_place, &same, &request);
}

static void a_key_lives_is_kept_told_again_and_expires(void **state)
{
    struct keys *k = NULL;
    struct key key = key_of(5, 1, 9), other = key_of(5, 1, 10);
    uint32_t place, request;
    bool same;

    (void)state;
    assert_int_equal(keys_new(&k), ST_OK);
    assert_int_equal(keys_find(k, &key, &place, &same, &request), KEY_ABSENT);
    place = keys_add(k, &key, 77);
    assert_int_equal(keys_find(k, &key, &place, &same, &request), KEY_LIVE);
    assert_true(same && request == 77);
    assert_int_equal(keys_find(k, &other, &place, &same, &request), KEY_LIVE);
    assert_false(same);
    struct kept_answer a = answer_of(3, 100), again;
    keys_keep(k, place, &a, 1000);
    assert_int_equal(keys_find(k, &key, &place, &same, &request), KEY_KEPT);
    keys_take(k, place, 78, &again);
    assert_int_equal(again.number, 3);
    assert_int_equal(keys_request(k, place), 78);
    keys_keep(k, place, &again, 2000 + KEYS_KEEP_MS * ms_ns / 2); /* telling it does not make it younger */
    keys_expire(k, 999 + KEYS_KEEP_MS * ms_ns);
    assert_int_equal(keys_find(k, &key, &place, &same, &request), KEY_KEPT);
    keys_expire(k, 1000 + KEYS_KEEP_MS * ms_ns);
    assert_int_equal(keys_find(k, &key, &place, &same, &request), KEY_ABSENT);
    keys_check(k);
    keys_free(k);
}

static void bytes_are_bounded_and_the_oldest_go_first(void **state)
{
    struct keys *k = NULL;
    uint32_t place;

    (void)state;
    assert_int_equal(keys_new(&k), ST_OK);
    for (uint64_t i = 0; i < 5; i++) {
        struct key key = key_of(i, i, 1);
        struct kept_answer a = answer_of(i, KEYS_BYTES_MAX / 4);
        keys_keep(k, keys_add(k, &key, (uint32_t)i), &a, i + 1);
        keys_check(k);
    }
    assert_int_equal(state_of(k, 0, 1, &place), KEY_ABSENT);
    for (uint64_t i = 1; i < 5; i++)
        assert_int_equal(state_of(k, i, 1, &place), KEY_KEPT);
    struct key key = key_of(9, 9, 1);
    struct kept_answer a = answer_of(9, KEYS_BYTES_MAX + 1); /* too large for the whole table: nobody goes for it */
    keys_keep(k, keys_add(k, &key, 9), &a, 9);
    assert_null(a.choices);
    assert_int_equal(state_of(k, 9, 1, &place), KEY_ABSENT);
    assert_int_equal(keys_numbers(k).n_kept, 4);
    keys_free(k);
}

static void a_user_over_its_share_loses_its_own(void **state)
{
    struct keys *k = NULL;
    uint32_t place;

    (void)state;
    assert_int_equal(keys_new(&k), ST_OK);
    for (uint64_t i = 0; i < KEYS_USER_KEPT_MAX + 10; i++) {
        struct key key = key_of(i, i == 0 ? 1 : 2, 1);
        struct kept_answer a = answer_of(i, 10);
        keys_keep(k, keys_add(k, &key, 0), &a, i + 1);
    }
    keys_check(k);
    assert_int_equal(state_of(k, 0, 1, &place), KEY_KEPT); /* the oldest of all, but another's */
    assert_int_equal(state_of(k, 1, 1, &place), KEY_ABSENT);
    assert_int_equal(keys_numbers(k).n_kept, KEYS_USER_KEPT_MAX + 1);
    keys_free(k);
}

/* --- random operations ------------------------------------------------------------------------ */

enum { NAMES = 700, STEPS = 100000 };

static struct {
    enum key_state state;
    uint64_t user, content, until, bytes, number;
} oracle[NAMES];

/* The oracle's oldest kept key (of a user, or of anybody: user 0).  Times differ, so it is unique. */
static int oldest(uint64_t user, unsigned *ret_n)
{
    int at = -1;

    *ret_n = 0;
    for (int i = 0; i < NAMES; i++)
        if (oracle[i].state == KEY_KEPT && (user == 0 || oracle[i].user == user)) {
            ++*ret_n;
            if (at < 0 || oracle[i].until < oracle[at].until)
                at = i;
        }
    return at;
}

static void oracle_forget(int i)
{
    oracle[i].state = KEY_ABSENT;
    oracle[i].until = 0;
}

static void oracle_keep(int i, uint64_t bytes, uint64_t now)
{
    unsigned n;

    if (oracle[i].until == 0)
        oracle[i].until = now + KEYS_KEEP_MS * ms_ns;
    if (oracle[i].until <= now) {
        oracle_forget(i);
        return;
    }
    int own = oldest(oracle[i].user, &n);
    if (n >= KEYS_USER_KEPT_MAX)
        oracle_forget(own);
    for (;;) {
        uint64_t sum = bytes;
        for (int k = 0; k < NAMES; k++)
            sum += oracle[k].state == KEY_KEPT ? oracle[k].bytes : 0;
        if (sum <= KEYS_BYTES_MAX)
            break;
        int first = oldest(0, &n);
        oracle_forget(first);
    }
    oracle[i].state = KEY_KEPT;
    oracle[i].bytes = bytes;
}

static void random_step(struct keys *k, uint64_t now, uint64_t step)
{
    int i = (int)random_below(&dice, NAMES);
    struct key key = key_of((uint64_t)i, 1 + (uint64_t)i % 11 / 10, oracle[i].content);
    uint32_t place = 0, request = 0;
    bool same = false;

    oracle[i].user = key.user;
    assert_int_equal(keys_find(k, &key, &place, &same, &request), oracle[i].state);
    switch (oracle[i].state) {
    case KEY_ABSENT:
        oracle[i].content = key.content[0] = random_below(&dice, 3);
        keys_add(k, &key, (uint32_t)i);
        oracle[i].state = KEY_LIVE;
        oracle[i].number = step;
        break;
    case KEY_LIVE:
        assert_true(same && request == (uint32_t)i);
        if (random_below(&dice, 5) == 0) {
            keys_drop(k, place);
            oracle_forget(i);
        } else {
            uint64_t bytes = random_below(&dice, 4) == 0 ? random_below(&dice, KEYS_BYTES_MAX / 8) : random_below(&dice, 1000);
            struct kept_answer a = answer_of(oracle[i].number, bytes);
            keys_keep(k, place, &a, now);
            oracle_keep(i, bytes, now);
        }
        break;
    case KEY_KEPT: {
        struct kept_answer a;
        keys_take(k, place, (uint32_t)i, &a);
        assert_int_equal(a.number, oracle[i].number);
        kept_answer_deinit(&a);
        oracle[i].state = KEY_LIVE;
        break;
    }
    }
}

static void random_operations_agree_with_the_oracle(void **state)
{
    struct keys *k = NULL;
    uint64_t now = 1;

    (void)state;
    assert_int_equal(keys_new(&k), ST_OK);
    for (uint64_t step = 1; step <= random_ops(); step++) {
        now += 1 + random_below(&dice, (uint32_t)(3 * KEYS_KEEP_MS * ms_ns / 2000));
        keys_expire(k, now);
        for (int i = 0; i < NAMES; i++)
            if (oracle[i].state == KEY_KEPT && oracle[i].until <= now)
                oracle_forget(i);
        random_step(k, now, step);
        if (step % 64 == 0)
            keys_check(k);
    }
    keys_free(k);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_lives_is_kept_told_again_and_expires),
        cmocka_unit_test(bytes_are_bounded_and_the_oldest_go_first),
        cmocka_unit_test(a_user_over_its_share_loses_its_own),
        cmocka_unit_test(random_operations_agree_with_the_oracle),
    };
    dice = random_start(argc, argv, STEPS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
