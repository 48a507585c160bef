/* dispatch.c - gives queued requests to workers.
 *
 * Binding is late: a worker gets what it can run and a small look-ahead, the rest waits here where it can still be reordered,
 * cancelled for nothing, or sent elsewhere.  Interactive requests find room that batch requests may not take.
 *
 * Requests of a dead worker (class RESUMED) go first.  One that delivered tokens goes to a worker of equal numerics id; a suspect
 * goes to an empty worker and keeps it to itself (takeover.h).  If no worker is empty and none is about to be, one is held back until it
 * is. */
#include "broker.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "clock.h"
#include "fault.h"
#include "log.h"

enum {
    LOOK_AHEAD_MIN = 4,           /* requests beyond what a worker runs */
    INTERACTIVE_EXTRA = 16,       /* sequences and look-ahead kept for the interactive class */
    SLOTS_FOR_INTERACTIVE = 32,   /* region slots that batch requests leave free */
    OUTPUT_TOKENS_GUESS_MAX = 512,/* a request without max_tokens is charged at most so many to begin with */
    DECODE_WEIGHT = 2,            /* a token decoded in a batch costs about half of one prefilled alone */
};
_Static_assert((int)SLOTS_FOR_INTERACTIVE < (int)REGION_SLOTS, "batch requests have slots too");

struct room {                     /* of one worker in this pass */
    bool interactive, batch;
};

static uint64_t output_estimate(const struct broker *b, const struct request *r)
{
    double guess = b->models[r->model].output_tokens;
    uint64_t most = record_head(&r->record)->max_tokens;

    if (guess > OUTPUT_TOKENS_GUESS_MAX)
        guess = OUTPUT_TOKENS_GUESS_MAX;
    if (most != 0 && most < (uint64_t)guess)
        guess = (double)most;
    return r->kind == WORK_GENERATE ? r->n_choices * (uint64_t)guess : 0;
}

uint64_t dispatch_cost(const struct broker *b, const struct request *r)
{
    return r->prompt_tokens_estimate + output_estimate(b, r) + 1;
}

bool dispatch_has_hope(const struct broker *b, uint32_t model, const char **ret_why)
{
    for (uint32_t i = 0; i < b->n_workers; i++) {
        const struct worker *w = &b->workers[i];

        if (w->model != model || w->order >= ORDER_REMOVE)
            continue;
        if (!supervisor_hopeless(w))
            return true;
        *ret_why = w->error;
    }
    return false;
}

static struct room room_of(const struct worker *w)
{
    struct room r = { 0 };

    if (w->state != WORKER_READY || w->order != ORDER_RUN || w->released || w->killed != KILL_NONE || w->alone_request >= 0 ||
        supervisor_is_silent(w))
        return r;
    uint32_t look_ahead = w->card.max_seqs / 2 > LOOK_AHEAD_MIN ? w->card.max_seqs / 2 : LOOK_AHEAD_MIN;
    uint32_t waiting = w->n_unstarted; /* STARTED comes with a request's first plan */

    r.batch = w->n_seqs < w->card.max_seqs + look_ahead && waiting < look_ahead &&
              w->link.n_held < REGION_SLOTS - SLOTS_FOR_INTERACTIVE;
    r.interactive = w->n_seqs < w->card.max_seqs + look_ahead + INTERACTIVE_EXTRA && waiting < look_ahead + INTERACTIVE_EXTRA &&
                    w->link.n_held < REGION_SLOTS;
    return r;
}

/* Tokens a worker still has to compute for what it holds. */
static uint64_t load_of(const struct broker *b, const struct worker *w)
{
    uint64_t load = 0;

    for (uint32_t i = 0; i < REGION_SLOTS; i++) {
        if (w->link.slots[i].request == LINK_NO_REQUEST)
            continue;
        const struct request *r = &b->requests.list[w->link.slots[i].request];
        uint64_t to_come = output_estimate(b, r), done = request_completion_tokens(r);

        load += (to_come > done ? to_come - done : 0) / DECODE_WEIGHT;
        if (r->first_token_ns == 0)
            load += r->started ? r->prompt_tokens - r->cached_tokens : r->prompt_tokens_estimate;
    }
    return load;
}

