/* kv.cu - q, k and v as the projection left them: the norms of heads, RoPE, and K and V into their block.  A block has a
 * row, a warp a head at a time.  kernels/cpu/kv_body.h and finish_head() of its step.c. */
#include "rows.cuh"
#include "status.cuh"

enum { KV_THREADS = 128 };

/* The pairs (i, i + D/2) turned, then times scale; x in shared memory. */
__device__ __forceinline__ void rope_head(float *x, const float *cosines, const float *sines, uint32_t dim, float scale,
                                          uint32_t lane)
{
    const uint32_t half = dim / 2;

    for (uint32_t i = lane; i < half; i += WARP) {
        const float a = x[i], b = x[half + i], c = cosines[i], s = sines[i];
        x[i] = (a * c - b * s) * scale;
        x[half + i] = (a * s + b * c) * scale;
    }
    __syncwarp();
}

/* 32 values to int8 with one f16 scale, rounded before it is used.  Returns this lane's code. */
__device__ __forceinline__ int8_t to_q8(float v, uint16_t *scale, uint32_t lane)
{
    const float largest = __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(v) & 0x7fffffff));
    const uint16_t half = float_to_half(largest / 127.0f);
    const float d = half_to_float(half);

    if (lane == 0)
        *scale = half;
    return (int8_t)to_code(v * (d > 0.0f ? 1.0f / d : 0.0f));
}

__device__ __forceinline__ void store_head(const struct kv_pool &pool, uint8_t *head, uint32_t position, const float *x, bool is_v,
                                           uint32_t lane)
{
    const uint32_t dim = pool.head_dim, slot = position % BLOCK_TOKENS;

    for (uint32_t d = lane; d < dim; d += WARP) {
        if (pool.type == KV_F16) {
            uint16_t *half = reinterpret_cast<uint16_t *>(head + (is_v ? pool.v : 0));
            half[is_v ? slot * dim + d : (d / 8 * 16 + slot) * 8 + d % 8] = float_to_half(x[d]);
            continue;
        }
        int8_t *codes = reinterpret_cast<int8_t *>(head + (is_v ? pool.v : 0));
        uint16_t *scales = reinterpret_cast<uint16_t *>(head + (is_v ? pool.v_scales : pool.k_scales));
        const int8_t code = to_q8(x[d], scales + d / QUANT_BLOCK * 16 + slot, lane);
        codes[is_v ? slot * dim + d : (d / 16 * 16 + slot) * 16 + d % 16] = code;
    }
}

__global__ void __launch_bounds__(KV_THREADS, 8) write_kv(const __grid_constant__ struct kv_args a)
{
    SHARED_BYTES(bytes);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x, dim = a.pool.head_dim;
    const uint32_t n_heads = a.n_heads + 2 * a.n_kv_heads;
    float *x = reinterpret_cast<float *>(bytes) + warp * dim;

    grid_wait();
    grid_launch();
    if (row >= a.step.header->n_rows)
        return;
    const struct step_row r = a.step.rows[row];
    uint8_t *block = a.pool.at + (size_t)a.step.tables[r.table + r.position / BLOCK_TOKENS] * a.pool.block_bytes +
                     a.layer * a.pool.layer_bytes;
    for (uint32_t i = blockIdx.y * (KV_THREADS / WARP) + warp; i < n_heads; i += gridDim.y * (KV_THREADS / WARP)) {
        const bool is_q = i < a.n_heads, is_v = i >= a.n_heads + a.n_kv_heads;
        const uint32_t head = is_q ? i : is_v ? i - a.n_heads - a.n_kv_heads : i - a.n_heads;
        float *q = a.q + ((size_t)row * a.n_heads + head) * dim;
        const float *from = is_q ? q : (is_v ? a.v : a.k) + ((size_t)row * a.n_kv_heads + head) * dim;
        const float *norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
        float scale = 1.0f;
        if (norm != nullptr)
            scale = norm_scale(global_row{ from }, dim, a.eps, lane);
        for (uint32_t d = lane; d < dim; d += WARP)
            x[d] = norm != nullptr ? (from[d] * scale) * __ldg(norm + d) : from[d];
        __syncwarp();
        if (!is_v)
            rope_head(x, a.cosines + (size_t)row * (dim / 2), a.sines + (size_t)row * (dim / 2), dim, is_q ? a.q_scale : 1.0f, lane);
        if (is_q) {
            for (uint32_t d = lane; d < dim; d += WARP)
                q[d] = x[d];
        } else {
            store_head(a.pool, block + head * a.pool.head_bytes, r.position, x, is_v, lane);
        }
        __syncwarp();
    }
}

enum status launch_kv(const struct kv_args *a, uint32_t rows_max, device_stream s)
{
    const uint32_t warps = KV_THREADS / WARP, blocks = (a->n_heads + 2 * a->n_kv_heads + warps - 1) / warps;
    const size_t bytes = warps * a->pool.head_dim * sizeof(float);

    return status_of(LAUNCH(write_kv, dim3(rows_max, rows_max <= 8 ? blocks : 1), dim3(KV_THREADS), bytes,
                            reinterpret_cast<cudaStream_t>(s), *a));
}
