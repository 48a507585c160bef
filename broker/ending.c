/* ending.c - how requests move from phase to phase, and end.
 *
 * Everybody else decides; the changes are made here, so that the counts of users, workers and models cannot disagree with the
 * phases: they are changed in the same few lines. */
#include "broker.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "clock.h"
#include "log.h"

enum { RETRY_MS_MIN = 100, RETRY_MS_MAX = 30000, RETRY_MS_PER_REQUEST = 20 };

static enum queue_priority priority_of(const struct request *r)
{
    if (r->priority == PRIORITY_NORMAL)
        return QUEUE_NORMAL;
    return r->priority == PRIORITY_HIGH ? QUEUE_HIGH : QUEUE_LOW;
}

static bool user_is_full(const struct account *a)
{
    return a->running_max > 0 && a->n_running >= a->running_max;
}

void ending_enqueue(struct broker *b, uint32_t request, enum queue_class class)
{
    struct request *r = &b->requests.list[request];

    assert(r->phase == REQUEST_OVER && r->end == END_NONE);
    r->phase = REQUEST_QUEUED;
    if (class != QUEUE_RESUMED)
        r->charged = dispatch_cost(b, r);
    fair_queue_push(b->queue, request, r->account, r->model, class, priority_of(r), r->charged);
}

/* A request with an idempotency key goes: its answer stays, or the key is free again. */
static void settle_key(struct broker *b, struct request *r)
{
    struct kept_answer a = { .choices = r->choices,
                             .n_choices = r->n_choices,
                             .seed = record_head(&r->record)->sampling.seed,
                             .number = r->number,
                             .prefill_ns = r->prefill_ns,
                             .prompt_tokens = r->prompt_tokens,
                             .cached_tokens = r->cached_tokens,
                             .preemptions = r->preemptions,
                             .takeovers = r->takeovers,
                             .worker = r->worker };

    if (r->end != END_DONE) {
        keys_drop(b->keys, (uint32_t)r->key);
        r->key = NO_KEY;
        return;
    }
    memcpy(a.numerics_id, r->numerics_id, sizeof(a.numerics_id));
    for (uint32_t i = 0; i < r->n_choices; i++)
        a.bytes += r->choices[i].ids.capacity + r->choices[i].text.capacity + r->choices[i].logprobs.capacity;
    b->requests.bytes -= a.bytes; /* counted by the table of keys from now on */
    r->choices = NULL;
    r->n_choices = 0;
    keys_keep(b->keys, (uint32_t)r->key, &a, b->now_ns);
    r->key = NO_KEY;
}

/* Free the place if nobody needs it any more. */
static void try_free(struct broker *b, uint32_t request)
{
    struct request *r = &b->requests.list[request];

    if (r->phase != REQUEST_OVER || r->client != CLIENT_NONE)
        return;
    trace_keep(b, r);
    if (r->key != NO_KEY)
        settle_key(b, r);
    if (r->session != SESSION_NONE)
        sessions_unuse(&b->sessions, r->session, b->now_ns);
    b->accounts.list[r->account].n_live--;
    requests_remove(&b->requests, request);
}

/* What it was charged at dispatch becomes what it used. */
static void settle(struct broker *b, struct request *r)
{
    uint64_t used = (uint64_t)(r->prompt_tokens - r->cached_tokens) + request_completion_tokens(r);

    fair_queue_settle(b->queue, r->account, r->batch ? QUEUE_BATCH : QUEUE_INTERACTIVE, r->charged, used);
    account_count(&b->accounts.list[r->account], used, clock_real_ms());
    r->charged = 0;
}

/* The request has its end; take it out of the queue, or ask its worker to let it go. */
static void stop_work(struct broker *b, struct request *r, uint32_t request)
{
    if (r->phase == REQUEST_QUEUED) {
        fair_queue_remove(b->queue, request);
        r->phase = REQUEST_OVER;
        if (r->dispatched_ns != 0) /* its worker died: it was charged already */
            settle(b, r);
    } else if (request_in_worker(r)) {
        worker_link_flag(&b->workers[r->worker].link, r->slot, SLOT_CANCEL);
    }
}

void ending_error(struct broker *b, uint32_t request, const struct error *error, uint32_t retry_after_ms)
{
    struct request *r = &b->requests.list[request];

    if (r->end != END_NONE)
        return;
    r->end = END_ERROR;
    r->times.ended_ns = clock_now_ns();
    r->error = *error;
    r->retry_after_ms = retry_after_ms;
    b->totals.errors[error->code]++;
    b->totals.failed += error->code != ERR_CANCELLED;
    b->totals.cancelled += error->code == ERR_CANCELLED;
    stop_work(b, r, request);
    if (error->code == ERR_CANCELLED || error->code == ERR_SLOW_READER)
        for (uint32_t i = 0; i < r->n_choices; i++) { /* nobody wants what came meanwhile */
            r->choices[i].n_sent = choice_n_ids(&r->choices[i]);
            requests_clear(&b->requests, &r->choices[i].text);
            requests_clear(&b->requests, &r->choices[i].logprobs);
            r->choices[i].text_sent = r->choices[i].logprobs_sent = 0;
        }
    requests_mark_dirty(&b->requests, request);
    try_free(b, request);
}

