/* step.c - one forward pass, as every thread walks through it.
 *
 *     embed                                                                     | barrier
 *     each layer   norm -> int8                                                 | barrier (not for one or two rows)
 *                  q, k, v of one head at a time, RoPE, K and V to their block  | barrier
 *                  attention -> int8                                            | barrier
 *                  output projection, added to x                                | barrier
 *                  norm -> int8                                                 | barrier (not for one or two rows)
 *                  gate and up of the same columns, activation -> int8          | barrier
 *                  down projection, added to x                                  | barrier
 *     (in the last layer everything after K and V is computed for the wanted rows only)
 *     head         16 wanted rows at a time: norm, logits | barrier | sample    | barrier
 *
 * Work is handed out in pieces by a counter: a piece is some panels of weights times some tiles of rows, small enough that
 * both stay in the caches, and thread speeds may differ.  Who computes a piece changes no bit of it. */
#include "engine.h"
#include "fetch.h"

#include <assert.h>
#include <string.h>

enum {
    GROUP_TILES = 8,     /* tiles of a piece: 128 rows of int8 input stay in a second-level cache */
    REDUNDANT_ROWS = 2,  /* up to so many, each thread norms for itself rather than wait for another */
};

/* ------------------------------------------------------------------ inputs */

static uint32_t tile_width(uint32_t n_rows)
{
    static const uint8_t widths[TILE_ROWS + 1] = { 0, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16 };

    return widths[n_rows];
}

static uint32_t rows_of_tile(uint32_t n_rows, uint32_t tile)
{
    return n_rows - tile * TILE_ROWS < TILE_ROWS ? n_rows - tile * TILE_ROWS : TILE_ROWS;
}

uint32_t width_of_tile(uint32_t n_rows, uint32_t tile)
{
    return tile_width(rows_of_tile(n_rows, tile));
}

static struct xblock *q8_tile(const struct input *in, uint32_t tile)
{
    return in->q8 + (size_t)tile * TILE_ROWS * (in->n_cols / QUANT_BLOCK) * in->parts;
}

static float *f32_tile(const struct input *in, uint32_t tile)
{
    return in->f32 + (size_t)tile * TILE_ROWS * pad16(in->n_cols);
}

/* Columns column .. column+n-1 of a row; column and n are multiples of 32 where there are quantised weights.  The second part is
 * left as it was with parts = 1, for readers that read the first alone. */
void input_put(const struct backend *b, const struct input *in, uint32_t parts, uint32_t row, uint32_t width, uint32_t column,
               uint32_t n, const float *x)
{
    const uint32_t tile = row / TILE_ROWS, r = row % TILE_ROWS;

    if (in->q8 != NULL) {
        const size_t stride = (size_t)in->parts * width;
        b->k->quantise(x, n / QUANT_BLOCK, q8_tile(in, tile) + column / QUANT_BLOCK * stride + r, stride, parts == 2 ? width : 0);
    }
    if (in->f32 != NULL) {
        float *out = f32_tile(in, tile) + (size_t)column * width + r;
        for (uint32_t i = 0; i < n; i++)
            out[(size_t)i * width] = x[i];
    }
}

/* What stands in rows that only fill up a tile is multiplied too (and dropped): nothing that is slow or undefined. */
void input_zero(const struct backend *b, const struct input *in, uint32_t row, uint32_t n_rows, uint32_t width)
{
    (void)b;
    for (uint32_t r = row % TILE_ROWS; r < row % TILE_ROWS + n_rows; r++) {
        for (uint32_t i = 0; in->q8 != NULL && i < in->n_cols / QUANT_BLOCK * in->parts; i++)
            q8_tile(in, row / TILE_ROWS)[(size_t)i * width + r] = (struct xblock){ 0 };
        for (uint32_t i = 0; in->f32 != NULL && i < in->n_cols; i++)
            f32_tile(in, row / TILE_ROWS)[(size_t)i * width + r] = 0;
    }
}

