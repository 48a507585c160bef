/* pack.c - from the CPU's panels to the device's.  All index arithmetic of the layout is here and, read backwards, in
 * gemm_int.cuh and embed.cu. */
#include "kernels/cpu/pack.h"

#include <assert.h>
#include <string.h>

#include "kernels/cuda/pack.h"

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static void store32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof(v));
}

enum status weights_init(struct weights *ret_w, const struct tensor *t)
{
    struct weights w = { .type = t->type, .n_rows = t->n_rows, .n_cols = t->n_cols };
    struct matrix m;
    size_t bytes;

    if (matrix_init(&m, t) != ST_OK)
        return ST_UNSUPPORTED;
    w.n_panels = m.n_panels;
    w.n_k = m.n_k;
    if (type_is_float(t->type)) {
        const uint32_t per_unit = t->type == TENSOR_F32 ? 4 : 8;
        bytes = ((size_t)t->n_cols + per_unit - 1) / per_unit * 256;
    } else {
        const size_t pairs = ((size_t)m.n_k + 1) / 2;
        bytes = pairs * pair_bytes(t->type) + (pairs + 3) / 4 * super_bytes(t->type);
    }
    w.panel_bytes = (bytes + 127) / 128 * 128;
    *ret_w = w;
    return ST_OK;
}

size_t weights_scratch_bytes(const struct tensor *t)
{
    struct matrix m;

    return matrix_init(&m, t) == ST_OK ? m.panel_bytes : 0;
}

/* Where block b of a CPU panel begins, and what stands before its 256. */
static const uint8_t *cpu_block(const struct matrix *m, uint32_t b, const uint8_t **ret_super)
{
    const size_t block = panel_block_bytes(m->type), super = m->type == TENSOR_Q6_K ? 32 : m->type >= TENSOR_Q4_K && m->type <= TENSOR_Q5_K ? 64 : 0;

    if (super == 0)
        return m->data + b * block;
    *ret_super = m->data + b / 8 * (super + 8 * block);
    return *ret_super + super + b % 8 * block;
}

static void put_nibbles(uint8_t *pair, const uint8_t *block, uint32_t b)
{
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t high = 0; high < 2; high++)
            store32(pair + 16 * lane + 8 * b + 4 * high, load32(block + 64 * (lane % 4) + 4 * (lane / 4 + 8 * high)));
}

static void put_bytes(uint8_t *pair, const uint8_t *block, uint32_t b)
{
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++) /* i = row half + 2 * quad half */
            store32(pair + 512 * b + 16 * lane + 4 * i, load32(block + 64 * (lane % 4 + 4 * (i / 2)) + 4 * (lane / 4 + 8 * (i % 2))));
}

static void put_fifth_bits(uint8_t *bits, const uint8_t *vector, uint32_t b)
{
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t word = load32(bits + 4 * lane);
        for (uint32_t i = 0; i < 4; i++) { /* i = 2 * row half + quad half */
            const uint32_t row = lane / 4 + 8 * (i / 2), quad = lane % 4 + 4 * (i % 2);
            for (uint32_t t = 0; t < 4; t++)
                word |= (uint32_t)(vector[4 * row + t] >> quad & 1) << (8 * t + 4 * b + i);
        }
        store32(bits + 4 * lane, word);
    }
}

static void put_sixth_bits(uint8_t *bits, const uint8_t *vectors, uint32_t b)
{
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t word = 0;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = lane / 4 + 8 * (i / 2), quad_half = i % 2;
            for (uint32_t t = 0; t < 4; t++)
                word |= (uint32_t)(vectors[64 * quad_half + 4 * row + t] >> 2 * (lane % 4) & 3) << (8 * t + 2 * i);
        }
        store32(bits + 8 * lane + 4 * b, word);
    }
}

/* f16 numbers of 16 rows to (g, b) and (g+8, b) of each g, `stride` bytes apart. */
static void put_halves(uint8_t *scales, uint32_t stride, const uint8_t *halves, uint32_t b)
{
    for (uint32_t r = 0; r < 16; r++)
        memcpy(scales + r % 8 * stride + 4 * (r / 8) + 2 * b, halves + 2 * r, 2);
}

