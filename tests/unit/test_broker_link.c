/* test_broker_link.c - records reach a worker whole and in order, events come back, and nothing a worker writes is believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "broker/record.h"
#include "broker/worker_link.h"
#include "tests/support/random.h"

static struct random rng;
static struct worker_link link_; /* large */
static struct region worker;     /* the other side, in the same process */

static void open_both(void)
{
    assert_int_equal(worker_link_open(&link_, 3, 7, 99), ST_OK);
    assert_int_equal(region_attach(link_.memory, link_.bells[0], link_.bells[1], &worker), ST_OK);
}

static void close_both(void)
{
    region_unmap(&worker);
    worker_link_close(&link_);
    worker_link_close(&link_);
}

static void fill(uint8_t *at, uint64_t bytes, uint64_t seed)
{
    struct random r = { seed };

    for (uint64_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)random_next(&r);
}

/* The worker takes the next record and finds it whole. */
static bool worker_takes(const uint64_t sizes[REGION_SLOTS], const uint64_t seeds[REGION_SLOTS], uint32_t *ret_slot)
{
    struct work_message m;

    if (ring_peek(&worker.requests, &m) != ST_OK)
        return false;
    assert_int_equal(m.type, WORK_START);
    assert_int_equal(m.record_bytes, sizes[m.slot]);
    assert_int_equal(m.record_at % 64, 0);
    assert_true(m.record_at + m.record_bytes <= worker.arena_bytes);
    struct random r = { seeds[m.slot] };
    for (uint64_t i = 0; i < m.record_bytes; i++)
        if (worker.arena[m.record_at + i] != (uint8_t)random_next(&r))
            fail_msg("record damaged at byte %llu", (unsigned long long)i);
    assert_int_equal(ring_pop(&worker.requests, &m, 1), ST_OK);
    *ret_slot = m.slot;
    return true;
}

static void records_are_whole_and_in_order_whatever_their_sizes(void **state)
{
    uint64_t sizes[REGION_SLOTS] = { 0 }, seeds[REGION_SLOTS] = { 0 }, bytes_in_all = 0;
    uint32_t order[REGION_SLOTS * 4], n_sent = 0, n_taken = 0, slot, generation, n_full = 0;
    uint8_t *at;

    (void)state;
    open_both();
    while (bytes_in_all < UINT64_C(200) << 20) {
        if (random_below(&rng, 3) > 0) {
            uint64_t bytes = random_below(&rng, 8) == 0 ? 1 + random_below(&rng, RECORD_BYTES_MAX) : 1 + random_below(&rng, 3000);
            enum status st = worker_link_reserve(&link_, bytes, &at, &slot, &generation);

            if (st == ST_FULL) {
                n_full++;
                continue;
            }
            assert_int_equal(st, ST_OK);
            if (random_below(&rng, 10) == 0)
                continue; /* a reservation that is not committed costs nothing */
            sizes[slot] = bytes;
            seeds[slot] = random_next(&rng);
            fill(at, bytes, seeds[slot]);
            worker_link_commit(&link_, slot, 1000 + slot, bytes, 0);
            order[n_sent++ % (REGION_SLOTS * 4)] = slot;
            bytes_in_all += bytes;
        } else if (worker_takes(sizes, seeds, &slot)) {
            assert_int_equal(order[n_taken++ % (REGION_SLOTS * 4)], slot);
            worker_link_release(&link_, slot);
        }
        worker_link_check(&link_);
    }
    assert_true(n_full > 0);
    close_both();
}

static uint32_t hold_a_slot(void)
{
    uint32_t slot, generation;
    uint8_t *at;

    assert_int_equal(worker_link_reserve(&link_, 100, &at, &slot, &generation), ST_OK);
    worker_link_commit(&link_, slot, 5, 100, 0);
    assert_int_equal(link_.slots[slot].generation, generation);
    return slot;
}

static void push(struct work_event e)
{
    uint8_t slots[EVENT_SLOTS_MAX * RING_SLOT_BYTES] = { 0 };

    memcpy(slots, &e, sizeof(e));
    assert_int_equal(ring_push(&worker.events, slots, 1u + e.n_more), ST_OK);
}