/* Panels first .. first+n-1 of m times one tile of in, of which `parts` are read. */
static void multiply(struct backend *b, uint32_t thread, const struct matrix *m, uint32_t first, uint32_t n, const struct input *in,
                     uint32_t parts, uint32_t tile, uint32_t width, float *y, size_t y_stride)
{
    struct tile x = { .x = type_is_float(m->type) ? (const void *)f32_tile(in, tile) : q8_tile(in, tile),
                      .width = width, .stride = in->parts * width, .parts = parts };
    const struct kv_cursor *c = &b->threads[thread].cursor;
    const bool ahead = !type_is_float(m->type) && width >= TILE_MANY && c->entry < c->end;
    const uint32_t at_once = ahead ? 1 : n; /* panels: each with K and V of its own to ask for */

    for (uint32_t i = 0; i < n; i += at_once) {
        if (ahead)
            attend_ahead_take(b, thread, m->n_k, &x);
        b->k->gemm[m->type](m->data + (first + i) * m->panel_bytes, m->panel_bytes, at_once, m->n_k, &x, y + i * PANEL_ROWS, y_stride);
    }
}

/* n columns from `column` on of the rows of the only tile, which are about to be read or written. */
static void fetch_columns(const struct step *s, const struct input *in, uint32_t column, uint32_t n, bool to_write)
{
    if (s->n_tiles > 1 || in->q8 == NULL)
        return;
    const size_t stride = (size_t)in->parts * s->last_width;
    const struct xblock *at = in->q8 + column / QUANT_BLOCK * stride;
    const size_t bytes = n / QUANT_BLOCK * stride * sizeof(*at);
    if (to_write)
        fetch_to_write(at, bytes);
    else
        fetch(at, bytes);
}

/* n columns from `column` on of all rows of x, if they are one tile: they are about to be written. */
static void fetch_rows(const struct step *s, const float *x, uint32_t row_floats, uint32_t column, uint32_t n)
{
    for (uint32_t row = 0; s->n_tiles == 1 && row < s->n_rows; row++)
        fetch_to_write(x + (size_t)row * row_floats + column, n * sizeof(*x));
}

/* ------------------------------------------------------------------ pieces of work */

struct piece {
    uint32_t first, n;           /* units (panels, heads, ...) */
    uint32_t tile, n_tiles;
};

/* This thread's next piece of n_units in chunks of `chunk`, times groups of tiles; false when there is none. */
static bool take_piece(const struct backend *b, uint32_t thread, uint32_t n_units, uint32_t chunk, uint32_t n_tiles, struct piece *ret_piece)
{
    const uint32_t n_chunks = (n_units + chunk - 1) / chunk, n_groups = (n_tiles + GROUP_TILES - 1) / GROUP_TILES;
    const uint32_t i = pool_take(b->pool, thread, n_chunks * n_groups);
    struct piece p;

    if (i == POOL_NONE)
        return false;
    p.first = i % n_chunks * chunk;
    p.n = n_units - p.first < chunk ? n_units - p.first : chunk;
    p.tile = i / n_chunks * GROUP_TILES;
    p.n_tiles = n_tiles - p.tile < GROUP_TILES ? n_tiles - p.tile : GROUP_TILES;
    *ret_piece = p;
    return true;
}

/* ------------------------------------------------------------------ phases */

static void embed(struct backend *b, uint32_t thread)
{
    struct step *s = &b->step;
    const struct model *m = b->m;

    for (uint32_t row; (row = pool_take(b->pool, thread, s->n_rows)) != POOL_NONE;) {
        float *x = s->x + (size_t)row * pad16(m->n_embd);
        const uint32_t half = m->head_dim / 2;
        if (m->tied_output)
            matrix_row(&b->head, (uint32_t)s->token[row], x);
        else
            tensor_row(&m->token_embd, (uint32_t)s->token[row], x);
        for (uint32_t i = 0; m->embedding_scale != 1.0f && i < m->n_embd; i++)
            x[i] *= m->embedding_scale;
        for (int t = 0; t < 2; t++)
            rope_position(&b->rope[t], s->position[row], s->cosines[t] + (size_t)row * half, s->sines[t] + (size_t)row * half);
    }
}

