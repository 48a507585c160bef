/* request_check.c - is a record what work.h says it is?  Nothing here tokenizes or allocates beyond the copy.
 *
 * The broker checked the same things when the client's message came; it is checked again because the region is writable by
 * another process, and because a worker that trusted a count would be the one to crash. */
#include "request_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

static bool bad(struct request *r, const char *param, const char *what)
{
    error_set(&r->error, ERR_MALFORMED_MESSAGE, param, "the record of this request is broken: %s", what);
    return false;
}

static bool part_ok(struct request *r, struct work_part p, uint32_t unit, const char *name)
{
    if (p.bytes == 0)
        return true;
    if (p.offset < sizeof(struct work_request) || p.offset > r->head.record_bytes ||
        p.bytes > r->head.record_bytes - p.offset || p.offset % unit != 0)
        return bad(r, name, "a part lies outside");
    return true;
}

const uint8_t *request_part(const struct request *r, struct work_part p)
{
    return r->record + p.offset;
}

static uint32_t get_u32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof(v));
    return v;
}

static bool in_range(float v, float low, float high)
{
    return isfinite(v) && v >= low && v <= high;
}

static bool sampling_ok(struct request *r)
{
    const struct sampling *s = &r->head.sampling;
    if (!in_range(s->temperature, 0, 100))
        return bad(r, "temperature", "out of range");
    if (!in_range(s->top_p, 0, 1) || s->top_p == 0)
        return bad(r, "top_p", "out of range");
    if (!in_range(s->min_p, 0, 1))
        return bad(r, "min_p", "out of range");
    if (!isfinite(s->repetition_penalty) || s->repetition_penalty <= 0)
        return bad(r, "repetition_penalty", "out of range");
    if (!in_range(s->presence_penalty, -2, 2))
        return bad(r, "presence_penalty", "out of range");
    if (!in_range(s->frequency_penalty, -2, 2))
        return bad(r, "frequency_penalty", "out of range");
    if (s->n_logprobs > LOGPROBS_MAX || s->logprobs > 1)
        return bad(r, "logprobs", "out of range");
    return true;
}

static bool head_ok(struct request *r, uint32_t record_bytes, uint32_t slot, uint32_t generation)
{
    const struct work_request *h = &r->head;
    const uint16_t known = WORK_RAW | WORK_IGNORE_EOS | WORK_CACHE_OFF | WORK_INTERACTIVE;
    if (h->version != WORK_VERSION)
        return bad(r, "version", "another version");
    if (h->record_bytes != record_bytes || h->slot != slot || h->generation != generation)
        return bad(r, "", "it is not the one the ring announced");
    if (h->kind != WORK_GENERATE && h->kind != WORK_TOKENIZE)
        return bad(r, "kind", "unknown");
    if (h->prompt_kind < WORK_PROMPT_TEXT || h->prompt_kind > WORK_PROMPT_MESSAGES ||
        (h->kind == WORK_TOKENIZE && h->prompt_kind != WORK_PROMPT_TEXT))
        return bad(r, "prompt_kind", "unknown");
    if ((h->flags & ~known) != 0)
        return bad(r, "flags", "unknown bits");
    if (h->n_choices < 1 || h->n_choices > CHOICES_MAX)
        return bad(r, "n", "out of range");
    if (h->max_tokens > OUTPUT_TOKENS_MAX)
        return bad(r, "max_tokens", "out of range");
    if (h->n_messages > MESSAGES_MAX || h->n_stops > STOPS_MAX || h->n_resume > h->n_choices)
        return bad(r, "", "a count is out of range");
    return sampling_ok(r);
}

