/* fake_backend.h - a backend without a model: it checks the worker's bookkeeping instead of multiplying matrices.
 *
 * A position of a block holds {token, position, chain}: chain is a hash of the chain before it and this token.  Before a
 * step uses a sequence's past it walks all of it: a block that was never written, was given to somebody else, or was
 * copied too early breaks the chain and aborts with a message.  The token it samples is a hash of the chain, the seed (unless
 * greedy), the choice and the index, so what a sequence must answer can be computed from its tokens alone: fake_token().
 *
 * It also checks every plan against backend.h: entries, rows, no block written by one entry and touched by another. */
#ifndef FAKE_BACKEND_H
#define FAKE_BACKEND_H

#include "backend.h"

enum { FAKE_VOCAB = 50, FAKE_BLOCK_BYTES = BLOCK_TOKENS * 16 };

/* open() takes no model (NULL is fine).  Samples tokens 0 .. n_vocab - 1, n_vocab being the model's or FAKE_VOCAB. */
const struct backend_api *fake_backend(void);

/* What a sequence with tokens [n_tokens] must sample next. */
int32_t fake_token(const int32_t *tokens, uint32_t n_tokens, const struct sampling *sampling, uint32_t choice,
                   uint32_t index, uint32_t n_vocab);

/* The same for who asks token after token: the chain of tokens [from] .. [n_tokens - 1] behind that of those before (0: there are none). */
uint64_t fake_chain(uint64_t chain, const int32_t *tokens, uint32_t from, uint32_t n_tokens);
int32_t fake_token_after(uint64_t chain, const struct sampling *sampling, uint32_t choice, uint32_t index, uint32_t n_vocab);

/* Steps from now on take so long (it sleeps); and the step after n more fails with ST_SYSTEM (UINT32_MAX: none). */
void fake_backend_set_delay(struct backend *b, uint64_t step_ns);
void fake_backend_fail_after(struct backend *b, uint32_t n_steps);

#endif
