/* region_broker.c - see region_broker.h. */
#include "region_broker.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "utf8.h"

void region_broker_open(struct region_broker *b)
{
    memset(b, 0, sizeof(*b));
    b->control[0] = b->control[1] = -1;
    enum status st = region_create(3, 1, 77, &b->region, &b->memory, b->bells);
    assert(st == ST_OK);
    b->event = malloc((size_t)EVENT_SLOTS_MAX * RING_SLOT_BYTES);
    assert(b->event != NULL);
}

void test_answer_clear(struct test_answer *a)
{
    for (uint32_t i = 0; i < CHOICES_MAX; i++) {
        free(a->choices[i].ids);
        free(a->choices[i].text);
    }
    free(a->ids);
    memset(a, 0, sizeof(*a));
}

void region_broker_close(struct region_broker *b)
{
    for (uint32_t i = 0; i < REGION_SLOTS; i++)
        test_answer_clear(&b->answers[i]);
    region_unmap(&b->region);
    close(b->memory);
    close(b->bells[0]);
    close(b->bells[1]);
    for (int i = 0; i < 2; i++)
        if (b->control[i] >= 0)
            close(b->control[i]);
    free(b->event);
}

struct writer {
    uint8_t *at;
    uint32_t n, room;
};

static void align(struct writer *w, uint32_t unit)
{
    while (w->n % unit != 0) {
        assert(w->n < w->room);
        w->at[w->n++] = 0;
    }
}

static void put(struct writer *w, const void *bytes, size_t n)
{
    assert(n <= w->room - w->n);
    if (n > 0)
        memcpy(w->at + w->n, bytes, n);
    w->n += (uint32_t)n;
}

static void put_u32(struct writer *w, size_t v)
{
    uint32_t u = (uint32_t)v;
    put(w, &u, 4);
}

static void put_prompt(struct writer *w, const struct test_request *r)
{
    if (r->ids != NULL) {
        put(w, r->ids, r->n_ids * sizeof(int32_t));
    } else if (r->messages != NULL) {
        for (uint32_t i = 0; i < r->n_messages; i++) {
            put_u32(w, strlen(r->messages[i].role));
            put_u32(w, strlen(r->messages[i].content));
            put(w, r->messages[i].role, strlen(r->messages[i].role));
            put(w, r->messages[i].content, strlen(r->messages[i].content));
            align(w, 4);
        }
    } else {
        put(w, r->prompt, strlen(r->prompt));
    }
}

static uint32_t put_stops(struct writer *w, const struct test_request *r)
{
    uint32_t n = 0;
    for (; n < STOPS_MAX && r->stops[n] != NULL; n++) {
        put_u32(w, strlen(r->stops[n]));
        put(w, r->stops[n], strlen(r->stops[n]));
        align(w, 4);
    }
    return n;
}

static void put_resume(struct writer *w, const struct test_request *r)
{
    for (uint32_t i = 0; i < r->n_resume; i++) {
        const struct test_resume *t = &r->resume[i];
        struct work_resume head = { t->choice, t->n_ids, t->released_bytes, t->finished };
        put(w, &head, sizeof(head));
        put(w, t->ids, t->n_ids * sizeof(int32_t));
    }
}

