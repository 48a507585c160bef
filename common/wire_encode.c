/* wire_encode.c - writes messages.
 *
 * How many entries a map will have is often known only at its end, so every map and list gets a header of fixed width (map 16,
 * array 32) whose count is patched when it is ended.  The values are packed by msgpack-c into a buffer that grows and is
 * reused: in the steady state an encode allocates nothing.  An allocation that fails sets a flag that the end looks at. */
#include "wire.h"

#include <assert.h>
#include <msgpack.h>
#include <stdlib.h>

#include "utf8.h"

enum { FIRST_CAPACITY = 512, MAP16 = 0xDE, ARRAY32 = 0xDD };

/* --- the buffer ------------------------------------------------------------------------------ */

static int append(void *buffer, const char *at, size_t n)
{
    struct wire_buffer *b = buffer;

    if (b->failed)
        return -1;
    if (n > b->capacity - b->n) {
        size_t capacity = b->capacity > 0 ? b->capacity : FIRST_CAPACITY;

        while (capacity - b->n < n)
            capacity *= 2;
        uint8_t *grown = realloc(b->at, capacity);
        if (grown == NULL) {
            b->failed = true;
            return -1;
        }
        b->at = grown;
        b->capacity = capacity;
    }
    if (n > 0)
        memcpy(b->at + b->n, at, n);
    b->n += n;
    return 0;
}

static msgpack_packer packer_of(struct wire_buffer *b)
{
    msgpack_packer p;

    msgpack_packer_init(&p, b, append);
    return p;
}

void wire_buffer_deinit(struct wire_buffer *b)
{
    free(b->at);
    *b = (struct wire_buffer){ 0 };
}

static void pack_str(struct wire_buffer *b, struct span text)
{
    msgpack_packer p = packer_of(b);

    msgpack_pack_str(&p, text.n);
    append(b, (const char *)text.at, text.n);
}

/* One more element of the innermost list or map: its key, where it is a map. */
static void element(struct wire_buffer *b, const char *key)
{
    if (b->depth == 0) {
        assert(key == NULL);
        return;
    }
    assert(b->open[b->depth - 1].is_map == (key != NULL));
    b->open[b->depth - 1].n_elements++;
    if (key != NULL)
        pack_str(b, span_str(key));
}

static void begin(struct wire_buffer *b, const char *key, bool is_map)
{
    const char header[5] = { (char)(is_map ? MAP16 : ARRAY32) };

    if (b->depth == 0) {
        b->n = 0;
        b->failed = false;
    }
    assert(b->depth < FRAME_NESTING_MAX);
    element(b, key);
    b->open[b->depth].header_at = b->n;
    b->open[b->depth].n_elements = 0;
    b->open[b->depth].is_map = is_map;
    b->depth++;
    append(b, header, is_map ? 3 : 5);
}

void wire_map_begin(struct wire_buffer *b, const char *key)
{
    begin(b, key, true);
}

void wire_array_begin(struct wire_buffer *b, const char *key)
{
    begin(b, key, false);
}

void wire_end(struct wire_buffer *b)
{
    assert(b->depth > 0);
    b->depth--;
    if (b->failed)
        return;
    uint32_t n = b->open[b->depth].n_elements;
    unsigned width = b->open[b->depth].is_map ? 2 : 4;
    assert(width == 4 || n <= UINT16_MAX);
    for (unsigned i = 0; i < width; i++)
        b->at[b->open[b->depth].header_at + 1 + i] = (uint8_t)(n >> 8 * (width - 1 - i));
}

void wire_put_str(struct wire_buffer *b, const char *key, struct span value)
{
    element(b, key);
    pack_str(b, value);
}

void wire_put_u64(struct wire_buffer *b, const char *key, uint64_t value)
{
    msgpack_packer p = packer_of(b);

    element(b, key);
    msgpack_pack_uint64(&p, value);
}

void wire_put_f64(struct wire_buffer *b, const char *key, double value)
{
    msgpack_packer p = packer_of(b);

    element(b, key);
    msgpack_pack_double(&p, value);
}

void wire_put_bool(struct wire_buffer *b, const char *key, bool value)
{
    msgpack_packer p = packer_of(b);

    element(b, key);
    if (value)
        msgpack_pack_true(&p);
    else
        msgpack_pack_false(&p);
}

static void put_f32(struct wire_buffer *b, const char *key, float value)
{
    msgpack_packer p = packer_of(b);

    element(b, key);
    msgpack_pack_float(&p, value);
}

static void put_bin(struct wire_buffer *b, const char *key, struct span value)
{
    msgpack_packer p = packer_of(b);

    element(b, key);
    msgpack_pack_bin(&p, value.n);
    append(b, (const char *)value.at, value.n);
}

