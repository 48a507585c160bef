/* The whole CUDA engine on tiny models, under the emulation and the sanitizers: every logit and every token has the bits of
 * the CPU backend, whole or in chunks, alone or in company, in whatever order threads run.  Models with F16 or BF16 weights are
 * near the CPU's, and have the same bits among themselves in all these ways. */
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

#define DATA "tests/reference/data/tiny/"

const struct backend_api *backend_cuda(void);

enum { MAX_SEQS = 12, MAX_ROWS = 70, CONTEXT = 640, BLOCKS = 96 };

/* One model on both backends. */
struct pair {
    struct rig cpu, cuda;
    struct synthetic *synthetic; /* or a file */
    double bound;                /* how far from the CPU's; 0: equal */
};

static const struct backend_options options = { .n_threads = 1, .n_blocks = BLOCKS, .max_rows = MAX_ROWS, .max_seqs = MAX_SEQS,
                                                .context_tokens = CONTEXT };

static const struct sampling greedy = { .top_p = 1, .repetition_penalty = 1 };

static void open_cuda(struct pair *p)
{
    struct error err = { 0 };

    p->cuda = p->cpu;
    p->cuda.api = backend_cuda();
    p->bound = model_half_bound(p->cpu.model, p->cpu.options.kv_type);
    if (p->cuda.api->open(p->cpu.model, &p->cuda.options, &p->cuda.backend, &err) != ST_OK)
        fail_msg("%s", err.message);
}

static void open_pair(struct pair *p, const char *file, enum kv_type kv_type)
{
    struct backend_options o = options;
    char path[256];

    *p = (struct pair){ 0 };
    o.kv_type = kv_type;
    snprintf(path, sizeof(path), DATA "%s", file);
    rig_open(&p->cpu, path, &o);
    open_cuda(p);
}

static void open_synthetic(struct pair *p, const struct synthetic_shape *shape, enum kv_type kv_type)
{
    const struct model *m;
    struct error err = { 0 };

    *p = (struct pair){ .cpu = { .api = backend_cpu(), .options = options } };
    p->synthetic = synthetic_new(shape, &m);
    p->cpu.model = (struct model *)(uintptr_t)m;
    p->cpu.options.kv_type = kv_type;
    if (p->cpu.api->open(m, &p->cpu.options, &p->cpu.backend, &err) != ST_OK)
        fail_msg("%s", err.message);
    open_cuda(p);
}

static void close_pair(struct pair *p)
{
    p->cuda.api->close(p->cuda.backend);
    if (p->synthetic == NULL) {
        rig_close(&p->cpu);
        return;
    }
    p->cpu.api->close(p->cpu.backend);
    synthetic_free(p->synthetic);
}

static int32_t token_at(uint32_t sequence, uint32_t i, uint32_t n_vocab)
{
    return (int32_t)((sequence * 7919 + i * 104729 + i * i * 31) % n_vocab);
}

static void assert_same(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof(*a)) != 0)
            fail_msg("%s: value %zu is %a, the CPU has %a", what, i, (double)b[i], (double)a[i]);
}

static void assert_near(const char *what, double bound, const float *cpu, const float *cuda, size_t n)
{
    double wrong = 0, all = 0;

    for (size_t i = 0; i < n; i++) {
        wrong += ((double)cuda[i] - cpu[i]) * ((double)cuda[i] - cpu[i]);
        all += (double)cpu[i] * cpu[i];
    }
    if (!(wrong <= bound * all))
        fail_msg("%s: an error of %g of the CPU's logits", what, wrong / all);
    print_message("%s: an error of %.2g of the CPU's logits\n", what, wrong / all);
}

/* All logits of n tokens, fed in chunks. */
static void feed(struct rig *r, uint32_t n, uint32_t chunk, const uint32_t *blocks, float *logits)
{
    int32_t tokens[CONTEXT];

    for (uint32_t i = 0; i < n; i++)
        tokens[i] = token_at(1, i, r->model->n_vocab);
    rig_feed(r, tokens, 0, n, chunk, blocks, logits);
}

static void compare_chunks(struct pair *p, const char *what, uint32_t n, uint32_t chunk)
{
    const size_t size = (size_t)n * p->cpu.model->n_vocab;
    float *a = malloc(size * sizeof(*a)), *b = malloc(size * sizeof(*b));
    uint32_t blocks[BLOCKS];

    rig_blocks(blocks, BLOCKS, 0);
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = (i * 5 + 3) % BLOCKS; /* anywhere */
    feed(&p->cpu, n, MAX_ROWS, blocks, a);
    feed(&p->cuda, n, chunk, blocks, b);
    if (p->bound > 0) { /* then against itself, the other way */
        assert_near(what, p->bound, a, b, size);
        feed(&p->cuda, n, chunk > 8 ? 8 : chunk + 1, blocks, a);
    }
    assert_same(what, a, b, size);
    free(a);
    free(b);
}

