/* synthetic_model.h - a struct model of any shape with random weights, without a file: for tests of backends and for
 * measuring shapes that nobody wants to download.
 *
 * Weights are valid blocks of their type with numbers of about 1 / sqrt(K); layers may share one copy of them, so that a
 * model of any depth costs one layer of memory. */
#ifndef TESTS_SYNTHETIC_MODEL_H
#define TESTS_SYNTHETIC_MODEL_H

#include "model.h"

struct synthetic_shape {
    enum model_arch arch;      /* llama: pairs as NORM; qwen2: biases; qwen3, gemma3: norms of heads; gemma3: post norms, GELU */
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, context_tokens;
    enum tensor_type weights;  /* all that have no type of their own: */
    bool own_v, own_down, own_up, own_head;
    enum tensor_type v, down, up, head; /* taken where own_... says so; own_head: not tied */
    uint32_t window;           /* of even layers, with a rope table of their own; 0: none */
    bool shared_layers;
    uint64_t seed;
};

struct synthetic;

/* Gives a model that lives until synthetic_free; aborts on lack of memory. */
struct synthetic *synthetic_new(const struct synthetic_shape *shape, const struct model **ret_model);
void synthetic_free(struct synthetic *s);

#endif
