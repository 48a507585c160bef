/* fuzz_worker_events.c - a worker gone bad: any events for requests that run, made of small commands so that most get past the first check.
 *
 * Each command is a byte: raw slots, or a kind of event whose fields are the right ones but for what the input changes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/broker_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_REQUESTS = 3 };
static struct broker_rig rig;
static uint32_t requests[N_REQUESTS];

struct input {
    const uint8_t *at;
    size_t n;
};

static uint8_t byte(struct input *in)
{
    if (in->n == 0)
        return 0;
    in->n--;
    return *in->at++;
}

static void bytes(struct input *in, void *to, size_t n)
{
    size_t have = n < in->n ? n : in->n;

    memset(to, 0, n);
    if (have > 0)
        memcpy(to, in->at, have);
    in->at += have;
    in->n -= have;
}

/* An event that is right in all that the input does not say. */
static void push_event(struct input *in, uint8_t command)
{
    static uint8_t slots[EVENT_SLOTS_MAX * RING_SLOT_BYTES];
    const struct request *r = &rig.b->requests.list[requests[command >> 4 & 1]];
    const struct worker_link *l = &rig.b->workers[0].link;
    struct work_event e = { .type = command & 15, .choice = byte(in) & 1, .slot = r->slot };
    uint32_t payload = byte(in);

    e.generation = l->slots[r->slot].generation;
    if ((command & 32) != 0)
        bytes(in, e.align, sizeof(e.align));
    else if (e.type == EVENT_TOKEN && r->choices != NULL && e.choice < r->n_choices)
        e.token.index = choice_n_ids(&r->choices[e.choice]);
    else if (e.type == EVENT_FINISH)
        e.finish.reason = FINISH_STOP;
    else if (e.type == EVENT_ERROR)
        e.error.code = ERR_INTERNAL;
    if (e.type == EVENT_TOKEN && r->logprobs)
        e.token.has_logprobs = 1;
    if (e.type != EVENT_TOKEN && e.type != EVENT_TEXT && e.type != EVENT_ERROR && e.type != EVENT_IDS)
        payload = 0;
    e.bytes = payload;
    e.n_more = (uint16_t)(event_slots(payload) - 1);
    memcpy(slots, &e, sizeof(e));
    bytes(in, slots + offsetof(struct work_event, data), payload);
    (void)!ring_push(&rig.worker.events, slots, 1u + e.n_more);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };

    if (rig.b == NULL)
        broker_rig_open(&rig);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        requests[i] = broker_rig_request(&rig, 1 + i % 2, 50, i == 1);
    broker_rig_dispatch(&rig);
    while (in.n > 0) {
        uint8_t command = byte(&in), slot[RING_SLOT_BYTES];

        if (command < 64) {
            push_event(&in, command);
        } else if (command < 128) {
            bytes(&in, slot, sizeof(slot));
            (void)!ring_push(&rig.worker.events, slot, 1);
        } else if (command < 136) {
            struct error e = { .code = ERR_CANCELLED };

            if (rig.b->requests.list[requests[2]].phase != REQUEST_FREE)
                ending_error(rig.b, requests[2], &e, 0);
        } else if (events_take(rig.b, &rig.b->workers[0], EVENT_RING_SLOTS) != ST_AGAIN) {
            break;
        }
    }
    (void)!events_take(rig.b, &rig.b->workers[0], EVENT_RING_SLOTS);
    fair_queue_reset_user(rig.b->queue, 0);
    worker_link_check(&rig.b->workers[0].link);
    broker_rig_reset(&rig);
    if (rig.b->requests.bytes != 0)
        abort();
    return 0;
}
