/* kernels.h - the inner loops, one table of them for each instruction set, and the layouts they share.
 *
 *   weights   panels of 16 output rows, one row a SIMD lane (pack.h draws them)
 *   inputs    tiles of 1 .. TILE_ROWS rows; what is next to each other is what one inner loop reads:
 *
 *     int8 (for quantised weights)   struct xblock [K/32][parts][width]    block b of row t at x[b * parts * width + t]
 *     f32  (for F32, F16, BF16)      float         [K][width]              element k of row t at x[k * width + t]
 *
 *   With two parts, the second holds what the rounding of the first left, rounded to 1/254 of its step: 16 bits in all.  The
 *   value projection and the head of the vocabulary read both; they are where int8 alone does most harm (docs/measurements.md).
 *   Where a tile has two parts, other weights may read the first alone.
 *
 *   A width is one of 1, 2, 3, 4, 6, 8, 12, 16; rows beyond the real ones are zero and their results dropped.
 *
 * Numerics: an output is acc = 0, then over blocks of K in ascending order
 *     acc = fma(float(sum of code * q over the block), D * d, acc);  acc = fma(M, s, acc)    [types with a minimum]
 * for each part
 * (for Q6_K two half blocks), or over k: acc = fma(w, x, acc).  Neither width nor number of panels is part of it.
 *
 * Threads: pure functions of their arguments.  Sizes called "padded" are multiples of 16; padding is zero on input. */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "limits.h"
#include "model.h"

enum {
    PANEL_ROWS = 16,     /* rows of a weight panel = SIMD lanes */
    TILE_ROWS = 16,      /* rows of an input tile at most */
    TILE_MANY = 8,       /* of a tile: from here on a product takes longer than its weights out of memory */
    QUANT_BLOCK = 32,    /* elements of K that share an activation scale */
    SPLIT = 256,         /* attention is cut at absolute multiples of this many positions */
    SPLIT_BLOCKS = SPLIT / BLOCK_TOKENS,
    ATTENTION_QUERIES = 24, /* query rows (tokens x heads of a group) of one attention tile */
    TENSOR_TYPES = 31,   /* ids of tensor types are below this */
};
_Static_assert(BLOCK_TOKENS == 16, "a block of positions is one vector");

/* 32 activations of one row: x ~ d * q.  s = d * sum(q); n = -sum(q) over all 32, n0 over the first 16. */
struct xblock {
    float d, s;
    int32_t n, n0;
    int8_t q[QUANT_BLOCK];
};
_Static_assert(sizeof(struct xblock) == 48, "three 16-byte lines");

/* A tile of rows for gemm. */
struct tile {
    const void *x;
    uint32_t width;
    uint32_t stride; /* from one block of K to the next, in struct xblock: parts in the layout * width */
    uint32_t parts;  /* to be read */
    const uint8_t *ahead; /* memory that is needed soon: with 8 rows and more of int8, asked for while each panel is multiplied, */
    uint32_t ahead_lines; /* so many lines of 64 bytes with a block of K */
};

/* y[t * y_stride + 16 * p + r] = row r of panel p times row t of x.  n_k counts blocks of 32 (quantised) or elements. */
typedef void gemm_fn(const uint8_t *panels, size_t panel_bytes, uint32_t n_panels, uint32_t n_k, const struct tile *x,
                     float *y, size_t y_stride);

/* Where the K and V of one (layer, kv head) lie inside every block, from the block's start.  D is a multiple of 32.
 *   f16   K [D][16 positions] f16                         V [16 positions][D] f16             (kv_group = 0)
 *   q8, one scale for kv_group = 32 dimensions of a position, g = D / 32 of them:
 *           K [D/4][16 positions][4] u8 (code + 128),       V [16 positions][D] i8,
 *         K scales [g][16 positions] f16                  V scales [g][16 positions] f16 */
struct kv_view {
    const uint8_t *pool;    /* start of all blocks */
    size_t block_bytes;
    const uint32_t *blocks; /* the sequence's table */
    size_t k, v, k_scales, v_scales;
    uint32_t head_dim, kv_group;
};

/* Positions from .. to-1 of a sequence, laid out as a kv_view that belongs to it; only to ask for them ahead. */
struct kv_ahead {
    const uint8_t *pool;
    const uint32_t *blocks;
    uint32_t from, to; /* from: a multiple of SPLIT */
};

