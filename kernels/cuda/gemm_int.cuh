/* gemm_int.cuh - one pair of blocks of a panel, from its packed bytes (pack.h) to fragments and scales in registers.
 *
 * Codes stay unsigned; what they are too large by (their middle) is taken off by what the integer sum starts with:
 * middle * (-sum of q).  The sums stay below 2^20, so they are made to start at the bits of 1.5 * 2^23 as well: then they are
 * floats already, 12582912 too large, and taking that off is exact.  It saves a conversion an output. */
#ifndef GEMM_INT_CUH
#define GEMM_INT_CUH

#include "cuda.cuh"
#include "launch.h"
#include "numeric.cuh"

template <int TYPE> struct format {
    static constexpr bool has_min = TYPE == TENSOR_Q4_1 || TYPE == TENSOR_Q5_1 || TYPE == TENSOR_Q4_K || TYPE == TENSOR_Q5_K;
    static constexpr bool is_k = TYPE == TENSOR_Q4_K || TYPE == TENSOR_Q5_K || TYPE == TENSOR_Q6_K;
    static constexpr bool is_six = TYPE == TENSOR_Q6_K, is_eight = TYPE == TENSOR_Q8_0;
    static constexpr bool has_fifth = TYPE == TENSOR_Q5_0 || TYPE == TENSOR_Q5_1 || TYPE == TENSOR_Q5_K;
    static constexpr int middle = TYPE == TENSOR_Q4_0   ? 8
                                  : TYPE == TENSOR_Q5_0 ? 16
                                  : TYPE == TENSOR_Q6_K ? 32
                                  : TYPE == TENSOR_Q8_0 ? 128
                                                        : 0;
    static constexpr uint32_t codes = is_eight ? 1024 : 512, high = has_fifth ? 128 : is_six ? 256 : 0;
    static constexpr uint32_t scales = has_min && !is_k ? 128 : 64;
    static constexpr uint32_t pair = codes + high + scales, super = is_six ? 32 : is_k ? 64 : 0;
    static constexpr int sums = is_six ? 2 : 1; /* sums a block: halves of Q6_K have scales of their own */
};

#define SUM_ZERO 0x4b400000 /* bits of 12582912.0f */

__device__ __forceinline__ float sum_value(int sum)
{
    return __int_as_float(sum) - 12582912.0f;
}

/* The bytes of a pair that a lane holds. */
template <int TYPE> struct pair_bits {
    uint4 codes;
    uint4 codes1;  /* Q8_0: block 1 */
    uint2 high;
    uint4 scales;  /* only x, y unless d and m are both f16 */
    uint2 super;
};

template <int TYPE> __device__ __forceinline__ void load_pair(const uint8_t *panel, uint32_t pair, uint32_t lane, pair_bits<TYPE> &p)
{
    typedef format<TYPE> f;
    const uint32_t g = lane / 4;
    const uint8_t *at = panel + (size_t)pair * f::pair;

    if (f::is_k) {
        const uint8_t *super = panel + (size_t)(pair / 4) * (f::super + 4 * f::pair);
        if (f::is_six)
            p.super.x = __ldg(reinterpret_cast<const uint32_t *>(super) + g);
        else
            p.super = __ldg(reinterpret_cast<const uint2 *>(super) + g);
        at = super + f::super + pair % 4 * f::pair;
    }
    p.codes = __ldg(reinterpret_cast<const uint4 *>(at) + lane);
    if (f::is_eight)
        p.codes1 = __ldg(reinterpret_cast<const uint4 *>(at + 512) + lane);
    if (f::has_fifth)
        p.high.x = __ldg(reinterpret_cast<const uint32_t *>(at + f::codes) + lane);
    if (f::is_six)
        p.high = __ldg(reinterpret_cast<const uint2 *>(at + f::codes) + lane);
    if (f::scales == 128) {
        p.scales = __ldg(reinterpret_cast<const uint4 *>(at + f::codes + f::high) + g);
    } else {
        const uint2 s = __ldg(reinterpret_cast<const uint2 *>(at + f::codes + f::high) + g);
        p.scales.x = s.x;
        p.scales.y = s.y;
    }
}

