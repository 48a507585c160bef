/* kernels_bench.c - each kernel alone on one thread, against what the machine could do.
 *
 * usage: kernels_bench            prints one line a kernel: name, figure, unit, limit, per cent of the limit
 *
 *   gemv_TYPE        one row, 64 MiB of weights from memory: GB/s, against reading the same bytes
 *   gemm_TYPE        16 rows, weights in the second-level cache: GMAC/s, against a loop of nothing but vpdpbusd (or fma)
 *   decode_attention 3 queries (the heads of a group) over 4096 positions, many sequences: GB/s of K and V, against reading
 *   prompt_attention 24 queries over 4096 positions: G fma/s, against a loop of nothing but fma
 *   quantise, rms_norm, gate: rows in the first-level cache, G elements/s, against 16 elements a cycle as vpdpbusd counts it
 *
 * A figure is the best of many runs of about a millisecond, so it holds on a busy machine too; limits are taken the same way.
 * WEIR_CPU_ISA chooses the kernels; limits of arithmetic are printed for avx512vnni only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/numeric.h"
#include "kernels/cpu/pack.h"

enum { LARGE = 64 << 20, PIECE = 8 << 20, K = 1536, RUNS = 60, POSITIONS = 4096, DIM = 64, SEQUENCES = 64 };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *take(size_t bytes)
{
    void *p = mmap(NULL, bytes + 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        exit(1);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* ------------------------------------------------------------------ limits */

static volatile uint64_t sink;

/* The best piece of PIECE bytes, by plain reading and by reading with lines asked for 8 KiB ahead. */
static double read_rate(const uint8_t *at, size_t bytes)
{
    double best = 0;

    for (size_t from = 0; from + PIECE <= 2 * bytes; from += PIECE) {
        const uint64_t *p = (const uint64_t *)(const void *)(at + from % bytes);
        const bool ahead = from >= bytes;
        uint64_t a = 0, b = 0;
        const double start = now();
        for (size_t i = 0; i < PIECE / 8; i += 16) {
            if (ahead) {
                __builtin_prefetch(p + i + 1024);
                __builtin_prefetch(p + i + 1032);
            }
            a ^= p[i], b ^= p[i + 8];
        }
        const double rate = (double)PIECE / (now() - start) / 1e9;
        sink = a ^ b;
        best = rate > best ? rate : best;
    }
    return best;
}

#if defined(__x86_64__)
/* Instructions a second of a loop of independent ones: multiply-adds of bytes, or of floats. */
__attribute__((target("avx512f,avx512vnni"))) static double peak(bool integer)
{
    enum { N = 20000 };
    double best = 0;

    for (int run = 0; run < RUNS; run++) {
        const double start = now();
        for (int i = 0; i < N; i++) {
            if (integer)
                __asm__ volatile("vpdpbusd %%zmm31,%%zmm30,%%zmm0\nvpdpbusd %%zmm31,%%zmm30,%%zmm1\nvpdpbusd "
                                 "%%zmm31,%%zmm30,%%zmm2\n"
                                 "vpdpbusd %%zmm31,%%zmm30,%%zmm3\nvpdpbusd %%zmm31,%%zmm30,%%zmm4\nvpdpbusd "
                                 "%%zmm31,%%zmm30,%%zmm5\n"
                                 "vpdpbusd %%zmm31,%%zmm30,%%zmm6\nvpdpbusd %%zmm31,%%zmm30,%%zmm7\nvpdpbusd "
                                 "%%zmm31,%%zmm30,%%zmm8\n"
                                 "vpdpbusd %%zmm31,%%zmm30,%%zmm9" ::
                                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                                       "xmm9");
            else
                __asm__ volatile("vfmadd231ps %%zmm31,%%zmm30,%%zmm0\nvfmadd231ps "
                                 "%%zmm31,%%zmm30,%%zmm1\nvfmadd231ps %%zmm31,%%zmm30,%%zmm2\n"
                                 "vfmadd231ps %%zmm31,%%zmm30,%%zmm3\nvfmadd231ps "
                                 "%%zmm31,%%zmm30,%%zmm4\nvfmadd231ps %%zmm31,%%zmm30,%%zmm5\n"
                                 "vfmadd231ps %%zmm31,%%zmm30,%%zmm6\nvfmadd231ps "
                                 "%%zmm31,%%zmm30,%%zmm7\nvfmadd231ps %%zmm31,%%zmm30,%%zmm8\n"
                                 "vfmadd231ps %%zmm31,%%zmm30,%%zmm9" ::
                                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                                       "xmm9");
        }
        const double rate = 10.0 * N / (now() - start) / 1e9;
        best = rate > best ? rate : best;
    }
    return best;
}
#endif

