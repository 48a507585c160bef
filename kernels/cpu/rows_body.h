/* rows_body.h - operations on rows of floats; included by each kernels_*.c.
 *
 * Sums run over 16 lanes (element i in lane i mod 16) and end in vf_sum's tree, so they do not depend on how wide the
 * registers are.  Buffers are padded to 16 elements. */

static void rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    vf sum = vf_zero();

    for (uint32_t i = 0; i < n; i += 16) {
        vf v = vf_load(x + i);
        sum = vf_fma(v, v, sum);
    }
    const vf scale = vf_set1(1.0f / sqrtf(vf_sum(sum) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16)
        vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(w + i)));
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        vf_store(y + i, vf_add(vf_load(y + i), vf_load(x + i)));
}

/* What is too small to divide by becomes zero; the clamp also gives NaN and infinity the same codes everywhere. */
INLINE vi to_codes(vf x, vf inverse)
{
    return vi_round(vf_min(vf_max(vf_mul(x, inverse), vf_set1(-127.0f)), vf_set1(127.0f)));
}

INLINE void put_codes(struct xblock *out, vi q0, vi q1, float d)
{
    vi_store_i8(out->q, q0);
    vi_store_i8(out->q + 16, q1);
    out->d = d;
    /* both sums in one: that of all 32 in the low half (13 bits), that of the first 16 above it */
    const int32_t both = vi_sum(vi_add(vi_add(q0, q1), vi_shl32(q0, 16))), all = (int16_t)(uint16_t)both;
    out->n = -all;
    out->n0 = -((both - all) >> 16);
    out->s = d * (float)-out->n;
}

static void quantise(const float *x, uint32_t n_blocks, struct xblock *out, size_t stride, size_t second)
{
    for (uint32_t b = 0; b < n_blocks; b++, x += QUANT_BLOCK, out += stride) {
        vf x0 = vf_load(x), x1 = vf_load(x + 16);
        float largest = vf_maximum(vf_max(vf_abs(x0), vf_abs(x1)));
        const float d = largest / 127.0f;
        vf inverse = vf_set1(largest > 1e-30f ? 127.0f / largest : 0.0f);
        vi q0 = to_codes(x0, inverse), q1 = to_codes(x1, inverse);
        put_codes(out, q0, q1, d);
        if (second == 0)
            continue;
        const vf back = vf_set1(-d), finer = vf_mul(inverse, vf_set1(254.0f));
        q0 = to_codes(vf_fma(vf_of_vi(q0), back, x0), finer);
        q1 = to_codes(vf_fma(vf_of_vi(q1), back, x1), finer);
        put_codes(out + second, q0, q1, d / 254.0f);
    }
}

/* SiLU: g / (1 + e^-g).  GELU, tanh form: g/2 (1 + tanh z) = g / (1 + e^-2z), z = sqrt(2/pi) (g + 0.044715 g^3). */
static void gate(enum gate_kind kind, float *g, const float *u, uint32_t n)
{
    const vf one = vf_set1(1.0f);

    for (uint32_t i = 0; i < n; i += 16) {
        vf x = vf_load(g + i), z = x;
        if (kind == GATE_GELU)
            z = vf_mul(vf_mul(x, vf_set1(1.59576912f)), vf_fma(vf_mul(x, x), vf_set1(0.044715f), one));
        vf e = vf_exp(vf_sub(vf_zero(), z));
        vf_store(g + i, vf_mul(vf_div(x, vf_add(one, e)), vf_load(u + i)));
    }
}

static float maximum(const float *x, uint32_t n)
{
    const vf lowest = vf_set1(-INFINITY);
    vf m = lowest;

    for (uint32_t i = 0; i < n; i += 16)
        m = vf_max(m, n - i >= 16 ? vf_load(x + i) : vf_first((int)(n - i), vf_load(x + i), lowest));
    return vf_maximum(m);
}

static float sum_exp(const float *x, uint32_t n, float max, float factor)
{
    const vf top = vf_set1(max), f = vf_set1(factor);
    vf sum = vf_zero();

    for (uint32_t i = 0; i < n; i += 16) {
        vf e = vf_exp(vf_mul(vf_sub(vf_load(x + i), top), f));
        sum = vf_add(sum, n - i >= 16 ? e : vf_first((int)(n - i), e, vf_zero()));
    }
    return vf_sum(sum);
}

static uint32_t panels_from(const float *x, uint32_t n_panels, float least, uint32_t *ret_panels)
{
    uint32_t n = 0;

    for (uint32_t first = 0; first < n_panels; first += 8) { /* nearly all have none: 8 at a time */
        const uint32_t end = n_panels - first < 8 ? n_panels : first + 8;
        vf max = vf_load(x + (size_t)first * 16);
        for (uint32_t p = first + 1; p < end; p++)
            max = vf_max(vf_load(x + (size_t)p * 16), max);
        for (uint32_t p = first; vf_maximum(max) >= least && p < end; p++)
            if (vf_maximum(vf_load(x + (size_t)p * 16)) >= least)
                ret_panels[n++] = p;
    }
    return n;
}
