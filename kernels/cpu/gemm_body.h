/* gemm_body.h - matrix products on panels; included by each kernels_*.c, on the vectors of vec.h.
 *
 * One block of 32 K of a panel is unpacked in registers and used for the `nt` rows of a tile.  At 16 rows the unpacking costs a
 * few per cent, so prompts need no unpacked copy of the weights.  `type` and `nt` are constants wherever this is inlined. */

struct scales {
    vf d, m;     /* scale and minimum of the block ... */
    vf d1;       /* ... Q6_K: d of the first 16, d1 of the second */
};

enum {
    NT_MAX = 16,
    AHEAD_BYTES = 8192, /* weights are asked for so far before they are used; a thread walks through memory in order */
};

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

/* Where block b of a panel begins; *ret_super is where its 256 K begin (K types). */
INLINE const uint8_t *block_in(const int type, const uint8_t *panel, size_t b, const uint8_t **ret_super)
{
    const size_t each = block_bytes_of(type), head = type == TENSOR_Q6_K ? 32 : 64;

    *ret_super = panel;
    if (type != TENSOR_Q4_K && type != TENSOR_Q5_K && type != TENSOR_Q6_K)
        return panel + b * each;
    *ret_super = panel + b / 8 * (head + 8 * each);
    return *ret_super + head + b % 8 * each;
}

/* Codes of quads j and j + 4 of the block at p.  Nibbles: low halves are quads 0..3, high halves 4..7.  Fifth bits: one vector, bit
 * i of each byte belongs to quad i.  Bits 4 and 5: two vectors, bits 2i, 2i+1 of the first belong to quad i, of the second to i+4. */
INLINE void unpack_pair(const int type, const uint8_t *p, const int j, vi *ret_low, vi *ret_high)
{
    const vi v = vi_load(p + 64 * j);

    if (type == TENSOR_Q8_0) {
        *ret_low = v;
        *ret_high = vi_load(p + 64 * (j + 4));
        return;
    }
    vi low = vi_bits(v, 0, 0x0f), high = vi_bits(v, 4, 0x0f);
    if (type == TENSOR_Q5_0 || type == TENSOR_Q5_1 || type == TENSOR_Q5_K) {
        const vi fifth = vi_load(p + 256);
        low = vi_or(low, vi_bits(fifth, j - 4, 0x10));
        high = vi_or(high, vi_bits(fifth, j, 0x10));
    } else if (type == TENSOR_Q6_K) {
        low = vi_or(low, vi_bits(vi_load(p + 256), 2 * j - 4, 0x30));
        high = vi_or(high, vi_bits(vi_load(p + 320), 2 * j - 4, 0x30));
    }
    *ret_low = low;
    *ret_high = high;
}

INLINE vf halves(const uint8_t *p)
{
    return vf_of_f16((const void *)p);
}

