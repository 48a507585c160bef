/* engine.c - see engine.h. */
#include "engine.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

static const uint64_t cpu_kv_bytes_max = 2ull << 30;

static uint32_t longest_piece(const struct tokenizer *t)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < tokenizer_n_tokens(t); i++) {
        size_t n = tokenizer_piece(t, (int32_t)i, true).n;
        longest = n > longest ? n : longest;
    }
    return (uint32_t)longest;
}

static enum status choose_context(struct engine *e, const struct engine_options *opt, struct error *err)
{
    uint32_t most = e->model->context_tokens < CONTEXT_TOKENS_MAX ? e->model->context_tokens : CONTEXT_TOKENS_MAX;
    if (opt->context_tokens > most) {
        error_set(err, ERR_INVALID_PARAMETER, "--context", "context of %u tokens, this model takes at most %u",
                  opt->context_tokens, most);
        return ST_LIMIT;
    }
    e->sizes.context_tokens = opt->context_tokens > 0 ? opt->context_tokens : most;
    return ST_OK;
}

/* KV memory when nobody said how much: see engine.h. */
static uint64_t choose_kv_bytes(const struct engine *e, const struct engine_options *opt, const struct memory_plan *one)
{
    uint64_t taken = one->weights + one->scratch;
    uint64_t left = one->available > taken ? one->available - taken : 0;
    uint64_t useful = (uint64_t)blocks_for(e->sizes.context_tokens) * e->sizes.max_seqs * one->block_bytes;
    uint64_t kv = left / 10 * 9;
    if (e->choice.api == backend_cpu()) {
        if (opt->cpu_kv_bytes > 0)
            return opt->cpu_kv_bytes;
        kv = left / 4 < cpu_kv_bytes_max ? left / 4 : cpu_kv_bytes_max;
    } else if (opt->device_share > 1) { /* of all of it, not of what the others have left: so every worker gets the same */
        uint64_t part = one->device_bytes / opt->device_share / 10 * 9;
        part = part > taken ? part - taken : 0;
        kv = part < kv ? part : kv;
    }
    if (kv > useful)
        kv = useful;
    return kv > one->block_bytes ? kv : one->block_bytes;
}

static enum status choose_kv(struct engine *e, const struct engine_options *opt, struct error *err)
{
    struct memory_plan plan;
    e->sizes.n_blocks = 1;
    enum status st = e->choice.api->plan_memory(e->model, &e->sizes, &plan, err);
    if (st != ST_OK)
        return st;
    uint64_t bytes = opt->kv_bytes > 0 ? opt->kv_bytes : choose_kv_bytes(e, opt, &plan);
    uint64_t n = opt->kv_blocks > 0 ? opt->kv_blocks : bytes / plan.block_bytes;
    if (n < 2 || n >= KV_BLOCK_NONE) {
        error_set(err, ERR_INVALID_PARAMETER, "--kv-bytes",
                  "KV memory of %" PRIu64 " bytes holds %" PRIu64 " blocks of %u bytes; at least 2 are needed", bytes, n,
                  plan.block_bytes);
        return ST_LIMIT;
    }
    e->sizes.n_blocks = (uint32_t)n;
    st = e->choice.api->plan_memory(e->model, &e->sizes, &e->memory, err);
    if (st != ST_OK)
        return st;
    if (n * BLOCK_TOKENS < opt->context_tokens) {
        error_set(err, ERR_INVALID_PARAMETER, "--context",
                  "context of %u tokens, but %" PRIu64 " KV blocks hold only %" PRIu64, opt->context_tokens, n, n * BLOCK_TOKENS);
        return ST_LIMIT;
    }
    if (n * BLOCK_TOKENS < e->sizes.context_tokens) {
        log_warn("context_lowered", "reason=kv_pool context_tokens=%u kv_blocks=%" PRIu64 " to_tokens=%" PRIu64,
                 e->sizes.context_tokens, n, n * BLOCK_TOKENS);
        e->sizes.context_tokens = (uint32_t)n * BLOCK_TOKENS;
    }
    return ST_OK;
}

static enum status choose_sizes(struct engine *e, const struct engine_options *opt, struct error *err)
{
    if (opt->max_rows <= opt->max_seqs) {
        error_set(err, ERR_INVALID_PARAMETER, "--max-rows", "rows of a step (%u) must be more than its sequences (%u)",
                  opt->max_rows, opt->max_seqs);
        return ST_LIMIT;
    }
    e->sizes = (struct backend_options){
        .n_threads = opt->n_threads,
        .device = e->choice.ordinal,
        .kv_type = opt->kv_type,
        .max_rows = opt->max_rows,
        .max_seqs = opt->max_seqs,
        .pin_threads = opt->pin_threads,
        .fast_prefill = opt->fast_prefill,
    };
    enum status st = choose_context(e, opt, err);
    return st == ST_OK ? choose_kv(e, opt, err) : st;
}

