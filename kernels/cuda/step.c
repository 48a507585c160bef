/* step.c - one forward pass as a list of launches.
 *
 *     embed, norm -> int8
 *     each layer   q, k, v projections
 *                  norms of heads, RoPE, K and V to their blocks
 *                  attention -> int8
 *                  output projection, added to x; its last block norms the rows -> int8
 *                  gate and up, activation -> int8
 *                  down projection, added to x; its last block norms the rows -> int8
 *     (in the last layer everything after the attention is computed for the wanted rows only)
 *     head         max_seqs wanted rows at a time: logits, then sampling or a copy to the caller
 *
 * Six launches a layer, and more only where one of q, k and v is F16, BF16 or F32 and another is not of that type, and where gate and
 * up differ.  What a launch computes for a row does not depend on which other rows there are.
 *
 * With fast prefill the rows of long chunks come after all others and go through fast.c instead of our products, but for the head
 * and the end of the last layer, and through attention_mma.cu instead of attention.cu. */
#include "kernels/cuda/engine.h"

#include <assert.h>
#include <string.h>

struct run {
    struct backend *b;
    struct step_view view;
    struct step_sizes n;
    bool wanted; /* the last layer, past its attention: only rows whose logits are wanted, exactly */
};

/* ------------------------------------------------------------------ products */

static struct product_args product(const struct run *r, enum product_kind kind, const struct weights *w, const struct row_input *in)
{
    return (struct product_args){
        .kind = kind,
        .n_k = w->n_k,
        .q8 = in->q8,
        .second = in->second,
        .f32 = in->f32,
        .n_blocks = in->n_blocks,
        .f32_stride = in->f32_stride,
        .split = w->type == TENSOR_F16 ? in->split_f16 : in->split_bf16,
        .n_split = in->n_split,
        .n_rows = r->wanted ? &r->view.header->n_out : &r->view.header->n_exact,
        .map = r->wanted ? r->view.out_rows : NULL,
        .out_map = r->wanted ? r->view.out_rows : NULL,
        .gelu = r->b->m->gate == GATE_GELU,
        .counters = r->b->s.counters,
    };
}

/* Rows that our products compute, at most. */
static uint32_t own_rows(const struct run *r)
{
    return r->wanted ? r->n.outs : r->n.exact;
}

/* And the rows after them, that the library's do. */
static uint32_t fast_rows(const struct run *r)
{
    return r->wanted ? 0 : r->n.rows - r->n.exact;
}

static enum status launch_own(const struct run *r, const struct product_args *a)
{
    return own_rows(r) > 0 ? launch_product(a, own_rows(r), r->b->compute) : ST_OK;
}

static struct row_input input_from(struct row_input in, uint32_t row)
{
    in.q8 = in.q8 == NULL ? NULL : in.q8 + (size_t)row * in.n_blocks;
    in.second = in.second == NULL ? NULL : in.second + (size_t)row * in.n_blocks;
    in.f32 = in.f32 == NULL ? NULL : in.f32 + (size_t)row * in.f32_stride;
    in.split_f16 = in.split_f16 == NULL ? NULL : in.split_f16 + (size_t)row * in.n_split;
    in.split_bf16 = in.split_bf16 == NULL ? NULL : in.split_bf16 + (size_t)row * in.n_split;
    in.bf16 = in.bf16 == NULL ? NULL : in.bf16 + (size_t)row * in.f32_stride;
    return in;
}

static void add_part(struct product_args *a, const struct weights *w, float *y, uint32_t y_stride, const float *bias,
                     uint32_t n_inputs)
{
    assert(a->n_parts < 3 && w->n_k == a->n_k);
    a->part[a->n_parts++] = (struct product_part){ .type = w->type, .data = w->data, .panel_bytes = w->panel_bytes,
                                                   .n_panels = w->n_panels, .n_rows = w->n_rows, .y = y, .y_stride = y_stride,
                                                   .bias = bias, .n_inputs = n_inputs };
}

