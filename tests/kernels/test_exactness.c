/* The promise: the logits of a sequence are the same bits alone, in a batch, in chunks of any size, with its prefix reused, with
 * one thread or two, on every instruction set.  Run on the tiny models, and on the real ones where they are on the machine.
 *
 * tests/reference/data/tiny/logits.hashes holds one hash a model and KV type: with gcc, clang and every instruction set the
 * logits must give it.  After a wanted change of the arithmetic (and of ARITHMETIC_VERSION): WEIR_WRITE_HASHES=FILE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <xxhash.h>

#include "tests/support/engine_rig.h"
#include "tests/support/test_model_path.h"

#define DATA "tests/reference/data/tiny/"

enum { LONG = 300, BLOCKS = (LONG + 15) / 16, BATCH = 32 };

static const char *const tiny[] = {
    "tiny-llama-F16.gguf",    "tiny-llama-Q4_0.gguf",   "tiny-llama-Q4_1.gguf",   "tiny-llama-Q5_0.gguf", "tiny-llama-Q5_1.gguf",
    "tiny-llama-Q8_0.gguf",   "tiny-llama-Q4_K_S.gguf", "tiny-llama-Q4_K_M.gguf", "tiny-llama-Q5_K_S.gguf", "tiny-llama-Q6_K.gguf",
    "tiny-qwen2-Q8_0.gguf",   "tiny-qwen3-Q8_0.gguf",   "tiny-llama3rope-Q8_0.gguf",
};
enum { N_TINY = sizeof(tiny) / sizeof(tiny[0]) };

/* Two splits of attention for one file of each kind of weight, less for the others: the sanitizers are slow. */
static uint32_t length_for(const char *file)
{
    return strstr(file, "F16") != NULL || strstr(file, "Q4_1") != NULL ? LONG : 70;
}

static void make_tokens(int32_t *tokens, uint32_t n, uint32_t n_vocab, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((seed >> 8) % n_vocab);
    }
}

static uint64_t hash_of(const float *logits, size_t n)
{
    return XXH3_64bits(logits, n * sizeof(*logits));
}

/* Logits of all n positions of one sequence, in chunks, alone. */
static float *alone(struct rig *r, const int32_t *tokens, uint32_t n, uint32_t chunk, uint32_t first_block)
{
    uint32_t blocks[BLOCKS];
    float *logits = malloc((size_t)n * r->model->n_vocab * sizeof(*logits));

    assert_non_null(logits);
    rig_blocks(blocks, BLOCKS, first_block);
    rig_feed(r, tokens, 0, n, chunk, blocks, logits);
    return logits;
}

static void same_in_chunks(struct rig *r, const int32_t *tokens, uint32_t n, const float *want)
{
    static const uint32_t chunks[] = { 1, 7, 64 };

    for (size_t c = 0; c < 3; c++) {
        float *got = alone(r, tokens, n, chunks[c], 40);
        assert_memory_equal(want, got, (size_t)n * r->model->n_vocab * sizeof(*got));
        free(got);
    }
}

/* The sequence decodes its last tokens among 31 others of other lengths, some of them still in their prompts. */
static void same_in_a_batch(struct rig *r, const int32_t *tokens, uint32_t n, const float *want)
{
    static int32_t others[BATCH][64];
    static uint32_t blocks[BATCH][BLOCKS];
    const uint32_t n_vocab = r->model->n_vocab, tail = 4;
    float *got = malloc(n_vocab * sizeof(*got));

    assert_non_null(got);
    rig_blocks(blocks[0], BLOCKS, 0);
    for (uint32_t s = 1; s < BATCH; s++) {
        make_tokens(others[s], 64, n_vocab, 77 + s);
        rig_blocks(blocks[s], 4, BLOCKS + 4 * s);
    }
    rig_feed(r, tokens, 0, n - tail, 100, blocks[0], NULL);
    for (uint32_t i = 0; i < tail; i++) {
        struct plan_entry e[BATCH] = { 0 };
        for (uint32_t s = 1; s < BATCH; s++)
            e[s] = (struct plan_entry){ .tokens = others[s] + i * (1 + s % 5), .n_tokens = 1 + s % 5, .n_past = i * (1 + s % 5), .blocks = blocks[s],
                                        .from_entry = -1, .want = WANT_NOTHING };
        const uint32_t place = i * 10; /* not always first */
        e[0] = e[place];
        e[place] = (struct plan_entry){ .tokens = tokens + n - tail + i, .n_tokens = 1, .n_past = n - tail + i, .blocks = blocks[0], .from_entry = -1,
                                        .want = WANT_LOGITS, .logits = got };
        if (place == 0)
            rig_step(r, e, BATCH, NULL);
        else
            rig_step(r, e + 1, BATCH - 1, NULL);
        assert_memory_equal(want + (size_t)(n - tail + i) * n_vocab, got, n_vocab * sizeof(*got));
    }
    free(got);
}

