/* wire_request.c - from a frame to a checked request: the tables of fields, and the rules that join two fields.
 *
 * The structure was walked before (wire_scan.c), so msgpack-c may now build its objects: they are at most as many as the walk
 * counted.  The id is read before the rest, so that whatever else is wrong is told to the request it is about. */
#include "wire_fields.h"

#include <inttypes.h>
#include <stdio.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* What `generate` says, with the fields that only matter while it is checked. */
struct generate_input {
    struct wire_generate g;
    struct field_ids prompt_ids;
    uint32_t max_completion_tokens, best_of, top_logprobs;
    bool echo;
};

/* --- readers of generate --------------------------------------------------------------------- */

static enum status add_stop(struct decoder *d, const struct field *f, const msgpack_object *v, struct wire_generate *g)
{
    const struct field one = { .key = f->key, .min = 1, .max = STOP_BYTES_MAX };
    struct span stop = { 0 };
    enum status st;

    if (g->n_stops == STOPS_MAX)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, f->key, "has more than %d strings", STOPS_MAX);
    if (v->type != MSGPACK_OBJECT_STR)
        return field_refuse_value(d, f, v, "a string or a list of strings");
    st = field_text(d, &one, v, &stop);
    if (st == ST_OK)
        g->stops[g->n_stops++] = stop;
    return st;
}

