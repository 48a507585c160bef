/* launch.h - the kernels as the host sees them: what each takes, and a function that starts it.
 *
 * Everything a kernel reads that changes from step to step lies in device memory at addresses that do not, so a recorded
 * graph of launches serves any step that is small enough: grids are sized for the largest, and blocks beyond what
 * struct step_header counts end at once.
 *
 * A launch gives ST_OK or ST_SYSTEM (device_error() says why).  Every kernel writes what one of kernels/cpu would, bit for
 * bit; the file of the same name says how. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/pack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ what a step is, on the device */

struct step_header {
    uint32_t n_rows, n_entries, n_items;
    uint32_t n_out;      /* rows whose logits are wanted */
    uint32_t n_requests; /* of them, to be sampled */
    uint32_t n_exact;    /* rows 0 .. n_exact-1 are computed exactly, */
    uint32_t n_fast;     /* the n_fast after them by matmul.h */
    uint32_t n_items_mma; /* items after the n_items, for launch_attention_mma() */
};

struct step_row {
    int32_t token;      /* or what entry from_entry of the step before sampled */
    int32_t from_entry; /* -1: token */
    uint32_t position;
    uint32_t table;     /* the sequence's block table: an index into step_view.tables */
};

/* One tile of attention queries: neighbouring tokens of one sequence, all its heads. */
struct step_item {
    uint32_t row, n_tokens; /* rows of the step */
    uint32_t position;      /* of the first */
    uint32_t table;
    uint32_t n_parts;       /* 0: one block goes through all splits; else so many splits, each a block of its own */
    uint32_t first_part;    /* of all layers' parts memory: index of this item's first */
    uint32_t pad[2];
};

struct sample_request {
    struct sampling sampling;
    uint32_t out;           /* row of the logits */
    uint32_t entry;
    uint32_t choice, index;
    uint32_t bias, n_bias;  /* indices into step_view.bias, .seen */
    uint32_t seen, n_seen;
};

/* Where the parts of a step lie.  All on the device. */
struct step_view {
    const struct step_header *header;
    const struct step_row *rows;
    const struct step_item *items;
    const uint32_t *out_rows;    /* those to be sampled first */
    const uint32_t *out_counts;  /* of each piece of the head's work */
    const struct sample_request *requests;
    const uint32_t *tables;
    const struct logit_bias *bias;
    const struct token_count *seen;
};

/* ------------------------------------------------------------------ rows */

/* 32 values, each the sum of two 16-bit numbers: the nearest one, and the nearest to what that leaves.  As bf16, or as f16 times
 * d, a power of two that keeps the largest below 2^15.  (gemm_half.cuh) */
struct split_block {
    uint16_t high[32], low[32];
    float d;                       /* bf16: 1 */
    float pad[3];
};

/* Input of a product: rows as int8 blocks, as floats, in two halves, or more of these; NULL what no weight reads. */
struct row_input {
    struct xblock *q8;
    struct xblock *second;         /* what the rounding of q8 left, rounded to 1/254 of its step; NULL: not kept */
    float *f32;
    uint16_t *bf16;                /* zero from the last column to the end of the row; only with fast prefill */
    uint32_t n_blocks, f32_stride; /* of a row; the stride is that of bf16 too */
    struct split_block *split_f16, *split_bf16;
    uint32_t n_split;              /* of a row: the last is filled with zeros */
};

/* x (with the block's output tmp normed and added first, where post is given) normed by weight into out. */
struct norm_args {
    float *x;            /* [rows][stride] */
    const float *tmp;    /* [rows][stride], or NULL */
    const float *post, *weight;
    struct row_input out;
    uint32_t n, stride;  /* E, E padded to 16 */
    float eps;
};

struct embed_args {
    struct step_view step;
    struct weights embedding;
    const int32_t *last_tokens;
    float scale;
    float *x;
    uint32_t stride;
    struct norm_args norm;      /* the first layer's */
    const double *frequencies[2];
    float magnitudes[2];
    float *cosines[2], *sines[2]; /* [rows][half] */
    uint32_t half;
};
enum status launch_embed(const struct embed_args *a, uint32_t rows_max, device_stream s);

/* ------------------------------------------------------------------ products */

enum product_kind {
    PRODUCT_STORE, /* y = W x (+ bias) */
    PRODUCT_ADD,   /* y += W x */
    PRODUCT_GATE,  /* out = act(W0 x) * (W1 x); W0, W1: part[0], part[1] */
};

struct product_part {
    enum tensor_type type;
    const uint8_t *data;
    size_t panel_bytes;
    uint32_t n_panels, n_rows;
    float *y;            /* [rows][y_stride] */
    const float *bias;   /* or NULL */
    uint32_t y_stride;
    uint32_t n_inputs;   /* 2: reads the second part of the int8 input as well (kernels/cpu/kernels.h) */
};

