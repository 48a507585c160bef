/* test_tcp_peers.c - how many connections a user holds, from what libzmq tells in pieces; against a list that knows all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "broker/tcp_peers.h"
#include "tests/support/random.h"

enum { MS = 1000000 };
static const uint64_t silent_ns = TCP_PEERS_SILENT_MS * UINT64_C(1000000);
static struct tcp_peers p;
static struct random dice;

static uint64_t admit(uint64_t user, uint32_t most, uint64_t now)
{
    uint64_t number = 0;

    return tcp_peers_admitted(&p, user, most, now, &number) == ST_OK ? number : 0;
}

static void a_user_holds_what_was_let_in_until_it_is_closed(void **state)
{
    (void)state;
    assert_int_equal(tcp_peers_init(&p, 8), ST_OK);
    assert_int_equal(tcp_peers_accepted(&p, 10, 1, 0), ST_OK);
    assert_int_equal(tcp_peers_accepted(&p, 11, 2, 0), ST_OK);
    uint64_t a = admit(1, 2, 0), b = admit(1, 2, 0);
    assert_true(a != 0 && b > a);
    assert_int_equal(admit(1, 2, 0), 0); /* before a word was said */
    assert_int_not_equal(admit(2, 1, 0), 0);
    tcp_peers_said(&p, 10, a);
    tcp_peers_said(&p, 11, b);
    tcp_peers_said(&p, 11, b);
    assert_int_equal(tcp_peers_of(&p, 1), 2);
    assert_int_equal(admit(1, 2, 0), 0);
    tcp_peers_closed(&p, 10);
    assert_int_equal(tcp_peers_of(&p, 1), 1);
    assert_int_not_equal(admit(1, 2, 0), 0);
    tcp_peers_deinit(&p);
}

static void who_says_nothing_is_overdue_and_its_number_is_dropped(void **state)
{
    uint32_t at = 0;

    (void)state;
    assert_int_equal(tcp_peers_init(&p, 8), ST_OK);
    assert_int_equal(tcp_peers_accepted(&p, 10, 77, 5), ST_OK);
    assert_int_equal(tcp_peers_accepted(&p, 11, 78, 5), ST_OK);
    uint64_t a = admit(1, 2, 6), b = admit(1, 2, 7);
    tcp_peers_said(&p, 11, b);
    assert_null(tcp_peers_overdue(&p, 4 + silent_ns, &at));
    at = 0;
    const struct tcp_peer *silent = tcp_peers_overdue(&p, 5 + silent_ns, &at);
    assert_true(silent != NULL && silent->fd == 10 && silent->cookie == 77);
    assert_null(tcp_peers_overdue(&p, 5 + silent_ns, &at));
    at = 0;
    assert_null(tcp_peers_overdue(&p, 6 + silent_ns, &at)); /* told once */
    tcp_peers_expire(&p, 5 + silent_ns);
    assert_int_equal(tcp_peers_of(&p, 1), 2);
    tcp_peers_expire(&p, 6 + silent_ns);
    assert_int_equal(tcp_peers_of(&p, 1), 1);
    tcp_peers_said(&p, 10, a); /* too late */
    assert_int_equal(tcp_peers_of(&p, 1), 1);
    tcp_peers_deinit(&p);
}

static void a_message_read_after_its_connection_has_gone_names_nobody_else(void **state)
{
    (void)state;
    assert_int_equal(tcp_peers_init(&p, 8), ST_OK);
    assert_int_equal(tcp_peers_accepted(&p, 10, 1, 0), ST_OK);
    uint64_t old = admit(1, 8, 0);
    tcp_peers_closed(&p, 10);
    tcp_peers_said(&p, 10, old); /* nobody has the descriptor */
    assert_int_equal(tcp_peers_of(&p, 1), 1);
    assert_int_equal(tcp_peers_accepted(&p, 10, 2, 0), ST_OK);
    uint64_t new = admit(2, 8, 0);
    tcp_peers_said(&p, 10, old);
    tcp_peers_said(&p, 10, new);
    tcp_peers_said(&p, 10, old);
    assert_int_equal(tcp_peers_of(&p, 1), 0);
    assert_int_equal(tcp_peers_of(&p, 2), 1);
    tcp_peers_closed(&p, 10);
    assert_int_equal(tcp_peers_of(&p, 2), 0);
    tcp_peers_deinit(&p);
}

