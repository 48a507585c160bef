/* test_doorbell.c - a consumer that sleeps is woken by the push it has not seen; one that is awake costs the producer nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "doorbell.h"
#include "ring.h"

enum { MESSAGES = 100000, SLOTS = 8, WAIT_MS = 10000 };

struct channel {
    struct ring_shared *ring;
    struct doorbell_shared flag;
    struct ring_end producer, consumer;
    struct doorbell producer_bell, consumer_bell;
};

static bool is_rung(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    return poll(&p, 1, 0) == 1;
}

static void open_channel(struct channel *c)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    assert_true(fd >= 0);
    memset(c, 0, sizeof(*c));
    c->ring = aligned_alloc(64, ring_bytes(SLOTS));
    memset(c->ring, 0, ring_bytes(SLOTS));
    assert_int_equal(ring_attach_producer(&c->producer, c->ring, SLOTS), ST_OK);
    assert_int_equal(ring_attach_consumer(&c->consumer, c->ring, SLOTS), ST_OK);
    c->producer_bell = c->consumer_bell = (struct doorbell){ &c->flag, fd };
}

static void close_channel(struct channel *c)
{
    close(c->producer_bell.fd);
    free(c->ring);
}

static void rings_only_for_a_sleeper(void **state)
{
    struct channel c;

    (void)state;
    open_channel(&c);
    doorbell_ring(&c.producer_bell);
    assert_false(is_rung(c.consumer_bell.fd));
    doorbell_sleep_begin(&c.consumer_bell);
    assert_false(is_rung(c.consumer_bell.fd));
    doorbell_ring(&c.producer_bell);
    doorbell_ring(&c.producer_bell);
    assert_true(is_rung(c.consumer_bell.fd));
    doorbell_sleep_end(&c.consumer_bell);
    assert_false(is_rung(c.consumer_bell.fd));
    doorbell_ring(&c.producer_bell);
    assert_false(is_rung(c.consumer_bell.fd));
    close_channel(&c);
}

static void a_full_counter_does_not_block_the_producer(void **state)
{
    struct channel c;
    uint64_t most = UINT64_MAX - 1;

    (void)state;
    open_channel(&c);
    doorbell_sleep_begin(&c.consumer_bell);
    assert_int_equal(write(c.producer_bell.fd, &most, sizeof(most)), sizeof(most));
    doorbell_ring(&c.producer_bell);
    assert_true(is_rung(c.consumer_bell.fd));
    doorbell_sleep_end(&c.consumer_bell);
    assert_false(is_rung(c.consumer_bell.fd));
    close_channel(&c);
}

static void *produce(void *arg)
{
    struct channel *c = arg;
    uint64_t msg[RING_SLOT_BYTES / sizeof(uint64_t)] = { 0 };

    for (uint64_t i = 0; i < MESSAGES;) {
        msg[0] = i;
        if (ring_push(&c->producer, msg, 1) != ST_OK) {
            sched_yield();
            continue;
        }
        doorbell_ring(&c->producer_bell);
        if (i % 97 == 0) /* let the consumer fall asleep now and then */
            for (int k = 0; k < 20; k++)
                sched_yield();
        i++;
    }
    return NULL;
}

/* A lost wake-up would be a poll that runs into its time limit while a message lies in the ring. */
static void no_wake_up_is_lost(void **state)
{
    uint64_t msg[RING_SLOT_BYTES / sizeof(uint64_t)], next = 0, n_sleeps = 0;
    pthread_t producer;
    struct channel c;

    (void)state;
    open_channel(&c);
    assert_int_equal(pthread_create(&producer, NULL, produce, &c), 0);
    while (next < MESSAGES) {
        while (ring_pop(&c.consumer, msg, 1) == ST_OK) {
            assert_int_equal(msg[0], next);
            next++;
        }
        if (next == MESSAGES)
            break;
        doorbell_sleep_begin(&c.consumer_bell);
        if (ring_peek(&c.consumer, msg) == ST_AGAIN) {
            struct pollfd p = { .fd = c.consumer_bell.fd, .events = POLLIN };
            assert_int_equal(poll(&p, 1, WAIT_MS), 1);
            n_sleeps++;
        }
        doorbell_sleep_end(&c.consumer_bell);
    }
    assert_int_equal(pthread_join(producer, NULL), 0);
    printf("slept %llu times for %d messages\n", (unsigned long long)n_sleeps, MESSAGES);
    close_channel(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_only_for_a_sleeper),
        cmocka_unit_test(a_full_counter_does_not_block_the_producer),
        cmocka_unit_test(no_wake_up_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
