/* delivery.c - what requests have received goes to their clients.
 *
 * Nothing is encoded before it can be sent: what a client does not take stays in its request as ids and bytes, and goes out later in one
 * message instead of many.  So a slow reader costs its own backlog and no more.  When that passes a limit the sequence is
 * paused in its worker; when the client takes nothing for --slow-reader-seconds, the request ends with slow_reader; after
 * as long again the connection is given up.
 *
 * A client that is gone shows itself only when something is sent to it.  So each client with a live request gets a progress message
 * every CLIENT_PROBE_MS, about its requests in turn. */
#include "broker.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "log.h"
#include "utf8.h"

enum { FULL_PEERS_MAX = 64 };
static const uint64_t ms_ns = 1000000;

static struct span out_span(const struct broker *b)
{
    return span_of(b->out.at, b->out.n);
}

/* --- answers that are no request's ------------------------------------------------------------ */

static void keep_late(struct broker *b, const struct peer *to)
{
    bool room = b->n_late < LATE_REPLIES_MAX && b->late_bytes + b->out.n <= LATE_BYTES_MAX;
    uint8_t *copy = room ? malloc(b->out.n) : NULL;

    if (copy == NULL) {
        b->n_dropped++;
        return;
    }
    memcpy(copy, b->out.at, b->out.n);
    b->late[(b->late_first + b->n_late++) % LATE_REPLIES_MAX] = (struct late_reply){ *to, copy, b->out.n, b->now_ns };
    b->late_bytes += b->out.n;
}

void delivery_reply(struct broker *b, const struct peer *to)
{
    if (endpoint_send(&b->endpoint, to, out_span(b)) == ST_AGAIN)
        keep_late(b, to);
}

void delivery_error(struct broker *b, const struct peer *to, struct span id, const struct error *error, uint32_t retry_after_ms)
{
    struct wire_error e = { .id = id, .error = *error, .retry_after_ms = retry_after_ms };

    if (wire_encode_error(&b->out, &e) == ST_OK)
        delivery_reply(b, to);
}

static bool is_among(const struct peer *peers, uint32_t n, const struct peer *p)
{
    for (uint32_t i = 0; i < n; i++)
        if (peer_equal(&peers[i], p))
            return true;
    return false;
}

/* A client that does not read keeps its answers here; only when room (LATE_REPLIES_MAX, LATE_BYTES_MAX) gets short do the ones it has left
 * longest go. */
static void send_late(struct broker *b)
{
    struct peer full[FULL_PEERS_MAX]; /* had no room in this pass: no reply is copied to be refused again */
    uint32_t n_full = 0;

    for (uint32_t n = b->n_late; n > 0; n--) {
        struct late_reply r = b->late[b->late_first];

        b->late_first = (b->late_first + 1) % LATE_REPLIES_MAX;
        b->n_late--;
        b->late_bytes -= r.n;
        bool unread = b->now_ns - r.since_ns >= b->options->slow_reader_ms * ms_ns;
        bool sent = !is_among(full, n_full, &r.to) && endpoint_send(&b->endpoint, &r.to, span_of(r.at, r.n)) != ST_AGAIN;
        if (!sent && n_full < FULL_PEERS_MAX && !is_among(full, n_full, &r.to))
            full[n_full++] = r.to;
        if (sent) {
            free(r.at);
        } else if (unread && (b->n_late >= LATE_REPLIES_MAX / 2 || b->late_bytes >= LATE_BYTES_MAX / 2)) {
            b->n_dropped++;
            free(r.at);
        } else {
            b->late[(b->late_first + b->n_late++) % LATE_REPLIES_MAX] = r; /* to the end */
            b->late_bytes += r.n;
        }
    }
}

static void tell_dropped(struct broker *b)
{
    if (b->n_dropped == 0 || b->now_ns < b->dropped_due_ns)
        return;
    log_warn("reply_dropped", "n=%" PRIu64 " late=%" PRIu32 " bytes=%" PRIu64, b->n_dropped, b->n_late, b->late_bytes);
    b->n_dropped = 0;
    b->dropped_due_ns = b->now_ns + DROPPED_MS * ms_ns;
}

/* --- one request ------------------------------------------------------------------------------ */

static bool owes(const struct request *r)
{
    return r->owes_accepted || r->owes_progress || r->end != END_NONE || (r->stream && request_backlog(r) > 0);
}

