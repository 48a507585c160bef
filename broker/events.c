/* events.c - what workers say about requests.
 *
 * The link has checked that an event has a possible form and belongs to a request that holds its slot.  Here it must fit the
 * request: the next index of a choice that exists and has not ended, text that is UTF-8, no more tokens than were asked for.  A
 * worker that says anything else has broken a rule and is killed: its memory can no longer be believed.
 *
 * A request that has its end already (cancelled, expired) still holds its slot: its events are checked and dropped, and DONE or ERROR
 * gives the slot back. */
#include "broker.h"

#include <inttypes.h>
#include <string.h>

#include "log.h"
#include "utf8.h"
#include "version.h"

enum { PIECE_HEAD_BYTES = 10 }; /* i32 id, f32 log-probability, u16 bytes */

/* ST_OK, or ST_CORRUPT: the rule that was broken is in *ret_rule. */
typedef enum status event_handler(struct broker *b, struct worker *w, uint32_t request, const struct link_event *e,
                                  const char **ret_rule);

static enum status broken(const char **ret_rule, const char *rule)
{
    *ret_rule = rule;
    return ST_CORRUPT;
}

static enum status out_of_memory(struct broker *b, uint32_t request)
{
    ending_errorf(b, request, ERR_INTERNAL, "", "the broker has no memory for this answer");
    return ST_OK;
}

static enum status on_started(struct broker *b, struct worker *w, uint32_t request, const struct link_event *e,
                              const char **ret_rule)
{
    struct request *r = &b->requests.list[request];
    uint32_t prompt = e->head.started.prompt_tokens, cached = e->head.started.cached_tokens;

    if (r->started)
        return broken(ret_rule, "started-twice");
    if (prompt > CONTEXT_TOKENS_MAX || cached > prompt)
        return broken(ret_rule, "prompt-tokens");
    r->started = true;
    r->phase = REQUEST_RUNNING;
    w->n_unstarted--;
    if (!r->was_started) { /* a takeover finds more in the cache than the client paid for */
        r->was_started = true;
        r->prompt_tokens = prompt;
        r->cached_tokens = cached;
        b->totals.prompt_tokens += prompt;
        b->totals.cached_tokens += cached;
    }
    if (record_head(&r->record)->prompt_kind == WORK_PROMPT_TEXT && prompt > 0) {
        double *average = &b->models[r->model].bytes_per_token;

        *average += ((double)record_prompt(&r->record).n / prompt - *average) / 32;
        if (*average < 0.5)
            *average = 0.5;
    }
    r->owes_progress = true;
    requests_mark_dirty(&b->requests, request);
    return ST_OK;
}

static struct choice *choice_of(struct request *r, const struct link_event *e)
{
    return e->head.choice < r->n_choices ? &r->choices[e->head.choice] : NULL;
}

/* Chosen and alternatives: exactly 1 + n_top pieces, exactly the payload. */
static bool logprobs_ok(const struct link_event *e)
{
    size_t at = 0;
    uint32_t n = 1u + e->head.token.n_top;

    if (e->head.token.n_top > LOGPROBS_MAX)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t bytes;

        if (e->payload.n - at < PIECE_HEAD_BYTES)
            return false;
        memcpy(&bytes, e->payload.at + at + 8, 2);
        at += PIECE_HEAD_BYTES;
        if (bytes > PIECE_BYTES_MAX || e->payload.n - at < bytes)
            return false;
        at += bytes;
    }
    return at == e->payload.n;
}

static enum status on_token(struct broker *b, struct worker *w, uint32_t request, const struct link_event *e,
                            const char **ret_rule)
{
    struct request *r = &b->requests.list[request];
    struct choice *c = choice_of(r, e);
    uint32_t payload = (uint32_t)e->payload.n;

    if (r->kind != WORK_GENERATE || c == NULL || !r->started || c->finished)
        return broken(ret_rule, "token-of-no-open-choice");
    if (r->end != END_NONE)
        return ST_OK;
    if (e->head.token.index != choice_n_ids(c) || e->head.token.index >= r->max_tokens)
        return broken(ret_rule, "token-index");
    if (e->head.token.id < 0 || (uint32_t)e->head.token.id >= w->card.n_vocab)
        return broken(ret_rule, "token-id");
    if (e->head.token.has_logprobs ? !logprobs_ok(e) : payload != 0)
        return broken(ret_rule, "logprobs");
    if (r->logprobs && !e->head.token.has_logprobs)
        return broken(ret_rule, "logprobs-missing");
    b->totals.tokens++;
    if (r->first_token_ns == 0) {
        r->first_token_ns = b->now_ns;
        histogram_add(&b->times.first_token[r->batch], (double)(b->now_ns - r->arrived_ns) / 1e9);
    }
    if (c->last_token_ns != 0)
        histogram_add(&b->times.token_interval[r->batch], (double)(b->now_ns - c->last_token_ns) / 1e9);
    c->last_token_ns = b->now_ns;
    memcpy(r->numerics_id, w->card.numerics_id, sizeof(r->numerics_id));
    int32_t id = e->head.token.id;
    enum status st = ST_OK;
    if (r->logprobs)
        st = requests_append(&b->requests, &c->logprobs, &payload, sizeof(payload));
    if (st == ST_OK && r->logprobs)
        st = requests_append(&b->requests, &c->logprobs, e->payload.at, e->payload.n);
    if (st == ST_OK) /* last: delivery.c reads log-probabilities for every id there is */
        st = requests_append(&b->requests, &c->ids, &id, sizeof(id));
    if (st != ST_OK)
        return out_of_memory(b, request);
    if (r->suspect && takeover_cleared(r->bad_deaths, request_completion_tokens(r) - r->n_before))
        ending_clear_suspect(b, request);
    if (r->stream)
        requests_mark_dirty(&b->requests, request);
    return ST_OK;
}

