/* backend.c - the backend's face: open, close, steps and copies.
 *
 * Steps run on one stream, block copies on another.  A copy waits for the steps submitted before it; a step waits only for
 * copies of blocks that it names, so a block on its way to the host costs a step nothing.  (Two copies are in order anyway.) */
#include "kernels/cuda/engine.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "log.h"
#include "version.h"

const struct backend_api *backend_cuda(void);

/* ------------------------------------------------------------------ sizes */

static enum status fill_options(const struct model *m, const struct backend_options *o, struct backend_options *ret_options,
                                struct error *err)
{
    struct backend_options f = *o;

    if (f.context_tokens == 0)
        f.context_tokens = m->context_tokens;
    if (f.max_rows < 1 || f.max_rows > PLAN_TOKENS_MAX || f.max_seqs < 1 || f.max_seqs > SEQS_MAX ||
        f.context_tokens > CONTEXT_TOKENS_MAX) {
        error_set(err, ERR_INVALID_PARAMETER, "backend", "rows %u (1 to %d), sequences %u (1 to %d), context %u (at most %d)",
                  f.max_rows, PLAN_TOKENS_MAX, f.max_seqs, SEQS_MAX, f.context_tokens, CONTEXT_TOKENS_MAX);
        return ST_UNSUPPORTED;
    }
    f.n_threads = 1;
    *ret_options = f;
    return ST_OK;
}

static void free_sizes(struct backend *b)
{
    if (b != NULL) {
        free(b->layers);
        free(b->block_ticket);
    }
    free(b);
}

/* A backend with a device, options and all sizes, but no memory behind it. */
static enum status measure(const struct model *m, const struct backend_options *o, struct backend **ret_backend, struct error *err)
{
    struct cuda_arena weights = { 0 }, scratch = { 0 };
    enum status st = ST_NOMEM;
    struct backend *b = calloc(1, sizeof(*b));

    if (b == NULL || (b->layers = calloc(m->n_layers, sizeof(*b->layers))) == NULL)
        goto out;
    b->m = m;
    st = fill_options(m, o, &b->options, err);
    if (st == ST_OK)
        st = device_open(b->options.device, b->options.fast_prefill, &b->device, err);
    if (st == ST_OK)
        st = cuda_layout_weights(b, &weights, err);
    if (st != ST_OK)
        goto out;
    cuda_layout_kv(b);
    cuda_layout_scratch(b, &scratch);
    if (b->options.n_blocks == 0) {
        const uint64_t n = b->options.kv_bytes / b->kv.block_bytes;
        b->options.n_blocks = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    }
    if (b->options.n_blocks == 0) {
        error_set(err, ERR_LIMIT_EXCEEDED, "kv", "KV memory of %" PRIu64 " bytes holds no block of %zu bytes", b->options.kv_bytes,
                  b->kv.block_bytes);
        st = ST_LIMIT;
        goto out;
    }
    b->memory = (struct memory_plan){ .weights = weights.used, .kv = (uint64_t)b->options.n_blocks * b->kv.block_bytes,
                                      .scratch = scratch.used, .available = b->device.available, .device_bytes = b->device.total,
                                      .n_blocks = b->options.n_blocks, .block_bytes = (uint32_t)b->kv.block_bytes };
    b->weight_bytes = b->memory.weights;
    cuda_fast_size(b);
    b->memory.weights += b->wide_bytes;
    b->memory.total = b->memory.weights + b->memory.kv + b->memory.scratch;
    *ret_backend = b;
    return ST_OK;
out:
    free_sizes(b);
    return st;
}

static enum status check_fit(const struct memory_plan *p, struct error *err)
{
    if (p->total <= p->available)
        return ST_OK;
    error_set(err, ERR_LIMIT_EXCEEDED, "memory",
              "needs %" PRIu64 " MiB of device memory (weights %" PRIu64 ", KV %" PRIu64 ", scratch %" PRIu64 "), %" PRIu64
              " MiB are free: %" PRIu64 " MiB too many",
              p->total >> 20, p->weights >> 20, p->kv >> 20, p->scratch >> 20, p->available >> 20,
              ((p->total - p->available) >> 20) + 1);
    return ST_LIMIT;
}

