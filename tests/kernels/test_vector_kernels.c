/* Every vector kernel against the scalar one, bit for bit, on every instruction set this machine has; the scalar one against
 * the formula in double.  Shapes go around the edges: one block, odd numbers of blocks and panels, every width. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/numeric.h"
#include "kernels/cpu/pack.h"

static uint64_t seed = 0x9e3779b97f4a7c15ULL;
static const char *const names[] = { "avx2", "avxvnni", "avx512vnni" };
static const enum tensor_type types[] = { TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,
                                          TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K };
static const uint32_t widths[] = { 1, 2, 3, 4, 6, 8, 12, 16 };

static uint32_t next(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

static float real(void)
{
    return ((float)(next() >> 8) * 0x1p-24f - 0.5f) * 4.0f;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = real();
}

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);

    assert_non_null(p);
    memset(p, 0, (bytes + 127) / 64 * 64);
    return p;
}

static void put_half(uint8_t *p, float x)
{
    uint16_t h = f32_to_f16(x);
    memcpy(p, &h, 2);
}

/* Random bytes, then sane numbers wherever the format has floats. */
static void fill_tensor(enum tensor_type type, uint8_t *at, size_t bytes)
{
    static const struct {
        enum tensor_type type;
        size_t block, first, second; /* offsets of halves; 0 and 0: only the first */
    } halves[] = { { TENSOR_Q4_0, 18, 0, 0 },   { TENSOR_Q4_1, 20, 0, 2 },   { TENSOR_Q5_0, 22, 0, 0 },  { TENSOR_Q5_1, 24, 0, 2 },
                   { TENSOR_Q8_0, 34, 0, 0 },   { TENSOR_Q4_K, 144, 0, 2 },  { TENSOR_Q5_K, 176, 0, 2 }, { TENSOR_Q6_K, 210, 208, 208 } };

    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)next();
    for (size_t i = 0; type == TENSOR_F32 && i < bytes; i += 4) {
        float x = real();
        memcpy(at + i, &x, 4);
    }
    for (size_t i = 0; type == TENSOR_F16 && i < bytes; i += 2)
        put_half(at + i, real());
    for (size_t i = 0; type == TENSOR_BF16 && i < bytes; i += 2) {
        uint16_t h = (uint16_t)(f32_bits(real()) >> 16);
        memcpy(at + i, &h, 2);
    }
    for (size_t h = 0; h < sizeof(halves) / sizeof(halves[0]); h++) {
        for (size_t i = 0; halves[h].type == type && i < bytes; i += halves[h].block) {
            put_half(at + i + halves[h].first, real() * 0.01f);
            put_half(at + i + halves[h].second, real() * 0.01f);
        }
    }
}

struct product {
    struct tensor t;
    struct matrix m;
    uint32_t width, parts;
    float *x;   /* [16][K] */
    void *tile; /* as gemm reads it */
};

static void make_product(struct product *p, enum tensor_type type, uint32_t n_rows, uint32_t n_cols)
{
    memset(p, 0, sizeof(*p));
    p->t = (struct tensor){ .type = type, .n_rows = n_rows, .n_cols = n_cols, .bytes = tensor_row_bytes(type, n_cols) * n_rows };
    uint8_t *data = take(p->t.bytes);
    fill_tensor(type, data, p->t.bytes);
    p->t.data = data;
    assert_int_equal(matrix_init(&p->m, &p->t), ST_OK);
    p->m.data = take(matrix_bytes(&p->m) + 16384);
    matrix_pack(&p->m, &p->t, 0, 0, p->m.n_panels);
    p->x = take(16 * n_cols * sizeof(float));
    fill(p->x, 16 * n_cols);
    p->tile = take((size_t)16 * n_cols * 4);
    p->parts = 1;
}

static void set_width(struct product *p, uint32_t width)
{
    const uint32_t n_cols = p->t.n_cols;

    p->width = width;
    for (uint32_t t = 0; t < width; t++) {
        if (!type_is_float(p->t.type))
            kernels_scalar.quantise(p->x + (size_t)t * n_cols, n_cols / 32, (struct xblock *)p->tile + t, 2 * width, width);
        for (uint32_t k = 0; type_is_float(p->t.type) && k < n_cols; k++)
            ((float *)p->tile)[(size_t)k * width + t] = p->x[(size_t)t * n_cols + k];
    }
}