/* A backend that found no memory need not have said so. */
static enum status said(enum status st, struct error *err)
{
    if (st == ST_NOMEM && err->code == ERR_NONE)
        error_set(err, ERR_INTERNAL, "device", "out of memory while the backend was prepared");
    return st;
}

enum status engine_plan(const struct engine_options *opt, struct engine *e, struct error *err)
{
    *e = (struct engine){ 0 };
    enum status st = backend_choose(opt->device, &e->choice, err);
    if (st != ST_OK)
        return st;
    st = gguf_open(opt->model_path, &e->gguf, err);
    if (st != ST_OK)
        return st;
    st = model_open(e->gguf, &e->model, err);
    if (st != ST_OK)
        return st;
    st = tokenizer_new(e->gguf, &e->tokenizer, err);
    if (st != ST_OK)
        return st;
    if (tokenizer_n_tokens(e->tokenizer) > e->model->n_vocab) {
        error_set(err, ERR_INVALID_REQUEST, "model", "vocabulary of %u tokens, but embeddings for %u",
                  tokenizer_n_tokens(e->tokenizer), e->model->n_vocab);
        return ST_INVALID;
    }
    st = chat_template_init(e->gguf, &e->chat, err);
    if (st != ST_OK)
        return st;
    st = said(choose_sizes(e, opt, err), err);
    if (st != ST_OK && e->choice.may_fall_back) {
        snprintf(e->choice.reason, sizeof(e->choice.reason), "%.250s", err->message);
        *err = (struct error){ 0 };
        e->choice.api = backend_cpu();
        e->choice.may_fall_back = false;
        st = said(choose_sizes(e, opt, err), err);
    }
    if (st != ST_OK)
        return st;
    e->limits = (struct request_limits){
        .tokenizer = e->tokenizer,
        .chat = &e->chat,
        .n_vocab = e->model->n_vocab,
        .context_tokens = e->sizes.context_tokens,
        .piece_bytes_max = longest_piece(e->tokenizer),
    };
    return ST_OK;
}

enum status engine_open(struct engine *e, struct error *err)
{
    enum status st = said(e->choice.api->open(e->model, &e->sizes, &e->backend, err), err);
    if (st != ST_OK)
        return st;
    e->choice.api->describe(e->backend, &e->info);
    return ST_OK;
}

enum status engine_start(const struct engine_options *opt, struct engine *e, struct error *err)
{
    enum status st = engine_plan(opt, e, err);
    if (st != ST_OK)
        return st;
    st = engine_open(e, err);
    if (st == ST_OK || !e->choice.may_fall_back)
        return st;
    struct engine_options on_cpu = *opt;
    char reason[BACKEND_REASON_BYTES];
    snprintf(reason, sizeof(reason), "%.250s", err->message);
    on_cpu.device = "cpu";
    *err = (struct error){ 0 };
    engine_close(e);
    st = engine_plan(&on_cpu, e, err);
    if (st != ST_OK)
        return st;
    memcpy(e->choice.reason, reason, sizeof(reason));
    return engine_open(e, err);
}

void engine_close(struct engine *e)
{
    if (e->choice.api != NULL)
        e->choice.api->close(e->backend);
    tokenizer_free(e->tokenizer);
    model_close(e->model);
    gguf_close(e->gguf);
    *e = (struct engine){ 0 };
}

static enum status copy(struct engine *e, struct scheduler_copy c)
{
    const struct backend_api *api = e->choice.api;
    const struct block_copy order = { .kind = BLOCK_TO_BLOCK, .block = c.from, .to_block = c.to };
    backend_ticket ticket;
    enum status st;
    /* A backend takes only so many copies at once; they are short and nothing else can be done before them. */
    while ((st = api->copy_submit(e->backend, &order, &ticket)) == ST_AGAIN)
        sched_yield();
    return st;
}

enum status engine_step(struct engine *e, const struct scheduler_plan *plan, struct step_result *ret_results)
{
    const struct backend_api *api = e->choice.api;
    backend_ticket ticket;
    for (uint32_t i = 0; i < plan->n_copies; i++) {
        enum status st = copy(e, plan->copies[i]);
        if (st != ST_OK)
            return st;
    }
    if (plan->plan.n_entries == 0)
        return ST_OK;
    enum status st = api->step_submit(e->backend, &plan->plan, &ticket);
    if (st != ST_OK)
        return st;
    return api->step_wait(e->backend, ticket, ret_results);
}