static void put_ids(struct wire_buffer *b, const char *key, const int32_t *ids, uint32_t n)
{
    msgpack_packer p = packer_of(b);

    wire_array_begin(b, key);
    for (uint32_t i = 0; i < n; i++)
        msgpack_pack_int32(&p, ids[i]);
    b->open[b->depth - 1].n_elements = n;
    wire_end(b);
}

static void put_id(struct wire_buffer *b, struct span id)
{
    if (utf8_valid(id))
        wire_put_str(b, "id", id);
    else
        put_bin(b, "id", id);
}

static void put_str_if(struct wire_buffer *b, const char *key, struct span value)
{
    if (value.n > 0)
        wire_put_str(b, key, value);
}

/* Bytes that clients may give as str or bin. */
static void put_bytes_if(struct wire_buffer *b, const char *key, struct span value)
{
    if (value.n > 0 && utf8_valid(value))
        wire_put_str(b, key, value);
    else if (value.n > 0)
        put_bin(b, key, value);
}

static void begin_message(struct wire_buffer *b, const char *type)
{
    b->depth = 0;
    wire_map_begin(b, NULL);
    wire_put_str(b, "type", span_str(type));
}

static enum status end_message(struct wire_buffer *b)
{
    wire_end(b);
    assert(b->depth == 0);
    return b->failed ? ST_NOMEM : ST_OK;
}

/* --- requests -------------------------------------------------------------------------------- */

enum status wire_encode_hello(struct wire_buffer *b, struct span client)
{
    begin_message(b, "hello");
    put_str_if(b, "client", client);
    return end_message(b);
}

static void put_messages(struct wire_buffer *b, const struct wire_generate *g)
{
    wire_array_begin(b, "messages");
    for (uint32_t i = 0; i < g->n_messages; i++) {
        wire_map_begin(b, NULL);
        wire_put_str(b, "role", g->messages[i].role);
        wire_put_str(b, "content", g->messages[i].content);
        wire_end(b);
    }
    wire_end(b);
}

static void put_sampling(struct wire_buffer *b, const struct wire_generate *g)
{
    const struct sampling *s = &g->sampling;

    if (g->has_seed)
        wire_put_u64(b, "seed", s->seed);
    if (g->has_temperature)
        put_f32(b, "temperature", s->temperature);
    if (s->top_p != 1)
        put_f32(b, "top_p", s->top_p);
    if (s->top_k != 0)
        wire_put_u64(b, "top_k", s->top_k);
    if (s->min_p != 0)
        put_f32(b, "min_p", s->min_p);
    if (s->repetition_penalty != 1)
        put_f32(b, "repetition_penalty", s->repetition_penalty);
    if (s->presence_penalty != 0)
        put_f32(b, "presence_penalty", s->presence_penalty);
    if (s->frequency_penalty != 0)
        put_f32(b, "frequency_penalty", s->frequency_penalty);
    if (s->logprobs)
        wire_put_bool(b, "logprobs", true);
    if (s->n_logprobs != 0)
        wire_put_u64(b, "top_logprobs", s->n_logprobs);
    if (g->bias.n > 0) {
        msgpack_packer p = packer_of(b);

        wire_map_begin(b, "logit_bias");
        for (uint32_t i = 0; i < g->bias.n; i++) {
            msgpack_pack_int32(&p, g->bias.at[i].token);
            msgpack_pack_float(&p, g->bias.at[i].bias);
        }
        b->open[b->depth - 1].n_elements = g->bias.n;
        wire_end(b);
    }
}

static void put_resume(struct wire_buffer *b, const struct wire_generate *g)
{
    if (g->n_resume == 0)
        return;
    wire_array_begin(b, "resume");
    for (uint32_t i = 0; i < g->n_resume; i++) {
        wire_map_begin(b, NULL);
        wire_put_u64(b, "choice", g->resume[i].choice);
        put_ids(b, "ids", g->resume[i].ids, g->resume[i].n_ids);
        wire_put_u64(b, "released_bytes", g->resume[i].released_bytes);
        wire_end(b);
    }
    wire_end(b);
}

/* What is not about tokens: whose it is, when, and what may be reused. */
static void put_handling(struct wire_buffer *b, const struct wire_generate *g)
{
    put_str_if(b, "model", g->model);
    put_str_if(b, "adapter", g->adapter);
    if (g->batch_class)
        wire_put_str(b, "class", span_str("batch"));
    if (g->priority != PRIORITY_NORMAL)
        wire_put_str(b, "priority", span_str(g->priority == PRIORITY_HIGH ? "high" : "low"));
    if (!g->stream)
        wire_put_bool(b, "stream", false);
    if (g->cache_off)
        wire_put_str(b, "cache", span_str("off"));
    if (g->takeover_any)
        wire_put_str(b, "takeover", span_str("any"));
    if (g->deadline_ms != 0)
        wire_put_u64(b, "deadline_ms", g->deadline_ms);
    put_str_if(b, "scope", g->scope);
    put_bytes_if(b, "salt", g->salt);
    put_str_if(b, "session", g->session);
    if (g->session_ttl_ms != 0)
        wire_put_u64(b, "session_ttl_ms", g->session_ttl_ms);
    put_bytes_if(b, "idempotency_key", g->idempotency_key);
    put_str_if(b, "on_behalf_of", g->on_behalf_of);
}

