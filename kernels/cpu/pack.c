/* pack.c - repacking.  The formats of the file are read here and in unpack.c, nowhere else.
 *
 * Old nibble formats put element j and j+16 of a block in one byte, which is just the pairing of a panel's vectors, so
 * their codes move as whole words.  The K formats pair j with j+32 and are re-paired with masks, a word at a time. */
#include "pack.h"

#include <assert.h>
#include <string.h>

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)load16(p) | (uint32_t)load16(p + 2) << 16;
}

static void store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void store32(uint8_t *p, uint32_t v)
{
    store16(p, (uint16_t)v);
    store16(p + 2, (uint16_t)(v >> 16));
}

size_t panel_block_bytes(enum tensor_type type)
{
    switch (type) {
    case TENSOR_Q4_0:
        return 288;
    case TENSOR_Q4_1:
        return 320;
    case TENSOR_Q5_0:
        return 352;
    case TENSOR_Q5_1:
        return 384;
    case TENSOR_Q8_0:
        return 544;
    case TENSOR_Q4_K:
        return 288;
    case TENSOR_Q5_K:
        return 352;
    case TENSOR_Q6_K:
        return 416;
    default:
        return 0;
    }
}

static size_t panel_super_bytes(enum tensor_type type)
{
    return type == TENSOR_Q6_K ? 32 : type == TENSOR_Q4_K || type == TENSOR_Q5_K ? 64 : 0;
}

size_t tensor_row_bytes(enum tensor_type type, uint32_t n_cols)
{
    switch (type) {
#define X(name, id, elements, bytes) \
    case TENSOR_##name:              \
        return (size_t)n_cols / elements * bytes;
        TENSOR_TYPE_LIST(X)
#undef X
    }
    return 0;
}

enum status matrix_init(struct matrix *ret_m, const struct tensor *t)
{
    struct matrix m = { .type = t->type, .n_rows = t->n_rows, .n_cols = t->n_cols };
    size_t bytes;

    if (t->n_rows == 0 || t->n_cols == 0 || t->bytes < tensor_row_bytes(t->type, t->n_cols) * t->n_rows)
        return ST_UNSUPPORTED;
    m.n_panels = t->n_rows / PANEL_ROWS + (t->n_rows % PANEL_ROWS != 0);
    if (type_is_float(t->type)) {
        m.n_k = t->n_cols;
        bytes = (size_t)t->n_cols * PANEL_ROWS * (t->type == TENSOR_F32 ? 4 : 2);
    } else {
        const uint32_t unit = panel_super_bytes(t->type) ? 256 : 32;
        if (panel_block_bytes(t->type) == 0 || t->n_cols % unit != 0)
            return ST_UNSUPPORTED;
        m.n_k = t->n_cols / QUANT_BLOCK;
        bytes = m.n_k * panel_block_bytes(t->type) + t->n_cols / unit * panel_super_bytes(t->type);
    }
    m.panel_bytes = (bytes + 63) / 64 * 64;
    *ret_m = m;
    return ST_OK;
}

/* Block b of a panel, and for the K types the start of its 256. */
static uint8_t *panel_block(const struct matrix *m, uint8_t *panel, uint32_t b, uint8_t **ret_super)
{
    const size_t block = panel_block_bytes(m->type), super = panel_super_bytes(m->type);

    if (super == 0)
        return panel + b * block;
    *ret_super = panel + b / 8 * (super + 8 * block);
    return *ret_super + super + b % 8 * block;
}

static void put_nibbles(uint8_t *block, uint32_t r, const uint32_t words[4])
{
    for (uint32_t j = 0; j < 4; j++)
        store32(block + 64 * j + 4 * r, words[j]);
}

/* 32 bits, bit k for element k, to the vector of fifth bits. */
static void put_fifth_bits(uint8_t *vector, uint32_t r, uint32_t bits)
{
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t v = 0;
        for (uint32_t j = 0; j < 8; j++)
            v |= (bits >> (4 * j + i) & 1) << j;
        vector[4 * r + i] = (uint8_t)v;
    }
}

/* One block of the 32-element types: where its scales, fifth bits and codes are differs only by offsets. */
static void pack_block(enum tensor_type type, uint8_t *block, uint32_t r, const uint8_t *at)
{
    const bool minimum = type == TENSOR_Q4_1 || type == TENSOR_Q5_1, fifth = type == TENSOR_Q5_0 || type == TENSOR_Q5_1;
    const uint8_t *codes = at + 2 + (minimum ? 2 : 0) + (fifth ? 4 : 0);
    uint8_t *scales = block + 256 + (fifth ? 64 : 0);
    uint32_t words[4];

    if (type == TENSOR_Q8_0) {
        for (uint32_t j = 0; j < 8; j++)
            store32(block + 64 * j + 4 * r, load32(at + 2 + 4 * j) ^ 0x80808080);
        store16(block + 512 + 2 * r, load16(at));
        return;
    }
    for (uint32_t j = 0; j < 4; j++)
        words[j] = load32(codes + 4 * j);
    put_nibbles(block, r, words);
    if (fifth)
        put_fifth_bits(block + 256, r, load32(codes - 4));
    store16(scales + 2 * r, load16(at));
    if (minimum)
        store16(scales + 32 + 2 * r, load16(at + 2));
}