static enum status plan_memory(const struct model *m, const struct backend_options *o, struct memory_plan *ret_plan,
                               struct error *err)
{
    struct backend *b;
    enum status st = measure(m, o, &b, err);

    if (st != ST_OK)
        return st;
    const struct memory_plan plan = b->memory;
    free_sizes(b);
    st = check_fit(&plan, err);
    if (st == ST_OK)
        *ret_plan = plan;
    return st;
}

/* ------------------------------------------------------------------ open and close */

static void backend_close(struct backend *b)
{
    if (b == NULL)
        return;
    if (b->compute != NULL && b->any_step && !b->broken) /* what runs still reads what is about to go */
        b->broken = device_event_wait(b->last_step) != ST_OK;
    for (int i = 0; i < ROW_SIZES_MAX; i++)
        for (int j = 0; j < PART_SIZES_MAX; j++)
            device_graph_free(b->graphs[i][j]);
    for (int i = 0; i < BACKEND_STEPS_MAX; i++) {
        device_event_free(b->steps[i].done);
        device_drop_host(b->steps[i].upload);
        device_drop_host(b->steps[i].results);
    }
    for (int i = 0; i < COPIES_PENDING_MAX; i++) {
        if (b->copy[i].ticket != 0 && !b->broken)
            b->broken = device_event_wait(b->copy[i].done) != ST_OK;
        device_event_free(b->copy[i].done);
    }
    device_event_free(b->last_step);
    device_stream_free(b->compute);
    device_stream_free(b->copies);
    device_drop(b->weights_at);
    device_drop(b->kv_at);
    device_drop(b->scratch_at);
    device_drop(b->wide_at);
    matmul_close(b->matmul);
    free_sizes(b);
}

static enum status make_streams(struct backend *b)
{
    enum status st = device_stream_new(&b->compute);

    if (st == ST_OK)
        st = device_stream_new(&b->copies);
    if (st == ST_OK)
        st = device_event_new(&b->last_step);
    for (int i = 0; i < COPIES_PENDING_MAX && st == ST_OK; i++)
        st = device_event_new(&b->copy[i].done);
    for (int i = 0; i < BACKEND_STEPS_MAX && st == ST_OK; i++) {
        struct cuda_step *s = &b->steps[i];
        st = device_event_new(&s->done);
        s->upload = device_take_host(b->step_bytes);
        s->results = device_take_host(b->options.max_seqs * sizeof(*s->results));
        if (st == ST_OK && (s->upload == NULL || s->results == NULL))
            st = ST_NOMEM;
    }
    return st;
}

static enum status take_memory(struct backend *b, struct error *err)
{
    b->weights_at = device_take(b->weight_bytes);
    b->kv_at = device_take(b->memory.kv);
    b->scratch_at = device_take(b->memory.scratch);
    b->block_ticket = calloc(b->options.n_blocks, sizeof(*b->block_ticket));
    if (b->wide_bytes > 0)
        b->wide_at = device_take(b->wide_bytes);
    if (b->weights_at == NULL || b->kv_at == NULL || b->scratch_at == NULL || b->block_ticket == NULL ||
        (b->wide_bytes > 0 && b->wide_at == NULL))
        return ST_NOMEM;
    struct cuda_arena weights = { .base = b->weights_at }, scratch = { .base = b->scratch_at };
    enum status st = cuda_layout_weights(b, &weights, err);
    assert(st == ST_OK && weights.used == b->weight_bytes);
    cuda_layout_kv(b);
    cuda_layout_scratch(b, &scratch);
    assert(scratch.used == b->memory.scratch);
    cuda_fast_place(b);
    return ST_OK;
}

/* What kernels expect to be zero: counters, and the ends of float rows beyond their last number. */
static enum status clear(struct backend *b)
{
    const uint32_t rows = b->options.max_rows;
    const struct row_input *in[] = { &b->s.in_e, &b->s.in_o, &b->s.in_f };
    enum status st = device_zero(b->s.counters, (size_t)(rows + 3) / 4 * sizeof(uint32_t), b->compute);

