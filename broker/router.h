/* router.h - which worker a request goes to: the one where it is expected to be answered first.
 *
 * The broker has no tokenizer, so it routes on prompt bytes.  A prompt is cut into chunks; the hash of a chunk covers scope and
 * everything before it, so equal hashes mean equal beginnings of the same scope.  For every worker the router remembers, in a
 * table of fixed size, the chunks it has sent there: an approximation of that worker's prefix index, kept without asking it.
 * It forgets the oldest first, as the cache does, and everything when the worker's process is a new one.
 *
 * The estimate of a worker is the tokens it still has to compute plus those of this prompt it does not have.  The warmest worker
 * keeps the prompt until another one is better by ROUTER_MARGIN_TOKENS: without that, two equal workers would exchange prompts
 * for nothing; with it, a hot prefix spreads as soon as its worker has a queue.
 *
 * Pure: load comes in as an argument; no clock, no I/O, one thread; memory is taken by router_new(). */
#ifndef ROUTER_H
#define ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "span.h"
#include "status.h"

enum {
    ROUTER_FINE_BYTES = 64,     /* a chunk near the beginning of a prompt: about one KV block of English text */
    ROUTER_FINE_CHUNKS = 256,   /* so many of them, then */
    ROUTER_COARSE_BYTES = 1024, /* larger ones; what lies behind the last chunk does not take part in routing */
    ROUTER_CHUNKS_MAX = 512,
    ROUTER_TABLE_ENTRIES = 32768, /* chunks remembered for one worker */
    ROUTER_MARGIN_TOKENS = 64,
};

struct router_prefix {
    uint32_t n;
    uint64_t hash[ROUTER_CHUNKS_MAX];
};

struct router_candidate {
    bool usable;           /* serves the model, has room, is of the numerics id wanted */
    uint64_t load_tokens;  /* what it still has to do before this request is done with its prefill */
};

struct router; /* opaque */

MUST_CHECK enum status router_new(uint32_t n_workers, struct router **ret_router); /* ST_OK, ST_NOMEM */
void router_free(struct router *r);

/* Only whole chunks count: the rest of a prompt is its own. */
void router_prefix_of(const uint64_t scope[2], struct span prompt, struct router_prefix *ret_prefix);

/* Bytes of the prompt that the first n chunks cover. */
uint64_t router_chunk_bytes(uint32_t n_chunks);

/* A request with this prefix was given to the worker. */
void router_note(struct router *r, uint32_t worker, const struct router_prefix *p);

/* The worker's process is a new one: it knows nothing. */
void router_forget(struct router *r, uint32_t worker);

/* Chunks of the prefix that the worker is believed to have, from the first without a gap. */
uint32_t router_warm_chunks(const struct router *r, uint32_t worker, const struct router_prefix *p);

/* candidates [n_workers].  prompt_tokens: estimate for the whole prompt of prompt_bytes.  The worker's number; -1 when no candidate is
 * usable. */
int router_pick(const struct router *r, const struct router_prefix *p, uint64_t prompt_bytes, uint64_t prompt_tokens,
                const struct router_candidate *candidates);

#endif
