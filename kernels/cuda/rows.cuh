/* rows.cuh - a row of floats by one warp: norm, and what a product reads.  kernels/cpu/rows_body.h on the device.
 *
 * Sums run over 16 lanes, element i in lane i mod 16, and end in the tree of sum_16: a warp loads 32 elements at a time and
 * its lower half takes both sixteens, one after the other. */
#ifndef ROWS_CUH
#define ROWS_CUH

#include "launch.h"
#include "numeric.cuh"

/* Element i of a row in global memory that other blocks of the same kernel may have written: past the first-level cache. */
struct global_row {
    const float *at;
    __device__ __forceinline__ float operator()(uint32_t i) const
    {
        return __ldcg(at + i);
    }
};
struct shared_row {
    const float *at;
    __device__ __forceinline__ float operator()(uint32_t i) const
    {
        return at[i];
    }
};

/* 1 / sqrt(mean(x^2) + eps), the same in all lanes. */
template <typename ROW> __device__ __forceinline__ float norm_scale(const ROW &x, uint32_t n, float eps, uint32_t lane)
{
    float sum = 0.0f;

#pragma unroll 8
    for (uint32_t i = 0; i < n; i += WARP) {
        const float v = i + lane < n ? x(i + lane) : 0.0f;
        const float next = __shfl_down_sync(ALL_LANES, v, 16);
        sum = fmaf(v, v, sum);
        sum = fmaf(next, next, sum);
    }
    return 1.0f / sqrtf(sum_16(sum) / (float)n + eps);
}

/* A lane's code of a block with step d. */
__device__ __forceinline__ void put_code(struct xblock *out, int q, float d, uint32_t lane)
{
    const int n0 = -__reduce_add_sync(ALL_LANES, lane < 16 ? q : 0), n = -__reduce_add_sync(ALL_LANES, q);

    out->q[lane] = (int8_t)q;
    if (lane == 0) {
        out->d = d;
        out->s = d * (float)-n;
        out->n = n;
        out->n0 = n0;
    }
}

/* 32 values, one a lane, to one int8 block; with second != NULL what that leaves to another. */
__device__ __forceinline__ void quantise_block(float v, struct xblock *out, struct xblock *second, uint32_t lane)
{
    const float largest = __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(v) & 0x7fffffff));
    const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
    const int q = to_code(v * inverse);
    const float d = largest / 127.0f;

    put_code(out, q, d, lane);
    if (second != nullptr)
        put_code(second, to_code(fmaf((float)q, -d, v) * (inverse * 254.0f)), d / 254.0f, lane);
}

/* 32 values, one a lane, each as two bf16. */
__device__ __forceinline__ void split_to_bf16(float v, struct split_block *out, uint32_t lane)
{
    const uint16_t high = float_to_bf16(v);

    out->high[lane] = high;
    out->low[lane] = float_to_bf16(v - bf16_to_float(high));
    if (lane == 0)
        out->d = 1.0f;
}

/* Each as two f16 times one power of two: the largest comes to 2^14 .. 2^15. */
__device__ __forceinline__ void split_to_f16(float v, struct split_block *out, uint32_t lane)
{
    const uint32_t largest = __reduce_max_sync(ALL_LANES, __float_as_uint(v) & 0x7fffffff) >> 23, e = largest < 15 ? 15 : largest;
    const float scaled = v * __uint_as_float((268 - e) << 23);
    const uint16_t high = float_to_half(scaled);

    out->high[lane] = high;
    out->low[lane] = float_to_half(scaled - half_to_float(high));
    if (lane == 0)
        out->d = __uint_as_float((e - 14) << 23);
}

/* 32 values of columns 32 * block .. of a row, of which `valid` exist (the others are 0), to what products read. */
__device__ __forceinline__ void put_input(const struct row_input &out, uint32_t row, uint32_t block, float v, bool valid, uint32_t lane)
{
    if (out.q8 != nullptr)
        quantise_block(v, out.q8 + (size_t)row * out.n_blocks + block,
                       out.second == nullptr ? nullptr : out.second + (size_t)row * out.n_blocks + block, lane);
    if (out.f32 != nullptr && valid)
        out.f32[(size_t)row * out.f32_stride + block * WARP + lane] = v;
    if (out.split_f16 != nullptr)
        split_to_f16(v, out.split_f16 + (size_t)row * out.n_split + block, lane);
    if (out.split_bf16 != nullptr)
        split_to_bf16(v, out.split_bf16 + (size_t)row * out.n_split + block, lane);
    if (out.bf16 != nullptr && block * WARP + lane < out.f32_stride)
        out.bf16[(size_t)row * out.f32_stride + block * WARP + lane] = float_to_bf16(valid ? v : 0.0f);
}

/* One row by one warp: see struct norm_args. */
__device__ __forceinline__ void norm_row(const struct norm_args &a, uint32_t row, uint32_t lane)
{
    float *x = a.x + (size_t)row * a.stride;
    const global_row x_row = { x };

    if (a.post != nullptr) {
        const global_row tmp = { a.tmp + (size_t)row * a.stride };
        const float scale = norm_scale(tmp, a.n, a.eps, lane);
        for (uint32_t i = lane; i < a.n; i += WARP)
            x[i] = __ldcg(x + i) + (tmp(i) * scale) * __ldg(a.post + i);
        __syncwarp();
    }
    if (a.weight == nullptr)
        return;
    const float scale = norm_scale(x_row, a.n, a.eps, lane);
#pragma unroll 4
    for (uint32_t i = 0; i < a.n; i += WARP) {
        const bool valid = i + lane < a.n;
        const float v = valid ? (x_row(i + lane) * scale) * __ldg(a.weight + i + lane) : 0.0f;
        put_input(a.out, row, i / WARP, v, valid, lane);
    }
}

/* Whether this block is the last of n that came here for `counter`, which is zero again afterwards.  What the others wrote
 * before is then visible.  All threads call it. */
__device__ __forceinline__ bool last_of(uint32_t *counter, uint32_t n)
{
    SHARED_OBJECT(uint32_t, arrived);

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        arrived = atomicAdd(counter, 1u);
    __syncthreads();
    if (arrived != n - 1)
        return false;
    if (threadIdx.x == 0)
        *counter = 0;
    __threadfence();
    return true;
}

/* The norm after a product: the last block of rows first .. first+n-1 (of map) does it. */
__device__ __forceinline__ void norm_tail(const struct norm_args &a, uint32_t *counter, const uint32_t *map, uint32_t first, uint32_t n)
{
    if (a.x == nullptr || !last_of(counter, gridDim.x))
        return;
    for (uint32_t i = threadIdx.x / WARP; i < n; i += blockDim.x / WARP)
        norm_row(a, map == nullptr ? first + i : __ldg(map + first + i), threadIdx.x % WARP);
}

#endif
