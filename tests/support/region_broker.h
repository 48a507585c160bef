/* region_broker.h - the broker's side of one region, for tests of the worker: writes records, takes events, and keeps for each
 * request slot what was said of it.  Every rule about the order of events is checked as they are taken. */
#ifndef REGION_BROKER_H
#define REGION_BROKER_H

#include "region.h"
#include "span.h"
#include "work.h"

struct test_message {
    const char *role, *content;
};

struct test_resume {
    uint32_t choice, n_ids, released_bytes, finished;
    const int32_t *ids;
};

struct test_request { /* zero is a plain request: greedy text, one choice, no limit */
    enum work_kind kind;            /* 0: WORK_GENERATE */
    const char *prompt;
    const int32_t *ids;             /* instead of prompt */
    uint32_t n_ids;
    const struct test_message *messages; /* instead of prompt */
    uint32_t n_messages;
    const char *template_name;
    uint16_t flags;
    uint32_t max_tokens, n_choices; /* n_choices 0: 1 */
    const char *stops[STOPS_MAX];   /* up to the first NULL */
    const struct logit_bias *bias;
    uint32_t n_bias;
    const struct test_resume *resume;
    uint32_t n_resume;
    uint64_t deadline_ns, fair_tag, scope[2];
    struct sampling sampling;       /* top_p and repetition_penalty 0 mean 1 */
};

struct test_choice {
    int32_t *ids;
    uint32_t n_ids, ids_room;
    char *text;
    size_t n_text, text_room;
    uint32_t n_logprob_bytes;       /* payload bytes of its tokens, checked for form */
    uint64_t logprob_hash;          /* of all of them: equal bits, equal hash */
    enum finish_reason finish;
    uint32_t finish_tokens;
    int32_t stop_index;
};

struct test_answer {
    bool live, started, done;
    bool is_raw;                    /* sent as raw bytes: what it resumes is not known here */
    enum error_code error;
    char message[ERROR_PARAM_BYTES + ERROR_MESSAGE_BYTES + 1]; /* param and message, one after the other */
    uint32_t param_bytes;
    uint32_t prompt_tokens, cached_tokens, completion_tokens, preemptions;
    uint32_t n_events;
    uint32_t n_choices;
    struct test_choice choices[CHOICES_MAX];
    int32_t *ids;                   /* of WORK_TOKENIZE */
    uint32_t n_ids, n_ids_total;
};

struct region_broker {
    struct region region;
    int memory, bells[2], control[2];
    uint64_t arena_at;
    uint32_t generations[REGION_SLOTS];
    struct test_answer answers[REGION_SLOTS];
    bool ready, failed;
    uint8_t *event;
};

void region_broker_open(struct region_broker *b);
void region_broker_close(struct region_broker *b);

/* Write a record to at [bytes]; returns its size. */
uint32_t region_broker_record(const struct test_request *r, uint32_t slot, uint32_t generation, uint8_t *at, uint32_t bytes);

/* Send a request through a slot that is not live; its answer starts afresh. */
void region_broker_send(struct region_broker *b, uint32_t slot, const struct test_request *r);

/* The same with raw bytes of a record. */
void region_broker_send_bytes(struct region_broker *b, uint32_t slot, const void *record, uint32_t bytes);

void region_broker_flag(struct region_broker *b, uint32_t slot, uint32_t flags);
void region_broker_drain(struct region_broker *b);

/* Take up to n events; returns how many there were. */
uint32_t region_broker_take(struct region_broker *b, uint32_t n);

/* Start a worker process with this region; argv[0] is its path.  Returns its process id. */
int region_broker_spawn(struct region_broker *b, char *const argv[]);

void test_answer_clear(struct test_answer *a);

/* Text of a choice as a C string. */
const char *test_text(struct region_broker *b, uint32_t slot, uint32_t choice);

#endif
