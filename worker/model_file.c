/* model_file.c - read sizes, constants and tensors of the architectures we run.
 *
 * Two tables carry the knowledge: what an architecture has (kind of RoPE, optional parts) and which tensors a layer may
 * hold, with their shapes written in the dimension letters of model.h.  The code only walks them.  Keys, defaults and
 * per-architecture rules are those of the GGUF converters and loaders of the ggml family; a rule that only one model size
 * has (gemma3's 27B attention scale) stands where it is applied.
 *
 * Every tensor of the file must be asked for by the tables.  A file with a part that we do not know would otherwise load
 * and answer wrongly. */
#include "model_file.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "limits.h"

enum { KEY_BYTES = 96, HASH_STRIDE = 16 << 20, SIZE_MAX_ANY = 1 << 20, GEMMA3_27B_LAYERS = 62 };

/* Which optional parts an architecture has: NEVER refuses them, MAY takes them, MUST demands them. */
enum presence { NEVER, MAY, MUST };

enum part { PART_ALWAYS, PART_BIAS, PART_QK_NORM, PART_POST_NORM, PART_COUNT };

static const struct arch_spec {
    const char *name;
    enum model_arch arch;
    enum rope_kind rope_kind;
    enum gate_kind gate;
    enum presence parts[PART_COUNT];
} archs[] = {
    {"llama", ARCH_LLAMA, ROPE_NORM, GATE_SILU, {MUST, MAY, NEVER, NEVER}},
    {"qwen2", ARCH_QWEN2, ROPE_NEOX, GATE_SILU, {MUST, MUST, NEVER, NEVER}},
    {"qwen3", ARCH_QWEN3, ROPE_NEOX, GATE_SILU, {MUST, NEVER, MUST, NEVER}},
    {"gemma3", ARCH_GEMMA3, ROPE_NEOX, GATE_GELU, {MUST, NEVER, MUST, MUST}},
};

/* Shapes: rows and columns as products of sizes.  ONE rows means a vector, which must be F32. */
enum dim { DIM_ONE, DIM_E, DIM_F, DIM_HD, DIM_GD, DIM_D, DIM_COUNT };

static const struct layer_tensor {
    const char *suffix;
    size_t offset;
    enum dim rows, cols;
    enum part part;
} layer_tensors[] = {
#define AT(member) offsetof(struct model_layer, member)
    {"attn_norm.weight", AT(attn_norm), DIM_ONE, DIM_E, PART_ALWAYS},
    {"attn_q.weight", AT(attn_q), DIM_HD, DIM_E, PART_ALWAYS},
    {"attn_k.weight", AT(attn_k), DIM_GD, DIM_E, PART_ALWAYS},
    {"attn_v.weight", AT(attn_v), DIM_GD, DIM_E, PART_ALWAYS},
    {"attn_q.bias", AT(attn_q_bias), DIM_ONE, DIM_HD, PART_BIAS},
    {"attn_k.bias", AT(attn_k_bias), DIM_ONE, DIM_GD, PART_BIAS},
    {"attn_v.bias", AT(attn_v_bias), DIM_ONE, DIM_GD, PART_BIAS},
    {"attn_q_norm.weight", AT(attn_q_norm), DIM_ONE, DIM_D, PART_QK_NORM},
    {"attn_k_norm.weight", AT(attn_k_norm), DIM_ONE, DIM_D, PART_QK_NORM},
    {"attn_output.weight", AT(attn_output), DIM_E, DIM_HD, PART_ALWAYS},
    {"post_attention_norm.weight", AT(post_attention_norm), DIM_ONE, DIM_E, PART_POST_NORM},
    {"ffn_norm.weight", AT(ffn_norm), DIM_ONE, DIM_E, PART_ALWAYS},
    {"ffn_gate.weight", AT(ffn_gate), DIM_F, DIM_E, PART_ALWAYS},
    {"ffn_up.weight", AT(ffn_up), DIM_F, DIM_E, PART_ALWAYS},
    {"ffn_down.weight", AT(ffn_down), DIM_E, DIM_F, PART_ALWAYS},
    {"post_ffw_norm.weight", AT(post_ffw_norm), DIM_ONE, DIM_E, PART_POST_NORM},
#undef AT
};

