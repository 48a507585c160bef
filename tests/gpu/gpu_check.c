/* gpu_check.c - the CUDA plug-in against the CPU backend, and its speed, on the machine it runs on.
 *
 *   gpu_check PLUGIN device                            what opens
 *   gpu_check PLUGIN exact [small]                     synthetic models: every logit has the CPU's bits, whole, in chunks, in company
 *                                                      (with F16 or BF16 weights: is near the CPU's, with the same bits in all ways)
 *   gpu_check PLUGIN model FILE                        a model file: the same for a prompt, and greedy tokens of both
 *   gpu_check PLUGIN fast                              fast prefill: near the exact logits, the same in any company
 *   gpu_check PLUGIN speed NAME FILE|- GBPS SECONDS [fast]   decode and prefill of one shape: smollm2 (of the file, or random
 *                                                      weights), 8b-bf16, 8b-q8_0, 8b-q4_k (random weights), tiny; GBPS: memory
 *                                                      bandwidth to compare with; fast: only prefill, with fast prefill
 *
 * One JSON object a line on standard output, words on standard error; exit code 1 when anything differs.  It stands on its
 * own sources and the C library: no test framework, no libraries that a lent machine may lack. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "tests/support/engine_rig.h"
#include "tests/support/synthetic_shapes.h"

static const struct backend_api *plugin;
static unsigned n_wrong;

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "gpu_check: %s: %s\n", what, why);
    exit(1);
}

static void *take(size_t bytes)
{
    void *at = calloc(1, bytes);

    if (at == NULL)
        stop("memory", "none left");
    return at;
}

static void load_plugin(const char *path)
{
    const struct backend_api *(*entry)(void) = NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol = handle == NULL ? NULL : dlsym(handle, "backend_cuda");

    if (symbol == NULL)
        stop(path, dlerror());
    memcpy(&entry, &symbol, sizeof(entry));
    plugin = entry();
    if (plugin->abi != BACKEND_ABI || plugin->bytes != sizeof(*plugin))
        stop(path, "of another version");
}

static int32_t token_at(uint32_t sequence, uint32_t i, uint32_t n_vocab)
{
    return (int32_t)((sequence * 7919 + i * 104729 + i * i * 31) % n_vocab);
}

/* ------------------------------------------------------------------ exactness */

static void open_on(struct rig *r, const struct backend_api *api, const struct model *m, const struct backend_options *o)
{
    struct error err = { 0 };

    *r = (struct rig){ .api = api, .options = *o, .model = (struct model *)(uintptr_t)m };
    if (api->open(m, &r->options, &r->backend, &err) != ST_OK)
        stop(api->name, err.message);
}

/* bound: of models with F16 or BF16 weights, whose sums tensor cores round; 0: all bits. */
static void report(const char *part, const char *what, double bound, const float *cpu, const float *cuda, size_t n)
{
    double wrong = 0, all = 0;
    size_t differ = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = (double)cuda[i] - (double)cpu[i];
        differ += memcmp(cpu + i, cuda + i, sizeof(*cpu)) != 0;
        wrong += d * d;
        all += (double)cpu[i] * (double)cpu[i];
    }
    const bool ok = bound > 0 ? wrong <= bound * all : differ == 0;
    n_wrong += !ok;
    printf("{\"part\": \"%s\", \"what\": \"%s%s\", \"ok\": %s, \"values\": %zu, \"differ\": %zu, \"nmse\": %.3g}\n", part,
           what, bound > 0 ? ", near" : "", ok ? "true" : "false", n, differ, wrong / all);
    fflush(stdout);
}

enum { EXACT_ROWS = 64, EXACT_SEQS = 4 };

/* All logits of n tokens in chunks. */
static float *fed(struct rig *r, uint32_t n, uint32_t chunk, uint32_t first_block)
{
    int32_t *tokens = take(n * sizeof(*tokens));
    uint32_t blocks[CONTEXT_TOKENS_MAX / BLOCK_TOKENS];
    float *logits = take((size_t)n * r->model->n_vocab * sizeof(*logits));

    for (uint32_t i = 0; i < n; i++)
        tokens[i] = token_at(1, i, r->model->n_vocab);
    rig_blocks(blocks, n / BLOCK_TOKENS + 1, first_block);
    rig_feed(r, tokens, 0, n, chunk, blocks, logits);
    free(tokens);
    return logits;
}

