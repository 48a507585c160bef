/* numeric.h - number formats and elementary functions in plain C, the same bits with every compiler and on every machine.
 *
 * Everything here is made of IEEE operations with one rounding each (+ - * / sqrt, fmaf) and of integers; the files are
 * compiled with -ffp-contract=off, and nothing calls a transcendental function of libm, whose last bit differs between
 * versions.  The functions on double serve tables (RoPE) and sampling; the float ones for rows of numbers are in vec.h. */
#ifndef NUMERIC_H
#define NUMERIC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float f32_from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static inline double f64_from_bits(uint64_t u)
{
    double x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static inline float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

/* IEEE half to float: exact.  A signalling NaN becomes quiet, as the F16C instruction does it. */
static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31;
    uint32_t fraction = h & 0x3ff;

    if (exponent == 31)
        return f32_from_bits(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent != 0)
        return f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    /* subnormal: fraction * 2^-24, exact in float */
    float x = (float)fraction * 0x1p-24f;
    return sign ? -x : x;
}

/* Float to half, round to nearest even; overflow gives infinity, NaN stays NaN. */
static inline uint16_t f32_to_f16(float x)
{
    uint32_t u = f32_bits(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    uint32_t a = u & 0x7fffffff;

    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x1ff));
    if (a >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: subnormal; adding 0.5 leaves fraction * 2^24 in the low bits, rounded */
        float r = f32_from_bits(a) + 0.5f;
        return (uint16_t)(sign | (f32_bits(r) - 0x3f000000));
    }
    a += 0xfff + (a >> 13 & 1); /* ties to even */
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

/* Round to the nearest integer, ties to even; |x| < 2^51. */
static inline double round_even(double x)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */

    return (x + magic) - magic;
}

/* e^x for |x| <= 700, relative error below 1e-15. */
static inline double exp_f64(double x)
{
    double n = round_even(x * 1.4426950408889634074);
    double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10; /* ln 2 in two parts */
    double p = 1.0;

    for (int i = 14; i >= 1; i--)
        p = 1.0 + p * r / (double)i;
    return p * f64_from_bits((uint64_t)(1023 + (int64_t)n) << 52);
}

/* ln x for finite normal x > 0: x = m 2^k with m in [sqrt(1/2), sqrt 2), ln m = 2 atanh((m-1)/(m+1)). */
static inline double log_f64(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof(u));
    int64_t k = (int64_t)(u >> 52) - 1023;
    double m = f64_from_bits((u & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;
    for (int i = 21; i >= 1; i -= 2)
        sum = sum * s2 + 1.0 / (double)i;
    return 2.0 * s * sum + (double)k * 0.69314718055994530942;
}

/* sin and cos of 0 <= x < 2^31 to about 1e-12: quarter turns are taken off in three parts, then the Taylor series. */
static inline void sincos_f64(double x, double *ret_sin, double *ret_cos)
{
    double n = round_even(x * 0.63661977236758134308); /* 2 / pi */
    double r = x - n * 1.57079632673412561417e+00;
    r -= n * 6.07710050630396597660e-11;
    r -= n * 2.02226624879595063154e-21;
    double r2 = r * r, s = 0.0, c = 0.0;
    for (int i = 17; i >= 3; i -= 2)
        s = (1.0 + s) * -r2 / (double)(i * (i - 1));
    for (int i = 16; i >= 2; i -= 2)
        c = (1.0 + c) * -r2 / (double)(i * (i - 1));
    s = r + r * s;
    c = 1.0 + c;
    switch ((int64_t)n & 3) {
    case 0:
        *ret_sin = s, *ret_cos = c;
        break;
    case 1:
        *ret_sin = c, *ret_cos = -s;
        break;
    case 2:
        *ret_sin = -s, *ret_cos = -c;
        break;
    default:
        *ret_sin = -c, *ret_cos = s;
        break;
    }
}

#endif
