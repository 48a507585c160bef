/* vec_scalar.h - the operations of vec.h in plain C: the specification of the others. */
#ifndef VEC_SCALAR_H
#define VEC_SCALAR_H

#define VEC_REGISTERS 0

typedef struct {
    float f[16];
} vf;
typedef struct {
    int32_t i[16];
} vi;

#define EACH for (int l = 0; l < 16; l++)

INLINE vf vf_zero(void)
{
    return (vf){ { 0 } };
}
INLINE vf vf_set1(float x)
{
    vf r;
    EACH r.f[l] = x;
    return r;
}
INLINE vf vf_load(const float *p)
{
    vf r;
    memcpy(&r, p, 64);
    return r;
}
INLINE void vf_store(float *p, vf a)
{
    memcpy(p, &a, 64);
}
INLINE vf vf_add(vf a, vf b)
{
    EACH a.f[l] = a.f[l] + b.f[l];
    return a;
}
INLINE vf vf_sub(vf a, vf b)
{
    EACH a.f[l] = a.f[l] - b.f[l];
    return a;
}
INLINE vf vf_mul(vf a, vf b)
{
    EACH a.f[l] = a.f[l] * b.f[l];
    return a;
}
INLINE vf vf_div(vf a, vf b)
{
    EACH a.f[l] = a.f[l] / b.f[l];
    return a;
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    EACH a.f[l] = fmaf(a.f[l], b.f[l], c.f[l]);
    return a;
}
/* the second where either is NaN */
INLINE vf vf_max(vf a, vf b)
{
    EACH a.f[l] = a.f[l] > b.f[l] ? a.f[l] : b.f[l];
    return a;
}
INLINE vf vf_min(vf a, vf b)
{
    EACH a.f[l] = a.f[l] < b.f[l] ? a.f[l] : b.f[l];
    return a;
}
INLINE vf vf_abs(vf a)
{
    EACH a.f[l] = f32_from_bits(f32_bits(a.f[l]) & 0x7fffffff);
    return a;
}
/* lanes below n of a, the others of b */
INLINE vf vf_first(int n, vf a, vf b)
{
    EACH a.f[l] = l < n ? a.f[l] : b.f[l];
    return a;
}
INLINE vf vf_of_f16(const uint16_t *p)
{
    vf r;
    EACH r.f[l] = f16_to_f32(p[l]);
    return r;
}
INLINE void vf_to_f16(uint16_t *p, vf a)
{
    EACH p[l] = f32_to_f16(a.f[l]);
}
INLINE vf vf_of_bf16(const uint16_t *p)
{
    vf r;
    EACH r.f[l] = bf16_to_f32(p[l]);
    return r;
}
INLINE vf vf_of_i8(const int8_t *p)
{
    vf r;
    EACH r.f[l] = (float)p[l];
    return r;
}
INLINE vf vf_of_u8(const uint8_t *p)
{
    vf r;
    EACH r.f[l] = (float)p[l];
    return r;
}
INLINE vf vf_of_vi(vi a)
{
    vf r;
    EACH r.f[l] = (float)a.i[l];
    return r;
}
INLINE vf vf_of_bits(vi a)
{
    vf r;
    memcpy(&r, &a, 64);
    return r;
}
INLINE vi vi_of_bits(vf a)
{
    vi r;
    memcpy(&r, &a, 64);
    return r;
}
/* lanes i and i+8, then 4, 2, 1 apart */
INLINE float vf_sum(vf a)
{
    for (int n = 8; n >= 1; n /= 2)
        for (int l = 0; l < n; l++)
            a.f[l] = a.f[l] + a.f[l + n];
    return a.f[0];
}
INLINE float vf_maximum(vf a)
{
    for (int n = 8; n >= 1; n /= 2)
        for (int l = 0; l < n; l++)
            a.f[l] = a.f[l] > a.f[l + n] ? a.f[l] : a.f[l + n];
    return a.f[0];
}

INLINE vi vi_zero(void)
{
    return (vi){ { 0 } };
}
INLINE vi vi_set1(int32_t x)
{
    vi r;
    EACH r.i[l] = x;
    return r;
}
INLINE vi vi_load(const void *p)
{
    vi r;
    memcpy(&r, p, 64);
    return r;
}
INLINE vi vi_add(vi a, vi b)
{
    EACH a.i[l] = (int32_t)((uint32_t)a.i[l] + (uint32_t)b.i[l]);
    return a;
}
INLINE vi vi_sub(vi a, vi b)
{
    EACH a.i[l] = (int32_t)((uint32_t)a.i[l] - (uint32_t)b.i[l]);
    return a;
}
INLINE vi vi_shl32(vi a, int n)
{
    EACH a.i[l] = (int32_t)((uint32_t)a.i[l] << n);
    return a;
}
/* The 64 bytes shifted by n (right when positive, left when negative), then masked: only bits that stay in their byte count. */
INLINE vi vi_bits(vi a, int n, uint8_t mask)
{
    uint8_t b[64];
    memcpy(b, &a, 64);
    for (int j = 0; j < 64; j++)
        b[j] = (uint8_t)((n >= 0 ? b[j] >> n : b[j] << -n) & mask);
    memcpy(&a, b, 64);
    return a;
}
INLINE vi vi_or(vi a, vi b)
{
    EACH a.i[l] |= b.i[l];
    return a;
}
/* Nearest integers, ties to even; |a| < 2^22. */
INLINE vi vi_round(vf a)
{
    vi r;
    EACH r.i[l] = a.f[l] > -4e6f && a.f[l] < 4e6f ? (int32_t)((a.f[l] + 12582912.0f) - 12582912.0f) : INT32_MIN;
    return r;
}
/* Lowest byte of each lane. */
INLINE void vi_store_i8(int8_t *p, vi a)
{
    EACH p[l] = (int8_t)a.i[l];
}
INLINE int32_t vi_sum(vi a)
{
    int32_t s = 0;
    EACH s += a.i[l];
    return s;
}
/* acc + for each lane: its four unsigned bytes of c times the four signed bytes at x */
INLINE vi vi_dot4(vi acc, vi c, const int8_t *x)
{
    uint8_t b[64];
    memcpy(b, &c, 64);
    EACH acc.i[l] += b[4 * l] * x[0] + b[4 * l + 1] * x[1] + b[4 * l + 2] * x[2] + b[4 * l + 3] * x[3];
    return acc;
}
/* The same for codes of 8 bits, which are 128 too large: start gives what takes that off again, n being minus the sum
 * of the x.  Split like this because AVX2 has another way. */
INLINE vi vi_start8(int32_t n)
{
    return vi_set1((int32_t)((uint32_t)n << 7));
}
INLINE vi vi_dot4_8(vi acc, vi c, const int8_t *x)
{
    return vi_dot4(acc, c, x);
}

#undef EACH
#endif
