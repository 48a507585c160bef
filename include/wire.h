/* wire.h - the messages between clients and the broker: msgpack maps in ZeroMQ frames.  docs/protocol.md is the contract for strangers;
 * this header is the same thing for our own programs.
 *
 * A message is two frames: ['W' 'E' 'I' 'R' major-version-byte] [one msgpack map].  The map's "type" says which message it is.
 * Decoding checks, before it allocates anything: frame size, nesting, number of objects, announced counts against the bytes
 * that are left, trailing bytes, UTF-8 of every string (prompts too).  Then keys given twice, types, ranges, and unknown keys:
 * `unknown_field` by name, on requests; a parameter of other APIs that we do not implement (tools, response_format, suffix, ...)
 * is `unsupported_parameter` (parameters.h).  nil is the same as absent.  Replies are decoded leniently: unknown keys are skipped.
 *
 * Decoded structs borrow: spans point into the frame's bytes or into the message's own arena (wire_message_deinit frees that). */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "limits.h"
#include "parameters.h" /* wire_is_unsupported_parameter */
#include "sampling.h"
#include "span.h"
#include "status.h"
#include "work.h"

enum { WIRE_MAJOR = 1, WIRE_MINOR = 0 };
#define WIRE_SIGNATURE "WEIR\x01"
enum { WIRE_SIGNATURE_BYTES = 5 };

enum wire_type {
    WIRE_INVALID,
    /* client -> broker */
    WIRE_HELLO,      /* client? */
    WIRE_GENERATE,   /* struct wire_generate */
    WIRE_CANCEL,     /* id */
    WIRE_TOKENIZE,   /* id, model?, text, special? */
    WIRE_MODELS,     /* id */
    WIRE_STATUS,     /* id */
    WIRE_SESSION_END,/* id, session */
    WIRE_ADMIN,      /* struct wire_admin */
    WIRE_TRACE,      /* id, request? */
    /* broker -> client */
    WIRE_HELLO_REPLY,/* type "hello": version, build, boot, limits {..}, features [..], user */
    WIRE_ACCEPTED,   /* id, request, seed */
    WIRE_TOKEN,      /* struct wire_token */
    WIRE_PROGRESS,   /* id, state "queued"|"running", ahead */
    WIRE_DONE,       /* struct wire_done */
    WIRE_ERROR,      /* id?, code, message, param?, retry_after_ms? */
    WIRE_IDS,        /* type "ids": id, ids [..] */
    WIRE_MODELS_REPLY, /* type "models": id, models [{..}] */
    WIRE_STATUS_REPLY, /* type "status": id, {..} */
    WIRE_ADMIN_REPLY,  /* type "admin": id, worker, state, order */
    WIRE_TRACE_REPLY,  /* type "trace": id, requests [{..}] */
};

struct wire_message_text {      /* one chat message */
    struct span role, content;
};

struct wire_logit_bias {
    struct logit_bias *at;
    uint32_t n;
};

struct wire_resume {            /* a choice a client wants continued after the broker's own death */
    uint32_t choice;
    const int32_t *ids;
    uint32_t n_ids;
    uint32_t released_bytes;
};

enum wire_priority { PRIORITY_NORMAL, PRIORITY_LOW, PRIORITY_HIGH };

struct wire_generate {
    struct span id;             /* client's own, unique on its connection, 1 .. CLIENT_ID_BYTES_MAX bytes; str or bin or integer as text;
                                 * goes back as str, or as bin where it is not UTF-8 */
    struct span model;          /* empty: the first */
    struct span adapter;        /* only empty is served: else unsupported_parameter */
    enum work_prompt prompt_kind; /* exactly one of prompt, prompt_ids, messages */
    struct span prompt;
    const int32_t *prompt_ids;
    uint32_t n_prompt_ids;
    const struct wire_message_text *messages;
    uint32_t n_messages;
    struct span chat_template;  /* name; empty: the file's own */
    bool raw;
    bool batch_class;           /* class: "batch"; default interactive */
    uint8_t priority;           /* enum wire_priority, among the user's own waiting requests of the class */
    bool stream;                /* default true; false: text comes whole, in one token message a choice, before done */
    bool cache_off;             /* cache: "off" */
    bool ignore_eos;
    bool takeover_any;          /* takeover: "any"; default "exact" */
    bool has_seed;              /* else the broker draws one and says it in accepted */
    bool has_temperature;       /* absent: 1.0 as the OpenAI API has it; bare sampling fields absent: off */
    uint64_t deadline_ms;       /* time left; 0: none */
    uint32_t max_tokens;        /* 0: absent */
    uint32_t n;                 /* choices, default 1 */
    struct sampling sampling;
    struct span stops[STOPS_MAX];
    uint32_t n_stops;
    struct wire_logit_bias bias;
    struct span scope;          /* "user" or "pool"; empty: the user's own, "user" if nothing says otherwise */
    struct span salt;           /* narrows the scope to those who give the same */
    struct span session;        /* empty: none */
    uint64_t session_ttl_ms;    /* 0: absent, SESSION_TTL_MS */
    struct span idempotency_key;
    struct span on_behalf_of;   /* user name; only front ends */
    const struct wire_resume *resume;
    uint32_t n_resume;
};

