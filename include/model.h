/* model.h - what a loaded model file says: sizes, constants, and where each tensor lies.  Made by worker/model.c from a
 * GGUF file, read by the backends; nobody writes it after model_open().
 *
 * Dimension letters, the same everywhere:
 *   L layers   V vocabulary   E embedding length   F feed-forward length
 *   H query heads   G key/value heads   D head size   K inner (input) length of a weight, contiguous   N its rows (outputs)
 *   T rows of a step (tokens)   B sequences of a step   P BLOCK_TOKENS */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are GGUF's. */
#define TENSOR_TYPE_LIST(X) /* name, id, elements a block, bytes a block */ \
    X(F32,  0,   1,   4)  \
    X(F16,  1,   1,   2)  \
    X(Q4_0, 2,   32,  18) \
    X(Q4_1, 3,   32,  20) \
    X(Q5_0, 6,   32,  22) \
    X(Q5_1, 7,   32,  24) \
    X(Q8_0, 8,   32,  34) \
    X(Q4_K, 12,  256, 144) \
    X(Q5_K, 13,  256, 176) \
    X(Q6_K, 14,  256, 210) \
    X(BF16, 30,  1,   2)

enum tensor_type {
#define X(name, id, elements, bytes) TENSOR_##name = id,
    TENSOR_TYPE_LIST(X)
#undef X
};

/* One tensor of the file: N rows of K elements, row-major; a vector has N = 1.  data is NULL where the model has none. */
struct tensor {
    enum tensor_type type;
    uint32_t n_rows;    /* N */
    uint32_t n_cols;    /* K */
    const void *data;   /* in the file's read-only mapping; any alignment */
    size_t bytes;
};

enum model_arch { ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3, ARCH_GEMMA3 };
enum rope_kind { ROPE_NORM, ROPE_NEOX };        /* pairs (2i, 2i+1), or (i, i + D/2) */
enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN };
enum gate_kind { GATE_SILU, GATE_GELU };        /* GELU is the tanh form */

struct model_layer {
    struct tensor attn_norm;                    /* [E] */
    struct tensor attn_q, attn_k, attn_v;       /* [H*D, E], [G*D, E], [G*D, E] */
    struct tensor attn_q_bias, attn_k_bias, attn_v_bias; /* optional, [rows of the weight] */
    struct tensor attn_q_norm, attn_k_norm;     /* optional, [D]: RMS norm of each head before RoPE */
    struct tensor attn_output;                  /* [E, H*D] */
    struct tensor post_attention_norm;          /* optional (gemma3), [E] */
    struct tensor ffn_norm;                     /* [E] */
    struct tensor ffn_gate, ffn_up;             /* [F, E] */
    struct tensor ffn_down;                     /* [E, F] */
    struct tensor post_ffw_norm;                /* optional (gemma3), [E] */
    uint32_t window;                            /* sliding window in positions; 0 = sees everything */
    uint32_t rope_table;                        /* 0: model.rope, 1: model.rope_local */
};

struct model_rope {
    float freq_base;
    enum rope_scaling scaling;
    float factor;                               /* positions are divided by it (linear), 1 = none */
    uint32_t original_context;                  /* yarn */
    float yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow;
    struct tensor freq_divisors;                /* optional rope_freqs, F32 [D/2]; only for rope_table 0 */
};

struct model {
    enum model_arch arch;
    uint32_t n_layers, n_vocab, n_embd, n_ff, n_heads, n_kv_heads, head_dim;
    uint32_t context_tokens;                    /* longest sequence the model takes */
    float rms_eps;
    float embedding_scale;                      /* 1 unless gemma3: sqrt(E), rounded as the reference does */
    float attention_scale;                      /* 1 / sqrt(D) as a rule */
    enum rope_kind rope_kind;
    enum gate_kind gate;
    struct model_rope rope, rope_local;
    struct tensor token_embd;                   /* [V, E] */
    struct tensor output_norm;                  /* [E] */
    struct tensor output;                       /* [V, E]; equal to token_embd when the head is tied */
    bool tied_output;
    struct model_layer *layers;                 /* [L] */
    uint64_t fingerprint[2];                    /* XXH3-128 of the whole file's metadata and tensor data */
    /* Give the file's pages of [at, at+bytes) back to the system; for a backend that has repacked a tensor. */
    void (*release_pages)(const struct model *m, const void *at, size_t bytes);
    const void *map;                            /* the mapping, for release_pages */
    size_t map_bytes;
};

#endif