    if (st == ST_OK)
        st = device_zero(b->s.attention_counters, (size_t)rows * b->m->n_kv_heads * b->head_sets * sizeof(uint32_t), b->compute);
    for (int i = 0; i < 3 && st == ST_OK; i++) {
        if (in[i]->f32 != NULL)
            st = device_zero(in[i]->f32, (size_t)rows * in[i]->f32_stride * sizeof(float), b->compute);
        if (st == ST_OK && in[i]->bf16 != NULL)
            st = device_zero(in[i]->bf16, (size_t)rows * in[i]->f32_stride * sizeof(uint16_t), b->compute);
    }
    return st;
}

static enum status backend_open(const struct model *m, const struct backend_options *o, struct backend **ret_backend,
                                struct error *err)
{
    struct backend *b = NULL;
    enum status st = measure(m, o, &b, err);

    if (st != ST_OK)
        return st;
    st = check_fit(&b->memory, err);
    if (st != ST_OK)
        goto out;
    st = take_memory(b, err);
    if (st == ST_OK)
        st = make_streams(b);
    if (st == ST_OK)
        st = clear(b);
    if (st == ST_OK)
        st = cuda_load(b);
    *err = (struct error){ 0 };
    if (st == ST_OK)
        st = cuda_fast_open(b, err);
    if (st == ST_OK)
        st = cuda_record_graphs(b);
    if (st != ST_OK && err->code == ERR_NONE) {
        error_set(err, ERR_INTERNAL, "device", "cannot prepare %s: %s", b->device.name,
                  st == ST_SYSTEM ? device_error() : status_text(st));
    }
    if (st != ST_OK)
        goto out;
    *ret_backend = b;
    b = NULL;
out:
    backend_close(b);
    return st;
}

static void describe(const struct backend *b, struct backend_info *ret_info)
{
    struct {
        uint64_t fingerprint[2];
        uint32_t arithmetic, kv_type;
        char backend[8];
    } id = { { b->m->fingerprint[0], b->m->fingerprint[1] }, CUDA_ARITHMETIC_VERSION, (uint32_t)b->options.kv_type, "cuda" };
    XXH128_hash_t h = XXH3_128bits(&id, sizeof(id));

    if (b->has_half) { /* sums of 32 K are the tensor core's, each generation's with its own last bits */
        struct {
            XXH128_hash_t exact;
            int32_t capability[2];
        } half = { h, { b->device.major, b->device.minor } };
        h = XXH3_128bits(&half, sizeof(half));
    }
    if (b->matmul != NULL) { /* the library chooses algorithms by its version and the device */
        struct {
            XXH128_hash_t exact;
            uint64_t version;
            char device[64];
            int32_t capability[2];
        } fast = { h, matmul_version(b->matmul), { 0 }, { b->device.major, b->device.minor } };
        memcpy(fast.device, b->device.name, sizeof(fast.device));
        h = XXH3_128bits(&fast, sizeof(fast));
    }
    memset(ret_info, 0, sizeof(*ret_info));
    snprintf(ret_info->device, sizeof(ret_info->device), "cuda:%u %.48s", b->options.device, b->device.name);
    snprintf(ret_info->numerics_id, sizeof(ret_info->numerics_id), "cuda%d%s-%016" PRIx64 "%016" PRIx64, CUDA_ARITHMETIC_VERSION,
             b->matmul != NULL ? "fast" : "", (uint64_t)h.high64, (uint64_t)h.low64);
    ret_info->memory = b->memory;
    ret_info->n_threads = 1;
}

/* ------------------------------------------------------------------ steps */

static enum status broken(struct backend *b, enum status st, const char *what)
{
    if (st != ST_SYSTEM)
        return st;
    char quoted[256];
    log_error("device", "what=%s reason=%s", what, log_quote(quoted, sizeof(quoted), device_error()));
    b->broken = true;
    return ST_SYSTEM;
}

