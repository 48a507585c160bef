/* tokenizer_tables.c - hash tables over tokens and merge rules, and the tree of special texts.
 *
 * Hashes are XXH3 of the name, so a crafted vocabulary can at worst make its own loading slow.  The merge rules sit in the
 * table themselves: looking up a pair, the innermost step of encoding, touches one cache line as a rule. */
#include "tokenizer_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "limits.h"

enum status id_table_init(struct id_table *table, uint32_t n)
{
    uint32_t n_slots = 16;

    assert(n <= VOCAB_MAX);
    while (n_slots < 2 * n)
        n_slots *= 2;
    table->slots = calloc(n_slots, sizeof(*table->slots));
    table->mask = n_slots - 1;
    return table->slots != NULL ? ST_OK : ST_NOMEM;
}

typedef struct span name_fn(const struct tokenizer *t, uint32_t id);

static uint32_t *find_slot(const struct id_table *table, const struct tokenizer *t, struct span name,
                           name_fn *name_of)
{
    uint32_t i = (uint32_t)XXH3_64bits(name.at, name.n) & table->mask;

    while (table->slots[i] != 0 && !span_equal(name_of(t, table->slots[i] - 1), name))
        i = (i + 1) & table->mask;
    return &table->slots[i];
}

static bool add_to(struct id_table *table, struct tokenizer *t, uint32_t id, name_fn *name_of)
{
    uint32_t *slot = find_slot(table, t, name_of(t, id), name_of);

    if (*slot != 0)
        return false;
    *slot = id + 1;
    return true;
}

bool texts_add(struct tokenizer *t, uint32_t id)
{
    return add_to(&t->texts, t, id, token_text);
}

bool pieces_add(struct tokenizer *t, uint32_t id)
{
    return add_to(&t->pieces, t, id, token_piece);
}

int32_t texts_find(const struct tokenizer *t, struct span text)
{
    return (int32_t)*find_slot(&t->texts, t, text, token_text) - 1; /* TOKEN_NONE for an empty slot */
}

int32_t pieces_find(const struct tokenizer *t, struct span piece)
{
    return (int32_t)*find_slot(&t->pieces, t, piece, token_piece) - 1;
}
_Static_assert(TOKEN_NONE == -1, "an empty slot is id + 1 of no token");

/* --- merge rules ----------------------------------------------------------------------------------------------------- */

enum status pair_table_init(struct pair_table *table, uint32_t n)
{
    uint32_t n_slots = 16;

    assert(n <= MERGES_MAX);
    while (n_slots < n + n / 2 + 1)
        n_slots *= 2;
    table->slots = malloc(n_slots * sizeof(*table->slots));
    table->mask = n_slots - 1;
    if (table->slots == NULL)
        return ST_NOMEM;
    for (uint32_t i = 0; i < n_slots; i++)
        table->slots[i] = (struct pair_rule){TOKEN_NONE, TOKEN_NONE, PAIR_NONE, TOKEN_NONE};
    return ST_OK;
}

static struct pair_rule *pair_slot(const struct pair_table *table, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i;

    key *= UINT64_C(0x9E3779B97F4A7C15); /* 2^64 / golden ratio: spreads small numbers over the high bits */
    key ^= key >> 29;
    i = (uint32_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 32) & table->mask;
    while (table->slots[i].left != TOKEN_NONE &&
           (table->slots[i].left != left || table->slots[i].right != right))
        i = (i + 1) & table->mask;
    return &table->slots[i];
}

void pair_table_add(struct pair_table *table, struct pair_rule rule)
{
    struct pair_rule *slot = pair_slot(table, rule.left, rule.right);

    if (slot->left == TOKEN_NONE)
        *slot = rule;
}

const struct pair_rule *pair_table_find(const struct pair_table *table, int32_t left, int32_t right)
{
    const struct pair_rule *slot;

    if (left == TOKEN_NONE || right == TOKEN_NONE)
        return NULL;
    slot = pair_slot(table, left, right);
    return slot->left != TOKEN_NONE ? slot : NULL;
}

/* --- special texts --------------------------------------------------------------------------------------------------- */

static enum status add_node(struct special_tree *tree, uint8_t byte, uint32_t sibling, uint32_t *ret_node)
{
    if (tree->n_nodes == tree->cap) {
        uint32_t cap = tree->cap == 0 ? 256 : 2 * tree->cap;
        struct special_node *nodes;

        if (cap > 2 * SPECIAL_TOKENS_BYTES_MAX)
            return ST_LIMIT;
        nodes = realloc(tree->nodes, cap * sizeof(*nodes));
        if (nodes == NULL)
            return ST_NOMEM;
        tree->nodes = nodes;
        tree->cap = cap;
        if (tree->n_nodes == 0)
            tree->nodes[tree->n_nodes++] = (struct special_node){0, 0, TOKEN_NONE, 0};
    }
    tree->nodes[tree->n_nodes] = (struct special_node){0, sibling, TOKEN_NONE, byte};
    *ret_node = tree->n_nodes++;
    return ST_OK;
}

/* The child of a node for a byte; 0 when there is none. */
static uint32_t find_child(const struct special_tree *tree, uint32_t node, uint8_t byte)
{
    uint32_t c = node == 0 ? tree->first[byte] : tree->nodes[node].child;

    while (c != 0 && tree->nodes[c].byte != byte)
        c = tree->nodes[c].sibling;
    return c;
}

enum status special_tree_add(struct special_tree *tree, struct span text, int32_t id)
{
    uint32_t node = 0;

    assert(text.n > 0);
    for (size_t i = 0; i < text.n; i++) {
        uint32_t c = find_child(tree, node, text.at[i]);

        if (c == 0) {
            enum status st = add_node(tree, text.at[i], node == 0 ? 0 : tree->nodes[node].child, &c);

            if (st != ST_OK)
                return st;
            if (node == 0)
                tree->first[text.at[i]] = c;
            else
                tree->nodes[node].child = c;
        }
        node = c;
    }
    if (tree->nodes[node].id == TOKEN_NONE)
        tree->nodes[node].id = id;
    return ST_OK;
}

int32_t special_tree_match(const struct tokenizer *t, struct span text, size_t control_bytes, uint64_t *work)
{
    const struct special_tree *tree = &t->special;
    uint32_t node = 0;
    int32_t found = TOKEN_NONE;

    for (size_t i = 0; i < text.n; i++) {
        node = find_child(tree, node, text.at[i]);
        (*work)++;
        if (node == 0)
            break;
        int32_t id = tree->nodes[node].id;

        if (id != TOKEN_NONE && (!token_needs_control(&t->tokens[id]) || i < control_bytes))
            found = id;
    }
    return found;
}
