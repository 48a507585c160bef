/* gemm_body.h - matrix products on panels; included by each kernels_*.c, on the vectors of vec.h.
 *
 * One block of 32 K of a panel is unpacked into registers (8 vectors of codes, scales as floats) and used for the `nt` rows
 * of a tile.  At 16 rows the unpacking costs a few per cent, so prompts need no unpacked copy of the weights and there is
 * one kernel from one row to 16.  `type` and `nt` are constants wherever this is inlined. */

struct codes {
    vi c[8];     /* quad j of the 16 rows: unsigned bytes */
    vf d, m;     /* scale and minimum of the block ... */
    vf d1;       /* ... Q6_K: d of the first 16, d1 of the second */
};

enum {
    NT_MAX = 16,
    AHEAD_BYTES = 8192, /* weights are asked for so far before they are used; a thread walks through memory in order */
};

/* Four vectors of nibbles: low halves are quads 0..3, high halves 4..7. */
INLINE void unpack_nibbles(struct codes *u, const uint8_t *p)
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        vi v = vi_load(p + 64 * j);
        u->c[j] = vi_bits(v, 0, 0x0f);
        u->c[j + 4] = vi_bits(v, 4, 0x0f);
    }
}

/* One vector of fifth bits: bit j of each byte belongs to quad j. */
INLINE void unpack_fifth_bits(struct codes *u, const uint8_t *p)
{
    vi h = vi_load(p);

    UNROLL
    for (int j = 0; j < 8; j++)
        u->c[j] = vi_or(u->c[j], vi_bits(h, j - 4, 0x10));
}

/* Two vectors of bits 4 and 5: bits 2i, 2i+1 of the first belong to quad i, of the second to quad i+4. */
INLINE void unpack_sixth_bits(struct codes *u, const uint8_t *p)
{
    UNROLL
    for (int j = 0; j < 8; j++)
        u->c[j] = vi_or(u->c[j], vi_bits(vi_load(p + 64 * (j / 4)), 2 * (j % 4) - 4, 0x30));
}

/* Bytes of a block in a panel; what the K types keep for every 256 comes on top. */
INLINE size_t block_bytes_of(const int type)
{
    switch (type) {
    case TENSOR_Q4_1:
        return 320;
    case TENSOR_Q5_0:
    case TENSOR_Q5_K:
        return 352;
    case TENSOR_Q5_1:
        return 384;
    case TENSOR_Q8_0:
        return 544;
    case TENSOR_Q6_K:
        return 416;
    default: /* TENSOR_Q4_0, TENSOR_Q4_K */
        return 288;
    }
}

INLINE void unpack(const int type, const uint8_t *panel, size_t b, struct codes *u)
{
    const uint8_t *p, *super;

    switch (type) {
    case TENSOR_Q4_0:
        p = panel + b * 288;
        unpack_nibbles(u, p);
        u->d = vf_of_f16((const void *)(p + 256));
        break;
    case TENSOR_Q4_1:
        p = panel + b * 320;
        unpack_nibbles(u, p);
        u->d = vf_of_f16((const void *)(p + 256));
        u->m = vf_of_f16((const void *)(p + 288));
        break;
    case TENSOR_Q5_0:
        p = panel + b * 352;
        unpack_nibbles(u, p);
        unpack_fifth_bits(u, p + 256);
        u->d = vf_of_f16((const void *)(p + 320));
        break;
    case TENSOR_Q5_1:
        p = panel + b * 384;
        unpack_nibbles(u, p);
        unpack_fifth_bits(u, p + 256);
        u->d = vf_of_f16((const void *)(p + 320));
        u->m = vf_of_f16((const void *)(p + 352));
        break;
    case TENSOR_Q8_0:
        p = panel + b * 544;
        UNROLL
        for (int j = 0; j < 8; j++)
            u->c[j] = vi_load(p + 64 * j);
        u->d = vf_of_f16((const void *)(p + 512));
        break;
    case TENSOR_Q4_K:
        super = panel + b / 8 * 2368;
        p = super + 64 + b % 8 * 288;
        unpack_nibbles(u, p);
        u->d = vf_mul(vf_of_f16((const void *)super), vf_of_u8(p + 256));
        u->m = vf_mul(vf_of_f16((const void *)(super + 32)), vf_of_u8(p + 272)); /* stored negative */
        break;
    case TENSOR_Q5_K:
        super = panel + b / 8 * 2880;
        p = super + 64 + b % 8 * 352;
        unpack_nibbles(u, p);
        unpack_fifth_bits(u, p + 256);
        u->d = vf_mul(vf_of_f16((const void *)super), vf_of_u8(p + 320));
        u->m = vf_mul(vf_of_f16((const void *)(super + 32)), vf_of_u8(p + 336));
        break;
    default: /* TENSOR_Q6_K */
        super = panel + b / 8 * 3360;
        p = super + 32 + b % 8 * 416;
        unpack_nibbles(u, p);
        unpack_sixth_bits(u, p + 256);
        u->d = vf_mul(vf_of_f16((const void *)super), vf_of_i8((const int8_t *)p + 384));
        u->d1 = vf_mul(vf_of_f16((const void *)super), vf_of_i8((const int8_t *)p + 400));
        break;
    }
}

