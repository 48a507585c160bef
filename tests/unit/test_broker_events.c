/* test_broker_events.c - what a worker says is what the request holds; what it may not say is a broken rule; the books balance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/broker_rig.h"
#include "tests/support/random.h"

enum { LIVE = 12, CHOICES = 4, MOST = 40 };
static struct random rng;
static struct broker_rig rig;

struct oracle {              /* of one request, as the worker knows it */
    uint32_t request, slot, generation, n_choices;
    bool used, started, cancelled;
    int32_t ids[CHOICES][MOST];
    uint32_t n_ids[CHOICES], text_bytes[CHOICES];
    bool finished[CHOICES];
};
static struct oracle oracles[LIVE];

static void push(struct work_event e, const void *payload)
{
    static uint8_t slots[EVENT_SLOTS_MAX * RING_SLOT_BYTES];

    e.n_more = (uint16_t)(event_slots(e.bytes) - 1);
    memcpy(slots, &e, sizeof(e));
    if (e.bytes > 0)
        memcpy(slots + offsetof(struct work_event, data), payload, e.bytes);
    assert_int_equal(ring_push(&rig.worker.events, slots, 1u + e.n_more), ST_OK);
}

static struct work_event event_of(const struct oracle *o, uint8_t type, uint32_t choice)
{
    return (struct work_event){ .type = type, .choice = (uint8_t)choice, .slot = o->slot, .generation = o->generation };
}

static enum status drain(void)
{
    return events_take(rig.b, &rig.b->workers[0], EVENT_RING_SLOTS);
}

static struct oracle *begin(void)
{
    for (uint32_t i = 0; i < LIVE; i++) {
        struct oracle *o = &oracles[i];

        if (o->used)
            continue;
        memset(o, 0, sizeof(*o));
        o->n_choices = 1 + random_below(&rng, CHOICES);
        o->request = broker_rig_request(&rig, o->n_choices, MOST, false);
        broker_rig_dispatch(&rig);
        const struct request *r = &rig.b->requests.list[o->request];
        assert_int_equal(r->phase, REQUEST_SENT);
        o->slot = r->slot;
        o->generation = rig.b->workers[0].link.slots[r->slot].generation;
        o->used = true;
        return o;
    }
    return NULL;
}

static void compare(const struct oracle *o)
{
    const struct request *r = &rig.b->requests.list[o->request];

    if (o->cancelled)
        return;
    for (uint32_t i = 0; i < o->n_choices; i++) {
        assert_int_equal(choice_n_ids(&r->choices[i]), o->n_ids[i]);
        if (o->n_ids[i] > 0)
            assert_memory_equal(choice_ids(&r->choices[i]), o->ids[i], o->n_ids[i] * 4);
        assert_int_equal(r->choices[i].released_bytes, o->text_bytes[i]);
        assert_int_equal(r->choices[i].text.n, o->text_bytes[i]);
        assert_int_equal(r->choices[i].finished, o->finished[i]);
    }
}

static void say_token(struct oracle *o, uint32_t choice)
{
    struct work_event e = event_of(o, EVENT_TOKEN, choice);

    if (o->finished[choice] || o->n_ids[choice] == MOST)
        return;
    e.token.index = o->n_ids[choice];
    e.token.id = o->ids[choice][o->n_ids[choice]++] = (int32_t)random_below(&rng, 100);
    push(e, NULL);
}

static void say_text(struct oracle *o, uint32_t choice)
{
    static char text[3000];
    struct work_event e = event_of(o, EVENT_TEXT, choice);

    if (o->finished[choice] || o->n_ids[choice] == 0)
        return;
    uint32_t most = o->n_ids[choice] * 64 - o->text_bytes[choice]; /* well within what tokens can hold */
    e.bytes = random_below(&rng, most < sizeof(text) ? most + 1 : (uint32_t)sizeof(text));
    e.text.n_tokens = o->n_ids[choice];
    memset(text, 'x', sizeof(text));
    o->text_bytes[choice] += e.bytes;
    push(e, text);
}

/* Finish what is open, then DONE; or ERROR at any point.  The client is told, the place is free. */
static void end(struct oracle *o)
{
    bool error = o->cancelled || !o->started || random_below(&rng, 3) == 0;

    for (uint32_t i = 0; !error && i < o->n_choices; i++) {
        struct work_event e = event_of(o, EVENT_FINISH, i);

        if (o->finished[i])
            continue;
        e.finish.reason = FINISH_STOP;
        e.finish.n_tokens = o->n_ids[i];
        e.finish.stop_index = (int32_t)random_below(&rng, 2) - 1;
        push(e, NULL);
        o->finished[i] = true;
    }
    struct work_event e = event_of(o, error ? EVENT_ERROR : EVENT_DONE, 0);
    if (error) {
        e.error.code = ERR_INTERNAL;
        e.error.param_bytes = 1;
        e.bytes = 4;
    }
    push(e, "pabc");
    assert_int_equal(drain(), ST_AGAIN);
    const struct request *r = &rig.b->requests.list[o->request];
    if (!o->cancelled) {
        compare(o);
        assert_int_equal(r->phase, REQUEST_OVER);
        assert_int_equal(r->end, error ? END_ERROR : END_DONE);
        ending_told(rig.b, o->request);
    }
    assert_int_equal(r->phase, REQUEST_FREE);
    o->used = false;
}

