/* worker.c - see worker.h.  The card and the statistics are in worker_report.c.
 *
 * Nothing is lost on a full event ring: worst-case slots are kept for every request's first and last word, a plan is made with
 * what is left, and everything long goes in pieces.  So a broker that drains slowly slows its worker down and no more. */
#include "worker_internal.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "clock.h"
#include "fault.h"
#include "inbox.h"
#include "log.h"

enum {
    RESERVED_SLOTS = REGION_SLOTS * OUTBOX_SLOTS_A_REQUEST + 2,
    IDLE_SLEEP_MS = 100,  /* the heartbeat of an idle worker */
    STALLED_SLEEP_MS = 2, /* nobody rings when the ring is drained */
    TOKENIZE_WAIT_NS_MAX = 2000000,
    TOKENIZE_WAIT_SHARE = 8, /* of the last step */
};

static enum status add_store(struct worker *w, struct host_store *store)
{
    const struct block_mover_options mo = { .store = store,
                                            .api = w->engine->choice.api,
                                            .backend = w->engine->backend,
                                            .block_bytes = w->engine->memory.block_bytes };
    w->store = store;
    return block_mover_new(&mo, &w->mover);
}

enum status worker_new(struct engine *engine, struct region *region, const struct worker_options *opt,
                       struct worker **ret_worker)
{
    struct scheduler_options so = {
        .n_blocks = engine->sizes.n_blocks,
        .max_seqs = engine->sizes.max_seqs,
        .max_rows = engine->sizes.max_rows,
        .context_tokens = engine->sizes.context_tokens,
        .step_ns_max = opt->step_ns_max,
        .age_ns = opt->age_ns,
        .prefix_wait_ns = opt->prefix_wait_ns,
        .secret = opt->secret,
    };
    enum status st = ST_NOMEM;
    struct worker *w = calloc(1, sizeof(*w));
    if (w == NULL)
        goto out;
    w->engine = engine;
    w->region = region;
    w->tokenize_wait_ns = opt->tokenize_wait_ns;
    w->outbox = (struct outbox){
        .ring = &region->events,
        .bell = &region->event_bell,
        .tokenizer = engine->tokenizer,
    };
    if (opt->store != NULL) {
        st = add_store(w, opt->store);
        if (st != ST_OK)
            goto out;
        so.shelf = block_mover_shelf(w->mover);
    }
    st = scheduler_new(&so, &w->scheduler);
    if (st != ST_OK)
        goto out;
    st = preparer_new(&engine->limits, &w->preparer);
    if (st != ST_OK)
        goto out;
    *ret_worker = w;
    w = NULL;
out:
    worker_free(w);
    return st;
}

void worker_free(struct worker *w)
{
    if (w == NULL)
        return;
    for (uint32_t i = 0; i < REGION_SLOTS; i++)
        if (w->slots[i].stage != STAGE_PREPARING) /* those are the preparer's */
            request_free(w->slots[i].request);
    preparer_free(w->preparer);
    scheduler_free(w->scheduler);
    block_mover_free(w->mover);
    free(w);
}

static struct outbox_to to_request(const struct request *r)
{
    return (struct outbox_to){ r->slot, r->generation, 0 };
}

static struct outbox_to to_choice(const struct choice *c)
{
    return (struct outbox_to){ c->request->slot, c->request->generation, c->seq.choice };
}

/* --- the end of a request ---------------------------------------------------------------------- */

static void leave(struct worker *w, struct request *r)
{
    for (uint32_t i = 0; r->choices != NULL && i < r->head.n_choices; i++)
        if (r->choices[i].seq.state != SEQUENCE_NEW)
            scheduler_end(w->scheduler, &r->choices[i].seq);
    w->slots[r->slot] = (struct slot){ 0 };
    w->n_requests--;
    w->totals.requests_ended++;
}

static void end_with_error(struct worker *w, struct request *r, const struct error *err)
{
    struct error copy = *err; /* often r's own */
    leave(w, r);
    outbox_error(&w->outbox, to_request(r), &copy);
    request_free(r);
}

