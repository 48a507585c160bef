/* answer.c - from events to whole answers, and the blocking calls on top of the asynchronous ones. */
#include "client.h"

#include <assert.h>
#include <stdlib.h>

/* What the caller sees is the first member; the capacities behind it are ours. */
struct collected {
    struct weir_answer answer;
    struct weir_choice choices[CHOICES_MAX];
    struct {
        size_t text, ids, logprobs; /* capacities */
        size_t n_logprobs;
    } room[CHOICES_MAX];
};

const char *weir_finish_name(enum weir_finish f)
{
    static const char *const names[] = {"", "stop", "length", "cancelled", "error"};

    return (unsigned)f < sizeof(names) / sizeof(names[0]) ? names[f] : "error";
}

/* --- collecting -------------------------------------------------------------------------------- */

/* Room for n items of size bytes; capacity doubles. */
static bool reserve(void **at, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity)
        return true;
    size_t more = n * 2 < 64 ? 64 : n * 2;
    void *grown = realloc(*at, more * size);
    if (grown == NULL)
        return false;
    *at = grown;
    *capacity = more;
    return true;
}

static bool append_text(struct collected *k, uint32_t i, const char *text, size_t bytes)
{
    struct weir_choice *c = &k->choices[i];
    void *at = c->text;

    if (!reserve(&at, &k->room[i].text, c->text_bytes + bytes + 1, 1))
        return false;
    c->text = at;
    if (bytes > 0)
        memcpy(c->text + c->text_bytes, text, bytes);
    c->text_bytes += bytes;
    c->text[c->text_bytes] = '\0';
    return true;
}

/* A token's log-probabilities own one block: the alternatives, then everybody's bytes. */
static bool copy_logprob(struct weir_token_logprob *to, const struct weir_token_logprob *from)
{
    size_t bytes = from->n_bytes;

    for (size_t i = 0; i < from->n_top; i++)
        bytes += from->top[i].n_bytes;
    struct weir_token_logprob *top = malloc((from->n_top + 1) * sizeof(*top) + bytes);
    if (top == NULL)
        return false;
    char *at = (char *)(top + from->n_top + 1);
    *to = *from;
    to->top = top;
    to->bytes = at;
    if (from->n_bytes > 0)
        memcpy(at, from->bytes, from->n_bytes);
    at += from->n_bytes;
    for (size_t i = 0; i < from->n_top; i++) {
        top[i] = from->top[i];
        top[i].top = NULL;
        top[i].n_top = 0;
        top[i].bytes = at;
        if (from->top[i].n_bytes > 0)
            memcpy(at, from->top[i].bytes, from->top[i].n_bytes);
        at += from->top[i].n_bytes;
    }
    return true;
}

static bool append_logprobs(struct collected *k, uint32_t i, const struct weir_event *e)
{
    size_t *n = &k->room[i].n_logprobs;
    void *at = k->choices[i].logprobs;

    if (!reserve(&at, &k->room[i].logprobs, *n + e->n_ids, sizeof(struct weir_token_logprob)))
        return false;
    k->choices[i].logprobs = at;
    for (size_t t = 0; t < e->n_ids; t++, ++*n)
        if (!copy_logprob(&k->choices[i].logprobs[*n], &e->logprobs[t]))
            return false;
    return true;
}

static bool append_ids(struct collected *k, uint32_t i, const struct weir_event *e)
{
    struct weir_choice *c = &k->choices[i];
    void *ids = c->ids;

    if (!reserve(&ids, &k->room[i].ids, c->n_ids + e->n_ids, sizeof(*c->ids)))
        return false;
    c->ids = ids;
    memcpy(c->ids + c->n_ids, e->ids, e->n_ids * sizeof(*c->ids));
    bool complete =
        e->logprobs != NULL && k->room[i].n_logprobs == c->n_ids; /* so far every token has them */
    c->n_ids += e->n_ids;
    return !complete || append_logprobs(k, i, e);
}

static void free_logprobs(struct collected *k, uint32_t i)
{
    for (size_t t = 0; t < k->room[i].n_logprobs; t++)
        free((void *)k->choices[i].logprobs[t].top);
    free(k->choices[i].logprobs);
    k->choices[i].logprobs = NULL;
    k->room[i].n_logprobs = 0;
}

static bool collect_text(struct collected *k, const struct weir_event *e)
{
    uint32_t i = e->choice;

    if (i >= CHOICES_MAX)
        return false;
    if (k->answer.n_choices < i + 1)
        k->answer.n_choices = i + 1;
    return append_text(k, i, e->text, e->text_bytes) && (e->n_ids == 0 || append_ids(k, i, e));
}