/* Keys whose presence with another value than the neutral one changes the arithmetic in a way we do not have. */
static const struct {
    const char *key;
    float neutral; /* besides 0, which always means "absent" */
    const char *what;
} refused_floats[] = {
    {"attn_logit_softcapping", 0, "attention soft caps"},
    {"final_logit_softcapping", 0, "logit soft caps"},
    {"embedding_scale", 1, "an embedding scale"},
    {"residual_scale", 1, "a residual scale"},
    {"logit_scale", 1, "a logit scale"},
    {"attention.clamp_kqv", 0, "clamped attention inputs"},
    {"attention.temperature_scale", 0, "attention temperature"},
    {"rope.scaling.yarn_log_multiplier", 0, "a yarn log multiplier"},
};

/* What the functions below share while a file is read. */
struct reader {
    const struct gguf *g;
    const struct arch_spec *spec;
    struct model *m;
    uint32_t dims[DIM_COUNT];
    bool *used; /* per tensor of the file */
    struct error *err;
};

#define fail(r, status, ...) (fail_text(r, __VA_ARGS__), (status))

__attribute__((format(printf, 2, 3))) static void fail_text(struct reader *r, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    error_set(r->err, ERR_INVALID_PARAMETER, "model", "%s: %s", gguf_name(r->g), text);
}

/* "<arch>.<suffix>" */
static const char *arch_key(const struct reader *r, char buf[KEY_BYTES], const char *suffix)
{
    snprintf(buf, KEY_BYTES, "%s.%s", r->spec->name, suffix);
    return buf;
}

static enum status read_u32(struct reader *r, const char *suffix, uint32_t *ret_value)
{
    char key[KEY_BYTES];

    return gguf_u32(r->g, arch_key(r, key, suffix), ret_value, r->err);
}

static enum status read_u32_if(struct reader *r, const char *suffix, uint32_t *value)
{
    char key[KEY_BYTES];

    return gguf_u32_if(r->g, arch_key(r, key, suffix), value, r->err);
}

static enum status read_f32_if(struct reader *r, const char *suffix, float *value)
{
    char key[KEY_BYTES];

    return gguf_f32_if(r->g, arch_key(r, key, suffix), value, r->err);
}

/* A size that is positive and small enough for products of two to fit 64 bits and of one with a row count 32. */
static enum status read_size(struct reader *r, const char *suffix, uint32_t max, uint32_t *ret_value)
{
    char key[KEY_BYTES];
    uint32_t v = 0;
    enum status st = read_u32(r, suffix, &v);

    if (st != ST_OK)
        return st;
    if (v == 0 || v > max)
        return fail(r, v == 0 ? ST_INVALID : ST_LIMIT, "\"%s\" is %u, must be 1 to %u",
                    arch_key(r, key, suffix), v, max);
    *ret_value = v;
    return ST_OK;
}

/* A size that may be written once a layer; all layers must agree.  Absent: *value stays. */
static enum status read_layer_size(struct reader *r, const char *suffix, uint32_t *value)
{
    char key[KEY_BYTES];
    struct gguf_array a;
    enum status st;

    arch_key(r, key, suffix);
    if (!gguf_is_array(r->g, key))
        return gguf_u32_if(r->g, key, value, r->err);
    st = gguf_array_any(r->g, key, &a, r->err);
    if (st != ST_OK)
        return st;
    if (a.type != GGUF_U32 && a.type != GGUF_I32)
        return fail(r, ST_INVALID, "\"%s\" is an array of %s, expected u32", key, gguf_type_name(a.type));
    if (a.n != r->m->n_layers)
        return fail(r, ST_INVALID, "\"%s\" has %llu entries for %u layers", key, (unsigned long long)a.n,
                    r->m->n_layers);

    int64_t first = gguf_array_next_int(&a);

    while (a.n > 0)
        if (gguf_array_next_int(&a) != first)
            return fail(r, ST_UNSUPPORTED, "\"%s\" differs between layers", key);
    if (first < 0)
        return fail(r, ST_INVALID, "\"%s\" is negative", key);
    *value = (uint32_t)first;
    return ST_OK;
}

/* --- sizes --------------------------------------------------------------------------------------------------------- */

static enum status check_heads(struct reader *r)
{
    struct model *m = r->m;

