/* standalone.c - see standalone.h. */
#include "standalone.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

struct collector { /* what the events said of one choice */
    uint8_t *text;
    size_t n_text;
    int32_t *ids;
    uint32_t n_ids;
    enum finish_reason finish;
};

struct session {
    const struct standalone_options *opt;
    struct region broker, worker_side; /* two views of one region */
    int memory, bells[2];
    uint8_t *event;                    /* [EVENT_SLOTS_MAX * RING_SLOT_BYTES] */
    struct collector choices[CHOICES_MAX];
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t began_ns, first_token_ns, ended_ns;
    bool over, failed;
};

static size_t up4(size_t n)
{
    return (n + 3) / 4 * 4;
}

static void put_u32(uint8_t *at, size_t v)
{
    uint32_t u = (uint32_t)v;
    memcpy(at, &u, sizeof(u));
}

/* Write the record into the arena; returns its bytes, 0 when it does not fit. */
static uint32_t write_record(const struct standalone_options *o, uint8_t *arena, uint64_t arena_bytes)
{
    size_t n_prompt = strlen(o->prompt), at = sizeof(struct work_request);
    struct work_request h = {
        .version = WORK_VERSION,
        .generation = 1,
        .kind = WORK_GENERATE,
        .prompt_kind = o->chat ? WORK_PROMPT_MESSAGES : WORK_PROMPT_TEXT,
        .flags = (uint16_t)(WORK_INTERACTIVE | (o->raw ? WORK_RAW : 0) | (o->ignore_eos ? WORK_IGNORE_EOS : 0)),
        .n_choices = o->n_choices,
        .max_tokens = o->max_tokens,
        .n_messages = o->chat ? 1 : 0,
        .n_stops = o->n_stops,
        .sampling = o->sampling,
    };
    size_t head = o->chat ? 8 + 4 : 0; /* role and content lengths, "user" */
    h.prompt = (struct work_part){ (uint32_t)at, (uint32_t)(o->chat ? up4(head + n_prompt) : n_prompt) };
    if (at + up4(head + n_prompt) > RECORD_BYTES_MAX / 2 || RECORD_BYTES_MAX > arena_bytes)
        return 0;
    memset(arena + at, 0, up4(head + n_prompt));
    if (o->chat) {
        put_u32(arena + at, 4);
        put_u32(arena + at + 4, n_prompt);
        memcpy(arena + at + 8, "user", 4);
    }
    memcpy(arena + at + head, o->prompt, n_prompt);
    at += up4(head + n_prompt);
    h.stops.offset = (uint32_t)at;
    for (uint32_t i = 0; i < o->n_stops; i++) {
        size_t n = strlen(o->stops[i]);
        if (n > STOP_BYTES_MAX)
            return 0;
        put_u32(arena + at, n);
        memset(arena + at + 4, 0, up4(n));
        memcpy(arena + at + 4, o->stops[i], n);
        at += 4 + up4(n);
    }
    h.stops.bytes = (uint32_t)at - h.stops.offset;
    h.record_bytes = (uint32_t)at;
    memcpy(arena, &h, sizeof(h));
    return (uint32_t)at;
}

static void *grow(void *at, size_t bytes)
{
    void *p = realloc(at, bytes);
    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static void take_event(struct session *s, const struct work_event *e, const uint8_t *payload)
{
    struct collector *c = &s->choices[e->choice % CHOICES_MAX];
    switch (e->type) {
    case EVENT_STARTED:
        s->prompt_tokens = e->started.prompt_tokens;
        s->cached_tokens = e->started.cached_tokens;
        break;
    case EVENT_TOKEN:
        if (s->first_token_ns == 0)
            s->first_token_ns = clock_now_ns();
        c->ids = grow(c->ids, (c->n_ids + 1) * sizeof(*c->ids));
        c->ids[c->n_ids++] = e->token.id;
        break;
    case EVENT_TEXT:
        if (!s->opt->json && s->opt->n_choices == 1) {
            fwrite(payload, 1, e->bytes, stdout);
            fflush(stdout);
        }
        c->text = grow(c->text, c->n_text + e->bytes);
        memcpy(c->text + c->n_text, payload, e->bytes);
        c->n_text += e->bytes;
        break;
    case EVENT_FINISH:
        c->finish = (enum finish_reason)e->finish.reason;
        break;
    case EVENT_DONE:
        s->completion_tokens = e->done.completion_tokens;
        s->over = true;
        break;
    case EVENT_ERROR:
        fprintf(stderr, "%s: %.*s (%.*s)\n", error_code_name((enum error_code)e->error.code),
                (int)(e->bytes - e->error.param_bytes), (const char *)payload + e->error.param_bytes,
                (int)e->error.param_bytes, (const char *)payload);
        s->over = s->failed = true;
        break;
    default:
        break;
    }
}

static void take_events(struct session *s)
{
    struct work_event e;
    while (!s->over && ring_peek(&s->broker.events, &e) == ST_OK) {
        if (e.n_more >= EVENT_SLOTS_MAX || ring_pop(&s->broker.events, s->event, 1u + e.n_more) != ST_OK) {
            s->over = s->failed = true;
            return;
        }
        take_event(s, &e, s->event + offsetof(struct work_event, data));
    }
}

static enum status open_session(struct session *s)
{
    s->event = malloc((size_t)EVENT_SLOTS_MAX * RING_SLOT_BYTES);
    if (s->event == NULL)
        return ST_NOMEM;
    enum status st = region_create(0, 1, 1, &s->broker, &s->memory, s->bells);
    if (st != ST_OK)
        return st;
    return region_attach(s->memory, s->bells[0], s->bells[1], &s->worker_side);
}

static void close_session(struct session *s)
{
    region_unmap(&s->worker_side);
    region_unmap(&s->broker);
    if (s->memory >= 0)
        close(s->memory);
    for (int i = 0; i < 2; i++)
        if (s->bells[i] >= 0)
            close(s->bells[i]);
    for (int i = 0; i < CHOICES_MAX; i++) {
        free(s->choices[i].text);
        free(s->choices[i].ids);
    }
    free(s->event);
}

static void print_json_text(const uint8_t *at, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        if (at[i] == '"' || at[i] == '\\')
            printf("\\%c", at[i]);
        else if (at[i] < 0x20)
            printf("\\u%04x", at[i]);
        else
            putchar(at[i]);
    }
    putchar('"');
}

