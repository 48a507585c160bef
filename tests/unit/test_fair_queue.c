/* test_fair_queue.c - users share by tokens; the lists are what a plain array says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "broker/fair_queue.h"
#include "tests/support/random.h"

enum { ITEMS = 64, USERS = 5, MODELS = 3, ALL = 7 };
static struct random rng;

static struct fair_queue *make(void)
{
    struct fair_queue *q = NULL;

    assert_int_equal(fair_queue_new(ITEMS, USERS, MODELS, &q), ST_OK);
    return q;
}

static void a_user_with_long_requests_gets_fewer_of_them(void **state)
{
    struct fair_queue *q = make();
    uint64_t served[2] = { 0 };

    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        fair_queue_push(q, i, i, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, i == 0 ? 1000 : 10);
    for (int i = 0; i < 2000; i++) {
        int64_t at = fair_queue_pick(q, ALL, ALL);
        assert_true(at == 0 || at == 1);
        fair_queue_take(q, (uint32_t)at);
        served[at] += at == 0 ? 1000 : 10;
        fair_queue_push(q, (uint32_t)at, (uint32_t)at, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, at == 0 ? 1000 : 10);
    }
    assert_true(served[0] > 0);
    assert_true(served[0] < served[1] + 2 * 1000);
    assert_true(served[1] < served[0] + 2 * 1000);
    fair_queue_free(q);
}

static void idleness_earns_no_credit(void **state)
{
    struct fair_queue *q = make();
    int n_first = 0;

    (void)state;
    for (int i = 0; i < 100; i++) { /* user 0 works for long while user 1 sleeps */
        fair_queue_push(q, 0, 0, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, 100);
        fair_queue_take(q, 0);
    }
    for (uint32_t i = 0; i < 40; i++)
        fair_queue_push(q, i, i % 2, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, 100);
    for (int i = 0; i < 20; i++) {
        int64_t at = fair_queue_pick(q, ALL, ALL);
        n_first += at % 2 == 0;
        fair_queue_take(q, (uint32_t)at);
    }
    assert_in_range(n_first, 9, 11);
    fair_queue_free(q);
}

static void batch_gets_its_share_and_no_more_while_interactive_waits(void **state)
{
    struct fair_queue *q = make();
    int n_batch = 0;

    (void)state;
    fair_queue_push(q, 0, 0, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, 10);
    fair_queue_push(q, 1, 1, 0, QUEUE_BATCH, QUEUE_NORMAL, 10);
    for (int i = 0; i < 900; i++) {
        int64_t at = fair_queue_pick(q, ALL, ALL);
        n_batch += at == 1;
        fair_queue_take(q, (uint32_t)at);
        fair_queue_push(q, (uint32_t)at, at == 1, 0, at == 1 ? QUEUE_BATCH : QUEUE_INTERACTIVE, QUEUE_NORMAL, 10);
    }
    assert_in_range(n_batch, 900 / (FAIR_BATCH_SHARE + 1) - 2, 900 / (FAIR_BATCH_SHARE + 1) + 2);
    fair_queue_free(q);
}

static void a_model_without_room_does_not_hold_up_another(void **state)
{
    struct fair_queue *q = make();

    (void)state;
    fair_queue_push(q, 0, 0, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, 10);
    fair_queue_push(q, 1, 0, 2, QUEUE_INTERACTIVE, QUEUE_NORMAL, 10);
    assert_int_equal(fair_queue_pick(q, 1 << 2, ALL), 1);
    assert_int_equal(fair_queue_pick(q, 1 << 1, ALL), FAIR_NONE);
    fair_queue_free(q);
}

static void a_blocked_user_is_passed_over(void **state)
{
    struct fair_queue *q = make();

    (void)state;
    fair_queue_push(q, 0, 0, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, 10);
    fair_queue_push(q, 1, 1, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, 10);
    fair_queue_block_user(q, 0, true);
    assert_int_equal(fair_queue_pick(q, ALL, ALL), 1);
    fair_queue_take(q, 1);
    assert_int_equal(fair_queue_pick(q, ALL, ALL), FAIR_NONE);
    fair_queue_block_user(q, 0, false);
    assert_int_equal(fair_queue_pick(q, ALL, ALL), 0);
    fair_queue_free(q);
}

static void settling_charges_what_was_used(void **state)
{
    struct fair_queue *q = make();

    (void)state;
    fair_queue_push(q, 0, 0, 0, QUEUE_BATCH, QUEUE_NORMAL, 500);
    assert_int_equal(fair_queue_take(q, 0), 0);
    assert_int_equal(fair_queue_user_time(q, 0, QUEUE_BATCH), 500);
    fair_queue_settle(q, 0, QUEUE_BATCH, 500, 20);
    assert_int_equal(fair_queue_user_time(q, 0, QUEUE_BATCH), 20);
    fair_queue_settle(q, 0, QUEUE_BATCH, 10, 100);
    assert_int_equal(fair_queue_user_time(q, 0, QUEUE_BATCH), 110);
    fair_queue_settle(q, 0, QUEUE_BATCH, 10000, 0); /* a refund never makes a debt of the pool's */
    assert_int_equal(fair_queue_user_time(q, 0, QUEUE_BATCH), 0);
    fair_queue_free(q);
}

