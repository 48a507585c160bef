/* cpu.c - the backend's face: open, close, the queue of steps and copies.
 *
 * Nothing runs by itself here.  step_submit() notes the plan; step_wait() computes it, with the caller as the first thread,
 * after everything that was submitted before it.  So step_poll() says ST_OK once waiting is the way on (all before it is
 * done), and a copy submitted behind a step is done when that step has been waited for; with no step before it, at once. */
#include "engine.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "version.h"

/* ------------------------------------------------------------------ sizes */

static enum status fill_options(const struct model *m, const struct backend_options *o, struct backend_options *ret_options,
                                struct error *err)
{
    struct backend_options f = *o;

    if (f.n_threads == 0)
        f.n_threads = usable_processors();
    if (f.context_tokens == 0)
        f.context_tokens = m->context_tokens;
    if (f.n_threads > THREADS_MAX || f.max_rows < 1 || f.max_rows > PLAN_TOKENS_MAX || f.max_seqs < 1 || f.max_seqs > SEQS_MAX ||
        f.context_tokens > CONTEXT_TOKENS_MAX) {
        error_set(err, ERR_INVALID_PARAMETER, "backend", "threads %u (at most %d), rows %u (1 to %d), sequences %u (1 to %d), context %u (at most %d)",
                  f.n_threads, THREADS_MAX, f.max_rows, PLAN_TOKENS_MAX, f.max_seqs, SEQS_MAX, f.context_tokens, CONTEXT_TOKENS_MAX);
        return ST_UNSUPPORTED;
    }
    if (f.fast_prefill) {
        error_set(err, ERR_INVALID_PARAMETER, "--fast-prefill", "fast prefill is the CUDA backend's: the CPU backend computes everything exactly");
        return ST_UNSUPPORTED;
    }
    *ret_options = f;
    return ST_OK;
}

/* A backend with options and all sizes, but no memory behind it. */
static enum status measure(const struct model *m, const struct backend_options *o, struct backend **ret_backend, struct error *err)
{
    struct arena weights = { 0 }, scratch = { 0 };
    enum status st = ST_NOMEM;
    struct backend *b = calloc(1, sizeof(*b));

    if (b == NULL || (b->layers = calloc(m->n_layers, sizeof(*b->layers))) == NULL)
        goto out;
    b->m = m;
    st = fill_options(m, o, &b->options, err);
    if (st == ST_OK)
        st = layout_weights(b, &weights, err);
    if (st != ST_OK)
        goto out;
    layout_kv(b);
    layout_scratch(b, &scratch);
    if (b->options.n_blocks == 0)
        b->options.n_blocks = (uint32_t)(b->options.kv_bytes / b->kv_view.block_bytes < UINT32_MAX ? b->options.kv_bytes / b->kv_view.block_bytes : UINT32_MAX);
    if (b->options.n_blocks == 0) {
        error_set(err, ERR_LIMIT_EXCEEDED, "kv", "KV memory of %" PRIu64 " bytes holds no block of %zu bytes", b->options.kv_bytes, b->kv_view.block_bytes);
        st = ST_LIMIT;
        goto out;
    }
    b->memory = (struct memory_plan){ .weights = weights.used, .kv = (uint64_t)b->options.n_blocks * b->kv_view.block_bytes,
                                      .scratch = scratch.used, .available = memory_available(), .n_blocks = b->options.n_blocks,
                                      .block_bytes = (uint32_t)b->kv_view.block_bytes };
    b->memory.total = b->memory.weights + b->memory.kv + b->memory.scratch;
    *ret_backend = b;
    return ST_OK;
out:
    if (b != NULL)
        free(b->layers);
    free(b);
    return st;
}

static enum status check_fit(const struct memory_plan *p, struct error *err)
{
    if (p->total <= p->available)
        return ST_OK;
    error_set(err, ERR_LIMIT_EXCEEDED, "memory",
              "needs %" PRIu64 " MiB (weights %" PRIu64 ", KV %" PRIu64 ", scratch %" PRIu64 "), %" PRIu64 " MiB are free: %" PRIu64 " MiB too many",
              p->total >> 20, p->weights >> 20, p->kv >> 20, p->scratch >> 20, p->available >> 20, ((p->total - p->available) >> 20) + 1);
    return ST_LIMIT;
}