static void every_type_and_architecture_is_as_on_the_cpu(void **state)
{
    static const char *const files[] = {
        "tiny-llama-F16.gguf",    "tiny-llama-Q4_0.gguf",       "tiny-llama-Q4_1.gguf",  "tiny-llama-Q4_K_M.gguf", "tiny-llama-Q4_K_S.gguf",
        "tiny-llama-Q5_0.gguf",   "tiny-llama-Q5_1.gguf",       "tiny-llama-Q5_K_S.gguf", "tiny-llama-Q6_K.gguf",  "tiny-llama-Q8_0.gguf",
        "tiny-llama3rope-Q8_0.gguf", "tiny-qwen2-Q8_0.gguf",    "tiny-qwen3-Q8_0.gguf",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct pair p;
        emu_seed(1000 + i);
        open_pair(&p, files[i], i % 2 ? KV_Q8 : KV_F16);
        compare_chunks(&p, files[i], 21, 21);
        compare_chunks(&p, files[i], 5, 1);
        close_pair(&p);
    }
}

static void odd_shapes_are_as_on_the_cpu(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        struct pair p;
        emu_seed(2000 + i);
        open_synthetic(&p, &shapes[i].shape, shapes[i].kv_type);
        compare_chunks(&p, shapes[i].what, 35, 35);
        compare_chunks(&p, shapes[i].what, 12, 2);
        close_pair(&p);
    }
}

/* ------------------------------------------------------------------ company */

struct sequence {
    int32_t tokens[CONTEXT];
    uint32_t blocks[CONTEXT / BLOCK_TOKENS + 1];
    uint32_t n_past;
};

static void start_sequence(struct sequence *s, uint32_t number, uint32_t first_block, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < CONTEXT; i++)
        s->tokens[i] = token_at(number, i, n_vocab);
    rig_blocks(s->blocks, CONTEXT / BLOCK_TOKENS, first_block);
    s->n_past = 0;
}

/* Logits of entries from a backend that computes each in a step of its own. */
static void step_alone(struct rig *alone, const struct plan_entry *entries, uint32_t n, uint32_t n_vocab, enum plan_want want)
{
    float *own = malloc((size_t)MAX_ROWS * n_vocab * sizeof(*own));

    for (uint32_t i = 0; i < n; i++) {
        struct plan_entry e = entries[i];
        e.logits = own;
        rig_step(alone, &e, 1, NULL);
        if (want >= WANT_LOGITS)
            assert_same("alone", own, entries[i].logits, (size_t)(want == WANT_ALL_LOGITS ? e.n_tokens : 1) * n_vocab);
    }
    free(own);
}

/* One step on both: sequence i takes n[i] tokens (0: stays out) and gives the logits of its last. */
static void compare_step(struct pair *p, struct rig *alone, struct sequence *s, const uint32_t *n, uint32_t n_sequences, enum plan_want want)
{
    const uint32_t n_vocab = p->cpu.model->n_vocab;
    float *logits[2];
    struct plan_entry e[2][MAX_SEQS] = { 0 };
    uint32_t n_entries = 0, rows = 0;

    for (int i = 0; i < 2; i++) {
        logits[i] = calloc((size_t)MAX_ROWS * n_vocab, sizeof(float));
        assert_non_null(logits[i]);
    }
    for (uint32_t i = 0; i < n_sequences; i++) {
        if (n[i] == 0)
            continue;
        for (int b = 0; b < 2; b++)
            e[b][n_entries] = (struct plan_entry){ .tokens = s[i].tokens + s[i].n_past, .n_tokens = n[i], .n_past = s[i].n_past,
                                                   .blocks = s[i].blocks, .from_entry = -1, .want = want,
                                                   .logits = logits[b] + (size_t)rows * n_vocab };
        rows += n[i];
        s[i].n_past += n[i];
        n_entries++;
    }
    rig_step(&p->cpu, e[0], n_entries, NULL);
    rig_step(&p->cuda, e[1], n_entries, NULL);
    if (p->bound > 0)
        step_alone(alone, e[1], n_entries, n_vocab, want);
    if (want >= WANT_LOGITS && p->bound > 0)
        assert_near("step", p->bound, logits[0], logits[1], (size_t)rows * n_vocab);
    else if (want >= WANT_LOGITS)
        assert_same("step", logits[0], logits[1], (size_t)rows * n_vocab);
    free(logits[0]);
    free(logits[1]);
}

