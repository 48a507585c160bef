/* line_output.c - from an answer, or an error, to the line that records it; the form is OpenAI's batch output.
 *
 * Model text is UTF-8, but tokens are not: half a character may be a token of its own.  In log-probabilities a token's "token" is readable
 * (broken bytes become U+FFFD, in the completions form "bytes:\xE2\x98") and "bytes" is exact. */
#include "weir_batch.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>
#include <xxhash.h>

#include "answer_json.h"
#include "client.h"
#include "utf8.h"

/* A token as a key: as text if it is text, else as "bytes:\xNN..". */
static json_t *token_name(const struct weir_token_logprob *t)
{
    if (utf8_valid(span_of(t->bytes, t->n_bytes)))
        return json_stringn(t->bytes, t->n_bytes);
    size_t room = t->n_bytes * 4 + 7;
    char *name = malloc(room);
    if (name == NULL)
        return NULL;
    int at = snprintf(name, room, "bytes:");
    for (size_t i = 0; i < t->n_bytes; i++)
        at += snprintf(name + at, room - (size_t)at, "\\x%02X", (unsigned char)t->bytes[i]);
    json_t *json = json_stringn(name, (size_t)at);
    free(name);
    return json;
}

static size_t characters(const struct weir_token_logprob *t)
{
    size_t n = 0;

    for (size_t i = 0; i < t->n_bytes; i++)
        n += ((unsigned char)t->bytes[i] & 0xC0) != 0x80;
    return n;
}

static json_t *text_logprobs(const struct weir_choice *c)
{
    json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array();
    size_t offset = 0;

    for (size_t i = 0; i < c->n_ids; i++) {
        const struct weir_token_logprob *t = &c->logprobs[i];
        json_t *top = json_object();
        for (size_t k = 0; k < t->n_top; k++) {
            json_t *name = token_name(&t->top[k]);
            /* Two tokens of the same text share one entry, the likelier's. */
            if (json_object_get(top, json_string_value(name)) == NULL)
                json_object_set_new(top, json_string_value(name), answer_json_logprob(t->top[k].logprob));
            json_decref(name);
        }
        json_array_append_new(tokens, token_name(t));
        json_array_append_new(logprobs, answer_json_logprob(t->logprob));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer((json_int_t)offset));
        offset += characters(t);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs",
                     tops, "text_offset", offsets);
}

/* --- the answer -------------------------------------------------------------------------------- */

/* Which tokens it were, in 32 digits: with many jobs, the ids themselves would double the files.  Their bytes are those of this machine's order,
 * which is little-endian wherever Weir runs. */
static json_t *token_hash(const struct weir_choice *c)
{
    char text[33];
    XXH128_hash_t h = XXH3_128bits(c->ids, c->n_ids * sizeof(c->ids[0]));

    snprintf(text, sizeof(text), "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    return json_string(text);
}

static json_t *choice_json(const struct weir_line *line, const struct weir_choice *c, size_t index)
{
    json_t *choice = json_pack("{s:I}", "index", (json_int_t)index),
           *text = answer_json_text(c->text, c->text_bytes);
    json_t *logprobs = line->chat || c->logprobs == NULL ? answer_json_logprobs(c) : text_logprobs(c);

    if (line->chat)
        json_object_set_new(choice, "message", json_pack("{s:s, s:o}", "role", "assistant", "content", text));
    else
        json_object_set_new(choice, "text", text);
    json_object_set_new(choice, "logprobs", logprobs);
    json_object_set_new(choice, "finish_reason", json_string(weir_finish_name(c->finish)));
    json_object_set_new(choice, "n_tokens", json_integer((json_int_t)c->n_ids));
    json_object_set_new(choice, "token_hash", token_hash(c));
    return choice;
}

static json_t *usage_json(const struct weir_usage *u)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)u->prompt_tokens,
                     "completion_tokens", (json_int_t)u->completion_tokens, "total_tokens",
                     (json_int_t)u->prompt_tokens + u->completion_tokens, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)u->cached_tokens);
}

static json_t *timings_json(const struct weir_answer *a)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:I, s:s}", "queue_ms", a->timings.queue_ms, "prefill_ms",
                     a->timings.prefill_ms, "first_token_ms", a->timings.first_token_ms, "total_ms",
                     a->timings.total_ms, "takeovers", (json_int_t)a->takeovers, "request", a->trace_name);
}

static char *dump(json_t *root, size_t *ret_bytes)
{
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(root);
    if (text != NULL && ret_bytes != NULL)
        *ret_bytes = strlen(text);
    return text;
}

/* The outer object; takes body and error. */
static char *line_json(const struct weir_line *line, const char *id, int status, json_t *body, json_t *error,
                       size_t *ret_bytes)
{
    char name[300];

    snprintf(name, sizeof(name), "batch_req_%.256s", id);
    return dump(json_pack("{s:s, s:s, s:{s:i, s:s, s:o}, s:o}", "id", name, "custom_id", line->custom_id,
                          "response", "status_code", status, "request_id", id, "body", body, "error", error),
                ret_bytes);
}

char *weir_line_output(const struct weir_line *line, const struct weir_answer *answer, const char *id,
                       int64_t created_s, size_t *ret_bytes)
{
    char name[300];
    json_t *choices = json_array();

    snprintf(name, sizeof(name), "%s-%.256s", line->chat ? "chatcmpl" : "cmpl", id);
    for (size_t i = 0; i < answer->n_choices; i++)
        json_array_append_new(choices, choice_json(line, &answer->choices[i], i));
    json_t *body = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:o, s:I, s:s}", "id", name, "object",
                             line->chat ? "chat.completion" : "text_completion", "created",
                             (json_int_t)created_s, "model", answer->model != NULL ? answer->model : "",
                             "choices", choices, "usage", usage_json(&answer->usage), "timings", timings_json(answer),
                             "seed", (json_int_t)answer->seed, "system_fingerprint",
                             answer->system_fingerprint != NULL ? answer->system_fingerprint : "");
    return line_json(line, id, 200, body, json_null(), ret_bytes);
}

/* What OpenAI calls the type of an error. */
static const char *error_type(int http)
{
    return http == 429 ? "rate_limit_error" : http >= 500 ? "server_error" : "invalid_request_error";
}

char *weir_line_error(const struct weir_line *line, const struct weir_error *error, const char *id,
                      size_t *ret_bytes)
{
    int http = error->http >= 400 ? error->http : 500;
    json_t *body =
        json_pack("{s:{s:o, s:s, s:o, s:s}}", "error", "message",
                  answer_json_text(error->message, strlen(error->message)), "type", error_type(http), "param",
                  answer_json_text(error->param, strlen(error->param)), "code", error->code);
    json_t *own =
        json_pack("{s:s, s:o, s:o, s:I}", "code", error->code, "message",
                  answer_json_text(error->message, strlen(error->message)), "param",
                  answer_json_text(error->param, strlen(error->param)), "line", (json_int_t)line->number);

    return line_json(line, id, http, body, own, ret_bytes);
}
