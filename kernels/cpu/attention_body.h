/* attention_body.h - attention of a tile of queries over paged blocks; included by each kernels_*.c.
 *
 *     s[p] = q . K[p]     m = max s     w[p] = exp(s[p] - m)     out = sum w[p] V[p] / sum w[p]
 *
 * Positions are cut at absolute multiples of SPLIT.  Within a split all scores are computed, then the maximum, the weights
 * and the weighted sum of V; after it the split is merged into what came before.  (One rescaling of o a split, instead of
 * one a block of 16.)  For one query the sums run over positions in ascending order and use nothing of the other queries in
 * its tile: a position it does not see is never multiplied, for the memory behind it may hold anything.  So one query or
 * many, in one call or split by split, give the same bits.
 *
 * K lies transposed: a lane of the vector is a position; V lies with a lane a dimension.  Several queries and blocks at a
 * time keep enough sums in flight to hide the latency of fma, and use each K or V loaded and converted several times. */

enum { BATCH_QUERIES = 12, BATCH_BLOCKS = 4, BATCH_DIMS = 4, FEW_QUERIES = 6 };

INLINE const uint8_t *block_at(const struct kv_view *kv, uint32_t position)
{
    return kv->pool + (size_t)kv->blocks[position / BLOCK_TOKENS] * kv->block_bytes;
}

/* What a few queries read is used once and lies scattered, so it is asked for ahead: with the scores of a block its V, with the V of a
 * block the K of the block one split on, or of what comes after this call.  Where K and V of a split stay in a first-level cache, both
 * are asked for one split on: they lie beside each other.  With many queries the arithmetic takes longer than memory. */
enum { FIRST_LEVEL = 40 << 10 };

INLINE void fetch_v(const uint8_t *const *v, const int nb, size_t byte)
{
    UNROLL
    for (int b = 0; b < nb; b++)
        __builtin_prefetch(v[b] + byte);
}

/* The block there that has the place of `position` in its split; where there is none, the block of `position`, which is at hand. */
INLINE const uint8_t *block_ahead(const struct kv_view *kv, const struct kv_ahead *ahead, uint32_t position)
{
    const uint32_t at = ahead->from + position % SPLIT;

    return at < ahead->to ? ahead->pool + (size_t)ahead->blocks[at / BLOCK_TOKENS] * kv->block_bytes : block_at(kv, position);
}

/* A sixteenth of K or V from `at` on, the one of `position`: of its dimensions dim0 .. dim0 + n - 1. */
INLINE void fetch_sixteenth(const uint8_t *at, const int element, uint32_t head_dim, uint32_t position, uint32_t dim0, const int n)
{
    at += ((size_t)(position % 16) * head_dim + dim0) * (size_t)element;
    UNROLL
    for (int i = 0; i < n * element; i += 64)
        __builtin_prefetch(at + i);
}

INLINE void fetch_scales(const struct kv_view *kv, const uint8_t *block)
{
    for (size_t i = 0; i < kv->head_dim / QUANT_BLOCK * 32; i += 64) {
        __builtin_prefetch(block + kv->k_scales + i);
        __builtin_prefetch(block + kv->v_scales + i);
    }
}

/* nq queries from column `first` of qt, nb blocks: scores to s[query][16 * block]. */
INLINE void scores_f16(const int nq, const int nb, const struct attention_tile *t, const struct attention_scratch *sc,
                       uint32_t first, uint32_t position, float *s)
{
    vf acc[BATCH_BLOCKS][BATCH_QUERIES];
    const uint16_t *k[BATCH_BLOCKS];
    const uint8_t *v[BATCH_BLOCKS];
    const float *qt = sc->qt + first;
    const uint32_t dims = nq <= FEW_QUERIES ? 2 : 1; /* of K to a line of 64 bytes */

    UNROLL
    for (int b = 0; b < nb; b++) {
        const uint8_t *block = block_at(&t->kv, position + 16 * (uint32_t)b);
        k[b] = (const void *)(block + t->kv.k);
        v[b] = block + t->kv.v;
        UNROLL
        for (int i = 0; i < nq; i++)
            acc[b][i] = vf_zero();
    }
    for (uint32_t d = 0; d < t->kv.head_dim; d += dims) {
        if (nq <= FEW_QUERIES)
            fetch_v(v, nb, (size_t)d * 32);
        UNROLL
        for (uint32_t j = 0; j < dims; j++, qt += ATTENTION_QUERIES) {
            vf kd[BATCH_BLOCKS];
            UNROLL
            for (int b = 0; b < nb; b++)
                kd[b] = vf_of_f16(k[b] + (size_t)(d + j) * 16);
            UNROLL
            for (int i = 0; i < nq; i++) {
                vf q = vf_set1(qt[i]);
                UNROLL
                for (int b = 0; b < nb; b++)
                    acc[b][i] = vf_fma(kd[b], q, acc[b][i]);
            }
        }
    }
    UNROLL
    for (int b = 0; b < nb; b++)
        UNROLL
        for (int i = 0; i < nq; i++)
            vf_store(s + (size_t)i * SPLIT + 16 * b, acc[b][i]);
}

