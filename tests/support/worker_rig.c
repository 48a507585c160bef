/* worker_rig.c - see worker_rig.h. */
#include "worker_rig.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fake_backend.h"
#include "tests/support/vocabulary.h"

static char model_path[64];

/* The smallest llama that the CPU backend takes: 2 layers, E 64, F 64, 2 heads of 32, 1 key/value head. */
static void write_model(struct gguf_writer *w)
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = { { "llama.block_count", 2 },         { "llama.context_length", RIG_CONTEXT }, { "llama.embedding_length", 64 },
                  { "llama.feed_forward_length", 64 }, { "llama.attention.head_count", 2 },     { "llama.attention.head_count_kv", 1 } };
    static const struct {
        const char *name;
        uint64_t k, n; /* n 0: a vector */
    } tensors[] = { { "attn_norm", 64, 0 }, { "attn_q", 64, 64 },      { "attn_k", 64, 32 },   { "attn_v", 64, 32 },  { "attn_output", 64, 64 },
                    { "ffn_norm", 64, 0 },  { "ffn_gate", 64, 64 }, { "ffn_up", 64, 64 }, { "ffn_down", 64, 64 } };
    char name[64];
    gguf_writer_string(w, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        gguf_writer_u32(w, sizes[i].key, sizes[i].value);
    gguf_writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_writer_tensor(w, "token_embd.weight", TENSOR_F32, 2, (uint64_t[]){ 64, RIG_VOCAB }, NULL);
    gguf_writer_tensor(w, "output_norm.weight", TENSOR_F32, 1, (uint64_t[]){ 64 }, NULL);
    for (uint32_t l = 0; l < 2; l++)
        for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
            snprintf(name, sizeof(name), "blk.%u.%s.weight", l, tensors[i].name);
            gguf_writer_tensor(w, name, TENSOR_F32, tensors[i].n > 0 ? 2 : 1, (uint64_t[]){ tensors[i].k, tensors[i].n }, NULL);
        }
}

static void remove_model(void)
{
    unlink(model_path);
}

const char *worker_rig_model(void)
{
    static const char *const control[] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };
    static const char *const merges[] = { "t h", "th e", "i n", "e r" };
    struct gguf_writer w = { 0 };
    if (model_path[0] != '\0')
        return model_path;
    write_model(&w);
    vocabulary_bpe(&w, "gpt-2", control, 3, merges, 4);
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", RIG_EOS + 1);
    gguf_writer_string(&w, "tokenizer.chat_template",
                       "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}");
    struct span file = gguf_writer_finish(&w);
    snprintf(model_path, sizeof(model_path), "/tmp/weir-rig-XXXXXX");
    int fd = mkstemp(model_path);
    ssize_t n = fd >= 0 ? write(fd, file.at, file.n) : -1;
    assert(n == (ssize_t)file.n);
    close(fd);
    gguf_writer_deinit(&w);
    atexit(remove_model);
    return model_path;
}

static uint32_t or_default(uint32_t v, uint32_t fallback)
{
    return v != 0 ? v : fallback;
}

void worker_rig_open(struct worker_rig *r, const struct worker_rig_options *opt)
{
    struct error err = { 0 };
    struct engine_options eo = {
        .model_path = worker_rig_model(),
        .device = "cpu",
        .n_threads = 1,
        .kv_blocks = or_default(opt->n_blocks, 128),
        .max_seqs = or_default(opt->max_seqs, 8),
        .max_rows = or_default(opt->max_rows, 64),
    };
    struct worker_options wo = { .secret = 1, .tokenize_wait_ns = opt->tokenize_wait_ns };
    memset(r, 0, sizeof(*r));
    region_broker_open(&r->broker);
    enum status st = region_attach(r->broker.memory, r->broker.bells[0], r->broker.bells[1], &r->region);
    assert(st == ST_OK);
    st = engine_plan(&eo, &r->engine, &err);
    if (st != ST_OK)
        fprintf(stderr, "%s (%s)\n", err.message, err.param);
    assert(st == ST_OK);
    if (!opt->real)
        r->engine.choice.api = fake_backend();
    st = engine_open(&r->engine, &err);
    assert(st == ST_OK);
    st = worker_new(&r->engine, &r->region, &wo, &r->worker);
    assert(st == ST_OK);
    worker_announce(r->worker, NULL);
    region_broker_take(&r->broker, UINT32_MAX);
    assert(r->broker.ready);
}

void worker_rig_close(struct worker_rig *r)
{
    worker_free(r->worker);
    engine_close(&r->engine);
    region_unmap(&r->region);
    region_broker_close(&r->broker);
}

static bool any_live(const struct worker_rig *r)
{
    for (uint32_t i = 0; i < REGION_SLOTS; i++)
        if (r->broker.answers[i].live)
            return true;
    return false;
}

void worker_rig_run(struct worker_rig *r, uint32_t n_passes)
{
    for (uint32_t i = 0; i < n_passes && any_live(r); i++) {
        r->state = worker_pass(r->worker);
        scheduler_check(worker_scheduler(r->worker));
        region_broker_take(&r->broker, UINT32_MAX);
        if (r->state == WORKER_BROKEN)
            return;
        if (r->state != WORKER_BUSY && any_live(r)) {
            enum status st = worker_sleep(r->worker, r->state, -1, 2);
            assert(st == ST_OK);
        }
    }
}

struct test_answer *worker_rig_ask(struct worker_rig *r, uint32_t slot, const struct test_request *q)
{
    region_broker_send(&r->broker, slot, q);
    worker_rig_run(r, 100000);
    assert(!r->broker.answers[slot].live);
    return &r->broker.answers[slot];
}

bool worker_rig_is_clean(const struct worker_rig *r)
{
    struct scheduler_levels l = scheduler_levels(worker_scheduler(r->worker));
    return worker_n_requests(r->worker) == 0 && l.n_running == 0 && l.n_waiting == 0 &&
           scheduler_kv_counts(worker_scheduler(r->worker)).n_pinned == 0;
}
