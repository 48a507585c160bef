/* kv_body.h - RoPE, and K and V into their block; included by each kernels_*.c. */

/* Turn the pairs (i, i + D/2) by the angles whose cosines and sines are given, then multiply by scale. */
static void rope(float *x, const float *cosines, const float *sines, uint32_t head_dim, float scale)
{
    const uint32_t half = head_dim / 2;
    const vf f = vf_set1(scale);

    for (uint32_t i = 0; i < half; i += 16) {
        vf a = vf_load(x + i), b = vf_load(x + half + i), c = vf_load(cosines + i), s = vf_load(sines + i);
        vf_store(x + i, vf_mul(vf_sub(vf_mul(a, c), vf_mul(b, s)), f));
        vf_store(x + half + i, vf_mul(vf_add(vf_mul(a, s), vf_mul(b, c)), f));
    }
}

/* 32 values to int8 with one f16 scale, rounded before it is used, so that code * scale is what was meant. */
INLINE uint16_t to_q8(const float *x, int8_t *codes)
{
    vf a = vf_load(x), b = vf_load(x + 16);
    uint16_t scale = f32_to_f16(vf_maximum(vf_max(vf_abs(a), vf_abs(b))) / 127.0f);
    float d = f16_to_f32(scale);
    vf inverse = vf_set1(d > 0 ? 1.0f / d : 0.0f);

    vi_store_i8(codes, to_codes(a, inverse));
    vi_store_i8(codes + 16, to_codes(b, inverse));
    return scale;
}

static void store_k(const struct kv_view *kv, uint32_t position, const float *k)
{
    uint8_t *block = (uint8_t *)(uintptr_t)block_at(kv, position);
    const uint32_t lane = position % 16;

    if (kv->kv_group == 0) {
        uint16_t *out = (uint16_t *)(void *)(block + kv->k) + lane;
        for (uint32_t d = 0; d < kv->head_dim; d += 16) {
            uint16_t half[16];
            vf_to_f16(half, vf_load(k + d));
            for (uint32_t i = 0; i < 16; i++)
                out[(d + i) * 16] = half[i];
        }
        return;
    }
    for (uint32_t d = 0; d < kv->head_dim; d += QUANT_BLOCK) {
        _Alignas(64) int8_t codes[QUANT_BLOCK];
        ((uint16_t *)(void *)(block + kv->k_scales))[d / QUANT_BLOCK * 16 + lane] = to_q8(k + d, codes);
        for (uint32_t i = 0; i < QUANT_BLOCK; i++)
            block[kv->k + (d + i) / 4 * 64 + lane * 4 + i % 4] = (uint8_t)(codes[i] ^ -128);
    }
}

static void store_v(const struct kv_view *kv, uint32_t position, const float *v)
{
    uint8_t *block = (uint8_t *)(uintptr_t)block_at(kv, position);
    const uint32_t lane = position % 16;

    for (uint32_t d = 0; kv->kv_group == 0 && d < kv->head_dim; d += 16)
        vf_to_f16((uint16_t *)(void *)(block + kv->v) + (size_t)lane * kv->head_dim + d, vf_load(v + d));
    for (uint32_t d = 0; kv->kv_group != 0 && d < kv->head_dim; d += QUANT_BLOCK)
        ((uint16_t *)(void *)(block + kv->v_scales))[d / QUANT_BLOCK * 16 + lane] =
            to_q8(v + d, (int8_t *)block + kv->v + (size_t)lane * kv->head_dim + d);
}