static uint32_t blocks_of(const struct plan_entry *e)
{
    return (e->n_past + e->n_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

/* A plan the worker may not make: a broken rule of its own, not an error of a user. */
static void check_plan(const struct backend *b, const struct plan *p)
{
    uint32_t rows = 0;

    assert(p->n_entries >= 1 && p->n_entries <= b->options.max_seqs);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];
        assert(e->n_tokens >= 1 && e->n_tokens <= b->options.max_rows - rows);
        assert(e->n_past <= b->options.context_tokens && e->n_tokens <= b->options.context_tokens - e->n_past);
        assert(e->adapter == 0);
        assert(e->from_entry < 0 || (e->n_tokens == 1 && (uint32_t)e->from_entry < b->options.max_seqs));
        assert((e->want != WANT_TOKEN || e->sampling != NULL) && (e->want < WANT_LOGITS || e->logits != NULL));
        assert(e->want != WANT_TOKEN || (e->n_bias <= LOGIT_BIAS_MAX && e->n_seen <= b->m->n_vocab && e->n_seen <= b->options.context_tokens));
        for (uint32_t j = 0; e->from_entry < 0 && j < e->n_tokens; j++)
            assert(e->tokens[j] >= 0 && (uint32_t)e->tokens[j] < b->m->n_vocab);
        for (uint32_t j = 0; j < e->n_bias && e->want == WANT_TOKEN; j++)
            assert(e->bias[j].token >= 0 && (uint32_t)e->bias[j].token < b->m->n_vocab);
        for (uint32_t j = 0; j < e->n_seen && e->want == WANT_TOKEN; j++)
            assert(e->seen[j].token >= 0 && (uint32_t)e->seen[j].token < b->m->n_vocab);
        for (uint32_t j = 0; j < blocks_of(e); j++)
            assert(e->blocks[j] < b->options.n_blocks);
        rows += e->n_tokens;
    }
    assert(rows == p->n_rows);
}

static struct cuda_copy *copy_of(struct backend *b, backend_ticket t)
{
    for (int i = 0; i < COPIES_PENDING_MAX; i++)
        if (b->copy[i].ticket == t)
            return &b->copy[i];
    return NULL;
}

/* The compute stream waits for copies of blocks that the plan names.  Copies are in order: the newest stands for all. */
static enum status wait_for_copies(struct backend *b, const struct plan *p)
{
    backend_ticket newest = 0;

    for (uint32_t i = 0; i < p->n_entries; i++)
        for (uint32_t j = 0; j < blocks_of(&p->entries[i]); j++)
            if (b->block_ticket[p->entries[i].blocks[j]] > newest)
                newest = b->block_ticket[p->entries[i].blocks[j]];
    const struct cuda_copy *c = newest == 0 ? NULL : copy_of(b, newest);
    return c == NULL ? ST_OK : device_stream_wait(b->compute, c->done);
}

static enum status step_submit(struct backend *b, const struct plan *p, backend_ticket *ret_ticket)
{
    if (b->broken)
        return ST_SYSTEM;
    if (b->n_steps == BACKEND_STEPS_MAX)
        return ST_AGAIN;
    check_plan(b, p);
    struct cuda_step *s = &b->steps[(b->first_step + b->n_steps) % BACKEND_STEPS_MAX];
    enum status st = wait_for_copies(b, p);
    if (st == ST_OK)
        st = cuda_step_start(b, s, p);
    if (st != ST_OK)
        return broken(b, st, "step");
    s->plan = p;
    s->ticket = ++b->next_ticket;
    b->any_step = true;
    b->n_steps++;
    *ret_ticket = s->ticket;
    return ST_OK;
}

static enum status step_poll(struct backend *b, backend_ticket t)
{
    assert(t <= b->next_ticket);
    for (uint32_t i = 0; i < b->n_steps; i++) {
        const struct cuda_step *s = &b->steps[(b->first_step + i) % BACKEND_STEPS_MAX];
        if (s->ticket == t)
            return b->broken ? ST_SYSTEM : broken(b, device_event_poll(s->done), "step");
    }
    return ST_OK;
}