/* Choices that have begun, for a worker to go on with. */
static uint32_t resume_of(const struct request *r, struct record_resume resume[CHOICES_MAX])
{
    uint32_t n = 0;

    for (uint32_t i = 0; r->kind == WORK_GENERATE && i < r->n_choices; i++) {
        const struct choice *c = &r->choices[i];

        if (c->ids.n > 0 || c->finished)
            resume[n++] = (struct record_resume){ .choice = i,
                                                  .n_ids = choice_n_ids(c),
                                                  .released_bytes = (uint32_t)c->released_bytes,
                                                  .finished = c->finished,
                                                  .ids = choice_ids(c) };
    }
    return n;
}

/* Write the request into the worker's region.  ST_OK; ST_FULL: not now; ST_LIMIT: never, it has its error. */
static enum status send_to(struct broker *b, uint32_t request, struct worker *w)
{
    struct request *r = &b->requests.list[request];
    struct record_resume resume[CHOICES_MAX];
    uint32_t n_resume = resume_of(r, resume), slot, generation;
    uint64_t bytes = record_resumed_bytes(&r->record, resume, n_resume);
    uint8_t *at;

    if (bytes > RECORD_BYTES_MAX) {
        ending_errorf(b, request, ERR_LIMIT_EXCEEDED, "",
                      "prompt and tokens so far take %" PRIu64 " bytes, a record takes %d: it cannot be taken over", bytes,
                      RECORD_BYTES_MAX);
        return ST_LIMIT;
    }
    enum status st = FAULT_FAILS("broker.region_full") ? ST_FULL : worker_link_reserve(&w->link, bytes, &at, &slot, &generation);
    if (st == ST_CORRUPT) {
        log_error("worker_broke_rule", "slot=%" PRIu32 " life=%" PRIu32 " what=request-ring", w->slot, w->life);
        supervisor_kill(w, KILL_BROKEN_RULE);
        return ST_FULL;
    }
    if (st != ST_OK)
        return st;
    uint64_t fair_tag = fair_queue_take(b->queue, request);
    record_write(&r->record, slot, generation, fair_tag, resume, n_resume, at);
    uint64_t session = r->session != SESSION_NONE ? sessions_place(&b->sessions, r->session, w->slot) : 0;
    r->run = (struct link_trace){ 0 };
    r->times.sent_ns = clock_now_ns(); /* before the worker can see it */
    worker_link_commit(&w->link, slot, request, bytes, session);
    ending_sent(b, request, w, slot);
    FAULT("broker.sent");
    if (r->dispatched_ns == 0) {
        r->dispatched_ns = b->now_ns;
        histogram_add(&b->times.queue[r->batch], (double)(b->now_ns - r->arrived_ns) / 1e9);
        b->accounts.list[r->account].n_dispatched++;
        b->accounts.list[r->account].queue_ns += b->now_ns - r->arrived_ns;
    }
    return ST_OK;
}

/* The best of the candidates for this request; it is sent there.  False when it stays queued. */
static bool route(struct broker *b, uint32_t request, struct router_candidate *candidates)
{
    static struct router_prefix prefix; /* 4 KiB */
    struct request *r = &b->requests.list[request];
    struct span prompt = record_prompt(&r->record);
    uint64_t picked_ns = clock_now_ns();

    prefix.n = 0;
    if (!r->cache_off && r->kind == WORK_GENERATE)
        router_prefix_of(record_head(&r->record)->scope, prompt, &prefix);
    int home = r->session != SESSION_NONE ? b->sessions.list[r->session].worker : -1;
    for (;;) {
        int at = home >= 0 && candidates[home].usable
                     ? home
                     : router_pick(b->router, &prefix, prompt.n, r->prompt_tokens_estimate, candidates);
        if (at < 0)
            return false;
        enum status st = send_to(b, request, &b->workers[at]);
        if (st == ST_LIMIT)
            return true;
        if (st == ST_OK) {
            r->times.picked_ns = picked_ns;
            if (r->times.first_picked_ns == 0)
                r->times.first_picked_ns = picked_ns;
            router_note(b->router, (uint32_t)at, &prefix);
            return true;
        }
        candidates[at].usable = false;
    }
}

static bool numerics_fit(const struct request *r, const struct worker *w)
{
    return r->numerics_id[0] == '\0' || strcmp(r->numerics_id, w->card.numerics_id) == 0;
}

