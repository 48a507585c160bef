/* request.c - what a caller asks, put on the wire.
 *
 * Only what would break the encoding, or would make the broker drop the whole connection (a frame over the limit), is checked
 * here.  All else is the broker's to judge, so that it is judged in one place; its error names the field. */
#include "client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "limits.h"
#include "utf8.h"

static int wrong(struct weir_error *err, enum error_code code, const char *param, const char *message)
{
    weir_error_format(err, code, param, "%s", message);
    return WEIR_FAILED;
}

static int over_limit(struct weir_error *err, const char *param, const char *what, size_t n, size_t limit)
{
    weir_error_format(err, ERR_LIMIT_EXCEEDED, param, "%s: %zu, the limit is %zu", what, n, limit);
    return WEIR_FAILED;
}

static struct span text_span(const char *s, size_t bytes)
{
    return s == NULL ? span_of(NULL, 0) : bytes != 0 ? span_of(s, bytes) : span_str(s);
}

static int check_text(struct span text, const char *param, struct weir_error *err)
{
    if (utf8_valid(text))
        return WEIR_OK;
    weir_error_format(err, ERR_INVALID_PARAMETER, param, "%s is not UTF-8 (byte %zu)", param,
                      utf8_valid_prefix(text));
    return WEIR_FAILED;
}