static void pack_simple(const struct matrix *m, uint32_t b, const uint8_t *block, uint8_t *pair)
{
    const bool minimum = m->type == TENSOR_Q4_1 || m->type == TENSOR_Q5_1, fifth = m->type == TENSOR_Q5_0 || m->type == TENSOR_Q5_1;
    const uint32_t stride = minimum ? 16 : 8;

    if (m->type == TENSOR_Q8_0) {
        put_bytes(pair, block, b);
        put_halves(pair + 1024, stride, block + 512, b);
        return;
    }
    put_nibbles(pair, block, b);
    if (fifth)
        put_fifth_bits(pair + 512, block + 256, b);
    const uint32_t at = 512 + (fifth ? 128 : 0), from = 256 + (fifth ? 64 : 0);
    put_halves(pair + at, stride, block + from, b);
    if (minimum)
        put_halves(pair + at + 8, stride, block + from + 32, b);
}

static void pack_k(const struct matrix *m, uint32_t b, const uint8_t *block, const uint8_t *super, uint8_t *pair, uint8_t *out_super)
{
    const bool six = m->type == TENSOR_Q6_K, fifth = m->type == TENSOR_Q5_K;
    uint8_t *scales = pair + 512 + (six ? 256 : fifth ? 128 : 0);
    const uint8_t *from = block + 256 + (six ? 128 : fifth ? 64 : 0);

    put_nibbles(pair, block, b);
    if (fifth)
        put_fifth_bits(pair + 512, block + 256, b);
    if (six)
        put_sixth_bits(pair + 512, block + 256, b);
    for (uint32_t r = 0; r < 16; r++) {
        uint8_t *to = scales + 8 * (r % 8);
        if (six) { /* halves of block b: from[r] and from[16 + r] */
            to[4 * (r / 8) + 2 * b] = from[r];
            to[4 * (r / 8) + 2 * b + 1] = from[16 + r];
        } else {
            to[2 * (r / 8) + b] = from[r];
            to[4 + 2 * (r / 8) + b] = from[16 + r];
        }
        memcpy(out_super + r % 8 * (six ? 4 : 8) + 2 * (r / 8), super + 2 * r, 2);
        if (!six)
            memcpy(out_super + r % 8 * 8 + 4 + 2 * (r / 8), super + 32 + 2 * r, 2);
    }
}

static void pack_float(const struct matrix *m, uint8_t *out)
{
    const uint32_t size = m->type == TENSOR_F32 ? 4 : 2, per_unit = 16 / size;

    for (uint32_t k = 0; k < m->n_cols; k++)
        for (uint32_t r = 0; r < 16; r++)
            memcpy(out + (size_t)(k / per_unit) * 256 + 16 * r + k % per_unit * size, m->data + ((size_t)k * 16 + r) * size, size);
}

void weights_pack_panel(const struct weights *w, const struct tensor *t, uint32_t split_pairs, uint32_t panel, uint8_t *scratch,
                        uint8_t *out)
{
    struct matrix m;
    const enum status st = matrix_init(&m, t);

    assert(st == ST_OK && panel < w->n_panels);
    /* matrix_pack places panel p at p * panel_bytes; the integers avoid a pointer outside scratch */
    m.data = (uint8_t *)((uintptr_t)scratch - panel * m.panel_bytes);
    matrix_pack(&m, t, split_pairs, panel, panel + 1);
    m.data = scratch;
    memset(out, 0, w->panel_bytes);
    if (type_is_float(w->type)) {
        pack_float(&m, out);
        return;
    }
    const uint32_t bytes = pair_bytes(w->type), before = super_bytes(w->type);
    for (uint32_t b = 0; b < m.n_k; b++) {
        const uint8_t *super = NULL, *block = cpu_block(&m, b, &super);
        if (before == 0) {
            pack_simple(&m, b % 2, block, out + b / 2 * bytes);
            continue;
        }
        uint8_t *out_super = out + (size_t)(b / 8) * (before + 4 * bytes);
        pack_k(&m, b % 2, block, super, out_super + before + b / 2 % 4 * bytes, out_super);
    }
}