/* x += norm(tmp) where the block before ended in a norm of its own; then norm(x) to the input. */
static void norm_row(struct backend *b, const float *post, const float *weight, uint32_t parts, uint32_t row,
                     const struct input *in, uint32_t width, float *buffer)
{
    const struct model *m = b->m;
    const uint32_t embd = pad16(m->n_embd);
    float *x = b->step.x + (size_t)row * embd;

    if (post != NULL) {
        b->k->rms_norm(buffer, b->step.tmp + (size_t)row * embd, post, m->n_embd, m->rms_eps);
        b->k->add(x, buffer, embd);
    }
    b->k->rms_norm(buffer, x, weight, m->n_embd, m->rms_eps);
    input_put(b, in, parts, row, width, 0, m->n_embd, buffer);
}

/* Norm all rows; gives the input to read: the step's, or this thread's own (then no barrier is needed). */
static const struct input *norm(struct backend *b, const float *post, const float *weight, uint32_t parts, uint32_t thread)
{
    struct step *s = &b->step;
    struct thread_scratch *own = &b->threads[thread];
    const uint32_t rows_a_piece = s->n_rows <= 2 * TILE_ROWS ? 4 : TILE_ROWS;

    if (s->n_rows <= REDUNDANT_ROWS && post == NULL) {
        for (uint32_t row = 0; row < s->n_rows; row++)
            norm_row(b, NULL, weight, parts, row, &own->in, s->last_width, own->row);
        return &own->in;
    }
    const uint32_t n_pieces = (s->n_rows + rows_a_piece - 1) / rows_a_piece;
    for (uint32_t i; (i = pool_take(b->pool, thread, n_pieces)) != POOL_NONE;) {
        const uint32_t first = i * rows_a_piece, end = s->n_rows - first < rows_a_piece ? s->n_rows : first + rows_a_piece;
        const size_t row_floats = pad16(b->m->n_embd);
        if (s->n_tiles == 1)
            fetch(s->x + first * row_floats, (end - first) * row_floats * sizeof(*s->x));
        for (uint32_t row = first; row < end; row++)
            norm_row(b, post, weight, parts, row, &s->in_e, width_of_tile(s->n_rows, row / TILE_ROWS), own->row);
    }
    pool_barrier(b->pool);
    return &s->in_e;
}

/* What one head of q, k or v is made of. */
struct head_kind {
    const struct matrix *w;
    const float *bias, *norm;
    uint32_t head;
    enum { HEAD_Q, HEAD_K, HEAD_V } is;
};

static struct head_kind head_kind_of(const struct backend *b, const struct layer *l, uint32_t i)
{
    const uint32_t n_q = b->m->n_heads, n_kv = b->m->n_kv_heads;

    if (i < n_q)
        return (struct head_kind){ &l->q, l->q_bias, l->q_norm, i, HEAD_Q };
    if (i < n_q + n_kv)
        return (struct head_kind){ &l->k, l->k_bias, l->k_norm, i - n_q, HEAD_K };
    return (struct head_kind){ &l->v, l->v_bias, NULL, i - n_q - n_kv, HEAD_V };
}

/* One row of one head, straight from gemm: bias, norm, RoPE, and to where it belongs. */
static void finish_head(struct backend *b, uint32_t l, const struct head_kind *h, uint32_t row, float *y)
{
    const struct step *s = &b->step;
    const struct model *m = b->m;
    const uint32_t dim = m->head_dim, table = m->layers[l].rope_table;
    const struct kv_view kv = kv_view_of(b, l, h->head, s->plan->entries[s->entry[row]].blocks);

    if (h->bias != NULL)
        b->k->add(y, h->bias + h->head * dim, dim);
    if (h->norm != NULL)
        b->k->rms_norm(y, y, h->norm, dim, m->rms_eps);
    if (h->is == HEAD_V) {
        b->k->store_v(&kv, s->position[row], y);
        return;
    }
    const size_t at = (size_t)row * (dim / 2);
    b->k->rope(y, s->cosines[table] + at, s->sines[table] + at, dim, h->is == HEAD_Q ? m->attention_scale : 1.0f);
    if (h->is == HEAD_Q)
        memcpy(s->q + ((size_t)row * m->n_heads + h->head) * dim, y, dim * sizeof(*y));
    else
        b->k->store_k(&kv, s->position[row], y);
}