static void events_of_a_slot_s_last_holder_are_nobody_s(void **state)
{
    struct link_event e;

    (void)state;
    open_both();
    uint32_t slot = hold_a_slot();
    push((struct work_event){ .type = EVENT_TOKEN, .slot = slot, .generation = link_.slots[slot].generation });
    worker_link_release(&link_, slot);
    assert_int_equal(worker_link_next(&link_, &e), ST_OK);
    assert_int_equal(e.request, LINK_NO_REQUEST);
    uint32_t old = link_.slots[slot].generation;
    assert_int_equal(hold_a_slot(), slot);
    push((struct work_event){ .type = EVENT_TOKEN, .slot = slot, .generation = old });
    push((struct work_event){ .type = EVENT_DONE, .slot = slot, .generation = old + 1 });
    assert_int_equal(worker_link_next(&link_, &e), ST_OK);
    assert_int_equal(e.request, LINK_NO_REQUEST);
    assert_int_equal(worker_link_next(&link_, &e), ST_OK);
    assert_int_equal(e.head.type, EVENT_DONE);
    assert_int_equal(e.request, 5);
    close_both();
}

static void impossible_events_are_corrupt(void **state)
{
    const struct work_event bad[] = {
        { .type = 0, .generation = 1 },
        { .type = EVENT_IDS + 1, .generation = 1 },
        { .type = EVENT_TOKEN, .slot = REGION_SLOTS, .generation = 1 },
        { .type = EVENT_TOKEN, .slot = 0, .generation = 0 },
        { .type = EVENT_TOKEN, .slot = 0, .generation = 2 },
        { .type = EVENT_TOKEN, .slot = 5, .generation = 1 }, /* nobody ever held it */
        { .type = EVENT_TEXT, .generation = 1, .bytes = 25 },
        { .type = EVENT_TEXT, .generation = 1, .bytes = 3, .n_more = 1 },
        { .type = EVENT_TEXT, .generation = 1, .bytes = 0xFFFFFFFF },
        { .type = EVENT_TEXT, .generation = 1, .bytes = 0xFFFFFFFF, .n_more = 511 },
        { .type = EVENT_TEXT, .generation = 1, .n_more = 0xFFFF },
        { .type = EVENT_DONE, .generation = 1, .bytes = 4 },
        { .type = EVENT_IDS, .generation = 1, .bytes = 5 },
        { .type = EVENT_TEXT, .generation = 1, .bytes = 88, .n_more = 1 }, /* the second slot is not there */
    };
    struct link_event e;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint8_t slots[EVENT_SLOTS_MAX * RING_SLOT_BYTES] = { 0 };

        open_both();
        assert_int_equal(hold_a_slot(), 0);
        memcpy(slots, &bad[i], sizeof(bad[i]));
        assert_int_equal(ring_push(&worker.events, slots, 1), ST_OK);
        assert_int_equal(worker_link_next(&link_, &e), ST_CORRUPT);
        close_both();
    }
}

static void noise_never_leaves_the_region(void **state)
{
    struct link_event e;

    (void)state;
    for (uint64_t i = 0; i < random_ops() / 100; i++) {
        if (i % 100 == 0) {
            if (i > 0)
                close_both();
            open_both();
            hold_a_slot();
        }
        uint8_t *ring = (uint8_t *)worker.events.shared;
        uint32_t n = 1 + random_below(&rng, 400);
        for (uint32_t k = 0; k < n; k++) /* mostly positions and the first slots */
            ring[random_below(&rng, random_below(&rng, 4) == 0 ? (uint32_t)ring_bytes(EVENT_RING_SLOTS) : 1000)] =
                (uint8_t)random_next(&rng);
        for (int k = 0; k < 50 && worker_link_next(&link_, &e) == ST_OK; k++) {
            assert_true(e.payload.n <= sizeof(link_.event));
            assert_true(e.request == LINK_NO_REQUEST || e.request == 5);
        }
        worker_link_check(&link_);
    }
    close_both();
}

static void a_card_of_noise_is_refused(void **state)
{
    struct region_card card;

    (void)state;
    open_both();
    assert_int_equal(worker_link_card(&link_, &card), ST_OK);
    memset(worker.card->numerics_id, 'x', sizeof(card.numerics_id)); /* no end */
    assert_int_equal(worker_link_card(&link_, &card), ST_CORRUPT);
    worker.card->numerics_id[3] = '\0';
    assert_int_equal(worker_link_card(&link_, &card), ST_OK);
    worker.card->device[0] = '\xFF';
    assert_int_equal(worker_link_card(&link_, &card), ST_CORRUPT);
    close_both();
}