static enum status cpu_plan_memory(const struct model *m, const struct backend_options *o, struct memory_plan *ret_plan,
                                   struct error *err)
{
    struct backend *b;
    enum status st = measure(m, o, &b, err);

    if (st != ST_OK)
        return st;
    struct memory_plan plan = b->memory;
    free(b->layers);
    free(b);
    st = check_fit(&plan, err);
    if (st == ST_OK)
        *ret_plan = plan;
    return st;
}

/* ------------------------------------------------------------------ open and close */

static void copy_vector(float *out, const struct tensor *t, uint32_t split_pairs)
{
    for (uint32_t i = 0; out != NULL && i < t->n_cols; i++)
        memcpy(out + i, (const uint8_t *)t->data + 4 * (size_t)split_pair_row(i, split_pairs), sizeof(*out));
}

static void copy_vectors(struct backend *b)
{
    const struct model *m = b->m;
    const uint32_t split = m->rope_kind == ROPE_NORM ? m->head_dim : 0;

    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *ml = &m->layers[i];
        struct layer *l = &b->layers[i];
        copy_vector(l->attn_norm, &ml->attn_norm, 0);
        copy_vector(l->ffn_norm, &ml->ffn_norm, 0);
        copy_vector(l->post_attention_norm, &ml->post_attention_norm, 0);
        copy_vector(l->post_ffw_norm, &ml->post_ffw_norm, 0);
        copy_vector(l->q_norm, &ml->attn_q_norm, split);
        copy_vector(l->k_norm, &ml->attn_k_norm, split);
        copy_vector(l->q_bias, &ml->attn_q_bias, split);
        copy_vector(l->k_bias, &ml->attn_k_bias, split);
        copy_vector(l->v_bias, &ml->attn_v_bias, 0);
    }
    copy_vector(b->output_norm, &m->output_norm, 0);
    for (int t = 0; t < 2; t++) {
        const struct model_rope *r = t == 0 ? &m->rope : &m->rope_local;
        b->rope[t] = (struct rope){ .half = m->head_dim / 2, .frequencies = b->frequencies[t] };
        rope_init(&b->rope[t], r, r->freq_divisors.data == NULL ? NULL : (const float *)r->freq_divisors.data);
    }
}

/* One matrix is packed by all threads, then its file pages go back: the weights are in memory once. */
static void pack_all(struct backend *b, const struct matrix *m, const struct tensor *t, uint32_t split_pairs, uint32_t thread)
{
    for (uint32_t panel; (panel = pool_take(b->pool, thread, m->n_panels)) != POOL_NONE;)
        matrix_pack(m, t, split_pairs, panel, panel + 1);
    pool_barrier(b->pool);
    if (thread == 0 && b->m->release_pages != NULL)
        b->m->release_pages(b->m, t->data, t->bytes);
}

/* The head, and the largest norm of its rows, while their bytes are in the caches. */
static void pack_head(struct backend *b, uint32_t thread)
{
    const struct matrix *m = &b->head;
    const struct tensor *t = &b->m->output;
    float *row = b->threads[thread].row;

    memset(row, 0, pad16(t->n_cols) * sizeof(*row));
    for (uint32_t panel; (panel = pool_take(b->pool, thread, m->n_panels)) != POOL_NONE;) {
        matrix_pack(m, t, 0, panel, panel + 1);
        for (uint32_t r = panel * PANEL_ROWS; greedy_type(t->type) && r < (panel + 1) * PANEL_ROWS && r < t->n_rows; r++) {
            tensor_row(t, r, row);
            const float norm = greedy_norm(row, t->n_cols);
            b->head_norms[panel] = norm > b->head_norms[panel] ? norm : b->head_norms[panel];
        }
    }
    pool_barrier(b->pool);
    if (thread > 0)
        return;
    for (uint32_t i = 0; i < m->n_panels; i++)
        b->head_norm = b->head_norms[i] > b->head_norm ? b->head_norms[i] : b->head_norm;
    if (b->m->release_pages != NULL)
        b->m->release_pages(b->m, t->data, t->bytes);
}

