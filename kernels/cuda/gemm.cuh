/* gemm.cuh - products of packed weights and rows, and what is done with an output.  Three kernels, one order of sums:
 *
 *   gemv_int    up to 8 rows.  A block of 8 warps has one panel (or two of gate and two of up).  Of every 16 blocks of 32 K
 *               (4, with four panels) each warp takes a pair, and puts the exact integer sums into shared memory; behind it
 *               other threads, one an output, add them up in floats in ascending K.  So a panel's bytes are read by the whole
 *               block and the order of additions is still one chain.
 *   gemm_int    many rows.  A warp has two panels (or gate and up of one) times 32 rows and goes through all of K; each
 *               thread keeps 16 chains in registers.  Rows come through shared memory, 16 blocks of K ahead of use.
 *               (gemv_any, gemm_any: the same for parts of several quantised types in one launch.)
 *   gemv_half, gemm_half   F16 and BF16 on tensor cores: up to 8 rows as gemv_int, more as gemm_int (gemm_half.cuh).
 *   gemm_float  F32 with float rows.  A thread has one output row of the weights and 1 or 8 rows; a chain of fma in ascending K.
 *
 * A block of int8 times 8 rows is one mma.m16n8k32, also for a single row: it takes the place of 16 dp4a and 6 shuffles.
 *
 * An output is acc = 0, then for every block: acc = fma(sum, D * d, acc); acc = fma(M, s, acc) where there are minima; then the
 * same with the second input where a part reads two.  See kernels/cpu/kernels.h; neither the kernel nor the number of rows is
 * part of it.  F16 and BF16 have another sum in each block, gemm_half.cuh.  (Second inputs are more columns of the same block: cols rows by two are 2 * cols columns.) */
#ifndef GEMM_CUH
#define GEMM_CUH

#include "rows.cuh"

enum {
    COLUMNS_TOGETHER = 16, /* tiles of rows: see group_of() */
    GATE_STRIDE = 65,   /* floats of a row's 64 columns of F */
    SUM_STRIDE = 20,    /* floats of a column's 16 sums: columns apart by 4 banks */
    GEMV_ROWS = 8,      /* rows up to which gemv_int is taken */
    GEMV_THREADS = 256, /* 8 warps: */
    GEMV_PAIRS = 8,     /* pairs of blocks in flight, one a warp */
    GEMV_STAGES = 4,    /* buffers of rows */
    GEMM_ROWS = 32,
    GEMM_THREADS = 128,
    GEMM_BLOCKS = 8,    /* blocks of K of a buffer */
    GEMM_STAGES = 3,
    GEMM_BYTES = GEMM_STAGES * GEMM_BLOCKS * GEMM_ROWS * sizeof(struct xblock),
    FLOAT_THREADS = 128,
    FLOAT_K = 64,       /* elements of K of a buffer */
    FLOAT_STAGES = 3,
};

/* How a product with quantised weights cuts its rows. */
struct int_tiles {
    bool few;         /* by gemv_int */
    uint32_t cols;    /* rows of a tile, */
    uint32_t columns; /* and columns: the second inputs of parts that read two are more of them */
    uint32_t n;       /* tiles */
};

static inline struct int_tiles int_tiles(const struct product_args *a, uint32_t rows_max)
{
    uint32_t inputs = 1, least = 2;
    struct int_tiles t;

    for (uint32_t i = 0; i < a->n_parts; i++) {
        inputs = a->part[i].n_inputs > inputs ? a->part[i].n_inputs : inputs;
        least = a->part[i].n_inputs < least ? a->part[i].n_inputs : least;
    }
    /* Parts that read one and two inputs: those of one would go over their weights twice, once for every 4 rows. */
    t.few = rows_max <= (uint32_t)(least < inputs ? GEMV_ROWS / 2 : GEMV_ROWS);
    t.cols = (t.few ? GEMV_ROWS : GEMM_ROWS) / inputs;
    while (t.few && t.cols / 2 >= rows_max)
        t.cols /= 2;
    t.columns = t.cols * inputs;
    t.n = (rows_max + t.cols - 1) / t.cols;
    return t;
}

/* Part i.  (An index that is not known when compiling would have the compiler copy all parts to local memory.) */
__device__ __forceinline__ struct product_part part_of(const struct product_args &a, uint32_t i)
{
    return i == 0 ? a.part[0] : i == 1 ? a.part[1] : a.part[2];
}

/* Which part of the product panel group `group` belongs to, groups being `per_group` panels. */
__device__ __forceinline__ uint32_t find_part(const struct product_args &a, uint32_t per_group, uint32_t &group)
{
    const uint32_t n0 = (a.part[0].n_panels + per_group - 1) / per_group, n1 = (a.part[1].n_panels + per_group - 1) / per_group;

    if (a.n_parts == 1 || group < n0)
        return 0;
    group -= n0;
    if (a.n_parts == 2 || group < n1)
        return 1;
    group -= n1;
    return 2;
}

__device__ __forceinline__ uint32_t input_row(const struct product_args &a, uint32_t row)
{
    return a.map == nullptr ? row : __ldg(a.map + row);
}
__device__ __forceinline__ uint32_t output_row(const struct product_args &a, uint32_t row)
{
    return a.out_map == nullptr ? row : __ldg(a.out_map + row);
}

