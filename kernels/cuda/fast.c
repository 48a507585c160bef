/* fast.c - fast prefill: matrix products of prompts by matmul.h on weights in bf16.
 *
 * Packed weights stay what decodes, short chunks, the head and the last layer's wanted rows are computed with.  The bf16 copy of
 * all other matrices is kept where it takes at most half of what is free beside weights and scratch and the KV pool still fits;
 * else one slab is filled anew before each product, which costs a pass over the weights a step.  Both go slab by slab, with the
 * same algorithms on the same numbers: which of them it is changes no bit. */
#include "kernels/cuda/engine.h"

#include <assert.h>

enum { ALIGNMENT = 256, MATRICES = 7 };

static struct weights *matrix_of(struct cuda_layer *l, uint32_t i)
{
    struct weights *const all[MATRICES] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };

    return all[i];
}

/* In the last layer, wanted rows go on exactly and the others end after K and V. */
static bool is_wide(const struct backend *b, uint32_t l, uint32_t i)
{
    return l + 1 < b->m->n_layers || i < 3;
}

static uint32_t wide_stride(const struct weights *w)
{
    return (w->n_cols + 15) / 16 * 16;
}

/* Rows of a slab: a multiple of 128, unless the matrix has fewer. */
static uint32_t slab_rows(const struct weights *w)
{
    const uint64_t rows = SLAB_BYTES / 2 / wide_stride(w) / 128 * 128, least = rows < 128 ? 128 : rows;

    return least < w->n_rows ? (uint32_t)least : w->n_rows;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t wide_bytes(const struct weights *w)
{
    return aligned((size_t)w->n_rows * wide_stride(w) * sizeof(uint16_t));
}

/* ------------------------------------------------------------------ memory */

void cuda_fast_size(struct backend *b)
{
    const struct memory_plan *p = &b->memory;
    size_t copy = 0, slab = 0;

    if (!b->options.fast_prefill)
        return;
    for (uint32_t l = 0; l < b->m->n_layers; l++)
        for (uint32_t i = 0; i < MATRICES && is_wide(b, l, i); i++) {
            const struct weights *w = matrix_of(&b->layers[l], i);
            const size_t bytes = aligned((size_t)slab_rows(w) * wide_stride(w) * sizeof(uint16_t));
            copy += wide_bytes(w);
            slab = bytes > slab ? bytes : slab;
        }
    const uint64_t taken = p->weights + p->scratch, left = p->available > taken ? p->available - taken : 0;
    b->wide_kept = copy <= left / 2 && copy + p->kv <= left;
    b->wide_bytes = b->wide_kept ? copy : slab;
}

void cuda_fast_place(struct backend *b)
{
    uint8_t *at = b->wide_at;

    b->slab = b->wide_kept ? NULL : (uint16_t *)(void *)at;
    for (uint32_t l = 0; l < b->m->n_layers && b->wide_kept; l++)
        for (uint32_t i = 0; i < MATRICES && is_wide(b, l, i); i++) {
            struct weights *w = matrix_of(&b->layers[l], i);
            w->wide = (uint16_t *)(void *)at;
            at += wide_bytes(w);
        }
    assert(!b->wide_kept || at == b->wide_at + b->wide_bytes);
}

/* ------------------------------------------------------------------ products */

/* Which rows of activations a matrix reads: x_stride; and where its product goes: y_stride. */
static struct matmul_shape shape_of(const struct weights *w, uint32_t first, uint32_t y_stride)
{
    const uint32_t most = slab_rows(w), left = w->n_rows - first;

    return (struct matmul_shape){ .n = left < most ? left : most, .k = wide_stride(w), .w_stride = wide_stride(w),
                                  .x_stride = wide_stride(w), .y_stride = y_stride };
}

static enum status widen(const struct backend *b, const struct weights *w, uint32_t first, uint32_t n, uint16_t *to)
{
    const struct widen_args a = { .from = *w, .first_row = first, .n_rows = n, .stride = wide_stride(w), .to = to };

    return launch_widen(&a, b->compute);
}

enum status cuda_fast_product(const struct backend *b, const struct weights *w, const struct row_input *in, uint32_t row,
                              uint32_t n_rows, float *y, uint32_t y_stride, bool add)
{
    const uint16_t *x = in->bf16 + (size_t)row * in->f32_stride;
    enum status st = ST_OK;

    assert(in->f32_stride == wide_stride(w));
    y += (size_t)row * y_stride;
    for (uint32_t first = 0; first < w->n_rows && st == ST_OK; first += slab_rows(w)) {
        const struct matmul_shape shape = shape_of(w, first, y_stride);
        const uint16_t *from = w->wide != NULL ? w->wide + (size_t)first * shape.w_stride : b->slab;
        if (w->wide == NULL)
            st = widen(b, w, first, shape.n, b->slab);
        if (st == ST_OK)
            st = matmul_run(b->matmul, &shape, from, x, y + first, n_rows, add, b->compute);
    }
    return st;
}

/* ------------------------------------------------------------------ open */

/* Strides of what each matrix's product goes to, as step.c has them. */
static uint32_t y_stride_of(const struct backend *b, uint32_t matrix)
{
    const struct model *m = b->m;
    const uint32_t kv = m->n_kv_heads * m->head_dim, embd = (m->n_embd + 15) / 16 * 16, ff = (m->n_ff + 15) / 16 * 16;
    const uint32_t strides[MATRICES] = { m->n_heads * m->head_dim, kv, kv, embd, ff, ff, embd };

    return strides[matrix];
}

static enum status choose(struct backend *b, const struct weights *w, uint32_t y_stride, struct error *err)
{
    enum status st = ST_OK;

    for (uint32_t first = 0; first < w->n_rows && st == ST_OK; first += slab_rows(w)) {
        const struct matmul_shape shape = shape_of(w, first, y_stride);
        st = matmul_choose(b->matmul, &shape);
        if (st != ST_OK)
            error_set(err, ERR_INVALID_PARAMETER, "--fast-prefill", "cuBLASLt has no algorithm without a split for %u rows of %u", shape.n,
                      shape.k);
    }
    return st;
}

enum status cuda_fast_open(struct backend *b, struct error *err)
{
    if (!b->options.fast_prefill)
        return ST_OK;
    enum status st = matmul_open(&b->matmul, err);
    for (uint32_t l = 0; l < b->m->n_layers && st == ST_OK; l++)
        for (uint32_t i = 0; i < MATRICES && is_wide(b, l, i) && st == ST_OK; i++) {
            const struct weights *w = matrix_of(&b->layers[l], i);
            st = choose(b, w, y_stride_of(b, i), err);
            if (st == ST_OK && w->wide != NULL)
                st = widen(b, w, 0, w->n_rows, w->wide);
        }
    return st;
}