static void company_and_long_prefixes_change_no_bit(void **state)
{
    static struct sequence s[MAX_SEQS];

    (void)state;
    for (uint32_t i = 0; i < 5; i += i == 0 ? 3 : 1) { /* windows; BF16; groups of 20, and F16 beside others */
        struct rig alone = { 0 };
        struct pair p;
        struct error err;
        emu_seed(3000 + i);
        open_synthetic(&p, &shapes[i].shape, shapes[i].kv_type);
        if (p.bound > 0) {
            alone = p.cuda;
            assert_int_equal(alone.api->open(p.cpu.model, &alone.options, &alone.backend, &err), ST_OK);
        }
        start_sequence(&s[0], 1, 0, p.cpu.model->n_vocab); /* a long one */
        for (uint32_t j = 1; j < MAX_SEQS; j++)
            start_sequence(&s[j], 1 + j, 38 + 4 * j, p.cpu.model->n_vocab);
        for (uint32_t at = 0; at < 280; at += MAX_ROWS)
            compare_step(&p, &alone, s, (uint32_t[]){ MAX_ROWS }, 1, at % 4 == 0 ? WANT_LOGITS : WANT_NOTHING);
        compare_step(&p, &alone, s, (uint32_t[]){ 1 }, 1, WANT_LOGITS);
        compare_step(&p, &alone, s, (uint32_t[]){ 1, 20, 3, 1 }, 4, WANT_ALL_LOGITS);
        compare_step(&p, &alone, s, (uint32_t[]){ 1, 1, 1, 1, 5, 9 }, 6, WANT_LOGITS);
        compare_step(&p, &alone, s, (uint32_t[]){ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, MAX_SEQS, WANT_LOGITS);
        compare_step(&p, &alone, s, (uint32_t[]){ 1, 0, 0, 1 }, 4, WANT_LOGITS);
        if (p.bound > 0)
            alone.api->close(alone.backend);
        close_pair(&p);
    }
}

/* ------------------------------------------------------------------ sampling */

static const struct sampling samplings[] = {
    { .seed = 1, .temperature = 0, .top_p = 1, .repetition_penalty = 1 },
    { .seed = 2, .temperature = 0, .top_p = 1, .repetition_penalty = 1, .logprobs = 1, .n_logprobs = 20 },
    { .seed = 3, .temperature = 1, .top_p = 1, .repetition_penalty = 1 },
    { .seed = 4, .temperature = 0.7f, .top_p = 0.9f, .repetition_penalty = 1, .logprobs = 1, .n_logprobs = 3 },
    { .seed = 5, .temperature = 1.3f, .top_p = 1, .top_k = 40, .repetition_penalty = 1 },
    { .seed = 6, .temperature = 5, .top_p = 0.99f, .top_k = 200, .repetition_penalty = 1, .logprobs = 1 },
    { .seed = 7, .temperature = 0.8f, .top_p = 1, .min_p = 0.05f, .repetition_penalty = 1.3f },
    { .seed = 8, .temperature = 100, .top_p = 1, .repetition_penalty = 1, .presence_penalty = 1, .frequency_penalty = 0.5f },
    { .seed = 9, .temperature = 0, .top_p = 1, .repetition_penalty = 2, .presence_penalty = -1, .logprobs = 1, .n_logprobs = 5 },
    { .seed = 10, .temperature = 0.01f, .top_p = 0.5f, .top_k = 1, .min_p = 1, .repetition_penalty = 1 },
};
enum { N_SAMPLINGS = sizeof(samplings) / sizeof(samplings[0]) };

static void assert_same_result(const struct step_result *a, const struct step_result *b, uint32_t i, uint32_t step)
{
    if (a->token != b->token || memcmp(&a->logprob, &b->logprob, sizeof(float)) != 0 || a->n_top != b->n_top)
        fail_msg("sampling %u, step %u: token %d (%a, %u top), the CPU has %d (%a, %u)", i, step, b->token, (double)b->logprob,
                 b->n_top, a->token, (double)a->logprob, a->n_top);
    for (uint32_t t = 0; t < a->n_top; t++)
        if (memcmp(&a->top[t], &b->top[t], sizeof(a->top[t])) != 0)
            fail_msg("sampling %u, step %u: alternative %u is %d (%a), the CPU has %d (%a)", i, step, t, b->top[t].token,
                     (double)b->top[t].logprob, a->top[t].token, (double)a->top[t].logprob);
}

/* Prompts, then tokens fed back inside the device, two steps in flight on the device. */
static void tokens_are_the_cpus(void **state)
{
    enum { STEPS = 6 };
    static struct plan_entry e[STEPS][N_SAMPLINGS];
    static struct step_result want[STEPS][N_SAMPLINGS], got[STEPS][N_SAMPLINGS];
    const struct logit_bias bias[] = { { 7, 2.5f }, { 11, -100 }, { 7, 0.25f }, { 400, 3 } };
    const struct token_count seen[] = { { 3, 1, 0 }, { 11, 0, 2 }, { 7, 2, 1 }, { 100, 0, 5 } };
    int32_t prompt[8];
    uint32_t blocks[N_SAMPLINGS][2];
    struct pair p;

    (void)state;
    _Static_assert((int)N_SAMPLINGS <= (int)MAX_SEQS, "all at once");
    open_pair(&p, "tiny-llama-Q8_0.gguf", KV_F16);
    for (uint32_t i = 0; i < 8; i++)
        prompt[i] = token_at(9, i, p.cpu.model->n_vocab);
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < N_SAMPLINGS; i++) {
            const bool changes = i % 2 == 1 || i >= 7;
            rig_blocks(blocks[i], 2, 2 * i);
            e[step][i] = (struct plan_entry){ .tokens = prompt, .n_tokens = step == 0 ? 1 + i % 7 : 1,
                                              .n_past = step == 0 ? 0 : 1 + i % 7 + step - 1, .blocks = blocks[i],
                                              .from_entry = step == 0 ? -1 : (int32_t)i, .want = WANT_TOKEN,
                                              .sampling = &samplings[i], .bias = bias, .n_bias = changes ? 4 : 0, .seen = seen,
                                              .n_seen = changes ? 4 : 0, .choice = i / 2, .index = step };
        }
        rig_step(&p.cpu, e[step], N_SAMPLINGS, want[step]);
    }
    for (uint32_t seed = 0; seed < 3; seed++) {
        struct plan plans[STEPS];
        backend_ticket ticket[STEPS];
        emu_seed(4000 + seed);
        for (uint32_t step = 0; step <= STEPS; step++) {
            if (step < STEPS) {
                plans[step] = (struct plan){ .entries = e[step], .n_entries = N_SAMPLINGS };
                for (uint32_t i = 0; i < N_SAMPLINGS; i++)
                    plans[step].n_rows += e[step][i].n_tokens;
                assert_int_equal(p.cuda.api->step_submit(p.cuda.backend, &plans[step], &ticket[step]), ST_OK);
            }
            if (step > 0)
                assert_int_equal(p.cuda.api->step_wait(p.cuda.backend, ticket[step - 1], got[step - 1]), ST_OK);
        }
        for (uint32_t step = 0; step < STEPS; step++)
            for (uint32_t i = 0; i < N_SAMPLINGS; i++)
                assert_same_result(&want[step][i], &got[step][i], i, step);
    }
    close_pair(&p);
}