static enum status step_wait(struct backend *b, backend_ticket t, struct step_result *ret_results)
{
    struct cuda_step *s = &b->steps[b->first_step];

    if (b->broken)
        return ST_SYSTEM;
    assert(b->n_steps > 0 && s->ticket == t); /* in order, each once */
    enum status st = device_event_wait(s->done);
    if (st != ST_OK)
        return broken(b, st, "step");
    for (uint32_t i = 0; i < s->plan->n_entries; i++)
        if (s->plan->entries[i].want == WANT_TOKEN)
            ret_results[i] = s->results[i];
    b->first_step = (b->first_step + 1) % BACKEND_STEPS_MAX;
    b->n_steps--;
    return ST_OK;
}

/* ------------------------------------------------------------------ copies */

static enum status copy_submit(struct backend *b, const struct block_copy *c, backend_ticket *ret_ticket)
{
    const size_t bytes = b->kv.block_bytes;
    uint8_t *block = b->kv.at + c->block * bytes;
    struct cuda_copy *slot = NULL;
    enum status st = ST_OK;

    if (b->broken)
        return ST_SYSTEM;
    assert(c->block < b->options.n_blocks && (c->kind != BLOCK_TO_BLOCK || c->to_block < b->options.n_blocks));
    for (int i = 0; i < COPIES_PENDING_MAX && slot == NULL; i++)
        if (b->copy[i].ticket == 0 || device_event_poll(b->copy[i].done) == ST_OK)
            slot = &b->copy[i];
    if (slot == NULL)
        return ST_AGAIN;
    if (b->any_step)
        st = device_stream_wait(b->copies, b->last_step);
    if (st == ST_OK && c->kind == BLOCK_TO_HOST)
        st = device_copy(c->host, block, bytes, TO_HOST, b->copies);
    else if (st == ST_OK && c->kind == HOST_TO_BLOCK)
        st = device_copy(block, c->host, bytes, TO_DEVICE, b->copies);
    else if (st == ST_OK && c->block != c->to_block)
        st = device_copy(b->kv.at + c->to_block * bytes, block, bytes, ON_DEVICE, b->copies);
    if (st == ST_OK)
        st = device_event_record(slot->done, b->copies);
    if (st != ST_OK)
        return broken(b, st, "copy");
    slot->ticket = ++b->next_ticket;
    b->block_ticket[c->block] = slot->ticket;
    if (c->kind == BLOCK_TO_BLOCK)
        b->block_ticket[c->to_block] = slot->ticket;
    *ret_ticket = slot->ticket;
    return ST_OK;
}

static enum status copy_poll(struct backend *b, backend_ticket t)
{
    struct cuda_copy *c = copy_of(b, t);

    assert(t > 0 && t <= b->next_ticket);
    if (b->broken)
        return ST_SYSTEM;
    if (c == NULL)
        return ST_OK;
    enum status st = device_event_poll(c->done);
    if (st == ST_OK)
        c->ticket = 0;
    return broken(b, st, "copy");
}

static enum status register_host(struct backend *b, void *at, size_t bytes)
{
    return b->broken ? ST_UNSUPPORTED : device_register_host(at, bytes);
}

static void unregister_host(struct backend *b, void *at)
{
    (void)b;
    device_unregister_host(at);
}

__attribute__((visibility("default"))) const struct backend_api *backend_cuda(void)
{
    static struct backend_api api = {
        .abi = BACKEND_ABI,
        .bytes = sizeof(struct backend_api),
        .name = "cuda",
        .plan_memory = plan_memory,
        .open = backend_open,
        .close = backend_close,
        .describe = describe,
        .step_submit = step_submit,
        .step_poll = step_poll,
        .step_wait = step_wait,
        .copy_submit = copy_submit,
        .copy_poll = copy_poll,
        .register_host = register_host,
        .unregister_host = unregister_host,
    };

    api.build_id = version_build_id();
    return &api;
}