static bool collect_done(struct collected *k, const struct weir_event *e)
{
    struct weir_answer *a = &k->answer;

    if (e->n_choices > CHOICES_MAX)
        return false;
    a->n_choices = e->n_choices;
    for (uint32_t i = 0; i < e->n_choices; i++) {
        k->choices[i].finish = e->finish[i];
        k->choices[i].stop_index = e->stop_index[i];
        if (!append_text(k, i, "", 0)) /* never NULL */
            return false;
        if (k->room[i].n_logprobs != k->choices[i].n_ids)
            free_logprobs(k, i);
    }
    a->usage = e->usage;
    a->timings = e->timings;
    a->worker = e->worker;
    a->takeovers = e->takeovers;
    a->model = strdup(e->model != NULL ? e->model : "");
    a->system_fingerprint = strdup(e->system_fingerprint != NULL ? e->system_fingerprint : "");
    return a->model != NULL && a->system_fingerprint != NULL;
}

int weir_collect(struct weir_answer **answer, const struct weir_event *event, struct weir_error *err)
{
    struct collected *k = (struct collected *)*answer;
    bool ok = true;

    if (k == NULL) {
        k = calloc(1, sizeof(*k));
        if (k == NULL) {
            weir_error_format(err, ERR_INTERNAL, "", "out of memory");
            return WEIR_FAILED;
        }
        k->answer.choices = k->choices;
        *answer = &k->answer;
    }
    switch (event->type) {
    case WEIR_ACCEPTED:
        k->answer.seed = event->seed;
        if (event->trace_name != NULL && strlen(event->trace_name) < sizeof(k->answer.trace_name))
            memcpy(k->answer.trace_name, event->trace_name, strlen(event->trace_name) + 1);
        break;
    case WEIR_TEXT:
        ok = collect_text(k, event);
        break;
    case WEIR_DONE:
        ok = collect_done(k, event);
        break;
    case WEIR_ERROR:
        *err = *event->error;
        return WEIR_FAILED;
    case WEIR_PROGRESS:
    case WEIR_JSON:
    case WEIR_IDS:
        break;
    }
    if (!ok) {
        weir_error_format(err, ERR_INTERNAL, "", "out of memory while collecting an answer");
        return WEIR_FAILED;
    }
    return event->type == WEIR_DONE ? WEIR_OK : WEIR_AGAIN;
}

size_t weir_resume_of(const struct weir_answer *a, struct weir_resume ret_resume[16])
{
    size_t n = 0;

    for (size_t i = 0; a != NULL && i < a->n_choices; i++)
        if (a->choices[i].n_ids > 0)
            ret_resume[n++] = (struct weir_resume){.choice = (uint32_t)i,
                                                   .ids = a->choices[i].ids,
                                                   .n_ids = a->choices[i].n_ids,
                                                   .released_bytes = a->choices[i].text_bytes};
    return n;
}

void weir_answer_free(struct weir_answer *a)
{
    struct collected *k = (struct collected *)a;

    if (k == NULL)
        return;
    for (uint32_t i = 0; i < CHOICES_MAX; i++) {
        free_logprobs(k, i);
        free(k->choices[i].text);
        free(k->choices[i].ids);
    }
    free(a->model);
    free(a->system_fingerprint);
    free(k);
}

/* --- blocking ---------------------------------------------------------------------------------- */

struct waiting {
    bool ended;
    int result;
    struct weir_error err;
    struct weir_answer *answer;
    char *json;
    int32_t *ids;
    size_t n_ids;
};

/* The one callback of all blocking calls. */
static void collect_for_waiter(const struct weir_event *e, void *arg)
{
    struct waiting *w = arg;

    if (e->type == WEIR_JSON || e->type == WEIR_IDS) {
        w->ended = true;
        w->json = e->type == WEIR_JSON ? strndup(e->text, e->text_bytes) : NULL;
        w->ids = e->type == WEIR_IDS ? malloc((e->n_ids + 1) * sizeof(*w->ids)) : NULL;
        w->result = w->json != NULL || w->ids != NULL ? WEIR_OK : WEIR_FAILED;
        if (w->ids != NULL && e->n_ids > 0)
            memcpy(w->ids, e->ids, e->n_ids * sizeof(*w->ids));
        w->n_ids = e->n_ids;
        if (w->result != WEIR_OK)
            weir_error_format(&w->err, ERR_INTERNAL, "", "out of memory");
        return;
    }
    if (w->result == WEIR_AGAIN)
        w->result = weir_collect(&w->answer, e, &w->err);
    if (e->type == WEIR_DONE ||
        e->type == WEIR_ERROR) /* after a failure of ours the rest is waited for, not kept */
        w->ended = true;
}

