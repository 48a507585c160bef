/* gemm_float.cuh - F32 weights times float rows: see gemm.cuh.  A block has 4 warps; lane l has row l of 32
 * rows of the weights (two panels), warp w the rows w * ROWS .. of the tile.  16 bytes of weights a load, K in order. */
#ifndef GEMM_FLOAT_CUH
#define GEMM_FLOAT_CUH

#include "gemm.cuh"

enum { FLOAT_UNIT = 4 /* elements of 16 bytes */ };

/* Elements chunk * FLOAT_K .. of rows first .. into their buffer [cols][FLOAT_K]. */
__device__ __forceinline__ void stage_floats(const struct product_args &a, float *buffer, uint32_t chunk, uint32_t first, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n * (FLOAT_K / 4); i += FLOAT_THREADS) {
        const uint32_t col = i / (FLOAT_K / 4), k = chunk * FLOAT_K + i % (FLOAT_K / 4) * 4;
        if (k < a.f32_stride)
            cp_async16(buffer + col * FLOAT_K + i % (FLOAT_K / 4) * 4,
                       a.f32 + (size_t)input_row(a, first + col) * a.f32_stride + k);
    }
}

template <int ROWS, bool GATE>
__device__ __forceinline__ void gemm_float(const struct product_args &a)
{
    constexpr uint32_t tile = 4 * ROWS;
    constexpr int streams = GATE ? 2 : 1;
    SHARED_BYTES(bytes);
    float *x = reinterpret_cast<float *>(bytes); /* [FLOAT_STAGES][tile][FLOAT_K] */
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t group = blockIdx.x;
    const uint32_t part = GATE ? 0 : find_part(a, 2, group);
    const uint32_t n_chunks = (a.n_k + FLOAT_K - 1) / FLOAT_K, index = 2 * group + lane / 16;
    const uint8_t *panel[streams];
    float acc[streams][ROWS] = {};

#pragma unroll
    for (int s = 0; s < streams; s++) {
        const struct product_part from = part_of(a, GATE ? (uint32_t)s : part);
        panel[s] = from.data + (index < from.n_panels ? index : 0) * from.panel_bytes + lane % 16 * 16;
    }
    grid_wait();
    grid_launch();
    const uint32_t n_rows = *a.n_rows, first = blockIdx.y * tile;
    if (first >= n_rows)
        return;
    const uint32_t n = n_rows - first < tile ? n_rows - first : tile;

    for (uint32_t c = 0; c < FLOAT_STAGES - 1; c++) {
        if (c < n_chunks)
            stage_floats(a, x + c * tile * FLOAT_K, c, first, n);
        cp_async_commit();
    }
    for (uint32_t c = 0; c < n_chunks; c++) {
        cp_async_wait<FLOAT_STAGES - 2>();
        __syncthreads();
        if (c + FLOAT_STAGES - 1 < n_chunks)
            stage_floats(a, x + (c + FLOAT_STAGES - 1) % FLOAT_STAGES * tile * FLOAT_K, c + FLOAT_STAGES - 1, first, n);
        cp_async_commit();
        const float *rows = x + (c % FLOAT_STAGES * tile + warp * ROWS) * FLOAT_K;
        const uint32_t left = a.n_k - c * FLOAT_K, n_units = ((left < FLOAT_K ? left : (uint32_t)FLOAT_K) + FLOAT_UNIT - 1) / FLOAT_UNIT;
        if (warp * ROWS >= n)
            continue;
#pragma unroll 2
        for (uint32_t u = 0; u < n_units; u++) {
            float4 w[streams];
            for (int s = 0; s < streams; s++)
                w[s] = __ldg(reinterpret_cast<const float4 *>(panel[s] + (size_t)(c * (FLOAT_K / FLOAT_UNIT) + u) * 256));
#pragma unroll
            for (uint32_t i = 0; i < FLOAT_UNIT; i++) {
                if (u * FLOAT_UNIT + i >= left) /* the end of K */
                    break;
                for (int s = 0; s < streams; s++) {
                    const float weight = i == 0 ? w[s].x : i == 1 ? w[s].y : i == 2 ? w[s].z : w[s].w;
                    for (int r = 0; r < ROWS; r++)
                        acc[s][r] = fmaf(weight, rows[r * FLOAT_K + u * FLOAT_UNIT + i], acc[s][r]);
                }
            }
        }
    }
    cp_async_wait<0>();
    const struct product_part own = part_of(a, part);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const uint32_t row = warp * ROWS + r, column = group * WARP + lane;
        if (row >= n)
            break;
        if (GATE) {
            const bool valid = column < a.part[0].n_rows;
            put_input(a.out, output_row(a, first + row), group, valid ? gated(a.gelu, acc[0][r], acc[streams - 1][r]) : 0.0f, valid, lane);
        } else if (index < own.n_panels) {
            finish_output(a, own, column, first + row, acc[0][r]);
        }
    }
    norm_tail(a.norm, a.counters + blockIdx.y, a.out_map, first, n);
}

#endif