static void free_product(struct product *p)
{
    free((void *)(uintptr_t)p->t.data);
    free(p->m.data);
    free(p->x);
    free(p->tile);
}

static void multiply(const struct kernels *k, const struct product *p, float *y)
{
    memset(y, 0xff, (size_t)16 * p->m.n_panels * 16 * sizeof(*y));
    const struct tile x = { .x = p->tile, .width = p->width, .stride = 2 * p->width, .parts = p->parts };
    k->gemm[p->t.type](p->m.data, p->m.panel_bytes, p->m.n_panels, p->m.n_k, &x, y, p->m.n_panels * 16);
}

static void gemm_gives_the_scalar_bits_whatever_the_width(void **state)
{
    static const uint32_t rows[] = { 16, 30, 96 }, cols[] = { 32, 96, 256, 768 };

    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]) * 24; i++) {
        struct product p;
        const enum tensor_type type = types[i / 24];
        const uint32_t n_cols = cols[i / 2 % 4];
        if (n_cols % 256 != 0 && (type == TENSOR_Q4_K || type == TENSOR_Q5_K || type == TENSOR_Q6_K))
            continue;
        make_product(&p, type, rows[i / 8 % 3], n_cols);
        p.parts = 1 + (uint32_t)i % 2;
        const size_t n = (size_t)16 * p.m.n_panels * 16;
        float *alone = take(n * 4), *want = take(n * 4), *got = take(n * 4);
        for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
            set_width(&p, widths[w]);
            multiply(&kernels_scalar, &p, want);
            if (w == 0)
                memcpy(alone, want, n * 4);
            assert_memory_equal(alone, want, p.m.n_panels * 64); /* row 0 of a tile = the row alone */
            for (size_t k = 0; k < 3; k++) {
                const struct kernels *isa = kernels_by_name(names[k]);
                if (isa == NULL)
                    continue;
                multiply(isa, &p, got);
                assert_memory_equal(want, got, n * 4);
            }
        }
        free(alone);
        free(want);
        free(got);
        free_product(&p);
    }
}

static void gemm_is_the_product_of_the_file_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct product p;
        float row[512], packed[512], y[16 * 48];
        make_product(&p, types[i], 40, 512);
        p.parts = 2;
        set_width(&p, 3);
        multiply(&kernels_scalar, &p, y);
        for (uint32_t r = 0; r < 40; r++) {
            tensor_row(&p.t, r, row);
            matrix_row(&p.m, r, packed);
            assert_memory_equal(row, packed, sizeof(row));
            for (uint32_t t = 0; t < 3; t++) {
                double sum = 0, size = 0;
                for (uint32_t k = 0; k < 512; k++) {
                    const double x = (double)p.x[t * 512 + k]; /* two parts hold it to 16 bits */
                    sum += x * (double)row[k];
                    size += fabs(x * (double)row[k]);
                }
                assert_true(fabs(sum - (double)y[t * 48 + r]) <= 3e-5 * size);
            }
        }
        free_product(&p);
    }
}