static void end_with_code(struct worker *w, struct request *r, enum error_code code)
{
    struct error err;
    error_set(&err, code, "", code == ERR_CANCELLED ? "cancelled" : "the deadline passed before the answer was complete");
    end_with_error(w, r, &err);
}

static void end_well(struct worker *w, struct request *r)
{
    struct outbox_usage u = { .completion_tokens = r->n_completion_tokens };
    leave(w, r);
    for (uint32_t i = 0; r->choices != NULL && i < r->head.n_choices; i++) {
        const struct sequence *q = &r->choices[i].seq;
        u.preemptions += q->n_preemptions;
        if (q->leader == NULL && q->was_admitted) {
            u.cached_tokens = q->n_cached;
            u.prefill_ns = r->first_token_ns > q->admitted_ns ? r->first_token_ns - q->admitted_ns : 0;
        }
    }
    outbox_done(&w->outbox, to_request(r), &u);
    request_free(r);
}

/* --- requests on their way in ------------------------------------------------------------------ */

/* How long the next plan may wait for the tokenizer: who is not in it waits for a whole step. */
static uint64_t tokenize_wait_ns(const struct worker *w)
{
    uint64_t share_ns = w->last_step_ns / TOKENIZE_WAIT_SHARE;

    if (w->tokenize_wait_ns != 0)
        return w->tokenize_wait_ns;
    return share_ns < TOKENIZE_WAIT_NS_MAX ? share_ns : TOKENIZE_WAIT_NS_MAX;
}

static enum status take_messages(struct worker *w)
{
    bool interactive = false;
    for (;;) {
        enum inbox_kind kind;
        struct request *r = NULL;
        uint64_t session = 0;
        enum status st = inbox_next(w->region, &w->engine->limits, &kind, &r, &session);
        w->no_memory = st == ST_NOMEM;
        if (st == ST_AGAIN || st == ST_NOMEM) /* no memory: it stays in the ring until there is some */
            break;
        if (st != ST_OK)
            return st;
        if (kind == INBOX_DRAIN) {
            w->draining = true;
            continue;
        }
        if (kind == INBOX_SESSION_END) {
            scheduler_session_end(w->scheduler, session);
            continue;
        }
        if (w->slots[r->slot].request != NULL) {
            log_error("request_ring_broken", "reason=slot_in_use slot=%u generation=%u", r->slot, r->generation);
            request_free(r);
            return ST_CORRUPT;
        }
        w->slots[r->slot] = (struct slot){ .request = r, .stage = STAGE_PREPARING, .generation = r->generation };
        w->slots[r->slot].deadline_ns = r->head.deadline_ns;
        w->n_requests++;
        w->totals.requests_started++;
        worker_trace_taken(w, r);
        interactive = interactive || (r->head.kind == WORK_GENERATE && (r->head.flags & WORK_INTERACTIVE) != 0);
        preparer_give(w->preparer, r);
    }
    if (interactive)
        preparer_wait_short(w->preparer, tokenize_wait_ns(w));
    return ST_OK;
}

static bool was_begun_elsewhere(const struct request *r)
{
    return r->head.n_resume > 0;
}

static void say_started(struct worker *w, struct request *r, uint32_t n_cached)
{
    struct slot *s = &w->slots[r->slot];
    if (!s->started)
        outbox_started(&w->outbox, to_request(r), r->n_prompt, n_cached, r->tokenize_ns);
    s->started = true;
}

static void take_prepared(struct worker *w)
{
    struct request *r;
    while ((r = preparer_take(w->preparer)) != NULL) {
        struct slot *s = &w->slots[r->slot];
        assert(s->request == r && s->stage == STAGE_PREPARING);
        s->stage = STAGE_RELEASING;
        worker_trace_prepared(w, r);
        if (s->end_code != ERR_NONE)
            end_with_code(w, r, s->end_code);
        else if (r->error.code != ERR_NONE)
            end_with_error(w, r, &r->error);
        else if (was_begun_elsewhere(r))
            say_started(w, r, 0);
    }
}

