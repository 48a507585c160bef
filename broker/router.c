/* router.c - see router.h.
 *
 * The memory of a worker is a set-associative table like a processor's cache: four places a hash may stand in, the one used
 * longest ago gives way.  A radix tree over the bytes would know more, and would need an eviction of its own; a chain of hashes
 * over chunks gives the same answer to "how long is the common beginning" to within one chunk. */
#include "router.h"

#include <assert.h>
#include <stdlib.h>

#include <xxhash.h>

enum { WAYS = 4, SETS = ROUTER_TABLE_ENTRIES / WAYS };
_Static_assert((SETS & (SETS - 1)) == 0, "sets are found by masking");

struct entry {
    uint64_t hash; /* 0: empty */
    uint64_t used;
};

struct router {
    uint32_t n_workers;
    uint64_t tick;         /* counts notes: the age of entries */
    struct entry *entries; /* [n_workers][SETS][WAYS] */
};

enum status router_new(uint32_t n_workers, struct router **ret_router)
{
    struct router *r = calloc(1, sizeof(*r));

    if (r == NULL)
        return ST_NOMEM;
    r->n_workers = n_workers;
    r->entries = calloc((size_t)n_workers * ROUTER_TABLE_ENTRIES, sizeof(*r->entries));
    if (r->entries == NULL) {
        free(r);
        return ST_NOMEM;
    }
    *ret_router = r;
    return ST_OK;
}

void router_free(struct router *r)
{
    if (r == NULL)
        return;
    free(r->entries);
    free(r);
}

static size_t chunk_size(uint32_t i)
{
    return i < ROUTER_FINE_CHUNKS ? ROUTER_FINE_BYTES : ROUTER_COARSE_BYTES;
}

void router_prefix_of(const uint64_t scope[2], struct span prompt, struct router_prefix *ret_prefix)
{
    uint64_t chain = scope[0] ^ (scope[1] << 1 | scope[1] >> 63);
    size_t at = 0;
    uint32_t n = 0;

    while (n < ROUTER_CHUNKS_MAX && prompt.n - at >= chunk_size(n)) {
        chain = XXH3_64bits_withSeed(prompt.at + at, chunk_size(n), chain);
        at += chunk_size(n);
        ret_prefix->hash[n++] = chain != 0 ? chain : 1;
    }
    ret_prefix->n = n;
}

uint64_t router_chunk_bytes(uint32_t n_chunks)
{
    uint64_t fine = n_chunks < ROUTER_FINE_CHUNKS ? n_chunks : ROUTER_FINE_CHUNKS;

    return fine * ROUTER_FINE_BYTES + (n_chunks - fine) * ROUTER_COARSE_BYTES;
}

static struct entry *set_of(const struct router *r, uint32_t worker, uint64_t hash)
{
    return &r->entries[((size_t)worker * SETS + (hash >> 32 & (SETS - 1))) * WAYS];
}

void router_note(struct router *r, uint32_t worker, const struct router_prefix *p)
{
    assert(worker < r->n_workers);
    r->tick++;
    for (uint32_t i = 0; i < p->n; i++) {
        struct entry *set = set_of(r, worker, p->hash[i]), *place = set;

        for (unsigned way = 0; way < WAYS; way++) {
            if (set[way].hash == p->hash[i]) {
                place = &set[way];
                break;
            }
            if (set[way].used < place->used)
                place = &set[way];
        }
        *place = (struct entry){ p->hash[i], r->tick };
    }
}

void router_forget(struct router *r, uint32_t worker)
{
    assert(worker < r->n_workers);
    memset(&r->entries[(size_t)worker * ROUTER_TABLE_ENTRIES], 0, ROUTER_TABLE_ENTRIES * sizeof(*r->entries));
}

static bool knows(const struct router *r, uint32_t worker, uint64_t hash)
{
    const struct entry *set = set_of(r, worker, hash);

    for (unsigned way = 0; way < WAYS; way++)
        if (set[way].hash == hash)
            return true;
    return false;
}

uint32_t router_warm_chunks(const struct router *r, uint32_t worker, const struct router_prefix *p)
{
    uint32_t n = 0;

    assert(worker < r->n_workers);
    while (n < p->n && knows(r, worker, p->hash[n]))
        n++;
    return n;
}

int router_pick(const struct router *r, const struct router_prefix *p, uint64_t prompt_bytes, uint64_t prompt_tokens,
                const struct router_candidate *candidates)
{
    int best = -1, warmest = -1;
    uint64_t best_cost = 0, warmest_cost = 0, warmest_warm = 0;

    for (uint32_t w = 0; w < r->n_workers; w++) {
        if (!candidates[w].usable)
            continue;
        uint64_t warm_bytes = router_chunk_bytes(router_warm_chunks(r, w, p));
        uint64_t warm = prompt_bytes == 0 ? 0 : (uint64_t)((double)prompt_tokens * (double)warm_bytes / (double)prompt_bytes);
        if (warm > prompt_tokens)
            warm = prompt_tokens;
        uint64_t cost = candidates[w].load_tokens + (prompt_tokens - warm);

        if (best < 0 || cost < best_cost) {
            best = (int)w;
            best_cost = cost;
        }
        if (warm > warmest_warm || (warm > 0 && warm == warmest_warm && cost < warmest_cost)) {
            warmest = (int)w;
            warmest_cost = cost;
            warmest_warm = warm;
        }
    }
    return warmest >= 0 && warmest_cost < best_cost + ROUTER_MARGIN_TOKENS ? warmest : best;
}
