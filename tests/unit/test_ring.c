/* test_ring.c - a ring hands over every message once, in order, and believes nothing the other side wrote.
 *
 * The two-thread test is also what `make SAN=thread` looks at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "ring.h"
#include "tests/support/random.h"

enum { SLOTS = 16 };
static struct random rng;

struct slot {
    uint64_t number;
    uint8_t filler[RING_SLOT_BYTES - sizeof(uint64_t)];
};

struct pair {
    struct ring_shared *shared;
    struct ring_end producer, consumer;
};

static struct pair make_ring(uint32_t n_slots)
{
    struct pair p = { .shared = aligned_alloc(64, ring_bytes(n_slots)) };

    assert_non_null(p.shared);
    memset(p.shared, 0, ring_bytes(n_slots));
    assert_int_equal(ring_attach_producer(&p.producer, p.shared, n_slots), ST_OK);
    assert_int_equal(ring_attach_consumer(&p.consumer, p.shared, n_slots), ST_OK);
    return p;
}

static void fill(struct slot *s, uint64_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        s[i].number = first + i;
        memset(s[i].filler, (int)(first + i), sizeof(s[i].filler));
    }
}

static void expect(const struct slot *s, uint64_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(s[i].number, first + i);
        for (size_t k = 0; k < sizeof(s[i].filler); k++)
            assert_int_equal(s[i].filler[k], (uint8_t)(first + i));
    }
}

static void hands_over_what_a_plain_counter_says(void **state)
{
    uint64_t n_pushed = 0, n_popped = 0; /* the oracle: two counters */
    struct pair p = make_ring(SLOTS);
    struct slot buffer[SLOTS];

    (void)state;
    for (uint64_t op = 0; op < random_ops(); op++) {
        uint32_t n = 1 + random_below(&rng, SLOTS), room = 99;
        uint64_t n_there = n_pushed - n_popped;

        switch (random_below(&rng, 4)) {
        case 0:
            fill(buffer, n_pushed, n);
            assert_int_equal(ring_push(&p.producer, buffer, n), n <= SLOTS - n_there ? ST_OK : ST_AGAIN);
            if (n <= SLOTS - n_there)
                n_pushed += n;
            break;
        case 1:
            assert_int_equal(ring_pop(&p.consumer, buffer, n), n <= n_there ? ST_OK : ST_AGAIN);
            if (n <= n_there) {
                expect(buffer, n_popped, n);
                n_popped += n;
            }
            break;
        case 2:
            assert_int_equal(ring_peek(&p.consumer, buffer), n_there > 0 ? ST_OK : ST_AGAIN);
            if (n_there > 0)
                expect(buffer, n_popped, 1);
            break;
        default:
            assert_int_equal(ring_room(&p.producer, &room), ST_OK);
            assert_int_equal(room, SLOTS - n_there);
        }
    }
    free(p.shared);
}

static void positions_may_pass_32_bits(void **state)
{
    struct pair p = make_ring(SLOTS);
    struct slot s[3];

    (void)state;
    atomic_store(&p.shared->tail, UINT32_MAX - 1ull);
    atomic_store(&p.shared->head, UINT32_MAX - 1ull);
    assert_int_equal(ring_attach_producer(&p.producer, p.shared, SLOTS), ST_OK);
    assert_int_equal(ring_attach_consumer(&p.consumer, p.shared, SLOTS), ST_OK);
    for (int i = 0; i < 20; i++) {
        fill(s, 7u * (unsigned)i, 3);
        assert_int_equal(ring_push(&p.producer, s, 3), ST_OK);
        memset(s, 0, sizeof(s));
        assert_int_equal(ring_pop(&p.consumer, s, 3), ST_OK);
        expect(s, 7u * (unsigned)i, 3);
    }
    free(p.shared);
}

/* What a process leaves behind that dies after it wrote the slots and before it moved the tail. */
static void a_producer_that_dies_in_a_push_leaves_nothing_to_see(void **state)
{
    struct pair p = make_ring(SLOTS);
    struct slot s[2];

    (void)state;
    memset(p.shared->slots, 0xAB, 5 * RING_SLOT_BYTES);
    assert_int_equal(ring_peek(&p.consumer, s), ST_AGAIN);
    assert_int_equal(ring_pop(&p.consumer, s, 1), ST_AGAIN);

    /* The next producer starts where the tail stands, over the leavings. */
    assert_int_equal(ring_attach_producer(&p.producer, p.shared, SLOTS), ST_OK);
    fill(s, 1, 1);
    assert_int_equal(ring_push(&p.producer, s, 1), ST_OK);
    memset(s, 0, sizeof(s));
    assert_int_equal(ring_pop(&p.consumer, s, 1), ST_OK);
    expect(s, 1, 1);
    assert_int_equal(ring_pop(&p.consumer, s, 1), ST_AGAIN);
    free(p.shared);
}