/* Slots that may be filled with what is long; some are left for the tokens of a step. */
static uint32_t spare_slots(struct worker *w)
{
    uint32_t room = outbox_room(&w->outbox), kept = RESERVED_SLOTS + EVENT_RING_SLOTS / 4;
    return room > kept ? room - kept : 0;
}

/* Send text that the client is still owed for tokens of another worker.  True: all of it is out. */
static bool release_pending(struct worker *w, struct choice *c)
{
    while (c->n_pending_sent < c->n_pending) {
        if (spare_slots(w) < 2 * EVENT_SLOTS_MAX)
            return false;
        uint32_t n = c->n_pending - c->n_pending_sent;
        struct span left = span_of(c->pending + c->n_pending_sent, n < OUTBOX_PIECE_BYTES_MAX ? n : OUTBOX_PIECE_BYTES_MAX);
        if (n > OUTBOX_PIECE_BYTES_MAX)
            left.n = utf8_valid_prefix(left);
        outbox_text(&w->outbox, to_choice(c), c->n_before, left);
        c->n_pending_sent += (uint32_t)left.n;
    }
    return true;
}

static void say_finished(struct worker *w, struct choice *c)
{
    outbox_finish(&w->outbox, to_choice(c), c->answer.finish, sequence_index(&c->seq), c->answer.stop_index);
    c->over = true;
}

/* Give the sequences to the scheduler. */
static void schedule(struct worker *w, struct request *r, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->head.n_choices; i++) {
        struct choice *c = &r->choices[i];
        struct error err;
        c->seq.session = i == 0 ? r->session : 0; /* the next turn goes on from one of the answers at most */
        if (c->over)
            continue;
        if (c->answer.finish != FINISH_NONE)
            say_finished(w, c);
        else if (scheduler_add(w->scheduler, &c->seq, now_ns, &err) != ST_OK) {
            end_with_error(w, r, &err);
            return;
        }
    }
    w->slots[r->slot].stage = STAGE_SCHEDULED;
    if (request_is_over(r))
        end_well(w, r);
}

static bool release_ids(struct worker *w, struct request *r)
{
    const uint32_t most = OUTBOX_PIECE_BYTES_MAX / 4;
    do {
        if (spare_slots(w) < 2 * EVENT_SLOTS_MAX)
            return false;
        uint32_t n = r->n_ids - r->n_ids_sent < most ? r->n_ids - r->n_ids_sent : most;
        outbox_ids(&w->outbox, to_request(r), r->ids + r->n_ids_sent, n, r->n_ids_sent, r->n_ids);
        r->n_ids_sent += n;
    } while (r->n_ids_sent < r->n_ids);
    return true;
}

static void release(struct worker *w, struct request *r, uint64_t now_ns)
{
    if (r->head.kind == WORK_TOKENIZE) {
        if (release_ids(w, r))
            end_well(w, r);
        return;
    }
    for (uint32_t i = 0; i < r->head.n_choices; i++)
        if (!release_pending(w, &r->choices[i]))
            return;
    if (spare_slots(w) >= r->head.n_choices)
        schedule(w, r, now_ns);
}

/* --- every pass --------------------------------------------------------------------------------- */

