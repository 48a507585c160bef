/* gemm.cuh - products of packed weights and rows, and what is done with an output.  Three kernels, one order of sums:
 *
 *   gemv_int    up to 8 rows.  A block of 8 warps has one panel (or two of gate and two of up).  Of every 16 blocks of 32 K
 *               (4, with four panels) each warp takes a pair, and puts the exact integer sums into shared memory; behind it
 *               other threads, one an output, add them up in floats in ascending K.  So a panel's bytes are read by the whole
 *               block and the order of additions is still one chain.
 *   gemm_int    many rows.  A warp has two panels (or gate and up of one) times 32 rows and goes through all of K; each
 *               thread keeps 16 chains in registers.  Rows come through shared memory, 16 blocks of K ahead of use.
 *   gemm_float  F32, F16, BF16 with float rows.  A thread has one output row of the weights and 1 or 8 rows; a chain of fma
 *               in ascending K.
 *
 * A block of int8 times 8 rows is one mma.m16n8k32, also for a single row: it takes the place of 16 dp4a and 6 shuffles.
 *
 * An output is acc = 0, then for every block: acc = fma(sum, D * d, acc); acc = fma(M, s, acc) where there are minima; then the
 * same with the second input where a part reads two.  See kernels/cpu/kernels.h; neither the kernel nor the number of rows is
 * part of it.  (Second inputs are more columns of the same block: cols rows by two are 2 * cols columns.) */
#ifndef GEMM_CUH
#define GEMM_CUH

#include "rows.cuh"

enum {
    GEMV_ROWS = 8,      /* rows up to which gemv_int is taken */
    GEMV_THREADS = 256, /* 8 warps: */
    GEMV_PAIRS = 8,     /* pairs of blocks in flight, one a warp */
    GEMV_STAGES = 4,    /* buffers of rows */
    GEMM_ROWS = 32,
    GEMM_THREADS = 128,
    GEMM_BLOCKS = 8,    /* blocks of K of a buffer */
    GEMM_STAGES = 3,
    FLOAT_THREADS = 128,
    FLOAT_K = 64,       /* elements of K of a buffer */
    FLOAT_STAGES = 3,
};

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

#endif