static void a_batch_user_is_not_moved_up_to_interactive_ones(void **state)
{
    struct fair_queue *q = make();

    (void)state;
    for (int i = 0; i < 100; i++) { /* user 0 chats a lot */
        fair_queue_push(q, 0, 0, 0, QUEUE_INTERACTIVE, QUEUE_NORMAL, 1000);
        fair_queue_take(q, 0);
    }
    fair_queue_push(q, 1, 1, 0, QUEUE_BATCH, QUEUE_NORMAL, 100); /* users 1 and 2 are equals; 2 had nothing queued for a moment */
    fair_queue_push(q, 2, 2, 0, QUEUE_BATCH, QUEUE_NORMAL, 100);
    fair_queue_take(q, 2);
    fair_queue_push(q, 2, 2, 0, QUEUE_BATCH, QUEUE_NORMAL, 100);
    assert_true(fair_queue_user_time(q, 2, QUEUE_BATCH) <= fair_queue_user_time(q, 1, QUEUE_BATCH) + 100);
    fair_queue_free(q);
}

/* --- against an array of structs that is searched from one end to the other ------------------- */

struct oracle_item {
    int queued;
    uint32_t user, model;
    enum queue_class class;
    enum queue_priority priority; /* QUEUE_RESUMED has none */
    uint64_t order, cost;
};
static struct oracle_item oracle[ITEMS];
static uint64_t oracle_time[USERS][QUEUE_CLASSES], oracle_now[QUEUE_CLASSES], oracle_owed, oracle_order;
static int oracle_blocked[USERS];

static uint32_t oracle_length(int user, int class)
{
    uint32_t n = 0;

    for (int i = 0; i < ITEMS; i++)
        n += oracle[i].queued && (user < 0 || (oracle[i].user == (uint32_t)user && oracle[i].class != QUEUE_RESUMED)) &&
             (class < 0 || oracle[i].class == (enum queue_class)class);
    return n;
}

/* Of one user: priority, then model, then age. */
static int goes_before(const struct oracle_item *a, const struct oracle_item *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    return a->model != b->model ? a->model < b->model : a->order < b->order;
}

/* Least time, then user, then as the user orders them. */
static int oracle_best(enum queue_class class, uint32_t models)
{
    int best = -1;

    for (int i = 0; i < ITEMS; i++) {
        const struct oracle_item *a = &oracle[i], *b = &oracle[best < 0 ? i : best];

        if (!a->queued || a->class != class || oracle_blocked[a->user] || (models >> a->model & 1) == 0)
            continue;
        if (best < 0 || oracle_time[a->user][class] < oracle_time[b->user][class] ||
            (oracle_time[a->user][class] == oracle_time[b->user][class] &&
             (a->user < b->user || (a->user == b->user && goes_before(a, b)))))
            best = i;
    }
    return best;
}

static int oracle_pick(uint32_t interactive, uint32_t batch)
{
    int i = oracle_best(QUEUE_INTERACTIVE, interactive), b = oracle_best(QUEUE_BATCH, batch);

    if (i < 0 || (b >= 0 && oracle_owed / FAIR_BATCH_SHARE >= oracle[b].cost))
        return b;
    return i;
}

static void oracle_take(int at)
{
    struct oracle_item *it = &oracle[at];

    it->queued = 0;
    if (it->class == QUEUE_RESUMED)
        return;
    if (oracle_now[it->class] < oracle_time[it->user][it->class])
        oracle_now[it->class] = oracle_time[it->user][it->class];
    oracle_time[it->user][it->class] += it->cost;
    if (it->class == QUEUE_BATCH)
        oracle_owed = oracle_owed > it->cost * FAIR_BATCH_SHARE ? oracle_owed - it->cost * FAIR_BATCH_SHARE : 0;
    else
        oracle_owed = oracle_length(-1, QUEUE_BATCH) > 0 ? oracle_owed + it->cost : 0;
}

static void random_push(struct fair_queue *q)
{
    uint32_t at = random_below(&rng, ITEMS), user = random_below(&rng, USERS), model = random_below(&rng, MODELS);
    enum queue_class class = random_below(&rng, 8) == 0 ? QUEUE_RESUMED : random_below(&rng, 2) ? QUEUE_BATCH : QUEUE_INTERACTIVE;
    enum queue_priority priority = (enum queue_priority)random_below(&rng, QUEUE_PRIORITIES);
    uint64_t cost = 1 + random_below(&rng, 500);

    if (oracle[at].queued)
        return;
    if (class != QUEUE_RESUMED && oracle_length((int)user, (int)class) == 0 && oracle_time[user][class] < oracle_now[class])
        oracle_time[user][class] = oracle_now[class];
    oracle[at] = (struct oracle_item){ 1, user, model, class, priority, oracle_order++, cost };
    fair_queue_push(q, at, user, model, class, priority, cost);
}

