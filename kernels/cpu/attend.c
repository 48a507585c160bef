/* attend.c - which queries are computed together, and by whom.
 *
 * An item is one tile: up to ATTENTION_QUERIES query rows of one sequence that share a kv head (the heads of its group, a
 * few neighbouring tokens).  Threads take items as they come free, the last and longest of each prompt first.
 *
 * With few items (one long sequence) threads would idle; then the splits of every item are handed out one by one, each into
 * a state of its own, and after a barrier merged in order: the same operations in the same order as in one go. */
#include "engine.h"

#include <assert.h>

struct item {
    uint32_t entry, kv_head, head_set, first_token, n_tokens, n_heads;
    uint32_t row, out; /* first row of the step, and of the input it is written to */
};

struct kv_view kv_view_of(const struct backend *b, uint32_t l, uint32_t kv_head, const uint32_t *blocks)
{
    struct kv_view v = b->kv_view;

    v.pool = b->kv.at + l * b->kv_layer_bytes + kv_head * b->kv_head_bytes;
    v.blocks = blocks;
    return v;
}

static uint32_t tiles_of(const struct backend *b, const struct plan_entry *e)
{
    return (e->n_tokens + b->tokens_per_tile - 1) / b->tokens_per_tile;
}

void attend_prepare(struct backend *b)
{
    struct step *s = &b->step;
    uint32_t n = 0, longest = 0;

    for (uint32_t e = 0; e < s->plan->n_entries; e++) {
        const struct plan_entry *entry = &s->plan->entries[e];
        s->item_start[e] = n;
        n += tiles_of(b, entry) * b->m->n_kv_heads * b->head_sets;
        if (entry->n_past + entry->n_tokens > longest)
            longest = entry->n_past + entry->n_tokens;
    }
    s->item_start[s->plan->n_entries] = n;
    s->split_count = (longest + SPLIT - 1) / SPLIT;
    /* A tile of several tokens of a prompt is work enough; splits are shared for single tokens only. */
    s->split_items = b->options.n_threads > 1 && n <= SPLIT_ITEMS_MAX && s->split_count > 1 && s->n_rows == s->plan->n_entries ? n : 0;
}

static uint32_t first_row(const struct backend *b, uint32_t entry)
{
    uint32_t row = 0;

    for (uint32_t e = 0; e < entry; e++)
        row += b->step.plan->entries[e].n_tokens;
    return row;
}

static uint32_t n_items(const struct backend *b)
{
    const struct step *s = &b->step;

    return s->compact ? s->n_out * b->m->n_kv_heads * b->head_sets : s->item_start[s->plan->n_entries];
}

static struct item item_of(const struct backend *b, uint32_t i)
{
    const struct step *s = &b->step;
    const uint32_t n_sets = b->m->n_kv_heads * b->head_sets;
    struct item it = { .n_tokens = 1 };

    if (s->compact) {
        it.out = i / n_sets;
        it.row = s->out_row[it.out];
        it.entry = s->entry[it.row];
        it.first_token = s->position[it.row] - s->plan->entries[it.entry].n_past;
    } else {
        while (i >= s->item_start[it.entry + 1])
            it.entry++;
        const struct plan_entry *e = &s->plan->entries[it.entry];
        i -= s->item_start[it.entry];
        it.first_token = (tiles_of(b, e) - 1 - i / n_sets) * b->tokens_per_tile;
        it.n_tokens = e->n_tokens - it.first_token < b->tokens_per_tile ? e->n_tokens - it.first_token : b->tokens_per_tile;
        it.row = it.out = first_row(b, it.entry) + it.first_token;
    }
    it.kv_head = i % n_sets / b->head_sets;
    it.head_set = i % b->head_sets;
    it.n_heads = b->heads_per_group - it.head_set * b->heads_per_tile;
    if (it.n_heads > b->heads_per_tile)
        it.n_heads = b->heads_per_tile;
    return it;
}

/* Of layer l: the first position that a query sees whose last one is seen-1. */
static uint32_t first_seen(const struct backend *b, uint32_t l, uint32_t seen)
{
    const uint32_t window = b->m->layers[l].window;

    return window > 0 && seen > window ? seen - window : 0;
}

