/* record.c - see record.h.  Parts start at multiples of 8 behind the fixed head; every gap is zero, so no byte of the broker's
 * memory reaches a worker by accident. */
#include "record.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static uint64_t messages_bytes(const struct wire_generate *g)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_messages; i++)
        n += up(8 + g->messages[i].role.n + g->messages[i].content.n, 4);
    return n;
}

static uint64_t prompt_bytes(const struct wire_generate *g)
{
    switch (g->prompt_kind) {
    case WORK_PROMPT_TEXT:
        return g->prompt.n;
    case WORK_PROMPT_IDS:
        return (uint64_t)g->n_prompt_ids * 4;
    case WORK_PROMPT_MESSAGES:
        return messages_bytes(g);
    }
    return 0;
}

static void put_u32(uint8_t *at, uint64_t value)
{
    uint32_t v = (uint32_t)value;

    memcpy(at, &v, 4);
}

static void put_span(uint8_t *at, struct span s)
{
    if (s.n > 0)
        memcpy(at, s.at, s.n);
}

static void put_prompt(const struct wire_generate *g, uint8_t *at)
{
    switch (g->prompt_kind) {
    case WORK_PROMPT_TEXT:
        put_span(at, g->prompt);
        break;
    case WORK_PROMPT_IDS:
        put_span(at, span_of(g->prompt_ids, (size_t)g->n_prompt_ids * 4));
        break;
    case WORK_PROMPT_MESSAGES:
        for (uint32_t i = 0; i < g->n_messages; i++) {
            struct span role = g->messages[i].role, content = g->messages[i].content;

            put_u32(at, role.n);
            put_u32(at + 4, content.n);
            put_span(at + 8, role);
            put_span(at + 8 + role.n, content);
            at += up(8 + role.n + content.n, 4);
        }
        break;
    }
}

/* Lay out parts of these sizes behind the head.  Gives the record's size, 0 when it is over RECORD_BYTES_MAX. */
static uint32_t lay_out(struct work_part *const parts[], const uint64_t bytes[], unsigned n_parts)
{
    uint64_t at = sizeof(struct work_request);

    for (unsigned i = 0; i < n_parts; i++) {
        at = up(at, 8);
        *parts[i] = (struct work_part){ (uint32_t)at, (uint32_t)bytes[i] };
        at += bytes[i];
        if (at > RECORD_BYTES_MAX)
            return 0;
    }
    return (uint32_t)up(at, 8);
}

static enum status allocate(const struct work_request *head, uint32_t bytes, struct record *ret_record, struct error *err)
{
    if (bytes == 0) {
        error_set(err, ERR_LIMIT_EXCEEDED, "prompt", "the request takes more than %d bytes", RECORD_BYTES_MAX);
        return ST_LIMIT;
    }
    uint8_t *at = calloc(1, bytes);
    if (at == NULL) {
        error_set(err, ERR_INTERNAL, "", "out of memory for a request of %u bytes", bytes);
        return ST_NOMEM;
    }
    memcpy(at, head, sizeof(*head));
    ((struct work_request *)at)->record_bytes = bytes;
    *ret_record = (struct record){ at, bytes };
    return ST_OK;
}

static uint16_t flags_of(const struct wire_generate *g)
{
    return (uint16_t)((g->raw ? WORK_RAW : 0) | (g->ignore_eos ? WORK_IGNORE_EOS : 0) | (g->cache_off ? WORK_CACHE_OFF : 0) |
                      (g->batch_class ? 0 : WORK_INTERACTIVE));
}

enum status record_of_generate(const struct wire_generate *g, const struct record_context *c, struct record *ret_record,
                               struct error *err)
{
    struct work_request head = {
        .version = WORK_VERSION,
        .kind = WORK_GENERATE,
        .prompt_kind = (uint8_t)g->prompt_kind,
        .flags = flags_of(g),
        .n_choices = g->n,
        .max_tokens = g->max_tokens,
        .n_messages = g->n_messages,
        .n_stops = g->n_stops,
        .deadline_ns = c->deadline_ns,
        .scope = { c->scope[0], c->scope[1] },
        .arrived_ns = c->arrived_ns,
        .sampling = g->sampling,
    };
    struct work_part *const parts[] = { &head.prompt, &head.stops, &head.bias, &head.template_name };
    uint64_t bytes[] = { prompt_bytes(g), 0, (uint64_t)g->bias.n * sizeof(struct logit_bias), g->chat_template.n };

