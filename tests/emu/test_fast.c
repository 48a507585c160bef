/* Fast prefill on the emulated engine: long chunks go through the library's products (here plain loops), everything else stays
 * exact, and what a row gives depends on nothing but what it may. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/engine.h"
#include "tests/emu/emu_seed.h"
#include "tests/support/engine_rig.h"
#include "tests/support/synthetic_shapes.h"

const struct backend_api *backend_cuda(void);

enum { MAX_SEQS = 4, MAX_ROWS = 96, LONG = 70, BLOCKS = 48, CONTEXT = 256 };
static const uint64_t plenty = 8ull << 30;

struct trio {
    struct rig exact, kept, slab; /* the same model: exactly; with a bf16 copy; with one slab */
    struct synthetic *synthetic;
};

static struct rig open_on(const struct backend_api *api, const struct model *m, enum kv_type kv_type, bool fast)
{
    struct rig r = { .api = api, .model = (struct model *)(uintptr_t)m };
    struct error err = { 0 };

    r.options = (struct backend_options){ .n_threads = 1, .n_blocks = BLOCKS, .max_rows = MAX_ROWS, .max_seqs = MAX_SEQS,
                                          .context_tokens = CONTEXT, .kv_type = kv_type, .fast_prefill = fast };
    if (api->open(m, &r.options, &r.backend, &err) != ST_OK)
        fail_msg("%s", err.message);
    return r;
}

static void open_trio(struct trio *t, const struct synthetic_shape *shape, enum kv_type kv_type)
{
    const struct model *m;
    struct memory_plan plan;
    struct error err = { 0 };

    t->synthetic = synthetic_new(shape, &m);
    /* half weights have other bits on the CPU: test_engine.c compares those */
    t->exact = open_on(model_half_bound(m, kv_type) > 0 ? backend_cuda() : backend_cpu(), m, kv_type, false);
    t->kept = open_on(backend_cuda(), m, kv_type, true);
    assert_true(t->kept.backend->wide_kept);
    assert_int_equal(backend_cuda()->plan_memory(m, &t->kept.options, &plan, &err), ST_OK);
    emu_memory(plan.total - 1); /* a byte too little for the copy */
    t->slab = open_on(backend_cuda(), m, kv_type, true);
    assert_false(t->slab.backend->wide_kept);
    assert_non_null(t->slab.backend->slab);
    emu_memory(plenty);
}

static void close_trio(struct trio *t)
{
    t->exact.api->close(t->exact.backend);
    t->kept.api->close(t->kept.backend);
    t->slab.api->close(t->slab.backend);
    synthetic_free(t->synthetic);
}

static int32_t token_at(uint32_t sequence, uint32_t i, uint32_t n_vocab)
{
    return (int32_t)((sequence * 7919 + i * 104729 + i * i * 31) % n_vocab);
}

struct chunk {
    uint32_t sequence, n_past, n;
};

/* One step of some chunks; the logits of each chunk's last row, [n][V]. */
static void step(struct rig *r, const struct chunk *c, uint32_t n, float *logits)
{
    static int32_t tokens[MAX_SEQS][CONTEXT];
    uint32_t blocks[MAX_SEQS][CONTEXT / BLOCK_TOKENS];
    struct plan_entry e[MAX_SEQS] = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < c[i].n; j++)
            tokens[i][j] = token_at(c[i].sequence, c[i].n_past + j, r->model->n_vocab);
        rig_blocks(blocks[i], 8, 10 * c[i].sequence);
        e[i] = (struct plan_entry){ .tokens = tokens[i], .n_tokens = c[i].n, .n_past = c[i].n_past, .blocks = blocks[i],
                                    .from_entry = -1, .want = WANT_LOGITS, .logits = logits + (size_t)i * r->model->n_vocab };
    }
    rig_step(r, e, n, NULL);
}

static double error_of(const float *want, const float *got, size_t n)
{
    double wrong = 0, all = 0;

    for (size_t i = 0; i < n; i++) {
        wrong += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        all += (double)want[i] * want[i];
    }
    return wrong / all;
}

/* All types of weights, biases, norms, gates of two types, windows: close to the exact logits of the same sequence, but not
 * equal; with a copy and by slabs bit for bit the same. */
static void long_chunks_are_close_and_the_copy_changes_no_bit(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        const uint32_t n_vocab = shapes[i].shape.n_vocab;
        const struct chunk begin = { 0, 0, 20 }, whole = { 0, 20, LONG }, next = { 0, 20 + LONG, 1 };
        float *logits[3], *after[3];
        struct trio t;

        open_trio(&t, &shapes[i].shape, shapes[i].kv_type);
        struct rig *rigs[3] = { &t.exact, &t.kept, &t.slab };
        for (uint32_t j = 0; j < 3; j++) {
            logits[j] = calloc(n_vocab, sizeof(float));
            after[j] = calloc(n_vocab, sizeof(float));
            emu_seed(600 + 3 * i + j);
            step(rigs[j], &begin, 1, logits[j]);
            step(rigs[j], &whole, 1, logits[j]);
            step(rigs[j], &next, 1, after[j]);
        }
        const double e = error_of(logits[0], logits[1], n_vocab), e_next = error_of(after[0], after[1], n_vocab);
        print_message("%s: %.2g, the token after it %.2g\n", shapes[i].what, e, e_next);
        assert_true(e > 0 && e < 1e-3 && e_next > 0 && e_next < 1e-3);
        assert_memory_equal(logits[1], logits[2], n_vocab * sizeof(float));
        assert_memory_equal(after[1], after[2], n_vocab * sizeof(float));
        for (uint32_t j = 0; j < 3; j++) {
            free(logits[j]);
            free(after[j]);
        }
        close_trio(&t);
    }
}