static enum status on_text(struct broker *b, struct worker *w, uint32_t request, const struct link_event *e,
                           const char **ret_rule)
{
    struct request *r = &b->requests.list[request];
    struct choice *c = choice_of(r, e);

    (void)w;
    if (r->kind != WORK_GENERATE || c == NULL || !r->started || c->finished)
        return broken(ret_rule, "text-of-no-open-choice");
    if (!utf8_valid(e->payload))
        return broken(ret_rule, "text-not-utf8");
    if (r->end != END_NONE)
        return ST_OK;
    if (e->head.text.n_tokens > choice_n_ids(c))
        return broken(ret_rule, "text-before-its-tokens");
    if (c->released_bytes + e->payload.n > (uint64_t)choice_n_ids(c) * PIECE_BYTES_MAX)
        return broken(ret_rule, "more-text-than-tokens-can-hold");
    c->released_bytes += e->payload.n;
    if (requests_append(&b->requests, &c->text, e->payload.at, e->payload.n) != ST_OK)
        return out_of_memory(b, request);
    if (r->stream)
        requests_mark_dirty(&b->requests, request);
    return ST_OK;
}

static enum status on_finish(struct broker *b, struct worker *w, uint32_t request, const struct link_event *e,
                             const char **ret_rule)
{
    struct request *r = &b->requests.list[request];
    struct choice *c = choice_of(r, e);
    int32_t stop = e->head.finish.stop_index;

    (void)w;
    if (r->kind != WORK_GENERATE || c == NULL || !r->started || c->finished)
        return broken(ret_rule, "finish-of-no-open-choice");
    if (e->head.finish.reason <= FINISH_NONE || e->head.finish.reason > FINISH_ERROR)
        return broken(ret_rule, "finish-reason");
    if (stop < -1 || stop >= (int32_t)record_head(&r->record)->n_stops)
        return broken(ret_rule, "stop-index");
    if (r->end == END_NONE && e->head.finish.n_tokens != choice_n_ids(c))
        return broken(ret_rule, "finish-tokens");
    c->finished = true;
    c->reason = (enum finish_reason)e->head.finish.reason;
    c->stop_index = stop;
    return ST_OK;
}

static enum status on_ids(struct broker *b, struct worker *w, uint32_t request, const struct link_event *e,
                          const char **ret_rule)
{
    struct request *r = &b->requests.list[request];
    struct choice *c = &r->choices[0];
    uint32_t n = (uint32_t)(e->payload.n / 4);

    (void)w;
    if (r->kind != WORK_TOKENIZE)
        return broken(ret_rule, "ids-unasked");
    if (e->head.ids.total > PROMPT_BYTES_MAX || (c->ids.n > 0 && e->head.ids.total != r->ids_total))
        return broken(ret_rule, "ids-total");
    if (r->end != END_NONE)
        return ST_OK;
    if (e->head.ids.first != choice_n_ids(c) || n > e->head.ids.total - e->head.ids.first)
        return broken(ret_rule, "ids-order");
    r->ids_total = e->head.ids.total;
    if (r->ids_total > TOKENIZE_IDS_MAX) {
        ending_errorf(b, request, ERR_LIMIT_EXCEEDED, "text", "the text has %" PRIu32 " tokens, an answer holds %d", r->ids_total,
                      TOKENIZE_IDS_MAX);
        return ST_OK;
    }
    if (requests_append(&b->requests, &c->ids, e->payload.at, e->payload.n) != ST_OK)
        return out_of_memory(b, request);
    return ST_OK;
}