static void a_message_of_several_slots_is_seen_whole_or_not_at_all(void **state)
{
    struct pair p = make_ring(SLOTS);
    struct slot s[5];

    (void)state;
    fill(s, 10, 5);
    assert_int_equal(ring_push(&p.producer, s, 5), ST_OK);
    assert_int_equal(atomic_load(&p.shared->tail), 5);
    memset(s, 0, sizeof(s));
    assert_int_equal(ring_pop(&p.consumer, s, 5), ST_OK);
    expect(s, 10, 5);
    free(p.shared);
}

static void a_tail_that_cannot_be_is_corrupt(void **state)
{
    static const struct { uint64_t tail; enum status peek; } cases[] = {
        { 2, ST_AGAIN }, { 3, ST_OK }, { 2 + SLOTS, ST_OK },
        { 1, ST_CORRUPT }, { 0, ST_CORRUPT }, { 3 + SLOTS, ST_CORRUPT },
        { UINT64_MAX, ST_CORRUPT }, { UINT64_C(1) << 63, ST_CORRUPT },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pair p = make_ring(SLOTS);
        struct slot s[2], untouched;

        fill(s, 0, 2);
        assert_int_equal(ring_push(&p.producer, s, 2), ST_OK);
        assert_int_equal(ring_pop(&p.consumer, s, 2), ST_OK);
        atomic_store(&p.shared->tail, cases[i].tail);
        memset(&untouched, 0x55, sizeof(untouched));
        assert_int_equal(ring_peek(&p.consumer, &untouched), cases[i].peek);
        if (cases[i].peek != ST_OK) {
            assert_int_equal(ring_pop(&p.consumer, &untouched, 1), cases[i].peek);
            assert_int_equal(untouched.filler[0], 0x55);
        }
        free(p.shared);
    }
}

static void a_tail_that_goes_back_is_corrupt(void **state)
{
    struct pair p = make_ring(SLOTS);
    struct slot s[8];

    (void)state;
    fill(s, 0, 6);
    assert_int_equal(ring_push(&p.producer, s, 6), ST_OK);
    assert_int_equal(ring_pop(&p.consumer, s, 2), ST_OK); /* it has seen tail 6 */
    atomic_store(&p.shared->tail, 5);
    assert_int_equal(ring_pop(&p.consumer, s, 5), ST_CORRUPT);
    free(p.shared);
}

static void a_head_that_cannot_be_is_corrupt(void **state)
{
    static const struct { uint64_t head; enum status room; } cases[] = {
        { 2, ST_OK }, { 7, ST_OK },
        { 1, ST_CORRUPT }, { 0, ST_CORRUPT }, { 8, ST_CORRUPT }, { UINT64_MAX, ST_CORRUPT }, { 7 + SLOTS, ST_CORRUPT },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pair p = make_ring(SLOTS);
        struct slot s[SLOTS];
        uint32_t room = 99;

        fill(s, 0, SLOTS);
        assert_int_equal(ring_push(&p.producer, s, 7), ST_OK);
        assert_int_equal(ring_pop(&p.consumer, s, 2), ST_OK);
        assert_int_equal(ring_room(&p.producer, &room), ST_OK); /* it has seen head 2 */
        atomic_store(&p.shared->head, cases[i].head);
        assert_int_equal(ring_room(&p.producer, &room), cases[i].room);
        assert_int_equal(ring_push(&p.producer, s, SLOTS), cases[i].room != ST_OK ? ST_CORRUPT
                                                           : cases[i].head == 7  ? ST_OK : ST_AGAIN);
        free(p.shared);
    }
}

static void a_count_larger_than_the_ring_is_corrupt(void **state)
{
    struct pair p = make_ring(SLOTS);
    struct slot s;

    (void)state;
    assert_int_equal(ring_pop(&p.consumer, &s, SLOTS + 1), ST_CORRUPT);
    assert_int_equal(ring_pop(&p.consumer, &s, UINT32_MAX), ST_CORRUPT);
    free(p.shared);
}