static void mark_owing(struct broker *b, const struct client *c)
{
    for (uint32_t at = c->first; at != NO_REQUEST; at = b->requests.list[at].client_next)
        if (owes(&b->requests.list[at]))
            requests_mark_dirty(&b->requests, at);
}

/* Send b->out to the request's client.  ST_OK, ST_AGAIN (it is blocked from now on), ST_GONE. */
static enum status send_out(struct broker *b, struct request *r)
{
    struct client *c = &b->clients.list[r->client];
    enum status st = FAULT_FAILS("broker.client_full") ? ST_AGAIN : endpoint_send(&b->endpoint, &c->peer, out_span(b));

    FAULT("broker.told");
    if (st == ST_OK && c->blocked_since_ns != 0) {
        c->blocked_since_ns = c->retry_ns = 0;
        mark_owing(b, c); /* they were passed over while it was blocked */
    } else if (st == ST_AGAIN) {
        if (c->blocked_since_ns == 0)
            c->blocked_since_ns = b->now_ns;
        c->retry_ns = b->now_ns + BLOCKED_RETRY_MS * ms_ns;
    }
    return st;
}

/* One piece of EVENT_TOKEN's payload; events.c has checked it. */
static const uint8_t *read_piece(const uint8_t *at, struct wire_piece *ret_piece)
{
    uint16_t bytes;

    memcpy(&ret_piece->id, at, 4);
    memcpy(&ret_piece->logprob, at + 4, 4);
    memcpy(&bytes, at + 8, 2);
    ret_piece->bytes = span_of(at + 10, bytes);
    return at + 10 + bytes;
}

struct logprobs_page {
    struct wire_token_logprobs tokens[TOKEN_MESSAGE_LOGPROBS_MAX];
    struct wire_piece top[TOKEN_MESSAGE_LOGPROBS_MAX * LOGPROBS_MAX];
};

/* The log-probabilities of the next n_ids tokens.  Gives the bytes they take in c->logprobs. */
static size_t read_logprobs(const struct choice *c, uint32_t n_ids, struct logprobs_page *page)
{
    const uint8_t *from = c->logprobs.at + c->logprobs_sent;
    size_t at = 0;
    uint32_t n_top = 0;

    for (uint32_t i = 0; i < n_ids; i++) {
        struct wire_token_logprobs *t = &page->tokens[i];
        uint32_t bytes;

        memcpy(&bytes, from + at, 4);
        const uint8_t *piece = from + at + 4, *end = piece + bytes;
        piece = read_piece(piece, &t->chosen);
        t->top = &page->top[n_top];
        t->n_top = 0;
        while (piece < end) {
            piece = read_piece(piece, &page->top[n_top++]);
            t->n_top++;
        }
        at += 4 + (size_t)bytes;
    }
    return at;
}

/* One token message of a choice: as many ids and as much text as one may carry. */
static enum status send_tokens(struct broker *b, struct request *r, uint32_t choice)
{
    static struct logprobs_page page;
    struct choice *c = &r->choices[choice];
    uint32_t n_ids = choice_n_ids(c) - c->n_sent, most = r->logprobs ? TOKEN_MESSAGE_LOGPROBS_MAX : TOKEN_MESSAGE_IDS_MAX;
    struct span text = c->text.at != NULL ? span_of(c->text.at + c->text_sent, c->text.n - c->text_sent) : (struct span){ 0 };
    size_t logprobs_bytes = 0;

    if (n_ids > most)
        n_ids = most;
    if (text.n > TOKEN_MESSAGE_TEXT_MAX)
        text.n = utf8_valid_prefix(span_of(text.at, TOKEN_MESSAGE_TEXT_MAX));
    if (n_ids < choice_n_ids(c) - c->n_sent)
        text.n = 0; /* text belongs to tokens up to the last: it comes with the last ids */
    struct wire_token t = { .id = request_id(r),
                            .choice = choice,
                            .index = c->n_sent,
                            .ids = c->ids.at != NULL ? choice_ids(c) + c->n_sent : NULL,
                            .n_ids = n_ids,
                            .text = text };
    if (r->logprobs && n_ids > 0) {
        logprobs_bytes = read_logprobs(c, n_ids, &page);
        t.logprobs = page.tokens;
    }
    enum status st = wire_encode_token(&b->out, &t);
    if (st != ST_OK)
        return st;
    st = send_out(b, r);
    if (st != ST_OK)
        return st;
    c->n_sent += n_ids;
    if (r->key != NO_KEY) { /* it may be wanted once more */
        c->text_sent += text.n;
        c->logprobs_sent += logprobs_bytes;
        return ST_OK;
    }
    requests_consume(&c->text, c->text_sent + text.n);
    requests_consume(&c->logprobs, c->logprobs_sent + logprobs_bytes);
    c->text_sent = c->logprobs_sent = 0; /* as they were, unless its key was given to another request while it ran */
    if (c->text.n == 0 && c->text.capacity > 65536)
        requests_clear(&b->requests, &c->text); /* a backlog has gone out: give the memory back */
    return ST_OK;
}

