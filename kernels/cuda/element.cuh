/* element.cuh - one number of packed weights: pack.c read backwards, for rows of the embedding and for fast prefill's copy. */
#ifndef ELEMENT_CUH
#define ELEMENT_CUH

#include "launch.h"
#include "numeric.cuh"

/* The code of element k of row r (0 .. 15) of a panel's pair, with 0, 1 or 2 high bits; and where its scales are. */
__device__ __forceinline__ int nibble_code(const uint8_t *pair, uint32_t r, uint32_t b, uint32_t k, int n_high)
{
    const uint32_t lane = r % 8 * 4 + k / 4 % 4, half = r / 8, quad_half = k / 16;
    int c = pair[16 * lane + 8 * b + 4 * half + k % 4] >> 4 * quad_half & 15;

    if (n_high == 1)
        c |= (pair[512 + 4 * lane + k % 4] >> (4 * b + 2 * half + quad_half) & 1) << 4;
    if (n_high == 2)
        c |= (pair[512 + 8 * lane + 4 * b + k % 4] >> 2 * (2 * half + quad_half) & 3) << 4;
    return c;
}

__device__ __forceinline__ float half_of(const uint8_t *at)
{
    return half_to_float((uint16_t)(at[0] | at[1] << 8));
}

/* Element k of a row of a quantised matrix, product and sum rounded one by one: kernels/cpu/unpack.c. */
__device__ __forceinline__ float packed_element(const struct weights &w, uint32_t row, uint32_t k)
{
    const uint32_t r = row % 16, g = r % 8, half = r / 8, b = k / 32 % 2, in_block = k % 32;
    const bool is_k = w.type == TENSOR_Q4_K || w.type == TENSOR_Q5_K, six = w.type == TENSOR_Q6_K;
    const bool fifth = w.type == TENSOR_Q5_0 || w.type == TENSOR_Q5_1 || w.type == TENSOR_Q5_K;
    const bool min = w.type == TENSOR_Q4_1 || w.type == TENSOR_Q5_1;
    const uint32_t bytes = pair_bytes(w.type), before = super_bytes(w.type);
    const uint8_t *panel = w.data + row / 16 * w.panel_bytes, *super = panel + (size_t)(k / 256) * (before + 4 * bytes);
    const uint8_t *pair = before == 0 ? panel + (size_t)(k / 64) * bytes : super + before + k / 64 % 4 * bytes;

    if (w.type == TENSOR_Q8_0) {
        const uint32_t lane = g * 4 + in_block / 4 % 4, word = half + 2 * (in_block / 16);
        const int c = pair[512 * b + 16 * lane + 4 * word + in_block % 4];
        return (float)(c - 128) * half_of(pair + 1024 + 8 * g + 4 * half + 2 * b);
    }
    const float c = (float)nibble_code(pair, r, b, in_block, six ? 2 : fifth ? 1 : 0);
    const uint8_t *scales = pair + 512 + (six ? 256 : fifth ? 128 : 0);
    if (six) {
        const float d = half_of(super + 4 * g + 2 * half);
        return d * (float)(int8_t)scales[8 * g + 4 * half + 2 * b + in_block / 16] * (c - 32.0f);
    }
    if (is_k)
        return half_of(super + 8 * g + 2 * half) * (float)scales[8 * g + 2 * half + b] * c +
               half_of(super + 8 * g + 4 + 2 * half) * (float)scales[8 * g + 4 + 2 * half + b];
    const uint32_t stride = min ? 16 : 8;
    const float d = half_of(scales + stride * g + 4 * half + 2 * b);
    if (min)
        return c * d + half_of(scales + stride * g + 8 + 4 * half + 2 * b);
    return (c - (fifth ? 16.0f : 8.0f)) * d;
}

__device__ __forceinline__ float element(const struct weights &w, uint32_t row, uint32_t k)
{
    const uint32_t size = w.type == TENSOR_F32 ? 4 : 2, per_unit = 16 / size;
    const uint8_t *at = w.data + row / 16 * w.panel_bytes + (size_t)(k / per_unit) * 256 + row % 16 * 16 + k % per_unit * size;

    switch (w.type) {
    case TENSOR_F32:
        return *reinterpret_cast<const float *>(at);
    case TENSOR_F16:
        return half_of(at);
    case TENSOR_BF16:
        return bf16_to_float(*reinterpret_cast<const uint16_t *>(at));
    default:
        return packed_element(w, row, k);
    }
}

#endif
