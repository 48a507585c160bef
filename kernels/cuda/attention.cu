/* attention.cu - attention of a tile of queries over paged blocks: kernels/cpu/attention_body.h on the device.
 *
 *     s[p] = q . K[p]     m = max s     w[p] = exp(s[p] - m)     out = sum w[p] V[p] / sum w[p]
 *
 * A tile is up to 16 query rows that share a kv head: the heads of its group, for one token (decode) or a few neighbours
 * (prompts), so K and V are loaded once for all of them.  Positions are cut at absolute multiples of 256, one for each
 * thread of a block: first a thread has a position (scores), then a warp a query (maximum, weights, sum), then a thread two
 * dimensions (weighted sum of V, positions ascending).  A position that a query does not see is never multiplied.
 *
 * Splits are merged in ascending order.  One block goes through all splits of a prompt's tile; a decode tile has a block for
 * each split, and the one that ends last merges: the same operations in the same order. */
#include "rows.cuh"
#include "status.cuh"

enum { ATTEND_THREADS = SPLIT, VALUE_QUERIES_DEVICE = 4 };

/* What a block works with; all in shared memory but the sizes. */
struct query_tile {
    uint32_t n, heads, dim;      /* queries = tokens * heads */
    const uint8_t *kv;           /* of this layer and head in block 0 */
    const uint32_t *table;
    float *q;                    /* [n][D] */
    int8_t *q8;                  /* [n][D], q8d [n][D / 32]: instead of q where KV is int8 */
    float *q8d;
    float *s;                    /* [n][SPLIT] */
    float *o;                    /* [n][D]: splits so far */
    float *m, *l, *part_m, *part_l; /* [n] */
};

/* Positions lo .. hi-1 are what query i sees. */
__device__ __forceinline__ uint32_t query_hi(const struct step_item &item, const struct query_tile &t, uint32_t i)
{
    return item.position + i / t.heads + 1;
}
__device__ __forceinline__ uint32_t query_lo(uint32_t hi, uint32_t window)
{
    return window > 0 && hi > window ? hi - window : 0;
}

/* Where query i stands in split `base`: offsets from .. to-1, none when equal. */
__device__ __forceinline__ void query_range(const struct step_item &item, const struct query_tile &t, uint32_t window, uint32_t i,
                                            uint32_t base, uint32_t &from, uint32_t &to)
{
    const uint32_t hi = query_hi(item, t, i), lo = query_lo(hi, window);

    from = lo > base ? lo - base : 0;
    to = hi > base ? (hi - base < SPLIT ? hi - base : (uint32_t)SPLIT) : 0;
    if (from >= to)
        from = to = 0;
}

__device__ __forceinline__ const uint8_t *kv_block(const struct attention_args &a, const struct query_tile &t, uint32_t position)
{
    return t.kv + (size_t)t.table[position / BLOCK_TOKENS] * a.pool.block_bytes;
}

/* ------------------------------------------------------------------ scores */

