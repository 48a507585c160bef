/* kv_cache.c - block states, pins and the LRU list.
 *
 * The links of both lists lie inside the blocks' entries (as in vLLM's free queue), so a block leaves the middle of the LRU
 * list in constant time when it is matched, and nothing is allocated after start.  FREE blocks form a stack: the block
 * released last is taken first, while its bytes are still in a cache of the processor. */
#include "kv_cache.h"

#include <assert.h>
#include <stdlib.h>

struct entry {
    uint32_t older, younger; /* LRU neighbours while CACHED; `older` is the next FREE block while FREE */
    uint32_t pins;
    uint8_t state; /* enum kv_state */
    bool published;
};

struct kv_cache {
    uint32_t n_blocks;
    uint32_t free_head;        /* top of the stack of FREE blocks */
    uint32_t oldest, youngest; /* ends of the LRU list */
    uint32_t n_state[3];
    struct entry *entries; /* [n_blocks] */
};

enum status kv_cache_new(uint32_t n_blocks, struct kv_cache **ret_kv)
{
    assert(n_blocks > 0 && n_blocks < KV_BLOCK_NONE);
    struct kv_cache *kv = calloc(1, sizeof(*kv));
    if (kv == NULL)
        return ST_NOMEM;
    kv->entries = calloc(n_blocks, sizeof(*kv->entries));
    if (kv->entries == NULL) {
        free(kv);
        return ST_NOMEM;
    }
    kv->n_blocks = n_blocks;
    kv->oldest = kv->youngest = KV_BLOCK_NONE;
    for (uint32_t b = 0; b < n_blocks; b++)
        kv->entries[b].older = b + 1 < n_blocks ? b + 1 : KV_BLOCK_NONE;
    kv->n_state[KV_FREE] = n_blocks;
    *ret_kv = kv;
    return ST_OK;
}

void kv_cache_free(struct kv_cache *kv)
{
    if (kv == NULL)
        return;
    free(kv->entries);
    free(kv);
}

static struct entry *entry_of(const struct kv_cache *kv, uint32_t block)
{
    assert(block < kv->n_blocks);
    return &kv->entries[block];
}

static void set_state(struct kv_cache *kv, struct entry *e, enum kv_state state)
{
    kv->n_state[e->state]--;
    e->state = (uint8_t)state;
    kv->n_state[state]++;
}

static void lru_append(struct kv_cache *kv, uint32_t block)
{
    struct entry *e = entry_of(kv, block);
    e->older = kv->youngest;
    e->younger = KV_BLOCK_NONE;
    if (kv->youngest != KV_BLOCK_NONE)
        kv->entries[kv->youngest].younger = block;
    else
        kv->oldest = block;
    kv->youngest = block;
    set_state(kv, e, KV_CACHED);
}

static void lru_unlink(struct kv_cache *kv, uint32_t block)
{
    struct entry *e = entry_of(kv, block);
    assert(e->state == KV_CACHED);
    if (e->older != KV_BLOCK_NONE)
        kv->entries[e->older].younger = e->younger;
    else
        kv->oldest = e->younger;
    if (e->younger != KV_BLOCK_NONE)
        kv->entries[e->younger].older = e->older;
    else
        kv->youngest = e->older;
}

static void push_free(struct kv_cache *kv, uint32_t block)
{
    struct entry *e = entry_of(kv, block);
    e->published = false;
    e->older = kv->free_head;
    kv->free_head = block;
    set_state(kv, e, KV_FREE);
}

enum status kv_cache_take(struct kv_cache *kv, uint32_t *ret_block, bool *ret_evicted)
{
    uint32_t block = kv->free_head;
    bool evicted = block == KV_BLOCK_NONE;