static void project_heads(struct backend *b, uint32_t l, const struct input *in, uint32_t thread)
{
    const struct step *s = &b->step;
    const uint32_t dim = b->m->head_dim, n = b->m->n_heads + 2 * b->m->n_kv_heads, panels = dim / PANEL_ROWS;
    float *y = b->threads[thread].y;
    struct piece p;

    fetch_columns(s, in, 0, in->n_cols, false);
    while (take_piece(b, thread, n, 1, s->n_tiles, &p)) {
        const struct head_kind h = head_kind_of(b, &b->layers[l], p.first);
        if (h.is == HEAD_Q)
            fetch_rows(s, s->q, b->m->n_heads * dim, h.head * dim, dim);
        for (uint32_t tile = p.tile; tile < p.tile + p.n_tiles; tile++) {
            multiply(b, thread, h.w, h.head * panels, panels, in, h.is == HEAD_V ? 2 : 1, tile, width_of_tile(s->n_rows, tile), y, dim);
            for (uint32_t r = 0; r < rows_of_tile(s->n_rows, tile); r++)
                finish_head(b, l, &h, tile * TILE_ROWS + r, y + (size_t)r * dim);
        }
    }
}

/* x += m * in, or tmp = m * in where a norm comes in between. */
static void project_back(struct backend *b, const struct matrix *m, const struct input *in, bool to_tmp, uint32_t thread)
{
    const struct step *s = &b->step;
    const uint32_t embd = pad16(b->m->n_embd), chunk = s->n_tiles == 1 ? 3 : 12;
    float *y = b->threads[thread].y;
    struct piece p;

    fetch_columns(s, in, 0, in->n_cols, false);
    while (take_piece(b, thread, m->n_panels, chunk, s->n_tiles, &p)) {
        fetch_rows(s, to_tmp ? s->tmp : s->x, embd, p.first * PANEL_ROWS, p.n * PANEL_ROWS);
        for (uint32_t tile = p.tile; tile < p.tile + p.n_tiles; tile++) {
            const uint32_t cols = p.n * PANEL_ROWS;
            multiply(b, thread, m, p.first, p.n, in, 1, tile, width_of_tile(s->n_rows, tile), y, cols);
            for (uint32_t r = 0; r < rows_of_tile(s->n_rows, tile); r++) {
                const size_t at = (size_t)(tile * TILE_ROWS + r) * embd + (size_t)p.first * PANEL_ROWS;
                if (to_tmp)
                    memcpy(s->tmp + at, y + (size_t)r * cols, cols * sizeof(*y));
                else
                    b->k->add(s->x + at, y + (size_t)r * cols, cols);
            }
        }
    }
}

static void gate_and_up(struct backend *b, const struct layer *l, const struct input *in, uint32_t thread)
{
    const struct step *s = &b->step;
    const uint32_t n_ff = b->m->n_ff, unit = 2 * PANEL_ROWS, chunk = s->n_tiles == 1 ? 2 : 8;
    struct thread_scratch *own = &b->threads[thread];
    struct piece p;

    fetch_columns(s, in, 0, in->n_cols, false);
    while (take_piece(b, thread, (n_ff + unit - 1) / unit, chunk, s->n_tiles, &p)) {
        const uint32_t column = p.first * unit, panel = 2 * p.first;
        const uint32_t n_panels = l->gate.n_panels - panel < 2 * p.n ? l->gate.n_panels - panel : 2 * p.n;
        const uint32_t cols = n_panels * PANEL_ROWS, real = n_ff - column < cols ? n_ff - column : cols;
        fetch_columns(s, &s->in_f, column, real, true);
        for (uint32_t tile = p.tile; tile < p.tile + p.n_tiles; tile++) {
            const uint32_t width = width_of_tile(s->n_rows, tile);
            multiply(b, thread, &l->gate, panel, n_panels, in, 1, tile, width, own->y, cols);
            multiply(b, thread, &l->up, panel, n_panels, in, 1, tile, width, own->y2, cols);
            for (uint32_t r = 0; r < rows_of_tile(s->n_rows, tile); r++) {
                b->k->gate(b->m->gate, own->y + (size_t)r * cols, own->y2 + (size_t)r * cols, cols);
                input_put(b, &s->in_f, 1, tile * TILE_ROWS + r, width, column, real, own->y + (size_t)r * cols);
            }
        }
    }
}

