/* pack.h - weights as the kernels want them: panels of 16 rows, repacked once when a model is opened.
 *
 * A matrix of N rows and K columns becomes ceil(N / 16) panels (rows beyond N are zero).  A panel holds its blocks of 32 K
 * one after the other; a code of quad j (k = 4j .. 4j+3) of row r is byte 4r + k%4 of a 64-byte vector, so one vector is
 * one quad of all 16 rows:
 *
 *            byte  0 1 2 3   4 5 6 7        60 .. 63
 *     vector 0   [ row 0   | row 1   | ... | row 15 ]    low nibbles: quad 0, high nibbles: quad 4
 *     vector 1                                           quads 1 and 5     (2: 2 and 6, 3: 3 and 7)
 *
 *     type      bytes of one block of 32 K x 16 rows
 *     Q4_0      nibbles 256 | d f16[16]
 *     Q4_1      nibbles 256 | d f16[16] | m f16[16]
 *     Q5_0      nibbles 256 | fifth bits 64 | d f16[16]                  bit j of a byte: quad j
 *     Q5_1      nibbles 256 | fifth bits 64 | d f16[16] | m f16[16]
 *     Q8_0      codes 8 x 64 (q + 128) | d f16[16]
 *     Q4_K      every 256 K: d f16[16] | -dmin f16[16], then 8 x ( nibbles 256 | sc u8[16] | mn u8[16] )
 *     Q5_K      the same with fifth bits 64 after the nibbles
 *     Q6_K      every 256 K: d f16[16], then 8 x ( nibbles 256 | bits 4, 5: 2 x 64 | sc i8[16] of k < 16 | of k >= 16 )
 *     F32, F16, BF16   every k: 16 numbers
 *
 * The bytes are the file's but for the K types, whose 6-bit scales take 8 (3 % more in all). */
#ifndef PACK_H
#define PACK_H

#include "kernels.h"
#include "status.h"

struct matrix {
    enum tensor_type type;
    uint32_t n_rows, n_cols, n_panels;
    uint32_t n_k;        /* what gemm counts: blocks of 32, or columns of float types */
    size_t panel_bytes;  /* a multiple of 64 */
    uint8_t *data;       /* [n_panels] panels, 64-aligned; NULL until placed */
};

/* Sizes only.  ST_OK, or ST_UNSUPPORTED: a type, or a number of columns, that has no panel form. */
MUST_CHECK enum status matrix_init(struct matrix *ret_m, const struct tensor *t);

static inline size_t matrix_bytes(const struct matrix *m)
{
    return m->n_panels * m->panel_bytes;
}

/* Bytes of a panel for 32 K of a quantised type, without what the K types keep for every 256. */
size_t panel_block_bytes(enum tensor_type type);

/* Fill panels first .. last-1 of m->data from t.  split_pairs: 0, or the size D of heads whose rows are stored as the pairs
 * (2i, 2i+1) that RoPE turns together; they are laid out as i, i + D/2, the form all RoPE here has. */
void matrix_pack(const struct matrix *m, const struct tensor *t, uint32_t split_pairs, uint32_t first, uint32_t last);

/* Where row `row` of the packed matrix comes from. */
static inline uint32_t split_pair_row(uint32_t row, uint32_t split_pairs)
{
    if (split_pairs == 0)
        return row;
    const uint32_t i = row % split_pairs, half = split_pairs / 2;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

/* Row `row` as floats, exactly as the formulas of the format say.  out [n_cols] */
void matrix_row(const struct matrix *m, uint32_t row, float *out);

/* The same straight from the file's bytes, for tensors that are not packed. */
void tensor_row(const struct tensor *t, uint32_t row, float *out);

/* Bytes of a row of K elements in the file. */
size_t tensor_row_bytes(enum tensor_type type, uint32_t n_cols);

#endif