struct wire_piece {             /* one token with its log-probability, where asked */
    int32_t id;
    float logprob;
    struct span bytes;          /* the token's bytes, perhaps half a character */
};

struct wire_token_logprobs {
    struct wire_piece chosen;
    const struct wire_piece *top;
    uint32_t n_top;
};

/* What an administrator wants of a worker.  add takes model and device (both may be empty: the first model, "auto") and no worker;
 * the others take a worker and nothing else. */
enum wire_admin_verb { WIRE_WORKER_PAUSE, WIRE_WORKER_RESUME, WIRE_WORKER_DRAIN, WIRE_WORKER_ADD, WIRE_WORKER_REMOVE, WIRE_WORKER_VERBS };
const char *wire_admin_verb_name(enum wire_admin_verb v); /* "pause", ... */

struct wire_admin {
    struct span id;
    enum wire_admin_verb verb;
    uint32_t worker;            /* slot */
    struct span model, device;
};

/* token {id, choice, index, ids, text, logprobs?}: tokens index .. index + n_ids - 1 of the choice, and the text they released.
 * text may lag behind ids (a half character, a possible stop string) and may come with n_ids 0.  One message has to fit
 * FRAME_BYTES_MAX and FRAME_ITEMS_MAX: an answer that comes whole (stream false) may take several. */
struct wire_token {
    struct span id;
    uint32_t choice, index;
    const int32_t *ids;
    uint32_t n_ids;
    struct span text;
    const struct wire_token_logprobs *logprobs; /* [n_ids] or NULL */
};

struct wire_choice_end {
    enum finish_reason reason;  /* "stop", "length", "cancelled", "error" */
    int32_t stop_index;         /* which stop string ended it; -1: none */
    uint32_t n_tokens;
};

struct wire_done {
    struct span id;
    struct wire_choice_end choices[CHOICES_MAX];
    uint32_t n_choices;
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    double queue_ms, prefill_ms, first_token_ms, total_ms;
    uint32_t worker;            /* slot that finished it */
    uint32_t takeovers;         /* how often a worker died under it */
    uint32_t preemptions;
    struct span model, system_fingerprint;
};

struct wire_error {
    struct span id;             /* empty: about the connection */
    struct error error;
    uint32_t retry_after_ms;    /* 0: no advice */
};

/* --- decode ---------------------------------------------------------------------------------- */

struct wire_message {
    enum wire_type type;
    struct span id;             /* of the request it is about; empty where the message has none */
    union {
        struct wire_generate generate;
        struct { struct span model, text; bool special; } tokenize;
        struct { struct span session, on_behalf_of; } session_end;
        struct wire_admin admin;
        struct { struct span request, on_behalf_of; } trace; /* request empty: all */
        struct { struct span client; } hello;
        struct { uint64_t seed; struct span request; } accepted;
        struct wire_token token;
        struct { bool running; uint32_t ahead; } progress;
        struct wire_done done;
        struct wire_error error;
        struct { const int32_t *at; uint32_t n; } ids;
        struct { struct span body; } raw; /* HELLO_REPLY, MODELS_REPLY, STATUS_REPLY, ADMIN_REPLY, TRACE_REPLY: the map, for wire_to_json() */
    };
    void *arena;                /* opaque; freed by deinit */
    char id_digits[24];         /* what id points at when it came as an integer and decoding failed */
};

/* Decode the second frame.  Borrows frame until wire_message_deinit.  ST_OK, or ST_INVALID / ST_LIMIT / ST_UNSUPPORTED / ST_NOMEM
 * with *err set.  After an error ret_message->type is WIRE_INVALID and ret_message->id is set if an id could be read, so that
 * the error can be sent to it (it points into frame or into *ret_message: do not copy the struct); deinit is then harmless, not needed. */
