/* weir.h - the C API of Weir: send prompts to a broker, receive answers as they grow.
 *
 *     struct weir_error err;
 *     struct weir_client *c = NULL;
 *     if (weir_open(&c, NULL, &err) != WEIR_OK)  { fprintf(stderr, "%s: %s\n", err.code, err.message); exit(1); }
 *     struct weir_answer *a = NULL;
 *     if (weir_ask(c, &(struct weir_request){ .prompt = "The sea is", .max_tokens = 32 }, &a, &err) == WEIR_OK)
 *         printf("%s\n", a->choices[0].text);
 *     weir_answer_free(a);
 *     weir_close(c);
 *
 * Two ways to use it.  Blocking: weir_ask() as above.  Asynchronous: weir_submit() any number of requests with a callback,
 * wait until weir_fd() is readable (poll, epoll; level-triggered, like any descriptor) or weir_timeout_ms() has passed, then
 * call weir_process(): it runs the callbacks of all that has come and never blocks.
 *
 * Threads: a client belongs to one thread at a time; several clients are independent.  After fork() a child must not use, nor
 * close, its parent's client.  Callbacks run inside weir_process() and the blocking calls only; they may call weir_submit() and
 * weir_cancel(), not weir_process(), a blocking call or weir_close().
 * Memory: strings and arrays passed in are copied before the call returns.  What a callback receives is valid until it returns.
 * Zero means default in every options struct; use designated initialisers.
 * Link with -lweir -lzmq -lmsgpackc -ljansson -lxxhash -linih. */
#ifndef WEIR_H
#define WEIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum weir_result {
    WEIR_OK = 0,
    WEIR_FAILED = -1,   /* *err says why */
    WEIR_AGAIN = -2,    /* nothing was done: too many requests of this client are under way (max_in_flight) */
};

/* code: a stable word ("context_overflow", "busy", "broker_unreachable", ...; docs/protocol.md lists them).
 * param: the field at fault, or "".  retry_after_ms: when it makes sense to try again; 0: no advice.
 * http: the status an HTTP API would give; job output lines carry it. */
struct weir_error {
    char code[32];
    char message[400];
    char param[96];
    uint32_t retry_after_ms;
    int http;
};

struct weir_options {
    const char *endpoint;        /* NULL: WEIR_CONNECT, else ipc://$WEIR_RUNTIME_DIR/broker.sock, else the default runtime directory */
    uint32_t connect_timeout_ms; /* until the broker's hello; default 5,000 */
    uint32_t silence_timeout_ms; /* a broker not heard of for so long while a request is open is gone; default 30,000 */
    uint32_t max_in_flight;      /* default 4,096 */
    const char *name;            /* of your program, for the broker's log */
    const char *key_file;        /* tcp:// only: the file of `weir key new`, which says who you are.  NULL: WEIR_KEY */
    const char *server_key;      /* tcp:// only: the broker's public key, hexadecimal or Z85.  NULL: WEIR_SERVER_KEY, else the key file's */
};

struct weir_client;

/* Connect and shake hands.  WEIR_OK or WEIR_FAILED ("broker_unreachable", "version_mismatch"). */
int weir_open(struct weir_client **ret_client, const struct weir_options *options, struct weir_error *err);
/* Cancels what is open, waits at most 100 ms for it to leave, and frees.  NULL is fine.  No callback runs. */
void weir_close(struct weir_client *c);

/* --- a request ------------------------------------------------------------------------------- */

struct weir_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8, taken as text: special tokens in it stay text */
    size_t content_bytes; /* 0: up to the NUL */
};

struct weir_bias {
    int32_t token;
    float bias;
};

/* What was received of a choice before its broker died. */
struct weir_resume {
    uint32_t choice;
    const int32_t *ids;
    size_t n_ids;
    size_t released_bytes; /* of its text */
};