void ending_errorf(struct broker *b, uint32_t request, enum error_code code, const char *param, const char *format, ...)
{
    char message[ERROR_MESSAGE_BYTES];
    struct error e;
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    error_set(&e, code, param, "%s", message);
    ending_error(b, request, &e, 0);
}

void ending_done(struct broker *b, uint32_t request)
{
    struct request *r = &b->requests.list[request];

    if (r->end != END_NONE)
        return;
    r->end = END_DONE;
    r->times.ended_ns = clock_now_ns();
    b->totals.done++;
    histogram_add(&b->times.total[r->batch], (double)(b->now_ns - r->arrived_ns) / 1e9);
    struct account *a = &b->accounts.list[r->account];
    a->prompt_tokens += r->prompt_tokens;
    a->cached_tokens += r->cached_tokens;
    a->completion_tokens += request_completion_tokens(r);
    if (r->kind == WORK_GENERATE) {
        double mean = (double)request_completion_tokens(r) / r->n_choices, *average = &b->models[r->model].output_tokens;

        *average += (mean - *average) / 16;
    }
    requests_mark_dirty(&b->requests, request);
}

void ending_sent(struct broker *b, uint32_t request, struct worker *w, uint32_t slot)
{
    struct request *r = &b->requests.list[request];
    struct account *a = &b->accounts.list[r->account];

    assert(r->phase == REQUEST_QUEUED);
    r->phase = REQUEST_SENT;
    r->worker = (int)w->slot;
    r->slot = slot;
    r->started = false;
    r->paused = false;
    r->n_before = request_completion_tokens(r);
    w->n_seqs += r->n_choices;
    w->n_unstarted++;
    w->last_busy_ns = b->now_ns;
    if (w->link.n_held == 1)
        w->patience_from_ns = b->now_ns;
    a->n_running++;
    fair_queue_block_user(b->queue, r->account, user_is_full(a));
    if (r->suspect) {
        w->alone_request = request;
        b->models[r->model].n_suspects++;
    }
}

void ending_clear_suspect(struct broker *b, uint32_t request)
{
    struct request *r = &b->requests.list[request];

    assert(r->suspect && request_in_worker(r));
    r->suspect = false;
    b->workers[r->worker].alone_request = -1;
    b->models[r->model].n_suspects--;
}

void ending_left_worker(struct broker *b, uint32_t request, bool over)
{
    struct request *r = &b->requests.list[request];
    struct worker *w = &b->workers[r->worker];
    struct account *a = &b->accounts.list[r->account];

    assert(request_in_worker(r));
    worker_link_trace(&w->link, r->slot, &r->run);
    worker_link_release(&w->link, r->slot);
    w->n_seqs -= r->n_choices;
    w->n_unstarted -= !r->started;
    if (r->suspect) {
        w->alone_request = -1;
        b->models[r->model].n_suspects--;
    }
    a->n_running--;
    fair_queue_block_user(b->queue, r->account, user_is_full(a));
    r->paused = false; /* that was a flag in the worker's slot */
    r->phase = REQUEST_OVER;
    if (!over)
        return;
    settle(b, r);
    try_free(b, request);
}

/* Forget a connection that has no requests left. */
static void drop_idle_client(struct broker *b, uint32_t client)
{
    if (b->clients.list[client].n_live == 0)
        clients_remove(&b->clients, client);
}

void ending_told(struct broker *b, uint32_t request)
{
    uint32_t client = b->requests.list[request].client;

    b->requests.list[request].times.told_ns = clock_now_ns();
    requests_detach(&b->requests, &b->clients, request);
    try_free(b, request);
    drop_idle_client(b, client);
}

/* A request with a key whose client left: it may come back with the key.  It runs on for KEYS_ORPHAN_MS, at its own pace. */
static void make_orphan(struct broker *b, struct request *r)
{
    r->orphaned_ns = b->now_ns;
    if (r->paused)
        worker_link_flag(&b->workers[r->worker].link, r->slot, 0);
    r->paused = false;
}

void ending_client_gone(struct broker *b, uint32_t client)
{
    struct error gone;
    uint32_t n = 0;

    error_set(&gone, ERR_CANCELLED, "", "the client has left");
    while (b->clients.list[client].first != NO_REQUEST) {
        uint32_t request = b->clients.list[client].first;

        requests_detach(&b->requests, &b->clients, request);
        if (b->requests.list[request].end == END_NONE && b->requests.list[request].key != NO_KEY)
            make_orphan(b, &b->requests.list[request]);
        else if (b->requests.list[request].end == END_NONE)
            ending_error(b, request, &gone, 0); /* frees the place if no worker has it */
        else
            try_free(b, request);
        n++;
    }
    log_debug("client_gone", "requests=%" PRIu32, n);
    drop_idle_client(b, client);
}

uint32_t ending_retry_after_ms(const struct broker *b)
{
    uint32_t ms = (b->requests.n_live - fair_queue_length(b->queue, QUEUE_RESUMED)) * RETRY_MS_PER_REQUEST;

    return ms < RETRY_MS_MIN ? RETRY_MS_MIN : ms > RETRY_MS_MAX ? RETRY_MS_MAX : ms;
}
