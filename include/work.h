/* work.h - what the broker asks of a worker and what the worker tells it: flat, versioned records in the region.
 *
 * Broker -> worker.  A request is one record in the arena and one ring slot that names it.  The record starts with
 * struct work_request; its variable parts lie behind it, named by {offset from the record's start, bytes}.  The worker copies
 * the whole record out of the arena, checks every part against the record's size, then consumes the ring slot.
 *
 * Worker -> broker.  Events, each one ring slot, longer ones with counted continuation slots.  Events of a request come in this
 * order:  STARTED  (TOKEN | TEXT)*  FINISH per choice  then DONE;  or at any point ERROR, which is the end.
 * A TOKEN event is pushed as soon as the token is sampled; TEXT follows when whole characters that no stop string can claim are
 * there.  So whoever has seen the TOKEN events up to any point can hand the request to another worker (see resume).
 *
 * Both sides check slot and generation: an event of an earlier generation is dropped silently (it was on its way), one of an
 * impossible slot, choice, index or length breaks a rule, and the worker that wrote it is dropped. */
#ifndef WORK_H
#define WORK_H

#include <stddef.h>
#include <stdint.h>

#include "limits.h"
#include "sampling.h"

enum { WORK_VERSION = 1 };

enum work_kind { WORK_GENERATE = 1, WORK_TOKENIZE = 2 };
enum work_prompt { WORK_PROMPT_TEXT = 1, WORK_PROMPT_IDS = 2, WORK_PROMPT_MESSAGES = 3 };
enum work_flags {
    WORK_RAW = 1 << 0,         /* special tokens in the prompt's text are read as such */
    WORK_IGNORE_EOS = 1 << 1,
    WORK_CACHE_OFF = 1 << 2,   /* neither look for nor leave cached blocks */
    WORK_INTERACTIVE = 1 << 3, /* class */
};

struct work_part {
    uint32_t offset, bytes;
};

/* Parts:
 *   prompt      WORK_PROMPT_TEXT: UTF-8.  WORK_PROMPT_IDS: int32 each.  WORK_PROMPT_MESSAGES: per message
 *               u32 role_bytes, u32 content_bytes, role, content, padded with zeros to a multiple of 4
 *   stops       per stop string u32 bytes, bytes, padded to a multiple of 4
 *   bias        struct logit_bias each
 *   template_name  name of a chat template; empty: the file's own
 *   resume      struct work_resume each, each followed by its n_ids int32 token ids */
struct work_request {
    uint32_t version;          /* WORK_VERSION */
    uint32_t record_bytes;     /* of the whole record */
    uint32_t slot, generation; /* generation > 0 */
    uint8_t kind, prompt_kind;
    uint16_t flags;
    uint32_t n_choices;        /* 1 .. CHOICES_MAX */
    uint32_t max_tokens;       /* per choice; 0: until the model ends or the context is full */
    uint32_t n_messages, n_stops, n_resume;
    uint64_t deadline_ns;      /* CLOCK_MONOTONIC; 0: none */
    uint64_t fair_tag;         /* smaller runs first within a class */
    uint64_t scope[2];         /* whose cached blocks it may meet: equal scope, equal key */
    uint64_t arrived_ns;       /* at the broker, CLOCK_MONOTONIC */
    struct sampling sampling;
    struct work_part prompt, stops, bias, template_name, resume;
};
_Static_assert(sizeof(struct work_request) == 168, "layout is part of the region");
_Static_assert(offsetof(struct work_request, deadline_ns) == 40 && offsetof(struct work_request, sampling) == 80 &&
               offsetof(struct work_request, prompt) == 128, "layout is part of the region");

/* A choice that another worker began: the worker takes the ids as generated, rebuilds penalties, stop and UTF-8 state from
 * them, and sends no text before released_bytes of this choice's text.  finished: nothing is left to do for it. */
struct work_resume {
    uint32_t choice, n_ids;
    uint32_t released_bytes;
    uint32_t finished;
};

/* One slot of the request ring. */
enum work_message_type { WORK_START = 1, WORK_DRAIN = 2, WORK_SESSION_END = 3 };
struct work_message {
    uint32_t type;             /* WORK_START: a record; WORK_DRAIN: finish what you have, then exit 0; WORK_SESSION_END: keep nothing for it */
    uint32_t slot, generation;
    uint32_t record_bytes;
    uint64_t record_at;        /* offset in the arena, multiple of 64; a record never wraps */
    uint64_t session;          /* WORK_START: keep its computed path for this session when it ends; 0: none.  A number of the broker's */
    uint8_t pad[32];
};
_Static_assert(sizeof(struct work_message) == RING_SLOT_BYTES, "one message, one slot");

enum event_type {
    EVENT_READY = 1,   /* the card is filled, send work */
    EVENT_FAILED,      /* cannot start; card.error says why; the worker exits */
    EVENT_STARTED,     /* its prompt is tokenized and its first sequence runs: what the cache held of it is known */
    EVENT_TOKEN,       /* one sampled token */
    EVENT_TEXT,        /* text of a choice */
    EVENT_FINISH,      /* a choice ended */
    EVENT_DONE,        /* the request ended, all its blocks are released */
    EVENT_ERROR,       /* the request ended in an error, all its blocks are released; also answers SLOT_CANCEL */
    EVENT_IDS,         /* answer to WORK_TOKENIZE, in pieces; DONE follows */
};

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

/* First slot of every event.  `bytes` counts the payload behind the fixed part: it begins in `data` and goes on in
 * n_more further slots of RING_SLOT_BYTES each. */
enum { EVENT_DATA_BYTES = 24 };
struct work_event {
    uint8_t type;
    uint8_t choice;
    uint16_t n_more;
    uint32_t slot, generation;
    uint32_t bytes;
    union {
        struct { uint32_t prompt_tokens, cached_tokens; uint64_t tokenize_ns; } started;
        struct { uint32_t index; int32_t id; float logprob; uint16_t n_top; uint16_t has_logprobs; } token;
        struct { uint32_t n_tokens; uint32_t pad; } text;           /* this text is up to and with token n_tokens - 1 */
        struct { uint32_t reason, n_tokens; int32_t stop_index; uint32_t pad; } finish; /* stop_index: which stop string; -1: none */
        struct { uint64_t prefill_ns; uint32_t cached_tokens, completion_tokens; uint32_t preemptions, pad; } done;
        struct { uint32_t code, param_bytes; } error;               /* enum error_code; payload: param, then message */
        struct { uint32_t first, total; } ids;                      /* payload: int32 each, from position `first` */
        uint64_t align[3];
    };
    uint8_t data[EVENT_DATA_BYTES];
};
_Static_assert(sizeof(struct work_event) == RING_SLOT_BYTES, "one slot");
_Static_assert(offsetof(struct work_event, bytes) == 12 && offsetof(struct work_event, data) == 64 - EVENT_DATA_BYTES,
               "layout is part of the region");

/* Payload of EVENT_TOKEN when has_logprobs: the chosen token's bytes, then n_top alternatives, each
 *   int32 id, float logprob, u16 piece_bytes, bytes (unpadded, packed); the chosen one the same, first.
 * Slots an event with this payload takes: */
static inline uint32_t event_slots(uint32_t payload_bytes)
{
    return payload_bytes <= EVENT_DATA_BYTES
               ? 1
               : 1 + (payload_bytes - EVENT_DATA_BYTES + RING_SLOT_BYTES - 1) / RING_SLOT_BYTES;
}

#endif