/* ------------------------------------------------------------------ graphs */

enum { GRAPH_STEPS = 18 };

/* How many sequences decode in step i; some steps have a prompt among them, or logits for the caller, and are no graph. */
static uint32_t decoding(uint32_t step)
{
    static const uint32_t n[] = { 1, 2, 3, 4, 5, 9, 12, 6, 1 };

    return n[step % (sizeof(n) / sizeof(n[0]))];
}

/* Sequences of 240 + 32 i tokens go on, so the longest of a step has one to three splits, and the first grows from one to two on the
 * way.  Two steps are under way, each with a plan of its own, so a graph is launched again while its last run has not begun.  Tokens and log-probabilities of all steps; how many
 * were graphs. */
static uint32_t decode_some(struct pair *p, bool graphs, uint64_t seed, struct step_result (*ret)[MAX_SEQS])
{
    static uint32_t blocks[MAX_SEQS][CONTEXT / BLOCK_TOKENS];
    static struct plan_entry e[GRAPH_STEPS][MAX_SEQS];
    uint32_t past[MAX_SEQS], sampled[MAX_SEQS] = { 0 };
    struct plan plans[GRAPH_STEPS];
    backend_ticket ticket[GRAPH_STEPS];
    int32_t token[MAX_SEQS];
    struct rig r = p->cuda;
    struct error err;

    emu_graphs(graphs);
    emu_seed(seed);
    assert_int_equal(r.api->open(p->cpu.model, &r.options, &r.backend, &err), ST_OK);
    emu_graphs(false);
    for (uint32_t i = 0; i < MAX_SEQS; i++) { /* they share the blocks that they do not write */
        past[i] = 240 + 32 * i;
        token[i] = token_at(i, 1, p->cpu.model->n_vocab);
        for (uint32_t b = 0; b < CONTEXT / BLOCK_TOKENS; b++)
            blocks[i][b] = b < past[i] / BLOCK_TOKENS ? b % 4 : 4 + i * 2 + b % 2;
    }
    int32_t first[4 * BLOCK_TOKENS];
    struct plan_entry fill = { .tokens = first, .n_tokens = 4 * BLOCK_TOKENS, .blocks = blocks[MAX_SEQS - 1], .from_entry = -1 };
    for (uint32_t i = 0; i < 4 * BLOCK_TOKENS; i++)
        first[i] = token_at(77, i, p->cpu.model->n_vocab);
    rig_step(&r, &fill, 1, NULL);
    const uint64_t before = emu_replays();
    for (uint32_t step = 0; step <= GRAPH_STEPS; step++) {
        if (step < GRAPH_STEPS) {
            const uint32_t n = decoding(step);
            for (uint32_t i = 0; i < n; i++) {
                e[step][i] = (struct plan_entry){ .tokens = &token[i], .n_tokens = 1, .n_past = past[i]++, .blocks = blocks[i],
                                                  .from_entry = step > 0 && i < decoding(step - 1) ? (int32_t)i : -1, .want = WANT_TOKEN,
                                                  .sampling = &samplings[i % N_SAMPLINGS], .choice = i, .index = sampled[i]++ };
            }
            if (step % 7 == 5) { /* a prompt of two: no graph */
                e[step][0].n_tokens = 2, e[step][0].from_entry = -1, e[step][0].tokens = first;
                past[0]++;
            }
            plans[step] = (struct plan){ .entries = e[step], .n_entries = n, .n_rows = n + (step % 7 == 5) };
            assert_int_equal(r.api->step_submit(r.backend, &plans[step], &ticket[step]), ST_OK);
        }
        if (step > 0)
            assert_int_equal(r.api->step_wait(r.backend, ticket[step - 1], ret[step - 1]), ST_OK);
    }
    r.api->close(r.backend);
    return (uint32_t)(emu_replays() - before);
}

