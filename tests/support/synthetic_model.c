/* synthetic_model.c - see synthetic_model.h. */
#include "tests/support/synthetic_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/numeric.h"

enum { PARTS_MAX = 4096 };

struct synthetic {
    struct model m;
    uint64_t state;
    void *parts[PARTS_MAX];
    uint32_t n_parts;
};

static void *keep(struct synthetic *s, size_t bytes)
{
    void *at = malloc(bytes);

    if (at == NULL || s->n_parts == PARTS_MAX) {
        fprintf(stderr, "synthetic model: no memory\n");
        abort();
    }
    return s->parts[s->n_parts++] = at;
}

static uint64_t next(struct synthetic *s)
{
    s->state ^= s->state << 13;
    s->state ^= s->state >> 7;
    return s->state ^= s->state << 17;
}

/* In [-1, 1). */
static float unit(struct synthetic *s)
{
    return (float)(int32_t)(next(s) >> 32) * 0x1p-31f;
}

static void put_half(uint8_t *at, float x)
{
    const uint16_t h = f32_to_f16(x);

    memcpy(at, &h, sizeof(h));
}

/* The f16 fields of a block: offsets and sizes of what they multiply, so that weights come out near `size`. */
static void scale_block(struct synthetic *s, enum tensor_type t, uint8_t *at, float size)
{
    const float vary = 1.0f + 0.5f * unit(s);

    switch (t) {
    case TENSOR_Q4_0:
        put_half(at, size * vary / 5);
        break;
    case TENSOR_Q4_1:
        put_half(at, size * vary / 5), put_half(at + 2, -size * vary * 1.5f);
        break;
    case TENSOR_Q5_0:
        put_half(at, size * vary / 10);
        break;
    case TENSOR_Q5_1:
        put_half(at, size * vary / 10), put_half(at + 2, -size * vary * 1.55f);
        break;
    case TENSOR_Q8_0:
        put_half(at, size * vary / 74);
        break;
    case TENSOR_Q4_K:
        put_half(at, size * vary / 160), put_half(at + 2, size * vary / 20);
        break;
    case TENSOR_Q5_K:
        put_half(at, size * vary / 330), put_half(at + 2, size * vary / 20);
        break;
    default: /* TENSOR_Q6_K */
        put_half(at + 208, size * vary / 1300);
        break;
    }
}

static struct tensor make_tensor(struct synthetic *s, enum tensor_type type, uint32_t n_rows, uint32_t n_cols, float size)
{
    static const struct {
        uint32_t elements, bytes;
    } of[] = {
#define X(name, id, n, b) [id] = { n, b },
        TENSOR_TYPE_LIST(X)
#undef X
    };
    struct tensor t = { .type = type, .n_rows = n_rows, .n_cols = n_cols };
    const size_t n = (size_t)n_rows * n_cols, n_blocks = n / of[type].elements;

    t.bytes = n_blocks * of[type].bytes;
    uint8_t *at = keep(s, t.bytes);
    t.data = at;
    if (type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16) {
        for (size_t i = 0; i < n; i++, at += of[type].bytes) {
            const float x = unit(s) * size * 1.7f;
            const uint32_t bits = f32_bits(x);
            const uint16_t h = type == TENSOR_F16 ? f32_to_f16(x) : (uint16_t)(bits >> 16);
            if (type == TENSOR_F32)
                memcpy(at, &x, 4);
            else
                memcpy(at, &h, 2);
        }
        return t;
    }
    for (size_t i = 0; i + 8 <= t.bytes; i += 8) {
        const uint64_t r = next(s);
        memcpy(at + i, &r, 8);
    }
    for (size_t i = t.bytes & ~(size_t)7; i < t.bytes; i++)
        at[i] = (uint8_t)next(s);
    for (size_t i = 0; i < n_blocks; i++)
        scale_block(s, type, at + i * of[type].bytes, size);
    return t;
}

/* A vector around `middle`. */
static struct tensor make_vector(struct synthetic *s, uint32_t n, float middle, float size)
{
    struct tensor t = { .type = TENSOR_F32, .n_rows = 1, .n_cols = n, .bytes = 4 * (size_t)n };
    float *at = keep(s, t.bytes);

    for (uint32_t i = 0; i < n; i++)
        at[i] = middle + size * unit(s);
    t.data = at;
    return t;
}

