/* vec.h - vectors of 16 floats, 16 int32 or 64 bytes, written once for each instruction set.
 *
 * Every kernel is written on these few operations and compiled once per instruction set (kernels_scalar.c, _avx2.c,
 * _avxvnni.c, _avx512.c).  An operation gives the same bits in each: lane by lane one IEEE operation, or exact integers;
 * the horizontal sums have one fixed tree.  That is the whole reason why instruction sets cannot differ.
 *
 *   vf   16 floats                           vi   16 int32, also seen as 64 bytes (4 for each lane)
 *
 * The including file defines one of VEC_SCALAR, VEC_AVX2, VEC_AVX512, and VEC_VNNI where AVX2 has vpdpbusd. */
#ifndef VEC_H
#define VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "numeric.h"

#if defined(VEC_SCALAR)
#define INLINE static inline __attribute__((unused)) /* forced, it is a megabyte of code and a minute of compiling */
#else
#define INLINE static inline __attribute__((always_inline, unused))
#endif
#if defined(VEC_SCALAR)
#define UNROLL /* loops stay loops */
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(VEC_AVX512)
#include "vec_avx512.h"
#elif defined(VEC_AVX2)
#include "vec_avx2.h"
#else
#include "vec_scalar.h"
#endif

/* 2^n 2^r with n = round(x log2 e), r the rest in [-1/2, 1/2]: a polynomial in r (minimax, relative error 1.6e-7), n added to
 * its exponent.  The low bits of x log2 e + 1.5 * 2^23 are n.  For -87 <= x <= 88. */
INLINE vf exp_within(vf x)
{
    const vf magic = vf_set1(12582912.0f), log2_e = vf_set1(1.44269504f);

    vf t = vf_fma(x, log2_e, magic);
    vf r = vf_fma(x, log2_e, vf_sub(magic, t));
    vf p = vf_fma(vf_set1(0.00132646994f), r, vf_set1(0.00967153348f));
    p = vf_fma(p, r, vf_set1(0.0555073395f));
    p = vf_fma(p, r, vf_set1(0.240222424f));
    p = vf_fma(p, r, vf_set1(0.693147004f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_of_bits(vi_add(vi_of_bits(p), vi_shl32(vi_of_bits(t), 23)));
}

/* e^x to about 1e-6, x clamped to [-87, 88] */
INLINE vf vf_exp(vf x)
{
    return exp_within(vf_min(vf_max(x, vf_set1(-87.0f)), vf_set1(88.0f)));
}

/* The same for x <= 0 */
INLINE vf vf_exp_neg(vf x)
{
    return exp_within(vf_max(x, vf_set1(-87.0f)));
}

#endif