static void cancel(struct oracle *o)
{
    if (o->cancelled)
        return;
    ending_errorf(rig.b, o->request, ERR_CANCELLED, "", "cancelled");
    assert_true((atomic_load(&rig.worker.slots[o->slot].word) & SLOT_CANCEL) != 0);
    ending_told(rig.b, o->request);
    o->cancelled = true;
}

static void one_operation(void)
{
    struct oracle *o = &oracles[random_below(&rng, LIVE)];
    uint32_t choice;

    if (!o->used) {
        begin();
        return;
    }
    choice = random_below(&rng, o->n_choices);
    if (!o->started) {
        struct work_event e = event_of(o, EVENT_STARTED, 0);

        e.started.prompt_tokens = 5;
        push(e, NULL);
        o->started = true;
    }
    switch (random_below(&rng, 16)) {
    case 0:
        end(o);
        return;
    case 1:
        cancel(o);
        return;
    case 2:
    case 3:
    case 4:
        say_text(o, choice);
        break;
    default:
        say_token(o, choice);
    }
    if (random_below(&rng, 3) == 0) {
        assert_int_equal(drain(), ST_AGAIN);
        for (uint32_t i = 0; i < LIVE; i++)
            if (oracles[i].used)
                compare(&oracles[i]);
    }
}

static void a_request_holds_what_its_worker_said(void **state)
{
    (void)state;
    broker_rig_open(&rig);
    for (uint64_t i = 0; i < random_ops(); i++) {
        one_operation();
        if (i % 64 == 0)
            broker_check(rig.b);
    }
    for (uint32_t i = 0; i < LIVE; i++)
        if (oracles[i].used)
            end(&oracles[i]);
    broker_check(rig.b);
    assert_int_equal(rig.b->requests.n_live, 0);
    assert_int_equal(rig.b->requests.bytes, 0);
    broker_rig_close(&rig);
}

static void what_no_worker_may_say_is_a_broken_rule(void **state)
{
    const struct work_event bad[] = {
        { .type = EVENT_READY },
        { .type = EVENT_STARTED, .started = { .prompt_tokens = 5 } }, /* a second time */
        { .type = EVENT_TOKEN, .choice = 2 },
        { .type = EVENT_TOKEN, .token = { .index = 1 } },
        { .type = EVENT_TOKEN, .token = { .id = 100 } },
        { .type = EVENT_TOKEN, .token = { .id = -1 } },
        { .type = EVENT_TOKEN, .bytes = 5 },                          /* log-probabilities nobody announced */
        { .type = EVENT_TOKEN, .bytes = 5, .token = { .has_logprobs = 1 } },
        { .type = EVENT_TOKEN, .token = { .has_logprobs = 1, .n_top = 21 } },
        { .type = EVENT_TEXT, .choice = 2, .bytes = 1, .data = "x" },
        { .type = EVENT_TEXT, .bytes = 1, .data = "\xC3" },
        { .type = EVENT_TEXT, .bytes = 1, .data = "x" },              /* no token holds it */
        { .type = EVENT_FINISH, .choice = 2, .finish = { FINISH_STOP, 0, -1, 0 } },
        { .type = EVENT_FINISH, .finish = { FINISH_NONE, 0, -1, 0 } },
        { .type = EVENT_FINISH, .finish = { FINISH_ERROR + 1, 0, -1, 0 } },
        { .type = EVENT_FINISH, .finish = { FINISH_STOP, 1, -1, 0 } },
        { .type = EVENT_FINISH, .finish = { FINISH_STOP, 0, 1, 0 } },
        { .type = EVENT_FINISH, .finish = { FINISH_STOP, 0, -2, 0 } },
        { .type = EVENT_DONE },
        { .type = EVENT_ERROR, .error = { ERR_NONE, 0 } },
        { .type = EVENT_ERROR, .error = { ERR_COUNT, 0 } },
        { .type = EVENT_ERROR, .error = { ERR_INTERNAL, 1 } },
        { .type = EVENT_ERROR, .error = { ERR_INTERNAL, 0 }, .bytes = 1, .data = "\xFF" },
        { .type = EVENT_IDS },
    };

    (void)state;
    broker_rig_open(&rig);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memset(oracles, 0, sizeof(oracles));
        struct oracle *o = begin();
        struct work_event started = event_of(o, EVENT_STARTED, 0), e = bad[i];

        o->n_choices = rig.b->requests.list[o->request].n_choices;
        started.started.prompt_tokens = 5;
        push(started, NULL);
        assert_int_equal(drain(), ST_AGAIN);
        e.slot = o->slot;
        e.generation = o->generation;
        if (e.choice == 2)
            e.choice = (uint8_t)o->n_choices;
        push(e, bad[i].data);
        if (drain() != ST_CORRUPT)
            fail_msg("event %zu was believed", i);
        broker_rig_reset(&rig);
        broker_check(rig.b);
    }
    broker_rig_close(&rig);
}