static void copy_block(struct rig *r, const struct block_copy *c)
{
    backend_ticket t;

    assert_int_equal(r->api->copy_submit(r->backend, c, &t), ST_OK);
    assert_int_equal(r->api->copy_poll(r->backend, t), ST_OK);
}

/* The prefix's blocks are copied to other places, one of them by way of the host, and the rest is computed on them. */
static void same_with_a_reused_prefix(struct rig *r, const int32_t *tokens, uint32_t n, const float *want)
{
    const uint32_t n_vocab = r->model->n_vocab, reused = (n - 1) / 16 * 16;
    uint32_t blocks[BLOCKS];
    struct backend_info info;
    float *got = malloc((size_t)(n - reused) * n_vocab * sizeof(*got));

    assert_non_null(got);
    free(alone(r, tokens, n, 512, 0));
    r->api->describe(r->backend, &info);
    void *host = aligned_alloc(64, info.memory.block_bytes);
    assert_non_null(host);
    rig_blocks(blocks, BLOCKS, 100);
    for (uint32_t i = 0; i < reused / 16; i++)
        copy_block(r, &(struct block_copy){ .kind = BLOCK_TO_BLOCK, .block = i, .to_block = blocks[i] });
    copy_block(r, &(struct block_copy){ .kind = BLOCK_TO_HOST, .block = 0, .host = host });
    copy_block(r, &(struct block_copy){ .kind = HOST_TO_BLOCK, .block = blocks[0], .host = host });
    rig_feed(r, tokens, reused, n, 512, blocks, got);
    assert_memory_equal(want + (size_t)reused * n_vocab, got, (size_t)(n - reused) * n_vocab * sizeof(*got));
    free(got);
    free(host);
}

static void check_model(const char *path, enum kv_type kv_type, uint32_t n)
{
    int32_t tokens[LONG];
    struct rig r, other;

    rig_open(&r, path, &(struct backend_options){ .kv_type = kv_type });
    make_tokens(tokens, n, r.model->n_vocab, 5);
    float *want = alone(&r, tokens, n, 512, 0);
    same_in_chunks(&r, tokens, n, want);
    same_in_a_batch(&r, tokens, n, want);
    same_with_a_reused_prefix(&r, tokens, n, want);
    for (uint32_t threads = 1; threads <= 5; threads += 2) { /* 3 and 5 share splits and pieces unevenly */
        rig_open(&other, path, &(struct backend_options){ .kv_type = kv_type, .n_threads = threads });
        same_in_chunks(&other, tokens, n, want);
        rig_close(&other);
    }
    free(want);
    rig_close(&r);
}

static void tiny_models_give_the_same_bits_however_they_are_fed(void **state)
{
    char path[256];

    (void)state;
    for (size_t i = 0; i < N_TINY; i++) {
        snprintf(path, sizeof(path), DATA "%s", tiny[i]);
        check_model(path, KV_F16, length_for(tiny[i]));
        check_model(path, KV_Q8, length_for(tiny[i]));
    }
}

static void real_models_give_the_same_bits_however_they_are_fed(void **state)
{
    (void)state;
    if (test_model_smollm2() != NULL)
        check_model(test_model_smollm2(), KV_F16, 70);
    if (test_model_gemma3() != NULL)
        check_model(test_model_gemma3(), KV_Q8, 20);
}

static uint64_t hash_model(const char *file, enum kv_type kv_type)
{
    char path[256];
    int32_t tokens[LONG];
    struct rig r;

    snprintf(path, sizeof(path), DATA "%s", file);
    rig_open(&r, path, &(struct backend_options){ .kv_type = kv_type });
    const uint32_t n = length_for(file);
    make_tokens(tokens, n, r.model->n_vocab, 9);
    float *logits = alone(&r, tokens, n, 512, 0);
    const uint64_t hash = hash_of(logits, (size_t)n * r.model->n_vocab);
    free(logits);
    rig_close(&r);
    return hash;
}

