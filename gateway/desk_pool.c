/* desk_pool.c - requests that the broker answers: questions, reruns of job lines, token ids, models, status, traces.
 *
 * An ask outlives its connection until the broker has ended it: the struct is the argument of libweir's callback.  Text that the
 * connection process has not fetched is kept up to ASK_BACKLOG_BYTES_MAX; a reader slower than that loses the answer, by name. */
#include "desk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "limits.h"
#include "log.h"

enum { PIECE_BYTES = 32 << 10 };

enum ask_kind {
    ASK_QUESTION, /* an answer in pieces */
    ASK_RERUN,    /* an answer in one reply */
    ASK_QUERY,    /* TOKENIZE, POOL, TRACE: one reply, and nothing to cancel */
};

struct ask {
    struct ask *next, **at; /* in the desk's list */
    struct desk *desk;
    struct conn *conn; /* NULL: nobody waits any more */
    struct op *op;
    char user[USER_NAME_BYTES];
    enum ask_kind kind;
    char trace_name[64]; /* what the broker calls it; "" until it has accepted it */
    uint64_t request;
    char *text; /* not fetched yet */
    size_t text_bytes;
    struct weir_line line;      /* RERUN */
    struct weir_answer *answer; /* likewise: what has come of it */
    bool ended;
    json_t *end;        /* how it ended well */
    struct error error; /* how it ended badly: code other than ERR_NONE */
};

static void ask_free(struct ask *a)
{
    *a->at = a->next;
    if (a->next != NULL)
        a->next->at = a->at;
    free(a->text);
    weir_line_deinit(&a->line);
    weir_answer_free(a->answer);
    json_decref(a->end);
    free(a);
}

void desk_free_asks(struct desk *d)
{
    while (d->asks != NULL)
        ask_free(d->asks);
    desk_free_counts(d);
}

/* The op lets go of its ask; the broker's end of it frees it. */
void desk_drop_ask(struct desk *d, struct op *op)
{
    struct ask *a = op->ask;

    op->ask = NULL;
    if (a == NULL)
        return;
    a->conn = NULL;
    a->op = NULL;
    if (a->ended)
        ask_free(a);
    else if (a->kind != ASK_QUERY && d->link->client != NULL)
        weir_cancel(d->link->client, a->request);
}

static void set_error(struct error *e, const struct weir_error *from)
{
    error_set(e, error_code_from_name(from->code, strlen(from->code)), from->param, "%s", from->message);
}

/* Answer a MORE that waits, if there is something to say. */
static void serve(struct ask *a)
{
    uint8_t buffer[DOOR_PACKET_BYTES - 256];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    struct op *op = a->op;
    struct conn *c = a->conn;

    if (op == NULL || !op->waiting || (a->text_bytes == 0 && !a->ended))
        return;
    if (a->text_bytes == 0 && a->error.code != ERR_NONE) {
        struct error err = a->error;
        desk_error(a->desk, c, op, &err);
        desk_stop_op(a->desk, c, op);
        return;
    }
    if (a->text_bytes > 0) { /* the end goes alone, after all text */
        size_t n = a->text_bytes < PIECE_BYTES ? a->text_bytes : PIECE_BYTES;
        while (n > 1 && n < a->text_bytes && ((unsigned char)a->text[n] & 0xc0) == 0x80)
            n--; /* whole characters: a control character in two halves would not be seen as one */
        door_put_u32(&w, 0);
        door_put_str(&w, span_of(a->text, n));
        memmove(a->text, a->text + n, a->text_bytes - n);
        a->text_bytes -= n;
        desk_reply(a->desk, c, op, &w, -1);
        return;
    }
    door_put_u32(&w, 1);
    door_put_str(&w, span_of("", 0));
    desk_reply_json(a->desk, c, op, &w, json_incref(a->end));
    desk_stop_op(a->desk, c, op);
}

/* The reply of an ask that has but one. */
static void serve_whole(struct ask *a)
{
    struct op *op = a->op;
    struct conn *c = a->conn;

    if (op == NULL)
        return;
    if (a->error.code != ERR_NONE) {
        struct error err = a->error;
        desk_error(a->desk, c, op, &err);
    } else {
        desk_reply_json(a->desk, c, op, NULL, json_incref(a->end));
    }
    desk_stop_op(a->desk, c, op);
}

