/* test_startups.c - who has to make room at the door, and whose turn it is to be fed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "gateway/startups.h"
#include "gateway/turns.h"
#include "tests/support/random.h"

static struct random dice;
static struct startups s;
static const uint64_t late = 2 * STARTUP_SETTLE_NS; /* by then everybody had time to speak */
static const uint8_t here[16] = { 1 }, there[16] = { 2 };

static void reset(uint32_t free, uint32_t percent, uint32_t max, uint32_t per_source)
{
    memset(&s, 0, sizeof s);
    s.free = free;
    s.percent = percent;
    s.max = max;
    s.per_source = per_source;
    s.grace_ns = 100;
}

static void below_free_nobody_goes(void **state)
{
    (void)state;
    reset(10, 30, 20, 100);
    for (uint64_t i = 1; i <= 10; i++) {
        assert_int_equal(startups_victim(&s, here, 0, late), -1);
        startups_add(&s, i, here, i);
    }
    assert_int_equal(startups_victim(&s, here, 0, late), 0);   /* dice 0 < 30 */
    assert_int_equal(startups_victim(&s, here, 30, late), -1); /* dice 30 is not */
}

static void at_max_the_oldest_silent_one_goes(void **state)
{
    (void)state;
    reset(2, 30, 4, 100);
    for (uint64_t i = 1; i <= 4; i++)
        startups_add(&s, i, here, 10 - i);
    assert_int_equal(s.list[startups_victim(&s, there, 99, late)].number, 4); /* the oldest */
    s.list[3].bytes_received = 5000;
    assert_int_equal(s.list[startups_victim(&s, there, 99, late)].number, 3); /* the oldest that has said nothing */
    for (int i = 0; i < 4; i++)
        s.list[i].bytes_received = 5000;
    assert_int_equal(s.list[startups_victim(&s, there, 99, late)].number, 4);
}

static void a_source_over_its_share_makes_room_itself(void **state)
{
    (void)state;
    reset(100, 30, 200, 3);
    startups_add(&s, 1, there, 1);
    for (uint64_t i = 2; i <= 4; i++)
        startups_add(&s, i, here, i);
    assert_int_equal(s.list[startups_victim(&s, here, 99, late)].number, 2);
    assert_int_equal(startups_victim(&s, there, 99, late), -1);
}

/* Many from one address in one second: none has to go while there is room, and never one of another address. */
static void the_young_are_spared(void **state)
{
    (void)state;
    reset(100, 100, 200, 3);
    startups_add(&s, 1, there, 0);
    for (uint64_t i = 2; i <= 100; i++) {
        assert_int_equal(startups_victim(&s, here, 0, STARTUP_SETTLE_NS), -1);
        startups_add(&s, i, here, STARTUP_SETTLE_NS);
    }
    assert_int_equal(s.list[startups_victim(&s, here, 0, STARTUP_SETTLE_NS)].number, 2); /* no longer free: its own */
    assert_int_equal(s.list[startups_victim(&s, there, 0, STARTUP_SETTLE_NS)].number, 1); /* the only one that had its time */
    startups_remove(&s, 1);
    startups_add(&s, 1, here, STARTUP_SETTLE_NS);
    assert_int_equal(startups_victim(&s, there, 0, STARTUP_SETTLE_NS), -1);
    assert_int_equal(s.list[startups_victim(&s, here, 0, late)].number, 1); /* none is young now */
}

static void the_grace_ends(void **state)
{
    (void)state;
    reset(10, 30, 20, 100);
    assert_int_equal(startups_next_ns(&s), UINT64_MAX);
    startups_add(&s, 7, here, 50);
    assert_int_equal(startups_next_ns(&s), 150);
    assert_int_equal(startups_overdue(&s, 149), 0);
    assert_int_equal(startups_overdue(&s, 150), 7);
    assert_true(startups_remove(&s, 7));
    assert_false(startups_remove(&s, 7));
    assert_false(startups_remove(&s, 0));
    assert_int_equal(startups_overdue(&s, 1000), 0);
}

/* Any arrivals and departures: never more than the limits, and the count is right. */
static void limits_hold_whatever_comes(void **state)
{
    uint64_t next = 1;

    (void)state;
    reset(20, 30, 60, 15);
    for (uint64_t i = 0; i < random_ops(); i++) {
        uint8_t source[16] = { (uint8_t)random_below(&dice, 8) };
        if (random_below(&dice, 4) == 0) {
            startups_remove(&s, 1 + random_below(&dice, (uint32_t)next));
        } else {
            int victim = startups_victim(&s, source, (uint32_t)random_next(&dice), i * STARTUP_SETTLE_NS / 8);
            if (victim >= 0)
                assert_true(startups_remove(&s, s.list[victim].number));
            startups_add(&s, next++, source, i * STARTUP_SETTLE_NS / 8);
        }
        uint32_t n = 0, same = 0;
        for (uint32_t k = 0; k < STARTUPS_MAX; k++) {
            n += s.list[k].number != 0;
            same += s.list[k].number != 0 && memcmp(s.list[k].source, source, 16) == 0;
        }
        assert_int_equal(n, s.n);
        assert_true(n <= 60 && (same <= 15 || n <= 20)); /* over its share only while the door is free */
    }
}

static void fewest_lines_then_longest_wait_then_priority_then_age(void **state)
{
    struct turn t[3] = { { 2, 1, 2, 1 }, { 1, 9, 2, 2 }, { 1, 8, 2, 3 } };

    (void)state;
    assert_int_equal(turns_pick(t, 3), 2);
    t[1].user_last = 8;
    assert_int_equal(turns_pick(t, 3), 1);
    t[2].priority = 3;
    assert_int_equal(turns_pick(t, 3), 2);
    assert_int_equal(turns_pick(t, 1), 0);
}

/* Two users, one with ten jobs: over a window of lines that end at random both get the same. */
static void users_share_evenly(void **state)
{
    uint32_t flying[2] = { 0 }, fed[2] = { 0 };
    uint64_t last[2] = { 0 };

    (void)state;
    for (uint64_t i = 1; i < 20000; i++) {
        struct turn t[11];
        for (int j = 0; j < 11; j++) {
            int user = j == 10;
            t[j] = (struct turn){ flying[user], last[user], 2, j };
        }
        int user = turns_pick(t, 11) == 10;
        last[user] = i;
        fed[user]++;
        flying[user]++;
        if (flying[0] + flying[1] > 32) {
            int done = random_below(&dice, flying[0] + flying[1]) < flying[1];
            flying[done]--;
        }
    }
    assert_true(fed[0] > 9000 && fed[1] > 9000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(below_free_nobody_goes),
        cmocka_unit_test(at_max_the_oldest_silent_one_goes),
        cmocka_unit_test(a_source_over_its_share_makes_room_itself),
        cmocka_unit_test(the_young_are_spared), cmocka_unit_test(the_grace_ends),
        cmocka_unit_test(limits_hold_whatever_comes),
        cmocka_unit_test(fewest_lines_then_longest_wait_then_priority_then_age),
        cmocka_unit_test(users_share_evenly),
    };

    dice = random_start(argc, argv, 20000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
