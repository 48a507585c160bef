/* The whole CUDA engine on tiny models, under the emulation and the sanitizers: every logit and every token has the bits of
 * the CPU backend, whole or in chunks, alone or in company, in whatever order threads run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/engine.h"
#include "tests/emu/emu_seed.h"
#include "tests/support/engine_rig.h"

#define DATA "tests/reference/data/tiny/"

const struct backend_api *backend_cuda(void);

enum { MAX_SEQS = 6, MAX_ROWS = 48, CONTEXT = 320, BLOCKS = 64 };

/* One model on both backends. */
struct pair {
    struct rig cpu, cuda;
};

static void open_pair(struct pair *p, const char *file, enum kv_type kv_type)
{
    char path[256];
    struct error err = { 0 };
    const struct backend_options o = { .n_threads = 1, .kv_type = kv_type, .n_blocks = BLOCKS, .max_rows = MAX_ROWS,
                                       .max_seqs = MAX_SEQS, .context_tokens = CONTEXT };

    snprintf(path, sizeof(path), DATA "%s", file);
    rig_open(&p->cpu, path, &o);
    p->cuda = p->cpu;
    p->cuda.api = backend_cuda();
    if (p->cuda.api->open(p->cpu.model, &p->cuda.options, &p->cuda.backend, &err) != ST_OK)
        fail_msg("%s: %s", file, err.message);
}

static void close_pair(struct pair *p)
{
    p->cuda.api->close(p->cuda.backend);
    rig_close(&p->cpu);
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
    assert_same(what, a, b, size);
    free(a);
    free(b);
}

static void every_type_and_architecture_has_the_bits_of_the_cpu(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_architecture_has_the_bits_of_the_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