/* Roles and contents fill the part exactly, and all are UTF-8. */
static bool messages_ok(struct request *r)
{
    uint32_t at = 0, bytes = r->head.prompt.bytes;
    const uint8_t *part = request_part(r, r->head.prompt);
    uint64_t total = 0;
    for (uint32_t i = 0; i < r->head.n_messages; i++) {
        if (bytes - at < 8)
            return bad(r, "messages", "cut short");
        uint32_t role = get_u32(part + at), content = get_u32(part + at + 4);
        if (role >= NAME_BYTES_MAX)
            return bad(r, "messages", "a role is too long");
        uint64_t size = 8 + (uint64_t)role + content;
        size = (size + 3) / 4 * 4;
        if (size > bytes - at)
            return bad(r, "messages", "cut short");
        if (!utf8_valid(span_of(part + at + 8, role)) || !utf8_valid(span_of(part + at + 8 + role, content)))
            return bad(r, "messages", "not UTF-8");
        total += content; /* as the broker counts them */
        at += (uint32_t)size;
    }
    if (at != bytes || total > PROMPT_BYTES_MAX)
        return bad(r, "messages", "of another size");
    return true;
}

void request_messages(const struct request *r, struct chat_message *ret_messages)
{
    const uint8_t *at = request_part(r, r->head.prompt);
    for (uint32_t i = 0; i < r->head.n_messages; i++) {
        uint32_t role = get_u32(at), content = get_u32(at + 4);
        ret_messages[i].role = span_of(at + 8, role);
        ret_messages[i].content = span_of(at + 8 + role, content);
        at += (8 + (size_t)role + content + 3) / 4 * 4;
    }
}

static bool id_ok(const struct request *r, int32_t id)
{
    return id >= 0 && (uint32_t)id < r->limits->n_vocab;
}

static bool prompt_ids_ok(struct request *r)
{
    uint32_t n = r->head.prompt.bytes / 4;
    if (r->head.prompt.bytes % 4 != 0 || n > PROMPT_IDS_MAX)
        return bad(r, "prompt_ids", "of an impossible size");
    const int32_t *ids = (const int32_t *)request_part(r, r->head.prompt);
    for (uint32_t i = 0; i < n; i++) {
        if (id_ok(r, ids[i]))
            continue;
        char param[48];
        snprintf(param, sizeof(param), "prompt_ids[%u]", i);
        error_set(&r->error, ERR_INVALID_PARAMETER, param, "token id %d is outside the model's vocabulary of %u", ids[i],
                  r->limits->n_vocab);
        return false;
    }
    return true;
}

static bool prompt_ok(struct request *r)
{
    bool is_ids = r->head.prompt_kind == WORK_PROMPT_IDS;
    if (!part_ok(r, r->head.prompt, r->head.prompt_kind == WORK_PROMPT_TEXT ? 1 : 4, "prompt"))
        return false;
    if (is_ids)
        return prompt_ids_ok(r);
    if (r->head.prompt_kind == WORK_PROMPT_MESSAGES)
        return messages_ok(r);
    if (r->head.prompt.bytes > PROMPT_BYTES_MAX)
        return bad(r, "prompt", "too long");
    if (!utf8_valid(span_of(request_part(r, r->head.prompt), r->head.prompt.bytes)))
        return bad(r, "prompt", "not UTF-8");
    return true;
}

static bool stops_ok(struct request *r)
{
    struct span stops[STOPS_MAX];
    uint32_t at = 0, bytes = r->head.stops.bytes;
    if (!part_ok(r, r->head.stops, 4, "stop"))
        return false;
    const uint8_t *part = request_part(r, r->head.stops);
    for (uint32_t i = 0; i < r->head.n_stops; i++) {
        if (bytes - at < 4)
            return bad(r, "stop", "cut short");
        uint32_t n = get_u32(part + at);
        if (n > STOP_BYTES_MAX || (4 + n + 3) / 4 * 4 > bytes - at)
            return bad(r, "stop", "cut short");
        stops[i] = span_of(part + at + 4, n);
        at += (4 + n + 3) / 4 * 4;
    }
    if (at != bytes)
        return bad(r, "stop", "of another size");
    return stop_set_init(&r->rules.stops, stops, r->head.n_stops, &r->error) == ST_OK;
}

