/* line.c - from one line of a batch file to a request.
 *
 * One table says which parameters there are and who reads each; a key that is in no table is an error that names it, because a
 * parameter that is ignored in silence spoils fifty thousand answers.  The JSON tree stays alive as long as the line: strings of the
 * request point into it, so a prompt is not copied again. */
#include "weir_batch.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "client.h"
#include "limits.h"
#include "parameters.h"
#include "utf8.h"

/* What the request's pointers point to. */
struct line_memory {
    json_t *root;
    struct weir_message *messages;
    char **joined; /* contents joined from parts, [n_joined], then the same in messages */
    size_t n_joined;
    const char **stop;
    int32_t *ids;
    struct weir_bias *bias;
    uint64_t seed;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
};

/* The line being read.  where: "body." or "". */
struct reader {
    struct weir_line *line;
    struct line_memory *m;
    struct weir_request *r;
    struct weir_error *err;
    const char *where;
    bool has_top_logprobs;
    json_int_t max_tokens; /* 0: not given yet */
};

__attribute__((format(printf, 4, 5))) static bool refuse(struct reader *p, enum error_code code,
                                                         const char *key, const char *format, ...)
{
    char message[ERROR_MESSAGE_BYTES], param[ERROR_PARAM_BYTES + 16];
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    snprintf(param, sizeof(param), "%s%s", p->where, key);
    weir_error_format(p->err, code, param, "%s", message);
    return false;
}

static bool out_of_memory(struct reader *p)
{
    return refuse(p, ERR_INTERNAL, "", "out of memory");
}

static bool is_text(struct reader *p, const char *key, const json_t *v, const char **ret_text)
{
    if (!json_is_string(v))
        return refuse(p, ERR_INVALID_PARAMETER, key, "%s must be a string", key);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return refuse(p, ERR_INVALID_PARAMETER, key, "%s holds a NUL character", key);
    *ret_text = json_string_value(v);
    return true;
}

static bool is_integer(struct reader *p, const char *key, const json_t *v, json_int_t min, json_int_t max,
                       json_int_t *ret_n)
{
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max)
        return refuse(p, ERR_INVALID_PARAMETER, key, "%s must be an integer from %lld to %lld", key,
                      (long long)min, (long long)max);
    *ret_n = json_integer_value(v);
    return true;
}

static bool is_bool(struct reader *p, const char *key, const json_t *v, bool *ret_b)
{
    if (!json_is_boolean(v))
        return refuse(p, ERR_INVALID_PARAMETER, key, "%s must be true or false", key);
    *ret_b = json_is_true(v);
    return true;
}

/* --- prompts ----------------------------------------------------------------------------------- */

static bool read_ids(struct reader *p, const char *key, const json_t *v)
{
    size_t n = json_array_size(v);

    if (!json_is_array(v) || n == 0)
        return refuse(p, ERR_INVALID_PARAMETER, key, "%s must be a list of token ids, at least one", key);
    if (n > PROMPT_IDS_MAX)
        return refuse(p, ERR_LIMIT_EXCEEDED, key, "%s has %zu token ids, the limit is %d", key, n,
                      PROMPT_IDS_MAX);
    p->m->ids = calloc(n, sizeof(*p->m->ids));
    if (p->m->ids == NULL)
        return out_of_memory(p);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(v, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return refuse(p, ERR_INVALID_PARAMETER, key, "%s[%zu] is no token id", key, i);
        p->m->ids[i] = (int32_t)json_integer_value(id);
    }
    p->r->prompt_ids = p->m->ids;
    p->r->n_prompt_ids = n;
    return true;
}

static bool set_prompt_ids(struct reader *p, const char *key, const json_t *v)
{
    if (p->r->prompt_ids != NULL || p->r->prompt != NULL)
        return refuse(p, ERR_INVALID_REQUEST, key, "prompt and prompt_ids are both given");
    return read_ids(p, key, v);
}

