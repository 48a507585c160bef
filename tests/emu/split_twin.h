/* split_twin.h - struct split_block by the book: what rows.cuh writes, once more and in plain C++. */
#ifndef SPLIT_TWIN_H
#define SPLIT_TWIN_H

#include "twin.h"

inline uint16_t twin_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    const uint32_t kept = u >> 16, rest = u & 0xffff;
    return (uint16_t)(kept + (rest > 0x8000 || (rest == 0x8000 && kept % 2 == 1)));
}

inline float twin_bf16_value(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

/* 32 numbers to one block. */
inline void twin_split(enum tensor_type type, const float *x, struct split_block *out)
{
    float largest = 0;
    int exponent = 0;

    for (int i = 0; i < 32; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    frexpf(largest, &exponent); /* largest = 0.5 .. 1 times 2^exponent */
    if (largest == 0 || exponent < -111)
        exponent = -111;
    const float d = type == TENSOR_F16 ? ldexpf(1, exponent - 15) : 1.0f;
    memset(out->pad, 0xff, sizeof(out->pad));
    out->d = d;
    for (int i = 0; i < 32; i++) {
        if (type == TENSOR_F16) {
            out->high[i] = emu_float_to_half(x[i] / d);
            out->low[i] = emu_float_to_half(x[i] / d - emu_half_to_float(out->high[i]));
        } else {
            out->high[i] = twin_bf16(x[i]);
            out->low[i] = twin_bf16(x[i] - twin_bf16_value(out->high[i]));
        }
    }
}

/* Element i as the sum of its halves. */
inline double twin_split_value(enum tensor_type type, const struct split_block &b, int i)
{
    if (type == TENSOR_F16)
        return ((double)emu_half_to_float(b.high[i]) + emu_half_to_float(b.low[i])) * b.d;
    return (double)twin_bf16_value(b.high[i]) + twin_bf16_value(b.low[i]);
}

/* A row of k numbers, the last block filled with zeros. */
inline void twin_split_row(enum tensor_type type, const float *x, uint32_t k, struct split_block *out)
{
    float block[32];

    for (uint32_t b = 0; b < (k + 31) / 32; b++) {
        for (uint32_t i = 0; i < 32; i++)
            block[i] = 32 * b + i < k ? x[32 * b + i] : 0.0f;
        twin_split(type, block, out + b);
    }
}

#endif
