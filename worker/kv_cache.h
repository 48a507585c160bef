/* kv_cache.h - the fixed pool of KV blocks: who holds which block, and which one is given up next.
 *
 * Only numbers live here; the bytes of a block belong to the backend.  A block is always in one of three states:
 *
 *   FREE     contents are garbage
 *   PINNED   pins > 0: a sequence (or a copy) reads or writes it; it cannot be evicted
 *   CACHED   no pins, published: contents valid; sits on the LRU list until it is matched or evicted
 *
 * A copy to or from the host store needs no state: the backend orders it before every later step (block_mover.h).
 *
 *     FREE --take--> PINNED --last release, published--> CACHED --pin--> PINNED
 *       ^              |                                  |
 *       +--<-----------+--last release, not published     |
 *       +--<--forget--------------------------------------+--take (released longest ago first)--> PINNED
 *
 * Published means that the prefix index knows the block's tokens.  This file does not know the index: whoever takes a block
 * is told when it was evicted and has the index forget it (prefix_cache.c does both).
 *
 * Release the blocks of a sequence from its tail to its head.  A child block is pinned only together with all blocks before
 * it, so the list then always has every child on the old side of its parent, and the oldest block is a leaf of the tree.
 *
 * Threads: none; one worker, one thread.  Memory: everything is allocated by kv_cache_new(). */
#ifndef KV_CACHE_H
#define KV_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#define KV_BLOCK_NONE UINT32_MAX

enum kv_state { KV_FREE, KV_PINNED, KV_CACHED };

struct kv_counts { /* blocks in each state; together the size of the pool */
    uint32_t n_free, n_pinned, n_cached;
};

struct kv_cache; /* opaque */

/* A pool of n_blocks (1 .. UINT32_MAX - 1), all FREE.  ST_OK or ST_NOMEM. */
MUST_CHECK enum status kv_cache_new(uint32_t n_blocks, struct kv_cache **ret_kv);
void kv_cache_free(struct kv_cache *kv); /* NULL is fine */

/* Take a block with garbage in it and pin it once: a FREE one, else the CACHED one released longest ago.
 *   ST_OK    *ret_block is pinned; *ret_evicted says whether it was CACHED: the index must forget it before anything else
 *   ST_FULL  every block is pinned; nothing changed.  Normal under load: preempt a sequence. */
MUST_CHECK enum status kv_cache_take(struct kv_cache *kv, uint32_t *ret_block, bool *ret_evicted);

/* Add a pin to a PINNED or CACHED block. */
void kv_cache_pin(struct kv_cache *kv, uint32_t block);

/* Drop one pin.  With the last one a published block becomes the youngest CACHED one, another FREE. */
void kv_cache_release(struct kv_cache *kv, uint32_t block);

/* Mark a PINNED block as known to the index: from now on it is not written, and kept when it is released. */
void kv_cache_publish(struct kv_cache *kv, uint32_t block);

/* The index no longer knows this published block: CACHED becomes FREE, PINNED stays pinned until its last release. */
void kv_cache_forget(struct kv_cache *kv, uint32_t block);

uint32_t kv_cache_n_blocks(const struct kv_cache *kv);
uint32_t kv_cache_n_available(const struct kv_cache *kv); /* what take() can hand out: FREE and CACHED */
struct kv_counts kv_cache_counts(const struct kv_cache *kv);
enum kv_state kv_cache_state(const struct kv_cache *kv, uint32_t block);
uint32_t kv_cache_pins(const struct kv_cache *kv, uint32_t block);
bool kv_cache_is_published(const struct kv_cache *kv, uint32_t block);
uint32_t kv_cache_oldest(const struct kv_cache *kv); /* the CACHED block to be evicted next; KV_BLOCK_NONE: none */

/* Walk everything; abort at the first broken invariant.  O(n_blocks): tests call it after every operation. */
void kv_cache_check(const struct kv_cache *kv);

#endif
