/* block_name.h - what a full block of keys and values is called outside of one worker's prefix index.
 *
 * The bytes of a block depend on its tokens and on all tokens before them.  Inside a worker the prefix index compares them
 * all; between workers a block is named by a chain of keyed hashes:
 *
 *     key(no block)  = H(secret, scope)
 *     key(block i)   = H(secret, key(block i - 1), tokens of block i)
 *
 * H is SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012), keyed with 128 random bits that the broker draws at
 * start and shows to its workers only.
 *
 * Why an equal key is enough to believe that all tokens before the block are equal too, and with them scope and position:
 * a false match needs two different chains with one key, that is a collision of H.  SipHash is a pseudo-random function: who
 * does not know the secret, and sees no key (none ever leaves the workers), can do no better than chance to make one.  By
 * chance, among n blocks the probability is about n^2 / 2^129: for the ten thousand million blocks that a busy pool may
 * name in its life, less than 2^-62, far below that of a flipped bit in memory that goes unseen.  What can be
 * compared at no cost is compared all the same: scope, position, the parent's key and the block's own tokens.  So even a
 * collision could not cross scopes. */
#ifndef BLOCK_NAME_H
#define BLOCK_NAME_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "prefix_index.h"

struct block_key {
    uint64_t h[2];
};

struct block_secret {
    uint64_t k[2];
};

struct block_name {
    struct prefix_scope scope;
    struct block_key key, parent;
    uint32_t position;      /* which block of its sequence, from 0 */
    const int32_t *tokens;  /* [BLOCK_TOKENS]; borrowed */
};

struct block_key block_key_root(const struct block_secret *s, struct prefix_scope scope);
struct block_key block_key_next(const struct block_secret *s, struct block_key parent, const int32_t tokens[BLOCK_TOKENS]);

static inline bool block_key_equal(struct block_key a, struct block_key b)
{
    return a.h[0] == b.h[0] && a.h[1] == b.h[1];
}

#endif