    if (m->n_heads == 0 || m->n_heads > SIZE_MAX_ANY || m->n_kv_heads == 0 || m->n_heads % m->n_kv_heads != 0)
        return fail(r, ST_INVALID, "has %u attention heads and %u key/value heads", m->n_heads,
                    m->n_kv_heads);
    if (m->head_dim == 0 || m->head_dim % 2 != 0 || m->head_dim > SIZE_MAX_ANY)
        return fail(r, ST_INVALID, "has a head size of %u", m->head_dim);
    if ((uint64_t)m->n_heads * m->head_dim > SIZE_MAX_ANY)
        return fail(r, ST_LIMIT, "has %u heads of %u elements, at most %d elements are taken", m->n_heads,
                    m->head_dim, SIZE_MAX_ANY);
    return ST_OK;
}

static enum status read_head_sizes(struct reader *r)
{
    struct model *m = r->m;
    uint32_t value_length, rope_dims;
    enum status st = read_layer_size(r, "attention.head_count", &m->n_heads);

    if (st == ST_OK) {
        m->n_kv_heads = m->n_heads;
        st = read_layer_size(r, "attention.head_count_kv", &m->n_kv_heads);
    }
    if (st == ST_OK) {
        m->head_dim = m->n_heads > 0 && m->n_embd % m->n_heads == 0 ? m->n_embd / m->n_heads : 0;
        st = read_u32_if(r, "attention.key_length", &m->head_dim);
    }
    value_length = rope_dims = m->head_dim;
    if (st == ST_OK)
        st = read_u32_if(r, "attention.value_length", &value_length);
    if (st == ST_OK)
        st = read_u32_if(r, "rope.dimension_count", &rope_dims);
    if (st == ST_OK)
        st = check_heads(r);
    if (st == ST_OK && value_length != m->head_dim)
        st = fail(r, ST_UNSUPPORTED, "has keys of %u and values of %u elements; they must be equal",
                  m->head_dim, value_length);
    if (st == ST_OK && rope_dims != m->head_dim)
        st = fail(r, ST_UNSUPPORTED, "rotates %u of %u elements of a head; all must be rotated", rope_dims,
                  m->head_dim);
    return st;
}

static enum status read_sizes(struct reader *r)
{
    struct model *m = r->m;
    uint32_t experts = 0;
    enum status st = read_u32_if(r, "expert_count", &experts);

    if (st == ST_OK && experts > 0)
        st = fail(r, ST_UNSUPPORTED, "is a mixture of %u experts; only dense models are taken", experts);
    if (st == ST_OK)
        st = read_size(r, "block_count", LAYERS_MAX, &m->n_layers);
    if (st == ST_OK)
        st = read_size(r, "context_length", 1u << 30, &m->context_tokens);
    if (st == ST_OK)
        st = read_size(r, "embedding_length", SIZE_MAX_ANY, &m->n_embd);
    if (st == ST_OK)
        st = read_layer_size(r, "feed_forward_length", &m->n_ff);
    if (st == ST_OK && (m->n_ff == 0 || m->n_ff > SIZE_MAX_ANY))
        st = fail(r, ST_INVALID, "has a feed-forward length of %u, must be 1 to %d", m->n_ff, SIZE_MAX_ANY);
    if (st == ST_OK)
        st = read_head_sizes(r);
    if (st == ST_OK) {
        char key[KEY_BYTES];

        st = gguf_f32(r->g, arch_key(r, key, "attention.layer_norm_rms_epsilon"), &m->rms_eps, r->err);
    }
    if (st == ST_OK && !(m->rms_eps > 0 && m->rms_eps < 1))
        st = fail(r, ST_INVALID, "has a norm epsilon of %g", (double)m->rms_eps);
    return st;
}

static enum status refuse_unknown_arithmetic(struct reader *r)
{
    char key[KEY_BYTES];
    bool causal = true;
    enum status st = gguf_bool_if(r->g, arch_key(r, key, "attention.causal"), &causal, r->err);

    if (st == ST_OK && !causal)
        st = fail(r, ST_UNSUPPORTED, "is not causal (%s)", key);
    for (size_t i = 0; st == ST_OK && i < sizeof(refused_floats) / sizeof(refused_floats[0]); i++) {
        float v = 0;

        st = read_f32_if(r, refused_floats[i].key, &v);
        if (st == ST_OK && v != 0 && v != refused_floats[i].neutral)
            st = fail(r, ST_UNSUPPORTED, "has %s, which %s models do not have here (%s = %g)",
                      refused_floats[i].what, r->spec->name, arch_key(r, key, refused_floats[i].key),
                      (double)v);
    }
    return st;
}