static struct model_layer make_layer(struct synthetic *s, const struct synthetic_shape *p)
{
    const uint32_t e = p->n_embd, f = p->n_ff, q = p->n_heads * p->head_dim, kv = p->n_kv_heads * p->head_dim;
    const float by_e = 1.0f / sqrtf((float)e), by_q = 1.0f / sqrtf((float)q), by_f = 1.0f / sqrtf((float)f);
    struct model_layer l = { 0 };

    l.attn_norm = make_vector(s, e, 1, 0.2f);
    l.ffn_norm = make_vector(s, e, 1, 0.2f);
    l.attn_q = make_tensor(s, p->weights, q, e, by_e);
    l.attn_k = make_tensor(s, p->weights, kv, e, by_e);
    l.attn_v = make_tensor(s, p->own_v ? p->v : p->weights, kv, e, by_e);
    l.attn_output = make_tensor(s, p->weights, e, q, by_q);
    l.ffn_gate = make_tensor(s, p->weights, f, e, by_e);
    l.ffn_up = make_tensor(s, p->own_up ? p->up : p->weights, f, e, by_e);
    l.ffn_down = make_tensor(s, p->own_down ? p->down : p->weights, e, f, by_f);
    if (p->arch == ARCH_QWEN2) {
        l.attn_q_bias = make_vector(s, q, 0, 0.5f);
        l.attn_k_bias = make_vector(s, kv, 0, 0.5f);
        l.attn_v_bias = make_vector(s, kv, 0, 0.5f);
    }
    if (p->arch == ARCH_QWEN3 || p->arch == ARCH_GEMMA3) {
        l.attn_q_norm = make_vector(s, p->head_dim, 1, 0.2f);
        l.attn_k_norm = make_vector(s, p->head_dim, 1, 0.2f);
    }
    if (p->arch == ARCH_GEMMA3) {
        l.post_attention_norm = make_vector(s, e, 1, 0.2f);
        l.post_ffw_norm = make_vector(s, e, 1, 0.2f);
    }
    return l;
}

struct synthetic *synthetic_new(const struct synthetic_shape *p, const struct model **ret_model)
{
    struct synthetic *s = calloc(1, sizeof(*s));

    if (s == NULL)
        abort();
    s->state = p->seed * 2685821657736338717u + 88172645463325252u;
    struct model *m = &s->m;
    *m = (struct model){ .arch = p->arch, .n_layers = p->n_layers, .n_vocab = p->n_vocab, .n_embd = p->n_embd, .n_ff = p->n_ff,
                         .n_heads = p->n_heads, .n_kv_heads = p->n_kv_heads, .head_dim = p->head_dim,
                         .context_tokens = p->context_tokens, .rms_eps = 1e-5f, .embedding_scale = 1,
                         .attention_scale = 1.0f / sqrtf((float)p->head_dim),
                         .rope_kind = p->arch == ARCH_LLAMA ? ROPE_NORM : ROPE_NEOX,
                         .gate = p->arch == ARCH_GEMMA3 ? GATE_GELU : GATE_SILU, .tied_output = !p->own_head };
    if (p->arch == ARCH_GEMMA3)
        m->embedding_scale = sqrtf((float)p->n_embd);
    m->rope = (struct model_rope){ .freq_base = 500000, .factor = 1 };
    m->rope_local = (struct model_rope){ .freq_base = 10000, .factor = 1 };
    m->fingerprint[0] = p->seed;
    m->token_embd = make_tensor(s, p->weights, p->n_vocab, p->n_embd, 0.05f);
    m->output = p->own_head ? make_tensor(s, p->head, p->n_vocab, p->n_embd, 4.0f / sqrtf((float)p->n_embd)) : m->token_embd;
    m->output_norm = make_vector(s, p->n_embd, 1, 0.2f);
    m->layers = keep(s, p->n_layers * sizeof(*m->layers));
    for (uint32_t i = 0; i < p->n_layers; i++) {
        m->layers[i] = i > 0 && p->shared_layers ? m->layers[0] : make_layer(s, p);
        m->layers[i].window = i % 2 == 0 ? p->window : 0;
        m->layers[i].rope_table = i % 2 == 0 && p->window > 0;
    }
    *ret_model = m;
    return s;
}

void synthetic_free(struct synthetic *s)
{
    for (uint32_t i = 0; s != NULL && i < s->n_parts; i++)
        free(s->parts[i]);
    free(s);
}
