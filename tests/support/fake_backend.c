/* fake_backend.c - see fake_backend.h.  Everything happens in step_submit(); step_wait() hands out the results. */
#include "fake_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cell {
    uint64_t chain;
    int32_t token;
    uint32_t position;
};
_Static_assert(sizeof(struct cell) * BLOCK_TOKENS == FAKE_BLOCK_BYTES, "a block is its cells");

struct backend {
    struct backend_options opt;
    uint32_t n_vocab;
    struct cell *cells;    /* [n_blocks * BLOCK_TOKENS] */
    uint32_t *writer;      /* [n_blocks] entry + 1 that writes the block in this step, 0: none */
    struct step_result results[SEQS_MAX];
    uint32_t n_results;
    backend_ticket next, waited;
    uint64_t delay_ns;
    uint32_t steps_left;
};

#define DEMAND(cond, ...)                                                 \
    do {                                                                  \
        if (!(cond)) {                                                    \
            fprintf(stderr, "fake backend: %s: ", #cond);                 \
            fprintf(stderr, __VA_ARGS__);                                 \
            fputc('\n', stderr);                                          \
            abort();                                                      \
        }                                                                 \
    } while (0)

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2)); /* splitmix64's finaliser */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t link_of(uint64_t before, int32_t token, uint32_t position)
{
    return mix(mix(before, (uint32_t)token), position);
}

static int32_t sample(uint64_t chain, const struct sampling *sampling, uint32_t choice, uint32_t index,
                      uint32_t n_vocab)
{
    uint64_t h = chain;
    if (sampling != NULL && sampling->temperature > SAMPLING_GREEDY_BELOW)
        h = mix(mix(mix(h, sampling->seed), choice), index);
    return (int32_t)(mix(h, 1) % n_vocab);
}

uint64_t fake_chain(uint64_t chain, const int32_t *tokens, uint32_t from, uint32_t n_tokens)
{
    for (uint32_t i = from; i < n_tokens; i++)
        chain = link_of(chain, tokens[i], i);
    return chain;
}

int32_t fake_token_after(uint64_t chain, const struct sampling *sampling, uint32_t choice, uint32_t index, uint32_t n_vocab)
{
    return sample(chain, sampling, choice, index, n_vocab);
}

int32_t fake_token(const int32_t *tokens, uint32_t n_tokens, const struct sampling *sampling, uint32_t choice,
                   uint32_t index, uint32_t n_vocab)
{
    return sample(fake_chain(0, tokens, 0, n_tokens), sampling, choice, index, n_vocab);
}

static enum status fake_plan_memory(const struct model *m, const struct backend_options *o, struct memory_plan *ret_plan,
                                    struct error *err)
{
    (void)m, (void)err;
    uint32_t n_blocks = o->n_blocks > 0 ? o->n_blocks : (uint32_t)(o->kv_bytes / FAKE_BLOCK_BYTES);
    *ret_plan = (struct memory_plan){
        .kv = (uint64_t)n_blocks * FAKE_BLOCK_BYTES,
        .total = (uint64_t)n_blocks * FAKE_BLOCK_BYTES,
        .available = UINT64_MAX,
        .n_blocks = n_blocks,
        .block_bytes = FAKE_BLOCK_BYTES,
    };
    return ST_OK;
}

static void fake_close(struct backend *b)
{
    if (b == NULL)
        return;
    free(b->cells);
    free(b->writer);
    free(b);
}

static enum status fake_open(const struct model *m, const struct backend_options *o, struct backend **ret_backend,
                             struct error *err)
{
    struct memory_plan plan;
    struct backend *b = calloc(1, sizeof(*b));
    if (b == NULL || fake_plan_memory(m, o, &plan, err) != ST_OK)
        return ST_NOMEM;
    b->opt = *o;
    b->opt.n_blocks = plan.n_blocks;
    b->n_vocab = m != NULL ? m->n_vocab : FAKE_VOCAB;
    b->steps_left = UINT32_MAX;
    b->cells = malloc((size_t)plan.n_blocks * FAKE_BLOCK_BYTES);
    b->writer = calloc(plan.n_blocks, sizeof(*b->writer));
    if (b->cells == NULL || b->writer == NULL) {
        fake_close(b);
        return ST_NOMEM;
    }
    memset(b->cells, 0xa5, (size_t)plan.n_blocks * FAKE_BLOCK_BYTES);
    *ret_backend = b;
    return ST_OK;
}

static void fake_describe(const struct backend *b, struct backend_info *ret_info)
{
    *ret_info = (struct backend_info){ .device = "fake", .numerics_id = "fake-1", .n_threads = 1 };
    (void)fake_plan_memory(NULL, &b->opt, &ret_info->memory, NULL);
}

static struct cell *cell_at(struct backend *b, const struct plan_entry *e, uint32_t position)
{
    uint32_t block = e->blocks[position / BLOCK_TOKENS];
    DEMAND(block < b->opt.n_blocks, "position %u is in block %u of %u", position, block, b->opt.n_blocks);
    return &b->cells[(size_t)block * BLOCK_TOKENS + position % BLOCK_TOKENS];
}

/* Who writes which block: nobody else may touch it in this step. */
static void mark_writers(struct backend *b, const struct plan *p)
{
    memset(b->writer, 0, b->opt.n_blocks * sizeof(*b->writer));
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];
        for (uint32_t k = e->n_past / BLOCK_TOKENS; k * BLOCK_TOKENS < e->n_past + e->n_tokens; k++) {
            uint32_t *w = &b->writer[e->blocks[k]];
            DEMAND(*w == 0, "entries %u and %u both write block %u", *w - 1, i, e->blocks[k]);
            *w = i + 1;
        }
    }
}

