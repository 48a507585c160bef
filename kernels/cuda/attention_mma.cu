/* attention_mma.cu - attention of prompts on tensor cores, for the long chunks of fast prefill (attention.cu has the CPU's bits).
 *
 *     s[p] = q . K[p]     w[p] = exp(s[p] - m) for the largest score m so far     out = sum w[p] V[p] / sum w[p]
 *
 * A block has 64 query rows that share a kv head: the heads of its group, for neighbouring tokens; a warp 16 of them, the
 * rows of mma.m16n8k16.  Keys come in steps of 32 (heads of more than 128 dimensions: 16), at absolute multiples of that,
 * through two buffers: while one is computed, cp.async fills the other from wherever the blocks lie.  The sums of a step are
 * made on the tensor cores, from zero; then
 *
 *     o = o * exp(m before - m) + sums        in float, in ascending position
 *
 * A step of which a row sees nothing leaves the row as it was, and the rows of a mma do not know of each other.  So a row has
 * the same bits in any tile of any chunk.
 *
 * f16: K and V are factors as stored.  A query is the sum of two f16 (the nearest, and what that leaves) times one power of
 * two for all its dimensions; so is a weight.  int8: scores have the CPU's bits, since a block of 32 dimensions is an integer
 * dot (mma.m16n8k32) and its scales follow in float; for V a weight times the position's scale is written as two bf16, since
 * scales may have any size, and an int8 is exactly a bf16.
 *
 * A weight beyond what a row sees is zero, and so is V beyond what any row of the tile sees: memory there may hold NaN. */
#include "rows.cuh"
#include "status.cuh"

enum {
    MMA_ROWS = ATTEND_MMA_QUERIES,
    MMA_WARPS = MMA_ROWS / 16,
    MMA_THREADS = MMA_WARPS * WARP,
    OUT_STRIDE = 33
};

/* Shared memory of a block for heads of up to DIM dimensions. */
template <int DIM, bool Q8> struct mma_shape {
    static constexpr uint32_t keys = DIM > 128 ? 16 : 32;       /* of a step */
    static constexpr uint32_t chunks = DIM * (Q8 ? 1 : 2) / 16; /* 16-byte pieces of a position */
    static constexpr uint32_t groups = DIM / QUANT_BLOCK;
    static constexpr uint32_t query_bytes = Q8 ? MMA_ROWS * (DIM + 4 * groups) : MMA_ROWS * (4 * DIM + 4);
    static constexpr uint32_t scale_bytes = Q8 ? groups * keys * 2 : 0;
    static constexpr uint32_t stage_bytes = 2 * (keys * chunks * 16 + scale_bytes);
    static constexpr uint32_t bytes = query_bytes + 2 * stage_bytes;
    static_assert(2 * stage_bytes >= MMA_WARPS * 16 * OUT_STRIDE * sizeof(float),
                  "rows leave through the buffers");
};

/* What a block works on. */
struct mma_tile {
    uint32_t n, heads;        /* queries = tokens * heads */
    uint32_t lowest, highest; /* positions that some query sees: lowest .. highest-1 */
    const uint8_t *kv;        /* of this layer and head in block 0 */
    const uint32_t *table;
};

/* Where 16-byte pieces lie so that a warp's loads meet no bank twice: piece c of row r of queries or of K (f16) among rows rows,
 * and of position p of V. */
__device__ __forceinline__ uint32_t row_place(uint32_t c, uint32_t r, uint32_t rows)
{
    return c * rows + (r ^ 2 * (c & 3));
}
template <uint32_t CHUNKS> __device__ __forceinline__ uint32_t value_place(uint32_t p, uint32_t c)
{
    return p * CHUNKS + (c ^ (CHUNKS >= 8 ? p & 7 : p / 2 & 3));
}

/* ------------------------------------------------------------------ shared memory */