static void compare_fed(const char *part, const char *what, struct rig *cpu, struct rig *cuda, uint32_t n, uint32_t chunk)
{
    float *a = fed(cpu, n, EXACT_ROWS, 0), *b = fed(cuda, n, chunk, 0);
    char text[160];

    snprintf(text, sizeof(text), "%s, %u tokens in chunks of %u", what, n, chunk);
    const double bound = model_half_bound(cpu->model, cpu->options.kv_type);
    if (bound > 0) { /* then against itself, in other chunks */
        report(part, text, bound, a, b, (size_t)n * cpu->model->n_vocab);
        free(a);
        a = fed(cuda, n, chunk == 11 ? EXACT_ROWS : 11, 0);
    }
    report(part, text, 0, a, b, (size_t)n * cpu->model->n_vocab);
    free(a);
    free(b);
}

/* The last token of sequence 0 while others decode and read prompts. */
static void compare_company(const char *part, const char *what, struct rig *cpu, struct rig *cuda, uint32_t n)
{
    static const uint32_t tokens_of[EXACT_SEQS] = { 1, 1, 9, 17 };
    const uint32_t n_vocab = cpu->model->n_vocab;
    float *alone = take(n_vocab * sizeof(*alone)), *logits = take((size_t)EXACT_SEQS * n_vocab * sizeof(*logits));
    int32_t tokens[EXACT_SEQS][32];
    uint32_t blocks[EXACT_SEQS][CONTEXT_TOKENS_MAX / BLOCK_TOKENS];
    struct plan_entry e[EXACT_SEQS] = { 0 };
    char text[160];

    for (uint32_t s = 0; s < EXACT_SEQS; s++) {
        const uint32_t past = s == 0 ? n : 0; /* the first has been fed already */
        for (uint32_t i = 0; i < tokens_of[s]; i++)
            tokens[s][i] = token_at(1 + s, past + i, n_vocab);
        rig_blocks(blocks[s], n / BLOCK_TOKENS + 2, s == 0 ? 0 : n / BLOCK_TOKENS + 2 + 2 * s);
        e[s] = (struct plan_entry){ .tokens = tokens[s], .n_tokens = tokens_of[s], .n_past = past, .blocks = blocks[s],
                                    .from_entry = -1, .want = WANT_LOGITS, .logits = alone };
    }
    rig_step(model_half_bound(cpu->model, cpu->options.kv_type) > 0 ? cuda : cpu, e, 1, NULL);
    for (uint32_t s = 0; s < EXACT_SEQS; s++)
        e[s].logits = logits + (size_t)s * n_vocab;
    rig_step(cuda, e, EXACT_SEQS, NULL);
    snprintf(text, sizeof(text), "%s, token %u in a batch", what, n);
    report(part, text, 0, alone, logits, n_vocab);
    free(alone);
    free(logits);
}

static void compare(const char *part, const char *what, const struct model *m, enum kv_type kv_type, uint32_t n)
{
    const struct backend_options o = { .n_threads = 0, .kv_type = kv_type, .n_blocks = n / BLOCK_TOKENS + 16, .max_rows = EXACT_ROWS,
                                       .max_seqs = EXACT_SEQS, .context_tokens = n + 32 };
    struct rig cpu, cuda;

    open_on(&cpu, backend_cpu(), m, &o);
    open_on(&cuda, plugin, m, &o);
    compare_fed(part, what, &cpu, &cuda, n, EXACT_ROWS);
    compare_fed(part, what, &cpu, &cuda, n, 7);
    compare_fed(part, what, &cpu, &cuda, n < 40 ? n : 40, 1);
    if (n > 40)
        compare_fed(part, what, &cpu, &cuda, n, 33);
    compare_company(part, what, &cpu, &cuda, n);
    cuda.api->close(cuda.backend);
    cpu.api->close(cpu.backend);
}