INLINE void scores_q8(const int nq, const int nb, const struct attention_tile *t, const struct attention_scratch *sc,
                      uint32_t first, uint32_t position, float *s)
{
    const uint32_t dim = t->kv.head_dim, n_groups = dim / QUANT_BLOCK;
    vf acc[BATCH_BLOCKS][BATCH_QUERIES];
    const uint8_t *block[BATCH_BLOCKS], *v[BATCH_BLOCKS];

    UNROLL
    for (int b = 0; b < nb; b++) {
        block[b] = block_at(&t->kv, position + 16 * (uint32_t)b);
        v[b] = block[b] + t->kv.v;
        UNROLL
        for (int i = 0; i < nq; i++)
            acc[b][i] = vf_zero();
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        vi dot[BATCH_BLOCKS][BATCH_QUERIES];
        UNROLL
        for (int b = 0; b < nb; b++)
            UNROLL
            for (int i = 0; i < nq; i++)
                dot[b][i] = vi_start8(sc->q8n[(first + (uint32_t)i) * n_groups + g]);
        UNROLL
        for (uint32_t j = 0; j < QUANT_BLOCK; j += 4) {
            const uint32_t d = g * QUANT_BLOCK + j;
            if (nq <= FEW_QUERIES)
                fetch_v(v, nb, (size_t)d * 16);
            UNROLL
            for (int b = 0; b < nb; b++) {
                vi k = vi_load(block[b] + t->kv.k + (size_t)d * 16);
                UNROLL
                for (int i = 0; i < nq; i++)
                    dot[b][i] = vi_dot4_8(dot[b][i], k, sc->q8 + (size_t)(first + (uint32_t)i) * dim + d);
            }
        }
        UNROLL
        for (int b = 0; b < nb; b++) {
            vf scale = vf_of_f16((const uint16_t *)(const void *)(block[b] + t->kv.k_scales) + g * 16);
            UNROLL
            for (int i = 0; i < nq; i++) {
                vf d = vf_mul(scale, vf_set1(sc->q8d[(first + (uint32_t)i) * n_groups + g]));
                acc[b][i] = vf_fma(vf_of_vi(dot[b][i]), d, acc[b][i]);
            }
        }
    }
    UNROLL
    for (int b = 0; b < nb; b++)
        UNROLL
        for (int i = 0; i < nq; i++)
            vf_store(s + (size_t)i * SPLIT + 16 * b, acc[b][i]);
}

/* Scores of all queries for positions from .. to-1, both multiples of 16, into s[query][position mod SPLIT]. */
#if VEC_REGISTERS == 32
#define SCORE_STEPS(X, kind) X(kind, 12, 2) X(kind, 6, 2) X(kind, 3, 4) X(kind, 2, 4) X(kind, 1, 4)
#elif VEC_REGISTERS == 16
#define SCORE_STEPS(X, kind) X(kind, 3, 1) X(kind, 1, 2)
#else
#define SCORE_STEPS(X, kind) X(kind, 1, 1)
#endif

#define STEP_SCORES(kind, nq, nb)                                                                                  \
    if (t->n - i >= nq) {                                                                                          \
        float *s = sc->scores + (size_t)i * SPLIT;                                                                 \
        uint32_t p = from;                                                                                         \
        for (; p + 16 * nb <= to; p += 16 * nb)                                                                    \
            scores_##kind(nq, nb, t, sc, i, p, s + p % SPLIT);                                                         \
        for (; p < to; p += 16)                                                                                    \
            scores_##kind(nq, 1, t, sc, i, p, s + p % SPLIT);                                                          \
        i += nq;                                                                                                   \
        continue;                                                                                                  \
    }

static void all_scores_f16(const struct attention_tile *t, struct attention_scratch *sc, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < t->n;) {
        SCORE_STEPS(STEP_SCORES, f16)
    }
}

static void all_scores_q8(const struct attention_tile *t, struct attention_scratch *sc, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < t->n;) {
        SCORE_STEPS(STEP_SCORES, q8)
    }
}