uint32_t region_broker_record(const struct test_request *r, uint32_t slot, uint32_t generation, uint8_t *at, uint32_t bytes)
{
    struct writer w = { at, sizeof(struct work_request), bytes };
    struct work_request h = {
        .version = WORK_VERSION,
        .slot = slot,
        .generation = generation,
        .kind = (uint8_t)(r->kind != 0 ? r->kind : WORK_GENERATE),
        .prompt_kind = r->ids != NULL ? WORK_PROMPT_IDS : r->messages != NULL ? WORK_PROMPT_MESSAGES : WORK_PROMPT_TEXT,
        .flags = r->flags,
        .n_choices = r->n_choices != 0 ? r->n_choices : 1,
        .max_tokens = r->max_tokens,
        .n_messages = r->n_messages,
        .n_resume = r->n_resume,
        .deadline_ns = r->deadline_ns,
        .fair_tag = r->fair_tag,
        .scope = { r->scope[0], r->scope[1] },
        .sampling = r->sampling,
    };
    if (h.sampling.top_p == 0)
        h.sampling.top_p = 1;
    if (h.sampling.repetition_penalty == 0)
        h.sampling.repetition_penalty = 1;
    assert(w.n <= w.room);
#define PART(field, expression)             \
    do {                                    \
        align(&w, 8);                       \
        h.field.offset = w.n;               \
        expression;                         \
        h.field.bytes = w.n - h.field.offset; \
    } while (0)
    PART(prompt, put_prompt(&w, r));
    PART(stops, h.n_stops = put_stops(&w, r));
    PART(bias, put(&w, r->bias, r->n_bias * sizeof(struct logit_bias)));
    PART(template_name, put(&w, r->template_name, r->template_name != NULL ? strlen(r->template_name) : 0));
    PART(resume, put_resume(&w, r));
#undef PART
    align(&w, 8);
    h.record_bytes = w.n;
    memcpy(at, &h, sizeof(h));
    return w.n;
}

/* Room for a record.  Tests keep few on their way, so the arena simply starts again at its beginning. */
static uint8_t *reserve(struct region_broker *b, uint32_t bytes)
{
    b->arena_at = (b->arena_at + 63) / 64 * 64;
    if (b->arena_at + bytes > b->region.arena_bytes)
        b->arena_at = 0;
    return b->region.arena + b->arena_at;
}

static void announce(struct region_broker *b, uint32_t slot, uint32_t bytes, uint32_t n_choices)
{
    struct work_message m = {
        .type = WORK_START,
        .slot = slot,
        .generation = b->generations[slot],
        .record_bytes = bytes,
        .record_at = b->arena_at,
    };
    struct test_answer *a = &b->answers[slot];
    test_answer_clear(a);
    a->live = true;
    a->n_choices = n_choices;
    enum status st = ring_push(&b->region.requests, &m, 1);
    assert(st == ST_OK);
    doorbell_ring(&b->region.request_bell);
    b->arena_at += bytes;
}

static void next_generation(struct region_broker *b, uint32_t slot)
{
    assert(!b->answers[slot].live);
    b->generations[slot]++;
    atomic_store(&b->region.slots[slot].word, (uint64_t)b->generations[slot] << 32);
}

void region_broker_send(struct region_broker *b, uint32_t slot, const struct test_request *r)
{
    next_generation(b, slot);
    uint8_t *at = reserve(b, RECORD_BYTES_MAX);
    uint32_t bytes = region_broker_record(r, slot, b->generations[slot], at, RECORD_BYTES_MAX);
    announce(b, slot, bytes, r->n_choices != 0 ? r->n_choices : 1);
    /* What another worker gave of the answer is part of it. */
    for (uint32_t i = 0; i < r->n_resume; i++) {
        struct test_choice *c = &b->answers[slot].choices[r->resume[i].choice];
        c->ids_room = r->resume[i].n_ids + 16;
        c->ids = malloc(c->ids_room * sizeof(int32_t));
        assert(c->ids != NULL);
        if (r->resume[i].n_ids > 0)
            memcpy(c->ids, r->resume[i].ids, r->resume[i].n_ids * sizeof(int32_t));
        c->n_ids = r->resume[i].n_ids;
        c->finish = r->resume[i].finished ? FINISH_STOP : FINISH_NONE;
    }
}

void region_broker_send_bytes(struct region_broker *b, uint32_t slot, const void *record, uint32_t bytes)
{
    next_generation(b, slot);
    memcpy(reserve(b, bytes), record, bytes);
    announce(b, slot, bytes, CHOICES_MAX);
    b->answers[slot].is_raw = true;
}