/* Before a blocking call: not from a callback, and a broker must be there. */
static int may_wait(struct weir_client *c, struct weir_error *err)
{
    if (c->in_callback) {
        weir_error_format(err, ERR_INVALID_REQUEST, "", "blocking calls are not allowed in a callback");
        return WEIR_FAILED;
    }
    return c->state == CLIENT_READY ? WEIR_OK : client_wait_ready(c, err);
}

static int wait_for(struct weir_client *c, struct waiting *w, int submitted, struct weir_error *err)
{
    if (submitted != WEIR_OK)
        return WEIR_FAILED; /* *err is set */
    while (!w->ended)
        client_wait(c);
    if (w->result == WEIR_OK)
        return WEIR_OK;
    *err = w->err;
    weir_answer_free(w->answer); /* what came before the failure */
    w->answer = NULL;
    return WEIR_FAILED;
}

int weir_ask(struct weir_client *c, const struct weir_request *r, struct weir_answer **ret_answer,
             struct weir_error *err)
{
    struct waiting w = {.result = WEIR_AGAIN};
    int submitted;

    if (may_wait(c, err) != WEIR_OK)
        return WEIR_FAILED;
    while ((submitted = weir_submit(c, r, collect_for_waiter, &w, NULL, err)) == WEIR_AGAIN)
        client_wait(c);
    if (wait_for(c, &w, submitted, err) != WEIR_OK)
        return WEIR_FAILED;
    *ret_answer = w.answer;
    return WEIR_OK;
}

int weir_tokenize(struct weir_client *c, const char *model, const char *text, size_t text_bytes, bool special,
                  int32_t **ret_ids, size_t *ret_n, struct weir_error *err)
{
    struct waiting w = {.result = WEIR_AGAIN};
    int submitted;

    if (may_wait(c, err) != WEIR_OK)
        return WEIR_FAILED;
    while ((submitted = weir_tokenize_async(c, model, text, text_bytes, special, collect_for_waiter, &w,
                                            err)) == WEIR_AGAIN)
        client_wait(c);
    if (wait_for(c, &w, submitted, err) != WEIR_OK)
        return WEIR_FAILED;
    *ret_ids = w.ids;
    *ret_n = w.n_ids;
    return WEIR_OK;
}

int weir_query_wait(struct weir_client *c, enum weir_query what, char **ret_json, struct weir_error *err)
{
    struct waiting w = {.result = WEIR_AGAIN};
    int submitted;

    if (may_wait(c, err) != WEIR_OK)
        return WEIR_FAILED;
    while ((submitted = weir_query(c, what, collect_for_waiter, &w, err)) == WEIR_AGAIN)
        client_wait(c);
    if (wait_for(c, &w, submitted, err) != WEIR_OK)
        return WEIR_FAILED;
    *ret_json = w.json;
    return WEIR_OK;
}

int weir_trace_wait(struct weir_client *c, const char *request, char **ret_json, struct weir_error *err)
{
    struct waiting w = {.result = WEIR_AGAIN};
    int submitted;

    if (may_wait(c, err) != WEIR_OK)
        return WEIR_FAILED;
    while ((submitted = weir_trace(c, request, collect_for_waiter, &w, err)) == WEIR_AGAIN)
        client_wait(c);
    if (wait_for(c, &w, submitted, err) != WEIR_OK)
        return WEIR_FAILED;
    *ret_json = w.json;
    return WEIR_OK;
}

int weir_worker_order_wait(struct weir_client *c, const struct weir_worker_order *order, char **ret_json,
                           struct weir_error *err)
{
    struct waiting w = {.result = WEIR_AGAIN};
    int submitted;

    if (may_wait(c, err) != WEIR_OK)
        return WEIR_FAILED;
    while ((submitted = weir_worker_order(c, order, collect_for_waiter, &w, err)) == WEIR_AGAIN)
        client_wait(c);
    if (wait_for(c, &w, submitted, err) != WEIR_OK)
        return WEIR_FAILED;
    *ret_json = w.json;
    return WEIR_OK;
}