static void does_not_attach_to_positions_that_cannot_be(void **state)
{
    struct pair p = make_ring(SLOTS);
    struct ring_end e;

    (void)state;
    atomic_store(&p.shared->tail, SLOTS + 1);
    assert_int_equal(ring_attach_producer(&e, p.shared, SLOTS), ST_CORRUPT);
    assert_int_equal(ring_attach_consumer(&e, p.shared, SLOTS), ST_CORRUPT);
    atomic_store(&p.shared->tail, 0);
    atomic_store(&p.shared->head, 1);
    assert_int_equal(ring_attach_producer(&e, p.shared, SLOTS), ST_CORRUPT);
    assert_int_equal(ring_attach_consumer(&e, p.shared, SLOTS), ST_CORRUPT);
    free(p.shared);
}

/* Nothing the other side can write makes a call read or write outside the slots: the sanitizer watches. */
static void any_position_is_answered_with_a_status(void **state)
{
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct pair p = make_ring(SLOTS);
        struct slot s[SLOTS];
        enum status st = ST_OK;

        fill(s, 0, SLOTS);
        for (int op = 0; op < 8 && st != ST_CORRUPT; op++) {
            uint64_t wild = random_below(&rng, 2) == 0 ? random_next(&rng) : random_below(&rng, 3 * SLOTS);

            if (random_below(&rng, 2) == 0) {
                atomic_store(&p.shared->tail, wild);
                st = ring_pop(&p.consumer, s, 1 + random_below(&rng, SLOTS));
            } else {
                atomic_store(&p.shared->head, wild);
                st = ring_push(&p.producer, s, 1 + random_below(&rng, SLOTS));
            }
            assert_true(st == ST_OK || st == ST_AGAIN || st == ST_CORRUPT);
        }
        free(p.shared);
    }
}

/* --- two threads ------------------------------------------------------------------------------ */

enum { THREAD_MESSAGES = 1000000, THREAD_SLOTS = 256, BURST = 7 };

static void *produce(void *arg)
{
    struct ring_end *e = arg;
    struct slot s[BURST];

    for (uint64_t i = 0; i < THREAD_MESSAGES;) {
        uint32_t n = 1 + (uint32_t)(i % BURST);

        if (n > THREAD_MESSAGES - i)
            n = (uint32_t)(THREAD_MESSAGES - i);
        fill(s, i, n);
        enum status st = ring_push(e, s, n);
        if (st == ST_OK)
            i += n;
        else if (st == ST_AGAIN)
            sched_yield();
        else
            return (void *)1;
    }
    return NULL;
}

static void two_threads_lose_and_repeat_nothing(void **state)
{
    struct pair p = make_ring(THREAD_SLOTS);
    void *failed = NULL;
    pthread_t producer;

    (void)state;
    assert_int_equal(pthread_create(&producer, NULL, produce, &p.producer), 0);
    for (uint64_t i = 0; i < THREAD_MESSAGES;) {
        struct slot s;
        enum status st = ring_pop(&p.consumer, &s, 1);

        if (st == ST_AGAIN) {
            sched_yield();
            continue;
        }
        if (st != ST_OK || s.number != i || s.filler[0] != (uint8_t)i || s.filler[sizeof(s.filler) - 1] != (uint8_t)i)
            fail_msg("message %llu: status %d, number %llu", (unsigned long long)i, st, (unsigned long long)s.number);
        i++;
    }
    assert_int_equal(pthread_join(producer, &failed), 0);
    assert_null(failed);
    free(p.shared);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hands_over_what_a_plain_counter_says),
        cmocka_unit_test(positions_may_pass_32_bits),
        cmocka_unit_test(a_producer_that_dies_in_a_push_leaves_nothing_to_see),
        cmocka_unit_test(a_message_of_several_slots_is_seen_whole_or_not_at_all),
        cmocka_unit_test(a_tail_that_cannot_be_is_corrupt),
        cmocka_unit_test(a_tail_that_goes_back_is_corrupt),
        cmocka_unit_test(a_head_that_cannot_be_is_corrupt),
        cmocka_unit_test(a_count_larger_than_the_ring_is_corrupt),
        cmocka_unit_test(does_not_attach_to_positions_that_cannot_be),
        cmocka_unit_test(any_position_is_answered_with_a_status),
        cmocka_unit_test(two_threads_lose_and_repeat_nothing),
    };

    rng = random_start(argc, argv, 200000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
