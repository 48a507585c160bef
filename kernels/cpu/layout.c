/* layout.c - what the backend keeps in memory and how large it is.  Each function runs once with an arena that only adds
 * up and once with one that has memory, so the plan that is printed and the memory that is taken cannot differ. */
#include "engine.h"

#include <stdio.h>
#include <string.h>

#include "numeric.h"

static enum status place(struct arena *a, struct matrix *m, const struct tensor *t, const char *name, struct error *err)
{
    if (matrix_init(m, t) != ST_OK)
        return error_set(err, ERR_INVALID_REQUEST, "model", "the weight %s has a type or a number of columns (%u) that the CPU backend does not take",
                         name, t->n_cols), ST_UNSUPPORTED;
    m->data = arena_take(a, matrix_bytes(m));
    return ST_OK;
}

static float *place_vector(struct arena *a, const struct tensor *t)
{
    return t->data == NULL ? NULL : arena_take(a, pad16(t->n_cols) * sizeof(float));
}

static enum status layout_layer(struct backend *b, struct layer *l, const struct model_layer *ml, struct arena *a,
                                struct error *err)
{
    const struct {
        struct matrix *m;
        const struct tensor *t;
        const char *name;
    } matrices[] = {
        { &l->q, &ml->attn_q, "attn_q" },       { &l->k, &ml->attn_k, "attn_k" },
        { &l->v, &ml->attn_v, "attn_v" },       { &l->o, &ml->attn_output, "attn_output" },
        { &l->gate, &ml->ffn_gate, "ffn_gate" }, { &l->up, &ml->ffn_up, "ffn_up" },
        { &l->down, &ml->ffn_down, "ffn_down" },
    };

    (void)b;
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        enum status st = place(a, matrices[i].m, matrices[i].t, matrices[i].name, err);
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

enum status layout_weights(struct backend *b, struct arena *a, struct error *err)
{
    const struct model *m = b->m;