/* A graph was recorded with the arguments of its size; what it computes for a smaller step, of other sequences, with other numbers of
 * splits, is what plain launches compute. */
static void a_replayed_graph_is_the_plain_launches(void **state)
{
    static struct step_result plain[GRAPH_STEPS][MAX_SEQS], replayed[GRAPH_STEPS][MAX_SEQS];

    (void)state;
    for (uint32_t i = 0; i < 4; i += 3) { /* a window, norms of heads, Q8_0; biases, BF16 */
        struct pair p;
        uint32_t n_plain = 0;
        open_synthetic(&p, &shapes[i].shape, shapes[i].kv_type);
        for (uint32_t step = 0; step < GRAPH_STEPS; step++)
            n_plain += step % 7 == 5;
        assert_int_equal(decode_some(&p, false, 7000 + i, plain), 0);
        assert_int_equal(decode_some(&p, true, 7100 + i, replayed), GRAPH_STEPS - n_plain);
        for (uint32_t step = 0; step < GRAPH_STEPS; step++)
            for (uint32_t s = 0; s < decoding(step); s++)
                assert_same_result(&plain[step][s], &replayed[step][s], s, step);
        close_pair(&p);
    }
}

/* One sequence, one token. */
static const int32_t one_token = 5;
static const uint32_t one_block = 3;
static const struct plan_entry one_entry = { .tokens = &one_token, .n_tokens = 1, .blocks = &one_block, .from_entry = -1,
                                             .want = WANT_TOKEN, .sampling = &greedy };
static const struct plan one_step = { &one_entry, 1, 1 };

/* A launch inside a graph that fails ends the backend like any other. */
static void a_graph_that_fails_is_the_end_of_the_backend(void **state)
{
    backend_ticket t;
    struct pair p;

    (void)state;
    emu_graphs(true);
    open_pair(&p, "tiny-llama-Q4_0.gguf", KV_F16);
    emu_graphs(false);
    emu_fail_after(7);
    assert_int_equal(p.cuda.api->step_submit(p.cuda.backend, &one_step, &t), ST_SYSTEM);
    assert_int_equal(p.cuda.api->step_submit(p.cuda.backend, &one_step, &t), ST_SYSTEM);
    p.cuda.api->close(p.cuda.backend);
    emu_fail_after(UINT64_MAX);
    p.cuda.backend = NULL;
    close_pair(&p);
}

static void three_steps_are_one_too_many(void **state)
{
    const int32_t token = 5;
    const uint32_t block = 0;
    const struct plan_entry e = { .tokens = &token, .n_tokens = 1, .blocks = &block, .from_entry = -1 };
    const struct plan plan = { &e, 1, 1 };
    struct step_result unused;
    backend_ticket t[3];
    struct pair p;

    (void)state;
    open_pair(&p, "tiny-llama-Q4_0.gguf", KV_F16);
    assert_int_equal(p.cuda.api->step_submit(p.cuda.backend, &plan, &t[0]), ST_OK);
    assert_int_equal(p.cuda.api->step_submit(p.cuda.backend, &plan, &t[1]), ST_OK);
    assert_int_equal(p.cuda.api->step_submit(p.cuda.backend, &plan, &t[2]), ST_AGAIN);
    enum status st;
    while ((st = p.cuda.api->step_poll(p.cuda.backend, t[0])) == ST_AGAIN)
        ;
    assert_int_equal(st, ST_OK);
    assert_int_equal(p.cuda.api->step_wait(p.cuda.backend, t[0], &unused), ST_OK);
    assert_int_equal(p.cuda.api->step_submit(p.cuda.backend, &plan, &t[2]), ST_OK);
    assert_int_equal(p.cuda.api->step_wait(p.cuda.backend, t[1], &unused), ST_OK);
    assert_int_equal(p.cuda.api->step_wait(p.cuda.backend, t[2], &unused), ST_OK);
    close_pair(&p);
}

