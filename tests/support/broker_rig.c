/* broker_rig.c - see broker_rig.h.  The tables are those of broker_new(); what is missing is what talks to the outside. */
#include "tests/support/broker_rig.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

void broker_rig_open(struct broker_rig *rig)
{
    struct broker *b = calloc(1, sizeof(*b));
    enum status st = ST_NOMEM;

    assert(b != NULL);
    memset(rig, 0, sizeof(*rig));
    rig->b = b;
    b->options = &rig->options;
    rig->options.pool_bytes = POOL_BYTES_DEFAULT;
    b->signals = b->endpoint.lock = -1;
    b->now_ns = b->started_ns = clock_now_ns();
    clients_init(&b->clients);
    st = requests_init(&b->requests);
    if (st == ST_OK)
        st = keys_new(&b->keys);
    if (st == ST_OK)
        st = fair_queue_new(REQUESTS_MAX, ACCOUNTS_MAX, 1, &b->queue);
    if (st == ST_OK)
        st = router_new(1, &b->router);
    assert(st == ST_OK);
    b->n_models = b->n_workers = 1;
    b->models[0] = (struct served_model){ .name = "m", .path = "/dev/null", .bytes_per_token = 4, .output_tokens = 10 };
    struct worker *w = &b->workers[0];
    supervisor_init_worker(w, 0, 0, "cpu");
    st = worker_link_open(&w->link, 0, 1, 1);
    if (st == ST_OK)
        st = region_attach(w->link.memory, w->link.bells[0], w->link.bells[1], &rig->worker);
    assert(st == ST_OK);
    w->state = WORKER_READY;
    w->has_card = true;
    w->card = (struct region_card){ .max_seqs = 64, .n_vocab = 100, .numerics_id = "rig" };
}

void broker_rig_close(struct broker_rig *rig)
{
    region_unmap(&rig->worker);
    broker_free(rig->b);
}

uint32_t broker_rig_request(struct broker_rig *rig, uint32_t n_choices, uint32_t max_tokens, bool logprobs)
{
    struct broker *b = rig->b;
    struct peer peer = { .id = { 0 } };
    struct record_context c = { .arrived_ns = b->now_ns };
    struct record record = { 0 };
    struct wire_generate g;
    struct error err;
    uint32_t client, request;

    rig->n_clients++;
    memcpy(peer.id + 1, &rig->n_clients, 4);
    wire_generate_init(&g);
    g.prompt_kind = WORK_PROMPT_TEXT;
    g.prompt = span_str("prompt");
    g.n = n_choices;
    g.max_tokens = max_tokens;
    g.stops[0] = span_str("stop");
    g.n_stops = 1;
    enum status st = clients_add(&b->clients, &peer, 0, (uint8_t[CURVE_KEY_BYTES]){ 0 }, b->now_ns, &client);
    if (st == ST_OK)
        st = record_of_generate(&g, &c, &record, &err);
    if (st == ST_OK)
        st = requests_add(&b->requests, &b->clients, client, span_str("r"), n_choices, &record, &request);
    assert(st == ST_OK);
    struct request *r = &b->requests.list[request];
    r->kind = WORK_GENERATE;
    r->max_tokens = max_tokens;
    r->logprobs = logprobs;
    r->stream = true;
    r->arrived_ns = b->now_ns;
    st = accounts_number(&b->accounts, "user", b->queue, b->now_ns, &r->account);
    assert(st == ST_OK);
    b->accounts.list[r->account].n_live++;
    ending_enqueue(b, request, QUEUE_INTERACTIVE);
    return request;
}

void broker_rig_dispatch(struct broker_rig *rig)
{
    struct work_message m;

    dispatch_queued(rig->b);
    while (ring_pop(&rig->worker.requests, &m, 1) == ST_OK)
        continue;
}

void broker_rig_reset(struct broker_rig *rig)
{
    struct broker *b = rig->b;
    struct ring_shared *ring = rig->worker.events.shared;
    struct error e;
    enum status st;

    error_set(&e, ERR_CANCELLED, "", "reset");
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        const struct request *r = &b->requests.list[i];

        if (r->phase == REQUEST_FREE)
            continue;
        ending_error(b, i, &e, 0);
        if (r->client != CLIENT_NONE)
            ending_told(b, i);
        if (r->phase != REQUEST_FREE && request_in_worker(r))
            ending_left_worker(b, i, true);
    }
    assert(b->requests.n_live == 0 && b->clients.n == 0 && b->workers[0].link.n_held == 0);
    atomic_store(&ring->tail, 0);
    atomic_store(&ring->head, 0);
    st = ring_attach_consumer(&b->workers[0].link.region.events, ring, EVENT_RING_SLOTS);
    if (st == ST_OK)
        st = ring_attach_producer(&rig->worker.events, ring, EVENT_RING_SLOTS);
    assert(st == ST_OK);
}