static enum status send_all_tokens(struct broker *b, struct request *r)
{
    for (uint32_t i = 0; i < r->n_choices; i++) {
        struct choice *c = &r->choices[i];

        while (choice_n_ids(c) > c->n_sent || c->text.n > c->text_sent) {
            enum status st = send_tokens(b, r, i);
            if (st != ST_OK)
                return st;
        }
    }
    return ST_OK;
}

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns && from_ns != 0 ? (double)(to_ns - from_ns) / 1e6 : 0;
}

static enum status encode_done(struct broker *b, const struct request *r)
{
    struct wire_done d = { .id = request_id(r),
                           .n_choices = r->n_choices,
                           .prompt_tokens = r->prompt_tokens,
                           .cached_tokens = r->cached_tokens,
                           .completion_tokens = request_completion_tokens(r),
                           .queue_ms = ms_between(r->arrived_ns, r->dispatched_ns),
                           .prefill_ms = (double)r->prefill_ns / 1e6,
                           .first_token_ms = ms_between(r->arrived_ns, r->first_token_ns),
                           .total_ms = ms_between(r->arrived_ns, b->now_ns),
                           .worker = r->worker >= 0 ? (uint32_t)r->worker : 0,
                           .takeovers = r->takeovers,
                           .preemptions = r->preemptions,
                           .model = span_str(b->models[r->model].name),
                           .system_fingerprint = span_str(r->numerics_id) };

    for (uint32_t i = 0; i < r->n_choices; i++)
        d.choices[i] = (struct wire_choice_end){ .reason = r->choices[i].reason,
                                                 .stop_index = r->choices[i].stop_index,
                                                 .n_tokens = choice_n_ids(&r->choices[i]) };
    return wire_encode_done(&b->out, &d);
}

static enum status send_end(struct broker *b, struct request *r)
{
    enum status st;

    if (r->end == END_ERROR) {
        struct wire_error e = { .id = request_id(r), .error = r->error, .retry_after_ms = r->retry_after_ms };

        st = wire_encode_error(&b->out, &e);
    } else if (r->kind == WORK_TOKENIZE) {
        st = wire_encode_ids(&b->out, request_id(r), choice_ids(&r->choices[0]), choice_n_ids(&r->choices[0]));
    } else {
        st = encode_done(b, r);
    }
    return st == ST_OK ? send_out(b, r) : st;
}

static enum status send_progress(struct broker *b, struct request *r, uint32_t request)
{
    bool queued = r->phase == REQUEST_QUEUED;
    uint32_t ahead = queued ? fair_queue_ahead(b->queue, request, REQUESTS_MAX) : 0;
    enum status st = wire_encode_progress(&b->out, request_id(r), !queued, ahead);

    return st == ST_OK ? send_out(b, r) : st;
}

static enum status send_accepted(struct broker *b, struct request *r)
{
    char name[40];
    int n = snprintf(name, sizeof(name), "%s-%" PRIu64, b->boot, r->number);
    enum status st = wire_encode_accepted(&b->out, request_id(r), span_of(name, (size_t)n), record_head(&r->record)->sampling.seed);

    return st == ST_OK ? send_out(b, r) : st;
}

/* All that the request owes its client, in order. */
static enum status send_owed(struct broker *b, struct request *r, uint32_t request)
{
    enum status st = ST_OK;

