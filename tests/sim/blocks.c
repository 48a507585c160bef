/* blocks.c - a second book of every worker's KV blocks, kept from outside.
 *
 * Every call that changes a block passes here first (--wrap) and is held against the rules of kv_cache.h, so a block that is
 * handed out while it is pinned, or still known to the index stops the run at that call.  Beside it stands whose tokens
 * a block holds: a step may read only blocks of its own scope (and a request that asked for no cache only blocks that its own
 * choices wrote), and write only blocks that nobody else holds and the index does not know. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "sim.h"
#include "worker/host_store.h"
#include "worker/kv_cache.h"
#include "worker/request.h"
#include "worker/scheduler.h"

struct block {
    uint32_t pins;
    bool published;
    uint64_t owner; /* of what it holds; 0: garbage */
    uint64_t evicted; /* who owned it until it was taken: what it holds may go to the store before it is written */
};

static struct book {
    struct kv_cache *kv;
    uint32_t n_blocks, n_taken; /* n_taken: with pins */
    struct block *blocks;
} books[SIM_WORKERS_MAX];

enum status __real_kv_cache_new(uint32_t n_blocks, struct kv_cache **ret_kv);
enum status __wrap_kv_cache_new(uint32_t n_blocks, struct kv_cache **ret_kv);
void __real_kv_cache_free(struct kv_cache *kv);
void __wrap_kv_cache_free(struct kv_cache *kv);
enum status __real_kv_cache_take(struct kv_cache *kv, uint32_t *ret_block, bool *ret_evicted);
enum status __wrap_kv_cache_take(struct kv_cache *kv, uint32_t *ret_block, bool *ret_evicted);
void __real_kv_cache_pin(struct kv_cache *kv, uint32_t block);
void __wrap_kv_cache_pin(struct kv_cache *kv, uint32_t block);
void __real_kv_cache_release(struct kv_cache *kv, uint32_t block);
void __wrap_kv_cache_release(struct kv_cache *kv, uint32_t block);
void __real_kv_cache_publish(struct kv_cache *kv, uint32_t block);
void __wrap_kv_cache_publish(struct kv_cache *kv, uint32_t block);
void __real_kv_cache_forget(struct kv_cache *kv, uint32_t block);
void __wrap_kv_cache_forget(struct kv_cache *kv, uint32_t block);
static struct book *book_of(const struct kv_cache *kv)
{
    for (uint32_t i = 0; i < SIM_WORKERS_MAX; i++)
        if (books[i].kv == kv)
            return &books[i];
    sim_fail("a pool of blocks that nobody made");
}

static struct block *block_of(struct kv_cache *kv, uint32_t block, const char *what)
{
    struct book *b = book_of(kv);
    sim_demand(block < b->n_blocks, "%s of block %u; there are %u", what, block, b->n_blocks);
    return &b->blocks[block];
}

enum status __wrap_kv_cache_new(uint32_t n_blocks, struct kv_cache **ret_kv)
{
    uint32_t slot = 0;
    bool inside = pool_current(&slot);
    enum status st = __real_kv_cache_new(n_blocks, ret_kv);
    assert(inside && st == ST_OK && books[slot].kv == NULL);
    books[slot] =
        (struct book){.kv = *ret_kv, .n_blocks = n_blocks, .blocks = calloc(n_blocks, sizeof(struct block))};
    assert(books[slot].blocks != NULL);
    return st;
}

void __wrap_kv_cache_free(struct kv_cache *kv)
{
    if (kv == NULL)
        return;
    struct book *b = book_of(kv);
    free(b->blocks);
    *b = (struct book){0};
    __real_kv_cache_free(kv);
}

enum status __wrap_kv_cache_take(struct kv_cache *kv, uint32_t *ret_block, bool *ret_evicted)
{
    struct book *k = book_of(kv);
    enum status st = __real_kv_cache_take(kv, ret_block, ret_evicted);
    if (st != ST_OK) {
        for (uint32_t i = 0; i < k->n_blocks; i++)
            sim_demand(k->blocks[i].pins > 0, "no block to be had, but nobody holds block %u", i);
        return st;
    }
    struct block *b = block_of(kv, *ret_block, "take");
    sim_demand(b->pins == 0, "block %u was handed out with %u pins", *ret_block, b->pins);
    sim_demand(*ret_evicted == b->published, "block %u was handed out, and the index %s", *ret_block,
               b->published ? "was not told" : "is to forget what it never knew");
    *b = (struct block){.pins = 1, .evicted = *ret_evicted ? b->owner : 0};
    k->n_taken++;
    return st;
}

void __wrap_kv_cache_pin(struct kv_cache *kv, uint32_t block)
{
    struct block *b = block_of(kv, block, "pin");
    sim_demand(b->pins > 0 || b->published, "pin of block %u, which is free", block);
    book_of(kv)->n_taken += b->pins++ == 0;
    __real_kv_cache_pin(kv, block);
}

void __wrap_kv_cache_release(struct kv_cache *kv, uint32_t block)
{
    struct block *b = block_of(kv, block, "release");
    sim_demand(b->pins > 0, "release of block %u, which nobody holds", block);
    book_of(kv)->n_taken -= --b->pins == 0;
    __real_kv_cache_release(kv, block);
}

