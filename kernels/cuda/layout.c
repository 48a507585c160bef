/* layout.c - what the backend keeps in device memory and how large it is.  Each function runs once with an arena that only
 * adds up and once with one that has memory, so the plan that is printed and the memory that is taken cannot differ. */
#include "kernels/cuda/engine.h"

#include <stdio.h>

enum { ALIGNMENT = 256 };

/* A little space lies between the parts, which nobody may touch; the emulation looks. */
static void *take(struct cuda_arena *a, size_t bytes)
{
    uint8_t *at = a->base == NULL ? NULL : a->base + a->used;
    const size_t used = (bytes + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;

    if (at != NULL)
        device_guard(at + bytes, used - bytes);
    a->used += used;
    return at;
}

static uint32_t pad(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ------------------------------------------------------------------ weights */

static enum status place(struct cuda_arena *a, struct weights *w, const struct tensor *t, const char *name, bool *is_half,
                         struct error *err)
{
    if (weights_init(w, t) != ST_OK)
        return error_set(err, ERR_INVALID_REQUEST, "model",
                         "the weight %s has a type or a number of columns (%u) that the CUDA backend does not take", name,
                         t->n_cols),
               ST_UNSUPPORTED;
    w->data = take(a, weights_bytes(w));
    *is_half |= t->type == TENSOR_F16 || t->type == TENSOR_BF16;
    return ST_OK;
}

static float *place_vector(struct cuda_arena *a, const struct tensor *t)
{
    return t->data == NULL ? NULL : take(a, t->n_cols * sizeof(float));
}

static enum status place_layer(struct cuda_layer *l, const struct model_layer *ml, struct cuda_arena *a, bool *is_half,
                               struct error *err)
{
    const struct {
        struct weights *w;
        const struct tensor *t;
        const char *name;
    } matrices[] = {
        { &l->q, &ml->attn_q, "attn_q" },        { &l->k, &ml->attn_k, "attn_k" },
        { &l->v, &ml->attn_v, "attn_v" },        { &l->o, &ml->attn_output, "attn_output" },
        { &l->gate, &ml->ffn_gate, "ffn_gate" }, { &l->up, &ml->ffn_up, "ffn_up" },
        { &l->down, &ml->ffn_down, "ffn_down" },
    };

    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        enum status st = place(a, matrices[i].w, matrices[i].t, matrices[i].name, is_half, err);
        if (st != ST_OK)
            return st;
    }
    l->attn_norm = place_vector(a, &ml->attn_norm);
    l->ffn_norm = place_vector(a, &ml->ffn_norm);
    l->post_attention_norm = place_vector(a, &ml->post_attention_norm);
    l->post_ffw_norm = place_vector(a, &ml->post_ffw_norm);
    l->q_norm = place_vector(a, &ml->attn_q_norm);
    l->k_norm = place_vector(a, &ml->attn_k_norm);
    l->q_bias = place_vector(a, &ml->attn_q_bias);
    l->k_bias = place_vector(a, &ml->attn_k_bias);
    l->v_bias = place_vector(a, &ml->attn_v_bias);
    return ST_OK;
}

enum status cuda_layout_weights(struct backend *b, struct cuda_arena *a, struct error *err)
{
    const struct model *m = b->m;

    if (m->head_dim % 32 != 0 || m->head_dim > 256) {
        error_set(err, ERR_INVALID_REQUEST, "model",
                  "the CUDA backend takes heads of a multiple of 32 dimensions up to 256, this model has %u", m->head_dim);
        return ST_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < m->n_layers; i++) {
        enum status st = place_layer(&b->layers[i], &m->layers[i], a, &b->has_half, err);
        if (st != ST_OK)
            return st;
    }
    b->output_norm = place_vector(a, &m->output_norm);
    for (int i = 0; i < 2; i++)
        b->frequencies[i] = take(a, m->head_dim / 2 * sizeof(double));
    enum status st = place(a, &b->head, &m->output, "output", &b->has_half, err);
    if (st != ST_OK)
        return st;
    b->embedding = b->head;
    return m->tied_output ? ST_OK : place(a, &b->embedding, &m->token_embd, "token_embd", &(bool){ false }, err);
}

/* ------------------------------------------------------------------ KV */

void cuda_layout_kv(struct backend *b)
{
    const uint32_t dim = b->m->head_dim, groups = dim / QUANT_BLOCK;
    const uint32_t heads = b->m->n_heads / b->m->n_kv_heads;
    const size_t size = b->options.kv_type == KV_F16 ? 2 : 1;
    struct kv_pool *kv = &b->kv;

    *kv = (struct kv_pool){ .at = b->kv_at, .type = b->options.kv_type, .head_dim = dim };
    kv->v = (size_t)dim * BLOCK_TOKENS * size;
    kv->head_bytes = 2 * kv->v;
    if (kv->type == KV_Q8) {
        kv->k_scales = 2 * kv->v;
        kv->v_scales = kv->k_scales + (size_t)groups * BLOCK_TOKENS * 2;
        kv->head_bytes = kv->v_scales + (size_t)groups * BLOCK_TOKENS * 2;
    }
    kv->layer_bytes = kv->head_bytes * b->m->n_kv_heads;
    kv->block_bytes = kv->layer_bytes * b->m->n_layers;

    b->heads_per_tile = least(heads, ATTEND_QUERIES_MAX);
    b->head_sets = (heads + b->heads_per_tile - 1) / b->heads_per_tile;
}

/* ------------------------------------------------------------------ scratch */

/* Which forms of their inputs the weights ask for. */
struct forms {
    bool q8, f32, f16, bf16;
};

static void need(struct forms *f, const struct weights *w)
{
    f->f32 |= w->type == TENSOR_F32;
    f->f16 |= w->type == TENSOR_F16;
    f->bf16 |= w->type == TENSOR_BF16;
    f->q8 |= !type_is_float(w->type);
}

static void take_input(struct row_input *in, struct cuda_arena *a, uint32_t rows, uint32_t n_cols, bool second, struct forms f, bool bf16)
{
    *in = (struct row_input){ .n_blocks = n_cols / QUANT_BLOCK, .f32_stride = pad(n_cols, 16), .n_split = pad(n_cols, QUANT_BLOCK) / QUANT_BLOCK };
    if (f.q8)
        in->q8 = take(a, (size_t)rows * in->n_blocks * sizeof(struct xblock));
    if (f.q8 && second)
        in->second = take(a, (size_t)rows * in->n_blocks * sizeof(struct xblock));
    if (f.f32)
        in->f32 = take(a, (size_t)rows * in->f32_stride * sizeof(float));
    if (f.f16)
        in->split_f16 = take(a, (size_t)rows * in->n_split * sizeof(struct split_block));
    if (f.bf16)
        in->split_bf16 = take(a, (size_t)rows * in->n_split * sizeof(struct split_block));
    if (bf16)
        in->bf16 = take(a, (size_t)rows * in->f32_stride * sizeof(uint16_t));
}

static void take_inputs(struct backend *b, struct cuda_arena *a, bool *ret_mixed_gate)
{
    const struct model *m = b->m;
    const uint32_t rows = b->options.max_rows;
    struct forms e = { 0 }, o = { 0 }, f = { 0 };

    *ret_mixed_gate = false;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct cuda_layer *l = &b->layers[i];
        need(&e, &l->q), need(&e, &l->k), need(&e, &l->v), need(&e, &l->gate), need(&e, &l->up);
        need(&o, &l->o);
        need(&f, &l->down);
        *ret_mixed_gate |= l->gate.type != l->up.type;
    }
    need(&e, &b->head);
    const bool fast = b->options.fast_prefill;
    take_input(&b->s.in_e, a, rows, m->n_embd, true, e, fast);
    take_input(&b->s.in_o, a, rows, m->n_heads * m->head_dim, false, o, fast);
    take_input(&b->s.in_f, a, rows, m->n_ff, false, f, fast);
}