static void add_text(struct ask *a, const struct weir_event *event)
{
    char *text;

    if (event->text_bytes == 0 || event->choice != 0 || a->conn == NULL)
        return;
    if (a->text_bytes + event->text_bytes > ASK_BACKLOG_BYTES_MAX) {
        error_set(&a->error, ERR_SLOW_READER, NULL, "the answer was not read: %zu bytes wait", a->text_bytes);
        weir_cancel(a->desk->link->client, a->request);
        return;
    }
    text = realloc(a->text, a->text_bytes + event->text_bytes);
    if (text == NULL) {
        error_set(&a->error, ERR_INTERNAL, NULL, "out of memory");
        weir_cancel(a->desk->link->client, a->request);
        return;
    }
    memcpy(text + a->text_bytes, event->text, event->text_bytes);
    a->text = text;
    a->text_bytes += event->text_bytes;
}

static json_t *end_object(const struct weir_event *e, const char *trace_name)
{
    return json_pack("{ss ss s{sI sI sI} s{sf sf sf sf} sI ss ss}", "finish_reason",
                     weir_finish_name(e->finish[0]), "request", trace_name, "usage", "prompt_tokens",
                     (json_int_t)e->usage.prompt_tokens, "cached_tokens", (json_int_t)e->usage.cached_tokens,
                     "completion_tokens", (json_int_t)e->usage.completion_tokens, "timings", "queue_ms",
                     e->timings.queue_ms, "prefill_ms", e->timings.prefill_ms, "first_token_ms",
                     e->timings.first_token_ms, "total_ms", e->timings.total_ms, "worker",
                     (json_int_t)e->worker, "model", e->model != NULL ? e->model : "", "system_fingerprint",
                     e->system_fingerprint != NULL ? e->system_fingerprint : "");
}

static json_t *ids_object(const struct weir_event *e)
{
    json_t *ids = json_array();

    for (size_t i = 0; i < e->n_ids; i++)
        json_array_append_new(ids, json_integer(e->ids[i]));
    return json_pack("{so}", "ids", ids);
}

/* Who else uses the pool is nobody's business: of the users only the one who asks. */
static void keep_own(json_t *status, const char *user)
{
    json_t *users = json_object_get(status, "users");

    for (size_t i = json_array_size(users); i > 0; i--) {
        const char *name = json_string_value(json_object_get(json_array_get(users, i - 1), "name"));
        if (name == NULL || strcmp(name, user) != 0)
            json_array_remove(users, i - 1);
    }
}

static void count_question(struct ask *a, const struct weir_event *e)
{
    const struct usage more = { .questions = 1,
                                .prompt_tokens = e->usage.prompt_tokens,
                                .cached_tokens = e->usage.cached_tokens,
                                .completion_tokens = e->usage.completion_tokens };

    if (job_store_add_usage(a->desk->store, a->user, usage_day(a->desk->real_ms), &more) != ST_OK)
        log_error("usage", "user=%s what=not_counted", a->user);
}

/* An event of a rerun: the answer is collected, and becomes a record as that of a job's line. */
static void collect(struct ask *a, const struct weir_event *event)
{
    struct weir_error error;
    bool last = event->type == WEIR_DONE || event->type == WEIR_ERROR;

    if (a->error.code == ERR_NONE && weir_collect(&a->answer, event, &error) == WEIR_FAILED) {
        set_error(&a->error, &error);
        if (!last)
            weir_cancel(a->desk->link->client, a->request);
    }
    a->ended = last;
    if (!last || a->error.code != ERR_NONE)
        return;
    count_question(a, event);
    char *text = weir_line_output(&a->line, a->answer, "again", 0, NULL);
    a->end = text != NULL ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
    free(text);
}

/* An event of anything else. */
static void take(struct ask *a, const struct weir_event *event)
{
    switch (event->type) {
    case WEIR_ACCEPTED:
        if (event->trace_name != NULL)
            snprintf(a->trace_name, sizeof a->trace_name, "%s", event->trace_name);
        break;
    case WEIR_PROGRESS:
        break;
    case WEIR_TEXT:
        add_text(a, event);
        break;
    case WEIR_DONE:
        count_question(a, event);
        a->end = end_object(event, a->trace_name);
        a->ended = true;
        break;
    case WEIR_IDS:
        a->end = ids_object(event);
        a->ended = true;
        break;
    case WEIR_JSON:
        a->end = json_loadb(event->text, event->text_bytes, 0, NULL);
        keep_own(a->end, a->user);
        a->ended = true;
        break;
    case WEIR_ERROR:
        if (a->error.code == ERR_NONE)
            set_error(&a->error, event->error);
        a->ended = true;
        break;
    }
}