static void set_rows(struct step *s, uint32_t n_rows)
{
    s->n_rows = n_rows;
    s->n_tiles = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
    s->last_width = width_of_tile(n_rows, s->n_tiles - 1);
}

/* The inputs' rows past the last: before they are read, and whenever the number of rows changes. */
static void zero_unused(struct backend *b)
{
    const struct step *s = &b->step;
    const uint32_t n = s->last_width - rows_of_tile(s->n_rows, s->n_tiles - 1);

    input_zero(b, &s->in_e, s->n_rows, n, s->last_width);
    input_zero(b, &s->in_o, s->n_rows, n, s->last_width);
    input_zero(b, &s->in_f, s->n_rows, n, s->last_width);
}

/* From here on only the wanted rows go on: the others were needed for their K and V. */
static void keep_wanted(struct backend *b)
{
    struct step *s = &b->step;
    const size_t embd = pad16(b->m->n_embd);

    for (uint32_t i = 0; i < s->n_out; i++)
        memmove(s->x + i * embd, s->x + s->out_row[i] * embd, embd * sizeof(*s->x));
    set_rows(s, s->n_out);
    zero_unused(b);
}

static void layer(struct backend *b, uint32_t l, uint32_t thread)
{
    const struct layer *w = &b->layers[l];
    const float *post = l > 0 ? b->layers[l - 1].post_ffw_norm : NULL;
    struct step *s = &b->step;

    project_heads(b, l, norm(b, post, w->attn_norm, 2, thread), thread);
    if (thread == 0 && l + 1 == b->m->n_layers)
        s->compact = s->n_out < s->n_rows;
    pool_barrier(b->pool);
    if (s->compact && s->n_out == 0)
        return;
    attend_layer(b, l, thread);
    pool_barrier(b->pool);
    if (s->compact) {
        if (thread == 0)
            keep_wanted(b);
        pool_barrier(b->pool);
    }
    attend_ahead_start(b, l + 1, thread);
    project_back(b, &w->o, &s->in_o, w->post_attention_norm != NULL, thread);
    pool_barrier(b->pool);
    gate_and_up(b, w, norm(b, w->post_attention_norm, w->ffn_norm, 1, thread), thread);
    pool_barrier(b->pool);
    project_back(b, &w->down, &s->in_f, w->post_ffw_norm != NULL, thread);
    pool_barrier(b->pool);
}

/* ------------------------------------------------------------------ the head */

/* Row i of the wanted ones: to where its entry asked for it. */
static void deliver(struct backend *b, uint32_t i, float *logits, uint32_t thread)
{
    const struct step *s = &b->step;
    const uint32_t row = s->out_row[i], n_vocab = b->m->n_vocab, entry = s->entry[row];
    const struct plan_entry *e = &s->plan->entries[entry];

    if (e->want == WANT_TOKEN) {
        sample_token(b->k, e, logits, n_vocab, &b->threads[thread].sampler, &s->results[entry]);
        return;
    }
    const uint32_t at = e->want == WANT_ALL_LOGITS ? s->position[row] - e->n_past : 0;
    memcpy(e->logits + (size_t)at * n_vocab, logits, n_vocab * sizeof(*logits));
}