static void flags_reach_the_worker_with_their_generation(void **state)
{
    (void)state;
    open_both();
    uint32_t slot = hold_a_slot();
    assert_int_equal(atomic_load(&worker.slots[slot].word), UINT64_C(1) << 32);
    worker_link_flag(&link_, slot, SLOT_PAUSE);
    assert_int_equal(atomic_load(&worker.slots[slot].word), (UINT64_C(1) << 32) + SLOT_PAUSE);
    worker_link_flag(&link_, slot, SLOT_CANCEL);
    worker_link_release(&link_, slot);
    assert_int_equal(hold_a_slot(), slot);
    assert_int_equal(atomic_load(&worker.slots[slot].word), UINT64_C(2) << 32);
    close_both();
}

static struct span part(const uint8_t *record, struct work_part p)
{
    return span_of(record + p.offset, p.bytes);
}

static void a_record_says_what_the_message_said(void **state)
{
    struct wire_generate g;
    struct record_context c = { .scope = { 1, 2 }, .arrived_ns = 3, .deadline_ns = 4, .seed = 5 };
    struct wire_message_text messages[2] = { { span_str("system"), span_str("Be short.") }, { span_str("user"), span_str("") } };
    struct logit_bias bias[1] = { { 7, -3.5f } };
    int32_t ids[3] = { 10, 11, 12 };
    struct record_resume resume[2] = { { .choice = 1, .n_ids = 3, .released_bytes = 9, .ids = ids }, { .choice = 2, .finished = true } };
    struct record r = { 0 };
    struct error err;

    (void)state;
    wire_generate_init(&g);
    g.prompt_kind = WORK_PROMPT_MESSAGES;
    g.messages = messages;
    g.n_messages = 2;
    g.n = 3;
    g.stops[0] = span_str("END");
    g.n_stops = 1;
    g.bias.at = bias;
    g.bias.n = 1;
    g.chat_template = span_str("chatml");
    g.ignore_eos = true;
    assert_int_equal(record_of_generate(&g, &c, &r, &err), ST_OK);

    uint64_t bytes = record_resumed_bytes(&r, resume, 2);
    uint8_t *to = malloc(bytes);
    record_write(&r, 8, 9, 10, resume, 2, to);
    struct work_request h;
    memcpy(&h, to, sizeof(h));
    assert_int_equal(h.record_bytes, bytes);
    assert_int_equal(h.slot, 8);
    assert_int_equal(h.generation, 9);
    assert_int_equal(h.fair_tag, 10);
    assert_int_equal(h.n_choices, 3);
    assert_int_equal(h.flags, WORK_IGNORE_EOS | WORK_INTERACTIVE);
    assert_int_equal(h.sampling.seed, 5);
    assert_memory_equal(part(to, h.prompt).at, "\6\0\0\0\11\0\0\0systemBe short.\0\4\0\0\0\0\0\0\0user", 36);
    assert_int_equal(h.prompt.bytes, 36);
    assert_true(span_equal(part(to, h.stops), span_of("\3\0\0\0END\0", 8)));
    assert_memory_equal(part(to, h.bias).at, bias, sizeof(bias));
    assert_true(span_is(part(to, h.template_name), "chatml"));
    assert_int_equal(h.n_resume, 2);
    struct work_resume w;
    memcpy(&w, part(to, h.resume).at, sizeof(w));
    assert_int_equal(w.n_ids, 3);
    assert_memory_equal(part(to, h.resume).at + sizeof(w), ids, sizeof(ids));
    memcpy(&w, part(to, h.resume).at + sizeof(w) + sizeof(ids), sizeof(w));
    assert_int_equal(w.choice, 2);
    assert_int_equal(w.finished, 1);
    free(to);
    record_deinit(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_whole_and_in_order_whatever_their_sizes),
        cmocka_unit_test(events_of_a_slot_s_last_holder_are_nobody_s),
        cmocka_unit_test(impossible_events_are_corrupt),
        cmocka_unit_test(noise_never_leaves_the_region),
        cmocka_unit_test(a_card_of_noise_is_refused),
        cmocka_unit_test(flags_reach_the_worker_with_their_generation),
        cmocka_unit_test(a_record_says_what_the_message_said),
    };
    rng = random_start(argc, argv, 200000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