static bool set_prompt(struct reader *p, const char *key, const json_t *v)
{
    if (p->r->prompt_ids != NULL)
        return refuse(p, ERR_INVALID_REQUEST, "prompt_ids", "prompt and prompt_ids are both given");
    if (json_is_array(v) && json_array_size(v) > 0 && !json_is_integer(json_array_get(v, 0))) {
        if (json_array_size(v) > 1)
            return refuse(p, ERR_UNSUPPORTED_PARAMETER, key,
                          "a list of %zu prompts in one line is not supported; write one line each",
                          json_array_size(v));
        v = json_array_get(v, 0);
    }
    if (json_is_array(v))
        return read_ids(p, key, v);
    if (!json_is_string(v))
        return refuse(p, ERR_INVALID_PARAMETER, key, "prompt must be a string or a list of token ids");
    if (json_string_length(v) > PROMPT_BYTES_MAX)
        return refuse(p, ERR_LIMIT_EXCEEDED, key, "prompt has %zu bytes, the limit is %d",
                      json_string_length(v), PROMPT_BYTES_MAX);
    p->r->prompt = json_string_value(v);
    p->r->prompt_bytes = json_string_length(v);
    return true;
}

/* Parts [{"type": "text", "text": ..}, ..] joined into one text of the line's own. */
static bool join_parts(struct reader *p, const char *key, const json_t *parts,
                       struct weir_message *ret_message)
{
    const json_t *part;
    size_t i, bytes = 0;

    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (type == NULL)
            return refuse(p, ERR_INVALID_PARAMETER, key, "%s: part %zu has no type", key, i);
        if (strcmp(type, "text") != 0)
            return refuse(p, ERR_UNSUPPORTED_PARAMETER, key,
                          "%s: a part of type \"%.40s\" is not supported, only text is", key, type);
        if (!json_is_string(text) || json_object_size(part) != 2)
            return refuse(p, ERR_INVALID_PARAMETER, key,
                          "%s: part %zu must be {\"type\": \"text\", \"text\": \"...\"}", key, i);
        bytes += json_string_length(text);
    }
    char *all = malloc(bytes + 1), *at = all;
    if (all == NULL)
        return out_of_memory(p);
    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        memcpy(at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    *at = '\0';
    p->m->joined[p->m->n_joined++] = all;
    ret_message->content = all;
    ret_message->content_bytes = bytes;
    return true;
}

static bool read_message(struct reader *p, size_t index, json_t *v, struct weir_message *ret_message)
{
    char key[80];
    const char *name;
    json_t *value, *content = json_object_get(v, "content");

    snprintf(key, sizeof(key), "messages[%zu]", index);
    if (!json_is_object(v))
        return refuse(p, ERR_INVALID_PARAMETER, key, "%s must be an object with role and content", key);
    json_object_foreach(v, name, value) if (strcmp(name, "role") != 0 && strcmp(name, "content") != 0 &&
                                            strncmp(name, "x_", 2) != 0 && !json_is_null(value))
    {
        snprintf(key, sizeof(key), "messages[%zu].%.40s", index, name);
        return refuse(p, ERR_UNSUPPORTED_PARAMETER, key, "%s is not supported", key);
    }
    snprintf(key, sizeof(key), "messages[%zu].role", index);
    if (!is_text(p, key, json_object_get(v, "role"), &ret_message->role))
        return false;
    if (strcmp(ret_message->role, "system") != 0 && strcmp(ret_message->role, "user") != 0 &&
        strcmp(ret_message->role, "assistant") != 0)
        return refuse(p, ERR_UNSUPPORTED_PARAMETER, key,
                      "role \"%.40s\" is not supported; system, user and assistant are", ret_message->role);
    snprintf(key, sizeof(key), "messages[%zu].content", index);
    if (json_is_array(content))
        return join_parts(p, key, content, ret_message);
    if (!json_is_string(content))
        return refuse(p, ERR_INVALID_PARAMETER, key, "%s must be a string or a list of text parts", key);
    ret_message->content = json_string_value(content);
    ret_message->content_bytes = json_string_length(content);
    return true;
}