/* A decode and a short chunk beside a long one have the exact bits; the long one has those it has alone. */
static void company_of_either_kind_changes_no_bit(void **state)
{
    const struct chunk before = { 1, 0, 9 }, alone = { 0, 0, LONG };
    const struct chunk all[3] = { { 1, 9, 1 }, { 0, 0, LONG }, { 2, 0, 17 } }, exact[2] = { { 1, 9, 1 }, { 2, 0, 17 } };

    (void)state;
    for (uint32_t i = 0; i < N_SHAPES; i += 2) {
        const uint32_t n_vocab = shapes[i].shape.n_vocab;
        float *want = calloc(n_vocab, 3 * sizeof(float)), *got = calloc(n_vocab, 3 * sizeof(float));
        struct trio t;

        open_trio(&t, &shapes[i].shape, shapes[i].kv_type);
        step(&t.exact, &before, 1, want);
        step(&t.exact, exact, 2, want);
        step(&t.slab, &alone, 1, want + 2 * (size_t)n_vocab);
        for (uint32_t seed = 0; seed < 2; seed++) {
            emu_seed(700 + seed);
            step(&t.kept, &before, 1, got);
            step(&t.kept, all, 3, got);
            assert_memory_equal(want, got, n_vocab * sizeof(float));
            assert_memory_equal(want + 2 * (size_t)n_vocab, got + n_vocab, n_vocab * sizeof(float));
            assert_memory_equal(want + n_vocab, got + 2 * (size_t)n_vocab, n_vocab * sizeof(float));
        }
        free(want);
        free(got);
        close_trio(&t);
    }
}

/* Attention of a long chunk is on tensor cores, in tiles of 64 queries, and of nothing else. */
static void only_long_chunks_have_tiles_on_tensor_cores(void **state)
{
    static const uint32_t n_tokens[4] = { 1, LONG, FAST_TOKENS_MIN - 1, FAST_TOKENS_MIN };
    const struct model *m;
    struct synthetic *s = synthetic_new(&shapes[0].shape, &m);
    struct rig r = open_on(backend_cuda(), m, KV_F16, true);
    const uint32_t heads = m->n_heads / m->n_kv_heads;

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const struct plan_entry e = { .n_tokens = n_tokens[i], .from_entry = -1 };
        const struct plan p = { &e, 1, n_tokens[i] };
        const uint32_t tokens = (n_tokens[i] < FAST_TOKENS_MIN ? ATTEND_QUERIES_MAX : ATTEND_MMA_QUERIES) / heads;
        const uint32_t tiles = (n_tokens[i] + tokens - 1) / tokens;
        struct step_sizes n;
        cuda_plan_sizes(r.backend, &p, &n);
        assert_int_equal(n.items_mma, n_tokens[i] < FAST_TOKENS_MIN ? 0 : tiles);
        assert_int_equal(n.items, n_tokens[i] < FAST_TOKENS_MIN ? tiles : 0);
    }
    r.api->close(r.backend);
    synthetic_free(s);
}

static void it_has_an_id_of_its_own(void **state)
{
    const struct model *m;
    struct synthetic *s = synthetic_new(&shapes[0].shape, &m);
    struct rig exact = open_on(backend_cuda(), m, KV_F16, false), fast = open_on(backend_cuda(), m, KV_F16, true);
    struct backend_info a, b;

    (void)state;
    backend_cuda()->describe(exact.backend, &a);
    backend_cuda()->describe(fast.backend, &b);
    assert_string_not_equal(a.numerics_id, b.numerics_id);
    assert_non_null(strstr(b.numerics_id, "fast"));
    assert_null(strstr(a.numerics_id, "fast"));
    assert_true(b.memory.weights > a.memory.weights && b.memory.total <= b.memory.available);
    exact.api->close(exact.backend);
    fast.api->close(fast.backend);
    synthetic_free(s);
}

static void the_cpu_refuses_it_by_name(void **state)
{
    const struct backend_options o = { .n_blocks = 8, .max_rows = 8, .max_seqs = 1, .context_tokens = 64, .fast_prefill = true };
    const struct model *m;
    struct synthetic *s = synthetic_new(&shapes[0].shape, &m);
    struct memory_plan plan;
    struct backend *b;
    struct error err = { 0 };

    (void)state;
    assert_int_equal(backend_cpu()->plan_memory(m, &o, &plan, &err), ST_UNSUPPORTED);
    assert_string_equal(err.param, "--fast-prefill");
    assert_int_equal(backend_cpu()->open(m, &o, &b, &err), ST_UNSUPPORTED);
    synthetic_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_chunks_are_close_and_the_copy_changes_no_bit),
        cmocka_unit_test(company_of_either_kind_changes_no_bit),
        cmocka_unit_test(only_long_chunks_have_tiles_on_tensor_cores),
        cmocka_unit_test(it_has_an_id_of_its_own),
        cmocka_unit_test(the_cpu_refuses_it_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