void __wrap_kv_cache_publish(struct kv_cache *kv, uint32_t block)
{
    struct block *b = block_of(kv, block, "publish");
    sim_demand(b->pins > 0 && !b->published, "publish of block %u with %u pins", block, b->pins);
    b->published = true;
    __real_kv_cache_publish(kv, block);
}

void __wrap_kv_cache_forget(struct kv_cache *kv, uint32_t block)
{
    struct block *b = block_of(kv, block, "forget");
    sim_demand(b->published, "forget of block %u, which is not published", block);
    b->published = false;
    __real_kv_cache_forget(kv, block);
}

static uint64_t owner_of_scope(const struct prefix_scope *s)
{
    return (s->id[0] ^ (s->id[1] << 1)) | 1;
}

/* --- copies from and to the host store ----------------------------------------------------------- */

static uint64_t named; /* owner of the block that was last named to the store */

enum status __real_host_store_get(struct host_store *hs, const struct block_name *name, void *to);
enum status __wrap_host_store_get(struct host_store *hs, const struct block_name *name, void *to);
enum status __real_host_store_put_begin(struct host_store *hs, const struct block_name *name, uint32_t *ret_slot,
                                        void **ret_payload);
enum status __wrap_host_store_put_begin(struct host_store *hs, const struct block_name *name, uint32_t *ret_slot,
                                        void **ret_payload);

enum status __wrap_host_store_get(struct host_store *hs, const struct block_name *name, void *to)
{
    named = owner_of_scope(&name->scope);
    return __real_host_store_get(hs, name, to);
}

enum status __wrap_host_store_put_begin(struct host_store *hs, const struct block_name *name, uint32_t *ret_slot,
                                        void **ret_payload)
{
    named = owner_of_scope(&name->scope);
    return __real_host_store_put_begin(hs, name, ret_slot, ret_payload);
}

void blocks_moved(uint32_t slot, bool to_host, uint32_t block)
{
    struct book *k = &books[slot];
    sim_demand(block < k->n_blocks, "a copy of block %u of %u", block, k->n_blocks);
    struct block *b = &k->blocks[block];
    if (to_host) {
        sim_demand((b->published ? b->owner : b->evicted) == named, "block %u goes to the store under another scope", block);
        return;
    }
    sim_demand(!b->published && b->pins > 0, "block %u comes from the store, and is %s", block,
               b->published ? "published" : "nobody's");
    b->owner = named;
    sim.seen.restored++;
}

/* --- what a step uses --------------------------------------------------------------------------- */

static uint64_t owner_of(const struct sequence *q)
{
    const struct choice *c = q->owner;
    uint64_t h = owner_of_scope(&q->scope);
    if (q->cache_off)
        h ^= ((uint64_t)c->request->slot << 40 ^ (uint64_t)c->request->generation << 8 ^ 0x0ff) *
             0x9e3779b97f4a7c15u;
    return h | 1;
}

static void check_copies(struct book *k, const struct scheduler_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_copies; i++) {
        uint32_t from = plan->copies[i].from, to = plan->copies[i].to;
        sim_demand(from < k->n_blocks && to < k->n_blocks && from != to, "copy of block %u to %u", from, to);
        struct block *f = &k->blocks[from], *t = &k->blocks[to];
        sim_demand(f->pins > 0 && f->owner != 0, "copy of block %u, which %s", from,
                   f->pins > 0 ? "holds nothing" : "nobody holds");
        if (t->pins == 0)
            continue; /* whoever it was for was preempted again; another may have it in a later copy */
        sim_demand(!t->published, "copy to block %u, which is published", to);
        t->owner = f->owner;
    }
}

static void check_entry(struct book *k, const struct sequence *q, const struct plan_entry *e)
{
    uint32_t first_written = e->n_past / BLOCK_TOKENS, end = blocks_for(e->n_past + e->n_tokens);
    uint64_t owner = owner_of(q);
    for (uint32_t i = 0; i < end; i++) {
        uint32_t at = e->blocks[i];
        sim_demand(at < k->n_blocks, "a step uses block %u of %u", at, k->n_blocks);
        struct block *b = &k->blocks[at];
        sim_demand(b->pins > 0, "a step uses block %u, which nobody holds", at);
        bool reads = i < blocks_for(e->n_past);
        sim_demand(!reads || b->owner == owner, "a step reads block %u of another scope", at);
        if (i < first_written)
            continue;
        sim_demand(!b->published, "a step writes block %u, which is published", at);
        b->owner = owner;
    }
}

void blocks_check_plan(uint32_t slot, const struct scheduler_plan *plan)
{
    struct book *k = &books[slot];
    check_copies(k, plan);
    for (uint32_t i = 0; i < plan->plan.n_entries; i++)
        check_entry(k, plan->sequences[i], &plan->plan.entries[i]);
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < k->n_blocks; i++)
        n_taken += k->blocks[i].pins > 0;
    sim_demand(n_taken == k->n_taken, "%u blocks are held, %u were counted", n_taken, k->n_taken);
}