static bool set_messages(struct reader *p, const char *key, const json_t *v)
{
    size_t n = json_array_size(v), bytes = 0;

    if (!json_is_array(v) || n == 0)
        return refuse(p, ERR_INVALID_PARAMETER, key, "messages must be a list of at least one message");
    if (n > MESSAGES_MAX)
        return refuse(p, ERR_LIMIT_EXCEEDED, key, "messages has %zu messages, the limit is %d", n,
                      MESSAGES_MAX);
    p->m->messages = calloc(n, sizeof(*p->m->messages));
    p->m->joined = calloc(n, sizeof(*p->m->joined));
    if (p->m->messages == NULL || p->m->joined == NULL)
        return out_of_memory(p);
    for (size_t i = 0; i < n; i++) {
        if (!read_message(p, i, json_array_get(v, i), &p->m->messages[i]))
            return false;
        bytes += p->m->messages[i].content_bytes;
    }
    if (bytes > PROMPT_BYTES_MAX)
        return refuse(p, ERR_LIMIT_EXCEEDED, key, "messages have %zu bytes together, the limit is %d", bytes,
                      PROMPT_BYTES_MAX);
    p->r->messages = p->m->messages;
    p->r->n_messages = n;
    return true;
}

/* --- numbers ----------------------------------------------------------------------------------- */

/* Every number with a range.  The member of the request points to the member of the memory. */
static const struct number {
    const char *key;
    double min, max;
    bool above_min; /* min itself is not allowed */
    size_t at, pointer;
} numbers[] = {
#define NUMBER(name, min, max, above)                                                                   \
    {                                                                                                   \
#name, min, max, above, offsetof(struct line_memory, name), offsetof(struct weir_request, name) \
    }
    NUMBER(temperature, 0, 100, false),
    NUMBER(top_p, 0, 1, true),
    NUMBER(min_p, 0, 1, false),
    NUMBER(repetition_penalty, 0, 100, true),
    NUMBER(presence_penalty, -2, 2, false),
    NUMBER(frequency_penalty, -2, 2, false),
#undef NUMBER
};

static bool set_number(struct reader *p, const char *key, const json_t *v)
{
    const struct number *n = numbers;

    while (strcmp(n->key, key) != 0)
        n++;
    double value = json_number_value(v);
    if (!json_is_number(v) || !isfinite(value) || value < n->min || value > n->max ||
        (n->above_min && value == n->min))
        return refuse(p, ERR_INVALID_PARAMETER, key, "%s must be a number from %g to %g%s", key, n->min,
                      n->max, n->above_min ? ", not the lowest" : "");
    double *at = (double *)((char *)p->m + n->at);
    *at = value;
    *(const double **)((char *)p->r + n->pointer) = at;
    return true;
}

static bool set_max_tokens(struct reader *p, const char *key, const json_t *v)
{
    json_int_t n = 0;

    if (!is_integer(p, key, v, 1, OUTPUT_TOKENS_MAX, &n))
        return false;
    if (p->max_tokens != 0 && p->max_tokens != n)
        return refuse(p, ERR_INVALID_PARAMETER, key, "max_tokens and max_completion_tokens differ");
    p->max_tokens = n;
    p->r->max_tokens = (uint32_t)n;
    return true;
}

static bool set_n(struct reader *p, const char *key, const json_t *v)
{
    json_int_t n = 0;

    if (!is_integer(p, key, v, 1, CHOICES_MAX, &n))
        return false;
    p->r->n = (uint32_t)n;
    return true;
}

static bool set_seed(struct reader *p, const char *key, const json_t *v)
{
    json_int_t n = 0;

    if (!is_integer(p, key, v, 0, INT64_MAX, &n))
        return false;
    p->m->seed = (uint64_t)n;
    p->r->seed = &p->m->seed;
    return true;
}

static bool set_top_k(struct reader *p, const char *key, const json_t *v)
{
    json_int_t n = 0;

    if (!is_integer(p, key, v, 0, INT32_MAX, &n))
        return false;
    p->r->top_k = (uint32_t)n;
    return true;
}

