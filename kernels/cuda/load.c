/* load.c - all weights onto the device: packed by all usable processors into one of two pinned buffers while the other is on
 * its way.  File pages go back as soon as they are read, so the file is never in memory twice.
 *
 * A matrix whose numbers are those of the layer before (models made of random weights share one layer's) is copied there on the
 * device: 16 GB cost the packing of one layer. */
#include "kernels/cuda/engine.h"

#include "kernels/cpu/pack.h"
#include "kernels/cpu/rope.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    STAGING_BYTES = 16 << 20,
    LOAD_THREADS_MAX = 32,
    ALONE_BYTES = 1 << 20, /* a batch too small to be worth other threads */
};

struct loader {
    struct backend *b;
    uint8_t *staging[2];
    device_event sent[2];
    bool used[2];
    uint32_t current;
    uint8_t *scratch[LOAD_THREADS_MAX];
    uint32_t n_threads;
    size_t staging_bytes, scratch_bytes;
};

/* Panels first .. first+n-1 of one matrix, handed out one by one. */
struct batch {
    const struct weights *w;
    const struct tensor *t;
    uint32_t split_pairs, first, n;
    uint8_t *out;
    _Atomic uint32_t next;
};

struct packer {
    struct batch *batch;
    uint8_t *scratch;
    pthread_t thread;
};

static void *pack_panels(void *arg)
{
    const struct packer *p = arg;
    struct batch *b = p->batch;

    for (uint32_t i; (i = atomic_fetch_add(&b->next, 1)) < b->n;)
        weights_pack_panel(b->w, b->t, b->split_pairs, b->first + i, p->scratch, b->out + i * b->w->panel_bytes);
    return NULL;
}

/* The caller is one of the threads; those that cannot be started are not missed. */
static void pack_batch(const struct loader *l, struct batch *b)
{
    struct packer packers[LOAD_THREADS_MAX];
    const uint32_t wanted = b->n * b->w->panel_bytes < ALONE_BYTES ? 1 : l->n_threads;
    uint32_t n = 1;

    for (; n < wanted; n++) {
        packers[n] = (struct packer){ .batch = b, .scratch = l->scratch[n] };
        if (pthread_create(&packers[n].thread, NULL, pack_panels, &packers[n]) != 0)
            break;
    }
    packers[0] = (struct packer){ .batch = b, .scratch = l->scratch[0] };
    pack_panels(&packers[0]);
    for (uint32_t i = 1; i < n; i++)
        pthread_join(packers[i].thread, NULL);
}

static uint32_t usable_threads(void)
{
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return n < LOAD_THREADS_MAX ? (uint32_t)n : LOAD_THREADS_MAX;
}

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

/* The same memory, to be packed the same way. */
static bool same_matrix(const struct tensor *a, const struct tensor *b)
{
    return a->data == b->data && a->type == b->type && a->n_rows == b->n_rows && a->n_cols == b->n_cols;
}

static enum status copy_matrix(struct loader *l, const struct weights *to, const struct weights *from)
{
    return device_copy((uint8_t *)(uintptr_t)to->data, from->data, weights_bytes(to), ON_DEVICE, l->b->compute);
}

static enum status load_matrix(struct loader *l, const struct weights *w, const struct tensor *t, uint32_t split_pairs)
{
    const uint32_t at_once = (uint32_t)(l->staging_bytes / w->panel_bytes);
    enum status st = ST_OK;

    for (uint32_t first = 0, n; first < w->n_panels && st == ST_OK; first += n) {
        n = w->n_panels - first < at_once ? w->n_panels - first : at_once;
        struct batch batch = { .w = w, .t = t, .split_pairs = split_pairs, .first = first, .n = n, .out = l->staging[l->current] };
        pack_batch(l, &batch);
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

enum { MATRICES = 7 };

struct matrix_load {
    const struct weights *w;
    const struct tensor *t;
    uint32_t split_pairs;
};

static void matrices_of(const struct loader *l, uint32_t layer, struct matrix_load (*ret)[MATRICES])
{
    const struct cuda_layer *w = &l->b->layers[layer];
    const struct model_layer *ml = &l->b->m->layers[layer];
    const uint32_t split = l->b->m->rope_kind == ROPE_NORM ? l->b->m->head_dim : 0;
    const struct matrix_load all[MATRICES] = {
        { &w->q, &ml->attn_q, split },  { &w->k, &ml->attn_k, split },  { &w->v, &ml->attn_v, 0 },  { &w->o, &ml->attn_output, 0 },
        { &w->gate, &ml->ffn_gate, 0 }, { &w->up, &ml->ffn_up, 0 },     { &w->down, &ml->ffn_down, 0 },
    };

    memcpy(ret, all, sizeof(all));
}

static enum status load_matrices(struct loader *l, uint32_t layer)
{
    struct matrix_load now[MATRICES], before[MATRICES];
    enum status st = ST_OK;

    matrices_of(l, layer, &now);
    matrices_of(l, layer > 0 ? layer - 1 : 0, &before);
    for (int i = 0; i < MATRICES && st == ST_OK; i++) {
        if (layer > 0 && same_matrix(now[i].t, before[i].t))
            st = copy_matrix(l, now[i].w, before[i].w);
        else
            st = load_matrix(l, now[i].w, now[i].t, now[i].split_pairs);
    }
    return st;
}

static enum status load_layer(struct loader *l, uint32_t layer)
{
    const struct cuda_layer *w = &l->b->layers[layer];
    const struct model_layer *ml = &l->b->m->layers[layer];
    const uint32_t split = l->b->m->rope_kind == ROPE_NORM ? l->b->m->head_dim : 0;
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
    enum status st = load_matrices(l, layer);

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
    for (l.n_threads = 0; l.n_threads < usable_threads(); l.n_threads++)
        if ((l.scratch[l.n_threads] = aligned_alloc(64, (l.scratch_bytes + 63) / 64 * 64)) == NULL)
            break;
    for (int i = 0; i < 2; i++)
        l.staging[i] = device_take_host(l.staging_bytes);
    if (l.n_threads == 0 || l.staging[0] == NULL || l.staging[1] == NULL)
        goto out;
    st = device_event_new(&l.sent[0]);
    if (st == ST_OK)
        st = device_event_new(&l.sent[1]);
    for (uint32_t i = 0; i < b->m->n_layers && st == ST_OK; i++)
        st = load_layer(&l, i);
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
    for (uint32_t i = 0; i < l.n_threads; i++)
        free(l.scratch[i]);
    return st;
}