static void make_tile(const struct backend *b, uint32_t l, const struct item *it, struct attention_tile *t)
{
    const struct plan_entry *e = &b->step.plan->entries[it->entry];
    const uint32_t dim = b->m->head_dim;
    const uint32_t head = it->kv_head * b->heads_per_group + it->head_set * b->heads_per_tile;

    t->kv = kv_view_of(b, l, it->kv_head, e->blocks);
    t->next = (struct kv_ahead){ 0 };
    t->n = 0;
    for (uint32_t i = 0; i < it->n_tokens; i++) {
        const uint32_t seen = e->n_past + it->first_token + i + 1;
        for (uint32_t h = 0; h < it->n_heads; h++, t->n++) {
            t->q[t->n] = b->step.q + ((size_t)(it->row + i) * b->m->n_heads + head + h) * dim;
            t->hi[t->n] = seen;
            t->lo[t->n] = first_seen(b, l, seen);
        }
    }
}

static struct kv_ahead kv_of_item(const struct backend *b, uint32_t l, const struct item *it)
{
    const struct plan_entry *e = &b->step.plan->entries[it->entry];

    return (struct kv_ahead){ .pool = kv_view_of(b, l, it->kv_head, e->blocks).pool, .blocks = e->blocks,
                              .from = first_seen(b, l, e->n_past + it->first_token + 1) / SPLIT * SPLIT,
                              .to = e->n_past + it->first_token + it->n_tokens };
}

/* The finished rows go to the input of the output projection. */
static void put_out(const struct backend *b, const struct item *it, const struct attention_state *state, float *row_buffer)
{
    const uint32_t dim = b->m->head_dim, n_out = b->step.compact ? b->step.n_out : b->step.n_rows;
    const uint32_t head = it->kv_head * b->heads_per_group + it->head_set * b->heads_per_tile;
    const struct step *s = &b->step;

    for (uint32_t i = 0; i < it->n_tokens; i++) {
        const uint32_t width = width_of_tile(n_out, (it->out + i) / TILE_ROWS);
        for (uint32_t h = 0; h < it->n_heads; h++)
            b->k->attention_end(state, i * it->n_heads + h, dim, row_buffer + (size_t)h * dim);
        input_put(b, &s->in_o, 1, it->out + i, width, head * dim, it->n_heads * dim, row_buffer);
    }
}

static void attend_items(struct backend *b, uint32_t l, uint32_t thread)
{
    struct thread_scratch *own = &b->threads[thread];
    const uint32_t n = n_items(b);
    struct attention_state state = { .o = own->o };
    uint32_t expected = UINT32_MAX;
    struct item it, next;
    struct attention_tile t;

    for (uint32_t i; (i = pool_take(b->pool, thread, n)) != POOL_NONE; expected = i + 1) {
        it = i == expected ? next : item_of(b, i);
        make_tile(b, l, &it, &t);
        if (i + 1 < n) {
            next = item_of(b, i + 1);
            t.next = kv_of_item(b, l, &next);
        }
        for (uint32_t j = 0; j < t.n; j++)
            state.l[j] = 0;
        b->k->attention_begin(&t, &own->attention);
        b->k->attention_splits(&t, &own->attention, t.lo[0] / SPLIT, (t.hi[t.n - 1] + SPLIT - 1) / SPLIT, &state);
        put_out(b, &it, &state, own->row);
    }
}

static struct attention_state *split_state(const struct backend *b, uint32_t item, uint32_t split)
{
    const size_t i = (size_t)item * b->step.split_count + split;
    struct attention_state *state = &b->step.split_state[i];

    state->o = b->step.split_o + i * b->heads_per_tile * b->m->head_dim;
    return state;
}