INLINE void unpack_scales(const int type, const uint8_t *p, const uint8_t *super, struct scales *u)
{
    switch (type) {
    case TENSOR_Q4_1:
        u->d = halves(p + 256);
        u->m = halves(p + 288);
        break;
    case TENSOR_Q5_0:
        u->d = halves(p + 320);
        break;
    case TENSOR_Q5_1:
        u->d = halves(p + 320);
        u->m = halves(p + 352);
        break;
    case TENSOR_Q8_0:
        u->d = halves(p + 512);
        break;
    case TENSOR_Q4_K:
        u->d = vf_mul(halves(super), vf_of_u8(p + 256));
        u->m = vf_mul(halves(super + 32), vf_of_u8(p + 272)); /* stored negative */
        break;
    case TENSOR_Q5_K:
        u->d = vf_mul(halves(super), vf_of_u8(p + 320));
        u->m = vf_mul(halves(super + 32), vf_of_u8(p + 336));
        break;
    case TENSOR_Q6_K:
        u->d = vf_mul(halves(super), vf_of_i8((const int8_t *)p + 384));
        u->d1 = vf_mul(halves(super), vf_of_i8((const int8_t *)p + 400));
        break;
    default: /* TENSOR_Q4_0 */
        u->d = halves(p + 256);
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

INLINE vi dot(const int type, vi acc, vi codes, const int8_t *q)
{
    return type == TENSOR_Q8_0 ? vi_dot4_8(acc, codes, q) : vi_dot4(acc, codes, q);
}

/* The integer sums of a block (i1: the second half, Q6_K only) come to an output. */
INLINE vf accumulate(const int type, const struct scales *u, const struct xblock *x, vi i0, vi i1, vf acc)
{
    const vf d = vf_set1(x->d);

    acc = vf_fma(vf_of_vi(i0), vf_mul(u->d, d), acc);
    if (type == TENSOR_Q6_K)
        return vf_fma(vf_of_vi(i1), vf_mul(u->d1, d), acc);
    if (type == TENSOR_Q4_1 || type == TENSOR_Q5_1 || type == TENSOR_Q4_K || type == TENSOR_Q5_K)
        return vf_fma(u->m, vf_set1(x->s), acc);
    return acc;
}

INLINE void fetch_block(const int type, const uint8_t *panel, size_t b)
{
    for (size_t i = 0; i < block_bytes_of(type); i += 64)
        __builtin_prefetch(panel + b * block_bytes_of(type) + AHEAD_BYTES + i);
}

/* Few rows: a block's codes are in registers, and the outputs; rows pass one by one. */
INLINE void tile_few(const int type, const int nt, const uint8_t *panel, uint32_t n_blocks, const struct tile *tile,
                     uint32_t first, float *y, size_t y_stride)
{
    const struct xblock *x = (const struct xblock *)tile->x + first;
    vf acc[NT_MAX];

    UNROLL
    for (int t = 0; t < nt; t++)
        acc[t] = vf_zero();
    for (uint32_t b = 0; b < n_blocks; b++, x += tile->stride) {
        const struct xblock *part = x;
        const uint8_t *super, *p = block_in(type, panel, b, &super);
        struct scales u;
        vi codes[8];
        fetch_block(type, panel, b);
        UNROLL
        for (int j = 0; j < 4; j++)
            unpack_pair(type, p, j, &codes[j], &codes[j + 4]);
        unpack_scales(type, p, super, &u);
        for (uint32_t i = 0; i < tile->parts; i++, part += tile->width) {
            UNROLL
            for (int t = 0; t < nt; t++) {
                const struct xblock *xt = part + t;
                vi i0 = start(type, type == TENSOR_Q6_K ? xt->n0 : xt->n), i1 = start(type, xt->n - xt->n0);
                UNROLL
                for (int j = 0; j < 8; j++)
                    if (type == TENSOR_Q6_K && j >= 4)
                        i1 = dot(type, i1, codes[j], xt->q + 4 * j);
                    else
                        i0 = dot(type, i0, codes[j], xt->q + 4 * j);
                acc[t] = accumulate(type, &u, xt, i0, i1, acc[t]);
            }
        }
    }
    UNROLL
    for (int t = 0; t < nt; t++)
        vf_store(y + (size_t)t * y_stride, acc[t]);
}

/* Many rows: their integer sums are in registers and two quads of codes at a time; outputs wait in memory.  So there are as many
 * independent sums as rows, which hides the latency of the products. */
INLINE void tile_many(const int type, const int nt, const uint8_t *panel, uint32_t n_blocks, const struct tile *tile,
                      uint32_t first, float *y, size_t y_stride)
{
    const struct xblock *x = (const struct xblock *)tile->x + first;
    const uint8_t *ahead = tile->ahead;
    _Alignas(64) float acc[NT_MAX][16];

    UNROLL
    for (int t = 0; t < nt; t++)
        vf_store(acc[t], vf_zero());
    for (uint32_t b = 0; b < n_blocks; b++, x += tile->stride) {
        const struct xblock *part = x;
        const uint8_t *super, *p = block_in(type, panel, b, &super);
        fetch_block(type, panel, b);
        for (uint32_t i = 0; i < tile->ahead_lines; i++, ahead += 64)
            __builtin_prefetch(ahead, 0, 2);
        for (uint32_t i = 0; i < tile->parts; i++, part += tile->width) {
            struct scales u;
            vi i0[NT_MAX], i1[NT_MAX];
            __asm__("" : "+r"(p)); /* unpacked once for both parts, the codes would take the registers of the sums */
            UNROLL
            for (int t = 0; t < nt; t++) {
                i0[t] = start(type, type == TENSOR_Q6_K ? part[t].n0 : part[t].n);
                i1[t] = start(type, part[t].n - part[t].n0);
            }
            UNROLL
            for (int j = 0; j < 4; j++) {
                vi low, high;
                unpack_pair(type, p, j, &low, &high);
                UNROLL
                for (int t = 0; t < nt; t++) {
                    i0[t] = dot(type, i0[t], low, part[t].q + 4 * j);
                    if (type == TENSOR_Q6_K)
                        i1[t] = dot(type, i1[t], high, part[t].q + 4 * j + 16);
                    else
                        i0[t] = dot(type, i0[t], high, part[t].q + 4 * j + 16);
                }
            }
            unpack_scales(type, p, super, &u);
            UNROLL
            for (int t = 0; t < nt; t++)
                vf_store(acc[t], accumulate(type, &u, &part[t], i0[t], i1[t], vf_load(acc[t])));
        }
    }
    UNROLL
    for (int t = 0; t < nt; t++)
        vf_store(y + (size_t)t * y_stride, vf_load(acc[t]));
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

/* (Q6_K has two sums a row.) */
#define STEP_INT(nt)                                                                                               \
    if (x->width - t >= nt && (type != TENSOR_Q6_K || nt <= 12)) {                                                 \
        if (nt >= TILE_MANY)                                                                                       \
            tile_many(type, nt, panels, n_k, x, t, y + t * y_stride, y_stride);                                    \
        else                                                                                                       \
            tile_few(type, nt, panels, n_k, x, t, y + t * y_stride, y_stride);                                     \
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