/* What the integer sum starts with, so that codes count from their middle: -middle * sum(q) = n * middle. */
INLINE vi start(const int type, int32_t n)
{
    switch (type) {
    case TENSOR_Q4_0:
        return vi_shl32(vi_set1(n), 3);
    case TENSOR_Q5_0:
        return vi_shl32(vi_set1(n), 4);
    case TENSOR_Q8_0:
        return vi_start8(n);
    case TENSOR_Q6_K:
        return vi_shl32(vi_set1(n), 5);
    default:
        return vi_zero();
    }
}

INLINE vf dot_block(const int type, const struct codes *u, const struct xblock *x, vf acc)
{
    const vf d = vf_set1(x->d);

    if (type == TENSOR_Q6_K) {
        vi i0 = start(type, x->n0), i1 = start(type, x->n - x->n0);
        UNROLL
        for (int j = 0; j < 4; j++) {
            i0 = vi_dot4(i0, u->c[j], x->q + 4 * j);
            i1 = vi_dot4(i1, u->c[j + 4], x->q + 16 + 4 * j);
        }
        acc = vf_fma(vf_of_vi(i0), vf_mul(u->d, d), acc);
        return vf_fma(vf_of_vi(i1), vf_mul(u->d1, d), acc);
    }
    vi i = start(type, x->n);
    UNROLL
    for (int j = 0; j < 8; j++)
        i = type == TENSOR_Q8_0 ? vi_dot4_8(i, u->c[j], x->q + 4 * j) : vi_dot4(i, u->c[j], x->q + 4 * j);
    acc = vf_fma(vf_of_vi(i), vf_mul(u->d, d), acc);
    if (type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q4_K || type == TENSOR_Q5_K)
        acc = vf_fma(u->m, vf_set1(x->s), acc);
    return acc;
}

INLINE void tile_int(const int type, const int nt, const uint8_t *panel, uint32_t n_blocks, const struct tile *tile,
                     uint32_t first, float *y, size_t y_stride)
{
    const struct xblock *x = (const struct xblock *)tile->x + first;
    vf acc[NT_MAX];

    UNROLL
    for (int t = 0; t < nt; t++)
        acc[t] = vf_zero();
    for (uint32_t b = 0; b < n_blocks; b++, x += tile->stride) {
        const struct xblock *part = x;
        struct codes u;
        for (size_t i = 0; i < block_bytes_of(type); i += 64)
            __builtin_prefetch(panel + b * block_bytes_of(type) + AHEAD_BYTES + i);
        unpack(type, panel, b, &u);
        for (uint32_t i = 0; i < tile->parts; i++, part += tile->width) {
            UNROLL
            for (int t = 0; t < nt; t++)
                acc[t] = dot_block(type, &u, part + t, acc[t]);
        }
    }
    UNROLL
    for (int t = 0; t < nt; t++)
        vf_store(y + (size_t)t * y_stride, acc[t]);
}

INLINE vf load_weights(const int type, const uint8_t *panel, size_t k)
{
    if (type == TENSOR_F32)
        return vf_load((const float *)(const void *)panel + k * 16);
    if (type == TENSOR_F16)
        return vf_of_f16((const uint16_t *)(const void *)panel + k * 16);
    return vf_of_bf16((const uint16_t *)(const void *)panel + k * 16);
}