static bool set_deadline(struct reader *p, const char *key, const json_t *v)
{
    json_int_t n = 0;

    if (!is_integer(p, key, v, 1, DEADLINE_MS_MAX, &n))
        return false;
    p->r->deadline_ms = (uint32_t)n;
    return true;
}

/* true, false, or the number of alternatives. */
static bool set_logprobs(struct reader *p, const char *key, const json_t *v)
{
    json_int_t n = 0;

    if (json_is_boolean(v)) {
        p->r->logprobs = json_is_true(v);
        return true;
    }
    if (!is_integer(p, key, v, 0, LOGPROBS_MAX, &n))
        return false;
    if (p->has_top_logprobs && p->r->n_top_logprobs != (uint32_t)n)
        return refuse(p, ERR_INVALID_PARAMETER, key, "logprobs and top_logprobs give different numbers");
    p->r->logprobs = true;
    p->r->n_top_logprobs = (uint32_t)n;
    return true;
}

static bool set_top_logprobs(struct reader *p, const char *key, const json_t *v)
{
    json_int_t n = 0;

    if (!is_integer(p, key, v, 0, LOGPROBS_MAX, &n))
        return false;
    if (p->r->n_top_logprobs != 0 && p->r->n_top_logprobs != (uint32_t)n)
        return refuse(p, ERR_INVALID_PARAMETER, key, "logprobs and top_logprobs give different numbers");
    p->r->n_top_logprobs = (uint32_t)n;
    p->has_top_logprobs = true;
    return true;
}

/* --- lists ------------------------------------------------------------------------------------- */

static bool add_stop(struct reader *p, const char *key, const json_t *v)
{
    if (!is_text(p, key, v, &p->m->stop[p->r->n_stop]))
        return false;
    if (json_string_length(v) == 0 || json_string_length(v) > STOP_BYTES_MAX)
        return refuse(p, ERR_INVALID_PARAMETER, key, "a stop string must have 1 to %d bytes", STOP_BYTES_MAX);
    p->r->n_stop++;
    return true;
}

static bool set_stop(struct reader *p, const char *key, const json_t *v)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (n > STOPS_MAX)
        return refuse(p, ERR_LIMIT_EXCEEDED, key, "stop has %zu strings, the limit is %d", n, STOPS_MAX);
    p->m->stop = calloc(n + 1, sizeof(*p->m->stop));
    if (p->m->stop == NULL)
        return out_of_memory(p);
    p->r->stop = p->m->stop;
    if (!json_is_array(v))
        return add_stop(p, key, v);
    for (size_t i = 0; i < n; i++)
        if (!add_stop(p, key, json_array_get(v, i)))
            return false;
    return true;
}

static bool set_logit_bias(struct reader *p, const char *key, const json_t *v)
{
    const char *name;
    json_t *value;

    if (!json_is_object(v))
        return refuse(p, ERR_INVALID_PARAMETER, key, "logit_bias must be an object of token id and bias");
    if (json_object_size(v) > LOGIT_BIAS_MAX)
        return refuse(p, ERR_LIMIT_EXCEEDED, key, "logit_bias has %zu entries, the limit is %d",
                      json_object_size(v), LOGIT_BIAS_MAX);
    p->m->bias = calloc(json_object_size(v) + 1, sizeof(*p->m->bias));
    if (p->m->bias == NULL)
        return out_of_memory(p);
    p->r->bias = p->m->bias;
    json_object_foreach((json_t *)v, name, value)
    {
        char *end;
        long token = strtol(name, &end, 10);
        double bias = json_number_value(value);
        if (!isdigit((unsigned char)name[0]) || *end != '\0' || strlen(name) > 10 || token > INT32_MAX)
            return refuse(p, ERR_INVALID_PARAMETER, key, "logit_bias: \"%.40s\" is no token id", name);
        if (!json_is_number(value) || !isfinite(bias) || bias < -100 || bias > 100)
            return refuse(p, ERR_INVALID_PARAMETER, key,
                          "logit_bias of token %ld must be a number from -100 to 100", token);
        for (size_t i = 0; i < p->r->n_bias; i++)
            if (p->m->bias[i].token == token)
                return refuse(p, ERR_INVALID_PARAMETER, key, "logit_bias names token %ld twice", token);
        p->m->bias[p->r->n_bias++] = (struct weir_bias){(int32_t)token, (float)bias};
    }
    return true;
}

