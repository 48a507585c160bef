/* prefix_cache.c - joins kv_cache.c and prefix_index.c.
 *
 * Two sequences may compute the same block at the same time.  The second to publish it gives its own copy back and goes on
 * with the first's: the bytes are equal by the promise on numerics, the pool holds each prefix once, and the path of nodes
 * from the scope's root to a sequence's last published block is always pinned by that sequence, so it cannot lose its
 * parent. */
#include "prefix_cache.h"

#include <assert.h>
#include <stdlib.h>

enum { SAVES_AT_ONCE = 256 }; /* most of them find that the block is there already */

struct shelving { /* of one block */
    struct block_key key;
    uint32_t position;
    bool queued;
};

struct prefix_cache {
    struct kv_cache *kv;
    struct prefix_index *index;
    uint64_t now_ns;
    struct eviction_counts evictions;
    uint64_t *released_ns;           /* [n_blocks]; of cached blocks */
    const struct block_shelf *shelf; /* NULL: none, and then nothing below */
    struct shelving *shelving;       /* [n_blocks]; key and position of published full blocks */
    uint32_t *queue;                 /* [n_blocks] blocks to be offered: a ring from queue_head, n_queued long */
    uint32_t queue_head, n_queued;
};

enum status prefix_cache_new(uint32_t n_blocks, uint64_t secret, struct prefix_cache **ret_cache)
{
    struct prefix_cache *pc = calloc(1, sizeof(*pc));
    if (pc == NULL)
        return ST_NOMEM;
    enum status st = kv_cache_new(n_blocks, &pc->kv);
    if (st != ST_OK)
        goto out;
    st = prefix_index_new(n_blocks, secret, &pc->index);
    if (st != ST_OK)
        goto out;
    pc->released_ns = calloc(n_blocks, sizeof(*pc->released_ns));
    if (pc->released_ns == NULL) {
        st = ST_NOMEM;
        goto out;
    }
    *ret_cache = pc;
    pc = NULL;
out:
    prefix_cache_free(pc);
    return st;
}

void prefix_cache_free(struct prefix_cache *pc)
{
    if (pc == NULL)
        return;
    prefix_index_free(pc->index);
    kv_cache_free(pc->kv);
    free(pc->released_ns);
    free(pc->shelving);
    free(pc->queue);
    free(pc);
}

enum status prefix_cache_attach(struct prefix_cache *pc, const struct block_shelf *shelf)
{
    assert(pc->shelf == NULL && prefix_index_n_nodes(pc->index) == 0);
    uint32_t n = kv_cache_n_blocks(pc->kv);
    pc->shelving = calloc(n, sizeof(*pc->shelving));
    pc->queue = calloc(n, sizeof(*pc->queue));
    if (pc->shelving == NULL || pc->queue == NULL)
        return ST_NOMEM;
    pc->shelf = shelf;
    return ST_OK;
}

/* --- the shelf ---------------------------------------------------------------------------------- */

static struct block_key key_below(const struct prefix_cache *pc, struct prefix_scope scope, uint32_t parent)
{
    return parent == KV_BLOCK_NONE ? block_key_root(&pc->shelf->secret, scope) : pc->shelving[parent].key;
}

/* The name of the block that holds the next tokens below parent. */
static struct block_name name_below(const struct prefix_cache *pc, struct prefix_scope scope, uint32_t parent,
                                    const int32_t *tokens)
{
    struct block_key above = key_below(pc, scope, parent);
    return (struct block_name){ .scope = scope,
                                .key = block_key_next(&pc->shelf->secret, above, tokens),
                                .parent = above,
                                .position = parent == KV_BLOCK_NONE ? 0 : pc->shelving[parent].position + 1,
                                .tokens = tokens };
}

static bool is_shelvable(const struct prefix_cache *pc, uint32_t block)
{
    return pc->shelf != NULL && prefix_index_has(pc->index, block) && prefix_index_n_tokens(pc->index, block) == BLOCK_TOKENS;
}

static void enqueue(struct prefix_cache *pc, uint32_t block)
{
    if (!is_shelvable(pc, block) || pc->shelving[block].queued)
        return;
    pc->shelving[block].queued = true;
    pc->queue[(pc->queue_head + pc->n_queued++) % kv_cache_n_blocks(pc->kv)] = block;
}