static void every_instruction_set_gives_the_committed_hashes(void **state)
{
    static const char *const isas[] = { "scalar", "avx2", "avxvnni", "avx512vnni" };
    const char *write = getenv("WEIR_WRITE_HASHES"), *forced = getenv("WEIR_CPU_ISA");
    char line[128], file[64];
    unsigned long long hash;
    unsigned kv;

    (void)state;
    if (write != NULL) {
        FILE *out = fopen(write, "w");
        assert_non_null(out);
        for (size_t i = 0; i < 2 * N_TINY; i++)
            fprintf(out, "%s %zu %016llx\n", tiny[i / 2], i % 2, (unsigned long long)hash_model(tiny[i / 2], (enum kv_type)(i % 2)));
        fclose(out);
    }
    for (size_t k = 0; k < 4; k++) {
        if (forced != NULL && strcmp(forced, isas[k]) != 0)
            continue;
        setenv("WEIR_CPU_ISA", isas[k], 1);
        struct error err;
        struct rig r;
        if (rig_try_open(&r, DATA "tiny-llama-Q4_0.gguf", &(struct backend_options){ 0 }, &err) != ST_OK) {
            printf("  this machine lacks %s\n", isas[k]);
            continue;
        }
        rig_close(&r);
        FILE *in = fopen(DATA "logits.hashes", "r");
        assert_non_null(in);
        while (fgets(line, sizeof(line), in) != NULL) {
            assert_int_equal(sscanf(line, "%63s %u %llx", file, &kv, &hash), 3);
            if (hash_model(file, (enum kv_type)kv) != hash)
                fail_msg("%s, kv %u, %s: other bits than committed", file, kv, isas[k]);
        }
        fclose(in);
    }
    if (forced == NULL)
        unsetenv("WEIR_CPU_ISA");
}

static int32_t best_of(const float *logits, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* The first positions of 16 sequences: what the step says against the first largest of the logits that another step gives. */
static void check_greedy(const char *path)
{
    static const struct sampling greedy = { .top_p = 1, .repetition_penalty = 1 };
    static int32_t tokens[16][16];
    static uint32_t blocks[16];
    struct rig r;

    rig_open(&r, path, &(struct backend_options){ 0 });
    const uint32_t n_vocab = r.model->n_vocab;
    float *logits = malloc((size_t)16 * n_vocab * sizeof(*logits));
    assert_non_null(logits);
    rig_blocks(blocks, 16, 0);
    for (uint32_t s = 0; s < 16; s++)
        make_tokens(tokens[s], 16, n_vocab, 1000 + s);
    for (uint32_t at = 0, n = 16; at < 16; at++, n = at < 14 ? 16 - at : 16) { /* all widths */
        struct plan_entry e[16];
        struct step_result results[16];
        for (uint32_t s = 0; s < n; s++)
            e[s] = (struct plan_entry){ .tokens = &tokens[s][at], .n_tokens = 1, .blocks = &blocks[s], .from_entry = -1, .want = WANT_LOGITS,
                                        .logits = logits + (size_t)s * n_vocab };
        rig_step(&r, e, n, NULL);
        for (uint32_t s = 0; s < n; s++) {
            e[s].want = WANT_TOKEN;
            e[s].logits = NULL;
            e[s].sampling = &greedy;
        }
        rig_step(&r, e, n, results);
        for (uint32_t s = 0; s < n; s++)
            assert_int_equal(results[s].token, best_of(logits + (size_t)s * n_vocab, n_vocab));
    }
    free(logits);
    rig_close(&r);
}

static void a_greedy_token_is_the_first_largest_of_the_full_logits(void **state)
{
    char path[256];

    (void)state;
    for (size_t i = 0; i < N_TINY; i++) {
        snprintf(path, sizeof(path), DATA "%s", tiny[i]);
        check_greedy(path);
    }
    if (test_model_smollm2() != NULL)
        check_greedy(test_model_smollm2());
    if (test_model_gemma3() != NULL)
        check_greedy(test_model_gemma3());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_committed_hashes),
        cmocka_unit_test(tiny_models_give_the_same_bits_however_they_are_fed),
        cmocka_unit_test(a_greedy_token_is_the_first_largest_of_the_full_logits),
        cmocka_unit_test(real_models_give_the_same_bits_however_they_are_fed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
