/* Events as they lie in the ring: one slot or several, nothing cut, nothing of our memory in what is left of a slot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/region_broker.h"
#include "tests/support/worker_rig.h"
#include "utf8.h"
#include "worker/outbox.h"

static struct region_broker broker;
static struct region region;
static struct outbox box;
static const struct outbox_to to = { 5, 9, 1 };

static int set_up(void **state)
{
    (void)state;
    region_broker_open(&broker);
    assert_int_equal(region_attach(broker.memory, broker.bells[0], broker.bells[1], &region), ST_OK);
    box = (struct outbox){ .ring = &region.events, .bell = &region.event_bell };
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    region_unmap(&region);
    region_broker_close(&broker);
    return 0;
}

/* Pop one event; its payload is in broker.event behind the head. */
static struct work_event take(void)
{
    struct work_event e;
    assert_int_equal(ring_peek(&broker.region.events, &e), ST_OK);
    assert_int_equal(1 + e.n_more, event_slots(e.bytes));
    assert_int_equal(ring_pop(&broker.region.events, broker.event, 1u + e.n_more), ST_OK);
    return e;
}

static const uint8_t *payload(void)
{
    return broker.event + offsetof(struct work_event, data);
}

static void text_of_any_length_arrives_whole_and_in_whole_characters(void **state)
{
    (void)state;
    static uint8_t text[100000], back[100000];
    static const char *const characters[] = { "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80" };
    for (size_t bytes = 1; bytes < sizeof(text); bytes = bytes * 5 / 4 + 1) {
        size_t n = 0, n_back = 0;
        for (size_t i = 0; n + 4 <= bytes + 3; i++) {
            const char *c = characters[(i * 7 + bytes) % 4];
            if (n + strlen(c) > bytes)
                break;
            memcpy(text + n, c, strlen(c));
            n += strlen(c);
        }
        outbox_text(&box, to, 3, span_of(text, n));
        while (n_back < n) {
            struct work_event e = take();
            assert_int_equal(e.type, EVENT_TEXT);
            assert_true(e.slot == 5 && e.generation == 9 && e.choice == 1 && e.text.n_tokens == 3);
            assert_true(e.n_more < EVENT_SLOTS_MAX && e.bytes > 0);
            assert_true(utf8_valid(span_of(payload(), e.bytes)));
            memcpy(back + n_back, payload(), e.bytes);
            n_back += e.bytes;
        }
        assert_int_equal(n_back, n);
        assert_memory_equal(text, back, n);
    }
}

static void what_is_left_of_a_slot_is_zero(void **state)
{
    (void)state;
    for (uint32_t bytes = 1; bytes < 300; bytes++) {
        uint8_t text[300];
        memset(text, 'x', bytes);
        outbox_text(&box, to, 1, span_of(text, bytes));
        struct work_event e = take();
        size_t all = (1u + e.n_more) * (size_t)RING_SLOT_BYTES;
        for (size_t i = offsetof(struct work_event, data) + bytes; i < all; i++)
            assert_int_equal(broker.event[i], 0);
    }
}

static void an_error_carries_its_field_and_its_sentence(void **state)
{
    (void)state;
    struct error err;
    error_set(&err, ERR_CONTEXT_OVERFLOW, "prompt", "prompt has %d tokens", 9120);
    outbox_error(&box, to, &err);
    struct work_event e = take();
    assert_int_equal(e.type, EVENT_ERROR);
    assert_int_equal(e.error.code, ERR_CONTEXT_OVERFLOW);
    assert_int_equal(e.error.param_bytes, 6);
    assert_memory_equal(payload(), "promptprompt has 9120 tokens", e.bytes);
    memset(err.param, 'p', sizeof(err.param)); /* the longest there is */
    memset(err.message, 'm', sizeof(err.message));
    outbox_error(&box, to, &err);
    e = take();
    assert_int_equal(e.bytes, ERROR_PARAM_BYTES + ERROR_MESSAGE_BYTES);
    assert_true(1 + e.n_more <= OUTBOX_ERROR_SLOTS);
}

static void room_is_what_the_broker_has_taken(void **state)
{
    (void)state;
    uint32_t before = outbox_room(&box);
    for (int i = 0; i < 10; i++)
        outbox_finish(&box, to, FINISH_STOP, 4, -1);
    assert_int_equal(outbox_room(&box), before - 10);
    struct work_event e = take();
    assert_true(e.type == EVENT_FINISH && e.finish.n_tokens == 4 && e.finish.stop_index == -1);
    assert_int_equal(outbox_room(&box), before - 9);
}

static void a_spoiled_ring_is_remembered_and_never_written_again(void **state)
{
    (void)state;
    atomic_store(&broker.region.events.shared->head, 1u << 30);
    assert_int_equal(outbox_room(&box), 0);
    assert_true(outbox_is_broken(&box));
    uint64_t tail = atomic_load(&broker.region.events.shared->tail);
    outbox_finish(&box, to, FINISH_STOP, 4, -1);
    assert_int_equal(atomic_load(&broker.region.events.shared->tail), tail);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(text_of_any_length_arrives_whole_and_in_whole_characters),
        TEST(what_is_left_of_a_slot_is_zero),
        TEST(an_error_carries_its_field_and_its_sentence),
        TEST(room_is_what_the_broker_has_taken),
        TEST(a_spoiled_ring_is_remembered_and_never_written_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