/* It was published: from now on it has a name. */
static void give_name(struct prefix_cache *pc, uint32_t block)
{
    if (!is_shelvable(pc, block))
        return;
    struct block_name name = name_below(pc, prefix_index_scope(pc->index, block), prefix_index_parent(pc->index, block),
                                        prefix_index_tokens(pc->index, block));
    pc->shelving[block].key = name.key;
    pc->shelving[block].position = name.position;
}

static enum shelf_answer offer(struct prefix_cache *pc, uint32_t block)
{
    struct prefix_scope scope = prefix_index_scope(pc->index, block);
    struct block_name name = { .scope = scope,
                               .key = pc->shelving[block].key,
                               .parent = key_below(pc, scope, prefix_index_parent(pc->index, block)),
                               .position = pc->shelving[block].position,
                               .tokens = prefix_index_tokens(pc->index, block) };
    return pc->shelf->save(pc->shelf->ctx, &name, block);
}

bool prefix_cache_save_some(struct prefix_cache *pc)
{
    for (uint32_t i = 0; i < SAVES_AT_ONCE && pc->n_queued > 0; i++) {
        uint32_t block = pc->queue[pc->queue_head];
        if (is_shelvable(pc, block) && offer(pc, block) == SHELF_LATER) /* it may have been evicted since */
            return true;
        pc->shelving[block].queued = false;
        pc->queue_head = (pc->queue_head + 1) % kv_cache_n_blocks(pc->kv);
        pc->n_queued--;
    }
    return pc->n_queued > 0;
}

enum status prefix_cache_load(struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens, uint32_t n_tokens,
                              uint32_t *blocks, uint32_t *n_blocks)
{
    while (pc->shelf != NULL && *n_blocks < n_tokens / BLOCK_TOKENS) {
        uint32_t n = *n_blocks, parent = n > 0 ? blocks[n - 1] : KV_BLOCK_NONE, block = KV_BLOCK_NONE;
        struct block_name name = name_below(pc, scope, parent, tokens + (size_t)n * BLOCK_TOKENS);
        enum shelf_answer found = pc->shelf->find(pc->shelf->ctx, &name);
        if (found != SHELF_YES)
            return found == SHELF_LATER ? ST_AGAIN : ST_OK;
        if (prefix_cache_take(pc, &block) != ST_OK)
            return ST_FULL;
        if (!pc->shelf->load(pc->shelf->ctx, &name, block)) {
            prefix_cache_release(pc, block);
            return ST_OK;
        }
        blocks[n] = prefix_cache_publish(pc, scope, parent, block, name.tokens, BLOCK_TOKENS);
        *n_blocks = n + 1;
    }
    return ST_OK;
}

void prefix_cache_set_time(struct prefix_cache *pc, uint64_t now_ns)
{
    pc->now_ns = now_ns;
}

/* --- the pool and the index ---------------------------------------------------------------------- */

uint32_t prefix_cache_peek(const struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens,
                           uint32_t n_tokens, uint32_t *scratch)
{
    struct prefix_match m;
    prefix_index_match(pc->index, scope, tokens, n_tokens, scratch, &m);
    return prefix_match_tokens(&m);
}

void prefix_cache_match(struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens, uint32_t n_tokens,
                        uint32_t *ret_blocks, struct prefix_match *ret_match)
{
    prefix_index_match(pc->index, scope, tokens, n_tokens, ret_blocks, ret_match);
    for (uint32_t i = 0; i < ret_match->n_blocks; i++)
        kv_cache_pin(pc->kv, ret_blocks[i]);
    if (ret_match->partial != KV_BLOCK_NONE)
        kv_cache_pin(pc->kv, ret_match->partial);
}

enum status prefix_cache_take(struct prefix_cache *pc, uint32_t *ret_block)
{
    bool evicted = false;
    enum status st = kv_cache_take(pc->kv, ret_block, &evicted);
    if (st != ST_OK)
        return st;
    if (evicted) {
        if (is_shelvable(pc, *ret_block) && offer(pc, *ret_block) == SHELF_YES) /* as a rule it is there already */
            pc->evictions.stored++;
        prefix_index_remove(pc->index, *ret_block);
        pc->evictions.for_space++;
        pc->evictions.age_ns += pc->now_ns - pc->released_ns[*ret_block];
    }
    return ST_OK;
}