    for (uint32_t i = 0; i < g->n_stops; i++)
        bytes[1] += up(4 + g->stops[i].n, 4);
    head.sampling.seed = c->seed;
    uint32_t total = lay_out(parts, bytes, 4);
    enum status st = allocate(&head, total, ret_record, err);
    if (st != ST_OK)
        return st;

    put_prompt(g, ret_record->at + head.prompt.offset);
    uint8_t *at = ret_record->at + head.stops.offset;
    for (uint32_t i = 0; i < g->n_stops; i++) {
        put_u32(at, g->stops[i].n);
        put_span(at + 4, g->stops[i]);
        at += up(4 + g->stops[i].n, 4);
    }
    put_span(ret_record->at + head.bias.offset, span_of(g->bias.at, bytes[2]));
    put_span(ret_record->at + head.template_name.offset, g->chat_template);
    return ST_OK;
}

enum status record_of_tokenize(struct span text, bool special, const struct record_context *c, struct record *ret_record,
                               struct error *err)
{
    struct work_request head = {
        .version = WORK_VERSION,
        .kind = WORK_TOKENIZE,
        .prompt_kind = WORK_PROMPT_TEXT,
        .flags = (uint16_t)(WORK_INTERACTIVE | (special ? WORK_RAW : 0)),
        .n_choices = 1,
        .max_tokens = 1,
        .deadline_ns = c->deadline_ns,
        .scope = { c->scope[0], c->scope[1] },
        .arrived_ns = c->arrived_ns,
        .sampling = { .top_p = 1, .repetition_penalty = 1 },
    };
    struct work_part *const parts[] = { &head.prompt };
    uint32_t total = lay_out(parts, (uint64_t[]){ text.n }, 1);
    enum status st = allocate(&head, total, ret_record, err);

    if (st == ST_OK)
        put_span(ret_record->at + head.prompt.offset, text);
    return st;
}

void record_deinit(struct record *r)
{
    free(r->at);
    *r = (struct record){ 0 };
}

void record_set_seed(struct record *r, uint64_t seed)
{
    memcpy(r->at + offsetof(struct work_request, sampling) + offsetof(struct sampling, seed), &seed, sizeof(seed));
}

struct span record_prompt(const struct record *r)
{
    return span_of(r->at + record_head(r)->prompt.offset, record_head(r)->prompt.bytes);
}

uint64_t record_resumed_bytes(const struct record *r, const struct record_resume *resume, uint32_t n_resume)
{
    uint64_t n = r->bytes;

    for (uint32_t i = 0; i < n_resume; i++)
        n += sizeof(struct work_resume) + (uint64_t)resume[i].n_ids * 4;
    return n;
}

void record_write(const struct record *r, uint32_t slot, uint32_t generation, uint64_t fair_tag, const struct record_resume *resume,
                  uint32_t n_resume, uint8_t *dest)
{
    struct work_request head = *record_head(r);
    uint8_t *at = dest + r->bytes;

    for (uint32_t i = 0; i < n_resume; i++) {
        struct work_resume w = { .choice = resume[i].choice,
                                 .n_ids = resume[i].n_ids,
                                 .released_bytes = resume[i].released_bytes,
                                 .finished = resume[i].finished };

        memcpy(at, &w, sizeof(w));
        if (w.n_ids > 0)
            memcpy(at + sizeof(w), resume[i].ids, (size_t)w.n_ids * 4);
        at += sizeof(w) + (size_t)w.n_ids * 4;
    }
    head.slot = slot;
    head.generation = generation;
    head.fair_tag = fair_tag;
    head.n_resume = n_resume;
    head.resume = (struct work_part){ r->bytes, (uint32_t)(at - dest) - r->bytes };
    head.record_bytes = (uint32_t)(at - dest);
    memcpy(dest, &head, sizeof(head));
    memcpy(dest + sizeof(head), r->at + sizeof(head), r->bytes - sizeof(head));
}