static void exact(bool small)
{
    static const struct {
        const char *name;
        enum tensor_type type;
    } types[] = {
#define X(name, id, elements, bytes) { #name, TENSOR_##name },
        TENSOR_TYPE_LIST(X)
#undef X
    };
    const struct model *m;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const struct synthetic_shape shape = { .arch = ARCH_LLAMA, .n_layers = 2, .n_embd = 256, .n_ff = 512, .n_heads = 4,
                                               .n_kv_heads = 2, .head_dim = 64, .n_vocab = 200, .context_tokens = 2048,
                                               .weights = types[i].type, .seed = 100 + i };
        struct synthetic *s = synthetic_new(&shape, &m);
        compare("exact", types[i].name, m, i % 2 ? KV_Q8 : KV_F16, small ? 20 : 300);
        synthetic_free(s);
    }
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        struct synthetic *s = synthetic_new(&shapes[i].shape, &m);
        compare("exact", shapes[i].what, m, shapes[i].kv_type, small ? 20 : 600);
        synthetic_free(s);
    }
}

/* ------------------------------------------------------------------ fast prefill */

enum { FAST_A = 70, FAST_B = 64, FAST_ROWS = 160 };

/* The last logits of a long prompt, alone or beside another and a single token. */
static void fast_step(struct rig *r, uint32_t n_others, float *ret_logits)
{
    static const uint32_t tokens_of[3] = { FAST_A, FAST_B, 1 };
    int32_t tokens[3][FAST_A];
    uint32_t blocks[3][8];
    struct plan_entry e[3] = { 0 };

    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t i = 0; i < tokens_of[s]; i++)
            tokens[s][i] = token_at(7 + s, i, r->model->n_vocab);
        rig_blocks(blocks[s], 8, 8 * s);
        e[s] = (struct plan_entry){ .tokens = tokens[s], .n_tokens = tokens_of[s], .blocks = blocks[s], .from_entry = -1 };
    }
    e[0].want = WANT_LOGITS;
    e[0].logits = ret_logits;
    rig_step(r, e, 1 + n_others, NULL);
}

static void fast_of(const char *what, const struct model *m, enum kv_type kv_type)
{
    struct backend_options o = { .kv_type = kv_type, .n_blocks = 24, .max_rows = FAST_ROWS, .max_seqs = 3, .context_tokens = 128 };
    const size_t n = m->n_vocab;
    float *exact = take(n * sizeof(*exact)), *alone = take(n * sizeof(*alone)), *company = take(n * sizeof(*company));
    struct rig slow, fast;
    double wrong = 0, all = 0;

    open_on(&slow, plugin, m, &o);
    fast_step(&slow, 0, exact);
    plugin->close(slow.backend);
    o.fast_prefill = true;
    open_on(&fast, plugin, m, &o);
    fast_step(&fast, 0, alone);
    fast_step(&fast, 2, company);
    plugin->close(fast.backend);
    for (size_t i = 0; i < n; i++) {
        wrong += ((double)alone[i] - exact[i]) * ((double)alone[i] - exact[i]);
        all += (double)exact[i] * exact[i];
    }
    const bool near = wrong <= 2e-3 * all, same = memcmp(alone, company, n * sizeof(*alone)) == 0;
    n_wrong += !near || !same;
    printf("{\"part\": \"fast\", \"what\": \"%s\", \"ok\": %s, \"nmse\": %.3g, \"same_in_company\": %s}\n", what,
           near && same ? "true" : "false", wrong / all, same ? "true" : "false");
    fflush(stdout);
    free(exact);
    free(alone);
    free(company);
}

static void fast_prefill(void)
{
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        const struct model *m;
        struct synthetic *s = synthetic_new(&shapes[i].shape, &m);
        fast_of(shapes[i].what, m, shapes[i].kv_type);
        synthetic_free(s);
    }
}

/* ------------------------------------------------------------------ a model file */

static void greedy(struct rig *r, const int32_t *prompt, uint32_t n, uint32_t n_answer, int32_t *ret_answer)
{
    const struct sampling s = { .top_p = 1, .repetition_penalty = 1 };
    uint32_t blocks[16];
    struct step_result result;
    struct plan_entry e = { .tokens = prompt, .n_tokens = n, .blocks = blocks, .from_entry = -1, .want = WANT_TOKEN, .sampling = &s };

    rig_blocks(blocks, 16, 0);
    for (uint32_t i = 0; i < n_answer; i++) {
        rig_step(r, &e, 1, &result);
        ret_answer[i] = result.token;
        e.n_past += e.n_tokens;
        e.n_tokens = 1;
        e.from_entry = 0;
    }
}

