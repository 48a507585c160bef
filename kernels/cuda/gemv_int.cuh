/* gemv_int.cuh - up to 8 rows times quantised weights: see gemm.cuh.
 *
 *        chunk c     warps: pair of blocks -> mma -> sums to shared memory, buffer c % 2
 *        chunk c-1   threads, one an output: chain over the blocks of buffer (c-1) % 2
 *
 * One barrier a chunk.  Packed weights come two chunks ahead into registers (and before grid_wait: nobody writes them),
 * rows two chunks ahead into shared memory. */
#ifndef GEMV_INT_CUH
#define GEMV_INT_CUH

#include "gemm.cuh"
#include "gemm_int.cuh"

template <int TYPE, bool GATE> struct gemv_layout {
    static constexpr uint32_t units = GATE ? 4 : 1;                /* panels of a block */
    static constexpr uint32_t blocks = 2 * GEMV_PAIRS / units;     /* of K in a chunk */
    static constexpr uint32_t sums = units * blocks * format<TYPE>::sums;

    struct xblock *x;  /* [GEMV_STAGES][blocks][cols] */
    float *sum;        /* [2][sums][cols][SUM_STRIDE] */
    float *d;          /* [2][sums][16] */
    float *m;          /* [2][units * blocks][16] */

    __host__ __device__ static size_t bytes(uint32_t cols)
    {
        return GEMV_STAGES * blocks * cols * sizeof(struct xblock) +
               2 * (sums * (cols * SUM_STRIDE + 16) + units * blocks * 16) * sizeof(float);
    }
    __device__ gemv_layout(uint8_t *at, uint32_t cols)
    {
        x = reinterpret_cast<struct xblock *>(at);
        sum = reinterpret_cast<float *>(x + GEMV_STAGES * blocks * cols);
        d = sum + 2 * sums * cols * SUM_STRIDE;
        m = d + 2 * sums * 16;
    }
};

/* Blocks of K of chunk c of rows first .. into their buffer [BLOCKS][inputs][cols]. */
template <uint32_t BLOCKS>
__device__ __forceinline__ void stage_rows(const struct product_args &a, struct xblock *buffer, uint32_t chunk, uint32_t first,
                                           uint32_t n, uint32_t cols, uint32_t inputs)
{
    for (uint32_t i = threadIdx.x; i < BLOCKS * cols * inputs * 3; i += blockDim.x) {
        const uint32_t piece = i % 3, b = i / 3 % BLOCKS, column = i / 3 / BLOCKS, col = column % cols, block = chunk * BLOCKS + b;
        if (block >= a.n_k || col >= n)
            continue;
        const struct xblock *from = (column < cols ? a.q8 : a.second) + (size_t)input_row(a, first + col) * a.n_blocks + block;
        cp_async16(reinterpret_cast<uint8_t *>(buffer + b * cols * inputs + column) + 16 * piece,
                   reinterpret_cast<const uint8_t *>(from) + 16 * piece);
    }
}

/* This warp's pair: sums of its two blocks and their scales into buffer `to`. */
template <int TYPE, bool GATE>
__device__ __forceinline__ void pair_sums(const gemv_layout<TYPE, GATE> &s, const pair_bits<TYPE> &bits, const struct xblock *x,
                                          uint32_t to, uint32_t index, uint32_t block, uint32_t cols, uint32_t lane)
{
    typedef format<TYPE> f;
    typedef gemv_layout<TYPE, GATE> layout;
    const uint32_t g = lane / 4, j = lane % 4;
    const uint32_t mine = g < cols ? g : 0, col0 = 2 * j < cols ? 2 * j : 0, col1 = 2 * j + 1 < cols ? 2 * j + 1 : 0;

    for (int b = 0; b < 2; b++) {
        const struct xblock *row = x + (block + b) * cols;
        const uint32_t *q = reinterpret_cast<const uint32_t *>(row[mine].q);
        const uint32_t fragment[2] = { q[j], q[j + 4] };
        const int n[2] = { row[col0].n, row[col1].n }, n0[2] = { row[col0].n0, row[col1].n0 };
        uint32_t codes[4];
        int c[2][4];
        float d[2], m[2];
        unpack_codes<TYPE>(bits, b, codes);
        unpack_scales<TYPE>(bits, b, d, m);
        block_sums<TYPE>(codes, fragment, n, n0, c[0], c[1]);
        for (int h = 0; h < f::sums; h++) {
            const uint32_t at = to * layout::sums + (index + b) * f::sums + h;
            float *sum = s.sum + (at * cols + 2 * j) * SUM_STRIDE + g;
            if (2 * j < cols)
                sum[0] = sum_value(c[h][0]), sum[8] = sum_value(c[h][2]);
            if (2 * j + 1 < cols)
                sum[SUM_STRIDE] = sum_value(c[h][1]), sum[SUM_STRIDE + 8] = sum_value(c[h][3]);
            if (j == 0) {
                s.d[at * 16 + g] = h == 0 ? d[0] : m[0];
                s.d[at * 16 + g + 8] = h == 0 ? d[1] : m[1];
            }
        }
        if (f::has_min && j == 0) {
            s.m[(to * layout::units * layout::blocks + index + b) * 16 + g] = m[0];
            s.m[(to * layout::units * layout::blocks + index + b) * 16 + g + 8] = m[1];
        }
    }
}

