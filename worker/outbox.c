/* outbox.c - see outbox.h. */
#include "outbox.h"

#include <assert.h>
#include <string.h>

#include "fault.h"
#include "log.h"

_Static_assert(REGION_SLOTS * OUTBOX_SLOTS_A_REQUEST < EVENT_RING_SLOTS / 4, "most of the ring is for tokens");

uint32_t outbox_room(struct outbox *o)
{
    uint32_t slots = 0;
    if (!o->broken && ring_room(o->ring, &slots) != ST_OK)
        o->broken = true;
    return o->broken ? 0 : slots;
}

bool outbox_is_broken(const struct outbox *o)
{
    return o->broken;
}

void outbox_flush(struct outbox *o)
{
    if (o->pushed)
        doorbell_ring(o->bell);
    o->pushed = false;
}

static struct work_event event_for(struct outbox_to to, enum event_type type)
{
    struct work_event e;
    memset(&e, 0, sizeof(e)); /* the union's unused bytes too: no memory of ours leaks out */
    e.type = (uint8_t)type;
    e.choice = (uint8_t)to.choice;
    e.slot = to.slot;
    e.generation = to.generation;
    return e;
}

static void push(struct outbox *o, struct work_event *e, const void *payload, uint32_t bytes)
{
    uint8_t slots[EVENT_SLOTS_MAX * RING_SLOT_BYTES];
    uint32_t n = event_slots(bytes);
    assert(n <= EVENT_SLOTS_MAX);
    if (o->broken)
        return;
    e->bytes = bytes;
    e->n_more = (uint16_t)(n - 1);
    memcpy(slots, e, sizeof(*e));
    if (bytes > 0)
        memcpy(slots + offsetof(struct work_event, data), payload, bytes);
    size_t end = offsetof(struct work_event, data) + bytes, all = (size_t)n * RING_SLOT_BYTES;
    if (end < all)
        memset(slots + end, 0, all - end);
    enum status st = ring_push(o->ring, slots, n);
    assert(st != ST_AGAIN); /* room was reserved for it */
    if (st != ST_OK) {
        log_error("event_ring_broken", "status=%d", (int)st);
        o->broken = true;
    }
    o->pushed = true;
    FAULT("worker.event_pushed");
}

void outbox_ready(struct outbox *o, bool ready)
{
    struct work_event e = event_for((struct outbox_to){ 0 }, ready ? EVENT_READY : EVENT_FAILED);
    push(o, &e, NULL, 0);
}

void outbox_started(struct outbox *o, struct outbox_to to, uint32_t prompt_tokens, uint32_t cached_tokens, uint64_t tokenize_ns)
{
    struct work_event e = event_for(to, EVENT_STARTED);
    e.started.prompt_tokens = prompt_tokens;
    e.started.cached_tokens = cached_tokens;
    e.started.tokenize_ns = tokenize_ns;
    push(o, &e, NULL, 0);
}

static uint32_t put_candidate(const struct outbox *o, uint8_t *at, int32_t token, float logprob)
{
    struct span piece = tokenizer_piece(o->tokenizer, token, true);
    uint16_t n = (uint16_t)piece.n;
    assert(piece.n <= PIECE_BYTES_MAX);
    memcpy(at, &token, 4);
    memcpy(at + 4, &logprob, 4);
    memcpy(at + 8, &n, 2);
    if (n > 0)
        memcpy(at + 10, piece.at, n);
    return 10 + n;
}

void outbox_token(struct outbox *o, struct outbox_to to, uint32_t index, const struct step_result *result, bool logprobs)
{
    uint8_t payload[(1 + LOGPROBS_MAX) * (10 + PIECE_BYTES_MAX)];
    uint32_t bytes = 0;
    struct work_event e = event_for(to, EVENT_TOKEN);
    e.token.index = index;
    e.token.id = result->token;
    if (logprobs) {
        e.token.logprob = result->logprob;
        e.token.has_logprobs = 1;
        e.token.n_top = (uint16_t)result->n_top;
        assert(result->n_top <= LOGPROBS_MAX);
        bytes = put_candidate(o, payload, result->token, result->logprob);
        for (uint32_t i = 0; i < result->n_top; i++)
            bytes += put_candidate(o, payload + bytes, result->top[i].token, result->top[i].logprob);
    }
    push(o, &e, payload, bytes);
}

/* How much of text fits n bytes without cutting a character. */
static size_t whole_characters(struct span text, size_t n)
{
    if (text.n <= n)
        return text.n;
    while (n > 0 && (text.at[n] & 0xc0) == 0x80)
        n--;
    return n;
}

void outbox_text(struct outbox *o, struct outbox_to to, uint32_t n_tokens, struct span text)
{
    while (text.n > 0) {
        size_t n = whole_characters(text, OUTBOX_PIECE_BYTES_MAX);
        struct work_event e = event_for(to, EVENT_TEXT);
        e.text.n_tokens = n_tokens;
        push(o, &e, text.at, (uint32_t)n);
        text = span_of(text.at + n, text.n - n);
    }
}

void outbox_finish(struct outbox *o, struct outbox_to to, enum finish_reason reason, uint32_t n_tokens, int32_t stop_index)
{
    struct work_event e = event_for(to, EVENT_FINISH);
    e.finish.reason = reason;
    e.finish.n_tokens = n_tokens;
    e.finish.stop_index = stop_index;
    push(o, &e, NULL, 0);
}

void outbox_ids(struct outbox *o, struct outbox_to to, const int32_t *ids, uint32_t n_ids, uint32_t first, uint32_t total)
{
    struct work_event e = event_for(to, EVENT_IDS);
    e.ids.first = first;
    e.ids.total = total;
    push(o, &e, ids, n_ids * (uint32_t)sizeof(*ids));
}

void outbox_done(struct outbox *o, struct outbox_to to, const struct outbox_usage *usage)
{
    struct work_event e = event_for(to, EVENT_DONE);
    e.done.prefill_ns = usage->prefill_ns;
    e.done.cached_tokens = usage->cached_tokens;
    e.done.completion_tokens = usage->completion_tokens;
    e.done.preemptions = usage->preemptions;
    push(o, &e, NULL, 0);
}

void outbox_error(struct outbox *o, struct outbox_to to, const struct error *err)
{
    uint8_t payload[ERROR_PARAM_BYTES + ERROR_MESSAGE_BYTES];
    size_t n_param = strnlen(err->param, sizeof(err->param)), n_message = strnlen(err->message, sizeof(err->message));
    struct work_event e = event_for(to, EVENT_ERROR);
    e.error.code = err->code;
    e.error.param_bytes = (uint32_t)n_param;
    memcpy(payload, err->param, n_param);
    memcpy(payload + n_param, err->message, n_message);
    push(o, &e, payload, (uint32_t)(n_param + n_message));
}