/* The norm that comes after layer l's attention (or, with `after_ffn`, before what follows the layer). */
static struct norm_args norm_after(const struct backend *b, uint32_t l, bool after_ffn)
{
    const struct cuda_layer *w = &b->layers[l];
    const float *post = after_ffn ? w->post_ffw_norm : w->post_attention_norm;

    return (struct norm_args){
        .x = b->s.x,
        .tmp = post != NULL ? b->s.tmp : NULL,
        .post = post,
        .weight = !after_ffn ? w->ffn_norm : l + 1 < b->m->n_layers ? b->layers[l + 1].attn_norm : b->output_norm,
        .out = b->s.in_e,
        .n = b->m->n_embd,
        .stride = (b->m->n_embd + 15) / 16 * 16,
        .eps = b->m->rms_eps,
    };
}

/* Quantised weights of different types go together: gemm_any.cu. */
static bool one_launch(const struct weights *a, const struct weights *b)
{
    return a->type == b->type || (!type_is_float(a->type) && !type_is_float(b->type));
}

static enum status project_heads(const struct run *r, uint32_t l)
{
    const struct backend *b = r->b;
    const struct cuda_layer *w = &b->layers[l];
    const uint32_t q = b->m->n_heads * b->m->head_dim, kv = b->m->n_kv_heads * b->m->head_dim;
    const struct {
        const struct weights *w;
        float *y;
        uint32_t stride;
        const float *bias;
        uint32_t n_inputs;
    } part[3] = { { &w->q, b->s.q, q, w->q_bias, 1 }, { &w->k, b->s.k, kv, w->k_bias, 1 }, { &w->v, b->s.v, kv, w->v_bias, 2 } };
    bool done[3] = { false };
    enum status st = ST_OK;

    for (int i = 0; i < 3 && st == ST_OK; i++) {
        if (done[i])
            continue;
        struct product_args a = product(r, PRODUCT_STORE, part[i].w, &b->s.in_e);
        for (int j = i; j < 3; j++) {
            if (done[j] || !one_launch(part[i].w, part[j].w))
                continue;
            add_part(&a, part[j].w, part[j].y, part[j].stride, part[j].bias, part[j].n_inputs);
            done[j] = true;
        }
        st = launch_own(r, &a);
    }
    for (int i = 0; i < 3 && st == ST_OK && fast_rows(r) > 0; i++) {
        const struct bias_args bias = { .y = part[i].y + (size_t)r->n.exact * part[i].stride, .bias = part[i].bias,
                                        .n = part[i].w->n_rows, .stride = part[i].stride };
        st = cuda_fast_product(b, part[i].w, &b->s.in_e, r->n.exact, fast_rows(r), part[i].y, part[i].stride, false);
        if (st == ST_OK && bias.bias != NULL)
            st = launch_bias(&bias, fast_rows(r), b->compute);
    }
    return st;
}

static enum status write_kv(const struct run *r, uint32_t l)
{
    const struct backend *b = r->b;
    const struct cuda_layer *w = &b->layers[l];
    const uint32_t table = b->m->layers[l].rope_table;
    const struct kv_args a = { .step = r->view, .pool = b->kv, .layer = l, .n_heads = b->m->n_heads, .n_kv_heads = b->m->n_kv_heads,
                               .q = b->s.q, .k = b->s.k, .v = b->s.v, .q_norm = w->q_norm, .k_norm = w->k_norm,
                               .cosines = b->s.cosines[table], .sines = b->s.sines[table], .eps = b->m->rms_eps,
                               .q_scale = b->m->attention_scale };

    return launch_kv(&a, r->n.rows, b->compute);
}

static enum status attend(const struct run *r, uint32_t l)
{
    const struct backend *b = r->b;
    const struct attention_args a = { .step = r->view, .pool = b->kv, .layer = l, .n_heads = b->m->n_heads,
                                      .n_kv_heads = b->m->n_kv_heads, .heads_per_tile = b->heads_per_tile,
                                      .head_sets = b->head_sets, .window = b->m->layers[l].window, .q = b->s.q,
                                      .parts = b->s.parts, .counters = b->s.attention_counters, .out = b->s.in_o };

    enum status st = r->n.items > 0 ? launch_attention(&a, r->n.items, r->n.parts, r->n.queries, b->compute) : ST_OK;

