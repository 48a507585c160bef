/* backend.h - what the worker may know of a device.  Two implementations: kernels/cpu (linked in) and kernels/cuda
 * (libweir_cuda.so, loaded when a GPU is asked for).  No tensor and no device type crosses this line.
 *
 * A backend owns the packed weights of one model, a pool of KV blocks, and scratch, all taken by open().  The worker
 * numbers the blocks and decides what they hold; the backend only reads and writes them.
 *
 * A step computes one plan: a list of entries, each one sequence with the tokens it adds this time.  Steps are
 * asynchronous: submit returns a ticket, wait returns the results.  At most BACKEND_STEPS_MAX may be in flight, waited for
 * in order.  A plan and everything it points to stays unchanged until its wait returned.
 *
 * Promise (numerics): within one numerics_id the logits of a row depend only on the tokens before it: not on the other
 * entries, the way a prompt was cut into chunks, the number of threads, or where its prefix came from.  With fast_prefill
 * (an id of its own) they also depend on which tokens came in chunks of 64 and more.
 *
 * Threads: all calls from one thread.  Errors: open() explains itself in *err; a device that fails inside a step gives
 * ST_SYSTEM, after which only close() is allowed and the worker ends. */
#ifndef BACKEND_H
#define BACKEND_H

#include "error.h"
#include "limits.h"
#include "model.h"
#include "sampling.h"
#include "status.h"

enum { BACKEND_ABI = 2, BACKEND_STEPS_MAX = 2, NUMERICS_ID_BYTES = 48 };

enum kv_type { KV_F16, KV_Q8 };

struct backend_options {
    uint32_t n_threads;      /* CPU threads; 0 = the usable CPUs */
    uint32_t device;         /* ordinal; 0 on the CPU */
    enum kv_type kv_type;
    uint32_t n_blocks;       /* KV blocks to take; 0 = as many as kv_bytes holds */
    uint64_t kv_bytes;       /* used when n_blocks is 0 */
    uint32_t max_rows;       /* T: rows of the largest plan, 1 .. PLAN_TOKENS_MAX */
    uint32_t max_seqs;       /* B: entries of the largest plan, 1 .. SEQS_MAX */
    uint32_t context_tokens; /* longest sequence that will be asked for */
    bool pin_threads;
    bool fast_prefill;       /* prompts by a library's matrix products on rounded weights; see Promise */
};

/* What open() would take or has taken; all in bytes. */
struct memory_plan {
    uint64_t weights, kv, scratch, total;
    uint64_t available;             /* what the device or the cgroup has free */
    uint64_t device_bytes;          /* all the memory of a device that has its own; 0: it is the machine's */
    uint32_t n_blocks, block_bytes; /* block_bytes: one block, all layers, K and V, contiguous */
};

struct backend_info {
    char device[64];                /* "cpu avx512vnni x2" */
    char numerics_id[NUMERICS_ID_BYTES]; /* printable; equal ids promise equal bits */
    struct memory_plan memory;
    uint32_t n_threads;
};

enum plan_want {
    WANT_NOTHING,    /* an inner chunk of a prompt */
    WANT_TOKEN,      /* sample after the entry's last row */
    WANT_LOGITS,     /* the last row's logits into entry.logits [V]; no sampling */
    WANT_ALL_LOGITS, /* every row's logits into entry.logits [n_tokens, V]; no sampling */
};

struct plan_entry {
    const int32_t *tokens;   /* [n_tokens]; ignored when from_entry >= 0 */
    uint32_t n_tokens;       /* >= 1 */
    uint32_t n_past;         /* positions of this sequence already in its blocks */
    const uint32_t *blocks;  /* [ceil((n_past + n_tokens) / BLOCK_TOKENS)]; the step writes positions n_past and up */
    int32_t from_entry;      /* -1, or: the only token is the one entry `from_entry` of the step before sampled */
    enum plan_want want;
    /* for WANT_TOKEN */
    const struct sampling *sampling;
    const struct logit_bias *bias;   /* [n_bias] */
    const struct token_count *seen;  /* [n_seen] distinct tokens; needed only while a penalty is on */
    uint32_t n_bias, n_seen;
    uint32_t choice;         /* counter of the random numbers: which completion of the request, */
    uint32_t index;          /* and which generated token of it this will be */
    float *logits;           /* for WANT_*LOGITS, else NULL */
    uint32_t adapter;        /* 0: none.  Others are refused until adapters exist */
};