static void a_full_table_takes_no_more(void **state)
{
    (void)state;
    assert_int_equal(tcp_peers_init(&p, 2), ST_OK);
    assert_int_equal(tcp_peers_accepted(&p, 10, 1, 0), ST_OK);
    assert_int_equal(tcp_peers_accepted(&p, 12, 1, 0), ST_OK);
    assert_int_equal(tcp_peers_accepted(&p, 14, 1, 0), ST_FULL);
    assert_int_equal(tcp_peers_accepted(&p, 12, 1, 0),
                     ST_OK); /* the descriptor of one that has gone unheard */
    uint64_t number;
    assert_int_equal(tcp_peers_admitted(&p, 1, 9, 0, &number), ST_OK);
    assert_int_equal(tcp_peers_admitted(&p, 1, 9, 0, &number), ST_OK);
    assert_int_equal(tcp_peers_admitted(&p, 1, 9, 0, &number), ST_FULL);
    tcp_peers_deinit(&p);
}

/* What there is, told whole: a connection has a descriptor from the first moment, and its user and number once it was let in. */
enum { N_MAX = 24, USERS = 3, USER_MAX = 5 };
struct truth {
    bool open, named;
    uint64_t number, user, since;
};
static struct truth all[N_MAX]; /* by descriptor */
static struct {
    uint64_t number, user, since;
} waiting[1000]; /* let in, and not yet heard of */
static uint32_t n_waiting;

static uint32_t held(uint64_t user)
{
    uint32_t n = 0;

    for (int i = 0; i < N_MAX; i++)
        n += all[i].open && all[i].named && all[i].user == user;
    for (uint32_t i = 0; i < n_waiting; i++)
        n += waiting[i].user == user;
    return n;
}

static void forget(uint64_t number)
{
    for (uint32_t i = 0; i < n_waiting; i++)
        if (waiting[i].number == number) {
            waiting[i] = waiting[--n_waiting];
            return;
        }
}

static void let_in(struct truth *t, uint64_t now)
{
    uint64_t user = 1 + random_below(&dice, USERS), number = 0;
    enum status st = tcp_peers_admitted(&p, user, USER_MAX, now, &number);

    assert_int_equal(st, held(user) >= USER_MAX ? ST_LIMIT : n_waiting == N_MAX ? ST_FULL : ST_OK);
    if (st != ST_OK)
        return;
    t->number = number;
    t->user = user;
    waiting[n_waiting].number = number;
    waiting[n_waiting].user = user;
    waiting[n_waiting++].since = now;
}

static void pass_time(uint64_t now)
{
    const struct tcp_peer *silent;
    uint32_t at = 0, n = 0, n_over = 0;

    for (int i = 0; i < N_MAX; i++)
        n_over += all[i].open && !all[i].named && now - all[i].since >= silent_ns;
    while ((silent = tcp_peers_overdue(&p, now, &at)) != NULL) {
        struct truth *t = &all[silent->fd];
        assert_true(t->open && !t->named && now - t->since >= silent_ns);
        t->since = now;
        n++;
    }
    assert_int_equal(n, n_over);
    tcp_peers_expire(&p, now);
    for (uint32_t i = 0; i < n_waiting;)
        if (now - waiting[i].since >= silent_ns)
            waiting[i] = waiting[--n_waiting];
        else
            i++;
}

static void it_counts_as_a_list_that_knows_all(void **state)
{
    uint64_t now = 1;

    (void)state;
    assert_int_equal(tcp_peers_init(&p, N_MAX), ST_OK);
    for (uint64_t op = 0; op < random_ops(); op++) {
        struct truth *t = &all[random_below(&dice, N_MAX)];
        int fd = (int)(t - all);

        now += random_below(&dice, 400) * MS;
        switch (random_below(&dice, 4)) {
        case 0:
            if (!t->open) {
                *t = (struct truth){.open = true, .since = now};
                assert_int_equal(tcp_peers_accepted(&p, fd, (uint64_t)fd, now), ST_OK);
            } else if (t->number == 0) {
                let_in(t, now);
            }
            break;
        case 1:
            if (t->open && t->number != 0) {
                bool awaited = false;
                for (uint32_t i = 0; i < n_waiting; i++)
                    awaited = awaited || waiting[i].number == t->number;
                tcp_peers_said(&p, fd, t->number);
                t->named = t->named || awaited;
                forget(t->number);
            }
            break;
        case 2:
            if (random_below(&dice, 3) == 0) {
                tcp_peers_closed(&p, fd);
                *t = (struct truth){.open = false};
            }
            break;
        default:
            pass_time(now);
        }
        for (uint64_t user = 1; user <= USERS; user++)
            assert_int_equal(tcp_peers_of(&p, user), held(user));
    }
    tcp_peers_deinit(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_user_holds_what_was_let_in_until_it_is_closed),
        cmocka_unit_test(who_says_nothing_is_overdue_and_its_number_is_dropped),
        cmocka_unit_test(a_message_read_after_its_connection_has_gone_names_nobody_else),
        cmocka_unit_test(a_full_table_takes_no_more),
        cmocka_unit_test(it_counts_as_a_list_that_knows_all),
    };

    dice = random_start(argc, argv, 20000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