static void run_entry(struct backend *b, const struct plan_entry *e, uint32_t i, struct step_result *r)
{
    uint64_t chain = 0;
    DEMAND(e->n_tokens >= 1 && e->from_entry < 0, "entry %u", i);
    DEMAND(e->n_past + e->n_tokens <= b->opt.context_tokens, "entry %u has %u positions", i, e->n_past + e->n_tokens);
    for (uint32_t p = 0; p < e->n_past; p++) {
        const struct cell *c = cell_at(b, e, p);
        uint32_t w = b->writer[e->blocks[p / BLOCK_TOKENS]];
        DEMAND(w == 0 || w == i + 1, "entry %u reads block %u that entry %u writes", i, e->blocks[p / BLOCK_TOKENS], w - 1);
        chain = link_of(chain, c->token, p);
        DEMAND(c->position == p && c->chain == chain, "entry %u: block %u does not hold position %u of this sequence", i,
               e->blocks[p / BLOCK_TOKENS], p);
    }
    for (uint32_t k = 0; k < e->n_tokens; k++) {
        uint32_t p = e->n_past + k;
        chain = link_of(chain, e->tokens[k], p);
        *cell_at(b, e, p) = (struct cell){ .chain = chain, .token = e->tokens[k], .position = p };
    }
    *r = (struct step_result){ 0 };
    if (e->want == WANT_TOKEN) {
        r->token = sample(chain, e->sampling, e->choice, e->index, b->n_vocab);
        r->logprob = -0.5f;
        r->n_top = e->sampling != NULL ? e->sampling->n_logprobs : 0;
        for (uint32_t t = 0; t < r->n_top; t++)
            r->top[t] = (struct candidate){ (int32_t)((uint32_t)(r->token + (int32_t)t) % b->n_vocab), -0.5f - (float)t };
    }
}

static enum status fake_submit(struct backend *b, const struct plan *p, backend_ticket *ret_ticket)
{
    uint32_t n_rows = 0;
    DEMAND(b->next == b->waited, "one step at a time");
    DEMAND(p->n_entries >= 1 && p->n_entries <= b->opt.max_seqs, "%u entries", p->n_entries);
    if (b->steps_left != UINT32_MAX && b->steps_left-- == 0)
        return ST_SYSTEM;
    mark_writers(b, p);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        run_entry(b, &p->entries[i], i, &b->results[i]);
        n_rows += p->entries[i].n_tokens;
    }
    DEMAND(n_rows == p->n_rows && n_rows <= b->opt.max_rows, "%u rows, plan says %u", n_rows, p->n_rows);
    if (b->delay_ns > 0)
        nanosleep(&(struct timespec){ (time_t)(b->delay_ns / 1000000000), (long)(b->delay_ns % 1000000000) }, NULL);
    b->n_results = p->n_entries;
    *ret_ticket = ++b->next;
    return ST_OK;
}

static enum status fake_poll(struct backend *b, backend_ticket t)
{
    (void)b, (void)t;
    return ST_OK;
}

static enum status fake_wait(struct backend *b, backend_ticket t, struct step_result *ret_results)
{
    DEMAND(t == b->waited + 1, "ticket %llu", (unsigned long long)t);
    b->waited = t;
    memcpy(ret_results, b->results, b->n_results * sizeof(*ret_results));
    return ST_OK;
}

static enum status fake_copy(struct backend *b, const struct block_copy *c, backend_ticket *ret_ticket)
{
    struct cell *at = &b->cells[(size_t)c->block * BLOCK_TOKENS];
    DEMAND(c->block < b->opt.n_blocks, "block %u", c->block);
    if (c->kind == BLOCK_TO_BLOCK) {
        DEMAND(c->to_block < b->opt.n_blocks && c->to_block != c->block, "to block %u", c->to_block);
        memcpy(&b->cells[(size_t)c->to_block * BLOCK_TOKENS], at, FAKE_BLOCK_BYTES);
    } else if (c->kind == BLOCK_TO_HOST) {
        memcpy(c->host, at, FAKE_BLOCK_BYTES);
    } else {
        memcpy(at, c->host, FAKE_BLOCK_BYTES);
    }
    *ret_ticket = 0;
    return ST_OK;
}

static enum status fake_register_host(struct backend *b, void *at, size_t bytes)
{
    (void)b, (void)at, (void)bytes;
    return ST_OK;
}

static void fake_unregister_host(struct backend *b, void *at)
{
    (void)b, (void)at;
}

void fake_backend_set_delay(struct backend *b, uint64_t step_ns)
{
    b->delay_ns = step_ns;
}

void fake_backend_fail_after(struct backend *b, uint32_t n_steps)
{
    b->steps_left = n_steps;
}

const struct backend_api *fake_backend(void)
{
    static const struct backend_api api = {
        .abi = BACKEND_ABI,
        .bytes = sizeof(struct backend_api),
        .name = "fake",
        .build_id = "test",
        .plan_memory = fake_plan_memory,
        .open = fake_open,
        .close = fake_close,
        .describe = fake_describe,
        .step_submit = fake_submit,
        .step_poll = fake_poll,
        .step_wait = fake_wait,
        .copy_submit = fake_copy,
        .copy_poll = fake_poll,
        .register_host = fake_register_host,
        .unregister_host = fake_unregister_host,
    };
    return &api;
}
