/* prefix_index.h - finds published KV blocks by the tokens they hold: a radix tree whose nodes are whole blocks.
 *
 *     (scope A)                      (scope B)
 *        |                              |
 *   [16 tokens] block 7            [16 tokens] block 2
 *     |        \                        |
 *   [16] b 3   [16] b 9            [5 tokens] b 4      a tail: 1..15 tokens, always a leaf
 *     |
 *   [16] b 5
 *
 * A node is named by its block.  It holds its tokens; its key and value bytes depend on them and on all tokens before it,
 * so two nodes of one parent never hold the same tokens, and none holds a beginning of another's when it is put in.
 * A scope says whose blocks a request may meet (a user, the pool, a salt): nodes of different scopes never meet.
 *
 * A hash only finds candidates; the tokens are always compared, so a collision costs time and never an answer.
 * The hash is keyed by a secret, so nobody can make collisions on purpose.
 *
 * The index knows nothing of pins: its user removes a leaf when the block is taken for something else.
 * Threads: none.  Memory: all taken by prefix_index_new(). */
#ifndef PREFIX_INDEX_H
#define PREFIX_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "kv_cache.h"
#include "limits.h"
#include "status.h"

struct prefix_scope {
    uint64_t id[2];
};

struct prefix_match {
    uint32_t n_blocks;      /* whole blocks matched from the beginning */
    uint32_t partial;       /* the block whose beginning goes on from there; KV_BLOCK_NONE: none */
    uint32_t partial_tokens; /* how many of its tokens, 1 .. BLOCK_TOKENS - 1 unless none */
};

static inline uint32_t prefix_match_tokens(const struct prefix_match *m)
{
    return m->n_blocks * BLOCK_TOKENS + m->partial_tokens;
}

struct prefix_index; /* opaque */

/* An empty index for blocks 0 .. n_blocks - 1.  ST_OK or ST_NOMEM. */
MUST_CHECK enum status prefix_index_new(uint32_t n_blocks, uint64_t secret, struct prefix_index **ret_index);
void prefix_index_free(struct prefix_index *ix); /* NULL is fine */

/* Find the longest beginning of tokens [n_tokens] that published blocks of this scope hold, exact to the token.
 * The ids of the whole blocks go to ret_blocks [n_tokens / BLOCK_TOKENS]. */
void prefix_index_match(const struct prefix_index *ix, struct prefix_scope scope, const int32_t *tokens,
                        uint32_t n_tokens, uint32_t *ret_blocks, struct prefix_match *ret_match);

/* Put in a node below parent (a full block of the same scope, or KV_BLOCK_NONE for the first of a sequence).
 * n_tokens is 1 .. BLOCK_TOKENS; less than BLOCK_TOKENS makes a tail.  Returns
 *   block            it was put in
 *   another block    that one already holds these tokens (or, for a tail, begins with them); nothing changed */
uint32_t prefix_index_insert(struct prefix_index *ix, struct prefix_scope scope, uint32_t parent, uint32_t block,
                             const int32_t *tokens, uint32_t n_tokens);

/* A tail below parent that holds a true beginning of tokens [n_tokens], so that a node with them makes it useless;
 * KV_BLOCK_NONE when there is none. */
uint32_t prefix_index_superseded(const struct prefix_index *ix, struct prefix_scope scope, uint32_t parent,
                                 const int32_t *tokens, uint32_t n_tokens);

/* Take a leaf out. */
void prefix_index_remove(struct prefix_index *ix, uint32_t block);

bool prefix_index_has(const struct prefix_index *ix, uint32_t block);
uint32_t prefix_index_parent(const struct prefix_index *ix, uint32_t block);     /* KV_BLOCK_NONE: the first of its scope */
uint32_t prefix_index_n_children(const struct prefix_index *ix, uint32_t block);
uint32_t prefix_index_n_tokens(const struct prefix_index *ix, uint32_t block);   /* 1 .. BLOCK_TOKENS */
const int32_t *prefix_index_tokens(const struct prefix_index *ix, uint32_t block); /* [n_tokens], until it is removed */
struct prefix_scope prefix_index_scope(const struct prefix_index *ix, uint32_t block);
uint32_t prefix_index_n_nodes(const struct prefix_index *ix);

/* Walk everything; abort at the first broken invariant. */
void prefix_index_check(const struct prefix_index *ix);

#endif