static void random_dispatch(struct fair_queue *q)
{
    uint32_t interactive = random_below(&rng, 8), batch = random_below(&rng, 8);
    int want = oracle_pick(interactive, batch);

    assert_int_equal(fair_queue_pick(q, interactive, batch), want);
    if (want < 0)
        return;
    assert_int_equal(fair_queue_take(q, (uint32_t)want), oracle_time[oracle[want].user][oracle[want].class]);
    oracle_take(want);
}

static void random_other(struct fair_queue *q)
{
    uint32_t at = random_below(&rng, ITEMS), user = random_below(&rng, USERS);
    int64_t resumed = fair_queue_first_resumed(q);

    switch (random_below(&rng, 4)) {
    case 0:
        if (oracle[at].queued) {
            fair_queue_remove(q, at);
            oracle[at].queued = 0;
        }
        break;
    case 1:
        oracle_blocked[user] = !oracle_blocked[user];
        fair_queue_block_user(q, user, oracle_blocked[user]);
        break;
    case 2: {
        uint64_t charged = random_below(&rng, 300), used = random_below(&rng, 300);

        enum queue_class class = random_below(&rng, 2) ? QUEUE_BATCH : QUEUE_INTERACTIVE;
        uint64_t *time = &oracle_time[user][class];

        fair_queue_settle(q, user, class, charged, used);
        *time = *time + used > charged ? *time + used - charged : 0;
        break;
    }
    default:
        if (resumed != FAIR_NONE) {
            for (int i = 0; i < ITEMS; i++) /* the first is the oldest */
                assert_true(!oracle[i].queued || oracle[i].class != QUEUE_RESUMED || oracle[i].order >= oracle[resumed].order);
            fair_queue_take(q, (uint32_t)resumed);
            oracle_take((int)resumed);
        }
    }
}

static void priorities_order_a_users_own_requests_and_nobody_elses(void **state)
{
    static const enum queue_priority of[] = { QUEUE_LOW, QUEUE_NORMAL, QUEUE_HIGH, QUEUE_HIGH, QUEUE_NORMAL };
    static const uint32_t order[] = { 3, 2, 1, 4, 0 };
    struct fair_queue *q = make();

    (void)state;
    for (uint32_t i = 0; i < 5; i++)
        fair_queue_push(q, i, 0, i == 2 ? 2 : 0, QUEUE_BATCH, of[i], 100);
    for (uint32_t i = 5; i < 10; i++)
        fair_queue_push(q, i, 1, 0, QUEUE_BATCH, QUEUE_LOW, 100);
    assert_int_equal(fair_queue_ahead(q, 0, 100), 3); /* of its model: both normal ones, and a high one */
    assert_int_equal(fair_queue_ahead(q, 3, 100), 0);
    for (uint32_t i = 0; i < 10; i++) { /* user 1's low ones have every second turn all the same */
        const int64_t at = fair_queue_pick(q, 7, 7);
        assert_int_equal(at, i % 2 == 0 ? order[i / 2] : 5 + i / 2);
        fair_queue_take(q, (uint32_t)at);
        fair_queue_check(q);
    }
    fair_queue_free(q);
}

static void does_what_an_array_would_do(void **state)
{
    struct fair_queue *q = make();

    (void)state;
    for (uint64_t i = 0; i < random_ops(); i++) {
        switch (random_below(&rng, 4)) {
        case 0:
        case 1:
            random_push(q);
            break;
        case 2:
            random_dispatch(q);
            break;
        default:
            random_other(q);
        }
        for (int class = 0; class < QUEUE_CLASSES; class++)
            assert_int_equal(fair_queue_length(q, (enum queue_class)class), oracle_length(-1, class));
        fair_queue_check(q);
    }
    fair_queue_free(q);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_user_with_long_requests_gets_fewer_of_them),
        cmocka_unit_test(idleness_earns_no_credit),
        cmocka_unit_test(batch_gets_its_share_and_no_more_while_interactive_waits),
        cmocka_unit_test(a_model_without_room_does_not_hold_up_another),
        cmocka_unit_test(a_blocked_user_is_passed_over),
        cmocka_unit_test(settling_charges_what_was_used),
        cmocka_unit_test(a_batch_user_is_not_moved_up_to_interactive_ones),
        cmocka_unit_test(priorities_order_a_users_own_requests_and_nobody_elses),
        cmocka_unit_test(does_what_an_array_would_do),
    };
    rng = random_start(argc, argv, 200000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