static void print_json(const struct session *s)
{
    printf("{\"choices\": [");
    for (uint32_t i = 0; i < s->opt->n_choices; i++) {
        const struct collector *c = &s->choices[i];
        printf("%s{\"index\": %u, \"text\": ", i > 0 ? ", " : "", i);
        print_json_text(c->text, c->n_text);
        printf(", \"token_ids\": [");
        for (uint32_t k = 0; k < c->n_ids; k++)
            printf("%s%d", k > 0 ? ", " : "", c->ids[k]);
        printf("], \"finish_reason\": \"%s\"}", c->finish == FINISH_STOP ? "stop" : "length");
    }
    printf("], \"usage\": {\"prompt_tokens\": %u, \"cached_tokens\": %u, \"completion_tokens\": %u}", s->prompt_tokens,
           s->cached_tokens, s->completion_tokens);
    printf(", \"timings\": {\"first_token_ms\": %.3f, \"total_ms\": %.3f}}\n", (double)(s->first_token_ns - s->began_ns) / 1e6,
           (double)(s->ended_ns - s->began_ns) / 1e6);
}

static void print_texts(const struct session *s)
{
    for (uint32_t i = 0; s->opt->n_choices > 1 && i < s->opt->n_choices; i++)
        printf("%s[%u] %.*s", i > 0 ? "\n" : "", i, (int)s->choices[i].n_text, (const char *)s->choices[i].text);
    putchar('\n');
}

static enum status drive(struct session *s, struct worker *w)
{
    while (!s->over) {
        enum worker_state state = worker_pass(w);
        take_events(s);
        if (state == WORKER_BROKEN)
            return ST_CORRUPT;
        if (s->over)
            break;
        enum status st = worker_sleep(w, state, -1, 20);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

int standalone_generate(struct engine *engine, const struct standalone_options *opt)
{
    struct session s = { .opt = opt, .memory = -1, .bells = { -1, -1 } };
    struct work_message m = { .type = WORK_START, .generation = 1 };
    struct worker *w = NULL;
    enum status st = open_session(&s);
    if (st != ST_OK)
        goto out;
    st = worker_new(engine, &s.worker_side, &opt->worker, &w);
    if (st != ST_OK)
        goto out;
    st = ST_LIMIT;
    m.record_bytes = write_record(opt, s.broker.arena, s.broker.arena_bytes);
    if (m.record_bytes == 0)
        goto out;
    s.began_ns = clock_now_ns();
    st = ring_push(&s.broker.requests, &m, 1);
    if (st == ST_OK)
        st = drive(&s, w);
    s.ended_ns = clock_now_ns();
    if (st == ST_OK && !s.failed)
        opt->json ? print_json(&s) : print_texts(&s);
out:
    if (st != ST_OK)
        fprintf(stderr, "weir-worker: %s\n", status_text(st));
    worker_free(w);
    close_session(&s);
    return st == ST_OK && !s.failed ? 0 : 1;
}

void standalone_print_plan(const struct engine *e)
{
    char text[4096];
    const struct memory_plan *m = &e->memory;
    printf("%s\n", model_describe(e->model, text, sizeof(text)));
    printf("backend    %s (%s)\n", e->choice.api->name, e->choice.reason);
    printf("weights    %" PRIu64 " bytes\n", m->weights);
    printf("kv         %" PRIu64 " bytes: %u blocks of %u bytes, %d tokens each\n", m->kv, m->n_blocks, m->block_bytes,
           BLOCK_TOKENS);
    printf("scratch    %" PRIu64 " bytes: steps of %u rows, %u sequences\n", m->scratch, e->sizes.max_rows, e->sizes.max_seqs);
    printf("total      %" PRIu64 " of %" PRIu64 " bytes free\n", m->total, m->available);
    printf("context    %u tokens\n", e->sizes.context_tokens);
}