/* Two numbers as two f16 or bf16 each, what is left in ret_low. */
template <bool BRAIN> __device__ __forceinline__ uint32_t split_pair(float a, float b, uint32_t &ret_low)
{
    if (BRAIN) {
        const uint32_t high = brains_of(a, b);
        ret_low = brains_of(a - bf16_to_float((uint16_t)high), b - bf16_to_float((uint16_t)(high >> 16)));
        return high;
    }
    const uint32_t high = halves_of(a, b);
    ret_low = halves_of(a - half_to_float((uint16_t)high), b - half_to_float((uint16_t)(high >> 16)));
    return high;
}

/* A warp writes its rows: [high, low][chunk][row] and the powers of two; or int8 codes [chunk][row] and scales [group][row]. */
template <int DIM, bool Q8>
__device__ __forceinline__ void load_queries(const struct attention_args &a, const struct step_item &item,
                                             const struct mma_tile &t, uint32_t head, uint8_t *to,
                                             uint32_t warp, uint32_t lane)
{
    typedef mma_shape<DIM, Q8> shape;
    const uint32_t dim = a.pool.head_dim;
    float *scales = reinterpret_cast<float *>(to + shape::query_bytes) - MMA_ROWS * (Q8 ? shape::groups : 1u);

    for (uint32_t i = 16 * warp; i < 16 * warp + 16; i++) {
        const float *q = a.q + ((size_t)(item.row + i / t.heads) * a.n_heads + head + i % t.heads) * dim;
        float v[shape::groups];
        uint32_t largest = 0;
#pragma unroll
        for (uint32_t g = 0; g < shape::groups; g++) {
            v[g] = i < t.n && g * WARP < dim ? q[g * WARP + lane] : 0.0f;
            const uint32_t bits = __float_as_uint(v[g]) & 0x7fffffff;
            largest = bits > largest ? bits : largest;
            if (Q8) {
                const float most = __uint_as_float(__reduce_max_sync(ALL_LANES, bits));
                to[((2 * g + lane / 16) * MMA_ROWS + i) * 16 + lane % 16] =
                    (uint8_t)to_code(v[g] * (most > 1e-30f ? 127.0f / most : 0.0f));
                if (lane == 0)
                    scales[g * MMA_ROWS + i] = most / 127.0f;
            }
        }
        if (Q8)
            continue;
        const uint32_t exponent = __reduce_max_sync(ALL_LANES, largest) >> 23,
                       e = exponent < 15 ? 15 : exponent;
#pragma unroll
        for (uint32_t g = 0; g < shape::groups; g++) {
            const float scaled =
                v[g] * __uint_as_float((268 - e) << 23); /* the largest comes to 2^14 .. 2^15 */
            const uint16_t high = float_to_half(scaled);
            uint16_t *at =
                reinterpret_cast<uint16_t *>(to) + row_place(4 * g + lane / 8, i, MMA_ROWS) * 8 + lane % 8;
            at[0] = high;
            at[MMA_ROWS * DIM] = float_to_half(scaled - half_to_float(high));
        }
        if (lane == 0)
            scales[i] = __uint_as_float((e - 14) << 23);
    }
}

/* K and V of a step's positions from `first` on; int8 with their scales [16 positions' block][group][16] behind both. */
template <int DIM, bool Q8>
__device__ __forceinline__ void stage_keys(const struct attention_args &a, const struct mma_tile &t,
                                           uint8_t *to, uint32_t first)
{
    typedef mma_shape<DIM, Q8> shape;
    const uint32_t pieces = a.pool.head_dim * (Q8 ? 1 : 2) / 16;
    uint4 *k = reinterpret_cast<uint4 *>(to), *v = k + shape::keys * shape::chunks,
          *scales = v + shape::keys * shape::chunks;

#pragma unroll
    for (uint32_t b = 0; b < shape::keys / 16; b++) {
        const uint32_t at = first + 16 * b;
        const bool seen = at + 16 > t.lowest && at < t.highest;
        const uint8_t *block = t.kv + (seen ? (size_t)t.table[at / BLOCK_TOKENS] * a.pool.block_bytes : 0);
        for (uint32_t i = threadIdx.x; i < 16 * pieces; i += MMA_THREADS) {
            const uint32_t p = i / pieces, c = i % pieces;
            uint4 *value = v + value_place<shape::chunks>(16 * b + p, c);
            if (seen)
                cp_async16(k + 16 * b * shape::chunks + (Q8 ? i : row_place(i / 16, i % 16, 16)),
                           block + 16 * i);
            if (at + p >= t.lowest && at + p < t.highest)
                cp_async16(value, block + a.pool.v + 16 * i);
            else if (!Q8)
                *value = uint4{};
        }
        if (Q8 && seen && threadIdx.x < 4 * (a.pool.head_dim / QUANT_BLOCK)) {
            const uint32_t of_v = threadIdx.x % 2, i = threadIdx.x / 2;
            cp_async16(scales + (of_v * (shape::keys / 16) + b) * 2 * shape::groups + i,
                       block + (of_v ? a.pool.v_scales : a.pool.k_scales) + 16 * i);
        }
    }
}