static void take_sampling(struct backend *b, struct cuda_arena *a)
{
    const size_t row = b->n_vocab_padded;

    b->n_slots = least(b->options.max_seqs, SAMPLE_SLOTS_MAX);
    b->s.logits = take(a, b->options.max_seqs * row * sizeof(float));
    b->s.raw = take(a, b->n_slots * row * sizeof(float));
    b->s.exps = take(a, b->n_slots * row * sizeof(float));
    b->s.ranked = take(a, b->n_slots * row * sizeof(uint64_t));
    b->s.weights = take(a, b->n_slots * row * sizeof(double));
    b->s.results = take(a, b->options.max_seqs * sizeof(struct step_result));
    b->s.last_tokens = take(a, b->options.max_seqs * sizeof(int32_t));
}

void cuda_layout_scratch(struct backend *b, struct cuda_arena *a)
{
    const struct model *m = b->m;
    const uint32_t rows = b->options.max_rows, embd = pad(m->n_embd, 16), ff = pad(m->n_ff, 16);
    const size_t part = (size_t)m->n_kv_heads * b->head_sets * b->heads_per_tile * (PART_HEAD + m->head_dim) * sizeof(float);
    const uint32_t splits = (b->options.context_tokens + SPLIT - 1) / SPLIT;
    bool mixed_gate;

    b->n_vocab_padded = pad(m->n_vocab, 32);
    take_inputs(b, a, &mixed_gate);
    b->s.x = take(a, (size_t)rows * embd * sizeof(float));
    b->s.tmp = m->layers[0].post_attention_norm.data == NULL ? NULL : take(a, (size_t)rows * embd * sizeof(float));
    b->s.q = take(a, (size_t)rows * m->n_heads * m->head_dim * sizeof(float));
    b->s.k = take(a, (size_t)rows * m->n_kv_heads * m->head_dim * sizeof(float));
    b->s.v = take(a, (size_t)rows * m->n_kv_heads * m->head_dim * sizeof(float));
    mixed_gate |= b->options.fast_prefill;
    b->s.gate = mixed_gate ? take(a, (size_t)rows * ff * sizeof(float)) : NULL;
    b->s.up = mixed_gate ? take(a, (size_t)rows * ff * sizeof(float)) : NULL;
    for (int i = 0; i < 2; i++) {
        b->s.cosines[i] = take(a, (size_t)rows * m->head_dim / 2 * sizeof(float));
        b->s.sines[i] = take(a, (size_t)rows * m->head_dim / 2 * sizeof(float));
    }
    take_sampling(b, a);
    b->n_parts = most(splits, (uint32_t)(PARTS_BYTES_MAX / part));
    if ((uint64_t)b->options.max_seqs * splits < b->n_parts)
        b->n_parts = b->options.max_seqs * splits;
    b->s.parts = take(a, b->n_parts * part);
    b->s.counters = take(a, (size_t)(rows + 3) / 4 * sizeof(uint32_t));
    b->s.attention_counters = take(a, (size_t)rows * m->n_kv_heads * b->head_sets * sizeof(uint32_t));
    b->step_bytes = cuda_plan_bytes_max(b);
    b->s.step = take(a, b->step_bytes);
}
