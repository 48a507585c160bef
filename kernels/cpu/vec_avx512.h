/* vec_avx512.h - the operations of vec.h on 512-bit registers (F, BW, VL, DQ, VNNI). */
#ifndef VEC_AVX512_H
#define VEC_AVX512_H

#include <immintrin.h>

#define VEC_REGISTERS 32

typedef __m512 vf;
typedef __m512i vi;

INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
INLINE vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}
INLINE vf vf_first(int n, vf a, vf b)
{
    return _mm512_mask_blend_ps((__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1), b, a);
}
INLINE vf vf_of_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
INLINE void vf_to_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
INLINE vf vf_of_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
INLINE vf vf_of_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}
INLINE vf vf_of_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}
INLINE vf vf_of_vi(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
INLINE vf vf_of_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
INLINE vi vi_of_bits(vf a)
{
    return _mm512_castps_si512(a);
}
INLINE float vf_sum(vf a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
INLINE float vf_maximum(vf a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
INLINE vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
INLINE vi vi_shl32(vi a, int n)
{
    return _mm512_slli_epi32(a, (unsigned)n);
}
INLINE vi vi_bits(vi a, int n, uint8_t mask)
{
    vi m = _mm512_set1_epi8((char)mask);
    if (n > 0)
        a = _mm512_srli_epi16(a, (unsigned)n);
    if (n < 0)
        a = _mm512_slli_epi16(a, (unsigned)-n);
    return _mm512_and_si512(a, m);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
INLINE vi vi_round(vf a)
{
    return _mm512_cvtps_epi32(a);
}
INLINE void vi_store_i8(int8_t *p, vi a)
{
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(a));
}
INLINE int32_t vi_sum(vi a)
{
    return _mm512_reduce_add_epi32(a);
}
INLINE vi vi_dot4(vi acc, vi c, const int8_t *x)
{
    int32_t quad;
    memcpy(&quad, x, 4);
    return _mm512_dpbusd_epi32(acc, c, _mm512_set1_epi32(quad));
}
INLINE vi vi_start8(int32_t n)
{
    return _mm512_slli_epi32(_mm512_set1_epi32(n), 7);
}
INLINE vi vi_dot4_8(vi acc, vi c, const int8_t *x)
{
    return vi_dot4(acc, c, x);
}

#endif