    return st == ST_OK && r->n.items_mma > 0 ? launch_attention_mma(&a, r->n.items_mma, b->compute) : st;
}

static enum status project_back(const struct run *r, const struct weights *w, const struct row_input *in, struct norm_args norm)
{
    struct product_args a = product(r, norm.post != NULL ? PRODUCT_STORE : PRODUCT_ADD, w, in);

    add_part(&a, w, norm.post != NULL ? r->b->s.tmp : r->b->s.x, norm.stride, NULL, 1);
    a.norm = norm;
    enum status st = launch_own(r, &a);
    if (st == ST_OK && fast_rows(r) > 0)
        st = cuda_fast_product(r->b, w, in, r->n.exact, fast_rows(r), a.part[0].y, norm.stride, norm.post == NULL);
    if (st == ST_OK && fast_rows(r) > 0)
        st = launch_norm(&norm, r->n.exact, fast_rows(r), r->b->compute);
    return st;
}

/* Gate and up, activated, as two products and a kernel: rows `first` on that n_rows counts. */
static enum status activate(const struct run *r, uint32_t first, const uint32_t *n_rows, uint32_t rows_max)
{
    const struct backend *b = r->b;
    const uint32_t stride = (b->m->n_ff + 15) / 16 * 16;
    const struct gate_args a = { .g = b->s.gate + (size_t)first * stride, .u = b->s.up + (size_t)first * stride, .n = b->m->n_ff,
                                 .stride = stride, .gelu = b->m->gate == GATE_GELU, .out = input_from(b->s.in_f, first),
                                 .n_rows = n_rows, .map = r->wanted ? r->view.out_rows : NULL };

    return rows_max > 0 ? launch_gate(&a, rows_max, b->compute) : ST_OK;
}

static enum status gate_and_up_fast(const struct run *r, const struct cuda_layer *w)
{
    const struct backend *b = r->b;
    const uint32_t stride = (b->m->n_ff + 15) / 16 * 16;
    enum status st = cuda_fast_product(b, &w->gate, &b->s.in_e, r->n.exact, fast_rows(r), b->s.gate, stride, false);

    if (st == ST_OK)
        st = cuda_fast_product(b, &w->up, &b->s.in_e, r->n.exact, fast_rows(r), b->s.up, stride, false);
    return st == ST_OK ? activate(r, r->n.exact, &r->view.header->n_fast, fast_rows(r)) : st;
}

static enum status gate_and_up(const struct run *r, const struct cuda_layer *w)
{
    const struct backend *b = r->b;
    const uint32_t stride = (b->m->n_ff + 15) / 16 * 16;

    if (w->gate.type == w->up.type) {
        struct product_args a = product(r, PRODUCT_GATE, &w->gate, &b->s.in_e);
        add_part(&a, &w->gate, NULL, 0, NULL, 1);
        add_part(&a, &w->up, NULL, 0, NULL, 1);
        a.out = b->s.in_f;
        const enum status st = launch_own(r, &a);
        return st == ST_OK && fast_rows(r) > 0 ? gate_and_up_fast(r, w) : st;
    }
    struct product_args g = product(r, PRODUCT_STORE, &w->gate, &b->s.in_e), u = product(r, PRODUCT_STORE, &w->up, &b->s.in_e);
    add_part(&g, &w->gate, b->s.gate, stride, NULL, 1);
    add_part(&u, &w->up, b->s.up, stride, NULL, 1);
    enum status st = launch_own(r, &g);
    if (st == ST_OK)
        st = launch_own(r, &u);
    if (st == ST_OK)
        st = activate(r, 0, g.n_rows, own_rows(r));
    return st == ST_OK && fast_rows(r) > 0 ? gate_and_up_fast(r, w) : st;
}

static enum status layer(struct run *r, uint32_t l)
{
    const struct cuda_layer *w = &r->b->layers[l];
    enum status st = project_heads(r, l);

