/* The prefix index against a list of token sequences that is searched from end to end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/random.h"
#include "worker/prefix_cache.h"
#include "worker/prefix_index.h"

enum { N = 64, DEPTH = 5, LONGEST = DEPTH * BLOCK_TOKENS };

static struct random rng;
static const struct prefix_scope scope_a = { { 1, 2 } }, scope_b = { { 1, 3 } };

struct path { /* what the oracle knows of a node: all tokens from the beginning to its end */
    bool used;
    struct prefix_scope scope;
    uint32_t parent, n_tokens, n_children;
    int32_t tokens[LONGEST];
};
static struct path paths[N];

static uint32_t common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b)
{
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

static bool same_scope(struct prefix_scope a, struct prefix_scope b)
{
    return a.id[0] == b.id[0] && a.id[1] == b.id[1];
}

static uint32_t oracle_longest(struct prefix_scope scope, const int32_t *tokens, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < N; i++) {
        if (!paths[i].used || !same_scope(paths[i].scope, scope))
            continue;
        uint32_t c = common(paths[i].tokens, paths[i].n_tokens, tokens, n);
        best = c > best ? c : best;
    }
    return best;
}

/* Few tokens and much repetition, so that paths share beginnings of every length. */
static uint32_t random_tokens(int32_t *tokens)
{
    uint32_t n = 1 + random_below(&rng, LONGEST);
    int32_t style = (int32_t)random_below(&rng, 3);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = random_below(&rng, 24) == 0 ? (int32_t)random_below(&rng, 3) : style;
    return n;
}

static void check_match(struct prefix_index *ix, struct prefix_scope scope, const int32_t *tokens, uint32_t n)
{
    uint32_t blocks[DEPTH];
    struct prefix_match m;
    prefix_index_match(ix, scope, tokens, n, blocks, &m);
    assert_int_equal(prefix_match_tokens(&m), oracle_longest(scope, tokens, n));
    assert_int_equal(m.partial == KV_BLOCK_NONE, m.partial_tokens == 0);
    for (uint32_t i = 0; i < m.n_blocks; i++) {
        const struct path *p = &paths[blocks[i]];
        assert_true(p->used && same_scope(p->scope, scope) && p->n_tokens == (i + 1) * BLOCK_TOKENS);
        assert_memory_equal(p->tokens, tokens, p->n_tokens * sizeof(*tokens));
    }
    if (m.partial != KV_BLOCK_NONE) {
        const struct path *p = &paths[m.partial];
        assert_true(p->used && same_scope(p->scope, scope));
        assert_true(common(p->tokens, p->n_tokens, tokens, n) == prefix_match_tokens(&m));
    }
}

/* Put a path in, node by node, as a sequence would publish it. */
static void insert_path(struct prefix_index *ix, struct prefix_scope scope, const int32_t *tokens, uint32_t n)
{
    uint32_t parent = KV_BLOCK_NONE;
    for (uint32_t at = 0; at < n; at += BLOCK_TOKENS) {
        uint32_t end = n - at < BLOCK_TOKENS ? n : at + BLOCK_TOKENS, block = 0;
        while (block < N && paths[block].used)
            block++;
        if (block == N)
            return;
        uint32_t holder = prefix_index_insert(ix, scope, parent, block, tokens + at, end - at);
        if (holder == block) {
            paths[block] = (struct path){ .used = true, .scope = scope, .parent = parent, .n_tokens = end };
            memcpy(paths[block].tokens, tokens, end * sizeof(*tokens));
            if (parent != KV_BLOCK_NONE)
                paths[parent].n_children++;
        } else {
            assert_true(paths[holder].used && paths[holder].n_tokens >= end);
            assert_memory_equal(paths[holder].tokens, tokens, end * sizeof(*tokens));
        }
        parent = holder;
    }
}

static void remove_any_leaf(struct prefix_index *ix)
{
    uint32_t start = random_below(&rng, N);
    for (uint32_t i = 0; i < N; i++) {
        struct path *p = &paths[(start + i) % N];
        if (!p->used || p->n_children > 0)
            continue;
        prefix_index_remove(ix, (start + i) % N);
        p->used = false;
        if (p->parent != KV_BLOCK_NONE)
            paths[p->parent].n_children--;
        return;
    }
}

static void behaves_like_a_list_of_sequences(void **state)
{
    (void)state;
    struct prefix_index *ix = NULL;
    int32_t tokens[LONGEST];
    assert_int_equal(prefix_index_new(N, 99, &ix), ST_OK);
    memset(paths, 0, sizeof(paths));
    for (uint64_t i = 0; i < random_ops(); i++) {
        struct prefix_scope scope = random_below(&rng, 4) == 0 ? scope_b : scope_a;
        uint32_t op = random_below(&rng, 10), n = random_tokens(tokens);
        if (op < 4)
            check_match(ix, scope, tokens, n);
        else if (op < 6)
            insert_path(ix, scope, tokens, n);
        else
            remove_any_leaf(ix);
        prefix_index_check(ix);
        uint32_t n_nodes = 0;
        for (uint32_t b = 0; b < N; b++) {
            assert_int_equal(prefix_index_has(ix, b), paths[b].used);
            n_nodes += paths[b].used;
        }
        assert_int_equal(prefix_index_n_nodes(ix), n_nodes);
    }
    prefix_index_free(ix);
}