/* Exactly one of prompt, prompt_ids, messages.  A pointer to a number (temperature, seed, ...) is NULL for "not given". */
struct weir_request {
    const char *model;               /* NULL: the broker's first */
    const char *prompt;              /* UTF-8 */
    size_t prompt_bytes;             /* 0: up to the NUL */
    const int32_t *prompt_ids;
    size_t n_prompt_ids;
    const struct weir_message *messages;
    size_t n_messages;
    const char *chat_template;       /* name; NULL: the model's own */
    bool raw;                        /* read special tokens in the prompt as such */
    bool batch;                      /* class batch instead of interactive */
    int priority;                    /* among your own waiting requests of the class: 1 first, 0, -1 last */
    bool whole;                      /* deliver text once, at the end, not as it grows */
    bool cache_off;
    bool ignore_eos;
    bool takeover_any;               /* if its worker dies, go on also where the bits may differ; default: only where they are equal */
    uint32_t max_tokens;             /* 0: to the answer's own end */
    uint32_t n;                      /* completions; 0 is 1 */
    uint32_t deadline_ms;            /* from now; 0: none */
    const uint64_t *seed;            /* NULL: the library draws one below 2^53, which every JSON reader keeps exactly; the broker, with an idempotency_key */
    const double *temperature;       /* NULL: 1.0 */
    const double *top_p, *min_p, *repetition_penalty, *presence_penalty, *frequency_penalty;
    uint32_t top_k;                  /* 0: off */
    bool logprobs;
    uint32_t n_top_logprobs;         /* 0 .. 20 */
    const char *const *stop;
    size_t n_stop;
    const struct weir_bias *bias;
    size_t n_bias;
    const char *scope, *salt;        /* NULL: none */
    const char *session;             /* name of a conversation whose computed part is kept for the next turn; NULL: none */
    uint32_t session_ttl_ms;         /* for so long after its last request; 0: ten minutes */
    const char *idempotency_key;     /* NULL: none.  Two requests with one key are one: the second gets what the first got, or gets (docs/protocol.md) */
    const struct weir_resume *resume; /* go on with an answer that another broker began: only the rest is delivered.  Needs seed (as ACCEPTED said
                                      * it); not with idempotency_key */
    size_t n_resume;
    const char *on_behalf_of;        /* front ends only: the user it is for */
};

/* --- events ---------------------------------------------------------------------------------- */

enum weir_event_type {
    WEIR_ACCEPTED,   /* queued; seed is set */
    WEIR_PROGRESS,   /* still alive; running, ahead */
    WEIR_TEXT,       /* choice, text, ids */
    WEIR_DONE,       /* the end: choices' reasons, usage, timings */
    WEIR_ERROR,      /* the end: error */
    WEIR_JSON,       /* the end of weir_query(), weir_trace() and weir_worker_order(): json, the broker's answer without the wire's "type" and "id" */
    WEIR_IDS,        /* the end of weir_tokenize_async(): ids */
};

enum weir_finish { WEIR_FINISH_NONE, WEIR_FINISH_STOP, WEIR_FINISH_LENGTH, WEIR_FINISH_CANCELLED, WEIR_FINISH_ERROR };
const char *weir_finish_name(enum weir_finish f); /* "stop", "length", ... */

struct weir_token_logprob {
    int32_t id;
    double logprob;
    const char *bytes;               /* not NUL-terminated; may be half a character */
    size_t n_bytes;
    const struct weir_token_logprob *top; /* [n_top]; their own top is NULL */
    size_t n_top;
};

struct weir_usage {
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
};

struct weir_timings {
    double queue_ms, prefill_ms, first_token_ms, total_ms;
};

struct weir_event {
    enum weir_event_type type;
    uint64_t request;                /* what weir_submit() gave */
    uint64_t seed;                   /* ACCEPTED */
    const char *trace_name;          /* ACCEPTED: what the broker calls the request; for weir_trace() */
    bool running;                    /* PROGRESS */
    uint32_t ahead;                  /* PROGRESS: requests of this user before it, when queued */
    uint32_t choice, index;          /* TEXT: of tokens index .. index + n_ids - 1 */
    const char *text;                /* TEXT: whole characters, NUL-terminated; JSON: the text */
    size_t text_bytes;
    const int32_t *ids;              /* TEXT, IDS */
    size_t n_ids;
    const struct weir_token_logprob *logprobs; /* TEXT: [n_ids] or NULL */
    uint32_t n_choices;              /* DONE */
    enum weir_finish finish[16];     /* DONE: [n_choices] */
    int32_t stop_index[16];          /* DONE: which stop string; -1: none */
    struct weir_usage usage;         /* DONE */
    struct weir_timings timings;     /* DONE */
    uint32_t worker, takeovers;      /* DONE */
    const char *model;               /* DONE: the name it was served under */
    const char *system_fingerprint;  /* DONE: equal ids promise equal bits */
    const struct weir_error *error;  /* ERROR */
};

typedef void weir_callback(const struct weir_event *event, void *arg);

/* Send a request.  Its events go to callback(event, arg); after DONE or ERROR there are no more.
 * WEIR_OK and *ret_request (may be NULL); WEIR_AGAIN; WEIR_FAILED for what can be seen to be wrong at once, and while the broker is
 * away ("broker_unreachable"). */
int weir_submit(struct weir_client *c, const struct weir_request *r, weir_callback *callback, void *arg, uint64_t *ret_request,
                struct weir_error *err);
/* Ask for its end; it comes as WEIR_ERROR with code "cancelled" (or as WEIR_DONE if that was faster).  Unknown ids are ignored. */
void weir_cancel(struct weir_client *c, uint64_t request);

