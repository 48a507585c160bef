/* prefix_cache.h - the KV pool and the prefix index as one thing: what the scheduler calls.
 *
 * Keeps the two in step: a block that is taken is first forgotten by the index; a block that is published is known to both.
 * Rules for whoever holds blocks (worker/README.md has the reasons):
 *   - read or write a block only while you hold a pin on it;
 *   - a published block is never written again;
 *   - hold the blocks of a sequence from its first to its last, publish from head to tail, release from tail to head.
 *
 * Threads: none.  Memory: all taken by prefix_cache_new(). */
#ifndef PREFIX_CACHE_H
#define PREFIX_CACHE_H

#include "prefix_index.h"

struct prefix_cache; /* opaque */

/* ST_OK or ST_NOMEM.  secret keys the index's hash. */
MUST_CHECK enum status prefix_cache_new(uint32_t n_blocks, uint64_t secret, struct prefix_cache **ret_cache);
void prefix_cache_free(struct prefix_cache *pc); /* NULL is fine */

/* How many of tokens [n_tokens] are found, without pinning anything.  scratch [n_tokens / BLOCK_TOKENS]. */
uint32_t prefix_cache_peek(const struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens,
                           uint32_t n_tokens, uint32_t *scratch);

/* As prefix_index_match(), and pin what was found: each whole block, and match.partial, once. */
void prefix_cache_match(struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens, uint32_t n_tokens,
                        uint32_t *ret_blocks, struct prefix_match *ret_match);

/* Take a block with garbage in it, pinned once, evicting the leaf used longest ago if none is free.  ST_OK or ST_FULL. */
MUST_CHECK enum status prefix_cache_take(struct prefix_cache *pc, uint32_t *ret_block);

/* Publish a block that the caller pins: tokens [n_tokens] below parent (KV_BLOCK_NONE or a full published block it pins).
 * Returns the block that holds these tokens from now on, pinned in place of the given one: the same, or another sequence's
 * that was there first, in which case the given one has been released. */
uint32_t prefix_cache_publish(struct prefix_cache *pc, struct prefix_scope scope, uint32_t parent, uint32_t block,
                              const int32_t *tokens, uint32_t n_tokens);

void prefix_cache_pin(struct prefix_cache *pc, uint32_t block);
void prefix_cache_release(struct prefix_cache *pc, uint32_t block);

struct kv_counts prefix_cache_counts(const struct prefix_cache *pc);
uint32_t prefix_cache_n_blocks(const struct prefix_cache *pc);
uint32_t prefix_cache_n_available(const struct prefix_cache *pc);
uint64_t prefix_cache_evictions(const struct prefix_cache *pc); /* blocks evicted to make room, so far */

void prefix_cache_check(const struct prefix_cache *pc);

#endif
