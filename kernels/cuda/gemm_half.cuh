/* gemm_half.cuh - F16 and BF16 weights on tensor cores: see gemm.cuh.
 *
 * Rows come as blocks of 32 K, each value the sum of two numbers of the weights' own format (struct split_block): what
 * rounding leaves is kept, so a product is of 16 (bf16) or 22 (f16) bits by weights that are not rounded at all.  The sums of
 * a block of K (16 rows by 8 columns: four mma.m16n8k16, what was left first) are made on the tensor cores, from zero; then
 *
 *     acc = acc + c * d        in float, in ascending K
 *
 * whatever the number of rows.  So what a tensor core does to the last bits of a sum stays within 32 K, and no row's bits
 * depend on its company.
 *
 * Inside a block, lane 4g + j takes k = 8j .. 8j+7 of rows g and g+8 of a panel and of column g: 16 bytes each as they lie in
 * memory (pack.h), one load.  (Which k a tensor core calls which is the same for both factors, and nothing else matters.) */
#ifndef GEMM_HALF_CUH
#define GEMM_HALF_CUH

#include "gemm.cuh"

enum {
    HALF_PIECES = sizeof(struct split_block) / 16,
    HALF_WARPS = GEMV_THREADS / WARP,
    HALF_STAGES = 3, /* buffers of rows of gemv_half */
};

/* 8 K of rows g and g+8. */
struct half_bits {
    uint4 row, row8;
};

/* Beyond the end of K weights are zero (as the rows are, but zero times what is there may be NaN). */
__device__ __forceinline__ void load_half(const uint8_t *panel, uint32_t block, uint32_t n_units, uint32_t lane, struct half_bits &w)
{
    const uint32_t unit = 4 * block + lane % 4;
    const uint4 *at = reinterpret_cast<const uint4 *>(panel + (size_t)unit * 256) + lane / 4;

    w = half_bits{};
    if (unit < n_units) {
        w.row = __ldg(at);
        w.row8 = __ldg(at + 8);
    }
}

template <int TYPE> __device__ __forceinline__ void mma_half(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    if (TYPE == TENSOR_F16)
        mma_f16(c, a, b);
    else
        mma_bf16(c, a, b);
}

/* A block's sums of 16 rows and 8 columns. */
template <int TYPE>
__device__ __forceinline__ void half_sums(float (&c)[4], const struct half_bits &w, const uint4 &high, const uint4 &low)
{
    const uint32_t a0[4] = { w.row.x, w.row8.x, w.row.y, w.row8.y }, a1[4] = { w.row.z, w.row8.z, w.row.w, w.row8.w };
    const uint32_t low0[2] = { low.x, low.y }, low1[2] = { low.z, low.w };
    const uint32_t high0[2] = { high.x, high.y }, high1[2] = { high.z, high.w };

    c[0] = c[1] = c[2] = c[3] = 0.0f;
    mma_half<TYPE>(c, a0, low0);
    mma_half<TYPE>(c, a1, low1);
    mma_half<TYPE>(c, a0, high0);
    mma_half<TYPE>(c, a1, high1);
}

/* Rows of BLOCKS blocks of K in shared memory, the parts of each column apart: 16 bytes a lane then meet no bank twice. */
struct half_rows {
    uint4 *high, *low; /* [blocks][cols][4] */
    float4 *d;         /* [blocks][cols] */

    __device__ __forceinline__ half_rows(uint8_t *at, uint32_t blocks, uint32_t cols)
    {
        high = reinterpret_cast<uint4 *>(at);
        low = high + blocks * cols * 4;
        d = reinterpret_cast<float4 *>(low + blocks * cols * 4);
    }
};

