/* limits.h - every limit of the programs, and the relations between them.  Meeting one gives an error that names it.
 * (Included as "limits.h"; the C library's header is <limits.h>.) */
#ifndef WEIR_LIMITS_H
#define WEIR_LIMITS_H

enum {
    /* KV cache */
    BLOCK_TOKENS = 16,             /* positions of K and V in one block */

    /* pool */
    WORKERS_MAX = 16,              /* worker slots of one broker */
    MODELS_MAX = 16,               /* models served by one broker */
    NAME_BYTES_MAX = 64,           /* names of users, models, sessions, templates, with the final NUL */
    REQUESTS_MAX = 4096,           /* requests a broker holds, queued and running */
    USER_REQUESTS_MAX = 2048,      /* of them, for one user */
    CLIENTS_MAX = 1024,            /* connections with a live request or a hello */
    SESSIONS_MAX = 2048,           /* sessions of one broker */
    SESSIONS_USER_MAX = 128,       /* of them, of one user for whom the users file has no max-sessions */
    SESSION_TTL_MS = 10 * 60 * 1000,            /* a session is kept so long after its last request */
    SESSION_TTL_MS_MAX = 24 * 3600 * 1000,
    CLIENT_PROBE_MS = 100,         /* progress interval; a client that is gone is found within it */

    /* request */
    FRAME_BYTES_MAX = 4 << 20,     /* one ZeroMQ frame */
    FRAME_NESTING_MAX = 8,         /* msgpack containers inside one another */
    FRAME_ITEMS_MAX = 1 << 20,     /* msgpack objects in one frame */
    PROMPT_BYTES_MAX = 1 << 20,    /* text of a prompt, or of all messages together */
    PROMPT_IDS_MAX = 1 << 17,      /* ids of a prompt given as ids */
    TOKENIZE_IDS_MAX = 800000,     /* ids of an answer to tokenize: it is one frame */
    MESSAGES_MAX = 1024,           /* chat messages of a request */
    CHOICES_MAX = 16,              /* n */
    STOPS_MAX = 16,                /* stop strings of a request */
    STOP_BYTES_MAX = 256,          /* one stop string */
    LOGIT_BIAS_MAX = 1024,         /* entries of logit_bias */
    LOGPROBS_MAX = 20,             /* alternatives a token */
    CLIENT_ID_BYTES_MAX = 128,     /* a client's own id of a request */
    SALT_BYTES_MAX = 128,
    EXT_BYTES_MAX = 16 << 10,      /* `ext`, packed */
    OUTPUT_TOKENS_MAX = 1 << 17,   /* generated tokens of one choice */
    DEADLINE_MS_MAX = 7 * 24 * 3600 * 1000,
    POOL_BYTES_DEFAULT = 512 << 20,/* prompts and undelivered output of all requests, at which a broker takes no more */
    CLIENT_BACKLOG_BYTES_MAX = 1 << 20, /* undelivered output of one request before its sequence pauses */

    /* region */
    REGION_SLOTS = 128,            /* requests one worker holds: running and look-ahead */
    REQUEST_RING_SLOTS = 256,      /* broker -> worker */
    EVENT_RING_SLOTS = 16384,      /* worker -> broker */
    RING_SLOT_BYTES = 64,
    ARENA_BYTES = 16 << 20,        /* request records on their way to a worker */
    RECORD_BYTES_MAX = 4 << 20,    /* one request record */
    EVENT_SLOTS_MAX = 512,         /* ring slots of one event with its continuation */

    /* worker */
    SEQS_MAX = 512,                /* sequences in one step */
    PLAN_TOKENS_MAX = 2048,        /* rows in one step: the largest token budget */
    CONTEXT_TOKENS_MAX = 1 << 17,
    PIECE_BYTES_MAX = 512,         /* bytes one token stands for */

    /* model file */
    GGUF_KVS_MAX = 1 << 14,        /* key/value pairs */
    GGUF_TENSORS_MAX = 1 << 16,
    GGUF_KEY_BYTES_MAX = 1 << 10,  /* a key */
    GGUF_NAME_BYTES_MAX = 63,      /* a tensor's name: the format's limit */
    LAYERS_MAX = 1024,
    VOCAB_MAX = 1 << 20,           /* tokens of a vocabulary */
    MERGES_MAX = 1 << 21,          /* merge rules of a byte-pair vocabulary */
    SPECIAL_TOKENS_BYTES_MAX = 1 << 22, /* texts of a vocabulary's control and user-defined tokens together */
    TEMPLATE_BYTES_MAX = 1 << 18,  /* source of a chat template */

    /* jobs */
    LINE_BYTES_MAX = 2 << 20,      /* one line of a batch file */
    JOB_LINES_MAX = 250000,
    JOB_BYTES_MAX = 1 << 30,
    CUSTOM_ID_BYTES_MAX = 256,
};

_Static_assert(RECORD_BYTES_MAX <= ARENA_BYTES / 2, "a record fits the arena wherever it starts");
_Static_assert((REQUEST_RING_SLOTS & (REQUEST_RING_SLOTS - 1)) == 0, "ring positions are masked");
_Static_assert((EVENT_RING_SLOTS & (EVENT_RING_SLOTS - 1)) == 0, "ring positions are masked");
_Static_assert(REQUEST_RING_SLOTS >= REGION_SLOTS, "every slot may have a start on its way");
_Static_assert(EVENT_RING_SLOTS >= 2 * SEQS_MAX * 4, "one step may emit a token, text, a finish and an end per sequence");
_Static_assert(EVENT_RING_SLOTS >= 8 * EVENT_SLOTS_MAX, "long events do not block the ring");
_Static_assert(SEQS_MAX >= CHOICES_MAX, "all choices of a request may run together");
_Static_assert(USER_REQUESTS_MAX <= REQUESTS_MAX, "one user's limit is within the pool's");
_Static_assert(PROMPT_BYTES_MAX + PROMPT_IDS_MAX * 5 <= FRAME_BYTES_MAX, "every allowed prompt fits a frame");
_Static_assert(TOKENIZE_IDS_MAX * 5 + 1024 <= FRAME_BYTES_MAX, "an answer to tokenize fits a frame: an id takes five bytes at most");
_Static_assert(TOKENIZE_IDS_MAX + 16 <= FRAME_ITEMS_MAX, "likewise");
_Static_assert(PROMPT_IDS_MAX >= CONTEXT_TOKENS_MAX, "a full context can be given as ids");
_Static_assert(PROMPT_BYTES_MAX + CHOICES_MAX * 4 + PROMPT_IDS_MAX * 4 <= RECORD_BYTES_MAX, "a resumed request fits a record");

#endif