enum weir_query { WEIR_QUERY_MODELS, WEIR_QUERY_STATUS };
/* The reply is one JSON object as docs/protocol.md describes it. */
int weir_query(struct weir_client *c, enum weir_query what, weir_callback *callback, void *arg, struct weir_error *err);
/* Where the time of a request went, by its trace_name; NULL: a list of those under way and the last that ended.  Only one's own, unless
 * one is root or the pool's user.  The reply is one JSON object: {"requests": [..]}. */
int weir_trace(struct weir_client *c, const char *request, weir_callback *callback, void *arg, struct weir_error *err);
/* A front end, for this user: of that user's requests only. */
int weir_trace_for(struct weir_client *c, const char *request, const char *on_behalf_of, weir_callback *callback, void *arg,
                   struct weir_error *err);
/* An order about a worker of the pool; for root and the broker's own user.  worker is its slot; model and device belong to "add"
 * (NULL: the first model, "auto").  The reply is a JSON object: {"worker": slot, "state": .., "order": ..}. */
struct weir_worker_order {
    const char *verb;                /* "pause", "resume", "drain", "add", "remove" */
    uint32_t worker;
    const char *model, *device;
};
int weir_worker_order(struct weir_client *c, const struct weir_worker_order *order, weir_callback *callback, void *arg,
                      struct weir_error *err);
int weir_tokenize_async(struct weir_client *c, const char *model, const char *text, size_t text_bytes, bool special,
                        weir_callback *callback, void *arg, struct weir_error *err);
/* Nothing need be kept for this session any more.  _for: a front end, on behalf of this user (NULL: its own). */
int weir_session_end(struct weir_client *c, const char *session, struct weir_error *err);
int weir_session_end_for(struct weir_client *c, const char *session, const char *on_behalf_of, struct weir_error *err);

int weir_fd(const struct weir_client *c);          /* readable: call weir_process() */
int weir_timeout_ms(const struct weir_client *c);  /* call weir_process() after so long at the latest; -1: never */
/* WEIR_OK, or WEIR_FAILED when the broker is gone: every open request has then had its WEIR_ERROR "broker_unreachable".
 * The client reconnects by itself; later requests work again once the broker is back. */
int weir_process(struct weir_client *c, struct weir_error *err);
size_t weir_in_flight(const struct weir_client *c);
bool weir_connected(const struct weir_client *c);  /* false between the loss of a broker and its return */

/* --- blocking -------------------------------------------------------------------------------- */

struct weir_choice {
    char *text;
    size_t text_bytes;
    int32_t *ids;
    size_t n_ids;
    enum weir_finish finish;
    int32_t stop_index;
    struct weir_token_logprob *logprobs; /* [n_ids] or NULL */
};

struct weir_answer {
    struct weir_choice *choices;
    size_t n_choices;
    uint64_t seed;
    struct weir_usage usage;
    struct weir_timings timings;
    uint32_t worker, takeovers;
    char *model, *system_fingerprint;
    char trace_name[64];
};

/* Build an answer out of events, for callers of weir_submit(): pass every event of one request, in order, with *answer NULL
 * before the first.  WEIR_AGAIN: more will come.  WEIR_OK: DONE came, *answer is complete and the caller's.
 * WEIR_FAILED: ERROR came (*err is its error; what had come stays in *answer) or memory is short; free *answer. */
int weir_collect(struct weir_answer **answer, const struct weir_event *event, struct weir_error *err);

/* What weir_collect() has so far, as a request that goes on with it wants it.  Gives how many choices have begun; they borrow *a.
 * With a->seed and the same *answer for the new request's events, the answer becomes what it would have been. */
size_t weir_resume_of(const struct weir_answer *a, struct weir_resume ret_resume[16]);

/* Send one request and wait for its end.  Gives *ret_answer.  Callbacks of other open requests run meanwhile. */
int weir_ask(struct weir_client *c, const struct weir_request *r, struct weir_answer **ret_answer, struct weir_error *err);
void weir_answer_free(struct weir_answer *a); /* NULL is fine */

/* Gives *ret_ids (free()).  Special tokens in text stay text unless special; no BOS is added. */
int weir_tokenize(struct weir_client *c, const char *model, const char *text, size_t text_bytes, bool special, int32_t **ret_ids,
                  size_t *ret_n, struct weir_error *err);
/* Gives *ret_json (free()). */
int weir_query_wait(struct weir_client *c, enum weir_query what, char **ret_json, struct weir_error *err);

int weir_trace_wait(struct weir_client *c, const char *request, char **ret_json, struct weir_error *err);
int weir_worker_order_wait(struct weir_client *c, const struct weir_worker_order *order, char **ret_json, struct weir_error *err);

/* Is name a parameter of the OpenAI API or its relatives that Weir knows and does not implement ("tools")? */
bool weir_is_unsupported_parameter(const char *name);

const char *weir_version(void);

#ifdef __cplusplus
}
#endif

#endif
