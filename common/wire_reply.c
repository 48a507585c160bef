/* wire_reply.c - from a frame to a reply.  Lenient: keys of a later minor version are skipped; what we do read has to be right.
 *
 * "hello", "models", "status", "admin" and "trace" stay as they came: clients print them (wire_to_json) or look for one key. */
#include "wire_fields.h"

#include <stdlib.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))
#define M(member) offsetof(struct wire_message, member)

/* --- accepted, progress, ids, error ---------------------------------------------------------- */

static const struct field accepted_fields[] = {
    { "id", field_id, M(id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "request", field_text, M(accepted.request), 0, CLIENT_ID_BYTES_MAX, FIELD_REQUIRED, { 0 } },
    { "seed", field_u64, M(accepted.seed), 0, 0, FIELD_REQUIRED, { 0 } },
};

static const struct field progress_fields[] = {
    { "id", field_id, M(id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "state", field_choice, M(progress.running), 0, 0, FIELD_REQUIRED, { "queued", "running" } },
    { "ahead", field_u32, M(progress.ahead), 0, 0, 0, { 0 } },
};

static const struct field id_fields[] = {
    { "id", field_id, M(id), 0, 0, 0, { 0 } },
};

static enum status read_table(struct decoder *d, const struct field *fields, size_t n, const msgpack_object *v, void *to)
{
    uint64_t given = 0;

    return fields_read(d, fields, n, v, to, &given);
}

static enum status read_accepted(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    return read_table(d, accepted_fields, COUNT(accepted_fields), v, m);
}

static enum status read_progress(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    return read_table(d, progress_fields, COUNT(progress_fields), v, m);
}

static enum status read_raw(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    return read_table(d, id_fields, COUNT(id_fields), v, m); /* the body is set by the caller */
}

struct ids_input {
    struct span id;
    struct field_ids ids;
};

static const struct field ids_fields[] = {
    { "id", field_id, offsetof(struct ids_input, id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "ids", field_ids, offsetof(struct ids_input, ids), 0, 0, FIELD_REQUIRED, { 0 } },
};

static enum status read_ids(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    struct ids_input in = { 0 };
    enum status st = read_table(d, ids_fields, COUNT(ids_fields), v, &in);

    if (st == ST_OK) {
        m->ids.at = in.ids.at;
        m->ids.n = in.ids.n;
    }
    return st;
}

struct error_input {
    struct span id, code, message, param;
    uint32_t retry_after_ms;
};

static const struct field error_fields[] = {
    { "id", field_id, offsetof(struct error_input, id), 0, 0, 0, { 0 } },
    { "code", field_text, offsetof(struct error_input, code), 1, 0, FIELD_REQUIRED, { 0 } },
    { "message", field_text, offsetof(struct error_input, message), 0, 0, FIELD_REQUIRED, { 0 } },
    { "param", field_text, offsetof(struct error_input, param), 0, 0, 0, { 0 } },
    { "retry_after_ms", field_u32, offsetof(struct error_input, retry_after_ms), 0, 0, 0, { 0 } },
};

static enum status read_error(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    struct error_input in = { 0 };
    char param[ERROR_PARAM_BYTES + 4] = "";
    enum status st = read_table(d, error_fields, COUNT(error_fields), v, &in);

    if (st != ST_OK)
        return st;
    if (in.param.n > 0)
        memcpy(param, in.param.at, in.param.n < sizeof(param) ? in.param.n : sizeof(param) - 1);
    error_set(&m->error.error, error_code_from_name((const char *)in.code.at, in.code.n), param, "%.*s",
              (int)in.message.n, in.message.n > 0 ? (const char *)in.message.at : "");
    m->error.id = in.id;
    m->error.retry_after_ms = in.retry_after_ms;
    return ST_OK;
}

/* --- token ----------------------------------------------------------------------------------- */

struct logprobs_input {
    struct wire_piece chosen;
    struct wire_token_logprobs top; /* only top and n_top are filled */
};

static const struct field top_fields[] = {
    { "id", field_i32, offsetof(struct wire_piece, id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "logprob", field_logprob, offsetof(struct wire_piece, logprob), 0, 0, FIELD_REQUIRED, { 0 } },
    { "bytes", field_bytes, offsetof(struct wire_piece, bytes), 0, PIECE_BYTES_MAX, FIELD_REQUIRED, { 0 } },
};

static enum status read_top(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    struct wire_token_logprobs *out = to;
    void *at = NULL;

    if (v->type != MSGPACK_OBJECT_ARRAY || v->via.array.size > LOGPROBS_MAX)
        return field_refuse_value(d, f, v, "a short list of {id, logprob, bytes}");
    enum status st = list_read(d, f, v, top_fields, COUNT(top_fields), sizeof(struct wire_piece), &at);
    if (st != ST_OK)
        return st;
    out->top = at;
    out->n_top = v->via.array.size;
    return ST_OK;
}

static const struct field logprobs_fields[] = {
    { "id", field_i32, offsetof(struct logprobs_input, chosen.id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "logprob", field_logprob, offsetof(struct logprobs_input, chosen.logprob), 0, 0, FIELD_REQUIRED, { 0 } },
    { "bytes", field_bytes, offsetof(struct logprobs_input, chosen.bytes), 0, PIECE_BYTES_MAX, FIELD_REQUIRED, { 0 } },
    { "top", read_top, offsetof(struct logprobs_input, top), 0, 0, 0, { 0 } },
};

struct token_input {
    struct wire_token t;
    struct field_ids ids;
    uint32_t n_logprobs;
};

static enum status read_logprobs(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    struct token_input *in = to;
    void *at = NULL, *list = NULL;

    if (v->type != MSGPACK_OBJECT_ARRAY)
        return field_refuse_value(d, f, v, "a list of {id, logprob, bytes, top}");
    enum status st = list_read(d, f, v, logprobs_fields, COUNT(logprobs_fields), sizeof(struct logprobs_input), &at);
    if (st != ST_OK)
        return st;
    in->n_logprobs = v->via.array.size;
    if (decoder_alloc(d, sizeof(struct wire_token_logprobs) * in->n_logprobs, &list) != ST_OK)
        return ST_NOMEM;
    const struct logprobs_input *from = at;
    struct wire_token_logprobs *out = list;
    for (uint32_t i = 0; i < in->n_logprobs; i++) {
        out[i] = from[i].top;
        out[i].chosen = from[i].chosen;
    }
    in->t.logprobs = out;
    return ST_OK;
}

static const struct field token_fields[] = {
    { "id", field_id, offsetof(struct token_input, t.id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "choice", field_u32, offsetof(struct token_input, t.choice), 0, CHOICES_MAX - 1, FIELD_REQUIRED, { 0 } },
    { "index", field_u32, offsetof(struct token_input, t.index), 0, 0, FIELD_REQUIRED, { 0 } },
    { "ids", field_ids, offsetof(struct token_input, ids), 0, 0, FIELD_REQUIRED, { 0 } },
    { "text", field_text, offsetof(struct token_input, t.text), 0, 0, FIELD_REQUIRED, { 0 } },
    { "logprobs", read_logprobs, 0, 0, 0, 0, { 0 } },
};

static enum status read_token(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    struct token_input in = { 0 };
    enum status st = read_table(d, token_fields, COUNT(token_fields), v, &in);

    if (st != ST_OK)
        return st;
    in.t.ids = in.ids.at;
    in.t.n_ids = in.ids.n;
    if (in.t.logprobs != NULL && in.n_logprobs != in.t.n_ids)
        return field_refuse(d, ERR_INVALID_PARAMETER, "logprobs", "has not one entry for each id");
    m->token = in.t;
    return ST_OK;
}

/* --- done ------------------------------------------------------------------------------------ */

static enum status read_reason(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    for (enum finish_reason r = FINISH_STOP; r <= FINISH_ERROR && v->type == MSGPACK_OBJECT_STR; r++)
        if (span_is(span_of(v->via.str.ptr, v->via.str.size), finish_reason_name(r))) {
            *(enum finish_reason *)to = r;
            return ST_OK;
        }
    return field_refuse_value(d, f, v, "stop, length, cancelled or error");
}

/* stop_index is shifted by one while it is read, so that absent (0) becomes -1. */
static enum status read_stop_index(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    uint32_t index = 0;
    enum status st = field_u32(d, f, v, &index);

    if (st == ST_OK)
        *(int32_t *)to = (int32_t)index + 1;
    return st;
}

static const struct field choice_fields[] = {
    { "finish_reason", read_reason, offsetof(struct wire_choice_end, reason), 0, 0, FIELD_REQUIRED, { 0 } },
    { "stop_index", read_stop_index, offsetof(struct wire_choice_end, stop_index), 0, STOPS_MAX - 1, 0, { 0 } },
    { "n_tokens", field_u32, offsetof(struct wire_choice_end, n_tokens), 0, 0, FIELD_REQUIRED, { 0 } },
};

static enum status read_choices(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    struct wire_done *done = to;
    void *at = NULL;

    if (v->type != MSGPACK_OBJECT_ARRAY || v->via.array.size == 0 || v->via.array.size > CHOICES_MAX)
        return field_refuse_value(d, f, v, "a list with one entry for each choice");
    enum status st = list_read(d, f, v, choice_fields, COUNT(choice_fields), sizeof(struct wire_choice_end), &at);
    if (st != ST_OK)
        return st;
    done->n_choices = v->via.array.size;
    memcpy(done->choices, at, sizeof(struct wire_choice_end) * done->n_choices);
    for (uint32_t i = 0; i < done->n_choices; i++)
        done->choices[i].stop_index--;
    return ST_OK;
}

#define D(member) offsetof(struct wire_done, member)

static const struct field usage_fields[] = {
    { "prompt_tokens", field_u32, D(prompt_tokens), 0, 0, FIELD_REQUIRED, { 0 } },
    { "cached_tokens", field_u32, D(cached_tokens), 0, 0, FIELD_REQUIRED, { 0 } },
    { "completion_tokens", field_u32, D(completion_tokens), 0, 0, FIELD_REQUIRED, { 0 } },
};

static const struct field timings_fields[] = {
    { "queue_ms", field_f64, D(queue_ms), 0, 0, 0, { 0 } },
    { "prefill_ms", field_f64, D(prefill_ms), 0, 0, 0, { 0 } },
    { "first_token_ms", field_f64, D(first_token_ms), 0, 0, 0, { 0 } },
    { "total_ms", field_f64, D(total_ms), 0, 0, 0, { 0 } },
};

static enum status read_usage(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    if (v->type != MSGPACK_OBJECT_MAP)
        return field_refuse_value(d, f, v, "a map");
    return read_table(d, usage_fields, COUNT(usage_fields), v, to);
}

static enum status read_timings(struct decoder *d, const struct field *f, const msgpack_object *v, void *to)
{
    if (v->type != MSGPACK_OBJECT_MAP)
        return field_refuse_value(d, f, v, "a map");
    return read_table(d, timings_fields, COUNT(timings_fields), v, to);
}

static const struct field done_fields[] = {
    { "id", field_id, D(id), 0, 0, FIELD_REQUIRED, { 0 } },
    { "choices", read_choices, 0, 0, 0, FIELD_REQUIRED, { 0 } },
    { "usage", read_usage, 0, 0, 0, FIELD_REQUIRED, { 0 } },
    { "timings", read_timings, 0, 0, 0, 0, { 0 } },
    { "worker", field_u32, D(worker), 0, 0, 0, { 0 } },
    { "takeovers", field_u32, D(takeovers), 0, 0, 0, { 0 } },
    { "preemptions", field_u32, D(preemptions), 0, 0, 0, { 0 } },
    { "model", field_text, D(model), 0, 0, 0, { 0 } },
    { "system_fingerprint", field_text, D(system_fingerprint), 0, 0, 0, { 0 } },
};

static enum status read_done(struct decoder *d, const msgpack_object *v, struct wire_message *m)
{
    struct wire_done done = { 0 };
    enum status st = read_table(d, done_fields, COUNT(done_fields), v, &done);

    if (st == ST_OK)
        m->done = done;
    return st;
}

/* --- which reply it is ----------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum wire_type type;
    enum status (*read)(struct decoder *d, const msgpack_object *v, struct wire_message *m);
} replies[] = {
    { "hello", WIRE_HELLO_REPLY, read_raw },   { "accepted", WIRE_ACCEPTED, read_accepted },
    { "token", WIRE_TOKEN, read_token },       { "progress", WIRE_PROGRESS, read_progress },
    { "done", WIRE_DONE, read_done },          { "error", WIRE_ERROR, read_error },
    { "ids", WIRE_IDS, read_ids },             { "models", WIRE_MODELS_REPLY, read_raw },
    { "status", WIRE_STATUS_REPLY, read_raw }, { "admin", WIRE_ADMIN_REPLY, read_raw },
    { "trace", WIRE_TRACE_REPLY, read_raw },
};

static enum status read_reply(struct decoder *d, struct span frame, const struct wire_scan *scan, const msgpack_object *v,
                              struct wire_message *m)
{
    const msgpack_object *type = map_value(v, "type"), *id = map_value(v, "id");

    if (scan->bad_utf8)
        return decoder_refuse_utf8(d, scan);
    if (id != NULL && id->type != MSGPACK_OBJECT_NIL) {
        enum status st = field_id(d, &(struct field){ .key = "id" }, id, &m->id);
        if (st != ST_OK)
            return st;
    }
    if (type == NULL)
        return field_refuse(d, ERR_INVALID_REQUEST, "type", "is missing");
    for (size_t i = 0; i < COUNT(replies) && type->type == MSGPACK_OBJECT_STR; i++) {
        if (!span_is(span_of(type->via.str.ptr, type->via.str.size), replies[i].name))
            continue;
        m->type = replies[i].type;
        if (replies[i].read == read_raw)
            m->raw.body = frame;
        return replies[i].read(d, v, m);
    }
    return field_refuse_value(d, &(struct field){ .key = "type" }, type, "a reply's");
}

enum status wire_decode_reply(struct span frame, struct wire_message *ret_message, struct error *err)
{
    return decoder_run(frame, false, "a reply", read_reply, ret_message, err);
}

void wire_message_deinit(struct wire_message *m)
{
    msgpack_zone_free(m->arena);
    *m = (struct wire_message){ 0 };
}