template <uint32_t BLOCKS, int TYPE>
__device__ __forceinline__ void stage_half(const struct product_args &a, const struct half_rows &to, uint32_t chunk, uint32_t first,
                                           uint32_t n, uint32_t cols)
{
    constexpr uint32_t pieces = TYPE == TENSOR_F16 ? HALF_PIECES : HALF_PIECES - 1; /* d of bf16 is 1 */

    for (uint32_t i = threadIdx.x; i < BLOCKS * n * pieces; i += blockDim.x) {
        const uint32_t piece = i % pieces, b = i / pieces % BLOCKS, col = i / pieces / BLOCKS, block = chunk * BLOCKS + b;
        if (block >= a.n_split)
            continue;
        const struct split_block *from = a.split + (size_t)input_row(a, first + col) * a.n_split + block;
        const uint32_t at = b * cols + col;
        cp_async16(piece < 4 ? static_cast<void *>(to.high + 4 * at + piece)
                   : piece < 8 ? static_cast<void *>(to.low + 4 * at + piece - 4)
                               : static_cast<void *>(to.d + at),
                   reinterpret_cast<const uint4 *>(from) + piece);
    }
}

/* ---- up to 8 rows: a block of 8 warps has one panel (or two of gate and two of up); of every 8 blocks of K (2, with four
 * panels) a warp takes one, and other threads, one an output, add up behind it: gemv_int's way. ---- */

template <bool GATE> struct half_layout {
    static constexpr uint32_t units = GATE ? 4 : 1;              /* panels of a block */
    static constexpr uint32_t blocks = HALF_WARPS / units;       /* of K in a chunk */
    static constexpr uint32_t ahead = GATE ? 2 : 3;              /* chunks of weights in registers: its grid is three times as large */

    __host__ __device__ static constexpr uint32_t stage_bytes(uint32_t cols)
    {
        return blocks * cols * (uint32_t)sizeof(struct split_block);
    }
    __host__ __device__ static constexpr size_t bytes(uint32_t cols)
    {
        return HALF_STAGES * stage_bytes(cols) + 2 * HALF_WARPS * cols * SUM_STRIDE * sizeof(float);
    }
};

/* This warp's block times the columns: sums, scaled, to [cols][SUM_STRIDE]. */
template <int TYPE>
__device__ __forceinline__ void half_sums_out(const struct half_bits &w, const struct half_rows &x, uint32_t block, uint32_t cols,
                                              float *sum, uint32_t lane)
{
    const uint32_t g = lane / 4, j = lane % 4, mine = block * cols + (g < cols ? g : 0);
    float c[4];

    half_sums<TYPE>(c, w, x.high[4 * mine + j], x.low[4 * mine + j]);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t col = 2 * j + i;
        if (col < cols) {
            const float d = TYPE == TENSOR_F16 ? x.d[block * cols + col].x : 1.0f;
            sum[col * SUM_STRIDE + g] = c[i] * d;
            sum[col * SUM_STRIDE + g + 8] = c[i + 2] * d;
        }
    }
}

