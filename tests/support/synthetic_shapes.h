/* synthetic_shapes.h - a table of models for comparing backends: what no file here has. */
#ifndef TESTS_SYNTHETIC_SHAPES_H
#define TESTS_SYNTHETIC_SHAPES_H

#include "backend.h"
#include "tests/support/synthetic_model.h"

/* Small, so that edges are near. */
static const struct synthetic_case {
    const char *what;
    enum kv_type kv_type;
    struct synthetic_shape shape;
} shapes[] = {
    { "gemma3, window, group of 3, vocabulary of no round number", KV_F16,
      { .arch = ARCH_GEMMA3, .n_layers = 3, .n_embd = 96, .n_ff = 160, .n_heads = 3, .n_kv_heads = 1, .head_dim = 64,
        .n_vocab = 277, .context_tokens = 640, .weights = TENSOR_Q8_0, .window = 24, .seed = 1 } },
    { "gemma3, heads of 256, int8 KV", KV_Q8,
      { .arch = ARCH_GEMMA3, .n_layers = 2, .n_embd = 64, .n_ff = 96, .n_heads = 4, .n_kv_heads = 2, .head_dim = 256,
        .n_vocab = 64, .context_tokens = 640, .weights = TENSOR_Q5_1, .window = 300, .seed = 2 } },
    { "F32 weights, an own head in BF16, columns of no round number", KV_F16,
      { .arch = ARCH_LLAMA, .n_layers = 2, .n_embd = 72, .n_ff = 100, .n_heads = 2, .n_kv_heads = 2, .head_dim = 32,
        .n_vocab = 130, .context_tokens = 640, .weights = TENSOR_F32, .own_head = true, .head = TENSOR_BF16, .seed = 3 } },
    { "BF16 weights, a head of Q6_K", KV_Q8,
      { .arch = ARCH_QWEN2, .n_layers = 2, .n_embd = 256, .n_ff = 72, .n_heads = 3, .n_kv_heads = 3, .head_dim = 96,
        .n_vocab = 48, .context_tokens = 640, .weights = TENSOR_BF16, .own_head = true, .head = TENSOR_Q6_K, .seed = 4 } },
    { "gate and up of two types, v and down of others, a group of 20 heads", KV_F16,
      { .arch = ARCH_QWEN3, .n_layers = 2, .n_embd = 256, .n_ff = 256, .n_heads = 20, .n_kv_heads = 1, .head_dim = 32,
        .n_vocab = 64, .context_tokens = 640, .weights = TENSOR_Q5_0, .own_up = true, .up = TENSOR_Q4_1, .own_v = true,
        .v = TENSOR_F16, .own_down = true, .down = TENSOR_Q5_K, .seed = 5 } },
    { "heads of 128 in groups of 4, Q4_K", KV_F16,
      { .arch = ARCH_LLAMA, .n_layers = 2, .n_embd = 512, .n_ff = 256, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128,
        .n_vocab = 96, .context_tokens = 640, .weights = TENSOR_Q4_K, .seed = 6 } },
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

#endif