    if (r->owes_accepted)
        st = send_accepted(b, r);
    if (st == ST_OK)
        r->owes_accepted = false;
    if (st == ST_OK && r->owes_progress && r->end == END_NONE)
        st = send_progress(b, r, request);
    if (st == ST_OK)
        r->owes_progress = false;
    if (st == ST_OK && r->kind == WORK_GENERATE && (r->stream || r->end == END_DONE))
        st = send_all_tokens(b, r);
    if (st == ST_OK && r->end != END_NONE)
        st = send_end(b, r);
    return st;
}

/* Pause a sequence whose client does not keep up; let it go on when half has been taken. */
static void pace(struct broker *b, struct request *r)
{
    if (!request_in_worker(r) || r->end != END_NONE)
        return;
    uint64_t backlog = r->stream ? request_backlog(r) : 0; /* not a stream: nothing is to be taken yet (any more, if it was sent again) */
    if (!r->paused && backlog > CLIENT_BACKLOG_BYTES_MAX) {
        r->paused = true;
        worker_link_flag(&b->workers[r->worker].link, r->slot, SLOT_PAUSE);
    } else if (r->paused && backlog < CLIENT_BACKLOG_BYTES_MAX / 2) {
        r->paused = false;
        worker_link_flag(&b->workers[r->worker].link, r->slot, 0);
    }
}

/* False: there is no memory for a message now. */
static bool flush_one(struct broker *b, uint32_t request)
{
    struct request *r = &b->requests.list[request];
    enum status st = ST_AGAIN;

    if (r->client == CLIENT_NONE)
        return true;
    if (b->clients.list[r->client].retry_ns <= b->now_ns)
        st = send_owed(b, r, request);
    if (st == ST_GONE) {
        ending_client_gone(b, r->client);
        return true;
    }
    if (st == ST_NOMEM) {
        requests_mark_dirty(&b->requests, request);
        return false;
    }
    pace(b, r);
    if (st == ST_OK && r->end != END_NONE)
        ending_told(b, request);
    return true;
}

void delivery_flush(struct broker *b)
{
    for (uint32_t n = 0; n < REQUESTS_MAX; n++) {
        uint32_t request = requests_take_dirty(&b->requests);

        if (request == NO_REQUEST || !flush_one(b, request))
            return; /* without memory the rest waits for the next pass */
    }
}

/* --- by the clock ----------------------------------------------------------------------------- */

/* A client that takes nothing: its requests with a full backlog end; long after that, so does the connection. */
static void judge_slow(struct broker *b, uint32_t client)
{
    struct client *c = &b->clients.list[client];
    uint64_t limit_ns = b->options->slow_reader_ms * ms_ns, since_ns = b->now_ns - c->blocked_since_ns;

    if (since_ns <= limit_ns)
        return;
    if (since_ns > 2 * limit_ns) {
        log_warn("client_dropped", "uid=%u reason=slow_reader requests=%" PRIu32, (unsigned)c->uid, c->n_live);
        ending_client_gone(b, client);
        return;
    }
    for (uint32_t at = c->first; at != NO_REQUEST; at = b->requests.list[at].client_next)
        if (b->requests.list[at].end == END_NONE && request_backlog(&b->requests.list[at]) > 0)
            ending_errorf(b, at, ERR_SLOW_READER, "", "the client took nothing for %" PRIu64 " ms", b->options->slow_reader_ms);
}

static void probe(struct broker *b, uint32_t client)
{
    struct client *c = &b->clients.list[client];
    uint32_t at = c->probe != NO_REQUEST ? c->probe : c->first;
    struct request *r = &b->requests.list[at];

    c->probe_due_ns = b->now_ns + CLIENT_PROBE_MS * ms_ns;
    c->probe = r->client_next;
    if (r->owes_accepted || r->end != END_NONE)
        return; /* it carries a message of its own */
    if (send_progress(b, r, at) == ST_GONE)
        ending_client_gone(b, client);
}

void delivery_tick(struct broker *b)
{
    send_late(b);
    tell_dropped(b);
    for (uint32_t i = 0; i < CLIENTS_MAX && b->clients.n > 0; i++) {
        struct client *c = &b->clients.list[i];

        if (!c->used)
            continue;
        if (c->blocked_since_ns != 0) {
            judge_slow(b, i);
            if (!c->used || c->retry_ns > b->now_ns)
                continue;
            c->retry_ns = 0;
            mark_owing(b, c);
        }
        if (c->probe_due_ns <= b->now_ns)
            probe(b, i);
    }
}
