/* token_counts.h - how often each token stands in a sequence: what the penalties are computed from (sampling.h).
 *
 * A list of the distinct tokens, as the backend contract wants it, and a hash table over it.  Kept only for sequences that
 * have a penalty.  Memory: taken once, for as many tokens as the sequence can ever have.  Threads: none. */
#ifndef TOKEN_COUNTS_H
#define TOKEN_COUNTS_H

#include "sampling.h"
#include "status.h"

struct token_counts {
    struct token_count *list; /* [n]; handed to the backend */
    uint32_t n;
    uint32_t *slots;          /* [n_slots] index into list + 1; 0: empty */
    uint32_t n_slots;         /* power of two, at least twice the tokens */
};

/* For a sequence of at most tokens_max tokens of a vocabulary of n_vocab.  ST_OK or ST_NOMEM. */
MUST_CHECK enum status token_counts_init(struct token_counts *c, uint32_t tokens_max, uint32_t n_vocab);
void token_counts_deinit(struct token_counts *c); /* also of one that is all zero */

void token_counts_add_prompt(struct token_counts *c, const int32_t *tokens, uint32_t n_tokens);
void token_counts_add_answer(struct token_counts *c, int32_t token);

#endif