static void look_at_slot(struct worker *w, struct slot *s, uint32_t at, uint64_t now_ns)
{
    struct request *r = s->request;
    uint32_t flags = inbox_flags(w->region, at, s->generation);
    enum error_code code = (flags & SLOT_CANCEL) != 0                                ? ERR_CANCELLED
                           : s->deadline_ns != 0 && now_ns >= s->deadline_ns ? ERR_DEADLINE_EXCEEDED
                                                                                      : ERR_NONE;
    if (s->stage == STAGE_PREPARING) {
        if (s->end_code == ERR_NONE)
            s->end_code = code; /* acted on when the tokenizer gives it back */
        return;
    }
    if (code != ERR_NONE) {
        end_with_code(w, r, code);
        return;
    }
    bool paused = (flags & SLOT_PAUSE) != 0;
    for (uint32_t i = 0; r->choices != NULL && i < r->head.n_choices; i++)
        r->choices[i].seq.paused = paused;
    if (s->stage == STAGE_RELEASING && !paused) {
        release(w, r, now_ns);
        w->held_back = w->held_back || (s->request != NULL && s->stage == STAGE_RELEASING);
    }
}

static void look_at_slots(struct worker *w, uint64_t now_ns)
{
    uint32_t n_left = w->n_requests;
    w->held_back = false;
    for (uint32_t i = 0; i < REGION_SLOTS && n_left > 0; i++) {
        if (w->slots[i].request == NULL)
            continue;
        n_left--;
        look_at_slot(w, &w->slots[i], i, now_ns);
    }
}

/* One sampled token of a sequence goes out, with all that follows from it. */
static void deliver(struct worker *w, struct sequence *q, const struct step_result *result, uint64_t now_ns)
{
    struct choice *c = q->owner;
    struct request *r = c->request;
    uint8_t text[ANSWER_TEXT_MAX];
    uint32_t index = sequence_index(q);
    const struct sampling *s = &r->head.sampling;

    if (r->first_token_ns == 0)
        r->first_token_ns = now_ns;
    r->n_completion_tokens++;
    worker_trace_token(w, r, now_ns);
    outbox_token(&w->outbox, to_choice(c), index, result, s->logprobs || s->n_logprobs > 0);
    size_t n = answer_push(&c->answer, result->token, q->n_tokens + 1 == q->tokens_max, text);
    outbox_text(&w->outbox, to_choice(c), index + 1, span_of(text, n));
    request_count_token(c, result->token);
    if (c->answer.finish == FINISH_NONE) {
        scheduler_append(w->scheduler, q, result->token);
        return;
    }
    outbox_finish(&w->outbox, to_choice(c), c->answer.finish, index + 1, c->answer.stop_index);
    c->over = true;
    scheduler_end(w->scheduler, q);
    if (request_is_over(r))
        end_well(w, r);
}

/* Who is in its first plan has started: what the cache held of it is known now. */
static void say_who_started(struct worker *w, const struct scheduler_plan *plan)
{
    for (uint32_t i = 0; i < plan->plan.n_entries; i++) {
        struct choice *c = plan->sequences[i]->owner;
        say_started(w, c->request, plan->sequences[i]->n_cached);
    }
}

static enum worker_state step(struct worker *w)
{
    uint64_t began_ns = clock_now_ns();
    uint32_t room = outbox_room(&w->outbox);
    uint32_t slots = room > RESERVED_SLOTS ? room - RESERVED_SLOTS : 0;
    if (w->mover != NULL && block_mover_begin_step(w->mover) != ST_OK)
        return WORKER_BROKEN;
    const struct scheduler_plan *plan = scheduler_plan(w->scheduler, began_ns, slots);
    uint32_t n = plan->plan.n_entries;

    if (n > 0) {
        say_who_started(w, plan);
        worker_trace_planned(w, plan);
        outbox_flush(&w->outbox);
        worker_report_step(w, began_ns);
    }
    if (n > 0)
        FAULT("worker.step_begin");
    enum status st = engine_step(w->engine, plan, w->results);
    if (n > 0 && FAULT_FAILS("worker.device"))
        st = ST_SYSTEM;
    if (st != ST_OK) {
        log_error("step_failed", "status=%d entries=%u rows=%u", (int)st, n, plan->plan.n_rows);
        return WORKER_BROKEN;
    }
    uint64_t now_ns = clock_now_ns();
    scheduler_step_done(w->scheduler, now_ns - began_ns);
    if (n == 0) {
        struct scheduler_levels l = scheduler_levels(w->scheduler);
        if (plan->loading)
            return WORKER_BUSY;
        return w->held_back || (l.n_running > 0 && slots < EVENT_SLOTS_MAX) ? WORKER_STALLED : WORKER_IDLE;
    }
    FAULT("worker.step_end");
    worker_trace_step(w, plan, began_ns, now_ns);
    for (uint32_t i = 0; i < n; i++)
        if (plan->plan.entries[i].want == WANT_TOKEN)
            deliver(w, plan->sequences[i], &w->results[i], now_ns);
    FAULT("worker.delivered");
    w->totals.steps++;
    w->totals.step_ns += now_ns - began_ns;
    w->last_step_ns = now_ns - began_ns;
    worker_report_batch(w, n, now_ns - began_ns);
    return WORKER_BUSY;
}