static enum status on_done(struct broker *b, struct worker *w, uint32_t request, const struct link_event *e,
                           const char **ret_rule)
{
    struct request *r = &b->requests.list[request];

    (void)w;
    if (r->end == END_NONE) {
        if (r->kind == WORK_GENERATE ? !request_finished(r) : choice_n_ids(&r->choices[0]) != r->ids_total)
            return broken(ret_rule, "done-before-the-end");
        r->prefill_ns = e->head.done.prefill_ns;
        r->preemptions += e->head.done.preemptions;
        b->accounts.list[r->account].n_preemptions += e->head.done.preemptions;
        if (r->numerics_id[0] == '\0')
            memcpy(r->numerics_id, w->card.numerics_id, sizeof(r->numerics_id));
        ending_done(b, request);
    }
    ending_left_worker(b, request, true);
    return ST_OK;
}

static enum status on_error(struct broker *b, struct worker *w, uint32_t request, const struct link_event *e,
                            const char **ret_rule)
{
    struct request *r = &b->requests.list[request];
    uint32_t code = e->head.error.code, param_bytes = e->head.error.param_bytes;
    struct span payload = e->payload;

    (void)w;
    if (code == ERR_NONE || code >= ERR_COUNT)
        return broken(ret_rule, "error-code");
    if (param_bytes > payload.n || !utf8_valid(span_of(payload.at, param_bytes)) ||
        !utf8_valid(span_of(payload.at + param_bytes, payload.n - param_bytes)))
        return broken(ret_rule, "error-text");
    if (r->end == END_NONE) {
        char param[ERROR_PARAM_BYTES];
        struct error error;
        size_t n = param_bytes < sizeof(param) - 1 ? param_bytes : 0; /* a field of ours is never so long */

        memcpy(param, payload.at, n);
        param[n] = '\0';
        error_set(&error, (enum error_code)code, param, "%.*s", (int)(payload.n - param_bytes),
                  (const char *)payload.at + param_bytes);
        ending_error(b, request, &error, 0);
    }
    ending_left_worker(b, request, true);
    return ST_OK;
}

/* The card counts from READY on; before that nothing of the worker has been believed. */
static enum status on_ready(struct broker *b, struct worker *w, bool ready, const char **ret_rule)
{
    struct region_card card;

    if (w->state != WORKER_STARTING)
        return broken(ret_rule, "ready-twice");
    if (worker_link_card(&w->link, &card) != ST_OK)
        return broken(ret_rule, "card-text");
    w->card = card;
    if (!ready) {
        memcpy(w->error, card.error, sizeof(w->error));
        if (w->error[0] == '\0')
            memcpy(w->error, "the worker gave no reason", sizeof("the worker gave no reason"));
        return ST_OK; /* its exit follows */
    }
    if (card.ready != 1 || card.abi != BACKEND_ABI || card.max_seqs == 0 || card.max_seqs > SEQS_MAX ||
        card.context_tokens == 0 || card.context_tokens > CONTEXT_TOKENS_MAX || card.n_vocab == 0 || card.numerics_id[0] == '\0')
        return broken(ret_rule, "card");
    if (strcmp(card.build_id, version_build_id()) != 0)
        log_warn("builds_differ", "slot=%" PRIu32 " broker=%s worker=%.64s", w->slot, version_build_id(), card.build_id);
    supervisor_ready(w, b->now_ns);
    router_forget(b->router, w->slot);
    char device[2 * sizeof(card.device)];
    log_info("worker_ready", "slot=%" PRIu32 " life=%" PRIu32 " device=%s model=%s blocks=%" PRIu32 " threads=%" PRIu32, w->slot,
             w->life, log_quote(device, sizeof(device), card.device), b->models[w->model].name, card.n_blocks, card.n_threads);
    return ST_OK;
}

static event_handler *const handlers[] = {
    [EVENT_STARTED] = on_started, [EVENT_TOKEN] = on_token, [EVENT_TEXT] = on_text, [EVENT_FINISH] = on_finish,
    [EVENT_DONE] = on_done,       [EVENT_ERROR] = on_error, [EVENT_IDS] = on_ids,
};

static enum status take_one(struct broker *b, struct worker *w, const struct link_event *e, const char **ret_rule)
{
    if (e->head.type == EVENT_READY || e->head.type == EVENT_FAILED)
        return on_ready(b, w, e->head.type == EVENT_READY, ret_rule);
    if (w->state == WORKER_STARTING)
        return broken(ret_rule, "event-before-ready");
    if (e->request == LINK_NO_REQUEST)
        return ST_OK; /* of a request that is over */
    return handlers[e->head.type](b, w, e->request, e, ret_rule);
}

enum status events_take(struct broker *b, struct worker *w, uint32_t budget)
{
    struct link_event e;
    const char *rule = "ring";

    for (uint32_t n = 0; n < budget; n++) {
        enum status st = worker_link_next(&w->link, &e);
        if (st == ST_AGAIN)
            return st;
        if (st == ST_OK)
            st = take_one(b, w, &e, &rule);
        if (st != ST_OK) {
            log_error("worker_broke_rule", "slot=%" PRIu32 " life=%" PRIu32 " rule=%s", w->slot, w->life, rule);
            return ST_CORRUPT;
        }
    }
    return ST_OK;
}