template <int TYPE, bool GATE> __device__ __forceinline__ void gemv_half(const struct product_args &a, uint32_t cols)
{
    typedef half_layout<GATE> layout;
    SHARED_BYTES(bytes);
    float *sums = reinterpret_cast<float *>(bytes + HALF_STAGES * layout::stage_bytes(cols)); /* [2][8 warps][cols][SUM_STRIDE] */
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, unit = warp / layout::blocks, in_chunk = warp % layout::blocks;
    uint32_t group = blockIdx.x;
    const uint32_t part = GATE ? 0 : find_part(a, 1, group);
    const struct product_part own = part_of(a, GATE ? unit / 2 : part);
    const uint32_t index = GATE ? 2 * group + unit % 2 : group, n_units = index < own.n_panels ? (a.n_k + 7) / 8 : 0;
    const uint8_t *panel = own.data + (index < own.n_panels ? index : 0) * own.panel_bytes;
    const uint32_t n_chunks = (a.n_split + layout::blocks - 1) / layout::blocks;
    struct half_bits ahead[layout::ahead];
    float acc[2] = { 0.0f, 0.0f };

#pragma unroll
    for (uint32_t i = 0; i < layout::ahead; i++)
        load_half(panel, i * layout::blocks + in_chunk, n_units, lane, ahead[i]);
    grid_wait();
    grid_launch();
    const uint32_t n_rows = *a.n_rows, first = blockIdx.y * cols;
    if (first >= n_rows)
        return;
    const uint32_t n = n_rows - first < cols ? n_rows - first : cols;

    for (uint32_t c = 0; c < HALF_STAGES - 1; c++) {
        if (c < n_chunks)
            stage_half<layout::blocks, TYPE>(a, half_rows(bytes + c * layout::stage_bytes(cols), layout::blocks, cols), c, first, n, cols);
        cp_async_commit();
    }
    for (uint32_t c = 0; c <= n_chunks; c++) {
        cp_async_wait<HALF_STAGES - 2>();
        __syncthreads();
        if (c + HALF_STAGES - 1 < n_chunks)
            stage_half<layout::blocks, TYPE>(a, half_rows(bytes + (c + HALF_STAGES - 1) % HALF_STAGES * layout::stage_bytes(cols),
                                                          layout::blocks, cols), c + HALF_STAGES - 1, first, n, cols);
        cp_async_commit();
        if (c < n_chunks) {
            const struct half_bits w = ahead[0];
#pragma unroll
            for (uint32_t i = 0; i + 1 < layout::ahead; i++)
                ahead[i] = ahead[i + 1];
            load_half(panel, (c + layout::ahead) * layout::blocks + in_chunk, n_units, lane, ahead[layout::ahead - 1]);
            if (c * layout::blocks + in_chunk < a.n_split)
                half_sums_out<TYPE>(w, half_rows(bytes + c % HALF_STAGES * layout::stage_bytes(cols), layout::blocks, cols), in_chunk,
                                    cols, sums + (c % 2 * HALF_WARPS + warp) * cols * SUM_STRIDE, lane);
        }
        for (uint32_t i = 0; i < 2 && c > 0; i++) {
            const uint32_t o = threadIdx.x + i * GEMV_THREADS, r = o % 16, col = o / 16 % cols, u = o / 16 / cols;
            const uint32_t left = a.n_split - (c - 1) * layout::blocks, blocks = left < layout::blocks ? left : layout::blocks;
            const float *from = sums + (((c - 1) % 2 * HALF_WARPS + u * layout::blocks) * cols + col) * SUM_STRIDE + r;
            for (uint32_t b = 0; b < blocks && u < layout::units && col < n; b++)
                acc[i] = acc[i] + from[b * cols * SUM_STRIDE];
        }
    }
    finish_gemv<GATE, layout::units>(a, own, sums, acc, group, first, n, cols);
}

/* ---- more rows: 4 warps, each PANELS panels (or one of gate and one of up) times 8 * TILES rows and all of K.  Rows and
 * weights come through shared memory, STAGES - 1 blocks of K ahead of use; a lane copies the weights that it is going to
 * read itself.  Few panels a warp where there are few rows: then it is bytes in flight that count, on many multiprocessors. ---- */

template <int PANELS, int TILES, int STAGES> struct half_tile {
    static constexpr uint32_t weights = GEMM_THREADS * PANELS * (uint32_t)sizeof(struct half_bits);
    static constexpr uint32_t rows = 8 * TILES * (uint32_t)sizeof(struct split_block);
    static constexpr size_t bytes = STAGES * (weights + rows);
};

template <int PANELS>
__device__ __forceinline__ void stage_weights(struct half_bits *to, const uint8_t *const (&panel)[PANELS], uint32_t block,
                                              uint32_t n_units, uint32_t lane)
{
    const uint32_t unit = 4 * block + lane % 4;

#pragma unroll
    for (int p = 0; p < PANELS; p++) {
        uint4 *mine = reinterpret_cast<uint4 *>(to + p * WARP) + lane; /* [row, row8][lane] */
        const uint4 *from = reinterpret_cast<const uint4 *>(panel[p] + (size_t)unit * 256) + lane / 4;
        if (unit < n_units) {
            cp_async16(mine, from);
            cp_async16(mine + WARP, from + 8);
        } else {
            mine[0] = mine[WARP] = uint4{};
        }
    }
}