static void a_dead_worker_s_request_goes_on_from_what_it_delivered(void **state)
{
    (void)state;
    broker_rig_open(&rig);
    memset(oracles, 0, sizeof(oracles));
    struct oracle *o = begin();
    struct work_event e = event_of(o, EVENT_STARTED, 0);
    e.started.prompt_tokens = 5;
    push(e, NULL);
    o->started = true;
    for (int i = 0; i < 7; i++)
        say_token(o, 0);
    assert_int_equal(drain(), ST_AGAIN);
    ending_left_worker(rig.b, o->request, false);
    rig.b->requests.list[o->request].takeovers++;
    ending_enqueue(rig.b, o->request, QUEUE_RESUMED);
    dispatch_queued(rig.b);
    struct work_message m;
    struct work_request head;
    struct work_resume resume;
    assert_int_equal(ring_pop(&rig.worker.requests, &m, 1), ST_OK);
    memcpy(&head, rig.worker.arena + m.record_at, sizeof(head));
    assert_int_equal(head.n_resume, 1);
    assert_true(head.generation > 0 && head.slot == m.slot);
    memcpy(&resume, rig.worker.arena + m.record_at + head.resume.offset, sizeof(resume));
    assert_int_equal(resume.n_ids, 7);
    assert_memory_equal(rig.worker.arena + m.record_at + head.resume.offset + sizeof(resume), o->ids[0], 28);
    broker_check(rig.b);
    broker_rig_reset(&rig);
    broker_rig_close(&rig);
}

/* Its slow client had it paused; the worker died, and then the client left.  There is no slot any more whose flag could be taken away. */
static void a_keyed_request_between_two_workers_outlives_its_client(void **state)
{
    struct key key = { .name = { 1, 2 } };

    (void)state;
    broker_rig_open(&rig);
    memset(oracles, 0, sizeof(oracles));
    struct oracle *o = begin();
    struct request *r = &rig.b->requests.list[o->request];
    r->key = keys_add(rig.b->keys, &key, o->request);
    r->paused = true;
    worker_link_flag(&rig.b->workers[0].link, r->slot, SLOT_PAUSE);
    broker_check(rig.b);
    ending_left_worker(rig.b, o->request, false);
    ending_enqueue(rig.b, o->request, QUEUE_RESUMED);
    broker_check(rig.b);
    ending_client_gone(rig.b, r->client);
    assert_true(r->phase == REQUEST_QUEUED && r->orphaned_ns != 0 && !r->paused);
    broker_check(rig.b);
    broker_rig_reset(&rig);
    broker_rig_close(&rig);
}

/* A stream whose client did not read was paused; the client asks again, with its key, for all of it at once: then it must go on. */
static void a_paused_stream_that_becomes_none_goes_on(void **state)
{
    (void)state;
    broker_rig_open(&rig);
    memset(oracles, 0, sizeof(oracles));
    struct oracle *o = begin();
    struct request *r = &rig.b->requests.list[o->request];
    const _Atomic uint64_t *word = &rig.worker.slots[r->slot].word;
    rig.b->clients.list[r->client].retry_ns = UINT64_MAX; /* nothing is sent */
    r->paused = true;
    worker_link_flag(&rig.b->workers[0].link, r->slot, SLOT_PAUSE);
    assert_int_equal(*word & 0xffffffff, SLOT_PAUSE);
    r->stream = false;
    requests_mark_dirty(&rig.b->requests, o->request);
    delivery_flush(rig.b);
    assert_false(r->paused);
    assert_int_equal(*word & 0xffffffff, 0);
    broker_rig_reset(&rig);
    broker_rig_close(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_holds_what_its_worker_said),
        cmocka_unit_test(what_no_worker_may_say_is_a_broken_rule),
        cmocka_unit_test(a_dead_worker_s_request_goes_on_from_what_it_delivered),
        cmocka_unit_test(a_keyed_request_between_two_workers_outlives_its_client),
        cmocka_unit_test(a_paused_stream_that_becomes_none_goes_on),
    };
    rng = random_start(argc, argv, 200000);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