static void row_operations_give_the_scalar_bits(void **state)
{
    _Alignas(64) float x[272], u[272], w[272], a[272], b[272];
    struct xblock qa[16], qb[16];

    (void)state;
    for (int round = 0; round < 200; round++) {
        const uint32_t n = 16 * (1 + next() % 16), odd = 1 + next() % 256;
        fill(x, 272), fill(u, 272), fill(w, 272);
        x[next() % 256] *= round % 3 == 0 ? 1e4f : 1.0f;
        if (round % 7 == 0)
            memset(x, 0, 128);
        for (size_t k = 0; k < 3; k++) {
            const struct kernels *isa = kernels_by_name(names[k]);
            if (isa == NULL)
                continue;
            kernels_scalar.rms_norm(a, x, w, n, 1e-5f), isa->rms_norm(b, x, w, n, 1e-5f);
            assert_memory_equal(a, b, n * 4);
            for (int g = GATE_SILU; g <= GATE_GELU; g++) {
                memcpy(a, x, sizeof(a)), memcpy(b, x, sizeof(b));
                kernels_scalar.gate((enum gate_kind)g, a, u, n), isa->gate((enum gate_kind)g, b, u, n);
                assert_memory_equal(a, b, n * 4);
            }
            kernels_scalar.add(a, u, n), isa->add(b, u, n);
            assert_memory_equal(a, b, n * 4);
            kernels_scalar.quantise(x, n / 32, qa, 2, 1), isa->quantise(x, n / 32, qb, 2, 1);
            assert_memory_equal(qa, qb, n / 32 * 2 * sizeof(qa[0]));
            memcpy(a, x, sizeof(a)), memcpy(b, x, sizeof(b));
            kernels_scalar.rope(a, u, w, 64, 0.125f), isa->rope(b, u, w, 64, 0.125f);
            assert_memory_equal(a, b, 256);
            float ma = kernels_scalar.maximum(x, odd), mb = isa->maximum(x, odd);
            assert_memory_equal(&ma, &mb, 4);
            float sa = kernels_scalar.sum_exp(x, odd, ma, 0.7f), sb = isa->sum_exp(x, odd, ma, 0.7f);
            assert_memory_equal(&sa, &sb, 4);
        }
    }
}

/* ------------------------------------------------------------------ attention */

enum { DIM = 64, POSITIONS = 800, BLOCKS = POSITIONS / 16 };

struct paged {
    uint8_t *pool;
    uint32_t blocks[BLOCKS];
    struct kv_view view;
};

/* K and V of all positions; what is past them in the last block is NaN, to be noticed if it is ever used. */
static void make_paged(struct paged *p, bool q8, uint32_t n)
{
    float row[DIM];
    const size_t part = DIM * 16 * (q8 ? 1 : 2);

    p->view = (struct kv_view){ .block_bytes = 2 * part + (q8 ? 2 * DIM / 32 * 16 * 2 : 0), .head_dim = DIM, .v = part };
    if (q8) {
        p->view.kv_group = 32;
        p->view.k_scales = 2 * part;
        p->view.v_scales = 2 * part + DIM / 32 * 32;
    }
    p->pool = take(BLOCKS * p->view.block_bytes);
    memset(p->pool, 0xff, BLOCKS * p->view.block_bytes);
    p->view.pool = p->pool;
    p->view.blocks = p->blocks;
    for (uint32_t i = 0; i < BLOCKS; i++)
        p->blocks[i] = (i * 7 + 3) % BLOCKS;
    for (uint32_t i = 0; i < n; i++) {
        fill(row, DIM);
        kernels_scalar.store_k(&p->view, i, row);
        fill(row, DIM);
        kernels_scalar.store_v(&p->view, i, row);
    }
}

static void make_scratch(struct attention_scratch *s)
{
    *s = (struct attention_scratch){ .qt = take(DIM * 24 * 4), .q8 = take(DIM * 24), .q8d = take(24 * 2 * 4), .q8n = take(24 * 2 * 4),
                                     .scores = take(24 * SPLIT * 4), .o = take(24 * DIM * 4) };
}

static void attend(const struct kernels *k, const struct attention_tile *t, struct attention_scratch *s, float *out)
{
    static float o[24 * DIM];
    struct attention_state state = { .o = o };

    k->attention_begin(t, s);
    k->attention_splits(t, s, t->lo[0] / SPLIT, (t->hi[t->n - 1] + SPLIT - 1) / SPLIT, &state);
    for (uint32_t i = 0; i < t->n; i++)
        k->attention_end(&state, i, DIM, out + i * DIM);
}

/* One query alone, in double, from what is stored. */
static void attend_plainly(const struct attention_tile *t, uint32_t i, double *out)
{
    static double score[POSITIONS];
    double max = -INFINITY, sum = 0;

    assert_int_equal(t->kv.kv_group, 0);
    for (uint32_t d = 0; d < DIM; d++)
        out[d] = 0;
    for (uint32_t p = t->lo[i]; p < t->hi[i]; p++) {
        const uint16_t *k = (const void *)(t->kv.pool + t->kv.blocks[p / 16] * t->kv.block_bytes);
        score[p] = 0;
        for (uint32_t d = 0; d < DIM; d++)
            score[p] += (double)f16_to_f32(k[d * 16 + p % 16]) * (double)t->q[i][d];
        max = score[p] > max ? score[p] : max;
    }
    for (uint32_t p = t->lo[i]; p < t->hi[i]; p++) {
        const uint16_t *v = (const void *)(t->kv.pool + t->kv.blocks[p / 16] * t->kv.block_bytes + t->kv.v);
        const double w = exp(score[p] - max);
        sum += w;
        for (uint32_t d = 0; d < DIM; d++)
            out[d] += w * (double)f16_to_f32(v[p % 16 * DIM + d]);
    }
    for (uint32_t d = 0; d < DIM; d++)
        out[d] /= sum;
}