    if (evicted) {
        block = kv->oldest;
        if (block == KV_BLOCK_NONE)
            return ST_FULL;
        lru_unlink(kv, block);
    } else {
        kv->free_head = kv->entries[block].older;
    }
    struct entry *e = entry_of(kv, block);
    assert(e->pins == 0);
    e->pins = 1;
    e->published = false;
    set_state(kv, e, KV_PINNED);
    *ret_block = block;
    *ret_evicted = evicted;
    return ST_OK;
}

void kv_cache_pin(struct kv_cache *kv, uint32_t block)
{
    struct entry *e = entry_of(kv, block);
    assert(e->state == KV_PINNED || e->state == KV_CACHED);
    if (e->state == KV_CACHED) {
        lru_unlink(kv, block);
        set_state(kv, e, KV_PINNED);
    }
    e->pins++;
}

void kv_cache_release(struct kv_cache *kv, uint32_t block)
{
    struct entry *e = entry_of(kv, block);
    assert(e->state == KV_PINNED && e->pins > 0);
    if (--e->pins > 0)
        return;
    if (e->published)
        lru_append(kv, block);
    else
        push_free(kv, block);
}

void kv_cache_publish(struct kv_cache *kv, uint32_t block)
{
    struct entry *e = entry_of(kv, block);
    assert(e->state == KV_PINNED && !e->published);
    e->published = true;
}

void kv_cache_forget(struct kv_cache *kv, uint32_t block)
{
    struct entry *e = entry_of(kv, block);
    assert(e->published && (e->state == KV_PINNED || e->state == KV_CACHED));
    e->published = false;
    if (e->state == KV_CACHED) {
        lru_unlink(kv, block);
        push_free(kv, block);
    }
}

uint32_t kv_cache_n_blocks(const struct kv_cache *kv)
{
    return kv->n_blocks;
}

uint32_t kv_cache_n_available(const struct kv_cache *kv)
{
    return kv->n_state[KV_FREE] + kv->n_state[KV_CACHED];
}

struct kv_counts kv_cache_counts(const struct kv_cache *kv)
{
    return (struct kv_counts){ kv->n_state[KV_FREE], kv->n_state[KV_PINNED], kv->n_state[KV_CACHED] };
}

enum kv_state kv_cache_state(const struct kv_cache *kv, uint32_t block)
{
    return (enum kv_state)entry_of(kv, block)->state;
}

uint32_t kv_cache_pins(const struct kv_cache *kv, uint32_t block)
{
    return entry_of(kv, block)->pins;
}

bool kv_cache_is_published(const struct kv_cache *kv, uint32_t block)
{
    return entry_of(kv, block)->published;
}

uint32_t kv_cache_oldest(const struct kv_cache *kv)
{
    return kv->oldest;
}

void kv_cache_check(const struct kv_cache *kv)
{
    uint32_t n_state[3] = { 0 };
    for (uint32_t b = 0; b < kv->n_blocks; b++) {
        const struct entry *e = &kv->entries[b];
        assert(e->state <= KV_CACHED);
        n_state[e->state]++;
        assert((e->pins > 0) == (e->state == KV_PINNED));
        if (e->state == KV_CACHED)
            assert(e->published);
        if (e->state == KV_FREE)
            assert(!e->published);
    }
    for (int i = 0; i < 3; i++)
        assert(n_state[i] == kv->n_state[i]);

    uint32_t n = 0;
    for (uint32_t b = kv->free_head; b != KV_BLOCK_NONE; b = entry_of(kv, b)->older, n++) {
        assert(n < kv->n_blocks);
        assert(entry_of(kv, b)->state == KV_FREE);
    }
    assert(n == n_state[KV_FREE]);

    uint32_t before = KV_BLOCK_NONE;
    n = 0;
    for (uint32_t b = kv->oldest; b != KV_BLOCK_NONE; before = b, b = entry_of(kv, b)->younger, n++) {
        assert(n < kv->n_blocks);
        assert(entry_of(kv, b)->state == KV_CACHED);
        assert(entry_of(kv, b)->older == before);
    }
    assert(kv->youngest == before);
    assert(n == n_state[KV_CACHED]);
}