template <int NQ>
__device__ __forceinline__ void scores_f16(const struct attention_args &a, const struct query_tile &t, uint32_t position)
{
    const uint4 *k = reinterpret_cast<const uint4 *>(kv_block(a, t, position)) + position % BLOCK_TOKENS;
    float acc[NQ] = {};

    for (uint32_t d = 0; d < t.dim; d += 8, k += 16) {
        const uint4 bits = *k;
        const uint32_t words[4] = { bits.x, bits.y, bits.z, bits.w };
        float kd[8];
        for (int e = 0; e < 8; e++)
            kd[e] = half_to_float((uint16_t)(words[e / 2] >> 16 * (e % 2)));
#pragma unroll
        for (uint32_t i = 0; i < NQ; i++) {
            if (i >= t.n)
                break;
            const float4 *q = reinterpret_cast<const float4 *>(t.q + i * t.dim + d);
            const float4 q0 = q[0], q1 = q[1];
            float v = acc[i];
            v = fmaf(kd[0], q0.x, v);
            v = fmaf(kd[1], q0.y, v);
            v = fmaf(kd[2], q0.z, v);
            v = fmaf(kd[3], q0.w, v);
            v = fmaf(kd[4], q1.x, v);
            v = fmaf(kd[5], q1.y, v);
            v = fmaf(kd[6], q1.z, v);
            acc[i] = fmaf(kd[7], q1.w, v);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < NQ; i++)
        if (i < t.n)
            t.s[i * SPLIT + position % SPLIT] = acc[i];
}

template <int NQ>
__device__ __forceinline__ void scores_q8(const struct attention_args &a, const struct query_tile &t, uint32_t position)
{
    const uint8_t *block = kv_block(a, t, position);
    const uint4 *k = reinterpret_cast<const uint4 *>(block) + position % BLOCK_TOKENS;
    const uint16_t *scales = reinterpret_cast<const uint16_t *>(block + a.pool.k_scales) + position % BLOCK_TOKENS;
    const uint32_t n_groups = t.dim / QUANT_BLOCK;
    float acc[NQ] = {};

    for (uint32_t g = 0; g < n_groups; g++, k += 32) {
        const uint4 k0 = k[0], k1 = k[16];
        const float scale = half_to_float(scales[g * 16]);
#pragma unroll
        for (uint32_t i = 0; i < NQ; i++) {
            if (i >= t.n)
                break;
            const int4 *q = reinterpret_cast<const int4 *>(t.q8 + i * t.dim + g * QUANT_BLOCK);
            const int4 q0 = q[0], q1 = q[1];
            int dot = __dp4a((int)k0.x, q0.x, 0);
            dot = __dp4a((int)k0.y, q0.y, dot);
            dot = __dp4a((int)k0.z, q0.z, dot);
            dot = __dp4a((int)k0.w, q0.w, dot);
            dot = __dp4a((int)k1.x, q1.x, dot);
            dot = __dp4a((int)k1.y, q1.y, dot);
            dot = __dp4a((int)k1.z, q1.z, dot);
            dot = __dp4a((int)k1.w, q1.w, dot);
            acc[i] = fmaf((float)dot, scale * t.q8d[i * n_groups + g], acc[i]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < NQ; i++)
        if (i < t.n)
            t.s[i * SPLIT + position % SPLIT] = acc[i];
}

/* Scores of one query become weights, by one warp. */
__device__ __forceinline__ void weights_of(float *s, uint32_t from, uint32_t to, float *ret_m, float *ret_l, uint32_t lane)
{
    float m = -INFINITY, sum = 0.0f;

    for (uint32_t p = from + lane; p < to; p += WARP)
        m = larger(s[p], m);
    for (int x = 16; x > 0; x /= 2)
        m = larger(__shfl_xor_sync(ALL_LANES, m, x), m);
    for (uint32_t p = from + lane; p < to; p += WARP)
        s[p] = exp_f32(s[p] - m);
    __syncwarp();
    for (uint32_t p = (from & ~15u) + lane; lane < 16 && p < to; p += 16)
        if (p >= from)
            sum = sum + s[p];
    sum = sum_16(sum);
    if (lane == 0) {
        *ret_m = m;
        *ret_l = sum;
    }
}

/* ------------------------------------------------------------------ values */

/* Factors of what was there and of what comes in. */
__device__ __forceinline__ void merge_factors(float m, float part_m, float &a, float &b, float &ret_m)
{
    const float most = part_m > m ? part_m : m;

    a = exp_f32(m - most);
    b = exp_f32(part_m - most);
    ret_m = most;
}

/* Dimensions d, d+1 of up to 4 queries first, first + step, ..: sum over the split, merged into t.o. */
template <bool Q8>
__device__ __forceinline__ void values_of(const struct attention_args &a, const struct step_item &item, const struct query_tile &t,
                                          uint32_t base, uint32_t d, uint32_t first, uint32_t step)
{
    uint32_t from[VALUE_QUERIES_DEVICE], to[VALUE_QUERIES_DEVICE], low = SPLIT, high = 0;
    float acc[VALUE_QUERIES_DEVICE][2] = {};

#pragma unroll
    for (uint32_t i = 0; i < VALUE_QUERIES_DEVICE; i++) {
        from[i] = to[i] = 0;
        if (first + i * step < t.n)
            query_range(item, t, a.window, first + i * step, base, from[i], to[i]);
        if (from[i] < to[i]) {
            low = from[i] < low ? from[i] : low;
            high = to[i] > high ? to[i] : high;
        }
    }
    for (uint32_t p = low; p < high;) {
        const uint8_t *block = kv_block(a, t, base + p) + a.pool.v;
        const uint32_t end = (p & ~15u) + 16 < high ? (p & ~15u) + 16 : high;
#pragma unroll 4
        for (; p < end; p++) {
            float v0, v1, scale = 1.0f;
            if (Q8) {
                const uint16_t pair = *reinterpret_cast<const uint16_t *>(block + p % 16 * t.dim + d);
                v0 = (float)(int8_t)pair;
                v1 = (float)(int8_t)(pair >> 8);
                scale = half_to_float(*reinterpret_cast<const uint16_t *>(block - a.pool.v + a.pool.v_scales +
                                                                          (d / QUANT_BLOCK * 16 + p % 16) * 2));
            } else {
                const uint32_t pair = *reinterpret_cast<const uint32_t *>(block + (p % 16 * t.dim + d) * 2);
                v0 = half_to_float((uint16_t)pair);
                v1 = half_to_float((uint16_t)(pair >> 16));
            }
#pragma unroll
            for (uint32_t i = 0; i < VALUE_QUERIES_DEVICE; i++) {
                if (p < from[i] || p >= to[i])
                    continue;
                float w = t.s[(first + i * step) * SPLIT + p];
                if (Q8)
                    w = w * scale;
                acc[i][0] = fmaf(v0, w, acc[i][0]);
                acc[i][1] = fmaf(v1, w, acc[i][1]);
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < VALUE_QUERIES_DEVICE; i++) {
        if (from[i] >= to[i])
            continue;
        const uint32_t query = first + i * step;
        float *o = t.o + query * t.dim + d;
        if (t.l[query] == 0.0f) {
            o[0] = acc[i][0], o[1] = acc[i][1];
        } else {
            float keep, add, m;
            merge_factors(t.m[query], t.part_m[query], keep, add, m);
            o[0] = fmaf(o[0], keep, acc[i][0] * add);
            o[1] = fmaf(o[1], keep, acc[i][1] * add);
        }
    }
}

/* ------------------------------------------------------------------ the block */

template <bool Q8>
__device__ __forceinline__ void load_queries(const struct attention_args &a, const struct step_item &item, const struct query_tile &t,
                                             uint32_t head)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, per_query = t.dim / QUANT_BLOCK;

    for (uint32_t i = warp; i < t.n * per_query; i += ATTEND_THREADS / WARP) {
        const uint32_t query = i / per_query, d = i % per_query * QUANT_BLOCK + lane;
        const float v = a.q[((size_t)(item.row + query / t.heads) * a.n_heads + head + query % t.heads) * t.dim + d];
        if (Q8) {
            const float largest = __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(v) & 0x7fffffff));
            t.q8[query * t.dim + d] = (int8_t)to_code(v * (largest > 1e-30f ? 127.0f / largest : 0.0f));
            if (lane == 0)
                t.q8d[i] = largest / 127.0f;
        } else {
            t.q[query * t.dim + d] = v;
        }
    }
    if (threadIdx.x < t.n)
        t.l[threadIdx.x] = 0.0f;
}

/* One split of all queries, merged into t.o, t.m, t.l. */
template <int NQ, bool Q8>
__device__ __forceinline__ void one_split(const struct attention_args &a, const struct step_item &item, const struct query_tile &t,
                                          uint32_t split)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, base = split * SPLIT, position = base + threadIdx.x;
    const uint32_t lowest = query_lo(query_hi(item, t, 0), a.window) & ~15u, highest = query_hi(item, t, t.n - 1);

    if (position >= lowest && position < highest) {
        if (Q8)
            scores_q8<NQ>(a, t, position);
        else
            scores_f16<NQ>(a, t, position);
    }
    __syncthreads();
    for (uint32_t i = warp; i < t.n; i += ATTEND_THREADS / WARP) {
        uint32_t from, to;
        query_range(item, t, a.window, i, base, from, to);
        if (from < to)
            weights_of(t.s + i * SPLIT, from, to, t.part_m + i, t.part_l + i, lane);
    }
    __syncthreads();
    const uint32_t pairs = t.dim / 2, step = ATTEND_THREADS / pairs, own = threadIdx.x / pairs;
    for (uint32_t first = own; own < step && first < t.n; first += VALUE_QUERIES_DEVICE * step)
        values_of<Q8>(a, item, t, base, threadIdx.x % pairs * 2, first, step);
    __syncthreads();
    if (threadIdx.x < t.n) {
        const uint32_t i = threadIdx.x;
        uint32_t from, to;
        query_range(item, t, a.window, i, base, from, to);
        if (from < to && t.l[i] == 0.0f) {
            t.m[i] = t.part_m[i];
            t.l[i] = t.part_l[i];
        } else if (from < to) {
            float keep, add, m;
            merge_factors(t.m[i], t.part_m[i], keep, add, m);
            t.l[i] = fmaf(t.l[i], keep, t.part_l[i] * add);
            t.m[i] = m;
        }
    }
    __syncthreads();
}

/* This block's split to memory; the block that ends last takes all of them in and has the tile in t.o, t.l. */
__device__ __forceinline__ bool exchange_parts(const struct attention_args &a, const struct step_item &item, const struct query_tile &t,
                                               uint32_t n_parts)
{
    const uint32_t size = PART_HEAD + t.dim, tiles = a.n_kv_heads * a.head_sets;
    float *parts = a.parts + ((size_t)item.first_part * tiles + blockIdx.y) * a.heads_per_tile * size;
    const size_t stride = (size_t)tiles * a.heads_per_tile * size;
    float *mine = parts + blockIdx.z * stride;

    for (uint32_t e = threadIdx.x; e < t.n * t.dim; e += ATTEND_THREADS)
        mine[e / t.dim * size + PART_HEAD + e % t.dim] = t.o[e];
    if (threadIdx.x < t.n) {
        mine[threadIdx.x * size] = t.m[threadIdx.x];
        mine[threadIdx.x * size + 1] = t.l[threadIdx.x];
    }
    if (!last_of(a.counters + blockIdx.x * tiles + blockIdx.y, n_parts))
        return false;
    for (uint32_t e = threadIdx.x; e < t.n * t.dim; e += ATTEND_THREADS) {
        const float *part = parts + e / t.dim * size;
        float m = __ldcg(part), l = __ldcg(part + 1), o = __ldcg(part + PART_HEAD + e % t.dim);
        for (uint32_t p = 1; p < n_parts; p++) {
            part += stride;
            float keep, add, most;
            merge_factors(m, __ldcg(part), keep, add, most);
            l = fmaf(l, keep, __ldcg(part + 1) * add);
            o = fmaf(o, keep, __ldcg(part + PART_HEAD + e % t.dim) * add);
            m = most;
        }
        t.o[e] = o;
        if (e % t.dim == 0)
            t.l[e / t.dim] = l;
    }
    __syncthreads();
    return true;
}

template <int NQ, bool Q8> __device__ __forceinline__ void attend(const struct attention_args &a)
{
    SHARED_BYTES(bytes);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = a.n_heads / a.n_kv_heads;
    const uint32_t kv_head = blockIdx.y / a.head_sets, first_head = blockIdx.y % a.head_sets * a.heads_per_tile;
    const uint32_t head = kv_head * group + first_head, dim = a.pool.head_dim;
    float *f = reinterpret_cast<float *>(bytes);
    struct query_tile t;

    grid_wait();
    grid_launch();
    if (blockIdx.x >= a.step.header->n_items)
        return;
    const struct step_item item = a.step.items[blockIdx.x];
    t.heads = group - first_head < a.heads_per_tile ? group - first_head : a.heads_per_tile;
    t.n = item.n_tokens * t.heads;
    t.dim = dim;
    t.kv = a.pool.at + a.layer * a.pool.layer_bytes + kv_head * a.pool.head_bytes;
    t.table = a.step.tables + item.table;
    t.s = f;
    t.o = t.s + NQ * SPLIT;
    t.q = t.o + NQ * dim;
    t.q8 = reinterpret_cast<int8_t *>(t.q);
    t.q8d = t.q + NQ * dim / 4;
    t.m = t.q + NQ * dim;
    t.l = t.m + NQ;
    t.part_m = t.l + NQ;
    t.part_l = t.part_m + NQ;

    const uint32_t first = query_lo(query_hi(item, t, 0), a.window) / SPLIT;
    const uint32_t last = (query_hi(item, t, t.n - 1) + SPLIT - 1) / SPLIT;
    if (blockIdx.z >= (item.n_parts > 0 ? last - first : 1))
        return;
    load_queries<Q8>(a, item, t, head);
    __syncthreads();
    if (item.n_parts > 0) {
        one_split<NQ, Q8>(a, item, t, first + blockIdx.z);
        if (last - first > 1 && !exchange_parts(a, item, t, last - first))
            return;
    } else {
        for (uint32_t split = first; split < last; split++)
            one_split<NQ, Q8>(a, item, t, split);
    }
    for (uint32_t i = warp; i < t.n * (dim / WARP); i += ATTEND_THREADS / WARP) {
        const uint32_t query = i / (dim / WARP), block = i % (dim / WARP);
        const float v = t.o[query * dim + block * WARP + lane] / t.l[query];
        put_input(a.out, item.row + query / t.heads, (head + query % t.heads) * (dim / WARP) + block, v, true, lane);
    }
}

#define ATTEND_KERNEL(name, queries, q8)                                                                        \
    __global__ void __launch_bounds__(ATTEND_THREADS, 2) name(const __grid_constant__ struct attention_args a)     \
    {                                                                                                           \
        attend<queries, q8>(a);                                                                                 \
    }
ATTEND_KERNEL(attend_few_f16, 4, false)
ATTEND_KERNEL(attend_few_q8, 4, true)
ATTEND_KERNEL(attend_f16, ATTEND_QUERIES_MAX, false)
ATTEND_KERNEL(attend_q8, ATTEND_QUERIES_MAX, true)

enum status launch_attention(const struct attention_args *a, uint32_t items_max, uint32_t parts_max, uint32_t queries_max,
                             device_stream s)
{
    const cudaStream_t stream = reinterpret_cast<cudaStream_t>(s);
    const dim3 grid(items_max, a->n_kv_heads * a->head_sets, parts_max > 0 ? parts_max : 1), block(ATTEND_THREADS);
    const uint32_t n = queries_max <= 4 ? 4 : ATTEND_QUERIES_MAX;
    const size_t bytes = (n * SPLIT + 2 * n * (size_t)a->pool.head_dim + 4 * n) * sizeof(float);
    const bool q8 = a->pool.type == KV_Q8;

    if (n == 4)
        return status_of(q8 ? LAUNCH(attend_few_q8, grid, block, bytes, stream, *a)
                            : LAUNCH(attend_few_f16, grid, block, bytes, stream, *a));
    return status_of(q8 ? LAUNCH(attend_q8, grid, block, bytes, stream, *a) : LAUNCH(attend_f16, grid, block, bytes, stream, *a));
}