static void attention_gives_the_scalar_bits_and_those_of_each_query_alone(void **state)
{
    struct attention_scratch s;
    static float q[24][DIM], want[24 * DIM], got[24 * DIM], one[DIM];

    (void)state;
    make_scratch(&s);
    for (int round = 0; round < 60; round++) {
        struct paged p;
        struct attention_tile t = { 0 };
        const uint32_t tokens = 1 + next() % 8, heads = 1 + next() % 3, last = tokens + next() % (POSITIONS - 8);
        const uint32_t window = round % 3 == 0 ? 1 + next() % 300 : 0;
        make_paged(&p, round % 2 == 1, last);
        fill(q[0], 24 * DIM);
        t.kv = p.view;
        for (uint32_t i = 0; i < tokens; i++)
            for (uint32_t h = 0; h < heads; h++, t.n++) {
                t.q[t.n] = q[t.n];
                t.hi[t.n] = last - tokens + i + 1;
                t.lo[t.n] = window > 0 && t.hi[t.n] > window ? t.hi[t.n] - window : 0;
            }
        attend(&kernels_scalar, &t, &s, want);
        for (uint32_t i = 0; i < t.n; i++) {
            struct attention_tile alone = { .kv = t.kv, .n = 1, .q = { t.q[i] }, .lo = { t.lo[i] }, .hi = { t.hi[i] } };
            double plain[DIM];
            attend(&kernels_scalar, &alone, &s, one);
            assert_memory_equal(one, want + i * DIM, sizeof(one));
            if (t.kv.kv_group == 0) {
                attend_plainly(&t, i, plain);
                for (uint32_t d = 0; d < DIM; d++)
                    assert_true(fabs(plain[d] - (double)one[d]) < 1e-4);
            }
        }
        for (size_t k = 0; k < 3; k++) {
            if (kernels_by_name(names[k]) == NULL)
                continue;
            attend(kernels_by_name(names[k]), &t, &s, got);
            assert_memory_equal(want, got, t.n * DIM * 4);
        }
        free(p.pool);
    }
    free(s.qt), free(s.q8), free(s.q8d), free(s.q8n), free(s.scores), free(s.o);
}

static void stored_k_and_v_have_the_same_bytes_on_every_instruction_set(void **state)
{
    (void)state;
    for (int q8 = 0; q8 < 2; q8++) {
        struct paged p, other;
        make_paged(&p, q8 == 1, 0);
        make_paged(&other, q8 == 1, 0);
        for (size_t k = 0; k < 3; k++) {
            const struct kernels *isa = kernels_by_name(names[k]);
            for (uint32_t i = 0; isa != NULL && i < 40; i++) {
                float row[DIM];
                fill(row, DIM);
                row[3] = i == 7 ? 1e6f : i == 8 ? 1e-9f : row[3];
                kernels_scalar.store_k(&p.view, i, row), isa->store_k(&other.view, i, row);
                kernels_scalar.store_v(&p.view, i, row), isa->store_v(&other.view, i, row);
            }
            assert_memory_equal(p.pool, other.pool, BLOCKS * p.view.block_bytes);
        }
        free(p.pool);
        free(other.pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_gives_the_scalar_bits_whatever_the_width),
        cmocka_unit_test(gemm_is_the_product_of_the_file_rows),
        cmocka_unit_test(row_operations_give_the_scalar_bits),
        cmocka_unit_test(attention_gives_the_scalar_bits_and_those_of_each_query_alone),
        cmocka_unit_test(stored_k_and_v_have_the_same_bytes_on_every_instruction_set),
    };

    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
