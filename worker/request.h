/* request.h - a request in a worker: from the broker's record to sequences that the scheduler can run.
 *
 *   record bytes --request_new--> checked, copied --request_encode (slices)--> ids --request_build--> sequences
 *
 * The record comes from another process, so every number in it is input: counts, ranges, offsets, UTF-8.  What is wrong with
 * it goes into request.error, which names the field; the request then has no sequences and only waits to be answered.
 *
 * Threads: a request belongs to one thread at a time (the step thread, then the tokenizer thread, then the step thread). */
#ifndef REQUEST_H
#define REQUEST_H

#include "answer.h"
#include "chat_template.h"
#include "encoder.h"
#include "sequence.h"
#include "token_counts.h"
#include "work.h"

/* What a request may ask of this worker. */
struct request_limits {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; /* of the model's file */
    uint32_t n_vocab;
    uint32_t context_tokens;          /* longest sequence: of the model, of the settings, of the KV pool */
    uint32_t piece_bytes_max;         /* longest piece of the vocabulary */
};

struct choice {
    struct sequence seq;              /* owner: this choice */
    struct request *request;
    struct answer answer;
    struct token_counts counts;       /* all zero unless a penalty is on */
    bool over;                        /* its end was told, by this worker or another */
    uint32_t n_before;                /* tokens that another worker generated */
    uint8_t *pending;                 /* text of those that the client has not: sent before anything else */
    uint32_t n_pending, n_pending_sent;
};

struct request {
    uint32_t slot, generation;
    uint64_t session;                 /* of the message it came with; 0: none */
    struct work_request head;         /* checked */
    uint8_t *record;                  /* the whole record; head's parts lie in it */
    const struct request_limits *limits;
    struct error error;               /* code ERR_NONE: fine */

    struct answer_rules rules;
    const struct logit_bias *bias;
    struct chat_template chat;        /* the one it uses, when its prompt is messages */
    int32_t *ids;                     /* WORK_TOKENIZE: the answer */
    uint32_t n_ids, n_ids_sent;
    uint32_t n_prompt;
    struct choice *choices;           /* [head.n_choices]; NULL until built */
    uint64_t tokenize_ns, tokenized_ns; /* time in the tokenizer; when it was done */
    uint64_t first_token_ns;          /* when the first token of any choice was sampled; 0: not yet */
    uint64_t traced_step;             /* worker_trace.c: the last step that was counted for it */
    uint32_t n_completion_tokens;     /* of all choices, those of other workers too */

    struct request *next;             /* whoever holds it may link it */
};

/* Take a copy of a record: bytes [record_bytes] and the two numbers the ring named it by.  Gives the caller *ret_request, also
 * when the record is malformed (see error).  ST_OK or ST_NOMEM. */
MUST_CHECK enum status request_new(const uint8_t *bytes, uint32_t record_bytes, uint32_t slot, uint32_t generation,
                                   const struct request_limits *limits, struct request **ret_request);
void request_free(struct request *r); /* NULL is fine */

/* Begin to encode the prompt: afterwards call encoder_step() until it is done, unless the prompt came as ids
 * (request_needs_encoder() is false) or there was an error. */
bool request_needs_encoder(const struct request *r);
void request_encode(struct request *r, struct encoder *e);

/* Make the sequences (or keep the ids, for WORK_TOKENIZE) from the encoder's ids; e is NULL when the prompt came as ids.
 * Lack of memory is an error of the request. */
void request_build(struct request *r, const struct encoder *e);

/* How much text the tokenizer has to look at: short ones go first. */
uint32_t request_prompt_bytes(const struct request *r);

/* The choice sampled this token: keep its penalties up to date. */
void request_count_token(struct choice *c, int32_t token);

bool request_is_over(const struct request *r); /* every choice's end was told */

#endif