/* ------------------------------------------------------------------ blocks and refusals */

/* Copies are given and left to happen when they will. */
static backend_ticket give_copy(struct rig *r, enum block_copy_kind kind, uint32_t block, uint32_t to_block, void *host)
{
    const struct block_copy c = { kind, block, to_block, host };
    backend_ticket t;

    assert_int_equal(r->api->copy_submit(r->backend, &c, &t), ST_OK);
    return t;
}

static void finish_copy(struct rig *r, backend_ticket t)
{
    enum status st;

    while ((st = r->api->copy_poll(r->backend, t)) == ST_AGAIN)
        ;
    assert_int_equal(st, ST_OK);
    assert_int_equal(r->api->copy_poll(r->backend, t), ST_OK); /* and stays done */
}

/* A sequence's blocks move by way of the host and straight, while steps before and after are under way. */
static void moved_blocks_hold_what_the_steps_wrote(struct pair *p, uint64_t seed, uint8_t *host, const float *want)
{
    static struct sequence s;
    const uint32_t n_vocab = p->cpu.model->n_vocab, moved[3] = { 61, 60, 12 };
    float *logits = malloc(n_vocab * sizeof(*logits));
    struct step_result unused;
    backend_ticket t[2], copies[4];

    emu_seed(seed);
    start_sequence(&s, 3, 10, n_vocab);
    struct plan_entry first = { .tokens = s.tokens, .n_tokens = 40, .blocks = s.blocks, .from_entry = -1 };
    struct plan_entry second = { .tokens = s.tokens + 40, .n_tokens = 1, .n_past = 40, .blocks = moved, .from_entry = -1,
                                 .want = WANT_LOGITS, .logits = logits };
    const struct plan plans[2] = { { &first, 1, 40 }, { &second, 1, 1 } };
    assert_int_equal(p->cuda.api->step_submit(p->cuda.backend, &plans[0], &t[0]), ST_OK);
    copies[0] = give_copy(&p->cuda, BLOCK_TO_HOST, 11, 0, host);
    copies[1] = give_copy(&p->cuda, HOST_TO_BLOCK, 60, 0, host); /* after the one before it */
    copies[2] = give_copy(&p->cuda, BLOCK_TO_BLOCK, 10, 61, NULL);
    assert_int_equal(p->cuda.api->step_submit(p->cuda.backend, &plans[1], &t[1]), ST_OK);
    copies[3] = give_copy(&p->cuda, BLOCK_TO_BLOCK, 50, 61, NULL); /* after the step that reads 61 */
    assert_int_equal(p->cuda.api->step_wait(p->cuda.backend, t[0], &unused), ST_OK);
    if (seed % 2)
        finish_copy(&p->cuda, copies[1]);
    assert_int_equal(p->cuda.api->step_wait(p->cuda.backend, t[1], &unused), ST_OK);
    assert_same("moved", want, logits, n_vocab);
    for (int i = 0; i < 4; i++)
        finish_copy(&p->cuda, copies[i]);
    free(logits);
}

static void blocks_come_back_from_the_host_and_move(void **state)
{
    static struct sequence s;
    struct backend_info info;
    struct pair p;

    (void)state;
    open_pair(&p, "tiny-qwen3-Q8_0.gguf", KV_Q8);
    p.cuda.api->describe(p.cuda.backend, &info);
    assert_int_equal(info.memory.n_blocks, BLOCKS);
    uint8_t *host = aligned_alloc(64, ((size_t)info.memory.block_bytes + 63) / 64 * 64);
    float *want = malloc(p.cpu.model->n_vocab * sizeof(*want));
    start_sequence(&s, 3, 10, p.cpu.model->n_vocab);
    rig_feed(&p.cpu, s.tokens, 0, 40, 40, s.blocks, NULL);
    struct plan_entry e = { .tokens = s.tokens + 40, .n_tokens = 1, .n_past = 40, .blocks = s.blocks, .from_entry = -1,
                            .want = WANT_LOGITS, .logits = want };
    rig_step(&p.cpu, &e, 1, NULL);
    for (uint64_t seed = 5000; seed < 5006; seed++) {
        const size_t bytes = info.memory.block_bytes;
        const uint64_t before = emu_detours();
        if (seed >= 5002)
            assert_int_equal(p.cuda.api->register_host(p.cuda.backend, host, bytes), ST_OK);
        moved_blocks_hold_what_the_steps_wrote(&p, seed, host, want);
        assert_int_equal(emu_detours() - before, 1 + (seed >= 5002 ? 0 : 2)); /* the logits; the copies of the block */
        if (seed >= 5002)
            p.cuda.api->unregister_host(p.cuda.backend, host);
    }
    free(host);
    free(want);
    close_pair(&p);
}