/* Queries that share a kv head.  Query i sees positions lo[i] .. hi[i]-1, of which there is at least one. */
struct attention_tile {
    struct kv_view kv;
    uint32_t n;                      /* queries */
    const float *q[ATTENTION_QUERIES]; /* [D] each, RoPE and scale applied */
    uint32_t lo[ATTENTION_QUERIES], hi[ATTENTION_QUERIES];
    struct kv_ahead next;            /* what this thread reads after the last split it is called for */
};

/* Softmax in progress: of the positions seen so far, m the largest score, l the sum of exp(s - m), o the weighted sum of V.
 * l == 0: none yet. */
struct attention_state {
    float m[ATTENTION_QUERIES], l[ATTENTION_QUERIES];
    float *o; /* [ATTENTION_QUERIES][D] */
};

/* One thread's memory for attention; sized by attention_scratch_bytes(). */
struct attention_scratch {
    float *qt;      /* [D][ATTENTION_QUERIES] */
    int8_t *q8;     /* [ATTENTION_QUERIES][D] */
    float *q8d;     /* [ATTENTION_QUERIES][D / kv_group] */
    int32_t *q8n;   /* the same: minus the sum of each group */
    float *scores;  /* [ATTENTION_QUERIES][SPLIT] */
    float *o;       /* [ATTENTION_QUERIES][D]: one split's */
};

struct kernels {
    const char *isa;
    gemm_fn *gemm[TENSOR_TYPES];

    /* y = x / sqrt(mean(x^2) + eps) * w over n elements, buffers padded.  y may be x. */
    void (*rms_norm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    /* y += x, n padded */
    void (*add)(float *y, const float *x, uint32_t n);
    /* n_blocks blocks of one row to out[b * stride]; with second > 0 their second parts to out[b * stride + second] */
    void (*quantise)(const float *x, uint32_t n_blocks, struct xblock *out, size_t stride, size_t second);
    /* g = act(g) * u, n padded */
    void (*gate)(enum gate_kind kind, float *g, const float *u, uint32_t n);
    /* Pairs (i, i + D/2) of one head turned by angles given as cosines and sines [D/2], then times scale. */
    void (*rope)(float *x, const float *cosines, const float *sines, uint32_t head_dim, float scale);
    void (*store_k)(const struct kv_view *kv, uint32_t position, const float *k); /* [D], rounded to what the view holds */
    void (*store_v)(const struct kv_view *kv, uint32_t position, const float *v);
    float (*maximum)(const float *x, uint32_t n);                          /* n >= 1; buffer padded */
    float (*sum_exp)(const float *x, uint32_t n, float max, float factor); /* sum of exp((x - max) * factor) */
    /* Which panels of 16 have an element >= least: their numbers, ascending, and how many.  ret_panels [n_panels] */
    uint32_t (*panels_from)(const float *x, uint32_t n_panels, float least, uint32_t *ret_panels);

    /* Prepare scratch->qt or q8 for a tile; then take in splits first .. last-1 (positions split * SPLIT and up). */
    void (*attention_begin)(const struct attention_tile *t, struct attention_scratch *s);
    void (*attention_splits)(const struct attention_tile *t, struct attention_scratch *s, uint32_t first, uint32_t last,
                             struct attention_state *state);
    /* state += part for query i, as attention_splits() does it after each split */
    void (*attention_merge)(struct attention_state *state, const struct attention_state *part, uint32_t i, uint32_t head_dim);
    /* out[D] = o / l of query i */
    void (*attention_end)(const struct attention_state *state, uint32_t i, uint32_t head_dim, float *out);
};

extern const struct kernels kernels_scalar;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avxvnni, kernels_avx512;
#endif

/* The fastest table this machine runs, or the one that WEIR_CPU_ISA names (scalar, avx2, avxvnni, avx512vnni).
 * NULL when it names none or one that the machine lacks. */
const struct kernels *kernels_select(void);

/* The table of that name, NULL as above; for tests. */
const struct kernels *kernels_by_name(const char *isa);

static inline bool type_is_float(enum tensor_type t)
{
    return t == TENSOR_F32 || t == TENSOR_F16 || t == TENSOR_BF16;
}

static inline uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

#endif