static enum status read_scales(struct reader *r)
{
    struct model *m = r->m;
    float scale = 0;
    enum status st = read_f32_if(r, "attention.scale", &scale);

    if (st != ST_OK)
        return st;
    if (scale < 0)
        return fail(r, ST_INVALID, "has an attention scale of %g", (double)scale);
    m->embedding_scale = m->arch == ARCH_GEMMA3 ? sqrtf((float)m->n_embd) : 1.0f;
    /* gemma3 27B was trained with the scale of heads of n_embd / n_heads, though its heads are of another size. */
    float per_head = m->arch == ARCH_GEMMA3 && m->n_layers == GEMMA3_27B_LAYERS
                         ? (float)m->n_embd / (float)m->n_heads
                         : (float)m->head_dim;

    m->attention_scale = scale > 0 ? scale : 1.0f / sqrtf(per_head);
    return ST_OK;
}

/* --- RoPE and windows ------------------------------------------------------------------------------------------------ */

static enum status read_rope_scaling(struct reader *r, struct model_rope *rope)
{
    char key[KEY_BYTES], printable[GGUF_PRINTED_BYTES];
    struct span type = span_str("linear");
    float factor = 0;
    enum status st = read_f32_if(r, "rope.scale_linear", &factor); /* the old key */

    if (st == ST_OK)
        st = read_f32_if(r, "rope.scaling.factor", &factor);
    if (st == ST_OK && gguf_has(r->g, arch_key(r, key, "rope.scaling.type")))
        st = gguf_string(r->g, key, &type, r->err);
    if (st != ST_OK)
        return st;
    if (factor < 0)
        return fail(r, ST_INVALID, "has a RoPE scaling factor of %g", (double)factor);
    rope->factor = factor == 0 ? 1.0f : factor;
    if (span_is(type, "none"))
        rope->factor = 1.0f;
    else if (span_is(type, "yarn"))
        rope->scaling = ROPE_SCALING_YARN;
    else if (!span_is(type, "linear"))
        return fail(r, ST_UNSUPPORTED, "has RoPE scaling \"%s\"; taken are none, linear, yarn",
                    gguf_printable(type, printable));
    else if (rope->factor != 1.0f)
        rope->scaling = ROPE_SCALING_LINEAR;
    return ST_OK;
}

static enum status read_yarn(struct reader *r, struct model_rope *rope)
{
    enum status st = read_u32_if(r, "rope.scaling.original_context_length", &rope->original_context);

    if (st == ST_OK)
        st = read_f32_if(r, "rope.scaling.attn_factor", &rope->yarn_attn_factor);
    if (st == ST_OK)
        st = read_f32_if(r, "rope.scaling.yarn_attn_factor", &rope->yarn_attn_factor);
    if (st == ST_OK)
        st = read_f32_if(r, "rope.scaling.yarn_ext_factor", &rope->yarn_ext_factor);
    if (st == ST_OK)
        st = read_f32_if(r, "rope.scaling.yarn_beta_fast", &rope->yarn_beta_fast);
    if (st == ST_OK)
        st = read_f32_if(r, "rope.scaling.yarn_beta_slow", &rope->yarn_beta_slow);
    if (st == ST_OK &&
        (rope->original_context == 0 || !(rope->yarn_attn_factor > 0) || rope->yarn_ext_factor < 0 ||
         !(rope->yarn_beta_slow > 0) || !(rope->yarn_beta_fast > 0)))
        st = fail(r, ST_INVALID, "has yarn parameters that are not positive");
    return st;
}

static enum status read_rope(struct reader *r)
{
    struct model *m = r->m;
    struct model_rope *rope = &m->rope;
    struct model_rope plain = {.freq_base = 10000.0f,
                               .factor = 1.0f,
                               .original_context = m->context_tokens,
                               .yarn_ext_factor = 0,
                               .yarn_attn_factor = 1.0f,
                               .yarn_beta_fast = 32.0f,
                               .yarn_beta_slow = 1.0f};
    enum status st;

    *rope = m->rope_local = plain;
    st = read_f32_if(r, "rope.freq_base", &rope->freq_base);
    if (st == ST_OK)
        st = read_f32_if(r, "rope.freq_base_swa", &m->rope_local.freq_base);
    if (st == ST_OK)
        st = read_rope_scaling(r, rope);
    if (st == ST_OK && rope->scaling == ROPE_SCALING_YARN) {
        rope->yarn_ext_factor = 1.0f;
        st = read_yarn(r, rope);
    }
    if (st == ST_OK && (!(rope->freq_base > 0) || !(m->rope_local.freq_base > 0)))
        st = fail(r, ST_INVALID, "has a RoPE base that is not positive");
    return st;
}