enum status wire_encode_generate(struct wire_buffer *b, const struct wire_generate *g)
{
    begin_message(b, "generate");
    put_id(b, g->id);
    if (g->prompt_kind == WORK_PROMPT_TEXT)
        wire_put_str(b, "prompt", g->prompt);
    else if (g->prompt_kind == WORK_PROMPT_IDS)
        put_ids(b, "prompt_ids", g->prompt_ids, g->n_prompt_ids);
    else if (g->prompt_kind == WORK_PROMPT_MESSAGES)
        put_messages(b, g);
    put_str_if(b, "chat_template", g->chat_template);
    if (g->raw)
        wire_put_bool(b, "raw", true);
    put_handling(b, g);
    if (g->max_tokens != 0)
        wire_put_u64(b, "max_tokens", g->max_tokens);
    if (g->n > 1)
        wire_put_u64(b, "n", g->n);
    if (g->ignore_eos)
        wire_put_bool(b, "ignore_eos", true);
    put_sampling(b, g);
    if (g->n_stops > 0) {
        wire_array_begin(b, "stop");
        for (uint32_t i = 0; i < g->n_stops; i++)
            wire_put_str(b, NULL, g->stops[i]);
        wire_end(b);
    }
    put_resume(b, g);
    return end_message(b);
}

enum status wire_encode_simple(struct wire_buffer *b, enum wire_type type, struct span id)
{
    assert(type == WIRE_CANCEL || type == WIRE_MODELS || type == WIRE_STATUS);
    begin_message(b, type == WIRE_CANCEL ? "cancel" : type == WIRE_MODELS ? "models" : "status");
    put_id(b, id);
    return end_message(b);
}

enum status wire_encode_tokenize(struct wire_buffer *b, struct span id, struct span model, struct span text, bool special)
{
    begin_message(b, "tokenize");
    put_id(b, id);
    put_str_if(b, "model", model);
    wire_put_str(b, "text", text);
    if (special)
        wire_put_bool(b, "special", true);
    return end_message(b);
}

enum status wire_encode_session_end(struct wire_buffer *b, struct span id, struct span session, struct span on_behalf_of)
{
    begin_message(b, "session_end");
    put_id(b, id);
    wire_put_str(b, "session", session);
    put_str_if(b, "on_behalf_of", on_behalf_of);
    return end_message(b);
}

enum status wire_encode_trace(struct wire_buffer *b, struct span id, struct span request, struct span on_behalf_of)
{
    begin_message(b, "trace");
    put_id(b, id);
    put_str_if(b, "request", request);
    put_str_if(b, "on_behalf_of", on_behalf_of);
    return end_message(b);
}

enum status wire_encode_admin(struct wire_buffer *b, const struct wire_admin *a)
{
    begin_message(b, "admin");
    put_id(b, a->id);
    wire_put_str(b, "verb", span_str(wire_admin_verb_name(a->verb)));
    if (a->verb != WIRE_WORKER_ADD)
        wire_put_u64(b, "worker", a->worker);
    put_str_if(b, "model", a->model);
    put_str_if(b, "device", a->device);
    return end_message(b);
}

/* --- replies --------------------------------------------------------------------------------- */

enum status wire_encode_accepted(struct wire_buffer *b, struct span id, struct span request, uint64_t seed)
{
    begin_message(b, "accepted");
    put_id(b, id);
    wire_put_str(b, "request", request);
    wire_put_u64(b, "seed", seed);
    return end_message(b);
}

/* The entries of one {id, logprob, bytes}. */
static void put_piece(struct wire_buffer *b, const struct wire_piece *piece)
{
    msgpack_packer p = packer_of(b);

    element(b, "id");
    msgpack_pack_int32(&p, piece->id);
    put_f32(b, "logprob", piece->logprob);
    put_bin(b, "bytes", piece->bytes);
}

static void put_logprobs(struct wire_buffer *b, const struct wire_token *t)
{
    wire_array_begin(b, "logprobs");
    for (uint32_t i = 0; i < t->n_ids; i++) {
        wire_map_begin(b, NULL);
        put_piece(b, &t->logprobs[i].chosen);
        wire_array_begin(b, "top");
        for (uint32_t k = 0; k < t->logprobs[i].n_top; k++) {
            wire_map_begin(b, NULL);
            put_piece(b, &t->logprobs[i].top[k]);
            wire_end(b);
        }
        wire_end(b);
        wire_end(b);
    }
    wire_end(b);
}

