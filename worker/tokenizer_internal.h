/* tokenizer_internal.h - the tables that tokenizer.c fills and encoder.c looks things up in.  Nobody else includes it. */
#ifndef TOKENIZER_INTERNAL_H
#define TOKENIZER_INTERNAL_H

#include "splitter.h"
#include "tokenizer.h"

/* The numbers are those of tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_UNDEFINED,
    TOKEN_NORMAL,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE,
    TOKEN_TYPE_COUNT
};

struct token {
    uint32_t text_at, piece_at; /* in tokenizer.bytes */
    uint16_t text_n, piece_n;
    uint8_t type;
    bool is_end;
    bool
        is_guarded; /* not a control token, but its text is one of the known ends: plain text never becomes it */
};

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_SPM };

/* Open addressing over ids; what is compared (text or piece) the caller says. */
struct id_table {
    uint32_t *slots; /* id + 1, 0 = empty */
    uint32_t mask;
};

/* A merge rule: two ids that may become one. */
struct pair_rule {
    int32_t left, right; /* left TOKEN_NONE: empty */
    uint32_t rank;       /* smaller goes first */
    int32_t merged;
};

struct pair_table {
    struct pair_rule *slots;
    uint32_t mask;
};

/* Texts that are found whole: control, user-defined and unknown tokens, as a tree of bytes. */
struct special_node {
    uint32_t child, sibling; /* 0 = none; the root is node 0 */
    int32_t id;              /* the token that ends here, or TOKEN_NONE */
    uint8_t byte;
};

struct special_tree {
    struct special_node *nodes;
    uint32_t n_nodes, cap;
    uint32_t first[256]; /* children of the root by byte */
};

struct tokenizer {
    enum tokenizer_kind kind;
    const struct splitter_name *splitter; /* BPE */
    uint32_t n_tokens;
    struct token *tokens;
    uint8_t *bytes; /* texts and pieces */
    int32_t bos, eos, eot, eom, unknown;
    bool adds_bos, adds_space_prefix;
    struct id_table texts;  /* every token by its text */
    struct id_table pieces; /* those that ordinary text may become, by their piece */
    uint32_t piece_bytes_max;
    struct special_tree special;
    struct pair_table pairs;  /* BPE: the merge list */
    int32_t byte_tokens[256]; /* BPE: the byte's own token; SPM: <0xXX>; TOKEN_NONE where there is none */
    uint32_t *
        ranks; /* SPM: [n_tokens] place of the token when sorted by score, best first; equal scores, equal ranks */
};

enum { PAIR_NONE = UINT32_MAX }; /* no rank */

static inline struct span token_text(const struct tokenizer *t, uint32_t id)
{
    return span_of(t->bytes + t->tokens[id].text_at, t->tokens[id].text_n);
}

static inline struct span token_piece(const struct tokenizer *t, uint32_t id)
{
    return span_of(t->bytes + t->tokens[id].piece_at, t->tokens[id].piece_n);
}

static inline bool token_is_control(const struct token *k)
{
    return k->type == TOKEN_CONTROL || k->type == TOKEN_UNKNOWN;
}

/* Found only where the caller lets text spell control tokens. */
static inline bool token_needs_control(const struct token *k)
{
    return token_is_control(k) || k->is_guarded;
}

/* --- tokenizer_tables.c --- */

MUST_CHECK enum status id_table_init(struct id_table *table, uint32_t n);
/* Add id under its text, or its piece.  The first of equal names stays: false when there was one. */
bool texts_add(struct tokenizer *t, uint32_t id);
bool pieces_add(struct tokenizer *t, uint32_t id);
int32_t texts_find(const struct tokenizer *t, struct span text);
int32_t pieces_find(const struct tokenizer *t, struct span piece);

MUST_CHECK enum status pair_table_init(struct pair_table *table, uint32_t n);
/* The first rule for a pair stays. */
void pair_table_add(struct pair_table *table, struct pair_rule rule);
/* The rule for a pair; NULL when they do not merge. */
const struct pair_rule *pair_table_find(const struct pair_table *table, int32_t left, int32_t right);

/* ST_OK, ST_LIMIT, ST_NOMEM */
MUST_CHECK enum status special_tree_add(struct special_tree *tree, struct span text, int32_t id);
/* The longest special token that text begins with: user-defined ones always, those that need control
 * only up to control_bytes.  Returns its id or TOKEN_NONE; adds the nodes visited to *work. */
int32_t special_tree_match(const struct tokenizer *t, struct span text, size_t control_bytes, uint64_t *work);

#endif
