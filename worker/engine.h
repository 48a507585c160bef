/* engine.h - one model on one device: file, tokenizer, chat template and backend, opened together and sized to fit.
 *
 * Sizes that are not given are chosen here:
 *   context   of the model, at most CONTEXT_TOKENS_MAX; at most what the KV pool holds (a context that was given and does not fit
 *             is refused)
 *   KV        a quarter of what is free after weights and scratch (of a GPU: nine tenths), at most what max_seqs
 *             sequences of full length need, and on the CPU at most 2 GiB
 *
 * Threads: the step thread's, but for limits, tokenizer and chat template, which anybody may read. */
#ifndef ENGINE_H
#define ENGINE_H

#include "backend.h"
#include "backend_choice.h"
#include "model_file.h"
#include "request.h"
#include "scheduler.h"

struct engine_options {
    const char *model_path;
    const char *device;        /* backend_choice.h */
    uint32_t n_threads;        /* 0: the usable CPUs */
    uint64_t kv_bytes;         /* 0: chosen */
    uint64_t cpu_kv_bytes;     /* chosen so on a CPU; 0: a quarter of what is free, at most 2 GiB.  On a device with memory of its own: */
    uint32_t device_share;     /* 9/10 of what is free, at most 9/10 of 1/device_share of all of it; 0: 1 */
    uint32_t kv_blocks;        /* 0: by kv_bytes */
    enum kv_type kv_type;
    uint32_t context_tokens;   /* 0: the model's */
    uint32_t max_seqs;
    uint32_t max_rows;
    bool pin_threads;
    bool fast_prefill;         /* backend.h; refused by the CPU backend */
};

struct engine {
    struct gguf *gguf;
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template chat;
    struct backend_choice choice;
    struct backend *backend;
    struct backend_options sizes; /* as given to the backend */
    struct memory_plan memory;    /* what it takes */
    struct backend_info info;
    struct request_limits limits;
};

/* Read the file and decide all sizes, without taking memory for weights and KV.
 * ST_OK; ST_INVALID, ST_UNSUPPORTED, ST_LIMIT, ST_NOMEM, ST_SYSTEM with *err.  e is zeroed first; engine_close() in any case. */
MUST_CHECK enum status engine_plan(const struct engine_options *opt, struct engine *e, struct error *err);

/* After engine_plan(): take the memory and make the backend ready.  The same results. */
MUST_CHECK enum status engine_open(struct engine *e, struct error *err);

/* Both.  Where `auto` chose a GPU that then cannot be opened, the CPU serves; choice.reason says why. */
MUST_CHECK enum status engine_start(const struct engine_options *opt, struct engine *e, struct error *err);

void engine_close(struct engine *e); /* also half-made, also twice */

/* Do the plan's copies and its step; ret_results [n_entries].  ST_OK, or ST_SYSTEM: the device failed, the worker ends. */
MUST_CHECK enum status engine_step(struct engine *e, const struct scheduler_plan *plan, struct step_result *ret_results);

#endif