/* ------------------------------------------------------------------ scores */

/* Rows g and g+8 of a warp by 8 positions: columns 2j and 2j+1 of each row. */
typedef float mma_sums[4];

/* One first factor by several second ones: sums that do not wait for each other. */
template <bool BRAIN, uint32_t TILES>
__device__ __forceinline__ void mma_each(mma_sums *c, const uint32_t (&a)[4], const uint32_t (&b)[TILES][2])
{
#pragma unroll
    for (uint32_t n = 0; n < TILES; n++)
        if (BRAIN)
            mma_bf16(c[n], a, b[n]);
        else
            mma_f16(c[n], a, b[n]);
}

template <int DIM>
__device__ __forceinline__ void scores_f16(mma_sums *s, const uint8_t *queries, const uint8_t *stage,
                                           uint32_t dim, uint32_t row, uint32_t lane)
{
    typedef mma_shape<DIM, false> shape;
    const uint4 *high = reinterpret_cast<const uint4 *>(queries), *low = high + MMA_ROWS * DIM / 8;
    const uint4 *k = reinterpret_cast<const uint4 *>(stage);
    const float *scales = reinterpret_cast<const float *>(queries + shape::query_bytes) - MMA_ROWS;
    const uint32_t g = lane / 4, j = lane % 4;

#pragma unroll
    for (uint32_t n = 0; n < shape::keys / 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (uint32_t b = 0; b < DIM / 32; b++) {
        if (32 * b >= dim)
            break;
        const uint32_t mine = row_place(4 * b + j, row, MMA_ROWS);
        const uint4 h = high[mine], h8 = high[mine + 8], l = low[mine], l8 = low[mine + 8];
        const uint32_t h0[4] = {h.x, h8.x, h.y, h8.y}, h1[4] = {h.z, h8.z, h.w, h8.w};
        const uint32_t l0[4] = {l.x, l8.x, l.y, l8.y}, l1[4] = {l.z, l8.z, l.w, l8.w};
        uint32_t k0[shape::keys / 8][2], k1[shape::keys / 8][2];
#pragma unroll
        for (uint32_t n = 0; n < shape::keys / 8; n++) {
            const uint4 bits = k[n / 2 * 16 * shape::chunks + row_place(4 * b + j, n % 2 * 8 + g, 16)];
            k0[n][0] = bits.x, k0[n][1] = bits.y, k1[n][0] = bits.z, k1[n][1] = bits.w;
        }
        mma_each<false>(s, l0, k0);
        mma_each<false>(s, l1, k1);
        mma_each<false>(s, h0, k0);
        mma_each<false>(s, h1, k1);
    }
#pragma unroll
    for (uint32_t n = 0; n < shape::keys / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            s[n][i] = s[n][i] * scales[row + i / 2 * 8];
}

/* The CPU's operations: an exact dot of 32 dimensions, then one fma in float. */
template <int DIM>
__device__ __forceinline__ void scores_q8(mma_sums *s, const uint8_t *queries, const uint8_t *stage,
                                          uint32_t dim, uint32_t row, uint32_t lane)
{
    typedef mma_shape<DIM, true> shape;
    enum { MAGIC = 0x4b400000 }; /* 1.5 * 2^23 as float: an integer of 22 bits more is that number more */
    const uint32_t *q = reinterpret_cast<const uint32_t *>(queries),
                   *k = reinterpret_cast<const uint32_t *>(stage);
    const float *q_scales =
        reinterpret_cast<const float *>(queries + shape::query_bytes) - MMA_ROWS * shape::groups;
    const uint32_t *k_scales =
        reinterpret_cast<const uint32_t *>(stage + 2 * shape::keys * shape::chunks * 16);
    const uint32_t g = lane / 4, j = lane % 4;

#pragma unroll
    for (uint32_t n = 0; n < shape::keys / 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (uint32_t b = 0; b < shape::groups; b++) {
        if (32 * b >= dim)
            break;
        const uint32_t mine = (2 * b * MMA_ROWS + row) * 4 + j, next = 4 * MMA_ROWS;
        const uint32_t codes[4] = {q[mine], q[mine + 32], q[mine + next], q[mine + next + 32]};
        const float d[2] = {q_scales[b * MMA_ROWS + row], q_scales[b * MMA_ROWS + row + 8]};
#pragma unroll
        for (uint32_t n = 0; n < shape::keys / 8; n++) {
            const uint32_t at = n / 2 * 64 * shape::chunks + (2 * b * 16 + n % 2 * 8 + g) * 4 + j;
            const uint32_t kc[2] = {k[at], k[at + 64]};
            const uint32_t pair = k_scales[(n / 2 * shape::groups + b) * 8 + n % 2 * 4 + j];
            const float kd[2] = {half_to_float((uint16_t)pair), half_to_float((uint16_t)(pair >> 16))};
            int dot[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
            mma_s8s8(dot, codes, kc);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                s[n][i] = fmaf(__int_as_float(dot[i]) - 12582912.0f, kd[i % 2] * d[i / 2], s[n][i]);
        }
    }
}

/* What a lane knows of rows g and g+8: positions lo .. hi-1 are seen; the largest score and the sum of this lane's weights. */
struct mma_rows {
    uint32_t lo[2], hi[2];
    float m[2], l[2], keep[2]; /* keep: what the step makes of what was there */
};

/* Scores of positions `first` on become weights times 2^15: two f16 then hold them to 2^-40. */
template <uint32_t TILES>
__device__ __forceinline__ void weights_of(mma_sums *s, struct mma_rows &r, uint32_t first, uint32_t lane)
{
    float most[2] = {r.m[0], r.m[1]}, sum[2] = {0.0f, 0.0f};

#pragma unroll
    for (uint32_t n = 0; n < TILES; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t position = first + 8 * n + lane % 4 * 2 + i % 2;
            if (position >= r.lo[i / 2] && position < r.hi[i / 2])
                most[i / 2] = larger(s[n][i], most[i / 2]);
            else
                s[n][i] = -INFINITY;
        }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        most[i] = larger(__shfl_xor_sync(ALL_LANES, most[i], 1), most[i]);
        most[i] = larger(__shfl_xor_sync(ALL_LANES, most[i], 2), most[i]);
        r.keep[i] = exp_f32(r.m[i] - most[i]);
        r.m[i] = most[i];
    }
#pragma unroll
    for (uint32_t n = 0; n < TILES; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            s[n][i] = s[n][i] > -INFINITY ? exp_f32(s[n][i] - most[i / 2]) * 32768.0f : 0.0f;
            sum[i / 2] = sum[i / 2] + s[n][i];
        }
    r.l[0] = fmaf(r.l[0], r.keep[0], sum[0]);
    r.l[1] = fmaf(r.l[1], r.keep[1], sum[1]);
}

/* ------------------------------------------------------------------ values */

/* Weights of 16 positions as the first factor: high and low. */
struct mma_weights {
    uint32_t high[4], low[4];
};

template <bool BRAIN>
__device__ __forceinline__ struct mma_weights weights_pair(const mma_sums &a, const mma_sums &b)
{
    struct mma_weights w;

    w.high[0] = split_pair<BRAIN>(a[0], a[1], w.low[0]);
    w.high[1] = split_pair<BRAIN>(a[2], a[3], w.low[1]);
    w.high[2] = split_pair<BRAIN>(b[0], b[1], w.low[2]);
    w.high[3] = split_pair<BRAIN>(b[2], b[3], w.low[3]);
    return w;
}

/* o * keep + c of 32 dimensions. */
__device__ __forceinline__ void add_sums(mma_sums *o, const mma_sums (&c)[4], const float (&keep)[2])
{
#pragma unroll
    for (uint32_t n = 0; n < 4; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            o[n][i] = fmaf(o[n][i], keep[i / 2], c[n][i]);
}

/* o[n]: dimensions 8n on, column c being 8n + c. */
template <int DIM>
__device__ __forceinline__ void values_f16(mma_sums *o, const mma_sums *s, const struct mma_rows &r,
                                           const uint8_t *stage, uint32_t dim, uint32_t lane)
{
    typedef mma_shape<DIM, false> shape;
    const uint4 *v = reinterpret_cast<const uint4 *>(stage) + shape::keys * shape::chunks;
    struct mma_weights w[shape::keys / 16];

#pragma unroll
    for (uint32_t b = 0; b < shape::keys / 16; b++)
        w[b] = weights_pair<false>(s[2 * b], s[2 * b + 1]);
#pragma unroll
    for (uint32_t n = 0; n < DIM / 8; n += 4) {
        if (8 * n >= dim)
            break;
        mma_sums c[4] = {};
#pragma unroll
        for (uint32_t b = 0; b < shape::keys / 16; b++) {
            uint32_t x[4], y[4];
            load_transposed(x, v + value_place<shape::chunks>(16 * b + lane % 16, n + lane / 16));
            load_transposed(y, v + value_place<shape::chunks>(16 * b + lane % 16, n + 2 + lane / 16));
            const uint32_t pairs[4][2] = {{x[0], x[1]}, {x[2], x[3]}, {y[0], y[1]}, {y[2], y[3]}};
            mma_each<false>(c, w[b].low, pairs);
            mma_each<false>(c, w[b].high, pairs);
        }
        add_sums(o + n, c, r.keep);
    }
}

/* Weights times the scales of V of one group of dimensions; a weight of zero stays zero, whatever the scale. */
__device__ __forceinline__ void scale_weights(mma_sums &out, const mma_sums &s, uint32_t pair)
{
    const float d[2] = {half_to_float((uint16_t)pair), half_to_float((uint16_t)(pair >> 16))};

#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        out[i] = s[i] > 0.0f ? s[i] * d[i % 2] : 0.0f;
}

/* o[2n], o[2n+1]: dimensions 16n on, the even and the odd ones: two int8 are one element of what load_transposed() turns. */
template <int DIM>
__device__ __forceinline__ void values_q8(mma_sums *o, const mma_sums *s, const struct mma_rows &r,
                                          const uint8_t *stage, uint32_t dim, uint32_t lane)
{
    typedef mma_shape<DIM, true> shape;
    const uint4 *v = reinterpret_cast<const uint4 *>(stage) + shape::keys * shape::chunks;
    const uint32_t *scales =
        reinterpret_cast<const uint32_t *>(v + shape::keys * shape::chunks) + shape::scale_bytes / 4;

#pragma unroll
    for (uint32_t g = 0; g < shape::groups; g++) {
        if (QUANT_BLOCK * g >= dim)
            break;
        mma_sums c[4] = {};
#pragma unroll
        for (uint32_t b = 0; b < shape::keys / 16; b++) {
            const uint32_t *d = scales + (b * shape::groups + g) * 8 + lane % 4;
            mma_sums scaled[2];
            uint32_t x[4];
            scale_weights(scaled[0], s[2 * b], d[0]);
            scale_weights(scaled[1], s[2 * b + 1], d[4]);
            const struct mma_weights w = weights_pair<true>(scaled[0], scaled[1]);
            load_transposed(x, v + value_place<shape::chunks>(16 * b + lane % 16, 2 * g + lane / 16));
            const uint32_t pairs[4][2] = {{brains_of_codes(x[0]), brains_of_codes(x[1])},
                                          {brains_of_codes(x[0] >> 8), brains_of_codes(x[1] >> 8)},
                                          {brains_of_codes(x[2]), brains_of_codes(x[3])},
                                          {brains_of_codes(x[2] >> 8), brains_of_codes(x[3] >> 8)}};
            mma_each<true>(c, w.low, pairs);
            mma_each<true>(c, w.high, pairs);
        }
        add_sums(o + 4 * g, c, r.keep);
    }
}

/* ------------------------------------------------------------------ the block */

/* 32 dimensions of a warp's rows at a time go through shared memory, so that a lane has one of them: put_input()'s way. */
template <int DIM, bool Q8>
__device__ __forceinline__ void put_rows(const struct attention_args &a, const struct step_item &item,
                                         const struct mma_tile &t, uint32_t head, const mma_sums *o,
                                         const float (&l)[2], float *buffer, uint32_t warp, uint32_t lane)
{
    const uint32_t dim = a.pool.head_dim, g = lane / 4, j = lane % 4;

#pragma unroll
    for (uint32_t b = 0; b < DIM / WARP; b++) {
        if (WARP * b >= dim)
            break;
#pragma unroll
        for (uint32_t n = 0; n < 4; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t column = 2 * j + i % 2,
                               d = Q8 ? n / 2 * 16 + 2 * column + n % 2 : 8 * n + column;
                buffer[(g + i / 2 * 8) * OUT_STRIDE + d] = o[4 * b + n][i] / l[i / 2];
            }
        __syncwarp();
        for (uint32_t i = 0; i < 16 && 16 * warp + i < t.n; i++) {
            const uint32_t query = 16 * warp + i;
            put_input(a.out, item.row + query / t.heads, (head + query % t.heads) * (dim / WARP) + b,
                      buffer[i * OUT_STRIDE + lane], true, lane);
        }
        __syncwarp();
    }
}

template <int DIM, bool Q8> __device__ __forceinline__ void attend_mma(const struct attention_args &a)
{
    typedef mma_shape<DIM, Q8> shape;
    SHARED_BYTES(bytes);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = a.n_heads / a.n_kv_heads;
    const uint32_t kv_head = blockIdx.y / a.head_sets,
                   first_head = blockIdx.y % a.head_sets * a.heads_per_tile;
    const uint32_t head = kv_head * group + first_head, dim = a.pool.head_dim, row = 16 * warp + lane / 4;
    uint8_t *stages = bytes + shape::query_bytes;
    struct mma_rows r = {};
    struct mma_tile t;
    mma_sums o[DIM / 8] = {};

    grid_wait();
    grid_launch();
    if (blockIdx.x >= a.step.header->n_items_mma)
        return;
    const struct step_item item = a.step.items[a.step.header->n_items + blockIdx.x];
    t.heads = group - first_head < a.heads_per_tile ? group - first_head : a.heads_per_tile;
    t.n = item.n_tokens * t.heads;
    t.highest = item.position + item.n_tokens;
    t.lowest = a.window > 0 && item.position + 1 > a.window ? item.position + 1 - a.window : 0;
    t.kv = a.pool.at + a.layer * a.pool.layer_bytes + kv_head * a.pool.head_bytes;
    t.table = a.step.tables + item.table;
    for (uint32_t i = 0; i < 2; i++) {
        r.m[i] = -INFINITY;
        r.hi[i] = row + 8 * i < t.n ? item.position + (row + 8 * i) / t.heads + 1 : 0;
        r.lo[i] = a.window > 0 && r.hi[i] > a.window ? r.hi[i] - a.window : 0;
    }
    /* what the warp's first row sees begins first, what its last sees ends last */
    const uint32_t last_row = 16 * warp + 15 < t.n ? 16 * warp + 15 : t.n - 1;
    const uint32_t warp_lo = __shfl_sync(ALL_LANES, r.lo[0], 0),
                   warp_hi = 16 * warp < t.n ? item.position + last_row / t.heads + 1 : 0;

    const uint32_t first = t.lowest / shape::keys;
    stage_keys<DIM, Q8>(a, t, stages + first % 2 * shape::stage_bytes, first * shape::keys);
    load_queries<DIM, Q8>(a, item, t, head, bytes, warp, lane);
    for (uint32_t step = first; step * shape::keys < t.highest; step++) {
        const uint32_t at = step * shape::keys;
        const uint8_t *stage = stages + step % 2 * shape::stage_bytes;
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads(); /* this step has come, and nobody reads the one before it any more */
        if (at + shape::keys < t.highest)
            stage_keys<DIM, Q8>(a, t, stages + (step + 1) % 2 * shape::stage_bytes, at + shape::keys);
        if (at >= warp_hi || at + shape::keys <= warp_lo)
            continue;
        mma_sums s[shape::keys / 8];
        if (Q8)
            scores_q8<DIM>(s, bytes, stage, dim, row, lane);
        else
            scores_f16<DIM>(s, bytes, stage, dim, row, lane);
        weights_of<shape::keys / 8>(s, r, at, lane);
        if (Q8)
            values_q8<DIM>(o, s, r, stage, dim, lane);
        else
            values_f16<DIM>(o, s, r, stage, dim, lane);
    }
    for (uint32_t i = 0; i < 2; i++) {
        r.l[i] = r.l[i] + __shfl_xor_sync(ALL_LANES, r.l[i], 1);
        r.l[i] = r.l[i] + __shfl_xor_sync(ALL_LANES, r.l[i], 2);
    }
    __syncthreads(); /* the buffers are free */
    put_rows<DIM, Q8>(a, item, t, head, o, r.l, reinterpret_cast<float *>(stages) + warp * 16 * OUT_STRIDE,
                      warp, lane);
}

#define ATTEND_KERNEL(name, dim, q8, blocks)                  \
    __global__ void __launch_bounds__(MMA_THREADS, blocks)    \
        name(const __grid_constant__ struct attention_args a) \
    {                                                         \
        attend_mma<dim, q8>(a);                               \
    }
ATTEND_KERNEL(attend_mma_64_f16, 64, false, 4)
ATTEND_KERNEL(attend_mma_64_q8, 64, true, 4)
ATTEND_KERNEL(attend_mma_128_f16, 128, false, 3)
ATTEND_KERNEL(attend_mma_128_q8, 128, true, 3)
ATTEND_KERNEL(attend_mma_256_f16, 256, false, 2)
ATTEND_KERNEL(attend_mma_256_q8, 256, true, 2)

template <int DIM, bool Q8>
static enum status launch_dim(void (*kernel)(struct attention_args), const struct attention_args *a,
                              uint32_t items_max, device_stream s)
{
    return status_of(LAUNCH(kernel, dim3(items_max, a->n_kv_heads * a->head_sets), dim3(MMA_THREADS),
                            mma_shape<DIM, Q8>::bytes, reinterpret_cast<cudaStream_t>(s), *a));
}

enum status launch_attention_mma(const struct attention_args *a, uint32_t items_max, device_stream s)
{
    const uint32_t dim = a->pool.head_dim;

    if (a->pool.type == KV_Q8)
        return dim <= 64    ? launch_dim<64, true>(attend_mma_64_q8, a, items_max, s)
               : dim <= 128 ? launch_dim<128, true>(attend_mma_128_q8, a, items_max, s)
                            : launch_dim<256, true>(attend_mma_256_q8, a, items_max, s);
    return dim <= 64    ? launch_dim<64, false>(attend_mma_64_f16, a, items_max, s)
           : dim <= 128 ? launch_dim<128, false>(attend_mma_128_f16, a, items_max, s)
                        : launch_dim<256, false>(attend_mma_256_f16, a, items_max, s);
}