/* A seed nobody asked for.  53 bits: whoever prints it as JSON gets it back unchanged. */
static uint64_t draw_seed(void)
{
    uint64_t seed = 0;

    while (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        ;
    return seed >> 11;
}

/* --- the prompt -------------------------------------------------------------------------------- */

static int put_messages(const struct weir_request *r, struct wire_generate *g,
                        struct wire_message_text *texts, struct weir_error *err)
{
    size_t bytes = 0;

    for (size_t i = 0; i < r->n_messages; i++) {
        const struct weir_message *m = &r->messages[i];
        if (m->role == NULL || m->content == NULL)
            return wrong(err, ERR_INVALID_PARAMETER, "messages", "a message without role or content");
        texts[i] = (struct wire_message_text){span_str(m->role), text_span(m->content, m->content_bytes)};
        bytes += texts[i].role.n + texts[i].content.n;
        if (check_text(texts[i].content, "messages", err) != WEIR_OK)
            return WEIR_FAILED;
    }
    if (bytes > PROMPT_BYTES_MAX)
        return over_limit(err, "messages", "bytes of all messages together", bytes, PROMPT_BYTES_MAX);
    g->prompt_kind = WORK_PROMPT_MESSAGES;
    g->messages = texts;
    g->n_messages = (uint32_t)r->n_messages;
    return WEIR_OK;
}

static int put_prompt(const struct weir_request *r, struct wire_generate *g, struct wire_message_text *texts,
                      struct weir_error *err)
{
    if ((r->prompt != NULL) + (r->prompt_ids != NULL) + (r->messages != NULL) != 1)
        return wrong(err, ERR_INVALID_REQUEST, "prompt",
                     "exactly one of prompt, prompt_ids and messages is needed");
    if (r->messages != NULL)
        return put_messages(r, g, texts, err);
    if (r->prompt_ids != NULL) {
        if (r->n_prompt_ids > PROMPT_IDS_MAX)
            return over_limit(err, "prompt_ids", "token ids", r->n_prompt_ids, PROMPT_IDS_MAX);
        g->prompt_kind = WORK_PROMPT_IDS;
        g->prompt_ids = r->prompt_ids;
        g->n_prompt_ids = (uint32_t)r->n_prompt_ids;
        return WEIR_OK;
    }
    g->prompt_kind = WORK_PROMPT_TEXT;
    g->prompt = text_span(r->prompt, r->prompt_bytes);
    if (g->prompt.n > PROMPT_BYTES_MAX)
        return over_limit(err, "prompt", "bytes of the prompt", g->prompt.n, PROMPT_BYTES_MAX);
    return check_text(g->prompt, "prompt", err);
}

/* --- parameters -------------------------------------------------------------------------------- */

static void put_sampling(const struct weir_request *r, struct wire_generate *g)
{
    /* The second request with an idempotency key must be the first one again: then the broker draws, once. */
    g->has_seed = r->seed != NULL || r->idempotency_key == NULL;
    g->has_temperature = r->temperature != NULL;
    g->sampling = (struct sampling){
        .seed = r->seed != NULL ? *r->seed : g->has_seed ? draw_seed() : 0,
        .temperature = r->temperature != NULL ? (float)*r->temperature : 1.0f,
        .top_p = r->top_p != NULL ? (float)*r->top_p : 1.0f,
        .min_p = r->min_p != NULL ? (float)*r->min_p : 0.0f,
        .repetition_penalty = r->repetition_penalty != NULL ? (float)*r->repetition_penalty : 1.0f,
        .presence_penalty = r->presence_penalty != NULL ? (float)*r->presence_penalty : 0.0f,
        .frequency_penalty = r->frequency_penalty != NULL ? (float)*r->frequency_penalty : 0.0f,
        .top_k = r->top_k,
        .n_logprobs = r->n_top_logprobs,
        .logprobs = r->logprobs,
    };
}

static int put_lists(const struct weir_request *r, struct wire_generate *g, struct logit_bias *bias,
                     struct weir_error *err)
{
    for (size_t i = 0; i < r->n_stop; i++) {
        if (r->stop[i] == NULL)
            return wrong(err, ERR_INVALID_PARAMETER, "stop", "a stop string is NULL");
        g->stops[i] = span_str(r->stop[i]);
    }
    g->n_stops = (uint32_t)r->n_stop;
    for (size_t i = 0; i < r->n_bias; i++)
        bias[i] = (struct logit_bias){r->bias[i].token, r->bias[i].bias};
    g->bias = (struct wire_logit_bias){bias, (uint32_t)r->n_bias};
    return WEIR_OK;
}

static int check_counts(const struct weir_request *r, struct weir_error *err)
{
    if (r->n > CHOICES_MAX)
        return over_limit(err, "n", "completions", r->n, CHOICES_MAX);
    if (r->n_stop > STOPS_MAX)
        return over_limit(err, "stop", "stop strings", r->n_stop, STOPS_MAX);
    if (r->n_bias > LOGIT_BIAS_MAX)
        return over_limit(err, "logit_bias", "entries of logit_bias", r->n_bias, LOGIT_BIAS_MAX);
    if (r->messages != NULL && r->n_messages > MESSAGES_MAX)
        return over_limit(err, "messages", "messages", r->n_messages, MESSAGES_MAX);
    size_t n_ids = 0;
    for (size_t i = 0; i < r->n_resume && i < CHOICES_MAX; i++)
        n_ids += r->resume[i].n_ids <= PROMPT_IDS_MAX ? r->resume[i].n_ids : PROMPT_IDS_MAX + 1;
    if (r->n_resume > CHOICES_MAX)
        return over_limit(err, "resume", "choices to go on with", r->n_resume, CHOICES_MAX);
    if (n_ids > PROMPT_IDS_MAX)
        return over_limit(err, "resume", "ids of all choices together", n_ids, PROMPT_IDS_MAX);
    if (r->n_resume > 0 && r->seed == NULL)
        return wrong(err, ERR_INVALID_REQUEST, "resume", "resume is given without the seed of what it goes on with");
    if (r->n_top_logprobs > LOGPROBS_MAX)
        return over_limit(err, "top_logprobs", "alternatives a token", r->n_top_logprobs, LOGPROBS_MAX);
    if (r->n_top_logprobs > 0 && !r->logprobs)
        return wrong(err, ERR_INVALID_PARAMETER, "top_logprobs",
                     "top_logprobs is given, but logprobs is off");
    return WEIR_OK;
}

/* Map r to the wire's struct and encode it into c->out. */
static int encode(struct weir_client *c, const struct weir_request *r, const char *id, struct weir_error *err)
{
    int result = check_counts(r, err);
    size_t n_messages = r->messages != NULL ? r->n_messages : 0;
    if (result != WEIR_OK)
        return result;
    struct wire_message_text *texts = calloc(n_messages + 1, sizeof(*texts));
    struct logit_bias *bias = calloc(r->n_bias + 1, sizeof(*bias));
    struct wire_resume resume[CHOICES_MAX];
    struct wire_generate g = {
        .id = span_str(id),
        .model = text_span(r->model, 0),
        .chat_template = text_span(r->chat_template, 0),
        .raw = r->raw,
        .batch_class = r->batch,
        .priority = r->priority > 0 ? PRIORITY_HIGH : r->priority < 0 ? PRIORITY_LOW : PRIORITY_NORMAL,
        .stream = !r->whole,
        .cache_off = r->cache_off,
        .ignore_eos = r->ignore_eos,
        .takeover_any = r->takeover_any,
        .deadline_ms = r->deadline_ms,
        .max_tokens = r->max_tokens,
        .n = r->n != 0 ? r->n : 1,
        .scope = text_span(r->scope, 0),
        .salt = text_span(r->salt, 0),
        .session = text_span(r->session, 0),
        .session_ttl_ms = r->session_ttl_ms,
        .idempotency_key = text_span(r->idempotency_key, 0),
        .on_behalf_of = text_span(r->on_behalf_of, 0),
    };

    result = wrong(err, ERR_INTERNAL, "", "out of memory");
    if (texts == NULL || bias == NULL)
        goto out;
    put_sampling(r, &g);
    if (put_prompt(r, &g, texts, err) != WEIR_OK || put_lists(r, &g, bias, err) != WEIR_OK)
        goto out;
    for (size_t i = 0; i < r->n_resume; i++)
        resume[i] = (struct wire_resume){r->resume[i].choice, r->resume[i].ids, (uint32_t)r->resume[i].n_ids,
                                         (uint32_t)r->resume[i].released_bytes};
    g.resume = resume;
    g.n_resume = (uint32_t)r->n_resume;
    if (wire_encode_generate(&c->out, &g) != ST_OK)
        goto out;
    result = WEIR_OK;
out:
    free(texts);
    free(bias);
    return result;
}

/* Send what was encoded for r, or take the slot back. */
static int send_or_free(struct weir_client *c, struct open_request *r, int result, struct weir_error *err)
{
    if (result == WEIR_OK)
        result = client_send(c, err);
    if (result != WEIR_OK)
        client_free_slot(c, r);
    if (!c->in_callback)
        client_settle(c); /* within a callback weir_process() does it at its end */
    return result;
}

int weir_submit(struct weir_client *c, const struct weir_request *r, weir_callback *callback, void *arg,
                uint64_t *ret_request, struct weir_error *err)
{
    struct open_request *open = NULL;
    char id[CLIENT_ID_DIGITS];

    int result = client_take_slot(c, callback, arg, &open, id, err);
    if (result != WEIR_OK)
        return result;
    open->n_choices = r->n != 0 ? r->n : 1;
    uint64_t number = open->number;
    result = send_or_free(c, open, encode(c, r, id, err), err);
    if (result == WEIR_OK && ret_request != NULL)
        *ret_request = number;
    return result;
}

void weir_cancel(struct weir_client *c, uint64_t request)
{
    struct weir_error ignored;
    char id[CLIENT_ID_DIGITS];

    if (c->state != CLIENT_READY || request == 0 || c->requests[request % c->n_slots].number != request)
        return;
    snprintf(id, sizeof(id), "%llu", (unsigned long long)request);
    if (wire_encode_simple(&c->out, WIRE_CANCEL, span_str(id)) == ST_OK)
        (void)!client_send(c,
                           &ignored); /* what cannot be sent: the connection is gone, and so is the request */
    if (!c->in_callback)
        client_settle(c);
}

/* --- everything that is not generate ----------------------------------------------------------- */

int weir_query(struct weir_client *c, enum weir_query what, weir_callback *callback, void *arg,
               struct weir_error *err)
{
    struct open_request *open = NULL;
    char id[CLIENT_ID_DIGITS];

    int result = client_take_slot(c, callback, arg, &open, id, err);
    if (result != WEIR_OK)
        return result;
    if (wire_encode_simple(&c->out, what == WEIR_QUERY_MODELS ? WIRE_MODELS : WIRE_STATUS, span_str(id)) !=
        ST_OK)
        result = wrong(err, ERR_INTERNAL, "", "out of memory");
    return send_or_free(c, open, result, err);
}

int weir_trace(struct weir_client *c, const char *request, weir_callback *callback, void *arg, struct weir_error *err)
{
    return weir_trace_for(c, request, NULL, callback, arg, err);
}

int weir_trace_for(struct weir_client *c, const char *request, const char *on_behalf_of, weir_callback *callback, void *arg,
                   struct weir_error *err)
{
    struct open_request *open = NULL;
    char id[CLIENT_ID_DIGITS];

    int result = client_take_slot(c, callback, arg, &open, id, err);
    if (result != WEIR_OK)
        return result;
    if (wire_encode_trace(&c->out, span_str(id), text_span(request, 0), text_span(on_behalf_of, 0)) != ST_OK)
        result = wrong(err, ERR_INTERNAL, "", "out of memory");
    return send_or_free(c, open, result, err);
}

int weir_worker_order(struct weir_client *c, const struct weir_worker_order *order, weir_callback *callback,
                      void *arg, struct weir_error *err)
{
    struct wire_admin a = {.worker = order->worker,
                           .model = text_span(order->model, 0),
                           .device = text_span(order->device, 0)};
    struct open_request *open = NULL;
    char id[CLIENT_ID_DIGITS];

    while (a.verb < WIRE_WORKER_VERBS && strcmp(order->verb, wire_admin_verb_name(a.verb)) != 0)
        a.verb++;
    if (a.verb == WIRE_WORKER_VERBS)
        return wrong(err, ERR_INVALID_PARAMETER, "verb", "the verb is none of pause, resume, drain, add and remove");
    int result = client_take_slot(c, callback, arg, &open, id, err);
    if (result != WEIR_OK)
        return result;
    a.id = span_str(id);
    if (wire_encode_admin(&c->out, &a) != ST_OK)
        result = wrong(err, ERR_INTERNAL, "", "out of memory");
    return send_or_free(c, open, result, err);
}

int weir_tokenize_async(struct weir_client *c, const char *model, const char *text, size_t text_bytes,
                        bool special, weir_callback *callback, void *arg, struct weir_error *err)
{
    struct open_request *open = NULL;
    char id[CLIENT_ID_DIGITS];
    struct span span = span_of(text, text_bytes);

    if (text_bytes > PROMPT_BYTES_MAX)
        return over_limit(err, "text", "bytes of text", text_bytes, PROMPT_BYTES_MAX);
    if (check_text(span, "text", err) != WEIR_OK)
        return WEIR_FAILED;
    int result = client_take_slot(c, callback, arg, &open, id, err);
    if (result != WEIR_OK)
        return result;
    if (wire_encode_tokenize(&c->out, span_str(id), text_span(model, 0), span, special) != ST_OK)
        result = wrong(err, ERR_INTERNAL, "", "out of memory");
    return send_or_free(c, open, result, err);
}

int weir_session_end_for(struct weir_client *c, const char *session, const char *on_behalf_of, struct weir_error *err)
{
    char id[CLIENT_ID_DIGITS];

    if (c->state != CLIENT_READY) {
        *err = c->down;
        return WEIR_FAILED;
    }
    /* Nobody waits for an answer, so it takes no slot; a number no slot can have keeps a reply from meeting a request. */
    snprintf(id, sizeof(id), "0");
    if (wire_encode_session_end(&c->out, span_str(id), span_str(session), text_span(on_behalf_of, 0)) != ST_OK)
        return wrong(err, ERR_INTERNAL, "", "out of memory");
    int result = client_send(c, err);
    if (!c->in_callback)
        client_settle(c);
    return result;
}

int weir_session_end(struct weir_client *c, const char *session, struct weir_error *err)
{
    return weir_session_end_for(c, session, NULL, err);
}