static void on_event(const struct weir_event *event, void *arg)
{
    struct ask *a = arg;

    if (a->kind == ASK_RERUN)
        collect(a, event);
    else
        take(a, event);
    if (a->ended && a->end == NULL && a->error.code == ERR_NONE)
        error_set(&a->error, ERR_INTERNAL, NULL, "out of memory");
    if (a->op == NULL) {
        if (a->ended)
            ask_free(a);
    } else if (a->kind == ASK_QUESTION) {
        serve(a);
    } else if (a->ended) {
        serve_whole(a);
    }
}

static struct ask *ask_new(struct desk *d, struct conn *c, struct op *op, enum ask_kind kind)
{
    struct error err;
    struct ask *a = NULL;

    if (!d->link->up) {
        error_set(&err, ERR_UNREACHABLE, NULL,
                  "the pool does not answer; jobs wait for it, questions cannot");
        desk_error(d, c, op, &err);
        return NULL;
    }
    a = calloc(1, sizeof *a);
    if (a == NULL) {
        error_set(&err, ERR_INTERNAL, NULL, "out of memory");
        desk_error(d, c, op, &err);
        return NULL;
    }
    *a = (struct ask){ .desk = d, .conn = c, .op = op, .kind = kind };
    memcpy(a->user, c->user, sizeof a->user);
    a->next = d->asks;
    a->at = &d->asks;
    if (a->next != NULL)
        a->next->at = &a->next;
    d->asks = a;
    op->ask = a;
    op->kind = kind == ASK_QUESTION ? OP_ASK : OP_QUERY;
    return a;
}

/* libweir would not take it. */
static void refused(struct desk *d, struct conn *c, struct op *op, int rc, const struct weir_error *from)
{
    struct error err;

    if (rc == WEIR_AGAIN)
        error_set(&err, ERR_BUSY, NULL, "too many requests are under way; try again in a moment");
    else
        set_error(&err, from);
    op->ask->ended = true;
    desk_error(d, c, op, &err);
    desk_stop_op(d, c, op);
}

/* The request that fd holds, in the form of a line of a job, so that a question may have every parameter a line may.  false: *ret_error. */
static bool read_request(int fd, struct weir_line *ret_line, struct error *ret_error)
{
    struct weir_error error = { 0 };
    char *text = NULL;
    size_t bytes = 0;
    enum status st = door_memfd_read(fd, LINE_BYTES_MAX, &text, &bytes);
    bool ok = st == ST_OK && weir_line_parse(text, bytes, 1, ret_line, &error) == WEIR_OK;

    if (st == ST_LIMIT)
        error_set(ret_error, ERR_LIMIT_EXCEEDED, NULL, "the request is over the limit of %d bytes", LINE_BYTES_MAX);
    else if (st != ST_OK)
        error_set(ret_error, ERR_INTERNAL, NULL, "the request cannot be read");
    else if (!ok)
        set_error(ret_error, &error);
    free(text);
    return ok;
}

/* The request that came with a message, if this user may use the pool; else the answer is sent, and false. */
static bool take_request(struct desk *d, struct conn *c, struct op *op, int fd, struct weir_line *ret_line)
{
    struct error err;

    if (read_request(fd, ret_line, &err) && desk_may_use(d, c->user, &err))
        return true;
    desk_error(d, c, op, &err);
    weir_line_deinit(ret_line);
    return false;
}

void desk_end_session(struct desk *d, struct conn *c, size_t op)
{
    struct weir_error error;

    if (c->sessions[op][0] != '\0' && d->link->client != NULL)
        (void)weir_session_end_for(d->link->client, c->sessions[op], c->user, &error); /* if it does not arrive, time ends it */
    c->sessions[op][0] = '\0';
}

/* The name of the op's session, which is none or a new one if that is what was asked for; NULL: none. */
static const char *session_of(struct desk *d, struct conn *c, const struct op *op, enum door_session which)
{
    size_t i = (size_t)(op - c->ops);
    uint64_t number;

    if (which != DOOR_SESSION_GO_ON)
        desk_end_session(d, c, i);
    if (which == DOOR_SESSION_NEW && getrandom(&number, sizeof number, 0) == (ssize_t)sizeof number)
        snprintf(c->sessions[i], sizeof c->sessions[i], "ssh-%016llx", (unsigned long long)number);
    return c->sessions[i][0] != '\0' ? c->sessions[i] : NULL;
}