static void attend_shared(struct backend *b, uint32_t l, uint32_t thread)
{
    struct thread_scratch *own = &b->threads[thread];
    const struct step *s = &b->step;
    uint32_t prepared = UINT32_MAX;
    struct attention_tile t;

    assert(s->split_items <= SPLIT_ITEMS_MAX);
    for (uint32_t i; (i = pool_take(b->pool, thread, s->split_items * s->split_count)) != POOL_NONE;) {
        const uint32_t split = i % s->split_count;
        const struct item it = item_of(b, i / s->split_count);
        struct attention_state *part = split_state(b, i / s->split_count, split);
        if (prepared != i / s->split_count) {
            make_tile(b, l, &it, &t);
            b->k->attention_begin(&t, &own->attention);
            prepared = i / s->split_count;
        }
        for (uint32_t j = 0; j < t.n; j++)
            part->l[j] = 0;
        t.next = (struct kv_ahead){ t.kv.pool, t.kv.blocks, (split + 1) * SPLIT, t.hi[0] };
        if (t.next.from >= t.next.to && i / s->split_count + 1 < s->split_items) {
            const struct item next = item_of(b, i / s->split_count + 1);
            t.next = kv_of_item(b, l, &next);
        }
        b->k->attention_splits(&t, &own->attention, split, split + 1, part);
    }
    pool_barrier(b->pool);
    for (uint32_t i; (i = pool_take(b->pool, thread, s->split_items)) != POOL_NONE;) {
        const struct item it = item_of(b, i);
        struct attention_state state = { .o = own->o };
        for (uint32_t split = 0; split < s->split_count; split++) {
            const struct attention_state *part = split_state(b, i, split);
            for (uint32_t j = 0; j < it.n_heads; j++)
                if (part->l[j] != 0)
                    b->k->attention_merge(&state, part, j, b->m->head_dim);
        }
        put_out(b, &it, &state, own->row);
    }
}

void attend_layer(struct backend *b, uint32_t l, uint32_t thread)
{
    if (b->step.split_items > 0 && !b->step.compact)
        attend_shared(b, l, thread);
    else
        attend_items(b, l, thread);
}

/* ------------------------------------------------------------------ K and V asked for during products */

enum { AHEAD_LINES = 8 }; /* with a block of K; its weights are 5 lines or so */

/* The first block of an entry's cursor: of a layer with a window, where that begins. */
static uint32_t first_block(const struct backend *b, const struct kv_cursor *c)
{
    return first_seen(b, c->layer, b->step.plan->entries[c->entry].n_past + 1) / BLOCK_TOKENS;
}

void attend_ahead_start(struct backend *b, uint32_t l, uint32_t thread)
{
    const uint32_t n = b->step.plan->n_entries, n_threads = b->options.n_threads;
    struct kv_cursor *c = &b->threads[thread].cursor;

    *c = (struct kv_cursor){ .layer = l };
    if (l >= b->m->n_layers || b->step.n_rows < TILE_MANY || b->step.n_rows != n)
        return;
    c->entry = (uint32_t)((uint64_t)n * thread / n_threads); /* its share of the items, as pool_take() has it */
    c->end = (uint32_t)((uint64_t)n * (thread + 1) / n_threads);
    if (c->entry < c->end)
        c->block = first_block(b, c);
}

void attend_ahead_take(struct backend *b, uint32_t thread, uint32_t n_k, struct tile *x)
{
    struct kv_cursor *c = &b->threads[thread].cursor;

    x->ahead_lines = 0;
    if (c->entry >= c->end)
        return;
    const struct plan_entry *e = &b->step.plan->entries[c->entry];
    const size_t left = (b->kv_layer_bytes - c->at) / 64, lines = left < (size_t)n_k * AHEAD_LINES ? left : (size_t)n_k * AHEAD_LINES;
    x->ahead = b->kv.at + c->layer * b->kv_layer_bytes + e->blocks[c->block] * b->kv_view.block_bytes + c->at;
    x->ahead_lines = (uint32_t)((lines + n_k - 1) / n_k);
    c->at += lines * 64;
    if (lines < left)
        return;
    c->at = 0;
    if (c->block++ < e->n_past / BLOCK_TOKENS)
        return;
    c->block = 0;
    if (++c->entry < c->end)
        c->block = first_block(b, c);
}
