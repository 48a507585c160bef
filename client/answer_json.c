/* answer_json.c - see answer_json.h. */
#include "answer_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "span.h"
#include "utf8.h"

json_t *answer_json_text(const char *text, size_t bytes)
{
    struct span all = span_of(text, bytes);

    if (utf8_valid(all))
        return json_stringn(text, bytes);
    char *fixed = malloc(bytes * 3 + 1), *at = fixed;
    if (fixed == NULL)
        return NULL;
    while (all.n > 0) {
        size_t good = utf8_valid_prefix(all);
        memcpy(at, all.at, good);
        at += good;
        if (good < all.n) { /* one mark for each broken byte */
            memcpy(at, "\xEF\xBF\xBD", 3);
            at += 3;
            good++;
        }
        all = span_of(all.at + good, all.n - good);
    }
    json_t *json = json_stringn(fixed, (size_t)(at - fixed));
    free(fixed);
    return json;
}

/* --- log-probabilities ------------------------------------------------------------------------- */

json_t *answer_json_logprob(double logprob)
{
    return json_real(isfinite(logprob) ? logprob : -9999.0);
}

static json_t *bytes_json(const struct weir_token_logprob *t)
{
    json_t *list = json_array();

    for (size_t i = 0; i < t->n_bytes; i++)
        json_array_append_new(list, json_integer((unsigned char)t->bytes[i]));
    return list;
}

static json_t *token_json(const struct weir_token_logprob *t)
{
    return json_pack("{s:o, s:o, s:o}", "token", answer_json_text(t->bytes, t->n_bytes), "logprob",
                     answer_json_logprob(t->logprob), "bytes", bytes_json(t));
}

json_t *answer_json_logprobs(const struct weir_choice *c)
{
    if (c->logprobs == NULL)
        return json_null();
    json_t *content = json_array();
    for (size_t i = 0; i < c->n_ids; i++) {
        json_t *token = token_json(&c->logprobs[i]), *top = json_array();
        for (size_t k = 0; k < c->logprobs[i].n_top; k++)
            json_array_append_new(top, token_json(&c->logprobs[i].top[k]));
        json_object_set_new(token, "top_logprobs", top);
        json_array_append_new(content, token);
    }
    return json_pack("{s:o}", "content", content);
}

/* --- whole answers ----------------------------------------------------------------------------- */

static void put_choice(json_t *to, const struct weir_choice *c)
{
    json_t *ids = json_array();

    for (size_t i = 0; i < c->n_ids; i++)
        json_array_append_new(ids, json_integer(c->ids[i]));
    json_object_set_new(to, "text", answer_json_text(c->text != NULL ? c->text : "", c->text_bytes));
    json_object_set_new(to, "token_ids", ids);
    json_object_set_new(to, "finish_reason", json_string(weir_finish_name(c->finish)));
    if (c->logprobs != NULL)
        json_object_set_new(to, "logprobs", answer_json_logprobs(c));
}

json_t *answer_json(const struct weir_answer *a)
{
    const struct weir_usage *u = &a->usage;
    const struct weir_timings *t = &a->timings;
    json_t *root = json_object();

    if (a->n_choices > 0)
        put_choice(root, &a->choices[0]);
    if (a->n_choices > 1) {
        json_t *choices = json_array();
        for (size_t i = 0; i < a->n_choices; i++) {
            json_t *choice = json_pack("{s:I}", "index", (json_int_t)i);
            put_choice(choice, &a->choices[i]);
            json_array_append_new(choices, choice);
        }
        json_object_set_new(root, "choices", choices);
    }
    json_object_set_new(root, "usage",
                        json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)u->prompt_tokens,
                                  "cached_tokens", (json_int_t)u->cached_tokens, "completion_tokens",
                                  (json_int_t)u->completion_tokens));
    json_object_set_new(root, "timings",
                        json_pack("{s:f, s:f, s:f, s:f}", "queue_ms", t->queue_ms, "prefill_ms",
                                  t->prefill_ms, "first_token_ms", t->first_token_ms, "total_ms",
                                  t->total_ms));
    json_object_set_new(root, "worker", json_integer(a->worker));
    json_object_set_new(root, "takeovers", json_integer(a->takeovers));
    json_object_set_new(root, "model", answer_json_text(a->model, strlen(a->model)));
    json_object_set_new(root, "system_fingerprint",
                        answer_json_text(a->system_fingerprint, strlen(a->system_fingerprint)));
    json_object_set_new(root, "request", json_string(a->trace_name));
    json_object_set_new(root, "seed", json_integer((json_int_t)a->seed));
    return root;
}