    if (st == ST_OK)
        st = write_kv(r, l);
    if (l + 1 == r->b->m->n_layers && st == ST_OK) {
        if (r->n.outs == 0)
            return ST_OK;
        r->wanted = r->n.outs < r->n.rows || fast_rows(r) > 0;
    }
    if (st == ST_OK)
        st = attend(r, l);
    if (st == ST_OK)
        st = project_back(r, &w->o, &r->b->s.in_o, norm_after(r->b, l, false));
    if (st == ST_OK)
        st = gate_and_up(r, w);
    if (st == ST_OK)
        st = project_back(r, &w->down, &r->b->s.in_f, norm_after(r->b, l, true));
    return st;
}

/* ------------------------------------------------------------------ the ends */

static enum status embed(const struct run *r)
{
    const struct backend *b = r->b;
    struct embed_args a = { .step = r->view, .embedding = b->embedding, .last_tokens = b->s.last_tokens,
                            .scale = b->m->embedding_scale, .x = b->s.x, .stride = (b->m->n_embd + 15) / 16 * 16,
                            .norm = norm_after(b, 0, false), .half = b->m->head_dim / 2 };

    a.norm.tmp = a.norm.post = NULL;
    a.norm.weight = b->layers[0].attn_norm;
    for (int i = 0; i < 2; i++) {
        a.frequencies[i] = b->frequencies[i];
        a.magnitudes[i] = b->magnitudes[i];
        a.cosines[i] = b->s.cosines[i];
        a.sines[i] = b->s.sines[i];
    }
    return launch_embed(&a, r->n.rows, b->compute);
}

/* Logits of wanted rows `piece` * max_seqs and on. */
static enum status head(const struct run *r, uint32_t piece)
{
    const struct backend *b = r->b;
    const uint32_t before = piece * b->options.max_seqs, left = r->n.outs - before;
    struct product_args a = product(r, PRODUCT_STORE, &b->head, &b->s.in_e);

    a.n_rows = r->view.out_counts + piece;
    a.map = r->view.out_rows + before;
    a.out_map = NULL;
    add_part(&a, &b->head, b->s.logits, b->n_vocab_padded, NULL, 2);
    return launch_product(&a, left < b->options.max_seqs ? left : b->options.max_seqs, b->compute);
}

static enum status sample(const struct run *r)
{
    const struct backend *b = r->b;
    const struct sample_args a = { .step = r->view, .logits = b->s.logits, .n_vocab = b->m->n_vocab, .stride = b->n_vocab_padded,
                                   .n_slots = b->n_slots, .raw = b->s.raw, .exps = b->s.exps, .ranked = b->s.ranked,
                                   .weights = b->s.weights, .results = b->s.results, .last_tokens = b->s.last_tokens };

    return r->n.requests > 0 ? launch_sample(&a, r->n.requests, b->compute) : ST_OK;
}

/* All launches of a step but what copies logits out: the head's first piece is sampled, later ones have no requests. */
static enum status launch_all(struct run *r)
{
    enum status st = embed(r);

    for (uint32_t l = 0; l < r->b->m->n_layers && st == ST_OK; l++)
        st = layer(r, l);
    if (st == ST_OK && r->n.outs > 0)
        st = head(r, 0);
    return st == ST_OK ? sample(r) : st;
}

/* ------------------------------------------------------------------ logits for the caller */

/* Row `out` of the wanted ones, after the sampled: where it goes. */
struct delivery {
    const struct plan *plan;
    uint32_t entry, token; /* the next row */
};

static float *next_logits(struct delivery *d, uint32_t n_vocab)
{
    for (;; d->entry++, d->token = 0) {
        assert(d->entry < d->plan->n_entries);
        const struct plan_entry *e = &d->plan->entries[d->entry];
        const uint32_t rows = e->want == WANT_ALL_LOGITS ? e->n_tokens : e->want == WANT_LOGITS;
        if (d->token < rows)
            return e->logits + (size_t)d->token++ * n_vocab;
    }
}

static enum status deliver_logits(const struct run *r, const struct plan *p)
{
    const struct backend *b = r->b;
    const uint32_t at_once = b->options.max_seqs;
    struct delivery d = { .plan = p };
    enum status st = ST_OK;