static enum status read_stop(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    struct wire_generate *g = to;

    if (v->type != MSGPACK_OBJECT_ARRAY)
        return add_stop(d, f, v, g);
    for (uint32_t i = 0; i < v->via.array.size; i++) {
        enum status st = add_stop(d, f, &v->via.array.ptr[i], g);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* The token id of a logit_bias key: an integer, or one in decimal as JSON writes it. */
static bool bias_token(const msgpack_object *key, int32_t *ret_token)
{
    uint64_t value = 0;

    if (key->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        value = key->via.u64;
    } else if (key->type == MSGPACK_OBJECT_STR && key->via.str.size >= 1 && key->via.str.size <= 10) {
        for (uint32_t i = 0; i < key->via.str.size; i++) {
            if (key->via.str.ptr[i] < '0' || key->via.str.ptr[i] > '9')
                return false;
            value = value * 10 + (uint64_t)(key->via.str.ptr[i] - '0');
        }
    } else {
        return false;
    }
    if (value > INT32_MAX)
        return false;
    *ret_token = (int32_t)value;
    return true;
}

static enum status read_logit_bias(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    struct wire_logit_bias *out = to;
    void *at = NULL;

    if (v->type != MSGPACK_OBJECT_MAP)
        return field_refuse_value(d, f, v, "a map from token ids to numbers");
    if (v->via.map.size > LOGIT_BIAS_MAX)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, f->key, "has %" PRIu32 " entries, at most %d are taken", v->via.map.size,
                            LOGIT_BIAS_MAX);
    if (decoder_alloc(d, sizeof(struct logit_bias) * v->via.map.size, &at) != ST_OK)
        return ST_NOMEM;

    struct logit_bias *list = at;
    for (uint32_t i = 0; i < v->via.map.size; i++) {
        const msgpack_object_kv *entry = &v->via.map.ptr[i];
        char key[48];

        if (!bias_token(&entry->key, &list[i].token))
            return field_refuse(d, ERR_INVALID_PARAMETER, f->key, "has a key that is no token id, at entry %" PRIu32, i);
        snprintf(key, sizeof(key), "logit_bias.%" PRId32, list[i].token);
        enum status st = field_f32(d, &(struct field){ .key = key, .min = -100, .max = 100 }, &entry->val, &list[i].bias);
        if (st != ST_OK)
            return st;
        for (uint32_t k = 0; k < i; k++) /* at most LOGIT_BIAS_MAX squared: half a millisecond */
            if (list[k].token == list[i].token)
                return field_refuse(d, ERR_INVALID_REQUEST, key, "is given twice");
    }
    *out = (struct wire_logit_bias){ list, v->via.map.size };
    return ST_OK;
}

/* true, false, or the number of alternatives (the completions form). */
static enum status read_logprobs(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    struct sampling *s = to;
    uint32_t n = 0;

    if (v->type == MSGPACK_OBJECT_BOOLEAN) {
        s->logprobs = v->via.boolean;
        return ST_OK;
    }
    if (v->type != MSGPACK_OBJECT_POSITIVE_INTEGER || v->via.u64 > LOGPROBS_MAX) {
        char must_be[64];
        snprintf(must_be, sizeof(must_be), "true, false or 0 to %d", LOGPROBS_MAX);
        return field_refuse_value(d, f, v, must_be);
    }
    n = (uint32_t)v->via.u64;
    s->logprobs = 1;
    s->n_logprobs = n;
    return ST_OK;
}

static enum status read_scope(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    bool pool = false;
    enum status st = field_choice(d, f, v, &pool);

    if (st == ST_OK)
        *(struct span *)to = span_str(pool ? "pool" : "user");
    return st;
}

static enum status read_priority(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    static const char *const words[] = { [PRIORITY_NORMAL] = "normal", [PRIORITY_LOW] = "low", [PRIORITY_HIGH] = "high" };

    for (uint8_t i = 0; v->type == MSGPACK_OBJECT_STR && i < COUNT(words); i++)
        if (span_is(span_of(v->via.str.ptr, v->via.str.size), words[i])) {
            *(uint8_t *)to = i;
            return ST_OK;
        }
    return field_refuse_value(d, f, v, "\"low\", \"normal\" or \"high\"");
}

static enum status read_adapter(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    enum status st = field_text(d, f, v, to);

    if (st == ST_OK && ((struct span *)to)->n > 0)
        return field_refuse(d, ERR_UNSUPPORTED_PARAMETER, f->key, "is not implemented: no adapters are served");
    return st;
}

static enum status read_echo(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    enum status st = field_bool(d, f, v, to);

    if (st == ST_OK && *(bool *)to)
        return field_refuse(d, ERR_UNSUPPORTED_PARAMETER, f->key, "is not implemented");
    return st;
}

/* Anything, as long as it is a map; its size is checked by what the walk found. */
static enum status read_ext(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    (void)to;
    return v->type == MSGPACK_OBJECT_MAP ? ST_OK : field_refuse_value(d, f, v, "a map");
}

/* --- messages and resume --------------------------------------------------------------------- */

static enum status read_content(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    if (v->type == MSGPACK_OBJECT_ARRAY)
        return field_refuse(d, ERR_UNSUPPORTED_PARAMETER, f->key, "is a list of parts, only a string is implemented");
    return field_text(d, f, v, to);
}

static enum status unsupported_in_message(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    (void)v;
    (void)to;
    return field_refuse(d, ERR_UNSUPPORTED_PARAMETER, f->key, "is not implemented");
}

static const struct field message_fields[] = {
    { "role", field_text, offsetof(struct wire_message_text, role), 1, NAME_BYTES_MAX - 1, FIELD_REQUIRED, { 0 } },
    { "content", read_content, offsetof(struct wire_message_text, content), 0, PROMPT_BYTES_MAX, FIELD_REQUIRED, { 0 } },
    { "name", unsupported_in_message, 0, 0, 0, 0, { 0 } },
    { "tool_calls", unsupported_in_message, 0, 0, 0, 0, { 0 } },
    { "tool_call_id", unsupported_in_message, 0, 0, 0, 0, { 0 } },
    { "refusal", unsupported_in_message, 0, 0, 0, 0, { 0 } },
    { "annotations", unsupported_in_message, 0, 0, 0, 0, { 0 } },
    { "reasoning_content", unsupported_in_message, 0, 0, 0, 0, { 0 } },
};

static enum status read_messages(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    struct wire_generate *g = to;
    void *at = NULL;
    size_t n_bytes = 0;

    if (v->type != MSGPACK_OBJECT_ARRAY)
        return field_refuse_value(d, f, v, "a list of {role, content}");
    if (v->via.array.size == 0)
        return field_refuse(d, ERR_INVALID_PARAMETER, f->key, "is an empty list");
    if (v->via.array.size > MESSAGES_MAX)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, f->key, "has %" PRIu32 " messages, at most %d are taken", v->via.array.size,
                            MESSAGES_MAX);
    enum status st = list_read(d, f, v, message_fields, COUNT(message_fields), sizeof(struct wire_message_text), &at);
    if (st != ST_OK)
        return st;
    g->messages = at;
    g->n_messages = v->via.array.size;
    for (uint32_t i = 0; i < g->n_messages; i++)
        n_bytes += g->messages[i].content.n;
    if (n_bytes > PROMPT_BYTES_MAX)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, f->key, "have %zu bytes together, at most %d are taken", n_bytes,
                            PROMPT_BYTES_MAX);
    return ST_OK;
}