struct plan {
    const struct plan_entry *entries;
    uint32_t n_entries;
    uint32_t n_rows;         /* sum of n_tokens */
};

struct candidate {
    int32_t token;
    float logprob;
};

struct step_result {         /* one an entry, in order; meaningful for WANT_TOKEN */
    int32_t token;
    float logprob;           /* of the raw logits; 0 unless sampling.logprobs */
    uint32_t n_top;
    struct candidate top[LOGPROBS_MAX]; /* by logit, then id */
};

enum block_copy_kind { BLOCK_TO_HOST, HOST_TO_BLOCK, BLOCK_TO_BLOCK };

struct block_copy {
    enum block_copy_kind kind;
    uint32_t block;          /* the block read (TO_HOST, TO_BLOCK's source) or written (HOST_TO) */
    uint32_t to_block;       /* BLOCK_TO_BLOCK */
    void *host;              /* block_bytes; aligned to 64 */
};

struct backend; /* opaque */
typedef uint64_t backend_ticket;

/* The table a backend hands out.  `abi` and `bytes` come first and never move: a loader checks them before all else. */
struct backend_api {
    uint32_t abi;            /* BACKEND_ABI */
    uint32_t bytes;          /* sizeof(struct backend_api) */
    const char *name;        /* "cpu", "cuda" */
    const char *build_id;    /* must equal the worker's */

    /* What open() would take, without taking it.  ST_OK, ST_UNSUPPORTED or ST_LIMIT (does not fit: *err says by how much). */
    enum status (*plan_memory)(const struct model *m, const struct backend_options *o, struct memory_plan *ret_plan,
                               struct error *err);
    /* Repack the weights, take KV and scratch.  Borrows m until close.  ST_OK, ST_UNSUPPORTED, ST_LIMIT, ST_NOMEM, ST_SYSTEM. */
    enum status (*open)(const struct model *m, const struct backend_options *o, struct backend **ret_backend,
                        struct error *err);
    void (*close)(struct backend *b); /* NULL is fine */
    void (*describe)(const struct backend *b, struct backend_info *ret_info);

    /* Start a step.  ST_OK; ST_AGAIN when BACKEND_STEPS_MAX are in flight; ST_SYSTEM. */
    enum status (*step_submit)(struct backend *b, const struct plan *p, backend_ticket *ret_ticket);
    /* Is it done?  ST_OK or ST_AGAIN, without waiting. */
    enum status (*step_poll)(struct backend *b, backend_ticket t);
    /* Wait (the CPU backend computes here, with the caller as its first thread) and fetch.  ret_results [n_entries]. */
    enum status (*step_wait)(struct backend *b, backend_ticket t, struct step_result *ret_results);

    /* Start a copy of one whole block.  It is ordered after the steps and copies submitted before it and before those after
     * it, so the blocks it names may be handed on at once; `host` stays with it until it is done. */
    enum status (*copy_submit)(struct backend *b, const struct block_copy *c, backend_ticket *ret_ticket);
    enum status (*copy_poll)(struct backend *b, backend_ticket t); /* ST_OK done, ST_AGAIN, ST_SYSTEM */
    /* Host memory that copies will go to and come from: a device then reaches it without a detour, and steps go on meanwhile.
     * (Copies of other memory work too, only slower.)  ST_OK, also where it makes no difference; ST_UNSUPPORTED: the device
     * cannot, copies are as before.  Memory that was registered is to be given back, its copies done, before it goes or close. */
    enum status (*register_host)(struct backend *b, void *at, size_t bytes);
    void (*unregister_host)(struct backend *b, void *at);
};

const struct backend_api *backend_cpu(void);

#endif