/* Fragment of block b (0 or 1) of the pair. */
template <int TYPE> __device__ __forceinline__ void unpack_codes(const pair_bits<TYPE> &p, int b, uint32_t (&a)[4])
{
    typedef format<TYPE> f;

    if (f::is_eight) {
        const uint4 c = b == 0 ? p.codes : p.codes1;
        a[0] = c.x, a[1] = c.y, a[2] = c.z, a[3] = c.w;
        return;
    }
    const uint32_t w0 = b == 0 ? p.codes.x : p.codes.z, w1 = b == 0 ? p.codes.y : p.codes.w;
    a[0] = w0 & 0x0f0f0f0f;
    a[1] = w1 & 0x0f0f0f0f;
    a[2] = w0 >> 4 & 0x0f0f0f0f;
    a[3] = w1 >> 4 & 0x0f0f0f0f;
    if (f::has_fifth) {
        const uint32_t h = p.high.x >> 4 * b;
        a[0] |= (h & 0x01010101) << 4;
        a[2] |= (h >> 1 & 0x01010101) << 4;
        a[1] |= (h >> 2 & 0x01010101) << 4;
        a[3] |= (h >> 3 & 0x01010101) << 4;
    }
    if (f::is_six) {
        const uint32_t h = b == 0 ? p.high.x : p.high.y;
        a[0] |= (h & 0x03030303) << 4;
        a[2] |= (h >> 2 & 0x03030303) << 4;
        a[1] |= (h >> 4 & 0x03030303) << 4;
        a[3] |= (h >> 6 & 0x03030303) << 4;
    }
}

__device__ __forceinline__ float half_at(uint32_t word, int i)
{
    return half_to_float((uint16_t)(word >> 16 * i));
}

/* Scales of block b: d[0] row g, d[1] row g+8, the minima alike; of Q6_K's second half in m. */
template <int TYPE> __device__ __forceinline__ void unpack_scales(const pair_bits<TYPE> &p, int b, float (&d)[2], float (&m)[2])
{
    typedef format<TYPE> f;

    for (int h = 0; h < 2; h++) {
        if (f::is_six) {
            const float super = half_at(p.super.x, h);
            const uint32_t s = (h == 0 ? p.scales.x : p.scales.y) >> 16 * b;
            d[h] = super * (float)(int8_t)s;
            m[h] = super * (float)(int8_t)(s >> 8);
        } else if (f::is_k) {
            d[h] = half_at(p.super.x, h) * (float)(p.scales.x >> (16 * h + 8 * b) & 255);
            m[h] = half_at(p.super.y, h) * (float)(p.scales.y >> (16 * h + 8 * b) & 255);
        } else {
            d[h] = half_at(h == 0 ? p.scales.x : p.scales.y, b);
            m[h] = f::has_min ? half_at(h == 0 ? p.scales.z : p.scales.w, b) : 0.0f;
        }
    }
}

/* Integer sums of one block times 8 columns: c[0] and, for Q6_K, c1 of k >= 16.  n, n0: what the two columns of this lane
 * have in their struct xblock. */
template <int TYPE>
__device__ __forceinline__ void block_sums(const uint32_t (&a)[4], const uint32_t (&q)[2], const int (&n)[2], const int (&n0)[2],
                                           int (&c)[4], int (&c1)[4])
{
    typedef format<TYPE> f;

    for (int i = 0; i < 4; i++)
        c[i] = SUM_ZERO + f::middle * (f::is_six ? n0[i % 2] : n[i % 2]);
    if (f::is_six) {
        const uint32_t low[4] = { a[0], a[1], 0, 0 }, high[4] = { 0, 0, a[2], a[3] };
        for (int i = 0; i < 4; i++)
            c1[i] = SUM_ZERO + f::middle * (n[i % 2] - n0[i % 2]);
        mma_u8s8(c, low, q);
        mma_u8s8(c1, high, q);
    } else {
        mma_u8s8(c, a, q);
    }
}

#endif
