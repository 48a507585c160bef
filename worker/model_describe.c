/* model_describe.c - a model in a few lines, for `weir models` and for whoever wonders what was loaded. */
#include "model_file.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

struct text {
    char *at;
    size_t n, cap;
};

/* Append a line, or nothing if it does not fit whole. */
__attribute__((format(printf, 2, 3))) static void add_line(struct text *t, const char *format, ...)
{
    va_list args;
    size_t room = t->cap - t->n;

    va_start(args, format);
    int n = vsnprintf(t->at + t->n, room, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < room)
        t->n += (size_t)n;
    else
        t->at[t->n] = '\0';
}

struct type_sum {
    enum tensor_type type;
    uint32_t n;
    uint64_t bytes;
};

static void count_tensor(struct type_sum *sums, size_t n_sums, const struct tensor *t)
{
    for (size_t i = 0; t->data != NULL && i < n_sums; i++)
        if (sums[i].type == t->type) {
            sums[i].n++;
            sums[i].bytes += t->bytes;
        }
}

static void count_layer(struct type_sum *sums, size_t n_sums, const struct model_layer *y)
{
    const struct tensor *const all[] = {
        &y->attn_norm,           &y->attn_q,      &y->attn_k,      &y->attn_v,      &y->attn_q_bias,
        &y->attn_k_bias,         &y->attn_v_bias, &y->attn_q_norm, &y->attn_k_norm, &y->attn_output,
        &y->post_attention_norm, &y->ffn_norm,    &y->ffn_gate,    &y->ffn_up,      &y->ffn_down,
        &y->post_ffw_norm,
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        count_tensor(sums, n_sums, all[i]);
}

static void describe_types(const struct model *m, struct text *out)
{
    struct type_sum sums[] = {
#define X(name, id, elements, bytes) {.type = TENSOR_##name},
        TENSOR_TYPE_LIST(X)
#undef X
    };
    size_t n_sums = sizeof(sums) / sizeof(sums[0]);

    count_tensor(sums, n_sums, &m->token_embd);
    count_tensor(sums, n_sums, &m->output_norm);
    count_tensor(sums, n_sums, &m->rope.freq_divisors);
    if (!m->tied_output)
        count_tensor(sums, n_sums, &m->output);
    for (uint32_t l = 0; l < m->n_layers; l++)
        count_layer(sums, n_sums, &m->layers[l]);
    for (size_t i = 0; i < n_sums; i++)
        if (sums[i].n > 0)
            add_line(out, "weights       %-5s %5u tensors, %llu bytes\n", tensor_type_name(sums[i].type),
                     sums[i].n, (unsigned long long)sums[i].bytes);
}

char *model_describe(const struct model *m, char *buf, size_t buf_bytes)
{
    static const char *const scalings[] = {"none", "linear", "yarn"};
    struct text out = {buf, 0, buf_bytes};
    uint32_t n_local = 0, window = 0;

    assert(buf_bytes > 0);
    buf[0] = '\0';
    for (uint32_t l = 0; l < m->n_layers; l++)
        if (m->layers[l].window > 0) {
            n_local++;
            window = m->layers[l].window;
        }
    add_line(&out, "architecture  %s\n", model_arch_name(m->arch));
    add_line(&out,
             "sizes         layers %u, vocabulary %u, embedding %u, feed-forward %u, heads %u, kv heads %u, "
             "head %u\n",
             m->n_layers, m->n_vocab, m->n_embd, m->n_ff, m->n_heads, m->n_kv_heads, m->head_dim);
    add_line(&out, "context       %u tokens\n", m->context_tokens);
    describe_types(m, &out);
    add_line(&out, "output        %s\n", m->tied_output ? "tied to the embedding" : "own weight");
    add_line(&out, "rope          %s, base %g, scaling %s %g%s\n",
             m->rope_kind == ROPE_NORM ? "adjacent pairs" : "halves", (double)m->rope.freq_base,
             scalings[m->rope.scaling], (double)m->rope.factor,
             m->rope.freq_divisors.data != NULL ? ", own frequency divisors" : "");
    if (n_local > 0)
        add_line(&out, "windows       %u of %u layers see %u positions\n", n_local, m->n_layers, window);
    add_line(&out, "fingerprint   %016llx%016llx\n", (unsigned long long)m->fingerprint[1],
             (unsigned long long)m->fingerprint[0]);
    return buf;
}