static void a_longer_tail_makes_a_shorter_one_useless(void **state)
{
    (void)state;
    struct prefix_index *ix = NULL;
    int32_t tokens[BLOCK_TOKENS];
    for (int32_t i = 0; i < BLOCK_TOKENS; i++)
        tokens[i] = i;
    assert_int_equal(prefix_index_new(4, 5, &ix), ST_OK);
    assert_int_equal(prefix_index_insert(ix, scope_a, KV_BLOCK_NONE, 0, tokens, 5), 0);
    assert_int_equal(prefix_index_insert(ix, scope_a, KV_BLOCK_NONE, 1, tokens, 3), 0); /* begins like block 0 */
    assert_int_equal(prefix_index_superseded(ix, scope_a, KV_BLOCK_NONE, tokens, 5), KV_BLOCK_NONE);
    assert_int_equal(prefix_index_superseded(ix, scope_a, KV_BLOCK_NONE, tokens, 6), 0);
    assert_int_equal(prefix_index_superseded(ix, scope_b, KV_BLOCK_NONE, tokens, 6), KV_BLOCK_NONE);
    assert_int_equal(prefix_index_insert(ix, scope_a, KV_BLOCK_NONE, 1, tokens, BLOCK_TOKENS), 1);
    prefix_index_check(ix);
    prefix_index_free(ix);
}

/* --- pool and index together --- */

static void publish_and_release(struct prefix_cache *pc, struct prefix_scope scope, const int32_t *tokens, uint32_t n)
{
    uint32_t blocks[DEPTH], n_blocks = 0;
    for (uint32_t at = 0; at < n; at += BLOCK_TOKENS) {
        if (prefix_cache_take(pc, &blocks[n_blocks]) != ST_OK)
            break;
        uint32_t n_here = n - at < BLOCK_TOKENS ? n - at : BLOCK_TOKENS;
        uint32_t parent = n_blocks > 0 ? blocks[n_blocks - 1] : KV_BLOCK_NONE;
        blocks[n_blocks] = prefix_cache_publish(pc, scope, parent, blocks[n_blocks], tokens + at, n_here);
        n_blocks++;
    }
    while (n_blocks > 0)
        prefix_cache_release(pc, blocks[--n_blocks]);
}

static void the_oldest_cached_block_is_always_a_leaf(void **state)
{
    (void)state;
    struct prefix_cache *pc = NULL;
    int32_t tokens[LONGEST];
    assert_int_equal(prefix_cache_new(24, 7, &pc), ST_OK);
    uint32_t held[8][DEPTH], n_held[8] = { 0 }, partial[8];
    for (uint64_t i = 0; i < random_ops(); i++) {
        struct prefix_scope scope = random_below(&rng, 4) == 0 ? scope_b : scope_a;
        uint32_t n = random_tokens(tokens), slot = random_below(&rng, 8);
        if (n_held[slot] > 0) { /* release, from the tail */
            if (partial[slot] != KV_BLOCK_NONE)
                prefix_cache_release(pc, partial[slot]);
            for (n_held[slot]--; n_held[slot] > 0; n_held[slot]--)
                prefix_cache_release(pc, held[slot][n_held[slot] - 1]);
        } else if (random_below(&rng, 2) == 0) {
            struct prefix_match m;
            assert_int_equal(prefix_cache_peek(pc, scope, tokens, n, held[slot]),
                             (prefix_cache_match(pc, scope, tokens, n, held[slot], &m), prefix_match_tokens(&m)));
            n_held[slot] = m.n_blocks + 1;
            partial[slot] = m.partial;
        } else {
            publish_and_release(pc, scope, tokens, n);
        }
        prefix_cache_check(pc); /* asserts it */
    }
    assert_true(prefix_cache_evictions(pc).for_space > 0);
    prefix_cache_free(pc);
}

static void two_copies_of_a_block_become_one(void **state)
{
    (void)state;
    struct prefix_cache *pc = NULL;
    int32_t tokens[BLOCK_TOKENS] = { 0 };
    uint32_t a = KV_BLOCK_NONE, b = KV_BLOCK_NONE;
    assert_int_equal(prefix_cache_new(4, 7, &pc), ST_OK);
    assert_int_equal(prefix_cache_take(pc, &a), ST_OK);
    assert_int_equal(prefix_cache_take(pc, &b), ST_OK);
    assert_int_equal(prefix_cache_publish(pc, scope_a, KV_BLOCK_NONE, a, tokens, BLOCK_TOKENS), a);
    assert_int_equal(prefix_cache_publish(pc, scope_a, KV_BLOCK_NONE, b, tokens, BLOCK_TOKENS), a);
    assert_int_equal(prefix_cache_counts(pc).n_pinned, 1);
    assert_int_equal(prefix_cache_counts(pc).n_free, 3);
    prefix_cache_release(pc, a);
    assert_int_equal(prefix_cache_counts(pc).n_pinned, 1);
    prefix_cache_release(pc, a);
    assert_int_equal(prefix_cache_counts(pc).n_cached, 1);
    prefix_cache_check(pc);
    prefix_cache_free(pc);
}

int main(int argc, char **argv)
{
    rng = random_start(argc, argv, 100000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_longer_tail_makes_a_shorter_one_useless),
        cmocka_unit_test(two_copies_of_a_block_become_one),
        cmocka_unit_test(behaves_like_a_list_of_sequences),
        cmocka_unit_test(the_oldest_cached_block_is_always_a_leaf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