/* Scale and minimum of sub-block j of Q4_K and Q5_K: 6 bits each, packed in 12 bytes. */
static void k_scales(const uint8_t *q, uint32_t j, uint8_t *ret_scale, uint8_t *ret_min)
{
    if (j < 4) {
        *ret_scale = q[j] & 63;
        *ret_min = q[j + 4] & 63;
    } else {
        *ret_scale = (uint8_t)((q[j + 4] & 15) | q[j - 4] >> 6 << 4);
        *ret_min = (uint8_t)(q[j + 4] >> 4 | q[j] >> 6 << 4);
    }
}

/* 256 elements of Q4_K or Q5_K of one row. */
static void pack_k45(enum tensor_type type, uint8_t *super, uint32_t r, const uint8_t *at)
{
    const bool fifth = type == TENSOR_Q5_K;
    const uint8_t *high = at + 16, *codes = at + (fifth ? 48 : 16);
    uint8_t *block = super + 64;

    store16(super + 2 * r, load16(at));
    store16(super + 32 + 2 * r, load16(at + 2) ^ 0x8000);
    for (uint32_t s = 0; s < 8; s++, block += panel_block_bytes(type)) {
        const uint8_t *c = codes + 32 * (s / 2);
        const uint32_t shift = 4 * (s % 2);
        uint8_t *scales = block + 256 + (fifth ? 64 : 0);
        uint32_t words[4], bits = 0;
        for (uint32_t j = 0; j < 4; j++)
            words[j] = (load32(c + 4 * j) >> shift & 0x0f0f0f0f) | (load32(c + 16 + 4 * j) >> shift & 0x0f0f0f0f) << 4;
        put_nibbles(block, r, words);
        for (uint32_t k = 0; fifth && k < 32; k++)
            bits |= (uint32_t)(high[k] >> s & 1) << k;
        if (fifth)
            put_fifth_bits(block + 256, r, bits);
        k_scales(at + 4, s, scales + r, scales + 16 + r);
    }
}

/* 256 elements of Q6_K of one row.  Of each half of 128, sub-block s (32 elements) has its low bits in 64 bytes (s%2 picks
 * which 32, s/2 the nibble) and its high bits at bit 2s of 32 bytes. */
static void pack_k6(uint8_t *super, uint32_t r, const uint8_t *at)
{
    uint8_t *block = super + 32;

    store16(super + 2 * r, load16(at + 208));
    for (uint32_t s = 0; s < 8; s++, block += panel_block_bytes(TENSOR_Q6_K)) {
        const uint8_t *low = at + 64 * (s / 4) + 32 * (s % 2), *high = at + 128 + 32 * (s / 4);
        const uint32_t shift = s % 4 / 2 * 4, shift_high = 2 * (s % 4);
        uint32_t words[4];
        for (uint32_t j = 0; j < 4; j++)
            words[j] = (load32(low + 4 * j) >> shift & 0x0f0f0f0f) | (load32(low + 16 + 4 * j) >> shift & 0x0f0f0f0f) << 4;
        put_nibbles(block, r, words);
        for (uint32_t v = 0; v < 2; v++) { /* quads 4v .. 4v+3 at bits 0, 2, 4, 6 of vector v */
            uint32_t w = 0;
            for (uint32_t j = 0; j < 4; j++)
                w |= (load32(high + 16 * v + 4 * j) >> shift_high & 0x03030303) << 2 * j;
            store32(block + 256 + 64 * v + 4 * r, w);
        }
        block[384 + r] = at[192 + 2 * s];
        block[400 + r] = at[192 + 2 * s + 1];
    }
}

static void pack_row(const struct matrix *m, uint8_t *panel, uint32_t r, const uint8_t *row)
{
    uint8_t *super = NULL;

    if (type_is_float(m->type)) {
        for (uint32_t k = 0; k < m->n_cols; k++) {
            if (m->type == TENSOR_F32)
                store32(panel + (size_t)k * 64 + 4 * r, load32(row + 4 * (size_t)k));
            else
                store16(panel + (size_t)k * 32 + 2 * r, load16(row + 2 * (size_t)k));
        }
        return;
    }
    const size_t file_block = tensor_row_bytes(m->type, panel_super_bytes(m->type) ? 256 : 32);
    if (panel_super_bytes(m->type) == 0) {
        for (uint32_t b = 0; b < m->n_k; b++)
            pack_block(m->type, panel_block(m, panel, b, &super), r, row + b * file_block);
        return;
    }
    for (uint32_t b = 0; b < m->n_k; b += 8) {
        panel_block(m, panel, b, &super);
        if (m->type == TENSOR_Q6_K)
            pack_k6(super, r, row + b / 8 * file_block);
        else
            pack_k45(m->type, super, r, row + b / 8 * file_block);
    }
}

void matrix_pack(const struct matrix *m, const struct tensor *t, uint32_t split_pairs, uint32_t first, uint32_t last)
{
    const size_t row_bytes = tensor_row_bytes(t->type, t->n_cols);

    assert(m->data != NULL && last <= m->n_panels);
    for (uint32_t p = first; p < last; p++) {
        uint8_t *panel = m->data + p * m->panel_bytes;
        if ((p + 1) * PANEL_ROWS > m->n_rows)
            memset(panel, 0, m->panel_bytes);
        for (uint32_t r = 0; r < PANEL_ROWS && p * PANEL_ROWS + r < m->n_rows; r++) {
            const uint32_t row = split_pair_row(p * PANEL_ROWS + r, split_pairs);
            pack_row(m, panel, r, (const uint8_t *)t->data + row * row_bytes);
        }
    }
}