struct limits {
    double read, dots, fmas; /* GB/s; G instructions of 512 bits a second, 0: not known */
};

static struct limits measure_limits(const struct kernels *k, const uint8_t *large)
{
    struct limits l = {.read = read_rate(large, LARGE)};

#if defined(__x86_64__)
    if (strcmp(k->isa, "avx512vnni") == 0) {
        l.dots = peak(true);
        l.fmas = peak(false);
    }
#endif
    return l;
}

static void line(const char *name, double figure, const char *unit, double limit)
{
    printf("kernel %-20s %8.1f %-10s", name, figure, unit);
    if (limit > 0)
        printf(" %8.1f %5.0f", limit, 100 * figure / limit);
    printf("\n");
    fflush(stdout);
}

/* ------------------------------------------------------------------ kernels */

static float noise(uint32_t i)
{
    return (float)(i * 2654435761u >> 8) * 0x1p-23f - 1.0f;
}

/* Half floats of about 1/512 all over: as scales they are sane numbers, as codes anything. */
static void fill_weights(uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        at[i] = (uint8_t)(i * 37 >> 3);
        at[i + 1] = 0x18;
    }
}

static void *make_rows(const struct kernels *k, enum tensor_type type, uint32_t width)
{
    uint8_t *x = take((size_t)16 * K * sizeof(float));
    static float row[K];

    for (uint32_t t = 0; t < width; t++) {
        for (uint32_t i = 0; i < K; i++)
            row[i] = noise(t * K + i);
        if (!type_is_float(type))
            k->quantise(row, K / 32, (struct xblock *)(void *)x + t, width, 0);
        for (uint32_t i = 0; type_is_float(type) && i < K; i++)
            ((float *)(void *)x)[i * width + t] = row[i];
    }
    return x;
}

static void products(const struct kernels *k, const struct limits *l, uint8_t *large)
{
    static const struct {
        enum tensor_type type;
        const char *name;
    } types[] = {{TENSOR_F32, "F32"},   {TENSOR_F16, "F16"},   {TENSOR_BF16, "BF16"}, {TENSOR_Q4_0, "Q4_0"},
                 {TENSOR_Q4_1, "Q4_1"}, {TENSOR_Q5_0, "Q5_0"}, {TENSOR_Q5_1, "Q5_1"}, {TENSOR_Q8_0, "Q8_0"},
                 {TENSOR_Q4_K, "Q4_K"}, {TENSOR_Q5_K, "Q5_K"}, {TENSOR_Q6_K, "Q6_K"}};
    const size_t y_bytes = (size_t)PIECE / 64 * sizeof(float);
    float *y = take(y_bytes);

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const struct tensor t = {.type = types[i].type, .n_rows = 16, .n_cols = K, .bytes = SIZE_MAX};
        struct matrix m;
        char name[32];
        if (matrix_init(&m, &t) != ST_OK)
            exit(1);
        for (uint32_t width = 1; width <= 16; width += 15) {
            const uint32_t n = width == 1 ? 32 : 8,
                           passes = width == 1 ? (uint32_t)(LARGE / (n * m.panel_bytes)) : 3 * RUNS;
            struct tile x = {.x = make_rows(k, m.type, width), .width = width, .stride = width, .parts = 1};
            double best = 1e9;
            for (uint32_t p = 0; p < passes; p++) {
                const uint8_t *at = width == 1 ? large + p * n * m.panel_bytes : large;
                const double start = now();
                k->gemm[m.type](at, m.panel_bytes, n, m.n_k, &x, y, n * 16);
                const double took = now() - start;
                best = took < best ? took : best;
            }
            snprintf(name, sizeof(name), "%s_%s", width == 1 ? "gemv" : "gemm", types[i].name);
            if (width == 1)
                line(name, (double)(n * m.panel_bytes) / best / 1e9, "GB/s", l->read);
            else
                line(name, 16.0 * n * 16 * K / best / 1e9, "GMAC/s",
                     type_is_float(m.type) ? 16 * l->fmas : 64 * l->dots);
            munmap((void *)(uintptr_t)x.x, (size_t)16 * K * sizeof(float) + 16384);
        }
    }
    munmap(y, y_bytes + 16384);
}