    for (uint32_t out = r->n.requests; out < r->n.outs && st == ST_OK; out++) {
        if (out % at_once == 0 && out > 0)
            st = head(r, out / at_once);
        if (st == ST_OK)
            st = device_copy(next_logits(&d, b->m->n_vocab), b->s.logits + (size_t)(out % at_once) * b->n_vocab_padded,
                             b->m->n_vocab * sizeof(float), TO_HOST, b->compute);
    }
    return st;
}

/* ------------------------------------------------------------------ graphs */

static uint32_t power_index(uint32_t n)
{
    uint32_t i = 0;

    while (1u << i < n)
        i++;
    return i;
}

static uint32_t sequences_max(const struct backend *b)
{
    return b->options.max_seqs < b->options.max_rows ? b->options.max_seqs : b->options.max_rows;
}

/* The capacity of a graph: decodes only, all sampled. */
static struct step_sizes graph_sizes(const struct backend *b, uint32_t row_index, uint32_t part_index)
{
    const uint32_t rows = 1u << row_index < sequences_max(b) ? 1u << row_index : sequences_max(b);

    return (struct step_sizes){ .rows = rows, .exact = rows, .items = rows, .outs = rows, .requests = rows, .parts = 1u << part_index,
                                .queries = b->heads_per_tile };
}

/* The graph that holds a step, and its capacity; NULL when there is none. */
static device_graph graph_for(const struct backend *b, const struct plan *p, struct step_sizes *n)
{
    if (n->rows != p->n_entries || n->requests != n->rows || n->parts == 0)
        return NULL;
    for (uint32_t i = 0, parts = 0; i < p->n_entries; i++) { /* a sequence without parts of its own takes another grid */
        parts += (p->entries[i].n_past + SPLIT) / SPLIT;
        if (parts > b->n_parts)
            return NULL;
    }
    const uint32_t row = power_index(n->rows), part = power_index(n->parts);
    if (row >= ROW_SIZES_MAX || part >= PART_SIZES_MAX || b->graphs[row][part] == NULL)
        return NULL;
    *n = graph_sizes(b, row, part);
    return b->graphs[row][part];
}

enum status cuda_record_graphs(struct backend *b)
{
    const uint32_t splits = (b->options.context_tokens + SPLIT - 1) / SPLIT;

    for (uint32_t row = 0; device_has_graphs() && row <= power_index(sequences_max(b)); row++) {
        for (uint32_t part = 0; part < PART_SIZES_MAX; part++) {
            if (part > 0 && 1u << (part - 1) >= splits)
                break;
            struct run r = { .b = b, .n = graph_sizes(b, row, part) };
            cuda_plan_view(b, &r.n, b->s.step, &r.view);
            enum status st = device_capture_begin(b->compute);
            if (st == ST_OK) {
                const enum status launched = launch_all(&r);
                st = device_capture_end(b->compute, &b->graphs[row][part]);
                st = launched != ST_OK ? launched : st;
            }
            if (st != ST_OK)
                return st;
        }
    }
    return ST_OK;
}

/* ------------------------------------------------------------------ the step */

enum status cuda_step_start(struct backend *b, struct cuda_step *s, const struct plan *p)
{
    struct run r = { .b = b };

    cuda_plan_sizes(b, p, &r.n);
    device_graph graph = graph_for(b, p, &r.n);
    cuda_plan_view(b, &r.n, b->s.step, &r.view);
    const size_t bytes = cuda_plan_write(b, p, &r.n, s->upload);
    enum status st = device_copy(b->s.step, s->upload, bytes, TO_DEVICE, b->compute);
    if (st == ST_OK && graph != NULL)
        st = device_graph_launch(graph, b->compute);
    else if (st == ST_OK)
        st = launch_all(&r);
    if (st == ST_OK && graph == NULL)
        st = deliver_logits(&r, p);
    if (st == ST_OK && r.n.requests > 0)
        st = device_copy(s->results, b->s.results, p->n_entries * sizeof(*s->results), TO_HOST, b->compute);
    if (st == ST_OK)
        st = device_event_record(s->done, b->compute);
    if (st == ST_OK)
        st = device_event_record(b->last_step, b->compute);
    return st;
}
