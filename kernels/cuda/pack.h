/* pack.h - weights as the device reads them: panels of 16 rows in the order of tensor-core fragments.
 *
 * kernels/cpu/pack.h reads the file's formats into panels; here such a panel is only put in another order, so a format is
 * known in one place.  Quantised weights lie in pairs of two blocks (64 K x 16 rows).  Lane 4g + j of a warp holds what
 * mma.m16n8k32 wants of it: rows g and g+8, quads j and j+4 (quad q: k = 4q .. 4q+3), so every load is 8 or 16 bytes a
 * lane, neighbours next to each other:
 *
 *   nibbles   512 bytes   lane: 4 words (block 0 row g, block 0 row g+8, block 1 row g, block 1 row g+8);
 *                         low nibbles quad j, high nibbles quad j+4
 *   Q8_0      1024 bytes  512 for each block; lane: row g quad j, row g+8 quad j, row g quad j+4, row g+8 quad j+4; q + 128
 *   then      fifth bits, 128 bytes: lane: 1 word, bit 8t + i for byte t of word i = 4 * block + 2 * (row is g+8) + (quad is j+4)
 *             Q6_K: bits 4 and 5, 256 bytes: lane: a word for each block, bits 8t + 2i, i = 2 * (row is g+8) + (quad is j+4)
 *   then      scales, for each g:  f16 d of (g, block 0) (g, block 1) (g+8, block 0) (g+8, block 1), then m of the same
 *             Q4_K, Q5_K: u8 scales and minima in that order; Q6_K: i8 (g, block 0, first half) (.., second half), ...
 *   Q4_K, Q5_K, Q6_K have before every 4 pairs, for each g: f16 d of g, of g+8 (then -dmin of both)
 *
 * An odd last block is paired with zeros that nobody multiplies.
 *
 *   F32, F16, BF16   units of 16 bytes of K: [unit][16 rows][4 or 8 numbers]; K beyond the matrix is zero */
#ifndef CUDA_PACK_H
#define CUDA_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "status.h"

#ifdef __CUDACC__
#define DEVICE_TOO __host__ __device__
#else
#define DEVICE_TOO
#endif

struct weights {
    enum tensor_type type;
    uint32_t n_rows, n_cols, n_panels;
    uint32_t n_k;          /* blocks of 32 (quantised), or columns */
    size_t panel_bytes;    /* a multiple of 128 */
    const uint8_t *data;   /* on the device: [n_panels] panels; NULL until placed */
    uint16_t *wide;        /* fast prefill: a copy in bf16, [n_rows][n_cols padded to 16]; NULL: none is kept */
};

/* Bytes of a pair, and of what stands before every 4 pairs; 0 for float types. */
DEVICE_TOO static inline uint32_t pair_bytes(enum tensor_type type)
{
    switch (type) {
    case TENSOR_Q4_0:
    case TENSOR_Q4_K:
        return 512 + 64;
    case TENSOR_Q4_1:
        return 512 + 128;
    case TENSOR_Q5_0:
    case TENSOR_Q5_K:
        return 512 + 128 + 64;
    case TENSOR_Q5_1:
        return 512 + 128 + 128;
    case TENSOR_Q8_0:
        return 1024 + 64;
    case TENSOR_Q6_K:
        return 512 + 256 + 64;
    default:
        return 0;
    }
}

DEVICE_TOO static inline uint32_t super_bytes(enum tensor_type type)
{
    return type == TENSOR_Q6_K ? 32 : type == TENSOR_Q4_K || type == TENSOR_Q5_K ? 64 : 0;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes only.  ST_OK, or ST_UNSUPPORTED: a type, or a number of columns, that has no panel form. */
MUST_CHECK enum status weights_init(struct weights *ret_w, const struct tensor *t);

static inline size_t weights_bytes(const struct weights *w)
{
    return w->n_panels * w->panel_bytes;
}

/* Panel `panel` of t into out [panel_bytes] on the host.  scratch: panel_bytes + 64 KiB, 64-aligned.
 * split_pairs as in kernels/cpu/pack.h. */
void weights_pack_panel(const struct weights *w, const struct tensor *t, uint32_t split_pairs, uint32_t panel, uint8_t *scratch,
                        uint8_t *out);

/* Bytes of scratch that weights_pack_panel wants. */
size_t weights_scratch_bytes(const struct tensor *t);

#ifdef __cplusplus
}
#endif

#endif