struct product_args {
    enum product_kind kind;
    struct product_part part[3]; /* of one number of columns; of one type, but what is stored may be of several quantised ones */
    uint32_t n_parts;
    uint32_t n_k;
    const struct xblock *q8, *second; /* the one that the type reads */
    const float *f32;
    uint32_t n_blocks, f32_stride;
    const struct split_block *split;
    uint32_t n_split;            /* of a row */
    const uint32_t *n_rows;      /* on the device */
    const uint32_t *map;         /* row i of the product reads row map[i] of the input; NULL: i */
    const uint32_t *out_map;     /* and what comes of it, norm included, goes to row out_map[i]; NULL: i */
    /* PRODUCT_GATE */
    bool gelu;
    struct row_input out;
    /* After it, by whichever block ends last for some rows; norm.x NULL: nothing. */
    struct norm_args norm;
    uint32_t *counters;          /* [tiles of 8 rows], zero before and after */
};
enum status launch_product(const struct product_args *a, uint32_t rows_max, device_stream s);

/* act(g) * u into out, for gates whose two weights differ in type. */
struct gate_args {
    const float *g, *u;          /* [rows][stride] */
    uint32_t n, stride;
    bool gelu;
    struct row_input out;
    const uint32_t *n_rows;
    const uint32_t *map;         /* row i stands for row map[i] of g, u and out; NULL: i */
};
enum status launch_gate(const struct gate_args *a, uint32_t rows_max, device_stream s);

/* ------------------------------------------------------------------ around matmul.h */

/* Rows first_row .. of packed weights to bf16, [n_rows][stride], zero beyond the last column. */
struct widen_args {
    struct weights from;
    uint32_t first_row, n_rows, stride;
    uint16_t *to;
};
enum status launch_widen(const struct widen_args *a, device_stream s);

/* The norm of rows first .. first+n-1; what a product's last block does otherwise. */
enum status launch_norm(const struct norm_args *a, uint32_t first, uint32_t n, device_stream s);

/* y[row][i] += bias[i] */
struct bias_args {
    float *y;                    /* [n_rows][stride] */
    const float *bias;
    uint32_t n, stride;
};
enum status launch_bias(const struct bias_args *a, uint32_t n_rows, device_stream s);

/* ------------------------------------------------------------------ keys, values, attention */

/* Inside every block, [layer][kv head]:
 *   f16   K [D/8][16 positions][8] f16       V [16 positions][D] f16
 *   q8    K [D/16][16 positions][16] i8      V [16 positions][D] i8
 *         K scales [D/32][16 positions] f16  V scales [D/32][16 positions] f16 */
struct kv_pool {
    uint8_t *at;
    size_t block_bytes, layer_bytes, head_bytes;
    size_t v, k_scales, v_scales; /* from the start of a head's part; K is at 0 */
    enum kv_type type;
    uint32_t head_dim;
};

struct kv_args {
    struct step_view step;
    struct kv_pool pool;
    uint32_t layer, n_heads, n_kv_heads;
    float *q;                      /* [rows][H * D], turned in place */
    const float *k, *v;            /* [rows][G * D] */
    const float *q_norm, *k_norm;  /* [D] or NULL */
    const float *cosines, *sines;  /* [rows][D / 2] */
    float eps, q_scale;
};
enum status launch_kv(const struct kv_args *a, uint32_t rows_max, device_stream s);

enum {
    ATTEND_QUERIES_MAX = 16, /* of an item, each with its heads of one tile */
    ATTEND_MMA_QUERIES = 64, /* of an item of launch_attention_mma() */
    PART_HEAD = 4,           /* floats before o: m, l */
};

struct attention_args {
    struct step_view step;
    struct kv_pool pool;
    uint32_t layer, n_heads, n_kv_heads;
    uint32_t heads_per_tile, head_sets; /* heads of a group in one tile; tiles of a group */
    uint32_t window;
    const float *q;
    float *parts;          /* [part][n_kv_heads * head_sets][queries of a decode tile][PART_HEAD + D] */
    uint32_t *counters;    /* [items][n_kv_heads * head_sets], zero before and after */
    struct row_input out;  /* [rows][H * D] */
};
/* parts_max: n_parts of the item that has most.  queries_max: tokens x heads of the item that has most. */
enum status launch_attention(const struct attention_args *a, uint32_t items_max, uint32_t parts_max, uint32_t queries_max,
                             device_stream s);
/* On tensor cores, near the CPU's results and not equal to them: items_max of the items after the header's n_items, which have no
 * parts.  A row's bits depend on its query, K and V and on nothing else. */
enum status launch_attention_mma(const struct attention_args *a, uint32_t items_max, device_stream s);

/* ------------------------------------------------------------------ sampling */

struct sample_args {
    struct step_view step;
    float *logits;         /* [rows][stride]; changed */
    uint32_t n_vocab, stride;
    /* scratch of as many requests as are sampled at a time, [n_slots][stride] each */
    uint32_t n_slots;
    float *raw, *exps;
    uint64_t *ranked;
    double *weights;
    struct step_result *results; /* [entries] */
    int32_t *last_tokens;        /* [entries] */
};
enum status launch_sample(const struct sample_args *a, uint32_t requests_max, device_stream s);

#ifdef __cplusplus
}
#endif

#endif