static void pack_thread(void *arg, uint32_t thread)
{
    struct backend *b = arg;
    const uint32_t split = b->m->rope_kind == ROPE_NORM ? b->m->head_dim : 0;

    for (uint32_t i = 0; i < b->m->n_layers; i++) {
        const struct model_layer *ml = &b->m->layers[i];
        const struct layer *l = &b->layers[i];
        pack_all(b, &l->q, &ml->attn_q, split, thread);
        pack_all(b, &l->k, &ml->attn_k, split, thread);
        pack_all(b, &l->v, &ml->attn_v, 0, thread);
        pack_all(b, &l->o, &ml->attn_output, 0, thread);
        pack_all(b, &l->gate, &ml->ffn_gate, 0, thread);
        pack_all(b, &l->up, &ml->ffn_up, 0, thread);
        pack_all(b, &l->down, &ml->ffn_down, 0, thread);
    }
    pack_head(b, thread);
}

static void cpu_close(struct backend *b)
{
    if (b == NULL)
        return;
    pool_free(b->pool);
    mapping_drop(&b->weights);
    mapping_drop(&b->kv);
    mapping_drop(&b->scratch);
    free(b->layers);
    free(b);
}

static enum status cpu_open(const struct model *m, const struct backend_options *o, struct backend **ret_backend, struct error *err)
{
    struct backend *b = NULL;
    enum status st = measure(m, o, &b, err);

    if (st != ST_OK)
        return st;
    b->k = kernels_select();
    if (b->k == NULL) {
        error_set(err, ERR_INVALID_PARAMETER, "WEIR_CPU_ISA", "unknown instruction set, or one this machine lacks (scalar, avx2, avxvnni, avx512vnni)");
        st = ST_UNSUPPORTED;
        goto out;
    }
    st = check_fit(&b->memory, err);
    if (st != ST_OK)
        goto out;
    st = mapping_take(b->memory.weights, &b->weights);
    if (st == ST_OK)
        st = mapping_take(b->memory.kv, &b->kv);
    if (st == ST_OK)
        st = mapping_take(b->memory.scratch, &b->scratch);
    if (st == ST_OK)
        st = pool_new(b->options.n_threads, b->options.pin_threads, &b->pool);
    if (st != ST_OK) {
        error_set(err, ERR_INTERNAL, "memory", "cannot take memory or threads: %s", status_text(st));
        goto out;
    }
    struct arena weights = { .base = b->weights.at }, scratch = { .base = b->scratch.at };
    st = layout_weights(b, &weights, err);
    assert(st == ST_OK && weights.used == b->memory.weights);
    layout_scratch(b, &scratch);
    assert(scratch.used == b->memory.scratch);
    b->kv_view.pool = b->kv.at;
    copy_vectors(b);
    pool_run(b->pool, pack_thread, b);
    *ret_backend = b;
    b = NULL;
out:
    cpu_close(b);
    return st;
}

static void cpu_describe(const struct backend *b, struct backend_info *ret_info)
{
    struct {
        uint64_t fingerprint[2];
        uint32_t arithmetic, kv_type;
        char backend[8];
    } id = { { b->m->fingerprint[0], b->m->fingerprint[1] }, ARITHMETIC_VERSION, (uint32_t)b->options.kv_type, "cpu" };
    const XXH128_hash_t h = XXH3_128bits(&id, sizeof(id));

    memset(ret_info, 0, sizeof(*ret_info));
    snprintf(ret_info->device, sizeof(ret_info->device), "cpu %s x%u", b->k->isa, b->options.n_threads);
    snprintf(ret_info->numerics_id, sizeof(ret_info->numerics_id), "cpu%d-%016" PRIx64 "%016" PRIx64, ARITHMETIC_VERSION, (uint64_t)h.high64,
             (uint64_t)h.low64);
    ret_info->memory = b->memory;
    ret_info->n_threads = b->options.n_threads;
}

