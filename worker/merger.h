/* merger.h - merge the symbols of one word into tokens, best pair first.
 *
 * Both kinds of vocabulary merge the same way: of all adjacent pairs that may become one token, take the one of the smallest
 * rank, of equal ones the leftmost; repeat until none is left.  They differ in what a symbol is at first (byte or
 * character) and where the rank comes from (the merge list, or the score of the token that both make).
 *
 *   symbols   0    1    2    3            a list over the word; a merged symbol swallows its right neighbour
 *             h <> e <> l <> lo
 *   heap      (rank, left symbol), smallest first; an entry whose symbol's pair has another rank by now is stale and skipped
 *
 * Each merge adds at most two entries, so the heap holds at most three times the symbols and the whole takes n log n steps.
 * It stops whenever its budget is used up and goes on where it was.
 *
 * Memory: borrowed from the encoder; nothing is allocated here. */
#ifndef MERGER_H
#define MERGER_H

#include "tokenizer_internal.h"

struct symbol {
    int32_t id;          /* TOKEN_NONE: a byte or character that is no token by itself */
    uint32_t at;         /* first byte in the word; it ends where the next one begins */
    uint32_t prev, next; /* SYMBOL_END at the ends */
    uint32_t rank;       /* of the pair with next; PAIR_NONE: none, or swallowed */
    int32_t merged;      /* what that pair becomes */
};

enum { SYMBOL_END = UINT32_MAX, MERGER_HEAP_FACTOR = 3 };

enum merger_phase { MERGER_LOAD, MERGER_MERGE, MERGER_EMIT, MERGER_DONE };

struct merger {
    const struct tokenizer *t;
    struct symbol *symbols; /* room for one per byte of the word */
    uint64_t *heap;         /* rank << 32 | symbol; room for MERGER_HEAP_FACTOR times as many */
    struct span word;
    enum merger_phase phase;
    uint32_t n_symbols, n_heap;
    uint32_t at;        /* LOAD: next byte; EMIT: next symbol */
    uint32_t n_touched; /* the most symbols ever used, for giving memory back */
};

/* Where tokens go.  The room is the caller's business: at most three a byte. */
struct id_list {
    int32_t *at;
    size_t n, cap;
    uint64_t dropped_bytes;
};

void merger_begin(struct merger *m, struct span word);

/* Go on until the word is done (true) or *work reached work_end (false).  Ids are appended to out as they are final. */
bool merger_step(struct merger *m, struct id_list *out, uint64_t *work, uint64_t work_end);

void id_list_add(struct id_list *list, int32_t id);

#endif