static bool all_greedy(const struct backend *b, uint32_t first, uint32_t n)
{
    const struct step *s = &b->step;

    for (uint32_t i = first; i < first + n; i++)
        if (!greedy_entry(&s->plan->entries[s->entry[s->out_row[i]]]))
            return false;
    return b->head_norm > 0;
}

static void head(struct backend *b, uint32_t thread)
{
    struct step *s = &b->step;
    const uint32_t n_vocab = pad16(b->m->n_vocab);
    const float *post = b->layers[b->m->n_layers - 1].post_ffw_norm;

    for (uint32_t first = 0; first < s->n_out; first += TILE_ROWS) {
        const uint32_t n = s->n_out - first < TILE_ROWS ? s->n_out - first : TILE_ROWS, width = tile_width(n);
        const bool greedy = all_greedy(b, first, n);
        for (uint32_t i; (i = pool_take(b->pool, thread, n)) != POOL_NONE;) {
            const struct model *m = b->m;
            const size_t at = (size_t)(s->compact ? first + i : s->out_row[first + i]) * pad16(m->n_embd);
            float *x = s->x + at, *row = b->threads[thread].row;
            if (post != NULL) {
                b->k->rms_norm(row, s->tmp + at, post, m->n_embd, m->rms_eps);
                b->k->add(x, row, pad16(m->n_embd));
            }
            b->k->rms_norm(row, x, b->output_norm, m->n_embd, m->rms_eps);
            input_put(b, &s->in_head, 2, i, width, 0, m->n_embd, row);
        }
        if (thread == 0)
            input_zero(b, &s->in_head, n, width - n, width);
        pool_barrier(b->pool);
        struct piece p;
        while (take_piece(b, thread, b->head.n_panels, 16, 1, &p))
            multiply(b, thread, &b->head, p.first, p.n, &s->in_head, greedy ? 1 : 2, 0, width, s->logits + p.first * PANEL_ROWS, n_vocab);
        pool_barrier(b->pool);
        for (uint32_t i; (i = pool_take(b->pool, thread, n)) != POOL_NONE;) {
            if (greedy)
                greedy_refine(b, i, width, s->logits + (size_t)i * n_vocab, thread);
            deliver(b, first + i, s->logits + (size_t)i * n_vocab, thread);
        }
        pool_barrier(b->pool);
    }
}

/* ------------------------------------------------------------------ the step */

static void run_thread(void *arg, uint32_t thread)
{
    struct backend *b = arg;

    embed(b, thread);
    pool_barrier(b->pool);
    attend_ahead_start(b, 0, thread);
    for (uint32_t l = 0; l < b->m->n_layers; l++)
        layer(b, l, thread);
    head(b, thread);
}

/* Flatten the plan into rows. */
static void prepare_rows(struct backend *b, const struct plan *p)
{
    struct step *s = &b->step;
    uint32_t row = 0;

    s->n_out = 0;
    for (uint32_t e = 0; e < p->n_entries; e++) {
        const struct plan_entry *entry = &p->entries[e];
        for (uint32_t i = 0; i < entry->n_tokens; i++, row++) {
            s->token[row] = entry->from_entry >= 0 ? b->last_tokens[entry->from_entry] : entry->tokens[i];
            s->position[row] = entry->n_past + i;
            s->entry[row] = e;
            if (entry->want == WANT_ALL_LOGITS || (entry->want != WANT_NOTHING && i + 1 == entry->n_tokens))
                s->out_row[s->n_out++] = row;
        }
    }
    s->compact = false;
    set_rows(s, row);
}

void step_run(struct backend *b, const struct plan *p, struct step_result *results)
{
    struct step *s = &b->step;

    s->plan = p;
    s->results = results;
    prepare_rows(b, p);
    attend_prepare(b);
    zero_unused(b);
    pool_run(b->pool, run_thread, b);
    for (uint32_t e = 0; e < p->n_entries; e++)
        b->last_tokens[e] = p->entries[e].want == WANT_TOKEN ? results[e].token : -1;
    b->n_last = p->n_entries;
}