/* Which layers see only a window: true entries of an array, or all but each n-th layer. */
static enum status mark_local_layers(struct reader *r, uint32_t window)
{
    struct model *m = r->m;
    char key[KEY_BYTES];
    uint32_t period = m->arch == ARCH_GEMMA3 ? 6 : 0;
    struct gguf_array a = {.n = 0};
    enum status st;

    arch_key(r, key, "attention.sliding_window_pattern");
    if (gguf_is_array(r->g, key)) {
        st = gguf_array(r->g, key, GGUF_BOOL, &a, r->err);
        if (st == ST_OK && a.n != m->n_layers)
            st = fail(r, ST_INVALID, "\"%s\" has %llu entries for %u layers", key, (unsigned long long)a.n,
                      m->n_layers);
    } else {
        st = gguf_u32_if(r->g, key, &period, r->err);
    }
    for (uint32_t l = 0; st == ST_OK && l < m->n_layers; l++) {
        bool local = a.n > 0 ? gguf_array_next_int(&a) != 0 : period == 0 || (l + 1) % period != 0;

        if (local)
            m->layers[l].window = window;
        if (local && m->arch == ARCH_GEMMA3)
            m->layers[l].rope_table = 1;
    }
    return st;
}

static enum status read_windows(struct reader *r)
{
    char key[KEY_BYTES];
    uint32_t window = 0;
    enum status st = read_u32_if(r, "attention.sliding_window", &window);

    if (st == ST_OK && window == 0 && r->spec->arch == ARCH_GEMMA3)
        st = fail(r, ST_INVALID, "has no window for its local layers (%s)",
                  arch_key(r, key, "attention.sliding_window"));
    if (st == ST_OK && window > 0)
        st = mark_local_layers(r, window);
    return st;
}

/* --- tensors --------------------------------------------------------------------------------------------------------- */

/* Find a tensor and check its shape; n_rows 0 takes any number of rows.  ST_NOT_FOUND leaves *ret_tensor and *err alone. */
static enum status find_tensor(struct reader *r, const char *name, uint32_t n_rows, uint32_t n_cols,
                               bool vector, struct tensor *ret_tensor)
{
    const struct gguf_tensor *t = gguf_tensor_find(r->g, name);

    if (t == NULL)
        return ST_NOT_FOUND;
    bool shape_fits =
        t->ne[0] == n_cols && (n_rows == 0 || t->ne[1] == n_rows) && t->ne[2] == 1 && t->ne[3] == 1;

    if (!shape_fits)
        return fail(r, ST_INVALID,
                    "tensor \"%s\" is [%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                    "], expected [%u, %u]",
                    name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], n_cols, n_rows);
    if (t->ne[1] > VOCAB_MAX)
        return fail(r, ST_LIMIT, "tensor \"%s\" has %" PRIu64 " rows, limit %d (VOCAB_MAX)", name, t->ne[1],
                    VOCAB_MAX);
    if (vector && t->type != TENSOR_F32)
        return fail(r, ST_UNSUPPORTED, "tensor \"%s\" has type %s; norms and biases must be F32", name,
                    tensor_type_name(t->type));
    r->used[gguf_tensor_index(r->g, t)] = true;
    *ret_tensor = (struct tensor){.type = t->type,
                                  .n_rows = (uint32_t)t->ne[1],
                                  .n_cols = (uint32_t)t->ne[0],
                                  .data = t->data,
                                  .bytes = t->bytes};
    return ST_OK;
}

static enum status need_tensor(struct reader *r, const char *name, uint32_t n_rows, uint32_t n_cols,
                               bool vector, struct tensor *ret_tensor)
{
    enum status st = find_tensor(r, name, n_rows, n_cols, vector, ret_tensor);

    return st == ST_NOT_FOUND ? fail(r, ST_INVALID, "has no tensor \"%s\"", name) : st;
}

static enum status read_layer(struct reader *r, uint32_t l)
{
    char name[KEY_BYTES];

