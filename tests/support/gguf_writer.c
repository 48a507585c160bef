/* gguf_writer.c - the other direction of worker/gguf.c, kept apart from it so that neither hides the other's mistakes. */
#include "tests/support/gguf_writer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(struct gguf_writer_buffer *b, const void *at, size_t n)
{
    if (b->cap - b->n < n) {
        b->cap = (b->cap + n) * 2 + 64;
        b->at = realloc(b->at, b->cap);
        assert(b->at != NULL);
    }
    if (n > 0)
        memcpy(b->at + b->n, at, n);
    b->n += n;
}

static void put_u32(struct gguf_writer_buffer *b, uint32_t v)
{
    put(b, &v, sizeof(v));
}

static void put_u64(struct gguf_writer_buffer *b, uint64_t v)
{
    put(b, &v, sizeof(v));
}

static void put_string(struct gguf_writer_buffer *b, struct span s)
{
    put_u64(b, s.n);
    put(b, s.at, s.n);
}

static void pad(struct gguf_writer_buffer *b, uint32_t alignment)
{
    while (b->n % alignment != 0)
        put(b, "", 1);
}

void gguf_writer_raw(struct gguf_writer *w, const char *key, uint32_t type, const void *value, size_t bytes)
{
    put_string(&w->pairs, span_str(key));
    put_u32(&w->pairs, type);
    put(&w->pairs, value, bytes);
    w->n_pairs++;
}

void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    gguf_writer_raw(w, key, GGUF_U32, &v, sizeof(v));
}

void gguf_writer_f32(struct gguf_writer *w, const char *key, float v)
{
    gguf_writer_raw(w, key, GGUF_F32, &v, sizeof(v));
}

void gguf_writer_bool(struct gguf_writer *w, const char *key, bool v)
{
    uint8_t byte = v;

    gguf_writer_raw(w, key, GGUF_BOOL, &byte, 1);
}

void gguf_writer_string(struct gguf_writer *w, const char *key, const char *v)
{
    gguf_writer_raw(w, key, GGUF_STRING, NULL, 0);
    put_string(&w->pairs, span_str(v));
}

static void begin_array(struct gguf_writer *w, const char *key, enum gguf_type type, uint64_t n)
{
    gguf_writer_raw(w, key, GGUF_ARRAY, NULL, 0);
    put_u32(&w->pairs, type);
    put_u64(&w->pairs, n);
}