enum status wire_encode_token(struct wire_buffer *b, const struct wire_token *t)
{
    begin_message(b, "token");
    put_id(b, t->id);
    wire_put_u64(b, "choice", t->choice);
    wire_put_u64(b, "index", t->index);
    put_ids(b, "ids", t->ids, t->n_ids);
    wire_put_str(b, "text", t->text);
    if (t->logprobs != NULL)
        put_logprobs(b, t);
    return end_message(b);
}

enum status wire_encode_progress(struct wire_buffer *b, struct span id, bool running, uint32_t ahead)
{
    begin_message(b, "progress");
    put_id(b, id);
    wire_put_str(b, "state", span_str(running ? "running" : "queued"));
    wire_put_u64(b, "ahead", ahead);
    return end_message(b);
}

enum status wire_encode_done(struct wire_buffer *b, const struct wire_done *d)
{
    begin_message(b, "done");
    put_id(b, d->id);
    wire_array_begin(b, "choices");
    for (uint32_t i = 0; i < d->n_choices; i++) {
        wire_map_begin(b, NULL);
        wire_put_str(b, "finish_reason", span_str(finish_reason_name(d->choices[i].reason)));
        if (d->choices[i].stop_index >= 0)
            wire_put_u64(b, "stop_index", (uint64_t)d->choices[i].stop_index);
        wire_put_u64(b, "n_tokens", d->choices[i].n_tokens);
        wire_end(b);
    }
    wire_end(b);
    wire_map_begin(b, "usage");
    wire_put_u64(b, "prompt_tokens", d->prompt_tokens);
    wire_put_u64(b, "cached_tokens", d->cached_tokens);
    wire_put_u64(b, "completion_tokens", d->completion_tokens);
    wire_end(b);
    wire_map_begin(b, "timings");
    wire_put_f64(b, "queue_ms", d->queue_ms);
    wire_put_f64(b, "prefill_ms", d->prefill_ms);
    wire_put_f64(b, "first_token_ms", d->first_token_ms);
    wire_put_f64(b, "total_ms", d->total_ms);
    wire_end(b);
    wire_put_u64(b, "worker", d->worker);
    wire_put_u64(b, "takeovers", d->takeovers);
    wire_put_u64(b, "preemptions", d->preemptions);
    wire_put_str(b, "model", d->model);
    wire_put_str(b, "system_fingerprint", d->system_fingerprint);
    return end_message(b);
}

enum status wire_encode_error(struct wire_buffer *b, const struct wire_error *e)
{
    begin_message(b, "error");
    if (e->id.n > 0)
        put_id(b, e->id);
    wire_put_str(b, "code", span_str(error_code_name(e->error.code)));
    wire_put_str(b, "message", span_str(e->error.message));
    if (e->error.param[0] != '\0')
        wire_put_str(b, "param", span_str(e->error.param));
    if (e->retry_after_ms != 0)
        wire_put_u64(b, "retry_after_ms", e->retry_after_ms);
    return end_message(b);
}

enum status wire_encode_ids(struct wire_buffer *b, struct span id, const int32_t *ids, uint32_t n)
{
    begin_message(b, "ids");
    put_id(b, id);
    put_ids(b, "ids", ids, n);
    return end_message(b);
}

/* --- names ----------------------------------------------------------------------------------- */

const char *finish_reason_name(enum finish_reason r)
{
    switch (r) {
    case FINISH_STOP:
        return "stop";
    case FINISH_LENGTH:
        return "length";
    case FINISH_CANCELLED:
        return "cancelled";
    case FINISH_ERROR:
        return "error";
    case FINISH_NONE:
        break;
    }
    return "none";
}

const char *wire_admin_verb_name(enum wire_admin_verb v)
{
    static const char *const names[] = {
        [WIRE_WORKER_PAUSE] = "pause", [WIRE_WORKER_RESUME] = "resume", [WIRE_WORKER_DRAIN] = "drain",
        [WIRE_WORKER_ADD] = "add",     [WIRE_WORKER_REMOVE] = "remove",
    };
    return names[v];
}

enum status wire_check_signature(struct span frame, uint8_t *ret_major)
{
    if (frame.n != WIRE_SIGNATURE_BYTES || memcmp(frame.at, WIRE_SIGNATURE, WIRE_SIGNATURE_BYTES - 1) != 0)
        return ST_INVALID;
    *ret_major = frame.at[WIRE_SIGNATURE_BYTES - 1];
    return *ret_major == WIRE_MAJOR ? ST_OK : ST_UNSUPPORTED;
}