void desk_on_ask(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct weir_line line = { 0 };
    struct weir_error error = { 0 };
    uint32_t session = door_get_u32(r);

    if (r->failed || session > DOOR_SESSION_NEW) {
        desk_break(d, c, "ask");
        return;
    }
    if (!take_request(d, c, op, fd, &line))
        return;
    struct ask *a = ask_new(d, c, op, ASK_QUESTION);
    if (a != NULL) {
        line.request.batch = false;
        line.request.on_behalf_of = c->user;
        line.request.session = session_of(d, c, op, (enum door_session)session);
        int rc = weir_submit(d->link->client, &line.request, on_event, a, &a->request, &error);
        if (rc == WEIR_OK)
            desk_reply(d, c, op, NULL, -1);
        else
            refused(d, c, op, rc, &error);
    }
    weir_line_deinit(&line);
}

void desk_on_more(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    (void)d, (void)c, (void)r, (void)fd;
    serve(op->ask);
}

void desk_on_rerun(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct span model = door_get_str(r);
    uint64_t seed = door_get_u64(r);
    uint32_t max_tokens = door_get_u32(r);
    struct weir_line line = { 0 };
    struct weir_error error = { 0 };
    char name[NAME_BYTES_MAX];

    if (r->failed || !desk_copy(model, name, sizeof name)) {
        desk_break(d, c, "rerun");
        return;
    }
    if (!take_request(d, c, op, fd, &line))
        return;
    struct ask *a = ask_new(d, c, op, ASK_RERUN);
    if (a == NULL) {
        weir_line_deinit(&line);
        return;
    }
    a->line = line;
    struct weir_request *q = &a->line.request;
    q->whole = true;
    q->on_behalf_of = c->user;
    q->model = name;
    q->seed = &seed;
    q->max_tokens = max_tokens;
    q->deadline_ms = 0;
    int rc = weir_submit(d->link->client, q, on_event, a, &a->request, &error);
    if (rc != WEIR_OK)
        refused(d, c, op, rc, &error);
}

void desk_on_tokenize(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct span name = door_get_str(r);
    bool special = door_get_u32(r) != 0;
    struct weir_error error = { 0 };
    char model[NAME_BYTES_MAX], *text = NULL;
    size_t bytes = 0;

    if (r->failed || !desk_copy(name, model, sizeof model) ||
        door_memfd_read(fd, DOOR_ASK_BYTES_MAX, &text, &bytes) != ST_OK) {
        desk_break(d, c, "tokenize");
        return;
    }
    struct ask *a = ask_new(d, c, op, ASK_QUERY);
    if (a != NULL) {
        int rc = weir_tokenize_async(d->link->client, model[0] != '\0' ? model : NULL, text, bytes, special,
                                     on_event, a, &error);
        if (rc != WEIR_OK)
            refused(d, c, op, rc, &error);
    }
    free(text);
}

void desk_on_pool(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    uint32_t what = door_get_u32(r);
    struct weir_error error = { 0 };

    (void)fd;
    if (r->failed || what > DOOR_POOL_STATUS) {
        desk_break(d, c, "pool");
        return;
    }
    struct ask *a = ask_new(d, c, op, ASK_QUERY);
    if (a == NULL)
        return;
    int rc = weir_query(d->link->client, what == DOOR_POOL_MODELS ? WEIR_QUERY_MODELS : WEIR_QUERY_STATUS,
                        on_event, a, &error);
    if (rc != WEIR_OK)
        refused(d, c, op, rc, &error);
}

/* The broker tells of this user's requests only, those of job lines too: it keeps them apart, because a front end asks. */
void desk_on_trace(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd)
{
    struct span name = door_get_str(r);
    struct weir_error error = { 0 };
    char request[NAME_BYTES_MAX];

    (void)fd;
    if (r->failed || !desk_copy(name, request, sizeof request)) {
        desk_break(d, c, "trace");
        return;
    }
    struct ask *a = ask_new(d, c, op, ASK_QUERY);
    if (a == NULL)
        return;
    int rc = weir_trace_for(d->link->client, request[0] != '\0' ? request : NULL, c->user, on_event, a, &error);
    if (rc != WEIR_OK)
        refused(d, c, op, rc, &error);
}