    if (m->head_dim % 32 != 0) {
        error_set(err, ERR_INVALID_REQUEST, "model", "the CPU backend takes heads of a multiple of 32 dimensions, this model has %u",
                  m->head_dim);
        return ST_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < m->n_layers; i++) {
        enum status st = layout_layer(b, &b->layers[i], &m->layers[i], a, err);
        if (st != ST_OK)
            return st;
    }
    b->output_norm = place_vector(a, &m->output_norm);
    for (int i = 0; i < 2; i++)
        b->frequencies[i] = arena_take(a, m->head_dim / 2 * sizeof(double));
    b->head_norms = arena_take(a, (size_t)(pad16(m->n_vocab) / PANEL_ROWS) * sizeof(*b->head_norms));
    return place(a, &b->head, &m->output, "output", err);
}

void layout_kv(struct backend *b)
{
    const uint32_t dim = b->m->head_dim, groups = dim / QUANT_BLOCK;
    struct kv_view *v = &b->kv_view;
    size_t at = 0;

    *v = (struct kv_view){ .head_dim = dim };
    if (b->options.kv_type == KV_F16) {
        v->k = 0;
        v->v = (size_t)dim * BLOCK_TOKENS * 2;
        at = 2 * v->v;
    } else {
        v->kv_group = QUANT_BLOCK;
        v->k = 0;
        v->v = (size_t)dim * BLOCK_TOKENS;
        v->k_scales = 2 * v->v;
        v->v_scales = v->k_scales + groups * BLOCK_TOKENS * 2;
        at = v->v_scales + groups * BLOCK_TOKENS * 2;
    }
    b->kv_head_bytes = (at + 63) / 64 * 64;
    b->kv_layer_bytes = b->kv_head_bytes * b->m->n_kv_heads;
    v->block_bytes = b->kv_layer_bytes * b->m->n_layers;

    b->heads_per_group = b->m->n_heads / b->m->n_kv_heads;
    b->heads_per_tile = b->heads_per_group < ATTENTION_QUERIES ? b->heads_per_group : ATTENTION_QUERIES;
    b->head_sets = (b->heads_per_group + b->heads_per_tile - 1) / b->heads_per_tile;
    b->tokens_per_tile = ATTENTION_QUERIES / b->heads_per_tile;
}

static void layout_input(struct input *in, struct arena *a, uint32_t n_cols, uint32_t n_tiles, uint32_t parts, bool q8, bool f32)
{
    *in = (struct input){ .n_cols = n_cols, .parts = parts };
    if (q8)
        in->q8 = arena_take(a, (size_t)n_tiles * TILE_ROWS * (n_cols / QUANT_BLOCK) * parts * sizeof(struct xblock));
    if (f32)
        in->f32 = arena_take(a, (size_t)n_tiles * TILE_ROWS * pad16(n_cols) * sizeof(float));
}

/* Which forms of their inputs the weights of all layers ask for. */
struct forms {
    bool q8, f32;
};

static void need(struct forms *f, const struct tensor *t)
{
    if (type_is_float(t->type))
        f->f32 = true;
    else
        f->q8 = true;
}

static void layout_attention(struct attention_scratch *s, struct arena *a, const struct backend *b)
{
    const size_t dim = b->m->head_dim, n = ATTENTION_QUERIES;

    s->qt = arena_take(a, dim * n * sizeof(float));
    s->q8 = arena_take(a, n * dim);
    s->q8d = arena_take(a, n * (dim / QUANT_BLOCK) * sizeof(float));
    s->q8n = arena_take(a, n * (dim / QUANT_BLOCK) * sizeof(int32_t));
    s->scores = arena_take(a, n * SPLIT * sizeof(float));
    s->o = arena_take(a, n * dim * sizeof(float));
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void layout_thread(struct backend *b, struct thread_scratch *t, struct arena *a, struct forms e)
{
    const struct model *m = b->m;
    const uint32_t cols = most(CHUNK_COLS, pad16(m->head_dim));

    layout_input(&t->in, a, m->n_embd, 1, 2, e.q8, e.f32);
    t->row = arena_take(a, (size_t)pad16(most(m->n_embd, m->n_heads * m->head_dim)) * sizeof(float));
    t->y = arena_take(a, (size_t)TILE_ROWS * cols * sizeof(float));
    t->y2 = arena_take(a, (size_t)TILE_ROWS * cols * sizeof(float));
    layout_attention(&t->attention, a, b);
    t->o = arena_take(a, (size_t)ATTENTION_QUERIES * m->head_dim * sizeof(float));
    t->head_row = arena_take(a, (size_t)(m->n_embd / QUANT_BLOCK) * 2 * sizeof(*t->head_row));
    t->panels = arena_take(a, (size_t)(pad16(m->n_vocab) / PANEL_ROWS) * sizeof(*t->panels));
    t->sampler.raw = arena_take(a, (size_t)pad16(m->n_vocab) * sizeof(float));
    t->sampler.ranked = arena_take(a, (size_t)m->n_vocab * sizeof(struct ranked));
}

void layout_scratch(struct backend *b, struct arena *a)
{
    const struct model *m = b->m;
    const uint32_t rows = b->options.max_rows, seqs = b->options.max_seqs;
    const uint32_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, embd = pad16(m->n_embd);
    const uint32_t splits = b->options.context_tokens / SPLIT + 1;
    struct forms e = { 0 }, o = { 0 }, f = { 0 }, head = { 0 };
    struct step *s = &b->step;

    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        need(&e, &l->attn_q), need(&e, &l->attn_k), need(&e, &l->attn_v), need(&e, &l->ffn_gate), need(&e, &l->ffn_up);
        need(&o, &l->attn_output);
        need(&f, &l->ffn_down);
    }
    need(&head, &m->output);
    s->token = arena_take(a, rows * sizeof(*s->token));
    s->position = arena_take(a, rows * sizeof(*s->position));
    s->entry = arena_take(a, rows * sizeof(*s->entry));
    s->out_row = arena_take(a, rows * sizeof(*s->out_row));
    s->item_start = arena_take(a, (seqs + 1) * sizeof(*s->item_start));
    s->x = arena_take(a, (size_t)rows * embd * sizeof(float));
    s->tmp = m->layers[0].post_attention_norm.data == NULL ? NULL : arena_take(a, (size_t)rows * embd * sizeof(float));
    s->q = arena_take(a, (size_t)rows * m->n_heads * m->head_dim * sizeof(float));
    layout_input(&s->in_e, a, m->n_embd, tiles, 2, e.q8, e.f32);
    layout_input(&s->in_o, a, m->n_heads * m->head_dim, tiles, 1, o.q8, o.f32);
    layout_input(&s->in_f, a, m->n_ff, tiles, 1, f.q8, f.f32);
    layout_input(&s->in_head, a, m->n_embd, 1, 2, head.q8, head.f32);
    for (int i = 0; i < 2; i++) {
        s->cosines[i] = arena_take(a, (size_t)rows * m->head_dim / 2 * sizeof(float));
        s->sines[i] = arena_take(a, (size_t)rows * m->head_dim / 2 * sizeof(float));
    }
    s->logits = arena_take(a, (size_t)TILE_ROWS * pad16(m->n_vocab) * sizeof(float));
    s->split_state = arena_take(a, (size_t)SPLIT_ITEMS_MAX * splits * sizeof(*s->split_state));
    s->split_o = arena_take(a, (size_t)SPLIT_ITEMS_MAX * splits * b->heads_per_tile * m->head_dim * sizeof(float));
    b->last_tokens = arena_take(a, seqs * sizeof(*b->last_tokens));
    struct thread_scratch unplaced; /* while only adding up there is nowhere to keep them */
    b->threads = arena_take(a, b->options.n_threads * sizeof(*b->threads));
    for (uint32_t i = 0; i < b->options.n_threads; i++)
        layout_thread(b, b->threads == NULL ? &unplaced : &b->threads[i], a, e);
}