void region_broker_flag(struct region_broker *b, uint32_t slot, uint32_t flags)
{
    const uint64_t one = 1;
    atomic_store(&b->region.slots[slot].word, (uint64_t)b->generations[slot] << 32 | flags);
    ssize_t n = write(b->bells[0], &one, sizeof(one));
    assert(n == (ssize_t)sizeof(one));
}

void region_broker_drain(struct region_broker *b)
{
    struct work_message m = { .type = WORK_DRAIN };
    enum status st = ring_push(&b->region.requests, &m, 1);
    assert(st == ST_OK);
    doorbell_ring(&b->region.request_bell);
}

static void check_logprobs(const struct work_event *e, const uint8_t *payload)
{
    uint32_t at = 0;
    if (!e->token.has_logprobs) {
        assert(e->bytes == 0);
        return;
    }
    for (uint32_t i = 0; i < 1u + e->token.n_top; i++) {
        uint16_t n;
        float logprob;
        assert(e->bytes - at >= 10);
        memcpy(&logprob, payload + at + 4, 4);
        memcpy(&n, payload + at + 8, 2);
        assert(logprob <= 0 && n <= PIECE_BYTES_MAX);
        at += 10u + n;
        assert(at <= e->bytes);
    }
    assert(at == e->bytes);
}

static void take_token(struct test_choice *c, bool is_raw, const struct work_event *e, const uint8_t *payload)
{
    assert(c->finish == FINISH_NONE);
    assert(is_raw || e->token.index == c->n_ids);
    check_logprobs(e, payload);
    c->n_logprob_bytes += e->bytes;
    for (uint32_t i = 0; i < e->bytes; i++) /* FNV-1a */
        c->logprob_hash = (c->logprob_hash ^ payload[i]) * 0x100000001b3u;
    if (c->n_ids == c->ids_room) {
        c->ids_room = 2 * c->ids_room + 16;
        c->ids = realloc(c->ids, c->ids_room * sizeof(int32_t));
        assert(c->ids != NULL);
    }
    c->ids[c->n_ids++] = e->token.id;
}

static void take_text(struct test_choice *c, bool is_raw, const struct work_event *e, const uint8_t *payload)
{
    assert(c->finish == FINISH_NONE);
    assert(utf8_valid(span_of(payload, e->bytes)));
    assert(e->bytes > 0 && (is_raw || e->text.n_tokens <= c->n_ids));
    if (c->n_text + e->bytes > c->text_room) {
        c->text_room = 2 * (c->n_text + e->bytes);
        c->text = realloc(c->text, c->text_room);
        assert(c->text != NULL);
    }
    memcpy(c->text + c->n_text, payload, e->bytes);
    c->n_text += e->bytes;
}

static void take_ids(struct test_answer *a, const struct work_event *e, const uint8_t *payload)
{
    assert(e->ids.first == a->n_ids && e->bytes % 4 == 0 && a->n_ids + e->bytes / 4 <= e->ids.total);
    if (a->ids == NULL)
        a->ids = calloc(e->ids.total + 1, sizeof(int32_t));
    assert(a->ids != NULL);
    memcpy(a->ids + a->n_ids, payload, e->bytes);
    a->n_ids += e->bytes / 4;
    a->n_ids_total = e->ids.total;
}

static void take_end(struct region_broker *b, struct test_answer *a, const struct work_event *e, const uint8_t *payload)
{
    (void)b;
    a->live = false;
    if (e->type == EVENT_ERROR) {
        assert(e->error.code > ERR_NONE && e->error.code < ERR_COUNT && e->error.param_bytes <= e->bytes);
        assert(utf8_valid(span_of(payload, e->bytes)) && e->bytes < sizeof(a->message));
        a->error = (enum error_code)e->error.code;
        a->param_bytes = e->error.param_bytes;
        memcpy(a->message, payload, e->bytes);
        a->message[e->bytes] = '\0';
        return;
    }
    a->done = true;
    a->completion_tokens = e->done.completion_tokens;
    a->preemptions = e->done.preemptions;
    for (uint32_t i = 0; a->n_ids_total == 0 && a->started && !a->is_raw && i < a->n_choices; i++)
        assert(a->choices[i].finish != FINISH_NONE);
    assert(a->n_ids == a->n_ids_total);
}