/* Will a worker that fits the request be there, now or later? */
static bool somebody_fits(const struct broker *b, const struct request *r)
{
    for (uint32_t i = 0; i < b->n_workers; i++) {
        const struct worker *w = &b->workers[i];

        if (w->model == r->model && !supervisor_hopeless(w) && (r->takeover_any || !w->has_card || numerics_fit(r, w)))
            return true;
    }
    return false;
}

/* May the suspect run in this worker: empty, or, the first time, holding nothing but cleared fellows? */
static bool quarantined(const struct broker *b, const struct worker *w, const struct request *suspect)
{
    for (uint32_t i = 0; i < REGION_SLOTS; i++) {
        uint32_t held = w->link.slots[i].request;

        if (held != LINK_NO_REQUEST && (suspect->bad_deaths > 1 || b->requests.list[held].bad_deaths == 0))
            return false;
    }
    return true;
}

/* A suspect needs a worker for itself.  Holds one back (no room for others) if there is none and none is being started. */
static void place_suspect(struct broker *b, uint32_t request, struct room rooms[WORKERS_MAX])
{
    const struct request *r = &b->requests.list[request];
    struct router_candidate candidates[WORKERS_MAX] = { 0 };
    int held_back = -1;
    bool any = false, starting = false;

    if (b->models[r->model].n_suspects > 0)
        return; /* one at a time */
    for (uint32_t i = 0; i < b->n_workers; i++) {
        const struct worker *w = &b->workers[i];

        if (w->model != r->model || (w->has_card && !r->takeover_any && !numerics_fit(r, w)))
            continue;
        starting = starting ||
                   (w->state != WORKER_READY && w->order == ORDER_RUN && !w->released && !supervisor_hopeless(w));
        if (!rooms[i].interactive)
            continue;
        candidates[i].usable = quarantined(b, w, r);
        any = any || candidates[i].usable;
        if (held_back < 0 || w->link.n_held < b->workers[held_back].link.n_held)
            held_back = (int)i;
    }
    if (any && route(b, request, candidates)) {
        if (request_in_worker(r))
            rooms[r->worker] = (struct room){ 0 };
    } else if (!starting && held_back >= 0) {
        rooms[held_back] = (struct room){ 0 };
    }
}

static void place_resumed(struct broker *b, uint32_t request, struct room rooms[WORKERS_MAX])
{
    const struct request *r = &b->requests.list[request];
    struct router_candidate same[WORKERS_MAX] = { 0 }, other[WORKERS_MAX] = { 0 };

    if (!somebody_fits(b, r)) {
        ending_errorf(b, request, ERR_NO_WORKER, "", "its worker died and no worker of numerics id %s is left", r->numerics_id);
        return;
    }
    if (r->suspect) {
        place_suspect(b, request, rooms);
        return;
    }
    for (uint32_t i = 0; i < b->n_workers; i++) {
        const struct worker *w = &b->workers[i];

        if (w->model != r->model || !rooms[i].interactive)
            continue;
        struct router_candidate c = { .usable = true, .load_tokens = load_of(b, w) };
        if (numerics_fit(r, w))
            same[i] = c;
        else if (r->takeover_any)
            other[i] = c;
    }
    if (!route(b, request, same) && !route(b, request, other))
        return;
    if (request_in_worker(r))
        rooms[r->worker] = room_of(&b->workers[r->worker]);
}

static uint32_t models_with_room(const struct broker *b, const struct room rooms[WORKERS_MAX], bool batch)
{
    uint32_t mask = 0;

    for (uint32_t i = 0; i < b->n_workers; i++)
        if (batch ? rooms[i].batch : rooms[i].interactive)
            mask |= UINT32_C(1) << b->workers[i].model;
    return mask;
}

