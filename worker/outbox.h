/* outbox.h - events on their way out: encodes them into ring slots (work.h) and wakes the broker.
 *
 * Every function here needs its slots to be free: the scheduler plans a token only with room for all it may set off, and the
 * worker keeps OUTBOX_SLOTS_A_REQUEST for each request it holds, which covers STARTED and ERROR.  So a full ring stalls
 * sequences and never loses an event.  What is long and not urgent (ids, text of a taken-over request) goes in pieces, as far
 * as outbox_room() says.
 *
 * The broker is woken once a pass, by outbox_flush(), not once an event.
 *
 * Errors: a ring the other side has spoiled is remembered; outbox_is_broken() says so and the worker ends.
 * Threads: the step thread's. */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "backend.h"
#include "error.h"
#include "region.h"
#include "span.h"
#include "tokenizer.h"
#include "work.h"

enum {
    OUTBOX_ERROR_SLOTS = 1 + (ERROR_PARAM_BYTES + ERROR_MESSAGE_BYTES) / RING_SLOT_BYTES + 1,
    OUTBOX_SLOTS_A_REQUEST = OUTBOX_ERROR_SLOTS + 1,
    OUTBOX_PIECE_BYTES_MAX = EVENT_DATA_BYTES + (EVENT_SLOTS_MAX - 1) * RING_SLOT_BYTES, /* payload of the longest event */
};

struct outbox {
    struct ring_end *ring;
    struct doorbell *bell;
    const struct tokenizer *tokenizer; /* for the pieces in log-probabilities */
    bool pushed;                       /* since the last flush */
    bool broken;
};

struct outbox_to { /* whom an event is for */
    uint32_t slot, generation, choice;
};

uint32_t outbox_room(struct outbox *o); /* free slots; 0 when broken */
bool outbox_is_broken(const struct outbox *o);
void outbox_flush(struct outbox *o);

void outbox_ready(struct outbox *o, bool ready); /* READY, or FAILED */
void outbox_started(struct outbox *o, struct outbox_to to, uint32_t prompt_tokens, uint32_t cached_tokens, uint64_t tokenize_ns);
void outbox_token(struct outbox *o, struct outbox_to to, uint32_t index, const struct step_result *result, bool logprobs);
/* text may be longer than an event: it then takes several, all within the room the caller saw to. */
void outbox_text(struct outbox *o, struct outbox_to to, uint32_t n_tokens, struct span text);
void outbox_finish(struct outbox *o, struct outbox_to to, enum finish_reason reason, uint32_t n_tokens, int32_t stop_index);
void outbox_ids(struct outbox *o, struct outbox_to to, const int32_t *ids, uint32_t n_ids, uint32_t first, uint32_t total);

struct outbox_usage {
    uint64_t prefill_ns;
    uint32_t cached_tokens, completion_tokens, preemptions;
};
void outbox_done(struct outbox *o, struct outbox_to to, const struct outbox_usage *usage);
void outbox_error(struct outbox *o, struct outbox_to to, const struct error *err);

#endif
