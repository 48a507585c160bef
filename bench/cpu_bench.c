/* cpu_bench.c - the CPU backend alone: tokens a second of prompts and of decoding, greedy sampling included.
 *
 * usage: cpu_bench MODEL [-t THREADS] [-r ROUNDS] [-k f16|q8] [-c wall|cpu] [TEST...]       tests: all, or some of
 *
 *   prefill512    one prompt of 512 tokens, one step
 *   prefill4096   one prompt of 4096, steps of 512
 *   decode1       one sequence from nothing, 128 tokens
 *   decode16      16 sequences with 128 tokens behind them, 128 tokens each
 *   decode100     one sequence, 64 tokens from 100 on
 *   decode4000    one sequence, 64 tokens from 4000 on
 *
 * Prints one line a test: name, median, best and worst of the rounds, in tokens a second.  With -c cpu a second is one of
 * processor time over all threads: with one thread it says what the machine would do if nobody else used it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend.h"
#include "worker/gguf.h"
#include "worker/model_file.h"

enum { CONTEXT = 4352, SEQ_BLOCKS = CONTEXT / BLOCK_TOKENS, ROUNDS_MAX = 64 };

static clockid_t seconds_of = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;

    clock_gettime(seconds_of, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct bench {
    const struct backend_api *api;
    struct backend *backend;
    uint32_t n_vocab, n_rounds;
    int32_t tokens[CONTEXT];
    uint32_t blocks[16][SEQ_BLOCKS];
};

static const struct sampling greedy = { .top_p = 1, .repetition_penalty = 1 };

static void step(struct bench *b, struct plan_entry *entries, uint32_t n, struct step_result *results)
{
    struct plan p = { .entries = entries, .n_entries = n };
    backend_ticket t;

    for (uint32_t i = 0; i < n; i++)
        p.n_rows += entries[i].n_tokens;
    if (b->api->step_submit(b->backend, &p, &t) != ST_OK || b->api->step_wait(b->backend, t, results) != ST_OK) {
        fprintf(stderr, "cpu_bench: a step failed\n");
        exit(1);
    }
}

static void prefill(struct bench *b, uint32_t seq, uint32_t n)
{
    struct step_result result;

    for (uint32_t at = 0; at < n; at += 512) {
        struct plan_entry e = { .tokens = b->tokens + at, .n_tokens = n - at < 512 ? n - at : 512, .n_past = at, .blocks = b->blocks[seq],
                                .from_entry = -1, .sampling = &greedy };
        e.want = at + e.n_tokens == n ? WANT_TOKEN : WANT_NOTHING;
        step(b, &e, 1, &result);
    }
}

static void decode(struct bench *b, uint32_t n_seqs, uint32_t n_past, uint32_t n)
{
    struct step_result results[16];
    int32_t next[16];

    for (uint32_t s = 0; s < n_seqs; s++)
        next[s] = b->tokens[s];
    for (uint32_t i = 0; i < n; i++) {
        struct plan_entry e[16];
        for (uint32_t s = 0; s < n_seqs; s++)
            e[s] = (struct plan_entry){ .tokens = &next[s], .n_tokens = 1, .n_past = n_past + i, .blocks = b->blocks[s], .from_entry = -1,
                                        .want = WANT_TOKEN, .sampling = &greedy };
        step(b, e, n_seqs, results);
        for (uint32_t s = 0; s < n_seqs; s++)
            next[s] = results[s].token;
    }
}

struct test {
    const char *name;
    uint32_t prompt, n_seqs, n_past, n;
};

static const struct test tests[] = {
    { "prefill512", 512, 1, 0, 0 },   { "prefill4096", 4096, 1, 0, 0 },  { "decode1", 0, 1, 0, 128 },
    { "decode16", 0, 16, 128, 128 }, { "decode100", 0, 1, 100, 64 }, { "decode4000", 0, 1, 4000, 64 },
};

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void run(struct bench *b, const struct test *t)
{
    double rate[ROUNDS_MAX];

    for (uint32_t s = 0; t->n_past > 0 && s < t->n_seqs; s++)
        prefill(b, s, t->n_past);
    for (uint32_t i = 0; i <= b->n_rounds; i++) { /* the first is a warm-up */
        const double start = now();
        if (t->prompt > 0)
            prefill(b, 0, t->prompt);
        else
            decode(b, t->n_seqs, t->n_past, t->n);
        const double seconds = now() - start;
        if (i > 0)
            rate[i - 1] = (t->prompt > 0 ? t->prompt : t->n_seqs * t->n) / seconds;
    }
    qsort(rate, b->n_rounds, sizeof(rate[0]), compare);
    printf("%-12s %9.1f %9.1f %9.1f\n", t->name, rate[b->n_rounds / 2], rate[b->n_rounds - 1], rate[0]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static struct bench b = { .n_rounds = 5 };
    struct backend_options o = { .max_rows = 512, .max_seqs = 16, .context_tokens = CONTEXT, .n_blocks = 16 * SEQ_BLOCKS };
    struct gguf *g = NULL;
    struct model *m = NULL;
    struct error err = { 0 };
    struct backend_info info;
    int i = 2;

    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (argv[i][1] == 't')
            o.n_threads = (uint32_t)atoi(argv[i + 1]);
        else if (argv[i][1] == 'r' && atoi(argv[i + 1]) >= 1 && atoi(argv[i + 1]) <= ROUNDS_MAX)
            b.n_rounds = (uint32_t)atoi(argv[i + 1]);
        else if (argv[i][1] == 'c')
            seconds_of = strcmp(argv[i + 1], "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        else if (argv[i][1] == 'k')
            o.kv_type = strcmp(argv[i + 1], "q8") == 0 ? KV_Q8 : KV_F16;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: cpu_bench MODEL [-t THREADS] [-r ROUNDS] [-k f16|q8] [-c wall|cpu] [TEST...]\n");
        return 2;
    }
    b.api = backend_cpu();
    if (gguf_open(argv[1], &g, &err) != ST_OK || model_open(g, &m, &err) != ST_OK || b.api->open(m, &o, &b.backend, &err) != ST_OK) {
        fprintf(stderr, "cpu_bench: %s (%s)\n", err.message, err.param);
        return 1;
    }
    b.n_vocab = m->n_vocab;
    b.api->describe(b.backend, &info);
    fprintf(stderr, "%s, %s, weights %lu MiB, scratch %lu MiB\n", info.device, info.numerics_id, info.memory.weights >> 20, info.memory.scratch >> 20);
    for (uint32_t t = 0; t < CONTEXT; t++)
        b.tokens[t] = (int32_t)((t * 7919u + 13u) % b.n_vocab);
    for (uint32_t s = 0; s < 16; s++)
        for (uint32_t k = 0; k < SEQ_BLOCKS; k++)
            b.blocks[s][k] = s * SEQ_BLOCKS + k;
    for (size_t t = 0; t < sizeof(tests) / sizeof(tests[0]); t++) {
        bool wanted = i >= argc;
        for (int j = i; j < argc; j++)
            wanted = wanted || strcmp(argv[j], tests[t].name) == 0;
        if (wanted)
            run(&b, &tests[t]);
    }
    b.api->close(b.backend);
    model_close(m);
    gguf_close(g);
    return 0;
}