template <int TYPE, int PANELS, int TILES, int STAGES, bool GATE>
__device__ __forceinline__ void gemm_half(const struct product_args &a)
{
    typedef half_tile<PANELS, TILES, STAGES> tile;
    constexpr uint32_t cols = 8 * TILES, per_group = 4 * PANELS;
    SHARED_BYTES(bytes);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, j = lane % 4;
    struct half_bits *weights = reinterpret_cast<struct half_bits *>(bytes) + warp * PANELS * WARP; /* [STAGES], tile::weights apart */
    uint8_t *rows = bytes + STAGES * tile::weights;
    uint32_t column, group = group_of(column), index[PANELS];
    const uint32_t part = GATE ? 0 : find_part(a, per_group, group), n_units = (a.n_k + 7) / 8;
    const uint8_t *panel[PANELS];
    float acc[PANELS][TILES][4] = {};

#pragma unroll
    for (int p = 0; p < PANELS; p++) { /* past the end: the first again, its results dropped */
        const struct product_part own = part_of(a, GATE ? (uint32_t)p : part);
        index[p] = GATE ? 4 * group + warp : per_group * group + PANELS * warp + p;
        panel[p] = own.data + (index[p] < own.n_panels ? index[p] : 0) * own.panel_bytes;
    }
    for (uint32_t b = 0; b < STAGES - 1 && b < a.n_split; b++)
        stage_weights(weights + b * (tile::weights / sizeof(struct half_bits)), panel, b, n_units, lane);
    grid_wait();
    grid_launch();
    const uint32_t n_rows = *a.n_rows, first = column * cols;
    if (first >= n_rows) { /* nobody leaves with copies under way */
        cp_async_commit();
        cp_async_wait<0>();
        return;
    }
    const uint32_t n = n_rows - first < cols ? n_rows - first : cols;

    for (uint32_t b = 0; b < STAGES - 1; b++) {
        if (b < a.n_split)
            stage_half<1, TYPE>(a, half_rows(rows + b * tile::rows, 1, cols), b, first, n, cols);
        cp_async_commit();
    }
    for (uint32_t b = 0; b < a.n_split; b++) {
        const uint32_t slot = b % STAGES, next = b + STAGES - 1;
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (next < a.n_split) {
            stage_weights(weights + next % STAGES * (tile::weights / sizeof(struct half_bits)), panel, next, n_units, lane);
            stage_half<1, TYPE>(a, half_rows(rows + next % STAGES * tile::rows, 1, cols), next, first, n, cols);
        }
        cp_async_commit();
        const struct half_rows x(rows + slot * tile::rows, 1, cols);
        struct half_bits w[PANELS];
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            const uint4 *mine = reinterpret_cast<const uint4 *>(weights + slot * (tile::weights / sizeof(struct half_bits)) + p * WARP) + lane;
            w[p] = half_bits{ mine[0], mine[WARP] };
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            if (8u * t >= n)
                break;
            const uint4 high = x.high[4 * (8 * t + g) + j], low = x.low[4 * (8 * t + g) + j];
            float d[2] = { 1.0f, 1.0f };
            if (TYPE == TENSOR_F16)
                d[0] = x.d[8 * t + 2 * j].x, d[1] = x.d[8 * t + 2 * j + 1].x;
#pragma unroll
            for (int p = 0; p < PANELS; p++) {
                float c[4];
                half_sums<TYPE>(c, w[p], high, low);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[p][t][i] = acc[p][t][i] + c[i] * d[i % 2];
            }
        }
    }
    cp_async_wait<0>();
    finish_tile<GATE, PANELS, TILES>(a, reinterpret_cast<float *>(bytes), acc, part_of(a, part), index, group, first, n, warp, lane);
    norm_tail(a.norm, a.counters + column, a.out_map, first, n);
}

#endif
