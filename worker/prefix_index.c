/* prefix_index.c - the radix tree of blocks.
 *
 * A node's children are found through two hash tables, both chained through the nodes:
 *   full   key (parent, all 16 tokens): the one child that holds exactly the next block of a prompt, in constant time;
 *   first  key (parent, first token): all children that begin with a token, to find the longest common beginning.
 * Most steps of a match use the first table; the second is walked once, at the block where a prompt leaves the tree.
 * A per-node child list would make that walk as long as a node has children, and the root has thousands.
 *
 * For the first block of a sequence the scope stands in for the parent in both keys. */
#include "prefix_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum table { FULL, FIRST, N_TABLES };

struct link {
    uint32_t next, before; /* neighbours in the bucket's chain */
};

struct node {
    int32_t tokens[BLOCK_TOKENS];
    struct prefix_scope scope;
    uint32_t parent;
    uint32_t n_children;
    struct link links[N_TABLES];
    uint32_t buckets[N_TABLES]; /* the bucket it is chained in */
    uint8_t n_tokens;           /* 0: not in the tree */
};

struct prefix_index {
    uint32_t n_blocks, n_nodes;
    uint32_t n_buckets; /* power of two */
    uint64_t secret;
    uint32_t *heads[N_TABLES]; /* [n_buckets] */
    struct node *nodes;        /* [n_blocks] */
};

enum status prefix_index_new(uint32_t n_blocks, uint64_t secret, struct prefix_index **ret_index)
{
    struct prefix_index *ix = calloc(1, sizeof(*ix));
    if (ix == NULL)
        return ST_NOMEM;
    ix->n_blocks = n_blocks;
    ix->secret = secret;
    ix->n_buckets = 16;
    while (ix->n_buckets < n_blocks && ix->n_buckets < 1u << 30)
        ix->n_buckets *= 2;
    ix->nodes = calloc(n_blocks, sizeof(*ix->nodes));
    for (int t = 0; t < N_TABLES; t++) {
        ix->heads[t] = malloc(ix->n_buckets * sizeof(uint32_t));
        if (ix->heads[t] != NULL)
            memset(ix->heads[t], 0xff, ix->n_buckets * sizeof(uint32_t)); /* KV_BLOCK_NONE */
    }
    if (ix->nodes == NULL || ix->heads[FULL] == NULL || ix->heads[FIRST] == NULL) {
        prefix_index_free(ix);
        return ST_NOMEM;
    }
    *ret_index = ix;
    return ST_OK;
}

void prefix_index_free(struct prefix_index *ix)
{
    if (ix == NULL)
        return;
    free(ix->heads[FULL]);
    free(ix->heads[FIRST]);
    free(ix->nodes);
    free(ix);
}

static const struct node *node_of(const struct prefix_index *ix, uint32_t block)
{
    assert(block < ix->n_blocks);
    return &ix->nodes[block];
}

/* Bucket for the children of a parent (or scope) that begin with tokens [n]: n is 16 for FULL, 1 for FIRST. */
static uint32_t bucket_of(const struct prefix_index *ix, struct prefix_scope scope, uint32_t parent,
                          const int32_t *tokens, uint32_t n)
{
    struct {
        struct prefix_scope scope;
        uint64_t parent;
        int32_t tokens[BLOCK_TOKENS];
    } key = { .parent = parent };
    if (parent == KV_BLOCK_NONE)
        key.scope = scope;
    memcpy(key.tokens, tokens, n * sizeof(*tokens));
    return (uint32_t)XXH3_64bits_withSeed(&key, sizeof(key), ix->secret + n) & (ix->n_buckets - 1);
}

static bool is_child(const struct node *n, struct prefix_scope scope, uint32_t parent)
{
    return n->parent == parent && (parent != KV_BLOCK_NONE || memcmp(&n->scope, &scope, sizeof(scope)) == 0);
}