/* A step waits for copies of blocks that it names, and for no other: those run beside it. */
static void only_a_step_that_names_a_block_waits_for_its_copy(void **state)
{
    const int32_t token = 5;
    const uint32_t blocks[2] = { 3, 7 };
    struct plan_entry e = { .tokens = &token, .n_tokens = 1, .from_entry = -1, .want = WANT_TOKEN, .sampling = &greedy };
    struct backend_info info;
    struct step_result result;
    struct pair p;

    (void)state;
    open_pair(&p, "tiny-llama-Q4_0.gguf", KV_F16);
    p.cuda.api->describe(p.cuda.backend, &info);
    const size_t bytes = ((size_t)info.memory.block_bytes + 63) / 64 * 64;
    uint8_t *host = aligned_alloc(64, bytes);
    assert_int_equal(p.cuda.api->register_host(p.cuda.backend, host, bytes), ST_OK);
    for (uint32_t named = 0; named < 2; named++) {
        backend_ticket t = give_copy(&p.cuda, BLOCK_TO_HOST, blocks[1], 0, host);
        const uint64_t before = emu_stream_waits(), detours = emu_detours();
        e.blocks = &blocks[named];
        rig_step(&p.cuda, &e, 1, &result);
        assert_int_equal(emu_stream_waits() - before, named);
        assert_int_equal(emu_detours(), detours);
        finish_copy(&p.cuda, t);
    }
    p.cuda.api->unregister_host(p.cuda.backend, host);
    free(host);
    close_pair(&p);
}

/* A launch that fails ends the step with its reason, whenever it comes; nothing but close is possible afterwards, and close
 * gives back everything. */
static void a_failed_launch_is_the_end_of_the_backend(void **state)
{
    const struct block_copy c = { .kind = BLOCK_TO_BLOCK, .block = 1, .to_block = 2 };
    struct step_result result;

    (void)state;
    for (uint32_t launches = 1; launches < 20; launches += 6) {
        struct pair p;
        backend_ticket t;
        uint64_t left = launches;
        enum status st = ST_OK;
        open_pair(&p, "tiny-llama-Q4_0.gguf", KV_F16);
        emu_fail_after(left);
        for (int i = 0; i < 9 && st == ST_OK; i++) {
            st = p.cuda.api->step_submit(p.cuda.backend, &one_step, &t);
            if (st == ST_OK)
                st = p.cuda.api->step_wait(p.cuda.backend, t, &result);
        }
        assert_int_equal(st, ST_SYSTEM);
        assert_non_null(strstr(device_error(), "launch failure"));
        assert_int_equal(p.cuda.api->step_submit(p.cuda.backend, &one_step, &t), ST_SYSTEM);
        assert_int_equal(p.cuda.api->copy_submit(p.cuda.backend, &c, &t), ST_SYSTEM);
        p.cuda.api->close(p.cuda.backend);
        emu_fail_after(UINT64_MAX);
        p.cuda.backend = NULL;
        close_pair(&p);
    }
}

static void what_does_not_fit_is_refused_with_reasons(void **state)
{
    struct synthetic_shape shape = shapes[0].shape;
    struct backend_options o = options;
    const struct backend_api *api = backend_cuda();
    const struct model *m;
    struct memory_plan plan;
    struct backend *b;
    struct error err;

    (void)state;
    struct synthetic *s = synthetic_new(&shape, &m);
    assert_int_equal(api->plan_memory(m, &o, &plan, &err), ST_OK);
    assert_true(plan.total == plan.weights + plan.kv + plan.scratch && plan.n_blocks == BLOCKS);
    o.n_blocks = 1 << 20;
    assert_int_equal(api->open(m, &o, &b, &err), ST_LIMIT);
    assert_non_null(strstr(err.message, "MiB too many"));
    o = options;
    o.device = 3;
    assert_int_equal(api->open(m, &o, &b, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "no CUDA device 3"));
    o = options;
    o.max_rows = 0;
    assert_int_equal(api->open(m, &o, &b, &err), ST_UNSUPPORTED);
    o = options;
    o.n_blocks = 0;
    o.kv_bytes = 10;
    assert_int_equal(api->open(m, &o, &b, &err), ST_LIMIT);
    synthetic_free(s);

    shape.head_dim = 48;
    s = synthetic_new(&shape, &m);
    assert_int_equal(api->open(m, &options, &b, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "this model has 48"));
    synthetic_free(s);
}

/* ------------------------------------------------------------------ launches */