/* --- the rest ---------------------------------------------------------------------------------- */

static bool set_model(struct reader *p, const char *key, const json_t *v)
{
    return is_text(p, key, v, &p->r->model);
}

static bool set_template(struct reader *p, const char *key, const json_t *v)
{
    return is_text(p, key, v, &p->r->chat_template);
}

static bool set_scope(struct reader *p, const char *key, const json_t *v)
{
    if (!is_text(p, key, v, &p->r->scope))
        return false;
    return strcmp(p->r->scope, "user") == 0 || strcmp(p->r->scope, "pool") == 0 ||
           refuse(p, ERR_INVALID_PARAMETER, key, "scope must be \"user\" or \"pool\"");
}

static bool set_salt(struct reader *p, const char *key, const json_t *v)
{
    return is_text(p, key, v, &p->r->salt);
}

static bool set_raw(struct reader *p, const char *key, const json_t *v)
{
    return is_bool(p, key, v, &p->r->raw);
}

static bool set_ignore_eos(struct reader *p, const char *key, const json_t *v)
{
    return is_bool(p, key, v, &p->r->ignore_eos);
}

static bool set_cache(struct reader *p, const char *key, const json_t *v)
{
    const char *text;

    if (!is_text(p, key, v, &text))
        return false;
    if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
        return refuse(p, ERR_INVALID_PARAMETER, key, "cache must be \"on\" or \"off\"");
    p->r->cache_off = strcmp(text, "off") == 0;
    return true;
}

/* What a line cannot have, unless it says "no" to it. */
static bool only_false(struct reader *p, const char *key, const json_t *v)
{
    return json_is_false(v) ||
           refuse(p, ERR_UNSUPPORTED_PARAMETER, key, "%s is not supported in a batch line", key);
}

static bool metadata(struct reader *p, const char *key, const json_t *v)
{
    return json_is_object(v) || refuse(p, ERR_INVALID_PARAMETER, key, "metadata must be an object");
}

static const struct parameter {
    const char *key;
    bool (*set)(struct reader *p, const char *key, const json_t *v);
} parameters[] = {
    {"model", set_model},
    {"prompt", set_prompt},
    {"prompt_ids", set_prompt_ids},
    {"messages", set_messages},
    {"max_tokens", set_max_tokens},
    {"max_completion_tokens", set_max_tokens},
    {"n", set_n},
    {"seed", set_seed},
    {"temperature", set_number},
    {"top_p", set_number},
    {"min_p", set_number},
    {"repetition_penalty", set_number},
    {"presence_penalty", set_number},
    {"frequency_penalty", set_number},
    {"top_k", set_top_k},
    {"stop", set_stop},
    {"logit_bias", set_logit_bias},
    {"logprobs", set_logprobs},
    {"top_logprobs", set_top_logprobs},
    {"ignore_eos", set_ignore_eos},
    {"raw", set_raw},
    {"chat_template", set_template},
    {"cache", set_cache},
    {"deadline_ms", set_deadline},
    {"scope", set_scope},
    {"salt", set_salt},
    {"metadata", metadata},
    {"stream", only_false},
    {"echo", only_false},
    {"store", only_false},
};

bool weir_is_unsupported_parameter(const char *name)
{
    return wire_is_unsupported_parameter(span_str(name));
}