enum worker_state worker_pass(struct worker *w)
{
    enum worker_state state = WORKER_BROKEN;
    if (take_messages(w) == ST_OK) {
        take_prepared(w);
        look_at_slots(w, clock_now_ns());
        state = step(w);
    }
    outbox_flush(&w->outbox);
    if (state != WORKER_BROKEN && scheduler_save_some(w->scheduler) && state == WORKER_IDLE)
        state = WORKER_BUSY; /* nothing else to do: fill the store */
    worker_report(w, clock_now_ns());
    if (outbox_is_broken(&w->outbox))
        state = WORKER_BROKEN;
    if (state != WORKER_BROKEN && w->draining && w->n_requests == 0)
        state = WORKER_DRAINED;
    return state;
}

/* Milliseconds until the next deadline, at most max_ms. */
static int until_deadline(const struct worker *w, int max_ms)
{
    uint64_t now_ns = clock_now_ns();
    int ms = max_ms;
    for (uint32_t i = 0; i < REGION_SLOTS; i++) {
        uint64_t at = w->slots[i].request != NULL ? w->slots[i].deadline_ns : 0;
        if (at == 0 || at >= now_ns + (uint64_t)ms * 1000000)
            continue;
        ms = at > now_ns ? (int)((at - now_ns) / 1000000) + 1 : 0;
    }
    return ms;
}

static bool is_gone(int control_fd)
{
    char byte;
    ssize_t n = recv(control_fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

enum status worker_sleep(struct worker *w, enum worker_state state, int control_fd, int max_ms)
{
    struct work_message m;
    struct pollfd fds[] = {
        { .fd = w->region->request_bell.fd, .events = POLLIN },
        { .fd = preparer_fd(w->preparer), .events = POLLIN },
        { .fd = control_fd, .events = POLLIN }, /* -1 is ignored */
    };
    if (state == WORKER_BUSY)
        return control_fd >= 0 && is_gone(control_fd) ? ST_GONE : ST_OK;
    doorbell_sleep_begin(&w->region->request_bell);
    if (w->no_memory || ring_peek(&w->region->requests, &m) == ST_AGAIN) {
        int ms = state == WORKER_STALLED && max_ms > STALLED_SLEEP_MS ? STALLED_SLEEP_MS : until_deadline(w, max_ms);
        (void)!poll(fds, 3, ms); /* whatever woke it, the next pass looks at everything */
    }
    doorbell_sleep_end(&w->region->request_bell);
    return control_fd >= 0 && is_gone(control_fd) ? ST_GONE : ST_OK;
}

enum status worker_run(struct worker *w, int control_fd)
{
    for (;;) {
        enum worker_state state = worker_pass(w);
        if (state == WORKER_DRAINED)
            return ST_OK;
        if (state == WORKER_BROKEN)
            return ST_CORRUPT;
        enum status st = worker_sleep(w, state, control_fd, IDLE_SLEEP_MS);
        if (st != ST_OK)
            return st;
    }
}

uint32_t worker_n_requests(const struct worker *w)
{
    return w->n_requests;
}

const struct scheduler *worker_scheduler(const struct worker *w)
{
    return w->scheduler;
}
