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

/* e^x, relative error below 2e-7, for x clamped to [-87, 88]: x = n ln 2 + r, a polynomial in r, n added to the exponent.
 * The low bits of x log2(e) + 1.5 * 2^23 are n. */
INLINE vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f);

    x = vf_min(vf_set1(88.0f), vf_max(vf_set1(-87.0f), x));
    vf t = vf_fma(x, vf_set1(1.44269504f), magic);
    vf n = vf_sub(t, magic);
    vf r = vf_fma(n, vf_set1(-0.693145752f), x);
    r = vf_fma(n, vf_set1(-1.42860677e-6f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), vf_add(r, vf_set1(1.0f)));
    return vf_of_bits(vi_add(vi_of_bits(p), vi_shl32(vi_of_bits(t), 23)));
}

#endif