void gguf_writer_spans(struct gguf_writer *w, const char *key, const struct span *v, uint64_t n)
{
    begin_array(w, key, GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_string(&w->pairs, v[i]);
}

void gguf_writer_strings(struct gguf_writer *w, const char *key, const char *const *v, uint64_t n)
{
    begin_array(w, key, GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_string(&w->pairs, span_str(v[i]));
}

void gguf_writer_u32s(struct gguf_writer *w, const char *key, enum gguf_type type, const uint32_t *v,
                      uint64_t n)
{
    begin_array(w, key, type, n);
    put(&w->pairs, v, n * sizeof(*v));
}

void gguf_writer_f32s(struct gguf_writer *w, const char *key, const float *v, uint64_t n)
{
    begin_array(w, key, GGUF_F32, n);
    put(&w->pairs, v, n * sizeof(*v));
}

void gguf_writer_bools(struct gguf_writer *w, const char *key, const bool *v, uint64_t n)
{
    begin_array(w, key, GGUF_BOOL, n);
    for (uint64_t i = 0; i < n; i++)
        put(&w->pairs, v[i] ? "\1" : "\0", 1);
}

void gguf_writer_info(struct gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                      uint32_t type, uint64_t offset)
{
    put_string(&w->infos, span_str(name));
    put_u32(&w->infos, n_dims);
    put(&w->infos, ne, n_dims * sizeof(*ne));
    put_u32(&w->infos, type);
    put_u64(&w->infos, offset);
    w->n_tensors++;
}

static uint64_t tensor_bytes(enum tensor_type type, uint64_t elements)
{
#define X(name, id, block, bytes) \
    if (id == (int)type)          \
        return elements / block * bytes;
    TENSOR_TYPE_LIST(X)
#undef X
    return 0;
}

void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum tensor_type type, uint32_t n_dims,
                        const uint64_t *ne, const void *data)
{
    uint64_t elements = 1;

    for (uint32_t d = 0; d < n_dims; d++)
        elements *= ne[d];
    pad(&w->data, w->alignment ? w->alignment : 32);
    gguf_writer_info(w, name, n_dims, ne, type, w->data.n);
    if (data != NULL) {
        put(&w->data, data, tensor_bytes(type, elements));
    } else if (type == TENSOR_F32) {
        for (uint64_t i = 0; i < elements; i++) {
            w->seed = w->seed * 1664525u + 1013904223u;
            float f = (float)(w->seed >> 8) / (float)(1 << 24) - 0.5f;

            put(&w->data, &f, sizeof(f));
        }
    } else {
        for (uint64_t i = 0; i < tensor_bytes(type, elements); i++)
            put(&w->data, "", 1);
    }
}

struct span gguf_writer_finish(struct gguf_writer *w)
{
    struct gguf_writer_buffer *f = &w->file;

    f->n = 0;
    put(f, "GGUF", 4);
    put_u32(f, w->version ? w->version : 3);
    put_u64(f, w->claim_tensors ? w->claim_tensors : w->n_tensors);
    put_u64(f, w->claim_pairs ? w->claim_pairs : w->n_pairs);
    put(f, w->pairs.at, w->pairs.n);
    put(f, w->infos.at, w->infos.n);
    if (w->n_tensors > 0)
        pad(f, w->alignment ? w->alignment : 32);
    put(f, w->data.at, w->data.n);
    return span_of(f->at, f->n);
}

void gguf_writer_deinit(struct gguf_writer *w)
{
    free(w->pairs.at);
    free(w->infos.at);
    free(w->data.at);
    free(w->file.at);
    *w = (struct gguf_writer){0};
}

enum { E = 32, F = 64, H = 4, G = 2, D = 8, L = 2 };

static void layer_tensor(struct gguf_writer *w, uint32_t l, const char *suffix, uint64_t cols, uint64_t rows)
{
    char name[64];

    snprintf(name, sizeof(name), "blk.%u.%s", l, suffix);
    gguf_writer_tensor(w, name, TENSOR_F32, rows == 1 ? 1 : 2, (uint64_t[]){cols, rows}, NULL);
}

static void tiny_layer(struct gguf_writer *w, const char *arch, uint32_t l)
{
    bool gemma3 = strcmp(arch, "gemma3") == 0;

    layer_tensor(w, l, "attn_norm.weight", E, 1);
    layer_tensor(w, l, "attn_q.weight", E, H * D);
    layer_tensor(w, l, "attn_k.weight", E, G * D);
    layer_tensor(w, l, "attn_v.weight", E, G * D);
    if (strcmp(arch, "qwen2") == 0) {
        layer_tensor(w, l, "attn_q.bias", H * D, 1);
        layer_tensor(w, l, "attn_k.bias", G * D, 1);
        layer_tensor(w, l, "attn_v.bias", G * D, 1);
    }
    if (gemma3 || strcmp(arch, "qwen3") == 0) {
        layer_tensor(w, l, "attn_q_norm.weight", D, 1);
        layer_tensor(w, l, "attn_k_norm.weight", D, 1);
    }
    layer_tensor(w, l, "attn_output.weight", H * D, E);
    layer_tensor(w, l, "ffn_norm.weight", E, 1);
    layer_tensor(w, l, "ffn_gate.weight", E, F);
    layer_tensor(w, l, "ffn_up.weight", E, F);
    layer_tensor(w, l, "ffn_down.weight", F, E);
    if (gemma3) {
        layer_tensor(w, l, "post_attention_norm.weight", E, 1);
        layer_tensor(w, l, "post_ffw_norm.weight", E, 1);
    }
}

void gguf_writer_tiny_model(struct gguf_writer *w, const char *arch, uint32_t n_vocab)
{
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"block_count", L},         {"context_length", 256},     {"embedding_length", E},
                 {"feed_forward_length", F}, {"attention.head_count", H}, {"attention.head_count_kv", G}};
    char key[96];

    gguf_writer_string(w, "general.architecture", arch);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        snprintf(key, sizeof(key), "%s.%s", arch, sizes[i].key);
        gguf_writer_u32(w, key, sizes[i].value);
    }
    snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_writer_f32(w, key, 1e-5f);
    if (strcmp(arch, "gemma3") == 0)
        gguf_writer_u32(w, "gemma3.attention.sliding_window", 32);
    gguf_writer_tensor(w, "token_embd.weight", TENSOR_F32, 2, (uint64_t[]){E, n_vocab}, NULL);
    gguf_writer_tensor(w, "output_norm.weight", TENSOR_F32, 1, (uint64_t[]){E}, NULL);
    for (uint32_t l = 0; l < L; l++)
        tiny_layer(w, arch, l);
}