static void model_file(const char *path)
{
    static const int32_t prompt[14] = { 33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216, 37, 28 }; /* "1, 2, 3, 4, 5," */
    static const int32_t reference[8] = { 216, 38, 28, 216, 39, 28, 216, 40 }; /* of SmolLM2, by Transformers in float32 */
    const struct backend_options o = { .n_blocks = 64, .max_rows = EXACT_ROWS, .max_seqs = EXACT_SEQS, .context_tokens = 1024 };
    int32_t answer[2][48];
    struct rig cpu, cuda;

    rig_open(&cpu, path, &o);
    compare("model", "file", cpu.model, KV_F16, 150);
    open_on(&cuda, plugin, cpu.model, &cpu.options);
    greedy(&cpu, prompt, 14, 48, answer[0]);
    greedy(&cuda, prompt, 14, 48, answer[1]);
    const bool same = memcmp(answer[0], answer[1], sizeof(answer[0])) == 0, right = memcmp(answer[1], reference, sizeof(reference)) == 0;
    n_wrong += !same || !right;
    printf("{\"part\": \"model\", \"what\": \"48 greedy tokens\", \"ok\": %s, \"as_cpu\": %s, \"as_reference\": %s}\n",
           same && right ? "true" : "false", same ? "true" : "false", right ? "true" : "false");
    cuda.api->close(cuda.backend);
    rig_close(&cpu);
}

/* ------------------------------------------------------------------ speed */

static const struct synthetic_shape llama_8b = { .arch = ARCH_LLAMA, .n_layers = 32, .n_embd = 4096, .n_ff = 14336, .n_heads = 32,
                                                 .n_kv_heads = 8, .head_dim = 128, .n_vocab = 128256, .context_tokens = 16384,
                                                 .shared_layers = true, .seed = 8 };
static const struct synthetic_shape smollm2 = { .arch = ARCH_LLAMA, .n_layers = 30, .n_embd = 576, .n_ff = 1536, .n_heads = 9,
                                                .n_kv_heads = 3, .head_dim = 64, .n_vocab = 49152, .context_tokens = 8192,
                                                .weights = TENSOR_Q4_1, .own_head = true, .head = TENSOR_Q8_0, .seed = 10 };
static const struct synthetic_shape tiny = { .arch = ARCH_LLAMA, .n_layers = 2, .n_embd = 128, .n_ff = 256, .n_heads = 4, .n_kv_heads = 2,
                                             .head_dim = 32, .n_vocab = 256, .context_tokens = 16384, .weights = TENSOR_Q8_0, .seed = 9 };

static double seconds_now(void)
{
    return (double)clock_now_ns() * 1e-9;
}

static size_t tensor_bytes(const struct model *m, double *ret_parameters)
{
    size_t bytes = m->output.bytes;
    double n = (double)m->output.n_rows * m->output.n_cols;

    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        const struct tensor *t[] = { &l->attn_q, &l->attn_k, &l->attn_v, &l->attn_output, &l->ffn_gate, &l->ffn_up, &l->ffn_down };
        for (size_t j = 0; j < sizeof(t) / sizeof(t[0]); j++) {
            bytes += t[j]->bytes;
            n += (double)t[j]->n_rows * t[j]->n_cols;
        }
    }
    *ret_parameters = n;
    return bytes;
}

struct bench {
    const char *name;
    const struct model *m;
    struct rig r;
    bool fast;
    double gbps, seconds; /* bandwidth to compare with; time a measurement may take */
    size_t weight_bytes;
    double parameters;
    uint32_t table;       /* blocks of a sequence */
};

enum { PAST = 128, DECODE_MAX = 512, WARM = 4 };