/* Kernels of one decode step of n sequences, all sampled. */
static uint64_t launches_of(struct pair *p, uint32_t n)
{
    const int32_t token = 5;
    uint32_t blocks[MAX_SEQS];
    struct plan_entry e[MAX_SEQS] = { 0 };
    struct step_result results[MAX_SEQS];

    rig_blocks(blocks, MAX_SEQS, 0);
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct plan_entry){ .tokens = &token, .n_tokens = 1, .blocks = &blocks[i], .from_entry = -1, .want = WANT_TOKEN,
                                    .sampling = &greedy };
    const uint64_t before = emu_launches();
    rig_step(&p->cuda, e, n, results);
    return emu_launches() - before;
}

/* embed, six a layer, head, sampling */
static void a_layer_of_a_decode_is_six_launches(void **state)
{
    static const uint32_t sequences[] = { 1, 2, 4, 5, 8, 9, 12 };
    static const char *const files[] = { "tiny-llama-Q8_0.gguf", "tiny-llama-Q4_1.gguf", "tiny-qwen3-Q8_0.gguf",
                                         "tiny-llama-Q4_K_M.gguf", "tiny-llama-F16.gguf" };

    (void)state;
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        struct pair p;
        open_pair(&p, files[f], KV_F16);
        for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]); i++)
            assert_int_equal(launches_of(&p, sequences[i]), 3 + 6 * p.cpu.model->n_layers);
        close_pair(&p);
    }
}

/* The last layer ends for a row nobody asks for.  One layer: what it would have put into the feed-forward input is still what
 * the memory held before. */
static void only_wanted_rows_go_past_the_last_attention(void **state)
{
    static struct sequence s;
    struct synthetic_shape shape = shapes[0].shape;
    struct xblock untouched;
    struct pair p;

    (void)state;
    shape.n_layers = 1;
    open_synthetic(&p, &shape, KV_F16);
    const struct row_input *in = &p.cuda.backend->s.in_f;
    float *logits = malloc(p.cpu.model->n_vocab * sizeof(*logits));
    struct plan_entry e = { .tokens = s.tokens, .n_tokens = 30, .blocks = s.blocks, .from_entry = -1 };
    memset(&untouched, 0xff, sizeof(untouched));
    start_sequence(&s, 1, 0, p.cpu.model->n_vocab);
    uint64_t before = emu_launches();
    rig_step(&p.cuda, &e, 1, NULL);
    assert_int_equal(emu_launches() - before, 3); /* embed; q, k, v; K and V to their block */
    e.want = WANT_LOGITS;
    e.logits = logits;
    rig_step(&p.cuda, &e, 1, NULL);
    for (uint32_t row = 0; row < 30; row++)
        assert_int_equal(memcmp(in->q8 + (size_t)row * in->n_blocks, &untouched, sizeof(untouched)) == 0, row < 29);
    free(logits);
    close_pair(&p);
}

/* Models of random weights for speed share one layer's: it is packed once and copied on the device, at whatever depth. */
static void layers_of_one_memory_are_the_same_on_the_device(void **state)
{
    struct synthetic_shape shape = shapes[5].shape;
    struct pair p;

    (void)state;
    shape.n_layers = 4;
    shape.shared_layers = true;
    open_synthetic(&p, &shape, KV_F16);
    const struct cuda_layer *l = p.cuda.backend->layers;
    for (uint32_t i = 1; i < shape.n_layers; i++) {
        assert_ptr_not_equal(l[i].down.data, l[0].down.data);
        assert_memory_equal(l[i].down.data, l[0].down.data, weights_bytes(&l[0].down));
    }
    compare_chunks(&p, "shared layers", 9, 9);
    close_pair(&p);
}

/* An argument names the tests to run, e.g. "company*". */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_architecture_is_as_on_the_cpu),
        cmocka_unit_test(odd_shapes_are_as_on_the_cpu),
        cmocka_unit_test(company_and_long_prefixes_change_no_bit),
        cmocka_unit_test(tokens_are_the_cpus),
        cmocka_unit_test(a_replayed_graph_is_the_plain_launches),
        cmocka_unit_test(a_graph_that_fails_is_the_end_of_the_backend),
        cmocka_unit_test(three_steps_are_one_too_many),
        cmocka_unit_test(blocks_come_back_from_the_host_and_move),
        cmocka_unit_test(only_a_step_that_names_a_block_waits_for_its_copy),
        cmocka_unit_test(a_failed_launch_is_the_end_of_the_backend),
        cmocka_unit_test(what_does_not_fit_is_refused_with_reasons),
        cmocka_unit_test(a_layer_of_a_decode_is_six_launches),
        cmocka_unit_test(only_wanted_rows_go_past_the_last_attention),
        cmocka_unit_test(layers_of_one_memory_are_the_same_on_the_device),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