    for (size_t i = 0; i < sizeof(layer_tensors) / sizeof(layer_tensors[0]); i++) {
        const struct layer_tensor *lt = &layer_tensors[i];
        enum presence presence = r->spec->parts[lt->part];
        struct tensor *out = (struct tensor *)((char *)&r->m->layers[l] + lt->offset);
        enum status st;

        if (presence == NEVER)
            continue; /* if the file has it, refuse_unused() names it */
        snprintf(name, sizeof(name), "blk.%u.%s", l, lt->suffix);
        st = find_tensor(r, name, r->dims[lt->rows], r->dims[lt->cols], lt->rows == DIM_ONE, out);
        if (st == ST_NOT_FOUND && presence == MUST)
            st = fail(r, ST_INVALID, "has no tensor \"%s\"", name);
        if (st != ST_OK && st != ST_NOT_FOUND)
            return st;
    }
    return ST_OK;
}

static enum status refuse_unused(struct reader *r)
{
    for (uint32_t i = 0; i < gguf_n_tensors(r->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(r->g, i);
        char name[GGUF_PRINTED_BYTES];

        if (!r->used[i])
            return fail(r, ST_UNSUPPORTED,
                        "tensor \"%s\" is not part of a %s model of %u layers as known here",
                        gguf_printable(t->name, name), r->spec->name, r->m->n_layers);
    }
    return ST_OK;
}

static enum status read_vocabulary_size(struct reader *r)
{
    struct model *m = r->m;
    struct gguf_array tokens = {.n = m->token_embd.n_rows};
    uint32_t stated = m->token_embd.n_rows;
    enum status st = read_u32_if(r, "vocab_size", &stated);

    if (st == ST_OK && gguf_has(r->g, "tokenizer.ggml.tokens"))
        st = gguf_array(r->g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, r->err);
    if (st != ST_OK)
        return st;
    m->n_vocab = m->token_embd.n_rows;
    if (stated != m->n_vocab || tokens.n != m->n_vocab)
        return fail(r, ST_INVALID, "has an embedding of %u tokens, vocab_size %u and %llu token texts",
                    m->n_vocab, stated, (unsigned long long)tokens.n);
    return ST_OK;
}

static enum status read_tensors(struct reader *r)
{
    struct model *m = r->m;
    const uint32_t dims[DIM_COUNT] = {
        1, m->n_embd, m->n_ff, m->n_heads * m->head_dim, m->n_kv_heads * m->head_dim, m->head_dim};
    enum status st = need_tensor(r, "token_embd.weight", 0, m->n_embd, false, &m->token_embd);

    memcpy(r->dims, dims, sizeof(dims));
    if (st == ST_OK)
        st = read_vocabulary_size(r);
    if (st == ST_OK)
        st = need_tensor(r, "output_norm.weight", 1, m->n_embd, true, &m->output_norm);
    if (st == ST_OK) {
        st = find_tensor(r, "output.weight", m->n_vocab, m->n_embd, false, &m->output);
        m->tied_output = st == ST_NOT_FOUND;
    }
    if (m->tied_output) {
        m->output = m->token_embd;
        st = ST_OK;
    }
    if (st == ST_OK && r->spec->arch == ARCH_LLAMA) {
        st = find_tensor(r, "rope_freqs.weight", 1, m->head_dim / 2, true, &m->rope.freq_divisors);
        if (st == ST_NOT_FOUND)
            st = ST_OK;
    }
    for (uint32_t l = 0; st == ST_OK && l < m->n_layers; l++)
        st = read_layer(r, l);
    if (st == ST_OK)
        st = refuse_unused(r);
    return st;
}

static enum status check_freq_divisors(struct reader *r)
{
    const struct tensor *t = &r->m->rope.freq_divisors;