static bool bias_ok(struct request *r)
{
    uint32_t n = r->head.bias.bytes / sizeof(struct logit_bias);
    if (!part_ok(r, r->head.bias, 4, "logit_bias"))
        return false;
    if (r->head.bias.bytes % sizeof(struct logit_bias) != 0 || n > LOGIT_BIAS_MAX)
        return bad(r, "logit_bias", "of an impossible size");
    r->bias = (const struct logit_bias *)request_part(r, r->head.bias);
    for (uint32_t i = 0; i < n; i++) {
        if (!id_ok(r, r->bias[i].token)) {
            error_set(&r->error, ERR_INVALID_PARAMETER, "logit_bias",
                      "token id %d is outside the model's vocabulary of %u", r->bias[i].token, r->limits->n_vocab);
            return false;
        }
        if (!in_range(r->bias[i].bias, -100, 100))
            return bad(r, "logit_bias", "out of range");
    }
    return true;
}

static bool template_ok(struct request *r)
{
    if (!part_ok(r, r->head.template_name, 1, "chat_template"))
        return false;
    if (r->head.prompt_kind != WORK_PROMPT_MESSAGES)
        return true;
    r->chat = *r->limits->chat;
    if (r->head.template_name.bytes == 0)
        return true;
    struct span name = span_of(request_part(r, r->head.template_name), r->head.template_name.bytes);
    return chat_template_by_name(name, &r->chat, &r->error) == ST_OK;
}

bool request_resume_next(const struct request *r, uint32_t *at, struct work_resume *ret_head, const int32_t **ret_ids)
{
    const uint8_t *part = request_part(r, r->head.resume);
    uint32_t bytes = r->head.resume.bytes;
    if (bytes - *at < sizeof(*ret_head))
        return false;
    memcpy(ret_head, part + *at, sizeof(*ret_head));
    if (ret_head->n_ids > (bytes - *at - sizeof(*ret_head)) / 4)
        return false;
    *ret_ids = (const int32_t *)(part + *at + sizeof(*ret_head));
    *at += (uint32_t)sizeof(*ret_head) + ret_head->n_ids * 4;
    return true;
}

static bool resume_ok(struct request *r)
{
    bool seen[CHOICES_MAX] = { false };
    uint32_t at = 0;
    if (!part_ok(r, r->head.resume, 4, "resume"))
        return false;
    for (uint32_t i = 0; i < r->head.n_resume; i++) {
        struct work_resume w;
        const int32_t *ids;
        if (!request_resume_next(r, &at, &w, &ids))
            return bad(r, "resume", "cut short");
        if (w.choice >= r->head.n_choices || seen[w.choice] || w.finished > 1 || w.n_ids > OUTPUT_TOKENS_MAX)
            return bad(r, "resume", "an impossible choice");
        seen[w.choice] = true;
        for (uint32_t k = 0; k < w.n_ids; k++)
            if (!id_ok(r, ids[k]))
                return bad(r, "resume", "a token id outside the vocabulary");
    }
    return at == r->head.resume.bytes ? true : bad(r, "resume", "of another size");
}

enum status request_new(const uint8_t *bytes, uint32_t record_bytes, uint32_t slot, uint32_t generation,
                        const struct request_limits *limits, struct request **ret_request)
{
    struct request *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return ST_NOMEM;
    r->slot = slot;
    r->generation = generation;
    r->limits = limits;
    r->record = malloc(record_bytes > 0 ? record_bytes : 1);
    if (r->record == NULL) {
        free(r);
        return ST_NOMEM;
    }
    memcpy(r->record, bytes, record_bytes);
    *ret_request = r;
    if (record_bytes < sizeof(r->head)) {
        bad(r, "", "cut short");
        return ST_OK;
    }
    memcpy(&r->head, r->record, sizeof(r->head));
    r->rules.tokenizer = limits->tokenizer;
    r->rules.ignore_eos = (r->head.flags & WORK_IGNORE_EOS) != 0;
    if (head_ok(r, record_bytes, slot, generation) && prompt_ok(r) && stops_ok(r) && bias_ok(r) && template_ok(r))
        (void)!resume_ok(r); /* says what is wrong in r->error */
    return ST_OK;
}