static void take_one(struct region_broker *b, const struct work_event *e, const uint8_t *payload)
{
    if (e->type == EVENT_READY || e->type == EVENT_FAILED) {
        *(e->type == EVENT_READY ? &b->ready : &b->failed) = true;
        return;
    }
    assert(e->slot < REGION_SLOTS && e->generation == b->generations[e->slot]);
    struct test_answer *a = &b->answers[e->slot];
    assert(a->live && e->choice < CHOICES_MAX);
    struct test_choice *c = &a->choices[e->choice];
    a->n_events++;
    if (e->type == EVENT_TOKEN || e->type == EVENT_TEXT || e->type == EVENT_FINISH)
        assert(a->started && e->choice < a->n_choices);
    switch (e->type) {
    case EVENT_STARTED:
        assert(!a->started && e->started.cached_tokens <= e->started.prompt_tokens);
        a->started = true;
        a->prompt_tokens = e->started.prompt_tokens;
        a->cached_tokens = e->started.cached_tokens;
        break;
    case EVENT_TOKEN:
        take_token(c, a->is_raw, e, payload);
        break;
    case EVENT_TEXT:
        take_text(c, a->is_raw, e, payload);
        break;
    case EVENT_FINISH:
        assert(c->finish == FINISH_NONE && e->finish.reason != FINISH_NONE && (a->is_raw || e->finish.n_tokens == c->n_ids));
        c->finish = (enum finish_reason)e->finish.reason;
        c->finish_tokens = e->finish.n_tokens;
        c->stop_index = e->finish.stop_index;
        break;
    case EVENT_IDS:
        take_ids(a, e, payload);
        break;
    case EVENT_DONE:
    case EVENT_ERROR:
        take_end(b, a, e, payload);
        break;
    default:
        assert(!"an event of no known type");
    }
}

uint32_t region_broker_take(struct region_broker *b, uint32_t n)
{
    struct work_event e;
    uint32_t taken = 0;
    for (; taken < n && ring_peek(&b->region.events, &e) == ST_OK; taken++) {
        assert(e.n_more < EVENT_SLOTS_MAX && event_slots(e.bytes) == 1u + e.n_more);
        enum status st = ring_pop(&b->region.events, b->event, 1u + e.n_more);
        assert(st == ST_OK);
        take_one(b, &e, b->event + offsetof(struct work_event, data));
    }
    return taken;
}

int region_broker_spawn(struct region_broker *b, char *const argv[])
{
    int rc = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, b->control);
    assert(rc == 0);
    int from[4] = { b->memory, b->bells[0], b->bells[1], b->control[1] };
    pid_t pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        for (int i = 0; i < 4; i++)
            from[i] = fcntl(from[i], F_DUPFD, 64);
        for (int i = 0; i < 4; i++)
            if (dup2(from[i], REGION_FD_MEMORY + i) < 0 || close(from[i]) != 0)
                _exit(127);
        execv(argv[0], argv);
        _exit(127);
    }
    close(b->control[1]);
    b->control[1] = -1;
    return pid;
}

const char *test_text(struct region_broker *b, uint32_t slot, uint32_t choice)
{
    struct test_choice *c = &b->answers[slot].choices[choice];
    if (c->n_text == c->text_room) {
        c->text_room += 1;
        c->text = realloc(c->text, c->text_room);
        assert(c->text != NULL);
    }
    c->text[c->n_text] = '\0';
    return c->text;
}