/* n sequences decode, two steps under way; each has PAST tokens before. */
static void decode(struct bench *b, uint32_t n)
{
    static struct plan_entry e[BACKEND_STEPS_MAX][SEQS_MAX];
    static struct step_result results[SEQS_MAX];
    static uint32_t blocks[SEQS_MAX][(PAST + DECODE_MAX) / BLOCK_TOKENS + 1];
    const struct sampling s = { .top_p = 1, .repetition_penalty = 1 };
    int32_t tokens[PAST];
    struct plan plan[BACKEND_STEPS_MAX];
    backend_ticket ticket[BACKEND_STEPS_MAX];
    double began = 0;
    uint32_t submitted = 0, waited = 0;

    for (uint32_t i = 0; i < PAST; i++)
        tokens[i] = token_at(3, i, b->m->n_vocab);
    for (uint32_t i = 0; i < n; i++) {
        rig_blocks(blocks[i], (PAST + DECODE_MAX) / BLOCK_TOKENS, i * ((PAST + DECODE_MAX) / BLOCK_TOKENS));
        rig_feed(&b->r, tokens, 0, PAST, PAST < b->r.options.max_rows ? PAST : b->r.options.max_rows, blocks[i], NULL);
    }
    for (bool more = true; more || waited < submitted;) {
        more = more && submitted < DECODE_MAX && (waited <= WARM || seconds_now() - began < b->seconds);
        if (submitted - waited == BACKEND_STEPS_MAX || !more) {
            if (waited == submitted)
                break;
            if (plugin->step_wait(b->r.backend, ticket[waited++ % BACKEND_STEPS_MAX], results) != ST_OK)
                stop("decode", "a step failed");
            if (waited == WARM)
                began = seconds_now();
            continue;
        }
        const uint32_t slot = submitted % BACKEND_STEPS_MAX;
        for (uint32_t i = 0; i < n; i++)
            e[slot][i] = (struct plan_entry){ .tokens = tokens, .n_tokens = 1, .n_past = PAST + submitted, .blocks = blocks[i],
                                              .from_entry = submitted == 0 ? -1 : (int32_t)i, .want = WANT_TOKEN, .sampling = &s };
        plan[slot] = (struct plan){ e[slot], n, n };
        if (plugin->step_submit(b->r.backend, &plan[slot], &ticket[slot]) != ST_OK)
            stop("decode", "a step was refused");
        submitted++;
    }
    const double took = seconds_now() - began, measured = (double)waited - WARM;
    const double step_s = took / measured, read = (double)b->weight_bytes / step_s * 1e-9;
    printf("{\"part\": \"speed\", \"shape\": \"%s\", \"what\": \"decode\", \"sequences\": %u, \"steps\": %.0f, \"ms_a_step\": %.4f, "
           "\"tokens_a_second\": %.1f, \"weights_gb_a_second\": %.1f, \"of_bandwidth\": %.3f}\n",
           b->name, n, measured, step_s * 1e3, n / step_s, read, b->gbps > 0 ? read / b->gbps : 0);
    fflush(stdout);
}

static void prefill(struct bench *b, uint32_t n)
{
    int32_t *tokens = take(n * sizeof(*tokens));
    uint32_t *blocks = take((n / BLOCK_TOKENS + 1) * sizeof(*blocks));
    uint32_t rounds = 0;

    for (uint32_t i = 0; i < n; i++)
        tokens[i] = token_at(4, i, b->m->n_vocab);
    rig_blocks(blocks, n / BLOCK_TOKENS + 1, 0);
    rig_feed(&b->r, tokens, 0, n < 64 ? n : 64, b->r.options.max_rows, blocks, NULL);
    const double began = seconds_now();
    do {
        rig_feed(&b->r, tokens, 0, n, b->r.options.max_rows, blocks, NULL);
        rounds++;
    } while (seconds_now() - began < b->seconds);
    const double each = (seconds_now() - began) / rounds;
    printf("{\"part\": \"speed\", \"shape\": \"%s\", \"what\": \"%s\", \"tokens\": %u, \"ms\": %.3f, \"tokens_a_second\": %.1f, "
           "\"tera_operations_a_second\": %.2f}\n",
           b->name, b->fast ? "fast" : "prefill", n, each * 1e3, n / each, 2 * (b->parameters - (double)b->m->output.n_rows * b->m->output.n_cols) * n / each * 1e-12);
    fflush(stdout);
    free(tokens);
    free(blocks);
}

static struct synthetic_shape shape_named(const char *name)
{
    struct synthetic_shape shape = llama_8b;

    if (strcmp(name, "tiny") == 0)
        return tiny;
    if (strcmp(name, "smollm2") == 0)
        return smollm2;
    shape.weights = strcmp(name, "8b-bf16") == 0 ? TENSOR_BF16 : strcmp(name, "8b-q8_0") == 0 ? TENSOR_Q8_0 : TENSOR_Q4_K;
    return shape;
}