/* ------------------------------------------------------------------ steps and copies */

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
        assert(e->from_entry < 0 || e->n_tokens == 1);
        assert((e->want != WANT_TOKEN || e->sampling != NULL) && (e->want < WANT_LOGITS || e->logits != NULL));
        for (uint32_t j = 0; e->from_entry < 0 && j < e->n_tokens; j++)
            assert(e->tokens[j] >= 0 && (uint32_t)e->tokens[j] < b->m->n_vocab);
        for (uint32_t j = 0; j < (e->n_past + e->n_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS; j++)
            assert(e->blocks[j] < b->options.n_blocks);
        rows += e->n_tokens;
    }
    assert(rows == p->n_rows);
}

static void copy_now(struct backend *b, const struct block_copy *c)
{
    const size_t bytes = b->kv_view.block_bytes;
    uint8_t *block = b->kv.at + c->block * bytes;

    if (c->kind == BLOCK_TO_HOST)
        memcpy(c->host, block, bytes);
    else if (c->kind == HOST_TO_BLOCK)
        memcpy(block, c->host, bytes);
    else if (c->block != c->to_block)
        memcpy(b->kv.at + c->to_block * bytes, block, bytes);
}

static void drop_first(struct backend *b)
{
    if (!b->queue[0].is_copy)
        b->n_steps--;
    b->n_queued--;
    memmove(b->queue, b->queue + 1, b->n_queued * sizeof(b->queue[0]));
}

static enum status cpu_step_submit(struct backend *b, const struct plan *p, backend_ticket *ret_ticket)
{
    if (b->n_steps == BACKEND_STEPS_MAX)
        return ST_AGAIN;
    check_plan(b, p);
    b->queue[b->n_queued++] = (struct queued){ .ticket = ++b->next_ticket, .plan = p };
    b->n_steps++;
    *ret_ticket = b->next_ticket;
    return ST_OK;
}

static enum status cpu_step_poll(struct backend *b, backend_ticket t)
{
    assert(t <= b->next_ticket);
    return b->n_queued > 0 && b->queue[0].ticket < t ? ST_AGAIN : ST_OK;
}

static enum status cpu_step_wait(struct backend *b, backend_ticket t, struct step_result *ret_results)
{
    assert(b->n_queued > 0 && !b->queue[0].is_copy && b->queue[0].ticket == t); /* in order, each once */
    step_run(b, b->queue[0].plan, ret_results);
    drop_first(b);
    while (b->n_queued > 0 && b->queue[0].is_copy) {
        copy_now(b, &b->queue[0].copy);
        drop_first(b);
    }
    return ST_OK;
}

static enum status cpu_copy_submit(struct backend *b, const struct block_copy *c, backend_ticket *ret_ticket)
{
    assert(c->block < b->options.n_blocks && (c->kind != BLOCK_TO_BLOCK || c->to_block < b->options.n_blocks));
    if (b->n_queued - b->n_steps == COPIES_MAX)
        return ST_AGAIN;
    *ret_ticket = ++b->next_ticket;
    if (b->n_queued == 0)
        copy_now(b, c);
    else
        b->queue[b->n_queued++] = (struct queued){ .ticket = b->next_ticket, .is_copy = true, .copy = *c };
    return ST_OK;
}

static enum status cpu_copy_poll(struct backend *b, backend_ticket t)
{
    assert(t <= b->next_ticket);
    return b->n_queued > 0 && b->queue[0].ticket <= t ? ST_AGAIN : ST_OK;
}

static enum status cpu_register_host(struct backend *b, void *at, size_t bytes)
{
    (void)b, (void)at, (void)bytes;
    return ST_OK;
}

static void cpu_unregister_host(struct backend *b, void *at)
{
    (void)b, (void)at;
}

const struct backend_api *backend_cpu(void)
{
    static struct backend_api api = {
        .abi = BACKEND_ABI,
        .bytes = sizeof(struct backend_api),
        .name = "cpu",
        .plan_memory = cpu_plan_memory,
        .open = cpu_open,
        .close = cpu_close,
        .describe = cpu_describe,
        .step_submit = cpu_step_submit,
        .step_poll = cpu_step_poll,
        .step_wait = cpu_step_wait,
        .copy_submit = cpu_copy_submit,
        .copy_poll = cpu_copy_poll,
        .register_host = cpu_register_host,
        .unregister_host = cpu_unregister_host,
    };

    api.build_id = version_build_id();
    return &api;
}