/* The chain of one output over the n blocks of a chunk; columns: cols of each input. */
template <int TYPE, bool GATE>
__device__ __forceinline__ float chain(const gemv_layout<TYPE, GATE> &s, const struct xblock *x, uint32_t from, uint32_t index,
                                       uint32_t n, uint32_t columns, uint32_t cols, uint32_t col, uint32_t r, float acc)
{
    typedef format<TYPE> f;
    typedef gemv_layout<TYPE, GATE> layout;

#pragma unroll 4
    for (uint32_t b = 0; b < n; b++) {
        for (uint32_t column = col; column < columns; column += cols) {
            const struct xblock &input = x[b * columns + column];
            for (int h = 0; h < f::sums; h++) {
                const uint32_t at = from * layout::sums + (index + b) * f::sums + h;
                acc = fmaf(s.sum[(at * columns + column) * SUM_STRIDE + r], s.d[at * 16 + r] * input.d, acc);
            }
            if (f::has_min)
                acc = fmaf(s.m[(from * layout::units * layout::blocks + index + b) * 16 + r], input.s, acc);
        }
    }
    return acc;
}

template <int TYPE, bool GATE>
__device__ __forceinline__ void gemv_int(const struct product_args &a, uint32_t cols, uint32_t columns_max)
{
    typedef gemv_layout<TYPE, GATE> layout;
    SHARED_BYTES(bytes);
    const layout s(bytes, columns_max);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    constexpr uint32_t pairs = layout::blocks / 2;
    const uint32_t unit = warp / pairs, pair = warp % pairs;
    uint32_t group = blockIdx.x;
    const uint32_t part = GATE ? 0 : find_part(a, 1, group);
    const struct product_part own = part_of(a, GATE ? unit / 2 : part);
    const uint32_t panel_index = GATE ? 2 * group + unit % 2 : group;
    const uint32_t n_pairs = panel_index < own.n_panels ? (a.n_k + 1) / 2 : 0;
    const uint8_t *panel = own.data + panel_index * own.panel_bytes;
    const uint32_t n_chunks = (a.n_k + layout::blocks - 1) / layout::blocks;
    pair_bits<TYPE> next = {}, after = {};
    float acc[2] = { 0.0f, 0.0f };

    if (pair < n_pairs)
        load_pair<TYPE>(panel, pair, lane, next);
    if (pairs + pair < n_pairs)
        load_pair<TYPE>(panel, pairs + pair, lane, after);
    grid_wait();
    grid_launch();
    const uint32_t n_rows = *a.n_rows, first = blockIdx.y * cols;
    if (first >= n_rows)
        return;
    const uint32_t n = n_rows - first < cols ? n_rows - first : cols;
    const uint32_t inputs = GATE ? 1 : own.n_inputs, columns = cols * inputs, stage = layout::blocks * columns_max;

    for (uint32_t c = 0; c < 2; c++) {
        if (c < n_chunks)
            stage_rows<layout::blocks>(a, s.x + c * stage, c, first, n, cols, inputs);
        cp_async_commit();
    }
    for (uint32_t c = 0; c <= n_chunks; c++) {
        cp_async_wait<1>();
        __syncthreads();
        if (c + 2 < n_chunks)
            stage_rows<layout::blocks>(a, s.x + (c + 2) % GEMV_STAGES * stage, c + 2, first, n, cols, inputs);
        cp_async_commit();
        if (c < n_chunks) {
            const pair_bits<TYPE> bits = next;
            next = after;
            if ((c + 2) * pairs + pair < n_pairs)
                load_pair<TYPE>(panel, (c + 2) * pairs + pair, lane, after);
            if (c * pairs + pair < n_pairs)
                pair_sums<TYPE, GATE>(s, bits, s.x + c % GEMV_STAGES * stage, c % 2, unit * layout::blocks + 2 * pair, 2 * pair,
                                      columns, lane);
        }
        for (uint32_t i = 0; i < 2 && c > 0; i++) {
            const uint32_t o = threadIdx.x + i * GEMV_THREADS, r = o % 16, col = o / 16 % cols, u = o / 16 / cols;
            const uint32_t left = a.n_k - (c - 1) * layout::blocks;
            if (u < layout::units && col < n)
                acc[i] = chain<TYPE, GATE>(s, s.x + (c - 1) % GEMV_STAGES * stage, (c - 1) % 2, u * layout::blocks,
                                           left < layout::blocks ? left : layout::blocks, columns, cols, col, r, acc[i]);
        }
    }
    finish_gemv<GATE, layout::units>(a, own, s.sum, acc, group, first, n, cols);
}

#endif
