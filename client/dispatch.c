/* dispatch.c - one message of the broker, told to whom it concerns.
 *
 * A message about a request that is no longer open is dropped in silence: it was on its way when the request ended.  One that
 * cannot be right (a choice nobody asked for, a map that does not parse) means a broken broker, and the connection is given up:
 * an answer with a hole in it is worse than none. */
#include "client.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

static int broken(struct weir_error *err, const char *what)
{
    weir_error_format(err, ERR_UNREACHABLE, "", "the broker sent nonsense (%s): connection given up", what);
    return WEIR_FAILED;
}

/* The open request an id names; NULL when there is none (any more). */
static struct open_request *find(struct weir_client *c, struct span id)
{
    uint64_t number = 0;

    if (id.n == 0 || id.n > 20)
        return NULL;
    for (size_t i = 0; i < id.n; i++) {
        if (id.at[i] < '0' || id.at[i] > '9' || number > (UINT64_MAX - 9) / 10)
            return NULL;
        number = number * 10 + (uint64_t)(id.at[i] - '0');
    }
    struct open_request *r = &c->requests[number % c->n_slots];
    return number != 0 && r->number == number ? r : NULL;
}

static void call_back(struct weir_client *c, weir_callback *callback, void *arg,
                      const struct weir_event *event)
{
    if (callback == NULL)
        return;
    c->in_callback = true;
    callback(event, arg);
    c->in_callback = false;
}

/* The last event of r: its slot is free before the callback, which may submit again. */
static void finish(struct weir_client *c, struct open_request *r, struct weir_event *event)
{
    weir_callback *callback = r->callback;
    void *arg = r->arg;

    event->request = r->number;
    client_free_slot(c, r);
    call_back(c, callback, arg, event);
}

void client_fail_request(struct weir_client *c, struct open_request *r, const struct weir_error *why)
{
    finish(c, r, &(struct weir_event){.type = WEIR_ERROR, .error = why});
}

/* Copy text to c->text with a NUL behind it. */
static bool keep_text(struct weir_client *c, struct span text)
{
    if (text.n + 1 > c->text_capacity) {
        size_t capacity = (text.n + 1) * 2;
        char *at = realloc(c->text, capacity);
        if (at == NULL)
            return false;
        c->text = at;
        c->text_capacity = capacity;
    }
    if (text.n > 0)
        memcpy(c->text, text.at, text.n);
    c->text[text.n] = '\0';
    return true;
}

/* --- tokens ------------------------------------------------------------------------------------ */

static struct weir_token_logprob piece(const struct wire_piece *p)
{
    return (struct weir_token_logprob){
        .id = p->id, .logprob = p->logprob, .bytes = (const char *)p->bytes.at, .n_bytes = p->bytes.n};
}

/* All log-probabilities of one message in one block: n_ids chosen ones, then their alternatives. */
static struct weir_token_logprob *convert_logprobs(const struct wire_token *t)
{
    size_t n = t->n_ids;

    for (uint32_t i = 0; i < t->n_ids; i++)
        n += t->logprobs[i].n_top;
    struct weir_token_logprob *all = calloc(n + 1, sizeof(*all)), *top = all + t->n_ids;
    if (all == NULL)
        return NULL;
    for (uint32_t i = 0; i < t->n_ids; i++) {
        all[i] = piece(&t->logprobs[i].chosen);
        all[i].top = top;
        all[i].n_top = t->logprobs[i].n_top;
        for (uint32_t k = 0; k < t->logprobs[i].n_top; k++)
            *top++ = piece(&t->logprobs[i].top[k]);
    }
    return all;
}

static int on_token(struct weir_client *c, struct open_request *r, const struct wire_token *t,
                    struct weir_error *err)
{
    struct weir_token_logprob *logprobs = NULL;

    if (t->choice >= r->n_choices)
        return broken(err, "a token of a choice that was not asked for");
    if (t->logprobs != NULL && (logprobs = convert_logprobs(t)) == NULL)
        return broken(err, "too large for our memory");
    if (!keep_text(c, t->text)) {
        free(logprobs);
        return broken(err, "too large for our memory");
    }
    call_back(c, r->callback, r->arg,
              &(struct weir_event){
                  .type = WEIR_TEXT,
                  .request = r->number,
                  .choice = t->choice,
                  .index = t->index,
                  .text = c->text,
                  .text_bytes = t->text.n,
                  .ids = t->ids,
                  .n_ids = t->n_ids,
                  .logprobs = logprobs,
              });
    free(logprobs);
    return WEIR_OK;
}

/* --- ends -------------------------------------------------------------------------------------- */

static enum weir_finish finish_of(enum finish_reason reason)
{
    switch (reason) {
    case FINISH_NONE:
        return WEIR_FINISH_NONE;
    case FINISH_STOP:
        return WEIR_FINISH_STOP;
    case FINISH_LENGTH:
        return WEIR_FINISH_LENGTH;
    case FINISH_CANCELLED:
        return WEIR_FINISH_CANCELLED;
    case FINISH_ERROR:
        return WEIR_FINISH_ERROR;
    }
    return WEIR_FINISH_NONE;
}

/* Model and fingerprint as C strings, one behind the other in c->text. */
static bool keep_names(struct weir_client *c, const struct wire_done *d, const char **ret_model,
                       const char **ret_fingerprint)
{
    char both[512];
    int n = snprintf(both, sizeof(both), "%.*s%c%.*s", (int)(d->model.n < 200 ? d->model.n : 200),
                     (const char *)d->model.at, '\0',
                     (int)(d->system_fingerprint.n < 200 ? d->system_fingerprint.n : 200),
                     (const char *)d->system_fingerprint.at);

    if (n < 0 || !keep_text(c, span_of(both, (size_t)n)))
        return false;
    *ret_model = c->text;
    *ret_fingerprint = c->text + strlen(c->text) + 1;
    return true;
}

