/* vec_avx2.h - the operations of vec.h on pairs of 256-bit registers (AVX2, FMA, F16C; with VEC_VNNI also AVX-VNNI). */
#ifndef VEC_AVX2_H
#define VEC_AVX2_H

#include <immintrin.h>

#define VEC_REGISTERS 16

typedef struct {
    __m256 a, b; /* lanes 0..7, 8..15 */
} vf;
typedef struct {
    __m256i a, b;
} vi;

#define BOTH1(type, f, x)    ((type){ f((x).a), f((x).b) })
#define BOTH2(type, f, x, y) ((type){ f((x).a, (y).a), f((x).b, (y).b) })

INLINE vf vf_zero(void)
{
    return (vf){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}
INLINE vf vf_set1(float x)
{
    return (vf){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
}
INLINE vf vf_load(const float *p)
{
    return (vf){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}
INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
INLINE vf vf_add(vf x, vf y)
{
    return BOTH2(vf, _mm256_add_ps, x, y);
}
INLINE vf vf_sub(vf x, vf y)
{
    return BOTH2(vf, _mm256_sub_ps, x, y);
}
INLINE vf vf_mul(vf x, vf y)
{
    return BOTH2(vf, _mm256_mul_ps, x, y);
}
INLINE vf vf_div(vf x, vf y)
{
    return BOTH2(vf, _mm256_div_ps, x, y);
}
INLINE vf vf_fma(vf x, vf y, vf z)
{
    return (vf){ _mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b) };
}
INLINE vf vf_max(vf x, vf y)
{
    return BOTH2(vf, _mm256_max_ps, x, y);
}
INLINE vf vf_min(vf x, vf y)
{
    return BOTH2(vf, _mm256_min_ps, x, y);
}
INLINE vf vf_abs(vf x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){ _mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b) };
}
INLINE vf vf_first(int n, vf x, vf y)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vf){ _mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane))),
                 _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane))) };
}
INLINE vf vf_of_f16(const uint16_t *p)
{
    return (vf){ _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8))) };
}
INLINE void vf_to_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
INLINE __m256 of_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
INLINE vf vf_of_bf16(const uint16_t *p)
{
    return (vf){ of_bf16(p), of_bf16(p + 8) };
}
INLINE vf vf_of_i8(const int8_t *p)
{
    return (vf){ _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8)))) };
}
INLINE vf vf_of_u8(const uint8_t *p)
{
    return (vf){ _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 8)))) };
}
INLINE vf vf_of_vi(vi x)
{
    return BOTH1(vf, _mm256_cvtepi32_ps, x);
}
INLINE vf vf_of_bits(vi x)
{
    return BOTH1(vf, _mm256_castsi256_ps, x);
}
INLINE vi vi_of_bits(vf x)
{
    return BOTH1(vi, _mm256_castps_si256, x);
}
INLINE float vf_sum(vf x)
{
    __m256 b = _mm256_add_ps(x.a, x.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
INLINE float vf_maximum(vf x)
{
    __m256 b = _mm256_max_ps(x.a, x.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

INLINE vi vi_zero(void)
{
    return (vi){ _mm256_setzero_si256(), _mm256_setzero_si256() };
}
INLINE vi vi_set1(int32_t x)
{
    return (vi){ _mm256_set1_epi32(x), _mm256_set1_epi32(x) };
}
INLINE vi vi_load(const void *p)
{
    return (vi){ _mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1) };
}
INLINE vi vi_add(vi x, vi y)
{
    return BOTH2(vi, _mm256_add_epi32, x, y);
}
INLINE vi vi_sub(vi x, vi y)
{
    return BOTH2(vi, _mm256_sub_epi32, x, y);
}
INLINE vi vi_shl32(vi x, int n)
{
    return (vi){ _mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n) };
}
INLINE vi vi_bits(vi x, int n, uint8_t mask)
{
    const __m256i m = _mm256_set1_epi8((char)mask);
    if (n > 0)
        x = (vi){ _mm256_srli_epi16(x.a, n), _mm256_srli_epi16(x.b, n) };
    if (n < 0)
        x = (vi){ _mm256_slli_epi16(x.a, -n), _mm256_slli_epi16(x.b, -n) };
    return (vi){ _mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m) };
}
INLINE vi vi_or(vi x, vi y)
{
    return BOTH2(vi, _mm256_or_si256, x, y);
}
INLINE vi vi_round(vf x)
{
    return BOTH1(vi, _mm256_cvtps_epi32, x);
}
INLINE void vi_store_i8(int8_t *p, vi x)
{
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8); /* 16 words in order */
    _mm_storeu_si128((void *)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
INLINE int32_t vi_sum(vi x)
{
    __m256i s = _mm256_add_epi32(x.a, x.b);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}
INLINE __m256i quad_set1(const int8_t *x)
{
    int32_t quad;
    memcpy(&quad, x, 4);
    return _mm256_set1_epi32(quad);
}
#ifdef VEC_VNNI
INLINE vi vi_dot4(vi acc, vi c, const int8_t *x)
{
    __m256i q = quad_set1(x);
    return (vi){ _mm256_dpbusd_avx_epi32(acc.a, c.a, q), _mm256_dpbusd_avx_epi32(acc.b, c.b, q) };
}
INLINE vi vi_start8(int32_t n)
{
    return vi_set1((int32_t)((uint32_t)n << 7));
}
INLINE vi vi_dot4_8(vi acc, vi c, const int8_t *x)
{
    return vi_dot4(acc, c, x);
}
#else
/* vpmaddubsw saturates at 2^15: codes of up to 6 bits stay below (63 * 127 * 2), codes of 8 bits do not. */
INLINE __m256i dot4(__m256i acc, __m256i c, __m256i q)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(c, q), _mm256_set1_epi16(1)));
}
INLINE vi vi_dot4(vi acc, vi c, const int8_t *x)
{
    __m256i q = quad_set1(x);
    return (vi){ dot4(acc.a, c.a, q), dot4(acc.b, c.b, q) };
}
/* For 8 bits the offset is taken off first and the sign of the code is moved to x: 128 * 127 * 2 fits. */
INLINE vi vi_start8(int32_t n)
{
    (void)n;
    return vi_zero();
}
INLINE __m256i dot4_8(__m256i acc, __m256i c, __m256i q)
{
    c = _mm256_xor_si256(c, _mm256_set1_epi8(-128));
    return dot4(acc, _mm256_abs_epi8(c), _mm256_sign_epi8(q, c));
}
INLINE vi vi_dot4_8(vi acc, vi c, const int8_t *x)
{
    __m256i q = quad_set1(x);
    return (vi){ dot4_8(acc.a, c.a, q), dot4_8(acc.b, c.b, q) };
}
#endif

#undef BOTH1
#undef BOTH2
#endif