/* The wire has these, a line has not: the job gives them. */
static bool is_the_jobs(const char *key)
{
    static const char *const keys[] = {"class",    "priority", "session", "idempotency_key", "on_behalf_of",
                                       "takeover", "resume",   "ext",     "adapter"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static bool read_parameter(struct reader *p, const char *key, const json_t *v)
{
    if (strncmp(key, "x_", 2) == 0 || json_is_null(v))
        return true;
    for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++)
        if (strcmp(parameters[i].key, key) == 0)
            return parameters[i].set(p, key, v);
    if (weir_is_unsupported_parameter(key) || is_the_jobs(key))
        return refuse(p, ERR_UNSUPPORTED_PARAMETER, key, "%.60s is not supported in a batch line", key);
    return refuse(p, ERR_UNKNOWN_FIELD, key, "%.60s is not a field of a batch line", key);
}

/* --- the two forms ----------------------------------------------------------------------------- */

static bool is_frame_key(const char *key)
{
    return strcmp(key, "custom_id") == 0 || strcmp(key, "method") == 0 || strcmp(key, "url") == 0 ||
           strcmp(key, "body") == 0;
}

/* The id first, so that an error about anything else can carry it. */
static bool read_custom_id(struct reader *p, const json_t *root, bool openai)
{
    const char *key = openai ? "custom_id" : "id", *text;
    const json_t *v = json_object_get(root, key);
    char number[32];

    if (json_is_integer(v) && !openai) { /* {"id": 7, ..} is what people write */
        snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(v));
        text = number;
    } else if (v == NULL) {
        return !openai || refuse(p, ERR_INVALID_REQUEST, key, "custom_id is missing");
    } else {
        if (!is_text(p, key, v, &text))
            return false;
        if (text[0] == '\0' || strlen(text) > CUSTOM_ID_BYTES_MAX)
            return refuse(p, ERR_INVALID_PARAMETER, key, "%s must have 1 to %d bytes", key,
                          CUSTOM_ID_BYTES_MAX);
    }
    char *own = strdup(text);
    if (own == NULL)
        return out_of_memory(p);
    free(p->line->custom_id);
    p->line->custom_id = own;
    p->line->has_custom_id = true;
    return true;
}

static bool read_body(struct reader *p, json_t *body, bool skip_id)
{
    const char *key;
    json_t *v;

    json_object_foreach(body, key, v) if (!(skip_id && strcmp(key, "id") == 0) &&
                                          !read_parameter(p, key, v)) return false;
    const struct weir_request *r = p->r;
    if ((r->prompt != NULL || r->prompt_ids != NULL) && r->messages != NULL)
        return refuse(p, ERR_INVALID_REQUEST, "messages", "prompt and messages are both given");
    if (r->n_top_logprobs > 0 && !r->logprobs)
        return refuse(p, ERR_INVALID_PARAMETER, "top_logprobs",
                      "top_logprobs is given, but logprobs is not true");
    return true;
}

static bool read_openai(struct reader *p, json_t *root)
{
    const char *key, *text;
    json_t *v, *body = json_object_get(root, "body");

    if (!read_custom_id(p, root, true))
        return false;
    json_object_foreach(
        root, key, v) if (!is_frame_key(key) && strncmp(key, "x_", 2) != 0 &&
                          strcmp(key, "metadata") !=
                              0) return refuse(p, ERR_UNKNOWN_FIELD, key,
                                               "%.60s does not belong beside custom_id, method, url and body",
                                               key);
    if (!is_text(p, "method", json_object_get(root, "method"), &text))
        return false;
    if (strcmp(text, "POST") != 0)
        return refuse(p, ERR_INVALID_PARAMETER, "method", "method must be \"POST\"");
    if (!is_text(p, "url", json_object_get(root, "url"), &text))
        return false;
    p->line->chat = strcmp(text, "/v1/chat/completions") == 0;
    if (!p->line->chat && strcmp(text, "/v1/completions") != 0)
        return refuse(p, ERR_INVALID_PARAMETER, "url", "url must be /v1/completions or /v1/chat/completions");
    if (!json_is_object(body))
        return refuse(p, ERR_INVALID_PARAMETER, "body", "body must be an object");
    p->where = "body.";
    if (!read_body(p, body, false))
        return false;
    if (p->line->chat && p->r->messages == NULL)
        return refuse(p, ERR_INVALID_REQUEST, "messages", "/v1/chat/completions needs messages");
    if (!p->line->chat && p->r->prompt == NULL && p->r->prompt_ids == NULL)
        return refuse(p, ERR_INVALID_REQUEST, "prompt", "/v1/completions needs a prompt");
    return true;
}