struct resume_input {
    struct wire_resume resume;
    struct field_ids ids;
};

static const struct field resume_fields[] = {
    { "choice", field_u32, offsetof(struct resume_input, resume.choice), 0, CHOICES_MAX - 1, FIELD_REQUIRED, { 0 } },
    { "ids", field_ids, offsetof(struct resume_input, ids), 0, OUTPUT_TOKENS_MAX, FIELD_REQUIRED, { 0 } },
    { "released_bytes", field_u32, offsetof(struct resume_input, resume.released_bytes), 0, 0, FIELD_REQUIRED, { 0 } },
};

static enum status read_resume(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    struct wire_generate *g = to;
    void *at = NULL, *list = NULL;
    uint64_t n_ids = 0;

    if (v->type != MSGPACK_OBJECT_ARRAY)
        return field_refuse_value(d, f, v, "a list of {choice, ids, released_bytes}");
    if (v->via.array.size > CHOICES_MAX)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, f->key, "has %" PRIu32 " choices, at most %d are taken", v->via.array.size,
                            CHOICES_MAX);
    enum status st = list_read(d, f, v, resume_fields, COUNT(resume_fields), sizeof(struct resume_input), &at);
    if (st != ST_OK)
        return st;
    if (decoder_alloc(d, sizeof(struct wire_resume) * v->via.array.size, &list) != ST_OK)
        return ST_NOMEM;
    const struct resume_input *in = at;
    struct wire_resume *out = list;
    for (uint32_t i = 0; i < v->via.array.size; i++) {
        out[i] = in[i].resume;
        out[i].ids = in[i].ids.at;
        out[i].n_ids = in[i].ids.n;
        n_ids += out[i].n_ids;
        for (uint32_t k = 0; k < i; k++)
            if (out[k].choice == out[i].choice)
                return field_refuse(d, ERR_INVALID_REQUEST, f->key, "names choice %" PRIu32 " twice", out[i].choice);
    }
    if (n_ids > PROMPT_IDS_MAX)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, f->key, "has %" PRIu64 " ids together, at most %d are taken", n_ids,
                            PROMPT_IDS_MAX);
    g->resume = out;
    g->n_resume = v->via.array.size;
    return ST_OK;
}

/* --- generate -------------------------------------------------------------------------------- */

#define G(member) offsetof(struct generate_input, g.member)
#define IN(member) offsetof(struct generate_input, member)