MUST_CHECK enum status wire_decode_request(struct span frame, struct wire_message *ret_message, struct error *err);
MUST_CHECK enum status wire_decode_reply(struct span frame, struct wire_message *ret_message, struct error *err);
void wire_message_deinit(struct wire_message *m);

/* ST_OK when frame is our signature; ST_INVALID otherwise; ST_UNSUPPORTED for another major version (*ret_major). */
MUST_CHECK enum status wire_check_signature(struct span frame, uint8_t *ret_major);

/* --- encode ---------------------------------------------------------------------------------- */

/* A growing buffer for one outgoing message; reuse it.  at/n are valid until the next encode.  All zero is a fresh one. */
struct wire_buffer {
    uint8_t *at;
    size_t n, capacity;
    bool failed;                /* out of memory while encoding */
    uint32_t depth;             /* private from here on: the lists and maps that are begun and not yet ended */
    struct { size_t header_at; uint32_t n_elements; bool is_map; } open[FRAME_NESTING_MAX];
};
void wire_buffer_deinit(struct wire_buffer *b);

/* Every default of the protocol (n 1, stream, temperature 1, top_p 1, ...): start from it, then set what the request says.  What
 * still has its default is not encoded. */
void wire_generate_init(struct wire_generate *g);

/* Each clears the buffer and writes one whole map.  ST_OK or ST_NOMEM. */
MUST_CHECK enum status wire_encode_hello(struct wire_buffer *b, struct span client);
MUST_CHECK enum status wire_encode_generate(struct wire_buffer *b, const struct wire_generate *g);
MUST_CHECK enum status wire_encode_simple(struct wire_buffer *b, enum wire_type type, struct span id); /* cancel, models, status */
MUST_CHECK enum status wire_encode_tokenize(struct wire_buffer *b, struct span id, struct span model, struct span text, bool special);
MUST_CHECK enum status wire_encode_session_end(struct wire_buffer *b, struct span id, struct span session, struct span on_behalf_of);
MUST_CHECK enum status wire_encode_admin(struct wire_buffer *b, const struct wire_admin *a);
/* request empty: all */
MUST_CHECK enum status wire_encode_trace(struct wire_buffer *b, struct span id, struct span request, struct span on_behalf_of);
MUST_CHECK enum status wire_encode_accepted(struct wire_buffer *b, struct span id, struct span request, uint64_t seed);
MUST_CHECK enum status wire_encode_token(struct wire_buffer *b, const struct wire_token *t);
MUST_CHECK enum status wire_encode_progress(struct wire_buffer *b, struct span id, bool running, uint32_t ahead);
MUST_CHECK enum status wire_encode_done(struct wire_buffer *b, const struct wire_done *d);
MUST_CHECK enum status wire_encode_error(struct wire_buffer *b, const struct wire_error *e);
MUST_CHECK enum status wire_encode_ids(struct wire_buffer *b, struct span id, const int32_t *ids, uint32_t n);

/* Free-form maps (hello reply, models, status): begin, put, end.  Counts are patched in by the writer; a map has at most 65535 entries.
 * Beginning the outermost map clears the buffer; when it is ended, b->failed says whether all of it was written.  In an
 * array, keys are NULL.  Unbalanced calls and more than FRAME_NESTING_MAX open at once are programming errors and abort. */
void wire_map_begin(struct wire_buffer *b, const char *key);   /* key NULL: the outermost, or an array's element */
void wire_array_begin(struct wire_buffer *b, const char *key);
void wire_end(struct wire_buffer *b);
void wire_put_str(struct wire_buffer *b, const char *key, struct span value);
void wire_put_u64(struct wire_buffer *b, const char *key, uint64_t value);
void wire_put_f64(struct wire_buffer *b, const char *key, double value);
void wire_put_bool(struct wire_buffer *b, const char *key, bool value);

/* A reply, any valid msgpack map, without its "type" and "id" as one line of JSON text (strings must be UTF-8; bin becomes base64;
 * non-finite numbers null).  Gives the caller *ret_json, NUL-terminated, to be freed with free().  ST_OK, ST_INVALID, ST_NOMEM. */
MUST_CHECK enum status wire_to_json(struct span frame, char **ret_json);

const char *finish_reason_name(enum finish_reason r);

#endif
