/* prefix_cache.h - the KV pool and the prefix index as one thing: what the scheduler calls.
 *
 * Keeps the two in step: a block that is taken is first forgotten by the index; a block that is published is known to both.
 * Rules for whoever holds blocks (worker/README.md has the reasons):
 *   - read or write a block only while you hold a pin on it;
 *   - a published block is never written again;
 *   - hold the blocks of a sequence from its first to its last, publish from head to tail, release from tail to head.
 *
 * A shelf may be attached: a place beside the pool that full blocks are copied to and come back from (the host store, by way
 * of block_mover.h).  A published block never changes, so it may be copied at any time while it is published, also while it
 * is pinned: every full block is queued for it when it is published, and again when it is released, so that the shelf knows
 * what was used last; prefix_cache_save_some() works the queue off.  A block that is evicted before its turn is offered to the
 * shelf at that moment.  Tails (less than 16 tokens) are not kept.
 *
 * Threads: none.  Memory: all taken by prefix_cache_new() and prefix_cache_attach(). */
#ifndef PREFIX_CACHE_H
#define PREFIX_CACHE_H

#include "block_name.h"
#include "prefix_index.h"

enum shelf_answer { SHELF_YES, SHELF_NO, SHELF_LATER };

/* The functions are called between two steps.  A copy that one of them starts is ordered before every step and copy that
 * is submitted later (backend.h), so the blocks it names may be used at once. */
struct block_shelf {
    void *ctx;
    struct block_secret secret;
    /* Can this block be loaded?  LATER: yes, but not before the next step. */
    enum shelf_answer (*find)(void *ctx, const struct block_name *name);
    /* Bring it into `block`.  false: it could not be had after all; the block's contents are garbage. */
    bool (*load)(void *ctx, const struct block_name *name, uint32_t block);
    /* Copy the block that holds it to the shelf, or note that it was used if it is there.  YES: it is kept; NO: it cannot be;
     * LATER: ask again after the next step. */
    enum shelf_answer (*save)(void *ctx, const struct block_name *name, uint32_t block);
};

/* Published blocks that left the cache, so far, by reason.  A block that a session or a sequence holds never does. */
struct eviction_counts {
    uint64_t for_space;  /* the block released longest ago made room for another ... */
    uint64_t stored;     /* ... of these, those whose contents the shelf kept */
    uint64_t superseded; /* a tail that a longer one, published later, contains */
    uint64_t age_ns;     /* of those that made room, summed: from the last release to the eviction */
};

struct prefix_cache; /* opaque */

/* ST_OK or ST_NOMEM.  secret keys the index's hash. */
MUST_CHECK enum status prefix_cache_new(uint32_t n_blocks, uint64_t secret, struct prefix_cache **ret_cache);
void prefix_cache_free(struct prefix_cache *pc); /* NULL is fine */

/* Use this shelf, borrowed, from now on; before anything was published.  ST_OK or ST_NOMEM. */
MUST_CHECK enum status prefix_cache_attach(struct prefix_cache *pc, const struct block_shelf *shelf);

/* What the time is, CLOCK_MONOTONIC or a simulator's; only ages are reckoned with it. */
void prefix_cache_set_time(struct prefix_cache *pc, uint64_t now_ns);

/* How many of tokens [n_tokens] are found, without pinning anything.  scratch [n_tokens / BLOCK_TOKENS]. */
uint32_t prefix_cache_peek(const struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens,
                           uint32_t n_tokens, uint32_t *scratch);

/* As prefix_index_match(), and pin what was found: each whole block, and match.partial, once. */
void prefix_cache_match(struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens, uint32_t n_tokens,
                        uint32_t *ret_blocks, struct prefix_match *ret_match);

/* Lengthen a match by whole blocks from the shelf: blocks [*n_blocks] are pinned and hold the beginning of tokens [n_tokens]; what
 * is found of the rest is loaded, published, and pinned likewise.
 *   ST_OK     that was all there is
 *   ST_AGAIN  there is more after the next step
 *   ST_FULL   every block is pinned */
MUST_CHECK enum status prefix_cache_load(struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens,
                                         uint32_t n_tokens, uint32_t *blocks, uint32_t *n_blocks);

/* Offer queued blocks to the shelf, as many as it takes before the next step.  Are there more? */
bool prefix_cache_save_some(struct prefix_cache *pc);

/* Take a block with garbage in it, pinned once, evicting the leaf used longest ago if none is free.  ST_OK or ST_FULL. */
MUST_CHECK enum status prefix_cache_take(struct prefix_cache *pc, uint32_t *ret_block);

/* Publish a block that the caller pins: tokens [n_tokens] below parent (KV_BLOCK_NONE or a full published block it pins).
 * Returns the block that holds these tokens from now on, pinned in place of the given one: the same, or another sequence's
 * that was there first, in which case the given one has been released. */
uint32_t prefix_cache_publish(struct prefix_cache *pc, struct prefix_scope scope, uint32_t parent, uint32_t block,
                              const int32_t *tokens, uint32_t n_tokens);

void prefix_cache_pin(struct prefix_cache *pc, uint32_t block);
void prefix_cache_release(struct prefix_cache *pc, uint32_t block);

/* One pin more, or less, for a full published block and all before it (to be pinned by the caller, or by an earlier call). */
void prefix_cache_pin_path(struct prefix_cache *pc, uint32_t leaf);
void prefix_cache_release_path(struct prefix_cache *pc, uint32_t leaf);
uint32_t prefix_cache_parent(const struct prefix_cache *pc, uint32_t block); /* KV_BLOCK_NONE: it is the first */

struct kv_counts prefix_cache_counts(const struct prefix_cache *pc);
uint32_t prefix_cache_n_blocks(const struct prefix_cache *pc);
uint32_t prefix_cache_n_available(const struct prefix_cache *pc);
struct eviction_counts prefix_cache_evictions(const struct prefix_cache *pc);

void prefix_cache_check(const struct prefix_cache *pc);

#endif