/* A tail that the new node extends is of no more use; one that somebody is copying from stays until it ages out. */
static void drop_superseded(struct prefix_cache *pc, struct prefix_scope scope, uint32_t parent, const int32_t *tokens,
                            uint32_t n_tokens)
{
    uint32_t b = prefix_index_superseded(pc->index, scope, parent, tokens, n_tokens);
    if (b == KV_BLOCK_NONE || kv_cache_state(pc->kv, b) != KV_CACHED)
        return;
    prefix_index_remove(pc->index, b);
    kv_cache_forget(pc->kv, b);
    pc->evictions.superseded++;
}

uint32_t prefix_cache_publish(struct prefix_cache *pc, struct prefix_scope scope, uint32_t parent, uint32_t block,
                              const int32_t *tokens, uint32_t n_tokens)
{
    assert(kv_cache_pins(pc->kv, block) > 0); /* more than once while somebody copies from it */
    assert(parent == KV_BLOCK_NONE || kv_cache_pins(pc->kv, parent) > 0);

    uint32_t holder = prefix_index_insert(pc->index, scope, parent, block, tokens, n_tokens);
    if (holder == block) {
        kv_cache_publish(pc->kv, block);
        drop_superseded(pc, scope, parent, tokens, n_tokens);
        give_name(pc, block);
        enqueue(pc, block);
    } else {
        kv_cache_pin(pc->kv, holder);
        kv_cache_release(pc->kv, block);
    }
    return holder;
}

void prefix_cache_pin(struct prefix_cache *pc, uint32_t block)
{
    kv_cache_pin(pc->kv, block);
}

void prefix_cache_release(struct prefix_cache *pc, uint32_t block)
{
    kv_cache_release(pc->kv, block);
    pc->released_ns[block] = pc->now_ns;
    enqueue(pc, block);
}

void prefix_cache_pin_path(struct prefix_cache *pc, uint32_t leaf)
{
    for (uint32_t at = leaf; at != KV_BLOCK_NONE; at = prefix_index_parent(pc->index, at))
        kv_cache_pin(pc->kv, at);
}

void prefix_cache_release_path(struct prefix_cache *pc, uint32_t leaf)
{
    for (uint32_t at = leaf, parent; at != KV_BLOCK_NONE; at = parent) { /* from the tail to the head */
        parent = prefix_index_parent(pc->index, at);
        prefix_cache_release(pc, at);
    }
}

uint32_t prefix_cache_parent(const struct prefix_cache *pc, uint32_t block)
{
    return prefix_index_parent(pc->index, block);
}

struct kv_counts prefix_cache_counts(const struct prefix_cache *pc)
{
    return kv_cache_counts(pc->kv);
}

uint32_t prefix_cache_n_blocks(const struct prefix_cache *pc)
{
    return kv_cache_n_blocks(pc->kv);
}

uint32_t prefix_cache_n_available(const struct prefix_cache *pc)
{
    return kv_cache_n_available(pc->kv);
}

struct eviction_counts prefix_cache_evictions(const struct prefix_cache *pc)
{
    return pc->evictions;
}

void prefix_cache_check(const struct prefix_cache *pc)
{
    kv_cache_check(pc->kv);
    prefix_index_check(pc->index);
    for (uint32_t b = 0; b < kv_cache_n_blocks(pc->kv); b++) {
        assert(kv_cache_is_published(pc->kv, b) == prefix_index_has(pc->index, b));
        if (!prefix_index_has(pc->index, b))
            continue;
        uint32_t parent = prefix_index_parent(pc->index, b);
        if (kv_cache_state(pc->kv, b) == KV_PINNED && parent != KV_BLOCK_NONE)
            assert(kv_cache_state(pc->kv, parent) == KV_PINNED);
    }
    uint32_t n_queued = 0;
    for (uint32_t b = 0; pc->shelf != NULL && b < kv_cache_n_blocks(pc->kv); b++)
        n_queued += pc->shelving[b].queued;
    assert(n_queued == pc->n_queued);
    uint32_t oldest = kv_cache_oldest(pc->kv);
    if (oldest != KV_BLOCK_NONE)
        assert(prefix_index_n_children(pc->index, oldest) == 0);
}
