/* load.c - all weights onto the device: packed panel by panel into one of two pinned buffers while the other is on its way.
 * File pages go back as soon as they are read, so the file is never in memory twice. */
#include "kernels/cuda/engine.h"

#include "kernels/cpu/pack.h"
#include "kernels/cpu/rope.h"

#include <stdlib.h>
#include <string.h>

enum { STAGING_BYTES = 8 << 20 };

struct loader {
    struct backend *b;
    uint8_t *staging[2];
    device_event sent[2];
    bool used[2];
    uint32_t current;
    uint8_t *scratch;
    size_t staging_bytes, scratch_bytes;
};

static enum status send(struct loader *l, void *to, size_t bytes)
{
    enum status st = device_copy(to, l->staging[l->current], bytes, TO_DEVICE, l->b->compute);

    if (st == ST_OK)
        st = device_event_record(l->sent[l->current], l->b->compute);
    l->used[l->current] = true;
    l->current ^= 1;
    if (st == ST_OK && l->used[l->current])
        st = device_event_wait(l->sent[l->current]);
    return st;
}

static enum status load_matrix(struct loader *l, const struct weights *w, const struct tensor *t, uint32_t split_pairs)
{
    const uint32_t at_once = (uint32_t)(l->staging_bytes / w->panel_bytes);
    enum status st = ST_OK;

    for (uint32_t first = 0, n; first < w->n_panels && st == ST_OK; first += n) {
        n = w->n_panels - first < at_once ? w->n_panels - first : at_once;
        for (uint32_t i = 0; i < n; i++)
            weights_pack_panel(w, t, split_pairs, first + i, l->scratch, l->staging[l->current] + i * w->panel_bytes);
        st = send(l, (uint8_t *)(uintptr_t)w->data + first * w->panel_bytes, n * w->panel_bytes);
    }
    if (l->b->m->release_pages != NULL)
        l->b->m->release_pages(l->b->m, t->data, t->bytes);
    return st;
}

static enum status load_vector(struct loader *l, float *to, const struct tensor *t, uint32_t split_pairs)
{
    if (to == NULL)
        return ST_OK;
    for (uint32_t i = 0; i < t->n_cols; i++)
        memcpy(l->staging[l->current] + 4 * (size_t)i, (const uint8_t *)t->data + 4 * (size_t)split_pair_row(i, split_pairs), 4);
    return send(l, to, t->n_cols * sizeof(float));
}

static enum status load_layer(struct loader *l, const struct cuda_layer *w, const struct model_layer *ml)
{
    const uint32_t split = l->b->m->rope_kind == ROPE_NORM ? l->b->m->head_dim : 0;
    const struct {
        const struct weights *w;
        const struct tensor *t;
        uint32_t split;
    } matrices[] = {
        { &w->q, &ml->attn_q, split },     { &w->k, &ml->attn_k, split },     { &w->v, &ml->attn_v, 0 },
        { &w->o, &ml->attn_output, 0 },    { &w->gate, &ml->ffn_gate, 0 },    { &w->up, &ml->ffn_up, 0 },
        { &w->down, &ml->ffn_down, 0 },
    };
    const struct {
        float *to;
        const struct tensor *t;
        uint32_t split;
    } vectors[] = {
        { w->attn_norm, &ml->attn_norm, 0 },
        { w->ffn_norm, &ml->ffn_norm, 0 },
        { w->post_attention_norm, &ml->post_attention_norm, 0 },
        { w->post_ffw_norm, &ml->post_ffw_norm, 0 },
        { w->q_norm, &ml->attn_q_norm, split },
        { w->k_norm, &ml->attn_k_norm, split },
        { w->q_bias, &ml->attn_q_bias, split },
        { w->k_bias, &ml->attn_k_bias, split },
        { w->v_bias, &ml->attn_v_bias, 0 },
    };
    enum status st = ST_OK;

    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]) && st == ST_OK; i++)
        st = load_matrix(l, matrices[i].w, matrices[i].t, matrices[i].split);
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]) && st == ST_OK; i++)
        st = load_vector(l, vectors[i].to, vectors[i].t, vectors[i].split);
    return st;
}

static enum status load_rope(struct loader *l, uint32_t table)
{
    const struct model *m = l->b->m;
    const struct model_rope *r = table == 0 ? &m->rope : &m->rope_local;
    struct rope rope = { .half = m->head_dim / 2, .frequencies = (double *)(void *)l->staging[l->current] };

    rope_init(&rope, r, r->freq_divisors.data == NULL ? NULL : (const float *)r->freq_divisors.data);
    l->b->magnitudes[table] = rope.magnitude;
    return send(l, l->b->frequencies[table], rope.half * sizeof(double));
}

/* The largest panel, as packed here and there, decides how large the buffers are. */
static void measure(struct loader *l, const struct weights *w, const struct tensor *t)
{
    const size_t scratch = weights_scratch_bytes(t);

    if (w->panel_bytes > l->staging_bytes)
        l->staging_bytes = w->panel_bytes;
    if (scratch > l->scratch_bytes)
        l->scratch_bytes = scratch;
}

static void measure_all(struct loader *l)
{
    const struct model *m = l->b->m;

    l->staging_bytes = STAGING_BYTES;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct cuda_layer *w = &l->b->layers[i];
        const struct model_layer *ml = &m->layers[i];
        measure(l, &w->q, &ml->attn_q), measure(l, &w->k, &ml->attn_k), measure(l, &w->v, &ml->attn_v);
        measure(l, &w->o, &ml->attn_output), measure(l, &w->gate, &ml->ffn_gate), measure(l, &w->up, &ml->ffn_up);
        measure(l, &w->down, &ml->ffn_down);
    }
    measure(l, &l->b->head, &m->output);
    measure(l, &l->b->embedding, &m->token_embd);
}

enum status cuda_load(struct backend *b)
{
    struct loader l = { .b = b };
    enum status st = ST_NOMEM;

    measure_all(&l);
    l.scratch = aligned_alloc(64, (l.scratch_bytes + 63) / 64 * 64);
    for (int i = 0; i < 2; i++)
        l.staging[i] = device_take_host(l.staging_bytes);
    if (l.scratch == NULL || l.staging[0] == NULL || l.staging[1] == NULL)
        goto out;
    st = device_event_new(&l.sent[0]);
    if (st == ST_OK)
        st = device_event_new(&l.sent[1]);
    for (uint32_t i = 0; i < b->m->n_layers && st == ST_OK; i++)
        st = load_layer(&l, &b->layers[i], &b->m->layers[i]);
    if (st == ST_OK)
        st = load_vector(&l, b->output_norm, &b->m->output_norm, 0);
    for (uint32_t i = 0; i < 2 && st == ST_OK; i++)
        st = load_rope(&l, i);
    if (st == ST_OK)
        st = load_matrix(&l, &b->head, &b->m->output, 0);
    if (st == ST_OK && !b->m->tied_output)
        st = load_matrix(&l, &b->embedding, &b->m->token_embd, 0);
    for (int i = 0; i < 2 && st == ST_OK; i++)
        st = l.used[i] ? device_event_wait(l.sent[i]) : ST_OK;
out:
    for (int i = 0; i < 2; i++) {
        device_event_free(l.sent[i]);
        device_drop_host(l.staging[i]);
    }
    free(l.scratch);
    return st;
}