__device__ __forceinline__ void finish_output(const struct product_args &a, const struct product_part &p, uint32_t n, uint32_t row, float v)
{
    if (n >= p.n_rows)
        return;
    float *y = p.y + (size_t)output_row(a, row) * p.y_stride + n;
    if (a.kind == PRODUCT_ADD)
        v = *y + v;
    else if (p.bias != nullptr)
        v = v + __ldg(p.bias + n);
    *y = v;
}

/* Which panels (by group) and which tile of rows (ret_column) a block of a product of many rows has.  Blocks begin in the order of
 * their numbers: 16 tiles of rows go through all panels together, so those that run at a time share their weights and their
 * rows in the second-level cache, and weights come from memory once for 16 tiles. */
__device__ __forceinline__ uint32_t group_of(uint32_t &ret_column)
{
    const uint32_t number = blockIdx.y * gridDim.x + blockIdx.x, first = number / (COLUMNS_TOGETHER * gridDim.x) * COLUMNS_TOGETHER;
    const uint32_t rest = number - first * gridDim.x, left = gridDim.y - first;
    const uint32_t width = left < (uint32_t)COLUMNS_TOGETHER ? left : (uint32_t)COLUMNS_TOGETHER;

    ret_column = first + rest % width;
    return rest / width;
}

/* Gate and up of 32 columns of F: from chains in y [4][cols][16] to blocks of the down projection's input. */
__device__ __forceinline__ void gate_outputs(const struct product_args &a, const float *y, uint32_t group, uint32_t first,
                                             uint32_t n, uint32_t cols, uint32_t warp, uint32_t lane)
{
    const bool valid = group * WARP + lane < a.part[0].n_rows;

    for (uint32_t col = warp; col < n; col += GEMV_THREADS / WARP) {
        const float *at = y + ((size_t)(lane / 16) * cols + col) * 16 + lane % 16;
        const float v = valid ? gated(a.gelu, at[0], at[2 * cols * 16]) : 0.0f;
        put_input(a.out, output_row(a, first + col), group, v, valid, lane);
    }
}

/* The end of a product of few rows: a thread has two of the chains [UNITS][cols][16], and they go where they belong.  sums is what they were
 * added up from. */
template <bool GATE, uint32_t UNITS>
__device__ __forceinline__ void finish_gemv(const struct product_args &a, const struct product_part &own, float *sums, const float (&acc)[2],
                                            uint32_t group, uint32_t first, uint32_t n, uint32_t cols)
{
    cp_async_wait<0>();
    if (GATE)
        __syncthreads(); /* the sums have been read: their memory is free */
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t o = threadIdx.x + i * GEMV_THREADS, r = o % 16, col = o / 16 % cols, u = o / 16 / cols;
        if (u >= UNITS || col >= n)
            continue;
        if (GATE)
            sums[(u * cols + col) * 16 + r] = acc[i];
        else
            finish_output(a, own, group * 16 + r, first + col, acc[i]);
    }
    if (GATE) {
        __syncthreads();
        gate_outputs(a, sums, group, first, n, cols, threadIdx.x / WARP, threadIdx.x % WARP);
    }
    norm_tail(a.norm, a.counters + blockIdx.y, a.out_map, first, n);
}

/* Activated columns through shared memory, so that a warp has 32 neighbours of one row. */
template <int TILES>
__device__ __forceinline__ void gate_tile(const struct product_args &a, float *y, const float (&gate)[TILES][4],
                                          const float (&up)[TILES][4], uint32_t group, uint32_t first, uint32_t n, uint32_t warp,
                                          uint32_t lane)
{
    const uint32_t n_ff = a.part[0].n_rows;

    __syncthreads(); /* the rows' buffers are free */
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[(8 * t + 2 * (lane % 4) + i % 2) * GATE_STRIDE + 16 * warp + lane / 4 + i / 2 * 8] =
                gated(a.gelu, gate[t][i], up[t][i]);
    __syncthreads();
    for (uint32_t i = warp; i < 2 * n; i += GEMM_THREADS / WARP) {
        const uint32_t row = i / 2, block = 2 * group + i % 2;
        const bool valid = block * WARP + lane < n_ff;
        if (block * WARP < n_ff)
            put_input(a.out, output_row(a, first + row), block, valid ? y[row * GATE_STRIDE + 32 * (i % 2) + lane] : 0.0f, valid, lane);
    }
}

/* Outputs of a tile, or (with a gate) what comes of them. */
template <bool GATE, int PANELS, int TILES, int HELD>
__device__ __forceinline__ void finish_tile(const struct product_args &a, float *y, const float (&acc)[PANELS][HELD][4],
                                            const struct product_part &own, const uint32_t (&index)[PANELS], uint32_t group,
                                            uint32_t first, uint32_t n, uint32_t warp, uint32_t lane)
{
    if constexpr (GATE) {
        gate_tile<HELD>(a, y, acc[0], acc[1], group, first, n, warp, lane);
    } else {
#pragma unroll
        for (int p = 0; p < PANELS; p++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t row = 8 * t + 2 * (lane % 4) + i % 2;
                    if (row < n && index[p] < own.n_panels)
                        finish_output(a, own, index[p] * 16 + lane / 4 + i / 2 * 8, first + row, acc[p][t][i]);
                }
    }
}

#endif
