/* sequence.h - one completion that a worker computes: its tokens, its block table, and its place in the scheduler.
 *
 *   tokens   | prompt ............ | generated ..... | room up to tokens_max |
 *             0           n_prompt            n_tokens
 *   computed | ...................... n_computed     positions whose K and V lie in blocks
 *
 * There is no prefill phase and no decode phase: a sequence is behind by n_tokens - n_computed rows, and whenever a plan
 * lets it catch up, the last of these rows samples the next token.  A fresh prompt, one more token, a sequence that was
 * preempted and one that another worker began differ only in how far they are behind.
 *
 * Life:   NEW --add--> WAITING --admitted--> RUNNING --end--> ENDED
 *                         ^                    |
 *                         +-----preempted------+       blocks are given up; tokens stay
 *
 * The maker fills the first part and owns the memory; the scheduler owns the second part while the sequence is WAITING or
 * RUNNING.  A sequence holds blocks only while RUNNING. */
#ifndef SEQUENCE_H
#define SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "prefix_index.h"

enum sequence_state { SEQUENCE_NEW, SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_ENDED };

struct sequence {
    /* Filled by the maker before scheduler_add(); the scheduler changes only n_tokens. */
    void *owner;                  /* the maker's own */
    int32_t *tokens;              /* [tokens_max] */
    uint32_t n_prompt;            /* >= 1 */
    uint32_t n_tokens;            /* >= n_prompt: what another worker generated counts as generated */
    uint32_t tokens_max;          /* > n_tokens; the sequence ends at the latest when it is reached */
    uint32_t *blocks;             /* [ceil(tokens_max / BLOCK_TOKENS)] */
    struct prefix_scope scope;
    uint64_t session;             /* the session that keeps its blocks when it ends; 0: none */
    bool cache_off;               /* neither look for nor leave published blocks */
    bool interactive;
    bool paused;                  /* may be set at any time: enters no plan while it is */
    uint64_t fair_tag;            /* smaller first within a class */
    struct sequence *leader;      /* choice 0 of the same request, which shares its prompt's blocks; NULL for choice 0 */
    uint32_t choice;
    uint32_t event_slots_max;     /* ring slots that sampling one more token may take */
    const struct sampling *sampling;
    const struct logit_bias *bias; /* [n_bias] */
    uint32_t n_bias;
    const struct token_count *seen; /* [n_seen], kept up to date by the maker while a penalty is on */
    uint32_t n_seen;

    /* The scheduler's. */
    enum sequence_state state;
    uint32_t n_computed;
    uint32_t n_blocks;            /* held: blocks [0, n_blocks) of the table */
    uint32_t n_published;         /* of them, known to the index */
    uint32_t n_cached;            /* prompt tokens found in the cache when it was first admitted */
    uint32_t n_preemptions;
    uint32_t n_loaded_to;         /* blocks it had when it last waited for more of them from the shelf */
    bool was_admitted;
    bool in_plan;
    bool lent_interactive;        /* an interactive request waits for a prefix it computes */
    bool aged;                    /* batch, and went without progress too long: ranks as interactive until it ends */
    uint64_t serial;              /* order of arrival */
    uint64_t added_ns;
    uint64_t progress_ns;         /* when it last entered a plan, arrived, or was preempted */
    uint64_t admitted_ns;         /* first time */
    uint32_t n_ever_computed;     /* high water of n_computed, to tell work from work done again */
    struct sequence *waits_for;   /* the running sequence that computes a prefix of it, or NULL */
    uint32_t waits_until;         /* ... and is far enough when it has computed so many tokens */
    uint64_t waits_since_ns;      /* 0: has not waited yet */
    uint64_t prefix_wait_ns;      /* ... and how long in all, when that is over */
    struct sequence *next, *before; /* waiting list */
};

/* How many rows it is behind. */
static inline uint32_t sequence_behind(const struct sequence *s)
{
    return s->n_tokens - s->n_computed;
}

/* Counter of the random numbers for the token it samples next. */
static inline uint32_t sequence_index(const struct sequence *s)
{
    return s->n_tokens - s->n_prompt;
}

static inline uint32_t blocks_for(uint32_t n_tokens)
{
    return n_tokens / BLOCK_TOKENS + (n_tokens % BLOCK_TOKENS != 0);
}

#endif