/* Scores of positions from .. to-1 of one split become weights; the rest of their vectors becomes 0. */
static void weights(float *s, uint32_t from, uint32_t to, float *ret_m, float *ret_l)
{
    const uint32_t v0 = from & ~15u, v1 = (to + 15) & ~15u;
    const vf lowest = vf_set1(-INFINITY), zero = vf_zero();
    vf max = lowest, sum = zero;

    vf_store(s + v0, vf_first((int)(from - v0), lowest, vf_load(s + v0)));
    vf_store(s + v1 - 16, vf_first((int)(to + 16 - v1), vf_load(s + v1 - 16), lowest));
    for (uint32_t p = v0; p < v1; p += 16)
        max = vf_max(vf_load(s + p), max);
    const float m = vf_maximum(max);
    for (uint32_t p = v0; p < v1; p += 16) {
        vf e = vf_exp_neg(vf_sub(vf_load(s + p), vf_set1(m)));
        if (p < from)
            e = vf_first((int)(from - p), zero, e);
        if (p + 16 > to)
            e = vf_first((int)(to - p), e, zero);
        vf_store(s + p, e);
        sum = vf_add(sum, e);
    }
    *ret_m = m;
    *ret_l = vf_sum(sum);
}

/* ------------------------------------------------------------------ weighted sum of V */