static bool read_short(struct reader *p, json_t *root)
{
    if (!read_custom_id(p, root, false) || !read_body(p, root, true))
        return false;
    p->line->chat = p->r->messages != NULL;
    if (p->r->prompt == NULL && p->r->prompt_ids == NULL && p->r->messages == NULL)
        return refuse(p, ERR_INVALID_REQUEST, "prompt",
                      "the line has neither prompt nor prompt_ids nor messages");
    return true;
}

static bool read_json(struct reader *p, const char *text, size_t bytes)
{
    json_error_t why;
    struct span all = span_of(text, bytes);

    if (bytes > LINE_BYTES_MAX)
        return refuse(p, ERR_LIMIT_EXCEEDED, "", "the line has %zu bytes, the limit is %d", bytes,
                      LINE_BYTES_MAX);
    if (bytes >= 2 && (memcmp(text, "\xFF\xFE", 2) == 0 || memcmp(text, "\xFE\xFF", 2) == 0))
        return refuse(p, ERR_INVALID_REQUEST, "", "the file is UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
    if (!utf8_valid(all))
        return refuse(p, ERR_INVALID_REQUEST, "", "the line is not UTF-8 (byte %zu)", utf8_valid_prefix(all));
    p->m->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (p->m->root == NULL)
        return refuse(p, ERR_INVALID_REQUEST, "", "the line is not JSON: %.150s (column %d)", why.text,
                      why.column);
    if (!json_is_object(p->m->root))
        return refuse(p, ERR_INVALID_REQUEST, "", "the line is JSON, but not an object {...}");
    const char *key;
    json_t *v;
    bool openai = false;
    json_object_foreach(p->m->root, key, v) openai = openai || is_frame_key(key);
    return openai ? read_openai(p, p->m->root) : read_short(p, p->m->root);
}

/* Without a byte order mark; jansson takes white space itself. */
static void trim(const char **text, size_t *bytes)
{
    if (*bytes >= 3 && memcmp(*text, "\xEF\xBB\xBF", 3) == 0) {
        *text += 3;
        *bytes -= 3;
    }
}

bool weir_line_blank(const char *text, size_t bytes)
{
    trim(&text, &bytes);
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    return true;
}

int weir_line_parse(const char *text, size_t bytes, uint64_t number, struct weir_line *ret_line,
                    struct weir_error *err)
{
    char name[32];
    struct line_memory *m = calloc(1, sizeof(*m));

    snprintf(name, sizeof(name), "line-%llu", (unsigned long long)number);
    *ret_line = (struct weir_line){.number = number, .custom_id = strdup(name), .memory = m};
    ret_line->request.batch = true;
    struct reader p = {.line = ret_line, .m = m, .r = &ret_line->request, .err = err, .where = ""};
    if (m == NULL || ret_line->custom_id == NULL) {
        (void)!out_of_memory(&p);
        return WEIR_FAILED;
    }
    if (number == 1)
        trim(&text, &bytes);
    return read_json(&p, text, bytes) ? WEIR_OK : WEIR_FAILED;
}

void weir_line_deinit(struct weir_line *line)
{
    struct line_memory *m = line->memory;

    if (m != NULL) {
        for (size_t i = 0; i < m->n_joined; i++)
            free(m->joined[i]);
        free(m->joined);
        free(m->messages);
        free(m->stop);
        free(m->ids);
        free(m->bias);
        json_decref(m->root);
        free(m);
    }
    free(line->custom_id);
    memset(line, 0, sizeof(*line));
}
