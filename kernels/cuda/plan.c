/* plan.c - a plan, flattened into one buffer for one copy to the device.
 *
 *     header | rows | items | out_rows | out_counts | requests | block tables, biases, token counts as they come
 *
 * The parts up to the requests have the places that a capacity gives them, so recorded graphs of that capacity find them;
 * the rest is found through indices.  (Their unit is the record's own size, so every list begins at a multiple of it.)
 *
 * Rows whose logits are wanted are listed with the sampled ones first: these are at most max_seqs, which is how many rows the
 * head computes at a time.  With fast prefill the rows of long chunks come after all others, and so do their items of
 * attention, so both kinds lie together. */
#include "kernels/cuda/engine.h"

#include <assert.h>
#include <string.h>

static size_t align(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static uint32_t blocks_of(const struct plan_entry *e)
{
    return (e->n_past + e->n_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

static uint32_t pieces_of(const struct backend *b, uint32_t outs)
{
    return (outs + b->options.max_seqs - 1) / b->options.max_seqs;
}

/* Offsets of the fixed parts. */
struct places {
    size_t rows, items, out_rows, out_counts, requests, lists;
};

static void place_parts(const struct backend *b, const struct step_sizes *c, struct places *p)
{
    size_t at = sizeof(struct step_header);

    p->rows = at;
    at += c->rows * sizeof(struct step_row);
    p->items = at = align(at, 16);
    at += (c->items + c->items_mma) * sizeof(struct step_item);
    p->out_rows = at;
    at += c->outs * sizeof(uint32_t);
    p->out_counts = at;
    at += (pieces_of(b, c->outs) + 1) * sizeof(uint32_t);
    p->requests = at = align(at, 16);
    at += c->requests * sizeof(struct sample_request);
    p->lists = align(at, 64);
}

void cuda_plan_view(const struct backend *b, const struct step_sizes *capacity, uint8_t *at, struct step_view *ret_view)
{
    struct places p;

    place_parts(b, capacity, &p);
    *ret_view = (struct step_view){
        .header = (const void *)at,
        .rows = (const void *)(at + p.rows),
        .items = (const void *)(at + p.items),
        .out_rows = (const void *)(at + p.out_rows),
        .out_counts = (const void *)(at + p.out_counts),
        .requests = (const void *)(at + p.requests),
        .tables = (const void *)(at + p.lists),
        .bias = (const void *)(at + p.lists),
        .seen = (const void *)(at + p.lists),
    };
}

size_t cuda_plan_bytes_max(const struct backend *b)
{
    const struct backend_options *o = &b->options;
    const struct step_sizes c = { .rows = o->max_rows, .items = o->max_rows, .outs = o->max_rows, .requests = o->max_seqs };
    const size_t seen = o->context_tokens < b->m->n_vocab ? o->context_tokens : b->m->n_vocab;
    const size_t list = (o->context_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS * sizeof(uint32_t) +
                        LOGIT_BIAS_MAX * sizeof(struct logit_bias) + seen * sizeof(struct token_count) + 3 * 16;
    struct places p;

    place_parts(b, &c, &p);
    return p.lists + o->max_seqs * list;
}

/* ------------------------------------------------------------------ sizes */

/* Only the entry itself decides, so a row's arithmetic does not depend on its company. */
bool cuda_plan_is_fast(const struct backend *b, const struct plan_entry *e)
{
    return b->options.fast_prefill && e->n_tokens >= FAST_TOKENS_MIN;
}

/* Tokens of a tile of the entry's attention: long chunks of fast prefill go to attention_mma.cu. */
static uint32_t tile_tokens(const struct backend *b, const struct plan_entry *e)
{
    return (cuda_plan_is_fast(b, e) ? ATTEND_MMA_QUERIES : ATTEND_QUERIES_MAX) / b->heads_per_tile;
}

static uint32_t tiles_of(const struct backend *b, const struct plan_entry *e)
{
    return (e->n_tokens + tile_tokens(b, e) - 1) / tile_tokens(b, e);
}

static uint32_t splits_of(const struct plan_entry *e)
{
    return (e->n_past + e->n_tokens + SPLIT - 1) / SPLIT;
}

void cuda_plan_sizes(const struct backend *b, const struct plan *p, struct step_sizes *ret_sizes)
{
    struct step_sizes s = { 0 };
    uint32_t parts = 0;

    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];
        s.rows += e->n_tokens;
        s.outs += e->want == WANT_ALL_LOGITS ? e->n_tokens : e->want != WANT_NOTHING;
        s.requests += e->want == WANT_TOKEN;
        if (cuda_plan_is_fast(b, e)) {
            s.items_mma += tiles_of(b, e);
            continue;
        }
        const uint32_t tokens = e->n_tokens < tile_tokens(b, e) ? e->n_tokens : tile_tokens(b, e);
        s.exact += e->n_tokens;
        s.items += tiles_of(b, e);
        if (tokens * b->heads_per_tile > s.queries)
            s.queries = tokens * b->heads_per_tile;
        if (e->n_tokens == 1 && splits_of(e) <= b->n_parts - parts) {
            parts += splits_of(e);
            s.parts = splits_of(e) > s.parts ? splits_of(e) : s.parts;
        }
    }
    *ret_sizes = s;
}

/* ------------------------------------------------------------------ writing */

struct writer {
    const struct backend *b;
    uint8_t *at;
    struct places places;
    struct step_header h;
    size_t end;          /* of the lists so far */
    uint32_t parts;
};

static void *part_at(const struct writer *w, size_t place, size_t size, uint32_t i)
{
    return w->at + place + size * i;
}

/* Append n records of `size` bytes; gives the index of the first. */
static uint32_t append(struct writer *w, const void *from, uint32_t n, size_t size)
{
    const size_t start = align(w->end, size);

    assert(w->places.lists + start + n * size <= w->b->step_bytes);
    if (n > 0)
        memcpy(w->at + w->places.lists + start, from, n * size);
    w->end = start + n * size;
    return (uint32_t)(start / size);
}

static void write_rows(struct writer *w, const struct plan_entry *e, uint32_t table)
{
    for (uint32_t i = 0; i < e->n_tokens; i++) {
        struct step_row row = { .token = e->from_entry >= 0 ? 0 : e->tokens[i], .from_entry = e->from_entry,
                                .position = e->n_past + i, .table = table };
        memcpy(part_at(w, w->places.rows, sizeof(row), w->h.n_rows + i), &row, sizeof(row));
    }
}

static void write_items(struct writer *w, const struct plan_entry *e, uint32_t table)
{
    const uint32_t tokens = tile_tokens(w->b, e);
    uint32_t *n = cuda_plan_is_fast(w->b, e) ? &w->h.n_items_mma : &w->h.n_items;

    /* The last tiles of a prompt see most: they begin first. */
    for (uint32_t tile = tiles_of(w->b, e); tile-- > 0;) {
        const uint32_t first = tile * tokens, left = e->n_tokens - first;
        struct step_item item = { .row = w->h.n_rows + first, .n_tokens = left < tokens ? left : tokens,
                                  .position = e->n_past + first, .table = table };
        if (e->n_tokens == 1 && splits_of(e) <= w->b->n_parts - w->parts) {
            item.first_part = w->parts;
            item.n_parts = splits_of(e);
            w->parts += item.n_parts;
        }
        memcpy(part_at(w, w->places.items, sizeof(item), w->h.n_items + w->h.n_items_mma), &item, sizeof(item));
        (*n)++;
    }
}

static void write_out(struct writer *w, uint32_t row)
{
    memcpy(part_at(w, w->places.out_rows, sizeof(row), w->h.n_out++), &row, sizeof(row));
}

static void write_request(struct writer *w, const struct plan_entry *e, uint32_t entry)
{
    struct sample_request r = { .sampling = *e->sampling, .out = w->h.n_out, .entry = entry, .choice = e->choice,
                                .index = e->index, .n_bias = e->n_bias, .n_seen = e->n_seen };

    r.bias = append(w, e->bias, e->n_bias, sizeof(*e->bias));
    r.seen = append(w, e->seen, e->n_seen, sizeof(*e->seen));
    memcpy(part_at(w, w->places.requests, sizeof(r), w->h.n_requests++), &r, sizeof(r));
}

static void write_entry(struct writer *w, const struct plan_entry *e, uint32_t i)
{
    const uint32_t table = append(w, e->blocks, blocks_of(e), sizeof(*e->blocks));

    write_rows(w, e, table);
    write_items(w, e, table);
    w->h.n_rows += e->n_tokens;
    if (e->want == WANT_TOKEN) {
        write_request(w, e, i);
        write_out(w, w->h.n_rows - 1);
    }
}

size_t cuda_plan_write(const struct backend *b, const struct plan *p, const struct step_sizes *capacity, uint8_t *upload)
{
    struct writer w = { .b = b, .at = upload, .h = { .n_entries = p->n_entries } };
    uint32_t first_row[SEQS_MAX];

    place_parts(b, capacity, &w.places);
    for (int fast = 0; fast < 2; fast++) {
        for (uint32_t i = 0; i < p->n_entries; i++) {
            if (cuda_plan_is_fast(b, &p->entries[i]) != (fast == 1))
                continue;
            first_row[i] = w.h.n_rows;
            write_entry(&w, &p->entries[i], i);
        }
        if (fast == 0)
            w.h.n_exact = w.h.n_rows;
    }
    w.h.n_fast = w.h.n_rows - w.h.n_exact;
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];
        for (uint32_t t = e->want == WANT_ALL_LOGITS ? 0 : e->n_tokens - 1; e->want >= WANT_LOGITS && t < e->n_tokens; t++)
            write_out(&w, first_row[i] + t);
    }
    for (uint32_t piece = 0; piece < pieces_of(b, capacity->outs) + 1; piece++) {
        const uint32_t before = piece * b->options.max_seqs, left = w.h.n_out > before ? w.h.n_out - before : 0;
        const uint32_t n = left < b->options.max_seqs ? left : b->options.max_seqs;
        memcpy(part_at(&w, w.places.out_counts, sizeof(n), piece), &n, sizeof(n));
    }
    memcpy(upload, &w.h, sizeof(w.h));
    return w.places.lists + w.end;
}