static uint32_t common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b)
{
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

static uint32_t find_full(const struct prefix_index *ix, struct prefix_scope scope, uint32_t parent,
                          const int32_t *tokens)
{
    uint32_t b = ix->heads[FULL][bucket_of(ix, scope, parent, tokens, BLOCK_TOKENS)];
    for (; b != KV_BLOCK_NONE; b = ix->nodes[b].links[FULL].next) {
        const struct node *n = &ix->nodes[b];
        if (is_child(n, scope, parent) && memcmp(n->tokens, tokens, sizeof(n->tokens)) == 0)
            break;
    }
    return b;
}

/* The child with the longest common beginning with tokens [n_tokens]. */
static uint32_t find_longest(const struct prefix_index *ix, struct prefix_scope scope, uint32_t parent,
                             const int32_t *tokens, uint32_t n_tokens, uint32_t *ret_common)
{
    uint32_t best = KV_BLOCK_NONE, best_common = 0;
    uint32_t b = ix->heads[FIRST][bucket_of(ix, scope, parent, tokens, 1)];
    for (; b != KV_BLOCK_NONE && best_common < n_tokens; b = ix->nodes[b].links[FIRST].next) {
        const struct node *n = &ix->nodes[b];
        uint32_t c = is_child(n, scope, parent) ? common(n->tokens, n->n_tokens, tokens, n_tokens) : 0;
        if (c > best_common) {
            best_common = c;
            best = b;
        }
    }
    *ret_common = best_common;
    return best;
}

void prefix_index_match(const struct prefix_index *ix, struct prefix_scope scope, const int32_t *tokens,
                        uint32_t n_tokens, uint32_t *ret_blocks, struct prefix_match *ret_match)
{
    struct prefix_match m = { .partial = KV_BLOCK_NONE };
    uint32_t parent = KV_BLOCK_NONE, at = 0;

    for (; n_tokens - at >= BLOCK_TOKENS; at += BLOCK_TOKENS) {
        uint32_t b = find_full(ix, scope, parent, tokens + at);
        if (b == KV_BLOCK_NONE)
            break;
        ret_blocks[m.n_blocks++] = b;
        parent = b;
    }
    uint32_t left = n_tokens - at < BLOCK_TOKENS ? n_tokens - at : BLOCK_TOKENS;
    if (left > 0)
        m.partial = find_longest(ix, scope, parent, tokens + at, left, &m.partial_tokens);
    *ret_match = m;
}

static void chain(struct prefix_index *ix, enum table t, uint32_t bucket, uint32_t block)
{
    struct node *n = &ix->nodes[block];
    uint32_t head = ix->heads[t][bucket];
    n->links[t] = (struct link){ .next = head, .before = KV_BLOCK_NONE };
    n->buckets[t] = bucket;
    if (head != KV_BLOCK_NONE)
        ix->nodes[head].links[t].before = block;
    ix->heads[t][bucket] = block;
}

static void unchain(struct prefix_index *ix, enum table t, uint32_t block)
{
    struct node *n = &ix->nodes[block];
    struct link l = n->links[t];
    if (l.before != KV_BLOCK_NONE)
        ix->nodes[l.before].links[t].next = l.next;
    else
        ix->heads[t][n->buckets[t]] = l.next;
    if (l.next != KV_BLOCK_NONE)
        ix->nodes[l.next].links[t].before = l.before;
}

uint32_t prefix_index_insert(struct prefix_index *ix, struct prefix_scope scope, uint32_t parent, uint32_t block,
                             const int32_t *tokens, uint32_t n_tokens)
{
    assert(n_tokens >= 1 && n_tokens <= BLOCK_TOKENS);
    assert(node_of(ix, block)->n_tokens == 0);
    assert(parent == KV_BLOCK_NONE || node_of(ix, parent)->n_tokens == BLOCK_TOKENS);

    uint32_t n_common = 0, other;
    if (n_tokens == BLOCK_TOKENS) {
        other = find_full(ix, scope, parent, tokens);
        n_common = other == KV_BLOCK_NONE ? 0 : BLOCK_TOKENS;
    } else {
        other = find_longest(ix, scope, parent, tokens, n_tokens, &n_common);
    }
    if (n_common == n_tokens)
        return other;

    struct node *n = &ix->nodes[block];
    memset(n, 0, sizeof(*n));
    memcpy(n->tokens, tokens, n_tokens * sizeof(*tokens));
    n->n_tokens = (uint8_t)n_tokens;
    n->scope = scope;
    n->parent = parent;
    chain(ix, FIRST, bucket_of(ix, scope, parent, tokens, 1), block);
    if (n_tokens == BLOCK_TOKENS)
        chain(ix, FULL, bucket_of(ix, scope, parent, tokens, BLOCK_TOKENS), block);
    if (parent != KV_BLOCK_NONE)
        ix->nodes[parent].n_children++;
    ix->n_nodes++;
    return block;
}

uint32_t prefix_index_superseded(const struct prefix_index *ix, struct prefix_scope scope, uint32_t parent,
                                 const int32_t *tokens, uint32_t n_tokens)
{
    uint32_t b = ix->heads[FIRST][bucket_of(ix, scope, parent, tokens, 1)];
    for (; b != KV_BLOCK_NONE; b = ix->nodes[b].links[FIRST].next) {
        const struct node *n = &ix->nodes[b];
        if (is_child(n, scope, parent) && n->n_tokens < n_tokens &&
            common(n->tokens, n->n_tokens, tokens, n_tokens) == n->n_tokens)
            break;
    }
    return b;
}

void prefix_index_remove(struct prefix_index *ix, uint32_t block)
{
    struct node *n = &ix->nodes[block];
    assert(block < ix->n_blocks && n->n_tokens > 0);
    assert(n->n_children == 0);
    unchain(ix, FIRST, block);
    if (n->n_tokens == BLOCK_TOKENS)
        unchain(ix, FULL, block);
    if (n->parent != KV_BLOCK_NONE)
        ix->nodes[n->parent].n_children--;
    n->n_tokens = 0;
    ix->n_nodes--;
}

bool prefix_index_has(const struct prefix_index *ix, uint32_t block)
{
    return node_of(ix, block)->n_tokens > 0;
}

uint32_t prefix_index_parent(const struct prefix_index *ix, uint32_t block)
{
    assert(prefix_index_has(ix, block));
    return node_of(ix, block)->parent;
}

uint32_t prefix_index_n_children(const struct prefix_index *ix, uint32_t block)
{
    return prefix_index_has(ix, block) ? node_of(ix, block)->n_children : 0;
}

uint32_t prefix_index_n_tokens(const struct prefix_index *ix, uint32_t block)
{
    assert(prefix_index_has(ix, block));
    return node_of(ix, block)->n_tokens;
}

const int32_t *prefix_index_tokens(const struct prefix_index *ix, uint32_t block)
{
    assert(prefix_index_has(ix, block));
    return node_of(ix, block)->tokens;
}

struct prefix_scope prefix_index_scope(const struct prefix_index *ix, uint32_t block)
{
    assert(prefix_index_has(ix, block));
    return node_of(ix, block)->scope;
}

uint32_t prefix_index_n_nodes(const struct prefix_index *ix)
{
    return ix->n_nodes;
}

static uint32_t check_chains(const struct prefix_index *ix, enum table t)
{
    uint32_t n_seen = 0;
    for (uint32_t i = 0; i < ix->n_buckets; i++) {
        uint32_t before = KV_BLOCK_NONE;
        for (uint32_t b = ix->heads[t][i]; b != KV_BLOCK_NONE; before = b, b = ix->nodes[b].links[t].next) {
            const struct node *n = node_of(ix, b);
            assert(n->n_tokens > 0);
            assert(n->links[t].before == before && n->buckets[t] == i);
            assert(bucket_of(ix, n->scope, n->parent, n->tokens, t == FULL ? BLOCK_TOKENS : 1) == i);
            assert(++n_seen <= ix->n_nodes);
        }
    }
    return n_seen;
}

void prefix_index_check(const struct prefix_index *ix)
{
    uint32_t n_nodes = 0, n_full = 0, n_with_parent = 0, n_children = 0;
    for (uint32_t b = 0; b < ix->n_blocks; b++) {
        const struct node *n = &ix->nodes[b];
        if (n->n_tokens == 0)
            continue;
        assert(n->n_tokens <= BLOCK_TOKENS);
        n_nodes++;
        n_full += n->n_tokens == BLOCK_TOKENS;
        n_children += n->n_children;
        if (n->n_tokens < BLOCK_TOKENS)
            assert(n->n_children == 0);
        if (n->parent != KV_BLOCK_NONE) {
            n_with_parent++;
            assert(n->parent != b && node_of(ix, n->parent)->n_tokens == BLOCK_TOKENS);
            assert(memcmp(&node_of(ix, n->parent)->scope, &n->scope, sizeof(n->scope)) == 0);
        }
    }
    assert(n_nodes == ix->n_nodes);
    assert(n_children == n_with_parent);
    assert(check_chains(ix, FIRST) == n_nodes);
    assert(check_chains(ix, FULL) == n_full);
}