/* np panels side by side: with few rows one chain of sums for each panel would wait for its own additions. */
INLINE void tile_float(const int type, const int nt, const int np, const uint8_t *panel, size_t panel_bytes, uint32_t n_k,
                       const float *x, uint32_t width, float *y, size_t y_stride)
{
    vf acc[4][NT_MAX];

    UNROLL
    for (int p = 0; p < np; p++)
        UNROLL
        for (int t = 0; t < nt; t++)
            acc[p][t] = vf_zero();
    for (uint32_t k = 0; k < n_k; k++, x += width) {
        UNROLL
        for (int p = 0; p < np; p++) {
            vf w = load_weights(type, panel + (size_t)p * panel_bytes, k);
            UNROLL
            for (int t = 0; t < nt; t++)
                acc[p][t] = vf_fma(w, vf_set1(x[t]), acc[p][t]);
        }
    }
    UNROLL
    for (int p = 0; p < np; p++)
        UNROLL
        for (int t = 0; t < nt; t++)
            vf_store(y + (size_t)t * y_stride + 16 * p, acc[p][t]);
}

/* The widths that have a loop of their own; what is left of a tile goes on with a smaller one. */
#if VEC_REGISTERS == 32
#define WIDTHS(X) X(16) X(12) X(8) X(6) X(4) X(3) X(2) X(1)
#elif VEC_REGISTERS == 16
#define WIDTHS(X) X(4) X(2) X(1)
#else
#define WIDTHS(X) X(1)
#endif

#define STEP_INT(nt)                                                                                               \
    if (x->width - t >= nt) {                                                                                      \
        tile_int(type, nt, panels, n_k, x, t, y + t * y_stride, y_stride);                                         \
        t += nt;                                                                                                   \
        continue;                                                                                                  \
    }

INLINE void gemm_int(const int type, const uint8_t *panels, size_t panel_bytes, uint32_t n_panels, uint32_t n_k,
                     const struct tile *x, float *y, size_t y_stride)
{
    for (uint32_t p = 0; p < n_panels; p++, panels += panel_bytes, y += 16) {
        for (uint32_t t = 0; t < x->width;) {
            WIDTHS(STEP_INT)
        }
    }
}

#define STEP_FLOAT(nt)                                                                                             \
    if (width - t >= nt) {                                                                                         \
        if (np == 4 && nt <= 4)                                                                                    \
            tile_float(type, nt, 4, panels, panel_bytes, n_k, x + t, width, y + t * y_stride, y_stride);           \
        else                                                                                                       \
            for (uint32_t i = 0; i < np; i++)                                                                      \
                tile_float(type, nt, 1, panels + i * panel_bytes, panel_bytes, n_k, x + t, width,                  \
                           y + t * y_stride + 16 * i, y_stride);                                                   \
        t += nt;                                                                                                   \
        continue;                                                                                                  \
    }

INLINE void gemm_float(const int type, const uint8_t *panels, size_t panel_bytes, uint32_t n_panels, uint32_t n_k,
                       const struct tile *tile, float *y, size_t y_stride)
{
    const float *x = tile->x;
    const uint32_t width = tile->width;
    uint32_t np;

    for (uint32_t p = 0; p < n_panels; p += np, panels += np * panel_bytes, y += 16 * np) {
        np = n_panels - p >= 4 ? 4 : 1;
        for (uint32_t t = 0; t < width;) {
            WIDTHS(STEP_FLOAT)
        }
    }
}

#define GEMM(kind, name)                                                                                           \
    static void gemm_##name(const uint8_t *panels, size_t panel_bytes, uint32_t n_panels, uint32_t n_k,            \
                            const struct tile *x, float *y, size_t y_stride)                                       \
    {                                                                                                              \
        gemm_##kind(TENSOR_##name, panels, panel_bytes, n_panels, n_k, x, y, y_stride);                            \
    }
GEMM(float, F32)
GEMM(float, F16)
GEMM(float, BF16)
GEMM(int, Q4_0)
GEMM(int, Q4_1)
GEMM(int, Q5_0)
GEMM(int, Q5_1)
GEMM(int, Q8_0)
GEMM(int, Q4_K)
GEMM(int, Q5_K)
GEMM(int, Q6_K)
