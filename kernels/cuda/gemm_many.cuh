/* gemm_many.cuh - many rows times quantised weights: see gemm.cuh.  A block has 4 warps; its tile is 8 panels (or 4 of gate
 * and the same 4 of up) times 32 rows.  A warp holds two panels' fragments of a block of K and meets every 8 rows with both,
 * so what it reads of the rows is used twice. */
#ifndef GEMM_MANY_CUH
#define GEMM_MANY_CUH

#include "gemm.cuh"
#include "gemm_int.cuh"
#include "gemv_int.cuh"

enum { ROW_TILES = GEMM_ROWS / 8 };

/* Both panels' block b times all columns of the tile; x: [GEMM_ROWS] of that block of K.  With two inputs the second half of
 * the columns are the second inputs of the rows of the first half, and go on with their chains. */
template <int TYPE, int INPUTS>
__device__ __forceinline__ void block_times_rows(const pair_bits<TYPE> (&bits)[2], int b, const struct xblock *x,
                                                 float (&acc)[2][ROW_TILES][4], uint32_t lane)
{
    typedef format<TYPE> f;
    const uint32_t g = lane / 4, j = lane % 4;
    uint32_t codes[2][4];
    float d[2][2], m[2][2];

    for (int p = 0; p < 2; p++) {
        unpack_codes<TYPE>(bits[p], b, codes[p]);
        unpack_scales<TYPE>(bits[p], b, d[p], m[p]);
    }
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        const struct xblock *rows = x + 8 * t;
        const uint32_t *q = reinterpret_cast<const uint32_t *>(rows[g].q);
        const uint32_t fragment[2] = { q[j], q[j + 4] };
        const float xd[2] = { rows[2 * j].d, rows[2 * j + 1].d }, xs[2] = { rows[2 * j].s, rows[2 * j + 1].s };
        const int n[2] = { rows[2 * j].n, rows[2 * j + 1].n }, n0[2] = { rows[2 * j].n0, rows[2 * j + 1].n0 };
#pragma unroll
        for (int p = 0; p < 2; p++) {
            int c[4], c1[4];
            block_sums<TYPE>(codes[p], fragment, n, n0, c, c1);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v = acc[p][t % (ROW_TILES / INPUTS)][i];
                v = fmaf(sum_value(c[i]), d[p][i / 2] * xd[i % 2], v);
                if (f::is_six)
                    v = fmaf(sum_value(c1[i]), m[p][i / 2] * xd[i % 2], v);
                if (f::has_min)
                    v = fmaf(m[p][i / 2], xs[i % 2], v);
                acc[p][t % (ROW_TILES / INPUTS)][i] = v;
            }
        }
    }
}

template <int TYPE, bool GATE, int INPUTS>
__device__ __forceinline__ void gemm_int(const struct product_args &a)
{
    SHARED_BYTES(bytes);
    struct xblock *x = reinterpret_cast<struct xblock *>(bytes); /* [GEMM_STAGES][GEMM_BLOCKS][GEMM_ROWS] */
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t column, group = group_of(column);
    const uint32_t part = GATE ? 0 : find_part(a, 8, group);
    const uint32_t n_chunks = (a.n_k + GEMM_BLOCKS - 1) / GEMM_BLOCKS, n_pairs = (a.n_k + 1) / 2;
    uint32_t index[2];
    const uint8_t *panel[2];
    pair_bits<TYPE> next[2] = {};
    float acc[2][ROW_TILES][4] = {};

#pragma unroll
    for (int p = 0; p < 2; p++) { /* past the end: the first again, its results dropped */
        const struct product_part own = part_of(a, GATE ? (uint32_t)p : part);
        index[p] = GATE ? 4 * group + warp : 8 * group + 2 * warp + p;
        panel[p] = own.data + (index[p] < own.n_panels ? index[p] : 0) * own.panel_bytes;
        load_pair<TYPE>(panel[p], 0, lane, next[p]);
    }
    grid_wait();
    grid_launch();
    constexpr uint32_t cols = GEMM_ROWS / INPUTS;
    const uint32_t n_rows = *a.n_rows, first = column * cols;
    if (first >= n_rows)
        return;
    const uint32_t n = n_rows - first < cols ? n_rows - first : cols;

    for (uint32_t c = 0; c < GEMM_STAGES - 1; c++) {
        if (c < n_chunks)
            stage_rows<GEMM_BLOCKS>(a, x + c * GEMM_BLOCKS * GEMM_ROWS, c, first, n, cols, INPUTS);
        cp_async_commit();
    }
    for (uint32_t c = 0; c < n_chunks; c++) {
        cp_async_wait<GEMM_STAGES - 2>();
        __syncthreads();
        if (c + GEMM_STAGES - 1 < n_chunks)
            stage_rows<GEMM_BLOCKS>(a, x + (c + GEMM_STAGES - 1) % GEMM_STAGES * GEMM_BLOCKS * GEMM_ROWS, c + GEMM_STAGES - 1,
                                    first, n, cols, INPUTS);
        cp_async_commit();
        const struct xblock *rows = x + c % GEMM_STAGES * GEMM_BLOCKS * GEMM_ROWS;
        for (uint32_t i = 0; i < GEMM_BLOCKS / 2; i++) {
            const uint32_t pair = c * (GEMM_BLOCKS / 2) + i;
            if (pair >= n_pairs)
                break;
            const pair_bits<TYPE> bits[2] = { next[0], next[1] };
            for (int p = 0; p < 2 && pair + 1 < n_pairs; p++)
                load_pair<TYPE>(panel[p], pair + 1, lane, next[p]);
            block_times_rows<TYPE, INPUTS>(bits, 0, rows + 2 * i * GEMM_ROWS, acc, lane);
            if (2 * pair + 1 < a.n_k)
                block_times_rows<TYPE, INPUTS>(bits, 1, rows + (2 * i + 1) * GEMM_ROWS, acc, lane);
        }
    }
    cp_async_wait<0>();
    finish_tile<GATE, 2, ROW_TILES / INPUTS>(a, reinterpret_cast<float *>(bytes), acc, part_of(a, part), index, group, first, n, warp, lane);
    norm_tail(a.norm, a.counters + column, a.out_map, first, n);
}

/* A part reads one input or two. */
template <int TYPE> __device__ __forceinline__ void gemm_int_mixed(const struct product_args &a)
{
    uint32_t column, group = group_of(column);

    if (part_of(a, find_part(a, 8, group)).n_inputs == 2)
        gemm_int<TYPE, false, 2>(a);
    else
        gemm_int<TYPE, false, 1>(a);
}

#endif