static const struct field generate_fields[] = {
    { "type", field_skip, 0, 0, 0, 0, { 0 } },
    { "id", field_id, G(id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "model", field_text, G(model), 0, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "adapter", read_adapter, G(adapter), 0, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "prompt", field_text, G(prompt), 0, PROMPT_BYTES_MAX, 0, { 0 } },
    { "prompt_ids", field_ids, IN(prompt_ids), 1, PROMPT_IDS_MAX, 0, { 0 } },
    { "messages", read_messages, IN(g), 0, 0, 0, { 0 } },
    { "chat_template", field_text, G(chat_template), 1, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "raw", field_bool, G(raw), 0, 0, 0, { 0 } },
    { "class", field_choice, G(batch_class), 0, 0, 0, { "interactive", "batch" } },
    { "priority", read_priority, G(priority), 0, 0, 0, { 0 } },
    { "stream", field_bool, G(stream), 0, 0, 0, { 0 } },
    { "cache", field_choice, G(cache_off), 0, 0, 0, { "on", "off" } },
    { "ignore_eos", field_bool, G(ignore_eos), 0, 0, 0, { 0 } },
    { "takeover", field_choice, G(takeover_any), 0, 0, 0, { "exact", "any" } },
    { "deadline_ms", field_u64, G(deadline_ms), 1, DEADLINE_MS_MAX, 0, { 0 } },
    { "max_tokens", field_u32, G(max_tokens), 1, OUTPUT_TOKENS_MAX, 0, { 0 } },
    { "max_completion_tokens", field_u32, IN(max_completion_tokens), 1, OUTPUT_TOKENS_MAX, 0, { 0 } },
    { "n", field_u32, G(n), 1, CHOICES_MAX, 0, { 0 } },
    { "best_of", field_u32, IN(best_of), 1, 0, 0, { 0 } },
    { "echo", read_echo, IN(echo), 0, 0, 0, { 0 } },
    { "seed", field_u64, G(sampling.seed), 0, 0, 0, { 0 } },
    { "temperature", field_f32, G(sampling.temperature), 0, 100, 0, { 0 } },
    { "top_p", field_f32, G(sampling.top_p), 0, 1, FIELD_OVER_MIN, { 0 } },
    { "top_k", field_u32, G(sampling.top_k), 0, INT32_MAX, 0, { 0 } },
    { "min_p", field_f32, G(sampling.min_p), 0, 1, 0, { 0 } },
    { "repetition_penalty", field_f32, G(sampling.repetition_penalty), 0, 100, FIELD_OVER_MIN, { 0 } },
    { "presence_penalty", field_f32, G(sampling.presence_penalty), -2, 2, 0, { 0 } },
    { "frequency_penalty", field_f32, G(sampling.frequency_penalty), -2, 2, 0, { 0 } },
    { "logit_bias", read_logit_bias, G(bias), 0, 0, 0, { 0 } },
    { "stop", read_stop, IN(g), 0, 0, 0, { 0 } },
    { "logprobs", read_logprobs, G(sampling), 0, 0, 0, { 0 } },
    { "top_logprobs", field_u32, IN(top_logprobs), 0, LOGPROBS_MAX, 0, { 0 } },
    { "scope", read_scope, G(scope), 0, 0, 0, { "user", "pool" } },
    { "salt", field_bytes, G(salt), 1, SALT_BYTES_MAX, 0, { 0 } },
    { "session", field_text, G(session), 1, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "session_ttl_ms", field_u64, G(session_ttl_ms), 1, SESSION_TTL_MS_MAX, 0, { 0 } },
    { "idempotency_key", field_bytes, G(idempotency_key), 1, CLIENT_ID_BYTES_MAX, 0, { 0 } },
    { "on_behalf_of", field_text, G(on_behalf_of), 1, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "resume", read_resume, IN(g), 0, 0, 0, { 0 } },
    { "ext", read_ext, 0, 0, 0, 0, { 0 } },
};
_Static_assert(COUNT(generate_fields) <= 64, "one bit each");

static bool has(uint64_t given, const char *key)
{
    return field_given(generate_fields, COUNT(generate_fields), given, key);
}

/* Exactly one prompt, and what goes only with some kinds of it. */
static enum status check_prompt(struct decoder *d, struct wire_generate *g, uint64_t given)
{
    int n = has(given, "prompt") + has(given, "prompt_ids") + has(given, "messages");

    if (n != 1) {
        error_set(d->err, ERR_INVALID_REQUEST, "prompt", "%s of prompt, prompt_ids and messages %s given, exactly one must be",
                  n == 0 ? "none" : n == 2 ? "two" : "all", n == 0 ? "is" : "are");
        return ST_INVALID;
    }
    g->prompt_kind = has(given, "prompt") ? WORK_PROMPT_TEXT : has(given, "messages") ? WORK_PROMPT_MESSAGES : WORK_PROMPT_IDS;
    if (g->raw && g->prompt_kind != WORK_PROMPT_TEXT)
        return field_refuse(d, ERR_INVALID_PARAMETER, "raw", "is true, which goes with prompt only");
    if (has(given, "chat_template") && g->prompt_kind != WORK_PROMPT_MESSAGES)
        return field_refuse(d, ERR_INVALID_PARAMETER, "chat_template", "is given, which goes with messages only");
    return ST_OK;
}

/* The same thing under two names: one may be absent, or both agree. */
static enum status check_aliases(struct decoder *d, struct generate_input *in, uint64_t given)
{
    struct wire_generate *g = &in->g;
    struct sampling *s = &g->sampling;

    if (has(given, "max_completion_tokens")) {
        if (has(given, "max_tokens") && g->max_tokens != in->max_completion_tokens)
            return field_refuse(d, ERR_INVALID_PARAMETER, "max_completion_tokens", "is %" PRIu32 ", but max_tokens is %" PRIu32,
                                in->max_completion_tokens, g->max_tokens);
        g->max_tokens = in->max_completion_tokens;
    }
    if (has(given, "best_of") && in->best_of != g->n)
        return field_refuse(d, ERR_UNSUPPORTED_PARAMETER, "best_of", "is %" PRIu32 ", only n (%" PRIu32 ") is implemented",
                            in->best_of, g->n);
    if (has(given, "top_logprobs")) {
        if (s->logprobs == 0 && in->top_logprobs > 0)
            return field_refuse(d, ERR_INVALID_PARAMETER, "top_logprobs", "is %" PRIu32 ", which needs logprobs to be true",
                                in->top_logprobs);
        if (s->n_logprobs != 0 && s->n_logprobs != in->top_logprobs)
            return field_refuse(d, ERR_INVALID_PARAMETER, "top_logprobs", "is %" PRIu32 ", but logprobs is %" PRIu32,
                                in->top_logprobs, s->n_logprobs);
        s->n_logprobs = in->top_logprobs;
    }
    return ST_OK;
}

static enum status check_resume(struct decoder *d, const struct wire_generate *g)
{
    if (g->n_resume > 0 && !g->has_seed)
        return field_refuse(d, ERR_INVALID_REQUEST, "resume", "is given without the seed that accepted returned");
    for (uint32_t i = 0; i < g->n_resume; i++)
        if (g->resume[i].choice >= g->n)
            return field_refuse(d, ERR_INVALID_PARAMETER, "resume", "names choice %" PRIu32 ", but n is %" PRIu32,
                                g->resume[i].choice, g->n);
    return ST_OK;
}

void wire_generate_init(struct wire_generate *g)
{
    *g = (struct wire_generate){
        .stream = true,
        .n = 1,
        .sampling = { .temperature = 1, .top_p = 1, .repetition_penalty = 1 },
    };
}

static enum status read_generate(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    struct generate_input in = { 0 };
    uint64_t given = 0;

    wire_generate_init(&in.g);
    enum status st = fields_read(d, generate_fields, COUNT(generate_fields), v, &in, &given);
    if (st != ST_OK)
        return st;
    in.g.prompt_ids = in.prompt_ids.at;
    in.g.n_prompt_ids = in.prompt_ids.n;
    in.g.has_seed = has(given, "seed");
    in.g.has_temperature = has(given, "temperature");
    st = check_prompt(d, &in.g, given);
    if (st == ST_OK)
        st = check_aliases(d, &in, given);
    if (st == ST_OK)
        st = check_resume(d, &in.g);
    if (st == ST_OK && has(given, "session_ttl_ms") && in.g.session.n == 0)
        st = field_refuse(d, ERR_INVALID_REQUEST, "session_ttl_ms", "is given without session");
    if (st != ST_OK)
        return st;
    m->generate = in.g;
    return ST_OK;
}

/* --- the other requests ---------------------------------------------------------------------- */

#define M(member) offsetof(struct wire_message, member)

static const struct field hello_fields[] = {
    { "type", field_skip, 0, 0, 0, 0, { 0 } },
    { "client", field_text, M(hello.client), 0, CLIENT_ID_BYTES_MAX, 0, { 0 } },
    { "ext", read_ext, 0, 0, 0, 0, { 0 } },
};

static const struct field plain_fields[] = { /* cancel, models, status */
    { "type", field_skip, 0, 0, 0, 0, { 0 } },
    { "id", field_id, M(id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "ext", read_ext, 0, 0, 0, 0, { 0 } },
};

static const struct field tokenize_fields[] = {
    { "type", field_skip, 0, 0, 0, 0, { 0 } },
    { "id", field_id, M(id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "model", field_text, M(tokenize.model), 0, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "text", field_text, M(tokenize.text), 0, PROMPT_BYTES_MAX, FIELD_REQUIRED, { 0 } },
    { "special", field_bool, M(tokenize.special), 0, 0, 0, { 0 } },
    { "ext", read_ext, 0, 0, 0, 0, { 0 } },
};

static const struct field session_end_fields[] = {
    { "type", field_skip, 0, 0, 0, 0, { 0 } },
    { "id", field_id, M(id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "session", field_text, M(session_end.session), 1, NAME_BYTES_MAX - 1, FIELD_REQUIRED, { 0 } },
    { "on_behalf_of", field_text, M(session_end.on_behalf_of), 1, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "ext", read_ext, 0, 0, 0, 0, { 0 } },
};

static const struct field trace_fields[] = {
    { "type", field_skip, 0, 0, 0, 0, { 0 } },
    { "id", field_id, M(id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "request", field_text, M(trace.request), 1, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "on_behalf_of", field_text, M(trace.on_behalf_of), 1, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "ext", read_ext, 0, 0, 0, 0, { 0 } },
};

static enum status read_admin_verb(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    for (enum wire_admin_verb verb = 0; verb < WIRE_WORKER_VERBS && v->type == MSGPACK_OBJECT_STR; verb++)
        if (span_is(span_of(v->via.str.ptr, v->via.str.size), wire_admin_verb_name(verb))) {
            *(enum wire_admin_verb *)to = verb;
            return ST_OK;
        }
    return field_refuse_value(d, f, v, "pause, resume, drain, add or remove");
}

static const struct field admin_fields[] = {
    { "type", field_skip, 0, 0, 0, 0, { 0 } },
    { "id", field_id, M(admin.id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "verb", read_admin_verb, M(admin.verb), 0, 0, FIELD_REQUIRED, { 0 } },
    { "worker", field_u32, M(admin.worker), 0, WORKERS_MAX - 1, 0, { 0 } },
    { "model", field_text, M(admin.model), 1, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "device", field_text, M(admin.device), 1, NAME_BYTES_MAX - 1, 0, { 0 } },
    { "ext", read_ext, 0, 0, 0, 0, { 0 } },
};

/* A worker that is there for all but add, and what only add takes. */
static enum status read_admin(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    uint64_t given = 0;
    enum status st = fields_read(d, admin_fields, COUNT(admin_fields), v, m, &given);
    bool add = m->admin.verb == WIRE_WORKER_ADD, named = field_given(admin_fields, COUNT(admin_fields), given, "worker");

    if (st != ST_OK)
        return st;
    if (named == add)
        return field_refuse(d, ERR_INVALID_REQUEST, "worker", add ? "is given, but add chooses it" : "is missing");
    for (int i = 0; i < 2 && !add; i++) {
        const char *key = i == 0 ? "model" : "device";

        if (field_given(admin_fields, COUNT(admin_fields), given, key))
            return field_refuse(d, ERR_INVALID_REQUEST, key, "is given, which goes with add only");
    }
    return ST_OK;
}

static const struct {
    const char *name;
    enum wire_type type; /* WIRE_INVALID: reserved, not served */
    const struct field *fields;
    size_t n_fields;
} requests[] = {
    { "hello", WIRE_HELLO, hello_fields, COUNT(hello_fields) },
    { "generate", WIRE_GENERATE, NULL, 0 },
    { "cancel", WIRE_CANCEL, plain_fields, COUNT(plain_fields) },
    { "tokenize", WIRE_TOKENIZE, tokenize_fields, COUNT(tokenize_fields) },
    { "models", WIRE_MODELS, plain_fields, COUNT(plain_fields) },
    { "status", WIRE_STATUS, plain_fields, COUNT(plain_fields) },
    { "session_end", WIRE_SESSION_END, session_end_fields, COUNT(session_end_fields) },
    { "embed", WIRE_INVALID, NULL, 0 },
    { "trace", WIRE_TRACE, trace_fields, COUNT(trace_fields) },
    { "admin", WIRE_ADMIN, NULL, 0 },
};

static enum status read_request(struct decoder *d, const msgpack_object *v, const msgpack_object *type, struct wire_message *m)
{
    const struct field type_field = { .key = "type" };
    uint64_t given = 0;

    if (type == NULL)
        return field_refuse(d, ERR_INVALID_REQUEST, "type", "is missing");
    for (size_t i = 0; i < COUNT(requests) && type->type == MSGPACK_OBJECT_STR; i++) {
        if (!span_is(span_of(type->via.str.ptr, type->via.str.size), requests[i].name))
            continue;
        if (requests[i].type == WIRE_INVALID)
            return field_refuse(d, ERR_UNSUPPORTED_PARAMETER, "type", "\"%s\" is reserved and not served", requests[i].name);
        m->type = requests[i].type;
        d->type_name = requests[i].name;
        if (requests[i].fields == NULL)
            return m->type == WIRE_ADMIN ? read_admin(d, v, m) : read_generate(d, v, m);
        return fields_read(d, requests[i].fields, requests[i].n_fields, v, m, &given);
    }
    return field_refuse_value(d, &type_field, type, "hello, generate, cancel, tokenize, models, status, session_end, trace or admin");
}

/* After the structure: text, the size of ext, then the request itself. */
static enum status check_and_read(struct decoder *d, struct span frame, const struct wire_scan *scan, const msgpack_object *v,
                                  struct wire_message *m)
{
    const msgpack_object *id = map_value(v, "id");
    enum status st;

    (void)frame;
    if (id != NULL && id->type != MSGPACK_OBJECT_NIL && !(scan->bad_utf8 && span_is(scan->bad_field, "id"))) {
        st = field_id(d, &(struct field){ .key = "id" }, id, &m->id);
        if (st != ST_OK)
            return st;
    }
    if (scan->bad_utf8)
        return decoder_refuse_utf8(d, scan);
    if (scan->ext.n > EXT_BYTES_MAX)
        return field_refuse(d, ERR_LIMIT_EXCEEDED, "ext", "has %zu bytes packed, at most %d are taken", scan->ext.n,
                            EXT_BYTES_MAX);
    return read_request(d, v, map_value(v, "type"), m);
}

enum status wire_decode_request(struct span frame, struct wire_message *ret_message, struct error *err)
{
    return decoder_run(frame, true, "a request", check_and_read, ret_message, err);
}