/* As many sequences as the device holds, of those that are measured. */
static struct backend_options speed_options(const struct model *m, bool is_tiny, bool fast)
{
    static const uint32_t most[] = { SEQS_MAX, 128, 32, 8, 1 };
    const uint32_t context = m->context_tokens < 8192 ? m->context_tokens : 8192;
    struct backend_options o = { .max_rows = is_tiny ? 96 : PLAN_TOKENS_MAX, .max_seqs = 8, .context_tokens = context, .n_blocks = 512,
                                 .fast_prefill = fast };
    struct memory_plan plan;
    struct error err;

    for (size_t i = fast ? 3 : 0; i < sizeof(most) / sizeof(most[0]) && !is_tiny; i++) {
        o.max_seqs = most[i];
        o.n_blocks = most[i] * (PAST + DECODE_MAX) / BLOCK_TOKENS > 512 ? most[i] * (PAST + DECODE_MAX) / BLOCK_TOKENS : 512;
        if (plugin->plan_memory(m, &o, &plan, &err) == ST_OK)
            break;
    }
    return o;
}

static void speed(const char *name, const char *file, double gbps, double seconds, bool fast)
{
    static const uint32_t sequences[] = { 1, 8, 32, 128, 512 }, prompts[] = { 512, 2048, 8192 };
    const struct synthetic_shape shape = shape_named(name);
    const bool is_tiny = strcmp(name, "tiny") == 0, of_file = strcmp(file, "-") != 0;
    struct bench b = { .name = name, .gbps = gbps, .seconds = seconds, .fast = fast };
    struct synthetic *s = NULL;
    struct rig holder = { 0 };

    if (of_file) {
        rig_open(&holder, file, &(struct backend_options){ .n_blocks = 4, .max_rows = 8, .max_seqs = 1, .context_tokens = 64 });
        b.m = holder.model;
    } else {
        s = synthetic_new(&shape, &b.m);
    }
    b.weight_bytes = tensor_bytes(b.m, &b.parameters);
    const struct backend_options o = speed_options(b.m, is_tiny, fast);
    const double began = seconds_now();
    open_on(&b.r, plugin, b.m, &o);
    printf("{\"part\": \"speed\", \"shape\": \"%s\", \"what\": \"load\", \"seconds\": %.2f, \"weight_bytes\": %zu, \"parameters\": %.4g}\n",
           name, seconds_now() - began, b.weight_bytes, b.parameters);
    fflush(stdout);
    for (size_t i = 0; i < sizeof(sequences) / sizeof(sequences[0]) && !fast; i++)
        if (sequences[i] <= o.max_seqs)
            decode(&b, sequences[i]);
    for (size_t i = 0; i < sizeof(prompts) / sizeof(prompts[0]); i++)
        if (prompts[i] <= o.context_tokens && !(is_tiny && prompts[i] > 512))
            prefill(&b, is_tiny ? 64 : prompts[i]);
    b.r.api->close(b.r.backend);
    synthetic_free(s);
    if (of_file)
        rig_close(&holder);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        stop("usage", "gpu_check PLUGIN device|exact|fast|model|speed ...");
    load_plugin(argv[1]);
    if (strcmp(argv[2], "device") == 0) {
        struct backend_info info;
        struct rig r;
        const struct model *m;
        struct synthetic *s = synthetic_new(&tiny, &m);
        open_on(&r, plugin, m, &(struct backend_options){ .n_blocks = 4, .max_rows = 8, .max_seqs = 1, .context_tokens = 64 });
        plugin->describe(r.backend, &info);
        printf("{\"part\": \"device\", \"ok\": true, \"device\": \"%s\", \"available_bytes\": %llu}\n", info.device,
               (unsigned long long)info.memory.available);
        plugin->close(r.backend);
        synthetic_free(s);
    } else if (strcmp(argv[2], "exact") == 0) {
        exact(argc > 3 && strcmp(argv[3], "small") == 0);
    } else if (strcmp(argv[2], "model") == 0 && argc > 3) {
        model_file(argv[3]);
    } else if (strcmp(argv[2], "speed") == 0 && argc > 6) {
        speed(argv[3], argv[4], atof(argv[5]), atof(argv[6]), argc > 7 && strcmp(argv[7], "fast") == 0);
    } else if (strcmp(argv[2], "fast") == 0) {
        fast_prefill();
    } else {
        stop("usage", argv[2]);
    }
    return n_wrong > 0;
}