    for (uint32_t i = 0; t->data != NULL && i < t->n_cols; i++) {
        float f;

        memcpy(&f, (const char *)t->data + i * sizeof(f), sizeof(f));
        if (!isfinite(f) || f <= 0)
            return fail(r, ST_INVALID, "rope_freqs.weight holds %g at %u, must be positive", (double)f, i);
    }
    return ST_OK;
}

/* --- the whole ------------------------------------------------------------------------------------------------------- */

/* Hash in strides, asking the system for the next stride while this one is read: a cold file streams in. */
static void fingerprint(const struct gguf *g, uint64_t out[2])
{
    struct span bytes = gguf_bytes(g);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    XXH3_state_t *state = XXH3_createState();

    if (state == NULL) { /* the one-shot form needs no memory and gives the same */
        XXH128_hash_t whole = XXH3_128bits(bytes.at, bytes.n);

        out[0] = whole.low64;
        out[1] = whole.high64;
        return;
    }
    XXH3_128bits_reset(state);
    for (size_t at = 0; at < bytes.n; at += HASH_STRIDE) {
        size_t n = bytes.n - at < HASH_STRIDE ? bytes.n - at : HASH_STRIDE;
        size_t next = (at + n) / page * page;

        if (next < bytes.n && (uintptr_t)bytes.at % page == 0) /* advice only: a refusal changes nothing */
            (void)madvise((void *)(uintptr_t)(bytes.at + next),
                          bytes.n - next < HASH_STRIDE ? bytes.n - next : HASH_STRIDE, MADV_WILLNEED);
        XXH3_128bits_update(state, bytes.at + at, n);
    }
    XXH128_hash_t h = XXH3_128bits_digest(state);

    out[0] = h.low64;
    out[1] = h.high64;
    XXH3_freeState(state);
}

/* Whole pages inside the range only: what shares a page with a neighbour stays. */
static void release_pages(const struct model *m, const void *at, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)at + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)at + bytes) / page * page;

    assert((const char *)at >= (const char *)m->map);
    assert((const char *)at + bytes <= (const char *)m->map + m->map_bytes);
    if (m->map_bytes > 0 && (uintptr_t)m->map % page == 0 && to > from)
        (void)madvise((void *)from, to - from, MADV_DONTNEED); /* advice: the file still has the bytes */
}

static void release_nothing(const struct model *m, const void *at, size_t bytes)
{
    (void)m;
    (void)at;
    (void)bytes;
}

static enum status find_arch(struct reader *r)
{
    char printable[GGUF_PRINTED_BYTES];
    struct span name;
    enum status st = gguf_string(r->g, "general.architecture", &name, r->err);

    if (st != ST_OK)
        return st == ST_NOT_FOUND ? ST_INVALID : st;
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++)
        if (span_is(name, archs[i].name))
            r->spec = &archs[i];
    if (r->spec == NULL)
        return fail(r, ST_UNSUPPORTED, "has architecture \"%s\"; taken are llama, qwen2, qwen3, gemma3",
                    gguf_printable(name, printable));
    r->m->arch = r->spec->arch;
    r->m->rope_kind = r->spec->rope_kind;
    r->m->gate = r->spec->gate;
    return ST_OK;
}

static enum status read_model(struct reader *r)
{
    enum status st = find_arch(r);

    if (st == ST_OK)
        st = read_sizes(r);
    if (st == ST_OK)
        st = refuse_unknown_arithmetic(r);
    if (st == ST_OK)
        st = read_scales(r);
    if (st == ST_OK)
        st = read_rope(r);
    if (st == ST_OK) {
        r->m->layers = calloc(r->m->n_layers, sizeof(*r->m->layers));
        if (r->m->layers == NULL)
            st = fail(r, ST_NOMEM, "no memory for %u layers", r->m->n_layers);
    }
    if (st == ST_OK)
        st = read_windows(r);
    if (st == ST_OK)
        st = read_tensors(r);
    if (st == ST_OK)
        st = check_freq_divisors(r);
    return st == ST_NOT_FOUND ? ST_INVALID : st; /* a missing key is a broken file to whoever opens a model */
}

void model_close(struct model *m)
{
    if (m == NULL)
        return;
    free(m->layers);
    free(m);
}

enum status model_open(const struct gguf *g, struct model **ret_model, struct error *err)
{
    struct reader r = {.g = g, .err = err};
    enum status st = ST_NOMEM;

    r.m = calloc(1, sizeof(*r.m));
    r.used = calloc((size_t)gguf_n_tensors(g) + 1, sizeof(*r.used));
    if (r.m == NULL || r.used == NULL) {
        fail_text(&r, "no memory to open it");
        goto out;
    }
    st = read_model(&r);
    if (st != ST_OK)
        goto out;
    r.m->map = gguf_bytes(g).at;
    r.m->map_bytes = gguf_bytes(g).n;
    r.m->release_pages = gguf_is_mapped(g) ? release_pages : release_nothing;
    fingerprint(g, r.m->fingerprint);
    *ret_model = r.m;
    r.m = NULL;
out:
    model_close(r.m);
    free(r.used);
    return st;
}

const char *model_arch_name(enum model_arch arch)
{
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++)
        if (archs[i].arch == arch)
            return archs[i].name;
    return "unknown";
}