/* One request of the fair queue.  False when there is none that has room. */
static bool place_next(struct broker *b, struct room rooms[WORKERS_MAX])
{
    struct router_candidate candidates[WORKERS_MAX] = { 0 };
    int64_t at = fair_queue_pick(b->queue, models_with_room(b, rooms, false), models_with_room(b, rooms, true));

    if (at == FAIR_NONE)
        return false;
    const struct request *r = &b->requests.list[at];
    for (uint32_t i = 0; i < b->n_workers; i++)
        if (b->workers[i].model == r->model && (r->batch ? rooms[i].batch : rooms[i].interactive))
            candidates[i] = (struct router_candidate){ .usable = true, .load_tokens = load_of(b, &b->workers[i]) };
    if (route(b, (uint32_t)at, candidates)) {
        if (request_in_worker(r))
            rooms[r->worker] = room_of(&b->workers[r->worker]);
        return true;
    }
    for (uint32_t i = 0; i < b->n_workers; i++) /* rings or arenas are full: not in this pass */
        if (b->workers[i].model == r->model)
            rooms[i] = (struct room){ 0 };
    return true;
}

void dispatch_queued(struct broker *b)
{
    struct room rooms[WORKERS_MAX] = { 0 };
    int64_t next;
    uint32_t budget = PASS_DISPATCHES;

    b->more_to_dispatch = false;
    if (fair_queue_length(b->queue, QUEUE_RESUMED) + fair_queue_length(b->queue, QUEUE_INTERACTIVE) +
            fair_queue_length(b->queue, QUEUE_BATCH) == 0)
        return;
    for (uint32_t i = 0; i < b->n_workers; i++)
        rooms[i] = room_of(&b->workers[i]);
    for (int64_t at = fair_queue_first_resumed(b->queue); at != FAIR_NONE; at = next) {
        next = fair_queue_next_resumed(b->queue, (uint32_t)at);
        place_resumed(b, (uint32_t)at, rooms);
    }
    while (budget > 0 && place_next(b, rooms))
        budget--;
    b->more_to_dispatch = budget == 0;
}

/* --- workers that left because they were idle -------------------------------------------------- */

static bool may_run(const struct worker *w, const struct request *r)
{
    return w->model == r->model && w->order == ORDER_RUN && (r->takeover_any || !w->has_card || numerics_fit(r, w));
}

/* Is a worker for this request there with room, or about to be?  A suspect's room is a worker for itself: one that is busy with others
 * is none, however many it could take. */
static bool is_served(const struct broker *b, const struct request *r)
{
    if (r->suspect && b->models[r->model].n_suspects > 0)
        return true; /* it is not its turn */
    for (uint32_t i = 0; i < b->n_workers; i++) {
        const struct worker *w = &b->workers[i];
        struct room room = room_of(w);

        if (!may_run(w, r) || w->released || supervisor_hopeless(w))
            continue;
        bool has_room = r->suspect ? room.interactive && quarantined(b, w, r) : r->batch ? room.batch : room.interactive;
        if (w->state == WORKER_WAITING ? w->start_due_ns <= b->now_ns : w->state != WORKER_READY || has_room)
            return true;
    }
    return false;
}

void dispatch_wake(struct broker *b)
{
    uint32_t n_released = 0;

    for (uint32_t i = 0; i < b->n_workers; i++)
        n_released += b->workers[i].released;
    for (uint32_t at = 0; n_released > 0 && at < REQUESTS_MAX; at++) {
        const struct request *r = &b->requests.list[at];

        if (r->phase != REQUEST_QUEUED || is_served(b, r))
            continue;
        for (uint32_t i = 0; i < b->n_workers; i++) {
            struct worker *w = &b->workers[i];

            if (!w->released || !may_run(w, r))
                continue;
            log_info("worker_wanted", "slot=%" PRIu32, w->slot);
            supervisor_wake(w, b->now_ns);
            n_released--;
            break;
        }
    }
}

void dispatch_release(struct broker *b)
{
    uint64_t limit_ns = b->options->idle_release_ms * UINT64_C(1000000);

    for (uint32_t i = 0; i < b->n_workers; i++) {
        struct worker *w = &b->workers[i];

        if (w->state != WORKER_READY || w->link.n_held > 0)
            w->last_busy_ns = b->now_ns;
        if (limit_ns == 0 || b->state != BROKER_RUNNING || w->state != WORKER_READY || w->order != ORDER_RUN || w->released ||
            w->killed != KILL_NONE || w->link.n_held > 0 || b->now_ns - w->last_busy_ns < limit_ns)
            continue;
        log_info("worker_idle", "slot=%" PRIu32 " life=%" PRIu32, w->slot, w->life);
        supervisor_release(w, b->now_ns);
    }
}
