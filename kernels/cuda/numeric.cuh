/* numeric.cuh - elementary functions on the device: kernels/cpu/numeric.h and vec.h once more, operation by operation, so
 * that every bit is the CPU's.  Change them together. */
#ifndef NUMERIC_CUH
#define NUMERIC_CUH

#include "cuda.cuh"

__device__ __forceinline__ float bf16_to_float(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

/* To the nearest, ties to even; NaN stays NaN. */
__device__ __forceinline__ uint16_t float_to_bf16(float x)
{
    const uint32_t u = __float_as_uint(x);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

__device__ __forceinline__ float magnitude(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0x7fffffff);
}

/* The second where either is NaN. */
__device__ __forceinline__ float larger(float a, float b)
{
    return a > b ? a : b;
}
__device__ __forceinline__ float smaller(float a, float b)
{
    return a < b ? a : b;
}

/* e^x to about 1e-6, x clamped to [-87, 88]: 2^n 2^r with n = round(x log2 e), a polynomial in r, n added to its exponent. */
__device__ __forceinline__ float exp_f32(float x)
{
    const float magic = 12582912.0f, log2_e = 1.44269504f; /* 1.5 * 2^23 */

    x = smaller(larger(x, -87.0f), 88.0f);
    const float t = fmaf(x, log2_e, magic), r = fmaf(x, log2_e, magic - t);
    float p = fmaf(0.00132646994f, r, 0.00967153348f);
    p = fmaf(p, r, 0.0555073395f);
    p = fmaf(p, r, 0.240222424f);
    p = fmaf(p, r, 0.693147004f);
    p = fmaf(p, r, 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

/* An int8 code: nearest, ties to even, within [-127, 127]; NaN gives -127. */
__device__ __forceinline__ int to_code(float x)
{
    return (int)((smaller(larger(x, -127.0f), 127.0f) + 12582912.0f) - 12582912.0f);
}

/* SiLU: g / (1 + e^-g).  GELU, tanh form: g / (1 + e^-2z), z = sqrt(2/pi) (g + 0.044715 g^3).  Times u. */
__device__ __forceinline__ float gated(bool gelu, float g, float u)
{
    float z = g;

    if (gelu)
        z = (g * 1.59576912f) * fmaf(g * g, 0.044715f, 1.0f);
    return (g / (1.0f + exp_f32(0.0f - z))) * u;
}

/* Sum of lanes 0 .. 15 by the tree 8, 4, 2, 1; the same in all lanes. */
__device__ __forceinline__ float sum_16(float v)
{
    for (int n = 8; n >= 1; n /= 2)
        v = v + __shfl_down_sync(ALL_LANES, v, n);
    return __shfl_sync(ALL_LANES, v, 0);
}

/* ---- double: angles and sampling ---- */

/* Nearest integer, ties to even; |x| < 2^51. */
__device__ __forceinline__ double round_even_f64(double x)
{
    const double magic = 6755399441055744.0;

    return (x + magic) - magic;
}

__device__ __forceinline__ double exp_f64_device(double x)
{
    const double n = round_even_f64(x * 1.4426950408889634074);
    const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double p = 1.0;

    for (int i = 14; i >= 1; i--)
        p = 1.0 + p * r / (double)i;
    return p * __longlong_as_double((long long)(1023 + (long long)n) << 52);
}

__device__ __forceinline__ double log_f64_device(double x)
{
    const long long u = __double_as_longlong(x);
    long long k = (u >> 52) - 1023;
    double m = __longlong_as_double((u & 0xfffffffffffffLL) | 0x3ff0000000000000LL);

    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double sum = 0.0;
    for (int i = 21; i >= 1; i -= 2)
        sum = sum * s2 + 1.0 / (double)i;
    return 2.0 * s * sum + (double)k * 0.69314718055994530942;
}

__device__ __forceinline__ void sincos_f64_device(double x, double *ret_sin, double *ret_cos)
{
    const double n = round_even_f64(x * 0.63661977236758134308);
    double r = x - n * 1.57079632673412561417e+00;
    r -= n * 6.07710050630396597660e-11;
    r -= n * 2.02226624879595063154e-21;
    const double r2 = r * r;
    double s = 0.0, c = 0.0;
    for (int i = 17; i >= 3; i -= 2)
        s = (1.0 + s) * -r2 / (double)(i * (i - 1));
    for (int i = 16; i >= 2; i -= 2)
        c = (1.0 + c) * -r2 / (double)(i * (i - 1));
    s = r + r * s;
    c = 1.0 + c;
    const int quarter = (int)((long long)n & 3);
    const double a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
    *ret_sin = quarter & 2 ? -a : a;
    *ret_cos = quarter == 1 || quarter == 2 ? -b : b;
}

#endif