static int on_done(struct weir_client *c, struct open_request *r, const struct wire_done *d,
                   struct weir_error *err)
{
    struct weir_event e = {
        .type = WEIR_DONE,
        .n_choices = d->n_choices,
        .usage = {d->prompt_tokens, d->cached_tokens, d->completion_tokens},
        .timings = {d->queue_ms, d->prefill_ms, d->first_token_ms, d->total_ms},
        .worker = d->worker,
        .takeovers = d->takeovers,
    };

    if (d->n_choices != r->n_choices)
        return broken(err, "an end with another number of choices");
    for (uint32_t i = 0; i < d->n_choices; i++) {
        e.finish[i] = finish_of(d->choices[i].reason);
        e.stop_index[i] = d->choices[i].stop_index;
    }
    if (!keep_names(c, d, &e.model, &e.system_fingerprint))
        return broken(err, "too large for our memory");
    finish(c, r, &e);
    return WEIR_OK;
}

static int on_json(struct weir_client *c, struct open_request *r, struct span body, struct weir_error *err)
{
    char *json = NULL;

    if (wire_to_json(body, &json) != ST_OK)
        return broken(err, "a reply that is no JSON");
    finish(c, r, &(struct weir_event){.type = WEIR_JSON, .text = json, .text_bytes = strlen(json)});
    free(json);
    return WEIR_OK;
}

/* --- the connection ---------------------------------------------------------------------------- */

/* The hello: remember who it is.  Another boot id on a living connection is another broker, which knows nothing of ours. */
static int on_hello(struct weir_client *c, struct span body, struct weir_error *err)
{
    char *text = NULL;

    if (wire_to_json(body, &text) != ST_OK)
        return broken(err, "a hello that is no JSON");
    json_t *hello = json_loads(text, 0, NULL);
    const char *boot = json_string_value(json_object_get(hello, "boot"));
    char now[CLIENT_BOOT_BYTES];
    snprintf(now, sizeof(now), "%s", boot != NULL ? boot : "");
    json_decref(hello);
    free(text);

    if (c->state == CLIENT_READY && strcmp(now, c->boot) != 0) {
        weir_error_format(err, ERR_UNREACHABLE, "", "the broker has been restarted");
        return WEIR_FAILED;
    }
    memcpy(c->boot, now, sizeof(now));
    c->state = CLIENT_READY;
    c->backoff_ms = CLIENT_BACKOFF_MIN_MS;
    return WEIR_OK;
}

static int on_error(struct weir_client *c, struct open_request *r, const struct wire_error *e,
                    struct weir_error *err)
{
    struct weir_error why;

    weir_error_set(&why, &e->error, e->retry_after_ms);
    if (r != NULL) {
        client_fail_request(c, r, &why);
        return WEIR_OK;
    }
    if (e->id.n != 0)
        return WEIR_OK; /* of a request that has ended */
    *err = why;         /* about the connection itself: refused */
    return WEIR_FAILED;
}

static int on_accepted(struct weir_client *c, struct open_request *r, const struct wire_message *m)
{
    char name[NAME_BYTES_MAX] = "";

    if (m->accepted.request.n < sizeof(name)) /* a longer one is no broker's of this version */
        memcpy(name, m->accepted.request.at, m->accepted.request.n);
    call_back(c, r->callback, r->arg,
              &(struct weir_event){.type = WEIR_ACCEPTED,
                                   .request = r->number,
                                   .seed = m->accepted.seed,
                                   .trace_name = name});
    return WEIR_OK;
}

static int on_request_message(struct weir_client *c, struct open_request *r, const struct wire_message *m,
                              struct span body, struct weir_error *err)
{
    switch (m->type) {
    case WIRE_ACCEPTED:
        return on_accepted(c, r, m);
    case WIRE_PROGRESS:
        call_back(c, r->callback, r->arg,
                  &(struct weir_event){.type = WEIR_PROGRESS,
                                       .request = r->number,
                                       .running = m->progress.running,
                                       .ahead = m->progress.ahead});
        return WEIR_OK;
    case WIRE_TOKEN:
        return on_token(c, r, &m->token, err);
    case WIRE_DONE:
        return on_done(c, r, &m->done, err);
    case WIRE_IDS:
        finish(c, r, &(struct weir_event){.type = WEIR_IDS, .ids = m->ids.at, .n_ids = m->ids.n});
        return WEIR_OK;
    case WIRE_MODELS_REPLY:
    case WIRE_STATUS_REPLY:
    case WIRE_ADMIN_REPLY:
    case WIRE_TRACE_REPLY:
        return on_json(c, r, body, err);
    default:
        return broken(err, "a message of an unexpected type");
    }
}

int client_dispatch(struct weir_client *c, struct span body, struct weir_error *err)
{
    struct wire_message m;
    struct error why;
    int result = WEIR_OK;

    if (wire_decode_reply(body, &m, &why) != ST_OK)
        return broken(err, why.message);
    struct open_request *r = find(c, m.id);
    if (m.type == WIRE_HELLO_REPLY)
        result = on_hello(c, body, err);
    else if (m.type == WIRE_ERROR)
        result = on_error(c, r, &m.error, err);
    else if (r != NULL && c->state == CLIENT_READY)
        result = on_request_message(c, r, &m, body, err);
    wire_message_deinit(&m);
    return result;
}