static void attention(const struct kernels *k, const struct limits *l, uint8_t *large, bool q8, uint32_t n,
                      const char *name)
{
    static uint32_t blocks[POSITIONS / BLOCK_TOKENS];
    static float q[ATTENTION_QUERIES][DIM];
    const size_t values = (size_t)DIM * 16 * (q8 ? 1 : 2), scales = q8 ? DIM / 32 * 32 : 0;
    struct attention_tile t = {.kv = {.pool = large,
                                      .block_bytes = 2 * (values + scales),
                                      .blocks = blocks,
                                      .v = values,
                                      .k_scales = 2 * values,
                                      .v_scales = 2 * values + scales,
                                      .head_dim = DIM,
                                      .kv_group = q8 ? 32 : 0},
                               .n = n};
    struct attention_scratch s = {take(DIM * ATTENTION_QUERIES * 4),   take(ATTENTION_QUERIES * DIM),
                                  take(ATTENTION_QUERIES * DIM * 4),   take(ATTENTION_QUERIES * DIM * 4),
                                  take(ATTENTION_QUERIES * SPLIT * 4), take(ATTENTION_QUERIES * DIM * 4)};
    struct attention_state state = {.o = take(ATTENTION_QUERIES * DIM * 4)};
    const size_t bytes = POSITIONS / BLOCK_TOKENS * t.kv.block_bytes;
    double best = 1e9;

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < DIM; d++)
            q[i][d] = noise(i * DIM + d) * 0.1f;
        t.q[i] = q[i];
        t.hi[i] = POSITIONS;
    }
    for (uint32_t p = 0; p < SEQUENCES; p++) {
        for (uint32_t b = 0; b < POSITIONS / BLOCK_TOKENS; b++)
            blocks[b] = (uint32_t)(p % (LARGE / bytes)) * (POSITIONS / BLOCK_TOKENS) + b;
        memset(state.l, 0, sizeof(state.l));
        const double start = now();
        k->attention_begin(&t, &s);
        k->attention_splits(&t, &s, 0, POSITIONS / SPLIT, &state);
        const double took = now() - start;
        best = took < best ? took : best;
    }
    if (n <= 3)
        line(name, (double)bytes / best / 1e9, "GB/s", l->read);
    else
        line(name, 2.0 * n * POSITIONS * DIM / best / 1e9, "Gfma/s", 16 * l->fmas);
}

static void rows(const struct kernels *k, const struct limits *l)
{
    enum { REPEAT = 200 };
    static float x[K], y[K], w[K];
    static struct xblock out[K / 32 * 2];
    const char *const names[] = {"quantise", "quantise_2_parts", "rms_norm", "gate_silu", "gate_gelu"};

    for (int which = 0; which < 5; which++) {
        double best = 1e9;
        for (int run = 0; run < RUNS; run++) {
            for (uint32_t i = 0; i < K; i++)
                x[i] = y[i] = noise(i), w[i] = 1;
            const double start = now();
            for (int i = 0; i < REPEAT; i++) {
                if (which < 2)
                    k->quantise(x, K / 32, out, 2, (size_t)which);
                else if (which == 2)
                    k->rms_norm(y, x, w, K, 1e-5f);
                else
                    k->gate(which == 3 ? GATE_SILU : GATE_GELU, y, w, K);
            }
            const double took = now() - start;
            best = took < best ? took : best;
        }
        line(names[which], (double)K * REPEAT / best / 1e9, "Gelem/s", l->dots > 0 ? 16 * l->dots / 2 : 0);
    }
}

int main(void)
{
    const struct kernels *k = kernels_select();

    if (k == NULL)
        return 1;
    uint8_t *large = take(LARGE);
    fill_weights(large, LARGE);
    const struct limits l = measure_limits(k, large);
    printf("limit one_thread_read_gb_s %.1f\n", l.read);
    if (l.dots > 0)
        printf("limit one_thread_int8_gmac_s %.0f\nlimit one_thread_f32_gfma_s %.0f\n", 64 * l.dots,
               16 * l.fmas);
    products(k, &l, large);
    attention(k, &l, large, false, 3, "decode_attention_f16");
    attention(k, &l, large, true, 3, "decode_attention_q8");
    attention(k, &l, large, false, 24, "prompt_attention_f16");
    attention(k, &l, large, true, 24, "prompt_attention_q8");
    rows(k, &l);
    return 0;
}
