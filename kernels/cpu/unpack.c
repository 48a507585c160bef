/* unpack.c - single rows of weights as floats: the embedding of a token.  From panels where the vocabulary's head is packed
 * and shared (tied), from the file's own bytes otherwise; both are the formulas of the format, product and sum rounded one
 * by one as the reference does, so a test can ask for equal bits. */
#include "pack.h"

#include <assert.h>
#include <string.h>

#include "numeric.h"

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Code of element k (0..31) of row r in a block of nibbles, with `high` more bits (0, 1 or 2) in the vectors after them. */
static uint32_t code_at(const uint8_t *block, uint32_t r, uint32_t k, uint32_t n_high)
{
    const uint32_t j = k / 4, byte = 4 * r + k % 4;
    uint32_t c = block[64 * (j % 4) + byte] >> 4 * (j / 4) & 15;

    if (n_high == 1)
        c |= (uint32_t)(block[256 + byte] >> j & 1) << 4;
    if (n_high == 2)
        c |= (uint32_t)(block[256 + 64 * (j / 4) + byte] >> 2 * (j % 4) & 3) << 4;
    return c;
}

static float half(const uint8_t *scales, uint32_t r)
{
    return f16_to_f32(load16(scales + 2 * r));
}

/* The 32-element types. */
static void row_simple(const struct matrix *m, const uint8_t *panel, uint32_t r, float *out)
{
    const size_t block_bytes = panel_block_bytes(m->type);
    const uint32_t high = m->type == TENSOR_Q5_0 || m->type == TENSOR_Q5_1;
    const bool minimum = m->type == TENSOR_Q4_1 || m->type == TENSOR_Q5_1;

    for (uint32_t b = 0; b < m->n_k; b++, panel += block_bytes, out += 32) {
        const uint8_t *scales = panel + 256 + 64 * high;
        for (uint32_t k = 0; k < 32; k++) {
            if (m->type == TENSOR_Q8_0) {
                out[k] = (float)(panel[64 * (k / 4) + 4 * r + k % 4] - 128) * half(panel + 512, r);
                continue;
            }
            int32_t c = (int32_t)code_at(panel, r, k, high);
            if (minimum)
                out[k] = (float)c * half(scales, r) + half(scales + 32, r);
            else
                out[k] = (float)(c - (high ? 16 : 8)) * half(scales, r);
        }
    }
}

static void row_k(const struct matrix *m, const uint8_t *panel, uint32_t r, float *out)
{
    const bool six = m->type == TENSOR_Q6_K;
    const uint32_t high = six ? 2 : m->type == TENSOR_Q5_K;
    const size_t head = six ? 32 : 64, block_bytes = panel_block_bytes(m->type);

    for (uint32_t b = 0; b < m->n_k; b++, out += 32) {
        const uint8_t *super = panel + b / 8 * (head + 8 * block_bytes), *block = super + head + b % 8 * block_bytes;
        const uint8_t *scales = block + 256 + 64 * high;
        for (uint32_t k = 0; k < 32; k++) {
            float c = (float)code_at(block, r, k, high);
            if (six)
                out[k] = half(super, r) * (float)(int8_t)scales[16 * (k / 16) + r] * (c - 32.0f);
            else
                out[k] = half(super, r) * (float)scales[r] * c + half(super + 32, r) * (float)scales[16 + r];
        }
    }
}

void matrix_row(const struct matrix *m, uint32_t row, float *out)
{
    const uint8_t *panel = m->data + row / PANEL_ROWS * m->panel_bytes;
    const uint32_t r = row % PANEL_ROWS;

    assert(row < m->n_rows);
    switch (m->type) {
    case TENSOR_F32:
        for (uint32_t k = 0; k < m->n_cols; k++)
            memcpy(out + k, panel + (size_t)k * 64 + 4 * r, 4);
        break;
    case TENSOR_F16:
        for (uint32_t k = 0; k < m->n_cols; k++)
            out[k] = half(panel + (size_t)k * 32, r);
        break;
    case TENSOR_BF16:
        for (uint32_t k = 0; k < m->n_cols; k++)
            out[k] = bf16_to_f32(load16(panel + (size_t)k * 32 + 2 * r));
        break;
    case TENSOR_Q4_K:
    case TENSOR_Q5_K:
    case TENSOR_Q6_K:
        row_k(m, panel, r, out);
        break;
    default:
        row_simple(m, panel, r, out);
        break;
    }
}

/* A row of the file is packed alone, as row 0 of a panel, in pieces small enough for the stack: one reader of formats. */
void tensor_row(const struct tensor *t, uint32_t row, float *out)
{
    _Alignas(64) uint8_t panel[256 * 16 * 4];
    const size_t row_bytes = tensor_row_bytes(t->type, t->n_cols);
    const uint8_t *at = (const uint8_t *)t->data + row * row_bytes;

    assert(row < t->n_rows);
    for (uint32_t k = 0; k < t->n_cols; k += 256) {
        struct tensor piece = { .type = t->type, .n_rows = 1, .n_cols = t->n_cols - k < 256 ? t->n_cols - k : 256 };
        struct matrix m;
        piece.data = at + tensor_row_bytes(t->type, k);
        piece.bytes = tensor_row_bytes(t->type, piece.n_cols);
        enum status st = matrix_init(&m, &piece);
        assert(st == ST_OK && m.panel_bytes <= sizeof(panel)); /* the whole tensor was checked when it was opened */
        m.data = panel;
        matrix_pack(&m, &piece, 0, 0, 1);
        matrix_row(&m, 0, out + k);
    }
}