/* o[query][dim0 + 16 v] += sum over positions from .. to-1, nq queries whose weights begin at s. */
INLINE void values_f16(const int nq, const int nv, const struct attention_tile *t, const struct kv_ahead *ahead, const float *s,
                       uint32_t from, uint32_t to, uint32_t dim0, float *o)
{
    const uint32_t dim = t->kv.head_dim;
    vf acc[BATCH_QUERIES][BATCH_DIMS];

    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int v = 0; v < nv; v++)
            acc[i][v] = vf_load(o + (size_t)i * dim + dim0 + 16 * v);
    while (from < to) {
        const uint16_t *value = (const uint16_t *)(const void *)(block_at(&t->kv, from) + t->kv.v) + (size_t)(from % 16) * dim + dim0;
        const uint8_t *next = block_ahead(&t->kv, ahead, from) + t->kv.k;
        const float *weight = s + from % SPLIT;
        uint32_t end = (from & ~15u) + 16;
        for (end = end < to ? end : to; from < end; from++, value += dim, weight++) {
            vf vd[BATCH_DIMS];
            if (nq <= 3)
                fetch_sixteenth(next, 2, dim, from, dim0, 16 * nv);
            UNROLL
            for (int v = 0; v < nv; v++)
                vd[v] = vf_of_f16(value + 16 * v);
            UNROLL
            for (int i = 0; i < nq; i++) {
                vf w = vf_set1(weight[(size_t)i * SPLIT]);
                UNROLL
                for (int v = 0; v < nv; v++)
                    acc[i][v] = vf_fma(vd[v], w, acc[i][v]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int v = 0; v < nv; v++)
            vf_store(o + (size_t)i * dim + dim0 + 16 * v, acc[i][v]);
}

/* The same with weight * scale first: one product a position and group of dimensions. */
INLINE void values_q8(const int nq, const int nv, const struct attention_tile *t, const struct kv_ahead *ahead, const float *s,
                      uint32_t from, uint32_t to, uint32_t dim0, float *o)
{
    const uint32_t dim = t->kv.head_dim;
    const int of_group = nv == 1 ? 1 : QUANT_BLOCK / 16, groups = nv / of_group; /* vectors of V that share a scale */
    const bool both = 2 * SPLIT * dim <= FIRST_LEVEL;
    vf acc[BATCH_QUERIES][BATCH_DIMS];
    float scaled[BATCH_QUERIES][BATCH_DIMS][16];

    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int v = 0; v < nv; v++)
            acc[i][v] = vf_load(o + (size_t)i * dim + dim0 + 16 * v);
    while (from < to) {
        const uint8_t *block = block_at(&t->kv, from), *next = block_ahead(&t->kv, ahead, from);
        const int8_t *value = (const int8_t *)(block + t->kv.v) + (size_t)(from % 16) * dim + dim0;
        const uint16_t *scales = (const uint16_t *)(const void *)(block + t->kv.v_scales) + dim0 / QUANT_BLOCK * 16;
        if (nq <= 3 && dim0 == 0)
            fetch_scales(&t->kv, next);
        UNROLL
        for (int g = 0; g < groups; g++) {
            vf scale = vf_of_f16(scales + 16 * g);
            UNROLL
            for (int i = 0; i < nq; i++)
                vf_store(scaled[i][g], vf_mul(vf_load(s + (size_t)i * SPLIT + (from & ~15u) % SPLIT), scale));
        }
        uint32_t end = (from & ~15u) + 16;
        for (end = end < to ? end : to; from < end; from++, value += dim) {
            if (nq <= 3)
                fetch_sixteenth(next + t->kv.k, 1, dim, from, dim0, 16 * nv);
            if (nq <= 3 && both)
                fetch_sixteenth(next + t->kv.v, 1, dim, from, dim0, 16 * nv);
            UNROLL
            for (int g = 0; g < groups; g++) {
                vf vd[BATCH_DIMS];
                UNROLL
                for (int v = 0; v < of_group; v++)
                    vd[v] = vf_of_i8(value + QUANT_BLOCK * g + 16 * v);
                UNROLL
                for (int i = 0; i < nq; i++) {
                    vf w = vf_set1(scaled[i][g][from % 16]);
                    UNROLL
                    for (int v = 0; v < of_group; v++)
                        acc[i][of_group * g + v] = vf_fma(vd[v], w, acc[i][of_group * g + v]);
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < nq; i++)
        UNROLL
        for (int v = 0; v < nv; v++)
            vf_store(o + (size_t)i * dim + dim0 + 16 * v, acc[i][v]);
}

/* Queries and vectors of V whose sums are kept in registers. */
#if VEC_REGISTERS == 32
enum { VALUE_QUERIES = 6, VALUE_DIMS = 4 };
#elif VEC_REGISTERS == 16
enum { VALUE_QUERIES = 3, VALUE_DIMS = 2 };
#else
enum { VALUE_QUERIES = 1, VALUE_DIMS = 1 };
#endif

#define ALL_DIMS(kind, nq)                                                                                         \
    do {                                                                                                           \
        uint32_t d = 0;                                                                                            \
        for (; d + 16 * VALUE_DIMS <= t->kv.head_dim; d += 16 * VALUE_DIMS)                                        \
            values_##kind(nq, VALUE_DIMS, t, ahead, s, from, to, d, o);                                            \
        for (; d < t->kv.head_dim; d += 16)                                                                        \
            values_##kind(nq, 1, t, ahead, s, from, to, d, o);                                                     \
    } while (0)

static void values(uint32_t nq, const struct attention_tile *t, const struct kv_ahead *ahead, const float *s, uint32_t from, uint32_t to,
                   float *o)
{
    const bool q8 = t->kv.kv_group != 0;

    if (from >= to)
        return;
    if (nq == VALUE_QUERIES && q8)
        ALL_DIMS(q8, VALUE_QUERIES);
    else if (nq == VALUE_QUERIES)
        ALL_DIMS(f16, VALUE_QUERIES);
#if VEC_REGISTERS > 16
    else if (nq == 3 && q8)
        ALL_DIMS(q8, 3);
    else if (nq == 3)
        ALL_DIMS(f16, 3);
#endif
    else if (q8)
        ALL_DIMS(q8, 1);
    else
        ALL_DIMS(f16, 1);
}

/* nq neighbours of one tile: first what only some of them see, then what all see, then the rest; each query ascending. */
static void weighted_sum(uint32_t nq, const struct attention_tile *t, const struct kv_ahead *ahead, struct attention_scratch *sc,
                         uint32_t first, const uint32_t *from, const uint32_t *to)
{
    uint32_t common_from = 0, common_to = UINT32_MAX;
    const uint32_t dim = t->kv.head_dim;

    for (uint32_t i = first; i < first + nq; i++) {
        common_from = from[i] > common_from ? from[i] : common_from;
        common_to = to[i] < common_to ? to[i] : common_to;
    }
    const bool common = common_from < common_to;
    for (uint32_t i = first; i < first + nq; i++)
        values(1, t, ahead, sc->scores + (size_t)i * SPLIT, from[i], common ? common_from : to[i], sc->o + (size_t)i * dim);
    if (!common)
        return;
    values(nq, t, ahead, sc->scores + (size_t)first * SPLIT, common_from, common_to, sc->o + (size_t)first * dim);
    for (uint32_t i = first; i < first + nq; i++)
        values(1, t, ahead, sc->scores + (size_t)i * SPLIT, common_to, to[i], sc->o + (size_t)i * dim);
}

/* ------------------------------------------------------------------ the whole */

static void attention_begin(const struct attention_tile *t, struct attention_scratch *s)
{
    const uint32_t dim = t->kv.head_dim, group = t->kv.kv_group;

    if (group == 0) {
        for (uint32_t i = 0; i < t->n; i++)
            for (uint32_t d = 0; d < dim; d++)
                s->qt[(size_t)d * ATTENTION_QUERIES + i] = t->q[i][d];
        return;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        for (uint32_t d = 0; d < dim; d += group) {
            const float *q = t->q[i] + d;
            int8_t *out = s->q8 + (size_t)i * dim + d;
            float largest = 0;
            int32_t n = 0;
            vf max = vf_zero();
            for (uint32_t j = 0; j < group; j += 16)
                max = vf_max(vf_abs(vf_load(q + j)), max);
            largest = vf_maximum(max);
            vf inverse = vf_set1(largest > 1e-30f ? 127.0f / largest : 0.0f);
            for (uint32_t j = 0; j < group; j += 16) {
                vi c = to_codes(vf_load(q + j), inverse);
                vi_store_i8(out + j, c);
                n -= vi_sum(c);
            }
            s->q8d[(size_t)i * (dim / group) + d / group] = largest / 127.0f;
            s->q8n[(size_t)i * (dim / group) + d / group] = n;
        }
    }
}

/* The part of the split that holds m, l and o of positions not in state yet comes in. */
static void attention_merge(struct attention_state *state, const struct attention_state *part, uint32_t i, uint32_t head_dim)
{
    float *o = state->o + (size_t)i * head_dim;
    const float *add = part->o + (size_t)i * head_dim;
    float exps[16];

    if (state->l[i] == 0) {
        state->m[i] = part->m[i];
        state->l[i] = part->l[i];
        memcpy(o, add, head_dim * sizeof(*o));
        return;
    }
    const float m = part->m[i] > state->m[i] ? part->m[i] : state->m[i];
    const vf a = vf_exp_neg(vf_set1(state->m[i] - m)), b = vf_exp_neg(vf_set1(part->m[i] - m));
    vf_store(exps, vf_fma(vf_set1(state->l[i]), a, vf_mul(vf_set1(part->l[i]), b)));
    state->m[i] = m;
    state->l[i] = exps[0];
    for (uint32_t d = 0; d < head_dim; d += 16)
        vf_store(o + d, vf_fma(vf_load(o + d), a, vf_mul(vf_load(add + d), b)));
}

static void attention_splits(const struct attention_tile *t, struct attention_scratch *sc, uint32_t first, uint32_t last,
                             struct attention_state *state)
{
    struct attention_state part = { .o = sc->o };
    uint32_t from[ATTENTION_QUERIES], to[ATTENTION_QUERIES];

    for (uint32_t split = first; split < last; split++) {
        const uint32_t begin = split * SPLIT, end = begin + SPLIT;
        uint32_t low = end, high = begin;
        for (uint32_t i = 0; i < t->n; i++) {
            from[i] = t->lo[i] > begin ? t->lo[i] : begin;
            to[i] = t->hi[i] < end ? t->hi[i] : end;
            if (from[i] >= to[i])
                from[i] = to[i] = 0; /* sees nothing of this split */
            else
                low = from[i] < low ? from[i] : low, high = to[i] > high ? to[i] : high;
        }
        if (low >= high)
            continue;
        const struct kv_ahead own = { t->kv.pool, t->kv.blocks, end, t->hi[0] }, *ahead = split + 1 < last ? &own : &t->next;
        (t->kv.kv_group ? all_scores_q8 : all_scores_f16)(t, sc, low & ~15u, (high + 15) & ~15u);
        memset(sc->o, 0, (size_t)t->n * t->kv.head_dim * sizeof(float));
        for (uint32_t i = 0; i < t->n; i++)
            if (from[i] < to[i])
                weights(sc->scores + (size_t)i * SPLIT, from[i] - begin, to[i] - begin, &part.m[i], &part.l[i]);
        for (uint32_t i = 0, nq; i < t->n; i += nq) {
            nq = t->n - i >= VALUE_QUERIES ? VALUE_QUERIES : VALUE_QUERIES > 3 && t->n - i >= 3 ? 3 : 1;
            weighted_sum(nq, t, ahead, sc, i, from, to);
        }
        for (uint32_t i = 0; i < t->n; i++)
            if (from[i] < to[i])
                attention_merge(state, &part, i, t->kv.head_dim);
    }
}

static void attention_end(const struct attention_state *state, uint32_t i, uint32_t head_dim, float *out)
{
    const float *o = state->o + (size_t)i * head_dim;

    for (uint32_t d = 0; d < head_dim; d += 16)
        vf_store(out + d, vf_div(vf_load(o + d), vf_set1(state->l[i])));
}
